"""Matplotlib figures as inline SVG that takes its text and line colours from the page around it.

Only the object interface is used: no pyplot, no state that outlives a call.  Text stays text, so
that it can be read out, searched and printed; ids carry the picture's name, so that many pictures
share a page; the same picture is the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

__all__ = [
    "AMP", "BLOCKED", "COMMUNICATION", "CONTENTION", "FULL", "INK", "LINE", "MUTED", "NET", "WAIT",
    "boxes", "canvas", "image", "pixels", "style_of", "svg",
]  # fmt: skip

INK, MUTED, LINE = "#101112", "#707172", "#c0c1c2"
"""Stand-ins that become the page's own colours, light or dark."""
THEME = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)"}

FULL, AMP, COMMUNICATION = "#3d74b8", "#e38b1f", "#8d5bb0"
WAIT, BLOCKED = "#9aa3ad", "#66727f"
CONTENTION, NET = "#d8433b", "#8d5bb0"

SERIES = ("#3d74b8", "#d9711c", "#2f9468", "#b8539a", "#8c6bc4", "#c2474a", "#3aa0b5", "#8a7a2c")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))

SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "simstrag",
    "font.family": ["DejaVu Sans"],
    "font.size": 8.0,
    "text.parse_math": False,  # a dollar sign in a policy's name is no formula
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "figure.facecolor": "none",
}


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, to be drawn on and written within the `with`.

    >>> with canvas(3, 1) as figure:
    ...     _ = figure.add_subplot().plot([0, 1], [0, 1])
    ...     print(svg(figure, "line", "a line")[:47])
    <svg class="picture" role="img" aria-label="a l
    """
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        yield Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure, name: str, label: str) -> Markup:
    """Inline SVG. name: unique on its page.  label: what a screen reader says of it."""
    written = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas = FigureCanvasSVG(figure)  # which draws once, where savefig does so twice
    canvas.print_svg(written, metadata=nothing)  # type: ignore[no-untyped-call]
    return _inline(written.getvalue(), name, label)


def _inline(text: str, name: str, label: str) -> Markup:
    """The `<svg>` element alone, without fixed size, foreign colours and needless digits."""
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    body = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{name}-", body)
    body = re.sub(r' id="[^"]*_\d+"', "", body)
    body = re.sub(r'\bd="[^"]*"', _short, body)
    body = body.replace("'DejaVu Sans'", "system-ui, sans-serif")
    for stand_in, variable in THEME.items():
        body = body.replace(stand_in, variable)
    body = re.sub(r"\n\s*", "\n", body)
    said = escape(label)
    return Markup(
        f'<svg class="picture" role="img" aria-label="{said}" {box.group()}>'
        f"<title>{said}</title>{body}"
    )


def _short(path: re.Match[str]) -> str:
    """A path to a tenth of a point, and without its line breaks."""
    return " ".join(re.sub(r"\.(\d)\d+", r".\1", path.group()).replace(".0 ", " ").split())


def boxes(
    ax: Axes, left: npt.ArrayLike, right: npt.ArrayLike, middle: npt.ArrayLike,
    height: float, color: str, alpha: float = 1.0, filled: bool = True,
) -> None:  # fmt: skip
    """Draw horizontal bars as one path; data coordinates, empty ones left out."""
    x0, x1 = np.asarray(left, dtype=float), np.asarray(right, dtype=float)
    y = np.asarray(middle, dtype=float)
    kept = x1 > x0
    if not kept.any():
        return
    x0, x1, y = x0[kept], x1[kept], y[kept]
    low, high = y - height / 2, y + height / 2
    x = np.stack([x0, x1, x1, x0, x0], axis=1)
    path = Path.make_compound_path_from_polys(
        np.stack([x, np.stack([low, low, high, high, low], axis=1)], axis=2)
    )
    rgba = to_rgba(color, alpha)
    face, edge, width = (rgba, "none", 0.0) if filled else ("none", rgba, 0.7)
    ax.add_patch(PathPatch(path, facecolor=face, edgecolor=edge, linewidth=width))


def image(
    ax: Axes, rgba: npt.NDArray[np.float64], extent: tuple[float, float, float, float]
) -> None:
    """Show RGBA pixels (rows from the top) over `extent`, each as a sharp rectangle."""
    ax.imshow(rgba, extent=extent, aspect="auto", interpolation="none", origin="upper")


def pixels(color: str, weight: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """RGBA pixels of one colour, as opaque as `weight` (0..1)."""
    rgba = np.empty((*weight.shape, 4))
    rgba[...] = to_rgba(color)
    rgba[..., 3] = np.clip(weight, 0.0, 1.0)
    return rgba


def style_of(k: int) -> dict[str, Any]:
    """Colour and dashes of the k-th curve of a picture."""
    return {"color": SERIES[k % len(SERIES)], "linestyle": DASHES[k // len(SERIES) % len(DASHES)]}
