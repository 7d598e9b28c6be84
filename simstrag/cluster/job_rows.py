"""What a run of a cluster says of each job, and of all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simstrag.cluster.job import RunningJob
from simstrag.cluster.study import ArrivingJob


def unfinished(job: ArrivingJob, start: float) -> dict[str, Any]:
    """The row of a job that has not ended; start: NaN where it never did."""
    return {
        "name": job.name, "workload": job.workload, "workers": job.workers, "policy": job.policy,
        "arrival": job.arrival, "start": start, "end": math.nan,
        "queueing": start - job.arrival, "completion_time": math.nan, "run_time": math.nan,
        "alone": math.nan, "slowdown": math.nan, "updates": None, "samples": None,
        "effective_staleness": math.nan, "progress_unknown": None,
        "nodes": "", "server_nodes": "", "time_to_target": math.nan, "stragglers": math.nan,
        "granted": 0, "refused": 0, "donor_seconds": 0.0, "lost": 0.0, "lost_share": 0.0,
        "beneficiary_seconds": 0.0,
    }  # fmt: skip


def started(running: RunningJob) -> dict[str, Any]:
    """The row of a job that has started."""
    row, gate = unfinished(running.job, running.start), running.gate
    row |= {
        "stragglers": running.stragglers, "nodes": _listed(running.placement.workers),
        "server_nodes": _listed(running.placement.servers),
    }  # fmt: skip
    if gate is not None:
        row |= {"granted": gate.granted, "refused": gate.refused}
    return row


def finished(running: RunningJob) -> dict[str, Any]:
    """The row of a job that has ended."""
    job, run, end = running.job, running.result(), running.end
    assert end is not None
    reached = run.summary["time_to_target"]
    return started(running) | {
        "end": end, "completion_time": end - job.arrival, "run_time": end - running.start,
        **{name: run.summary[name] for name in
           ("updates", "samples", "effective_staleness", "progress_unknown")},
        "time_to_target": math.nan if reached is None else reached,
    }  # fmt: skip


def _listed(nodes: Sequence[int]) -> str:
    return " ".join(map(str, sorted(set(nodes))))


def add_delays(
    rows: Sequence[dict[str, Any]], delays: Sequence[Mapping[str, Any]], now: float
) -> None:
    """What the delays by managers took from each job, and for how long they were for it.

    now: when the run ended.
    """
    by_name = {row["name"]: row for row in rows}
    spans: dict[str, list[tuple[float, float]]] = {}
    for delay in delays:
        if not delay["seconds"]:
            continue
        donor, span = by_name[delay["job"]], (delay["start"], delay["end"])
        donor["donor_seconds"] += span[1] - span[0]
        donor["lost"] += delay["lost"]
        for name in delay["for"]:
            spans.setdefault(name, []).append(span)
        done = donor["completion_time"]
        until = now - donor["arrival"] if math.isnan(done) else done
        donor["lost_share"] = donor["lost"] / until
    for name, own in spans.items():
        by_name[name]["beneficiary_seconds"] = covered(own)


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of several spans.

    >>> covered([(0.0, 2.0), (5.0, 6.0), (1.0, 3.0)])
    4.0
    """
    total, until = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


def summarise_jobs(
    rows: Sequence[dict[str, Any]], delays: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Of the jobs that ended: makespan, completion times and others; what managers did to all."""
    done = [row for row in rows if not math.isnan(row["completion_time"])]

    def mean(name: str) -> float:
        return float(np.mean([row[name] for row in done])) if done else math.nan

    times = [row["completion_time"] for row in done]
    return {
        "jobs": len(rows),
        "finished": len(done),
        "makespan": max((row["end"] for row in done), default=math.nan),
        "mean_completion_time": mean("completion_time"),
        "p95_completion_time": float(np.quantile(times, 0.95)) if done else math.nan,
        "mean_queueing": mean("queueing"),
        "mean_slowdown": mean("slowdown"),
        "stragglers": mean("stragglers"),
        **{name: sum(row[name] for row in rows) for name in ("granted", "refused", "lost")},
        "donors": sum(row["lost"] > 0 for row in rows),
        "largest_lost_share": max(row["lost_share"] for row in rows),
        "delays": len(delays),
        "over_grant": sum(not delay["within_grant"] for delay in delays),
    }
