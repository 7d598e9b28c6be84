"""Names pauses that all ranks take in the same steps again and again, such as for a checkpoint."""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.statistics.pauses import find_pauses

TURNS = 4
"""Gaps between pauses that make a period if they are equal, or twice as long as the others where a
pause of another kind hides one."""
SLACK = 0.02
"""Share by which the gaps of a period may differ, as of pauses that follow a clock."""
ALIKE = 1.5
"""Pauses of one kind differ in length by less than that factor."""


class _Pause(NamedTuple):
    """A pause: its step, and the seconds by which the step was longer than a usual one."""

    step: int
    seconds: float


class CommonPauses:
    """Windows of steps in, and a sentence out for each kind of pause, once its period is known.

    What a pause is, `simstrag.statistics.pauses` says, as for a record.

    >>> pauses, steps = CommonPauses(), np.arange(400)
    >>> seconds = np.random.default_rng(0).normal(0.1, 0.001, (2, 400))
    >>> seconds[:, 49::50] += 2.0
    >>> print(*pauses.update(seconds, steps))
    all ranks pause together every 50 steps, such as in step 249, for 2 s: up to 28.6 % of the time
    """

    def __init__(self) -> None:
        self._kinds: list[deque[_Pause]] = []
        self._named: list[float] = []
        self._seen = -1

    def update(self, seconds: Reals, steps: Ints) -> list[str]:
        """What there is to say of the latest steps, shape (ranks, steps); mostly nothing."""
        found = find_pauses(seconds, steps)
        usual = float(np.median(found.level, axis=1).max())
        new = np.flatnonzero((found.common > 0) & (steps > self._seen))
        self._seen = max(self._seen, int(steps[-1]))
        pauses = (_Pause(int(steps[place]), float(found.common[place])) for place in new)
        return [sentence for pause in pauses if (sentence := self._note(pause, usual))]

    def _note(self, pause: _Pause, usual: float) -> str:
        """Add a pause to those of its kind; the sentence if it completes a period.

        usual: seconds of a step without a pause, on the slowest rank.
        """
        kind = next((k for k in self._kinds if _is_alike(k[-1].seconds, pause.seconds)), None)
        if kind is None:
            self._kinds.append(kind := deque(maxlen=TURNS + 1))
        kind.append(pause)
        gaps = [later.step - earlier.step for earlier, later in itertools.pairwise(kind)]
        period = min(gaps, default=0)
        if (
            len(gaps) < TURNS
            or period < 2
            or any(_distance(gap, period) > SLACK * period for gap in gaps)
            or any(_is_alike(named, pause.seconds) for named in self._named)
        ):
            return ""
        self._named.append(pause.seconds)
        length = statistics.mean(each.seconds for each in kind)
        share = 100 * length / (length + period * usual)  # at most: communication is apart
        return (
            f"all ranks pause together every {period} steps, such as in step {pause.step}, for "
            f"{length:.2g} s: up to {share:.1f} % of the time"
        )


def _distance(gap: int, period: int) -> int:
    """Distance of a gap from one period or two, whichever is nearer."""
    return min(abs(gap - period), abs(gap - 2 * period))


def _is_alike(one: float, other: float) -> bool:
    return max(one, other) < ALIKE * min(one, other)
