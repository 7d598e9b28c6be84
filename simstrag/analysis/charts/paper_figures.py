"""Figures for a paper: a comparison or a run on matplotlib axes, to change and to save.

Each function draws on the `ax` that it is given, with the caller's fonts and size, or on a new
figure one column wide, and returns the axes; `ax.figure.savefig("speedups.pdf")` is up to you.
policies=[...] narrows a figure to some policies.  A policy looks the same in every figure of a
comparison.  The colours suit colour-blind readers (Okabe and Ito), and dashes, markers and hatches
differ without colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simstrag.analysis.charts import comparison_charts, run_charts
from simstrag.analysis.charts import timeline as timelines
from simstrag.analysis.charts.chart import PAPER, Chart, name_ranks
from simstrag.analysis.charts.matplotlib_renderer import draw
from simstrag.analysis.derived.example_runs import control_name, example, example_of
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.derived.timeline_excerpt import close_look
from simstrag.documents.suggestions import choices
from simstrag.errors import InputError
from simstrag.experiments.comparison import Comparison
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario

WIDTH = 3.5
"""Inches: one column of most journals and proceedings."""
COLUMNS = 3
"""Most entries in a row of a legend."""
SETTINGS = {
    "font.size": 8.0, "legend.fontsize": 7.0, "xtick.labelsize": 7.0, "ytick.labelsize": 7.0,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "lines.linewidth": 1.1, "lines.markersize": 3.5,
    "grid.linewidth": 0.4, "grid.color": "0.85", "hatch.linewidth": 0.5,
    "legend.frameon": False, "legend.handlelength": 2.2, "legend.columnspacing": 1.0,
}  # fmt: skip
TICKS: dict[str, Any] = {"labelsize": 7.0, "width": 0.6, "length": 2.5}
"""Given to the axes, since matplotlib makes ticks later, when other settings hold."""


def speedups(
    comparison: Comparison,
    ax: Axes | None = None,
    *,
    by: str | None = None,
    policies: Sequence[str] | None = None,
) -> Axes:
    """Speed-up of each policy over bsp with its 95 % interval over seeds, best mean on top.

    A dot is hollow where no difference from bsp is shown.  One seed has no interval.
    by: `time_to_target` or `makespan`; by default the time of the ranking.
    Raises `InputError` for an unknown time or policy.
    """
    s = standings(comparison)
    name = by or s.decides
    if name not in s.times:
        raise InputError(f"there is no speed-up by '{name}'; known: {', '.join(s.times)}")
    chart = comparison_charts.speedups(s, name, _chosen(comparison, policies))
    if chart is None:
        raise InputError("there is no policy but bsp to show")
    return _drawn(chart, ax, 0.6 + 0.17 * len(chart.rows))


def progress(
    comparison: Comparison, ax: Axes | None = None, *, policies: Sequence[str] | None = None
) -> Axes:
    """Progress over time, or accuracy where the learner has a curve: mean time, range over seeds.

    The dotted grey line is bsp without contention.  A policy of unknown progress has no line.
    Raises `InputError` for an unknown policy.
    """
    chart = comparison_charts.progress(standings(comparison), _chosen(comparison, policies))
    if chart is None:
        raise InputError("the progress of these policies is unknown")
    return _drawn(chart, ax, 2.1)


def timeline(
    run: Run,
    scenario: Scenario | None = None,
    ax: Axes | None = None,
    *,
    start: float | None = None,
    end: float | None = None,
) -> Axes:
    """What each rank did between two times of a run: bars for work, grey behind for slowdown.

    run: a run that kept its steps.
    scenario: the scenario of the run, for its contention; for the clean control
    `scenario.without_contention()`.  Without a scenario no slowdown is shown.
    start, end: seconds; by default where contention sets in.
    Raises `InputError` where the run kept no steps, or the scenario has another trace.
    """
    e = example_of(run, scenario)
    close = close_look([e])
    window = (close.start if start is None else start, close.end if end is None else end)
    chart = timelines.timeline(e, range(e.workers), *window, events=False)
    axes = _drawn(chart, ax, 0.75 + 0.13 * e.workers)
    axes.set_yticks(range(e.workers), name_ranks(e.workers))
    axes.set_ylabel("rank")
    return axes


def spent(
    comparison: Comparison, ax: Axes | None = None, *, policies: Sequence[str] | None = None
) -> Axes:
    """Where the time of the ranks went under the first seed, mean over ranks, best mean on top.

    The last bar is bsp without contention.  Raises `InputError` for an unknown policy.
    """
    chosen = _chosen(comparison, policies)
    names = [p.policy for p in standings(comparison).policies if p.policy in chosen] + ["clean"]
    runs = {control_name(name): comparison.examples[name] for name in names}
    parts = {name: example(name, run, None).mean_parts() for name, run in runs.items()}
    return _drawn(run_charts.time_spent(parts), ax, 0.6 + 0.17 * len(parts))


def sensitivity(
    comparison: Comparison, ax: Axes | None = None, *, policies: Sequence[str] | None = None
) -> Axes:
    """Time to target of each policy under every cost of staleness tried, with 95 % intervals.

    Each point is simulated; the lines guide the eye.  The upright line is the declared cost.
    Raises `InputError` where no target is declared, and for an unknown policy.
    """
    if comparison.scenario.progress_target is None:
        raise InputError("c_tau changes no time without a target; declare target_progress")
    chosen = _chosen(comparison, policies)
    return _drawn(comparison_charts.costs(standings(comparison), chosen), ax, 1.9)


def tradeoff(
    comparison: Comparison, ax: Axes | None = None, *, policies: Sequence[str] | None = None
) -> Axes:
    """Makespan of equal work against time to target, or without a target against the outcome.

    The outcome is the final accuracy where the learner has a curve, else the final progress.
    Means with 95 % intervals over seeds.  Filled markers and the staircase are the Pareto front *of
    the means*: where intervals overlap, the front is uncertain.
    Raises `InputError` where no samples are declared, because both times are then one number, and
    for an unknown policy.
    """
    if comparison.scenario.sample_target is None:
        raise InputError("runs end at their target: declare samples too, to have both times")
    chosen = _chosen(comparison, policies)
    found = comparison_charts.tradeoff(standings(comparison), chosen, progress=True)
    if found is None:
        raise InputError("the outcome of these policies is unknown")
    return _drawn(found.chart(comparison_charts.looks(comparison.policies)), ax, 2.2)


def looks(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Colour, dashes and marker of each policy, as keywords of `Axes.plot`; bsp is black."""
    return {name: PAPER.look(k) for name, k in comparison_charts.looks(comparison.policies).items()}


