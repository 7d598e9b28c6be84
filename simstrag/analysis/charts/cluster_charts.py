"""Pictures of a cluster study: completion times, who pays, nodes, jobs and devices over time."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from simstrag.analysis.charts import chart as spec
from simstrag.analysis.charts import matplotlib_renderer as drawing
from simstrag.analysis.charts.chart import WIDTH, Bars, Chart, Dots, Mark, Rule, exact, rows_of
from simstrag.analysis.charts.matplotlib_renderer import Picture, canvas, picture, svg
from simstrag.analysis.charts.timeline import FULLEST
from simstrag.analysis.derived.cluster_combinations import Combinations
from simstrag.analysis.derived.cluster_stays import (
    Stay,
    asked_of_nodes,
    devices_held,
    mean_slowdowns,
)
from simstrag.arrays import Floats
from simstrag.experiments.paired_statistics import Estimate

LABEL = 24
"""Letters of a line of a row's name."""
BINS = 720
COARSE = 180
"""Bins of time: of nodes, and of what was asked of them."""
MOST_JOBS = 60
"""Most jobs that have a bar."""
MOST_LANES, MOST_NODES = 64, 64
"""Most lanes in which jobs are drawn one by one, and most nodes that are drawn."""
LANE, LETTER, HEAD, NARROW = 0.15, 0.058, 0.6, 5.2
"""Inches: height of a lane, width of a letter in it, what axes take, and a picture for phones."""
PRESENT, STRONGEST = 0.2, 0.7
"""Opacity of a job that is not slowed, and of one that is slowed most."""
NAMES = {
    "cores": "processors", "nic_in": "cards, inwards", "nic_out": "cards, outwards",
    "gpus": "devices",
}  # fmt: skip


def completion(found: Combinations) -> Picture:
    """Mean completion time of every combination with its interval, best mean on top.

    A dot is hollow where no difference from the first row is shown.
    """
    marks: list[Mark] = [Rule(found.first.time.value, "x", "first row", left=True)]
    for row, one in enumerate(found.ranking):
        apart = one.change.high < 0 or one.change.low > 0
        marks.append(Dots("", _look(found, one.name), [one.time], exact(row), filled=apart))
    names = [_wrap(one.name) for one in found.ranking]
    chart = Chart(
        "Mean completion time of every combination with 95 % intervals",
        "mean completion time (s)", "", marks, legend=False,
        size=(NARROW, HEAD + max(0.22, _height(names)) * len(names)), **rows_of(names),
    )  # fmt: skip
    return picture(chart, "completion")


def changes(found: Combinations) -> Picture:
    """By how much longer the jobs of each workload take than under the first row."""
    others, workloads = found.every[1:], found.workloads
    names = [_wrap(one.name) for one in others]
    marks: list[Mark] = [Rule(0.0, "x", "first row", left=True)]
    offsets = np.linspace(-0.3, 0.3, len(workloads)) if len(workloads) > 1 else [0.0]
    for k, (workload, offset) in enumerate(zip(workloads, offsets, strict=True), 1):
        label = workload
        for row, one in enumerate(others):
            (effect,) = (e for e in one.effects if e.workload == workload)
            x = Estimate(*(100 * value for value in effect.change))
            marks.append(Dots(label, k, [x], exact(row + offset), effect.pays or effect.profits))
            label = ""
    in_line = max(1, int((NARROW - 0.4) / (0.5 + 1.3 * LETTER * max(map(len, workloads)))))
    height = (
        HEAD
        + 0.2 * -(-len(workloads) // in_line)
        + max(0.24, 0.1 * len(workloads) + 0.1, _height(names)) * len(others)
    )
    chart = Chart(
        "Change of mean completion time of each workload, with 95 % intervals",
        "longer than under the first row (%)", "", marks,
        size=(NARROW, height), **rows_of(names),
    )  # fmt: skip
    with canvas(*chart.size) as figure:
        ax = figure.add_subplot()
        drawing.draw(chart, ax, spec.PAGE)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=in_line)
        return svg(figure, "changes", chart.label)


