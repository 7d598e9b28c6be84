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
    environment.filters["prose"] = prose
    return environment.get_template(name)


def prose(text: str) -> Markup:
    """A sentence for HTML, escaped; options, and what stands between backticks, are code.

    No line ends within code, or between a number and its percent sign.

    >>> print(prose("if a < b, say `trace_end: hold`; or --own"))
    if a &lt; b, say <code>trace_end: hold</code>; or <code>--own</code>
    >>> print(prose("69 % of it"))
    <span class="whole">69 %</span> of it
    """
    marked = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text)))
    marked = re.sub(r"(?<=\s)--[a-z][a-z-]+", r"<code>\g<0></code>", marked)
    return Markup(re.sub(r"[\d.]+ %", r'<span class="whole">\g<0></span>', marked))


def fragment(
    tables: Sequence[Table], paragraphs: Sequence[str] = (), pictures: Sequence[Picture] = ()
) -> str:
    """Sentences, pictures, and tables with their notes as an HTML fragment for a notebook."""
    values = {"tables": tables, "paragraphs": paragraphs, "pictures": pictures}
    return template("notebook.html").render(values)
