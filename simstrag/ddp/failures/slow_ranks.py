"""Names slow ranks while a job runs: one long step at once, a lasting slowdown by a test.

The tests are those of `simstrag.statistics.slow_workers`, as for a record.  They look again and
again, so look k may take 1 / (k (k + 1)) of the rate of false alarms: all looks keep to it.

What was said of a rank changes on new evidence only (`_Standing`), so that a rank near the
threshold is not named and cleared within seconds, nor are ranks that share cores by turns.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Reals
from simstrag.ddp.failures.common_pauses import CommonPauses
from simstrag.ddp.failures.diagnosis import warn
from simstrag.statistics.groups import reference
from simstrag.statistics.slow_workers import FEWEST, FLOOR, Slowness, chronic, excesses, slowness
from simstrag.statistics.student import upper_tail

TIMES, LEAST = 10.0, 1.0
"""A slow step takes more than TIMES times as long as the others', and more than LEAST seconds."""

LOOK, WINDOW = 40, 200
"""Steps of every rank between two looks, and the steps that a look takes in."""

FALSE_ALARMS = 0.01
"""Rate of jobs without a slow rank in which the looks name one."""
TESTS = 3
"""Of a rank in a look: throughout, a stretch, a period."""

CALM = 30.0
"""Least seconds between two messages on a rank.  ASSUMED: enough to read and act on one."""
MOST_DOUBLINGS = 4
"""Of steps and seconds between messages.  ASSUMED: no warning waits longer than 16 times `CALM`."""
SURE = 0.01
"""Level of the test by which a rank is no longer slow, or slow again."""
MOST_SPANS = 64
"""Spans that are kept of a rank; of more, neighbours are joined."""


