"""Charts of single runs: time spent, waiting between ranks, staleness of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simstrag.analysis.charts import chart as spec
from simstrag.analysis.charts.chart import Bars, Chart, Mark, name_ranks, rows_of
from simstrag.analysis.charts.matplotlib_renderer import Picture, canvas, image, pixels, svg
from simstrag.analysis.derived.example_runs import Example
from simstrag.analysis.derived.waiting import Waiting
from simstrag.analysis.text.number_format import number, percent
from simstrag.arrays import Floats
from simstrag.experiments.comparison import BASELINE
from simstrag.runs.run import Run

SMALL = 3.2
"""Inches: the width of one of several charts beside each other."""
PARTS = {
    "full": "full precision", "amp": "reduced precision", "lost": "thrown away",
    "communication": "communication", "wait": "waiting",
}  # fmt: skip


def time_spent(
    parts: Mapping[str, Mapping[str, Floats | float]], axis: str = "time of a rank (s)"
) -> Chart:
    """Stacked bars of seconds by part, one row per name."""
    marks, left = _stacked(parts)
    return Chart(
        "Seconds of a rank by what it did", axis, "", marks, legend=False,
        size=(9.0, 0.5 + 0.25 * len(parts)),
        x_range=(0.0, 1.02 * float(left.max())), **rows_of(list(parts)),
    )  # fmt: skip


def time_spent_by_rank(name: str, parts: Mapping[str, Floats], most: float) -> Chart:
    """Stacked bars for every rank of one run; `most` seconds reach the right edge."""
    ranks = len(parts["full"])
    every = {str(rank): {key: v[rank] for key, v in parts.items()} for rank in range(ranks)}
    marks, _ = _stacked(every)
    return Chart(
        f"Seconds of every rank under {name}", "time (s)", "rank", marks, legend=False,
        size=(SMALL, _height(ranks)), x_range=(0.0, 1.02 * most), **rows_of(name_ranks(ranks)),
    )  # fmt: skip


def accuracy(run: Run) -> Chart | None:
    """Accuracy over time of a real learner; None where no model learned."""
    if run.evaluations is None:
        return None
    time, found = (np.array(run.evaluations[name]) for name in ("time", "accuracy"))
    facts = (("time (s)", "@x{0.[000]}"), ("accuracy", "@y{0.[000]}"))
    look = spec.BSP if run.policy == BASELINE else 1
    marks: list[Mark] = [spec.Curve(run.policy, look, time, found, facts=facts)]
    if (target := run.scenario.get("target_accuracy")) is not None:
        marks.append(spec.Rule(target, "y", "target", dotted=True))
    return Chart(
        f"Accuracy over time under {run.policy}", "time (s)", "accuracy (0 to 1)", marks,
        x_range=(0.0, 1.02 * float(time[-1])), y_range=(min(0.0, float(np.nanmin(found))), None),
        legend=False,
    )  # fmt: skip


def _stacked(parts: Mapping[str, Mapping[str, Floats | float]]) -> tuple[list[Mark], Floats]:
    rows, left = np.arange(len(parts)), np.zeros(len(parts))
    marks: list[Mark] = []
    for part, word in PARTS.items():
        right = left + np.array([float(own.get(part, 0.0)) for own in parts.values()])
        if (right > left).any():
            marks.append(Bars(word, part, left, right, rows, 0.62))
        left = right
    return marks, left


def _height(ranks: int) -> float:
    return 0.6 + 0.15 * min(max(ranks, 4), 24)


def staleness(name: str, quantiles: Floats, most: float) -> Chart:
    """A row per rank: a line from least to most, a box of the middle half, a mark at the median.

    quantiles: least, lower quartile, median, upper quartile and most; shape (ranks, 5).
    """
    n = len(quantiles)
    row, half = np.arange(n), 0.004 * max(most, 1.0)
    least, lower, median, upper, highest = quantiles.T
    marks = [
        Bars("", "range", least, highest, row, 0.12),
        Bars("", "half", lower, upper, row, 0.6),
        Bars("", "median", median - half, median + half, row, 0.8),
    ]
    return Chart(
        f"Staleness of every rank under {name}", "staleness (versions)", "rank", marks,
        legend=False, size=(SMALL, _height(n)), x_range=(-0.03 * most, 1.03 * most),
        **rows_of(name_ranks(n)),
    )  # fmt: skip


def waiting_matrices(examples: Sequence[Example]) -> list[tuple[str, str, Picture]]:
    """For each run its name, a sentence on its waiting, and seconds of rank (row) for rank.

    The darkest shade is the longest waiting in all runs.
    """
    seconds = [e.waiting.held + e.waiting.blocked for e in examples]
    most = max((float(m.max(initial=0.0)) for m in seconds), default=0.0)
    return [
        (e.name, describe_waiting(e.waiting), _matrix(f"waiting{k}", e.name, m, most))
        for k, (e, m) in enumerate(zip(examples, seconds, strict=True))
    ]


def _matrix(name: str, policy: str, seconds: Floats, most: float) -> Picture:
    n = len(seconds)
    if not seconds.any():
        return Picture()
    with canvas(SMALL, 2.9) as figure:
        ax, weight = figure.add_subplot(), seconds / most
        image(ax, pixels(spec.CONTENTION, 0.85 * weight), (-0.5, n - 0.5, n - 0.5, -0.5))
        if n <= 10:
            for row, column in zip(*np.nonzero(weight > 0.005), strict=True):
                value = seconds[row, column]
                text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
                ax.text(column, row, text, ha="center", va="center", fontsize=6.5)
        ticks = range(0, n, max(1, n // 8))
        ax.set(xticks=ticks, yticks=ticks, xlabel="for rank", ylabel="rank waited (s)")
        ax.tick_params(length=0)
        return svg(figure, name, f"Waiting between ranks under {policy}")


def describe_waiting(w: Waiting) -> str:
    """How long the ranks of a run waited, and for what."""
    total = f"The ranks waited {number(w.total)} s in all"
    if w.reason:
        return f"{total}. For which rank is not shown: {w.reason}."
    parts = []
    if w.held.any():
        parts.append(f"{number(float(w.held.sum()))} s for the last gradient of an update")
    if w.blocked.any():
        parts.append(f"{number(float(w.blocked.sum()))} s at the bound, for a rank behind")
    if w.elsewhere > 1e-9 * max(w.total, 1.0):
        rest = "for no rank (the server's queue, an update under way, being left out)"
        parts.append(f"{number(w.elsewhere)} s {rest}")
    if not parts:
        return "No rank ever waited."
    text = f"{total}: {', '.join(parts)}."
    if w.by_rank.any():
        slowest = int(np.argmax(w.by_rank))
        share = float(w.by_rank[slowest] / w.by_rank.sum())
        text += f" Of the waiting for ranks, {percent(share, 2)} % was for rank {slowest}."
    return text
