"""The loop: what comes next, until somebody outside must act."""

from __future__ import annotations

import numpy as np

from simstrag.engine.compiled.asking import wanted
from simstrag.engine.compiled.books import close_cycle, tell
from simstrag.engine.compiled.cards import go_on_alone
from simstrag.engine.compiled.clock import INF
from simstrag.engine.compiled.compiling import entry, within
from simstrag.engine.compiled.disband import disband_all
from simstrag.engine.compiled.events import KEY, KIND, first, pop
from simstrag.engine.compiled.fates import settle
from simstrag.engine.compiled.gathering import arrived, close, finished
from simstrag.engine.compiled.queues import run_queue
from simstrag.engine.compiled.races import run_race
from simstrag.engine.compiled.rounds import goes_round
from simstrag.engine.compiled.server import take
from simstrag.engine.compiled.starts import release
from simstrag.engine.compiled.tables import events, machine, quorums, ranks
from simstrag.engine.compiled.updates import collective_ended, job_ended
from simstrag.engine.compiled.words import (
    ARRIVED,
    CLOSE,
    END,
    EXPIRE,
    GO_ON,
    GONE,
    HORIZON,
    IN_FLIGHT,
    NOBODY,
    PUSHING,
    STALLED,
    TAKE,
)  # fmt: skip


@entry
def begin(m: int) -> None:
    """Start everybody whom the plan names."""
    machine(m).entering = 1
    release(m, -1, -1)


@entry
def go_on(m: int) -> None:
    """After a review: what its update was about to let go."""
    g = machine(m)
    if g.queueing:
        go_on_alone(m)
        return
    closing, g.to_release = g.to_release, -1
    release(m, closing, -1)


@entry
def advance(m: int, until: float) -> int:
    """Go on to the next moment at which the driver must act; events at `until` included."""
    g = machine(m)
    g.spent = 0
    while True:
        call = wanted(m)
        if call == g.stop:
            g.stop = GO_ON
        if call != GO_ON:
            return call
        if g.racing:
            run_race(m, until)
            continue
        if g.queueing:
            run_queue(m, until)
            continue
        time, order, what = INF, 1 << 62, 0
        if first(m):
            e = events(m)[0]
            time, order, what = e.time, e.order, e.what
        due = (END << KIND) | g.server_serial
        by_server = g.serving and (g.server_end < time or (g.server_end == time and due < order))
        if by_server:
            time, order = g.server_end, due
        if g.take_due and (g.now < time or order > TAKE << KIND):
            time, order = g.now, TAKE << KIND
        if g.windowed:
            expiry, index = _expiry(m)
            due = (EXPIRE << KIND) | index
            if expiry < time or (expiry == time and due < order):
                time, order = expiry, due
        if time == INF:
            return STALLED
        if time > until:
            return HORIZON
        if g.may_lockstep and order >> KIND == CLOSE and goes_round(m, order & KEY, until):
            continue
        g.now = time
        _handle(m, order, what, by_server)


@within
def _handle(m: int, order: int, what: int, by_server: bool) -> None:
    """The next event happens."""
    kind, key = order >> KIND, order & KEY
    if kind == TAKE:
        take(m)
    elif kind == EXPIRE:
        close(m, key)
    elif by_server and kind == END:
        job_ended(m)
    else:
        pop(m)
        if kind == CLOSE:
            close(m, key)
        elif kind == END:
            collective_ended(m, what, False)
        elif what < 0:
            collective_ended(m, -1 - what, True)
        else:
            _of_rank(m, key)


@within
def _of_rank(m: int, rank: int) -> None:
    """A step ends, or a push."""
    r = ranks(m)[rank]
    r.due = np.nan
    if r.state == PUSHING:
        arrived(m, rank)
    elif r.ahead == ARRIVED:
        r.ahead = 0
        r.mark = -1
        arrived(m, rank)
    else:
        finished(m, rank)


@within
def _expiry(m: int) -> tuple[float, int]:
    """When the next window expires, and whose; one that is past expires now (rule 17)."""
    g, time, index = machine(m), INF, 0
    for k in range(g.quorums):
        q = quorums(m)[k]
        if q.window < INF and q.ready >= 0:
            over = max(ranks(m)[q.ready].arrival + q.window, g.now)
            if over < time:
                time, index = over, k
    return time, index


@entry
def end(m: int) -> None:
    """The run ends: what is in flight is counted as far as it came."""
    disband_all(m)
    for rank in range(machine(m).workers):
        r = ranks(m)[rank]
        if r.state != NOBODY:
            settle(m, rank)
            close_cycle(m, rank)
            if r.state != GONE:
                tell(m, rank, IN_FLIGHT, -1, 0.0, 1)
