"""What is written down while a job goes on; nothing here changes what happens."""

from __future__ import annotations

from typing import Any

from simstrag.compiled.clock import beyond, noise_free
from simstrag.compiled.compiling import compiled, within
from simstrag.compiled.tables import fate_log, kept, machine, medians, ranks, shown, step_log
from simstrag.compiled.words import NOBODY, PUSHING


@compiled
def close_cycle(m: int, rank: int) -> None:
    """Account for the time of a rank from its last pull up to now, its next one."""
    g, r = machine(m), ranks(m)[rank]
    if r.state == NOBODY:
        return
    time = g.now
    ended = min(r.ended, time)
    got = min(r.got, time) - r.pulled
    seconds = max(ended - r.got, 0.0)
    pushed = time - r.finish if r.state == PUSHING else r.pushed
    after = min(pushed + r.busy, max(time - ended, 0.0))
    wait = max(time - r.pulled - got - seconds - after, 0.0)
    r.compute += seconds
    if g.holds and seconds != 0.0:
        g.beyond += beyond(m, rank, ended)
    r.communication += got + after
    r.wait += wait
    if g.keeps_steps and r.ended <= time:
        row = step_log(m)[g.steps]
        g.steps += 1
        row.rank, row.step, row.version, row.amp = rank, r.step, r.version, r.amp
        row.start, row.finish = r.start, r.ended
        row.wait, row.communication = wait, got + after


@compiled
def show(m: int, rank: int, seconds: float, lower_bound: bool) -> None:
    """Rule 7: a policy sees a step once its gradient has met its fate; what is kept comes first."""
    g, r = machine(m), ranks(m)[rank]
    r.shown += r.kept + 1
    if not g.shows:
        return
    for k in range(r.kept):
        w = kept(m)[rank, k]
        show_one(m, rank, w.seconds, w.samples / g.batch, w.communication, w.amp, False)
    batch = r.share if lower_bound else r.samples / g.batch
    show_one(m, rank, seconds, batch, r.got - r.pulled + r.pushed, r.amp, lower_bound)


@compiled
def show_one(
    m: int,
    rank: int,
    seconds: float,
    batch: float,
    communication: float,
    amp: Any,
    lower_bound: bool,
) -> None:
    rows = shown(m)
    last = rows.shape[1] - 1
    for k in range(last):
        rows[rank, k] = rows[rank, k + 1]
    row = rows[rank, last]
    row.local_times, row.batch, row.communication = seconds, batch, communication
    row.amp, row.lower_bound = amp, lower_bound


@compiled
def tell(m: int, rank: int, fate: int, update: int, factor: float, whole: int) -> None:
    """Write the fate of a contribution down, gradient by gradient.

    update: -1 for none.  factor: the weight of a gradient of `whole` samples.
    """
    g, r = machine(m), ranks(m)[rank]
    if not g.keeps_fates:
        return
    for k in range(r.kept + 1):
        row = fate_log(m)[g.fates]
        g.fates += 1
        row.update, row.rank, row.version, row.fate = update, rank, r.version, fate
        if k < r.kept:
            w = kept(m)[rank, k]
            row.step, row.amp, row.samples = w.step, w.amp, w.samples
        else:
            row.step, row.amp, row.samples = r.step, r.amp, r.samples
        row.weight = row.samples / whole * factor


@compiled
def judge(m: int) -> None:
    """Suspects against truth (rule 27)."""
    g, clean, n = machine(m), medians(m), 0
    for rank in range(g.workers):
        r = ranks(m)[rank]
        if r.state == NOBODY:
            continue
        if r.clean_step != r.step:
            r.clean_step = r.step
            r.clean = noise_free(m, rank, r.step, r.start)
        clean[n] = r.clean
        n += 1
    clean[:n].sort()
    limit = g.straggler_ratio * ((clean[(n - 1) // 2] + clean[n // 2]) / 2)
    for rank in range(g.workers):
        r = ranks(m)[rank]
        straggles = r.state != NOBODY and r.clean > limit
        if r.suspected:
            g.hits += straggles
            g.false_alarms += not straggles
        else:
            g.misses += straggles


@within
def worth(m: int) -> float:
    """What the open visible update makes of progress (rule 25)."""
    g = machine(m)
    return g.own / (g.noise_scale + g.own + g.c_tau * (g.stale / g.own))  # type: ignore[no-any-return]


@within
def seen(m: int) -> None:
    """Somebody pulls: the open visible update, if any, ends."""
    g = machine(m)
    if g.own:
        g.booked += worth(m)
        g.stale_samples += g.stale
        g.own = 0
        g.stale = 0
