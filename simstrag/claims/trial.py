"""A trial: what came out of a claim at the points of its map, under one learner.

Start with `try_claim`; `Trial` has the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from simstrag.claims.claim import Claim, Learner, MapAxis
from simstrag.claims.measures import PointRuns, speedups
from simstrag.experiments import paired_statistics
from simstrag.experiments.paired_statistics import Estimate

UNKNOWN = Estimate(math.nan, math.nan, math.nan)
NO_DELAY = "stragglers cost bsp nothing to speak of"


class ClaimVerdict(StrEnum):
    """The verdict of the scoreboard on a claim."""

    HERE = "holds in the nearest setting"
    MEAN = "holds on average"
    REGION = "holds in a region"
    OPEN = "undecided by these seeds"
    NOT = "not reproduced"
    UNTRIED = "not tried"
    UNTESTABLE = "cannot be tested"


AVERAGED = {True: ClaimVerdict.MEAN, False: ClaimVerdict.NOT, None: ClaimVerdict.OPEN}
"""The verdict by what `MapAverage.holds` says."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The measure at one point.

    place: index along each axis.
    estimate: NaN where it is not known.
    versus: the measure against each rival alone.
    note: why it is not known, which runs missed the target, or the accuracies compared.
    holds: whether the whole interval lies above the claimed number; None where the interval holds
        it, and where a run failed.
    """

    place: tuple[int, ...]
    estimate: Estimate
    versus: Mapping[str, Estimate]
    note: str
    holds: bool | None

    @property
    def failed(self) -> bool:
        """Whether one of its runs failed."""
        return self.holds is None and math.isnan(self.estimate.value)


@dataclass(frozen=True, slots=True)
class MapAverage:
    """The speed-ups of all points of a map over all rivals, averaged as a table of them would be.

    estimate: the arithmetic mean, with a 95 % interval over seeds; NaN where a point is not known.
    geometric: the geometric mean.
    holds: as in `Reached`.
    largest: by rival, the point with the largest mean speed-up.
    """

    estimate: Estimate
    geometric: float
    holds: bool | None
    largest: Mapping[str, Reached]

    @property
    def document(self) -> dict[str, Any]:
        """The point as JSON; `largest` by rival."""
        most = {name: point.versus[name].value for name, point in self.largest.items()}
        about = {"geometric": self.geometric, "holds": self.holds}
        return {**self.estimate._asdict(), **about, "largest": most}


@dataclass(frozen=True, slots=True)
class EntrantTime:
    """What all jobs of a cluster used, and how long they took, in the nearest setting.

    words: what it is.
    seconds: of a job, from its start to its target.
    saved: share of the seconds under the first entrant of `Claim.beside`.
    stragglers: of 1,000 gradients those of ranks over 20 % slower than their job's fastest.
    accuracy: of the job that trains, in the end; NaN under the formula.
    missed: draws in which a job missed its target; they count until it ended.
    """

    words: str
    entrant: str
    seconds: Estimate
    saved: Estimate
    stragglers: float
    accuracy: Estimate
    missed: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A claim under one learner.

    axes: of its points; of one value each where only the nearest setting was tried.
    points: the last axis varies fastest.  The nearest setting has a 95 % interval.  Those of
        n points have 1 - 5 %/n (Bonferroni), so that all of them are right with 95 %.
    average: of a claim that is about the mean over the map; None of another.
    entrants: of a claim about jobs that share a cluster.
    """

    learner: Learner
    axes: tuple[MapAxis, ...]
    points: tuple[Reached, ...]
    average: MapAverage | None = None
    entrants: tuple[EntrantTime, ...] = ()

    @property
    def here(self) -> Reached:
        """The nearest setting."""
        place = tuple(axis.here for axis in self.axes)
        return next(point for point in self.points if point.place == place)

    @property
    def best(self) -> Reached:
        """The point with the largest known value."""
        return max(
            self.points,
            key=lambda p: -math.inf if math.isnan(p.estimate.value) else p.estimate.value,
        )

    @property
    def verdict(self) -> ClaimVerdict:
        """What the points say together, or their average alone where the claim is about that."""
        if self.average:
            return AVERAGED[self.average.holds]
        if self.here.holds:
            return ClaimVerdict.HERE
        found = {point.holds for point in self.points}
        return (
            ClaimVerdict.REGION
            if True in found
            else ClaimVerdict.OPEN
            if None in found
            else ClaimVerdict.NOT
        )

    @property
    def region(self) -> str:
        """Where the claim holds: how many points, and the values of the axes.

        Values of each axis where it holds at all of their pairs; else those of the first axis for
        each value of the second.
        """
        held = [point.place for point in self.points if point.holds]
        if not held or len(self.points) == 1 or self.average:
            return ""
        sides = [sorted({*places}) for places in zip(*held, strict=True)]
        if math.prod(map(len, sides)) == len(held):
            pairs = zip(self.axes, sides, strict=True)
            spans = [f"{axis.name} {axis.span(side)}" for axis, side in pairs]
        else:
            first, second = self.axes
            columns = {k: [a for a, b in held if b == k] for k in sides[1]}
            rows = [f"{first.span(c)} at {second.labels[k]}" for k, c in columns.items()]
            spans = [f"{first.name} {rows[0]}", *rows[1:]]
        return f"{len(held)} of {len(self.points)} points: {'; '.join(spans)}"

    def describe(self, point: Reached) -> str:
        """A point by its values."""
        pairs = zip(self.axes, point.place, strict=True)
        return ", ".join(f"{axis.name} {axis.labels[k]}" for axis, k in pairs)


