"""What a quorum through a server knows of its ranks where each gradient is an update of its own.

Of each rank a card of two cache lines says all that its next update needs, and a tree of the least
arrival says whose update is next (`simstrag.engine.compiled.queues`).
"""

from __future__ import annotations

import math

from simstrag.engine.compiled.books import seen
from simstrag.engine.compiled.clock import INF, effort, finish_from, segment
from simstrag.engine.compiled.closing import free
from simstrag.engine.compiled.compiling import compiled, within
from simstrag.engine.compiled.events import schedule
from simstrag.engine.compiled.tables import cards, closings, machine, noise, quorums, ranks, tree
from simstrag.engine.compiled.waits import expect
from simstrag.engine.compiled.words import ARRIVE, CLOSED, COMPUTING, GONE, PUSHING, SERVER, WAITING

(
    FINISH, ARRIVAL, PULLED, VERSION, SEEN, RATE, UNTIL, EFFORT,
    SAMPLES, DRAWN, COMPUTE, COMMUNICATION, WAIT, APPLIED, STALENESS, COUNT,
) = range(16)  # fmt: skip
"""What a card says; whole numbers are exact as floats."""


@within
def await_arrival(m: int, rank: int, time: float) -> None:
    """Note when a gradient arrives; infinity for who has none under way."""
    least = tree(m)
    k = (len(least) >> 1) + rank
    least[k] = time
    while k > 1:
        time = min(time, least[k ^ 1])
        k >>= 1
        least[k] = time


@within
def first_to_arrive(m: int) -> int:
    """Whose gradient arrives next; of equal arrivals the lowest rank."""
    least = tree(m)
    time, half, k = least[1], len(least) >> 1, 1
    while k < half:
        k = 2 * k + (least[2 * k] != time)
    return k - half


@compiled
def go_on_alone(m: int) -> None:
    """After its update a rank starts, if the bound lets it, with whom the bound lets go by now."""
    g, q = machine(m), quorums(m)[0]
    rank = q.pending
    q.pending = -1
    if not g.bounded:
        seen(m)
        _start(m, rank)
        return
    ranks(m)[rank].blocked = 1
    g.blocked += 1
    await_arrival(m, rank, INF)
    if g.freed:
        g.freed = 0
        for other in range(g.workers):
            _start_unless_blocked(m, other)
    else:
        _start_unless_blocked(m, rank)


@within
def _start_unless_blocked(m: int, rank: int) -> None:
    g, r = machine(m), ranks(m)[rank]
    ahead = cards(m)[rank, COUNT] - g.least
    if r.blocked and not (r.bound >= 0 and ahead > r.bound):
        r.blocked = 0
        g.blocked -= 1
        seen(m)
        _start(m, rank)


@within
def _start(m: int, rank: int) -> None:
    """Account for the last step, see `books.close_cycle`; pull, and begin the next."""
    g, r, card = machine(m), ranks(m)[rank], cards(m)[rank]
    time, pulled, finish = g.now, card[PULLED], card[FINISH]
    got = pulled + g.pull
    seconds = max(finish - got, 0.0)
    after = min(card[ARRIVAL] - finish + g.job, max(time - finish, 0.0))
    fetched = got - pulled
    card[COMPUTE] += seconds
    card[COMMUNICATION] += fetched + after
    card[WAIT] += max(time - pulled - fetched - seconds - after, 0.0)
    if g.holds and finish > g.trace_end and seconds != 0.0:
        g.beyond += max(0.0, finish - max(got, g.trace_end))
    card[PULLED], card[VERSION], card[SEEN] = time, g.version, g.samples
    start = time + g.pull
    work = card[EFFORT]
    if g.noisy:
        k = int(card[DRAWN])
        work = noise(m)[k, rank] * card[EFFORT]
        g.low = g.low or k + 1 >= len(noise(m))
    card[DRAWN] += 1.0
    finish = start + work * card[RATE]
    if finish > card[UNTIL]:
        variant = 2 * g.loaded + r.amp
        finish = finish_from(m, rank, variant, start, work)
        card[RATE], card[UNTIL] = segment(m, rank, variant, finish)
    card[FINISH], card[ARRIVAL] = finish, finish + g.push
    await_arrival(m, rank, card[ARRIVAL])
    g.started += 1
    g.amp += r.amp
    g.rebatched += r.share != 1.0
    g.asked += r.samples


