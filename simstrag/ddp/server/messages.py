"""Messages between ranks and the server, and the coordinator's commands to both.

A rank receives a command, carries it out, sends one answer, and receives the next command.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from simstrag.aggregation import Outer
from simstrag.ddp.server.shared_buffer import MemoryHandle
from simstrag.ddp.server.validation_gradient import ValidationSpec
from simstrag.engine.live import Facts
from simstrag.policy import Hints, Policy


@dataclass(frozen=True)
class JobSpec:
    """Model, optimizer and policy of a training; one of the ranks brings it.

    packed: parameters and optimizer, as `pack_optimizer` made them.
    batch: samples of a gradient at a share of 1.
    facts: state of the engine to go on from.
    hand_over: whether ranks leave the server under a plan that does not need it.
    journal: makes the journal of the server, if that has none yet.
    refusal: why there is no reduced precision; empty where there is.
    outer: the state of the server's outer steps in a checkpoint; None where there is none.
    corrected: the same of the server's corrections of gradients.
    validation: where gradients of the server's own come from; None where they are not needed.
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
    outer: Mapping[str, Any] | None = None
    corrected: Mapping[str, Any] | None = None
    validation: ValidationSpec | None = None


class LostRank(NamedTuple):
    """A rank that was lost: when, in seconds since the run began, and why."""

    rank: int
    at: float
    reason: str


class GradientRoute(enum.Enum):
    """A rank's way of handling the gradient of a step."""

    PUSH = "push"
    """Send it to the server."""
    READY = "ready"
    """Keep it and report the end of the step."""
    GROUP = "group"
    """All-reduce it in the group during backward; the lowest rank sends the sum."""


# -- from a rank to the server ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Ready to train `count` parameters; one of the ranks sends the job."""

    count: int
    dtype: torch.dtype
    memory: MemoryHandle | None
    job: JobSpec | None


class StepReport(NamedTuple):
    """The end of a step; a gradient, or the sum of a group, is in the buffer or in shared memory.

    version: version of the parameters from which the gradient was computed.
    samples: samples of the gradient.
    seconds: computing time, as the policy sees it.
    begun, ended: start and end, on the monotonic clock of the rank.
    finite: whether the gradient is finite.
    settings: the optimizer's settings, if they have changed.
    members: a group's members by rank: computing seconds, whether the gradient is finite, and its
        squared norm.
    squared_norm: of a gradient that stays at the rank, where `Compute` asks for it; else NaN.
    """

    route: GradientRoute
    step: int
    version: int
    samples: int
    seconds: float
    begun: float = math.nan
    ended: float = math.nan
    loss: float = math.nan
    finite: bool = True
    settings: bytes = b""
    members: Mapping[int, tuple[float, bool, float]] | None = None
    squared_norm: float = math.nan


class Withdrawal(NamedTuple):
    """The step was aborted, and is given up."""

    step: int


class GradientDelivery(NamedTuple):
    """The gradient that had stayed at the rank, or the sum of an all-reduce, is in the buffer."""

    closing: int | None = None


class ReductionEnd(NamedTuple):
    """An all-reduce has ended here; the lowest member sends the sum of gradients."""

    closing: int


class CollectiveFailure(NamedTuple):
    """An all-reduce has failed here; `closing` is None for a group's during backward."""

    closing: int | None


class StateRequest(NamedTuple):
    """Asks for the state of a checkpoint; the answer is a dict."""


class Leave(NamedTuple):
    """The rank leaves; with a reason it has failed, and counts as lost."""

    reason: str


# -- from the server to a rank ------------------------------------------------------------------


class Welcome(NamedTuple):
    """The rank may begin; `shared` says whether the server has mapped its memory."""

    shared: bool


class CommandMessage(NamedTuple):
    """The next command, and the ranks that were lost since the last one."""

    command: RankCommand
    lost: Sequence[LostRank]


class Fault(NamedTuple):
    """The job is over; `is_input` says whether the user can correct the reason."""

    is_input: bool
    reason: str


