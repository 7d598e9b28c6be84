"""How long single ranks of a job were silent while the others waited, and how long they may be.

A silence is a scattered pause of one rank, as `simstrag diagnose` finds them, that is longer than a
step.  Another record of the same length is expected to have as many, and one more that is longer
than the longest seen.  A Pareto tail extrapolates how long that one is (Hill, "A simple general
approach to inference about the tail of a distribution", 1975).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Floats
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario
from simstrag.statistics.pauses import find_pauses

MOST_SEEDS = 20
"""Seeds under which a scenario without a trace is looked at."""
TAIL = 3.0
"""The longest `TAIL` times sqrt(n) of n silences give the tail, as in Vehtari et al. (2024)."""
BANDWIDTH = 0.45
"""Half of Silverman's rule: of bandwidths from 0.3 to 0.9 the one with the least regret on 160
drawn jobs that no page and no test uses."""
PLACES = np.linspace(-1.5, 1.5, 7)
"""Atoms of the kernel, in bandwidths."""


@dataclass(frozen=True, eq=False)
class Silences:
    """Silences of a job, and the law of those to come.

    seconds: their lengths, ascending.
    observed: seconds of the job in which they were seen.
    step: seconds from one update to the next, in the median.
    weights: how often each is expected in another record of the same length; the last one is of a
        silence longer than all of them.
    tail: index a of that one: it is longer than x times the longest seen with probability x^-a.
        Fitted to the longest silences, and to one more with an index of 1, ASSUMED.

    Those to come are some percent shorter or longer than those seen (`BANDWIDTH`), so that no
    timeout is chosen for the gap between two of them.

    >>> seen = Silences.of([3.0, 5.0, 40.0], observed=3600.0, step=1.0)
    >>> seen.longer_than(np.array([1.0, 200.0])).round(2)
    array([4.  , 0.31])
    """

    seconds: Floats
    observed: float
    step: float
    weights: Floats
    tail: float

    @classmethod
    def of(cls, seconds: npt.ArrayLike, observed: float, step: float) -> Self:
        """The law that fits these silences."""
        lengths = np.sort(np.asarray(seconds, np.float64))
        logs = _tail_logs(lengths)
        tail = (len(logs) + 1) / (float(logs.sum()) + 1)
        return cls(lengths, observed, step, np.ones(len(lengths) + 1), tail)

    @classmethod
    def measure(cls, scenario: Scenario) -> Self:
        """Those of a scenario's steps under bsp, without its failures.

        A trace is looked at once.  Without one every seed of the scenario has silences of its own.

        Raises `InputError` for a job of one worker, which nobody waits for.
        """
        if scenario.workers < 2:
            raise InputError("one worker: timeouts are about workers that wait for each other")
        case = scenario.replaced(failures=None)
        traced = case.inputs.trace is not None
        found, observed, steps = list[Floats](), 0.0, list[Floats]()
        for seed in case.seed_list[: 1 if traced else MOST_SEEDS]:
            run = simulate(case, "bsp", seed, record_steps=True)
            assert run.steps is not None
            assert run.updates is not None
            ranks = np.asarray(run.steps["rank"])
            taken = np.asarray(run.steps["finish"]) - np.asarray(run.steps["start"])
            each = [taken[ranks == rank] for rank in range(case.workers)]
            durations = np.stack([own[: min(map(len, each))] for own in each])
            scattered = find_pauses(durations).scattered
            found.append(np.asarray(scattered, np.float64).ravel())
            times = np.asarray(run.updates["time"])
            steps.append(np.diff(times, prepend=0.0))
            observed += float(times[-1])
        step, lengths = float(np.median(np.concatenate(steps))), np.concatenate(found)
        return cls.of(lengths[lengths > step], observed, step)

    @cached_property
    def longest(self) -> float:
        """Seconds of the longest; those of a step where there is none."""
        return float(self.seconds[-1]) if len(self.seconds) else self.step

    @property
    def is_assumed(self) -> bool:
        """Whether so few were seen that the tail is mostly assumed."""
        return len(_tail_logs(self.seconds)) < 3

    @property
    def rate(self) -> float:
        """Silences per second of the job."""
        return float(self.weights.sum()) / self.observed

    @cached_property
    def _factors(self) -> Floats:
        """By what those to come differ from those seen, equally likely."""
        spread = float(np.log(self.seconds).std()) if len(self.seconds) else 0.0
        width = BANDWIDTH * spread * max(len(self.seconds), 1) ** -0.2
        return np.asarray(np.exp(width * PLACES))

    @cached_property
    def _atoms(self) -> tuple[Floats, Floats, Floats]:
        """Lengths to come in ascending order; and of the longest k their number and seconds."""
        lengths = np.outer(self.seconds, self._factors).ravel()
        weights = np.repeat(self.weights[:-1] / len(PLACES), len(PLACES))
        order = np.argsort(lengths, kind="stable")
        lengths, weights = lengths[order], weights[order]
        longer, seconds = np.cumsum([weights[::-1], (weights * lengths)[::-1]], axis=1)[:, ::-1]
        return lengths, np.append(longer, 0.0), np.append(seconds, 0.0)

    def longer_than(self, timeout: Floats) -> Floats:
        """How many silences beyond a timeout are expected in `observed` seconds."""
        lengths, above, _ = self._atoms
        seen = above[np.searchsorted(lengths, timeout, side="right")]
        beyond = np.maximum(timeout / self.longest, 1.0) ** -self.tail
        return np.asarray(seen + self.weights[-1] * beyond)

    def waited(self, timeout: Floats) -> Floats:
        """Seconds of silence up to a timeout, of all that are expected in `observed` seconds."""
        lengths, above, seconds = self._atoms
        place = np.searchsorted(lengths, timeout, side="right")
        seen = seconds[0] - seconds[place] + above[place] * timeout
        ratio, power = np.maximum(timeout / self.longest, 1.0), 1 - self.tail
        grown = np.log(ratio) if abs(power) < 1e-9 else (ratio**power - 1) / power
        last = np.minimum(timeout, self.longest) + self.longest * grown
        return np.asarray(seen + self.weights[-1] * last)

    def drawn(self, generator: np.random.Generator) -> Silences:
        """A law that these silences do not exclude: the Bayesian bootstrap (Rubin, 1981)."""
        logs = _tail_logs(self.seconds)
        tail = generator.gamma(len(logs) + 1) / (float(logs.sum()) + 1)
        weights = generator.exponential(size=len(self.weights))
        return replace(self, weights=weights, tail=tail)

    def draw(self, count: int, generator: np.random.Generator) -> Floats:
        """Lengths of so many silences to come."""
        index = generator.choice(len(self.weights), count, p=self.weights / self.weights.sum())
        seen = np.append(self.seconds, 0.0)[index] * generator.choice(self._factors, count)
        beyond = self.longest * generator.random(count) ** (-1 / self.tail)
        return np.where(index == len(self.seconds), beyond, seen)


def _tail_logs(lengths: Floats) -> Floats:
    """Logs of the longest silences over the one before them."""
    count = min(len(lengths) - 1, max(2, round(TAIL * len(lengths) ** 0.5)))
    if count < 1:
        return np.zeros(0)
    return np.asarray(np.log(lengths[-count:] / lengths[-count - 1]))
