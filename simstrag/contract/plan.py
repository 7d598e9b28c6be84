"""A policy's answer: a standing plan of what to wait for, compute and apply, and when to review.

A plan declares *which ranks the next update waits for*, and does not choose among arrived
gradients: a collective must know its members beforehand, and an engine that knows them need not
wake for each arrival.  An impossible plan is refused at construction.  docs/semantics.md defines
each field.

The fields of `Plan` stand in groups, and most policies set one to three fields.  The groups are:
the ranks that an update waits for (quorums), how ranks compute, private models and outer steps,
weights and treatment of gradients, which ranks the policy suspects, and its next review.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, MutableSequence, Sequence, Set
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.contract.aggregation import Compensation, Outer, Screen
from simstrag.contract.checks import choice, real, whole, wholes
from simstrag.contract.quorum import ALL, Quorum, Via, ascends
from simstrag.contract.ranks import (
    bounds_by_rank,
    by_rank,
    check_length,
    even_samples,
    samples_of_shares,
    values_of,
)
from simstrag.contract.ties import TOLERANCE
from simstrag.errors import PlanError


class Precision(enum.Enum):
    """The precision of a step; the workload defines the two."""

    FULL = "full"
    """The workload's full precision."""
    AMP = "amp"
    """The workload's reduced precision."""


class Weigh(enum.Enum):
    """The weight of a gradient in its update."""

    WORLD = "world"
    """1/(N*b) for every sample: x gradients make x/N of a full step."""
    MEMBERS = "members"
    """The mean over the members of the update: x gradients make a full step."""


PRECISIONS = np.array([Precision.FULL, Precision.AMP], dtype=object)
NO_RANK: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Damping:
    """The factor of a stale gradient's weight, max(shift + staleness, 1)**-power.

    power: how fast the weight falls; 0 leaves it as it is.
    shift: added to the staleness, in updates.
    cutoff: the staleness from which a gradient is dropped; None drops none.

    >>> Damping(power=1).factor(staleness=4)
    0.25
    """

    power: float = 0.0
    shift: float = 0.0
    cutoff: int | None = None

    def __post_init__(self) -> None:
        for name in ("power", "shift"):
            if not 0 <= real(f"damping: {name}", getattr(self, name)) < math.inf:
                raise PlanError(f"damping: {name} must be 0 or more, not {getattr(self, name):g}")
        if self.cutoff is not None:
            whole("damping: cutoff", self.cutoff, least=1)

    def factor(self, staleness: int) -> float:
        """The factor of the weight of a gradient of this staleness."""
        return float(max(self.shift + staleness, 1) ** -self.power)

    def drops(self, staleness: int) -> bool:
        """Whether a gradient of this staleness is dropped."""
        return self.cutoff is not None and staleness >= self.cutoff


@dataclass(frozen=True, slots=True)
class Review:
    """When the engine asks the policy again: at the first update at which any limit is reached.

    updates: updates since the last review.
    samples: samples applied since the last review.
    seconds: time since the last review.
    on_block: whether a rank that would block on the bound causes a review too.
    """

    updates: int | None = None
    samples: int | None = None
    seconds: float | None = None
    on_block: bool = False

    def __post_init__(self) -> None:
        for name in ("updates", "samples"):
            if getattr(self, name) is not None:
                whole(f"review: {name}", getattr(self, name), least=1)
        if self.seconds is not None and not real("review: seconds", self.seconds) > 0:
            raise PlanError(f"review: seconds must be positive, not {self.seconds:g}")

    def due(self, updates: int, samples: int, seconds: float) -> bool:
        """Whether a review is due, this many updates, samples and seconds after the last one."""
        return (
            (self.updates is not None and updates >= self.updates)
            or (self.samples is not None and samples >= self.samples)
            or (self.seconds is not None and seconds >= self.seconds)
        )


NEVER = Review()
UNDAMPED = Damping()
TOGETHER = (Quorum(),)
"""The quorums of a plan that states none: all ranks all-reduce."""
OPTIONAL = {"outer": Outer, "compensation": Compensation, "screen": Screen}


