"""`Snapshot`: what is known of a run at one moment; terminal, page and metrics show the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.rendering import answer, html_fragment
from simstrag.statistics.slow_workers import FLOOR
from simstrag.whatif.culprits import over_peers

SLOW = 1 + FLOOR
"""Ratio to its peers from which a rank is drawn as slow: the floor of the tests."""

NOTABLE = 0.05
"""Share of all waiting from which the rank that it was for is listed."""


class WatchedRank(NamedTuple):
    """One rank.

    step: the newest step that it has written.
    computing, waiting: seconds of a mean step of the latest ones.
    factor: its computing over the median of its peers', of the same steps.
    awaited: GPU-seconds that the others have waited for it so far.
    last: steps in which they waited for it.
    groups: of which groups they were, such as `shard 0`, where ranks have several.
    silent: seconds since it wrote, if the others went on meanwhile; else 0.
    """

    rank: int
    step: int
    computing: float
    waiting: float
    factor: float
    awaited: float
    last: int
    groups: tuple[str, ...]
    silent: float


class Warned(NamedTuple):
    """A warning, and the newest step when it was given."""

    step: int
    text: str


class AdviceSoFar(NamedTuple):
    """What `diagnose` and a quick `advise` said of steps so far.

    lines: of the diagnosis, with their labels.
    action: what to run, by `advise`; empty where it has no scenario.
    assumed: what the action assumes of the job; empty for nothing.
    first, last: the steps that it is of.
    made: when, in seconds since 1970.
    """

    lines: tuple[tuple[str, str], ...]
    action: str
    assumed: str
    first: int
    last: int
    made: float

    def line(self, label: str) -> str:
        """The first line of a label; empty without one."""
        return next((text for own, text in self.lines if own == label), "")


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a run at one moment.

    source: its folders.
    made: when this was made, in seconds since 1970.
    written: when the run wrote last; 0 before.
    is_over: whether the run has ended, or has written nothing for long.
    is_synced: whether ranks wait for each other in every step, so that losses are known.
    share: share of what was written that is read.
    first, last, steps: numbers of steps, and how many count: all but start-up and incomplete ones.
    gpus, gpu_price: of the job; price of a GPU-hour, or None.
    spent, lost: GPU-seconds of these steps, and those of them that ranks waited for the last one.
    ranks: of each rank.
    numbers, own: the latest steps and each rank's own seconds in them, shape (ranks, steps).
    step_seconds: of a mean step of the latest ones.
    slowest: the rank that tests call chronically slow, and its factor; None without one.
    warnings: the latest, oldest first.
    advice: what would help; None before the first.
    why_no_advice: why there is none, or where it runs; empty if there is nothing to say.
    """

    source: str
    made: float
    written: float
    is_over: bool
    is_synced: bool
    share: float
    first: int
    last: int
    steps: int
    gpus: int
    gpu_price: float | None
    spent: float
    lost: float
    ranks: tuple[WatchedRank, ...]
    numbers: Ints
    own: Reals
    step_seconds: float
    slowest: tuple[int, float] | None
    warnings: tuple[Warned, ...]
    advice: AdviceSoFar | None = None
    why_no_advice: str = ""

    @property
    def lost_hours(self) -> float:
        """GPU-hours lost so far."""
        return self.lost / 3600

    @property
    def lost_money(self) -> float | None:
        """At the price of a GPU-hour; None without a price."""
        return None if self.gpu_price is None else self.gpu_price * self.lost_hours

    @property
    def lost_share(self) -> float:
        """Share of all GPU-seconds so far that was lost."""
        return self.lost / self.spent if self.spent else 0.0

    @property
    def age(self) -> float:
        """Seconds since the run wrote."""
        return max(0.0, self.made - self.written) if self.written else 0.0

    @property
    def wrong(self) -> set[int]:
        """The ranks that are chronically slow or silent."""
        silent = {each.rank for each in self.ranks if each.silent}
        return silent if self.slowest is None else {*silent, self.slowest[0]}

    def picture(self, columns: int) -> tuple[Reals, Ints]:
        """How many times as long as its peers each rank computed, over the latest steps.

        Returns ratios of shape (ranks, at most `columns`), and the first step of each column.
        """
        steps = len(self.numbers)
        count = min(columns, steps)
        begins = np.linspace(0, steps, count, endpoint=False).astype(np.int64)
        if not count:
            return np.ones((len(self.ranks), 0)), self.numbers
        return over_peers(np.add.reduceat(self.own, begins, axis=1)), self.numbers[begins]

    @property
    def awaited(self) -> list[WatchedRank]:
        """The ranks that cost others a share of all waiting that is worth a line, most first."""
        found = [each for each in self.ranks if each.awaited > NOTABLE * self.lost]
        return sorted(found, key=lambda each: -each.awaited)

    @property
    def document(self) -> dict[str, Any]:
        """The contents of `--json`."""
        return {
            "source": self.source, "is_over": self.is_over, "seconds_since_written": self.age,
            "read_share": self.share, "steps": self.steps,
            "first_step": None if self.first < 0 else self.first,
            "last_step": None if self.last < 0 else self.last,
            "step_seconds": self.step_seconds, "gpus": self.gpus,
            "spent_gpu_hours": self.spent / 3600,
            "lost_gpu_hours": self.lost_hours if self.is_synced else None,
            "lost_cost": self.lost_money if self.is_synced else None,
            "slowest": None if self.slowest is None else {
                "rank": self.slowest[0], "factor": self.slowest[1],
            },
            "ranks": [each._asdict() for each in self.ranks],
            "warnings": [each._asdict() for each in self.warnings],
            "advice": None if self.advice is None else {
                **self.advice._asdict(), "lines": [list(each) for each in self.advice.lines],
            },
            "why_no_advice": self.why_no_advice or None,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Snapshot of {self.source} at step {self.last}; print it>"

    def __str__(self) -> str:
        """The lines that the command prints without a terminal."""
        return "\n".join(answer(self))

    def _repr_html_(self) -> str:
        return html_fragment(self)
