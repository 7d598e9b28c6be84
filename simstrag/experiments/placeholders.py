"""Placeholders: typical numbers in place of a user's own, and which of them decide the answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import NAMES, QUANTITIES, kind_of, value_of


class Placeholders(NamedTuple):
    """The placeholders of a scenario.

    stated: their names, such as `server.service`.
    decisive: those that change the choice of the answer: were one of them known to be as stated, or
        to have a value that was tried, another policy would be chosen. None if that is not known.
    untried: those that were not tried while others were.
    numbers: how many numbers the comparison depends on, placeholders among them.
    """

    stated: tuple[str, ...]
    decisive: tuple[str, ...] | None
    untried: tuple[str, ...]
    numbers: int

    @classmethod
    def of(
        cls, scenario: Scenario, tried: Collection[str], decisive: Sequence[str] | None
    ) -> Placeholders:
        """The placeholders of a scenario; tried: the constants that were varied."""
        stated = scenario.placeholders
        others = [
            name
            for name in QUANTITIES
            if name not in stated
            and (value_of(scenario, name) or kind_of(scenario, name) in ("measured", "fitted"))
        ]
        numbers = {*stated, *others, "learner.batch"}
        if decisive is None:
            return cls(stated, None, (), len(numbers))
        untried = tuple(name for name in stated if name not in tried)
        return cls(stated, tuple(decisive), untried, len(numbers))

    def __str__(self) -> str:
        """One sentence without a stop; empty without placeholders.

        >>> print(Placeholders(("server.pull", "step.cv"), (), ("step.cv",), 7))
        2 of 7 numbers are placeholders; none decides the answer at the values tried; not tried: \
the noise of steps
        """
        if not self.stated:
            return ""
        are = "is a placeholder" if len(self.stated) == 1 else "are placeholders"
        text = f"{len(self.stated)} of {self.numbers} numbers {are}"
        if self.decisive is None:
            return f"{text}; whether that decides the answer is not known"
        if not self.decisive:
            text += "; none decides the answer at the values tried"
        else:
            n = len(self.decisive)
            decide = "1 of them decides" if n == 1 else f"{n} of them decide"
            text += f"; {decide} the answer: {_names(self.decisive)}"
        if self.untried:
            text += f"; not tried: {_names(self.untried)}"
        return text


def _names(keys: tuple[str, ...]) -> str:
    return ", ".join(NAMES.get(key, key) for key in keys)
