"""The rows of a trace as arrays, sorted by node, resource and kind."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.trace.row_validation import (
    DELAY,
    DURATION,
    KIND_NAMES,
    RESOURCES,
    SLOWDOWN,
    UTILISATION,
    Codes,
    Columns,
    HistoryKey,
)
from simstrag.trace.step_functions import Pieces, owners


@dataclass(frozen=True, eq=False)
class Histories:
    """The rows of a trace sorted by (node, resource, kind) and then by time.

    node, resource, kind: one per history, in this order; names as numbers, as in `Columns`.
    starts: place of the first row of each history, and the end of the last one.
    time, value: one per row.
    line: each row's line in its source, as in messages.
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
        first, place = order[begins], np.argsort(order)
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
        return np.argsort(np.argsort(self.order)[self.starts[:-1]])

    @property
    def keys(self) -> list[HistoryKey]:
        """Node, resource and kind of each history."""
        resources = [RESOURCES[k] for k in self.resource]
        kinds = [KIND_NAMES[k] for k in self.kind]
        return list(zip(self.node.tolist(), resources, kinds, strict=True))

    def rows_of(self, chosen: Bools) -> Bools:
        """Whether each row is of a chosen history."""
        return np.repeat(chosen, np.diff(self.starts))

    def pieces(self) -> Pieces:
        """Step functions of time; before the first row a slowdown is 1, all else 0."""
        return Pieces.of(self.time, self.value, self.starts, before=self._before)

    @property
    def _before(self) -> Floats:
        """The value of each history before its first row."""
        return np.where((self.kind == UTILISATION) | (self.kind == DELAY), 0.0, 1.0)

    def without_contention(self, places: Sequence[int]) -> Histories:
        """Recorded durations at the median of their step over ranks, slowdowns at 1, delays at 0.

        places: the node of each rank.
        """
        value = np.where(self.rows_of(self.kind == SLOWDOWN), 1.0, self.value)
        value = np.where(self.rows_of(self.kind == DELAY), 0.0, value)
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

    def scaled(self, severity: float, places: Sequence[int]) -> Histories:
        """What values exceed those `without_contention` by, multiplied; all others stay."""
        clean = self.without_contention(places).value
        scaled = clean + severity * (self.value - clean)
        return replace(self, value=np.where(self.value > clean, scaled, self.value))

    def shift(self, offset: float, end: float) -> Histories:
        """The histories from `offset` s on (0 <= offset < end), wrapped around the end.

        A step function opens and closes with the value that it holds at the offset.
        """
        is_recorded = self.kind == DURATION
        slowed, recorded = np.flatnonzero(~is_recorded), np.flatnonzero(is_recorded)
        rows = Pieces(self.time, self.value, self.starts, np.full(len(self.node), np.inf))
        part, before = rows.taken(slowed), self._before[slowed]
        held = Pieces.of(part.times, part.values, part.starts, end, before)
        rows = rows.taken(recorded).after(held).taken(np.argsort(np.append(slowed, recorded)))
        owner = owners(rows.starts)
        known = np.bincount(owner[rows.times <= offset], minlength=len(rows))[slowed]
        edge = rows.values[rows.starts[slowed] + known - 1]
        is_early = rows.times < offset
        times = rows.times - offset + np.where(is_early, end, 0.0)
        # A row that rounding puts at the very end comes after the value that closes its function.
        turn = is_early + 2 * (is_early & (times == end))
        openings, closings = np.full(len(slowed), -1), np.full(len(slowed), 2)
        turns = np.concatenate([openings, turn, closings])
        order = np.lexsort((turns, np.concatenate([slowed, owner, slowed])))
        return Histories(
            self.node, self.resource, self.kind,
            rows.starts + 2 * np.append(0, np.cumsum(~is_recorded)),
            np.concatenate([np.zeros(len(slowed)), times, np.full(len(slowed), end)])[order],
            np.concatenate([edge, rows.values, edge])[order],
        )  # fmt: skip
