"""The estimators: from recorded steps to slowdowns, noise and gains, as pure functions on arrays.

So that nothing counts twice, contention is the ratio of an episode's median to its series' clean
median, and noise the spread of clean steps about their own series' mean: neither contains the
other.  First steps after a change of precision are in neither; they make `switch_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from simstrag.calibration.recording import Floats, Series, Span

__all__ = [
    "CLEAN",
    "DISTURBED",
    "EDGE",
    "FOREIGN_LIMIT",
    "EpisodeEstimate",
    "bootstrap",
    "clean",
    "clean_median",
    "episodes",
    "foreign_share",
    "lag1",
    "noise_quantiles",
    "place",
    "ring_fit",
    "switch_seconds",
]

Places = npt.NDArray[np.int64]
Group = TypeVar("Group")

EDGE = 0.25
"""Seconds around every start and stop of a burner that count neither as clean nor as contended."""

FOREIGN_LIMIT = 0.02
"""Share of the core that undeclared load may take of a clean stretch that still counts as clean."""

CLEAN, AT_EDGE, DISTURBED = -1, -2, -3


@dataclass(frozen=True, slots=True)
class EpisodeEstimate:
    """What one episode did: slowdown = full median / clean full median of its series.

    mean_slowdown: the same of means.  low, high: p10 and p90 of its full steps / clean full median.
    amp_slowdown: slowdown of its amp steps.  amp_ratio: full median / amp median inside.
    early, late: slowdowns of the episode's first and second half.
    foreign: share of the core that neither worker nor burners had.
    """

    series: int
    start: float
    stop: float
    kind: str
    steps: int
    slowdown: float
    mean_slowdown: float
    low: float
    high: float
    early: float
    late: float
    amp_slowdown: float
    amp_ratio: float
    foreign: float


def place(series: Series) -> Places:
    """Where each step lies: -1 clean, k inside span k, -2 at an edge, -3 beside undeclared load.

    A clean stretch of which others took more than `FOREIGN_LIMIT` is contended, not noisy.
    """
    where = _by_schedule(series)
    for stretch in series.clean_stretches:
        if foreign_share(series, stretch) > FOREIGN_LIMIT:
            within = (series.start >= stretch.start) & (series.start < stretch.stop)
            where[within & (where == CLEAN)] = DISTURBED
    return where


def _by_schedule(series: Series) -> Places:
    ended = series.start + series.seconds
    where = np.full(len(series.start), CLEAN, dtype=np.int64)
    for k, span in enumerate(series.spans):
        touched = (ended > span.start - EDGE) & (series.start < span.stop + EDGE)
        inside = (series.start >= span.start + EDGE) & (ended <= span.stop - EDGE)
        where[touched] = AT_EDGE
        where[inside] = k
    return where


def clean(series: Series, amp: bool = False) -> Floats:
    """Seconds of the clean, settled steps of one precision, in order."""
    return series.seconds[_chosen(series, CLEAN, amp)]


def clean_median(series: Series, amp: bool = False) -> float:
    """Of `clean`."""
    return float(np.median(clean(series, amp)))


def episodes(series: Series) -> list[EpisodeEstimate]:
    """One estimate for each span that has steps of both precisions; others are left out."""
    reference, amp_reference = clean_median(series), clean_median(series, amp=True)
    found = []
    for k, span in enumerate(series.spans):
        chosen = _chosen(series, k, amp=False)
        full, amp = series.seconds[chosen], series.seconds[_chosen(series, k, amp=True)]
        if len(full) < 2 or len(amp) < 2:
            continue
        low, high = np.quantile(full, [0.1, 0.9]) / reference
        late = series.start[chosen] >= (span.start + span.stop) / 2
        found.append(
            EpisodeEstimate(
                series=series.number,
                start=span.start,
                stop=span.stop,
                kind=span.kind,
                steps=len(full),
                slowdown=float(np.median(full)) / reference,
                mean_slowdown=float(full.mean()) / float(clean(series).mean()),
                low=float(low),
                high=float(high),
                early=_median(full[~late]) / reference,
                late=_median(full[late]) / reference,
                amp_slowdown=float(np.median(amp)) / amp_reference,
                amp_ratio=float(np.median(full) / np.median(amp)),
                foreign=foreign_share(series, span),
            )
        )
    return found


def noise_quantiles(groups: Sequence[Floats], levels: int = 201) -> Floats:
    """Quantiles at evenly spaced levels 0..1 of the steps, each divided by its own group's mean.

    Scaled so that a draw by linear interpolation between them has mean 1 (their trapezoid mean).
    """
    pooled = np.concatenate([group / group.mean() for group in groups])
    table: Floats = np.quantile(pooled, np.linspace(0.0, 1.0, levels))
    scaled: Floats = table / ((table[:-1] + table[1:]).mean() / 2)
    return scaled


def lag1(series: Sequence[Series]) -> float:
    """Correlation of successive clean full steps of a block, relative to their series' mean."""
    before, after = [], []
    for each in series:
        mask = _chosen(each, CLEAN, amp=False)
        relative = each.seconds / each.seconds[mask].mean()
        pairs = mask[:-1] & mask[1:] & (each.block[:-1] == each.block[1:])
        before.append(relative[:-1][pairs])
        after.append(relative[1:][pairs])
    return float(np.corrcoef(np.concatenate(before), np.concatenate(after))[0, 1])


