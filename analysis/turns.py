"""What the lead of a policy hangs on: which constant takes it away, beyond which value.

From the thresholds of a comparison where it has some, else from the few costs of staleness that it
ran anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simstrag.analysis.formats import number
from simstrag.analysis.standings import Standings, faster

__all__ = [
    "C_TAU", "WORDS", "Turn", "conditions", "leader", "lost_lead", "rounded", "tried", "turns",
    "with_unit",
]  # fmt: skip

C_TAU = "learner.c_tau"
WORDS = {
    C_TAU: "c_tau",
    "learner.noise_scale": "the noise scale",
    "step.compute": "a clean step",
    "step.host_share": "the share of a step that precision cannot shorten",
    "step.amp_ratio": "the gain of reduced precision",
    "step.cv": "the noise of steps",
    "server.service": "the server's service",
    "server.push": "a push to the server",
    "server.pull": "a pull from the server",
    "allreduce.alpha": "a hop of the all-reduce",
    "allreduce.bandwidth": "the bandwidth of a link",
    "allreduce.bytes": "the gradient to be reduced",
    "allreduce.overlap": "the share of the all-reduce that backward hides",
}
"""What the constants are called in a sentence."""

COARSE = 1.2
"""From which ratio of its two ends on a stretch in which the lead changes is told with both."""


class Turn(NamedTuple):
    """Another policy takes the lead between holds_at and turns_at; value: in force.

    shown: whether its lead is beyond a 95 % interval at the outermost value tried.
    """

    quantity: str
    value: float
    unit: str
    rival: str
    holds_at: float
    turns_at: float
    shown: bool

    @property
    def larger(self) -> bool:
        """Whether larger values take the lead away."""
        return self.turns_at > self.holds_at

    @property
    def safe(self) -> str:
        """The last value at which the lead is known to hold, rounded to the safe side."""
        return rounded(self.holds_at, self.value, self.unit)

    @property
    def condition(self) -> str:
        """Until where the leader leads.

        >>> Turn("learner.c_tau", 1.0, "", "bsp", 1.54, 1.61, True).condition
        'c_tau <= 1.5'
        >>> Turn("learner.c_tau", 1.0, "", "bsp", 1.0, 4.0, True).condition
        'c_tau <= 1 (not at 4, the next tried)'
        """
        doubt = "" if self.shown else " (a turn within the noise)"
        if max(self.turns_at, self.holds_at) > COARSE * min(self.turns_at, self.holds_at):
            maybe = "not" if self.shown else "within the noise not"
            doubt = f" ({maybe} at {self.turns_at:g}, the next tried)"
        return f"{WORDS[self.quantity]} {'<=' if self.larger else '>='} {self.safe}{doubt}"


def turns(s: Standings) -> list[Turn]:
    """What takes the lead from the best mean, c_tau first; nothing where `lost_lead` says why."""
    if lost_lead(s):
        return []
    table = s.comparison.thresholds
    if table is None:
        return list(_of_costs(s))
    found = [
        Turn(*(row[name] for name in Turn._fields))
        for row in table[table["rival"] != ""].to_dict("records")
    ]
    return sorted(found, key=lambda t: t.quantity != C_TAU)


def conditions(s: Standings) -> tuple[list[str], list[str]]:
    """Those that belong beside the answer, and those that may stand below it.

    Beside it are the cost of staleness, and two others whose turn is shown.
    """
    found = turns(s)
    of_c_tau = [t for t in found if t.quantity == C_TAU]
    near = [*of_c_tau, *[t for t in found if t.shown and t not in of_c_tau][:2]]
    far = [t for t in found if t not in near]
    return _said(near), _said(far)


def _said(found: Sequence[Turn]) -> list[str]:
    """Conditions in words; those of both sides of one constant as one."""
    texts = []
    for quantity in dict.fromkeys(t.quantity for t in found):
        sides = sorted((t for t in found if t.quantity == quantity), key=lambda t: t.larger)
        if len(sides) == 2 and all(t.shown for t in sides):
            texts.append(f"{sides[0].safe} <= {WORDS[quantity]} <= {sides[1].safe}")
        else:
            texts += [t.condition for t in sides]
    return texts


def lost_lead(s: Standings) -> str:
    """Why thresholds say nothing of the best mean: under their seeds it is another's; or empty."""
    table = s.comparison.thresholds
    if table is None or not len(table) or table["leader"].iloc[0] == s.policies[0].policy:
        return ""
    n = table["seeds"].iloc[0]
    return (
        f"Under the first {n} seeds, with which it was looked for what turns the ranking over, "
        f"{table['leader'].iloc[0]} has the best mean and not {s.policies[0].policy}, so that "
        f"nothing is known of when {s.policies[0].policy} loses its lead."
    )


