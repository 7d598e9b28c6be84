"""The contract between a policy and whoever drives it: facts in, a standing plan out.

A policy sees a `View` of measurable facts and returns a `Plan`.  It owns no clock, draws no
random number and never sees the true contention, so one class, unchanged, is driven by the
simulator and by torch.distributed.  A plan declares *whom the next update waits for* instead of
choosing among arrived gradients: a collective must know its members beforehand, and an engine
that knows whom it waits for need not wake for each arrival.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from simstrag.errors import PlanError

__all__ = [
    "ALL",
    "Hints",
    "Late",
    "Plan",
    "PlanError",
    "Policy",
    "Precision",
    "Quorum",
    "Review",
    "Via",
    "View",
]


class Via(enum.Enum):
    """How the gradients of a quorum become one update."""

    ALLREDUCE = "allreduce"
    """One collective among the contributors."""
    SERVER = "server"
    """Each gradient is one job of a first-in-first-out parameter server."""
    LEADER = "leader"
    """All-reduce inside the quorum, then one server job for its sum."""


class Late(enum.Enum):
    """What becomes of gradients beyond a quorum's count."""

    QUEUE = "queue"
    """They count for the next update."""
    DROP = "drop"
    """They are thrown away when done."""
    ABORT = "abort"
    """Their steps are cancelled as soon as the quorum closes."""


class Precision(enum.Enum):
    """The precision of a step; the workload says what the two words mean."""

    FULL = "full"
    AMP = "amp"


class _All(enum.Enum):
    ALL = "all"

    def __repr__(self) -> str:
        return "ALL"


ALL = _All.ALL
"""Every rank of the world, except the riders of the same quorum."""

