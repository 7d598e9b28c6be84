"""What the server tells ranks to do, and what its desk tells the server itself."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simstrag.engine.live import Facts
from simstrag.policy import Hints, Policy

__all__ = [
    "Abort",
    "Apply",
    "Compute",
    "Deliver",
    "Finish",
    "Handover",
    "How",
    "Job",
    "Keep",
    "Loss",
    "Order",
    "Reduce",
]


@dataclass(frozen=True)
class Job:
    """What one of the ranks brings: what is trained, and who decides.

    packed: parameters and optimizer, as `parameters.packed` made them.  facts: where the books go
    on from.  batch: samples of a gradient at a share of 1.  hand_over: whether the ranks can do
    without the server under a plan that does not need it.  journal: makes the record that the
    server goes on with, if it has none of its own.  refusal: why there is no reduced precision;
    empty where there is.
    """

    packed: bytes
    policy: Policy
    batch: int
    name: str = ""
    hints: Hints | None = None
    facts: Facts | None = None
    hand_over: bool = False
    journal: Callable[[], Any] | None = None
    refusal: str = ""


class Loss(NamedTuple):
    """A rank that was lost, when in seconds of the books, and why."""

    rank: int
    at: float
    reason: str


class How(enum.Enum):
    """What a rank does with the gradient of a step."""

    PUSH = "push"
    """Send it to the server."""
    READY = "ready"
    """Keep it and say so."""
    GROUP = "group"
    """Sum it up inside the group during backward; the lowest rank sends the sum."""


@dataclass(frozen=True, slots=True)
class Compute:
    """A step of so many samples from the parameters of `version`.

    amp: in reduced precision.  pull: these parameters come with the order; without it the rank goes
    on with what it has.  passed: they come with the order of the lowest of `members`, which passes
    them on.  local: the rank applies its gradient to its own model, by its own optimizer, before it
    says that it is ready.
    members, weight: of `How.GROUP`, who sums up, and by what this rank multiplies its gradient.
    applied: samples of all ranks so far.
    """

    rank: int
    step: int
    version: int
    amp: bool
    samples: int
    how: How
    pull: bool = True
    passed: bool = False
    local: bool = False
    members: tuple[int, ...] = ()
    weight: float = 1.0
    applied: int = 0


@dataclass(frozen=True, slots=True)
class Reduce:
    """All-reduce among `members`, each multiplying by its own of `weights`; then say `reduced`.

    Gradients, or models where `average`; the lowest member sends the sum of gradients.  A gradient
    that is not finite counts as zeros.  What goes in must be kept: if a member dies meanwhile, the
    order comes again without it.
    """

    rank: int
    closing: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    average: bool


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send the gradient that you said was ready: by a new plan the server sums up."""

    rank: int


@dataclass(frozen=True, slots=True)
class Handover:
    """From now on all ranks do without the server, each with a copy of the policy and the books.

    The parameters come with it, and the state of the optimizer, as `state_dict` has it; not where
    ranks come `apart`, each with a model and an optimizer of its own, which they are to average.
    """

    rank: int
    facts: Facts
    policy: Policy
    apart: bool = False
    optimizer: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finish:
    """All have left on whom the plan waits; this rank, which it leaves out, can leave too."""

    rank: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Give up that step as soon as possible, and say that it is withdrawn."""

    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class Apply:
    """For the server: the parameters become `version`.

    parts: whose buffer, multiplied by what, in order of rank; the buffer may hold the sum of a
    group.  missing: whose gradients are booked but not in it, being not finite or lost on the way.
    gradients: (rank, step, version it was computed from, weight), as booked.
    """

    version: int
    parts: tuple[tuple[int, float], ...]
    missing: tuple[int, ...]
    gradients: tuple[tuple[int, int, int, float], ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """For the server: keep the present parameters for this rank, whose next step begins there."""

    rank: int


Order = Compute | Reduce | Deliver | Handover | Finish | Abort | Apply | Keep
