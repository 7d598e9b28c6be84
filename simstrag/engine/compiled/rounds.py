"""A plan's only barrier, in lockstep: round after round without an event."""

from __future__ import annotations

from simstrag.engine.compiled.asking import wanted
from simstrag.engine.compiled.closing import open_closing
from simstrag.engine.compiled.compiling import compiled
from simstrag.engine.compiled.events import pop, schedule
from simstrag.engine.compiled.gathering import reduced
from simstrag.engine.compiled.lockstep import close_all
from simstrag.engine.compiled.tables import closings, machine, quorums
from simstrag.engine.compiled.updates import update
from simstrag.engine.compiled.words import ALLREDUCE, CLOSE, GO_ON


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
