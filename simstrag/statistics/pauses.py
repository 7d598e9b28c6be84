"""Pauses: single steps far longer than those around them, of all ranks at once or of some.

The level of a rank is the running median of its steps.  Logs of seconds over it are counted in
standard deviations of the rank's noise, by the median absolute deviation.  Steps beyond one of
`FAR` are pauses if too many of them are `TIMES` as far for a noise that falls off like x^-`TAIL`:
a binomial test at `LEVEL`.  What all ranks pause in a step is common: a checkpoint, an evaluation.
What is beyond that is scattered: garbage collection, preemption, a neighbour's burst.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simstrag.arrays import Bools, Ints, Reals
from simstrag.statistics.student import f_upper_tail

WINDOW = 11
"""Steps of the running median: five pauses among them do not move it."""
FAR = 3.5, 4.5, 6.0
"""Standard deviations beyond which a step may be a pause."""
TIMES = 1.26, 1.6, 2.0, 3.0, 5.0, 8.0
"""How many times as far some of these steps have to be: pauses may be little or much longer than
the noise, and each distance tells some of them best."""
TAIL = 3
"""Noise beyond x is as frequent as x^-3 or less: heavier tails have no variance to speak of."""
LEVEL = 0.002
"""Rate of false alarms of one of these tests, uncorrected: they look at the same steps, and all
together stay below 1 % of drawn clean jobs (tests/verification/test_diagnosis_rates.py)."""
LEAST = 0.08
"""Least relative length of a pause, ASSUMED: shorter ones are taken as noise."""
MOST = 0.2
"""Largest share of the steps that pause, ASSUMED; where more do, they are how the job is."""
ALL = 0.75
"""Share of the ranks that pause together in a common pause, ASSUMED: logs round, and a fast rank
may overlap its part."""
FEW = 3
"""Fewest common pauses by which a period is told."""
KEEP = 0.9
"""Least share of them that keep to it."""


class Pauses(NamedTuple):
    """Seconds of pauses.

    common: of all ranks in each step, shape (steps,); 0 without one.
    scattered: of single ranks beyond that, shape (ranks, steps).
    level: seconds without pauses, shape (ranks, steps).
    period: steps from one common pause to the next; 0 where they are not periodic.
    phase: number of a step with one, modulo the period.
    """

    common: Reals
    scattered: Reals
    level: Reals
    period: int
    phase: int


def find_pauses(seconds: Reals, numbers: Ints | None = None) -> Pauses:
    """The pauses in seconds (ranks, steps).

    numbers: of the steps, which may have gaps.

    >>> steps = np.full((3, 40), 0.5) + np.random.default_rng(0).normal(0, 0.005, (3, 40))
    >>> steps[:, 9::10] += 2.0
    >>> found = find_pauses(steps)
    >>> np.flatnonzero(found.common), found.period, round(float(found.common.max()), 1)
    (array([ 9, 19, 29, 39]), 10, 2.0)
    """
    ranks, steps = seconds.shape
    numbers = np.arange(steps) if numbers is None else numbers
    usual = running_median(seconds)
    logs = np.log(np.maximum(seconds, np.finfo(float).tiny) / np.maximum(usual, 1e-300))
    least, most = (np.quantile(x, 1 - ALL, axis=0, method="lower") for x in (logs, seconds - usual))
    together = _pausing(least[None], ranks)[0]
    common = np.where(together, most, 0.0)
    long = _pausing(np.where(together, 0.0, logs)) if ranks > 1 else together[None]
    beyond = seconds - usual - common
    long |= together & (beyond > LEAST * usual)
    scattered = np.where(long, np.maximum(beyond, 0.0), 0.0)
    period, phase = _period(numbers[together])
    return Pauses(common, scattered, seconds - common - scattered, period, phase)


def _pausing(logs: Reals, together: int = 1) -> Bools:
    """Which steps of logs (ranks, steps) about 0 are pauses.

    together: ranks that all reach these logs.  Noise makes two do so as often as the square of it.
    """
    logs = logs - np.median(logs, axis=1, keepdims=True)
    noise = 1.4826 * np.median(np.abs(logs), axis=1, keepdims=True)
    tail, best = TAIL * min(together, 2), (LEVEL, np.zeros_like(logs, bool))
    for far in FAR:
        least = np.maximum(far * noise, np.log1p(LEAST))
        long = logs > least
        long &= long.mean(axis=1, keepdims=True) <= MOST
        distances = (logs / least)[long]
        for times in TIMES:
            p = _binomial(int((distances > times).sum()), len(distances), times**-tail)
            best = min(best, (p, long), key=lambda each: each[0])
    return best[1]


def _binomial(least: int, count: int, rate: float) -> float:
    """Probability of at least so many of a count."""
    if not least:
        return 1.0
    # I_rate(a, b) is the tail of F with 2 b and 2 a degrees of freedom.
    a, b = least, count - least + 1
    return f_upper_tail(a * (1 - rate) / (b * rate), 2 * b, 2 * a)


def running_median(seconds: Reals, window: int = WINDOW) -> Reals:
    """The median of the steps around each, shape (ranks, steps); shorter windows at the ends."""
    steps = seconds.shape[1]
    half = min(window, steps) // 2
    padded = np.pad(seconds, ((0, 0), (half, half)), mode="reflect" if steps > half else "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1, axis=1)
    found: Reals = np.median(windows, axis=-1)
    return found


def gather(scattered: Reals) -> float:
    """Seconds that all scattered pauses take if ranks pause at the same steps.

    The k-th pause of each rank is in the same step as the k-th of the others; longest first.
    """
    longest = -np.sort(-scattered, axis=1)
    return float(longest.max(axis=0).sum())


def _period(numbers: Ints) -> tuple[int, int]:
    """The distance of most pauses, and their phase; 0 where fewer than `FEW` keep to one."""
    apart = np.diff(numbers)
    if len(numbers) < FEW or not len(apart):
        return 0, 0
    period = int(np.median(apart))
    if period < 2:
        return 0, 0
    count = np.bincount(numbers % period)
    phase = int(np.argmax(count))
    return (period, phase) if count[phase] >= max(FEW, KEEP * len(numbers)) else (0, 0)
