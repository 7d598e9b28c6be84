"""More of a recorded trace: more nodes, or longer, from blocks of its time drawn at random.

Source: the circular block bootstrap of Politis and Romano, "A circular block-resampling procedure
for stationary data", in Exploring the Limits of Bootstrap, Wiley 1992: blocks of one length that
begin anywhere in the record with equal probability, wrapped around its end, follow each other.
Within a block all is as recorded.  So is the correlation over times that are short against a block;
at a lag of t seconds about 1 - t/block of it is left, the share of pairs in one block.

The recorded nodes went through the same hours together.  A set has as many new nodes as there are
recorded ones.  All nodes of a set take the same blocks, which keeps their correlation.  Each set
draws its own blocks: sets are independent, as if recorded in other hours.  A resampled trace has no
disturbance of all sets at once, and none that is too rare to be in the record.
"""

from __future__ import annotations

import math

import numpy as np

from simstrag.arrays import Floats
from simstrag.errors import InputError
from simstrag.timing import noise
from simstrag.trace.node_histories import Histories
from simstrag.trace.row_validation import DURATION, require_rows, validate
from simstrag.trace.step_functions import Pieces
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import Labelled

STREAMS = 2**63 + 2**61
"""The first of the random streams used here, beyond those of the generators."""
BLOCK_LENGTHS = 10
"""Correlation times in a block; at a lag of one, nine tenths of the autocorrelation are kept."""
POINTS = 2000
"""Number of points for the correlation time of a record."""
CHECKED = 64, 40 * POINTS
"""Most nodes and points for the correlation of the result."""