def switch_seconds(series: Series, to_amp: bool) -> Floats:
    """Of each clean block: its first step minus the median of its others, seconds."""
    where = place(series)
    found = []
    for block in np.unique(series.block[series.amp == to_amp]):
        steps = series.block == block
        if block == series.block[0] or (where[steps] != CLEAN).any() or steps.sum() < 3:
            continue
        seconds = series.seconds[steps]
        found.append(seconds[0] - np.median(seconds[1:]))
    return np.array(found, dtype=np.float64)


def foreign_share(series: Series, span: Span) -> float:
    """Share of the core that neither worker nor burners had in a span: undeclared load.

    The worker never sleeps, so the core's time is its steps (CPU time), its work between steps (as
    long as in clean stretches), the burners (CPU time) and the rest.
    """
    ended = series.start + series.seconds
    inside = np.flatnonzero((series.start >= span.start) & (ended <= span.stop))
    if len(inside) < 2:
        return 0.0
    between = np.append(series.start[1:] - ended[:-1], np.nan)
    usual = float(np.nanmedian(between[_by_schedule(series) == CLEAN]))
    length = float(ended[inside[-1]] - series.start[inside[0]])
    burners = span.burner_seconds * length / (span.stop - span.start)
    own = float(series.cpu_seconds[inside].sum()) + usual * (len(inside) - 1)
    return (length - burners - own) / length


def ring_fit(samples: dict[int, Floats], gradient_bytes: int) -> tuple[float, float]:
    """(alpha, bandwidth) of T = 2*alpha + bytes/bandwidth, the ring's formula at n = 2.

    Exact at two sizes, the smallest and the gradient's: sizes in between do not bend what matters.
    Raises `ValueError` where the gradient took no longer than the smallest.
    """
    smallest = min(samples)
    quick, slow = (float(np.median(samples[size])) for size in (smallest, gradient_bytes))
    if gradient_bytes <= smallest or slow <= quick:
        raise ValueError(
            f"an all-reduce of {gradient_bytes} bytes took {slow:.3g} s, one of {smallest} bytes "
            f"{quick:.3g} s: no bandwidth can be fitted; use a larger model or more repetitions"
        )
    bandwidth = (gradient_bytes - smallest) / (slow - quick)
    return max(0.0, quick - smallest / bandwidth) / 2, bandwidth


def bootstrap(
    statistic: Callable[[list[Group]], float], groups: Sequence[Group], rounds: int = 1000
) -> tuple[float, float]:
    """95 % interval of `statistic` when whole groups are drawn anew, with replacement, seed 0.

    Steps of one series resemble each other; drawing single steps would promise too much.
    """
    rng = np.random.default_rng(0)
    values = [
        statistic([groups[k] for k in rng.integers(len(groups), size=len(groups))])
        for _ in range(rounds)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _chosen(series: Series, where: int, amp: bool) -> npt.NDArray[np.bool_]:
    chosen: npt.NDArray[np.bool_] = (place(series) == where) & (series.amp == amp) & series.settled
    return chosen