class SlowRankDetector:
    """Names slow ranks once, and again when that changes; and pauses that all ranks share.

    A long step is compared with two steps of every other rank, the last one before it and the first
    one after it; the longer of the two counts.  So a pause of all ranks, as for an evaluation,
    makes none of them slow.  A step is judged once half of the others have reported.

    A chronically slow rank is one that the tests name, with a slow stretch that reaches into the
    last `LOOK` steps.

    say: called with the sentence.

    >>> slow = SlowRankDetector(print)
    >>> for rank, seconds in ((0, 0.05), (1, 0.05), (2, 6.0), (0, 0.05)):
    ...     slow.add(rank, 7, seconds)
    rank 2 is slow: it took 6.0 s for step 7, the others 0.05 s
    """

    def __init__(self, say: Callable[[str], None] = warn) -> None:
        self._say, self._named = say, set[int]()
        self._last: dict[int, float] = {}
        self._long: dict[int, _LongStep] = {}
        self._window: dict[int, deque[tuple[int, float]]] = {}
        self._new: dict[int, int] = {}
        self._looks = self._untested = 0
        self._patience, self._standings = _Patience(), dict[int, _Standing]()
        self._pauses = CommonPauses()

    def add(self, rank: int, step: int, seconds: float) -> None:
        """Report the local time of a step."""
        self.extend([(rank, step, seconds)])

    def extend(self, reports: Iterable[tuple[int, int, float]]) -> None:
        """Report local times as (rank, step, seconds); one look is at all of them."""
        for rank, step, seconds in reports:
            self._judge_long_steps(rank, step, seconds)
            self._window.setdefault(rank, deque(maxlen=WINDOW)).append((step, seconds))
            self._new[rank] = self._new.get(rank, 0) + 1
        if len(self._new) > 1 and min(self._new.values()) >= LOOK:
            self._look()
            self._new = dict.fromkeys(self._new, 0)

    def slowest(self) -> tuple[int, float] | None:
        """The rank that is chronically slow by the most, and its computing over that of its peers.

        As of the last look; None where no rank is called chronically slow.
        """
        slow = [(rank, each.factor) for rank, each in self._standings.items() if each.is_slow]
        return max(slow, key=lambda pair: pair[1], default=None)

    def remove(self, rank: int) -> None:
        """Stop comparing a rank that has left."""
        for reports in (self._last, self._long, self._window, self._new, self._standings):
            reports.pop(rank, None)

    def _judge_long_steps(self, rank: int, step: int, seconds: float) -> None:
        longer = max(seconds, self._last.get(rank, 0.0))
        self._last[rank] = seconds
        for other in [other for other in self._long if other != rank]:
            at, took, peers = self._long[other]
            peers.setdefault(rank, longer)
            if 2 * len(peers) >= len(self._last) - 1:
                del self._long[other]
                usual = statistics.median(peers.values())
                if took > TIMES * usual:
                    self._named.add(other)
                    self._say(
                        f"rank {other} is slow: it took {took:.1f} s for step {at}, the others "
                        f"{usual:.2g} s"
                    )
        if seconds > LEAST and rank not in self._named:
            self._long.setdefault(rank, _LongStep(step, seconds, {}))

    def _look(self) -> None:
        """Test the last steps of all ranks, as many as each has."""
        self._looks += 1
        ranks = sorted(self._window)
        count = min(map(len, self._window.values()))
        reports = [list(self._window[rank])[-count:] for rank in ranks]
        seconds = np.array([[took for _, took in own] for own in reports])
        excess, new = excesses(seconds, reference(seconds)), min(count, *self._new.values())
        self._untested += new
        numbers = np.array([[step for step, _ in own] for own in reports])
        if (numbers == numbers[0]).all():  # under policies that wait, ranks are in step
            for sentence in self._pauses.update(seconds, numbers[0]):
                self._say(sentence)
        found = self._test(seconds, excess, reports) if count >= FEWEST else {}
        for place, rank in enumerate(ranks):
            steps = [step for step, _ in reports[place]]
            span = _Span(
                steps[-1] - (steps[-new - 1] if new < count else steps[0] - 1),
                float(seconds[:, -new:].mean(axis=1).max()), float(excess[place, -new:].mean()),
            )  # fmt: skip
            standing = self._standings.setdefault(rank, _Standing(rank, self._patience))
            if sentence := standing.update(span, found.get(place), steps):
                self._say(sentence)

    def _test(
        self, seconds: Reals, excess: Reals, reports: list[list[tuple[int, float]]]
    ) -> dict[int, Slowness]:
        """The slowness of ranks that lasts until now; periods once in `WINDOW` steps, for time."""
        found = chronic(seconds, reference(seconds))
        if self._untested >= WINDOW:
            self._untested = 0
            for place, own in enumerate(reports):
                others, steps = np.delete(excess, place, axis=0), np.array([k for k, _ in own])
                one = slowness(excess[place], others, steps)
                if one is not None and one.period is not None:
                    found[place] = one
        limit = FALSE_ALARMS / TESTS / (self._looks * (self._looks + 1))
        lately = excess.shape[1] - LOOK
        return {
            place: one
            for place, one in found.items()
            if one.p <= limit and (one.period is not None or one.places[-1] >= lately)
        }


class _LongStep(NamedTuple):
    """A step to be judged: its number, its seconds, and those of peers that have reported since."""

    step: int
    seconds: float
    peers: dict[int, float]


class _Span(NamedTuple):
    """Successive steps of a rank: how many, their mean seconds on the slowest rank, the excess."""

    steps: int
    seconds: float
    excess: float

    @property
    def length(self) -> float:
        """In seconds, also of steps between them that were not seen."""
        return self.steps * self.seconds


@dataclass
class _Patience:
    """What must have passed since the last message on a rank, once the job had one to withdraw.

    It doubles with each withdrawal: where ranks are slow by turns, n steps have of the order of
    log n messages.
    """

    steps: int = WINDOW
    seconds: float = CALM
    withdrawals: int = 0

    def double(self) -> None:
        self.withdrawals += 1
        if self.withdrawals <= MOST_DOUBLINGS:
            self.steps, self.seconds = 2 * self.steps, 2 * self.seconds


