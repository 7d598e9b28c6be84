"""The pictures of docs/cost.md: 960 x 540 pixels, legible in print and without colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.tables import times

__all__ = ["cost", "speed"]

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
SIZE, DPI = (9.6, 5.4), 100
LINES = {
    "engine": ("simstrag", "#0072B2", "o", "-"),
    "c": ("(c) heap loop", "#009E73", "^", "--"),
    "b": ("(b) SimPy, callbacks", "#E69F00", "s", "-."),
    "a": ("(a) SimPy, processes", "#D55E00", "D", ":"),
}
"""Label, colour (Okabe and Ito), marker and line style of each engine."""
TICKS = {8: "8", 64: "64", 512: "512", 4096: "4,096", 65536: "65,536"}
MARKED = {"8": "left", "4096": "center"}
"""Numbers of workers whose ratio to (a) is written, and the horizontal alignment of the text."""


def speed(results: dict[str, Any], path: Path = PICTURES / "speed.png") -> None:
    """Draw steps per second by workers without noise, a panel per policy."""
    figure = Figure(SIZE)
    panels = figure.subplots(2, 3, sharex=True, sharey=True)
    for axes, (policy, sizes) in zip(panels.flat, results["rates"].items(), strict=True):
        workers = sorted(sizes, key=int)
        for name, (label, colour, marker, dashes) in LINES.items():
            rates = [sizes[n][name] for n in workers]
            axes.plot(
                list(map(int, workers)), rates, color=colour, marker=marker, linestyle=dashes,
                label=label, markersize=5,
            )  # fmt: skip
        for n, alignment in MARKED.items():
            if n in sizes:
                ratio = results["ratios"][policy][n]["a"]
                axes.annotate(
                    f"{times(ratio)} x (a)", (int(n), sizes[n]["engine"]), xytext=(0, 6),
                    textcoords="offset points", ha=alignment, fontsize=9,
                )  # fmt: skip
        _style_axes(axes, policy)
        axes.set_xticks(list(TICKS), list(TICKS.values()))
        axes.set_xlim(5, 105_000)
    for axes in panels[:, 0]:
        axes.set_ylabel("steps per second")
    for axes in panels[1]:
        axes.set_xlabel("workers")
    low, high = panels[0, 0].get_ylim()
    panels[0, 0].set_ylim(low, high * 3)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=4, frameon=False, fontsize=10)
    _save(figure, path)


def cost(section: dict[str, Any], path: Path = PICTURES / "cost.png") -> None:
    """Draw time and memory by workers, updates, breakpoints and policies."""
    figure = Figure(SIZE)
    (first, second), (third, fourth) = figure.subplots(2, 2)
    for k, (key, label) in enumerate((("seconds", "whole run"), ("setup", "set-up"))):
        rows = section["workers"]
        _plot(first, list(map(int, rows)), [row[key] for row in rows.values()], label, k)
    first.set(xlabel="workers (1,000 updates)", ylabel="seconds")
    for k, (name, label) in enumerate((("workers", "by workers"), ("updates", "by updates"))):
        rows = section[name]
        steps = [int(n) * (1_000 if name == "workers" else 64) for n in rows]
        peaks = [row["peak_mb"] for row in rows.values()]
        _plot(second, steps, peaks, label, k)
    second.set(xlabel="steps in all", ylabel="peak of memory (MB)")
    for k, (noise, sizes) in enumerate(section["breakpoints"].items()):
        for n, seconds in list(sizes.items())[-1:]:
            ratios = [s / seconds["0"] for s in seconds.values()]
            _plot(third, list(map(int, seconds)), ratios, f"N = {n}, noise: {noise}", k)
    third.set(xlabel="breakpoints per worker (10,000 updates)", ylabel="time / without")
    sizes = list(next(iter(section["policies"].values())))
    n = "512" if "512" in sizes else sizes[-1]
    bars = sorted((seconds[n], policy) for policy, seconds in section["policies"].items())
    container = fourth.barh([p for _, p in bars], [s for s, _ in bars], color=LINES["engine"][1])
    fourth.bar_label(container, fmt="%.2g", padding=3, fontsize=8)
    fourth.margins(x=0.1)
    fourth.set_xlabel(f"seconds per million gradients, N = {n}")
    fourth.tick_params(labelsize=8)
    for axes in (first, second, third):
        axes.set_xscale("log")
        axes.legend(frameon=False, fontsize=9)
        axes.grid(alpha=0.3)
    first.set_yscale("log")
    third.set_xscale("symlog", linthresh=1)
    second.set_ylim(bottom=0)
    third.set_ylim(bottom=0)
    _save(figure, path)


def _plot(axes: Axes, x: list[Any], y: list[float], label: str, k: int) -> None:
    _, colour, marker, dashes = list(LINES.values())[k]
    axes.plot(x, y, color=colour, marker=marker, linestyle=dashes, label=label, markersize=5)


def _style_axes(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=9)


def _save(figure: Figure, path: Path) -> None:
    top = 0.94 if figure.legends else 1.0
    figure.tight_layout(rect=(0, 0, 1, top))
    figure.savefig(path, dpi=DPI)
