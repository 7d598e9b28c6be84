"""Puts what a scenario says of durations into memory: constants, step functions, noise."""

from __future__ import annotations

import itertools
import math

import numpy as np

from simstrag.collectives import ranks_per_node
from simstrag.compiled import tables
from simstrag.compiled.memory import Memory
from simstrag.noise import stream
from simstrag.slowdown import Piecewise
from simstrag.timing import Timing

__all__ = ["Loading"]

BLOCK = 1024
"""Factors of noise that a rank has at hand ..."""
AT_HAND = 1 << 22
"""... unless those of all ranks would be more than these."""
FEW = 16
TILE = 64
"""Ranks whose factors are drawn together."""


class Loading:
    """The timing of one run, in memory."""

    def __init__(self, timing: Timing, memory: Memory) -> None:
        self.timing = timing
        self.memory = memory
        self._pieces: dict[Piecewise, int] = {}
        self._streams: list[np.random.Generator] = []
        self._constants()
        self._durations()
        self.stretches(amp=False)
        for rank in range(len(memory.ranks)):
            for loaded in (False, True):
                net = timing.net(rank, loaded)
                if net is not None:
                    memory.ranks[rank]["net"][int(loaded)] = self.piece(net)
        self.place()
        if timing.step.draw is not None:
            self._begin_noise()

    def _constants(self) -> None:
        m, t = self.memory.machine[0], self.timing
        m["push"], m["pull"], m["job"] = t.server.push, t.server.pull, t.server.job
        m["fused_allreduce"] = t.server.fused_allreduce
        m["switch"], m["microbatches"] = t.step.amp_switch, t.step.microbatches
        m["amp_ratio"] = t.step.amp_ratio or 1.0
        m["trace_end"] = t.contention.end
        for name in ("hold", "loop"):
            m[f"{name}s"] = t.contention.trace_end == name
        m["halts"] = t.contention.trace_end == "error"

    def _durations(self) -> None:
        at = 0
        for rank, recorded in sorted(self.timing.contention.durations.items()):
            row = self.memory.ranks[rank]
            row["recorded_at"], row["recorded"] = at, len(recorded)
            at += len(recorded)

    def piece(self, f: Piecewise) -> int:
        """The number of a step function; it is in memory after `place`."""
        return self._pieces.setdefault(f, len(self._pieces))

    def place(self) -> None:
        """Put step functions that are new into memory."""
        memory = self.memory
        new = list(itertools.islice(self._pieces, len(memory.pieces), None))
        if new:
            sizes = [len(f.times) for f in new]
            first = np.cumsum([len(memory.times), *sizes[:-1]])
            rows = zip(first, (size - 1 for size in sizes), (f.period for f in new), strict=True)
            memory.pieces = np.append(memory.pieces, np.array(list(rows), tables.PIECE))
            memory.times = np.concatenate([memory.times, *(f.times for f in new)])
            memory.values = np.concatenate([memory.values, *(f.values for f in new)])
            memory.placed()

    def stretches(self, amp: bool) -> None:
        """Seconds per unit of work over time. Raises `InputError` where AMP's gain is unknown."""
        for rank, row in enumerate(self.memory.ranks):
            if not row["recorded"]:
                for loaded in (False, True):
                    stretch = self.timing.stretch(rank, amp, loaded)
                    row["stretch"][2 * loaded + amp] = self.piece(stretch)
        self.place()

    def knows_amp(self) -> bool:
        """Whether the step functions of reduced precision are there."""
        rows = self.memory.ranks
        return bool(np.all((rows["stretch"][:, 1] >= 0) | (rows["recorded"] > 0)))

    def seconds(self, members: tuple[int, ...]) -> float:
        """Of an all-reduce on an idle network."""
        return self.timing.allreduce.seconds(ranks_per_node(members, self.timing.nodes))

    def seconds_by_count(self) -> None:
        """The same among any so many ranks, where each has a node to itself."""
        memory, n = self.memory, len(self.memory.ranks)
        if len(memory.seconds_of) <= n:
            flat = [self.timing.allreduce.seconds((1,) * k) for k in range(1, n + 1)]
            memory.seconds_of = np.array([math.nan, *flat])
            memory.placed()

    def _begin_noise(self) -> None:
        memory = self.memory
        n = len(memory.ranks)
        self._streams = [stream(self.timing.seed, rank) for rank in range(n)]
        at_hand = max(FEW, min(BLOCK, AT_HAND // n))
        memory.noise = np.empty((at_hand, n))
        memory.placed()
        memory.machine[0]["noisy"] = 1
        memory.ranks["noise_from"] = -at_hand
        self.draw()

    def draw(self) -> None:
        """As many factors for everybody as there is room for, after those still unused (rule 4)."""
        rows, noise, draw = self.memory.ranks, self.memory.noise, self.timing.step.draw
        assert draw is not None
        used = rows["started"] - rows["noise_from"]
        for tile in range(0, len(rows), TILE):
            ranks = slice(tile, tile + TILE)
            left = len(noise) - used[ranks]
            if left.any():
                for rank, n in enumerate(left.tolist(), start=tile):
                    noise[:n, rank] = noise[len(noise) - n :, rank].copy()
                    noise[n:, rank] = draw(self._streams[rank : rank + 1], len(noise) - n)[0]
            else:
                noise[:, ranks] = draw(self._streams[ranks], len(noise)).T
        rows["noise_from"] = rows["started"]
        self.memory.machine[0]["low"] = 0
