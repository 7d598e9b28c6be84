"""Writes the tables of keys into the pages on file formats: `python -m tools.format_tables`.

A table stands below a comment that names a pydantic model or a sequence of column names, such as
`<!-- simstrag.scenario.sections:StepSection -->`. Its columns, names and meanings are the page's;
allowed values and defaults are the code's. A key without a meaning, or a meaning without its key,
is an error.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from tools.imports import ROOT

DOCS = ROOT / "docs"
PAGES = [
    *sorted((DOCS / "formats").glob("*.md")),
    *(DOCS / "howto" / f"{name}.md" for name in ("sweep", "trace")),
]
TABLE = re.compile(r"(?m)^<!-- (simstrag\.[\w.]+):(\w+) -->\n((?:\|.*\n)+)")
ROW = re.compile(r"(?m)^\| `(\w+)` \| (.*?) (?<!\\)\|")
TYPES = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "`true`, `false`",
}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
NOTHING = "\N{EN DASH}"


def allowed(schema: Mapping[str, Any]) -> str:
    """The values that a JSON schema allows, in words.

    >>> allowed({"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}]})
    'integer ≥ 1'
    >>> allowed({"minimum": 0, "maximum": 1, "type": "number"})
    'number, 0 to 1'
    >>> allowed({"type": "array", "items": {"type": "string"}})
    'list of text'
    >>> allowed({"type": "array", "items": {"type": "number", "minimum": 0}})
    'list of numbers ≥ 0'
    """
    if "anyOf" in schema:
        parts = (allowed(part) for part in schema["anyOf"] if part.get("type") != "null")
        return " or ".join(dict.fromkeys(parts))
    if "$ref" in schema:
        return "mapping"
    if "enum" in schema or "const" in schema:
        words = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{word}`" for word in words)
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return "pair of " + ", ".join(map(allowed, schema["prefixItems"]))
        each = allowed(schema.get("items", {}))
        return f"list of {re.sub('number|integer|mapping', lambda noun: noun[0] + 's', each)}"
    kind = TYPES.get(schema.get("type", ""), "mapping")
    if _is_stated(schema, "minimum") and _is_stated(schema, "maximum"):
        return f"{kind}, {schema['minimum']:g} to {schema['maximum']:g}"
    limits = [f"{sign} {schema[key]:g}" for key, sign in LIMITS.items() if _is_stated(schema, key)]
    return " ".join([kind, *limits[:1], *(f"and {limit}" for limit in limits[1:])])


def _is_stated(schema: Mapping[str, Any], key: str) -> bool:
    """Whether a limit is stated; the 64 bits of a seed are not."""
    return key in schema and schema[key] < 2**63


def table(subject: Any, explained: Mapping[str, str], given: str) -> list[tuple[str, ...]]:
    """Header and rows in Markdown. Raises `ValueError` if names and meanings differ.

    given: the present header; one without `allowed` has no such column.
    """
    names = tuple(subject.model_fields) if _is_model(subject) else tuple(subject)
    missing, unknown = set(names) - explained.keys(), explained.keys() - set(names)
    if missing or unknown:
        raise ValueError(f"without a meaning: {sorted(missing)}; not there: {sorted(unknown)}")
    if not _is_model(subject):
        return [("name", "meaning"), *((f"`{name}`", explained[name]) for name in names)]
    schema = subject.model_json_schema()["properties"]
    rows: list[tuple[str, ...]] = [
        ("key", "meaning", "allowed", "default"),
        *((f"`{n}`", explained[n], allowed(schema[n]), _default(subject, n)) for n in names),
    ]
    return rows if "allowed" in given else [(*row[:2], row[3]) for row in rows]


def _is_model(subject: Any) -> bool:
    return isinstance(subject, type) and issubclass(subject, BaseModel)


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", {}):
        return NOTHING
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    if value == math.inf:
        return "`.inf`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def filled(page: str) -> str:
    """A page with its tables as they should be. Raises `ValueError` where keys differ."""

    def fill(found: re.Match[str]) -> str:
        module, name, rows = found.groups()
        subject = getattr(importlib.import_module(module), name)
        meanings = {key: re.sub(r"\\\|", "|", text) for key, text in ROW.findall(rows)}
        header = rows.partition("\n")[0]
        try:
            return f"<!-- {module}:{name} -->\n{markdown(table(subject, meanings, header))}\n"
        except ValueError as error:
            raise ValueError(f"{module}:{name}: {error}") from None

    return TABLE.sub(fill, page)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its header.

    >>> print(markdown([("a", "b"), ("1", "x|y")]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def main() -> None:
    """Write the tables anew."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
