"""The instants at which steps, collectives and transfers end.

The other half of the arithmetic that all engines share (docs/semantics.md, rule 0): an instant
follows from the one before by exactly one method of `Timing`.
"""

from __future__ import annotations

import bisect
import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from simstrag.arrays import Ints
from simstrag.errors import InputError
from simstrag.timing.collectives import ranks_per_node
from simstrag.timing.constants import AllReduce, ServerCost, ServerLoad, Step, amp_gain
from simstrag.timing.contention import Contention
from simstrag.timing.noise import Distribution, Noise
from simstrag.trace.slowdown import ONE, Piecewise, finish
from simstrag.trace.step_functions import Pieces, combine
from simstrag.trace.trace import RESOURCES

NET = RESOURCES.index("net")
OF_STEP = ("step", "host", "gpu")
CACHED_NETS = 256
"""Sets of ranks with a cached slowest network."""


class Timing:
    """When the steps, collectives and transfers of one run end.

    nodes: the node of each rank; None if every rank has one to itself.
    load: slowdown of the ranks beside a server in use; it acts in calls with `loaded`.
    Raises `InputError` if `load.host` would have to stretch recorded durations.

    >>> from simstrag.timing.noise import Noise
    >>> step, noise = Step(host=0.0, gpu=0.1), Noise(seed=0, distribution=None)
    >>> timing = Timing(step, AllReduce(), ServerCost(), Contention(), noise)
    >>> timing.compute(rank=0, k=0, start=1.0, amp=False)
    1.1
    """

    def __init__(
        self,
        step: Step,
        allreduce: AllReduce,
        server: ServerCost,
        contention: Contention,
        noise: Noise,
        nodes: tuple[int, ...] | None = None,
        load: ServerLoad | None = None,
    ) -> None:
        self.step = step
        self.allreduce = allreduce
        self.server = server
        self.contention = contention
        self.nodes = nodes
        self.load = ServerLoad(frozenset()) if load is None else load
        self._noise = noise
        self._stretches = functools.cache(self._stretches_anew)
        self._stretch = functools.cache(lambda place, *how: self._stretches(*how)[place])
        self._launches = functools.cache(self._launches_anew)
        self._launch = functools.cache(lambda place, *how: self._launches(*how)[place])
        self._shortened = functools.cache(self._shortened_anew)
        self._net: dict[tuple[int, float], Piecewise] = {}
        self._slowed = frozenset(np.flatnonzero(contention.felt[contention.places, NET]).tolist())
        self._slowest = functools.lru_cache(CACHED_NETS)(self._largest)
        recorded = self.load.ranks & contention.durations.keys()
        if recorded and self.load.host != 1:
            raise InputError(
                f"server_load.host cannot stretch the recorded durations of rank {min(recorded)}: "
                "their share of host work is unknown; leave host out"
            )

    def under(self, noise: Noise) -> Timing:
        """The same timing under another noise; results about the contention are shared."""
        other = copy.copy(self)
        other._noise = noise
        return other

    def compute(
        self,
        rank: int,
        k: int,
        start: float,
        amp: bool,
        share: float = 1.0,
        loaded: bool = False,
        part: float = 1.0,
    ) -> float:
        """The end of the k-th step of `rank`, which computes from `start` on (rules 2, 4, 6, 10).

        share: its samples over the nominal batch.
        part: the first part of the step that counts, as a share of its work.
        """
        if rank in self.contention.durations:
            return start + self._duration(rank, k, amp) * self.step.recorded_effort(share) * part
        if self.step.overlaps:
            return max(self.streams(rank, k, start, amp, share, loaded, part))
        work = self._noise.factor(rank, k) * self.step.effort(share) * part
        return finish(start, work, self.stretch(rank, amp, loaded))

    def streams(
        self, rank: int, k: int, start: float, amp: bool, share: float, loaded: bool, part: float
    ) -> tuple[float, float]:
        """When launching and computing of a step end by the overlapping law: see `compute`."""
        work = self._noise.factor(rank, k) * part
        return (
            finish(start, work, self.launching(rank, amp, loaded)),
            finish(start, work, self.stretch(rank, amp, loaded), self.step.effort(share)),
        )

    def cut(
        self,
        rank: int,
        k: int,
        start: float,
        amp: bool,
        share: float,
        deadline: float,
        loaded: bool = False,
    ) -> tuple[float, int]:
        """The end of a step with a deadline (seconds), and its micro-batches by then (rule 6a).

        It stops with the first micro-batch that ends after the deadline, or else with the last.

        >>> from simstrag.timing.noise import Noise
        >>> step = Step(host=0.0, gpu=1.0, microbatches=4)
        >>> none = Noise(seed=0, distribution=None)
        >>> timing = Timing(step, AllReduce(), ServerCost(), Contention(), none)
        >>> timing.cut(rank=0, k=0, start=5.0, amp=False, share=1.0, deadline=0.5)
        (5.75, 3)
        """
        parts = self.step.microbatches

        def end(done: int) -> float:
            return self.compute(rank, k, start, amp, share, loaded, done / parts)

        within = bisect.bisect_right(range(1, parts), deadline, key=lambda m: end(m) - start)
        return end(within + 1), within + 1

    def noise_free(self, rank: int, k: int, start: float) -> float:
        """Seconds of a noise-free full-precision step started at `start` (rule 27)."""
        if rank in self.contention.durations:
            return self._duration(rank, k, amp=False)
        end = finish(start, 1.0, self.stretch(rank, amp=False))
        if self.step.overlaps:
            end = max(end, finish(start, 1.0, self.launching(rank, amp=False)))
        return end - start

    def reduce(
        self, members: tuple[int, ...], start: float, loaded: bool = False, fragments: int = 1
    ) -> float:
        """The end of an all-reduce among `members` of one of so many fragments (11, 11b)."""
        late = self.delay(members, start)
        allreduce = self.allreduce.delayed(late) if late else self.allreduce
        seconds = allreduce.seconds(ranks_per_node(members, self.nodes), fragments)
        return finish(start, seconds, self.slowest_net(members, loaded))

    def push(self, rank: int, start: float, loaded: bool = False) -> float:
        """The arrival of the gradient of `rank` at the server."""
        seconds = self.server.push + self.delay((rank,), start)
        return finish(start, seconds, self.slowest_net((rank,), loaded))

    def pull(self, rank: int, start: float, loaded: bool = False) -> float:
        """The arrival of the parameters at `rank`."""
        seconds = self.server.pull + self.delay((rank,), start)
        return finish(start, seconds, self.slowest_net((rank,), loaded))

    def delay(self, members: tuple[int, ...], start: float) -> float:
        """Seconds that each hop of a message takes more that begins at `start` (rule 8b).

        Of an all-reduce the mean over its members by ring, and else the largest.
        """
        delays = self.contention.delays
        if not delays:
            return 0.0
        late = [delays[rank].at(start)[0] if rank in delays else 0.0 for rank in members]
        if self.allreduce.algorithm in ("ring", "hierarchical"):
            return sum(late) / len(late)
        return max(late)

    def serve(self, start: float, union: tuple[int, ...] = (), loaded: bool = False) -> float:
        """The end of a job of the server.

        union: contributors of a job that fuses several groups; they may all-reduce first.
        """
        if union and self.server.fused_allreduce:
            start = self.reduce(union, start, loaded)
        return start + self.server.job

    def beyond(self, rank: int, k: int, start: float, end: float) -> float:
        """Seconds of a step that lie beyond the end of the trace (rule 8)."""
        if self.contention.trace_end != "hold":
            return 0.0
        durations = self.contention.durations.get(rank)
        if durations is not None:
            return max(0.0, end - start) if k >= len(durations) else 0.0
        return max(0.0, end - max(start, self.contention.end))

    def stretch(self, rank: int, amp: bool, loaded: bool = False) -> Piecewise:
        """Seconds per unit of work over time: S * (h*H + g*G/r).

        By the overlapping law, of the device alone: S * G * g, with g in that precision.
        """
        return self._stretch(self.contention.place(rank), amp, self._host_factor(rank, loaded))

    def launching(self, rank: int, amp: bool, loaded: bool = False) -> Piecewise:
        """Seconds of launching per unit of work over time by the overlapping law: S * H * h."""
        return self._launch(self.contention.place(rank), amp, self._host_factor(rank, loaded))

    def stretches(self, amp: bool, factor: float = 1.0) -> Pieces:
        """`stretch` of each place of the contention, with host work stretched by a factor.

        Of a worker of several ranks: that of its step, from those of its ranks (rule 10a).
        """
        return self._stretches(amp, factor)

    def launches(self, amp: bool, factor: float = 1.0) -> Pieces:
        """`launching` of each place of the contention, with host work stretched by a factor."""
        return self._launches(amp, factor)

    def _host_factor(self, rank: int, loaded: bool) -> float:
        return self.load.host if loaded and rank in self.load.ranks else 1.0

    def _stretches_anew(self, amp: bool, factor: float) -> Pieces:
        h, g = self.step.host, self.step.gpu
        r = amp_gain(self.step) if amp else 1.0
        if self.step.amp is not None:
            seconds = self.step.amp[1] if amp else g
            return self._combined(("step", "gpu"), lambda S, G: S * (G * seconds))
        return self._combined(OF_STEP, lambda S, H, G: S * (h * H * factor + g * G / r))

    def _launches_anew(self, amp: bool, factor: float) -> Pieces:
        assert self.step.amp is not None
        seconds = (self.step.amp[0] if amp else self.step.host) * factor
        return self._combined(("step", "host"), lambda S, H: S * (H * seconds))

    def _combined(self, names: Sequence[str], function: Callable[..., Any]) -> Pieces:
        """A function of the slowdowns of some resources, of each place of the contention."""

        def of(felt: Ints) -> Pieces:
            columns = {name: felt[:, RESOURCES.index(name)] for name in names}
            slowed = [name for name in names if columns[name].any()] or ["step"]

            def seconds(*values: Any) -> Any:
                return function(
                    *(values[slowed.index(name)] if name in slowed else 1.0 for name in names)
                )

            pieces = self.contention.pieces
            return combine([pieces.taken(columns[name]) for name in slowed], seconds)

        worker, members = self.contention.worker, self.contention.members
        if worker is None:
            return of(self.contention.felt)
        stretch = worker.stretch
        return combine(
            [of(members[:, rank]) for rank in range(worker.ranks)],
            lambda *seconds: worker.step(np.array(seconds)) / stretch,
        )

    def durations(self, amp: bool) -> dict[int, tuple[float, ...]]:
        """The recorded durations of each rank that has some, in a precision (rule 10)."""
        return self._shortened() if amp else self.contention.durations

    def _shortened_anew(self) -> dict[int, tuple[float, ...]]:
        amp_gain(self.step)  # refuses an unknown or impossible ratio
        ratio, fixed = self.step.amp_ratio or 1.0, self.contention.unshortened
        return {
            rank: tuple(
                (seconds - kept) / ratio + kept
                for seconds, kept in zip(own, fixed.get(rank, (0.0,) * len(own)), strict=True)
            )
            for rank, own in self.contention.durations.items()
        }

    @property
    def seed(self) -> int:
        """The seed of the noise."""
        return self._noise.seed

    @property
    def drawn(self) -> Distribution | None:
        """The distribution of the noise of the run, at its pace; None for none."""
        return self._noise.distribution

    def net(self, rank: int, loaded: bool) -> Piecewise | None:
        """The slowdown of a rank's network over time, if there is any."""
        if not self.feels_net((rank,), loaded):
            return None
        key = self.contention.place(rank), self._net_factor(rank, loaded)
        if key not in self._net:
            self._net[key] = self.nets([rank], loaded)[0]
        return self._net[key]

    def nets(self, ranks: Sequence[int], loaded: bool) -> Pieces:
        """The slowdowns of the networks of ranks."""
        places = [self.contention.place(rank) for rank in ranks]
        factors = np.array([self._net_factor(rank, loaded) for rank in ranks])
        return self.contention.pieces.taken(self.contention.felt[places, NET]).scale(factors)

    def feels_net(self, ranks: Iterable[int], loaded: bool) -> bool:
        """Whether the network of any of these ranks is ever slowed."""
        slowed = self._slowed | self.load.ranks if loaded else self._slowed
        return bool(slowed) and not slowed.isdisjoint(ranks)

    def is_late(self, ranks: Iterable[int]) -> bool:
        """Whether messages of any of these ranks are ever delayed."""
        delays = self.contention.delays
        return bool(delays) and not delays.keys().isdisjoint(ranks)

    def _net_factor(self, rank: int, loaded: bool) -> float:
        return self.load.net if loaded and rank in self.load.ranks else 1.0

    def slowest_net(self, members: tuple[int, ...], loaded: bool) -> Piecewise:
        """The largest slowdown of the networks of `members` over time."""
        if len(members) == 1:
            return self.net(members[0], loaded) or ONE
        felt = tuple(rank for rank in members if self.feels_net((rank,), loaded))
        return self._slowest(felt, len(felt) < len(members), loaded) if felt else ONE

    def _largest(self, felt: tuple[int, ...], others: bool, loaded: bool) -> Piecewise:
        """felt: members with a slowdown.  others: whether any member has none."""
        alike = {
            (self.contention.place(rank), self._net_factor(rank, loaded)): rank for rank in felt
        }
        parts = self.nets(list(alike.values()), loaded)
        return Pieces.constants([1.0] * others).after(parts).largest()

    def _duration(self, rank: int, k: int, amp: bool) -> float:
        durations = self.durations(amp)[rank]
        if k >= len(durations) and self.contention.trace_end == "error":
            raise InputError(
                f"rank {rank} starts step {k}, but the trace records {len(durations)} durations; "
                "record more, or say `trace_end: hold` or `loop`"
            )
        looped = self.contention.trace_end == "loop"
        return durations[k % len(durations) if looped else min(k, len(durations) - 1)]
