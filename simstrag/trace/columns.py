"""The rows of a trace, sorted by whom they are about: what each node's resources went through."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simstrag.trace.rows import DURATION, KIND_NAMES, RESOURCES, SLOWDOWN, UTILISATION, Columns, Key
from simstrag.trace.step_functions import Pieces, owners

__all__ = ["Histories"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Histories:
    """Values of each (node, resource, kind) in order of time, one history after the other.

    node, resource, kind: of each history, in this order; names by number, as in `Columns`.
    starts: where each begins, and where the last one ends.  time, value: of each row.
    line: where it stands in its source, as messages count.  came: the rows in order of time, as
    they came; without it, those of equal time in the order they have here.
    """

    node: Ints
    resource: Codes
    kind: Codes
    starts: Ints
    time: Floats
    value: Floats
    line: Ints | None = None
    came: Ints | None = None

    @classmethod
    def of(cls, rows: Columns) -> Histories | None:
        """From rows as they came; None where the time of a history goes backwards."""
        whose = (rows.node * len(RESOURCES) + rows.resource) * len(KIND_NAMES) + rows.kind
        order = np.argsort(whose, kind="stable")
        whose, time = whose[order], rows.time[order]
        begins = np.append(True, whose[1:] != whose[:-1])
        if np.any((time[1:] < time[:-1]) & ~begins[1:]):
            return None
        first = order[begins]
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return cls(
            rows.node[first], rows.resource[first], rows.kind[first],
            np.append(np.flatnonzero(begins), len(order)), time, rows.value[order],
            rows.line[order], place[np.argsort(rows.time, kind="stable")],
        )  # fmt: skip

    @functools.cached_property
    def order(self) -> Ints:
        """The rows in order of time."""
        return np.argsort(self.time, kind="stable") if self.came is None else self.came

    @functools.cached_property
    def appearance(self) -> Ints:
        """Themselves in the order of their first rows."""
        if self.came is None:
            return np.argsort(self.time[self.starts[:-1]], kind="stable")
        place = np.empty(len(self.came), np.int64)
        place[self.came] = np.arange(len(self.came))
        return np.argsort(place[self.starts[:-1]])

    @property
    def keys(self) -> list[Key]:
        """Node, resource and kind of each."""
        names = (
            self.node.tolist(),
            [RESOURCES[k] for k in self.resource],
            [KIND_NAMES[k] for k in self.kind],
        )
        return list(zip(*names, strict=True))

    def pieces(self) -> Pieces:
        """As step functions of time; before its first row a slowdown is 1, a utilisation 0."""
        before = np.where(self.kind == UTILISATION, 0.0, 1.0)
        return Pieces.of(self.time, self.value, self.starts, before=before)

    def without_contention(self, places: Sequence[int]) -> Histories:
        """Recorded durations at the median of their step over ranks, slowdowns at 1.

        places: the node of each rank.
        """
        value = np.where(np.repeat(self.kind == SLOWDOWN, np.diff(self.starts)), 1.0, self.value)
        of_node = {int(self.node[k]): k for k in np.flatnonzero(self.kind == DURATION)}
        rows = {k: slice(self.starts[k], self.starts[k + 1]) for k in of_node.values()}
        recorded = [self.value[rows[of_node[node]]] for node in places if node in of_node]
        longest = max(map(len, recorded), default=0)
        steps = np.full((len(recorded), longest), np.nan)
        for row, durations in zip(steps, recorded, strict=True):
            row[: len(durations)] = durations
        median = np.nanmedian(steps, axis=0) if recorded else np.zeros(0)
        for k in rows.values():
            value[k][:longest] = median[: k.stop - k.start]
        return replace(self, value=value)

    def shifted(self, offset: float, end: float) -> Histories:
        """Begun at `offset` s (0 <= offset < end) and wrapped around the end."""
        before = np.where(self.kind == UTILISATION, 0.0, 1.0)
        recorded = self.kind == DURATION
        never = np.full(len(self.node), np.inf)
        rows, chosen = Pieces(self.time, self.value, self.starts, never), np.flatnonzero(~recorded)
        held = rows.taken(chosen) if recorded.any() else rows
        held = Pieces.of(held.times, held.values, held.starts, end, before[chosen])
        moved = _moved(held, offset, end)
        if recorded.any():
            turned = _turned(rows.taken(np.flatnonzero(recorded)), offset, end)
            place = np.argsort(np.append(chosen, np.flatnonzero(recorded)))
            moved = turned.after(moved).taken(place)
        return Histories(
            self.node, self.resource, self.kind, moved.starts, moved.times, moved.values
        )


def _moved(held: Pieces, offset: float, end: float) -> Pieces:
    """Step functions from an offset on, opened and closed by what they hold there."""
    owner, count = owners(held.starts), len(held)
    early = held.times < offset
    times = np.where(early, held.times - offset + end, held.times - offset)
    sizes, lead = np.diff(held.starts), np.bincount(owner[early], minlength=count)
    starts = held.starts + 2 * np.arange(count + 1)
    # What rounding puts at the very end comes after the value that closes the function.
    tail = early & (times == end)
    within = np.arange(len(owner)) - held.starts[owner]
    place = starts[owner] + 1 + np.where(early, sizes[owner], 0) - lead[owner] + within + tail
    closing = starts[1:] - 1 - np.bincount(owner[tail], minlength=count)
    known = np.bincount(owner[held.times <= offset], minlength=count)
    edge = held.values[held.starts[:-1] + known - 1]
    moved = np.zeros(starts[-1]), np.empty(starts[-1])
    for column, opened, rows, closed in zip(
        moved, (0.0, edge), (times, held.values), (end, edge), strict=True
    ):
        column[starts[:-1]], column[place], column[closing] = opened, rows, closed
    return Pieces(*moved, starts, held.periods)


def _turned(recorded: Pieces, offset: float, end: float) -> Pieces:
    """Recorded durations from an offset on, then those before it."""
    owner = owners(recorded.starts)
    early = recorded.times < offset
    order = np.lexsort((early, owner))
    times = np.where(early, recorded.times - offset + end, recorded.times - offset)
    return Pieces(times[order], recorded.values[order], recorded.starts, recorded.periods)