@compiled
def form_queue(m: int) -> None:
    """After an update: from `ranks` to cards, unless somebody is at something else."""
    g, q = machine(m), quorums(m)[0]
    if g.serving or g.judged or g.on_block or g.version < q.try_at:
        return
    for rank in range(g.workers):
        if not _fits(m, rank):
            q.try_at = g.version + g.workers
            return
    tree(m)[:] = INF
    for rank in range(g.workers):
        r, card = ranks(m)[rank], cards(m)[rank]
        if r.state == CLOSED:
            free(m, r.closing)
        card[FINISH], card[PULLED], card[VERSION], card[SEEN] = (
            r.finish,
            r.pulled,
            r.version,
            r.seen,
        )
        card[ARRIVAL] = r.finish + g.push
        card[RATE], card[UNTIL] = segment(m, rank, 2 * g.loaded + r.amp, r.start)
        card[EFFORT], card[SAMPLES] = effort(m, r.share), r.samples
        card[DRAWN] = r.started - r.noise_from
        card[COMPUTE], card[COMMUNICATION], card[WAIT] = r.compute, r.communication, r.wait
        card[APPLIED], card[STALENESS], card[COUNT] = r.applied, r.staleness, r.count
        r.due = math.nan
        if not r.blocked:
            await_arrival(m, rank, card[ARRIVAL])
    q.lockstep, q.pending = 1, -1
    q.ready, q.ready_count = -1, 0
    g.queueing, g.events, g.jobs, g.take_due = 1, 0, 0, 0


@within
def _fits(m: int, rank: int) -> bool:
    """Whether a rank computes or pushes, waits for the server, or is blocked."""
    g, r = machine(m), ranks(m)[rank]
    if r.recorded or r.mark >= 0 or r.start != r.got or r.got != r.pulled + g.pull:
        return False
    if r.amp != r.next_amp or r.share != r.next_share:
        return False
    if r.state == PUSHING:
        return bool(r.arrival == r.finish + g.push)
    if r.state == CLOSED:
        c = closings(m)[r.closing]
        own = c.via == SERVER and c.count == 1 and c.refiled == g.refiled
        own = own and c.cutoff < 0  # a card keeps no cutoff, and this one's still counts (rule 24)
        return bool(own and r.job == WAITING and r.job_arrival == r.finish + g.push)
    return bool(r.state == COMPUTING or (r.state == GONE and r.blocked))


@within
def from_card(m: int, rank: int) -> float:
    """When it arrived, if it has and waits for the server; else infinity."""
    g, q, r, card = machine(m), quorums(m)[0], ranks(m)[rank], cards(m)[rank]
    r.compute, r.communication, r.wait = (
        card[COMPUTE],
        card[COMMUNICATION],
        card[WAIT],
    )
    r.finish, r.arrival = card[FINISH], card[ARRIVAL]
    r.pulled, r.got = card[PULLED], card[PULLED] + g.pull
    r.start, r.ended = r.got, r.finish
    r.version, r.seen = int(card[VERSION]), int(card[SEEN])
    r.started = r.noise_from + int(card[DRAWN])
    r.step = r.started - 1
    r.applied, r.staleness, r.count = int(card[APPLIED]), int(card[STALENESS]), int(card[COUNT])
    r.pushed, r.busy, r.due = 0.0, 0.0, math.nan
    r.job, r.ticket, r.ahead = 0, -1, 0
    if r.blocked or rank == q.pending:
        r.state, r.pushed, r.busy = GONE, r.arrival - r.finish, g.job
        return INF
    r.state = COMPUTING
    if r.arrival <= g.now:
        return r.arrival  # type: ignore[no-any-return]
    if r.finish > g.now:
        expect(m, rank)
    else:
        r.state, r.due = PUSHING, r.arrival
        schedule(m, r.due, ARRIVE, rank, r.step)
    return INF
