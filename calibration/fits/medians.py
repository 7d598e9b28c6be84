"""What several short visits to one cell say: a median, and how sure it is.

Samples of one visit resemble each other, and what drifts within minutes makes visits differ; so a
visit gives one number, the estimate is the median of these, and its standard error is the spread
between them.  Few visits are told by Student's t.

Noise is what remains inside a visit: its steps over their own mean, and, since that mean follows
the n steps it is made of, sqrt(n / (n - 1)) times as far from it.  A drift from visit to visit is
in the interval of the mean and not in the noise, which simulations draw anew for each step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simstrag.calibration.cells import Visit
from simstrag.profile.quantity import Quantity

__all__ = [
    "LASTING", "Estimate", "cut", "draws", "half_width", "lag1", "noise_quantiles", "over_visits",
    "ratio", "short", "statistic", "student", "told",
]  # fmt: skip

Floats = npt.NDArray[np.float64]

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Quantiles for 1 to 10 degrees of freedom: visits less one."""

OF_A_MEDIAN = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, of normal values; that of two is their mean."""


LASTING = 20
"""Steps of a visit from which on it tells how successive ones are correlated: dividing n steps by
their own mean makes independent ones look correlated by about -1/n."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its standard error and 95 % interval; infinite and open after one visit.

    relative: whether the error is of the logarithm, as it is for times and ratios: then it is a
    share of the value, and no end of the interval is negative.
    """

    value: float
    error: float
    low: float | None
    high: float | None
    visits: int
    relative: bool = True


def over_visits(values: Sequence[float] | Floats, relative: bool = True) -> Estimate:
    """The median of one number per visit, with the interval from their spread.

    relative: for numbers above 0, whose spread is told in shares; otherwise in their own unit.
    Raises `ValueError` for no visit.

    >>> e = over_visits([0.10, 0.11, 0.10, 0.09, 0.10])
    >>> e.value, round(e.low, 4), round(e.high, 4)
    (0.1, 0.0895, 0.1117)
    """
    given = np.asarray(values, np.float64)
    if not len(given):
        raise ValueError("no visit, no estimate")
    value, n = float(np.median(given)), len(given)
    if n == 1:
        return Estimate(value, math.inf, None, None, 1, relative)
    spread = np.log(given) if relative else given
    error = float(spread.std(ddof=1)) / math.sqrt(n) * (OF_A_MEDIAN if n > 2 else 1.0)
    reach = student(n - 1) * error
    if relative:
        low, high = value * math.exp(-reach), value * math.exp(reach)
    else:
        low, high = value - reach, value + reach
    return Estimate(value, error, low, high, n, relative)


def ratio(above: Estimate, below: Estimate) -> Estimate:
    """One estimate over another that was measured apart from it; as many visits as the fewer.

    >>> one = over_visits([2.0, 2.2, 2.1])
    >>> round(ratio(one, one).error / one.error, 3)
    1.414
    """
    value, visits = above.value / below.value, min(above.visits, below.visits)
    error = math.hypot(above.error, below.error)
    if not math.isfinite(error):
        return Estimate(value, error, None, None, visits)
    reach = student(visits - 1) * error
    return Estimate(value, error, value * math.exp(-reach), value * math.exp(reach), visits)


def told(estimate: Estimate, note: str, n: int | None = None, what: str = "visit") -> Quantity:
    """A measured quantity of a profile.

    n: samples behind it; else as many as there were visits.  what: one of those that spread.
    """
    low, high = (None if end is None else short(end) for end in (estimate.low, estimate.high))
    error = estimate.error * (estimate.value if estimate.relative else 1.0)
    spread = f"interval by the spread of {estimate.visits} {what}s"
    many = spread if estimate.visits > 1 else f"one {what}, so no interval"
    return Quantity(
        value=short(estimate.value), kind="measured", low=low, high=high,
        error=short(error) if math.isfinite(error) else None,
        n=estimate.visits if n is None else n, note=f"{note}; {many}",
    )  # fmt: skip


def cut(quantity: Quantity, least: float = 0.0, most: float = math.inf) -> Quantity:
    """The quantity, cut to what is possible, and its interval where that reaches inside, else none.

    >>> cut(Quantity(value=-0.1, kind="measured", low=-0.3, high=0.1)).high
    0.1
    >>> found = cut(Quantity(value=-0.3, kind="measured", low=-0.4, high=-0.2))
    >>> found.value, found.high, found.note
    (0.0, None, 'measured -0.3 (-0.4 to -0.2), cut to 0 or more; no interval')
    """
    value = min(most, max(least, quantity.value))
    ends = quantity.low, quantity.high
    low, high = (None if end is None else min(most, max(least, end)) for end in ends)
    outside = value != quantity.value
    if outside and (low is None or low == high):
        low = high = None
    note = quantity.note
    if outside:
        known = None not in ends
        said = f" ({quantity.low:.3g} to {quantity.high:.3g})" if known else ""
        bounds = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
        note += "; " if note else ""
        note += f"measured {quantity.value:.3g}{said}, cut to {bounds}"
        note += "; no interval" if known and low is None else ""
    return quantity.model_copy(
        update={
            "value": value, "low": low, "high": high, "note": note,
            "error": None if outside else quantity.error,
        }
    )  # fmt: skip


def short(value: float) -> float:
    """Six digits, which is more than any measurement here has.

    >>> short(0.123456789)
    0.123457
    """
    return float(f"{value:.6g}")


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of `over_visits` as a share of its value; infinite of one visit."""
    found = over_visits(values)
    if found.low is None or found.high is None:
        return math.inf
    return (found.high - found.low) / 2 / found.value


