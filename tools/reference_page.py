"""Write docs/reference.md, what a policy sees and answers, from the docstrings of the contract.

Run `python -m tools.reference_page` after a docstring or a field changed.  Rules of
docs/semantics.md stand here; a field without one is an error.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from simstrag.contract import (
    Block,
    Compensation,
    Damping,
    Hints,
    Late,
    Outer,
    OverlappingStep,
    Plan,
    Precision,
    Quorum,
    Review,
    Screen,
    Via,
    View,
    Weigh,
)
from simstrag.policies._parameters import MEANING
from tools.imports import ROOT

PAGE = ROOT / "docs" / "reference.md"
RULES = ROOT / "docs" / "semantics.md"
NOTHING = "\N{EN DASH}"

FIELDS: dict[type, dict[str, str]] = {
    View: {
        "world_size": "1", "version": "22", "samples": "22", "time": "20", "steps": "7",
        "local_times": "7", "amp": "5", "batch": "6, 6a", "lower_bound": "7",
        "communication": "7, 11", "pending_since": "6b, 11", "noise_scale": "25", "hints": "3",
        "telemetry": "27a", "refused": "20", "truth": "27",
    },
    Block: {
        "hints": "3", "versions": "20a", "samples": "20a", "times": "20a", "steps": "20a",
        "new": "20a",
    },
    Hints: {
        "amp_ratio": "3", "host_seconds": "2", "clean_seconds": "2", "amp_switch": "5",
        "batch": "6", "microbatches": "6a", "samples": "23", "noise_scale": "25", "nodes": "9",
        "step": "2",
    },
    OverlappingStep: {
        "launch": "2", "device": "2", "amp_launch": "3", "amp_device": "3", "fixed_share": "6",
    },
    Plan: {
        "quorums": "11, 19", "fuse": "11", "bound": "16", "precision": "5", "batch": "6",
        "deadline": "6a", "pause": "5a", "average": "24, 25", "outer": "32b",
        "fragments": "11b, 32b", "weigh": "24", "damping": "24", "compensation": "32c",
        "screen": "32d", "suspects": "27", "review": "20",
    },
    Quorum: {
        "ranks": "1, 19", "count": "11", "via": "11", "late": "14", "window": "17", "riders": "18",
        "steps": "6b", "rounds": "11", "parents": "11a", "overlap": "6c", "grace": "17a",
        "partial": "11b",
    },
    Review: {"updates": "20", "samples": "20", "seconds": "20", "on_block": "16, 20"},
    Damping: {"power": "24", "shift": "24", "cutoff": "24"},
    Outer: {"lr": "32b", "momentum": "32b", "nesterov": "32b", "mix": "32b", "delay": "32b"},
    Compensation: {"strength": "32c", "decay": "32c"},
    Screen: {"rho": "32d", "epsilon": "32d", "every": "32d", "batch": "32d"},
}  # fmt: skip
"""Rules of each field."""

METHODS = {
    View: ("newest", "medians", "since"),
    Block: ("newest", "medians"),
    OverlappingStep: ("reduced", "in_full"),
    Plan: ("standing", "resolved", "changes", "samples"),
}
WORDS: dict[type[enum.Enum], str] = {Via: "11", Late: "14", Weigh: "24", Precision: "5"}
"""The enumerations, and the rule of each."""

HEAD = """\
# What a policy sees and answers

A policy is asked with a `View` and answers with a `Plan`, which is in force until the review that
it asks for; [My policy](howto/policy.md) writes one. Every name is in `simstrag.contract`, most are
in `simstrag` too. N is the number of ranks and W the width of a window, 16; times are in seconds.
The rules are those of [Semantics](semantics.md).

