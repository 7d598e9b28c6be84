"""A trace as the ranks of one job feel it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from simstrag.errors import InputError
from simstrag.slowdown import ONE, Piecewise
from simstrag.trace import Trace

__all__ = ["Contention"]


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
        ranks: dict[int, list[int]] = {}
        for rank in range(workers):
            ranks.setdefault(rank if nodes is None else nodes[rank], []).append(rank)
        for (node, resource, kind), rows in series.items():
            for rank in ranks.get(node, ()):
                if kind == "duration":
                    durations[rank] = tuple(value for _, value in rows)
                else:
                    slowdowns[rank, resource] = Piecewise.of(rows, period)
        end = trace.end if slowdowns and trace.end > 0 else math.inf
        return cls(slowdowns, durations, end, trace_end)

    def of_rank(self, rank: int, resource: str) -> Piecewise:
        """The slowdown of one resource of a rank."""
        return self.slowdowns.get((rank, resource), ONE)


def _few(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes[:8])) + (", ..." if len(nodes) > 8 else "")


def _check(trace: Trace, workers: int, nodes: Sequence[int] | None, allow_speedup: bool) -> None:
    if nodes is None and trace.nodes[-1] >= workers:
        raise InputError(
            f"{trace.source}: node {trace.nodes[-1]} is beyond a world of {workers} workers; "
            "raise `workers`, or choose nodes with `nodes: [...]`"
        )
    if nodes is not None and not set(nodes) & set(trace.nodes):
        raise InputError(
            f"{trace.source}: its nodes ({_few(trace.nodes)}) are none that a rank is on "
            f"({_few(sorted(set(nodes)))}): no contention would be felt; correct `nodes`"
        )
    if found := trace.first(lambda row: row.kind == "utilisation"):
        where, row = found
        raise InputError(
            f"{where}: utilisation {row.value:g} of node {row.node} at {row.time:g} s cannot be "
            "translated into a slowdown yet; write its factor as kind slowdown (1 is clean), or "
            "recorded step times as kind duration"
        )
    if not allow_speedup and (found := trace.first(lambda row: row.speeds_up)):
        where, row = found
        raise InputError(
            f"{where}: slowdown {row.value:g} of node {row.node} at {row.time:g} s is below 1; "
            "correct it, or say `allow_speedup: true` in the scenario"
        )
    kinds: dict[int, set[str]] = {}
    for row in trace.rows:
        if row.resource != "net":
            kinds.setdefault(row.node, set()).add(row.kind)
    for node, of_node in kinds.items():
        if len(of_node) > 1:
            raise InputError(
                f"{trace.source}: node {node} has durations and slowdowns of its steps; "
                "durations contain the slowdown already, keep one of the two"
            )
