"""Advice for the jobs of a cluster: the one policy under which their mean completion time is least.

Only what a workload leaves to a default counts as assumed, as in a scenario; it is varied for all
workloads at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.advice.candidates import Candidates, candidates, grid
from simstrag.advice.halving import UNKNOWN, CandidateRun, Search, alters
from simstrag.advice.recommendation import Recommendation
from simstrag.arrays import Floats
from simstrag.cluster.runs import ClusterResults, cluster
from simstrag.cluster.simulate import require_interval
from simstrag.cluster.study import ClusterStudy
from simstrag.contract.policy import LANES
from simstrag.ddp.policy_support import mechanism
from simstrag.errors import InputError
from simstrag.experiments.decision import OWN, Setting
from simstrag.experiments.kept_runs import Report
from simstrag.experiments.runner import BASELINE
from simstrag.policies import declared_lane, load
from simstrag.scenario.beyond_measured import beyond_measured
from simstrag.scenario.varied_constants import FACTORS, OWN_FACTORS

SEEDS = 3
"""Most seeds under which a constant is varied."""
CORES = ("host_cores", "server_cores")
"""Constants that a workload has beside those of its scenario."""


@dataclass(frozen=True, kw_only=True)
class ClusterAdvice(Recommendation):
    """Advice for one cluster study: one policy for all jobs that state none of their own.

    study: with one placer and one manager.
    results: the finalists' runs, in their folder.
    gpu_hours: of each finalist, of all jobs, the mean over seeds.
    """

    study: ClusterStudy
    results: ClusterResults
    gpu_hours: Mapping[str, float]

    @property
    def lines(self) -> tuple[str, str]:
        """The two lines that run the first job under the choice on real ranks."""
        job = self.study.arriving(self.choice, self.study.seed_list[0])[0]
        batch = self.study.scenario(job.workload, job.workers, samples=1).learner.batch
        return (
            f'trainer = simstrag.ddp.wrap(model, optimizer, policy="{self.choice}", batch={batch})',
            f"simstrag ddp train.py --ranks {job.workers}",
        )

    def hours(self, policy: str) -> float:
        """Mean GPU-hours of all jobs."""
        return self.gpu_hours[policy]

    def _repr_html_(self) -> str:
        return self.results._repr_html_()


def advise_cluster(
    study: ClusterStudy | Mapping[str, Any] | str | Path,
    folder: str | Path,
    policies: str | Sequence[str] | None = None,
    *,
    change: str = LANES[-1],
    seeds: int | Sequence[int] | None = None,
    jobs: int | None = None,
    on_progress: Report | None = None,
) -> ClusterAdvice:
    """Search the policy for the jobs of a cluster, under its first placer and manager.

    study: a `ClusterStudy`, its keys, or the path of a YAML file; its own policies do not count.
    folder: of the runs, as of `cluster`; finished runs there are not repeated.
    policies, change, seeds, jobs, on_progress: as of `advise`.

    Jobs are compared by mean completion time.  A candidate under which some job does not end, or
    ends after as many samples that may be worth less, is left out.

    Raises `InputError` as `cluster` does, for a single seed, and where jobs do not end under bsp.

    >>> import tempfile
    >>> slow = [{"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 3.0}]
    >>> case = {
    ...     "nodes": [{"gpus": 1, "cores": 8, "count": 4}], "seeds": 2, "trace": slow,
    ...     "workloads": {"small": {"scenario": {"step": {"compute": 0.1, "cv": 0.01}}}},
    ...     "jobs": [{"workload": "small", "workers": 4, "samples": 51_200}],
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     advise_cluster(case, folder, ["lb_bsp", "drain"], jobs=1).choice
    'lb_bsp'
    """
    if not isinstance(study, ClusterStudy):
        study = ClusterStudy.of(study) if isinstance(study, Mapping) else ClusterStudy.read(study)
    asked = {} if seeds is None else {"seeds": seeds}
    study = study.replaced(placers=study.placers[:1], managers=study.managers[:1], **asked)
    if len(study.seed_list) < 2:
        raise InputError("one seed shows no difference between policies: give two seeds or more")
    found = cluster_candidates(study, policies, change)
    run = partial(cluster, folder=folder, jobs=jobs, on_progress=on_progress)
    search = Search(study.seed_list, (1.0,), partial(_compute, study, run))
    finalists = search.run(found.specs)
    samples: dict[Setting, Mapping[str, Floats]] = {}
    for constant in _assumed(study, finalists):
        for factor in OWN_FACTORS.get(constant, FACTORS):
            varied = _with_factor(study, constant, factor)
            varied = varied.replaced(policies=finalists, seeds=study.seed_list[:SEEDS])
            samples[constant, factor] = _seconds(run(varied))
    results = run(study.replaced(policies=finalists))  # last: its tables stay in the folder
    samples = {OWN: _seconds(results), **samples}
    cases = _cases(study).items()
    beyond = tuple(f"{name}: {each}" for (name, *_), s in cases for each in beyond_measured(s))
    return ClusterAdvice(
        samples=samples, trials=search.ordered,
        lane_of={name: declared_lane(load(name), name) or LANES[-1] for name in finalists},
        excluded=found.excluded, beyond=beyond, study=study, results=results,
        gpu_hours=_gpu_hours(results),
    )  # fmt: skip


def cluster_candidates(
    study: ClusterStudy, specs: str | Sequence[str] | None = None, change: str = LANES[-1]
) -> Candidates:
    """The candidates that every job admits; counts of ranks are of the job with the fewest."""
    cases = _cases(study)
    asked = grid(min(workers for _, workers, _ in cases)) if specs is None else specs
    each = [candidates(scenario, asked, change) for scenario in cases.values()]
    excluded = {spec: reason for found in each for spec, reason in found.excluded.items()}
    admitted = [spec for spec in each[0].specs if spec not in excluded]
    for spec in list(admitted):
        try:
            require_interval(study, spec)
        except InputError as error:
            admitted.remove(spec)
            excluded[spec] = str(error)
    return Candidates(tuple(admitted), excluded)


def _cases(study: ClusterStudy) -> dict[tuple[str, int, bool], Any]:
    """A scenario for each workload, number of workers, and way to end that jobs have."""
    return {
        (job.workload, job.workers, job.samples is None): study.scenario(
            job.workload, job.workers, job.samples, job.target_progress
        )
        for job in study.arriving(BASELINE, study.seed_list[0])
    }


def _compute(
    study: ClusterStudy,
    run: Callable[[ClusterStudy], ClusterResults],
    missing: Sequence[tuple[str, int]],
) -> Iterator[CandidateRun]:
    """Run policies under seeds; what is missing is some policies under the same seeds each."""
    policies, seeds = (tuple(dict.fromkeys(of)) for of in zip(*missing, strict=True))
    results = run(study.replaced(policies=policies, seeds=seeds))
    by_samples = {job.name for job in study.arriving(BASELINE, seeds[0]) if job.samples is not None}
    for each, kept in results.outcomes().items():
        reason = kept["error"] or _incomparable(kept["jobs"], by_samples)
        if reason and each.policies == BASELINE:
            raise InputError(f"{BASELINE}: {reason}")
        seconds = kept["summary"].get("mean_completion_time")
        yield CandidateRun(
            each.policies, each.seed, {1.0: math.nan if reason else float(seconds)}, reason
        )


def _incomparable(jobs: Sequence[Mapping[str, Any]], by_samples: set[str]) -> str:
    """Why the mean completion time is not of equal work; empty where it is."""
    left = sum(job["end"] is None for job in jobs)
    if left:
        return f"{left} of {len(jobs)} jobs do not end: raise horizon"
    return UNKNOWN if any(alters(job) for job in jobs if job["name"] in by_samples) else ""


def _seconds(results: ClusterResults) -> dict[str, Floats]:
    """Mean completion times of each policy over seeds.  Raises `InputError` where a run failed."""
    found: dict[str, dict[int, float]] = {}
    for run, kept in results.outcomes().items():
        if kept["error"]:
            raise InputError(f"{run.policies}: {kept['error']}")
        seconds = kept["summary"]["mean_completion_time"]
        found.setdefault(run.policies, {})[run.seed] = math.inf if seconds is None else seconds
    return {policy: np.array([of[seed] for seed in sorted(of)]) for policy, of in found.items()}


def _gpu_hours(results: ClusterResults) -> dict[str, float]:
    """Mean GPU-hours of all jobs by policy; workers of one device share its hours."""
    by: dict[str, list[float]] = {}
    share = 3600 * int(results.study.get("workers_per_gpu", 1))
    for run, kept in results.outcomes().items():
        seconds = sum(job["workers"] * job["run_time"] for job in kept["jobs"])
        by.setdefault(run.policies, []).append(seconds / share)
    return {policy: float(np.mean(hours)) for policy, hours in by.items()}


def _assumed(study: ClusterStudy, finalists: Sequence[str]) -> list[str]:
    """The constants that are varied: of learning with a target, and cores that are not stated."""
    cases = _cases(study).values()
    serving = any(mechanism(name) == "server" for name in finalists)
    found = []
    if any(scenario.progress_target is not None for scenario in cases):
        found = ["learner.noise_scale", "learner.c_tau"]
    for name, matters in zip(CORES, (True, serving), strict=True):
        if matters and any(name not in w.model_fields_set for w in study.workloads.values()):
            found.append(name)
    return found


def _with_factor(study: ClusterStudy, constant: str, factor: float) -> ClusterStudy:
    """The study with a constant of all workloads multiplied; stated cores stay."""
    workloads = {}
    for name, workload in study.workloads.items():
        keys = workload.model_dump(exclude_unset=True)
        section, _, key = constant.rpartition(".")
        if not section:
            keys.setdefault(key, factor * getattr(workload, key))
        else:
            stated = dict(keys["scenario"].get(section) or {})
            learner = study.scenario(name, 1, samples=1).learner
            value = factor * getattr(learner, key)
            if key == "c_tau" and learner.c_tau_range is not None:
                value = float(np.clip(value, *learner.c_tau_range))
            keys["scenario"] = keys["scenario"] | {section: stated | {key: value}}
        workloads[name] = keys
    return study.replaced(workloads=workloads)
