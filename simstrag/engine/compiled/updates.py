"""From closings to updates: the ends of collectives and jobs, and what an update does."""

from __future__ import annotations

import math

from simstrag.engine.compiled.books import show, tell, worth
from simstrag.engine.compiled.clock import transfer
from simstrag.engine.compiled.compiling import compiled, within
from simstrag.engine.compiled.events import schedule
from simstrag.engine.compiled.fates import count, note_drop
from simstrag.engine.compiled.gathering import next_round
from simstrag.engine.compiled.judging import judge
from simstrag.engine.compiled.lockstep import WON, apply_all
from simstrag.engine.compiled.server import enqueue
from simstrag.engine.compiled.starts import release, sort
from simstrag.engine.compiled.tables import (
    closings,
    kept,
    lanes,
    lists,
    machine,
    member_log,
    quorums,
    ranks,
    scratch,
    update_log,
)
from simstrag.engine.compiled.words import (
    APPLIED,
    ARRIVE,
    CLOSED,
    DONE,
    GONE,
    LEADER,
    REVIEW,
    SERVED,
    SERVER,
)


@compiled
def collective_ended(m: int, closing: int, arrived: bool) -> None:
    """A collective has ended, a leader's push has arrived, or a closing found its jobs done."""
    g, c = machine(m), closings(m)[closing]
    if c.via != LEADER:
        c.beside = -1
        update(m, closing)
        return
    if not arrived:
        if c.rounds > 1 and next_round(m, closing):
            return
        arrival = transfer(m, c.leader, g.now, g.push)
        c.busy += arrival - g.now
        if arrival > g.now:
            schedule(m, arrival, ARRIVE, c.leader, -1 - closing)
            return
    enqueue(m, g.now, c.leader, closing)


@compiled
def job_ended(m: int) -> None:
    """The server is done with its job."""
    g = machine(m)
    g.serving = 0
    g.take_due = g.jobs > 0
    if g.server_closing >= 0:
        update(m, g.server_closing)
        return
    r = ranks(m)[g.server_rank]
    if r.ticket != g.server_ticket:
        return  # of a gradient that is gone
    r.job = SERVED
    if r.state != CLOSED or r.aboard >= 0:
        return  # not closed over yet, or filed elsewhere since
    closing = r.closing
    c = closings(m)[closing]
    if c.via == SERVER:
        c.undone -= 1
        if c.undone == 0:
            c.beside = -1
            update(m, closing)


@compiled
def update(m: int, first: int) -> None:
    """Rule 12: apply, version + 1, stop test, review if due, then release.

    first: a closing; others of the same update hang on it by `beside`.
    """
    g, order = machine(m), scratch(m)
    n = _carriers(m, first)
    had = g.samples
    applied = _apply(m, n)
    many, stale, most = _apply_lockstep(m, first, had)
    if applied + many == 0:
        release(m, first, -1)
        return
    world, together = g.workers * g.batch, g.samples - had
    gradients = many
    for k in range(applied):
        r = ranks(m)[order[k]]
        c = closings(m)[r.closing]
        staleness = g.version - r.version
        own = r.kept + 1
        gradients += own
        stale += own * staleness
        most = max(most, staleness)
        r.applied += own
        r.staleness += own * staleness
        drift = (had - r.seen) / world
        g.deviation += own * (drift * drift)
        r.busy = c.busy
        show(m, order[k], r.finish - r.start, False)
        if g.keeps_fates:
            factor = max(c.shift + staleness, 1.0) ** -c.power
            tell(m, order[k], APPLIED, g.version + 1, factor, together if c.mean else world)
    g.applied += gradients
    g.spent += gradients
    g.version += 1
    progress = math.nan if g.unknown else g.booked + worth(m)
    if g.every == 0 or g.version % g.every == 0:
        _write(m, first, n, applied, gradients, stale, most, progress)
    if g.judged:
        judge(m)
    if enough(m, progress):
        g.stop = DONE
    elif due(m):
        g.to_release = first
        g.stop = REVIEW
    else:
        release(m, first, -1)


