"""Bulk-synchronous; every rank computes in reduced precision from the first step to the last.

It is the baseline for selective reduced precision: if lower precision costs no accuracy, all ranks
in it are at least as fast as stragglers alone.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740.
"""

from dataclasses import dataclass
from functools import cached_property

from simstrag.policy import Plan, Precision, View


@dataclass(frozen=True)
class AmpAll:
    """Automatic mixed precision on all ranks; no parameters."""

    reduces_precision = True

    @cached_property
    def plan_(self) -> Plan:
        return Plan(precision=Precision.AMP)

    def plan(self, view: View) -> Plan:
        return self.plan_
