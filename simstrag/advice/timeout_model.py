"""What timeouts lose, in closed form: a renewal argument over failures and silences.

Every failure of a rank is silent, ASSUMED: the others learn of it by the timeout.  A silence that
outlasts the timeout is taken for a failure, and its rank is restarted.  A loss is in seconds of the
whole job for each second of training without loss: all ranks stand still, or their work is lost.
While they do, next to no rank falls silent, so losses of several mishaps add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from simstrag.advice.silences import Silences
from simstrag.arrays import Floats
from simstrag.errors import InputError
from simstrag.scenario.failures import FailuresSection
from simstrag.scenario.scenario import Scenario

DAY = 86400.0
ALIKE = 0.01
"""Of minimums of workers whose losses differ by less, the largest is chosen."""
GRID, MOST_RETURNS = 200, 40
"""Timeouts that are tried, and most quorum timeouts."""
LONGEST = 3600.0
"""The longest timeout that is tried, in seconds; longer where silences are."""


class Timeouts(NamedTuple):
    """Seconds of silence after which a rank is lost, seconds more that the others wait for it, and
    how many workers must be there to go on."""

    detection: float
    quorum: float = 0.0
    workers: int = 1


@dataclass(frozen=True, eq=False)
class FailingJob:
    """What timeouts act on: a synchronous job, its failures and its silences.

    scenario: the job; its failures section is `section`.
    silences: of single ranks.
    rate: failures of one rank per second.
    counted: failures that the rate is counted from; None where it is declared.
    returns: seconds from when a rank is known to be lost until it is back, equally likely.

    Raises `InputError` where nothing says how often ranks fail, or when they are back.
    """

    scenario: Scenario
    silences: Silences
    section: FailuresSection
    rate: float
    counted: int | None
    returns: Floats

    @classmethod
    def of(cls, scenario: Scenario, failures: FailuresSection | None = None) -> Self:
        """A scenario, with its own failures or with those of another one."""
        section = failures or scenario.failures
        if section is None:
            raise InputError(
                "nothing says how often ranks fail; give the scenario a section failures, or name "
                "one that has it: --failures SCENARIO"
            )
        rate, counted = _rate(section, scenario.workers)
        returns = _returns(section)
        if not section.continues and section.checkpoint is None:
            raise InputError(
                "failures has no checkpoint, so a restart loses the whole run; give one, such as "
                "checkpoint: {seconds: 600}"
            )
        return cls(scenario, Silences.measure(scenario), section, rate, counted, returns)

    @property
    def workers(self) -> int:
        """Ranks, or replicas, that fail and are waited for."""
        return self.scenario.workers

    @cached_property
    def pace(self) -> Floats:
        """Progress per step with 0, 1, ... workers, as a share of that with all."""
        there = np.arange(self.workers + 1) * float(self.scenario.learner.batch)
        progress = there / (self.scenario.learner.noise_scale + np.maximum(there, 1e-300))
        return np.asarray(progress / progress[-1])

    def drawn(self, generator: np.random.Generator) -> FailingJob:
        """A job that neither the silences nor the counted failures exclude."""
        rate = self.rate
        if self.counted is not None:
            rate *= generator.gamma(self.counted) / self.counted
        return replace(self, rate=rate, silences=self.silences.drawn(generator))

    def false_positives(self, detection: Floats) -> Floats:
        """Ranks that are taken for lost though they live, per day."""
        return self.silences.longer_than(detection) * (DAY / self.silences.observed)

    def waiting(self, detection: Floats) -> Floats:
        """Seconds in which all wait for silent ranks, lost ones included."""
        seen = self.silences.waited(detection) / self.silences.observed
        return np.asarray(self.workers * self.rate * detection + seen)

    def loss(self, timeouts: Timeouts) -> float:
        """Seconds lost for each second of training."""
        found = self.losses(np.array([timeouts.detection]), timeouts.quorum, (timeouts.workers,))
        return float(found[0, 0])

    def losses(
        self, detection: Floats, quorum: float = 0.0, workers: tuple[int, ...] = (1,)
    ) -> Floats:
        """Seconds lost, of each detection timeout and each minimum.

        quorum: seconds of the quorum timeout.
        """
        lost = self.workers * self.rate + self.false_positives(detection) / DAY
        waiting = self.waiting(detection)
        if not self.section.continues:
            own = self.section.restart + self._redone
            return np.asarray(waiting + lost * own)[:, None]
        regroup, half = self.section.regroup, self.silences.step / 2
        late = np.maximum(self.returns - quorum, 0.0)
        waits, away = float(np.minimum(self.returns, quorum).mean()), float(late.mean())
        again = float((late > 0).mean()) * half
        fewer = 1 - float(self.pace[-2])  # counted as idle
        shrink = float(((late > 0) * (regroup - fewer * np.minimum(late, regroup))).mean())
        chance = binomial(self.workers, np.minimum(lost / self.workers * away, 0.99))
        found = np.empty((len(detection), len(workers)))
        each = half + waits + regroup + again
        for column, least in enumerate(workers):
            there = self.workers - np.arange(self.workers + 1)
            idle = np.where(there >= least, 1 - self.pace[there], 1.0)
            goes_on = chance[:, : self.workers - least].sum(axis=1)  # so many away before it
            found[:, column] = waiting + lost * (each + shrink * goes_on) + chance @ idle
        return found

    @property
    def _redone(self) -> float:
        """Seconds of work that a restart repeats, in the mean."""
        due, step = self.section.checkpoint, self.silences.step
        assert due is not None
        if due.on_failure:
            return step / 2
        every = (due.updates or 0) * step if due.seconds is None else due.seconds
        return (every + due.cost + step) / 2

    def choose(self) -> Timeouts:
        """The timeouts of the least loss; of minimums that lose alike the largest."""
        most = tuple(range(1, self.workers + 1)) if self.section.continues else (1,)
        detection = self.detections
        quorums = [0.0]
        if self.section.continues:
            quorums += np.unique(np.quantile(
                self.returns, np.linspace(0, 1, MOST_RETURNS), method="inverted_cdf"
            )).tolist()  # fmt: skip
        best, alike = math.inf, Timeouts(float(detection[0]))
        for quorum in quorums:
            found = self.losses(detection, quorum, most)
            row, column = np.unravel_index(int(found.argmin()), found.shape)
            if found[row, column] < best:
                best = float(found[row, column])
                least = Timeouts(float(detection[row]), quorum, most[int(column)])
                near = np.flatnonzero(found[row] <= (1 + ALIKE) * best)
                alike = least._replace(workers=most[int(near[-1])])
        return Timeouts(_round_up(alike.detection), _round_up(alike.quorum), alike.workers)

    @cached_property
    def detections(self) -> Floats:
        """The detection timeouts that are tried: from a step on, and just beyond long silences."""
        least, seen = self.silences.step, self.silences.seconds
        even = np.geomspace(least, max(LONGEST, 2 * self.silences.longest, 2 * least), GRID)
        beyond = np.unique(seen[seen >= least])[-GRID:] * 1.001
        return np.unique(np.concatenate([even, beyond]))


def _rate(section: FailuresSection, workers: int) -> tuple[float, int | None]:
    """Failures of one rank per second, and how many were counted."""
    if section.mtbf is not None:
        return 1 / section.mtbf, None
    assert section.events is not None
    seconds = max(max(event.time, event.back or 0.0) for event in section.events)
    if seconds <= 0:
        raise InputError("failures.events all fail at 0 s, which says no rate; give mtbf")
    return len(section.events) / workers / seconds, len(section.events)


def _returns(section: FailuresSection) -> Floats:
    """Seconds from when a rank is known to be lost until it is back."""
    if not section.continues:
        return np.array([section.restart])
    back = [section.rejoin]
    if section.events is not None:
        back = [event.back and event.back - event.time for event in section.events]
    known = [seconds - section.detection for seconds in back if seconds is not None]
    if not known:
        raise InputError(
            "no failure says when its rank is back, so a rank that is taken for lost never "
            "returns; give failures.rejoin, or each of the events its back"
        )
    return np.array(known)


def _round_up(seconds: float) -> float:
    """Seconds with two digits, and not less.

    >>> _round_up(32.1), _round_up(141.0), _round_up(0.0)
    (33.0, 150.0, 0.0)
    """
    if seconds <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return round(math.ceil(seconds / unit - 1e-9) * unit, 9)


def binomial(count: int, chance: Floats) -> Floats:
    """Probabilities of 0 to `count` successes, a row for each chance."""
    from scipy.stats import binom  # slow to import

    return np.asarray(binom.pmf(np.arange(count + 1), count, chance[:, None]))
