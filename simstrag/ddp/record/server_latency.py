"""Seconds between the steps of a recorded run: to a server and back, or in an all-reduce.

A simulation charges them as constants.  What a real step took beyond these is told by
`beyond_constants`, so that a replay may add it to the local time of the step.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simstrag.ddp.record.journal import plan_of
from simstrag.plan import Plan
from simstrag.quorum import Via

__all__ = ["PARTS", "RoundTrip", "beyond_constants", "mean_seconds", "reduction_rests", "round_trips"]

PARTS = ("push", "service", "pull")

Lines = Sequence[Sequence[Any]]
"""Of a journal, without its header."""


@dataclass(slots=True)
class RoundTrip:
    """One gradient of a rank under a server; seconds, NaN where the record cannot tell.

    at: when it arrived, on the clock of the run.
    step, seconds: the rank's step and its local time.
    begun: start of the step, on the clock of the rank.
    first, received, applied, replied: first byte, last byte, update and answer, on the server's.
    via, members: how the plan makes updates of it, and with how many ranks.
    push: from the rank's last gradient to its first byte at the server.
    service: from there, or from the answer before it if that is later, to its own answer.
    pull: of the parameters before this step, from the answer to the step's start.

    Where a rank has a clock of its own, push and pull are such that the shortest of each are
    equally long; together they are as recorded.
    """

    at: float
    step: int
    seconds: float
    begun: float
    first: float
    received: float
    applied: float
    replied: float
    via: Via = Via.SERVER
    members: int = 1
    push: float = math.nan
    service: float = math.nan
    pull: float = math.nan

    @property
    def charged(self) -> bool:
        """Whether a simulation charges push, service and pull: it knows none of an all-reduce."""
        return self.via is not Via.ALLREDUCE


def round_trips(lines: Lines) -> dict[int, list[RoundTrip]]:
    """The gradients of each rank that were answered, in order.

    A pull is known where the next step follows at once: none was aborted in between, and none
    taken without the server.  A service is known where the answer followed the update, as it does
    unless the server waited for another rank; of an all-reduce it begins with the last arrival.
    """
    plans, trips = _plans_at_arrivals(lines), defaultdict[int, list[RoundTrip]](list)
    together = sorted(line[1] for line in lines if line[0] == "lockstep")
    rows = [line[1] for line in lines if line[0] == "push"]
    for row in sorted(rows, key=lambda row: float(row["begun"])):
        rank, stamps = row["rank"], [row.get(name) for name in STAMPS]
        stamped = (math.nan if stamp is None else float(stamp) for stamp in stamps)
        trip = RoundTrip(float(row["at"]), row["step"], *stamped)
        if (plan := plans.get((rank, row["at"]))) is not None:
            trip.via, trip.members = _quorum_of(plan, rank)
        trip.push = trip.first - trip.begun - trip.seconds
        earlier = trips[rank]
        mode = bisect(together, trip.at)
        if not earlier and not mode and not row.get("version"):
            trip.pull = trip.begun - _zero(trip)
        elif earlier and trip.step == earlier[-1].step + 1 and (
            bisect(together, earlier[-1].at) == mode
        ):
            trip.pull = trip.begun - earlier[-1].replied
        earlier.append(trip)
    for own in trips.values():
        _align_clocks(own)
    _set_services([trip for own in trips.values() for trip in own])
    return trips


STAMPS = ("seconds", "begun", "first", "received", "applied", "replied")


def _zero(trip: RoundTrip) -> float:
    """The start of the run on the server's clock."""
    return trip.received - trip.at


def _plans_at_arrivals(lines: Lines) -> dict[tuple[int, float], Plan]:
    """The plan in force when the gradient of a rank arrived, by rank and time."""
    plans, plan = {}, None
    for kind, *values in lines:
        if kind == "plan":
            plan = plan_of(values[2])
        elif kind == "done" and plan is not None:
            plans[values[1], values[0]] = plan
    return plans


def _quorum_of(plan: Plan, rank: int) -> tuple[Via, int]:
    for quorum in plan.quorums:
        riders = {child for child, _ in quorum.riders}
        if rank in quorum.members or rank in riders:
            return quorum.via, len(quorum.members)
    return plan.quorums[0].via, 1


def _align_clocks(own: list[RoundTrip]) -> None:
    """Correct a rank's clock to the server's where a push or a pull would be below zero.

    On one host both have the same.  How far two are apart is estimated as NTP does it.
    """
    push = min(trip.push for trip in own)
    pulls = [trip.pull for trip in own if not math.isnan(trip.pull)]
    if pulls and min(push, *pulls) < 0:
        behind = (push - min(pulls)) / 2
        for trip in own:
            trip.push -= behind
            trip.pull += behind


def _set_services(trips: list[RoundTrip]) -> None:
    last_arrival: dict[float, float] = {}
    for trip in trips:
        last_arrival[trip.applied] = max(trip.first, last_arrival.get(trip.applied, -math.inf))
    free = -math.inf
    for trip in sorted(trips, key=lambda trip: trip.replied):
        if not trip.charged:
            trip.service = trip.replied - last_arrival.get(trip.applied, trip.first)
        busy = trip.applied - trip.first
        if trip.replied - trip.applied >= 10 * max(busy, 1e-4):
            trip.service = math.nan
        elif trip.charged:
            trip.service = trip.replied - max(trip.first, free)
        free = trip.replied


def reduction_rests(lines: Lines) -> list[float]:
    """Of ranks in lockstep, seconds from the slowest one's last gradient to the next step.

    That is what is left of the reduction, the update and the decision.  It is not known of a step
    after which a server was at work.

    >>> reduction_rests([["lockstep", 0.0, [0.5, 0.75]], ["lockstep", 1.0, [0.5, 0.5]]])
    [0.25]
    """
    served = sorted(line[1] for line in lines if line[0] == "done")
    steps = [line for line in lines if line[0] == "lockstep"]
    return [
        then - start - max(seconds)
        for (_, start, seconds, *_), (_, then, *_) in itertools.pairwise(steps)
        if bisect(served, start) == bisect(served, then)
    ]
