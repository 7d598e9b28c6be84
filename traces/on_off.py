"""Made-up contention that comes and goes without memory: a two-state chain on every node.

A node is either clean or slowed; the time in each state is exponential, so that the past says
nothing about what remains.  Source: the two-state Markov channel of Gilbert, "Capacity of a
burst-noise channel", Bell System Technical Journal 39(5), 1960.  Each node begins in the chain's
long-run state, slowed with probability mean_on / (mean_on + mean_off), so that there is no warm-up,
and nodes are independent of each other.  Unlike `generate`, durations have a coefficient of
variation of 1, so that many episodes are short and some are long, and none leaves a gap behind.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simstrag.timing import noise
from simstrag.trace.trace import Trace
from simstrag.traces.generate import Severity, check

__all__ = ["on_off"]

STREAMS = 2**63 + 2**62
"""The first of the random streams used here, beyond those of `generate`."""


def on_off(
    nodes: int,
    seconds: float,
    seed: int,
    resource: str = "gpu",
    mean_on: float = 120.0,
    mean_off: float = 240.0,
    severity: str = "fixed:2",
) -> Trace:
    """Slowdowns that come and go on each of `nodes` nodes for `seconds` seconds.

    mean_on, mean_off: seconds, the means of the exponential times slowed and clean.
    severity: the slowdown of each time slowed, one draw each; see `generate.SEVERITIES`.
    As with `generate`, more nodes, a longer trace or another severity leave the rest where it is.
    Raises `InputError` for arguments that make no sense.

    >>> trace = on_off(nodes=1, seconds=600, seed=1)
    >>> [(round(row.time), row.value) for row in trace.rows]
    [(0, 1.0), (11, 2.0), (43, 1.0), (320, 2.0), (388, 1.0), (600, 1.0)]
    """
    numbers = {"seconds": seconds, "mean_on": mean_on, "mean_off": mean_off}
    check(nodes, seed, resource, numbers)
    draw = Severity.of(severity).sample
    times: list[float] = []
    values: list[float] = []
    rows: list[int] = []
    for node in range(nodes):
        pace, strength = (noise.stream(seed, STREAMS + 2 * node + k) for k in (0, 1))
        before = len(times)
        for start, slowed in _turns(pace, mean_on, mean_off):
            if start >= seconds:
                break
            times.append(start)
            values.append(draw(strength) if slowed else 1.0)
        times.append(seconds)
        values.append(1.0)
        rows.append(len(times) - before)
    stated = ", ".join(f"{name}={value}" for name, value in numbers.items())
    return Trace.from_columns(
        times, np.repeat(np.arange(nodes), rows), resource, "slowdown", values,
        f"on_off(nodes={nodes}, seed={seed}, resource={resource}, {stated}, severity={severity})",
    )  # fmt: skip


def _turns(
    rng: np.random.Generator, mean_on: float, mean_off: float
) -> Iterator[tuple[float, bool]]:
    """(start, whether slowed) of one state after the other, without end."""
    start, slowed = 0.0, bool(rng.random() < mean_on / (mean_on + mean_off))
    while True:
        yield start, slowed
        start += (mean_on if slowed else mean_off) * rng.standard_exponential()
        slowed = not slowed
