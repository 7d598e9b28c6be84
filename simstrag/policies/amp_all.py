"""Bulk-synchronous, with every rank in reduced precision from the first step to the last.

It answers what a selective use of reduced precision has to be compared with: if lower precision
costs no accuracy, using it everywhere is at least as fast as using it for stragglers only.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740.
"""

from dataclasses import dataclass
from functools import cached_property

from simstrag.policy import Plan, Precision, View


@dataclass(frozen=True)
class AmpAll:
    """Automatic mixed precision on all ranks; it has no parameters."""

    @cached_property
    def plan_(self) -> Plan:
        return Plan(precision=Precision.AMP)

    def plan(self, view: View) -> Plan:
        return self.plan_
