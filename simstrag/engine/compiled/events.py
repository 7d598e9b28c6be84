"""The heap of events, in order of (time, kind, key); those that were called off stay in it."""

from __future__ import annotations

from typing import Any

from simstrag.engine.compiled.compiling import compiled, within
from simstrag.engine.compiled.tables import events, machine, quorums, ranks
from simstrag.engine.compiled.words import ARRIVE, CLOSE

KIND = 56
"""Above this bit of an event's order stands its kind, below it a rank, quorum or number."""
KEY = (1 << KIND) - 1


@within
def schedule(m: int, time: float, kind: int, key: int, what: int) -> None:
    """what: of a rank's event its step, of a quorum's how often was filed anew, else a closing.

    A closing that arrives at the server is told from a rank by a negative number.
    """
    if machine(m).events == len(events(m)):
        _compact(m)
    _rise(m, time, (kind << KIND) | key, what)


@compiled
def _rise(m: int, time: float, order: int, what: int) -> None:
    g, heap = machine(m), events(m)
    k = g.events
    g.events += 1
    while k > 0:
        up = (k - 1) >> 1
        e = heap[up]
        if e.time < time or (e.time == time and e.order <= order):
            break
        put(heap, k, e.time, e.order, e.what)
        k = up
    put(heap, k, time, order, what)


@within
def put(heap: Any, k: int, time: float, order: int, what: int) -> None:
    e = heap[k]
    e.time, e.order, e.what = time, order, what


@compiled
def pop(m: int) -> None:
    """Take the first event off."""
    g, heap = machine(m), events(m)
    g.events -= 1
    n = g.events
    time, order, what = heap[n].time, heap[n].order, heap[n].what
    k = 0
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        e = heap[child]
        if child + 1 < n:
            other = heap[child + 1]
            if other.time < e.time or (other.time == e.time and other.order < e.order):
                child += 1
                e = other
        if time < e.time or (time == e.time and order <= e.order):
            break
        put(heap, k, e.time, e.order, e.what)
        k = child
    put(heap, k, time, order, what)


@within
def stands(m: int, time: float, order: int, what: int) -> bool:
    """Whether an event was not called off."""
    kind = order >> KIND
    if kind == ARRIVE and what >= 0:
        r = ranks(m)[order]
        return r.step == what and r.due == time  # type: ignore[no-any-return]
    if kind == CLOSE:
        if what != machine(m).refiled:
            return False
        q = quorums(m)[order & KEY]
        return q.left == 0 if q.barrier else q.ready_count >= q.needed  # type: ignore[no-any-return]
    return True


@compiled
def first(m: int) -> bool:
    """Bring the next event that stands to the head; whether there is one."""
    g, heap = machine(m), events(m)
    while g.events > 0:
        e = heap[0]
        if stands(m, e.time, e.order, e.what):
            return True
        pop(m)
    return False


@compiled
def _compact(m: int) -> None:
    """Forget events that were called off."""
    g, heap = machine(m), events(m)
    n, g.events = g.events, 0
    for k in range(n):
        time, order, what = heap[k].time, heap[k].order, heap[k].what
        if stands(m, time, order, what):
            _rise(m, time, order, what)
