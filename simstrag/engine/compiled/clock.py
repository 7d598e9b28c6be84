"""When things end: the arithmetic of `trace.slowdown` and `timing.timing`, bit for bit."""

from __future__ import annotations

import math

import numpy as np

from simstrag.engine.compiled.compiling import compiled, within
from simstrag.engine.compiled.tables import durations, machine, noise, pieces, ranks, times, values

INF = math.inf
SURELY = 1 - 4 * 2.0**-52
"""So much before the end of a segment no rounding reaches beyond it."""
NEAR = 8
"""As many steps onwards are looked at one by one."""


@within
def finish(m: int, piece: int, since: int, start: float, work: float) -> float:
    """When `work` ends that begins at `start`; the piece's step `since` does not begin later.

    See `simstrag.trace.slowdown.finish`.
    """
    p = pieces(m)[piece]
    if p.last == 0:
        return start + work * values(m)[p.at]  # type: ignore[no-any-return]
    return _walk(m, piece, since, start, work)


@compiled
def _walk(m: int, piece: int, since: int, start: float, work: float) -> float:
    p = pieces(m)[piece]
    time, value = times(m), values(m)
    at, last, period = p.at, p.last, p.period
    looped = period < INF
    cycle = math.floor(start / period) if looped else 0.0
    base = cycle * period if looped else 0.0
    k = step_at(m, piece, since, start - base)
    while True:
        if k < last:
            end = base + time[at + k + 1]
        elif looped:
            end = (cycle + 1) * period
        else:
            end = INF
        alone = start + work * value[at + k]
        if alone <= end:
            return alone  # type: ignore[no-any-return]
        work = max(work - (end - start) / value[at + k], 0.0)
        start = end
        if k < last:
            k += 1
        else:
            k = 0
            cycle += 1
            base = cycle * period


@compiled
def step_at(m: int, piece: int, since: int, now: float) -> int:
    """Which step of a piece holds at `now`, looked for from the step `since` on."""
    p = pieces(m)[piece]
    time, at, last = times(m), p.at, p.last
    k = since
    if k > last or time[at + k] > now or (k + NEAR < last and time[at + k + NEAR] <= now):
        return np.searchsorted(time[at : at + last + 1], now, side="right") - 1  # type: ignore[return-value]
    while k < last and time[at + k + 1] <= now:
        k += 1
    return k


@within
def transfer(m: int, rank: int, start: float, seconds: float) -> float:
    """When a push or pull of a rank ends."""
    g = machine(m)
    piece = ranks(m)[rank].net[g.loaded]
    if piece < 0:
        return start + seconds
    return finish(m, piece, 0, start, seconds)


@within
def effort(m: int, share: float) -> float:
    """See `constants.Step.effort`."""
    return share + machine(m).fixed_share * (1.0 - share)  # type: ignore[no-any-return]


@within
def compute(m: int, rank: int, start: float, amp: int, share: float, part: float) -> float:
    """When that part of the next step of a rank ends, if it starts computing at `start`."""
    g, r = machine(m), ranks(m)[rank]
    if g.told:
        return INF
    if r.recorded:
        return start + _recorded(m, rank, r.started, amp) * effort(m, share) * part
    work = effort(m, share) * part
    if g.noisy:
        k = r.started - r.noise_from
        work = noise(m)[k, rank] * effort(m, share) * part
        g.low = g.low or k + 1 >= len(noise(m))
    return finish_from(m, rank, 2 * g.loaded + amp, start, work)


@within
def finish_from(m: int, rank: int, variant: int, start: float, work: float) -> float:
    """When work of a rank ends; it never goes back in time by much."""
    r = ranks(m)[rank]
    piece = r.stretch[variant]
    p = pieces(m)[piece]
    if p.last == 0:
        return start + work * values(m)[p.at]  # type: ignore[no-any-return]
    base = math.floor(start / p.period) * p.period if p.period < INF else 0.0
    r.cursor[variant] = step_at(m, piece, r.cursor[variant], start - base)
    return _walk(m, piece, r.cursor[variant], start, work)


@compiled
def _recorded(m: int, rank: int, k: int, amp: int) -> float:
    """The recorded duration of a step (rule 10)."""
    g, r = machine(m), ranks(m)[rank]
    if k >= r.recorded:
        if g.halts:
            g.out = rank
        k = k % r.recorded if g.loops else r.recorded - 1
    seconds = durations(m)[r.recorded_at + k]
    return seconds / g.amp_ratio if amp else seconds  # type: ignore[no-any-return]


@compiled
def cut(m: int, rank: int, start: float, amp: int, share: float) -> int:
    """How many micro-batches of the next step a deadline leaves (rule 6a)."""
    g = machine(m)
    low, high = 0, g.microbatches - 1
    while low < high:  # `bisect.bisect_right`
        middle = (low + high) // 2
        part = (middle + 1) / g.microbatches
        if g.deadline < compute(m, rank, start, amp, share, part) - start:
            high = middle
        else:
            low = middle + 1
    return low + 1


@compiled
def noise_free(m: int, rank: int, k: int, start: float) -> float:
    """Seconds of a full-precision step without noise and server load (rule 27)."""
    r = ranks(m)[rank]
    if r.recorded:
        return _recorded(m, rank, k, 0)
    return finish(m, r.stretch[0], r.cursor[0], start, 1.0) - start


@within
def beyond(m: int, rank: int, end: float) -> float:
    """Seconds of a rank's step that lie beyond the end of the trace (rule 8)."""
    g, r = machine(m), ranks(m)[rank]
    if r.recorded:
        return max(0.0, end - r.start) if r.step >= r.recorded else 0.0
    return max(0.0, end - max(r.start, g.trace_end))  # type: ignore[no-any-return]


@compiled
def segment(m: int, rank: int, variant: int, now: float) -> tuple[float, float]:
    """Seconds per unit of work of a rank at `now`, and until when they surely hold."""
    r = ranks(m)[rank]
    piece = pieces(m)[r.stretch[variant]]
    at, last, period = piece.at, piece.last, piece.period
    if last == 0:
        return values(m)[at], INF
    cycle = math.floor(now / period) if period < INF else 0.0
    base = cycle * period if period < INF else 0.0
    k = step_at(m, r.stretch[variant], r.cursor[variant], now - base)
    r.cursor[variant] = k
    end = base + times(m)[at + k + 1] if k < last else (cycle + 1) * period
    return values(m)[at + k], end * SURELY
