"""Made-up contention: random fail-slow episodes, reproducible from a seed.

When episodes come and how long they last is the rule of the fail-slow injector of Greyhound (Wu et
al., "Greyhound: Hunting Fail-Slows in Hybrid-Parallel Training at Scale", USENIX ATC 2025; read
from `detector/injection/injection.py` of wutianyuan1/Greyhound @de4d6b3, not copied): from the end
of one episode and a gap of 60 s it takes Exp(240 s) until the next begins, which lasts N(120, 20)
seconds, and at least one.

Ours are: a clock per node (theirs is one for the cluster, and picks a device for every episode),
durations that are not cut down to whole seconds, and how severe an episode is (theirs are listed by
hand).  With the defaults a node is slowed for 120 s of every 420 s in the mean, 29 % of its time,
so that of eight nodes some one is slowed for 93 % of it.  To have as many episodes in the whole
cluster as theirs, take `mean_interarrival=420 * nodes - 180`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.timing import noise
from simstrag.trace.trace import RESOURCES, Trace

__all__ = ["SEVERITIES", "Severity", "check", "generate"]

SHORTEST = 1.0
"""Seconds; the normal distribution of durations is cut off there."""
STREAMS = 2**63
"""The first of the random streams used here: no rank, whose noise has its own, has this number."""

Sample = Callable[[np.random.Generator], float]


class Choice(NamedTuple):
    """A kind of distribution of slowdowns: its parameters, and what draws from it, given them."""

    parameters: tuple[str, ...]
    sample: Callable[..., Sample]


def _fixed(slowdown: float) -> Sample:
    return lambda rng: slowdown


def _uniform(low: float, high: float) -> Sample:
    return lambda rng: low + (high - low) * rng.random()


def _lognormal(median: float, sigma: float) -> Sample:
    return lambda rng: 1 + (median - 1) * math.exp(sigma * rng.standard_normal())


SEVERITIES = {
    "fixed": Choice(("slowdown",), _fixed),
    "uniform": Choice(("low", "high"), _uniform),
    "lognormal": Choice(("median", "sigma"), _lognormal),
}
"""How severe episodes may be: all the same; evenly spread from low to high; or with a long tail,
1 + (median-1)*exp(sigma*Z) with Z standard normal.  All are this project's."""


@dataclass(frozen=True, slots=True)
class Severity:
    """A distribution of slowdowns: one of `SEVERITIES` and its parameters."""

    name: str
    values: tuple[float, ...]

    @classmethod
    def of(cls, text: str) -> Severity:
        """From its text: `fixed:2`, `uniform:1.2:3` or `lognormal:1.5:0.8`.

        Raises `InputError` where that is none of them.

        >>> Severity.of("uniform:1.2:3")
        Severity(name='uniform', values=(1.2, 3.0))
        """
        name, *parts = (part.strip() for part in text.split(":"))
        allowed = ", ".join(":".join([key, *c.parameters]) for key, c in SEVERITIES.items())
        if name not in SEVERITIES:
            raise InputError(
                f"severity '{text}': there is no '{name}'{nearest(name, SEVERITIES)}; "
                f"allowed: {allowed}"
            )
        parameters = SEVERITIES[name].parameters
        if len(parts) != len(parameters):
            needed = " and ".join(parameters)
            raise InputError(f"severity '{text}': give {needed}; allowed: {allowed}")
        values = tuple(_parameter(text, *pair) for pair in zip(parameters, parts, strict=True))
        if name == "uniform" and values[0] > values[1]:
            raise InputError(f"severity '{text}': low {values[0]:g} is above high {values[1]:g}")
        return cls(name, values)

    @property
    def sample(self) -> Sample:
        """Draws the slowdown of the next episode from a random stream."""
        return SEVERITIES[self.name].sample(*self.values)


def _parameter(text: str, name: str, part: str) -> float:
    least = 0.0 if name == "sigma" else 1.0
    try:
        value = float(part)
    except ValueError:
        raise InputError(f"severity '{text}': {name} '{part}' is not a number") from None
    if not least <= value < math.inf:
        raise InputError(f"severity '{text}': {name} must be {least:g} or more, not {part}")
    return value


