"""Suspects against truth (rule 27)."""

from __future__ import annotations

from typing import Any

import numpy as np

from simstrag.engine.compiled.clock import INF, finish_from, noise_free, segment
from simstrag.engine.compiled.compiling import columnwise, compiled
from simstrag.engine.compiled.lockstep import CLEAN_RATE, CLEAN_UNTIL, note_steps
from simstrag.engine.compiled.tables import lanes, machine, medians, quorums, ranks, suspected
from simstrag.engine.compiled.words import NOBODY


@compiled
def judge(m: int) -> None:
    """Count who is suspected, and who straggles."""
    g, q = machine(m), quorums(m)[0]
    if q.lockstep and not q.queue and q.size == g.workers:
        _judge_all(m)
        return
    note_steps(m)
    clean, n = medians(m), 0
    for rank in range(g.workers):
        r = ranks(m)[rank]
        if r.state == NOBODY:
            continue
        if r.clean_step != r.step:
            r.clean_step = r.step
            r.clean = noise_free(m, rank, r.step, r.start)
        clean[n] = r.clean
        n += 1
    limit = threshold(clean[:n], g.straggler_ratio)
    if limit == INF:
        g.false_alarms += g.suspects
        return
    for rank in range(g.workers):
        r = ranks(m)[rank]
        straggles = r.state != NOBODY and r.clean > limit
        if suspected(m)[rank]:
            g.hits += straggles
            g.false_alarms += not straggles
        else:
            g.misses += straggles


@compiled
def _judge_all(m: int) -> None:
    """The same where all ranks are in lockstep, and began their steps together."""
    g, clean, lane = machine(m), medians(m), lanes(m)
    start = quorums(m)[0].got
    if _would_take(clean, lane[CLEAN_RATE], lane[CLEAN_UNTIL], start):
        for rank in range(g.workers):
            if not start + lane[CLEAN_RATE, rank] <= lane[CLEAN_UNTIL, rank]:
                clean[rank] = finish_from(m, rank, 0, start, 1.0) - start
                rate, until = segment(m, rank, 0, start)
                lane[CLEAN_RATE, rank], lane[CLEAN_UNTIL, rank] = rate, until
    limit, hits = threshold(clean, g.straggler_ratio), 0
    if limit < INF and g.suspects:
        hits = _both(clean, suspected(m), limit)
    g.hits += hits
    g.false_alarms += g.suspects - hits
    g.misses += _above(clean, limit) - hits


@columnwise
def _would_take(clean: Any, rate: Any, until: Any, start: float) -> bool:
    """Seconds of noise-free steps; whether one may be beyond its segment."""
    leaves = False
    for p in range(len(clean)):
        end = start + rate[p]
        clean[p] = end - start
        leaves |= not end <= until[p]
    return leaves


@columnwise
def _both(clean: Any, taken: Any, limit: float) -> int:
    many = 0
    for p in range(len(clean)):
        many += taken[p] and clean[p] > limit
    return many


@columnwise
def _above(clean: Any, limit: float) -> int:
    many = 0
    for seconds in clean:
        many += seconds > limit
    return many


@columnwise
def _extent(clean: Any) -> tuple[float, float]:
    least = most = clean[0]
    for seconds in clean:
        least, most = min(least, seconds), max(most, seconds)
    return least, most


@columnwise
def _split(clean: Any, bound: float) -> tuple[int, float, float]:
    """How many are not above a bound, the largest of them, and the least of the others."""
    near, top, above = 0, -INF, INF
    for seconds in clean:
        is_near = seconds <= bound
        near += is_near
        top = max(top, seconds if is_near else -INF)
        above = min(above, INF if is_near else seconds)
    return near, top, above


@compiled
def threshold(clean: Any, ratio: float) -> float:
    """Seconds that separate those above `ratio` times the median from the others.

    Nobody is above it who is not above `ratio` times the least.  If those are less than half of
    all, the median is one of the others, and often none of them is large enough to matter.
    """
    n, half = len(clean), len(clean) // 2
    least, most = _extent(clean)
    if most <= ratio * least:
        return INF
    near, top, above = _split(clean, ratio * least)
    if near > half and ratio * top < above:
        return ratio * top
    ordered = np.partition(clean, half)
    low = ordered[half] if n % 2 else ordered[:half].max()
    return ratio * ((low + ordered[half]) / 2)  # type: ignore[no-any-return]
