"""Figures for a paper: a comparison or a run as matplotlib axes that are yours to change and save.

Every function draws on the `ax` it is given, whose fonts and size stay the caller's, or on a new
figure one column wide.  It returns the axes; `ax.figure.savefig("speedups.pdf")` is up to you.  A
policy looks the same in every figure of a comparison: colours that the colour-blind can tell apart
(Okabe and Ito), and dashes and markers that do without any colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from simstrag.analysis.charts.paper import (
    PARTS,
    SHADES,
    WIDTH,
    arms,
    axes_of,
    legend,
    looks,
    note,
    plain,
)
from simstrag.analysis.charts.tracks import Span, pieces_of, spans
from simstrag.analysis.derived.examples import close_look, control_name, example, timing_of
from simstrag.analysis.pages import sections
from simstrag.analysis.tables.comparison_tables import CONTROL
from simstrag.analysis.tables.standings import TIMES, standings
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.experiments import paired_statistics
from simstrag.experiments.compare import BASELINE, Comparison
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing.timing import Timing

__all__ = [
    "WIDTH", "front", "looks", "progress", "sensitivity", "speedups", "spent", "timeline",
    "tradeoff",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
WIDE = 24
"""Points of a curve between two markers."""
BARS = (
    ("full", ("full",), 0.62),
    ("amp", ("amp",), 0.62),
    ("lost", ("full, lost", "amp, lost"), 0.62),
    ("wait", ("wait", "blocked"), 0.2),
    ("communication", ("communication",), 0.34),
)
"""Of a timeline: part, the pieces of a step that are it, and how high it is drawn."""


def speedups(
    comparison: Comparison,
    ax: Axes | None = None,
    *,
    by: str | None = None,
    policies: Sequence[str] | None = None,
) -> Axes:
    """Speed-up of each policy over bsp, best mean on top, with its 95 % interval over seeds.

    A dot is hollow where no difference from bsp is shown; without an interval there is one seed.
    by: `time_to_target` or `makespan`, by default what ranks.  policies: those to show.
    Raises `InputError` for a time or a policy that there is not.

    >>> from simstrag import compare
    >>> scenario = Scenario(workers=4, samples=5120, step={"compute": 0.1})
    >>> speedups(compare(scenario, ["asgd"], jobs=1)).get_xlabel()
    'speed-up over bsp in makespan'
    """
    s = standings(comparison)
    name = by or s.decides
    if name not in s.times:
        raise InputError(f"there is no speed-up by '{name}'; known: {', '.join(s.times)}")
    chosen = _chosen(comparison, policies)
    shown = [p for p in s.policies if p.policy in chosen and p.policy != BASELINE]
    shown.sort(key=lambda p: p.time[name].value)
    with axes_of(ax, 0.6 + 0.17 * len(shown)) as axes:
        for y, p in enumerate(shown):
            apart = p.difference[name].high < 0 or p.difference[name].low > 0
            axes.errorbar(
                p.speedup[name].value, y, xerr=arms([p.speedup[name]]), fmt="o", color="black",
                markerfacecolor="black" if apart else "white", capsize=2,
            )  # fmt: skip
        clean = s.clean_speedup[name].value
        axes.axvline(1.0, color="0.4", linewidth=0.8)
        axes.axvline(clean, color="0.4", linewidth=0.8, linestyle=(0, (1, 1)))
        note(axes, "bsp", (1.0, 1.0), of="x", ha="right")
        note(axes, "no contention", (clean, 1.0), of="x")
        _rows(axes, [p.policy for p in shown])
        axes.set_xlabel(f"speed-up over bsp in {TIMES[name]}")
    return axes


def progress(
    comparison: Comparison, ax: Axes | None = None, *, policies: Sequence[str] | None = None
) -> Axes:
    """Progress over time, or accuracy where the learner has a curve: mean time, range over seeds.

    The dotted grey line is bsp without contention; a policy of unknown progress has no line.
    Raises `InputError` for a policy that was not compared.

    >>> from simstrag import compare
    >>> scenario = Scenario(workers=4, samples=5120, step={"compute": 0.1})
    >>> progress(compare(scenario, ["asgd"], jobs=1)).get_ylabel()
    'progress (noise-free updates)'
    """
    curve, styles = comparison.scenario.learner.curve, looks(comparison)
    s, chosen = standings(comparison), _chosen(comparison, policies)
    series, target = sections.progress_series(s), sections.target_level(s)
    lines = {word: series[word] for word in (*chosen, CONTROL) if word in series}
    with axes_of(ax, 2.1, len(lines)) as axes:
        for k, (word, (middle, least, most, height)) in enumerate(lines.items()):
            style, every = styles[word], (5 + 7 * k % WIDE, WIDE)
            axes.plot(middle, height, label=plain(word), markevery=every, **style)
            axes.fill_betweenx(height, least, most, color=style["color"], alpha=0.15, linewidth=0)
        if target is not None:
            axes.axhline(target, color="0.4", linewidth=0.6)
            note(axes, "target", (0.0, target), of="y")
        axes.set_xlim(left=0.0)
        axes.set_xlabel("time (s)")
        axes.set_ylabel("progress (noise-free updates)" if curve is None else "accuracy (0 to 1)")
        axes.grid()
    return axes


def timeline(
    run: Run,
    scenario: Scenario | None = None,
    ax: Axes | None = None,
    *,
    start: float | None = None,
    end: float | None = None,
) -> Axes:
    """What each rank did between two times of a run: bars for work, grey behind for slowdown.

    run: one that kept its steps.  scenario: what it was simulated under, for its contention; for
    the clean control `scenario.without_contention()`; without one no slowdown is shown.
    start, end: seconds; by default where contention sets in.
    Raises `InputError` where the run kept no steps, or the scenario has another trace.

    >>> from simstrag import simulate
    >>> scenario = Scenario(workers=4, samples=5120, step={"compute": 0.1})
    >>> timeline(simulate(scenario, "asgd", record_steps=True), scenario).get_ylabel()
    'rank'
    """
    timing = None if scenario is None else timing_of(run, scenario)
    workers = len(run.summary["wait_by_rank"])
    e = example(run.policy, run, timing, workers)
    steps, close = e.steps, close_look([e], workers)
    start = close.start if start is None else start
    end = close.end if end is None else end
    pieces = pieces_of(steps, timing)
    with axes_of(ax, 0.75 + 0.13 * workers, len(BARS) + len(SHADES)) as axes:
        entries = [] if timing is None else _shade(axes, timing, workers, start, end)
        for part, keys, height in BARS:
            word, look = PARTS[part]
            left, right = (
                np.clip(np.concatenate([pieces[key][side] for key in keys]), start, end)
                for side in (0, 1)
            )
            rank, kept = np.tile(steps.rank, len(keys)), right > left
            if kept.any():
                width = (right - left)[kept]
                axes.barh(rank[kept], width, height, left[kept], **look)
                entries.append(Patch(label=word, **look))
        axes.set_xlim(start, end)
        axes.set_ylim(workers - 0.5, -0.5)
        axes.set_yticks(range(0, workers, max(1, workers // 8)))
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("time (s)")
        axes.set_ylabel("rank")
        legend(axes, entries)
    return axes


def spent(
    comparison: Comparison, ax: Axes | None = None, *, policies: Sequence[str] | None = None
) -> Axes:
    """Where the time of the ranks went under the first seed, mean over ranks, best mean on top.

    The last bar is bsp without contention.  Raises `InputError` for a policy that was not compared.

    >>> from simstrag import compare
    >>> scenario = Scenario(workers=4, samples=5120, step={"compute": 0.1})
    >>> spent(compare(scenario, ["asgd"], jobs=1)).get_xlabel()
    'time of a rank (s)'
    """
    workers, chosen = comparison.scenario.workers, _chosen(comparison, policies)
    names = [p.policy for p in standings(comparison).policies if p.policy in chosen] + ["clean"]
    rows = [
        sections.means_of(example(name, comparison.examples[name], None, workers), workers)
        for name in names
    ]
    with axes_of(ax, 0.6 + 0.17 * len(rows), len(PARTS)) as axes:
        left = np.zeros(len(rows))
        for part, (word, look) in PARTS.items():
            width = np.array([parts[part] for parts in rows])
            if width.any():
                axes.barh(range(len(rows)), width, 0.65, left, label=word, **look)
            left += width
        _rows(axes, [control_name(name) for name in names])
        axes.set_xlabel("time of a rank (s)")
    return axes


def sensitivity(
    comparison: Comparison, ax: Axes | None = None, *, policies: Sequence[str] | None = None
) -> Axes:
    """Time to target of each policy under every cost of staleness tried, with 95 % intervals.

    Each point is simulated anew, the lines between are for the eye.  The upright line is the cost
    that the scenario declares.
    Raises `InputError` where no target is declared, and for a policy that was not compared.

    >>> from simstrag import compare
    >>> scenario = Scenario(workers=4, target_progress=3, step={"compute": 0.1})
    >>> sensitivity(compare(scenario, ["asgd"], jobs=1)).get_ylabel()
    'time to target (s)'
    """
    if not comparison.has_target:
        raise InputError("c_tau changes no time without a target; declare target_progress")
    s, styles, chosen = standings(comparison), looks(comparison), _chosen(comparison, policies)
    with axes_of(ax, 1.9, len(chosen)) as axes:
        for name in chosen:
            estimates = [s.mean(s.at_cost(name, c)) for c in s.costs]
            axes.errorbar(
                s.costs, [e.value for e in estimates], yerr=arms(estimates), capsize=2,
                label=plain(name), **styles[name],
            )  # fmt: skip
        axes.axvline(comparison.scenario.learner.c_tau, color="0.4", linewidth=0.6)
        axes.set_ylim(bottom=0.0)
        axes.set_xlabel(r"cost of a stale sample, $c_\tau$ (no unit)")
        axes.set_ylabel("time to target (s)")
        axes.grid(axis="y")
    return axes


def tradeoff(
    comparison: Comparison, ax: Axes | None = None, *, policies: Sequence[str] | None = None
) -> Axes:
    """Makespan of equal work against time to target, or against what that work led to.

    The latter without a target: the final accuracy where the learner has a curve, else the final
    progress.  Means with 95 % intervals over seeds.  Filled markers and the staircase are the
    Pareto front *of the means*: where intervals overlap, nobody can tell who is on it.
    Raises `InputError` where no samples are declared, so that both are one number, and for a policy
    that was not compared.

    >>> from simstrag import compare
    >>> scenario = Scenario(workers=4, samples=5120, step={"compute": 0.1})
    >>> tradeoff(compare(scenario, ["asgd"], jobs=1)).get_xlabel()
    'makespan of equal work (s)'
    """
    if comparison.scenario.sample_target is None:
        raise InputError("runs end at their target: declare samples too, to have both times")
    name, label, sign = _outcome(comparison)
    column, styles = comparison.column, looks(comparison)
    found = {
        policy: (paired_statistics.mean(column(policy, "makespan")), outcome)
        for policy in _chosen(comparison, policies)
        if math.isfinite((outcome := paired_statistics.mean(column(policy, name))).value)
    }
    x, y = np.array([[a.value, b.value] for a, b in found.values()]).reshape(-1, 2).T
    best = front(x, sign * y)
    with axes_of(ax, 2.2, len(found) + 1) as axes:
        order = np.argsort(x[best], kind="stable")
        axes.step(
            x[best][order], y[best][order], where="post", color="0.6", linewidth=0.8,
            label="Pareto front of means",
        )  # fmt: skip
        for on_it, (policy, (a, b)) in zip(best, found.items(), strict=True):
            style = styles[policy] | {"linestyle": "None"}
            axes.errorbar(
                a.value, b.value, xerr=arms([a]), yerr=arms([b]), label=plain(policy),
                elinewidth=0.7, markerfacecolor=style["color"] if on_it else "white", **style,
            )  # fmt: skip
        axes.set_xlabel("makespan of equal work (s)")
        axes.set_ylabel(label)
        axes.grid()
    return axes


def front(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    """Which points nobody beats: less is better in both; of equal points both are on the front.

    >>> front(np.array([1.0, 2.0, 3.0]), np.array([5.0, 3.0, 4.0])).tolist()
    [True, True, False]
    """
    no_worse = (x[:, None] <= x) & (y[:, None] <= y)
    better = (x[:, None] < x) | (y[:, None] < y)
    return np.asarray(~(no_worse & better).any(axis=0))


def _chosen(comparison: Comparison, policies: Sequence[str] | None) -> list[str]:
    """The policies to show, in the order of the comparison or as they were asked for."""
    known = comparison.policies
    for name in policies or ():
        if name not in known:
            listed = ", ".join(known)
            raise InputError(f"'{name}' was not compared; known: {listed}{nearest(name, known)}")
    return known if policies is None else list(dict.fromkeys(policies))


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """One row per name, the first on top."""
    axes.set_yticks(range(len(names)), [plain(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def _outcome(comparison: Comparison) -> tuple[str, str, float]:
    """What a trade-off sets against makespan: column, label, and -1 where more is better."""
    if comparison.has_target:
        return "time_to_target", "time to target (s)", 1.0
    if comparison.scenario.learner.curve is not None:
        return "accuracy", "accuracy (0 to 1)", -1.0
    return "progress", "progress (noise-free updates)", -1.0


def _shade(axes: Axes, timing: Timing, workers: int, start: float, end: float) -> list[Patch]:
    """Grey where a rank's steps are slowed, hatched where its network is; the legend's entries."""
    looks_of: dict[str, dict[str, Any]] = {}
    across: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for span in spans(timing, range(workers), start, end):
        if span.factor > 1 + 1e-9:
            word, look = _shade_of(span)
            looks_of[word] = look
            across.setdefault((span.rank, word), []).append((span.start, span.end - span.start))
    for (rank, word), bars in across.items():
        axes.broken_barh(bars, (rank - 0.5, 1.0), linewidth=0, **looks_of[word])
    return [Patch(linewidth=0, label=word, **looks_of[word]) for word in sorted(looks_of)]


def _shade_of(span: Span) -> tuple[str, dict[str, Any]]:
    if span.network:
        return "network slowed", {"facecolor": "none", "edgecolor": "0.5", "hatch": "////"}
    above, below, grey = next(s for s in SHADES if s[0] + 1e-9 < span.factor <= s[1] + 1e-9)
    word = f"slowed {above:g}-{below:g}x" if below < math.inf else f"slowed > {above:g}x"
    return word, {"facecolor": grey}
