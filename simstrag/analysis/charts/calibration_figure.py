"""A profile as one figure: a panel for each kind of measurement in it.

Points are measurements with their 95 % intervals, hollow where a fit did not use them.  Lines are
fits, over the measured range.  The figure is on white, for a page or a paper.
"""

# ruff: noqa: RUF001 - a multiplication sign is meant

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from simstrag.analysis.text.profile_text import bytes_of, ranks_of
from simstrag.arrays import Floats
from simstrag.errors import InputError
from simstrag.profile.batch_laws import seconds
from simstrag.profile.measurements import CollectiveCell
from simstrag.profile.profile import Profile, pair_slowdowns
from simstrag.profile.quantity import NoiseSamples, Quantity
from simstrag.profile.responses import evaluate

COLUMNS = 2
WIDE, HIGH = 5.0, 3.3
"""Inches of one panel."""
FRAME, LINE = 0.9, 0.2
"""Height in inches of a panel with one row per name: the frame alone, and each row."""
PIXELS = 1200
"""Width of a PNG."""
NAMED = 8
"""Number of sizes for which an axis has room."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#8A7A2C")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart, and two more."""
MARKERS = "os^Dv<>P"
DASHES = ("-", "--", "-.", ":")
SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"], "font.size": 8.5, "axes.titlesize": 9.5,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "legend.fontsize": 7.5,
    "text.parse_math": False, "axes.facecolor": "white", "figure.facecolor": "white",
    "axes.edgecolor": "0.4", "axes.linewidth": 0.7, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True, "grid.color": "0.9",
    "grid.linewidth": 0.6, "lines.linewidth": 1.2, "lines.markersize": 4.5,
    "legend.frameon": False, "legend.handlelength": 2.0, "svg.fonttype": "none",
    "svg.hashsalt": "simstrag",
}  # fmt: skip


def draw(profile: Profile) -> Figure:
    """All panels that the profile has data for. Raises `InputError` where it has none.

    >>> from simstrag.profile.profile import Profile
    >>> median = {"value": 0.02, "kind": "measured", "low": 0.019, "high": 0.021}
    >>> profile = Profile.model_validate({
    ...     "name": "a card", "date": "", "command": "", "device": {}, "software": {},
    ...     "cells": [{"precision": "fp32", "batch": 8, "seconds": median, "mean": median}],
    ... })
    >>> [panel.get_title(loc="left") for panel in draw(profile).axes]
    ['Step against batch']
    """
    panels = [(title, draw) for title, has, draw in PANELS if has(profile)]
    if not panels:
        raise InputError(f"the profile {profile.name} has nothing to draw; see its tables")
    names = len(profile.amp_ratios)  # the gains take a row of their own, the last
    columns = COLUMNS if names else min(COLUMNS, len(panels))
    shared = len(panels) - bool(names)
    heights = [HIGH] * math.ceil(shared / columns) + [FRAME + LINE * names] * bool(names)
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDE * columns, sum(heights) + 0.4), layout="constrained")
        derived = " (derived)" if profile.origin == "derived" else ""
        figure.suptitle(f"{profile.name}, {profile.date}{derived}", x=0.01, ha="left", fontsize=10)
        grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
        for k, (title, draw_panel) in enumerate(panels):
            axes = figure.add_subplot(grid[divmod(k, columns)] if k < shared else grid[-1, :])
            axes.set_title(title, loc="left")
            draw_panel(axes, profile)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="best")  # explicit, else it may warn of slowness
    return figure


def save(figure: Figure, path: Path, suffix: str) -> None:
    """Write the figure as PNG, 1200 pixels wide, or as SVG; equal figures give equal bytes.

    suffix: `.png` or `.svg`, regardless of the file's name.
    """
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        if suffix == ".svg":
            figure.savefig(path, format="svg", metadata={"Date": None})
        else:
            figure.savefig(path, format="png", dpi=PIXELS / figure.get_figwidth())


# -- panels --------------------------------------------------------------------------------------


