"""What a policy answers: a standing plan, in four parts: wait, compute, apply, ask again.

A plan declares *whom the next update waits for* instead of choosing among arrived gradients: a
collective must know its members beforehand, and an engine that knows whom it waits for need not
wake for each arrival.  An impossible plan is refused when it is made.  What each field means,
exactly, is in docs/semantics.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from simstrag.checks import choice, real, whole, wholes
from simstrag.errors import PlanError
from simstrag.quorum import ALL, Quorum, Via
from simstrag.ties import TOLERANCE, argsort

__all__ = ["Damping", "Plan", "Precision", "Review", "Weigh"]


class Precision(enum.Enum):
    """The precision of a step; the workload says what the two words mean."""

    FULL = "full"
    AMP = "amp"


class Weigh(enum.Enum):
    """What a gradient weighs in its update."""

    WORLD = "world"
    """Every sample 1/(N*b), whoever sent it: x gradients make x/N of a full step."""
    MEMBERS = "members"
    """The mean over the members of the update: x gradients make a full step."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Damping:
    """What staleness leaves of a gradient's weight: a factor max(shift + staleness, 1)**-power.

    cutoff: a gradient this stale or staler is dropped instead of applied; None: none is.

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
        """By what the weight of a gradient of this staleness is multiplied."""
        return float(max(self.shift + staleness, 1) ** -self.power)

    def drops(self, staleness: int) -> bool:
        """Whether a gradient of this staleness is dropped."""
        return self.cutoff is not None and staleness >= self.cutoff


@dataclass(frozen=True, slots=True)
class Review:
    """When the policy is asked again: at the first update past any of these.

    updates: after so many updates; samples: after so many applied samples; seconds: after so
    much time; all since the last review.  on_block: also when a rank would block on the bound.
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
        """Whether so many updates, samples and seconds since the last review call for one."""
        return (
            (self.updates is not None and updates >= self.updates)
            or (self.samples is not None and samples >= self.samples)
            or (self.seconds is not None and seconds >= self.seconds)
        )


NEVER = Review()
UNDAMPED = Damping()


