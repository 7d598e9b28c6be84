"""From columns and cards back to `ranks`, which knows everything of everybody again.

That is needed where somebody could come to differ from the others in a way that those do not know:
before a new plan that says other things of steps or files gradients anew, when factors of noise run
out, before an event that the outer world has to see, and at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simstrag.engine.compiled.cards import PULLED, from_card
from simstrag.engine.compiled.closing import open_closing
from simstrag.engine.compiled.compiling import compiled, entry, within
from simstrag.engine.compiled.gathering import arrived, close
from simstrag.engine.compiled.lockstep import (
    ARRIVAL,
    COMMUNICATION,
    COMPUTE,
    FINISH,
    WAIT,
    WINS,
    WON,
)  # fmt: skip
from simstrag.engine.compiled.tables import cards, closings, lanes, lists, machine, quorums, ranks
from simstrag.engine.compiled.waits import expect
from simstrag.engine.compiled.words import CLOSED, COMPUTING, GONE, HALFWAY


@entry
def report(m: int) -> None:
    """What a view shows of those whom `ranks` does not know everything of."""
    for index in range(machine(m).quorums):
        q = quorums(m)[index]
        if q.lockstep and q.queue:
            for rank in range(q.size):
                r = ranks(m)[rank]
                r.pulled = cards(m)[rank, PULLED]
                r.state = GONE if r.blocked or rank == q.pending else COMPUTING
        elif q.lockstep:
            for p in range(q.members_at, q.members_at + q.size):
                r = ranks(m)[lists(m)[p]]
                r.pulled, r.state = q.pulled, _state(q)


@within
def _state(q: Any) -> int:
    if q.closing < 0:
        return COMPUTING
    return GONE if q.done else CLOSED


@entry
def disband_all(m: int) -> None:
    """`ranks` knows everything again."""
    for index in range(machine(m).quorums):
        if quorums(m)[index].lockstep:
            disband(m, index)


@compiled
def disband(m: int, index: int) -> None:
    q, of = quorums(m)[index], lists(m)
    q.lockstep = 0
    if q.race:
        _disband_race(m, index)
        return
    if q.queue:
        _disband_queue(m)
        return
    state, busy, link = _state(q), 0.0, -1
    if q.closing >= 0:
        c = closings(m)[q.closing]
        c.lockstep, c.head, c.last = 0, of[q.members_at], of[q.members_at + q.size - 1]
        busy = c.busy if q.done else 0.0
    for p in range(q.members_at + q.size - 1, q.members_at - 1, -1):
        r = ranks(m)[of[p]]
        _know(m, p, index)
        r.arrival, r.busy = r.finish, busy
        r.applied += q.steps_done + q.done
        r.count += q.steps_done + q.done
        r.state, r.closing, r.ahead = state, q.closing, HALFWAY if state == COMPUTING else 0
        r.link, link = link, of[p]


@within
def _know(m: int, p: int, index: int) -> None:
    """What members of barriers and of races have in common."""
    q, lane = quorums(m)[index], lanes(m)
    r = ranks(m)[lists(m)[p]]
    r.compute, r.communication = lane[COMPUTE, p], lane[COMMUNICATION, p]
    r.wait, r.finish, r.ended = lane[WAIT, p], lane[FINISH, p], lane[FINISH, p]
    r.pulled, r.got, r.start = q.pulled, q.got, q.got
    r.version, r.seen = q.version, q.seen
    r.pushed, r.busy, r.due = 0.0, 0.0, np.nan
    r.started += q.steps_done
    r.step = r.started - 1
    r.staleness += q.staleness


@compiled
def _disband_race(m: int, index: int) -> None:
    """Either all compute, or an update of the winners was just made."""
    g, q, of, lane = machine(m), quorums(m)[index], lists(m), lanes(m)
    g.racing = 0
    for p in range(q.size - 1, -1, -1):
        rank = of[p]
        r = ranks(m)[rank]
        _know(m, p, index)
        won = int(lane[WON, p]) if q.done else 0
        r.applied += int(lane[WINS, p]) + won
        r.count += int(lane[WINS, p]) + won
        r.state = COMPUTING
        if not q.done:
            expect(m, rank)
            continue
        c = closings(m)[q.closing]
        c.lockstep, r.state = 0, GONE
        r.ended = min(q.closed_at, r.finish)
        if won:
            r.pushed, r.busy, r.closing = lane[ARRIVAL, p] - r.finish, c.busy, q.closing
            r.link, c.head = c.head, rank
        else:
            r.pushed = max(q.closed_at - r.finish, 0.0)
            r.link, c.waiting = c.waiting, rank


@compiled
def _disband_queue(m: int) -> None:
    """Some compute, some push, and who has arrived waits for the server in that order."""
    g, q = machine(m), quorums(m)[0]
    g.queueing = 0
    arrivals = np.empty(g.workers)
    for rank in range(g.workers):
        arrivals[rank] = from_card(m, rank)
    if q.pending >= 0:
        closing = open_closing(m, 0)
        c, r = closings(m)[closing], ranks(m)[q.pending]
        c.head, c.last, c.count, c.leader, c.busy = q.pending, q.pending, 1, q.pending, g.job
        r.closing, r.link, g.to_release = closing, -1, closing
    now = g.now
    for rank in np.argsort(arrivals, kind="mergesort"):
        if arrivals[rank] == np.inf:
            break
        g.now = arrivals[rank]
        arrived(m, rank)
        close(m, 0)
    g.now = now
