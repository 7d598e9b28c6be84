"""Puts what a scenario says of durations into memory: constants, step functions, noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.engine.native.memory import AHEAD, Memory
from simstrag.timing.collectives import ranks_per_node
from simstrag.timing.noise import Distribution, keys
from simstrag.timing.timing import NET, Timing
from simstrag.trace.slowdown import Piecewise
from simstrag.trace.step_functions import Pieces

__all__ = ["Loading"]


class Loading:
    """The timing of one run, in memory.

    filed: the quorums of the plan in force, as they were before any gradient.
    knows_amp: whether the step functions of reduced precision are there.
    """

    filed: Any
    knows_amp: bool

    def __init__(self, timing: Timing, memory: Memory) -> None:
        self.memory = memory
        self._fragments = 0  # of the all-reduces in `seconds_of`
        self._durations(timing)
        self._load(timing)
        if timing.drawn is not None:
            self._noise(timing.seed, timing.drawn)

    def _load(self, timing: Timing) -> None:
        """Constants and step functions, in place of any others."""
        self.timing = timing
        self._pieces: dict[Piecewise, int] = {}
        self._new: list[Piecewise] = []
        memory = self.memory
        memory.pieces = np.zeros(0, memory.pieces.dtype)
        memory.times, memory.values = np.zeros(0), np.zeros(0)
        memory.ranks["net"] = memory.ranks["delay"] = -1
        self._constants()
        self._nets()  # first, as they are few: what is in memory is copied when more is put there
        self.stretches(amp=False)

    def reload(self, timing: Timing) -> None:
        """Another timing of the same job, which records no durations."""
        knew_amp = self.knows_amp
        self._load(timing)
        if knew_amp:
            self.stretches(amp=True)

    @property
    def speeds(self) -> tuple[Any, Any, Any, float]:
        """Of each rank seconds of launching and of computing per unit of work, and the slowdown of
        its network; of the server seconds of a job.  Of step functions that do not change."""
        memory, rows = self.memory, self.memory.ranks
        first = np.append(memory.values[memory.pieces["at"]], 1.0)  # a piece of -1 is the last
        here = np.arange(len(rows)), rows["amp"].astype(int)
        launches, stretches = (first[rows[name][here]] for name in ("launch", "stretch"))
        return launches, stretches, first[rows["net"][:, 0]], float(memory.job["service"])

    def _constants(self) -> None:
        m, t = self.memory.job, self.timing
        m["push"], m["pull"], m["service"] = t.server.push, t.server.pull, t.server.job
        m["fused_allreduce"] = t.server.fused_allreduce
        m["amp_switch"], m["microbatches"] = t.step.amp_switch, t.step.microbatches
        m["fixed_share"], m["trace_end"] = t.step.fixed_share, t.contention.end
        m["overlaps"], m["host"], m["gpu"] = t.step.overlaps, t.step.host, t.step.gpu
        period = t.contention.pieces.periods.min()
        m["period"] = period if period < math.inf else 0
        for name in ("hold", "loop"):
            m[f"{name}s"] = t.contention.trace_end == name
        m["halts"] = t.contention.trace_end == "error"

    def _durations(self, timing: Timing) -> None:
        at = 0
        self.memory.job["replays"] = bool(timing.contention.durations)
        for rank, recorded in sorted(timing.contention.durations.items()):
            row = self.memory.ranks[rank]
            row["recorded_at"], row["recorded"] = at, len(recorded)
            at += len(recorded)
        self.memory.durations = _flat(timing.durations(amp=False))

    def piece(self, f: Piecewise) -> int:
        """The number of a step function; it is in memory after `place`."""
        known = self._pieces.get(f)
        if known is None:
            known = self._pieces[f] = len(self.memory.pieces) + len(self._new)
            self._new.append(f)
        return known

    def place(self) -> None:
        """Put step functions that are new into memory."""
        if self._new:
            those, self._new = Pieces.of_each(self._new), []
            self._put(those)

    def _put(self, those: Pieces) -> int:
        """Step functions into memory; the number of the first."""
        memory = self.memory
        first, size = len(memory.pieces), len(memory.times)
        rows = np.zeros(len(those), memory.pieces.dtype)
        rows["at"], rows["last"] = size + those.starts[:-1], np.diff(those.starts) - 1
        memory.pieces = np.concatenate([memory.pieces, rows])
        if size:
            those = replace(
                those, times=np.concatenate([memory.times, those.times]),
                values=np.concatenate([memory.values, those.values]),
            )  # fmt: skip
        memory.times, memory.values = those.times, those.values  # not copied where they are alone
        return first

    def stretches(self, amp: bool) -> None:
        """Seconds per unit of work over time. Raises `InputError` where AMP's gain is unknown."""
        self.knows_amp = amp
        self.place()
        rows, timing = self.memory.ranks, self.timing
        computed = rows["recorded"] == 0
        if amp and not computed.all():
            both = (_flat(timing.durations(precision)) for precision in (False, True))
            self.memory.durations = np.concatenate([*both])
        if not computed.any():
            return
        self._stretch("stretch", timing.stretches, amp, computed)
        if timing.step.overlaps:
            self._stretch("launch", timing.launches, amp, computed)

    def _stretch(self, name: str, pieces: Callable[..., Pieces], amp: bool, computed: Any) -> None:
        """Seconds per unit of work of the ranks that compute, without and beside a server."""
        rows, load = self.memory.ranks, self.timing.load
        places = self.timing.contention.places_of(len(rows))
        numbers = self._put(pieces(amp)) + places
        rows[name][computed, int(amp)] = numbers[computed]
        if load.host != 1:
            beside = np.array(sorted(load.ranks))
            own, which = np.unique(places[beside], return_inverse=True)
            numbers[beside] = self._put(pieces(amp, load.host).taken(own)) + which
        rows[name][computed, 2 + amp] = numbers[computed]

    def _nets(self) -> None:
        """Slowdowns and delays of networks over time."""
        rows, timing = self.memory.ranks, self.timing
        felt = timing.contention.felt[timing.contention.places_of(len(rows)), NET]
        slowed, which = np.unique(felt[felt > 0], return_inverse=True)
        if len(slowed):
            those = timing.contention.pieces.taken(slowed)
            numbers = self._put(those.changing(those.values)) + which
            rows["net"][felt > 0] = numbers[:, np.newaxis]
        for rank, delay in timing.contention.delays.items():
            rows["delay"][rank] = self.piece(delay)
        for rank in timing.load.ranks:
            net = timing.net(rank, loaded=True)
            assert net is not None, "a server in use weighs on it"
            rows["net"][rank, 1] = self.piece(net)
        self.place()

    def seconds(self, members: tuple[int, ...], fragments: int) -> float:
        """Of an all-reduce of one of so many fragments on an idle network."""
        allreduce, nodes = self.timing.allreduce, self.timing.nodes
        return allreduce.seconds(ranks_per_node(members, nodes), fragments)

    def seconds_by_count(self, fragments: int) -> None:
        """The same among any so many ranks, where each has a node to itself."""
        memory, n = self.memory, len(self.memory.ranks)
        if self._fragments != fragments:
            self._fragments, seconds = fragments, self.timing.allreduce.seconds
            flat = [seconds((1,) * k, fragments) for k in range(1, n + 1)]
            memory.seconds_of = np.array([math.nan, *flat])

    def _noise(self, seed: int, distribution: Distribution) -> None:
        memory, m = self.memory, self.memory.job
        memory.keys = keys(seed, range(len(memory.ranks)))
        if distribution.rho:  # else each is drawn when it is needed
            memory.factors = np.zeros((AHEAD, len(memory.ranks)))
        memory.quantiles = distribution.quantiles.ravel()
        memory.marginal = distribution.marginal
        m["rho"], m["innovation"] = distribution.rho, distribution.innovation
        m["warmup"], m["noisy"] = distribution.warmup, 1


def _flat(durations: Mapping[int, tuple[float, ...]]) -> Floats:
    """The durations of all ranks that have some, one after the other."""
    return np.array([each for _, own in sorted(durations.items()) for each in own], np.float64)