@dataclass(frozen=True, slots=True)
class Plan:
    """How each rank computes, and which ranks the next update waits for.

    quorums: disjoint; each closes and re-arms independently. A rank in none starts no step.
    fuse: whether LEADER jobs that wait together at the server become one update.
    bound: steps that a rank may be ahead of the slowest; one for all, one per rank (a tuple, or a
        dict of rank to bound, others unbounded), or None.

    precision: of steps that start from now on: one for all, or one per rank. The latter is a tuple,
        a boolean array (True for reduced), or a dict of rank to precision, others full.
    batch: each rank's share of its nominal batch, of steps that start from now on: a tuple, an
        array, or a dict of rank to share, others 1. Shares sum to N, and only a rank in no quorum
        may have 0. None is 1 each.
    deadline: seconds of computing after which steps that start from now on stop at the end of a
        micro-batch; None for no deadline.
    pause: seconds that a rank waits between its pull and its step, while this plan is in force.

    average: whether ranks keep models of their own, which an update averages.
    outer: the optimizer that takes the mean of these models as its gradient; None is the mean.
    fragments: parts of the model, of which an update averages one, in turn.

    weigh, damping: the weight of a gradient in its update.
    compensation, screen: what is done to a gradient before it is applied.

    suspects: the ranks that the policy considers stragglers (a set, or an array); logged only.
        None means that the policy makes no such judgement.
    review: when to ask the policy again.

    A list or an array of values per rank reads as a tuple; that of an array is made from a copy of
    it when it is first read.  Plans are compared by their values.
    Raises `PlanError` where the plan is impossible.

    >>> Plan(precision=np.array([False, True])) == Plan(precision=(Precision.FULL, Precision.AMP))
    True
    >>> Plan(quorums=(Quorum((0, 1)), Quorum((1, 2))))
    Traceback (most recent call last):
    simstrag.errors.PlanError: rank 1 is in two quorums
    """

    # the ranks that an update waits for
    quorums: tuple[Quorum, ...] = TOGETHER
    fuse: bool = False
    bound: int | tuple[int | None, ...] | Mapping[int, int] | None = None
    # how ranks compute
    precision: Precision | tuple[Precision, ...] | Mapping[int, Precision] | Bools = Precision.FULL
    batch: tuple[float, ...] | Mapping[int, float] | Floats | None = None
    deadline: float | None = None
    pause: float = 0.0
    # private models and outer steps
    average: bool = False
    outer: Outer | None = None
    fragments: int = 1
    # the weight and treatment of gradients
    weigh: Weigh = Weigh.WORLD
    damping: Damping = UNDAMPED
    compensation: Compensation | None = None
    screen: Screen | None = None
    # judgement and next review
    suspects: frozenset[int] | Ints | None = None
    review: Review = NEVER

    _in_amp: Bools | None = field(default=None, init=False, repr=False, compare=False)

    _shares: Floats | None = field(default=None, init=False, repr=False, compare=False)

    _sizes: tuple[int, int, Ints] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    _suspected: Ints | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_kinds()
        if self.precision is not Precision.FULL:
            self._check_precision(self.precision)
        if self.bound is not None or self.batch is not None:
            self._keep_tuples()
        if self.deadline is not None:
            if not real("deadline", self.deadline) > 0:
                raise PlanError(f"deadline must be positive seconds, not {self.deadline:g}")
            if self.deadline == math.inf:
                object.__setattr__(self, "deadline", None)
        if not 0 <= real("pause", self.pause) < math.inf:
            raise PlanError(f"pause must be 0 or more seconds, not {self.pause:g}")
        self._check_bounds()
        self._check_shares()
        self._check_quorums()
        self._check_average()

    if not TYPE_CHECKING:  # called for a field that was not read yet, of a plan made from arrays

        def __getattr__(self, name: str) -> Any:
            if name == "precision":
                value = tuple(PRECISIONS.take(self._in_amp).tolist())
            elif name == "batch":
                value = tuple(self._shares.tolist())
            elif name == "suspects":
                value = frozenset(self._suspected.tolist())
            else:
                raise AttributeError(f"a Plan has no {name}")
            object.__setattr__(self, name, value)
            return value

    # -- checks, of impossible values and of fields together ---------------------------------------

    def _keep_tuples(self) -> None:
        """Keep sequences as tuples, an array of shares as it is until its tuple is read."""
        for name in ("bound", "batch"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.batch, np.ndarray):
            if self.batch.dtype == np.float64 and self.batch.ndim == 1:
                object.__setattr__(self, "_shares", self.batch.copy())
                object.__delattr__(self, "batch")
            else:
                shares = self.batch.tolist()
                shares = tuple(shares) if isinstance(shares, list) else shares
                object.__setattr__(self, "batch", shares)

    def _check_kinds(self) -> None:
        listed = isinstance(self.quorums, (tuple, Iterable)) and not isinstance(self.quorums, str)
        quorums = tuple(self.quorums) if listed else ()
        if not quorums or [quorum for quorum in quorums if not isinstance(quorum, Quorum)]:
            raise PlanError(f"a plan needs a tuple of one quorum or more, not {self.quorums!r}")
        object.__setattr__(self, "quorums", quorums)
        choice("weigh", self.weigh, Weigh)
        if not isinstance(self.damping, Damping):
            raise PlanError(f"damping must be a Damping, not {self.damping!r}")
        if not isinstance(self.review, Review):
            raise PlanError(f"review must be a Review, not {self.review!r}")
        for name, kind in OPTIONAL.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise PlanError(f"{name} must be a {kind.__name__}, not {value!r}")
        if self.suspects is not None:
            self._check_suspects(self.suspects)

    def _check_suspects(self, suspects: Iterable[int] | Ints) -> None:
        if isinstance(suspects, np.ndarray) and ascends(suspects):
            object.__setattr__(self, "_suspected", suspects.copy())
            object.__delattr__(self, "suspects")
            return
        if isinstance(suspects, str) or not np.iterable(suspects):
            raise PlanError(f"suspects must be several ranks, not {suspects!r}")
        object.__setattr__(self, "suspects", frozenset(wholes("a suspect", suspects, 0)))

    def _check_precision(self, value: Any) -> None:
        if isinstance(value, Precision):
            return
        if isinstance(value, np.ndarray) and value.dtype == np.bool_ and value.ndim == 1:
            object.__setattr__(self, "_in_amp", value.copy())
            object.__delattr__(self, "precision")
            return
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, Sequence) and not isinstance(value, str):
            object.__setattr__(self, "precision", tuple(value))
        for precision in values_of(self.precision):
            choice("precision", precision, Precision)

    def _check_bounds(self) -> None:
        if self.bound is None:
            return
        wholes("bound", (bound for bound in values_of(self.bound) if bound is not None), least=0)
        for quorum in self.quorums:
            explicit = quorum.count if quorum.ranks is ALL else quorum.needed
            if explicit != 1 or quorum.parents:
                raise PlanError(
                    "a bound counts the steps of each rank and needs count=1 in every quorum, "
                    f"not {'every rank' if quorum.count is None else quorum.count}"
                )
            if quorum.private:
                raise PlanError("a bound cannot stand beside private steps or rounds")

    def _check_shares(self) -> None:
        known = self._shares  # an array; others are checked one by one
        if (
            known is not None
            and len(known)
            and np.minimum.reduce(known) > 0
            and np.maximum.reduce(known) < math.inf
        ):
            return
        shares = values_of(self.batch)
        for share in shares:
            if not 0 <= real("a batch share", share) < math.inf:
                raise PlanError(f"a batch share must be positive, not {share:g}")
        if 0 not in shares:
            return
        ranks = self.batch if isinstance(self.batch, Mapping) else range(len(shares))
        none = {rank for rank, share in zip(ranks, shares, strict=True) if share == 0}
        for quorum in self.quorums:
            if quorum.ranks is ALL or not none.isdisjoint(_named(quorum)):
                raise PlanError("a batch share must be positive, not 0, of a rank in a quorum")

    def _check_quorums(self) -> None:
        if len(self.quorums) > 1:
            self._check_disjoint()
            if not self.average and [q for q in self.quorums if q.via is Via.ALLREDUCE]:
                raise PlanError(
                    "more than one quorum needs via SERVER or LEADER in each, or average=True: "
                    "all-reduces of separate groups leave separate parameters"
                )
        damps = self.damping.power or self.damping.cutoff is not None
        if damps and any(quorum.parents for quorum in self.quorums):
            raise PlanError(
                "damping cannot stand beside parents: a server cannot weigh or drop one gradient "
                "of a parent's sum"
            )

    def _check_disjoint(self) -> None:
        if any(quorum.ranks is ALL for quorum in self.quorums):
            raise PlanError("a quorum of ALL ranks cannot stand beside another quorum")
        if not any(quorum.riders for quorum in self.quorums):
            members = np.concatenate([quorum.indices for quorum in self.quorums])
            members.sort()
            if not np.count_nonzero(members[1:] == members[:-1]):
                return
        named = [*itertools.chain.from_iterable(map(_named, self.quorums))]
        if len(set(named)) < len(named):
            rank = min(rank for rank, count in Counter(named).items() if count > 1)
            raise PlanError(f"rank {rank} is in two quorums")

    def _check_average(self) -> None:
        fragments = self.fragments
        if fragments != 1:
            fragments = whole("fragments", fragments, least=1)
            object.__setattr__(self, "fragments", fragments)
        if not self.average:
            if [quorum for quorum in self.quorums if quorum.steps != 1]:
                raise PlanError("private steps need average=True: they leave separate parameters")
            if self.outer is not None or fragments > 1:
                raise PlanError("outer and fragments need average=True")
            return
        if any(q.via is Via.LEADER or q.riders or q.parents or q.partial for q in self.quorums):
            raise PlanError(
                "average=True needs via ALLREDUCE or SERVER in every quorum, and neither riders, "
                "parents nor partial"
            )
        if fragments > 1 and (len(self.quorums) > 1 or self.quorums[0].via is not Via.ALLREDUCE):
            raise PlanError("fragments need one quorum via ALLREDUCE")
        if self.weigh is not Weigh.WORLD or self.damping.power:
            raise PlanError(
                "average=True is the mean of the members by their samples; leave weigh and the "
                "power of damping out"
            )
        if self.compensation is not None or self.screen is not None:
            raise PlanError("compensation and screen are of gradients, not of averaged models")

    # -- what a policy may call --------------------------------------------------------------------

    @staticmethod
    def standing(*quorums: Quorum, **fields: Any) -> Plan:
        """A plan, the same object for the same arguments: an engine resolves it once.

        >>> Plan.standing(Quorum(count=1), bound=3) is Plan.standing(Quorum(count=1), bound=3)
        True
        """
        try:
            return _standing(*quorums, **fields)
        except TypeError:  # a list, a set, an array or a dict cannot be looked up as it is
            hashable = {name: _hashable(value) for name, value in fields.items()}
            if all(hashable[name] is value for name, value in fields.items()):
                raise
        return _standing(*quorums, **hashable)

    # -- what engines call and read ----------------------------------------------------------------

    def resolved(self, world_size: int) -> Plan:
        """This plan with explicit values for `world_size` ranks, so that equal plans are equal.

        Ranks, bounds, precisions and shares read as tuples; `count=len(ranks)` becomes None, and so
        do shares of 1 each.  Raises `PlanError` where the plan does not fit the world.
        """
        if len(self.suspected) and self.suspected[-1] >= world_size:
            last = self.suspected[-1]
            raise PlanError(f"suspect {last} is beyond a world of {world_size} ranks")
        changes: dict[str, object] = {
            "quorums": _together(world_size)
            if self.quorums is TOGETHER
            else tuple([quorum.resolved(world_size) for quorum in self.quorums])
        }
        if self.bound is not None:
            changes["bound"] = bounds_by_rank(self.bound, world_size)
        if self._in_amp is not None:
            check_length("precision", self._in_amp, world_size)
        elif isinstance(self.precision, Precision):
            changes["precision"], changes["_in_amp"] = _uniform(self.precision, world_size)
        else:
            precision = by_rank("precision", self.precision, world_size, Precision.FULL)
            changes["precision"] = precision
        if self._shares is not None or self.batch is not None:
            changes |= self._resolved_shares(world_size)
        return self._with(changes)

    def _resolved_shares(self, world_size: int) -> dict[str, object]:
        """Shares that sum to the number of ranks, as an array; None for 1 each."""
        shares = self._shares
        if shares is None:
            shares = np.array(by_rank("batch", self.batch, world_size, 1.0), dtype=np.float64)
        check_length("batch", shares, world_size)
        total = float(np.add.reduce(shares))
        if abs(total - world_size) > TOLERANCE * world_size:
            raise PlanError(f"batch shares must sum to {world_size}, not {total:.9g}")
        if shares[0] == 1 and np.count_nonzero(shares == 1) == world_size:
            return {"batch": None, "_shares": None}
        return {"batch": UNREAD, "_shares": shares}

    def paused(self, seconds: float) -> Plan:
        """This plan with a longer pause.

        >>> Plan(pause=1.0).paused(0.5).pause
        1.5
        """
        return self._with({"pause": self.pause + seconds})

    def without(self, lost: Set[int], world_size: int) -> Plan | None:
        """This resolved plan without lost ranks, resolved; None where none of its ranks is left.

        The others of a quorum still make updates.

        >>> plan = Plan((Quorum((0, 1, 2), count=2),)).resolved(3)
        >>> [quorum.members for quorum in plan.without({1}, 3).quorums]
        [(0, 2)]
        """
        quorums = [quorum.without(lost) for quorum in self.quorums]
        left = tuple(quorum for quorum in quorums if quorum is not None)
        return self._with({"quorums": left}).resolved(world_size) if left else None

    def changes(self, old: Plan) -> set[str]:
        """The fields whose values differ from those of another plan.

        >>> Plan(fuse=True).changes(Plan())
        {'fuse'}
        """
        pairs = zip(STATED, stated(self), stated(old), strict=True)
        changed = {name for name, new, before in pairs if new is not before and new != before}
        for name, array in ARRAYS.items():
            new, before = getattr(self, array), getattr(old, array)
            if new is None or before is None:
                if getattr(self, name) != getattr(old, name):
                    changed.add(name)
            elif new is not before and (len(new) != len(before) or np.count_nonzero(new != before)):
                changed.add(name)
        return changed

    def _with(self, changes: Mapping[str, object]) -> Plan:
        """This plan with changes, which are not checked again."""
        changed, put = object.__new__(Plan), object.__setattr__
        for name, value in zip(PLAIN, plain(self), strict=True):
            put(changed, name, value)
        for name, array in ARRAYS.items():
            if getattr(self, array) is None and name not in changes:
                put(changed, name, getattr(self, name))
        for name, value in changes.items():
            if value is not UNREAD:
                put(changed, name, value)
        return changed

    @property
    def in_amp(self) -> Bools:
        """Whether each rank's next step is in reduced precision, of a resolved plan; shape (N,)."""
        if self._in_amp is None:
            assert isinstance(self.precision, tuple), "resolve the plan first"
            in_amp = np.array([precision is Precision.AMP for precision in self.precision])
            object.__setattr__(self, "_in_amp", in_amp)
            return in_amp
        return self._in_amp

    @property
    def suspected(self) -> Ints:
        """`suspects` as an array, ascending; empty for None."""
        if self._suspected is None:
            if self.suspects is None:
                return NO_RANK
            suspected = np.array(sorted(self.suspects), dtype=np.int64)
            object.__setattr__(self, "_suspected", suspected)
            return suspected
        return self._suspected

    @property
    def judges(self) -> bool:
        """Whether `suspects` is not None."""
        return self._suspected is not None or self.suspects is not None

    @property
    def shares(self) -> Floats | None:
        """`batch` of a resolved plan as an array of shape (N,)."""
        return self._shares

    def samples(self, batch: int, world_size: int) -> tuple[int, ...]:
        """Samples of each rank's gradients, of a resolved plan; they sum to N*batch.

        Shares are rounded by largest remainder; of tied remainders the lowest rank comes first.
        Raises `PlanError` where a rank with a share would get no sample.

        >>> Plan(batch=(0.5, 0.75, 1.75)).samples(batch=2, world_size=3)
        (1, 2, 3)
        """
        return tuple(self.sizes(batch, world_size).tolist())

    def sizes(self, batch: int, world_size: int) -> Ints:
        """The same as `samples`, as an array of shape (N,), read-only."""
        if self._shares is None and self.batch is None:
            return even_samples(batch, world_size)
        if self._sizes is None or self._sizes[:2] != (batch, world_size):
            sizes = self._rounded(batch, world_size)
            sizes.flags.writeable = False
            object.__setattr__(self, "_sizes", (batch, world_size, sizes))
            return sizes
        return self._sizes[2]

    def _rounded(self, batch: int, world_size: int) -> Ints:
        shares = np.array(self.batch) if self._shares is None else self._shares
        sizes = samples_of_shares(shares, batch, world_size)
        if np.minimum.reduce(sizes) < 1 and len(
            short := np.flatnonzero((sizes < 1) & (shares > 0))
        ):
            rank = int(short[0])
            raise PlanError(f"rank {rank} gets no sample of {shares[rank]:g} x {batch}")
        return sizes


