"""Placeholders: the numbers that nobody gave, and which of them decide a comparison's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import NAMES, QUANTITIES, kind_of, value_of

if TYPE_CHECKING:
    import pandas as pd

SEEDS_PER_TRIAL = 5
"""One seed of the search for every so many of the comparison, which it then about doubles."""
HALVINGS = 2
"""Steps of the bisection: what decides matters more than the exact value."""


class Placeholders(NamedTuple):
    """The placeholders of a scenario.

    stated: their names, such as `server.service`.
    decisive: those that give another policy the lead at a quarter or at four times their value;
        None if that was not tried.
    numbers: how many numbers the comparison depends on, placeholders among them.
    """

    stated: tuple[str, ...]
    decisive: tuple[str, ...] | None
    numbers: int

    @classmethod
    def of(cls, scenario: Scenario, thresholds: pd.DataFrame | None) -> Placeholders:
        """The placeholders of a scenario whose sensitivity has these thresholds."""
        stated = scenario.placeholders
        others = [
            name
            for name in QUANTITIES
            if name not in stated
            and (value_of(scenario, name) or kind_of(scenario, name) in ("measured", "fitted"))
        ]
        numbers = {*stated, *others, "learner.batch"}
        if thresholds is None:
            return cls(stated, None, len(numbers))
        changed = thresholds[thresholds["rival"] != ""]
        if (thresholds["seeds"] > 1).all():
            changed = changed[changed["shown"]]
        turned = {*changed["quantity"]}
        return cls(stated, tuple(name for name in stated if name in turned), len(numbers))

    def __str__(self) -> str:
        """One sentence without a stop; empty without placeholders.

        >>> print(Placeholders(("learner.c_tau", "step.cv"), ("learner.c_tau",), 7))
        2 of 7 numbers are placeholders; 1 of them decides the answer: the cost of staleness (c_tau)
        """
        if not self.stated:
            return ""
        are = "is a placeholder" if len(self.stated) == 1 else "are placeholders"
        text = f"{len(self.stated)} of {self.numbers} numbers {are}"
        if self.decisive is None:
            return f"{text}; whether that decides the answer was not tried"
        if not self.decisive:
            return f"{text}; at a quarter or four times its value none decides the answer"
        decide = (
            "1 of them decides"
            if len(self.decisive) == 1
            else f"{len(self.decisive)} of them decide"
        )
        names = ", ".join(NAMES.get(name, name) for name in self.decisive)
        return f"{text}; {decide} the answer: {names}"
