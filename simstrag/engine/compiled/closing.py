"""Places for closings: taken when a quorum closes, given back when its update lets go."""

from __future__ import annotations

from simstrag.engine.compiled.compiling import within
from simstrag.engine.compiled.tables import closings, machine, quorums


@within
def open_closing(m: int, index: int) -> int:
    """A new closing of a quorum, of nobody yet."""
    g, q = machine(m), quorums(m)[index]
    closing = g.free
    c = closings(m)[closing]
    g.free = c.head
    c.head, c.last, c.waiting, c.undone, c.count = -1, -1, -1, 0, 0
    c.via, c.late, c.rounds, c.refiled = q.via, q.late, q.rounds, g.refiled
    c.fuse, c.mean, c.cutoff, c.power, c.shift = g.fuse, g.mean, g.cutoff, g.power, g.shift
    c.token, c.leader, c.beside, c.quorum, c.lockstep = -1, g.workers, -1, index, 0
    return closing  # type: ignore[no-any-return]


@within
def free(m: int, closing: int) -> None:
    """A closing is over."""
    g, c = machine(m), closings(m)[closing]
    c.number += 1
    c.head, g.free = g.free, closing