def _chosen(comparison: Comparison, policies: Sequence[str] | None) -> list[str]:
    """The policies to show; `InputError` for one that was not compared."""
    known = comparison.policies
    for name in policies or ():
        if name not in known:
            raise InputError(f"'{name}' was not compared; {choices(name, known)}")
    return known if policies is None else list(dict.fromkeys(policies))


def _drawn(chart: Chart, ax: Axes | None, height: float) -> Axes:
    with axes_of(ax, height, len({getattr(mark, "name", "") for mark in chart.marks})) as axes:
        draw(chart, axes, PAPER)
    return axes


@contextmanager
def axes_of(ax: Axes | None, height: float, entries: int = 0) -> Iterator[Axes]:
    """The caller's axes as they are, or new ones of a figure one column wide.

    height: inches, without the legend of `entries` entries.  At the end of the `with`, the legend
    has everything with a label.
    """
    if ax is not None:
        yield ax
        _add_legend(ax)
        return
    import matplotlib.pyplot as plt

    size = WIDTH, height + 0.15 * math.ceil(entries / COLUMNS)
    figure = plt.figure(figsize=size, layout="constrained")  # a backend that starts sets more
    with plt.rc_context(SETTINGS):  # type: ignore[arg-type]
        own = figure.add_subplot()
        own.tick_params(**TICKS)
        yield own
        _add_legend(own)


def _add_legend(ax: Axes) -> None:
    """A legend above a figure that holds these axes alone, else within the axes; one at most."""
    figure = cast(Figure, ax.figure)
    handles = ax.get_legend_handles_labels()[0]
    if not handles or figure.legends or ax.get_legend() is not None:
        return
    if len(figure.axes) == 1 and figure.get_layout_engine() is not None:
        for columns in range(COLUMNS, 0, -1):
            legend = figure.legend(handles=handles, loc="outside upper center", ncols=columns)
            if legend.get_window_extent().width <= figure.bbox.width or columns == 1:
                return
            legend.remove()
    ax.legend(handles=handles)
