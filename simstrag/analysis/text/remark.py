"""Remarks: rows of severity, kind and values, and the sentence of each kind."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sized
from enum import IntEnum
from typing import Any

from simstrag.analysis.text.number_format import join, number, percent, plural, seconds


class Severity(IntEnum):
    """What a remark may do to an answer; the most severe are shown first."""

    DECIDES = 0
    """A remark that can change the choice."""
    DOUBT = 1
    """Numbers may be off, or mean less than they seem to."""
    NOTE = 2
    """A remark on the origin of the numbers."""


Sentences = Mapping[Severity, Mapping[str, str]]
"""The template of each kind, by severity, see `say`; a kind has one severity."""


class Remark(str):
    """A sentence on a result, with its severity, its kind and the values in it."""

    severity: Severity
    kind: str
    values: Mapping[str, Any]

    def __new__(cls, text: str, severity: Severity, kind: str, values: Mapping[str, Any]) -> Remark:
        remark = super().__new__(cls, text)
        remark.severity, remark.kind, remark.values = severity, kind, values
        return remark

    def to_dict(self) -> dict[str, Any]:
        """The remark as a JSON object."""
        return {
            "severity": self.severity.name.lower(), "kind": self.kind, "text": str(self),
            "values": dict(self.values),
        }  # fmt: skip


def rows(of: Sentences, found: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Remark]:
    """The remarks with these kinds and values, in the order of the table: the most severe first."""
    severity = {kind: each for each, templates in of.items() for kind in templates}
    every = [
        Remark(say(of[severity[kind]][kind], **values), severity[kind], kind, values)
        for kind, values in found
    ]
    order = [*severity]
    return sorted(every, key=lambda each: order.index(each.kind))


def say(template: str, /, **values: Any) -> str:
    """A sentence: a template whose braces name a value and how to write it.

    `s` is a duration, `%` a share, `# noun` a count with its noun, and `one/many` a word for one
    or for several; without any, lists are joined and numbers have three digits.

    >>> say("{who} {who:is/are} {t:s} late in {n:# step}", who=["a", "b"], t=3.0, n=1)
    'a and b are 3.00 s late in 1 step'
    """
    return _Words().vformat(template, (), values)


class _Words(string.Formatter):
    """How the values of a sentence are written."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if "/" in format_spec:
            one, _, many = format_spec.partition("/")
            return one if (len(value) if isinstance(value, Sized) else value) == 1 else many
        if format_spec.startswith("# "):
            return plural(int(value), format_spec[2:])
        if format_spec in _FORMS:
            return _FORMS[format_spec](value)
        return format(value, format_spec)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return join([_plain(each) for each in value])
    return number(value) if isinstance(value, float) else str(value)


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "": _plain,
    "s": seconds,
    "%": lambda share: f"{percent(share)} %",
    "%2": lambda share: f"{percent(share, 2)} %",
}