def statistic(visit: Visit) -> float:
    """The number above 0 that a visit gives, by which it is decided whether more are needed.

    Of overlap it is the backward with communication over that without: its error is that of the
    times.  Of ranks in lockstep it is the whole cycle, of which a makespan is made.  Visits of the
    gradient follow one training run, so that their spread is no error: 1.
    """
    medians = {name: float(np.median(values)) for name, values in visit.samples.items()}
    part = visit.cell.part
    if part == "contention":
        return medians["seconds"] / medians["clean"]
    if part == "overlap":
        return medians["together"] / medians["compute"]
    if part == "lockstep":
        local, rest = (float(np.mean(visit.samples[name])) for name in ("local", "rest"))
        return local + rest
    if part == "server":
        return medians["push"] + medians["service"] + medians["pull"]
    return 1.0 if part == "gradient" else medians["seconds"]


FARTHEST = 20.0
"""Log of the most that a draw is of a value: of two visits one may be beyond all numbers."""


def draws(estimates: Sequence[Estimate], rounds: int = 1000) -> Floats:
    """What else the values might have been, shape (rounds, estimates); always the same, seed 0.

    Drawn from each one's standard error by Student's t: visits are too few to be drawn anew.
    One that has no error, after a single visit, stays as it is.
    """
    rng = np.random.default_rng(0)
    drawn = np.empty((rounds, len(estimates)))
    for column, e in zip(drawn.T, estimates, strict=True):
        error = e.error if math.isfinite(e.error) else 0.0
        shift = error * rng.standard_t(max(1, e.visits - 1), rounds)
        if e.relative:
            column[:] = e.value * np.exp(np.clip(shift, -FARTHEST, FARTHEST))
        else:
            column[:] = e.value + shift
    return drawn


def lag1(visits: Sequence[Sequence[float]]) -> float | None:
    """Correlation of successive samples within visits of `LASTING` or more, each over its mean.

    None where there are no such visits, or no spread.
    """
    relative = [np.asarray(v, np.float64) / np.mean(v) - 1 for v in visits if len(v) >= LASTING]
    if not relative:
        return None
    before = np.concatenate([v[:-1] for v in relative])
    after = np.concatenate([v[1:] for v in relative])
    if before.std() == 0 or after.std() == 0:
        return None
    return float(np.corrcoef(before, after)[0, 1])


def noise_quantiles(visits: Sequence[Sequence[float]], levels: int = 101) -> Floats:
    """Quantiles at evenly spaced levels 0..1 of samples over their own visit's mean.

    Of n samples in a visit the distance to their mean counts sqrt(n / (n - 1)) times, so that their
    variance is that of the truth; a visit of one sample says nothing of it and does not count.
    Scaled so that a draw by linear interpolation between them has mean 1 (their trapezoid mean).
    """
    pooled = np.concatenate([_apart(np.asarray(v, np.float64)) for v in visits if len(v) > 1])
    table: Floats = np.quantile(pooled, np.linspace(0.0, 1.0, levels))
    scaled: Floats = table / ((table[:-1] + table[1:]).mean() / 2)
    return scaled


def _apart(samples: Floats) -> Floats:
    """Samples over their mean, as far from 1 as they are from the mean of all that might have been.

    None comes below half of what was seen, which two wildly different samples would.
    """
    relative = samples / samples.mean()
    further = 1 + (relative - 1) * math.sqrt(len(samples) / (len(samples) - 1))
    apart: Floats = np.maximum(relative / 2, further)
    return apart


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to within 0.003.

    Beyond the table by its expansion about the normal one: Abramowitz and Stegun, 26.7.5.

    >>> student(3), round(student(30), 2)
    (3.182, 2.04)
    """
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    return 1.95996 + 2.3723 / freedom + 2.8225 / freedom**2
