"""Why a job was slow, as far as its record shows, and which replay takes the cause away.

A cause is named where it is seen in the record and where taking it away shortens the mean step by
`WORTH`.  What no record shows (a throttled clock, a noisy neighbour) stays without a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simstrag.arrays import Bools, Ints, Reals
from simstrag.records.record import BACKWARD, FORWARD, Record
from simstrag.statistics.slow_workers import FLOOR, excesses
from simstrag.whatif.culprits import Culprit, computing
from simstrag.whatif.metrics import first_operations
from simstrag.whatif.operation_array import Layout
from simstrag.whatif.replay import JobReplay, ReplayCase

WORTH = 0.01
"""Share of a mean step from which a cause is worth a name."""
UNEVEN = 1.10
"""Computing of a stage over the mean of the stages."""
ALIKE = 0.9
"""Correlation of forward and backward, or of tokens and seconds, that speaks of lengths."""
SLOW_LINK = 1.5
"""Transfer time of a link over the median of all links."""
TOKENS = "tokens"
"""Subject of the cause that recorded tokens show."""


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """One cause.

    name: "stages", "lengths", "input", "gc" or "link".
    subject: which stage, link, ...
    facts: the numbers that show it.
    recorded: operations that stay as they are if the cause is taken away, shape (operations,
        replicas).
    ideal: what the others take then; None for the ideal of their kinds.
    removes_delay: whether taking it away takes the delays of the first operations away.
    explains: the workers that are slow by it alone, by rank: the share of the excess over their
        peers that goes with it.
    """

    name: str
    subject: str
    facts: Mapping[str, float]
    recorded: Bools
    ideal: Reals | None = None
    removes_delay: bool = False
    explains: Mapping[int, float] = field(default_factory=dict)


def causes(record: Record, replay: JobReplay, slow: Sequence[Culprit]) -> tuple[Cause, ...]:
    """The causes that the record shows, beside slow workers.

    slow: workers that are named; a slow worker does not make its stage slow.
    """
    shape = replay.layout.rank.shape
    everything, first = np.ones(shape, np.bool_), np.broadcast_to(first_operations(replay), shape)
    seen = [
        *_stages(replay, slow), *_lengths(record, replay, slow), *_gc(replay), *_links(replay)
    ]  # fmt: skip
    base, late, *times = replay.means([
        ReplayCase(everything), ReplayCase(everything, delayed=first),
        *(ReplayCase(each.recorded, each.ideal) for each in seen),
    ])  # fmt: skip
    found = [
        replace(each, explains=_explained(replay, each, slow))
        for each, time in zip(seen, times, strict=True)
        if base - time >= WORTH * base
    ]
    if late - base >= WORTH * base:
        facts = {"seconds": late - base, "mean_delay": float(replay.delay[first].mean())}
        found.append(Cause("input", "first operations", facts, everything, removes_delay=True))
    return tuple(found)


def _explained(replay: JobReplay, cause: Cause, slow: Sequence[Culprit]) -> dict[int, float]:
    """Ranks of slow workers, and the share of their excess that goes with a cause.

    Of those alone whose excess without it is not above `FLOOR`.
    """
    layout = replay.layout
    ideal = replay.ideal if cause.ideal is None else cause.ideal
    left = replace(layout, duration=np.where(cause.recorded[..., None], layout.duration, ideal))
    before, after = (excesses(computing(each)) for each in (layout, left))
    found = {}
    for worker in slow:
        own = layout.replica.tolist().index(worker.replica), worker.stage
        steps = np.isin(layout.step, worker.steps)
        had, has = (float(each[own][steps].mean()) for each in (before, after))
        if has <= np.log1p(FLOOR) < had:
            found[worker.rank] = 1 - has / had
    return found


def _stages(replay: JobReplay, slow: Sequence[Culprit]) -> Iterator[Cause]:
    """The stage that computes longest, if it does so by much.

    By medians over steps and the replicas without a slow worker on the stage.
    """
    layout = replay.layout
    if layout.stages < 2:
        return
    each = computing(layout)
    for worker in slow:
        each[layout.replica == worker.replica, worker.stage] = np.nan
    seconds = np.nanmedian(each, axis=(0, 2))
    worst = int(np.argmax(seconds))
    ratio = float(seconds[worst] / seconds.mean())
    if ratio >= UNEVEN:
        ideal = replay.ideal + np.zeros(replay.work.shape)
        computes = layout.find(FORWARD, BACKWARD)
        own = (computes if computes.any() else ~layout.communicates) & (layout.stage == worst)
        ideal[own] = replay.work[own] / ratio
        recorded = np.broadcast_to(~own[:, None], layout.rank.shape)
        yield Cause("stages", f"stage {worst}", {"ratio": ratio}, recorded, ideal)


def _lengths(record: Record, replay: JobReplay, slow: Sequence[Culprit]) -> Iterator[Cause]:
    """Computing that goes with the length of its input.

    Without recorded lengths: forward and backward of a micro-batch are long together.
    """
    layout = replay.layout
    if layout.find(FORWARD).any():
        forward, backward = (layout.find(kind) for kind in (FORWARD, BACKWARD))
        pairs = _pairs(layout, forward, backward)
        if len(pairs) < 2 * layout.stages:
            return
        before, after = (
            _deviations(replay.work[places], layout.stage[places]) for places in pairs.T
        )
        correlation = _correlation(before, after)
        if correlation >= ALIKE:
            own = forward | backward
            ideal = replay.ideal + np.zeros(replay.work.shape)
            for kind in (forward, backward):
                for stage in range(layout.stages):
                    for chunk in np.unique(layout.chunk[kind]):
                        same = kind & (layout.stage == stage) & (layout.chunk == chunk)
                        ideal[same] = replay.work[same].mean(axis=0)
            recorded = np.broadcast_to(~own[:, None], layout.rank.shape)
            facts = {"correlation": correlation}
            yield Cause("lengths", "micro-batches", facts, recorded, ideal)
    elif record.tokens is not None:
        yield from _tokens(record, replay, slow)


def _pairs(layout: Layout, forward: Bools, backward: Bools) -> Ints:
    """Places of the forward and the backward of each micro-batch, shape (pairs, 2)."""

    def key(place: int) -> tuple[int, ...]:
        each = (layout.stage, layout.chunk, layout.micro_batch)
        return tuple(int(column[place]) for column in each)

    backwards = {key(k): k for k in np.flatnonzero(backward).tolist()}
    found = [
        (k, backwards[key(k)]) for k in np.flatnonzero(forward).tolist() if key(k) in backwards
    ]
    return np.array(found, np.int64).reshape(-1, 2)


def _deviations(work: Reals, stage: Ints) -> Reals:
    """Relative to the mean of the micro-batches of the same stage, replica and step."""
    found = np.empty_like(work)
    for each in np.unique(stage):
        own = stage == each
        mean = work[own].mean(axis=0)
        found[own] = work[own] / np.where(mean > 0, mean, 1) - 1
    return found


def _correlation(a: Reals, b: Reals) -> float:
    a, b = a.ravel() - a.mean(), b.ravel() - b.mean()
    power = float(a @ a) * float(b @ b)
    return float(a @ b) / np.sqrt(power) if power > 0 else 0.0


def _tokens(record: Record, replay: JobReplay, slow: Sequence[Culprit]) -> Iterator[Cause]:
    """Seconds against recorded tokens, each rank about its own mean.

    Seconds per token are those of the ranks that are not slow, where these tell; of all otherwise.
    """
    layout = replay.layout
    usual = ~np.isin(layout.replica, [each.replica for each in slow])
    assert record.tokens is not None
    parts = len(record.kinds)
    tokens = record.tokens.reshape(len(layout.step), len(layout.replica), parts).transpose(2, 1, 0)
    ideal = replay.ideal + np.zeros(replay.work.shape)
    own = np.zeros(parts, np.bool_)
    correlations = []
    for part in np.flatnonzero(~layout.communicates):
        size, seconds = tokens[part], np.asarray(replay.work[part], np.float64)
        if not np.isfinite(size).all():
            continue
        x, y = (values - values.mean(axis=1, keepdims=True) for values in (size, seconds))
        correlation = _correlation(x, y)
        if correlation >= ALIKE:
            if usual.any() and _correlation(x[usual], y[usual]) >= ALIKE:
                x, y = x[usual], y[usual]
            slope = float((x * y).sum() / (x * x).sum())
            ideal[part] = seconds + slope * (size.mean(axis=0) - size)
            own[part] = True
            correlations.append(correlation)
    if correlations:
        recorded = np.broadcast_to(~own[:, None], layout.rank.shape)
        yield Cause("lengths", TOKENS, {"correlation": max(correlations)}, recorded, ideal)


def _gc(replay: JobReplay) -> Iterator[Cause]:
    layout = replay.layout
    own = layout.find("gc")
    seconds = float(layout.duration[own].max(axis=(0, 1)).mean()) if own.any() else 0.0
    if seconds > 0:
        recorded = np.broadcast_to(~own[:, None], layout.rank.shape)
        ideal = np.zeros_like(replay.ideal)
        yield Cause("gc", "garbage collection", {"seconds": seconds}, recorded, ideal)


def _links(replay: JobReplay) -> Iterator[Cause]:
    """The link between two stages of a replica that loses most, if it is slow."""
    layout, stages = replay.layout, replay.layout.stages
    worst: tuple[float, Cause] | None = None
    for direction, step in (("forward", 1), ("backward", -1)):
        send, receive = (layout.find(f"{direction}-{way}") for way in ("send", "recv"))
        if not send.any():
            continue
        usual = float(np.median(replay.work[send | receive]))
        for sender in range(stages):
            own = (send & (layout.stage == sender)) | (
                receive & (layout.stage == (sender + step) % stages)
            )
            for replica in np.flatnonzero(np.full(len(layout.replica), own.any())):
                times = replay.work[own, replica]
                ratio = float(np.median(times)) / usual if usual > 0 else 0.0
                lost = float((times - usual).sum())
                if ratio < SLOW_LINK or (worst is not None and lost <= worst[0]):
                    continue
                recorded = np.ones(layout.rank.shape, np.bool_)
                recorded[own, replica] = False
                subject = (
                    f"stage {sender} to {(sender + step) % stages} of replica "
                    f"{layout.replica[replica]}"
                )
                worst = lost, Cause("link", subject, {"ratio": ratio}, recorded)
    if worst is not None:
        yield worst[1]
