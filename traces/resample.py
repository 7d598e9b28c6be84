"""More of a recorded trace: more nodes, or longer, from blocks of its time drawn at random.

Source: the circular block bootstrap of Politis and Romano, "A circular block-resampling procedure
for stationary data", in Exploring the Limits of Bootstrap, Wiley 1992: blocks of one length that
begin anywhere in the record with equal probability, wrapped around its end, are put one after the
other.  What happens within a block is as recorded, and so is the correlation over times that are
short against a block; at a lag of t seconds about 1 - t/block of it is left, since so many pairs
lie in one block.

Nodes of a recorded set went through the same hours together.  So all nodes of a new set, as many
as were recorded, take the same blocks, which keeps how far they go together, and every further set
draws its own: sets are independent of each other, as if they were recorded in other hours.  What
was not recorded, such as a disturbance of all sets at once, or one rarer than the record is long,
is in no resampled trace.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.errors import InputError
from simstrag.timing import noise
from simstrag.trace.columns import Histories
from simstrag.trace.rows import DURATION, right
from simstrag.trace.step_functions import Pieces
from simstrag.trace.trace import Trace
from simstrag.traces import correlation
from simstrag.traces.labelled import Labelled

__all__ = ["default_block", "resample"]

STREAMS = 2**63 + 2**61
"""The first of the random streams used here; the generators have others."""
BLOCKS_LAST = 10
"""Times the correlation time: at that lag nine tenths of the autocorrelation are kept."""
POINTS = 2000
"""In which a record is looked at for its correlation time."""
CHECKED = 64, 40 * POINTS
"""Nodes and points at most whose correlation is looked at in what was drawn."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Drawn(NamedTuple):
    """Blocks of one set of nodes. chosen: its recorded nodes; start: of each block, in seconds."""

    chosen: tuple[int, ...]
    start: Floats


def resample(
    trace: Trace, workers: int, seconds: float, block: float | None = None, seed: int = 0
) -> Labelled:
    """A trace of `workers` nodes and `seconds` seconds out of blocks of `trace`.

    block: seconds, by default `default_block`.  Slowdowns and utilisations change at the very
    moments at which they were recorded; a block of recorded durations is as many steps as there
    are in so many seconds in the mean.  Node k of set g is number g * recorded + k; of a last set
    that is not whole its nodes are drawn.  The same arguments give the same trace, and further sets
    or seconds leave what was there as it is.
    Raises `InputError` for arguments that make no sense, and for a trace without extent.

    >>> rows = [(4, 0, "gpu", "slowdown", 2), (6, 0, "gpu", "slowdown", 1)]
    >>> rows += [(10, 1, "gpu", "slowdown", 1)]
    >>> made = resample(Trace.from_rows(rows), workers=4, seconds=30, block=5)
    >>> made.trace.nodes, made.trace.end, made.origin
    ((0, 1, 2, 3), 30.0, 'resampled')
    """
    if not trace.end > 0:
        raise InputError(f"{trace.source}: has no extent in time; there is nothing to resample")
    if workers < 1:
        raise InputError(f"resample: workers must be 1 or more, not {workers}")
    if not 0 < seconds < math.inf:
        raise InputError(f"resample: seconds must be positive, not {seconds:g}")
    if not 0 <= seed < 2**64:
        raise InputError(f"resample: seed must be 0 or more and below 2**64, not {seed}")
    length = default_block(trace) if block is None else block
    if not 0 < length <= trace.end:
        raise InputError(
            f"resample: a block must be longer than 0 s and no longer than the trace, "
            f"{trace.end:g} s, not {length:g}"
        )
    source = (
        f"resample({trace.source}, workers={workers}, seconds={seconds:g}, block={length:g}, "
        f"seed={seed})"
    )
    found = _resampled(trace, workers, seconds, length, seed, source)
    return Labelled(found, "resampled", (), _account(trace, found, length, block, seed))


