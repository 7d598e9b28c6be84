"""An excerpt of a run: bounded in size, with single steps to look at.

At first all steps and updates are kept, later the steps of some ranks only.  In the end steps,
updates and decisions are kept in windows of time, one at the start of each period.  Period and
window are powers of two of a second, so that the windows of two runs coincide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from simstrag.arrays import Array
from simstrag.runs.tables import (
    RANK_SETS,
    Column,
    InMemory,
    RunTable,
    concatenate,
    numbers,
    take,
    values_of,
)
from simstrag.timing.contention import Contention

MOST = 1 << 18
"""Most steps kept, and most updates kept in windows."""
SPREAD = 1 << 12
"""Most further updates kept, evenly spread over the run."""
RANKS = 256
WINDOWS, CYCLES = 32, 64
"""The first window is 1/WINDOWS of the time so far, or CYCLES cycles if these are longer."""
VALUES = 8
"""This many decisions, or values in their lists, count as one row."""
WHEN = {"steps": "start", "updates": "time", "decisions": "time"}
NO_TIME = 1e-9
"""Seconds of the shortest window: events within it count as simultaneous."""
STEPS_BITS = 40
"""Bits for the step in a number that stands for a step of a rank."""


def ranks_to_show(contention: Contention, workers: int, most: int = RANKS) -> list[int]:
    """All ranks, or at most half of `most` that contention slows, and others evenly spread.

    >>> from simstrag.trace.trace import Trace
    >>> trace = Trace.from_rows([(5.0, 3, "gpu", "slowdown", 2.0)])
    >>> ranks_to_show(Contention.of(trace, 1000), 1000, most=4)
    [0, 3, 500, 999]
    """
    if workers <= most:
        return list(range(workers))
    loudest: dict[int, float] = {}
    for (rank, _), f in contention.slowdowns.items():
        loudest[rank] = max(loudest.get(rank, 1.0), *f.values)
    slow = sorted((r for r, factor in loudest.items() if factor > 1), key=lambda r: -loudest[r])
    shown = slow[: most // 2]
    even = np.linspace(0, workers - 1, most - len(shown)).round().astype(int).tolist()
    return sorted({*shown, *even})


class Excerpt(InMemory):
    """Keeps the rows of an excerpt, and each rank's seconds in all steps.

    workers: number of ranks.
    ranks: the ranks whose steps are kept once there are too many steps.
    most: most steps kept, and most updates kept in windows.
    """

    def __init__(self, workers: int, ranks: Sequence[int], most: int = MOST) -> None:
        super().__init__()
        self._workers, self._ranks, self._most = workers, np.array(ranks), most
        self._only_ranks = False
        self._period = self._window = math.inf
        self._rows = dict.fromkeys(WHEN, 0)
        self._spread: pa.RecordBatch | None = None
        self._last: pa.RecordBatch | None = None
        self._every = 1
        self._seen = 0
        self._now = 0.0
        self._spent = _Spent(workers)

    def add(self, name: str, batch: pa.RecordBatch) -> None:
        """Keep the rows that belong to the excerpt; gradients only count in the seconds."""
        if name in (RANK_SETS, "evaluations"):
            super().add(name, batch)
            return
        if name == "gradients":
            self._spent.end(batch)
            return
        if name == "steps":
            self._seen += batch.num_rows
            self._spent.start(batch)
        elif name == "updates":
            self._keep_spread(batch)
        self._now = max([self._now, *_values(batch, WHEN[name])[-1:].tolist()])
        kept = self._within(name, batch)
        if name not in self.batches or kept.num_rows:
            super().add(name, kept)
            self._rows[name] += _rows(name, kept)
        while self._rows[name] > self._most and self._window > NO_TIME:
            self._thin()

    def table(self, name: str) -> RunTable | None:
        """All rows kept; updates are in the order of their versions."""
        if name == "updates" and self._period < math.inf:
            assert self._spread is not None
            assert self._last is not None
            kept = concatenate([*self.batches[name], self._spread, self._last])
            _, rows = np.unique(_values(kept, "version"), return_index=True)
            self.batches[name] = [kept.take(numbers(rows))]
        return super().table(name)

    @property
    def excerpt(self) -> dict[str, Any] | None:
        """The value of `Run.excerpt`; None if all rows were kept."""
        if not self._only_ranks and self._period == math.inf:
            return None
        ranks = self._ranks if self._only_ranks else np.arange(self._workers)
        known = self._period < math.inf
        return {
            "ranks": ranks.tolist(),
            "period": self._period if known else None,
            "window": self._window if known else None,
            **self._spent.by_rank(),
        }

    def _within(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that belong to the excerpt."""
        times = _values(batch, WHEN[name])
        rows = np.ones(len(times), dtype=np.bool_)
        if self._period < math.inf:
            rows = times % self._period < self._window
        if name == "decisions" and len(times):  # and the one in force when a window begins
            rows |= np.append(np.diff(np.floor(times / self._period)) > 0, True)
        if name == "steps" and self._only_ranks:
            rows &= np.isin(_values(batch, "rank"), self._ranks)
        return batch if rows.all() else take(batch, rows)

    def _thin(self) -> None:
        """Drop about half of the rows, or the steps of some ranks."""
        now = self._now
        if len(self._ranks) < self._workers and not self._only_ranks:
            self._only_ranks = True
        elif self._period == math.inf:
            cycle = now * self._workers / max(self._seen, 1)
            self._window = _power_of_two(min(max(now / WINDOWS, CYCLES * cycle), now / 2))
            self._period = 2 * self._window
        elif self._period < now / 2:
            self._period *= 2
        else:
            self._window /= 2
        for name in self.batches.keys() & WHEN.keys():
            kept = concatenate([self._within(name, batch) for batch in self.batches[name]])
            kept = self._within(name, kept)  # the last decision of each batch was in force
            self.batches[name], self._rows[name] = [kept], _rows(name, kept)

    def _keep_spread(self, batch: pa.RecordBatch) -> None:
        """Keep updates that are evenly spread, and the last one."""
        even = self._evenly(batch)
        self._spread = even if self._spread is None else concatenate([self._spread, even])
        while self._spread.num_rows > SPREAD:
            self._every *= 2
            self._spread = self._evenly(self._spread)
        if batch.num_rows:
            self._last = batch.take(numbers(np.array([batch.num_rows - 1])))

    def _evenly(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return take(batch, _values(batch, "version") % self._every == 0)


class _Spent:
    """Seconds of each rank's steps in full precision, in AMP, and with a gradient that was lost.

    A step and the fate of its gradient arrive in any order, and are matched here.
    """

    def __init__(self, workers: int) -> None:
        self._steps: Array = np.zeros(0, np.dtype([("key", "i8"), ("seconds", "f8"), ("amp", "?")]))
        self._fates: Array = np.zeros(0, np.dtype([("key", "i8"), ("lost", "?")]))
        self._totals = {name: np.zeros(workers) for name in ("full", "amp", "lost")}

    def start(self, steps: pa.RecordBatch) -> None:
        """Take steps whose computing has ended."""
        rows = np.zeros(steps.num_rows, self._steps.dtype)
        rows["key"] = _key(steps)
        rows["seconds"] = np.maximum(_values(steps, "finish") - _values(steps, "start"), 0.0)
        rows["amp"] = _is_any(steps, "precision", "amp")
        self._steps = np.concatenate([self._steps, rows])

    def end(self, gradients: pa.RecordBatch) -> None:
        """Take gradients that met their fate, and match them with the steps so far."""
        rows = np.zeros(gradients.num_rows, self._fates.dtype)
        rows["key"], rows["lost"] = (
            _key(gradients),
            _is_any(gradients, "fate", "dropped", "aborted"),
        )
        self._fates = np.concatenate([self._fates, rows])
        _, ours, theirs = np.intersect1d(
            self._steps["key"], self._fates["key"], assume_unique=True, return_indices=True
        )
        self._count(self._steps[ours], self._fates["lost"][theirs])
        self._steps = np.delete(self._steps, ours)
        self._fates = np.delete(self._fates, theirs)

    def by_rank(self) -> dict[str, list[float]]:
        """Seconds by rank; steps without a fate so far were not thrown away."""
        self._count(self._steps, np.zeros(len(self._steps), dtype=np.bool_))
        self._steps = self._steps[:0]
        return {f"{name}_by_rank": seconds.tolist() for name, seconds in self._totals.items()}

    def _count(self, steps: Array, lost: Array) -> None:
        rank, seconds = steps["key"] >> STEPS_BITS, steps["seconds"]
        for name, rows in (
            ("full", ~lost & ~steps["amp"]), ("amp", ~lost & steps["amp"]), ("lost", lost),
        ):  # fmt: skip
            totals = self._totals[name]
            totals += np.bincount(rank[rows], seconds[rows], len(totals))


def _rows(name: str, batch: pa.RecordBatch) -> int:
    """The number of rows that a batch counts as, by the memory they take."""
    if name != "decisions":
        return int(batch.num_rows)
    values = sum(int(Column(column).sizes.sum()) for column in batch.columns)
    return int(batch.num_rows + values) // VALUES


def _values(batch: pa.RecordBatch, name: str) -> Array:
    return values_of(batch.column(name))


def _is_any(batch: pa.RecordBatch, name: str, *chosen: str) -> Array:
    """A mask of the rows whose word is one of `chosen`."""
    column = batch.column(name)
    codes = [code for code, word in enumerate(column.dictionary.to_pylist()) if word in chosen]
    return np.isin(values_of(column.indices), codes)


def _key(batch: pa.RecordBatch) -> Array:
    """A number for each step of each rank."""
    return (_values(batch, "rank") << STEPS_BITS) + _values(batch, "step")


def _power_of_two(value: float) -> float:
    """The greatest power of two that is not above `value`.

    >>> _power_of_two(5.0), _power_of_two(0.3)
    (4.0, 0.25)
    """
    return float(2.0 ** math.floor(math.log2(value)))
