"""A plan's only quorum through a server where each gradient is an update of its own.

The server is first in first out, so the next update is that of whose gradient arrives next, at the
end of its job.
"""

from __future__ import annotations

import math

from simstrag.engine.compiled.asking import wanted
from simstrag.engine.compiled.books import show_step, worth
from simstrag.engine.compiled.cards import (
    APPLIED,
    ARRIVAL,
    COUNT,
    FINISH,
    PULLED,
    SAMPLES,
    SEEN,
    STALENESS,
    VERSION,
    first_to_arrive,
    go_on_alone,
)
from simstrag.engine.compiled.clock import INF
from simstrag.engine.compiled.compiling import compiled, within
from simstrag.engine.compiled.disband import disband
from simstrag.engine.compiled.tables import cards, machine, quorums, ranks, tree
from simstrag.engine.compiled.updates import due, enough, write_alone
from simstrag.engine.compiled.words import DONE, GO_ON, REVIEW


@compiled
def run_queue(m: int, until: float) -> None:
    """Update after update, until one would come later or the driver is asked for something."""
    g, q = machine(m), quorums(m)[0]
    while q.pending < 0 and wanted(m) == GO_ON:
        rank = first_to_arrive(m)
        end = max(tree(m)[(len(tree(m)) >> 1) + rank], g.now) + g.job
        if not end <= until or end == INF:
            disband(m, 0)
            return
        g.now = end
        q.pending = rank
        _update(m, rank)
        if g.stop == GO_ON:
            go_on_alone(m)


@within
def _update(m: int, rank: int) -> None:
    """Rule 12 for one gradient."""
    g, r, card = machine(m), ranks(m)[rank], cards(m)[rank]
    had, samples, staleness = g.samples, int(card[SAMPLES]), g.version - int(card[VERSION])
    if not g.own:
        g.began_at = had
    g.own += samples
    g.stale += samples * (g.began_at - int(card[SEEN]))
    g.samples += samples
    card[APPLIED] += 1.0
    card[STALENESS] += staleness
    drift = (had - card[SEEN]) / (g.workers * g.batch)
    g.deviation += drift * drift
    if g.shows:
        got = card[PULLED] + g.pull
        communication = got - card[PULLED] + (card[ARRIVAL] - card[FINISH])
        seconds, batch = card[FINISH] - got, samples / g.batch
        show_step(m, rank, seconds, batch, communication, r.amp != 0, False)
    g.applied += 1
    g.spent += 1
    g.version += 1
    progress = math.nan if g.unknown else g.booked + worth(m)
    if g.every == 0 or g.version % g.every == 0:
        write_alone(m, rank, staleness, progress)
    if g.bounded:
        _count(m, rank)
    if enough(m, progress):
        g.stop = DONE
    elif due(m):
        g.stop = REVIEW


@within
def _count(m: int, rank: int) -> None:
    """Rule 16."""
    g, card = machine(m), cards(m)
    was = card[rank, COUNT]
    card[rank, COUNT] = was + 1.0
    if was == g.least:
        g.at_least -= 1
        if g.at_least == 0:
            _find_least(m)


@compiled
def _find_least(m: int) -> None:
    g, card = machine(m), cards(m)
    least, many = INF, 0
    for rank in range(g.workers):
        count = card[rank, COUNT]
        if count < least:
            least, many = count, 0
        many += count == least
    g.least, g.at_least, g.freed = int(least), many, 1
