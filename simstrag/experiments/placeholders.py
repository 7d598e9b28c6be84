"""Placeholders: typical numbers in place of a user's own, and which change the fastest policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import NAMES, QUANTITIES, kind_of, value_of

if TYPE_CHECKING:
    import pandas as pd

SEEDS_PER_TRIAL = 5
"""Seeds of the comparison per seed of the search, which then about doubles the work."""
HALVINGS = 2
"""Steps of the bisection: what decides matters more than the exact value."""


class Placeholders(NamedTuple):
    """The placeholders of a scenario.

    stated: their names, such as `server.service`.
    decisive: those that give another policy the lead at a quarter or at four times their value;
        None if none was tried.
    untried: those that were not tried while others were.
    numbers: how many numbers the comparison depends on, placeholders among them.
    """

    stated: tuple[str, ...]
    decisive: tuple[str, ...] | None
    untried: tuple[str, ...]
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
        if thresholds is None or thresholds.empty:
            return cls(stated, None, (), len(numbers))
        changed = thresholds[thresholds["rival"] != ""]
        if (thresholds["seeds"] > 1).all():
            changed = changed[changed["shown"]]
        turned = {*changed["quantity"]}
        tried = {*thresholds["quantity"]}
        return cls(
            stated,
            tuple(name for name in stated if name in turned),
            tuple(name for name in stated if name not in tried),
            len(numbers),
        )

    def __str__(self) -> str:
        """One sentence without a stop; empty without placeholders.

        >>> print(Placeholders(("server.pull", "step.cv"), (), ("step.cv",), 7))
        2 of 7 numbers are placeholders; at a quarter or four times its value none decides which \
policy is fastest; not tried: the noise of steps
        """
        if not self.stated:
            return ""
        are = "is a placeholder" if len(self.stated) == 1 else "are placeholders"
        text = f"{len(self.stated)} of {self.numbers} numbers {are}"
        if self.decisive is None:
            return f"{text}; whether that decides which policy is fastest was not tried"
        if not self.decisive:
            text += "; at a quarter or four times its value none decides which policy is fastest"
        else:
            n = len(self.decisive)
            decide = "1 of them decides" if n == 1 else f"{n} of them decide"
            text += f"; {decide} which policy is fastest: {_names(self.decisive)}"
        if self.untried:
            text += f"; not tried: {_names(self.untried)}"
        return text


def _names(keys: tuple[str, ...]) -> str:
    return ", ".join(NAMES.get(key, key) for key in keys)
