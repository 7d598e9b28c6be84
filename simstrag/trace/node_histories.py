"""The rows of a trace as arrays, sorted by node, resource and kind."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simstrag.trace.row_validation import (
    DURATION,
    KIND_NAMES,
    RESOURCES,
    SLOWDOWN,
    UTILISATION,
    Columns,
    Key,
)
from simstrag.trace.step_functions import Pieces, owners

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Histories:
    """The rows of a trace sorted by (node, resource, kind) and then by time.

    node, resource, kind: of each history, in this order; names as numbers, as in `Columns`.
    starts: place of the first row of each history, and the end of the last one.
    time, value: of each row.
    line: of each row in its source, as in messages.
    input_order: places of the rows in order of time, ties as in the source; without it, ties are in
        the order of histories.
    """

    node: Ints
    resource: Codes
    kind: Codes
    starts: Ints
    time: Floats
    value: Floats
    line: Ints | None = None
    input_order: Ints | None = None

    @classmethod
    def of(cls, rows: Columns) -> Histories | None:
        """From rows in the order of their source; None if the time of a history goes backwards."""
        key = (rows.node * len(RESOURCES) + rows.resource) * len(KIND_NAMES) + rows.kind
        order = np.argsort(key, kind="stable")
        key, time = key[order], rows.time[order]
        begins = np.append(True, key[1:] != key[:-1])
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
        """Places of the rows in order of time."""
        if self.input_order is not None:
            return self.input_order
        return np.argsort(self.time, kind="stable")

    @functools.cached_property
    def appearance(self) -> Ints:
        """Histories in the order of their first rows."""
        place = np.empty(len(self.order), np.int64)
        place[self.order] = np.arange(len(self.order))
        return np.argsort(place[self.starts[:-1]])

    @property
    def keys(self) -> list[Key]:
        """Node, resource and kind of each history."""
        names = (
            self.node.tolist(),
            [RESOURCES[k] for k in self.resource],
            [KIND_NAMES[k] for k in self.kind],
        )
        return list(zip(*names, strict=True))

    def pieces(self) -> Pieces:
        """Step functions of time; before the first row a slowdown is 1, a utilisation 0."""
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

    def shift(self, offset: float, end: float) -> Histories:
        """The histories from `offset` s on (0 <= offset < end), wrapped around the end."""
        is_recorded = self.kind == DURATION
        slowed, recorded = np.flatnonzero(~is_recorded), np.flatnonzero(is_recorded)
        rows = Pieces(self.time, self.value, self.starts, np.full(len(self.node), np.inf))
        before = np.where(self.kind == UTILISATION, 0.0, 1.0)[slowed]
        part = rows.taken(slowed)
        shifted = _shift_functions(
            Pieces.of(part.times, part.values, part.starts, end, before), offset, end
        )
        if len(recorded):
            durations = _shift_durations(rows.taken(recorded), offset, end)
            order = np.argsort(np.append(slowed, recorded))
            shifted = durations.after(shifted).taken(order)
        return Histories(
            self.node, self.resource, self.kind, shifted.starts, shifted.times, shifted.values
        )


def _shift_functions(held: Pieces, offset: float, end: float) -> Pieces:
    """Step functions from an offset on, which open and close with the value held there."""
    owner, count = owners(held.starts), len(held)
    is_early = held.times < offset
    times = np.where(is_early, held.times - offset + end, held.times - offset)
    sizes, lead = np.diff(held.starts), np.bincount(owner[is_early], minlength=count)
    starts = held.starts + 2 * np.arange(count + 1)
    # A row that rounding puts at the very end comes after the value that closes the function.
    is_last = is_early & (times == end)
    within = np.arange(len(owner)) - held.starts[owner]
    place = starts[owner] + 1 + np.where(is_early, sizes[owner], 0) - lead[owner] + within + is_last
    closing = starts[1:] - 1 - np.bincount(owner[is_last], minlength=count)
    known = np.bincount(owner[held.times <= offset], minlength=count)
    edge = held.values[held.starts[:-1] + known - 1]
    shifted = np.zeros(starts[-1]), np.empty(starts[-1])
    for column, opened, rows, closed in zip(
        shifted, (0.0, edge), (times, held.values), (end, edge), strict=True
    ):
        column[starts[:-1]], column[place], column[closing] = opened, rows, closed
    return Pieces(*shifted, starts, held.periods)


def _shift_durations(recorded: Pieces, offset: float, end: float) -> Pieces:
    """Recorded durations from an offset on, then those before it."""
    is_early = recorded.times < offset
    order = np.lexsort((is_early, owners(recorded.starts)))
    times = np.where(is_early, recorded.times - offset + end, recorded.times - offset)
    return Pieces(times[order], recorded.values[order], recorded.starts, recorded.periods)
