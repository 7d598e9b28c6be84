"""From constants, contention and noise to the instants at which things end.

The other half of the arithmetic that every engine shares (docs/semantics.md, rule 0): a time is
its predecessor through exactly one method of `Timing`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from simstrag import stragglers
from simstrag.collectives import ring
from simstrag.errors import InputError
from simstrag.noise import Draw, Noise
from simstrag.slowdown import ONE, Piecewise, combine, finish
from simstrag.trace import Trace

__all__ = ["AllReduce", "Contention", "Server", "Step", "Timing", "amp_gain"]


@dataclass(frozen=True, slots=True)
class Step:
    """One training step on an idle machine.

    host: seconds that reduced precision cannot shorten.  gpu: seconds of the computing device in
    full precision.  amp_ratio: full over reduced-precision time of the whole step, None if unknown.
    draw: noise factors, None for none.  amp_switch: seconds that a change of precision costs.
    """

    host: float
    gpu: float
    amp_ratio: float | None = None
    draw: Draw | None = None
    amp_switch: float = 0.0


@dataclass(frozen=True, slots=True)
class AllReduce:
    """A ring all-reduce: alpha s per hop, bandwidth bytes/s, bytes, share hidden by backward."""

    alpha: float = 0.0
    bandwidth: float = math.inf
    bytes: float = 0.0
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class Server:
    """Seconds per gradient: at the server (first in, first out), and on the worker's side."""

    service: float = 0.0
    push: float = 0.0
    pull: float = 0.0


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


@dataclass(frozen=True, slots=True)
class Contention:
    """A trace as the ranks feel it.

    slowdowns: (rank, resource) to its step function.  durations: rank to recorded local times.
    end: seconds after which no slowdown is recorded; infinite without any, since recorded
    durations do not follow the clock, and where all rows are at time 0: constants do not end.
    trace_end: what then: hold, loop, error.
    """

    slowdowns: dict[tuple[int, str], Piecewise] = field(default_factory=dict)
    durations: dict[int, tuple[float, ...]] = field(default_factory=dict)
    end: float = math.inf
    trace_end: str = "hold"

    @classmethod
    def of(
        cls,
        trace: Trace | None,
        workers: int,
        nodes: Sequence[int] | None = None,
        trace_end: str = "hold",
        allow_speedup: bool = False,
    ) -> Contention:
        """Give each rank the rows of its node (`nodes[rank]`; node k is rank k by default).

        Raises `InputError` for a node beyond the world, utilisation rows, and speed-ups.
        """
        if trace is None:
            return cls()
        _check(trace, workers, nodes, allow_speedup)
        period = trace.end if trace_end == "loop" and trace.end > 0 else math.inf
        slowdowns: dict[tuple[int, str], Piecewise] = {}
        durations: dict[int, tuple[float, ...]] = {}
        series: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
        for row in trace.rows:
            series.setdefault(row[1:4], []).append((row.time, row.value))
        for rank in range(workers):
            node = rank if nodes is None else nodes[rank]
            for (of_node, resource, kind), rows in series.items():
                if of_node != node:
                    continue
                if kind == "duration":
                    durations[rank] = tuple(value for _, value in rows)
                else:
                    slowdowns[rank, resource] = Piecewise.of(rows, period)
        end = trace.end if slowdowns and trace.end > 0 else math.inf
        return cls(slowdowns, durations, end, trace_end)

    def of_rank(self, rank: int, resource: str) -> Piecewise:
        """The slowdown of one resource of a rank."""
        return self.slowdowns.get((rank, resource), ONE)


