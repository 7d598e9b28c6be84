"""The jinja2 templates of `html/`; they escape every value."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from simstrag.analysis.tables.table import Table


def template(name: str) -> jinja2.Template:
    """One template of `html/`, such as `report.html`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simstrag.analysis.pages", "html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def fragment(tables: Sequence[Table], paragraphs: Sequence[str] = ()) -> str:
    """Tables with their notes as an HTML fragment for a notebook."""
    return template("notebook.html").render(tables=tables, paragraphs=paragraphs)
