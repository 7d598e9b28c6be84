"""Barriers whose members began their step together: a step of them all is a few loops over columns.

A quorum whose members are in `ranks` is advanced event by event.  Three kinds need not be:

- a barrier (`QUORUM.barrier`), each member of which is waited for: what is known of its members
  stands in `lanes`, a column per member; its closings and updates are events as ever, and if it is
  the only quorum not even those (`simstrag.engine.compiled.rounds`);
- a race (`QUORUM.race`), where all begin anew with each update: `lanes` too, and a whole round is
  done at once (`simstrag.engine.compiled.races`);
- a queue (`QUORUM.queue`), where each gradient is an update of its own: `cards`, a row per rank
  (`simstrag.engine.compiled.queues`).

`QUORUM.lockstep` says that it is so now.  It becomes so when an update lets members go (`fall_in`
here, `cards.form_queue`), never where somebody looks at single steps (`MACHINE.may_lockstep`).
Then totals, times, versions and states in `ranks` are stale; `disband.report` writes state and pull
for a view, `note_steps` start and number of the step for rule 27, `disband.disband_all` everything,
after which the quorum is advanced event by event again: before a new plan that says other things of
steps or files gradients anew, when factors of noise run out, before an event beyond which the outer
world has to see every rank, and at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simstrag.engine.compiled.books import show_step
from simstrag.engine.compiled.clock import INF, effort, finish_from, segment, transfer
from simstrag.engine.compiled.compiling import columnwise, compiled, within
from simstrag.engine.compiled.events import schedule
from simstrag.engine.compiled.tables import (
    amp,
    batch,
    closings,
    communication,
    known,
    lanes,
    lists,
    local_times,
    lower_bound,
    machine,
    noise,
    quorums,
    ranks,
)
from simstrag.engine.compiled.words import ALLREDUCE, CLOSE, COMPUTING, LEADER
from simstrag.view import WINDOW

FINISH, COMPUTE, COMMUNICATION, WAIT, WORK, SHARE, RATE, UNTIL = range(8)
ARRIVAL, WON, WINS, ORDERED, SPARE = range(8, 13)
CLEAN_RATE, CLEAN_UNTIL, AMP, EFFORT = 13, 14, 15, 16
"""Rows of `lanes`.  RATE: seconds per unit of work, which hold for steps that end by UNTIL.  From
ARRIVAL to SPARE they are of races alone.  CLEAN_RATE, CLEAN_UNTIL: of steps in full precision.
AMP: 1 of steps in reduced precision.  EFFORT: work of a step without noise."""


@compiled
def fall_in(m: int, index: int) -> None:
    """After all members of a barrier or race started: it is in lockstep if they did so as one."""
    g, q, of = machine(m), quorums(m)[index], lists(m)
    at = q.members_at
    if q.race and (g.serving or q.size < g.workers):
        return
    lead = ranks(m)[of[at]]
    for p in range(at, at + q.size):
        r = ranks(m)[of[p]]
        if r.state != COMPUTING or r.pulled != g.now or r.start != lead.got or r.recorded:
            return
        if r.started - r.noise_from != lead.started - lead.noise_from:
            return
    q.lockstep, q.closing, q.done, q.steps_done, q.staleness = 1, -1, 0, 0, 0
    q.pulled, q.got, q.version, q.seen = lead.pulled, lead.got, lead.version, lead.seen
    q.closed_at, q.latest = INF, -INF
    q.noise_at = lead.started - lead.noise_from
    q.samples, q.amp, q.rebatched = 0, 0, 0
    lane = lanes(m)
    for p in range(at, at + q.size):
        r = ranks(m)[of[p]]
        q.latest = max(q.latest, r.finish)
        q.samples += r.samples
        q.amp += r.amp
        q.rebatched += r.share != 1.0
        lane[FINISH, p], lane[COMPUTE, p] = r.finish, r.compute
        lane[COMMUNICATION, p], lane[WAIT, p] = r.communication, r.wait
        lane[EFFORT, p] = effort(m, r.share)
        lane[WORK, p], lane[SHARE, p], lane[WINS, p] = lane[EFFORT, p], r.share, 0.0
        lane[CLEAN_RATE, p], lane[CLEAN_UNTIL, p], lane[AMP, p] = 0.0, -INF, r.amp
        _turn(m, p, of[p], r.start)
        if q.race:
            r.due = np.nan
    q.won = q.samples
    if q.race:  # all events and jobs were of its members
        g.racing, g.events, g.jobs, g.take_due = 1, 0, 0, 0


@within
def _turn(m: int, p: int, rank: int, now: float) -> None:
    """Which segment of its step function a member is in at `now`."""
    lane, variant = lanes(m), 2 * machine(m).loaded + ranks(m)[rank].amp
    lane[RATE, p], lane[UNTIL, p] = segment(m, rank, variant, now)


@compiled
def restart(m: int, index: int) -> None:
    """All members account for their last step and begin the next one, now."""
    g, q, lane = machine(m), quorums(m)[index], lanes(m)
    at, end = q.members_at, q.members_at + q.size
    if g.holds and q.latest > g.trace_end:
        for p in range(at, end):
            ended = min(lane[FINISH, p], q.closed_at)
            g.beyond += max(0.0, ended - max(q.got, g.trace_end))
    if q.race:
        _account_race(lane, g.now, q.pulled, q.got, q.busy, q.closed_at)
    else:
        _account(lane[:, at:end], g.now, q.pulled, q.got, q.busy)
    q.pulled = g.now
    q.got = g.now if q.puller < 0 else transfer(m, q.puller, g.now, g.pull)
    q.version, q.seen, q.closing, q.done, q.left = g.version, g.samples, -1, 0, 0
    if g.noisy:
        _draw(m, index)
    q.latest = _begin(lane[:, at:end], q.got)
    if not q.latest < INF:
        q.latest = _walk_on(m, index)
    q.steps_done += 1
    g.started += q.size
    g.amp += q.amp
    g.rebatched += q.rebatched
    g.asked += q.samples
    if not (g.lapping or q.race):
        schedule(m, max(q.latest, g.now), CLOSE, index, g.refiled)


@columnwise
def _account(lane: Any, time: float, pulled: float, got: float, busy: float) -> None:
    """See `books.close_cycle`."""
    finish, compute = lane[FINISH], lane[COMPUTE]
    communication, wait = lane[COMMUNICATION], lane[WAIT]
    fetched = got - pulled
    for p in range(len(finish)):
        seconds = max(finish[p] - got, 0.0)
        after = min(busy, max(time - finish[p], 0.0))
        compute[p] += seconds
        communication[p] += fetched + after
        wait[p] += max(time - pulled - fetched - seconds - after, 0.0)


@columnwise
def _account_race(
    lane: Any, time: float, pulled: float, got: float, busy: float, closed_at: float
) -> None:
    """The same of winners, and of those whose steps or pushes were aborted."""
    finish, arrival, won, wins = lane[FINISH], lane[ARRIVAL], lane[WON], lane[WINS]
    compute, communication, wait = lane[COMPUTE], lane[COMMUNICATION], lane[WAIT]
    fetched = got - pulled
    for p in range(len(finish)):
        ended = min(closed_at, finish[p])
        seconds = max(ended - got, 0.0)
        is_in = won[p] > 0
        pushed = arrival[p] - finish[p] if is_in else max(closed_at - finish[p], 0.0)
        after = min(pushed + (busy if is_in else 0.0), max(time - ended, 0.0))
        compute[p] += seconds
        communication[p] += fetched + after
        wait[p] += max(time - pulled - fetched - seconds - after, 0.0)
        wins[p] += won[p]


@within
def _draw(m: int, index: int) -> None:
    """The work of everybody's next step."""
    g, q, of, lane = machine(m), quorums(m)[index], lists(m), lanes(m)
    at, end = q.members_at, q.members_at + q.size
    factors = noise(m)[q.noise_at]
    if of[end - 1] - of[at] == q.size - 1:
        first = of[at]
        _weigh(lane[:, at:end], factors[first : first + q.size])
    else:
        for p in range(at, end):
            lane[WORK, p] = factors[of[p]] * lane[EFFORT, p]
    q.noise_at += 1
    g.low = g.low or q.noise_at >= len(noise(m))