# -- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute a step of `samples` samples from the parameters of `version`.

    amp: whether to compute in reduced precision.
    pull: whether the parameters come along; else the rank goes on with its own.
    passed: whether they come to the lowest of `members` alone, which broadcasts them.
    local: whether the rank updates a model of its own before it reports the step.
    outer, fragments: the optimizer of the models' mean, and the parts of the model that it steps.
    served: whether that is done at the server; the rank then brings to an update, or delivers, what
        its private steps took from the parameters that it pulled.
    takes: the fragment of the parameters that come along which the rank takes over; None for all.
    prepares: whether a contribution ends with this step, and the rank runs on from it.
    is_round: whether the last all-reduce ended a round of the rank's group: it steps its model by
        the sum, and goes on from there.
    members, weight: for `GradientRoute.GROUP`, the group and the factor of this rank's gradient.
    applied: samples applied by all ranks so far.
    pause: seconds that the rank waits before it computes.
    measures: whether the squared norm of the gradient is wanted, unless it is pushed.
    """

    rank: int
    step: int
    version: int
    amp: bool
    samples: int
    route: GradientRoute
    pull: bool = True
    passed: bool = False
    local: bool = False
    outer: Outer | None = None
    fragments: int = 1
    served: bool = False
    takes: int | None = None
    prepares: bool = False
    is_round: bool = False
    members: tuple[int, ...] = ()
    weight: float = 1.0
    applied: int = 0
    pause: float = 0.0
    measures: bool = False


@dataclass(frozen=True, slots=True)
class Reduce:
    """All-reduce gradients, or models if `average`, among `members`; each has its own weight.

    A member of weight 0 sends zeros; it may have no gradient, and compute.
    fragment: the part of the model whose mean an outer optimizer takes.
    beside: whether it is carried out while the rank computes.
    stays: whether the server asks for the sum if it needs it, and gets none at once.
    again: whether it is commanded anew, in a new process group: at some member it has failed.

    A gradient that is not finite counts as zeros. The rank keeps its input: if a member dies, the
    command comes again without that member. It takes a mean over when the update has been made.
    """

    rank: int
    closing: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    average: bool
    fragment: int = 0
    beside: bool = False
    stays: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send what stayed at the rank: the sum of an all-reduce, or else its gradient.

    closing: the all-reduce, the last of its group where there were rounds before it; None for the
        gradient, which under a new plan the server sums.
    """

    rank: int
    closing: int | None = None


@dataclass(frozen=True, slots=True)
class Handover:
    """Go on without the server, with a copy of the policy and of the engine's state.

    The parameters come along, and `optimizer`, its `state_dict`; neither comes where ranks are
    `apart`, each with a model and an optimizer of its own, which they average first.
    """

    rank: int
    facts: Facts
    policy: Policy
    apart: bool = False
    optimizer: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finish:
    """Leave: the plan leaves this rank out, and all ranks that it needs have left."""

    rank: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Give up that step as soon as possible, and withdraw it."""

    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class Apply:
    """For the server: make the parameters of `version`.

    parts: (rank, factor) of each buffer that is added, in ascending ranks; the buffer of a rank
    may hold the sum of its group.
    missing: ranks whose gradients are booked but not added: not finite, or lost on their way.
    gradients: (rank, step, version it was computed from, weight) of each, as booked.
    outer: the optimizer of the parameters, where the buffers hold what private steps took from
        them; None where they hold gradients.
    fragments: parts of the parameters, of which it steps one in turn.
    norms: rank, samples and squared norm of each gradient; None where it is in the rank's buffer.
        Empty where one is unknown.
    measures: whether it is one of the updates whose gradients the server measures.
    """

    version: int
    parts: tuple[tuple[int, float], ...]
    missing: tuple[int, ...]
    gradients: tuple[tuple[int, int, int, float], ...]
    outer: Outer | None = None
    fragments: int = 1
    norms: tuple[tuple[int, int, float | None], ...] = ()
    measures: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """For the server: keep the present parameters, from which this rank's next step begins."""

    rank: int


RankCommand = Compute | Reduce | Deliver | Handover | Finish
Command = RankCommand | Abort | Apply | Keep
