"""A new plan: what is finished and not closed over is filed anew (rule 19)."""

from __future__ import annotations

import numpy as np

from simstrag.engine.compiled.compiling import entry, within
from simstrag.engine.compiled.disband import disband_all
from simstrag.engine.compiled.fates import drop, joins, put_ashore, settle, strand, withdraw
from simstrag.engine.compiled.gathering import add
from simstrag.engine.compiled.server import enqueue
from simstrag.engine.compiled.tables import machine, medians, quorums, ranks, scratch
from simstrag.engine.compiled.waits import enter
from simstrag.engine.compiled.words import (
    ABOARD,
    COMPUTING,
    GONE,
    HALFWAY,
    NOBODY,
    PUSHING,
    READY,
    SERVER,
)


@entry
def settle_all(m: int) -> None:
    """Before the plan changes: where every rank is by now."""
    disband_all(m)
    for rank in range(machine(m).workers):
        settle(m, rank)


@within
def _filed(m: int, rank: int) -> bool:
    """Whether its gradient is finished and not closed over."""
    state = ranks(m)[rank].state
    return READY <= state <= ABOARD or state == PUSHING  # type: ignore[no-any-return]


@entry
def refile(m: int) -> None:
    """After the plan has changed: by rank."""
    g = machine(m)
    g.refiled += 1
    g.entering = 1
    for rank in range(g.workers):
        r = ranks(m)[rank]
        if r.state not in (GONE, NOBODY) and joins(m, rank):
            r.mark = -1
    for rank in range(g.workers):
        if _filed(m, rank) and not ranks(m)[rank].named:
            strand(m, rank)
            drop(m, rank)
            ranks(m)[rank].idle = 1
    n = 0
    for rank in range(g.workers):
        r = ranks(m)[rank]
        if not _filed(m, rank):
            continue
        if r.parent < 0:
            r.aboard = -1
            if _refile(m, rank):
                scratch(m)[n] = rank
                n += 1
        elif r.aboard != r.parent:
            strand(m, rank)
            put_ashore(m, rank)
    _gather(m, n)


@within
def _refile(m: int, rank: int) -> bool:
    """A member's gradient is ready in its new quorum, unless it is being pushed there."""
    g, r = machine(m), ranks(m)[rank]
    if quorums(m)[r.quorum].via == SERVER:
        if r.state == PUSHING:
            return False
        if r.job == 0:
            enqueue(m, r.finish, rank, -1)
        r.arrival = r.job_arrival
    else:
        if r.state == PUSHING:
            r.pushed = g.now - r.finish
        withdraw(m, rank)
        r.due = np.nan
        r.arrival = r.finish
    r.state = READY
    return True


@within
def _gather(m: int, n: int) -> None:
    """The first ranks of `scratch` are ready, in order of (arrival, rank); others still compute."""
    g, arrivals = machine(m), medians(m)
    order = scratch(m)[:n].copy()
    for k in range(n):
        arrivals[k] = ranks(m)[order[k]].arrival
    for k in np.argsort(arrivals[:n], kind="mergesort"):
        rank = order[k]
        r = ranks(m)[rank]
        if quorums(m)[r.quorum].barrier:
            r.mark = -1
            enter(m, rank, r.arrival)
        else:
            add(m, rank)
    for rank in range(g.workers):
        r = ranks(m)[rank]
        if r.state == COMPUTING and r.named and r.parent < 0 and quorums(m)[r.quorum].barrier:
            r.ahead, r.due = HALFWAY, np.nan
            enter(m, rank, r.finish)
