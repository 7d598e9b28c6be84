"""The plots of a page that answer to the pointer, packed; each stands for a picture of its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simstrag.analysis.charts import live_charts, live_timeline
from simstrag.analysis.charts.drawing import THEME
from simstrag.analysis.charts.embedded import Packed, library, packed
from simstrag.analysis.charts.scopes import scope_of
from simstrag.analysis.charts.tradeoffs import Tradeoff
from simstrag.analysis.derived.examples import Example
from simstrag.analysis.derived.windows import Window
from simstrag.analysis.pages import sections
from simstrag.analysis.tables.standings import Standings

__all__ = ["charts_of", "page_of", "timelines_of"]


def timelines_of(
    examples: Sequence[Example], shown: Window, workers: int
) -> tuple[dict[str, Packed], str]:
    """The timelines of runs by the name of their picture, and what they leave out, in words."""
    scope = scope_of(examples, shown, workers)
    plots = {f"window{k}": packed(live_timeline.timeline(e, scope)) for k, e in enumerate(examples)}
    contended = [e.timing for e in examples if e.timing and e.timing.contention.slowdowns]
    if contended:
        plots["contention"] = packed(live_timeline.contention(contended[0], scope))
    return plots, scope.left_out


def charts_of(s: Standings, traded: Tradeoff | None) -> dict[str, Packed]:
    """The charts of a comparison by the name of their picture."""
    plots = {}
    if sections.progress_series(s):
        plots["progress"] = packed(live_charts.progress(s))
    if traded is not None:
        plots["tradeoff"] = packed(traded.plot(sections.looks(s.comparison)))
    return plots


def page_of(plots: Mapping[str, Packed]) -> dict[str, Any]:
    """What the template `plots.html` needs to show them."""
    theme = {standin: name[4:-1] for standin, name in THEME.items()}
    return {"plots": plots, "library": library() if plots else "", "theme": theme}