def _step(ax: Axes, profile: Profile) -> None:
    """Median step against batch by precision, with the fits; dashed those of the device's part."""
    for k, precision in enumerate(dict.fromkeys(cell.precision for cell in profile.cells)):
        own = [cell for cell in profile.cells if cell.precision == precision]
        timed = [c for c in own if c.device is None or c.seconds.kind == "measured"]
        _points(ax, [_Point(c.batch, c.seconds, c.held_out) for c in timed], k, precision, 1e3)
        for fit in profile.batches:
            if fit.precision == precision:
                x = np.geomspace(*fit.range, 100)
                dashes = "--" if fit.part == "device" else "-"
                y = [1e3 * seconds(fit, batch) for batch in x]
                ax.plot(x, y, color=_color(k), linestyle=dashes)
    if any(fit.part == "device" for fit in profile.batches):
        ax.plot([], [], color="grey", linestyle="--", label="the device's part, by its fit")
    _explain_hollow(ax, any(cell.held_out for cell in profile.cells))
    batches = sorted({cell.batch for cell in profile.cells})
    _logarithmic(ax, "median step (ms)")
    ax.set_xscale("log")
    ax.set_xticks(batches, map(str, batches))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("batch (samples)")


def _response(ax: Axes, profile: Profile) -> None:
    """Slowdown against the level of each load, with the law up to the highest level."""
    precisions = list(dict.fromkeys(each.precision for each in profile.responses))
    for k, r in enumerate(profile.responses):
        p = precisions.index(r.precision)
        label = f"{r.load}, {r.precision or 'all-reduce'}"
        points = [_Point(at.level, at.slowdown, at.held_out) for at in r.levels]
        _points(ax, points, k, label, marker=p)
        fitted = [at.level for at in r.levels if not at.held_out]
        last = max(fitted) if r.law == "interpolated" else r.highest
        x = np.linspace(0.0, last, 301)[1:]
        ax.plot(x, evaluate(r, x), color=_color(k), linestyle=DASHES[p % len(DASHES)])
    _explain_hollow(ax, any(at.held_out for r in profile.responses for at in r.levels))
    ax.set_xlim(left=0.0)
    ax.axhline(1.0, color="0.6", linewidth=0.7)
    ax.set_xlabel("level of the load (1: all of one core's or the device's time)")
    ax.set_ylabel("slowdown (×)")


def _pairs(ax: Axes, profile: Profile) -> None:
    values = sorted(v for of in pair_slowdowns(profile).values() for v in of if v is not None)
    share = 100 * np.arange(1, len(values) + 1) / len(values)
    ax.plot(share, values, color=_color(0), label=f"{len(values)} pairs")
    _logarithmic(ax, "slowdown (×)")
    _percentiles(ax, "pairs that are slowed no more (%)")


def _noise(ax: Axes, profile: Profile) -> None:
    """Quantiles of clean steps over their mean, at the batch of the constants."""
    for k, (label, noise) in enumerate(_noise_samples(profile).items()):
        levels = np.linspace(0.0, 100.0, len(noise.quantiles))
        ax.plot(levels, noise.quantiles, color=_color(k), label=label)
    _percentiles(ax, "steps that are no longer (%)")
    ax.set_ylabel("step over mean step (no unit)")


def _learning(ax: Axes, profile: Profile) -> None:
    for k, batch in enumerate(dict.fromkeys(at.batch for at in profile.learning)):
        own = [_Point(at.trained, at.scale) for at in profile.learning if at.batch == batch]
        _points(ax, own, k, None if batch is None else f"from batches of {batch}")
    _logarithmic(ax, "gradient noise scale (samples)")
    ax.set_xlabel("trained (samples)")


def _amp_ratios(ax: Axes, profile: Profile) -> None:
    """Gain by model, the first on top."""
    for y, gain in enumerate(profile.amp_ratios):
        value, low, high = _ends(gain.ratio)
        arms = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
        ax.errorbar(value, y, xerr=arms, fmt="o", color=_color(0), capsize=2)
    names = [
        f"{', '.join(filter(None, (g.model, g.device)))}: {g.full} / {g.amp}"
        for g in profile.amp_ratios
    ]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.axvline(1.0, color="0.6", linewidth=0.7)
    ax.set_xlabel("step in full over reduced precision (×)")