def default_block(trace: Trace) -> float:
    """Seconds: ten times the time after which autocorrelation is below 1/e, half the trace at most.

    Of several resources or kinds the longest counts.

    >>> rows = [(t, 0, "gpu", "slowdown", 1 + t % 2) for t in range(1001)]
    >>> round(default_block(Trace.from_rows(rows)), 3)
    5.0
    """
    longest = max(_correlation_time(trace, *of) for of in _series(trace))
    return min(BLOCKS_LAST * longest, trace.end / 2)


def _series(trace: Trace) -> list[tuple[str, str]]:
    """Each resource and kind that it has."""
    return sorted({(resource, kind) for _, resource, kind in trace.keys})


def _point(trace: Trace, kind: str) -> float:
    """Seconds from one point of `correlation.sampled` to the next."""
    return _interval(trace) if kind == "duration" else trace.end / POINTS


def _correlation_time(trace: Trace, resource: str, kind: str) -> float:
    every = _point(trace, kind)
    return every * correlation.lasting(correlation.sampled(trace, resource, kind, every))


def _steps(trace: Trace) -> int:
    """Recorded durations that every node has that has any."""
    counts = np.diff(trace.histories.starts)[trace.histories.kind == DURATION]
    return int(counts.min()) if len(counts) else 0


def _interval(trace: Trace) -> float:
    """Mean seconds from one recorded step to the next."""
    return trace.end / max(_steps(trace) - 1, 1)


def _resampled(
    trace: Trace, workers: int, seconds: float, block: float, seed: int, source: str
) -> Trace:
    h, held = trace.histories, trace.histories.pieces()
    whose: list[tuple[int, int]] = []
    times: list[Floats] = []
    values: list[Floats] = []
    for first in range(0, workers, len(trace.nodes)):
        drawn = _drawn(trace, first, workers, seconds, block, seed)
        for k in range(len(h.node)):
            if int(h.node[k]) not in drawn.chosen:
                continue
            if h.kind[k] == DURATION:
                at, found = _of_steps(trace, k, drawn, seconds, block)
            else:
                at, found = _of_time(held, k, trace.end, drawn, seconds, block)
            whose.append((first + drawn.chosen.index(int(h.node[k])), k))
            times.append(at)
            values.append(found)
    node, history = np.array(whose).repeat([len(at) for at in times], axis=0).T
    columns = right(
        np.concatenate(times), node.astype(float), h.resource[history], h.kind[history],
        np.concatenate(values), np.arange(1, len(node) + 1),
    )  # fmt: skip
    assert columns is not None, "every value was in a trace already"
    histories = Histories.of(columns)
    assert histories is not None, "blocks follow each other"
    return Trace(histories, source)


