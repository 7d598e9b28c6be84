"""Who starts, when, and with what."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simstrag.engine.compiled.books import close_cycle, seen
from simstrag.engine.compiled.cards import form_queue
from simstrag.engine.compiled.clock import compute, cut, transfer
from simstrag.engine.compiled.closing import free
from simstrag.engine.compiled.compiling import compiled, within
from simstrag.engine.compiled.lockstep import fall_in, let_go, restart
from simstrag.engine.compiled.tables import closings, kept, lists, machine, quorums, ranks, scratch
from simstrag.engine.compiled.waits import expect
from simstrag.engine.compiled.words import (
    ALLREDUCE,
    COMPUTING,
    GO_ON,
    LEADER,
    REVIEW,
    SERVER,
)  # fmt: skip


@compiled
def release(m: int, first: int, lone: int) -> None:
    """Start, by rank, whom an update or drop lets go, whom it frees, and who has entered.

    first: the closings of an update, or -1.  lone: a rank that was dropped, or -1.
    """
    g, order = machine(m), scratch(m)
    n = _of_closings(m, first)
    if lone >= 0:
        ranks(m)[lone].puller = _own_puller(m, lone)
        order[n] = lone
        n += 1
    if g.entering or (g.blocked and g.freed):
        g.entering = g.freed = 0
        for rank in range(g.workers):
            r = ranks(m)[rank]
            if r.blocked or (r.idle and r.named):
                r.puller = _own_puller(m, rank)
                order[n] = rank
                n += 1
    sort(m, n)
    asks, starting = False, 0
    for k in range(n):
        r = ranks(m)[order[k]]
        was, r.blocked = r.blocked, 0
        g.blocked -= was
        r.idle = not r.named
        if not r.named:
            continue
        if g.bounded and r.bound >= 0 and r.count - g.least > r.bound:
            r.blocked = 1
            g.blocked += 1
            asks = asks or not was
        else:
            order[starting] = order[k]
            starting += 1
    if starting or g.to_start >= 0:
        seen(m)
    for k in range(starting):
        _start(m, order[k])
    while g.to_start >= 0:
        index = g.to_start
        g.to_start = quorums(m)[index].beside
        restart(m, index)
    while g.to_fall_in >= 0:
        index = g.to_fall_in
        g.to_fall_in = quorums(m)[index].beside
        if quorums(m)[index].queue:
            form_queue(m)
        else:
            fall_in(m, index)
    g.has_asked = asks and g.on_block and not g.has_asked
    if g.has_asked and g.stop == GO_ON:
        g.to_release = -1
        g.stop = REVIEW


@compiled
def _of_closings(m: int, first: int) -> int:
    """Whom an update lets go, into `scratch`; how many. Its closings are over then."""
    g, n = machine(m), 0
    closing = first
    while closing >= 0:
        c = closings(m)[closing]
        if c.lockstep:
            let_go(m, closing)
        elif g.may_lockstep and c.refiled == g.refiled and quorums(m)[c.quorum].together:
            quorums(m)[c.quorum].beside, g.to_fall_in = g.to_fall_in, c.quorum
        for part in range(2):
            rank = c.waiting if part else c.head
            while rank >= 0:
                r = ranks(m)[rank]
                r.puller = -1 if c.via == ALLREDUCE else rank if c.via == SERVER else c.leader
                scratch(m)[n] = rank
                n += 1
                rank = r.link
        onward = c.beside
        free(m, closing)
        closing = onward
    return n


@within
def sort(m: int, n: int) -> None:
    """The first ranks of `scratch` in order."""
    order = scratch(m)
    for k in range(1, n):
        if order[k] < order[k - 1]:
            order[:n].sort()
            return


@within
def _own_puller(m: int, rank: int) -> int:
    """Whose link carries the parameters of a rank that starts by itself; -1: it is free."""
    r = ranks(m)[rank]
    if not r.named:
        return -1
    q = quorums(m)[r.quorum]
    if q.via == LEADER:
        return lists(m)[q.members_at]  # type: ignore[no-any-return]
    return rank if q.via == SERVER else -1


@within
def _start(m: int, rank: int) -> None:
    """A rank pulls, and begins a step."""
    g, r = machine(m), ranks(m)[rank]
    close_cycle(m, rank)
    got = g.now if r.puller < 0 else transfer(m, r.puller, g.now, g.pull)
    r.version, r.seen = g.version, g.samples
    r.kept, r.rounds = 0, 0
    _compute(m, rank, got)


@compiled
def keep_on(m: int, rank: int) -> None:
    """The next step of a contribution, on a model of the rank's or its group's own."""
    g, r = machine(m), ranks(m)[rank]
    close_cycle(m, rank)
    w = kept(m)[rank, r.kept]
    w.step, w.samples, w.amp = r.step, r.samples, r.amp
    w.seconds, w.communication = r.finish - r.start, r.got - r.pulled + r.pushed
    r.kept += 1
    g.crowded = g.crowded or r.kept == kept(m).shape[1]
    _compute(m, rank, g.now)


@compiled
def _compute(m: int, rank: int, got: float) -> None:
    """Begin a step with the parameters that the rank has from `got` on."""
    g, r = machine(m), ranks(m)[rank]
    amp: Any = np.int64(r.next_amp)
    start = got
    if r.last_amp >= 0 and r.last_amp != amp:
        start += g.switch
    share, samples, part = r.next_share, r.next_samples, 1.0
    if not math.isnan(g.deadline):
        done = cut(m, rank, start, amp, share)
        part = done / g.microbatches
        samples = max(samples * done // g.microbatches, 1)
    r.finish = compute(m, rank, start, amp, share, part)
    g.started += 1
    g.amp += amp
    g.rebatched += share != 1.0
    g.asked += r.next_samples
    g.cut += r.next_samples - samples
    r.step = r.started
    r.started += 1
    r.samples, r.share, r.amp, r.last_amp = samples, share, amp, amp
    r.pulled, r.got, r.start, r.ended = g.now, got, start, r.finish
    r.pushed, r.busy = 0.0, 0.0
    r.state, r.job, r.ticket, r.mark, r.aboard, r.closing = COMPUTING, 0, -1, -1, -1, -1
    expect(m, rank)
