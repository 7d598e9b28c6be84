"""The scoreboard: every claim tried in its nearest scenario and on its map, and what came out.

Its runs are sweeps, or cluster studies, in the scoreboard's folder, each kept as it finishes, so
that the same command goes on after an interrupt.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag.claims.claim import SEVERITY, TARGETS, Claim, Entrant, Learner, MapAxis
from simstrag.claims.cluster_sweep import (
    ClusterTrial,
    Summaries,
    asked_runs,
    run_draws,
)
from simstrag.claims.identities import Identity, identities
from simstrag.claims.measures import PointRuns, speedups
from simstrag.claims.registry import CLAIMS
from simstrag.documents.file_io import write_atomically
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.experiments import paired_statistics
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate, within
from simstrag.experiments.sweep import Sweep, sweep
from simstrag.rendering import html_fragment, html_page
from simstrag.runs.run import plain

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path("reports/claims")
FOUND = "found finished"
"""What a sweep reports of runs that an earlier command finished."""

UNKNOWN = Estimate(math.nan, math.nan, math.nan)
NO_DELAY = "stragglers cost bsp nothing to speak of"


class ClaimVerdict(StrEnum):
    """What the scoreboard says of a claim."""

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
        """As JSON; `largest` by rival."""
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


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim and what came out; trials by learner."""

    claim: Claim
    trials: Mapping[Learner, Trial]

    @property
    def verdict(self) -> ClaimVerdict:
        """That of the trial which has the map."""
        nothing = ClaimVerdict.UNTRIED if self.claim.learners else ClaimVerdict.UNTESTABLE
        return next((trial.verdict for trial in self.trials.values()), nothing)

    @property
    def document(self) -> dict[str, Any]:
        """The row as JSON."""
        trials: dict[str, Any] = {
            learner: {
                **trial.here.estimate._asdict(), "holds": trial.here.holds,
                "versus": {name: e._asdict() for name, e in trial.here.versus.items()},
                "note": trial.here.note, "verdict": trial.verdict, "region": trial.region,
                "points": [{
                    **{a.key: a.values[k] for a, k in zip(trial.axes, p.place, strict=True)},
                    **p.estimate._asdict(), "holds": p.holds,
                } for p in trial.points],
                **({"average": trial.average.document} if trial.average else {}),
                **({"entrants": [
                    {"words": e.words, "entrant": e.entrant, "missed": e.missed,
                     "stragglers": e.stragglers, "seconds": e.seconds._asdict(),
                     "saved": e.saved._asdict(), "accuracy": e.accuracy._asdict()}
                    for e in trial.entrants
                ]} if trial.entrants else {}),
            } for learner, trial in self.trials.items()
        }  # fmt: skip
        about = {name: getattr(self.claim, name) for name in ("name", "paper", "says", "number")}
        return {**about, "measure": self.claim.measure.words, "verdict": self.verdict, **trials}


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """The rows of the scoreboard; `print` shows the verdicts.

    quick: whether maps are coarse, seeds few and nothing is trained.
    """

    folder: Path
    quick: bool
    rows: tuple[ClaimResult, ...]

    def __str__(self) -> str:
        width = max(len(row.claim.name) for row in self.rows)
        return "\n".join(f"{row.claim.name:{width}}  {row.verdict}" for row in self.rows)

    @property
    def identities(self) -> tuple[Identity, ...]:
        """What follows from the claims' numbers and from the models."""
        return identities(self.quick)

    @property
    def document(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "quick": self.quick,
            "claims": [row.document for row in self.rows],
            "identities": [each._asdict() for each in self.identities],
        }

    def frame(self) -> pd.DataFrame:
        """A row for each point of each trial: claim, learner, place by axis, value, low, high."""
        import pandas as pd

        return pd.DataFrame([
            {"claim": row.claim.name, "learner": learner, "at": trial.describe(point),
             "number": row.claim.number, **point.estimate._asdict(), "holds": point.holds}
            for row in self.rows for learner, trial in row.trials.items() for point in trial.points
        ])  # fmt: skip

    def write(self, command: str | None = None) -> Path:
        """Write its page to its folder; returns the page's path."""
        page, path = html_page(self, command), self.folder / "claims.html"
        write_atomically(path, lambda part: part.write_text(page, encoding="utf-8"))
        return path

    def _repr_html_(self) -> str:
        return html_fragment(self)


