"""Gradients that come to nothing, and what a rank does next to that."""

from __future__ import annotations

import numpy as np

from simstrag.engine.compiled.books import show, tell
from simstrag.engine.compiled.compiling import compiled, entry, within
from simstrag.engine.compiled.events import schedule
from simstrag.engine.compiled.tables import closings, lists, machine, ranks
from simstrag.engine.compiled.words import (
    ABOARD,
    ABORTED,
    ARRIVE,
    ARRIVED,
    ASHORE,
    COMPUTING,
    DROPPED,
    GONE,
    JOIN,
    PUSHING,
    READY,
    WAITING,
)  # fmt: skip


@within
def joins(m: int, rank: int) -> bool:
    """Whether its gradient enters the next closing, for being late, without counting towards it."""
    r = ranks(m)[rank]
    return r.mark >= 0 and r.mark_late == JOIN  # type: ignore[no-any-return]


@within
def mark(m: int, rank: int, closing: int) -> None:
    """Its gradient was too late for a closing (rule 14)."""
    r, c = ranks(m)[rank], closings(m)[closing]
    r.mark, r.mark_of, r.mark_late = closing, c.number, c.late


@within
def withdraw(m: int, rank: int) -> None:
    """Take its job out of the queue; one in service ends without further effect."""
    r = ranks(m)[rank]
    if r.job == WAITING:
        r.job = 0


@compiled
def put_ashore(m: int, rank: int) -> None:
    """Call off its push and job; it leaves its parent."""
    g, r = machine(m), ranks(m)[rank]
    if r.state == PUSHING:
        r.pushed = g.now - r.finish
    withdraw(m, rank)
    r.state, r.aboard, r.due = ASHORE, -1, np.nan


@compiled
def give_up(m: int, rank: int) -> None:
    """Its gradient is gone, and its riders go ashore."""
    put_ashore(m, rank)
    r = ranks(m)[rank]
    r.state = GONE
    for k in range(r.children_at, r.children_at + r.children):
        child = ranks(m)[lists(m)[k]]
        if child.aboard == rank:
            child.state, child.aboard = ASHORE, -1


@within
def note_drop(m: int, rank: int, busy: float) -> None:
    """Its gradient was thrown away after so many seconds of communication beyond its push."""
    g, r = machine(m), ranks(m)[rank]
    g.dropped += r.kept + 1
    r.busy = busy
    show(m, rank, r.finish - r.start, False)
    tell(m, rank, DROPPED, -1, 0.0, 1)


@compiled
def drop(m: int, rank: int) -> None:
    give_up(m, rank)
    count(m, rank)
    note_drop(m, rank, 0.0)


@compiled
def abort(m: int, rank: int, closing: int) -> None:
    """Cancel its step or push; the rank goes on with the update of the closing."""
    g, r = machine(m), ranks(m)[rank]
    give_up(m, rank)
    r.got = min(r.got, g.now)
    r.ended = min(g.now, r.finish)
    g.aborted += r.kept + 1
    show(m, rank, max(r.ended - r.start, 0.0), g.now < r.finish)
    tell(m, rank, ABORTED, -1, 0.0, 1)
    wait_for(m, rank, closing)


@within
def wait_for(m: int, rank: int, closing: int) -> None:
    """A rank without a gradient goes on with the update of a closing."""
    c = closings(m)[closing]
    ranks(m)[rank].link = c.waiting
    c.waiting = rank


@within
def count(m: int, rank: int) -> None:
    """What a rank contributed was applied or dropped (rule 16)."""
    g, r = machine(m), ranks(m)[rank]
    was = r.count
    r.count += r.kept + 1
    if g.bounded and r.named and was == g.least:
        g.at_least -= 1
        if g.at_least == 0:
            find_least(m)


@entry
def find_least(m: int) -> None:
    """The least count of the ranks in quorums, and how many have it."""
    g = machine(m)
    g.least, g.at_least, g.freed = 1 << 62, 0, 1
    for rank in range(g.workers):
        r = ranks(m)[rank]
        if r.named and r.count <= g.least:
            g.at_least = g.at_least + 1 if r.count == g.least else 1
            g.least = r.count


@compiled
def settle(m: int, rank: int) -> None:
    """Make up for what a step that ran ahead left out: where its rank is by now."""
    g, r = machine(m), ranks(m)[rank]
    if r.state != COMPUTING or not r.ahead:
        return
    if r.finish > g.now:
        r.due = r.finish
        schedule(m, r.finish, ARRIVE, rank, r.step)
    else:
        r.mark = -1
        if r.ahead == ARRIVED:
            r.state = PUSHING
        else:
            r.arrival, r.pushed, r.state = r.finish, 0.0, READY
    r.ahead = 0


@compiled
def strand(m: int, rank: int) -> None:
    """Who rides on it goes ashore, whatever plan it boarded under."""
    for other in range(machine(m).workers):
        r = ranks(m)[other]
        if r.state == ABOARD and r.aboard == rank:
            r.state, r.aboard = ASHORE, -1
