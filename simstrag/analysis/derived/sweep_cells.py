"""The result of a sweep as values: at each point the ranking of the policies, and the varied keys.

The ranking of a point is that of a comparison of its scenario: by mean time, with places by paired
differences over the seeds.  Of a real learner without a target, it is of the policies that are as
accurate as bsp.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simstrag.analysis.derived.ranking import (
    as_accurate,
    leads,
    places,
    saved_share,
    too_inaccurate,
)
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.experiments import paired_statistics
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate, exact
from simstrag.experiments.study import text_of, with_values
from simstrag.experiments.sweep import Planned, Sweep
from simstrag.scenario.sections import LearnerSection

LONGEST = 24
"""Most letters of a value in a chart."""
EVEN = 0.02
"""Deviation of distances, as a share of their mean, that rounded values have."""


class Axis(NamedTuple):
    """A key of the grid with more than one value.

    values: numbers in ascending order; others as in the study.
    numeric: whether all are numbers.
    """

    key: str
    values: tuple[Any, ...]
    numeric: bool

    @classmethod
    def of(cls, key: str, values: Sequence[Any]) -> Axis:
        """The axis of a key; values: in the order of the study, repeated or not.

        >>> Axis.of("workers", [8, 4]).values, Axis.of("trace", [None, "slow.csv"]).labels
        ((4, 8), ('null', 'slow.csv'))
        """
        unique = {json.dumps(value): value for value in values}.values()
        numeric = all(type(value) in (int, float) for value in unique)
        return cls(key, tuple(sorted(unique) if numeric else unique), numeric)

    @property
    def labels(self) -> tuple[str, ...]:
        """The values as text; of two long ones that begin alike, the number tells them apart."""
        texts = [text_of(value) for value in self.values]
        cut = [t if len(t) <= LONGEST else f"{t[: LONGEST - 1]}…" for t in texts]
        return tuple(t if cut.count(t) == 1 else f"{k}: {t}" for k, t in enumerate(cut, 1))

    @property
    def logarithmic(self) -> bool:
        """Whether the values are more evenly spaced on a logarithmic axis.

        >>> [Axis.of("k", v).logarithmic for v in ([1, 2, 4], [1, 2, 3], [0, 1, 10], [0.5, 1, 4])]
        [True, False, False, True]
        """
        if not self.numeric or self.values[0] <= 0:
            return False
        return _unevenness(np.log(self.values)) < _unevenness(np.array(self.values)) - 1e-9

    @property
    def even(self) -> bool:
        """Whether cells of equal width show the distances of the values, or they have none."""
        values = np.array(self.values) if self.numeric else np.arange(2.0)
        return _unevenness(np.log(values) if self.logarithmic else values) < EVEN


def _unevenness(values: Any) -> float:
    """Standard deviation of the distances over their mean."""
    gaps = np.diff(values)
    return float(gaps.std() / gaps.mean())


class Ranked(NamedTuple):
    """A policy at one point.

    time: the time that ranks it, in seconds.
    speedup: the ratio of the mean time of bsp to it; NaN where bsp is not there.
    place: the best and the worst possible place.
    stale: whether it applied stale gradients.
    """

    policy: str
    time: Estimate
    speedup: Estimate
    place: tuple[int, int]
    stale: bool

    @property
    def saved(self) -> Estimate:
        """The share of the time of bsp that it saves."""
        return saved_share(self.speedup)


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a sweep.

    ranking: the policies whose runs are all finished and have a known time, best mean first.
    behind: the policies that the best mean is shown to be faster than.
    failed: the first error of each policy that failed.
    unknown: why the time of a policy is not known: its progress is not, or it missed the target.
    inaccurate: why the time of a policy is not compared: it may be less accurate than bsp.
    missing: runs that have not ended.
    """

    number: int
    values: Mapping[str, Any]
    ranking: tuple[Ranked, ...]
    behind: set[str]
    failed: Mapping[str, str]
    unknown: Mapping[str, str]
    inaccurate: Mapping[str, str]
    missing: int

    @property
    def best(self) -> Ranked | None:
        """The best mean; None as long as a run is missing, or where no policy has a time."""
        return self.ranking[0] if self.ranking and not self.missing else None

    @property
    def winner(self) -> str | None:
        """The best policy, if paired differences show it to be faster than every other."""
        return self.contenders[0] if len(self.contenders) == 1 else None

    @property
    def contenders(self) -> list[str]:
        """The best policy, and those that it is not shown to be faster than."""
        return [p.policy for p in self.ranking if p.policy not in self.behind] if self.best else []