This page is made by `python -m tools.reference_page`.
"""


def page() -> str:
    """The page in Markdown."""
    return "\n".join([HEAD, *_parts()])


def _parts() -> Iterator[str]:
    for cls, fields in FIELDS.items():
        yield f"## {cls.__name__}\n\n{_opening(cls)}\n"
        yield _table(("field", "meaning", "default", "rule"), _rows(cls, fields))
        for name in METHODS.get(cls, ()):
            method = getattr(cls, name)
            signature = re.sub(r"^\((self|cls)(, )?| -> .*", _own, _signature(method))
            signature = signature.replace("Floats", "NDArray[np.float64]")
            (first, *_) = _opening(method).split("\n\n")
            yield f"`{cls.__name__}.{name}{signature}`: {first}\n"
    for kind, rules in WORDS.items():
        yield f"## {kind.__name__}\n\n{_opening(kind)} Rule {_links(rules)}.\n"
        meanings = _members(kind)
        rows = ((f"`{kind.__name__}.{each.name}`", meanings[each.name]) for each in kind)
        yield _table(("value", "meaning"), rows)


def _own(match: re.Match[str]) -> str:
    """What remains of a signature: a bracket where `self` was, nothing of types of results."""
    return "(" if match[0].startswith("(") else ""


def _signature(method: Any) -> str:
    return re.sub(r": '([^']*)'", r": \1", str(inspect.signature(method)))


def _rows(cls: type, fields: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """A row for each public field. Raises `ValueError` where code, docstring and rules differ."""
    explained = _explained(inspect.getdoc(cls) or "")
    own = {each.name: each for each in dataclasses.fields(cls) if each.name[0] != "_"}
    if unlike := set(own) ^ set(fields) or set(own) - set(explained):
        raise ValueError(f"{cls.__name__}: no meaning or rule, or no field: {sorted(unlike)}")
    for name, field in own.items():
        yield f"`{name}`", explained[name], _default(field), _links(fields[name])


def _explained(text: str) -> dict[str, str]:
    """Names and meanings of the lines `name, name: meaning` of a docstring."""
    return {
        name: _prose(meaning)
        for group, meaning in MEANING.findall(text)
        for name in group.split(", ")
    }


def _opening(subject: Any) -> str:
    """A docstring without its parameters and examples."""
    text = inspect.getdoc(subject) or ""
    paragraphs = (part for part in text.split("\n\n") if not MEANING.match(part))
    return "\n\n".join(_prose(part) for part in paragraphs if not part.startswith(">>>"))


def _members(kind: type[enum.Enum]) -> dict[str, str]:
    """The docstring behind each member. Raises `ValueError` for one without."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr):
            (target,) = before.targets
            found[ast.unparse(target)] = _prose(ast.literal_eval(after.value))
    if missing := {each.name for each in kind} - set(found):
        raise ValueError(f"{kind.__name__}: members without a docstring: {sorted(missing)}")
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return NOTHING
    if isinstance(value, enum.Enum) and type(value).__name__[0] != "_":
        return f"`{type(value).__name__}.{value.name}`"
    text = repr(value)
    return (
        f"`{text}`"
        if len(text) <= 10
        else f"`{type(value).__name__}()`".replace("tuple()", "(Quorum(),)")
    )


def _links(rules: str) -> str:
    """Rules as links to their sections. Raises `ValueError` for a rule that does not exist."""
    text = RULES.read_text(encoding="utf-8")
    links = []
    for rule in rules.split(", "):
        before, found, _ = text.partition(f"\n**{rule}.")
        if not found:
            raise ValueError(f"docs/semantics.md has no rule {rule}")
        section = re.findall(r"(?m)^## (.+)$", before)[-1]
        anchor = re.sub(r"[^a-z ]", "", section.lower()).replace(" ", "-")
        links.append(f"[{rule}](semantics.md#{anchor})")
    return ", ".join(links)


def _prose(text: str) -> str:
    """Text on one line, with what Markdown would read as formatting."""
    return re.sub(
        r"(?<=\w)\*(?=\w)|(?<=[\w)])\*\*(?=[-\w])",
        lambda m: m[0].replace("*", r"\*"),
        " ".join(text.split()),
    )


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return (
        "\n".join(
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
        )
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
