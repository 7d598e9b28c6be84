"""Random contention, reproducible from a seed: fail-slow episodes, or an on-off Markov chain.

Onset and duration of episodes follow the fail-slow injector of Greyhound (Wu et al., "Greyhound:
Hunting Fail-Slows in Hybrid-Parallel Training at Scale", USENIX ATC 2025; read from
`detector/injection/injection.py` of wutianyuan1/Greyhound @de4d6b3, not copied): after an episode
and a gap of 60 s the next one begins in Exp(240 s), and lasts N(120, 20) s, at least 1 s.

Ours are: a clock per node (theirs has one for the cluster, and picks a device for every episode),
durations that are not rounded down to whole seconds, and the distribution of severities (theirs are
listed by hand).  By default a node is slowed for 120 s of every 420 s in the mean, 29 % of its
time, and at least one of eight nodes is slowed 93 % of the time.  With
`mean_interarrival=420 * nodes - 180` the cluster has as many episodes as theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.timing import noise
from simstrag.trace.row_validation import require_rows
from simstrag.trace.trace import RESOURCES, Trace

SHORTEST = 1.0
"""Least duration in seconds; the normal distribution is cut off there."""
STREAMS = 2**63
"""The first random stream of `generate`, above the streams of the noise of ranks."""
ON_OFF_STREAMS = 2**63 + 2**62
"""The first random stream of `on_off`."""

Sample = Callable[[np.random.Generator], float]


SEVERITIES = {"fixed": ("slowdown",), "uniform": ("low", "high"), "lognormal": ("median", "sigma")}
"""Parameters of the distributions of severity: constant; uniform from low to high; or with a long
tail, 1 + (median-1)*exp(sigma*Z) with Z standard normal.  All are this project's."""


def severity_of(text: str) -> Sample:
    """A function that draws the slowdown of an episode from a random stream.

    text: `fixed:2`, `uniform:1.2:3` or `lognormal:1.5:0.8`; `InputError` for any other.

    >>> severity_of("fixed:2")(noise.stream(0, 0))
    2.0
    """
    name, *parts = (part.strip() for part in text.split(":"))
    allowed = ", ".join(":".join([key, *parameters]) for key, parameters in SEVERITIES.items())
    if name not in SEVERITIES:
        raise InputError(
            f"severity '{text}': there is no '{name}'{nearest(name, SEVERITIES)}; "
            f"allowed: {allowed}"
        )
    parameters = SEVERITIES[name]
    if len(parts) != len(parameters):
        needed = " and ".join(parameters)
        raise InputError(f"severity '{text}': give {needed}; allowed: {allowed}")
    values = [_parameter(text, *pair) for pair in zip(parameters, parts, strict=True)]
    if name == "fixed":
        return lambda rng: values[0]
    if name == "lognormal":
        median, sigma = values
        return lambda rng: 1 + (median - 1) * math.exp(sigma * rng.standard_normal())
    low, high = values
    if low > high:
        raise InputError(f"severity '{text}': low {low:g} is above high {high:g}")
    return lambda rng: low + (high - low) * rng.random()


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
    """Fail-slow episodes on each node; every node begins clean.

    seconds: length of the trace; an episode that would outlast it ends with it.
    resource: the contended resource: gpu, host, net or step.
    mean_interarrival: mean of the exponential clean time before an episode, after the gap.
    duration_mean, duration_sd: mean and deviation of the normal durations, cut off at 1 s.
    gap: clean seconds after every episode.
    severity: distribution of the slowdown, one draw for each episode; see `SEVERITIES`.

    Each node has its own random streams, keyed by seed and node: more nodes, a longer trace or
    another severity leave the other episodes where they are.
    Raises `InputError` for arguments out of range.

    >>> trace = generate(nodes=1, seconds=600, seed=1)
    >>> [(round(row.time), row.value) for row in trace.rows]
    [(0, 1.0), (148, 2.0), (268, 1.0), (356, 2.0), (480, 1.0), (600, 1.0)]
    """
    numbers = {
        "seconds": seconds, "mean_interarrival": mean_interarrival, "duration_mean": duration_mean,
        "duration_sd": duration_sd, "gap": gap,
    }  # fmt: skip

    def changes(rng: np.random.Generator) -> Iterator[tuple[float, bool]]:
        free = 0.0
        yield 0.0, False
        while (start := free + mean_interarrival * rng.standard_exponential()) < seconds:
            end = start + max(SHORTEST, duration_mean + duration_sd * rng.standard_normal())
            yield start, True
            yield min(end, seconds), False
            free = end + gap

    return _draw("generate", STREAMS, changes, nodes, seed, resource, severity, numbers)


