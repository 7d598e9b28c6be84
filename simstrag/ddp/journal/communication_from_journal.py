"""Seconds between the steps of a recorded run: to a server and back, or in an all-reduce.

A simulation charges them as constants.  `beyond_constants` is the time that a real step took beyond
these; a replay may add it to the local time of the step.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simstrag.contract import Via
from simstrag.ddp.journal.journal import plan_from_json

PARTS = ("push", "service", "pull")

Lines = Sequence[Sequence[Any]]
"""Lines of a journal, without its header."""


@dataclass(slots=True)
class RoundTrip:
    """One gradient of a rank under a server; seconds, NaN where the record cannot tell.

    at: when it arrived, on the clock of the run.
    step, seconds: the rank's step and its local time.
    version: version of the parameters that it was computed from.
    mode: number of lockstep steps before it.
    begun: start of the step, on the clock of the rank.
    first, received, applied, replied: its first byte, last byte, update and answer, on the clock
        of the server.
    via, members: the mechanism of its quorum in the plan, and the number of ranks in it.
    awaited: where its rank waited after it for the update of the contribution before, beside whose
        all-reduce it had computed: the last arrival for that update.
    push: from the rank's last gradient to its first byte at the server.
    service: from its first byte at the server, or from the server's previous answer to any rank if
        that is later, to its own answer.
    pull: from the server's previous answer to the start of this step.
    """

    at: float
    step: int
    version: int
    mode: int
    seconds: float
    begun: float
    first: float
    received: float
    applied: float
    replied: float
    via: Via = Via.SERVER
    members: int = 1
    awaited: float = math.nan
    push: float = math.nan
    service: float = math.nan
    pull: float = math.nan

    @property
    def charged(self) -> bool:
        """Whether a simulation charges push, service and pull; an all-reduce has none of them."""
        return self.via is not Via.ALLREDUCE


def round_trips(lines: Lines) -> dict[int, list[RoundTrip]]:
    """The gradients of each rank that were answered, in order.

    A pull is known where the next step follows at once: no step was aborted in between, or taken
    without the server.  A service is known where the answer followed the update, as it does unless
    the server waited for another rank; in an all-reduce it begins with the last arrival, or with
    the rank's own where that computed beside the all-reduce for longer.
    """
    quorums, trips = _quorums_at_arrivals(lines), defaultdict[int, list[RoundTrip]](list)
    overlaps: dict[tuple[int, int], int] = {}
    together = sorted(line[1] for line in lines if line[0] == "lockstep")
    rows = [line[1] for line in lines if line[0] == "push"]
    for row in sorted(rows, key=lambda row: float(row["begun"])):
        rank, at, version = row["rank"], float(row["at"]), int(row.get("version", 0))
        stamps: dict[str, Any] = {
            name: math.nan if row.get(name) is None else row[name] for name in STAMPS
        }
        trip = RoundTrip(at, row["step"], version, bisect(together, at), **stamps)
        trip.via, trip.members, overlaps[rank, trip.step] = quorums.get(
            (rank, at), (Via.SERVER, 1, 0)
        )
        trip.push = trip.first - trip.begun - trip.seconds
        earlier = trips[rank]
        if not earlier and not trip.mode and not trip.version:
            trip.pull = trip.begun - (trip.received - trip.at)
        elif earlier and (trip.step, trip.mode) == (earlier[-1].step + 1, earlier[-1].mode):
            trip.pull = trip.begun - earlier[-1].replied
        earlier.append(trip)
    for own in trips.values():
        _align_clocks(own)
    if any(overlaps.values()):
        _set_awaited(lines, trips, overlaps)
    _set_services([trip for own in trips.values() for trip in own])
    return trips


STAMPS = ("seconds", "begun", "first", "received", "applied", "replied")


def _quorums_at_arrivals(lines: Lines) -> dict[tuple[int, float], tuple[Via, int, int]]:
    """How the plan in force made updates of a gradient that arrived, by rank and time.

    Each is the mechanism, the ranks in its quorum, and their steps beside an all-reduce.
    """
    found, plan = {}, None
    for kind, *values in lines:
        if kind == "plan":
            plan = plan_from_json(values[2])
        elif kind == "done" and plan is not None:
            at, rank = values[:2]
            found[rank, at] = plan.quorums[0].via, 1, 0
            for quorum in plan.quorums:
                if rank in quorum.members or rank in dict(quorum.riders):
                    found[rank, at] = quorum.via, len(quorum.members), quorum.overlap
    return found


def _align_clocks(own: list[RoundTrip]) -> None:
    """Correct a rank's clock to the server's if a push or a pull is negative, as between two hosts.

    As by NTP, an offset moves between push and pull until the shortest push equals the shortest
    pull; push + pull stays as recorded.
    """
    push = min(trip.push for trip in own)
    pulls = [trip.pull for trip in own if not math.isnan(trip.pull)]
    if pulls and min(push, *pulls) < 0:
        behind = (push - min(pulls)) / 2
        for trip in own:
            trip.push -= behind
            trip.pull += behind


def _set_awaited(
    lines: Lines,
    trips: Mapping[int, Sequence[RoundTrip]],
    overlaps: Mapping[tuple[int, int], int],
) -> None:
    """Set `awaited` of the steps that ranks took beside an all-reduce, and waited after.

    overlaps: steps that a rank takes beside an all-reduce, by rank and step.
    """
    arrivals = {(rank, trip.step): trip.first for rank, own in trips.items() for trip in own}
    last: dict[tuple[int, int], float] = {}  # of the update that a contribution ended for
    for kind, *values in lines:
        if kind == "applied":
            ends: dict[int, int] = {}
            for rank, step, *_ in values[1]:
                ends[rank] = max(step, ends.get(rank, -1))
            arrival = max(arrivals.get(end, -math.inf) for end in ends.items())
            last |= dict.fromkeys(ends.items(), arrival)
    for rank, own in trips.items():
        for trip in own:
            overlap = overlaps[rank, trip.step]
            if overlap and not math.isnan(trip.applied):
                trip.awaited = last.get((rank, trip.step - overlap), math.nan)


def _set_services(trips: list[RoundTrip]) -> None:
    last_arrival: dict[float, float] = {}
    for trip in trips:
        last_arrival[trip.applied] = max(trip.first, last_arrival.get(trip.applied, -math.inf))
    free = -math.inf
    for trip in sorted(trips, key=lambda trip: trip.replied):
        if not trip.charged:
            arrival = last_arrival.get(trip.applied, trip.first)
            if math.isnan(trip.applied):  # a private step that ended no contribution
                arrival = trip.first
            elif not math.isnan(trip.awaited):
                arrival = max(trip.first, trip.awaited)
            trip.service = trip.replied - arrival
        busy = trip.applied - trip.first
        if trip.replied - trip.applied >= 10 * max(busy, 1e-4):
            trip.service = math.nan
        elif trip.charged:
            trip.service = trip.replied - max(trip.first, free)
        free = trip.replied


def reduction_rests(lines: Lines) -> list[float]:
    """Seconds from the slowest rank's last gradient to the next step, for steps in lockstep.

    They contain the rest of the reduction, the update and the decision.  A step after which a
    server was at work is left out.

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


