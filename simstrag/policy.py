"""The contract between a policy and whoever drives it: facts in, a standing plan out.

A policy sees a `View` of measurable facts and returns a `Plan`.  It owns no clock, draws no
random number and never sees the true contention, so one class, unchanged, is driven by the
simulator and by torch.distributed.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from simstrag.errors import PlanError
from simstrag.plan import Damping, Plan, Precision, Review, Weigh
from simstrag.quorum import ALL, Late, Quorum, Via
from simstrag.view import WINDOW, Hints, View

__all__ = [
    "ALL",
    "WINDOW",
    "Damping",
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
    "Weigh",
]


@runtime_checkable
class Policy(Protocol):
    """Decides from a `View`; one file, one class, parameters as dataclass fields.

    A policy is deterministic and picklable.  State lives on the instance in names that end in
    `_` and is keyed on steps and versions of the view, never on the number of calls.

    Beside `plan` a policy may have: a method `summary(self) -> dict[str, int | float]`, whose
    counts enter the run's summary; `unmodelled`, why no target can measure it, where only its later
    plans show that (the reason, or None); `simulated_only`, the same of why real training cannot
    follow it; `oracle = True`, if it is one and may see `View.truth`.
    """

    def plan(self, view: View) -> Plan:
        """The plan that stands until the review it asks for."""
        ...
