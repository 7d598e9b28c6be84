"""From finishes to closings: gradients gather in quorums."""

from __future__ import annotations

import numpy as np

from simstrag.engine.compiled.clock import INF, finish, transfer
from simstrag.engine.compiled.closing import free, open_closing
from simstrag.engine.compiled.compiling import compiled, entry, within
from simstrag.engine.compiled.events import schedule
from simstrag.engine.compiled.fates import abort, drop, joins, mark, wait_for
from simstrag.engine.compiled.lockstep import close_all
from simstrag.engine.compiled.server import enqueue
from simstrag.engine.compiled.starts import keep_on, release, sort
from simstrag.engine.compiled.tables import (
    closings,
    lists,
    machine,
    quorums,
    ranks,
    scratch,
    seconds_of,
)
from simstrag.engine.compiled.words import (
    ABOARD,
    ABORT,
    ARRIVE,
    ASHORE,
    CLOSE,
    CLOSED,
    COMPUTING,
    DROP,
    END,
    IN_SERVICE,
    PUSHING,
    QUEUE,
    READY,
    SERVER,
    WAITING,
)  # fmt: skip


@entry
def told(m: int, rank: int, start: float, finish: float) -> None:
    """When a step began that nobody works out, and that it ends then, which is not past yet."""
    r = ranks(m)[rank]
    r.got = r.start = start
    r.finish = r.ended = r.due = finish
    schedule(m, finish, ARRIVE, rank, r.step)


@compiled
def finished(m: int, rank: int) -> None:
    """A step ends."""
    g, r = machine(m), ranks(m)[rank]
    if not r.named:
        drop(m, rank)
        r.idle = 1
        return
    if r.parent >= 0:
        r.state = ASHORE
        return
    q = quorums(m)[r.quorum]
    if r.mark >= 0 and q.late == DROP:
        _drop_late(m, rank)
        return
    if r.kept + 1 < q.steps:
        keep_on(m, rank)
        return
    if not joins(m, rank):
        r.mark = -1
    for k in range(r.children_at, r.children_at + r.children):
        child = ranks(m)[lists(m)[k]]
        if child.state == ASHORE:
            child.state, child.aboard = ABOARD, rank
    r.arrival = transfer(m, rank, g.now, g.push) if q.via == SERVER else r.finish
    if r.arrival > r.finish:
        r.state, r.due = PUSHING, r.arrival
        schedule(m, r.due, ARRIVE, rank, r.step)
    else:
        arrived(m, rank)


@compiled
def arrived(m: int, rank: int) -> None:
    """A gradient is where it counts."""
    r = ranks(m)[rank]
    q = quorums(m)[r.quorum]
    r.pushed = r.arrival - r.finish
    if r.mark >= 0 and q.late == DROP:
        _drop_late(m, rank)
        return
    if q.via == SERVER:
        enqueue(m, r.arrival, rank, -1)
    r.state = READY
    add(m, rank)


@within
def _drop_late(m: int, rank: int) -> None:
    """A step or push that a closing marked which it was too late for."""
    r = ranks(m)[rank]
    closing = r.mark
    over = closings(m)[closing].number != r.mark_of
    drop(m, rank)
    if over:
        release(m, -1, rank)
    else:
        wait_for(m, rank, closing)
        if machine(m).blocked:
            release(m, -1, -1)


@within
def _behind(m: int, rank: int, head: int, last: int) -> int:
    """Put a rank at the end of a list of ranks; its head, -1 stands for an empty list."""
    ranks(m)[rank].link = -1
    if head < 0:
        return rank
    ranks(m)[last].link = rank
    return head


@compiled
def add(m: int, rank: int) -> None:
    """A gradient waits in its quorum; they come in order of (arrival, rank)."""
    g, r = machine(m), ranks(m)[rank]
    if joins(m, rank):
        _join(m, rank)
        return
    q = quorums(m)[r.quorum]
    q.ready = _behind(m, rank, q.ready, q.ready_last)
    q.ready_last = rank
    q.ready_count += 1
    if q.ready_count == q.needed:
        schedule(m, g.now, CLOSE, r.quorum, g.refiled)


@within
def _join(m: int, rank: int) -> None:
    """It enters the next closing without counting."""
    r = ranks(m)[rank]
    q = quorums(m)[r.quorum]
    q.joining = _behind(m, rank, q.joining, q.joining_last)
    q.joining_last = rank


@compiled
def close(m: int, index: int) -> None:
    """A quorum has what it needs, or its window is over; it re-arms at once."""
    g, q = machine(m), quorums(m)[index]
    closing = open_closing(m, index)
    rest = -1
    if q.lockstep:
        close_all(m, index, closing)
    elif q.barrier:
        _take_all(m, index, closing)
    else:
        rest = _take(m, index, closing)
    dropped = q.late == DROP and rest >= 0
    if q.late != QUEUE:
        _turn_away(m, index, closing, rest)
    elif rest >= 0:
        q.ready = rest
        if q.ready_count >= q.needed:
            schedule(m, g.now, CLOSE, index, g.refiled)
    _send(m, index, closing)
    if dropped and g.blocked:
        release(m, -1, -1)


