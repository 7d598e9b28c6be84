"""What is written down while a job goes on; nothing here changes what happens."""

from __future__ import annotations

from simstrag.engine.compiled.clock import beyond
from simstrag.engine.compiled.compiling import compiled, within
from simstrag.engine.compiled.tables import (
    amp,
    batch,
    communication,
    fate_log,
    kept,
    known,
    local_times,
    lower_bound,
    machine,
    ranks,
    step_log,
)
from simstrag.engine.compiled.words import NOBODY, PUSHING
from simstrag.view import WINDOW


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
    for k in range(r.kept):
        w = kept(m)[rank, k]
        show_step(m, rank, w.seconds, w.samples / g.batch, w.communication, w.amp != 0, False)
    share = r.share if lower_bound else r.samples / g.batch
    communicated = r.got - r.pulled + r.pushed
    show_step(m, rank, seconds, share, communicated, r.amp != 0, lower_bound)


@compiled
def show_step(
    m: int,
    rank: int,
    seconds: float,
    share: float,
    communicated: float,
    in_amp: bool,
    cancelled: bool,
) -> None:
    """One step more of a rank, in every table of what is shown."""
    at = known(m)[rank] % WINDOW
    known(m)[rank] += 1
    if machine(m).shows:
        local_times(m)[at, rank], communication(m)[at, rank] = seconds, communicated
        batch(m)[at, rank], amp(m)[at, rank], lower_bound(m)[at, rank] = share, in_amp, cancelled


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
