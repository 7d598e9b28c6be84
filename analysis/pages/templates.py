"""The jinja2 templates of `html/`; everything they are given is escaped."""

from __future__ import annotations

import jinja2

__all__ = ["template"]


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