def _drawn(
    trace: Trace, first: int, workers: int, seconds: float, block: float, seed: int
) -> Drawn:
    """What the set that begins with node `first` plays; each has a random stream of its own."""
    recorded = trace.nodes
    size = min(len(recorded), workers - first)
    rng = noise.stream(seed, STREAMS + 2 * (first // len(recorded)))
    steps = math.ceil(seconds / _interval(trace)) // _per_block(trace, block) + 1
    start = trace.end * rng.random(max(math.ceil(seconds / block), steps))
    if size == len(recorded):
        return Drawn(recorded, start)
    pick = noise.stream(seed, STREAMS + 2 * (first // len(recorded)) + 1)
    chosen = np.sort(pick.choice(len(recorded), size, replace=False))
    return Drawn(tuple(recorded[k] for k in chosen), start)


def _per_block(trace: Trace, block: float) -> int:
    """Recorded steps in a block."""
    return max(1, round(block / _interval(trace)))


def _of_time(
    held: Pieces, k: int, end: float, drawn: Drawn, seconds: float, block: float
) -> tuple[Floats, Floats]:
    """Rows of a step function made of blocks of the k-th, without those that change nothing."""
    rows = slice(held.starts[k], held.starts[k + 1])
    inside = held.times[rows] < end
    time, value = held.times[rows][inside], held.values[rows][inside]
    time, value = np.concatenate([time, time + end]), np.concatenate([value, value])
    start = drawn.start[: math.ceil(seconds / block)]
    opens = np.searchsorted(time, start, side="right") - 1
    counts = np.searchsorted(time, start + block, side="left") - opens
    own = np.repeat(np.arange(len(start)), counts)
    place = np.arange(len(own)) - np.repeat(np.append(0, np.cumsum(counts)[:-1]), counts)
    place += opens[own]
    at = own * block + np.maximum(time[place] - start[own], 0.0)
    at = np.minimum(at, (own + 1) * block)  # rounding must not carry it into the next block
    found = value[place]
    kept = np.append(True, found[1:] != found[:-1]) & (at < seconds)
    at, found = at[kept], found[kept]
    return np.append(at, seconds), np.append(found, found[-1])


def _of_steps(
    trace: Trace, k: int, drawn: Drawn, seconds: float, block: float
) -> tuple[Floats, Floats]:
    """Durations of steps in blocks of the k-th history, at their mean interval."""
    h, n, interval = trace.histories, _steps(trace), _interval(trace)
    steps = np.arange(math.ceil(seconds / interval))
    of, within = np.divmod(steps, _per_block(trace, block))
    place = ((drawn.start[of] / interval).astype(np.int64) + within) % n
    at: Floats = steps.astype(np.float64) * interval
    return at, h.value[h.starts[k] : h.starts[k] + n][place]


def _account(
    trace: Trace, found: Trace, block: float, given: float | None, seed: int
) -> tuple[str, ...]:
    recorded, nodes = len(trace.nodes), len(found.nodes)
    chosen = "as asked for" if given is not None else (
        f"{BLOCKS_LAST} times the correlation time, at most half the record"
    )  # fmt: skip
    left = [
        f"{int(n)} steps of node {node} beyond those that all have"
        for node, n in zip(
            trace.histories.node, np.diff(trace.histories.starts) - _steps(trace), strict=True
        )
        if trace.replays and n > 0
    ]
    return (
        f"Resampled: from {trace.source}, sha256 {trace.sha256}, {trace.end:g} s of {recorded} "
        f"nodes; nothing here was recorded as it stands.",
        f"Drawn: circular blocks of {block:g} s ({chosen}), seed {seed}; each set of {recorded} "
        f"nodes shares its blocks, {math.ceil(nodes / recorded)} sets draw theirs independently.",
        *(_kept(trace, found, *of) for of in _series(trace)),
        "Lost: what lasts longer than a block, the order of blocks, anything that the record is "
        "too short to show, and what would disturb several sets at once.",
        *(f"Dropped: {words}." for words in left),
    )


def _kept(trace: Trace, found: Trace, resource: str, kind: str) -> str:
    """How far the correlations are those of the record."""
    every = _point(trace, kind)
    before = correlation.sampled(trace, resource, kind, every)
    after = correlation.sampled(found, resource, kind, every, *CHECKED)
    lag = correlation.lasting(before)
    whole = len(before) * max(len(after) // len(before), 1)
    sets = [after[k : k + len(before)] for k in range(0, min(whole, len(after)), len(before))]
    inside = float(np.mean([correlation.between(values) for values in sets]))
    then, now = (correlation.autocorrelation(values, lag) for values in (before, after))
    together = correlation.between(before)
    return (
        f"Kept: {resource} {kind}, autocorrelation after {lag * every:.4g} s {_said(now)}, "
        f"recorded {_said(then)}; mean correlation of two nodes of a set {_said(inside)}, "
        f"recorded {_said(together)} (seen in {len(after)} nodes for "
        f"{after.shape[1] * every:.4g} s)."
    )


def _said(correlation: float) -> str:
    """Of too few nodes or points, or such that never vary, none is known."""
    return "unknown" if math.isnan(correlation) else f"{correlation:.2f}"
