"""What is waited for: the finish of a step, its arrival at the server, a barrier's last."""

from __future__ import annotations

import numpy as np

from simstrag.engine.compiled.clock import transfer
from simstrag.engine.compiled.compiling import within
from simstrag.engine.compiled.events import schedule
from simstrag.engine.compiled.tables import machine, quorums, ranks
from simstrag.engine.compiled.words import ARRIVE, ARRIVED, CLOSE, HALFWAY, QUEUE, SERVER


@within
def expect(m: int, rank: int) -> None:
    """Schedule what comes next of a step: its finish, unless nobody could act on it."""
    g, r = machine(m), ranks(m)[rank]
    r.ahead, r.due = 0, r.finish
    if g.told:
        r.due = np.nan
        return
    if r.parent < 0:
        q = quorums(m)[r.quorum]
        if q.barrier:
            r.ahead, r.due = HALFWAY, np.nan
            enter(m, rank, r.finish)
            return
        if q.via == SERVER and q.late == QUEUE and q.steps == 1 and not (q.ridden or g.bounded):
            r.ahead = ARRIVED
            r.arrival = transfer(m, rank, r.finish, g.push)
            r.due = r.arrival
    schedule(m, r.due, ARRIVE, rank, r.step)


@within
def enter(m: int, rank: int, arrival: float) -> None:
    """One member more of a barrier computes, or has arrived."""
    g, index = machine(m), ranks(m)[rank].quorum
    q = quorums(m)[index]
    q.left -= 1
    q.latest = max(q.latest, arrival)
    if q.left == 0:
        schedule(m, max(q.latest, g.now), CLOSE, index, g.refiled)