def on_off(
    nodes: int,
    seconds: float,
    seed: int,
    resource: str = "gpu",
    mean_on: float = 120.0,
    mean_off: float = 240.0,
    severity: str = "fixed:2",
) -> Trace:
    """Slowdowns that come and go without memory: a two-state Markov chain on each node.

    mean_on, mean_off: means of the exponential times slowed and clean, in seconds.
    severity: distribution of the slowdown, one draw for each time slowed; see `SEVERITIES`.

    Each node begins in the long-run state, slowed with probability mean_on / (mean_on + mean_off),
    so there is no warm-up.  Unlike in `generate`, durations have a coefficient of variation of 1,
    and there is no gap.  Streams are as in `generate`.
    Source: Gilbert, "Capacity of a burst-noise channel", Bell System Technical Journal 39(5), 1960.
    Raises `InputError` for arguments out of range.

    >>> trace = on_off(nodes=1, seconds=600, seed=1)
    >>> [(round(row.time), row.value) for row in trace.rows]
    [(0, 1.0), (11, 2.0), (43, 1.0), (320, 2.0), (388, 1.0), (600, 1.0)]
    """
    numbers = {"seconds": seconds, "mean_on": mean_on, "mean_off": mean_off}

    def changes(rng: np.random.Generator) -> Iterator[tuple[float, bool]]:
        start, slowed = 0.0, bool(rng.random() < mean_on / (mean_on + mean_off))
        while start < seconds:
            yield start, slowed
            start += (mean_on if slowed else mean_off) * rng.standard_exponential()
            slowed = not slowed

    return _draw("on_off", ON_OFF_STREAMS, changes, nodes, seed, resource, severity, numbers)


def _draw(
    name: str,
    streams: int,
    changes: Callable[[np.random.Generator], Iterator[tuple[float, bool]]],
    nodes: int,
    seed: int,
    resource: str,
    severity: str,
    numbers: dict[str, float],
) -> Trace:
    """A trace in which each node is slowed and clean in turns.

    name: name of the generator, for the source of the trace.
    changes: draws from a stream the times, and whether a node is slowed from each time on.
    numbers: the generator's seconds by name.
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
    for key, value in numbers.items():
        may_be_0 = key in ("duration_sd", "gap")
        if not (0 <= value < math.inf) or (value == 0 and not may_be_0):
            least = "0 or more" if may_be_0 else "positive"
            raise InputError(f"generate: {key} must be {least} seconds, not {value:g}")
    cycle = sum(value for key, value in numbers.items() if key not in ("seconds", "duration_sd"))
    require_rows(name, nodes * (2 + 2 * numbers["seconds"] / cycle))
    sample = severity_of(severity)
    times: list[float] = []
    values: list[float] = []
    rows: list[int] = []
    for node in range(nodes):
        pace, strength = (noise.stream(seed, streams + 2 * node + k) for k in (0, 1))
        states = [*changes(pace), (numbers["seconds"], False)]
        times += [time for time, _ in states]
        values += [sample(strength) if slowed else 1.0 for _, slowed in states]
        rows.append(len(states))
    stated = ", ".join(f"{key}={value}" for key, value in numbers.items())
    return Trace.from_columns(
        times, np.repeat(np.arange(nodes), rows), resource, "slowdown", values,
        f"{name}(nodes={nodes}, seed={seed}, resource={resource}, {stated}, severity={severity})",
    )  # fmt: skip
