"""The contents of a profile in words: what it is of, and its quantities, laws and errors.

Tables and charts put these into cells and labels.
"""

# ruff: noqa: RUF001, RUF002 - dashes and multiplication signs are meant

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from simstrag.analysis.text.number_format import MISSING, estimate, join, number, percent, plural
from simstrag.profile.doubtful import ABSURD, ONE_VISIT, doubts, factor
from simstrag.profile.measurements import Law, Response
from simstrag.profile.profile import Profile, StepTimes
from simstrag.profile.quantity import Quantity

GROUPS = {"all": "", "half": ", one half alone", "halves": ", both halves at once"}
LAWS: dict[Law, str] = {
    "none": "1: no measurable slowdown",
    "constant": "{factor}, whatever the level",
    "time_slices": "1 + {cost} min(u, 1)",
    "linear": "1 + {slope} u",
    "fair_share": "{demand} + u, and at least 1",
    "reciprocal": "1 / (1 − {share} u)",
    "power": "1 + {slope} u^{exponent}",
    "hinge": "1 + {slope} (u − {knee}) above {knee}, else 1",
    "interpolated": "between the levels measured",
}


def describe(profile: Profile) -> tuple[str, ...]:
    """Paragraphs: origin of the numbers, device, workload, and what the profile lacks.

    >>> data = {"name": "a card", "date": "2026-01-31", "command": "simstrag calibrate"}
    >>> describe(Profile.model_validate({**data, "device": {"model": "X"}, "software": {}}))
    ('a card: measured on 2026-01-31 with: simstrag calibrate', 'Device: model X.')
    """
    p = profile
    command = f"with: {p.command}" + (f" ({p.commit[:12]})" if p.commit else "")
    derived = f"derived, not measured by this project; {p.date}, {command}"
    ranges = ", ".join(f"{k} {number(a)} to {number(b)}" for k, (a, b) in p.conditions.items())
    errors = [
        f"{h.part}, median {percent(h.median)} % and worst {percent(h.worst)} %" for h in p.held_out
    ]
    parts = [
        f"{p.name}: {derived if p.origin == 'derived' else f'measured on {p.date} {command}'}",
        p.source and f"Source: {p.source}",
        p.missing and f"Missing: {'; '.join(p.missing)}.",
        p.note and f"Note: {p.note}",
        p.device and f"Device: {_plain(p.device)}.",
        p.software and f"Software: {_plain(p.software)}.",
        ranges and f"Conditions meanwhile: {ranges}.",
        p.held_out and f"Held-out errors: {join(errors)}.",
    ]
    if (w := p.workload) is not None:
        stand_in = ", a stand-in, since the device gains nothing from it" if w.stand_in else ""
        parts.append(
            f"Workload: {w.name}, {w.parameters:,} parameters, batch {w.batch}; full precision is "
            f"{w.full}, reduced precision {w.amp or 'not known'}{stand_in}."
        )
    parts += caution(p)
    return tuple(str(part) for part in parts if part)


def caution(
    profile: Profile, times: StepTimes | None = None, only: Collection[str] | None = None
) -> list[str]:
    """A sentence on the constants that a reader must not take as they stand; none without such.

    times: of a step, in place of the profile's own at another batch.
    only: the beginnings of the names of the constants; all by default.
    """
    found: dict[str, list[str]] = {}
    for doubt in doubts(profile, times):
        if only is not None and not any(doubt.name.startswith(each) for each in only):
            continue
        found.setdefault(doubt.reason, []).append(doubt.name)
    if not found:
        return []
    n = sum(map(len, found.values()))
    each = "; ".join(f"{join(names)}: {reason}" for reason, names in found.items())
    return [f"The profile {profile.name} is unsure of {plural(n, 'constant')}. {each}."]


def text(quantity: Quantity | None, scale: float = 1.0) -> str:
    """A quantity with its interval, or in words why it has none that is of use.

    >>> text(Quantity(value=2, kind="measured", low=0.007, high=3000))
    '2.00 (interval too wide: few visits differ)'
    >>> text(Quantity(value=0.25, kind="assumed")), text(None)
    ('0.250 (assumed)', '–')
    >>> text(Quantity(value=500, kind="measured", low=120))
    '500 (at least 120)'
    """
    if quantity is None:
        return MISSING
    if quantity.note.endswith(ONE_VISIT):
        return f"{number(quantity.value * scale)} (one visit, no interval)"
    if ABSURD <= factor(quantity) < math.inf:
        return f"{number(quantity.value * scale)} (interval too wide: few visits differ)"
    if quantity.low is not None and quantity.high is not None:
        return estimate(quantity.value, quantity.low, quantity.high, scale)
    if quantity.low is not None:
        return f"{number(quantity.value * scale)} (at least {number(quantity.low * scale)})"
    assumed = " (assumed)" if quantity.kind == "assumed" else ""
    return number(quantity.value * scale) + assumed


def ranks_of(ranks: int | str, group: str) -> str:
    """The ranks of an all-reduce, and which of them take part.

    >>> ranks_of(4, "all"), ranks_of(4, "half")
    ('4 ranks', '4 ranks, one half alone')
    """
    return f"{ranks} ranks{GROUPS.get(group, f', {group}')}"


def bytes_of(size: int | None) -> str:
    """A size in the largest binary unit that is not larger than it.

    >>> bytes_of(1024), bytes_of(3 << 20), bytes_of(6_383_872), bytes_of(8), bytes_of(None)
    ('1 KiB', '3 MiB', '6.088 MiB', '8 B', '–')
    """
    if size is None:
        return MISSING
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size} B"


def formula(response: Response) -> str:
    """A law with its constants, and after it the intervals of the constants."""
    values = {name: number(each.value) for name, each in response.constants.items()}
    ends = [
        f"{name} {number(each.low)} to {number(each.high)}"
        for name, each in response.constants.items()
        if each.low is not None and each.high is not None
    ]
    return "; ".join([LAWS[response.law].format(**values), *ends])


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{key} ({_plain(v)})" if isinstance(v, dict) else f"{key} {_plain(v)}"
            for key, v in value.items()
        )
    return " ".join(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)


def join_numbers(values: Sequence[int]) -> str:
    """Numbers in a row of words, such as batches."""
    return join([str(value) for value in values]) or MISSING


def worst_error(errors: Sequence[float]) -> str:
    """The largest of relative errors, in percent and with its sign."""
    return number(100 * max(errors, key=abs), 2, sign=True) if errors else MISSING


def errors_by_law(by_law: dict[str, float]) -> str:
    """Laws with their relative errors in percent, the best first."""
    found = sorted(by_law.items(), key=lambda item: item[1])
    return ", ".join(f"{law} {percent(error, 2)}" for law, error in found) or MISSING
