"""Plots to zoom and to point at, for a notebook: those of a report, as Bokeh objects.

Without the network, `output_notebook(INLINE)` once and then `show(...)`, of `bokeh.io` and
`bokeh.resources`, show them in Jupyter; elsewhere `bokeh.io.save` writes a page.
"""

from __future__ import annotations

from typing import Any

from simstrag.analysis.charts import live_charts, live_timeline
from simstrag.analysis.charts.scopes import scope_of
from simstrag.analysis.charts.tradeoffs import tradeoff as tradeoff_of
from simstrag.analysis.derived.examples import Example, close_look, example, examples_of, timing_of
from simstrag.analysis.pages import sections
from simstrag.analysis.tables.standings import standings
from simstrag.errors import InputError
from simstrag.experiments.compare import Comparison
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario

__all__ = ["progress", "timeline", "timelines", "tradeoff"]


def timeline(run: Run, scenario: Scenario | None = None) -> Any:
    """What each rank of a run did when, and below it the whole run with a box that can be dragged.

    run: one that kept its steps.  scenario: what it was simulated under, for its contention; for
    the clean control `scenario.without_contention()`; without one no slowdown is shown.
    Raises `InputError` where the run kept no steps, or the scenario has another trace.

    >>> from simstrag import simulate
    >>> scenario = Scenario(workers=4, samples=5120, step={"compute": 0.1})
    >>> above, below = timeline(simulate(scenario, "asgd", record_steps=True), scenario).children
    >>> above.xaxis.axis_label, round(above.x_range.end, 6)
    ('time (s)', 1.0)
    """
    timing = None if scenario is None else timing_of(run, scenario)
    workers = len(run.summary["wait_by_rank"])
    return _linked([example(run.policy, run, timing, workers)], workers)


def timelines(comparison: Comparison) -> Any:
    """The timelines of all policies under the first seed, moved together.

    >>> from simstrag import compare
    >>> scenario = Scenario(workers=4, samples=5120, step={"compute": 0.1})
    >>> found = timelines(compare(scenario, ["asgd"], jobs=1)).children
    >>> [policy.children[0].title.text for policy in found]
    ['asgd', 'bsp', 'bsp without contention']
    """
    scenario = comparison.scenario
    return _linked(examples_of(comparison), scenario.workers)


def progress(comparison: Comparison) -> Any:
    """Progress over time, or accuracy where the learner has a curve: mean and range over seeds.

    A click on a name hides its curve; a policy of unknown progress has none.

    >>> from simstrag import compare
    >>> scenario = Scenario(workers=4, samples=5120, step={"compute": 0.1})
    >>> progress(compare(scenario, ["asgd"], jobs=1)).yaxis.axis_label
    'progress (noise-free updates)'
    """
    return live_charts.progress(standings(comparison))


def tradeoff(comparison: Comparison) -> Any:
    """Makespan of equal work against time to target or accuracy, means with 95 % intervals.

    Raises `InputError` where makespan is all there is.

    >>> from simstrag import compare
    >>> scenario = Scenario(workers=4, samples=5120, target_progress=4, step={"compute": 0.1})
    >>> tradeoff(compare(scenario, ["asgd"], jobs=1)).yaxis.axis_label
    'time to target (s)'
    """
    found = tradeoff_of(standings(comparison))
    if found is None:
        raise InputError("there is makespan alone: declare samples and a target or a curve")
    return found.plot(sections.looks(comparison))


def _linked(examples: list[Example], workers: int) -> Any:
    """Timelines on one axis of time, below each other, titled where there are several."""
    scope = scope_of(examples, close_look(examples, workers), workers)
    return live_timeline.together(examples, scope)
