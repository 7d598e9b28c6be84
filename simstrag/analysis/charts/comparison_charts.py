"""Charts of a comparison: speed-ups, progress, trade-off, cost of staleness, and thresholds."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simstrag.analysis.charts import chart as spec
from simstrag.analysis.charts.chart import Chart, Curve, Dots, Mark, Rule, exact, rows_of
from simstrag.analysis.charts.matplotlib_renderer import Picture, canvas, svg
from simstrag.analysis.derived.ranking import TIMES, Standings
from simstrag.analysis.tables.comparison_tables import CONTROL
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.cautions import unknown
from simstrag.analysis.text.number_format import estimate, join
from simstrag.analysis.text.sensitivity_text import Row, new_leader
from simstrag.arrays import Floats
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate
from simstrag.scenario.varied_constants import NAMES


def looks(policies: Sequence[str]) -> dict[str, int]:
    """The look of every policy, one for all charts of a comparison or sweep of these policies."""
    others = [name for name in policies if name != BASELINE]
    return {BASELINE: spec.BSP, CONTROL: spec.CONTROL_LOOK} | {
        name: k for k, name in enumerate(others, 1)
    }


def speedups(s: Standings, time: str, policies: Collection[str]) -> Chart | None:
    """Speed-up over bsp in one time with 95 % intervals, best mean on top; None for bsp alone.

    A dot is hollow where no difference from bsp is shown.
    """
    shown = [p for p in s.others if p.policy in policies]
    if not shown:
        return None
    shown.sort(key=lambda p: p.time[time].value)
    marks: list[Mark] = []
    for row, p in enumerate(shown):
        if math.isfinite(p.speedup[time].value):
            apart = p.difference[time].high < 0 or p.difference[time].low > 0
            marks.append(Dots("", 1, [p.speedup[time]], exact(row), filled=apart))
    marks += [
        Rule(1.0, "x", "bsp", left=True),
        Rule(s.clean_speedup[time].value, "x", "no contention", dotted=True),
    ]
    return Chart(
        "Speed-up over bsp with 95 % intervals", f"speed-up over bsp in {TIMES[time]}", "", marks,
        **rows_of([p.policy for p in shown]),
    )  # fmt: skip


# -- progress ------------------------------------------------------------------------------------


class Series(NamedTuple):
    """Mean, least and greatest time over seeds at which each level was reached.

    Of a real learner they are the accuracy over seeds, and `level` is the time.
    """

    mean: Floats
    least: Floats
    most: Floats
    level: Floats


def progress(
    s: Standings, policies: Sequence[str] | None = None, at_first: Collection[str] | None = None
) -> Chart | None:
    """Progress over time, or accuracy if the learner has a curve; None if no progress is known.

    at_first: policies whose curves a page shows at first, beside bsp with and without contention.
    """
    look, axis = looks(s.comparison.policies), progress_axis(s)
    is_real = s.scenario.learner.is_real
    series = {
        name: one
        for name, one in progress_series(s).items()
        if policies is None or name in policies or name == CONTROL
    }
    if not series:
        return None
    over = "accuracy" if is_real else "time (s)"
    other = "time (s)" if is_real else axis
    facts = (
        ("policy", "@name"), (other, "@x{0.[000]}" if is_real else "@y{0.[000]}"),
        (f"{over}, mean over seeds", "@y{0.[000]}" if is_real else "@x{0.[000]}"),
        ("least to most", "@least{0.[000]} to @most{0.[000]}"),
    )  # fmt: skip
    marks: list[Mark] = [
        Curve(
            name, look[name], *((one.level, one.mean) if is_real else (one.mean, one.level)),
            one.least, one.most, facts,
            at_first is None or name in {*at_first, BASELINE, CONTROL}, "y" if is_real else "x",
        )
        for name, one in series.items()
    ]  # fmt: skip
    scenario = s.scenario
    target = scenario.target_accuracy if is_real else scenario.progress_target
    if target is not None:
        level = target if is_real else float(_level(s, target))
        marks.append(Rule(level, "y", "target", dotted=True))
    end = max(float(np.nanmax(one.level if is_real else one.most)) for one in series.values())
    what = "Accuracy" if is_real else "Progress"
    return Chart(
        f"{what} over time of every policy", "time (s)", axis, marks, x_range=(0.0, 1.02 * end),
        y_range=(0.0, None),
    )  # fmt: skip


def progress_axis(s: Standings) -> str:
    """The label of the axis of progress."""
    learner = s.scenario.learner
    declared = learner.curve is not None or learner.is_real
    return "accuracy (0 to 1)" if declared else "progress (noise-free updates)"


def progress_series(s: Standings) -> dict[str, Series]:
    """The curves of bsp without contention, and of each policy whose progress is known."""
    comparison = s.comparison
    series = {}
    wanted = [("contended", name, name) for name in dict.fromkeys([BASELINE, *comparison.policies])]
    is_real = comparison.scenario.learner.is_real
    for variant, policy, name in [*wanted, ("clean", BASELINE, CONTROL)]:
        table = comparison.evaluations if is_real else comparison.curves
        rows = table[(table["variant"] == variant) & (table["policy"] == policy)]
        seeds = [group for _, group in rows.groupby("seed")]
        if seeds and is_real:
            series[name] = _accuracies(seeds)
        elif seeds:
            levels = np.linspace(0.0, min(g["progress"].max() for g in seeds), 101)
            times = np.array([np.interp(levels, g["progress"], g["time"]) for g in seeds])
            ends = times.mean(axis=0), times.min(axis=0), times.max(axis=0)
            series[name] = Series(*ends, _level(s, levels))
    return series


def _accuracies(seeds: Sequence[Any]) -> Series:
    """Accuracy over seeds at even times up to the end of the longest run; an ended one holds."""
    times = np.linspace(0.0, max(g["time"].max() for g in seeds), 101)
    held = np.array([
        g["accuracy"].to_numpy()[np.searchsorted(g["time"], times, "right") - 1] for g in seeds
    ])  # fmt: skip
    return Series(held.mean(axis=0), held.min(axis=0), held.max(axis=0), times)


def progress_table(s: Standings) -> Table:
    """The points of the curves."""
    rows = [
        (name, *values)
        for name, series in progress_series(s).items()
        for values in zip(*(column.tolist() for column in series), strict=True)
    ]
    axis = progress_axis(s).removesuffix(" (0 to 1)")
    over, other = "time (s)", axis
    if s.scenario.learner.is_real:
        over, other = axis, "time (s)"
    headers = ("policy", f"{over}, mean", f"{over}, least", f"{over}, most", other)
    return Table(headers, tuple(rows))


def explain_missing_curves(s: Standings) -> str:
    """A sentence on the policies without a curve; empty where all have one."""
    if s.scenario.learner.is_real or not s.unknown:
        return ""
    return f"Not drawn, because their progress is unknown: {unknown(s)}."


def _level(s: Standings, progress: Any) -> Any:
    """Progress as accuracy where a curve is declared, NaN beyond the curve."""
    curve = s.scenario.learner.curve
    if curve is None:
        return progress
    p, a = np.array(curve).T
    return np.interp(progress, p, a, left=np.nan, right=np.nan)


# -- trade-off -----------------------------------------------------------------------------------


class Tradeoff(NamedTuple):
    """Makespan and outcome of every policy, and which are on the Pareto front of the means.

    axis: the outcome, with its unit.
    """

    axis: str
    policies: list[str]
    makespan: list[Estimate]
    outcome: list[Estimate]
    on_front: list[bool]

    @property
    def sentence(self) -> str:
        """The policies on the front."""
        names = [name for name, best in zip(self.policies, self.on_front, strict=True) if best]
        verb = "is" if len(names) == 1 else "are"
        return (
            f"{join(names)} {verb} on the Pareto front of the means; where bars overlap, other "
            "seeds may put other policies there."
        )

    @property
    def table(self) -> Table:
        axis = self.axis.removesuffix(" (0 to 1)")
        rows = tuple(
            (name, Number.estimate(a), Number.estimate(b), str(best))
            for name, a, b, best in zip(*self[1:], strict=True)
        )
        return Table(("policy", "makespan (s)", axis, "on the front of means"), rows)

    def chart(self, look: dict[str, int]) -> Chart:
        """Markers with intervals, filled on the front, and the front as a staircase."""
        x, y, best = (
            np.array([e.value for e in self.makespan]),
            np.array([e.value for e in self.outcome]),
            np.array(self.on_front, dtype=bool),
        )
        order = np.argsort(x[best], kind="stable")
        marks: list[Mark] = [
            spec.Staircase("Pareto front of means", x[best][order], y[best][order])
        ]
        axis = "makespan of equal work (s)"
        for name, a, b, front in zip(*self[1:], strict=True):
            facts = (
                ("policy", "@name"), (axis, "@first"), (self.axis, "@second"),
                ("front of means", "on it" if front else "not on it"),
            )  # fmt: skip
            texts = {"first": [estimate(*a)], "second": [estimate(*b)]}
            marks.append(Dots(name, look[name], [a], [b], front, False, texts, facts))
        return Chart(f"Makespan against {self.axis}", axis, self.axis, marks)


def tradeoff(
    s: Standings, policies: Sequence[str] | None = None, progress: bool = False
) -> Tradeoff | None:
    """Makespan of equal work against time to target, else against accuracy.

    progress: whether final progress serves where there is neither; otherwise None.
    """
    scenario, column = s.scenario, s.comparison.column
    if scenario.sample_target is None or (scenario.learner.is_real and scenario.has_target):
        return None
    if s.comparison.has_target:
        name, axis, sign = "time_to_target", "time to target (s)", 1.0
    elif scenario.learner.curve is not None or scenario.learner.is_real:
        name, axis, sign = "accuracy", "accuracy (0 to 1)", -1.0
    elif progress:
        name, axis, sign = "progress", "progress (noise-free updates)", -1.0
    else:
        return None
    names = [p.policy for p in s.policies] if policies is None else list(policies)
    outcomes = {
        each: s.accuracy(each) if name == "accuracy" else s.mean(column(each, name))
        for each in names
    }
    names = [name_ for name_ in names if math.isfinite(outcomes[name_].value)]
    if not names:
        return None
    makespans = [s.mean(column(name_, "makespan")) for name_ in names]
    found = [outcomes[name_] for name_ in names]
    x, y = (np.array([e.value for e in each]) for each in (makespans, found))
    return Tradeoff(axis, names, makespans, found, pareto_front(x, sign * y).tolist())


def pareto_front(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    """Whether no other point is as small in both coordinates and smaller in one.

    >>> pareto_front(np.array([1.0, 2.0, 3.0]), np.array([5.0, 3.0, 4.0])).tolist()
    [True, True, False]
    """
    no_worse = (x[:, None] <= x) & (y[:, None] <= y)
    better = (x[:, None] < x) | (y[:, None] < y)
    return np.asarray(~(no_worse & better).any(axis=0))


def costs(s: Standings, policies: Sequence[str] | None = None) -> Chart:
    """Time to target under every cost of staleness, each simulated; lines guide the eye."""
    look = looks(s.comparison.policies)
    x = exact(*s.costs)
    marks: list[Mark] = [
        Dots(name, look[name], x, [s.mean(s.at_cost(name, c)) for c in s.costs], joined=True)
        for name in (policies or [p.policy for p in s.policies])
    ]
    marks.append(Rule(s.scenario.learner.c_tau, "x"))
    return Chart(
        "Time to target by cost of staleness", "cost of a stale sample, c_tau (no unit)",
        "time to target (s)", marks, y_range=(0.0, None), size=(9.0, 3.0), grid="y",
    )  # fmt: skip


# -- thresholds ----------------------------------------------------------------------------------

LETTER, LONGEST = 0.0105, 30
"""Share of the axis that a letter of a label takes, and the most letters that a label has."""


def thresholds_picture(rows: Sequence[Row]) -> Picture:
    """A bar per constant: the factors under which the leader stays ahead, and beyond."""
    if not rows:
        return Picture()
    constants, leader = len({r["quantity"] for r in rows}), rows[0]["leader"]
    with canvas(spec.WIDTH, 0.8 + 0.3 * constants) as figure:
        draw_thresholds(figure, rows)
        words = f"By what factor each constant may be off before {leader} loses the best mean"
        return svg(figure, "thresholds", words)


def draw_thresholds(figure: Figure, rows: Sequence[Row]) -> Axes:
    """Draw the bars on a figure."""
    names, ax = list(dict.fromkeys(r["quantity"] for r in rows)), figure.add_subplot()
    leads, loses = spec.SERIES[:2]
    room = {-1: 0.03, 1: 0.03}  # shares of the axis for labels beyond a quarter and four times
    for r in rows:
        y, end = names.index(r["quantity"]), r["tried"] / r["value"]
        turn = math.sqrt(r["holds_at"] * r["turns_at"]) / abs(r["value"]) if r["rival"] else end
        ax.barh(y, turn - 1, left=1, height=0.5, color=leads)
        alpha = 1.0 if r["shown"] else 0.45
        ax.barh(y, end - turn, left=turn, height=0.5, color=loses, alpha=alpha)
        label = new_leader(r)
        label = label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"
        side = 1 if end > 1 else -1
        room[side] = max(room[side], LETTER * (len(label) + 2))
        ax.annotate(
            label, (end, y), ha="left" if side > 0 else "right", va="center",
            xytext=(4 * side, 0), textcoords="offset points", fontsize=7,
        )  # fmt: skip
    down, up = (4.0 * share / (1 - sum(room.values())) for share in room.values())
    ax.set_xscale("log", base=2)
    ax.set_xlim(0.25 / 2**down, 4 * 2**up)
    ticks = (1 / 4, 1 / 2, 1, 2, 4)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.axvline(1, color=spec.INK, linewidth=0.8)
    ax.set_yticks(range(len(names)), [NAMES[name] for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.set_xlabel("times the value in force")
    return ax
