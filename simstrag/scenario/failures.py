"""Failures of ranks: the section of a scenario, and when they happen under a seed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from simstrag.arrays import Floats
from simstrag.scenario.failure_events import read_failure_events
from simstrag.scenario.sections import Count, NonNegative, Positive, Section
from simstrag.timing.noise import Words, keys, look_up, nth, shifted_exponential

STREAM = 2**64 - 4  # no rank has this number


class Failure(NamedTuple):
    """A rank fails, and comes back at some time, which may be never; in seconds."""

    time: float
    rank: int
    back: float


class FailureEvent(Section):
    """One failure of a trace of failures: time and return in seconds of the run."""

    time: NonNegative
    rank: Annotated[int, Field(ge=0)]
    back: NonNegative | None = None


class CheckpointSection(Section):
    """How often a checkpoint is taken, and what it costs.

    seconds, updates: between the end of one, or a restart, and the next; one of the two.
    on_failure: whether the ranks that are left write one at a failure, as the workloads of
        `simstrag ddp` do; then the interval may be left out.
    cost: seconds by which ranks that the update lets go start later.
    """

    seconds: Positive | None = None
    updates: Count | None = None
    on_failure: bool = False
    cost: NonNegative = 0.0

    @model_validator(mode="after")
    def _has_one_interval(self) -> Self:
        if self.seconds is not None and self.updates is not None:
            raise ValueError("a checkpoint has one interval: give seconds or updates, not both")
        if (self.seconds, self.updates, self.on_failure) == (None, None, False):
            raise ValueError("a checkpoint needs an interval: give seconds or updates")
        return self


def _read_events(value: Any, info: ValidationInfo) -> Any:
    """The rows of a file, whose name is relative to the folder of the scenario."""
    if not isinstance(value, str | Path):
        return value
    return read_failure_events(Path((info.context or {}).get("folder", ".")) / value)


FailureEvents = Annotated[
    tuple[FailureEvent, ...],
    Field(min_length=1),
    BeforeValidator(_read_events, json_schema_input_type=str | tuple[FailureEvent, ...]),
]


class FailuresSection(Section):
    """Failures of ranks, and what follows (docs/semantics.md, rules 19a to 19c).

    mtbf: mean seconds between two failures of one rank, which are exponentially distributed.
    events: failures one by one, in place of `mtbf`; or the name of a CSV file, as
        `read_failure_events` takes it.
    on_fault: "continue": the others go on without the rank; "restart": all ranks stop, and go back
        to the last checkpoint.  The words are those of `simstrag ddp --on-fault`.
    detection: seconds from a failure until the others know of it.
    restart: seconds from then until all ranks have started anew.
    rejoin: seconds from a failure until the rank is back; by default never.
    quorum_timeout: seconds beyond `detection` that the others wait for the rank to be back before
        they go on without it.
    min_workers: fewer than so many do not go on: they wait until so many are there.
    regroup: seconds in which the group forms anew when the others go on without a rank, or with it
        again; ranks that start then start so much later, one forming after the other.
    checkpoint: by default none, so that a restart begins anew.

    >>> failures = FailuresSection(events=[{"time": 5, "rank": 1}], on_fault="restart", restart=3)
    >>> next(failures.coming(seed=0, workers=2))
    Failure(time=5.0, rank=1, back=inf)
    """

    mtbf: Positive | None = None
    events: FailureEvents | None = None
    on_fault: Literal["continue", "restart"]
    detection: NonNegative = 0.0
    restart: NonNegative = 0.0
    rejoin: Positive | None = None
    quorum_timeout: NonNegative = 0.0
    min_workers: Count = 1
    regroup: NonNegative = 0.0
    checkpoint: CheckpointSection | None = None

    @model_validator(mode="after")
    def _keys_are_of_its_kind(self) -> Self:
        if self.mtbf is None and self.events is None:
            raise ValueError("nothing says when ranks fail: give mtbf or events")
        if self.mtbf is not None and self.events is not None:
            raise ValueError("two keys say when ranks fail: give mtbf or events, one of the two")
        if self.events is not None and self.rejoin is not None:
            raise ValueError("rejoin is beside mtbf; give each of the events its own back")
        of_restart, of_continue = ("restart", "checkpoint"), (
            "rejoin", "quorum_timeout", "min_workers", "regroup"
        )  # fmt: skip
        foreign = of_restart if self.continues else of_continue
        if named := self.changed(foreign):
            other = "restart" if self.continues else "continue"
            raise ValueError(
                f"{named[0]} is a key of on_fault: {other}; this one is {self.on_fault}"
            )
        if self.rejoin is not None and self.rejoin < self.detection:
            raise ValueError(
                f"rejoin {self.rejoin:g} is before the others know of the failure, after "
                f"detection {self.detection:g}"
            )
        return self

    @model_validator(mode="after")
    def _events_follow_each_other(self) -> Self:
        away: dict[int, float] = {}
        for event in sorted(self.events or (), key=lambda event: event.time):
            if event.back is not None and not self.continues:
                raise ValueError("back is a key of on_fault: continue; this one is restart")
            if event.time <= away.get(event.rank, -math.inf):
                raise ValueError(
                    f"rank {event.rank} fails at {event.time:g} s, and is not back before then "
                    f"from its last failure; give that one a back before {event.time:g}"
                )
            if event.back is not None and event.back < event.time + self.detection:
                raise ValueError(
                    f"rank {event.rank} is back at {event.back:g} s, before the others know of its "
                    f"failure, at {event.time + self.detection:g} s"
                )
            if self.continues:
                away[event.rank] = math.inf if event.back is None else event.back
        return self

    @property
    def continues(self) -> bool:
        """Whether the others go on when a rank fails."""
        return self.on_fault == "continue"

    def coming(self, seed: int, workers: int) -> Iterator[Failure]:
        """The failures of a run, by time and rank; they are the same under every policy.

        A rank that is away does not fail.
        """
        if self.events is not None:
            never = math.inf
            events = [(e.time, e.rank, never if e.back is None else e.back) for e in self.events]
            return map(Failure._make, sorted(events))
        return self._drawn(seed, workers)

    def _drawn(self, seed: int, workers: int) -> Iterator[Failure]:
        own = nth(np.repeat(keys(seed, [STREAM]), workers), np.arange(workers, dtype=np.uint64))
        first = self._intervals(own, 0).tolist()
        coming = [(time, rank, 1) for rank, time in enumerate(first)]
        heapq.heapify(coming)
        while coming:
            time, rank, k = heapq.heappop(coming)
            back = math.inf if self.rejoin is None else time + self.rejoin
            yield Failure(time, rank, back)
            up = back if self.continues else time
            if up < math.inf:
                later = up + float(self._intervals(own[rank : rank + 1], k)[0])
                heapq.heappush(coming, (later, rank, k + 1))

    def _intervals(self, own: Words, k: int) -> Floats:
        """Seconds from a rank's start, or return, to its k-th failure from there, of each key."""
        assert self.mtbf is not None
        words = nth(own, np.full(len(own), k, np.uint64))
        return look_up(shifted_exponential(1.0).quantiles, words) * self.mtbf
