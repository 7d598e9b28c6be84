"""The parameter server: one job at a time, first in first out by (arrival, rank)."""

from __future__ import annotations

from typing import Any

from simstrag.engine.compiled.compiling import compiled, entry, within
from simstrag.engine.compiled.tables import closings, jobs, machine, ranks
from simstrag.engine.compiled.words import IN_SERVICE, WAITING


@within
def enqueue(m: int, arrival: float, rank: int, closing: int) -> None:
    """A job begins to wait: of a rank's gradient, or of the closing that it brings as a leader."""
    g = machine(m)
    g.serial += 1
    if closing < 0:
        r = ranks(m)[rank]
        r.job, r.job_arrival, r.ticket = WAITING, arrival, g.serial
    if g.jobs == len(jobs(m)):
        _compact(m)
    _rise(m, arrival, rank, g.serial, closing)
    g.take_due = g.take_due or not g.serving


@compiled
def take(m: int) -> None:
    """The idle server takes its next job, and with a fusing one all others that fuse."""
    g = machine(m)
    g.take_due = 0
    while g.jobs > 0 and not _waits(m, jobs(m)[0]):
        _pop(m)
    if g.jobs == 0:
        return
    j = jobs(m)[0]
    g.server_rank, g.server_ticket, g.server_closing = j.rank, j.ticket, j.closing
    _pop(m)
    g.serving = 1
    g.serial += 1
    g.server_serial = g.serial
    if g.server_closing < 0:
        ranks(m)[g.server_rank].job = IN_SERVICE
    else:
        c = closings(m)[g.server_closing]
        c.beside = -1
        if c.fuse:
            _fuse(m)
        g.asks_server = g.fused_allreduce and c.beside >= 0
    if not g.asks_server:
        serve_until(m, g.now + g.job)


@entry
def serve_until(m: int, end: float) -> None:
    """The job in service ends then."""
    g = machine(m)
    g.asks_server = 0
    g.server_end = end
    closing = g.server_closing
    while closing >= 0:
        c = closings(m)[closing]
        c.busy += end - g.now
        closing = c.beside


@compiled
def _fuse(m: int) -> None:
    """All other jobs that fuse are taken with the one in service."""
    g = machine(m)
    chief = closings(m)[g.server_closing]
    n, g.jobs = g.jobs, 0
    for k in range(n):
        j = jobs(m)[k]
        if j.closing >= 0 and closings(m)[j.closing].fuse:
            closings(m)[j.closing].beside = chief.beside
            chief.beside = j.closing
        else:
            _rise(m, j.arrival, j.rank, j.ticket, j.closing)


@within
def _waits(m: int, j: Any) -> bool:
    """Whether a job was not withdrawn; those of leaders never are."""
    r = ranks(m)[j.rank]
    return j.closing >= 0 or (r.ticket == j.ticket and r.job == WAITING)  # type: ignore[no-any-return]


@compiled
def _compact(m: int) -> None:
    """Forget jobs that were withdrawn."""
    g = machine(m)
    n, g.jobs = g.jobs, 0
    for k in range(n):
        j = jobs(m)[k]
        if _waits(m, j):
            _rise(m, j.arrival, j.rank, j.ticket, j.closing)


@within
def _before(a: Any, arrival: float, rank: int, ticket: int) -> bool:
    if a.arrival != arrival:
        return a.arrival < arrival  # type: ignore[no-any-return]
    return a.rank < rank or (a.rank == rank and a.ticket < ticket)  # type: ignore[no-any-return]


@within
def _put(k: int, m: int, arrival: float, rank: int, ticket: int, closing: int) -> None:
    j = jobs(m)[k]
    j.arrival, j.rank, j.ticket, j.closing = arrival, rank, ticket, closing


@compiled
def _rise(m: int, arrival: float, rank: int, ticket: int, closing: int) -> None:
    g, heap = machine(m), jobs(m)
    k = g.jobs
    g.jobs += 1
    while k > 0:
        j = heap[(k - 1) >> 1]
        if _before(j, arrival, rank, ticket):
            break
        _put(k, m, j.arrival, j.rank, j.ticket, j.closing)
        k = (k - 1) >> 1
    _put(k, m, arrival, rank, ticket, closing)


@compiled
def _pop(m: int) -> None:
    g, heap = machine(m), jobs(m)
    g.jobs -= 1
    n = g.jobs
    arrival, rank = heap[n].arrival, heap[n].rank
    ticket, closing = heap[n].ticket, heap[n].closing
    k = 0
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        if child + 1 < n:
            other = heap[child + 1]
            if _before(other, heap[child].arrival, heap[child].rank, heap[child].ticket):
                child += 1
        j = heap[child]
        if not _before(j, arrival, rank, ticket):
            break
        _put(k, m, j.arrival, j.rank, j.ticket, j.closing)
        k = child
    _put(k, m, arrival, rank, ticket, closing)
