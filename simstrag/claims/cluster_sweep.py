"""Runs the cluster studies of a claim: every entrant at every point, over draws of the jobs.

Each run is kept as it ends, under a digest of all that it depends on.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simstrag.claims.claim import Claim, Entrant, Learner, MapAxis, points_of
from simstrag.claims.cluster_claims import (
    DRAWS,
    QUICK_DRAWS,
    SHORT,
    TARGET,
    TRAINED_SAMPLES,
    WORKERS,
)
from simstrag.claims.measures import PointRuns
from simstrag.claims.trial import UNKNOWN, EntrantTime, Trial, try_claim
from simstrag.cluster.job import RunningJob
from simstrag.cluster.simulate import simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.documents.file_io import refuse_file
from simstrag.engine.real_training import train
from simstrag.engine.recorder import Recorder
from simstrag.errors import SimstragError
from simstrag.experiments.cluster_backends import open_backend
from simstrag.experiments.kept_runs import KeptRuns, Report
from simstrag.experiments.paired_statistics import mean, within
from simstrag.experiments.runner import digest_of_policy, key_of
from simstrag.learning.gradient_log import GradientLog
from simstrag.runs.run import plain
from simstrag.scenario.scenario import Scenario

Summaries = dict[str, list[Mapping[str, Any]]]
"""The summaries of each entrant's runs, in the order of the draws."""
COUNTED = ("granted", "refused", "stragglers", "largest_lost_share")
"""Numbers of a cluster's run that are kept beside its times."""


class PlannedDraw(NamedTuple):
    """One run.

    place: index along each axis of the map.
    """

    key: str
    place: tuple[int, ...]
    entrant: str
    draw: int

    def __str__(self) -> str:
        """The entrant and the number of its draw."""
        return f"{self.entrant}, draw {self.draw}"


class AskedRun(NamedTuple):
    """A run of a claim.

    place: index along each axis of the map.
    values: at that place.
    """

    place: tuple[int, ...]
    values: Mapping[str, Any]
    entrant: str
    draw: int


def asked_runs(claim: Claim, learner: Learner, quick: bool) -> Iterator[AskedRun]:
    """Every run of a claim; parts in the nearest setting alone."""
    axes = claim.drawn_axes(learner, quick)
    here = tuple(axis.here for axis in axes)
    judged = dict.fromkeys((claim.policy, *claim.rivals_under(learner)))
    shown = judged | dict.fromkeys(claim.beside)
    if learner == "formula" and not quick:
        shown |= dict.fromkeys(entrant for _, entrant in claim.parts)
    for place, values in points_of(axes):
        entrants = shown if place == here else judged
        for entrant, draw in itertools.product(entrants, range(QUICK_DRAWS if quick else DRAWS)):
            yield AskedRun(place, dict(SHORT) if quick else values, entrant, draw)


def run_draws(
    claim: Claim, learner: Learner, quick: bool, folder: Path, jobs: int | None, report: Report
) -> Trial:
    """Try a claim about jobs that share a cluster; what the folder holds is not run again."""
    assert claim.draw is not None
    trained = claim.real if learner == "real" else None
    studies: dict[tuple[tuple[int, ...], int], tuple[Mapping[str, Any], str]] = {}
    runs = []
    for place, values, entrant, draw in asked_runs(claim, learner, quick):
        if (place, draw) not in studies:
            keys = claim.draw(draw, trained=trained is not None, **values)
            studies[place, draw] = keys, f"{ClusterStudy.of(keys).digest} {plain(trained)}"
        one, origin = Entrant.of(entrant), studies[place, draw][1]
        source = digest_of_policy(one.policy)
        key = key_of(origin, f"{one.placer} {one.manager}", one.policy, draw, source)
        runs.append(PlannedDraw(key, place, entrant, draw))
    refuse_file(folder)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    kept = KeptRuns(folder, tuple(runs))

    def calls(missing: list[PlannedDraw]) -> Iterator[tuple[PlannedDraw, tuple[Any, ...]]]:
        for run in missing:
            yield run, (studies[run.place, run.draw][0], run.entrant, run.draw, trained)

    with open_backend(jobs=jobs) as backend:
        kept.compute(backend, _run, calls, report)
    summaries: dict[tuple[int, ...], Summaries] = defaultdict(lambda: defaultdict(list))
    failed = defaultdict[tuple[int, ...], dict[str, str]](dict)
    for run, done in kept.outcomes().items():
        if done["error"]:
            failed[run.place].setdefault(run.entrant, done["error"])
        summaries[run.place][run.entrant].append(done["summary"])
    for place, errors in failed.items():
        for entrant in errors:
            del summaries[place][entrant]
    return trial_of_draws(claim, learner, claim.drawn_axes(learner, quick), summaries, failed)