def _reduce(ax: Axes, profile: Profile) -> None:
    """Seconds of an undisturbed all-reduce against bytes, by ranks and group, with the fits."""
    for k, (label, cells) in enumerate(_by_ranks(profile).items()):
        _points(ax, [_Point(c.bytes, c.seconds, c.held_out) for c in cells], k, label, 1e3)
        for x, y, dashes in _fits(profile, cells):
            ax.plot(x, 1e3 * y, color=_color(k), linestyle=dashes)
    _all_reduces(ax, profile)
    _explain_hollow(ax, any(c.held_out for c in profile.collectives if not c.load))
    _logarithmic(ax, "median all-reduce (ms)")


def _bandwidth(ax: Axes, profile: Profile) -> None:
    """Bus bandwidth, 2(n-1)/n bytes per second among n members, as nccl-tests define it."""
    for k, (label, cells) in enumerate(_by_ranks(profile).items()):
        n = cells[0].ranks if cells[0].group == "all" else cells[0].ranks // 2  # that reduce
        chosen = [c for c in cells if n > 1 and c.bytes > 0]
        points = []
        for c in chosen:
            moved, of = 2 * (n - 1) / n * c.bytes / 1e9, c.seconds
            low, high = (moved / end if end and end > 0 else None for end in (of.high, of.low))
            bus = Quantity(value=moved / of.value, kind=of.kind, low=low, high=high)
            points.append(_Point(c.bytes, bus, c.held_out))
        _points(ax, points, k, label)
        for x, y, dashes in _fits(profile, chosen):
            ax.plot(x, 2 * (n - 1) / n * x / y / 1e9, color=_color(k), linestyle=dashes)
    _all_reduces(ax, profile)
    _logarithmic(ax, "bus bandwidth (GB/s)")


def _server(ax: Axes, profile: Profile) -> None:
    for k, name in enumerate(("push", "service", "pull")):
        own = [_Point(t.bytes, getattr(t, name)) for t in profile.transfers if not t.ranks]
        _points(ax, own, k, name, 1e3)
    _sizes(ax, [t.bytes for t in profile.transfers])
    _logarithmic(ax, "median (ms)")


# -- data of panels ------------------------------------------------------------------------------


def _noise_samples(profile: Profile) -> dict[str, NoiseSamples]:
    """Noise of each precision at the workload's batch, else at its largest; else the constants'."""
    batch = None if profile.workload is None else profile.workload.batch
    found: dict[str, tuple[int, NoiseSamples]] = {}
    for cell in sorted(profile.cells, key=lambda c: (c.batch == batch, c.batch)):
        if cell.noise is not None:
            found[cell.precision] = (cell.batch, cell.noise)
    if found:
        return {f"{name}, batch {of}": noise for name, (of, noise) in found.items()}
    step = profile.step
    if step is None or step.noise is None:
        return {}
    return {"full precision" if profile.workload is None else profile.workload.full: step.noise}


def _by_ranks(profile: Profile) -> dict[str, list[CollectiveCell]]:
    """The cells without a load by label, in order of ranks."""
    found: dict[str, list[CollectiveCell]] = {}
    several = len({c.backend for c in profile.collectives}) > 1
    for cell in sorted(profile.collectives, key=lambda c: (c.backend, c.ranks, c.group, c.bytes)):
        if not cell.load:
            over = " (more than cores)" if cell.oversubscribed else ""
            backend = f"{cell.backend}, " if several else ""
            label = f"{backend}{ranks_of(cell.ranks, cell.group)}{over}"
            found.setdefault(label, []).append(cell)
    return found


def _fits(
    profile: Profile, cells: Sequence[CollectiveCell]
) -> Iterator[tuple[Floats, Floats, str]]:
    """Bytes, fitted seconds and dashes of each fit of these cells.

    A fit over several numbers of ranks is dashed, because each number may have a fit of its own.

    A fitted value is the measured one times 1 + its residual.  Formulas are linear in bytes, so two
    of them define the line.  The fit to the largest sizes is extended over held-out sizes.
    """
    measured = {(c.ranks, c.bytes): c.seconds.value for c in cells}
    kinds = {(c.backend, c.group) for c in cells}
    lines = []
    for fit in profile.collective_fits:
        pairs = (((r.ranks, r.bytes), 1 + r.error) for r in fit.residuals)
        values = sorted((at[1], measured[at] * off) for at, off in pairs if at in measured)
        if (fit.backend, fit.group) in kinds and len(values) > 1:
            lines.append((fit, values[0], values[-1]))
    for fit, (x0, y0), (x1, y1) in lines:
        last = fit.largest == max(each.largest for each, _, _ in lines)
        end = max(c.bytes for c in cells) if last else fit.largest
        x = np.geomspace(max(fit.smallest, 1), end, 200)
        yield x, y0 + (y1 - y0) / (x1 - x0) * (x - x0), DASHES[len(fit.ranks) > 1]


