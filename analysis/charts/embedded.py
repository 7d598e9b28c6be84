"""Bokeh and its plots as text that an HTML page carries along, to be unpacked when looked at."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from typing import Any, NamedTuple

__all__ = ["Packed", "library", "packed", "unpacked"]


class Packed(NamedTuple):
    """A plot as text, and how many pixels high it should be at least."""

    text: str
    height: int


@functools.cache
def library() -> str:
    """BokehJS, of which its core alone, as `packed` text; it asks nobody for anything."""
    from bokeh.resources import INLINE

    return _pack(INLINE.clone(components=["bokeh"]).js_raw[0])


def packed(plot: Any) -> Packed:
    """A plot that fills its place, for `Bokeh.embed.embed_item`: JSON, gzipped, in base64.

    The same plot is the same text: ids, which Bokeh counts up, are replaced.
    """
    from bokeh.embed import json_item

    parts = getattr(plot, "children", [plot])
    height = sum(part.height for part in parts)
    for model in (plot, parts[0]):
        model.sizing_mode = "stretch_both"
    text = json.dumps(_numbered(json_item(plot), {}), separators=(",", ":"))
    return Packed(_pack(text), height)


def unpacked(text: str) -> str:
    """What was packed.

    >>> unpacked(_pack("a plot"))
    'a plot'
    """
    return gzip.decompress(base64.b64decode(text)).decode()


def _pack(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _numbered(value: Any, ids: dict[str, str]) -> Any:
    """JSON with its ids in the order in which they are met.

    >>> _numbered({"root_id": "p1007", "doc": [{"id": "p1042"}, {"id": "p1007"}]}, {})
    {'root_id': 'p0', 'doc': [{'id': 'p1'}, {'id': 'p0'}]}
    """
    if isinstance(value, dict):
        return {
            key: ids.setdefault(item, f"p{len(ids)}")
            if key in ("id", "root_id") and isinstance(item, str)
            else _numbered(item, ids)
            for key, item in value.items()
        }
    return [_numbered(item, ids) for item in value] if isinstance(value, list) else value
