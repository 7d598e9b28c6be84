"""Parts of the site that are made from the code: tables of a file's keys, a page per policy.

    ```{fields} simstrag.scenario.sections:StepSection
    compute: seconds of a clean full-precision step
    ...
    ```

is a table of keys.  The argument is a pydantic model or a sequence of column names.  Allowed values
and defaults come from the model, meanings from the page.  A key without a meaning, or a meaning
without its key, is an error, so that a strict build fails if code and page differ.
"""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from pydantic import BaseModel
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from simstrag.policies import PolicyDescription, describe

__all__ = ["Fields", "allowed", "meanings", "name_folders", "page", "table", "write_pages"]

TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`true`, `false`",
}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
NOTHING = "\N{EN DASH}"


def meanings(lines: Sequence[str]) -> dict[str, str]:
    """Lines `name: meaning` as a dict; an indented line continues the one before.

    >>> meanings(["a: one", "  and a half", "b: two"])
    {'a': 'one and a half', 'b': 'two'}
    """
    found: dict[str, str] = {}
    name = ""
    for line in filter(str.strip, lines):
        if line[0].isspace():
            found[name] += f" {line.strip()}"
            continue
        name, _, text = line.partition(": ")
        found[name] = text.strip()
    return found


def allowed(schema: Mapping[str, Any]) -> str:
    """The values that a JSON schema allows, in words.

    >>> allowed({"anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}]})
    'whole number ≥ 1'
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
        return f"list of {re.sub('number|mapping', lambda noun: noun[0] + 's', each)}"
    kind = TYPES.get(schema.get("type", ""), "mapping")
    limits = [f"{sign} {schema[key]:g}" for key, sign in LIMITS.items() if _is_stated(schema, key)]
    return " ".join([kind, *limits[:1], *(f"and {limit}" for limit in limits[1:])])


def _is_stated(schema: Mapping[str, Any], key: str) -> bool:
    """Whether a limit is stated; the 64 bits of a seed are not."""
    return key in schema and schema[key] < 2**63


def table(subject: Any, explained: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Header and rows in Markdown. Raises `ValueError` if names and meanings differ."""
    names = tuple(subject.model_fields) if _is_model(subject) else tuple(subject)
    missing, unknown = set(names) - explained.keys(), explained.keys() - set(names)
    if missing or unknown:
        raise ValueError(f"without a meaning: {sorted(missing)}; not there: {sorted(unknown)}")
    if not _is_model(subject):
        return [("name", "meaning"), *((f"`{name}`", explained[name]) for name in names)]
    schema = subject.model_json_schema()["properties"]
    return [
        ("key", "meaning", "allowed", "default"),
        *((f"`{n}`", explained[n], allowed(schema[n]), _default(subject, n)) for n in names),
    ]


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


class Fields(SphinxDirective):
    """The directive `fields`: a Markdown table."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """The table's nodes. A difference between page and code is an error of the build."""
        module, _, name = self.arguments[0].partition(":")
        subject = getattr(importlib.import_module(module), name)
        try:
            rows = table(subject, meanings(list(self.content)))
        except ValueError as error:
            raise self.error(f"{self.arguments[0]}: {error}") from None
        return self.parse_text_to_nodes(markdown(rows))


def name_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Replace links to folders of the checkout, which have no page on the site, by their names."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        place = (Path(app.srcdir) / node.get("refdoc", "")).parent / node["reftarget"]
        if node["reftype"] == "myst" and place.is_dir():
            node.replace_self(node.children)


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


def write_pages(folder: Path) -> None:
    """Write `NAME.md` of every built-in policy, and remove pages of policies that are gone.

    A page that is up to date is not written, so that its date does not change. Others are replaced
    as a whole, because two builds may run side by side.
    """
    folder.mkdir(exist_ok=True)
    pages = {folder / f"{described.name}.md": page(described) for described in describe()}
    for path in set(folder.glob("*.md")) - pages.keys():
        path.unlink(missing_ok=True)
    for path, text in pages.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            temporary = path.with_suffix(f".{os.getpid()}")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)


def page(described: PolicyDescription) -> str:
    """The page in Markdown.

    >>> from simstrag.policies import describe
    >>> print(page(describe("asgd")))  # doctest: +ELLIPSIS
    # asgd
    <BLANKLINE>
    Every gradient is an update of its own, ...
    ...
    """
    d = described
    parts = [
        f"# {d.name}",
        _prose(d.sentence),
        *map(_prose, d.details),
        f"Its updates come through {d.architecture}. In a comparison it is `-p {d.name}`.",
        "## Plan",
        "Its first plan for eight ranks:",
        markdown([("field", "what it says"), *((name, _prose(text)) for name, text in d.plan)]),
        *_parameters(d),
        "## Source",
        _prose(d.source.removeprefix("Source: ")),
    ]
    if d.remarks:
        parts += ["## What is ours", *map(_prose, d.remarks)]
    parts += [
        "## Code",
        f"```{{literalinclude}} ../../simstrag/policies/{d.name}.py\n:language: python\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _parameters(d: PolicyDescription) -> list[str]:
    if not d.parameters:
        return ["## Parameters", "None."]
    rows = [("parameter", "meaning", "allowed", "default")]
    before = ""
    for p in d.parameters:
        meaning = "as above" if p.meaning and p.meaning == before else _prose(p.meaning)
        rows.append((f"`{p.name}`", meaning, p.allowed, f"`{p.default}`"))
        before = p.meaning
    spec = f"{d.name}:{d.parameters[0].name}={d.parameters[0].default}"
    return ["## Parameters", f"Written behind a colon, such as `{spec}`.", markdown(rows)]


def _prose(text: str) -> str:
    """Text of a docstring as Markdown: an asterisk stays, and pages are linked.

    >>> _prose("every sample 1/(N*b), see docs/star.md")
    'every sample 1/(N\\\\*b), see [docs/star.md](../star.md)'
    """
    text = re.sub(r"(?<=\w)\*(?=\w)", r"\\*", text)
    return re.sub(r"\bdocs/(\w+\.md)", r"[docs/\1](../\1)", text)
