"""A plan's only quorum where all start together and the first so many make the update.

Either everybody's gradient counts, one job of the server each, or the others' steps are aborted;
then all begin anew with the update, and what happens between two updates follows from when each
would be done.  A whole round is done at once, or not at all.
"""

from __future__ import annotations

from typing import Any

from simstrag.engine.compiled.asking import wanted
from simstrag.engine.compiled.books import show_step
from simstrag.engine.compiled.closing import open_closing
from simstrag.engine.compiled.compiling import columnwise, compiled
from simstrag.engine.compiled.disband import disband
from simstrag.engine.compiled.lockstep import ARRIVAL, FINISH, ORDERED, SPARE, WON, close_all
from simstrag.engine.compiled.sorting import sort_times
from simstrag.engine.compiled.tables import (
    closings,
    lanes,
    lists,
    machine,
    quorums,
    ranks,
    seconds_of,
)
from simstrag.engine.compiled.updates import update
from simstrag.engine.compiled.words import GO_ON, SERVER


@compiled
def run_race(m: int, until: float) -> None:
    """Round after round, until one would end later or the driver is asked for something."""
    g, q = machine(m), quorums(m)[0]
    while q.closing < 0 and wanted(m) == GO_ON:
        end = _outcome(m)
        if end > until:
            disband(m, 0)
            return
        closing = open_closing(m, 0)
        close_all(m, 0, closing)
        c = closings(m)[closing]
        c.count, c.busy = q.needed, g.job if q.via == SERVER else end - q.closed_at
        c.token = q.token if q.needed == q.size else -1
        g.aborted += q.size - q.needed
        if g.shows:
            _show_losers(m)
        g.now = end
        update(m, closing)


@compiled
def _outcome(m: int) -> float:
    """Who wins, when the quorum closes, and, returned, when its update is made."""
    g, q, lane = machine(m), quorums(m)[0], lanes(m)
    ordered = lane[ORDERED]
    _arrive(lane, g.push if q.via == SERVER else 0.0)
    sort_times(ordered, lane[SPARE])
    last = ordered[q.needed - 1]
    q.closed_at = last
    many = _judge(lane, last)
    q.won = q.samples
    if q.needed < q.size:
        q.won = _settle_ties(m, many - q.needed, last)
    if q.via != SERVER:
        return last + seconds_of(m)[q.needed]  # type: ignore[no-any-return]
    end = 0.0
    for k in range(q.needed):
        end = max(end, ordered[k]) + g.job
    return end


@columnwise
def _arrive(lane: Any, push: float) -> None:
    finish, arrival, ordered = lane[FINISH], lane[ARRIVAL], lane[ORDERED]
    for p in range(len(finish)):
        arrival[p] = finish[p] + push
        ordered[p] = arrival[p]


@columnwise
def _judge(lane: Any, last: float) -> int:
    """Mark who arrives until then; how many."""
    arrival, won = lane[ARRIVAL], lane[WON]
    many = 0
    for p in range(len(arrival)):
        is_in = arrival[p] <= last
        won[p] = 1.0 if is_in else 0.0
        many += is_in
    return many


@compiled
def _settle_ties(m: int, over: int, last: float) -> int:
    """Of those who arrive last the lower ranks win; the samples of all winners.

    over: how many too many are marked.
    """
    lane, samples = lanes(m), 0
    for p in range(quorums(m)[0].size - 1, -1, -1):
        if over > 0 and lane[ARRIVAL, p] == last:
            lane[WON, p] = 0.0
            over -= 1
        if lane[WON, p] > 0:
            samples += ranks(m)[lists(m)[p]].samples
    return samples


@compiled
def _show_losers(m: int) -> None:
    """See `fates.abort`."""
    g, q, lane = machine(m), quorums(m)[0], lanes(m)
    for p in range(q.size):
        if lane[WON, p] == 0:
            r = ranks(m)[lists(m)[p]]
            bound = q.closed_at < lane[FINISH, p]
            seconds = max(min(q.closed_at, lane[FINISH, p]) - q.got, 0.0)
            pushed = max(q.closed_at - lane[FINISH, p], 0.0)
            batch = r.share if bound else r.samples / g.batch
            communicated = q.got - q.pulled + pushed
            show_step(m, lists(m)[p], seconds, batch, communicated, r.amp != 0, bound)
