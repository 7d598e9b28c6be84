"""What a policy sees and answers: a `View` of measured facts in, a standing `Plan` out.

It does no I/O, reads no clock and draws no random numbers; `engine` and `ddp` carry plans out.
A policy imports what it needs from here, and compares times by `simstrag.contract.ties`.
Start with `policy`, then `plan`, `quorum` and `view`.
"""

from __future__ import annotations

from simstrag.contract.aggregation import Compensation, Outer, Screen
from simstrag.contract.block import UNLIMITED, Block
from simstrag.contract.plan import Damping, Plan, Precision, Review, Weigh
from simstrag.contract.policy import JudgesBlocks, Learnt, Policy
from simstrag.contract.quorum import ALL, Late, Quorum, Via
from simstrag.contract.view import WINDOW, Hints, OverlappingStep, View
from simstrag.errors import PlanError

__all__ = [
    "ALL",
    "UNLIMITED",
    "WINDOW",
    "Block",
    "Compensation",
    "Damping",
    "Hints",
    "JudgesBlocks",
    "Late",
    "Learnt",
    "Outer",
    "OverlappingStep",
    "Plan",
    "PlanError",
    "Policy",
    "Precision",
    "Quorum",
    "Review",
    "Screen",
    "Via",
    "View",
    "Weigh",
]
