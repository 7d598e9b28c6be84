"""How results become words and HTML: renderers by type, registered by the packages that draw.

A result (a comparison, a profile, a replay) does not import what draws it. The entry points of the
group `simstrag.renderers` name modules; importing one registers a renderer for each of its types.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import metadata
from typing import Any

GROUP = "simstrag.renderers"


@functools.singledispatch
def answer(result: Any) -> Any:
    """The decision that a result supports; its text is the decision in sentences.

    Raises `TypeError` where no installed package registers a renderer for its type.
    """
    return _lookup(answer, result)(result)


@functools.singledispatch
def html_fragment(result: Any) -> str:
    """HTML of a result for a notebook cell.

    Raises `TypeError` where no installed package registers a renderer for its type.
    """
    fragment: str = _lookup(html_fragment, result)(result)
    return fragment


@functools.singledispatch
def html_page(result: Any, command: str | None = None) -> str:
    """The report of a result: one HTML file that loads nothing else.

    command: the command line that made the result, shown in the report.

    Raises `TypeError` where no installed package registers a renderer for its type.
    """
    page: str = _lookup(html_page, result)(result, command)
    return page


def _lookup(dispatcher: Any, result: object) -> Callable[..., Any]:
    """The renderer of a result's type; modules that register renderers are loaded up to it."""
    for entry in metadata.entry_points(group=GROUP):
        entry.load()
        renderer: Callable[..., Any] = dispatcher.dispatch(type(result))
        if renderer is not dispatcher.dispatch(object):
            return renderer
    name = type(result).__name__
    raise TypeError(f"no renderer of {name}: no module in the entry points '{GROUP}' has one")
