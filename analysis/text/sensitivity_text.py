"""What the lead of a policy hangs on: which constant takes it away, beyond which value.

From the thresholds of a comparison where it has some, and from the few costs of staleness that it
ran anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simstrag.analysis.tables.standings import Standings, faster
from simstrag.analysis.text.number_format import listed, number

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
    def coarse(self) -> bool:
        """Whether the lead changes somewhere on a stretch too long to be told by one end."""
        return max(self.turns_at, self.holds_at) > COARSE * min(self.turns_at, self.holds_at)

    @property
    def factor(self) -> float:
        """How far the constant has to be off: the ratio to the value in force, 1 or more."""
        return math.exp(abs(math.log(self.turns_at / self.value)))

    @property
    def bound(self) -> str:
        """Until where the leader has the best mean.

        >>> Turn("learner.c_tau", 1.0, "", "bsp", 1.54, 1.61, True).bound
        'c_tau is at most 1.5'
        """
        return f"{WORDS[self.quantity]} is {'at most' if self.larger else 'at least'} {self.safe}"

    @property
    def condition(self) -> str:
        """Until where the leader has the best mean, and who has it then.

        >>> Turn("learner.c_tau", 1.0, "", "bsp", 1.54, 1.61, False).condition
        'c_tau is at most 1.5 (further up bsp takes over, within the noise)'
        >>> Turn("learner.c_tau", 1.0, "", "bsp", 1.0, 4.0, True).condition
        'c_tau is at most 1 (at 4, the next value tried, bsp has it)'
        """
        taken = f"further {'up' if self.larger else 'down'} {self.rival} takes over"
        if self.coarse:
            at = with_unit(self.turns_at, self.unit) if self.unit else f"{self.turns_at:g}"
            taken = f"at {at}, the next value tried, {self.rival} has it"
        return f"{self.bound} ({taken}{'' if self.shown else ', within the noise'})"


def turns(s: Standings) -> list[Turn]:
    """What takes the lead from the best mean, c_tau first and then the nearest to being in force.

    Nothing where `lost_lead` says why.
    """
    if lost_lead(s):
        return []
    table = s.comparison.thresholds
    rows = [] if table is None else table[table["rival"] != ""].to_dict("records")
    found = [Turn(*(row[name] for name in Turn._fields)) for row in rows]
    known = {t.larger for t in found if t.quantity == C_TAU}
    found += [t for t in _of_costs(s) if t.larger not in known]
    return sorted(found, key=lambda t: (t.quantity != C_TAU, t.factor))


def conditions(s: Standings) -> tuple[str, str]:
    """What belongs in the answer and what may stand below it, to follow `as long as`, or empty.

    In the answer are the cost of staleness, and the two nearest others whose turn is shown.
    """
    found = turns(s)
    of_c_tau = [t for t in found if t.quantity == C_TAU]
    near = [*of_c_tau, *[t for t in found if t.shown and t not in of_c_tau][:2]]
    far = [t for t in found if t not in near]
    return _said(near), _said(far)


def _said(found: Sequence[Turn]) -> str:
    """Conditions in words; who takes over is said once where it is the same one in all."""
    if len({t.rival for t in found}) != 1 or any(t.coarse or not t.shown for t in found):
        return listed([t.condition for t in found])
    bounds = []
    for quantity in dict.fromkeys(t.quantity for t in found):
        sides = sorted((t for t in found if t.quantity == quantity), key=lambda t: t.larger)
        both = f"{WORDS[quantity]} is from {sides[0].safe} to {sides[-1].safe}"
        bounds.append(both if len(sides) == 2 else sides[0].bound)
    which = ("that", "either")[len(bounds) - 1] if len(bounds) < 3 else "any of these"
    return f"{listed(bounds)}; beyond {which} {found[0].rival} takes over"


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
