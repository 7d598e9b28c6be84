"""The panels of a profile's communication: all-reduces with their fits, and the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
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
from simstrag.analysis.text.profile_text import bytes_of, ranks_of
from simstrag.profile.measurements import CollectiveCell
from simstrag.profile.profile import Profile
from simstrag.profile.quantity import Quantity

__all__ = ["bandwidth_panel", "by_ranks", "reduce_panel", "server_panel"]

Floats = npt.NDArray[np.float64]

NAMED = 8
"""Sizes for whose names an axis has room."""


def reduce_panel(ax: Axes, profile: Profile) -> None:
    """Seconds of an undisturbed all-reduce against bytes, by ranks and group, with the fits."""
    for k, (label, cells) in enumerate(by_ranks(profile).items()):
        found = [Point(c.bytes, c.seconds, c.held_out) for c in cells]
        points(ax, found, look(k), label, 1e3)
        for x, y, dashes in _fits(profile, cells):
            ax.plot(x, 1e3 * y, color=look(k)["color"], linestyle=dashes)
    _together_note(ax, profile)
    hollow_note(ax, any(c.held_out for c in profile.collectives if not c.load))
    _sizes(ax, [c.bytes for c in profile.collectives if not c.load])
    logarithmic(ax, "median all-reduce (ms)")


def bandwidth_panel(ax: Axes, profile: Profile) -> None:
    """Bus bandwidth, 2(n-1)/n bytes per second among n members, as nccl-tests define it."""
    for k, (label, cells) in enumerate(by_ranks(profile).items()):
        chosen = [c for c in cells if _members(c) > 1 and c.bytes > 0]
        found = [Point(c.bytes, _bus(c), c.held_out) for c in chosen]
        points(ax, found, look(k), label)
        n = _members(cells[0])
        for x, y, dashes in _fits(profile, chosen):
            ax.plot(x, 2 * (n - 1) / n * x / y / 1e9, color=look(k)["color"], linestyle=dashes)
    _together_note(ax, profile)
    _sizes(ax, [c.bytes for c in profile.collectives if not c.load])
    logarithmic(ax, "bus bandwidth (GB/s)")


def server_panel(ax: Axes, profile: Profile) -> None:
    """What one gradient costs at a parameter server, against its bytes."""
    for k, name in enumerate(("push", "service", "pull")):
        found = [Point(t.bytes, getattr(t, name)) for t in profile.transfers if not t.ranks]
        points(ax, found, look(k), name, 1e3)
    _sizes(ax, [t.bytes for t in profile.transfers])
    logarithmic(ax, "median (ms)")


def _sizes(ax: Axes, sizes: Iterable[int]) -> None:
    """A logarithmic x of bytes; sizes are named that leave room for their names."""
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


def by_ranks(profile: Profile) -> dict[str, list[CollectiveCell]]:
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


def _together_note(ax: Axes, profile: Profile) -> None:
    """Say in the legend what dashed lines are."""
    if any(len(fit.ranks) > 1 for fit in profile.collective_fits):
        ax.plot([], [], color="0.4", linestyle=DASHES[1], label="fit over all numbers of ranks")


def _fits(
    profile: Profile, cells: Sequence[CollectiveCell]
) -> Iterator[tuple[Floats, Floats, str]]:
    """Bytes and fitted seconds of each fit that these cells belong to, along its sizes, and dashes.

    A fit over several numbers of ranks is dashed, for beside it each number may have its own.

    Every formula of an all-reduce is a line in its bytes, so that two fitted values give it: what
    was measured times 1 + its residual.  The line of the largest sizes goes on to those held out.
    """
    measured = {(c.ranks, c.bytes): c.seconds.value for c in cells}
    kinds = {(c.backend, c.group) for c in cells}
    fits = [fit for fit in profile.collective_fits if (fit.backend, fit.group) in kinds]
    drawn = []
    for fit in fits:
        values = sorted(
            (r.bytes, measured[r.ranks, r.bytes] * (1 + r.error))
            for r in fit.residuals if (r.ranks, r.bytes) in measured
        )  # fmt: skip
        if len(values) > 1:
            drawn.append((fit, values))
    for fit, values in drawn:
        (x0, y0), (x1, y1) = values[0], values[-1]
        last = fit.largest == max(each.largest for each, _ in drawn)
        end = max(c.bytes for c in cells) if last else fit.largest
        x = np.geomspace(max(fit.smallest, 1), end, 200)
        yield x, y0 + (y1 - y0) / (x1 - x0) * (x - x0), DASHES[len(fit.ranks) > 1]


def _bus(cell: CollectiveCell) -> Quantity:
    """Bus bandwidth of a cell in GB/s, with its interval."""
    n = _members(cell)
    moved = 2 * (n - 1) / n * cell.bytes / 1e9
    of = cell.seconds
    low, high = (None if end is None or end <= 0 else moved / end for end in (of.high, of.low))
    return Quantity(value=moved / of.value, kind=of.kind, low=low, high=high)


def _members(cell: CollectiveCell) -> int:
    """How many ranks reduce with each other."""
    return cell.ranks if cell.group == "all" else cell.ranks // 2
