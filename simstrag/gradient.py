"""What travels through a run: gradients, and the closings they enter."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from simstrag.fifo import Job
from simstrag.plan import Plan
from simstrag.quorum import Late, Quorum, Via

__all__ = ["Closing", "Gradient", "State"]


class State(enum.Enum):
    """Where a gradient is between the pull it starts with and the update it ends in."""

    COMPUTING = enum.auto()
    PUSHING = enum.auto()
    READY = enum.auto()
    """Arrived and not closed over yet."""
    ASHORE = enum.auto()
    """A rider's, finished and waiting for its parent's next finish."""
    ABOARD = enum.auto()
    """A rider's, bound to its parent's gradient."""
    KEPT = enum.auto()
    """Finished on a private model; it goes where the gradient that carries it goes."""
    CLOSED = enum.auto()
    GONE = enum.auto()
    """Applied, dropped or aborted."""


@dataclass(slots=True, eq=False)
class Gradient:
    """One step of one rank, from its pull to its fate; times in seconds."""

    rank: int
    step: int
    version: int
    seen: int
    """Samples applied when it pulled."""
    samples: int
    """Samples of its own."""
    share: float
    """What it was to compute of the nominal batch."""
    amp: bool
    pulled: float
    got: float
    """When the parameters had come: `pulled` plus the pull's time."""
    start: float
    finish: float
    arrival: float = math.nan
    pushed: float = 0.0
    """Seconds its push took, or had taken when it was called off."""
    state: State = State.COMPUTING
    job: Job | None = None
    closing: Closing | None = None
    marked: Closing | None = None
    """The DROP or JOIN closing that it was too late for."""
    aboard: Gradient | None = None
    riders: list[Gradient] = field(default_factory=list)
    kept: list[Gradient] = field(default_factory=list)
    """Of the same contribution, oldest first."""
    rounds: int = 0
    """Rounds of its group that the kept ones have been through."""

    @property
    def whole(self) -> list[Gradient]:
        """The contribution that it completes, oldest first."""
        return [*self.kept, self]

    @property
    def joins(self) -> bool:
        """Whether it enters the next closing, for being late, without counting towards it."""
        return self.marked is not None and self.marked.quorum.late is Late.JOIN


@dataclass(slots=True, eq=False)
class Closing:
    """A quorum that has what it needs, until its update."""

    quorum: Quorum
    plan: Plan
    """The one in force at the closing."""
    contributors: list[Gradient]
    time: float
    refiled: int
    """How often gradients had been filed anew when it closed."""
    carriers: list[Gradient] = field(init=False)
    """The contributors and their riders, each with what it keeps."""
    waiting: list[int] = field(default_factory=list)
    """Ranks whose abort or drop waits for the update."""
    undone: int = 0
    """Jobs of contributors that the server has not done yet (SERVER)."""
    busy: float = 0.0
    """Seconds of communication so far: collective, push and service, without queueing."""
    updated: bool = False

    def __post_init__(self) -> None:
        riders = [rider for g in self.contributors for rider in g.riders]
        self.carriers = self.contributors + riders

    @property
    def fuse(self) -> bool:
        """Whether its job may become one with others'."""
        return self.plan.fuse

    @property
    def members(self) -> tuple[int, ...]:
        """Who takes part in its collective."""
        return tuple(sorted(g.rank for g in self.contributors))

    @property
    def last_round(self) -> bool:
        """Whether its group has been through all rounds that come before a push."""
        return max(g.rounds for g in self.contributors) + 1 >= self.quorum.rounds

    @property
    def leader(self) -> int:
        """The lowest contributor, who speaks for a quorum at the server."""
        return min(gradient.rank for gradient in self.contributors)

    def pullers(self) -> Iterator[tuple[int, int | None]]:
        """Each rank that the update lets go, and whose link carries its pull; None: it is free."""
        via, leader = self.quorum.via, self.leader
        for rank in (*(g.rank for g in self.carriers), *self.waiting):
            if via is Via.ALLREDUCE:
                yield rank, None
            else:
                yield rank, rank if via is Via.SERVER else leader