def nodes(found: Sequence[Stay], until: float, name: str, label: str) -> Picture:
    """Every node over time: a lane for each job on it, the more coloured the more it is slowed.

    Where there are too many lanes, one strip per node: the mean over the jobs on it.
    """
    by_node: dict[int, list[Stay]] = {}
    for stay in found:
        by_node.setdefault(stay.node, []).append(stay)
    lanes = {node: _lanes(own) for node, own in by_node.items()}
    single = sum(map(len, lanes.values())) <= MOST_LANES
    if not single:
        kept = sorted(by_node, key=lambda node: -_lost(by_node[node]))[:MOST_NODES]
        lanes = {node: [by_node[node]] for node in sorted(kept)}
    edges, gap = np.linspace(0.0, until, BINS + 1), 0.6 if single else 0.0
    height = sum(len(own) + gap for own in lanes.values())
    with canvas(WIDTH, HEAD + LANE * height) as figure:
        ax = figure.add_subplot()
        top, middles = 0.0, []
        for own in lanes.values():
            rgba = np.array([_shade(*mean_slowdowns(lane, edges)) for lane in own])
            drawing.image(ax, rgba, (0.0, until, top + len(own), top))
            for row, lane in enumerate(own if single else ()):
                _name_jobs(ax, lane, top + row + 0.5, until)
            middles.append(top + len(own) / 2)
            top += len(own) + gap
        every = max(1, len(lanes) // 32)
        ax.set_yticks(middles[::every], [f"node {node}" for node in lanes][::every])
        ax.tick_params(axis="y", length=0)
        ax.set(xlim=(0.0, until), ylim=(top - gap, 0.0), xlabel="time (s)")
        ax.spines["left"].set_visible(False)
        return svg(figure, name, label)


def jobs(table: Any, until: float, name: str, label: str) -> Picture:
    """Jobs as bars: waiting, then running as long as alone, then what sharing added."""
    shown = table[table["start"].notna()]
    shown = shown.assign(end=shown["end"].fillna(until)).sort_values("arrival", kind="stable")
    if len(shown) > MOST_JOBS:
        shown = shown[(shown["end"] - shown["arrival"]).rank(method="first", ascending=False)
                      <= MOST_JOBS]  # fmt: skip
    arrival, start, end = (shown[k].to_numpy() for k in ("arrival", "start", "end"))
    alone = np.minimum(start + shown["alone"].fillna(np.inf).to_numpy(), end)
    row = np.arange(len(shown))
    marks = [
        Bars("waits for devices", "wait", arrival, start, row, 0.3),
        Bars("runs, as long as alone", "full", start, alone, row, 0.7),
        Bars("cost of sharing", "slowed 2", alone, end, row, 0.7),
    ]
    chart = Chart(
        label, "time (s)", "", marks, x_range=(0.0, until),
        size=(WIDTH, HEAD + LANE * len(shown)), **rows_of(shown["name"].tolist()),
    )  # fmt: skip
    return picture(chart, name)


def use(table: Any, asked: Any, study: Mapping[str, Any], until: float, name: str) -> Picture:
    """Devices that jobs held, and what contended jobs asked of all nodes, over time."""
    kinds, edges = study["nodes"], np.linspace(0.0, until, COARSE + 1)
    slots = study.get("workers_per_gpu", 1) * sum(k.get("count", 1) * k["gpus"] for k in kinds)
    lines = {"devices held": devices_held(table, slots, edges)}
    found = asked_of_nodes(asked, kinds, study.get("interval", 1.0), edges)
    lines |= {f"asked of {NAMES[resource]}": values for resource, values in found.items()}
    middles = (edges[:-1] + edges[1:]) / 2
    marks: list[Mark] = [Rule(100.0, "y", "all nodes", dotted=True)]
    marks += [
        spec.Curve(of, k, middles, 100 * values) for k, (of, values) in enumerate(lines.items())
    ]
    chart = Chart(
        "Devices held and resources asked for over time", "time (s)", "share of all nodes (%)",
        marks, x_range=(0.0, until), y_range=(0.0, None), size=(WIDTH, 2.4),
    )  # fmt: skip
    return picture(chart, name)


def _wrap(name: str) -> str:
    """The name of a combination in lines beside a narrow picture."""
    return "\n".join(textwrap.wrap(name, LABEL, break_long_words=False))


def _height(names: Sequence[str]) -> float:
    """Inches of the row whose name has most lines."""
    return 0.14 * max(name.count("\n") + 1 for name in names) + 0.06


def _look(found: Combinations, name: str) -> int:
    """A look for each mix of policies, that of bsp for the first one's."""
    mixes = list(dict.fromkeys(next(iter(one.values.values())) for one in found.every))
    (own,) = (next(iter(one.values.values())) for one in found.every if one.name == name)
    return spec.BSP + mixes.index(own)


def _lanes(own: Sequence[Stay]) -> list[list[Stay]]:
    """Jobs of a node in as few lanes as keep them apart."""
    lanes: list[list[Stay]] = []
    for stay in own:
        free = (lane for lane in lanes if lane[-1].end <= stay.start)
        lane = next(free, None)
        if lane is None:
            lanes.append([stay])
        else:
            lane.append(stay)
    return lanes


def _lost(own: Sequence[Stay]) -> float:
    """The slowdown of a node's jobs, added up over time."""
    return sum(
        float(((stay.slowdown - 1) * np.diff(np.append(stay.times, stay.end))).sum())
        for stay in own
    )


def _shade(present: Floats, slowdown: Floats, network: Floats) -> Floats:
    """RGBA pixels: grey for a job that is not slowed, red or violet for one that is."""
    strong = np.clip((slowdown - 1) / (FULLEST - 1), 0.0, 1.0)[:, None]
    colour = np.where(network[:, None] > 0.5, to_rgb(spec.NET), to_rgb(spec.CONTENTION))
    rgb = strong * colour + (1 - strong) * np.array(to_rgb(spec.MUTED))
    alpha = np.minimum(present, 1.0)[:, None] * (PRESENT + (STRONGEST - PRESENT) * strong)
    return np.concatenate([rgb, alpha], axis=1)


def _name_jobs(ax: Axes, lane: Sequence[Stay], middle: float, until: float) -> None:
    start, end = (np.array([getattr(stay, k) for stay in lane]) for k in ("start", "end"))
    drawing.boxes(ax, start, end, np.full(len(lane), middle), 0.94, spec.Paint(None, spec.MUTED))
    for stay in lane:
        if (stay.end - stay.start) / until * (WIDTH - 0.8) > LETTER * len(stay.job):
            at = stay.start + 0.003 * until
            ax.text(at, middle, stay.job, va="center_baseline", color=spec.INK, fontsize=6.5)