def trial_of_draws(
    claim: Claim, learner: Learner, axes: tuple[MapAxis, ...],
    summaries: Mapping[tuple[int, ...], Summaries],
    failed: Mapping[tuple[int, ...], Mapping[str, str]],
) -> Trial:  # fmt: skip
    """A claim by the summaries of each point.

    failed: at a point, the error of a run by its entrant, which has no summaries there.
    """
    points: dict[tuple[int, ...], PointRuns | str] = {}
    for place, of in summaries.items():
        errors = failed.get(place, {})
        lost = [name for name in (claim.policy, *claim.rivals_under(learner)) if name in errors]
        points[place] = (
            f"{lost[0]} failed: {errors[lost[0]]}" if lost else PointRuns(of, (), has_target=True)
        )
    here = tuple(axis.here for axis in axes)
    return try_claim(claim, learner, axes, points, _entrant_times(claim, learner, summaries[here]))


def _entrant_times(claim: Claim, learner: Learner, summaries: Summaries) -> tuple[EntrantTime, ...]:
    """Of all whose runs ended: those beside, the rivals, then the parts."""
    runs, words = PointRuns(summaries, (), has_target=True), {e: w for w, e in claim.parts}
    order = dict.fromkeys(name for name in (*claim.beside, *summaries) if name in summaries)
    reference = claim.beside[:1] if claim.beside[0] in summaries else ()
    parts = [entrant for _, entrant in claim.parts if entrant in order]
    return tuple(
        EntrantTime(
            words.get(entrant, Entrant.of(entrant).policy), entrant,
            mean(runs.times(entrant)),
            claim.measure.of(runs, entrant, reference) if reference else UNKNOWN,
            float(runs.column(entrant, "stragglers").mean()),
            within(mean(runs.column(entrant, "accuracy")), 0.0, 1.0)
            if learner == "real" else UNKNOWN, runs.misses(entrant),
        )
        for entrant in (*(e for e in order if e not in parts), *parts)
    )  # fmt: skip


def _run(
    keys: Mapping[str, Any], entrant: str, draw: int, trained: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One run in any process: its summary as JSON."""
    study, one = ClusterStudy.of(keys), Entrant.of(entrant)
    if trained is None:
        return {"summary": plain(simulate_draw(study, one, draw))}
    return {"summary": plain(train_draw(study, one, draw, trained))}


def simulate_draw(study: ClusterStudy, entrant: Entrant, draw: int) -> dict[str, Any]:
    """Mean seconds of all jobs from their start to their target; None where one missed it."""
    run = simulate_cluster(
        study, entrant.policy, entrant.placer, draw, manager=entrant.manager, alone=False,
        record=False,
    )  # fmt: skip
    times = [job["time_to_target"] for job in run.jobs]
    reached = not any(map(math.isnan, times))
    return {
        "time_to_target": sum(times) / len(times) if reached else None,
        "makespan": sum(_run_time(job, study.horizon) for job in run.jobs) / len(run.jobs),
        **{name: run.summary[name] for name in COUNTED},
    }  # fmt: skip


def _run_time(job: Mapping[str, Any], horizon: float) -> float:
    """Until it ended, or the horizon came."""
    return horizon if math.isnan(job["run_time"]) else float(job["run_time"])


def train_draw(
    study: ClusterStudy, entrant: Entrant, draw: int, keys: Mapping[str, Any]
) -> dict[str, Any]:
    """Seconds in which the first job trains to the target, and its accuracy in the end.

    Its run in the cluster says which gradient is applied when, at which parameters; these very
    gradients are then computed.
    """
    log, rules, seeds = GradientLog(), list[Any](), list[int]()

    def note(job: RunningJob) -> None:
        if job.job.number == 0:
            rules.extend(job.rules)
            seeds.append(job.seed)

    run = simulate_cluster(
        study, entrant.policy, entrant.placer, draw, manager=entrant.manager, alone=False,
        record=False, recorders={0: Recorder(keep_gradients=True, storage=log)}, on_end=note,
    )  # fmt: skip
    if not seeds:
        raise SimstragError(f"the job that trains has not ended by {study.horizon:g} s")
    step = study.workloads[run.jobs[0]["workload"]].scenario["step"]
    case = Scenario.of({"workers": WORKERS, "samples": TRAINED_SAMPLES, "step": step, **keys})
    found = train(case, seeds[0], log, rules).evaluations
    pairs = zip(found.time, found.accuracy, strict=True)
    return {
        "time_to_target": next((time for time, accuracy in pairs if accuracy >= TARGET), None),
        "makespan": run.jobs[0]["run_time"],
        "accuracy": found.accuracy[-1],
        **{name: run.summary[name] for name in COUNTED},
    }  # fmt: skip
