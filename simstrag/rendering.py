"""How results become words and HTML: renderers by type, registered by the rooms that draw.

A result (a comparison, a profile, a replay) stands below what draws it, and does not import it.
The first result that is drawn loads the modules of `RENDERERS`, which register theirs.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

RENDERERS = ("simstrag.analysis.html_renderers", "simstrag.validation.page")
"""The modules that register renderers, each for the results of some rooms."""


@functools.singledispatch
def answer(result: Any) -> Any:
    """The decision that a result supports; its text is the decision in sentences.

    Raises `TypeError` where none is registered for its type.
    """
    return _lookup(answer, result)(result)


@functools.singledispatch
def html_fragment(result: Any) -> str:
    """HTML of a result for a notebook cell.

    Raises `TypeError` where none is registered for its type.
    """
    fragment: str = _lookup(html_fragment, result)(result)
    return fragment


@functools.singledispatch
def html_page(result: Any, command: str | None = None) -> str:
    """The report of a result: one HTML file that loads nothing else.

    command: the command line that made the result, shown in the report.

    Raises `TypeError` where none is registered for its type.
    """
    page: str = _lookup(html_page, result)(result, command)
    return page


def _lookup(dispatcher: Any, result: object) -> Callable[..., Any]:
    """The renderer of a result's type; modules that register renderers are loaded up to it."""
    for module in RENDERERS:
        importlib.import_module(module)
        renderer: Callable[..., Any] = dispatcher.dispatch(type(result))
        if renderer is not dispatcher.dispatch(object):
            return renderer
    name = type(result).__name__
    raise TypeError(f"no renderer of {name}: none of {', '.join(RENDERERS)} registers one")
