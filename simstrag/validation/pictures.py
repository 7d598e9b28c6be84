"""Charts of a validation: real runs as points, predictions as lines."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from simstrag.analysis.charts import chart, matplotlib_renderer
from simstrag.validation.case_results import CaseResult
from simstrag.validation.distributions import Distributions
from simstrag.validation.run_metrics import Measure

REAL, SIMULATED = chart.SERIES[0], chart.SERIES[1]
POINTS = 200
"""Most points of a curve of cumulative shares."""


def errors(cases: Sequence[CaseResult]) -> Markup:
    """Makespans relative to the mean of the real runs, with the tolerance."""
    shown = [each for each in cases if each.makespan is not None]
    with matplotlib_renderer.canvas(chart.WIDTH, 0.8 + 0.27 * len(shown)) as figure:
        ax = figure.add_subplot()
        for y, each in enumerate(shown):
            verdict = each.makespan
            assert verdict is not None
            bounds = [1 - verdict.allowed], [1 + verdict.allowed]
            matplotlib_renderer.boxes(ax, *bounds, [y], 0.62, chart.Paint(chart.WAIT, alpha=0.3))
            runs = [run.makespan / verdict.real for run in each.real.values()]
            ax.plot(
                runs, [y] * len(runs), "o", color=REAL, markersize=4, fillstyle="none",
                label="real run" if y == 0 else None,
            )  # fmt: skip
            ax.plot(
                [1 + verdict.error] * 2, [y - 0.36, y + 0.36], color=SIMULATED, linewidth=2,
                label="simulated" if y == 0 else None,
            )  # fmt: skip
        ax.axvline(1.0, color=chart.MUTED, linewidth=0.8)
        ax.set_yticks(range(len(shown)), [each.case.name for each in shown])
        ax.set_ylim(len(shown) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        ax.set_xlabel("makespan relative to the mean of real runs; grey: tolerance")
        ax.legend(**matplotlib_renderer.BESIDE)
        return matplotlib_renderer.svg(
            figure, "errors", "Makespan of each case, real and simulated"
        )


def pace(of: CaseResult) -> Markup:
    """Step time over time: real runs thin, mean of simulated runs thick, load shaded."""
    grid = np.asarray(of.predicted.grid)
    last = max(run.makespan for run in (*of.real.values(), *of.predicted.runs))
    with matplotlib_renderer.canvas(4.4, 2.2) as figure:
        ax = figure.add_subplot()
        for start, stop, load in of.spans:
            if load and start < last:
                ax.axvspan(start, min(stop, last), color=chart.CONTENTION, alpha=0.13, linewidth=0)
        for run in of.real.values():
            ax.plot(*_steps(grid, run.pace), color=REAL, linewidth=0.8, alpha=0.7)
        simulated_mean = _mean(of.predicted.runs)
        ax.plot(*_steps(grid, simulated_mean), color=SIMULATED, linewidth=1.8)
        _set_axes(ax, last)
        label = f"{of.case.name}: step time over time, real and simulated"
        return matplotlib_renderer.svg(figure, f"pace-{of.case.name}", label)


def distributions(name: str, of: Distributions) -> Markup:
    """Cumulative shares of makespans and of steps: real runs thin, simulated ones thick."""
    with matplotlib_renderer.canvas(4.4, 2.0) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        labels = (("makespan (s)", 1.0), ("step (ms)", 1e3))
        for ax, pair, (label, scale) in zip(axes, of.curves, labels, strict=True):
            for values, colour, width in zip(pair, (REAL, SIMULATED), (0.8, 1.8), strict=True):
                n = len(values)
                kept = np.unique(np.linspace(0, n - 1, POINTS).astype(int))
                share = (kept + 1) / n
                ax.step(scale * values[kept], share, where="post", color=colour, linewidth=width)
            ax.set(xlabel=label, ylim=(0, 1))
            ax.grid(axis="y")
        low, high = (float(np.quantile(np.concatenate(of.curves[1]), q)) for q in (0.002, 0.998))
        axes[1].set_xlim(0.97e3 * low, 1.03e3 * high)
        axes[0].set_ylabel("share of runs")
        label = f"{name}: cumulative shares of makespans and steps, real and simulated"
        return matplotlib_renderer.svg(figure, f"distributions-{name}", label)


def replayed_paces(grid: Sequence[float], paces: Mapping[str, Sequence[float]]) -> Markup:
    """Step time over time of a real run, its replay, and its prediction if there is one."""
    with matplotlib_renderer.canvas(chart.WIDTH, 2.6) as figure:
        ax = figure.add_subplot()
        for (name, pace), colour in zip(paces.items(), chart.SERIES, strict=False):
            ax.plot(*_steps(np.asarray(grid), pace), color=colour, linewidth=1.4, label=name)
        _set_axes(ax, max(grid))
        ax.legend(**matplotlib_renderer.BESIDE)
        return matplotlib_renderer.svg(figure, "paces", "Step time over time")


def _set_axes(ax: Any, last: float) -> None:
    ax.set(xlim=(0, last), xlabel="time (s)", ylabel="step (ms)")
    ax.set_ylim(bottom=0)
    ax.grid(axis="y")


def _mean(runs: Sequence[Measure]) -> list[float]:
    """Mean pace per interval over runs; NaN where most runs had ended."""
    found = []
    for values in zip(*(run.pace for run in runs), strict=True):
        there = [value for value in values if not math.isnan(value)]
        found.append(statistics.fmean(there) if 2 * len(there) > len(runs) else math.nan)
    return found


def _steps(grid: Any, values: Sequence[float]) -> tuple[Any, Any]:
    return (grid[1:] + grid[:-1]) / 2, 1000 * np.asarray(values, np.float64)