@dataclass(frozen=True, slots=True)
class SweepCells:
    """All points of a sweep, in the order of the study.

    axes: the keys that vary.
    warnings: those of its runs, with their policies; of those that differ in numbers, the first.
    """

    sweep: Sweep
    cells: tuple[Cell, ...]
    axes: Mapping[str, Axis]
    warnings: tuple[str, ...]

    @property
    def policies(self) -> list[str]:
        """Policies as they were written, in the order of the study."""
        return list(dict.fromkeys(run.policy for run in self.sweep.runs))

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.sweep.runs})

    @property
    def has_baseline(self) -> bool:
        return BASELINE in self.policies

    def choose(self, x: str | None, y: str | None) -> tuple[Axis, Axis | None, tuple[Axis, ...]]:
        """The axes of the picture, and the keys of which each combination has a panel.

        By default the numeric key with most values lies along x, the next along y.  Raises
        `InputError` for a key that was not varied, and for a study of one point.
        """
        if not self.axes:
            raise InputError(
                f"{self.sweep.folder / Sweep.MARKER}: a study of one point has no picture; list "
                "more values in its grid, or run its scenario with `simstrag compare`"
            )
        for option, key in (("x", x), ("y", y)):
            if key is not None and key not in self.axes:
                hint = nearest(key, self.axes) or f"; varied: {', '.join(self.axes)}"
                raise InputError(f"{option} {key}: the study did not vary it{hint}")
        if x is not None and x == y:
            raise InputError(f"x and y are both {x}; choose two keys")
        by_size = sorted(self.axes.values(), key=lambda axis: (not axis.numeric, -len(axis.values)))
        left = [axis for axis in by_size if axis.key not in (x, y)]
        along_x = self.axes[x] if x else left.pop(0) if left else None
        if along_x is None:
            raise InputError(f"y {y}: only this key was varied, so it lies along x; leave y out")
        along_y = self.axes[y] if y else left.pop(0) if left else None
        rest = (self.axes[key] for key in self.axes if key in [axis.key for axis in left])
        return along_x, along_y, tuple(rest)


def sweep_cells(sweep: Sweep) -> SweepCells:
    """The points of a sweep, finished or not; of a shard, those of the whole sweep."""
    sweep = Sweep.read(sweep.folder)
    outcomes = sweep.outcomes()
    runs = defaultdict[int, list[Planned]](list)
    for run in sweep.runs:
        runs[run.point].append(run)
    cells = tuple(
        _cell(sweep, number, runs[number], outcomes) for number in range(len(sweep.points))
    )
    found = (Axis.of(key, [point[key] for point in sweep.points]) for key in sweep.points[0])
    axes = {axis.key: axis for axis in found if len(axis.values) > 1}
    warned: dict[str, str] = {}
    for run, kept in outcomes.items():
        for text in kept["warnings"]:
            warned.setdefault(
                f"{run.policy} {re.sub('[0-9.]+', '', text)}", f"{run.policy}: {text}"
            )
    return SweepCells(sweep, cells, axes, tuple(warned.values()))


def _cell(
    sweep: Sweep, number: int, runs: Sequence[Planned], outcomes: Mapping[Planned, Any]
) -> Cell:
    name, ended = sweep.times[number], [run for run in runs if run in outcomes]
    failed: dict[str, str] = {}
    unknown: dict[str, str] = {}
    summaries = defaultdict[str, list[Mapping[str, Any]]](list)
    for run in ended:
        summary = outcomes[run]["summary"]
        if outcomes[run]["error"]:
            failed.setdefault(run.policy, outcomes[run]["error"])
        elif summary[name] is None:
            why = summary["progress_unknown"] or "it missed the target accuracy"
            unknown.setdefault(run.policy, why)
        else:
            summaries[run.policy].append(summary)
    seeds = len({run.seed for run in runs})
    whole = {policy: own for policy, own in summaries.items() if len(own) == seeds}
    inaccurate = _inaccurate(sweep, number, whole)
    whole = {policy: own for policy, own in whole.items() if policy not in inaccurate}
    times = {policy: np.array([s[name] for s in own]) for policy, own in whole.items()}
    suffices = seeds < 2 and sweep.certain[number]
    ahead, bsp = leads(times, suffices), times.get(BASELINE)
    place = places(ahead)
    nothing = Estimate(math.nan, math.nan, math.nan)
    ranking = [
        Ranked(
            policy,
            exact(suffices, paired_statistics.mean(own)),
            nothing if bsp is None else exact(suffices, paired_statistics.speedup(own, bsp)),
            place[policy],
            any((s["effective_staleness"] or 0) > 0 for s in whole[policy]),
        )
        for policy, own in times.items()
    ]
    ranking.sort(key=lambda p: p.time.value)
    behind = ahead[ranking[0].policy] if ranking else set()
    missing = len(runs) - len(ended)
    return Cell(
        number, sweep.points[number], tuple(ranking), behind, failed, unknown, inaccurate, missing
    )


def _inaccurate(
    sweep: Sweep, number: int, summaries: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, str]:
    """The policies that a real learner's final accuracy excludes, with the reason.

    None with a target, whose time compares equal accuracies, and none without bsp.
    """
    if sweep.times[number] != "makespan" or BASELINE not in summaries:
        return {}
    stated = with_values(sweep.study["scenario"], sweep.points[number]).get("learner")
    learner = LearnerSection(**(stated or {}))
    if not learner.is_real:
        return {}
    accuracy = {name: [s["accuracy"] for s in own] for name, own in summaries.items()}
    gaps = {
        name: paired_statistics.difference(np.array(own), np.array(accuracy[BASELINE]))
        for name, own in accuracy.items() if name != BASELINE
    }  # fmt: skip
    return {
        name: too_inaccurate(learner.margin)
        for name, gap in gaps.items()
        if as_accurate(gap, learner.margin) != "yes"
    }