def beyond_constants(
    lines: Lines, trips: Mapping[int, Sequence[RoundTrip]], constants: Mapping[str, float]
) -> dict[tuple[int, float], float]:
    """Seconds by which a step waited longer than a simulation charges, by rank and finish.

    constants: seconds that the simulation charges for `PARTS` and "rest".

    A step has waited for its own push and pull, and for the service before it; after a change
    between all-reduce and server also for that change.
    """
    beyond = defaultdict[tuple[int, float], float](float)
    ranks = max((len(line[2]) for line in lines if line[0] == "lockstep"), default=1)

    def waited(trip: RoundTrip, part: str) -> float:
        charge = constants.get(part, 0.0) if trip.charged else 0.0
        if part == "service" and not trip.charged and trip.members > 1:
            charge = constants.get("rest", 0.0) * (trip.members - 1) / max(1, ranks - 1)
        seconds = float(getattr(trip, part))
        return 0.0 if math.isnan(seconds) else seconds - charge

    for rank, own in trips.items():
        for before, trip in zip([None, *own], own, strict=False):
            seconds = waited(trip, "push") + waited(trip, "pull")
            beyond[rank, trip.at] += seconds + (
                0.0 if before is None else waited(before, "service")
            )
    for rank, finish, seconds in _changes(lines, trips, constants):
        beyond[rank, finish] += seconds
    return beyond


def _changes(
    lines: Lines, trips: Mapping[int, Sequence[RoundTrip]], constants: Mapping[str, float]
) -> Iterator[tuple[int, float, float]]:
    """Each change of mechanism: rank and finish of the first step after it, and its seconds."""
    over = [line[1] + max(line[2]) for line in lines if line[0] == "lockstep"]
    for mode in {trip.mode for own in trips.values() for trip in own} - {0}:
        served = [(rank, t) for rank, own in trips.items() for t in own if t.mode == mode]
        first = min(trip.version for _, trip in served)
        for rank, trip in served:
            if trip.version == first:
                begun = trip.at - (trip.received - trip.first) - trip.push - trip.seconds
                yield rank, trip.at, begun - over[mode - 1] - constants.get("rest", 0.0)
    last: RoundTrip | None = None
    at_arrival = {trip.at: trip for own in trips.values() for trip in own}
    for kind, *values in lines:
        if kind == "done":
            last = at_arrival.get(values[0])
        elif kind == "lockstep" and last is not None:
            start, seconds = values[:2]
            charges = constants.get("service", 0.0) + constants.get("pull", 0.0)
            change = start - last.at - (charges if last.charged else 0.0)
            yield from ((rank, start + own, change) for rank, own in enumerate(seconds))
            last = None