class _Standing:
    """What was said of a rank, and its spans since then.

    The first warning of a job follows the tests of a look.  It is withdrawn after as many steps as
    gave it, and as patience asks for, if in these the rank is significantly not slow: by a t test
    of the means of spans against `FLOOR`, for which steps need not be independent.  After that,
    a look's tests and the same t test must name a rank, in as many steps as patience asks for,
    none older than the last message on it.
    """

    def __init__(self, rank: int, patience: _Patience) -> None:
        self._rank, self._patience = rank, patience
        self.is_slow, self._is_periodic, self.factor = False, False, 1.0
        self._spans: list[_Span] = []
        self._given = 0
        """Steps of the stretch that gave the last warning."""

    def update(self, span: _Span, found: Slowness | None, steps: Sequence[int]) -> str:
        """What there is to say after a look; empty if nothing changed.

        found: by the tests of the look; steps: the numbers of those it took in.
        """
        self._spans.append(span)
        self.factor = float(np.exp(span.excess))
        if len(self._spans) > MOST_SPANS:
            self._spans = [*map(_joined, self._spans[::2], self._spans[1::2]), self._spans[-1]]
        if found is not None and found.period is not None:
            return self._name_period(found, steps)
        if found is not None and not self.is_slow:
            if self._patience.withdrawals and not self._is_sure(1):
                return ""
            self.is_slow, self._given, self._spans = True, len(found.places), []
            return (
                f"rank {self._rank} is chronically slow: it computes {found.slowdown:.2f} times as "
                f"long as its peers since step {steps[found.places[0]]} ({found.test}; {_p(found)})"
            )
        if found is None and self.is_slow and self._is_sure(-1):
            late = self._latest()
            excess = float(np.exp(np.mean([each.excess for each in late])))
            count = sum(each.steps for each in late)
            self._patience.double()
            self.is_slow, self._spans = False, []
            return (
                f"rank {self._rank} is no longer slow: it computed {excess:.2f} times as long as "
                f"its peers in the last {count} steps"
            )
        return ""

    def _name_period(self, found: Slowness, steps: Sequence[int]) -> str:
        """The warning of a period, which is given once."""
        if self._is_periodic:
            return ""
        self._is_periodic = True
        return (
            f"rank {self._rank} is slow in one of every {found.period} steps, such as step "
            f"{steps[found.places[-1]]}: it computes {found.slowdown:.2f} times as long as its "
            f"peers there ({found.test}; {_p(found)})"
        )

    def _latest(self) -> list[_Span]:
        """The latest spans that are enough for a message; none if all are too few."""
        steps, seconds = 0, 0.0
        asked = max(self._given, self._patience.steps)
        for k, each in enumerate(reversed(self._spans), 1):
            steps, seconds = steps + each.steps, seconds + each.length
            if k >= FEWEST and steps >= asked and seconds >= self._patience.seconds:
                return self._spans[-k:]
        return []

    def _is_sure(self, sign: int) -> bool:
        """Whether the excess of the latest spans, or of all, is on this side of the floor."""
        late = self._latest()
        return bool(late) and any(_tail(each, sign) <= SURE / 2 for each in (late, self._spans))


def _tail(spans: Sequence[_Span], sign: int) -> float:
    """Probability of a mean excess so far above the floor; below it for a negative sign."""
    excess = np.array([each.excess for each in spans])
    error = max(float(excess.std(ddof=1)) / np.sqrt(len(excess)), 1e-12)
    t = sign * (float(excess.mean()) - float(np.log1p(FLOOR))) / error
    return upper_tail(t, len(excess) - 1)


def _joined(first: _Span, second: _Span) -> _Span:
    steps = first.steps + second.steps
    share = second.steps / steps
    return _Span(
        steps, (first.length + second.length) / steps,
        (1 - share) * first.excess + share * second.excess,
    )  # fmt: skip


def _p(found: Slowness) -> str:
    return f"p = {found.p:.2g}" if found.p >= 1e-6 else "p < 1e-06"