# -- looks ---------------------------------------------------------------------------------------


class _Point(NamedTuple):
    x: float
    y: Quantity
    held_out: bool = False


def _points(
    ax: Axes, points: Sequence[_Point], k: int, label: str | None, scale: float = 1.0,
    marker: int | None = None,
) -> None:  # fmt: skip
    """Markers with intervals in the k-th colour, hollow where held out; scale: factor of y."""
    symbol = MARKERS[(k if marker is None else marker) % len(MARKERS)]
    for hollow in (False, True):
        own = [p for p in points if p.held_out is hollow]
        if not own:
            continue
        x = [p.x for p in own]
        y, low, high = np.array([_ends(p.y) for p in own]).T * scale
        arms = np.clip([y - low, high - y], 0.0, None)
        ax.errorbar(x, y, yerr=arms, fmt="none", ecolor=_color(k), elinewidth=0.9, capsize=2)
        ax.plot(
            x, y, linestyle="none", marker=symbol, color=_color(k),
            markerfacecolor="white" if hollow else _color(k), zorder=3,
            label=label if not hollow or len(own) == len(points) else None,
        )  # fmt: skip


def _ends(q: Quantity) -> tuple[float, float, float]:
    """Value and ends of the interval; the value stands for an end that is not known."""
    low, high = (q.value if end is None else end for end in (q.low, q.high))
    return q.value, low, high


def _color(k: int) -> str:
    return COLORS[k % len(COLORS)]


def _explain_hollow(ax: Axes, needed: bool) -> None:
    if needed:
        ax.plot([], [], "o", color="0.4", markerfacecolor="white", label="held out of the fit")


def _all_reduces(ax: Axes, profile: Profile) -> None:
    """The axis of bytes of all-reduces, and in the legend what a dashed fit is."""
    if any(len(fit.ranks) > 1 for fit in profile.collective_fits):
        ax.plot([], [], color="0.4", linestyle=DASHES[1], label="fit over all numbers of ranks")
    _sizes(ax, [c.bytes for c in profile.collectives if not c.load])


def _sizes(ax: Axes, sizes: Iterable[int]) -> None:
    """A logarithmic x axis of bytes, with labels that do not overlap."""
    known = sorted(set(sizes))
    apart = (known[-1] / known[0]) ** (1 / NAMED)
    named: list[int] = []
    for size in known:
        if not named or size >= apart * named[-1]:
            named.append(size)
    ax.set_xscale("log", nonpositive="clip")
    ax.set_xticks(named, [bytes_of(size) for size in named])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("bytes")


def _percentiles(ax: Axes, label: str) -> None:
    """An x axis in percent, and a line at a ratio of 1."""
    ax.axhline(1.0, color="0.6", linewidth=0.7)
    ax.set_xlim(0.0, 100.0)
    ax.set_xlabel(label)


def _logarithmic(ax: Axes, label: str) -> None:
    """A logarithmic y axis with plain numbers; over few decades also with 2 and 5."""
    ax.set_yscale("log")
    ax.set_ylabel(label)
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


PANELS: tuple[tuple[str, Callable[[Profile], Any], Callable[[Axes, Profile], None]], ...] = (
    ("Step against batch", lambda p: p.cells, _step),
    ("Under contention", lambda p: p.responses, _response),
    ("Beside another job", pair_slowdowns, _pairs),
    ("All-reduce: time", _by_ranks, _reduce),
    ("All-reduce: bus bandwidth", _by_ranks, _bandwidth),
    ("Parameter server, one worker", lambda p: p.transfers, _server),
    ("How clean steps scatter", _noise_samples, _noise),
    ("Gradient noise scale along training", lambda p: p.learning, _learning),
    ("Gain of reduced precision", lambda p: p.amp_ratios, _amp_ratios),
)
"""Title, needed data, and the function that draws it; the last panel has a row of its own."""
