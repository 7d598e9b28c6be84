"""What a policy is: a class with a method `plan`, which may say and answer more.

A policy has no clock and no random numbers, and does not see the true contention. So the same
class runs in the simulator and on real ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

from simstrag.contract.block import Block
from simstrag.contract.plan import Plan
from simstrag.contract.view import View

S = TypeVar("S")

LANES = "ABC"
"""How much a policy may change training: nothing, some gradients, the algorithm."""


@runtime_checkable
class Policy(Protocol):
    """A policy: one class in one file, with its parameters as dataclass fields.

    A policy is deterministic and picklable.  Its parameters are frozen.  Its state is in plain
    objects and depends on the steps and versions of the view, never on the number of calls.  Names
    of attributes that are no parameters end in `_`, those of state among them.

    Optional members:
    summary: a method that returns counts, dict[str, int | float], for the run's summary.
    unmodelled: the reason why progress under later plans is unknown; None where it is known.
    simulated_only: the reason why real ranks cannot follow later plans; None where they can.
    oracle: True if the policy uses `View.truth`.
    reads_telemetry: True if the policy uses `View.telemetry`; else it is not recorded.
    lane: how much any plan may change training, for the answer of a comparison: A nothing, B some
        gradients late, left out or in reduced precision, C the algorithm.  Without it the answer
        goes by what the runs did.
    reduces_precision: True if a plan may ask for reduced precision, whose gain must then be known.
    """

    def plan(self, view: View) -> Plan:
        """The plan that is in force until the next review.

        Raises `PlanError` at the first call for a hint that it needs and the view lacks: hints do
        not come later, and real ranks then do not start.  Other facts that are None or NaN are not
        known yet: a later call goes on without them.
        """
        ...


@runtime_checkable
class JudgesBlocks(Policy, Protocol):
    """A policy that looks at many reviews at once while its plan stays.

    It decides as if `plan` had been called at every review.  Only a simulation shows blocks, and
    none to a policy that reads the truth or telemetry, nor where a manager sees its plans.

    Optional members:
    reviews_ahead: reviews that the next block may have, int; any number without it.
    """

    def first_change(self, block: Block) -> int:
        """How many reviews of a block, from the first on, certainly leave the plan as it is.

        Too low a number costs time alone.  After it the policy is as if it had been asked at these
        reviews.  `plan` is called at the next one, if the block has more; the policy may know its
        answer there already.
        """
        ...


@dataclass(slots=True)
class Learnt(Generic[S]):
    """Where a policy keeps a state that is made at its first plan, once the ranks are known.

    value: the state; None before.

    >>> Learnt[list[int]]().value is None
    True
    """

    value: S | None = None
