"""The lasting pace of a run: how much the mean step of one run differs from that of another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from simstrag.calibration.cells import Part
from simstrag.calibration.fits.visit_statistics import lag1_autocorrelation, round_digits
from simstrag.calibration.samples import Samples
from simstrag.profile.quantity import Quantity

FEWEST_FREEDOM = 10
"""Least degrees of freedom between visits; with ten a standard deviation is known to a quarter."""


CLEAN: dict[Part, str] = {"step": "seconds", "contention": "clean"}
"""Series of steps without load, by the part of their cell: those of steps, and those just before a
load begins."""


def clean_steps(samples: Samples) -> Iterator[list[tuple[float, ...]]]:
    """The steps without load of each calm visit, by cell."""
    for part, series in CLEAN.items():
        for visits in samples.by_cell(part).values():
            yield [visit.samples[series] for visit in visits]


def lasting_pace(cells: Iterable[Sequence[Sequence[float]]]) -> Quantity | None:
    """The relative standard deviation of the pace that lasts through a run; None from few visits.

    cells: the steps of each visit in seconds, by cell.

    The visits to a cell differ by their pace and by the noise of their few steps.  The variance of
    log mean steps between visits of one cell is pooled over cells, and the variance that noise
    gives these means is taken out: the estimator of moments with equal weights (Cochran, "The
    combination of estimates from different experiments", Biometrics 10, 1954).  It is cut at 0.

    Successive steps are correlated by their lag-1 autocorrelation r, falling as r^k, so the mean
    of n steps has the variance s² f / n, with f = 1 + 2 sum of (1 - k/n) r^k; and the steps of one
    visit scatter less around their own mean, by (n - f) / (n - 1).
    """
    known = [[v for v in visits if len(v) > 1] for visits in cells]
    known = [visits for visits in known if len(visits) > 1]
    freedom = sum(len(visits) - 1 for visits in known)
    if freedom < FEWEST_FREEDOM:
        return None
    r = max(0.0, lag1_autocorrelation([v for visits in known for v in visits]) or 0.0)
    between = noise = 0.0
    for visits in known:
        means = np.log([np.mean(v) for v in visits])
        between += float(((means - means.mean()) ** 2).sum())
        noise += (1 - 1 / len(visits)) * sum(_variance_of_mean(v, r) for v in visits)
    pace = math.sqrt(max(0.0, between - noise) / freedom)
    rest = "what noise explains is taken out" if pace else "noise explains all of it"
    return Quantity(
        value=round_digits(pace), kind="measured", n=sum(map(len, known)),
        note=f"visits to a cell ({len(known)} cells, {freedom} degrees of freedom) differ by "
        f"{math.sqrt(between / freedom):.2%} (standard deviation); {rest}. Changes that outlast a "
        "visit and not a run are in it",
    )  # fmt: skip


def _variance_of_mean(steps: Sequence[float], r: float) -> float:
    """Relative variance of the mean of correlated steps."""
    n = len(steps)
    k = np.arange(1, n)
    f = 1 + 2 * float(((1 - k / n) * r**k).sum())
    own = float(np.var(steps, ddof=1) / np.mean(steps) ** 2)
    return own * (n - 1) / (n - f) * f / n
