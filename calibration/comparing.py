"""Two profiles beside each other: what both measured, and whether it agrees within its errors.

Of a calibration that is repeated on one machine at least 90 % of the cells should agree: numbers m1
and m2 with standard errors s1 and s2 agree where |m1 - m2| <= 1.96 sqrt(s1^2 + s2^2).  The standard
error is the number's own where it states one, else half the width of its 95 % interval over 1.96.
Intervals of few visits are wider than 1.96 of their standard errors (Student's t), so that half of
one would agree too easily; errors of few visits are uncertain themselves, so that numbers of four
visits each agree in about 94 of 100 cells rather than 95.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simstrag.calibration.measured import Measured, measured
from simstrag.profile.profile import Profile
from simstrag.profile.quantity import Quantity

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EXPECTED", "NARROW", "Change", "Pair", "SideBySide", "compare", "half_width"]

EXPECTED = 0.9
"""Share of the cells that agree when a calibration is repeated on the same machine, at least."""
NARROW = 0.03
"""Median relative half-width of intervals that a calibration should reach, at most."""
NORMAL = 1.96
"""Half-width of a 95 % interval over its standard error."""
IDENTITY = ("kind", "model", "name", "cores", "gpus")
"""What makes a device another one; its clocks and temperatures do not."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One number that both profiles have."""

    number: Measured
    a: Quantity
    b: Quantity

    @property
    def ratio(self) -> float:
        """b over a; NaN where a is 0."""
        return self.b.value / self.a.value if self.a.value else math.nan

    @property
    def errors(self) -> float:
        """b - a in standard errors of the difference; NaN where one has no error, or assumes."""
        error = math.hypot(*(_error(each) for each in (self.a, self.b)))
        difference = self.b.value - self.a.value
        if math.isnan(error) or error > 0:
            return difference / error
        return math.copysign(math.inf, difference) if difference else 0.0

    @property
    def agrees(self) -> bool | None:
        """Whether it does; None where it cannot be judged."""
        return None if math.isnan(self.errors) else abs(self.errors) <= NORMAL


@dataclass(frozen=True, slots=True)
class Change:
    """What two profiles say differently of themselves; None is what one does not say."""

    where: str
    key: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.where} {self.key}: {_said(self.a)} against {_said(self.b)}"


@dataclass(frozen=True)
class SideBySide:
    """What `compare` found. only_a, only_b: cells that the other has not, by their names."""

    a: Profile
    b: Profile
    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changes: tuple[Change, ...]

    @cached_property
    def judged(self) -> tuple[Pair, ...]:
        """Pairs of cells with errors in both; constants are made of cells and do not count."""
        return tuple(p for p in self.pairs if p.agrees is not None and p.number.part != "constant")

    @property
    def same_device(self) -> bool:
        """Whether both say that they were measured on the same kind of device."""
        return all(self.a.device.get(key) == self.b.device.get(key) for key in IDENTITY)

    @property
    def agreeing(self) -> float:
        """Share of the judged cells that agree; NaN where there are none."""
        return _share(self.judged)

    @property
    def half_width(self) -> float:
        """Median over both intervals of all judged cells of half the width, over the value."""
        return half_width([each for pair in self.judged for each in (pair.a, pair.b)])

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Of each part of the judged cells: how many numbers, the share that agrees, half-width."""
        found = []
        for part in dict.fromkeys(p.number.part for p in self.judged):
            own = [p for p in self.judged if p.number.part == part]
            row = {"part": part, "numbers": len(own), "agreeing": _share(own)}
            width = half_width([each for pair in own for each in (pair.a, pair.b)])
            found.append({**row, "half_width": width})
        return found

    @property
    def cells(self) -> pd.DataFrame:
        """A row per number that both have.

        part, cell, number, unit: what it is.  a, b and their intervals.  ratio: b over a.
        errors: b - a in standard errors.  agrees: None where it cannot be judged.
        """
        import pandas as pd

        return pd.DataFrame(self.records, columns=COLUMNS)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows of `cells`."""
        return [dict(zip(COLUMNS, _row(pair), strict=True)) for pair in self.pairs]

    @property
    def text(self) -> str:
        """All of it but the numbers, in sentences."""
        return " ".join(_sentences(self))


COLUMNS = (
    "part", "cell", "number", "unit", "a", "a_low", "a_high", "b", "b_low", "b_high", "ratio",
    "errors", "agrees",
)  # fmt: skip


