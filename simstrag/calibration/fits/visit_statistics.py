"""Estimates of a cell: a median over visits with its error, and the noise within visits.

Samples of one visit resemble each other, and drift over minutes makes visits differ.  So a visit
contributes one number; the estimate is the median of these numbers, and its standard error is their
spread.  Intervals of few visits are by Student's t.

Noise is the spread within a visit: its steps over their own mean.  The mean comes from the same n
steps, so deviations from it are too small; they are multiplied by sqrt(n / (n - 1)).  Drift between
visits is in the interval of the mean and not in the noise, which simulations draw for each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simstrag.arrays import Floats
from simstrag.calibration.cells import Visit
from simstrag.profile.quantity import Quantity

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's t for 1 to 10 degrees of freedom."""

MEDIAN_FACTOR = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, of normal values; 1 for two values."""

CORRELATED_STEPS = 20
"""Least number of steps of a visit that shows their correlation: dividing n steps by their own mean
makes independent steps look correlated by about -1/n."""

FARTHEST = 20.0
"""Largest logarithm of a drawn value over its estimate: after two visits a draw may overflow."""


@dataclass(frozen=True, slots=True)
class CellEstimate:
    """A value with its standard error and 95 % interval.

    error: infinite after one visit, and the interval is open.
    visits: number of visits.
    relative: whether the error is of the logarithm, as for times and ratios: a share of the value,
        with an interval above 0.
    """

    value: float
    error: float
    low: float | None
    high: float | None
    visits: int
    relative: bool = True


def estimate(values: Sequence[float] | Floats, relative: bool = True) -> CellEstimate:
    """The median of one number per visit, with the interval from their spread.

    relative: for numbers above 0, whose spread is a share; otherwise it is in their own unit.

    Raises `ValueError` for no visit.

    >>> e = estimate([0.10, 0.11, 0.10, 0.09, 0.10])
    >>> e.value, round(e.low, 4), round(e.high, 4)
    (0.1, 0.0895, 0.1117)
    """
    array = np.asarray(values, np.float64)
    if not len(array):
        raise ValueError("no visit, no estimate")
    value, n = float(np.median(array)), len(array)
    error = math.inf
    if n > 1:
        spread = np.log(array) if relative else array
        error = float(spread.std(ddof=1)) / math.sqrt(n) * (MEDIAN_FACTOR if n > 2 else 1.0)
    return _with_interval(value, error, n, relative)


def _with_interval(value: float, error: float, visits: int, relative: bool) -> CellEstimate:
    if not math.isfinite(error):
        return CellEstimate(value, math.inf, None, None, visits, relative)
    reach = student_quantile(visits - 1) * error
    ends = (-reach, reach)
    low, high = (value * math.exp(e) if relative else value + e for e in ends)
    return CellEstimate(value, error, low, high, visits, relative)


def visit_medians(visits: Sequence[Visit]) -> CellEstimate:
    """The estimate from each visit's median of its seconds."""
    return estimate([visit.median() for visit in visits])


def ratio(above: CellEstimate, below: CellEstimate) -> CellEstimate:
    """One estimate over another, measured independently; with the smaller number of visits.

    >>> one = estimate([2.0, 2.2, 2.1])
    >>> round(ratio(one, one).error / one.error, 3)
    1.414
    """
    visits, error = min(above.visits, below.visits), math.hypot(above.error, below.error)
    return _with_interval(above.value / below.value, error, visits, relative=True)


def measure(
    visits: Sequence[Visit], number: Callable[[Visit], float], note: str, series: str = "seconds"
) -> Quantity:
    """The estimate from one number per visit, as a measured quantity of a profile.

    The error is a share of the value, or in its own unit where stamps made a number 0 or less.

    series: name of the samples behind the number, for their count.
    """
    values = [number(visit) for visit in visits]
    n = sum(len(visit.samples[series]) for visit in visits)
    return measured_quantity(estimate(values, relative=min(values) > 0), note, n)


def measured_quantity(estimate: CellEstimate, note: str, n: int | None = None) -> Quantity:
    """The estimate as a measured quantity of a profile.

    n: number of samples; the number of visits by default.
    """
    low, high = (None if e is None else round_digits(e) for e in (estimate.low, estimate.high))
    error = estimate.error * (estimate.value if estimate.relative else 1.0)
    spread = f"interval by the spread of {estimate.visits} visits"
    origin = spread if estimate.visits > 1 else "one visit, so no interval"
    return Quantity(
        value=round_digits(estimate.value), kind="measured", low=low, high=high,
        error=round_digits(error) if math.isfinite(error) else None,
        n=estimate.visits if n is None else n, note=f"{note}; {origin}",
    )  # fmt: skip


