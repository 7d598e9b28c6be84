"""What came after each step that a journal tells of: the way to a server and back, or the rest."""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

__all__ = ["WAYS", "Trip", "rests", "trips"]

WAYS = ("push", "service", "pull")

STAMPS = ("step", "at", "begun", "seconds", "first", "received", "applied", "replied")

Trip = dict[str, float]
"""One of a gradient: its stamps, its step's local seconds, and those of `WAYS` that can be told.

push: from the rank's last gradient to its first byte at the server.  service: from there, or from
the reply before it if that is later, to its own reply.  pull: of the parameters before this step,
from the reply to its beginning.  Where the rank has a clock of its own, push and pull are such that
the shortest of each are equally long; together they are as recorded.
"""


def trips(lines: Sequence[Sequence[Any]]) -> dict[int, list[Trip]]:
    """Of each rank, those after which it went on, in order; lines: of a journal.

    Parameters were on their way where the next step follows at once: none was aborted in between,
    and none taken without the server.  A service is told where the reply followed the update, as it
    does unless somebody is waited for.
    """
    found: dict[int, list[Trip]] = defaultdict(list)
    together = sorted(line[1] for line in lines if line[0] == "lockstep")
    rows = [line[1] for line in lines if line[0] == "push"]
    for row in sorted(rows, key=lambda row: float(row["begun"])):
        trip = {name: math.nan if row.get(name) is None else float(row[name]) for name in STAMPS}
        trip["push"] = trip["first"] - trip["begun"] - trip["seconds"]
        own = found[row["rank"]]
        if not own:  # the run began, for the server, when `at` was 0
            trip["pull"] = trip["begun"] - (trip["received"] - trip["at"])
        elif trip["step"] == own[-1]["step"] + 1 and (
            bisect(together, own[-1]["at"]) == bisect(together, trip["at"])
        ):
            trip["pull"] = trip["begun"] - own[-1]["replied"]
        own.append(trip)
    for own in found.values():
        _set_right(own)
    free = -math.inf
    for trip in sorted((t for own in found.values() for t in own), key=lambda t: t["replied"]):
        busy = trip["applied"] - trip["first"]
        if trip["replied"] - trip["applied"] < 10 * max(busy, 1e-4):
            trip["service"] = trip["replied"] - max(trip["first"], free)
        free = trip["replied"]
    return found


def _set_right(own: list[Trip]) -> None:
    """Take the clock of a rank for that of the server, if one says that a way took less than none.

    On one host both have the same.  How far apart two are is told as NTP tells it.
    """
    push = min(trip["push"] for trip in own)
    told = [trip["pull"] for trip in own if not math.isnan(trip.get("pull", math.nan))]
    if told and min(push, *told) < 0:
        behind = (push - min(told)) / 2
        for trip in own:
            trip["push"] -= behind
            if "pull" in trip:
                trip["pull"] += behind


def rests(lines: Sequence[Sequence[Any]]) -> list[float]:
    """Of ranks in lockstep, seconds from the slowest one's last gradient to the next step.

    That is what is left of the reduction, the update and the decision.  It is not told of a step
    after which a server was at work.

    >>> rests([["lockstep", 0.0, [0.5, 0.75]], ["lockstep", 1.0, [0.5, 0.5]]])
    [0.25]
    """
    apart = sorted(line[1] for line in lines if line[0] == "done")
    steps = [line for line in lines if line[0] == "lockstep"]
    return [
        then - start - max(seconds)
        for (_, start, seconds, *_), (_, then, *_) in itertools.pairwise(steps)
        if bisect(apart, start) == bisect(apart, then)
    ]
