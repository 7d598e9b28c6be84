"""What a run of a cluster says of each job, and of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        "nodes": "", "server_nodes": "",
    }  # fmt: skip


def finished(running: RunningJob) -> dict[str, Any]:
    """The row of a job that has ended."""
    job, run, end = running.job, running.result(), running.end
    assert end is not None
    return unfinished(job, running.start) | {
        "end": end, "completion_time": end - job.arrival, "run_time": end - running.start,
        "updates": run.summary["updates"], "samples": run.summary["samples"],
        "nodes": " ".join(map(str, sorted(set(running.placement.workers)))),
        "server_nodes": " ".join(map(str, sorted(set(running.placement.servers)))),
    }  # fmt: skip


def summarise_jobs(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the jobs that ended: makespan, completion times and others."""
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
    }
