"""Messages between ranks and the server, and the coordinator's commands to both.

A rank receives a command, carries it out, sends one answer, and receives the next command.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec import Struct

from simstrag.contract import Hints, Outer
from simstrag.ddp.server.shared_buffer import MemoryHandle
from simstrag.ddp.server.validation_gradient import ValidationSpec


class Message(Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """What travels between a rank and the server: a typed row, whose types are checked on arrival.

    It begins with the name of its class.
    """


class BulkMessage(Message, frozen=True, kw_only=True):
    """A message with plain data of any size, from `plain_data.dump`, which travels behind it."""

    bulk: bytes = b""


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


class JobSpec(BulkMessage, frozen=True):
    """Model, optimizer and policy of a training; one of the ranks sends it before it begins.

    policy: as `pack_policy` pickled it: of all messages of a rank, this alone has a pickle.
    batch: samples of a gradient at a share of 1.
    facts: state of the engine to go on from, as JSON.
    hand_over: whether ranks leave the server under a plan that does not need it.
    journal: the folder for the journal of the server, if that has none yet; empty for none.
    refusal: why there is no reduced precision; empty where there is.
    validation: where gradients of the server's own come from; None where they are not needed.
    worker: the word for a worker, "rank" or "replica".
    bulk: parameters, optimizer, and the server's state in a checkpoint, from `pack_optimizer`.
    """

    policy: bytes
    batch: int
    name: str = ""
    hints: Hints | None = None
    facts: dict[str, Any] | None = None
    hand_over: bool = False
    journal: str = ""
    refusal: str = ""
    validation: ValidationSpec | None = None
    worker: str = "rank"


class Begin(Message, frozen=True):
    """Ready to train `count` parameters of a torch type, such as `float32`."""

    count: int
    dtype: str
    memory: MemoryHandle | None


class StepReport(Message, frozen=True):
    """The end of a step; a gradient, or the sum of a group, is in the buffer or in shared memory.

    version: version of the parameters from which the gradient was computed.
    samples: samples of the gradient.
    seconds: computing time, as the policy sees it.
    begun, ended: start and end, on the monotonic clock of the rank.
    finite: whether the gradient is finite.
    settings: the optimizer's settings as plain data, if they have changed.
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


class Withdrawal(Message, frozen=True):
    """The step was aborted, and is given up."""

    step: int


class GradientDelivery(Message, frozen=True):
    """The gradient that had stayed at the rank, or the sum of an all-reduce, is in the buffer."""

    closing: int | None = None


class ReductionEnd(Message, frozen=True):
    """An all-reduce has ended here; the lowest member sends the sum of gradients."""

    closing: int


class CollectiveFailure(Message, frozen=True):
    """An all-reduce has failed here; `closing` is None for a group's during backward."""

    closing: int | None


class StateRequest(Message, frozen=True):
    """Asks for the `ServerState` of a checkpoint."""


class Leave(Message, frozen=True):
    """The rank leaves; with a reason it has failed, and counts as lost."""

    reason: str


FromRank = (
    JobSpec | Begin | StepReport | Withdrawal | GradientDelivery | ReductionEnd | CollectiveFailure
    | StateRequest | Leave
)  # fmt: skip
"""All that a server takes from a rank."""


# -- commands -----------------------------------------------------------------------------------


class Compute(Message, frozen=True):
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


class Reduce(Message, frozen=True):
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


class Deliver(Message, frozen=True):
    """Send what stayed at the rank: the sum of an all-reduce, or else its gradient.

    closing: the all-reduce, the last of its group where there were rounds before it; None for the
        gradient, which under a new plan the server sums.
    """

    rank: int
    closing: int | None = None


class Handover(Message, frozen=True):
    """Go on without the server, with a copy of the policy and of the engine's state, as JSON.

    The parameters come along, and `optimizer`, the bulk of the `CommandMessage`: its `state_dict`.
    Neither comes where ranks are `apart`, each with a model and an optimizer of its own, which they
    average first.  The policy is a pickle of the server.
    """

    rank: int
    facts: dict[str, Any]
    policy: bytes
    apart: bool = False
    optimizer: bytes = b""


class Finish(Message, frozen=True):
    """Leave: the plan leaves this rank out, and all ranks that it needs have left."""

    rank: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Give up that step as soon as possible, and withdraw it."""

    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class Apply:
    """A command to the server: make the parameters of `version`.

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


# -- from the server to a rank ------------------------------------------------------------------


class JobRequest(Message, frozen=True):
    """Asks a rank that is ready for the job: the one that would have sent it has ended."""


class Welcome(Message, frozen=True):
    """The rank may begin; `shared` says whether the server has mapped its memory."""

    shared: bool


class CommandMessage(BulkMessage, frozen=True):
    """The next command, and the ranks that were lost since the last one."""

    command: RankCommand
    lost: Sequence[LostRank]


class ServerState(BulkMessage, frozen=True):
    """The server's part of a checkpoint: the engine's facts as JSON, and the policy as a pickle.

    Facts are None, and the policy is empty, after the end of a job.
    bulk: a dict of optimizer, parameters (flat), and states of outer steps and of corrections.
    """

    facts: dict[str, Any] | None
    policy: bytes


class Fault(Message, frozen=True):
    """The job is over; `is_input` says whether the user can correct the reason."""

    is_input: bool
    reason: str


FromServer = JobRequest | Welcome | CommandMessage | ServerState | Fault
"""All that a rank takes from its server."""
