"""Parts of the site that are made from the code: a page per policy."""

from __future__ import annotations

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from simstrag.policies import PolicyDescription, describe
from tools.format_tables import markdown

__all__ = ["name_folders", "page", "write_pages"]


def name_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Replace links to folders of the checkout, which have no page on the site, by their names."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        place = (Path(app.srcdir) / node.get("refdoc", "")).parent / node["reftarget"]
        if node["reftype"] == "myst" and place.is_dir():
            node.replace_self(node.children)


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