def generate(
    nodes: int,
    seconds: float,
    seed: int,
    resource: str = "gpu",
    mean_interarrival: float = 240.0,
    duration_mean: float = 120.0,
    duration_sd: float = 20.0,
    gap: float = 60.0,
    severity: str = "fixed:2",
) -> Trace:
    """Fail-slow episodes on each of `nodes` nodes for `seconds` seconds; every node begins clean.

    resource: what is contended: gpu, host, net or step.  mean_interarrival: seconds, the mean of
    the exponential clean time before an episode, on top of the gap.  duration_mean, duration_sd:
    seconds, of the normal distribution of durations; one below 1 s is raised to 1 s.  gap: seconds
    that are clean after every episode.  severity: the distribution of its slowdown, one draw each;
    see `SEVERITIES`.  An episode that would outlast the trace ends with it.

    A pure function: each node has random streams of its own, keyed by seed and node, so that more
    nodes, a longer trace or another severity leave the episodes of the others where they are.
    Raises `InputError` for arguments that make no sense.

    >>> trace = generate(nodes=1, seconds=600, seed=1)
    >>> [(round(row.time), row.value) for row in trace.rows]
    [(0, 1.0), (148, 2.0), (268, 1.0), (356, 2.0), (480, 1.0), (600, 1.0)]
    """
    numbers = {
        "seconds": seconds,
        "mean_interarrival": mean_interarrival,
        "duration_mean": duration_mean,
        "duration_sd": duration_sd,
        "gap": gap,
    }
    check(nodes, seed, resource, numbers)
    draw = Severity.of(severity).sample
    times: list[float] = []
    values: list[float] = []
    rows: list[int] = []
    for node in range(nodes):
        pace, strength = (noise.stream(seed, STREAMS + 2 * node + k) for k in (0, 1))
        before = len(times)
        times.append(0.0)
        values.append(1.0)
        for start, end in _episodes(pace, mean_interarrival, duration_mean, duration_sd, gap):
            if start >= seconds:
                break
            times += (start, min(end, seconds))
            values += (draw(strength), 1.0)
        times.append(seconds)
        values.append(1.0)
        rows.append(len(times) - before)
    stated = ", ".join(f"{name}={value}" for name, value in numbers.items())
    return Trace.from_columns(
        times, np.repeat(np.arange(nodes), rows), resource, "slowdown", values,
        f"generate(nodes={nodes}, seed={seed}, resource={resource}, {stated}, severity={severity})",
    )  # fmt: skip


def _episodes(
    rng: np.random.Generator, mean_interarrival: float, mean: float, sd: float, gap: float
) -> Iterator[tuple[float, float]]:
    """(start, end) of one episode after the other, without end."""
    free = 0.0
    while True:
        start = free + mean_interarrival * rng.standard_exponential()
        end = start + max(SHORTEST, mean + sd * rng.standard_normal())
        yield start, end
        free = end + gap


def check(nodes: int, seed: int, resource: str, numbers: dict[str, float]) -> None:
    """Raise `InputError` for arguments of a generator that make no sense.

    numbers: its seconds by name, which must be positive, or 0 for a spread or a gap.

    >>> check(0, seed=1, resource="gpu", numbers={})
    Traceback (most recent call last):
    simstrag.errors.InputError: generate: nodes must be 1 or more, not 0
    """
    if nodes < 1:
        raise InputError(f"generate: nodes must be 1 or more, not {nodes}")
    if not 0 <= seed < 2**64:
        raise InputError(f"generate: seed must be 0 or more and below 2**64, not {seed}")
    if resource not in RESOURCES:
        raise InputError(
            f"generate: unknown resource '{resource}'{nearest(resource, RESOURCES)}; "
            f"allowed: {', '.join(RESOURCES)}"
        )
    for name, value in numbers.items():
        must_be_positive = name not in ("duration_sd", "gap")
        if not math.isfinite(value) or value < 0 or (must_be_positive and value == 0):
            least = "positive" if must_be_positive else "0 or more"
            raise InputError(f"generate: {name} must be {least} seconds, not {value:g}")