def _check(trace: Trace, workers: int, nodes: Sequence[int] | None, allow_speedup: bool) -> None:
    if nodes is None and trace.nodes[-1] >= workers:
        raise InputError(
            f"{trace.source}: node {trace.nodes[-1]} is beyond a world of {workers} workers; "
            "raise `workers`, or choose nodes with `nodes: [...]`"
        )
    kinds: dict[int, set[str]] = {}
    for row in trace.rows:
        if row.kind == "utilisation":
            raise InputError(
                f"{trace.source}: node {row.node} at {row.time:g} s gives utilisation, which no "
                "profile can translate into a slowdown yet; give kind slowdown or duration"
            )
        if row.kind == "slowdown" and row.value < 1 and not allow_speedup:
            raise InputError(
                f"{trace.source}: slowdown {row.value:g} of node {row.node} at {row.time:g} s "
                "is below 1; correct it, or say `allow_speedup: true` in the scenario"
            )
        if row.resource != "net":
            kinds.setdefault(row.node, set()).add(row.kind)
    for node, found in kinds.items():
        if len(found) > 1:
            raise InputError(
                f"{trace.source}: node {node} has durations and slowdowns of its steps; "
                "durations contain the slowdown already, keep one of the two"
            )


class Timing:
    """When the steps, collectives and transfers of one run end.

    >>> from simstrag.noise import Noise
    >>> step, noise = Step(host=0.0, gpu=0.1), Noise(seed=0, draw=None)
    >>> timing = Timing(step, AllReduce(), Server(), Contention(), noise)
    >>> timing.compute(rank=0, k=0, start=1.0, amp=False)
    1.1
    """

    def __init__(
        self, step: Step, allreduce: AllReduce, server: Server, contention: Contention, noise: Noise
    ) -> None:
        self.step = step
        self.allreduce = allreduce
        self.server = server
        self.contention = contention
        self._noise = noise
        self._stretch: dict[tuple[int, bool], Piecewise] = {}
        self._net: dict[tuple[int, ...], Piecewise] = {}
        self._some_net = any(resource == "net" for _, resource in contention.slowdowns)

    def compute(self, rank: int, k: int, start: float, amp: bool) -> float:
        """When the k-th step of `rank` ends that starts computing at `start` (rules 2, 4, 10)."""
        if rank in self.contention.durations:
            return start + self._duration(rank, k, amp)
        return finish(start, self._noise.factor(rank, k), self.stretch(rank, amp))

    def noise_free(self, rank: int, k: int, start: float) -> float:
        """Seconds of a noise-free full-precision step started at `start` (rule 27)."""
        if rank in self.contention.durations:
            return self._duration(rank, k, amp=False)
        return finish(start, 1.0, self.stretch(rank, amp=False)) - start

    def reduce(self, members: tuple[int, ...], start: float) -> float:
        """When an all-reduce among `members` ends that starts at `start` (rule 11)."""
        a = self.allreduce
        seconds = ring(len(members), a.alpha, a.bytes, a.bandwidth) * (1 - a.overlap)
        return finish(start, seconds, self._slowest_net(members))

    def push(self, rank: int, start: float) -> float:
        """When the gradient of `rank` is at the server."""
        return finish(start, self.server.push, self._slowest_net((rank,)))

    def pull(self, rank: int, start: float) -> float:
        """When `rank` has the parameters."""
        return finish(start, self.server.pull, self._slowest_net((rank,)))

    def beyond(self, rank: int, k: int, start: float, end: float) -> float:
        """Seconds of a step that lie beyond the end of the trace (rule 8)."""
        if self.contention.trace_end != "hold":
            return 0.0
        durations = self.contention.durations.get(rank)
        if durations is not None:
            return end - start if k >= len(durations) else 0.0
        return max(0.0, end - max(start, self.contention.end))

    def stretch(self, rank: int, amp: bool) -> Piecewise:
        """Seconds per unit of work over time: S * (h*H + g*G/r)."""
        known = self._stretch.get((rank, amp))
        if known is None:
            h, g = self.step.host, self.step.gpu
            r = amp_gain(self.step) if amp else 1.0
            parts = [self.contention.of_rank(rank, name) for name in ("step", "host", "gpu")]
            known = combine(parts, lambda S, H, G: S * (h * H + g * G / r))
            self._stretch[rank, amp] = known
        return known

    def _slowest_net(self, members: tuple[int, ...]) -> Piecewise:
        if not self._some_net:
            return ONE
        if members not in self._net:
            parts = [self.contention.of_rank(rank, "net") for rank in members]
            self._net[members] = combine(parts, lambda *values: max(values))
        return self._net[members]

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
