"""The jinja2 templates of `html/`; they escape every value."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jinja2
from markupsafe import Markup, escape

from simstrag.analysis.charts.matplotlib_renderer import Picture
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
    environment.filters["code"] = code
    return environment.get_template(name)


def code(text: str) -> Markup:
    """A sentence for HTML, escaped, with what stands between backticks as code.

    >>> print(code("if a < b, say `trace_end: hold`"))
    if a &lt; b, say <code>trace_end: hold</code>
    """
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))


def fragment(
    tables: Sequence[Table], paragraphs: Sequence[str] = (), pictures: Sequence[Picture] = ()
) -> str:
    """Sentences, pictures, and tables with their notes as an HTML fragment for a notebook."""
    values = {"tables": tables, "paragraphs": paragraphs, "pictures": pictures}
    return template("notebook.html").render(values)