def try_claim(
    claim: Claim, learner: Learner, axes: tuple[MapAxis, ...],
    points: Mapping[tuple[int, ...], PointRuns | str], entrants: tuple[EntrantTime, ...] = (),
) -> Trial:  # fmt: skip
    """A claim by the runs of every point of its map, or by why some of them failed."""
    here = tuple(axis.here for axis in axes)
    reached, known = [], dict[tuple[int, ...], PointRuns]()
    for place, runs in points.items():
        if isinstance(runs, str):
            reached.append(Reached(place, UNKNOWN, {}, runs, None))
            continue
        outside = 0.05 if place == here else 0.05 / len(points)
        known[place] = replace(runs, outside=outside)
        reached.append(reach(claim, place, known[place], learner))
    average = averaged(claim, reached, known) if claim.is_averaged else None
    return Trial(learner, axes, tuple(reached), average, entrants)


def reach(
    claim: Claim, place: tuple[int, ...], runs: PointRuns, learner: Learner = "formula"
) -> Reached:
    """The measure at a point.

    A policy that misses the target has not shown the claim; rivals that miss it are counted with
    the time at which their runs ended, which is less than they need.
    """
    rivals = claim.rivals_under(learner)
    misses = {name: runs.misses(name) for name in (claim.policy, *rivals)}
    seeds = len(runs.summaries[claim.policy])
    note = "; ".join(f"{n} missed the target in {k} of {seeds}" for n, k in misses.items() if k)
    if misses[claim.policy]:
        return Reached(place, UNKNOWN, {}, note, False)
    measure = claim.measure
    if measure.column == "accuracy":
        means = ((name, runs.column(name, "accuracy").mean()) for name in misses)
        note = "accuracy " + ", ".join(f"{name} {mean:.3f}" for name, mean in means)
    versus = {name: measure.of(runs, claim.policy, [name]) for name in rivals}
    found = measure.of(runs, claim.policy, rivals)
    if math.isnan(found.value):
        return Reached(place, found, versus, note or NO_DELAY, False)
    return Reached(place, found, versus, note, _holds(found, claim.number))


def averaged(
    claim: Claim, points: Sequence[Reached], runs: Mapping[tuple[int, ...], PointRuns]
) -> MapAverage:
    """The mean over all points and rivals; runs: by place, of the points where none failed."""
    if any(math.isnan(point.estimate.value) for point in points):
        open_ = any(point.failed for point in points)
        return MapAverage(UNKNOWN, math.nan, None if open_ else False, {})
    each = np.array([
        [speedups(at, claim.policy, rival) for rival in claim.rivals] for at in runs.values()
    ])  # fmt: skip
    found = paired_statistics.mean(each.mean(axis=(0, 1)))
    geometric = float(np.exp(np.log(each.mean(axis=2)).mean()))
    largest = {name: max(points, key=lambda p: p.versus[name].value) for name in claim.rivals}
    return MapAverage(found, geometric, _holds(found, claim.number), largest)


def _holds(found: Estimate, number: float) -> bool | None:
    """Whether the whole interval lies above a number; None where the interval holds it."""
    below = False if found.high <= number else None
    return True if found.low > number else below
