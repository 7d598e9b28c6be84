"""Charts of a what-if analysis: how slow every worker was in every step, and the worst step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simstrag.analysis.charts import matplotlib_renderer as drawing
from simstrag.analysis.charts.chart import CONTENTION, WIDTH, Bars, Chart, Mark, rows_of
from simstrag.analysis.charts.matplotlib_renderer import Picture, canvas, picture, svg
from simstrag.arrays import Bools, Floats
from simstrag.records.record import BACKWARD, FORWARD, Record
from simstrag.traces.clocks import clocks_of
from simstrag.whatif.analysis import WhatIf
from simstrag.whatif.culprits import computing, over_peers

FULLEST = 2.0
"""Slowdown of the strongest colour."""
MOST_LANES, LABELLED = 32, 32
"""Most ranks of a timeline, and most that all have their numbers."""
BINS = 200
"""Most stretches of time of a picture of clocks."""
LANE, HEAD = 0.17, 0.75
"""Inches of a row, and of what the axes take."""


def heatmap(found: WhatIf) -> Picture:
    """Every rank (row) in every step (column): its computing over the median of its stage."""
    layout = found.replay.layout
    seconds = computing(layout)
    ratio = over_peers(seconds)
    ranks = layout.workers.ravel()
    order = np.argsort(ranks, kind="stable")
    weight = np.clip((ratio.reshape(-1, ratio.shape[-1])[order] - 1) / (FULLEST - 1), 0.0, 1.0)
    middle = np.median(seconds.sum(axis=1), axis=0)
    together = np.clip((middle / np.median(middle) - 1) / (FULLEST - 1), 0.0, 1.0)
    weight = np.concatenate([together[None], weight])
    names = ["all", *map(str, ranks[order].tolist())]
    columns = weight.shape[1]
    label = "Computing of every rank in every step over the median of its stage"
    return _map("heatmap", label, weight, (-0.5, columns - 0.5), names, "step", "rank",
                layout.step.tolist())  # fmt: skip


def clock_map(record: Record) -> Picture | None:
    """How far the SM clock of every busy GPU (row) is below the usual one, over time (column)."""
    cards = clocks_of(record)
    if not cards:
        return None
    usual = max(float(np.median(card.clock)) for card in cards)
    begin, end = min(card.begin for card in cards), max(card.end for card in cards)
    bins = min(BINS, max(1, min(len(card.time) for card in cards) - 1))
    edges = np.linspace(begin, end, bins + 1)
    weight = np.zeros((len(cards), bins))
    for row, card in enumerate(cards):
        place = np.clip(np.searchsorted(edges, card.time, side="right") - 1, 0, bins - 1)
        np.maximum.at(weight[row], place, np.clip((usual / card.clock - 1), 0.0, 1.0))
    names = [record.nodes[card.node] for card in cards]
    label = "SM clocks below the usual one"
    return _map("clocks", label, weight, (begin, end), names, "time (s)", "GPU")


def _map(
    name: str, label: str, weight: Floats, ends: tuple[float, float], names: Sequence[str],
    x: str, y: str, columns: Sequence[int] = (),
) -> Picture:  # fmt: skip
    """Weights (0..1) with a row per name, between the ends of the x axis.

    columns: the number of each column, if the x axis has no unit.
    """
    rows, shades = len(names), drawing.pixels(CONTENTION, 0.06 + 0.9 * weight)
    with canvas(WIDTH, HEAD + LANE * min(max(rows, 6), 60)) as figure:
        ax = figure.add_subplot()
        drawing.image(ax, shades, (*ends, rows - 0.5, -0.5))
        every = max(1, -(-rows // LABELLED))
        ax.set_yticks(range(0, rows, every), names[::every])
        if columns:
            each = max(1, -(-len(columns) // 16))
            ax.set_xticks(range(0, len(columns), each), list(map(str, columns[::each])))
        ax.set(xlabel=x, ylabel=y)
        ax.tick_params(length=0)
        return svg(figure, name, label)


def worst_step(found: WhatIf) -> tuple[int, Picture]:
    """The number of the step that took longest, and what every rank did in it."""
    layout, replay = found.replay.layout, found.replay
    k = int(np.argmax(found.metrics.replayed))
    ranks, shown = layout.workers, _shown(found)
    start, end = layout.start[:, :, k], layout.end[:, :, k]
    begins = np.where(
        layout.communicates[:, None], np.maximum(end - replay.work[:, :, k], start), start
    )
    marks: list[Mark] = []
    for name, role, own, left, right in (
        ("waiting", "wait", layout.communicates, start, begins),
        ("communication", "communication", layout.communicates, begins, end),
        ("forward", "full", layout.find(FORWARD), start, end),
        ("backward", "amp", layout.find(BACKWARD), start, end),
        ("other computing", "blocked", _others(found), start, end),
    ):
        parts = [
            (left[own & (layout.stage == stage), d], right[own & (layout.stage == stage), d], row)
            for row, (d, stage) in enumerate(shown)
        ]
        lefts, rights = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        rows = np.concatenate([np.full(len(part[0]), part[2]) for part in parts])
        if np.any(rights > lefts):
            marks.append(Bars(name, role, lefts, rights, rows, 0.8))
    names = [f"rank {ranks[d, stage]}" for d, stage in shown]
    step = int(layout.step[k])
    chart = Chart(
        f"What every rank did in step {step}", "time from the beginning of the step (s)", "",
        marks, x_range=(0.0, float(end.max())), size=(WIDTH, HEAD + LANE * 1.3 * len(shown)),
        **rows_of(names),
    )  # fmt: skip
    return step, picture(chart, "worst")


def _shown(found: WhatIf) -> list[tuple[int, int]]:
    """Replicas and stages of a timeline, as places; of many replicas, those that were last."""
    layout = found.replay.layout
    replicas = list(range(len(layout.replica)))
    kept = max(1, MOST_LANES // layout.stages)
    if len(replicas) > kept:
        latest = sorted(replicas, key=lambda d: -found.late.last[d])[:kept]
        replicas = sorted(latest)
    return [(d, stage) for d in replicas for stage in range(min(layout.stages, MOST_LANES))]


def _others(found: WhatIf) -> Bools:
    layout = found.replay.layout
    return np.asarray(~layout.communicates & ~layout.find(FORWARD, BACKWARD))