def judge(
    only: Sequence[str | Claim] = (),
    folder: str | Path = FOLDER,
    *,
    quick: bool = False,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Scoreboard:
    """Try the papers' claims.

    only: their names, or claims of your own; all by default.
    folder: for the runs, which are not computed again by the next call.
    quick: coarse maps, three seeds, and nothing is trained.
    jobs: processes, all cores by default, or this process alone where it is quick.
    on_progress: called as (done, total, what).
    Raises `InputError` for an unknown name.  On Ctrl-C, the `KeyboardInterrupt` says how many runs
    are kept.
    """
    known = {claim.name: claim for claim in CLAIMS}
    for name in only:
        if isinstance(name, str) and name not in known:
            hint = nearest(name, known)
            raise InputError(f"there is no claim '{name}'; known: {', '.join(known)}{hint}")
    wanted = {each if isinstance(each, str) else each.name: each for each in only or known}
    claims = [known[each] if isinstance(each, str) else each for each in wanted.values()]
    total, done = (
        sum(
            _count_runs(claim, learner, quick) for claim in claims for learner in claim.tried(quick)
        ),
        0,
    )
    report = on_progress or (lambda *_: None)
    rows = []
    for claim in claims:
        trials: dict[Learner, Trial] = {}
        for learner in claim.tried(quick):
            kept = Path(folder) / f"{claim.name}-{learner}"

            def show(k: int, _: int, what: str, before: int = done, name: str = claim.name) -> None:
                report(before + k, total, what if what == FOUND else f"{name}: {what}")

            cores = 1 if quick and jobs is None else jobs
            try:
                if claim.draw is not None:
                    drawn = run_draws(claim, learner, quick, kept, cores, show)
                    trials[learner] = cluster_trial(claim, learner, quick, drawn)
                    done += _count_runs(claim, learner, quick)
                    continue
                found = sweep(claim.study(learner, quick), kept, jobs=cores, on_progress=show)
            except KeyboardInterrupt:
                kept_so_far = f"about {done} of {total} runs are finished and kept in {folder}"
                raise KeyboardInterrupt(kept_so_far) from None
            done += len(found.runs)
            trials[learner] = _trial(claim, learner, quick, found)
        rows.append(ClaimResult(claim, trials))
    return Scoreboard(Path(folder), quick, tuple(rows))


def _trial(claim: Claim, learner: Learner, quick: bool, found: Sweep) -> Trial:
    axes, outcomes = claim.drawn_axes(learner, quick), found.outcomes()
    summaries = defaultdict[int, dict[str, list[Mapping[str, Any]]]](lambda: defaultdict(list))
    failed: dict[int, str] = {}
    for run in found.runs:
        if error := outcomes[run]["error"]:
            failed.setdefault(run.point, f"{run.policy} failed: {error}")
        summaries[run.point][run.policy].append(outcomes[run]["summary"])
    numbers = {_values(values): number for number, values in enumerate(found.points)}
    has_target = any(key in found.study["scenario"] for key in TARGETS)
    reached, known = [], dict[tuple[int, ...], PointRuns]()
    for place in itertools.product(*(range(len(axis.values)) for axis in axes)):
        values = {axis.key: axis.values[k] for axis, k in zip(axes, place, strict=True)}
        number, clean = numbers[_values(values)], None
        if claim.measure.needs_clean:
            clean = numbers[_values({**values, SEVERITY: 0.0})]
        if error := failed.get(number) or (failed.get(clean) if clean is not None else None):
            reached.append(Reached(place, UNKNOWN, {}, error, None))
            continue
        controls = [] if clean is None else summaries[clean][BASELINE]
        is_here = place == tuple(axis.here for axis in axes)
        outside = 0.05 if is_here else 0.05 / math.prod(len(axis.values) for axis in axes)
        known[place] = PointRuns(summaries[number], controls, has_target, outside)
        reached.append(reach(claim, place, known[place], learner))
    average = averaged(claim, reached, known) if claim.is_averaged else None
    return Trial(learner, axes, tuple(reached), average)


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


def _count_runs(claim: Claim, learner: Learner, quick: bool) -> int:
    if claim.draw:
        return sum(1 for _ in asked_runs(claim, learner, quick))
    return claim.count_runs(learner, quick)


def cluster_trial(claim: Claim, learner: Learner, quick: bool, found: ClusterTrial) -> Trial:
    axes = claim.drawn_axes(learner, quick)
    here, points = tuple(axis.here for axis in axes), []
    judged = (claim.policy, *claim.rivals_under(learner))
    for place, summaries in found.summaries.items():
        errors = found.failed.get(place, {})
        if lost := next((name for name in judged if name in errors), None):
            points.append(Reached(place, UNKNOWN, {}, f"{lost} failed: {errors[lost]}", None))
            continue
        outside = 0.05 if place == here else 0.05 / len(found.summaries)
        runs = PointRuns(summaries, (), has_target=True, outside=outside)
        points.append(reach(claim, place, runs, learner))
    entrants = _entrant_times(claim, learner, found.summaries[here])
    return Trial(learner, axes, tuple(points), entrants=entrants)


def _entrant_times(claim: Claim, learner: Learner, summaries: Summaries) -> tuple[EntrantTime, ...]:
    """Of all whose runs ended: those beside, the rivals, then the parts."""
    runs, words = PointRuns(summaries, (), has_target=True), {e: w for w, e in claim.parts}
    order = dict.fromkeys(name for name in (*claim.beside, *summaries) if name in summaries)
    reference = claim.beside[:1] if claim.beside[0] in summaries else ()
    parts = [entrant for _, entrant in claim.parts if entrant in order]
    return tuple(
        EntrantTime(
            words.get(entrant, Entrant.of(entrant).policy), entrant,
            paired_statistics.mean(runs.times(entrant)),
            claim.measure.of(runs, entrant, reference) if reference else UNKNOWN,
            float(runs.column(entrant, "stragglers").mean()),
            within(paired_statistics.mean(runs.column(entrant, "accuracy")), 0.0, 1.0)
            if learner == "real" else UNKNOWN, runs.misses(entrant),
        )
        for entrant in (*(e for e in order if e not in parts), *parts)
    )  # fmt: skip


def _values(values: Mapping[str, Any]) -> str:
    """The values of a point as a key."""
    return repr(plain(dict(sorted(values.items()))))


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
