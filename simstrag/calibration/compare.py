"""Compares two profiles number by number: which agree within their errors.

If a calibration is repeated on one machine, at least 90 % of the cells should agree: numbers m1 and
m2 with standard errors s1 and s2 agree if |m1 - m2| <= 1.96 sqrt(s1^2 + s2^2).  The standard error
is the stated one, else half the width of the 95 % interval over 1.96.  With few visits the interval
is wider than 1.96 errors to either side (Student's t), and using it would let numbers agree too
easily.  The error is itself uncertain: at four visits, 94 of 100 equal cells agree rather than 95.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from simstrag.calibration.cells import MeasurementCell, Part
from simstrag.calibration.fits.contention_estimates import cell_of_level
from simstrag.profile.profile import Profile, constant_of
from simstrag.profile.quantity import Quantity

if TYPE_CHECKING:
    import pandas as pd

EXPECTED = 0.9
"""Least share of cells that agree when a calibration is repeated on the same machine."""

NARROW = 0.03
"""Largest median relative half-width of intervals that a calibration should have."""

NORMAL = 1.96
"""Half-width of a 95 % interval over its standard error."""

IDENTITY = ("kind", "model", "name", "cores", "gpus")
"""Keys in which two different devices differ; clocks and temperatures are not among them."""

CONSTANTS = {
    "step": {
        "compute": "s", "host_share": "", "launch.full": "s", "launch.amp": "s",
        "device.full": "s", "device.amp": "s", "amp_ratio": "", "amp_ratio_contended": "",
        "amp_switch": "s",
    },
    "allreduce": {
        "alpha": "s", "bandwidth": "B/s", "bytes": "B", "overlap": "", "intra_alpha": "s",
        "intra_bandwidth": "B/s",
    },
    "server": {"service": "s", "push": "s", "pull": "s"},
    "power": {"idle": "W", "busy": "W", "busy_amp": "W"},
}  # fmt: skip
"""Units of the constants that a simulation reads; "" is a ratio or a share."""

SERVER = {"push": "s", "service": "s", "pull": "s", "slowdown": ""}
LOCKSTEP = {"rest": "s", "slowdown": "", "interference": ""}
"""Units of the numbers of a transfer and of ranks in lockstep."""

COLUMNS = (
    "part", "cell", "number", "unit", "a", "a_low", "a_high", "b", "b_low", "b_high", "ratio",
    "errors", "agrees",
)  # fmt: skip


class ProfileNumber(NamedTuple):
    """The name of one number in a profile.

    part: one of `calibration.cells.PARTS`, `amp` or `constant`.
    cell: its cell in the words of `MeasurementCell`, without the coordinates that a profile does
        not state (the backend of all-reduces beside a load).
    name: name of the number within its cell.
    unit: "" for a ratio or a share.
    """

    part: str
    cell: str
    name: str
    unit: str

    @property
    def key(self) -> tuple[str, str]:
        """The part and the words by which the same number of another profile is found."""
        return self.cell, self.name


@dataclass(frozen=True, slots=True)
class ComparedNumber:
    """One number that both profiles have."""

    number: ProfileNumber
    a: Quantity
    b: Quantity

    @property
    def ratio(self) -> float:
        """b over a; NaN where a is 0."""
        return self.b.value / self.a.value if self.a.value else math.nan

    @property
    def errors(self) -> float:
        """b - a in standard errors of the difference; NaN if one has no error or is assumed."""
        error = math.hypot(_error(self.a), _error(self.b))
        difference = self.b.value - self.a.value
        if math.isnan(error) or error > 0:
            return difference / error
        return math.copysign(math.inf, difference) if difference else 0.0

    @property
    def agrees(self) -> bool | None:
        """Whether the two agree; None if their errors are unknown."""
        return None if math.isnan(self.errors) else abs(self.errors) <= NORMAL


@dataclass(frozen=True, slots=True)
class ProfileDifference:
    """A key of device, software or workload with two values; None where a profile lacks it."""

    where: str
    key: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.where} {self.key}: {_or_none(self.a)} against {_or_none(self.b)}"


@dataclass(frozen=True)
class SideBySide:
    """The comparison of two profiles.

    pairs: the numbers that both have.
    only_a, only_b: names of the cells that the other profile lacks.
    differences: of device, software and workload.
    """

    a: Profile
    b: Profile
    pairs: tuple[ComparedNumber, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    differences: tuple[ProfileDifference, ...]

    @cached_property
    def judged(self) -> tuple[ComparedNumber, ...]:
        """The pairs of cells with errors in both; without constants, which are made of cells."""
        return tuple(p for p in self.pairs if p.agrees is not None and p.number.part != "constant")

    @property
    def same_device(self) -> bool:
        """Whether both profiles state the same kind of device."""
        return all(self.a.device.get(key) == self.b.device.get(key) for key in IDENTITY)

    @property
    def agreeing(self) -> float:
        """Share of the judged cells that agree; NaN if there are none."""
        return _share(self.judged)

    @property
    def half_width(self) -> float:
        """Median relative half-width of the intervals of all judged cells of both profiles."""
        return median_half_width([each for pair in self.judged for each in (pair.a, pair.b)])

    @property
    def parts(self) -> list[dict[str, Any]]:
        """For each part of the judged cells: numbers, the share that agrees, half-width."""
        rows = []
        for part in dict.fromkeys(p.number.part for p in self.judged):
            pairs = [p for p in self.judged if p.number.part == part]
            width = median_half_width([each for pair in pairs for each in (pair.a, pair.b)])
            rows.append({
                "part": part, "numbers": len(pairs), "agreeing": _share(pairs),
                "half_width": width,
            })  # fmt: skip
        return rows

    @property
    def cells(self) -> pd.DataFrame:
        """A row per number that both have.

        part, cell, number, unit: its name.
        a, b and their intervals.
        ratio: b over a.
        errors: b - a in standard errors.
        agrees: None where it cannot be judged.
        """
        import pandas as pd

        return pd.DataFrame(self.records, columns=COLUMNS)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows of `cells`."""
        rows = (
            (*p.number, p.a.value, p.a.low, p.a.high, p.b.value, p.b.low, p.b.high, p.ratio,
             p.errors, p.agrees)
            for p in self.pairs
        )  # fmt: skip
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    @property
    def text(self) -> str:
        """The summary in sentences."""
        return " ".join(_sentences(self))


