"""Simulates a cluster study: all its jobs under one mix of policies, one placer and one seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simstrag.cluster.constants import Constants
from simstrag.cluster.job_rows import add_delays, summarise_jobs
from simstrag.cluster.leave_grants import Grants
from simstrag.cluster.managers import load_manager
from simstrag.cluster.measured_constants import constants_of
from simstrag.cluster.placers import load_placer
from simstrag.cluster.shared_nodes import OnEnd, OnInterval, SharedNodes, seconds_alone
from simstrag.cluster.study import ClusterStudy, mix_name
from simstrag.cluster.utilisation import mean_utilisation
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulate import require_gain, whole_seed
from simstrag.errors import InputError
from simstrag.policies import load
from simstrag.policies.estimators.predictors import OfLoad


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """One simulated run of a cluster.

    jobs: a row per job, in order of arrival; times in seconds, NaN where it did not come to that.
    shares: a row per change of a job's slowdown on a node: time, job, node, resource, slowdown.
    nodes: a row per renegotiation and node: time, node, and what was asked of each resource over
        what it has.
    delays: a row per time in which a manager delayed a job: start, end, job, seconds per iteration,
        iterations, seconds lost, whether these are within its grants, and for which jobs.
    utilisation: a row per node: the shares of its processors, of its network card inwards and
        outwards and of its devices that jobs used until the end, and of its devices that they held.
    summary: makespan, mean and 95th percentile of completion times, and others.
    """

    policies: str
    placer: str
    manager: str
    seed: int
    jobs: list[dict[str, Any]]
    shares: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    delays: list[dict[str, Any]]
    utilisation: list[dict[str, Any]]
    summary: dict[str, Any]


def simulate_cluster(
    study: ClusterStudy,
    policies: str | Mapping[str, str] | None = None,
    placer: str | None = None,
    seed: int = 0,
    *,
    manager: str | None = None,
    constants: Mapping[str, Constants] | None = None,
    alone: bool = True,
    record: bool = True,
    on_interval: OnInterval | None = None,
    recorders: Mapping[int, Recorder] | None = None,
    on_end: OnEnd | None = None,
) -> ClusterRun:
    """Run all jobs of a study under one mix of policies, one placer, one manager and one seed.

    policies, placer, manager: the study's first ones by default.
    constants: of workloads for the manager; those that the study says by default.
    alone: simulate each job a second time by itself on the same nodes, to say what sharing cost it.
    record: keep the tables `shares` and `nodes`.
    on_interval: called as (seconds, monitors, running jobs) at the end of each interval, when the
        shares of the next one are set.
    recorders: of jobs by their number, for their rows.
    on_end: called with each job that has ended.

    >>> study = ClusterStudy(
    ...     nodes=[{"gpus": 4, "cores": 2}],
    ...     workloads={"half": {"scenario": {"step": {"compute": 0.1, "host_share": 0.5}}}},
    ...     jobs=[{"workload": "half", "workers": 2, "samples": 25_600, "count": 2}],
    ... )
    >>> run = simulate_cluster(study)       # 4 workers ask for half a core each: 2 cores are enough
    >>> [round(job["slowdown"], 3) for job in run.jobs]
    [1.0, 1.0]
    """
    seed = whole_seed(seed)
    mix = study.policies[0] if policies is None else policies
    name = study.placers[0] if placer is None else placer
    coming = study.arriving(mix, seed)
    for workload, policy in {(job.workload, job.policy) for job in coming}:
        require_gain(study.scenario(workload, 1, samples=1), policy)
        require_interval(study, policy)
    manager = study.managers[0] if manager is None else manager
    grants, loaded = None, load_manager(manager)
    if loaded.asked:
        grants = Grants(loaded, constants_of(study) if constants is None else constants)
    simulation = SharedNodes(study, coming, load_placer(name, seed), seed, record, grants=grants)
    simulation.watch(on_interval)
    simulation.keep(recorders or {}, on_end)
    simulation.go()
    rows = simulation.rows()
    if alone:
        for job, placement in simulation.placed:
            row = rows[job.number]
            row["alone"] = seconds_alone(study, replace(job, arrival=0.0), placement, seed)
            row["slowdown"] = row["run_time"] / row["alone"]
    delays = grants.rows if grants else []
    add_delays(rows, delays, simulation.now)
    utilisation = simulation.use.rows(simulation.now, study.workers_per_gpu)
    delays = [{**delay, "for": ", ".join(delay["for"])} for delay in delays]
    return ClusterRun(
        mix_name(mix), name, manager, seed, rows, simulation.shares, simulation.asked, delays,
        utilisation, summarise_jobs(rows, delays) | mean_utilisation(utilisation),
    )  # fmt: skip


def require_interval(study: ClusterStudy, policy: str) -> None:
    """Raise `InputError` where a policy's LSTM was trained on intervals of another length."""
    predictor = getattr(load(policy), "predictor_", None)
    if isinstance(predictor, OfLoad):
        trained = predictor.network.about.get("interval", study.interval)
        if trained != study.interval:
            raise InputError(
                f"policy '{policy}' was trained on intervals of {trained:g} s, and the study's are "
                f"of {study.interval:g} s; change `interval`, or train again"
            )