def resample(
    trace: Trace, workers: int, seconds: float, block: float | None = None, seed: int = 0
) -> Labelled:
    """A trace of `workers` nodes and `seconds` seconds out of blocks of `trace`.

    block: seconds, by default `default_block`.  For recorded durations, a block has the mean number
        of steps in that time.

    Slowdowns and utilisations change at the moments at which they were recorded.  Node k of set g
    is number g * recorded + k; the nodes of an incomplete last set are drawn.  The same arguments
    give the same trace, and further sets or seconds leave the rest as it is.
    Raises `InputError` for arguments out of range, and for a trace without extent.

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
    blocks = workers * seconds / length
    more = seconds / trace.end * workers / len(trace.nodes)
    require_rows("resample", max(blocks, more * len(trace)))
    source = (
        f"resample({trace.source}, workers={workers}, seconds={seconds:g}, block={length:g}, "
        f"seed={seed})"
    )
    # Node k of a whole set is the k-th recorded one; only the first set keeps its name.
    recorded = enumerate(trace.nodes) if workers >= len(trace.nodes) else ()
    names = {k: trace.names[node] for k, node in recorded if node in trace.names}
    resampled = Trace(_histories(trace, workers, seconds, length, seed), source, names=names)
    how = "as asked for" if block is not None else (
        f"{BLOCK_LENGTHS} times the correlation time, at most half the record"
    )  # fmt: skip
    notes = _notes(trace, resampled, f"{length:g} s ({how}), seed {seed}")
    return Labelled(resampled, "resampled", (), notes)


def default_block(trace: Trace) -> float:
    """Ten times the seconds after which autocorrelation is below 1/e, at most half the trace.

    Of several resources or kinds, the longest counts.

    >>> rows = [(t, 0, "gpu", "slowdown", 1 + t % 2) for t in range(1001)]
    >>> round(default_block(Trace.from_rows(rows)), 3)
    5.0
    """
    longest = max(
        every * correlation_length(sample(trace, resource, kind, every))
        for resource, kind, every in _series(trace)
    )
    return min(BLOCK_LENGTHS * longest, trace.end / 2)


def _series(trace: Trace) -> list[tuple[str, str, float]]:
    """Each resource and kind of the trace, and the seconds between two points of `sample`."""
    return [
        (resource, kind, _interval(trace) if kind == "duration" else trace.end / POINTS)
        for resource, kind in sorted({(resource, kind) for _, resource, kind in trace.keys})
    ]


def _steps(trace: Trace) -> int:
    """Least number of recorded durations of a node that has any."""
    counts = np.diff(trace.histories.starts)[trace.histories.kind == DURATION]
    return int(counts.min()) if len(counts) else 0


def _interval(trace: Trace) -> float:
    """Mean seconds from one recorded step to the next."""
    return trace.end / max(_steps(trace) - 1, 1)


def _per_block(trace: Trace, block: float) -> int:
    return max(1, round(block / _interval(trace)))


def _histories(trace: Trace, workers: int, seconds: float, block: float, seed: int) -> Histories:
    h, held = trace.histories, trace.histories.pieces()
    owners: list[tuple[int, int]] = []
    times: list[Floats] = []
    values: list[Floats] = []
    for first in range(0, workers, len(trace.nodes)):
        nodes, start = _draw(trace, first, workers, seconds, block, seed)
        for k, node in enumerate(h.node.tolist()):
            if node not in nodes:
                continue
            if h.kind[k] == DURATION:
                time, value = _of_steps(trace, k, start, seconds, block)
            else:
                time, value = _of_time(held, k, trace.end, start, seconds, block)
            owners.append((first + nodes.index(node), k))
            times.append(time)
            values.append(value)
    number, history = np.array(owners).repeat([len(time) for time in times], axis=0).T
    columns = validate(
        np.concatenate(times), number.astype(float), h.resource[history], h.kind[history],
        np.concatenate(values), np.arange(1, len(number) + 1),
    )  # fmt: skip
    assert columns is not None, "every value was in a trace already"
    histories = Histories.of(columns)
    assert histories is not None, "blocks follow each other"
    return histories


def _draw(
    trace: Trace, first: int, workers: int, seconds: float, block: float, seed: int
) -> tuple[tuple[int, ...], Floats]:
    """The recorded nodes of the set that begins with node `first`, and the start of each block.

    Each set has its own random streams.
    """
    recorded = trace.nodes
    size = min(len(recorded), workers - first)
    stream = STREAMS + 2 * (first // len(recorded))
    steps = math.ceil(seconds / _interval(trace)) // _per_block(trace, block) + 1
    count = max(math.ceil(seconds / block), steps)
    start = trace.end * noise.stream(seed, stream).random(count)
    if size == len(recorded):
        return recorded, start
    nodes = noise.stream(seed, stream + 1).choice(len(recorded), size, replace=False)
    return tuple(recorded[k] for k in np.sort(nodes)), start


def _of_time(
    held: Pieces, k: int, end: float, start: Floats, seconds: float, block: float
) -> tuple[Floats, Floats]:
    """Times and values of blocks of the k-th step function, without rows that change nothing."""
    rows = slice(held.starts[k], held.starts[k + 1])
    inside = held.times[rows] < end
    time, value = held.times[rows][inside], held.values[rows][inside]
    time, value = np.concatenate([time, time + end]), np.concatenate([value, value])
    start = start[: math.ceil(seconds / block)]
    opens = np.searchsorted(time, start, side="right") - 1
    counts = np.searchsorted(time, start + block, side="left") - opens
    owner = np.repeat(np.arange(len(start)), counts)
    place = np.arange(len(owner)) - np.repeat(np.append(0, np.cumsum(counts)[:-1]), counts)
    place += opens[owner]
    times = owner * block + np.maximum(time[place] - start[owner], 0.0)
    times = np.minimum(times, (owner + 1) * block)  # no rounding into the next block
    values = value[place]
    kept = np.append(True, values[1:] != values[:-1]) & (times < seconds)
    times, values = times[kept], values[kept]
    return np.append(times, seconds), np.append(values, values[-1])


def _of_steps(
    trace: Trace, k: int, start: Floats, seconds: float, block: float
) -> tuple[Floats, Floats]:
    """Times and durations of steps in blocks of the k-th history, at their mean interval."""
    h, n, interval = trace.histories, _steps(trace), _interval(trace)
    steps = np.arange(math.ceil(seconds / interval))
    number, within = np.divmod(steps, _per_block(trace, block))
    place = ((start[number] / interval).astype(np.int64) + within) % n
    times: Floats = steps.astype(np.float64) * interval
    return times, h.value[h.starts[k] : h.starts[k] + n][place]


def _notes(trace: Trace, resampled: Trace, blocks: str) -> tuple[str, ...]:
    recorded, sets = len(trace.nodes), math.ceil(len(resampled.nodes) / len(trace.nodes))
    counts = np.diff(trace.histories.starts) - _steps(trace)
    dropped = [
        f"Dropped: {count} steps of node {node} beyond those that all have."
        for node, count in zip(trace.histories.node.tolist(), counts.tolist(), strict=True)
        if trace.replays and count > 0
    ]
    return (
        f"Resampled: from {trace.source}, sha256 {trace.sha256}, {trace.end:g} s of {recorded} "
        f"nodes; nothing here was recorded as it stands.",
        f"Drawn: circular blocks of {blocks}; each set of {recorded} nodes shares its blocks, "
        f"{sets} sets draw theirs independently.",
        *(_note_on_correlation(trace, resampled, *series) for series in _series(trace)),
        "Lost: what lasts longer than a block, the order of blocks, anything that the record is "
        "too short to show, and what would disturb several sets at once.",
        *dropped,
    )


def _note_on_correlation(
    trace: Trace, resampled: Trace, resource: str, kind: str, every: float
) -> str:
    before = sample(trace, resource, kind, every)
    after = sample(resampled, resource, kind, every, *CHECKED)
    lag, size = correlation_length(before), len(before)
    complete = min(size * max(len(after) // size, 1), len(after))
    sets = (after[k : k + size] for k in range(0, complete, size))
    inside = float(np.mean([mean_correlation(values) for values in sets]))
    texts = [
        "unknown" if math.isnan(value) else f"{value:.2f}"  # too few nodes or points, or constant
        for value in (
            autocorrelation(after, lag), autocorrelation(before, lag), inside,
            mean_correlation(before),
        )
    ]  # fmt: skip
    return (
        f"Kept: {resource} {kind}, autocorrelation after {lag * every:.4g} s {texts[0]}, "
        f"recorded {texts[1]}; mean correlation of two nodes of a set {texts[2]}, "
        f"recorded {texts[3]} (seen in {len(after)} nodes for {after.shape[1] * every:.4g} s)."
    )


def sample(
    trace: Trace,
    resource: str,
    kind: str,
    every: float,
    nodes: int | None = None,
    points: int | None = None,
) -> Floats:
    """Values of each node at even intervals up to the end, shape (nodes, points).

    every: seconds between two points.  Durations are taken step by step instead.
    nodes, points: upper limits; the first ones are taken.
    Nodes without rows of that resource and kind are left out.

    >>> trace = Trace.from_rows([(2, 0, "gpu", "slowdown", 3), (4, 0, "gpu", "slowdown", 1)])
    >>> sample(trace, "gpu", "slowdown", every=1.0)
    array([[1., 1., 3., 3.]])
    """
    h = trace.histories
    chosen = [k for k, (_, *of) in enumerate(trace.keys) if of == [resource, kind]][:nodes]
    if kind == "duration":
        each = [h.value[h.starts[k] : h.starts[k + 1]] for k in chosen]
        steps = min(map(len, each), default=0)
        return np.array([values[:steps][:points] for values in each])
    pieces = h.pieces()
    count = math.floor(trace.end / every)
    times = (np.arange(count if points is None else min(count, points)) + 0.5) * every
    rows = [slice(pieces.starts[k], pieces.starts[k + 1]) for k in chosen]
    return np.array([
        pieces.values[row][np.searchsorted(pieces.times[row], times, side="right") - 1]
        for row in rows
    ]).reshape(len(rows), len(times))  # fmt: skip


def autocorrelation(values: Floats, lag: int) -> float:
    """Autocorrelation of series (rows) at a lag in points, pooled by variance; NaN for constants.

    >>> round(autocorrelation(np.array([[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]]), 1), 3)
    -0.833
    """
    apart = values - values.mean(axis=1, keepdims=True)
    total = float(np.sum(apart**2))
    if not total or lag >= values.shape[1]:
        return math.nan
    return float(np.sum(apart[:, lag:] * apart[:, : values.shape[1] - lag])) / total


def correlation_length(values: Floats) -> int:
    """The first lag, in points, at which the autocorrelation is below 1/e.

    >>> correlation_length(np.array([[0.0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]]))
    2
    """
    for lag in range(1, values.shape[1]):
        if not autocorrelation(values, lag) >= math.exp(-1):
            return lag
    return 1


def mean_correlation(values: Floats) -> float:
    """The mean correlation of two rows; NaN without two rows that vary.

    >>> round(mean_correlation(np.array([[0.0, 1.0, 0.0], [0.0, 2.0, 0.0], [5.0, 5.0, 5.0]])), 9)
    1.0
    """
    varying = values[np.ptp(values, axis=1) > 0]
    if len(varying) < 2:
        return math.nan
    apart = varying - varying.mean(axis=1, keepdims=True)
    apart /= np.sqrt(np.sum(apart**2, axis=1, keepdims=True))
    n = len(apart)
    return float((np.sum(apart.sum(axis=0) ** 2) - n) / (n * (n - 1)))
