"""What a driver tells the rules, and what they decide: see `simstrag.engine.rules`.

A fact has an `order`, (class, key): a driver tells facts by (time, order), which is rule 15.
"""

from __future__ import annotations

from typing import NamedTuple

from simstrag.quorum import Via

FINISH, CLOSE, END, EXPIRE, SERVE = range(5)
"""Classes of facts in the order of one instant [15]."""

# -- facts ---------------------------------------------------------------------------------------


class StepEnded(NamedTuple):
    """A rank has computed a gradient of so many samples."""

    rank: int
    step: int
    samples: int

    @property
    def order(self) -> tuple[int, int]:
        return FINISH, self.rank


class PushEnded(NamedTuple):
    """The gradient of a rank has arrived at the server."""

    rank: int
    step: int

    @property
    def order(self) -> tuple[int, int]:
        return FINISH, self.rank


class SumArrived(NamedTuple):
    """The sum of a closing has arrived at the server, pushed by its leader."""

    leader: int
    closing: int

    @property
    def order(self) -> tuple[int, int]:
        return FINISH, self.leader


class Enough(NamedTuple):
    """A quorum has as many gradients as it needs."""

    quorum: int

    @property
    def order(self) -> tuple[int, int]:
        return CLOSE, self.quorum


class CollectiveEnded(NamedTuple):
    """The collective of a closing has ended; or it needs none, its jobs being done."""

    closing: int

    @property
    def order(self) -> tuple[int, int]:
        return END, self.closing


class JobEnded(NamedTuple):
    """The server has done a job."""

    job: int

    @property
    def order(self) -> tuple[int, int]:
        return END, self.job


class WindowExpired(NamedTuple):
    """The window of a quorum is over."""

    quorum: int

    @property
    def order(self) -> tuple[int, int]:
        return EXPIRE, self.quorum


class ServerFree(NamedTuple):
    """The server may take its next job."""

    @property
    def order(self) -> tuple[int, int]:
        return SERVE, 0


Fact = (
    StepEnded | PushEnded | SumArrived | Enough | CollectiveEnded | JobEnded | WindowExpired
    | ServerFree
)  # fmt: skip

# -- decisions -----------------------------------------------------------------------------------


class Start(NamedTuple):
    """A rank begins a step of so many samples on the parameters of `version`.

    amp: in reduced precision.  private: on a model of its own that it has already, without a pull.
    puller: the rank whose link carries its pull; None where the pull is free.
    switches: whether its precision is another than that of its last step.
    """

    rank: int
    step: int
    version: int
    amp: bool
    samples: int
    private: bool
    puller: int | None
    switches: bool


class Push(NamedTuple):
    """A rank pushes its gradient to the server; `PushEnded` follows."""

    rank: int
    step: int


class CallOff(NamedTuple):
    """The push of a rank is called off: nobody needs it any more."""

    rank: int
    step: int


class Reduction(NamedTuple):
    """A collective begins; `CollectiveEnded` follows.

    members: whose gradients are summed up, in order of rank.  riders: the others whose gradients
    go with those of a member.  average: it is models that are averaged.
    """

    number: int
    members: tuple[int, ...]
    riders: tuple[int, ...]
    via: Via
    average: bool


class PushSum(NamedTuple):
    """A leader pushes the sum of its closing to the server; `SumArrived` follows."""

    leader: int
    closing: int


class Serve(NamedTuple):
    """The server begins a job; `JobEnded` follows.

    closings: whose sums it applies; none where it is the gradient of one rank.
    union: contributors, where there are several closings.
    """

    job: int
    closings: tuple[int, ...]
    union: tuple[int, ...]


class Wake(NamedTuple):
    """The rules want to be told this fact at that time."""

    time: float
    fact: Fact


class Applied(NamedTuple):
    """A gradient in its update, computed from the parameters of `version`."""

    rank: int
    step: int
    version: int
    samples: int
    weight: float
    closing: int


class Update(NamedTuple):
    """The parameters become `version`; gradients in order of rank and step."""

    version: int
    gradients: tuple[Applied, ...]


class Lost(NamedTuple):
    """A gradient that comes to nothing: `dropped`, or `aborted` before it was whole.

    closing: that in which it was too stale; None if it was lost on its way there.
    """

    rank: int
    step: int
    fate: str
    closing: int | None


class Ask(NamedTuple):
    """The policy is due: `Rules.replan` must follow."""


class Finished(NamedTuple):
    """Every limit is reached."""


Decision = (
    Start | Push | CallOff | Reduction | PushSum | Serve | Wake | Update | Lost | Ask | Finished
)
