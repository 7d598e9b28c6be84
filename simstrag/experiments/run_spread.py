"""Where one further run ends in nine of ten cases: the spread of runs, apart from their mean.

Runs are one a seed: each has its own noise; where `noise.pace` is stated, its own pace; and where
seeds begin at different moments of the trace, its own contention.  The interval is a prediction
interval, wider than that of the mean, which shrinks with the seeds while this one does not.  Runs
that missed the target have no end: they are counted, and the interval is of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.experiments.paired_statistics import quantile

SHARE = 0.9
"""The share of further runs that end in the interval; half of the others end on each side."""
FEWEST = 3
"""Runs below which there is no interval: with two it would span orders of magnitude."""
RANKED = 20
"""Runs from which on order statistics say it without a law; below 19 none lie far enough out."""
NORMAL, ORDER, CERTAIN, NONE = "normal law of log times", "order statistics", "certain", "none"


@dataclass(frozen=True, slots=True)
class RunSpread:
    """The prediction interval of one run.

    low, high: seconds; NaN where too few runs ended.
    law: what it rests on, `NORMAL`, `ORDER` or `CERTAIN`; `NONE` without an interval.
    runs: that ended.
    missed: runs that did not reach the target.
    """

    low: float
    high: float
    law: str
    runs: int
    missed: int

    def to_dict(self) -> dict[str, Any]:
        """The spread as a JSON object."""
        ends = {"share": SHARE, "low": self.low, "high": self.high, "law": self.law}
        return ends | {"runs": self.runs, "missed": self.missed}


def predict_run(times: Floats, certain: bool = False) -> RunSpread:
    """The interval that one further run ends in with the probability `SHARE`.

    times: seconds of the runs, one a seed; NaN or infinite where a run missed the target.
    certain: whether nothing is random, so that one run says it.

    From `RANKED` runs on the ends are order statistics at ranks 0.05 (n + 1) and 0.95 (n + 1),
    which holds for any continuous law, and about so where they lie between two ranks.  With fewer,
    logarithms count as normal: mean ± Student's t times their deviation times sqrt(1 + 1/n).

    >>> import numpy as np
    >>> spread = predict_run(np.arange(1.0, 40.0))
    >>> round(spread.low, 6), round(spread.high, 6), spread.law
    (2.0, 38.0, 'order statistics')
    """
    ended = np.asarray(times, dtype=np.float64)
    ended = ended[np.isfinite(ended)]
    n, missed = len(ended), len(times) - len(ended)
    if n and certain:
        return RunSpread(float(ended[0]), float(ended[0]), CERTAIN, n, missed)
    if n < FEWEST:
        return RunSpread(math.nan, math.nan, NONE, n, missed)
    if n >= RANKED:
        below = (1 - SHARE) / 2
        low, high = np.quantile(ended, (below, 1 - below), method="weibull")
        return RunSpread(float(low), float(high), ORDER, n, missed)
    logs = np.log(ended)
    half = quantile(n - 1, 1 - SHARE) * float(np.std(logs, ddof=1)) * math.sqrt(1 + 1 / n)
    low, high = (math.exp(float(logs.mean()) + side * half) for side in (-1, 1))
    return RunSpread(low, high, NORMAL, n, missed)
