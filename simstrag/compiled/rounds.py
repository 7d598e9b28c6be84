"""A plan's only barrier, in lockstep: round after round without an event."""

from __future__ import annotations

from simstrag.compiled.asking import wanted
from simstrag.compiled.closing import open_closing
from simstrag.compiled.compiling import compiled
from simstrag.compiled.events import pop, schedule
from simstrag.compiled.gathering import reduced
from simstrag.compiled.lockstep import close_all
from simstrag.compiled.tables import closings, machine, quorums
from simstrag.compiled.updates import update
from simstrag.compiled.words import ALLREDUCE, CLOSE, GO_ON


@compiled
def goes_round(m: int, index: int, until: float) -> bool:
    """From the closing that comes next on, as long as nothing else can happen; whether it did."""
    g, q = machine(m), quorums(m)[index]
    if not q.lockstep or q.via != ALLREDUCE or g.quorums > 1 or g.events > 1:
        return False
    if g.serving or g.take_due:
        return False
    time = max(q.latest, g.now)
    end = reduced(m, index, q.size, time)
    if end > until:
        return False
    pop(m)
    g.lapping = 1
    while True:
        closing = open_closing(m, index)
        close_all(m, index, closing)
        closings(m)[closing].busy = end - time
        g.now = end
        update(m, closing)
        if q.closing >= 0:
            break
        time = max(q.latest, g.now)
        end = reduced(m, index, q.size, time)
        if end > until or wanted(m) != GO_ON:
            schedule(m, time, CLOSE, index, g.refiled)
            break
    g.lapping = 0
    return True
