"""The charts of a report as Bokeh objects, to zoom and to point at in a notebook.

`output_notebook(INLINE)` once and then `show(...)`, of `bokeh.io` and `bokeh.resources`, show them
in Jupyter without a network; elsewhere `bokeh.io.save` writes a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.layouts import column
from bokeh.models import Range1d

from simstrag.analysis.charts import bokeh_renderer, comparison_charts
from simstrag.analysis.charts import timeline as charts
from simstrag.analysis.charts.chart import Chart
from simstrag.analysis.charts.timeline import Scope, scope_of
from simstrag.analysis.derived.example_runs import Example, example_of, examples_of
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.derived.timeline_excerpt import close_look
from simstrag.errors import InputError
from simstrag.experiments.comparison import Comparison
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario

SHARED = "time"
"""The name of the time axis that all plots of a page share."""


def timeline(run: Run, scenario: Scenario | None = None) -> Any:
    """What each rank of a run did when, and below it the whole run with a box that can be dragged.

    run: a run that kept its steps.
    scenario: the scenario of the run, for its contention; for the clean control
    `scenario.without_contention()`.  Without a scenario no slowdown is shown.
    Raises `InputError` where the run kept no steps, or the scenario has another trace.
    """
    e = example_of(run, scenario)
    return _link([e])


def timelines(comparison: Comparison) -> Any:
    """The timelines of all policies under the first seed, moved together."""
    return _link(examples_of(comparison))


def progress(comparison: Comparison) -> Any:
    """Progress over time, or accuracy where the learner has a curve: mean and range over seeds.

    A click on a name hides its curve.  A policy of unknown progress has none.
    """
    chart = comparison_charts.progress(standings(comparison))
    if chart is None:
        raise InputError("the progress of these policies is unknown")
    return bokeh_renderer.plot(chart)


def tradeoff(comparison: Comparison) -> Any:
    """Makespan of equal work against time to target or accuracy, means with 95 % intervals.

    Raises `InputError` where makespan is the only number.
    """
    found = comparison_charts.tradeoff(standings(comparison))
    if found is None:
        raise InputError("there is makespan alone: declare samples and a target or a curve")
    return bokeh_renderer.plot(found.chart(comparison_charts.looks(comparison.policies)))


def plot_timeline(e: Example, scope: Scope, axis: Any = None, whole: Chart | None = None) -> Any:
    """A run's steps, and below them the whole run, to choose what is shown.

    whole: the strip of the whole run, if it was made before.
    """
    chart = charts.timeline(e, scope.shown.ranks, scope.start, scope.end, scope.digits)
    whole = whole or charts.run_strip(e, scope.until, scope.shown)
    axis = axis or time_axis(scope)
    plots = bokeh_renderer.plot(chart, axis), bokeh_renderer.overview(whole, axis)
    return column(*plots, sizing_mode="stretch_width", spacing=0)


def time_axis(scope: Scope) -> Any:
    """The time axis that all timelines share, in seconds; it does not leave the scope."""
    bounds, shown = (scope.start, scope.end), scope.shown
    return Range1d(start=shown.start, end=shown.end, bounds=bounds, name=SHARED)


def _link(examples: Sequence[Example]) -> Any:
    """Timelines below each other on one time axis, titled where there are several."""
    scope = scope_of(examples, close_look(examples))
    axis = time_axis(scope)
    layouts = [plot_timeline(e, scope, axis) for e in examples]
    if len(examples) == 1:
        return layouts[0]
    for e, layout in zip(examples, layouts, strict=True):
        layout.children[0].title = e.name
    return column(*layouts, sizing_mode="stretch_width")