@columnwise
def _weigh(lane: Any, factors: Any) -> None:
    work, clean = lane[WORK], lane[EFFORT]
    for p in range(len(factors)):
        work[p] = factors[p] * clean[p]


@columnwise
def _begin(lane: Any, start: float) -> float:
    """When the last is done; infinity where somebody may be beyond the segment he is in."""
    finish, work, rate, until = lane[FINISH], lane[WORK], lane[RATE], lane[UNTIL]
    latest, leaves = -INF, False
    for p in range(len(finish)):
        finish[p] = start + work[p] * rate[p]
        leaves |= finish[p] > until[p]
        latest = max(latest, finish[p])
    return INF if leaves else latest


@compiled
def _walk_on(m: int, index: int) -> float:
    """The same where segments end: those who leave theirs are followed through all they cross."""
    g, q, of, lane = machine(m), quorums(m)[index], lists(m), lanes(m)
    latest = -INF
    for p in range(q.members_at, q.members_at + q.size):
        if lane[FINISH, p] > lane[UNTIL, p]:
            rank = of[p]
            variant = 2 * g.loaded + ranks(m)[rank].amp
            lane[FINISH, p] = finish_from(m, rank, variant, q.got, lane[WORK, p])
            _turn(m, p, rank, q.got if q.race else lane[FINISH, p])  # a loser ends before
        latest = max(latest, lane[FINISH, p])
    return latest


