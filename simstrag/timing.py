"""From constants, contention and noise to the instants at which things end.

The other half of the arithmetic that every engine shares (docs/semantics.md, rule 0): a time is
its predecessor through exactly one method of `Timing`.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from simstrag import collectives, stragglers
from simstrag.contention import Contention
from simstrag.errors import InputError
from simstrag.noise import Draw, Noise
from simstrag.slowdown import ONE, Piecewise, combine, finish

__all__ = ["AllReduce", "Load", "Server", "Step", "Timing", "amp_gain"]

CACHED_NETS = 1024
"""How many different sets of ranks may have their slowest network remembered."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step on an idle machine.

    host: seconds that reduced precision cannot shorten.  gpu: seconds of the computing device in
    full precision.  amp_ratio: full over reduced-precision time of the whole step, None if unknown.
    draw: noise factors, None for none.  amp_switch: seconds that a change of precision costs.
    microbatches: equal parts of a step after which a deadline may stop it.
    """

    host: float
    gpu: float
    amp_ratio: float | None = None
    draw: Draw | None = None
    amp_switch: float = 0.0
    microbatches: int = 1


@dataclass(frozen=True, slots=True)
class AllReduce:
    """An all-reduce: alpha s per hop, bandwidth bytes/s, bytes, share hidden by backward.

    algorithm: a function of `simstrag.collectives`.  intra_alpha, intra_bandwidth: of the links
    inside a node; None means that these are like the others.
    """

    alpha: float = 0.0
    bandwidth: float = math.inf
    bytes: float = 0.0
    overlap: float = 0.0
    algorithm: str = "ring"
    intra_alpha: float | None = None
    intra_bandwidth: float | None = None

    def seconds(self, ranks_per_node: tuple[int, ...]) -> float:
        """What backward does not hide of an all-reduce on an idle network.

        ranks_per_node: how many members each node has that has any.

        >>> AllReduce(alpha=0.01, intra_alpha=0.001).seconds((4,))   # 2 (4 - 1) hops in one node
        0.006
        """
        links = self.alpha, self.bytes, self.bandwidth
        inside = (
            self.alpha if self.intra_alpha is None else self.intra_alpha,
            self.bandwidth if self.intra_bandwidth is None else self.intra_bandwidth,
        )
        if self.algorithm == "hierarchical":
            seconds = collectives.hierarchical(ranks_per_node, *links, *inside)
        else:
            if len(ranks_per_node) == 1:
                links = inside[0], self.bytes, inside[1]
            seconds = getattr(collectives, self.algorithm)(sum(ranks_per_node), *links)
        return seconds * (1 - self.overlap)


@dataclass(frozen=True, slots=True)
class Server:
    """Seconds per gradient: at the server (first in, first out), and on the worker's side.

    shards: the share of the service that each of several servers does; they sum to 1.
    fused_allreduce: a job that fuses several groups first all-reduces among all contributors.
    """

    service: float = 0.0
    push: float = 0.0
    pull: float = 0.0
    shards: tuple[float, ...] = (1.0,)
    fused_allreduce: bool = False

    @property
    def job(self) -> float:
        """Seconds of one job: every shard has the same queue, so the largest is the last.

        >>> Server(service=8.0, shards=(0.25, 0.75)).job
        6.0
        """
        return self.service * max(self.shards)


@dataclass(frozen=True, slots=True)
class Load:
    """What a parameter server costs the ranks beside it while it is in use: factors >= 1.

    host: of the host work of their steps.  net: of their pushes, pulls and collectives.
    """

    ranks: frozenset[int]
    host: float = 1.0
    net: float = 1.0


def amp_gain(step: Step) -> float:
    """By how much reduced precision speeds up the device's part of a step, r = g / ((h+g)/rho - h).

    Raises `InputError` where `amp_ratio` is unknown, or larger than the host part allows.
    """
    rho, total = step.amp_ratio, step.host + step.gpu
    if rho is None:
        raise InputError(
            "the policy uses reduced precision, but nothing says what it gains: "
            "give step.amp_ratio or a profile"
        )
    try:
        return stragglers.amp_gain(rho, step.host, total)
    except InputError:
        raise InputError(
            f"step.amp_ratio {rho:g} is impossible with host_share {step.host / total:g}: "
            f"reduced precision shortens the device's part only, so it must be below "
            f"{total / step.host:g}"
        ) from None


class Timing:
    """When the steps, collectives and transfers of one run end.

    nodes: the node of each rank; None means that every rank has one to itself.
    load: what a server in use costs the ranks beside it; it acts where `loaded` is said.
    Raises `InputError` where `load.host` would have to stretch recorded durations.

    >>> from simstrag.noise import Noise
    >>> step, noise = Step(host=0.0, gpu=0.1), Noise(seed=0, draw=None)
    >>> timing = Timing(step, AllReduce(), Server(), Contention(), noise)
    >>> timing.compute(rank=0, k=0, start=1.0, amp=False)
    1.1
    """

    def __init__(
        self,
        step: Step,
        allreduce: AllReduce,
        server: Server,
        contention: Contention,
        noise: Noise,
        nodes: tuple[int, ...] | None = None,
        load: Load | None = None,
    ) -> None:
        self.step = step
        self.allreduce = allreduce
        self.server = server
        self.contention = contention
        self.nodes = nodes
        self.load = load
        self._noise = noise
        self._stretch: dict[tuple[int, bool, float], Piecewise] = {}
        self._slow_nets = frozenset(r for r, name in contention.slowdowns if name == "net")
        self._net = functools.lru_cache(CACHED_NETS)(self._slowest)
        recorded = set() if load is None or load.host == 1 else load.ranks & {*contention.durations}
        if recorded:
            raise InputError(
                f"server_load.host cannot stretch the recorded durations of rank {min(recorded)}: "
                "what is host work in them is not known; leave host out"
            )

    def compute(
        self, rank: int, k: int, start: float, amp: bool, share: float = 1.0, loaded: bool = False
    ) -> float:
        """When the k-th step of `rank` ends that starts computing at `start` (rules 2, 4, 6, 10).

        share: its samples over the nominal batch.
        """
        return self._compute(rank, k, start, amp, share, 1.0, loaded)

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
        """When a step ends that stops at `deadline` seconds, and its micro-batches by then (6a).

        It stops with the first micro-batch that ends later than that; without one, with the last.

        >>> from simstrag.noise import Noise
        >>> step = Step(host=0.0, gpu=1.0, microbatches=4)
        >>> timing = Timing(step, AllReduce(), Server(), Contention(), Noise(seed=0, draw=None))
        >>> timing.cut(rank=0, k=0, start=5.0, amp=False, share=1.0, deadline=0.5)
        (5.75, 3)
        """
        parts = self.step.microbatches

        def end(done: int) -> float:
            return self._compute(rank, k, start, amp, share, done / parts, loaded)

        within = bisect.bisect_right(range(1, parts), deadline, key=lambda m: end(m) - start)
        return end(within + 1), within + 1

    def noise_free(self, rank: int, k: int, start: float) -> float:
        """Seconds of a noise-free full-precision step started at `start` (rule 27)."""
        if rank in self.contention.durations:
            return self._duration(rank, k, amp=False)
        return finish(start, 1.0, self.stretch(rank, amp=False)) - start

    def reduce(self, members: tuple[int, ...], start: float, loaded: bool = False) -> float:
        """When an all-reduce among `members` ends that starts at `start` (rule 11)."""
        if self.nodes is None:
            ranks_per_node = (1,) * len(members)
        else:
            ranks_per_node = tuple(Counter(self.nodes[rank] for rank in members).values())
        seconds = self.allreduce.seconds(ranks_per_node)
        return finish(start, seconds, self._slowest_net(members, loaded))

    def push(self, rank: int, start: float, loaded: bool = False) -> float:
        """When the gradient of `rank` is at the server."""
        return finish(start, self.server.push, self._slowest_net((rank,), loaded))

    def pull(self, rank: int, start: float, loaded: bool = False) -> float:
        """When `rank` has the parameters."""
        return finish(start, self.server.pull, self._slowest_net((rank,), loaded))

    def serve(self, start: float, union: tuple[int, ...] = (), loaded: bool = False) -> float:
        """When a job of the server ends that starts at `start`.

        union: all contributors of a job that fuses several groups, who may all-reduce first.
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
            return end - start if k >= len(durations) else 0.0
        return max(0.0, end - max(start, self.contention.end))

    def stretch(self, rank: int, amp: bool, loaded: bool = False) -> Piecewise:
        """Seconds per unit of work over time: S * (h*H + g*G/r)."""
        factor = self._factor("host", rank, loaded)
        known = self._stretch.get((rank, amp, factor))
        if known is None:
            h, g = self.step.host, self.step.gpu
            r = amp_gain(self.step) if amp else 1.0
            parts = [self.contention.of_rank(rank, name) for name in ("step", "host", "gpu")]
            known = combine(parts, lambda S, H, G: S * (h * H * factor + g * G / r))
            self._stretch[rank, amp, factor] = known
        return known

    def _compute(
        self, rank: int, k: int, start: float, amp: bool, share: float, part: float, loaded: bool
    ) -> float:
        """When `part` of a step is done."""
        if rank in self.contention.durations:
            return start + self._duration(rank, k, amp) * share * part
        work = self._noise.factor(rank, k) * share * part
        return finish(start, work, self.stretch(rank, amp, loaded))

    def _factor(self, resource: Literal["host", "net"], rank: int, loaded: bool) -> float:
        """What the server beside a rank makes of one resource of it."""
        load = self.load
        if not loaded or load is None or rank not in load.ranks:
            return 1.0
        return load.host if resource == "host" else load.net

    def _slowest_net(self, members: tuple[int, ...], loaded: bool) -> Piecewise:
        """The largest slowdown of the network among `members` over time."""
        slow = self._slow_nets
        if loaded and self.load is not None:
            slow |= self.load.ranks
        if not slow:
            return ONE
        felt = tuple(rank for rank in members if rank in slow)
        return self._net(felt, len(felt) < len(members), loaded)

    def _slowest(self, felt: tuple[int, ...], others: bool, loaded: bool) -> Piecewise:
        """Of the ranks that have any slowdown; `others`: there are ranks that have none."""
        parts = [self._loaded_net(rank, loaded) for rank in felt] + [ONE] * others
        return combine(parts, lambda *values: max(values))

    def _loaded_net(self, rank: int, loaded: bool) -> Piecewise:
        factor = self._factor("net", rank, loaded)
        return combine([self.contention.of_rank(rank, "net")], lambda value: value * factor)

    def _duration(self, rank: int, k: int, amp: bool) -> float:
        durations = self.contention.durations[rank]
        if k >= len(durations) and self.contention.trace_end == "error":
            raise InputError(
                f"rank {rank} starts step {k}, but the trace records {len(durations)} durations; "
                "record more, or say `trace_end: hold` or `loop`"
            )
        looped = self.contention.trace_end == "loop"
        seconds = durations[k % len(durations) if looped else min(k, len(durations) - 1)]
        if amp:
            amp_gain(self.step)  # refuses an unknown or impossible ratio
            seconds /= self.step.amp_ratio or 1.0
        return seconds
