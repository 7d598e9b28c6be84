"""The panels of a profile's figure: each says whether a profile has its data, and draws them."""

# ruff: noqa: RUF001 - a multiplication sign is meant

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from simstrag.analysis.charts.profile_marks import (
    DASHES,
    Point,
    hollow_note,
    logarithmic,
    look,
    points,
)
from simstrag.analysis.charts.profile_network_panels import (
    bandwidth_panel,
    by_ranks,
    reduce_panel,
    server_panel,
)
from simstrag.analysis.tables.profile_pairs import pairs, pairs_panel
from simstrag.profile.batch_laws import seconds
from simstrag.profile.profile import Profile
from simstrag.profile.quantity import NoiseSamples
from simstrag.profile.responses import evaluate

__all__ = ["PANELS", "Panel"]


class Panel(NamedTuple):
    """A title, whether a profile has what it shows, and what draws that.

    lines: of names that it needs a whole row for; 0 where it shares its row.
    """

    title: str
    has: Callable[[Profile], bool]
    draw: Callable[[Axes, Profile], None]
    lines: Callable[[Profile], int] = lambda profile: 0


def step_panel(ax: Axes, profile: Profile) -> None:
    """Median step against batch by precision, both logarithmic, with the fits."""
    for k, precision in enumerate(dict.fromkeys(cell.precision for cell in profile.cells)):
        own = [cell for cell in profile.cells if cell.precision == precision]
        found = [Point(cell.batch, cell.seconds, cell.held_out) for cell in own]
        points(ax, found, look(k), precision, 1e3)
        for fit in profile.batches:
            if fit.precision == precision:
                x = np.geomspace(*fit.range, 100)
                ax.plot(x, [1e3 * seconds(fit, batch) for batch in x], color=look(k)["color"])
    hollow_note(ax, any(cell.held_out for cell in profile.cells))
    batches = sorted({cell.batch for cell in profile.cells})
    logarithmic(ax, "median step (ms)")
    ax.set_xscale("log")
    ax.set_xticks(batches, map(str, batches))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("batch (samples)")


def response_panel(ax: Axes, profile: Profile) -> None:
    """Slowdown against the level of each load; the law as a line up to the highest level."""
    precisions = list(dict.fromkeys(each.precision for each in profile.responses))
    for k, each in enumerate(profile.responses):
        p = precisions.index(each.precision)
        style = look(k, p)
        found = [Point(at.level, at.slowdown, at.held_out) for at in each.levels]
        of = each.precision or "all-reduce"
        points(ax, found, style, f"{each.load}, {of}")
        fitted = [at.level for at in each.levels if not at.held_out]
        last = max(fitted) if each.law == "interpolated" else each.highest
        x = np.linspace(0.0, last, 301)[1:]
        ax.plot(x, evaluate(each, x), color=style["color"], linestyle=DASHES[p % len(DASHES)])
    hollow_note(ax, any(at.held_out for each in profile.responses for at in each.levels))
    ax.set_xlim(left=0.0)
    ax.axhline(1.0, color="0.6", linewidth=0.7)
    ax.set_xlabel("level of the load (1: all of one core's or the device's time)")
    ax.set_ylabel("slowdown (×)")


def noise_panel(ax: Axes, profile: Profile) -> None:
    """Quantiles of clean steps over their mean, at the batch of the constants."""
    for k, (label, noise) in enumerate(_noise(profile).items()):
        levels = np.linspace(0.0, 100.0, len(noise.quantiles))
        ax.plot(levels, noise.quantiles, color=look(k)["color"], label=label)
    ax.axhline(1.0, color="0.6", linewidth=0.7)
    ax.set_xlim(0.0, 100.0)
    ax.set_xlabel("steps that are no longer (%)")
    ax.set_ylabel("step over mean step (no unit)")


def learning_panel(ax: Axes, profile: Profile) -> None:
    """The gradient noise scale along one training run."""
    for k, batch in enumerate(dict.fromkeys(at.batch for at in profile.learning)):
        own = [Point(at.trained, at.scale) for at in profile.learning if at.batch == batch]
        label = None if batch is None else f"from batches of {batch}"
        points(ax, own, look(k), label)
    logarithmic(ax, "gradient noise scale (samples)")
    ax.set_xlabel("trained (samples)")


def amp_panel(ax: Axes, profile: Profile) -> None:
    """Gain of reduced precision by model, the first on top."""
    for y, gain in enumerate(profile.amp_ratios):
        value, ends = gain.ratio.value, (gain.ratio.low, gain.ratio.high)
        low, high = (value if end is None else end for end in ends)
        ax.errorbar(
            value, y, xerr=[[max(value - low, 0.0)], [max(high - value, 0.0)]], fmt="o",
            color=look(0)["color"], capsize=2,
        )  # fmt: skip
    names = [
        f"{', '.join(filter(None, (g.model, g.device)))}: {g.full} / {g.amp}"
        for g in profile.amp_ratios
    ]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.axvline(1.0, color="0.6", linewidth=0.7)
    ax.set_xlabel("step in full over reduced precision (×)")


def _noise(profile: Profile) -> dict[str, NoiseSamples]:
    """Of each precision at the workload's batch, else at its largest; else of the constants."""
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


PANELS = (
    Panel("Step against batch", lambda p: bool(p.cells), step_panel),
    Panel("Under contention", lambda p: bool(p.responses), response_panel),
    Panel("Beside another job", lambda p: bool(pairs(p)), pairs_panel),
    Panel("All-reduce: time", lambda p: bool(by_ranks(p)), reduce_panel),
    Panel("All-reduce: bus bandwidth", lambda p: bool(by_ranks(p)), bandwidth_panel),
    Panel("Parameter server, one worker", lambda p: bool(p.transfers), server_panel),
    Panel("How clean steps scatter", lambda p: bool(_noise(p)), noise_panel),
    Panel("Gradient noise scale along training", lambda p: bool(p.learning), learning_panel),
    Panel(
        "Gain of reduced precision", lambda p: bool(p.amp_ratios), amp_panel,
        lambda p: len(p.amp_ratios),
    ),
)  # fmt: skip
"""In the order in which they are drawn; those with rows of their own come last."""