@within
def close_all(m: int, index: int, closing: int) -> None:
    """Everybody's gradient is in a closing."""
    q, c = quorums(m)[index], closings(m)[closing]
    c.lockstep, c.count, c.token, c.leader = 1, q.size, q.token, lists(m)[q.members_at]
    q.closing, q.left = closing, q.size


@compiled
def apply_all(m: int, index: int, had: int) -> int:
    """Everybody's gradient becomes part of the parameters; how stale they are.

    had: samples before this update.
    """
    g, q, of, lane = machine(m), quorums(m)[index], lists(m), lanes(m)
    staleness = g.version - q.version
    q.done = 1
    q.staleness += staleness
    g.own += q.won
    g.stale += q.won * (g.began_at - q.seen)
    g.samples += q.won
    drift = (had - q.seen) / (g.workers * g.batch)
    g.deviation += q.needed * (drift * drift)
    if g.shows and not _shown_as_one(m, index):
        for p in range(q.members_at, q.members_at + q.size):
            r, pushed = ranks(m)[of[p]], 0.0
            if q.race:
                if lane[WON, p] == 0:
                    continue
                pushed = lane[ARRIVAL, p] - lane[FINISH, p]
            seconds, share = lane[FINISH, p] - q.got, lane[SHARE, p]
            show_step(m, of[p], seconds, share, q.got - q.pulled + pushed, r.amp != 0, False)
    return staleness  # type: ignore[no-any-return]


@compiled
def _shown_as_one(m: int, index: int) -> bool:
    """Show everybody's step in a few loops over columns, where that can be; whether it could."""
    q, of = quorums(m)[index], lists(m)
    first, size = of[q.members_at], q.size
    if q.race or of[q.members_at + size - 1] - first != size - 1:
        return False
    steps = known(m)[first : first + size]
    if not _as_many(steps):
        return False
    at, ours = steps[0] % WINDOW, lanes(m)[:, q.members_at : q.members_at + size]
    for p in range(size):
        steps[p] += 1
    _show(ours, local_times(m)[at, first : first + size], batch(m)[at, first : first + size], q.got)
    communication(m)[at, first : first + size] = q.got - q.pulled
    lower_bound(m)[at, first : first + size] = False
    _show_amp(ours, amp(m)[at, first : first + size])
    return True


@columnwise
def _as_many(steps: Any) -> bool:
    same = True
    for number in steps:
        same &= number == steps[0]
    return same


@columnwise
def _show(lane: Any, seconds: Any, share: Any, got: float) -> None:
    finish, of_batch = lane[FINISH], lane[SHARE]
    for p in range(len(finish)):
        seconds[p] = finish[p] - got
        share[p] = of_batch[p]


@columnwise
def _show_amp(lane: Any, in_amp: Any) -> None:
    reduced = lane[AMP]
    for p in range(len(reduced)):
        in_amp[p] = reduced[p] > 0


@within
def let_go(m: int, closing: int) -> None:
    """Its members are to start, with all others of this release."""
    g, c = machine(m), closings(m)[closing]
    q = quorums(m)[c.quorum]
    q.busy = c.busy
    q.puller = c.leader if c.via == LEADER else -1 if c.via == ALLREDUCE else 0
    q.beside, g.to_start = g.to_start, c.quorum


@compiled
def note_steps(m: int) -> None:
    """Which step is under way of members in lockstep, and since when."""
    for index in range(machine(m).quorums):
        q = quorums(m)[index]
        if q.lockstep:
            for p in range(q.members_at, q.members_at + q.size):
                r = ranks(m)[lists(m)[p]]
                r.start, r.step = q.got, r.started + q.steps_done - 1