Ranks = tuple[int, ...] | _All
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Quorum:
    """Whom one update waits for: a set of ranks and how many of their gradients.

    ranks: the members, or `ALL`.
    count: how many gradients make an update; None means every one.
    via: how they become an update.
    late: what becomes of gradients beyond the count (without a count there are none).
    riders: (child, parent) pairs; a child outside `ranks` joins its parent's gradient if it is
        ready, and is never waited for.

    >>> Quorum(count=1, via=Via.SERVER)
    Quorum(ranks=ALL, count=1, via=<Via.SERVER: 'server'>, late=<Late.QUEUE: 'queue'>, riders=())
    """

    ranks: Ranks = ALL
    count: int | None = None
    via: Via = Via.ALLREDUCE
    late: Late = Late.QUEUE
    riders: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.ranks is not ALL:
            ranks = tuple(sorted(int(rank) for rank in self.ranks))
            if not ranks:
                raise PlanError("a quorum needs at least one rank")
            if len(set(ranks)) < len(ranks):
                raise PlanError(f"a quorum names a rank twice: {ranks}")
            if ranks[0] < 0:
                raise PlanError(f"rank {ranks[0]} is negative")
            object.__setattr__(self, "ranks", ranks)
        riders = self.riders.items() if isinstance(self.riders, Mapping) else self.riders
        riders = tuple(sorted((int(child), int(parent)) for child, parent in riders))
        object.__setattr__(self, "riders", riders)
        children = [child for child, _ in riders]
        if len(set(children)) < len(children):
            raise PlanError(f"a rider has two parents: {riders}")
        if any(child < 0 or parent < 0 for child, parent in riders):
            raise PlanError(f"a rider or its parent is negative: {riders}")
        for child, parent in riders:
            if parent in children:
                raise PlanError(f"the parent {parent} of rider {child} is itself a rider")
            if self.ranks is not ALL and parent not in self.ranks:
                raise PlanError(f"the parent {parent} of rider {child} is not in the quorum")
            if self.ranks is not ALL and child in self.ranks:
                raise PlanError(f"rider {child} is a member of the quorum too")
        if self.count is not None:
            if self.count < 1:
                raise PlanError(f"a quorum's count must be at least 1, not {self.count}")
            if self.ranks is not ALL and self.count > len(self.ranks):
                raise PlanError(f"a quorum of {len(self.ranks)} ranks cannot count {self.count}")
        if self.ranks is not ALL:
            self._normalise(len(self.ranks))

    def _normalise(self, size: int) -> None:
        """Write equal quorums in one way: a count of everybody is no count, and none is late."""
        if self.count is None or self.count == size:
            object.__setattr__(self, "count", None)
            object.__setattr__(self, "late", Late.QUEUE)

    def resolved(self, world_size: int) -> Quorum:
        """This quorum with its ranks written out for a world of `world_size` ranks."""
        named = [rank for pair in self.riders for rank in pair]
        named += [] if self.ranks is ALL else self.ranks
        if named and max(named) >= world_size:
            raise PlanError(f"rank {max(named)} is beyond a world of {world_size} ranks")
        if self.ranks is not ALL:
            return self
        riders = {child for child, _ in self.riders}
        return replace(self, ranks=tuple(r for r in range(world_size) if r not in riders))

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks, of a resolved quorum."""
        assert self.ranks is not ALL, "resolve the plan first"
        return self.ranks

    @property
    def needed(self) -> int:
        """How many gradients close it, of a resolved quorum."""
        return len(self.members) if self.count is None else self.count


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
        for name in ("updates", "samples", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise PlanError(f"review: {name} must be positive, not {value}")

    def due(self, updates: int, samples: int, seconds: float) -> bool:
        """Whether so many updates, samples and seconds since the last review call for one."""
        return (
            (self.updates is not None and updates >= self.updates)
            or (self.samples is not None and samples >= self.samples)
            or (self.seconds is not None and seconds >= self.seconds)
        )


NEVER = Review()


@dataclass(frozen=True, slots=True)
class Plan:
    """Who computes how, and whom does the next update wait for.

    quorums: disjoint; each closes and re-arms on its own; a rank in none of them starts no step.
    fuse: LEADER jobs that wait together at the server become one update.
    bound: how many steps a rank may be ahead of the slowest; one for all, one per rank (a tuple
        or a dict of rank to bound, others unbounded), or None.
    precision: for steps that start from now on; one for all, or per rank (a tuple, or a dict of
        rank to precision, others full).
    suspects: whom the policy takes for stragglers; logged, never acted on by the engine.  None
        means that the policy makes no such judgement.
    review: when the policy wants to be asked again.

    Raises `PlanError` where the plan is impossible.

    >>> Plan(quorums=(Quorum((0, 1)), Quorum((1, 2))))
    Traceback (most recent call last):
    simstrag.errors.PlanError: rank 1 is in two quorums
    """

    quorums: tuple[Quorum, ...] = (Quorum(),)
    fuse: bool = False
    bound: int | tuple[int | None, ...] | Mapping[int, int] | None = None
    precision: Precision | tuple[Precision, ...] | Mapping[int, Precision] = Precision.FULL
    suspects: frozenset[int] | None = None
    review: Review = NEVER

    def __post_init__(self) -> None:
        object.__setattr__(self, "quorums", tuple(self.quorums))
        if not self.quorums:
            raise PlanError("a plan needs at least one quorum")
        if self.suspects is not None:
            object.__setattr__(self, "suspects", frozenset(self.suspects))
        if isinstance(self.bound, Sequence):
            object.__setattr__(self, "bound", tuple(self.bound))
        if isinstance(self.precision, Sequence):
            object.__setattr__(self, "precision", tuple(self.precision))
        self._check_bounds()
        self._check_quorums()

    def _check_bounds(self) -> None:
        bounds: Sequence[int | None]
        if isinstance(self.bound, Mapping):
            bounds = tuple(self.bound.values())
        elif isinstance(self.bound, tuple):
            bounds = self.bound
        else:
            bounds = (self.bound,)
        for bound in bounds:
            if bound is not None and bound < 0:
                raise PlanError(f"bound must be 0 or more, not {bound}")

    def _check_quorums(self) -> None:
        seen: set[int] = set()
        for quorum in self.quorums:
            if quorum.ranks is ALL and len(self.quorums) > 1:
                raise PlanError("a quorum of ALL ranks cannot stand beside another quorum")
            named = () if quorum.ranks is ALL else quorum.members
            for rank in (*named, *(child for child, _ in quorum.riders)):
                if rank in seen:
                    raise PlanError(f"rank {rank} is in two quorums")
                seen.add(rank)
            explicit = quorum.count if quorum.ranks is ALL else quorum.needed
            if self.bound is not None and explicit != 1:
                raise PlanError(
                    "a bound counts the steps of each rank and needs count=1 in every quorum, "
                    f"not {'every rank' if quorum.count is None else quorum.count}"
                )
        if len(self.quorums) > 1 and any(q.via is Via.ALLREDUCE for q in self.quorums):
            raise PlanError(
                "more than one quorum needs via SERVER or LEADER in each: "
                "all-reduces of separate groups would leave separate parameters"
            )

    def resolved(self, world_size: int) -> Plan:
        """This plan written out for a world of `world_size` ranks, so that equal plans are equal.

        Ranks, bounds and precisions become tuples; `count=len(ranks)` becomes None.
        Raises `PlanError` where the plan does not fit the world.
        """
        if self.suspects and max(self.suspects) >= world_size:
            raise PlanError(f"suspect {max(self.suspects)} is beyond a world of {world_size} ranks")
        return replace(
            self,
            quorums=tuple(quorum.resolved(world_size) for quorum in self.quorums),
            bound=None if self.bound is None else _bounds(self.bound, world_size),
            precision=_per_rank("precision", self.precision, world_size, Precision.FULL),
        )


def _bounds(
    bound: int | tuple[int | None, ...] | Mapping[int, int], world_size: int
) -> tuple[int | None, ...] | None:
    bounds = _per_rank("bound", cast("Any", bound), world_size, None)
    return None if all(b is None for b in bounds) else bounds


def _per_rank(
    name: str, value: T | tuple[T, ...] | Mapping[int, T], world_size: int, default: T
) -> tuple[T, ...]:
    if isinstance(value, Mapping):
        if value and not 0 <= min(value) <= max(value) < world_size:
            raise PlanError(f"{name} names a rank beyond a world of {world_size} ranks")
        return tuple(value.get(rank, default) for rank in range(world_size))
    if isinstance(value, tuple):
        if len(value) != world_size:
            raise PlanError(f"{name} has {len(value)} entries for a world of {world_size} ranks")
        return value
    return (value,) * world_size


@dataclass(frozen=True, slots=True)
class Hints:
    """What calibration knows beforehand; None where nobody measured it.

    amp_ratio: full over reduced-precision time of a whole uncontended step.
    host_seconds: the part of a clean step that reduced precision cannot shorten.
    clean_seconds: a clean full-precision step.
    amp_switch: seconds that a change of precision costs.
    """

    amp_ratio: float | None = None
    host_seconds: float | None = None
    clean_seconds: float | None = None
    amp_switch: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The facts a policy may use; arrays are read-only, rows are ranks.

    world_size: number of ranks, N.
    version: updates so far.  samples: samples applied so far.
    time: seconds on the driver's one clock.
    steps: shape (N,), how many local times of each rank are known so far.
    local_times: shape (N, W), the most recent local times in seconds, newest last, NaN where
        there is none yet.  A local time is start to finish of one step's computing: no queue,
        no service, no collective, no blocking.
    amp: shape (N, W), whether that step ran in reduced precision.
    lower_bound: shape (N, W), whether the step was cancelled, so that its time is only a bound.
    communication: shape (N, W), seconds of push plus pull of recent steps, NaN where none.
    hints: what calibration knows beforehand.
    """

    world_size: int
    version: int = 0
    samples: int = 0
    time: float = 0.0
    steps: npt.NDArray[np.int64] = None  # type: ignore[assignment]
    local_times: npt.NDArray[np.float64] = None  # type: ignore[assignment]
    amp: npt.NDArray[np.bool_] = None  # type: ignore[assignment]
    lower_bound: npt.NDArray[np.bool_] = None  # type: ignore[assignment]
    communication: npt.NDArray[np.float64] = None  # type: ignore[assignment]
    hints: Hints = Hints()

    def __post_init__(self) -> None:
        shape = (self.world_size, WINDOW)
        for name, default in (
            ("steps", np.zeros(self.world_size, dtype=np.int64)),
            ("local_times", np.full(shape, math.nan)),
            ("amp", np.zeros(shape, dtype=np.bool_)),
            ("lower_bound", np.zeros(shape, dtype=np.bool_)),
            ("communication", np.full(shape, math.nan)),
        ):
            value = getattr(self, name)
            array = default if value is None else np.array(value, dtype=default.dtype)
            array.flags.writeable = False
            object.__setattr__(self, name, array)


WINDOW = 16
"""How many recent local times a view holds per rank."""


@runtime_checkable
class Policy(Protocol):
    """Decides from a `View`; one file, one class, parameters as dataclass fields.

    A policy is deterministic and picklable.  State lives on the instance in names that end in
    `_` and is keyed on steps and versions of the view, never on the number of calls.

    One that counts what it did may have a method `summary(self) -> dict[str, int | float]` beside
    `plan`; its counts enter the run's summary.
    """

    def plan(self, view: View) -> Plan:
        """The plan that stands until the review it asks for."""
        ...