def compare(a: Profile, b: Profile) -> SideBySide:
    """Compare two profiles, cell by cell.

    >>> from simstrag.profile.profile import Profile
    >>> fields = {"date": "", "command": "", "device": {"kind": "cpu"}, "software": {}}
    >>> def profile(name, seconds):
    ...     median = {"value": seconds, "kind": "measured", "low": seconds - 2, "high": seconds + 2}
    ...     cells = [{"precision": "fp32", "batch": 8, "seconds": median, "mean": median}]
    ...     return Profile.model_validate({"name": name, "cells": cells, **fields})
    >>> sides = compare(profile("monday", 20.0), profile("friday", 21.0))
    >>> sides.cells[["cell", "a", "b", "ratio", "agrees"]]
                    cell     a     b  ratio agrees
    0  step fp32 batch 8  20.0  21.0   1.05   True
    """
    in_a, in_b = ({n.key: (n, q) for n, q in numbers_of(each)} for each in (a, b))
    pairs = tuple(ComparedNumber(n, q, in_b[key][1]) for key, (n, q) in in_a.items() if key in in_b)
    only_a, only_b = (
        tuple(dict.fromkeys(n.cell for key, (n, _) in one.items() if key not in other))
        for one, other in ((in_a, in_b), (in_b, in_a))
    )
    return SideBySide(a, b, pairs, only_a, only_b, tuple(_differences(a, b)))


def median_half_width(quantities: Sequence[Quantity]) -> float:
    """Median over quantities other than 0 of the relative half-width of their interval, or NaN."""
    widths = [_half_width(q) / abs(q.value) for q in quantities if q.value]
    known = [width for width in widths if not math.isnan(width)]
    return statistics.median(known) if known else math.nan


