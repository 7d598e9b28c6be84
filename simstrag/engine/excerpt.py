"""An excerpt of bounded size of a run, for whoever looks at its single steps.

As long as there are few of them all steps and updates are kept.  Then steps of some ranks only, and
then, with updates and decisions, those in windows of time: of each period the first seconds.
Period and window are powers of two of a second, so that the windows of two runs fall together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag.runs.columns import Lists, Table, Words, chosen, joined
from simstrag.runs.tables import InMemory
from simstrag.timing.contention import Contention

__all__ = ["MOST", "RANKS", "Excerpt", "ranks_to_show"]

Array = npt.NDArray[Any]

MOST = 1 << 18
"""Steps that are kept at most, and updates in windows."""
SPREAD = 1 << 12
"""Updates that are kept besides, evenly spread over all."""
RANKS = 256
WINDOWS, CYCLES = 32, 64
"""How many windows there are when it is first thinned, unless each would show fewer cycles."""
VALUES = 8
"""Times as many decisions, or ranks and shares in them, are kept at most."""
WHEN = {"steps": "start", "updates": "time", "decisions": "time"}
NO_TIME = 1e-9
"""Seconds of a window that is not made shorter: all that is in it happens at once."""
STEPS_BITS = 40
"""Of a number that stands for a step of a rank."""


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
    found = slow[: most // 2]
    even = np.linspace(0, workers - 1, most - len(found)).round().astype(int).tolist()
    return sorted({*found, *even})


class Excerpt(InMemory):
    """Keeps what an excerpt shows, and of all steps where their time went.

    workers: ranks there are.  ranks: whose steps are kept once they are too many.
    """

    def __init__(self, workers: int, ranks: Sequence[int], most: int = MOST) -> None:
        super().__init__()
        self._workers, self._ranks, self._most = workers, np.array(ranks), most
        self._only_ranks = False
        self._period = self._window = math.inf
        self._rows = dict.fromkeys(WHEN, 0)
        self._spread: Table | None = None
        self._last: Table | None = None
        self._every = 1
        self._seen = 0
        self._now = 0.0
        self._spent = _Spent(workers)

    def add(self, name: str, block: Table) -> None:
        """Keep what belongs in, of gradients nothing."""
        if name == "gradients":
            self._spent.ended(block)
            return
        if name == "steps":
            self._seen += len(block["rank"])
            self._spent.worked(block)
        elif name == "updates":
            self._keep_spread(block)
        times = np.asarray(block[WHEN[name]])
        self._now = max([self._now, *times[-1:].tolist()])
        kept = self._within(name, block)
        if name not in self.blocks or len(kept[WHEN[name]]):
            super().add(name, kept)
            self._rows[name] += _rows(name, kept)
        while self._rows[name] > self._most and self._window > NO_TIME:
            self._thin()

    def table(self, name: str) -> Mapping[str, Any] | None:
        """All rows that were kept, of updates in the order of their versions."""
        if name == "updates" and self._period < math.inf:
            assert self._spread is not None
            assert self._last is not None
            every = joined([*self.blocks.pop(name), self._spread, self._last])
            _, rows = np.unique(np.asarray(every["version"]), return_index=True)
            return chosen(every, rows)
        return super().table(name)

    @property
    def excerpt(self) -> dict[str, Any] | None:
        """What was kept, as `Run.excerpt` has it; None where all was."""
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

    def _within(self, name: str, block: Table) -> Table:
        """The rows of a block that belong in."""
        times = np.asarray(block[WHEN[name]])
        rows = np.ones(len(times), dtype=np.bool_)
        if self._period < math.inf:
            rows = times % self._period < self._window
        if name == "decisions" and len(times):  # and what is in force when a window begins
            rows |= np.append(np.diff(np.floor(times / self._period)) > 0, True)
        if name == "steps" and self._only_ranks:
            rows &= np.isin(np.asarray(block["rank"]), self._ranks)
        return block if rows.all() else chosen(block, rows)

    def _thin(self) -> None:
        """Keep about half of what is kept, or steps of fewer ranks."""
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
        for name in self.blocks.keys() & WHEN.keys():
            kept = joined([self._within(name, block) for block in self.blocks[name]])
            kept = self._within(name, kept)  # of decisions each block ended with one too many
            self.blocks[name], self._rows[name] = [kept], _rows(name, kept)

    def _keep_spread(self, block: Table) -> None:
        """Every so manyth update, and the last."""
        even = self._evenly(block)
        self._spread = even if self._spread is None else joined([self._spread, even])
        while len(self._spread["version"]) > SPREAD:
            self._every *= 2
            self._spread = self._evenly(self._spread)
        if len(block["version"]):
            self._last = chosen(block, slice(-1, None))

    def _evenly(self, block: Table) -> Table:
        return chosen(block, np.asarray(block["version"]) % self._every == 0)


class _Spent:
    """Seconds that ranks computed in either precision, and what of it was thrown away.

    A step and the fate of its gradient are told in any order, and meet here.
    """

    def __init__(self, workers: int) -> None:
        self._steps: Array = np.zeros(0, np.dtype([("key", "i8"), ("seconds", "f8"), ("amp", "?")]))
        self._fates: Array = np.zeros(0, np.dtype([("key", "i8"), ("lost", "?")]))
        self._totals = {name: np.zeros(workers) for name in ("full", "amp", "lost")}

    def worked(self, steps: Table) -> None:
        """Steps whose computing has ended."""
        found = np.zeros(len(steps["rank"]), self._steps.dtype)
        found["key"] = _key(steps)
        seconds = np.asarray(steps["finish"]) - np.asarray(steps["start"])
        found["seconds"] = np.maximum(seconds, 0.0)
        precision = steps["precision"]
        assert isinstance(precision, Words)
        found["amp"] = precision.codes == precision.words.index("amp")
        self._steps = np.concatenate([self._steps, found])

    def ended(self, gradients: Table) -> None:
        """Gradients that met their fate, after the steps that were told so far."""
        fate = gradients["fate"]
        assert isinstance(fate, Words)
        thrown_away = [fate.words.index(word) for word in ("dropped", "aborted")]
        found = np.zeros(len(fate), self._fates.dtype)
        found["key"], found["lost"] = _key(gradients), np.isin(fate.codes, thrown_away)
        self._fates = np.concatenate([self._fates, found])
        _, ours, theirs = np.intersect1d(
            self._steps["key"], self._fates["key"], assume_unique=True, return_indices=True
        )
        self._count(self._steps[ours], self._fates["lost"][theirs])
        self._steps = np.delete(self._steps, ours)
        self._fates = np.delete(self._fates, theirs)

    def by_rank(self) -> dict[str, list[float]]:
        """Seconds by rank; what has no fate yet was not thrown away."""
        self._count(self._steps, np.zeros(len(self._steps), dtype=np.bool_))
        self._steps = self._steps[:0]
        return {f"{name}_by_rank": seconds.tolist() for name, seconds in self._totals.items()}

    def _count(self, steps: Array, lost: Array) -> None:
        rank, seconds = steps["key"] >> STEPS_BITS, steps["seconds"]
        for name, own in (
            ("full", ~lost & ~steps["amp"]), ("amp", ~lost & steps["amp"]), ("lost", lost),
        ):  # fmt: skip
            totals = self._totals[name]
            totals += np.bincount(rank[own], seconds[own], len(totals))


def _rows(name: str, table: Table) -> int:
    """How many rows a table has, as far as they take memory."""
    values = sum(int(c.sizes.sum()) for c in table.values() if isinstance(c, Lists))
    rows = len(table[WHEN[name]])
    return rows if name != "decisions" else (rows + values) // VALUES


def _key(table: Table) -> Array:
    """A number for each step of each rank."""
    return np.asarray((np.asarray(table["rank"]) << STEPS_BITS) + np.asarray(table["step"]))


def _power_of_two(value: float) -> float:
    """The greatest power of two that is not above.

    >>> _power_of_two(5.0), _power_of_two(0.3)
    (4.0, 0.25)
    """
    return float(2.0 ** math.floor(math.log2(value)))