@dataclass(frozen=True, slots=True)
class Plan:
    """Who computes how, and whom does the next update wait for.

    quorums: disjoint; each closes and re-arms on its own; a rank in none of them starts no step.
    fuse: LEADER jobs that wait together at the server become one update.
    bound: how many steps a rank may be ahead of the slowest; one for all, one per rank (a tuple
        or a dict of rank to bound, others unbounded), or None.
    precision: for steps that start from now on; one for all, or per rank (a tuple, an array of
        whether it is reduced, or a dict of rank to precision, others full).
    batch: for steps that start from now on, each rank's share of its nominal batch (a tuple, an
        array, or a dict of rank to share, others 1); shares sum to N.  None: 1 each.
    deadline: seconds of computing after which steps that start from now on stop at the end of a
        micro-batch; None: they never do.
    average: ranks keep models of their own, and an update averages those of its contributors.
    weigh, damping: what a gradient weighs in its update.
    suspects: whom the policy takes for stragglers; logged, never acted on by the engine.  None
        means that the policy makes no such judgement.
    review: when the policy wants to be asked again.

    Whatever is given per rank is kept as a tuple, so that plans can be compared.
    Raises `PlanError` where the plan is impossible.

    >>> Plan(precision=np.array([False, True])) == Plan(precision=(Precision.FULL, Precision.AMP))
    True
    >>> Plan(quorums=(Quorum((0, 1)), Quorum((1, 2))))
    Traceback (most recent call last):
    simstrag.errors.PlanError: rank 1 is in two quorums
    """

    quorums: tuple[Quorum, ...] = (Quorum(),)
    fuse: bool = False
    bound: int | tuple[int | None, ...] | Mapping[int, int] | None = None
    precision: (
        Precision | tuple[Precision, ...] | Mapping[int, Precision] | npt.NDArray[np.bool_]
    ) = Precision.FULL
    batch: tuple[float, ...] | Mapping[int, float] | npt.NDArray[np.float64] | None = None
    deadline: float | None = None
    average: bool = False
    weigh: Weigh = Weigh.WORLD
    damping: Damping = UNDAMPED
    suspects: frozenset[int] | None = None
    review: Review = NEVER

    _in_amp: npt.NDArray[np.bool_] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    _shares: npt.NDArray[np.float64] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        self._check_kinds()
        self._check_precision()
        if isinstance(self.batch, np.ndarray):
            object.__setattr__(self, "_shares", np.array(self.batch, dtype=np.float64))
            object.__setattr__(self, "batch", tuple(self.batch.tolist()))
        for name in ("bound", "batch"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        if self.deadline is not None and not real("deadline", self.deadline) > 0:
            raise PlanError(f"deadline must be positive seconds, not {self.deadline:g}")
        if self.deadline == math.inf:
            object.__setattr__(self, "deadline", None)
        self._check_bounds()
        self._check_shares()
        self._check_quorums()
        self._check_average()

    def _check_kinds(self) -> None:
        quorums = () if isinstance(self.quorums, (Quorum, str)) else tuple(self.quorums)
        if not quorums or not all(isinstance(quorum, Quorum) for quorum in quorums):
            raise PlanError(f"a plan needs a tuple of one quorum or more, not {self.quorums!r}")
        object.__setattr__(self, "quorums", quorums)
        choice("weigh", self.weigh, Weigh)
        for name, kind in (("damping", Damping), ("review", Review)):
            if not isinstance(getattr(self, name), kind):
                raise PlanError(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")
        if self.suspects is not None:
            object.__setattr__(self, "suspects", frozenset(wholes("a suspect", self.suspects, 0)))

    def _check_precision(self) -> None:
        given: Any = self.precision
        if isinstance(given, np.ndarray) and given.dtype == np.bool_ and given.ndim == 1:
            object.__setattr__(self, "_in_amp", given.copy())
            written = [Precision.FULL] * len(given)
            for rank in np.flatnonzero(given).tolist():
                written[rank] = Precision.AMP
            object.__setattr__(self, "precision", tuple(written))
            return
        if isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, str):
            object.__setattr__(self, "precision", tuple(given))
        for precision in _values(self.precision):
            choice("precision", precision, Precision)

    def _check_bounds(self) -> None:
        wholes("bound", (bound for bound in _values(self.bound) if bound is not None), least=0)
        if self.bound is None:
            return
        for quorum in self.quorums:
            explicit = quorum.count if quorum.ranks is ALL else quorum.needed
            if explicit != 1:
                raise PlanError(
                    "a bound counts the steps of each rank and needs count=1 in every quorum, "
                    f"not {'every rank' if quorum.count is None else quorum.count}"
                )
            if quorum.private:
                raise PlanError("a bound cannot stand beside private steps or rounds")

    def _check_shares(self) -> None:
        shares = _values(self.batch)
        if set(map(type, shares)) == {float} and min(shares) > 0 and sum(shares) < math.inf:
            return  # what is a number, and no NaN, need not be asked one by one
        for share in shares:
            if not 0 < real("a batch share", share) < math.inf:
                raise PlanError(f"a batch share must be positive, not {share:g}")

    def _check_quorums(self) -> None:
        seen: set[int] = set()
        for quorum in self.quorums:
            if quorum.ranks is ALL and len(self.quorums) > 1:
                raise PlanError("a quorum of ALL ranks cannot stand beside another quorum")
            named = set() if quorum.ranks is ALL else set(quorum.members)
            named.update(child for child, _ in quorum.riders)
            if not seen.isdisjoint(named):
                raise PlanError(f"rank {min(seen & named)} is in two quorums")
            seen |= named
        apart = any(q.via is Via.ALLREDUCE for q in self.quorums) and not self.average
        if len(self.quorums) > 1 and apart:
            raise PlanError(
                "more than one quorum needs via SERVER or LEADER in each, or average=True: "
                "all-reduces of separate groups leave separate parameters"
            )

    def _check_average(self) -> None:
        if any(quorum.steps > 1 for quorum in self.quorums) and not self.average:
            raise PlanError("private steps need average=True: they leave separate parameters")
        if not self.average:
            return
        if any(q.via is not Via.ALLREDUCE or q.riders for q in self.quorums):
            raise PlanError("average=True needs via ALLREDUCE and no riders in every quorum")
        if self.weigh is not Weigh.WORLD:
            raise PlanError("average=True is the mean of the members already; leave weigh out")

    def resolved(self, world_size: int) -> Plan:
        """This plan written out for a world of `world_size` ranks, so that equal plans are equal.

        Ranks, bounds, precisions and shares become tuples; `count=len(ranks)` becomes None, and so
        do shares of 1 each.  Raises `PlanError` where the plan does not fit the world.
        """
        if self.suspects and max(self.suspects) >= world_size:
            raise PlanError(f"suspect {max(self.suspects)} is beyond a world of {world_size} ranks")
        return self._with(
            quorums=tuple(quorum.resolved(world_size) for quorum in self.quorums),
            bound=None if self.bound is None else _bounds(self.bound, world_size),
            precision=_per_rank("precision", self.precision, world_size, Precision.FULL),
            batch=None if self.batch is None else _shares(self.batch, world_size),
            _in_amp=np.full(world_size, self.precision is Precision.AMP)
            if isinstance(self.precision, Precision)
            else self._in_amp,
        )

    def _with(self, **changes: object) -> Plan:
        """This plan but for `changes`, which need no check: nothing of theirs is new."""
        changed = object.__new__(Plan)
        for name in FIELDS:
            object.__setattr__(changed, name, changes.get(name, getattr(self, name)))
        return changed

    @property
    def in_amp(self) -> npt.NDArray[np.bool_]:
        """Which ranks' next steps are in reduced precision, of a resolved plan; shape (N,)."""
        if self._in_amp is None:
            assert isinstance(self.precision, tuple), "resolve the plan first"
            found = np.array([own is Precision.AMP for own in self.precision])
            object.__setattr__(self, "_in_amp", found)
            return found
        return self._in_amp

    def samples(self, batch: int, world_size: int) -> tuple[int, ...]:
        """Samples of each rank's gradients, of a resolved plan: whole numbers that sum to N*batch.

        Shares are rounded by largest remainder, of equal remainders the lowest rank first.
        Raises `PlanError` where a rank would get no sample.

        >>> Plan(batch=(0.5, 0.75, 1.75)).samples(batch=2, world_size=3)
        (1, 2, 3)
        """
        return tuple(self.sizes(batch, world_size).tolist())

    def sizes(self, batch: int, world_size: int) -> npt.NDArray[np.int64]:
        """What `samples` says, as an array of shape (N,)."""
        if self.batch is None:
            return np.full(world_size, batch)
        assert isinstance(self.batch, tuple), "resolve the plan first"
        exact = (np.array(self.batch) if self._shares is None else self._shares) * batch
        sizes: npt.NDArray[np.int64] = np.floor(exact).astype(np.int64)
        left = world_size * batch - int(sizes.sum())
        sizes[argsort(1 + sizes - exact)[:left]] += 1
        if sizes.min() < 1:
            rank = int(np.argmin(sizes))
            raise PlanError(f"rank {rank} gets no sample of {self.batch[rank]:g} x {batch}")
        return sizes


FIELDS = tuple(field.name for field in fields(Plan))


def _values(given: Any) -> tuple[Any, ...]:
    """What a field of one value, or one per rank, holds."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return tuple(given.values())
    return given if isinstance(given, tuple) else (given,)


def _bounds(bound: Any, world_size: int) -> tuple[int | None, ...] | None:
    bounds = _per_rank("bound", bound, world_size, None)
    return None if all(b is None for b in bounds) else bounds


def _shares(batch: Any, world_size: int) -> tuple[float, ...] | None:
    shares = tuple(map(float, _per_rank("batch", batch, world_size, 1.0)))
    if abs(sum(shares) - world_size) > TOLERANCE * world_size:
        raise PlanError(f"batch shares must sum to {world_size}, not {sum(shares):.9g}")
    return None if all(share == 1 for share in shares) else shares


def _per_rank(name: str, value: Any, world_size: int, default: T) -> tuple[T, ...]:
    if isinstance(value, Mapping):
        if value and not 0 <= min(value) <= max(value) < world_size:
            raise PlanError(f"{name} names a rank beyond a world of {world_size} ranks")
        return tuple(value.get(rank, default) for rank in range(world_size))
    if isinstance(value, tuple):
        if len(value) != world_size:
            raise PlanError(f"{name} has {len(value)} entries for a world of {world_size} ranks")
        return value
    return (value,) * world_size