def compare(a: Profile, b: Profile) -> SideBySide:
    """Put two profiles side by side, cell by cell.

    >>> from simstrag.profile.profile import Profile
    >>> own = {"date": "", "command": "", "device": {"kind": "cpu"}, "software": {}}
    >>> def profile(name, seconds):
    ...     median = {"value": seconds, "kind": "measured", "low": seconds - 2, "high": seconds + 2}
    ...     cells = [{"precision": "fp32", "batch": 8, "seconds": median, "mean": median}]
    ...     return Profile.model_validate({"name": name, "cells": cells, **own})
    >>> found = compare(profile("monday", 20.0), profile("friday", 21.0))
    >>> found.cells[["cell", "a", "b", "ratio", "agrees"]]
                    cell     a     b  ratio agrees
    0  step fp32 batch 8  20.0  21.0   1.05   True
    """
    of_a, of_b = ({m.key: (m, q) for m, q in measured(each)} for each in (a, b))
    pairs = tuple(Pair(m, q, of_b[key][1]) for key, (m, q) in of_a.items() if key in of_b)
    only_a, only_b = (
        tuple(dict.fromkeys(m.cell for key, (m, _) in own.items() if key not in other))
        for own, other in ((of_a, of_b), (of_b, of_a))
    )
    return SideBySide(a, b, pairs, only_a, only_b, tuple(_changes(a, b)))


def _share(pairs: Sequence[Pair]) -> float:
    return sum(p.agrees is True for p in pairs) / len(pairs) if pairs else math.nan


def half_width(quantities: Sequence[Quantity]) -> float:
    """The median of half the width of their intervals over the value; NaN where none has one.

    Numbers that are 0 have none.
    """
    widths = [_reach(q) / abs(q.value) for q in quantities if q.value]
    known = [width for width in widths if not math.isnan(width)]
    return statistics.median(known) if known else math.nan


def _error(quantity: Quantity) -> float:
    """Its standard error; NaN where nothing says one, and for what nobody measured."""
    if quantity.kind == "assumed" or quantity.error is None:
        return _reach(quantity) / NORMAL
    return quantity.error


def _reach(quantity: Quantity) -> float:
    """Half the width of its 95 % interval; NaN without one, and for what nobody measured."""
    if quantity.kind == "assumed" or quantity.low is None or quantity.high is None:
        return math.nan
    return (quantity.high - quantity.low) / 2


def _row(pair: Pair) -> tuple[Any, ...]:
    number, a, b = pair.number, pair.a, pair.b
    return (
        number.part, number.cell, number.name, number.unit, a.value, a.low, a.high, b.value,
        b.low, b.high, pair.ratio, pair.errors, pair.agrees,
    )  # fmt: skip


def _changes(a: Profile, b: Profile) -> Iterator[Change]:
    for where in ("device", "software", "workload"):
        of_a, of_b = (_mapping(getattr(each, where)) for each in (a, b))
        for key in dict.fromkeys((*of_a, *of_b)):
            if of_a.get(key) != of_b.get(key):
                yield Change(where, key, of_a.get(key), of_b.get(key))
    timed_a, timed_b = (sorted({cell.precision for cell in each.cells}) for each in (a, b))
    if timed_a != timed_b:
        yield Change("precisions", "timed", timed_a, timed_b)
    if a.origin != b.origin:
        yield Change("origin", "of the numbers", a.origin, b.origin)


def _mapping(part: Any) -> dict[str, Any]:
    return part if isinstance(part, dict) else {} if part is None else part.model_dump()


def _said(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "not said" if value is None else str(value)


def _sentences(s: SideBySide) -> Iterator[str]:
    yield f"a: {s.a.name} of {s.a.date}; b: {s.b.name} of {s.b.date}."
    if not s.same_device:
        yield "These are different devices: what differs below is no failure to repeat."
    if s.a.workload is not None and s.b.workload is not None:
        names = s.a.workload.name, s.b.workload.name
        if names[0] != names[1]:
            yield f"Different workloads were timed, {names[0]} and {names[1]}."
    if not s.judged:
        yield "They have no cell in common that both measured with an interval."
    else:
        agree = sum(p.agrees is True for p in s.judged)
        yield (
            f"{agree} of {len(s.judged)} numbers of cells ({100 * s.agreeing:.1f} %) agree within "
            f"1.96 standard errors of their difference; {100 * EXPECTED:g} % or more are expected "
            "of a calibration that is repeated on one machine."
        )
        yield (
            f"Half the width of their 95 % intervals is {100 * s.half_width:.2g} % of the value in "
            f"the median; {100 * NARROW:g} % at most is what a calibration should reach."
        )
    if constants := [p for p in s.pairs if p.number.part == "constant" and p.agrees is not None]:
        agree = sum(p.agrees is True for p in constants)
        yield f"Of {len(constants)} constants, which are made of cells, {agree} agree."
    if unjudged := sum(p.agrees is None for p in s.pairs):
        yield f"Without an interval in both, and listed only: {unjudged}."
    if s.only_a or s.only_b:
        yield f"In a alone: {len(s.only_a)} cells or constants; in b alone: {len(s.only_b)}."