def numbers_of(profile: Profile) -> Iterator[tuple[ProfileNumber, Quantity]]:
    """All numbers of a profile: cells first, then the constants, which are made of cells."""
    yield from _several("step", profile.cells, {"seconds": "s", "launch": "s", "device": "s"})
    for response in profile.responses:
        for at in response.levels:
            of = "the device's part" if response.part == "device" else response.resource
            name = f"slowdown of {of}"
            loaded = str(cell_of_level(response, at.level))
            yield ProfileNumber("contention", loaded, name, ""), at.slowdown
    yield from _several("allreduce", profile.collectives, {"seconds": "s"})
    yield from _several("server", profile.transfers, SERVER)
    yield from _several("lockstep", profile.locksteps, LOCKSTEP)
    yield from _several("overlap", profile.overlaps, {"overlap": ""})
    for point in profile.learning:
        name, cell = f"scale after {point.trained} samples", MeasurementCell.of("gradient", point)
        yield ProfileNumber("gradient", str(cell), name, "samples"), point.scale
    for gain in profile.amp_ratios:
        batch = "" if gain.batch is None else f"batch {gain.batch}"
        words = (f"{gain.model} {gain.full} over {gain.amp}", gain.device, batch)
        yield ProfileNumber("amp", f"amp {' '.join(filter(None, words))}", "ratio", ""), gain.ratio
    for part, units in CONSTANTS.items():
        for name, unit in units.items():
            if (quantity := constant_of(profile, part, name)) is not None:
                yield ProfileNumber("constant", f"{part}.{name}", "value", unit), quantity


def _several(
    part: Part, measurements: Sequence[object], units: dict[str, str]
) -> Iterator[tuple[ProfileNumber, Quantity]]:
    for each in measurements:
        cell = str(MeasurementCell.of(part, each))
        for field, unit in units.items():
            if (quantity := getattr(each, field)) is not None:
                name = "median" if field == "seconds" else field
                yield ProfileNumber(part, cell, name, unit), quantity


def _share(pairs: Sequence[ComparedNumber]) -> float:
    return sum(p.agrees is True for p in pairs) / len(pairs) if pairs else math.nan


def _error(quantity: Quantity) -> float:
    """Standard error of a quantity; NaN where it states none, or is assumed."""
    if quantity.kind == "assumed" or quantity.error is None:
        return _half_width(quantity) / NORMAL
    return quantity.error


def _half_width(quantity: Quantity) -> float:
    """Half the width of the 95 % interval; NaN where there is none, or the quantity is assumed."""
    if quantity.kind == "assumed" or quantity.low is None or quantity.high is None:
        return math.nan
    return (quantity.high - quantity.low) / 2


def _differences(a: Profile, b: Profile) -> Iterator[ProfileDifference]:
    for where in ("device", "software", "workload"):
        of_a, of_b = (dict(getattr(each, where) or {}) for each in (a, b))
        for key in dict.fromkeys((*of_a, *of_b)):
            if of_a.get(key) != of_b.get(key):
                yield ProfileDifference(where, key, of_a.get(key), of_b.get(key))
    timed_a, timed_b = (sorted({cell.precision for cell in each.cells}) for each in (a, b))
    if timed_a != timed_b:
        yield ProfileDifference("precisions", "timed", timed_a, timed_b)
    if a.origin != b.origin:
        yield ProfileDifference("origin", "of the numbers", a.origin, b.origin)


def _or_none(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "not stated" if value is None else str(value)


def _sentences(s: SideBySide) -> Iterator[str]:
    yield f"a: {s.a.name} of {s.a.date}; b: {s.b.name} of {s.b.date}."
    if not s.same_device:
        yield "The devices differ, so differences below are no failure to repeat."
    if s.a.workload is not None and s.b.workload is not None:
        names = s.a.workload.name, s.b.workload.name
        if names[0] != names[1]:
            yield f"The workloads differ: {names[0]} and {names[1]}."
    if not s.judged:
        yield "No cell was measured with an interval in both."
    else:
        agree = sum(p.agrees is True for p in s.judged)
        yield (
            f"{agree} of {len(s.judged)} numbers of cells ({100 * s.agreeing:.1f} %) agree within "
            f"1.96 standard errors of their difference; {100 * EXPECTED:g} % or more are expected "
            "of a calibration that is repeated on one machine."
        )
        yield (
            f"The median half-width of their 95 % intervals is {100 * s.half_width:.2g} % of the "
            f"value; a calibration should reach {100 * NARROW:g} % or less."
        )
    if constants := [p for p in s.pairs if p.number.part == "constant" and p.agrees is not None]:
        agree = sum(p.agrees is True for p in constants)
        yield f"Of {len(constants)} constants, which are made of cells, {agree} agree."
    if unjudged := sum(p.agrees is None for p in s.pairs):
        yield f"Without an interval in both, and so without a verdict: {unjudged} numbers."
    if s.only_a or s.only_b:
        yield f"In a alone: {len(s.only_a)} cells or constants; in b alone: {len(s.only_b)}."