COMPARED = tuple(field.name for field in fields(Plan) if field.compare)
ARRAYS = {"precision": "_in_amp", "batch": "_shares", "suspects": "_suspected"}
"""Fields that may stand in an array, their tuple or set unread."""
PLAIN = tuple(field.name for field in fields(Plan) if field.name not in ARRAYS)
STATED = tuple(name for name in COMPARED if name not in ARRAYS)
plain, stated = attrgetter(*PLAIN), attrgetter(*STATED)
UNREAD = object()


@dataclass(frozen=True, slots=True)
class _Keyed:
    """An argument of `Plan.standing` that has no hash, with its contents as the key."""

    key: Hashable
    value: Any = field(compare=False)


@functools.lru_cache(maxsize=64, typed=True)
def _standing(*quorums: Quorum, **fields: Any) -> Plan:
    given = {name: v.value if isinstance(v, _Keyed) else v for name, v in fields.items()}
    return Plan(quorums or (Quorum(),), **given)


def _hashable(value: Any) -> Any:
    """An argument of `Plan.standing` in a form that can be looked up, as it is now."""
    if isinstance(value, np.ndarray):
        return _Keyed((value.dtype.str, value.shape, tuple(value.ravel().tolist())), value)
    if isinstance(value, Mapping):
        return _Keyed(frozenset(value.items()), dict(value))
    if isinstance(value, Set):
        return frozenset(value)
    return tuple(value) if isinstance(value, MutableSequence) else value


def _named(quorum: Quorum) -> tuple[int, ...]:
    """The ranks that a quorum names: members and riders, of `ALL` the riders alone."""
    members = () if quorum.ranks is ALL else quorum.members
    return (*members, *(child for child, _ in quorum.riders)) if quorum.riders else members


@functools.lru_cache(maxsize=64)
def _together(world_size: int) -> tuple[Quorum, ...]:
    """`TOGETHER`, resolved."""
    return tuple([quorum.resolved(world_size) for quorum in TOGETHER])


@functools.lru_cache(maxsize=64)
def _uniform(precision: Precision, world_size: int) -> tuple[tuple[Precision, ...], Bools]:
    """One precision of all ranks, by rank; and whether each is in reduced precision."""
    in_amp = np.full(world_size, precision is Precision.AMP)
    in_amp.flags.writeable = False
    return (precision,) * world_size, in_amp
