"""Bulk-synchronous; every rank computes in reduced precision from the first step to the last.

It is the baseline for selective reduced precision: if lower precision costs no accuracy, all ranks
in it are at least as fast as stragglers alone.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740.
"""

from dataclasses import dataclass

from simstrag.contract import Plan, Precision, View


@dataclass(frozen=True)
class AmpAll:
    """Automatic mixed precision on all ranks; no parameters."""

    title = "mixed precision on every worker"
    lane = "B"
    reduces_precision = True

    def plan(self, view: View) -> Plan:
        return Plan.standing(precision=Precision.AMP)
