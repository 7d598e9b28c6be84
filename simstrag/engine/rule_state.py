"""What the rules keep: gradients, what gathers and closes them, and the jobs of the server.

`simstrag.engine.rules` says what each of these is in the life of a gradient, and changes them.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from operator import attrgetter

from simstrag.contract import Late, Plan, Quorum
from simstrag.engine.messages import PushEnded, StepEnded
from simstrag.learning.noise_scale import NoiseScale


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a run: the first update at which every limit that is set is reached [23]."""

    updates: int | None = None
    samples: int | None = None
    progress: float | None = None

    def reached(self, version: int, learner: NoiseScale) -> bool:
        """Whether a run ends with this update."""
        return (
            (self.updates is None or version >= self.updates)
            and (self.samples is None or learner.samples >= self.samples)
            and (self.progress is None or (learner.progress or 0.0) >= self.progress)
        )


class State(enum.Enum):
    """What has become of a gradient so far; one that is applied or lost is not kept."""

    COMPUTING = enum.auto()
    PUSHING = enum.auto()
    READY = enum.auto()  # it waits for its quorum to close
    RIDING = enum.auto()  # of a rider or a tree: on board, or waits for the others of its message
    RAN_ON = enum.auto()  # it waits for the update of the contribution before it
    CLOSED = enum.auto()


STATES = {StepEnded: State.COMPUTING, PushEnded: State.PUSHING}
"""The state in which a gradient must be for these facts."""


@dataclass(eq=False, slots=True)
class Gradient:
    """The contribution that a rank computes or has computed since its last pull.

    step, samples: its last step.  kept: its earlier steps, as (step, samples) [6b].
    version, seen: updates and samples that were applied before its pull.
    rounds: closings of its group since its pull, none of which was pushed [11].
    run_on: its first steps, which its rank takes while its contribution before is under way [6c].
    ahead: the next contribution of its rank, which runs on while this one is under way [6c].
    finish: when its last step ended.  arrival: the time that orders it in its quorum.
    job: its job at the server.  cancelled: pushes of it that were cancelled.
    mark: DROP or JOIN, if it is late by the rule of the closing `missed` [14].
    riders: gradients on board of it.  aboard: the gradient that it is on board of [11a, 18].
    closing: the closing that it is in.
    """

    rank: int
    step: int
    version: int
    seen: int
    samples: int
    kept: tuple[tuple[int, int], ...]
    rounds: int
    run_on: int = 0
    ahead: Gradient | None = None
    state: State = State.COMPUTING
    finish: float = math.nan
    arrival: float = math.nan
    job: Job | None = None
    cancelled: int = 0
    mark: Late | None = None
    missed: Closing | None = None
    riders: tuple[Gradient, ...] = ()
    aboard: Gradient | None = None
    closing: Closing | None = None

    @property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """All its steps, as (step, samples)."""
        return (*self.kept, (self.step, self.samples))


BY_RANK = attrgetter("rank")
BY_ARRIVAL = attrgetter("arrival", "rank")


@dataclass(eq=False, slots=True)
class Gathering:
    """A quorum of the plan in force, and the gradients that it has gathered since it closed.

    ready: gradients that count, in order of (arrival, rank).
    joining: gradients that enter its next closing but do not count towards `needed` [14].
    """

    index: int
    quorum: Quorum
    needed: int
    ready: list[Gradient] = field(default_factory=list)
    joining: list[Gradient] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether it closes at once: with a grace, if it need not wait for any member [17a]."""
        if self.quorum.grace:
            return len(self.ready) + len(self.joining) == len(self.quorum.members)
        return len(self.ready) >= self.needed

    @property
    def expiry(self) -> float:
        """The end of its window or grace; infinity while there is none [17, 17a]."""
        opening = self.opening
        if opening is None:
            return math.inf
        return opening.arrival + (self.quorum.grace or self.quorum.window)

    @property
    def opening(self) -> Gradient | None:
        """The gradient with whose arrival its window or grace begins, once it is there."""
        first = self.needed if self.quorum.grace else 1
        return self.ready[first - 1] if len(self.ready) >= first else None


@dataclass(eq=False, slots=True)
class Closing:
    """Gradients on their way from their quorum to their update.

    plan: the plan in force when the quorum closed; its weights, damping and fuse apply.
    contributors: gradients of members, in the order of their arrivals.  riders: those on board.
    undone: jobs of contributors that the server has yet to do, via SERVER.
    waiting: ranks without a gradient that start again with its update [13].
    """

    number: int
    gathering: Gathering
    plan: Plan
    contributors: list[Gradient]
    riders: list[Gradient]
    undone: int = 0
    waiting: list[int] = field(default_factory=list)
    is_over: bool = False

    @property
    def quorum(self) -> Quorum:
        return self.gathering.quorum

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of its contributors, in order."""
        return tuple(sorted([g.rank for g in self.contributors]))

    @property
    def leader(self) -> int:
        return self.members[0]

    @property
    def among(self) -> tuple[int, ...]:
        """The ranks of its collective; if it is partial, all members of the quorum [11b]."""
        return self.quorum.members if self.quorum.partial else self.members


class JobState(enum.Enum):
    """The state of a job at the server."""

    WAITING = enum.auto()
    WITHDRAWN = enum.auto()
    IN_SERVICE = enum.auto()
    DONE = enum.auto()


@dataclass(eq=False, slots=True)
class Job:
    """Work of the server; owner: the gradient, or the closing whose sum, it serves."""

    owner: Gradient | Closing
    arrival: float
    state: JobState = JobState.WAITING

    @property
    def fuses(self) -> bool:
        """Whether it is served together with all others that fuse [11]."""
        return isinstance(self.owner, Closing) and self.owner.plan.fuse