def tried(s: Standings) -> tuple[float, float]:
    """The least and the greatest cost of staleness under which the lead was looked at."""
    table = s.comparison.thresholds
    values = list(s.costs)
    if table is not None:
        values += table.loc[table["quantity"] == C_TAU, "tried"].tolist()
    return min(values), max(values)


def _of_costs(s: Standings) -> list[Turn]:
    """Where the lead changes among the costs of staleness that every comparison runs."""
    if not s.comparison.has_target:
        return []
    declared, best = s.comparison.scenario.learner.c_tau, s.policies[0].policy
    found = []
    for outward in (
        sorted((c for c in s.costs if c < declared), reverse=True),
        sorted(c for c in s.costs if c > declared),
    ):
        holds = declared
        for cost in outward:
            rival = leader(s, cost)
            if rival != best:
                shown = faster(s.gap(s.at_cost(rival, cost), s.at_cost(best, cost)))
                found.append(Turn(C_TAU, declared, "", rival, holds, cost, shown))
                break
            holds = cost
    return found


def leader(s: Standings, c_tau: float) -> str:
    """The policy with the best mean time to target under a cost of staleness."""
    names = [p.policy for p in s.policies]
    return min(names, key=lambda name: float(s.at_cost(name, c_tau).mean()))


def rounded(bound: float, value: float, unit: str) -> str:
    """A bound with as few digits as leave it on the side of `value`, and its unit.

    >>> rounded(1.54, 1.0, ""), rounded(0.00957, 0.005, "s"), rounded(3.04e9, 5e9, "bytes/s")
    ('1.5', '9.5 ms', '3.1 GB/s')
    """
    scale, word = _unit(bound, unit)
    towards = math.floor if value <= bound else math.ceil
    low, high = min(value, bound) / scale, max(value, bound) / scale
    for digits in range(2, 16):
        grain = 10.0 ** (digits - 1 - math.floor(math.log10(abs(bound / scale)))) if bound else 1.0
        shown = towards(bound / scale * grain) / grain
        if low <= shown <= high:
            return f"{shown:.12g} {word}".strip()
    return f"{bound / scale!r} {word}".strip()


def with_unit(value: float, unit: str) -> str:
    """A value to be read, a dash for none.

    >>> with_unit(1.11148e9, "bytes/s"), with_unit(0.00489, "s"), with_unit(64.0, "samples")
    ('1.11 GB/s', '4.89 ms', '64.0 samples')
    """
    scale, word = _unit(value, unit)
    return number(value) if math.isnan(value) else f"{number(value / scale)} {word}".strip()


def _unit(value: float, unit: str) -> tuple[float, str]:
    """What a value is divided by to be read, and the unit then."""
    if unit == "s":
        return (1e-3, "ms") if abs(value) < 0.1 else (1.0, "s")
    if unit.startswith("bytes"):
        power = min(max(math.floor(math.log10(value) / 3), 0), 4) if value > 0 else 0
        return 1000.0**power, ("bytes", "kB", "MB", "GB", "TB")[power] + unit[5:]
    return 1.0, unit
