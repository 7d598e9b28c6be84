"""What a profile is of, its numbers and its laws, in words."""

# ruff: noqa: RUF001, RUF002 - dashes and minus signs are meant

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from simstrag.analysis.text.number_format import MISSING, estimate, listed, number, percent
from simstrag.profile.measurements import Law, Response
from simstrag.profile.profile import Profile
from simstrag.profile.quantity import Quantity

__all__ = [
    "HELD_OUT", "LAWS", "MS", "Table", "bytes_of", "formula", "head", "ordered", "ranks_of",
    "shown", "span", "worst",
]  # fmt: skip

MS = 1e3
"""Milliseconds in a second."""
HELD_OUT = "held out"
SILENT = ("", MISSING)

GROUPS = {"all": "", "half": ", one half alone", "halves": ", both halves at once"}
LAWS: dict[Law, str] = {
    "none": "1: no slowdown that could be told",
    "constant": "{factor}, whatever the level",
    "linear": "1 + {slope} u",
    "fair_share": "{demand} + u, and at least 1",
    "reciprocal": "1 / (1 − {share} u)",
    "power": "1 + {slope} u^{exponent}",
    "hinge": "1 + {slope} (u − {knee}) above {knee}, else 1",
    "interpolated": "between the levels measured",
}


class Table(NamedTuple):
    """A title, headers, rows of text, and sentences that stand below.

    wraps: the column that gives way where a terminal is narrow.  least: what it does without.
    """

    title: str
    headers: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()
    wraps: int = 0
    least: tuple[str, ...] = ()

    def trimmed(self) -> Table:
        """Without the columns in which nothing is said.

        >>> Table("Steps", ["batch", "lag 1"], [["8", "–"]], wraps=1, least=("lag 1",)).trimmed()
        Table(title='Steps', headers=['batch'], rows=[['8']], notes=(), wraps=0, least=())
        """
        kept = [k for k in range(len(self.headers)) if any(r[k] not in SILENT for r in self.rows)]
        headers = [self.headers[k] for k in kept]
        return self._replace(
            headers=headers,
            rows=[[row[k] for k in kept] for row in self.rows],
            wraps=kept.index(self.wraps) if self.wraps in kept else 0,
            least=tuple(name for name in self.least if name in headers),
        )


def head(profile: Profile) -> tuple[str, ...]:
    """Paragraphs: where the numbers come from, of what device and model, and what is missing.

    >>> from simstrag.profile.profile import Profile
    >>> given = {"name": "a card", "date": "2026-01-31", "command": "simstrag calibrate"}
    >>> head(Profile.model_validate({**given, "device": {"model": "X"}, "software": {}}))
    ('a card: measured on 2026-01-31 with: simstrag calibrate', 'Device: model X.')
    """
    made = f"with: {profile.command}" + (f" ({profile.commit[:12]})" if profile.commit else "")
    if profile.origin == "derived":
        said = [
            f"{profile.name}: derived, not measured by this project; {profile.date}, {made}",
            f"Source: {profile.source}",
        ]
    else:
        said = [f"{profile.name}: measured on {profile.date} {made}"]
        said += [f"Source: {profile.source}"] if profile.source else []
    said += [f"Missing: {'; '.join(profile.missing)}."] if profile.missing else []
    said += [f"Note: {profile.note}"] if profile.note else []
    said += [f"Device: {_mapping(profile.device)}."] if profile.device else []
    said += [f"Software: {_mapping(profile.software)}."] if profile.software else []
    ranges = (f"{k} {number(a)} to {number(b)}" for k, (a, b) in profile.conditions.items())
    said += [f"Conditions meanwhile: {', '.join(ranges)}."] if profile.conditions else []
    return (*said, *_workload(profile))


def _workload(profile: Profile) -> tuple[str, ...]:
    w = profile.workload
    if w is None:
        return ()
    stand_in = ", a stand-in, since the device gains nothing from it" if w.stand_in else ""
    return (
        f"Workload: {w.name}, {w.parameters:,} parameters, batch {w.batch}; full precision is "
        f"{w.full}, reduced precision {w.amp or 'not known'}{stand_in}.",
    )


def _mapping(facts: dict[str, Any]) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in facts.items())


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return f"({_mapping(value)})"
    return " ".join(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)


def formula(response: Response) -> str:
    """A law with its constants in it, and their intervals behind.

    >>> from simstrag.profile.measurements import Response
    >>> levels = [{"level": 1, "slowdown": {"value": 1.9, "kind": "measured"}}]
    >>> slope = {"value": 0.9, "kind": "fitted", "low": 0.85, "high": 0.95}
    >>> given = {"resource": "gpu", "load": "cpu", "law": "linear", "levels": levels}
    >>> formula(Response.model_validate({**given, "constants": {"slope": slope}}))
    '1 + 0.900 u; slope 0.850 to 0.950'
    """
    values = {name: number(each.value) for name, each in response.constants.items()}
    ends = [
        f"{name} {number(each.low)} to {number(each.high)}"
        for name, each in response.constants.items()
        if each.low is not None and each.high is not None
    ]
    return "; ".join([LAWS[response.law].format(**values), *ends])


def ranks_of(ranks: int | str, group: str) -> str:
    """Who of some ranks reduces.

    >>> ranks_of(4, "all"), ranks_of(4, "half")
    ('4 ranks', '4 ranks, one half alone')
    """
    return f"{ranks} ranks{GROUPS.get(group, f', {group}')}"


def bytes_of(size: int | None) -> str:
    """A size in the largest binary unit of which it has one.

    >>> bytes_of(1024), bytes_of(3 << 20), bytes_of(6_383_872), bytes_of(8), bytes_of(None)
    ('1 KiB', '3 MiB', '6.088 MiB', '8 B', '–')
    """
    if size is None:
        return MISSING
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size} B"


def shown(quantity: Quantity | None, scale: float = 1.0) -> str:
    """A quantity and its interval; without one its value, and where nobody measured, that.

    >>> shown(Quantity(value=0.25, kind="assumed")), shown(None)
    ('0.250 (assumed)', '–')
    >>> shown(Quantity(value=500, kind="measured", low=120))
    '500 (at least 120)'
    """
    if quantity is None:
        return MISSING
    if quantity.low is not None and quantity.high is not None:
        return estimate(quantity.value, quantity.low, quantity.high, scale)
    if quantity.low is not None:
        return f"{number(quantity.value * scale)} (at least {number(quantity.low * scale)})"
    assumed = " (assumed)" if quantity.kind == "assumed" else ""
    return number(quantity.value * scale) + assumed


def span(values: Sequence[int]) -> str:
    """Whole numbers, listed."""
    return listed([str(value) for value in values]) or MISSING


def worst(errors: Sequence[float]) -> str:
    """The largest of relative errors, in percent and with its sign.

    >>> worst([0.01, -0.023])
    '−2.3'
    """
    return number(100 * max(errors, key=abs), 2, sign=True) if errors else MISSING


def ordered(by_law: dict[str, float]) -> str:
    """Laws with their relative errors in percent, the best first."""
    found = sorted(by_law.items(), key=lambda item: item[1])
    return ", ".join(f"{law} {percent(error, 2)}" for law, error in found) or MISSING