def fitted_quantity(
    value: float, note: str, interval: Sequence[float | None] = (None, None), n: int | None = None
) -> Quantity:
    """A fitted quantity of a profile; n: number of cells behind it."""
    low, high = (None if end is None else round_digits(end) for end in interval)
    return Quantity(value=round_digits(value), kind="fitted", low=low, high=high, n=n, note=note)


def clip(quantity: Quantity, least: float = 0.0, most: float = math.inf) -> Quantity:
    """The quantity cut to its possible range; without an interval that lies outside the range.

    >>> clip(Quantity(value=-0.1, kind="measured", low=-0.3, high=0.1)).high
    0.1
    >>> cut = clip(Quantity(value=-0.3, kind="measured", low=-0.4, high=-0.2))
    >>> cut.value, cut.high, cut.note
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
        interval = f" ({quantity.low:.3g} to {quantity.high:.3g})" if known else ""
        bounds = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
        note += "; " if note else ""
        note += f"measured {quantity.value:.3g}{interval}, cut to {bounds}"
        note += "; no interval" if known and low is None else ""
    return quantity.model_copy(
        update={
            "value": value, "low": low, "high": high, "note": note,
            "error": None if outside else quantity.error,
        }
    )  # fmt: skip


def round_digits(value: float) -> float:
    """The value rounded to six digits, more than any measurement here has.

    >>> round_digits(0.123456789)
    0.123457
    """
    return float(f"{value:.6g}")


def relative_half_width(values: Sequence[float]) -> float:
    """Relative half-width of the 95 % interval of `estimate`; infinite for one visit."""
    e = estimate(values)
    if e.low is None or e.high is None:
        return math.inf
    return (e.high - e.low) / 2 / e.value


def visit_statistic(visit: Visit) -> float:
    """The number above 0 whose spread between visits decides whether more visits are needed.

    Overlap: the backward pass with communication over the one without, so the error is the error
    of the times.  Lockstep: the whole cycle, as in a makespan.  Gradient: always 1, because its
    visits follow one training run and their spread is no error.
    """
    part = visit.cell.part
    if part == "contention":
        return visit.median() / visit.median("clean")
    if part == "overlap":
        return visit.median("together") / visit.median("compute")
    if part == "lockstep":
        return visit.mean("local") + visit.mean("rest")
    if part == "server":
        return visit.median("push") + visit.median("service") + visit.median("pull")
    if part == "power":
        return visit.median("watts")
    if part == "anatomy":
        return visit.median("kernel")
    return 1.0 if part == "gradient" else visit.median()


def draw_values(estimates: Sequence[CellEstimate], rounds: int = 1000) -> Floats:
    """Draws within the error of each estimate, shape (rounds, estimates), with seed 0.

    Drawn by Student's t from the standard errors; visits are too few to be resampled.  An
    estimate of a single visit has no error and stays as it is.
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


def lag1_autocorrelation(visits: Sequence[Sequence[float]]) -> float | None:
    """Correlation of successive samples over their visit's mean.

    None without a visit of `CORRELATED_STEPS` or more, or without spread.
    """
    relative = [
        np.asarray(v, np.float64) / np.mean(v) - 1 for v in visits if len(v) >= CORRELATED_STEPS
    ]
    if not relative:
        return None
    before = np.concatenate([v[:-1] for v in relative])
    after = np.concatenate([v[1:] for v in relative])
    if before.std() == 0 or after.std() == 0:
        return None
    return float(np.corrcoef(before, after)[0, 1])


def noise_quantiles(visits: Sequence[Sequence[float]], levels: int = 101) -> Floats:
    """Quantiles at evenly spaced levels 0..1 of samples over their visit's mean.

    Deviations from the mean of n samples are multiplied by sqrt(n / (n - 1)), so that the variance
    is unbiased; visits of one sample are left out.  The table is scaled so that a draw by linear
    interpolation has mean 1 (the trapezoid mean).
    """
    noise = []
    for visit in (np.asarray(v, np.float64) for v in visits if len(v) > 1):
        relative = visit / visit.mean()
        further = 1 + (relative - 1) * math.sqrt(len(visit) / (len(visit) - 1))
        noise.append(np.maximum(relative / 2, further))  # at least half of the sample
    table: Floats = np.quantile(np.concatenate(noise), np.linspace(0.0, 1.0, levels))
    scaled: Floats = table / ((table[:-1] + table[1:]).mean() / 2)
    return scaled


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to within 0.003.

    Beyond the table by its expansion about the normal one: Abramowitz and Stegun, 26.7.5.

    >>> student_quantile(3), round(student_quantile(30), 2)
    (3.182, 2.04)
    """
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    return 1.95996 + 2.3723 / freedom + 2.8225 / freedom**2