@within
def _apply_lockstep(m: int, first: int, had: int) -> tuple[int, int, int]:
    """The same of barriers in lockstep; how many gradients, and their staleness: sum and most."""
    many, stale, most, closing = 0, 0, 0, first
    while closing >= 0:
        c = closings(m)[closing]
        if c.lockstep:
            staleness = apply_all(m, c.quorum, had)
            many += c.count
            stale += c.count * staleness
            most = max(most, staleness)
        closing = c.beside
    return many, stale, most


@within
def _carriers(m: int, first: int) -> int:
    """Whose gradients the closings hold, into `scratch` by rank; how many."""
    n, closing = 0, first
    while closing >= 0:
        rank = closings(m)[closing].head
        while rank >= 0:
            scratch(m)[n] = rank
            n += 1
            rank = ranks(m)[rank].link
        closing = closings(m)[closing].beside
    sort(m, n)
    return n


@within
def _apply(m: int, n: int) -> int:
    """The gradients that are not too stale become part of the parameters; of how many ranks."""
    g, order, applied = machine(m), scratch(m), 0
    if not g.own:
        g.began_at = g.samples
    for k in range(n):
        rank = order[k]
        r = ranks(m)[rank]
        c = closings(m)[r.closing]
        r.state, r.aboard = GONE, -1
        count(m, rank)
        if c.cutoff >= 0 and g.version - r.version >= c.cutoff:
            note_drop(m, rank, c.busy)
            continue
        order[applied] = rank
        applied += 1
        samples = r.samples
        for j in range(r.kept):
            samples += kept(m)[rank, j].samples
        g.own += samples
        g.stale += samples * (g.began_at - r.seen)
        g.samples += samples
    return applied


@within
def _write(
    m: int, first: int, n: int, applied: int, gradients: int, stale: int, most: int, progress: float
) -> None:
    g, c = machine(m), closings(m)[first]
    row = update_log(m)[g.updates]
    g.updates += 1
    row.time, row.version, row.samples, row.progress = g.now, g.version, g.samples, progress
    row.n_own, row.staleness_mean, row.staleness_max = gradients, stale / gradients, most
    if g.every:
        return
    whole = c.lockstep or applied == n
    if c.token >= 0 and c.beside < 0 and whole:
        row.count, row.members = c.count, -1 - c.token
        return
    row.count = _name_all(m, first, applied)
    row.members = g.members
    for k in range(row.count):
        member_log(m)[g.members] = scratch(m)[k]
        g.members += 1


@within
def write_alone(m: int, rank: int, staleness: int, progress: float) -> None:
    """The same of an update of one gradient."""
    g = machine(m)
    row = update_log(m)[g.updates]
    g.updates += 1
    row.time, row.version, row.samples, row.progress = g.now, g.version, g.samples, progress
    row.n_own, row.staleness_mean, row.staleness_max, row.count = 1, staleness, staleness, 1
    if not g.every:
        row.members = g.members
        member_log(m)[g.members] = rank
        g.members += 1


@within
def _name_all(m: int, first: int, applied: int) -> int:
    """The members of an update into `scratch`, where the first are already; how many."""
    n, closing = applied, first
    while closing >= 0:
        c = closings(m)[closing]
        if c.lockstep:
            q = quorums(m)[c.quorum]
            for p in range(q.members_at, q.members_at + q.size):
                if not q.race or lanes(m)[WON, p] > 0:
                    scratch(m)[n] = lists(m)[p]
                    n += 1
        closing = c.beside
    sort(m, n)
    return n


@within
def enough(m: int, progress: float) -> bool:
    """Whether every limit that is set is reached (rule 23)."""
    g, enough = machine(m), True
    if not math.isnan(g.most_progress):
        if progress < g.most_progress:
            enough = False
        elif math.isnan(g.target):
            g.target = g.now
    if g.most_samples >= 0:
        if g.samples < g.most_samples:
            enough = False
        elif math.isnan(g.makespan):
            g.makespan = g.now
    return enough and bool(g.version >= g.most_updates)


@within
def due(m: int) -> bool:
    """Whether a review is (rule 20)."""
    g = machine(m)
    return (  # type: ignore[no-any-return]
        (g.review_updates >= 0 and g.version - g.reviewed_updates >= g.review_updates)
        or (g.review_samples >= 0 and g.samples - g.reviewed_samples >= g.review_samples)
        or g.now - g.reviewed_time >= g.review_seconds
    )
