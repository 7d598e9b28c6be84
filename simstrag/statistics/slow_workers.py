"""Which of several workers takes longer than its peers, and whether always, at times or once.

The excess of a worker in a step is log(its seconds / median of its peers').

The tests are one-sided and ask for more than `FLOOR`, so that ranks that differ by less are not
named however many steps there are.  Together they name a worker in at most `ALARM` of the jobs
that have no slow one:

- chronic: t test of the mean excess over all steps, or over the stretch of steps with the largest
  sum of excess, where the median exceeds the floor, too; the number of independent steps is
  n (1 - r) / (1 + r) for a lag-1 correlation r.
- periodic: t test of the steps that are equal modulo a period, against the others.
- one-off: steps in which the excess is `FAR` times the largest one of any other worker.  If large
  excesses fall off like x^-3 or faster, chance does that in FAR^-3 of jobs.

t tests are corrected for all workers, stretches and periods that they look at (Bonferroni).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.statistics.student import upper_tail

FLOOR = 0.05
"""Slowdown up to which a worker counts as like its peers."""
OVER = f"over {100 * FLOOR:.0f} %"
ALARM = 0.01
"""Rate of false alarms of all tests together."""
THROUGHOUT, STRETCH, PERIODIC = 0.003, 0.003, 0.002
"""The parts of `ALARM` for the three t tests."""
FAR = 8
"""How many times the largest excess of other workers makes a step stand out alone."""
ROUNDING = 1e-18
"""Mean square of logarithms that is no noise."""
FEWEST = 5
"""Least steps of a stretch, or of a phase of a period."""
SHORTER = 0.9
"""Share of the record below which a stretch is told apart from it."""
LONGEST = 50
"""Longest period, in steps."""
BURST = 0.25
"""Slowdown from which one step alone is worth a name."""


class Slowness(NamedTuple):
    """The result of a test on one worker.

    pattern: "chronic", "periodic" or "one-off".
    p: probability of such an excess by chance, corrected for all that the test looked at.
    slowdown: seconds over the median of its peers', in the slow steps.
    places: of the slow steps.
    period: steps from one slow step to the next; None unless periodic.
    test: the test, in words.
    """

    pattern: str
    p: float
    slowdown: float
    places: Ints
    period: int | None
    test: str


def excesses(seconds: Reals, peers: list[int] | None = None) -> Reals:
    """Log of seconds over the median of the other workers', which the first axis counts.

    peers: the workers that all are compared with, in place of all others.
    """
    logs = np.log(np.maximum(seconds, np.finfo(float).tiny))
    if peers is not None:
        return np.asarray(logs - np.median(logs[peers], axis=0))
    order = np.argsort(logs, axis=0)
    ascending, place = np.take_along_axis(logs, order, axis=0), np.argsort(order, axis=0)
    others = len(logs) - 1
    middle = (others - 1) // 2, others // 2
    lower, upper = (np.where(place > k, ascending[k], ascending[k + 1]) for k in middle)
    found: Reals = logs - (lower + upper) / 2
    return found


def slowness(excess: Reals, others: Reals, numbers: Ints) -> Slowness | None:
    """What the tests find of one worker; None where they find nothing.

    excess: of the worker, shape (steps,); others: of all others, shape (others, steps).
    numbers: of the steps, which may have gaps.
    """
    workers = len(others) + 1
    periodic = _passed(_periodic(excess, numbers), PERIODIC, workers)
    return periodic or _chronic(excess, others) or _one_off(excess, others)


def chronic(seconds: Reals, peers: list[int] | None = None) -> dict[int, Slowness]:
    """The chronically slow of several workers, by their place in seconds (workers, steps).

    peers: as in `excesses`.

    >>> seconds = 0.1 + np.random.default_rng(0).normal(0, 0.005, (4, 40))
    >>> seconds[2] *= 1.5
    >>> [(worker, round(found.slowdown, 1)) for worker, found in chronic(seconds).items()]
    [(2, 1.5)]
    """
    workers, steps = seconds.shape
    if workers < 2 or steps < FEWEST:
        return {}
    excess = excesses(seconds, peers)
    found = (
        (worker, _chronic(own, np.delete(excess, worker, axis=0)))
        for worker, own in enumerate(excess)
    )
    return {worker: each for worker, each in found if each is not None}


def slow_with(excess: Reals, others: Reals, mates: list[Slowness], workers: int) -> Slowness | None:
    """Whether a worker is slow in the steps in which its mates on a host are, by a t test.

    excess, others: see `slowness`.
    mates: what was found of them; workers: of the host.
    """
    places = max((each.places for each in mates), key=len)
    own = excess[places]
    if np.median(own) <= np.log1p(FLOOR):
        return None
    count = len(own) * independence(own - own.mean())
    deviation = max(float(own.std(ddof=1)), float(np.median(others.std(axis=1))))
    p = _t_test(own, count, deviation, count * (others.size / len(own) + 1) - 1)
    test = f"t test of {len(own)} steps in which its host is slow {OVER}"
    return _passed(_slowness("chronic", p, excess, places, test), STRETCH, workers)


def _chronic(excess: Reals, others: Reals) -> Slowness | None:
    """It is chronic throughout where no stretch that passes is clearly shorter than the record."""
    workers = len(others) + 1
    whole = _passed(_throughout(excess), THROUGHOUT, workers)
    part = _passed(_stretch(excess, others), STRETCH, workers)
    if whole is None or (part is not None and len(part.places) < SHORTER * len(excess)):
        return part
    return whole


def _passed(found: Slowness | None, level: float, workers: int) -> Slowness | None:
    """With p corrected for all workers, if that is at most the level of its test."""
    if found is None or found.p * workers > level:
        return None
    return found._replace(p=found.p * workers)


def _slowness(
    pattern: str, p: float, excess: Reals, places: Ints, test: str, period: int | None = None
) -> Slowness:
    slowdown = float(np.exp(np.mean(excess[places])))
    return Slowness(pattern, p, slowdown, places, period, test)


def _throughout(excess: Reals) -> Slowness | None:
    if np.median(excess) <= np.log1p(FLOOR):
        return None
    count = len(excess) * independence(excess - excess.mean())
    test = f"t test of {len(excess)} steps ({count:.0f} independent) {OVER}"
    return _slowness("chronic", _t_test(excess, count), excess, np.arange(len(excess)), test)


def _stretch(excess: Reals, others: Reals) -> Slowness | None:
    places = _extent(excess)
    own, outside = excess[places], np.delete(excess, places)
    if len(own) < FEWEST or np.median(own) <= np.log1p(FLOOR):
        return None
    residual = excess - (outside.mean() if len(outside) else 0.0)
    residual[places] = own - own.mean()
    count = len(own) * independence(residual)
    stretches = len(excess) * (len(excess) - 1) / 2
    test = f"t test of a stretch of {len(own)} steps ({count:.0f} independent) {OVER}"
    usual = float(np.median(others.std(axis=1)))
    deviation = max(float(own.std(ddof=1)), float(residual.std(ddof=2)), usual)
    p = _t_test(own, count, deviation, count * (others.size / len(own) + 1) - 1)
    return _slowness("chronic", p * stretches, excess, places, test)


def _extent(excess: Reals) -> Ints:
    """Places of the stretch with the largest sum of excess over the floor.

    Steps on either side are as likely to be slow as not, if they differ by half the slowdown.
    """
    high = float(np.sort(excess)[int(0.9 * (len(excess) - 1))])  # nine tenths are not above it
    floor = max(float(np.log1p(FLOOR)), high / 2)
    total = np.concatenate([[0.0], np.cumsum(excess - floor)])
    lowest = np.minimum.accumulate(total)
    end = int(np.argmax(total - lowest))
    begin = int(np.argmin(total[: end + 1]))
    return np.arange(begin, end)


def _periodic(excess: Reals, numbers: Ints) -> Slowness | None:
    """The period and phase with the smallest p; numbers of steps may have gaps."""
    best = 1.0, 0, 0
    looked = 0
    for period in range(2, min(LONGEST, len(excess) // FEWEST) + 1):
        phase = numbers % period
        count = np.bincount(phase, minlength=period)
        enough = (count >= FEWEST) & (count <= len(excess) - FEWEST)
        total = np.bincount(phase, excess, period)
        square = np.bincount(phase, excess**2, period)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean, rest = total / count, (excess.sum() - total) / (len(excess) - count)
            variance = (square - count * mean**2) / (count - 1)
            other = (excess**2).sum() - square - (len(excess) - count) * rest**2
            spread = variance / count + other / (len(excess) - count - 1) / (len(excess) - count)
            t = (mean - rest - np.log1p(FLOOR)) / np.sqrt(np.maximum(spread, 1e-24))
        looked += int(enough.sum())
        t = np.where(enough, t, -np.inf)
        at = int(np.argmax(t))
        if t[at] > 0:
            best = min(best, (upper_tail(float(t[at]), int(count[at]) - 1), period, at))
    p, period, phase_of = best
    if not period:
        return None
    places = np.flatnonzero(numbers % period == phase_of)
    test = f"t test of steps {phase_of} modulo {period} against the others {OVER}"
    return _slowness("periodic", p * looked, excess, places, test, period)


def _one_off(excess: Reals, others: Reals) -> Slowness | None:
    limit = max(float(np.log1p(BURST)), FAR * float(others.max()))
    places = np.flatnonzero(excess > limit)
    if not len(places):
        return None
    test = f"an excess of {FAR} times the largest of any other worker"
    return _slowness("one-off", float(FAR) ** -3, excess, places, test)


def independence(residual: Reals) -> float:
    """Independent values per value of a correlated series about 0; 1 for rounding alone."""
    power = float(residual @ residual)
    is_noise = power > ROUNDING * len(residual)
    lag = float(residual[1:] @ residual[:-1]) / power if is_noise else 0.0
    lag = min(max(lag, 0.0), 0.95)
    return (1 - lag) / (1 + lag)


def _t_test(
    excess: Reals, count: float, deviation: float | None = None, others: float = 0.0
) -> float:
    """Probability of a mean so far above the floor.

    count: independent steps.
    deviation: of a step, where it is not of these steps alone; others: its degrees of freedom.
    """
    if count < 2:
        return 1.0
    own = float(excess.std(ddof=1)) if deviation is None else deviation
    t = (float(excess.mean()) - np.log1p(FLOOR)) / max(own / np.sqrt(count), 1e-12)
    return upper_tail(t, max(count - 1, others))
