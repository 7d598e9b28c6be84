"""Who was slow: workers that took longer than their peers, and whether always, at times or once.

A worker is one stage of one replica.  Its peers are the same stage of the other replicas, which do
the same work.  Its excess in a step is log(own computing / median of its peers).

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

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simstrag.whatif.layout import Layout
from simstrag.whatif.record import BACKWARD, FORWARD, Floats, Ints
from simstrag.whatif.student import upper_tail

FLOOR = 0.05
"""Slowdown up to which a worker counts as like its peers."""
OVER = f"over {100 * FLOOR:.0f} %"
ALARM = 0.05
"""Rate of false alarms of all tests together."""
THROUGHOUT, STRETCH, PERIODIC = 0.015, 0.01, 0.01
"""What the t tests have of it."""
FAR = 4
"""How many times the largest excess of other workers makes a step stand out alone."""
FEWEST = 5
"""Least steps of a stretch, or of a phase of a period."""
SHORTER = 0.9
"""Share of the record below which a stretch is told apart from it."""
LONGEST = 50
"""Longest period, in steps."""
BURST = 0.25
"""Slowdown from which one step alone is worth a name."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A worker that is slower than its peers.

    replica, stage, rank: which one.
    pattern: "chronic", "periodic" or "one-off".
    slowdown: its computing over the median of its peers', in the steps where it is slow.
    steps: numbers of these steps.
    since: the first of them; until: the last.
    period: steps from one slow step to the next; None unless periodic.
    p: probability of such an excess by chance, corrected for all that the test looked at.
    test: the test, in words.
    """

    replica: int
    stage: int
    rank: int
    pattern: str
    slowdown: float
    steps: tuple[int, ...]
    period: int | None
    p: float
    test: str

    @property
    def since(self) -> int:
        """The first slow step."""
        return self.steps[0]

    @property
    def until(self) -> int:
        """The last slow step."""
        return self.steps[-1]


class _Sign(NamedTuple):
    """What a test found: its name, corrected p, the slow steps as places, a period."""

    pattern: str
    p: float
    places: Ints
    period: int | None
    test: str


def computing(layout: Layout) -> Floats:
    """Seconds that each worker computes in each step, shape (replicas, stages, steps).

    Of a pipeline only forward and backward count, which all replicas do alike.
    """
    own = layout.find(FORWARD, BACKWARD)
    if not own.any():
        own = ~layout.communicates
    return np.stack(
        [
            layout.duration[own & (layout.stage == stage)].sum(axis=0, dtype=np.float64)
            for stage in range(layout.stages)
        ],
        axis=1,
    )


def excesses(seconds: Floats) -> Floats:
    """Log of computing over the median of the same stage in the other replicas, same shape."""
    logs = np.log(np.maximum(seconds, np.finfo(float).tiny))
    order = np.argsort(logs, axis=0)
    ascending, place = np.take_along_axis(logs, order, axis=0), np.argsort(order, axis=0)
    peers = len(logs) - 1
    lower, upper = (
        np.where(place > k, ascending[k], ascending[k + 1]) for k in ((peers - 1) // 2, peers // 2)
    )
    found: Floats = logs - (lower + upper) / 2
    return found


def excess_by_part(layout: Layout, slow: Culprit) -> dict[tuple[str, int], float]:
    """What each part of a slow worker's step has of the seconds that it computes longer.

    Parts by kind and number, the largest share first.  Longer is than the median of its peers, over
    the steps in which it is slow.
    """
    own = ~layout.communicates & (layout.stage == slow.stage)
    k = layout.replica.tolist().index(slow.replica)
    seconds = layout.duration[own][..., np.isin(layout.step, slow.steps)].astype(np.float64)
    over = (seconds[:, k] - np.median(np.delete(seconds, k, axis=1), axis=1)).sum(axis=1)
    keys = zip(layout.kind[own].tolist(), layout.number[own].tolist(), strict=True)
    shares = {
        (layout.kinds[kind], number): share
        for (kind, number), share in zip(keys, (over / over.sum()).tolist(), strict=True)
    }
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def culprits(layout: Layout) -> tuple[Culprit, ...]:
    """The workers that the tests name, the slowest first.

    None are named without peers (one replica) or in fewer than 5 steps.
    """
    seconds = computing(layout)
    replicas, stages, steps = seconds.shape
    if replicas < 2 or steps < FEWEST:
        return ()
    excess = excesses(seconds)
    named = []
    for replica in range(replicas):
        for stage in range(stages):
            own = excess[replica, stage]
            others = np.delete(excess.reshape(-1, steps), replica * stages + stage, axis=0)
            sign = _examine(own, layout.step, len(others) + 1) or _one_off(own, others)
            if sign is None:
                continue
            at = np.flatnonzero(layout.stage == stage)[0]
            rank = int(layout.rank[at, replica])
            named.append(
                _culprit(int(layout.replica[replica]), stage, rank, sign, own, layout.step)
            )
    return tuple(sorted(named, key=lambda each: -len(each.steps) * np.log(each.slowdown)))


def chronic(seconds: Floats) -> tuple[Culprit, ...]:
    """The ranks that are chronically slow by the same tests, from seconds (ranks, steps) alone.

    Ranks and steps are counted from 0.

    >>> seconds = 0.1 + np.random.default_rng(0).normal(0, 0.005, (4, 40))
    >>> seconds[2] *= 1.5
    >>> [(each.rank, round(each.slowdown, 1)) for each in chronic(seconds)]
    [(2, 1.5)]
    """
    ranks, steps = seconds.shape
    if ranks < 2 or steps < FEWEST:
        return ()
    excess = excesses(seconds)
    signs = [_chronic(own, ranks) for own in excess]
    return tuple(
        _culprit(rank, 0, rank, sign, excess[rank], np.arange(steps))
        for rank, sign in enumerate(signs)
        if sign is not None
    )


def _culprit(
    replica: int, stage: int, rank: int, sign: _Sign, excess: Floats, steps: Ints
) -> Culprit:
    return Culprit(
        replica, stage, rank, sign.pattern, float(np.exp(np.mean(excess[sign.places]))),
        tuple(steps[sign.places].tolist()), sign.period, sign.p, sign.test,
    )  # fmt: skip


def _examine(excess: Floats, numbers: Ints, workers: int) -> _Sign | None:
    """The first pattern of a worker that passes its t test: periodic or chronic."""
    return _passed(_periodic(excess, numbers), PERIODIC, workers) or _chronic(excess, workers)


def _chronic(excess: Floats, workers: int) -> _Sign | None:
    """It is chronic throughout where no stretch that passes is clearly shorter than the record."""
    whole = _passed(_throughout(excess), THROUGHOUT, workers)
    part = _passed(_stretch(excess), STRETCH, workers)
    if whole is None or (part is not None and len(part.places) < SHORTER * len(excess)):
        return part
    return whole


def _passed(sign: _Sign | None, level: float, workers: int) -> _Sign | None:
    """A sign with its p corrected for all workers, if that is at most the level of its test."""
    if sign is None or sign.p * workers > level:
        return None
    return sign._replace(p=sign.p * workers)


def _throughout(excess: Floats) -> _Sign | None:
    if np.median(excess) <= np.log1p(FLOOR):
        return None
    count = len(excess) * _independence(excess - excess.mean())
    test = f"t test of {len(excess)} steps ({count:.0f} independent) {OVER}"
    return _Sign("chronic", _t_test(excess, count), np.arange(len(excess)), None, test)


def _stretch(excess: Floats) -> _Sign | None:
    places = _extent(excess)
    own, outside = excess[places], np.delete(excess, places)
    if len(own) < FEWEST or np.median(own) <= np.log1p(FLOOR):
        return None
    residual = excess - (outside.mean() if len(outside) else 0.0)
    residual[places] = own - own.mean()
    count = len(own) * _independence(residual)
    stretches = len(excess) * (len(excess) - 1) / 2
    test = f"t test of a stretch of {len(own)} steps ({count:.0f} independent) {OVER}"
    return _Sign("chronic", _t_test(own, count) * stretches, places, None, test)


def _extent(excess: Floats) -> Ints:
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


def _periodic(excess: Floats, numbers: Ints) -> _Sign | None:
    """The period and phase with the largest t; numbers of steps may have gaps."""
    best: tuple[float, int, int] = -np.inf, 0, 0
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
        if t.max() > best[0]:
            best = float(t.max()), period, int(np.argmax(t))
    if not np.isfinite(best[0]):
        return None
    t, period, phase_of = best
    places = np.flatnonzero(numbers % period == phase_of)
    test = f"t test of steps {phase_of} modulo {period} against the others {OVER}"
    p = upper_tail(t, len(places) - 1) * looked
    return _Sign("periodic", p, places, period, test)


def _one_off(excess: Floats, others: Floats) -> _Sign | None:
    limit = max(float(np.log1p(BURST)), FAR * float(others.max()))
    places = np.flatnonzero(excess > limit)
    if not len(places):
        return None
    test = f"an excess of {FAR} times the largest of any other worker"
    return _Sign("one-off", float(FAR) ** -3, places, None, test)


def _independence(residual: Floats) -> float:
    """Independent values per value of a correlated series about 0."""
    power = float(residual @ residual)
    lag = float(residual[1:] @ residual[:-1]) / power if power > 0 else 0.0
    lag = min(max(lag, 0.0), 0.95)
    return (1 - lag) / (1 + lag)


def _t_test(excess: Floats, count: float) -> float:
    """Probability of a mean so far above the floor."""
    if count < 2:
        return 1.0
    error = float(excess.std(ddof=1)) / np.sqrt(count)
    t = (float(excess.mean()) - np.log1p(FLOOR)) / max(error, 1e-12)
    return upper_tail(t, count - 1)