@within
def _take_all(m: int, index: int, closing: int) -> None:
    """All members of a barrier, in order of rank."""
    q, c = quorums(m)[index], closings(m)[closing]
    for k in range(q.members_at, q.members_at + q.size):
        rank = lists(m)[k]
        r = ranks(m)[rank]
        if r.state == COMPUTING:
            r.arrival, r.pushed = r.finish, 0.0
        r.mark = -1
        _enter(m, rank, closing)
    c.count, c.token, c.leader = q.size, q.token, lists(m)[q.members_at]
    q.left, q.latest = q.size, -INF


@within
def _take(m: int, index: int, closing: int) -> int:
    """The first who are ready, those who join, and their riders; the first of the rest, or -1."""
    q, c = quorums(m)[index], closings(m)[closing]
    rank = q.ready
    while rank >= 0 and c.count < q.needed:
        rank = _contribute(m, rank, closing)
    rest = rank
    q.ready = -1
    q.ready_count -= c.count
    rank = q.joining
    q.joining = -1
    while rank >= 0:
        rank = _contribute(m, rank, closing)
    if q.ridden:
        rank, left = c.head, c.count
        while left > 0:
            r = ranks(m)[rank]
            for k in range(r.children_at, r.children_at + r.children):
                if ranks(m)[lists(m)[k]].aboard == rank:
                    _enter(m, lists(m)[k], closing)
            rank = r.link
            left -= 1
    return rest  # type: ignore[no-any-return]


@within
def _contribute(m: int, rank: int, closing: int) -> int:
    """A ready gradient enters a closing; who came after it."""
    r, c = ranks(m)[rank], closings(m)[closing]
    onward = r.link
    c.undone += c.via == SERVER and r.job in (WAITING, IN_SERVICE)
    c.count += 1
    c.leader = min(c.leader, rank)
    _enter(m, rank, closing)
    return onward  # type: ignore[no-any-return]


@within
def _enter(m: int, rank: int, closing: int) -> None:
    r, c = ranks(m)[rank], closings(m)[closing]
    r.state, r.closing, r.ahead, r.due = CLOSED, closing, 0, np.nan
    c.head = _behind(m, rank, c.head, c.last)
    c.last = rank


@compiled
def _turn_away(m: int, index: int, closing: int, rest: int) -> None:
    """Rule 14: what DROP, ABORT and JOIN do to gradients that come too late."""
    q = quorums(m)[index]
    q.ready_count = 0
    rank = rest
    while rank >= 0:
        onward = ranks(m)[rank].link
        if q.late == DROP:
            drop(m, rank)
            wait_for(m, rank, closing)
        elif q.late == ABORT:
            abort(m, rank, closing)
        else:
            mark(m, rank, closing)
            _join(m, rank)
        rank = onward
    for k in range(q.members_at, q.members_at + q.size):
        rank = lists(m)[k]
        state = ranks(m)[rank].state
        if state in (COMPUTING, PUSHING):
            if q.late == ABORT:
                abort(m, rank, closing)
            else:
                mark(m, rank, closing)


@within
def _send(m: int, index: int, closing: int) -> None:
    """Begin the collective of a closing; through the server its jobs are under way already."""
    g, q, c = machine(m), quorums(m)[index], closings(m)[closing]
    if q.via == SERVER:
        c.busy = g.job
        if c.undone == 0:
            ends(m, closing, g.now)
    elif q.asks:
        g.call = closing
    else:
        end = reduced(m, index, c.count, g.now)
        c.busy = end - g.now
        ends(m, closing, end)


@within
def reduced(m: int, index: int, count: int, start: float) -> float:
    """When an all-reduce among so many members of a quorum ends."""
    q = quorums(m)[index]
    seconds = q.seconds if count == q.size else seconds_of(m)[count]
    return start + seconds if q.net < 0 else finish(m, q.net, 0, start, seconds)


@entry
def ends(m: int, closing: int, time: float) -> None:
    """The communication of a closing ends then; of equal times the first to begin."""
    g = machine(m)
    g.serial += 1
    schedule(m, time, END, g.serial, closing)


@compiled
def next_round(m: int, closing: int) -> bool:
    """A group goes on with its own model, without a push, unless this was its last round."""
    c, order = closings(m)[closing], scratch(m)
    most, n = 0, 0
    rank = c.head
    while rank >= 0:
        most = max(most, ranks(m)[rank].rounds)
        order[n] = rank
        n += 1
        rank = ranks(m)[rank].link
    if most + 1 >= c.rounds or c.refiled != machine(m).refiled:
        return False
    sort(m, n)
    for k in range(n):
        r = ranks(m)[order[k]]
        r.busy = c.busy
        r.rounds += 1
        keep_on(m, order[k])
    free(m, closing)
    return True
