"""What a driver tells the rules, and what they decide: see `simstrag.engine.rules`.

A driver tells facts in the order of (time, turn, fact): facts of one turn are compared by their
first field, which is the rank, the quorum, or the number in order of start that rule 15 asks for.
"""

from __future__ import annotations

from typing import NamedTuple

from simstrag.contract import Via

# -- facts ---------------------------------------------------------------------------------------


class StepEnded(NamedTuple):
    """A rank has computed a gradient of so many samples."""

    rank: int
    step: int
    samples: int


class PushEnded(NamedTuple):
    """The gradient of a rank has arrived at the server, or at its parent in a tree.

    cancelled: pushes of it that were cancelled before this one.
    """

    rank: int
    step: int
    cancelled: int = 0


class SumArrived(NamedTuple):
    """The sum of a closing has arrived at the server, pushed by its leader."""

    leader: int
    closing: int


class Enough(NamedTuple):
    """A quorum has as many gradients as it needs."""

    quorum: int


class CollectiveEnded(NamedTuple):
    """The collective of a closing has ended; or it needs none, its jobs being done."""

    closing: int


class JobEnded(NamedTuple):
    """The server has done a job."""

    job: int


class WindowExpired(NamedTuple):
    """The window of a quorum is over."""

    quorum: int


class ServerFree(NamedTuple):
    """The server may take its next job."""


Fact = (
    StepEnded | PushEnded | SumArrived | Enough | CollectiveEnded | JobEnded | WindowExpired
    | ServerFree
)  # fmt: skip
TURNS: dict[type[Fact], int] = {
    StepEnded: 0, PushEnded: 0, SumArrived: 0,
    Enough: 1,
    CollectiveEnded: 2, JobEnded: 2,
    WindowExpired: 3,
    ServerFree: 4,
}  # fmt: skip
"""The order of facts within one instant [15]."""

# -- decisions -----------------------------------------------------------------------------------


class Start(NamedTuple):
    """A rank begins a step of so many samples.

    version: of the parameters that it pulls, or pulled for the first step of its contribution.
    amp: whether in reduced precision.
    private: whether on a model of its own or of its group, without a pull.
    puller: the rank whose link carries the pull; None where the pull is free.
    switches: whether its precision differs from that of its last step.
    closing: the closing whose collective has made the model of its group; None without one.
    pause: seconds that it waits after its pull.
    relay: the parent that pulls before it and passes the parameters on, in a tree.
    """

    rank: int
    step: int
    version: int
    amp: bool
    samples: int
    private: bool
    puller: int | None
    switches: bool
    closing: int | None
    pause: float
    relay: int | None = None


class Push(NamedTuple):
    """A rank pushes its gradient to the server, or to its parent; the same `PushEnded` follows."""

    rank: int
    step: int
    cancelled: int = 0


class CallOff(NamedTuple):
    """The push of a rank is cancelled, and no `PushEnded` follows."""

    rank: int
    step: int


class Reduction(NamedTuple):
    """A collective begins; `CollectiveEnded` follows.

    members: the ranks that contribute a gradient.  riders: the ranks whose gradients are on board.
    average: whether models are averaged, not gradients summed.
    among: the ranks that take part, with or without a gradient [11b].
    fragments: equal parts of the model, of which it carries one [11b].
    rounds: rounds of the quorum, which goes on without a push after all but the last [11].
    """

    number: int
    members: tuple[int, ...]
    riders: tuple[int, ...]
    via: Via
    average: bool
    among: tuple[int, ...]
    fragments: int = 1
    rounds: int = 1


class PushSum(NamedTuple):
    """A leader pushes the sum of its closing to the server; `SumArrived` follows."""

    leader: int
    closing: int


class Serve(NamedTuple):
    """The server begins a job; `JobEnded` follows.

    closings: the closings whose sums it applies; none where it serves the gradient of one rank.
    union: the contributors of all of them, if there are several.
    """

    job: int
    closings: tuple[int, ...]
    union: tuple[int, ...]


class Wake(NamedTuple):
    """The driver shall tell this fact at that time."""

    time: float
    fact: Fact


class Applied(NamedTuple):
    """A gradient in its update; version, seen: updates and samples applied before its pull."""

    rank: int
    step: int
    version: int
    seen: int
    samples: int
    weight: float
    closing: int


class Update(NamedTuple):
    """The parameters become `version`; gradients in order of rank and step."""

    version: int
    gradients: tuple[Applied, ...]


class Lost(NamedTuple):
    """A gradient is not applied: it is `dropped`, or `aborted` with its step or push.

    closing: the closing whose cutoff dropped it; None if it was not closed.
    """

    rank: int
    step: int
    fate: str
    closing: int | None


class Save(NamedTuple):
    """A checkpoint is due; the action goes on when it is taken [19c]."""


class Ask(NamedTuple):
    """The policy is due: `Rules.replan` must follow."""


class Finished(NamedTuple):
    """Every limit is reached."""


Decision = (
    Start
    | Push
    | CallOff
    | Reduction
    | PushSum
    | Serve
    | Wake
    | Update
    | Lost
    | Save
    | Ask
    | Finished
)
