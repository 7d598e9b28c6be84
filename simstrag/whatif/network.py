"""A network that degrades: whether the collectives of a job take longer for a part of the record.

The last rank to enter a collective waits for nobody, so the least of its seconds over the ranks is
the transfer.  A step change of it, or growth, stands out in the mean of a run of steps against the
others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simstrag.arrays import Reals
from simstrag.records.record import ALL_REDUCE
from simstrag.whatif.operation_array import Layout

BLOCKS = 120
"""Most medians of successive steps among which a run is sought."""
SHORTEST = 8
"""Fewest steps of a run; a shorter one is a pause, ASSUMED."""
PART = 0.05
"""Least share of all steps in a run, ASSUMED."""
SLOWER = 1.2
"""Least ratio of the transfer within a run to that without, ASSUMED."""
WORTH = 0.01
"""Least share of the step that is lost."""
SIGMAS = 5.5
"""Standard errors by which the means within and without a run differ, of all runs that there are.

Of 2,000 clean records, whose transfers vary by 2 to 30 %, none has such a run.
"""
CLIPPED = 4.0
"""Standard deviations beyond which one block does not count for more."""
ALIKE = 0.9
"""Largest correlation of successive blocks; the more alike they are, the less a run stands out."""
QUIET = 0.005
"""Least relative standard deviation of a transfer, ASSUMED."""
NORMAL = 0.6745
"""Median of the absolute value of a standard normal variable."""


class SlowNetwork(NamedTuple):
    """A run of steps in which collectives took longer.

    since, until: numbers of its first and last step.
    ratio: median transfer within the run over that without.
    lost: seconds of a step, in the mean over all steps of the record.
    """

    since: int
    until: int
    ratio: float
    lost: float


def transfers(layout: Layout) -> Reals:
    """Seconds that the all-reduces of each step take by themselves, waiting left out."""
    return np.asarray(layout.duration[layout.find(ALL_REDUCE)].min(axis=1).sum(axis=0), np.float64)


def slower_network(layout: Layout) -> SlowNetwork | None:
    """The run of steps that stands out most, if one does; None without ranks to compare."""
    if len(layout.replica) < 2 or not layout.find(ALL_REDUCE).any():
        return None
    seconds = transfers(layout)
    run = _run(seconds)
    if run is None:
        return None
    within = np.zeros(len(seconds), np.bool_)
    within[run] = True
    usual = float(np.median(seconds[~within]))
    ratio = float(np.median(seconds[within])) / usual
    lost = max(float((seconds[within] - usual).sum()) / len(seconds), 0.0)
    if ratio < SLOWER or lost < WORTH * float(layout.recorded.mean()):
        return None
    return SlowNetwork(int(layout.step[run][0]), int(layout.step[run][-1]), ratio, lost)


def _run(seconds: Reals) -> slice | None:
    """The steps whose mean is above that of the others by most standard errors, if by enough."""
    size = -(-len(seconds) // BLOCKS)
    blocks = len(seconds) // size
    middle = np.median(seconds[: blocks * size].reshape(blocks, size), axis=1)
    shortest = max(SHORTEST, int(PART * len(seconds)))
    if len(seconds) < 2 * shortest or middle.min() <= 0:
        return None
    values = np.log(middle / np.median(middle))
    spread = float(np.median(np.abs(np.diff(values)))) / (NORMAL * np.sqrt(2))
    values = np.clip(values / max(spread, QUIET), -CLIPPED, CLIPPED)
    before = np.append(0.0, np.cumsum(values - values.mean()))
    begin, end = np.triu_indices(blocks + 1, k=-(-shortest // size))
    begin, end = (each[end - begin <= blocks - -(-shortest // size)] for each in (begin, end))
    count = end - begin
    errors = (before[end] - before[begin]) / np.sqrt(count * (1 - count / blocks))
    best = int(np.argmax(errors))
    rest = np.concatenate([
        _without_trend(part) for part in np.split(values, [begin[best], end[best]])
    ])  # fmt: skip
    alike = float(np.clip(rest[1:] @ rest[:-1] / max(float(rest @ rest), QUIET), 0, ALIKE))
    if errors[best] < SIGMAS * np.sqrt((1 + alike) / (1 - alike)):
        return None
    last = len(seconds) if end[best] == blocks else int(end[best]) * size
    return slice(int(begin[best]) * size, last)


def _without_trend(values: Reals) -> Reals:
    """Deviations from the straight line that fits best."""
    if len(values) < 3:
        return np.zeros(len(values))
    place = np.arange(len(values)) - (len(values) - 1) / 2
    return np.asarray(values - values.mean() - place * (place @ values) / (place @ place))
