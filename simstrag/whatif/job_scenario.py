"""The scenario of a record: policies can then be simulated on the job that was recorded.

A worker is a replica, of which a mesh may have several ranks.  Its recorded durations are the
seconds that it would have taken alone in each step; the all-reduce takes what a mean step takes
beyond its slowest replica.  So bsp in the scenario takes as long as the replay of the record, which
is how a scenario is checked.

No record shows what reduced precision gains: it is a placeholder.  Few show whether the device or
the host was slowed, which decides what reduced precision helps: see `host_shares`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simstrag import policies
from simstrag.arrays import Ints, Reals
from simstrag.errors import InputError
from simstrag.records.read import read_record
from simstrag.records.record import BACKWARD, FORWARD, Record
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from simstrag.whatif.operation_array import Layout
from simstrag.whatif.replay import JobReplay

HOST_PARTS = frozenset({"input", "data", "dataloader", "data-loading", "host", "cpu", "gc"})
"""Parts of a step that the host computes, by the names that a record may give them."""
DEVICE_PARTS = frozenset({"gpu", "device", "kernels"})
"""Parts that the device computes.  Seconds of `forward` and `backward` may be of either."""
AMP_RATIO = 1.8
"""A typical gain of reduced precision: the median of those published over TF32
(tools/published_amp_ratios.py)."""
TRACE = "trace.csv"
FILES = ("scenario.yaml", "scenario-host.yaml")
"""The scenario file of each reading."""
BATCH = 32
"""A typical number of samples of a rank's step, where a record has no micro-batches."""


DOUBT = (
    "Assumed: contention.host_share; the record does not tell whether the device or the host was "
    "slowed, and {:.0f} to {:.0f} % may be the host's, which reduced precision does not shorten."
)
"""The caution of a scenario that is one reading of two."""


@dataclass(frozen=True, slots=True, eq=False)
class JobScenario:
    """The scenario of a record, under each reading of its contention.

    durations: seconds of each replica in each step, shape (replicas, steps).
    communication: seconds of an all-reduce.
    readings: a scenario for each share of the host in the contention, the smallest first; one where
        the record tells the share, or no policy reduces precision.
    """

    durations: Reals
    communication: float
    readings: tuple[Scenario, ...]

    def write(self, folder: Path) -> None:
        """Write the scenario of each reading and their trace, which `simstrag compare` reads."""
        for name, scenario in zip(FILES, self.readings, strict=False):
            trace = scenario.inputs.trace
            assert trace is not None, "a scenario of a record has recorded durations"
            trace.write(folder / TRACE)
            Scenario.of({**scenario.declared, "trace": TRACE}, name, folder).write(folder, name)


def job_scenario(
    record: Record,
    replay: JobReplay,
    names: Sequence[str],
    *,
    gpus: int,
    gpu_price: float | None = None,
    amp_ratio: float | None = None,
) -> JobScenario:
    """The scenario of a record.

    names: the policies to simulate; bsp is added.
    gpus: of the job.
    gpu_price: of a GPU-hour.
    amp_ratio: full over reduced-precision time of a step; typical if it is not known.
    Raises `InputError` for a job of one replica, and for one that computed for no time in a step.
    """
    layout, workers = replay.layout, _workers(record, replay.layout)
    durations = replay.alone(workers)
    replicas, steps = durations.shape
    if replicas < 2:
        raise InputError(
            f"{record.source}: has one replica; policies differ in how replicas wait for each "
            "other, so that comparing them needs a record of two or more"
        )
    idle = np.argwhere(durations <= 0)
    if len(idle):
        d, k = idle[0]
        raise InputError(
            f"{record.source}: replica {d if workers is not None else layout.replica[d]} computed "
            "for no time in step "
            f"{layout.step[k]}; a scenario needs the seconds of every step"
        )
    everything = np.ones((1, *layout.rank.shape), np.bool_)
    together = replay.step_times(everything)[0]
    communication = float((together - durations.max(axis=0)).mean())
    reduces = [getattr(policies.load(name), "reduces_precision", False) for name in names]
    step = {"compute": float(np.median(durations))}
    batch, microbatches, placeholders = BATCH, 1, ["learner.batch"]
    if record.is_pipeline:
        batch = microbatches = _micro_batches(layout)
        placeholders, step["fixed_share"] = [], _bubble(layout, batch)
    if any(reduces):
        step["amp_ratio"] = AMP_RATIO if amp_ratio is None else amp_ratio
        placeholders += ["step.amp_ratio"] if amp_ratio is None else []
    price = {} if not gpu_price else {"gpu_hour": gpu_price}
    scenario = Scenario.of({
        "workers": replicas,
        "samples": steps * replicas * batch,
        "step": step,
        "allreduce": {"alpha": communication / (2 * (replicas - 1)), "bytes": 0},
        "server": {"link": "cut_through"},
        "learner": {"batch": batch},
        "microbatches": microbatches,
        "cost": {"gpus": max(1, gpus // replicas), **price},
        "trace": replace(trace_of(durations, together), names=_names(record, layout, workers)),
        "trace_end": "loop",
        "policies": [*dict.fromkeys(["bsp", *names])],
        "placeholders": placeholders,
        "cautions": [*(f"{each[:1].upper()}{each[1:]}." for each in record.missing), *record.notes],
    }, record.source)  # fmt: skip
    shares = host_shares(record, layout) if any(reduces) else (0.0,)
    doubt = [] if len(shares) == 1 else [DOUBT.format(*(100 * share for share in shares))]
    readings = (
        scenario.replaced(contention={"host_share": share}, cautions=[*scenario.cautions, *doubt])
        for share in shares
    )
    return JobScenario(durations, communication, tuple(readings))


def read_job_scenario(path: str | Path) -> Scenario:
    """The scenario of the record in a file or folder, for policies in full precision.

    Raises `InputError` as `read_record` and `job_scenario` do.
    """
    record = read_record(path)
    layout = Layout.of(record)
    gpus = record.gpus or len(np.unique(layout.rank))
    return job_scenario(record, JobReplay.of(layout), (), gpus=gpus).readings[0]


def _workers(record: Record, layout: Layout) -> Ints | None:
    """The worker of each replica of a layout, where a worker has several ranks on a mesh."""
    of = {} if record.mesh is None or layout.group is None else record.mesh.worker_of()
    ranks = layout.rank[0].tolist()
    return np.array([of[rank] for rank in ranks]) if of and of.keys() >= {*ranks} else None


def _names(record: Record, layout: Layout, workers: Ints | None) -> dict[int, str]:
    """The ranks of each worker, with its host where it is of one rank and that is known."""
    ranks = layout.rank[0].tolist()
    if workers is not None:
        members = {k: [r for r, w in zip(ranks, workers, strict=True) if w == k] for k in workers}
        return {int(k): f"ranks {', '.join(map(str, own))}" for k, own in members.items()}
    if not (layout.rank == layout.rank[0]).all():
        return {}
    hosts = ((d, r, record.hosts.get(r)) for d, r in enumerate(ranks))
    return {d: f"rank {r} on {host}" if host else f"rank {r}" for d, r, host in hosts}


def trace_of(durations: Reals, together: Reals) -> Trace:
    """Recorded durations of replicas, as rows at the beginning of each replayed step.

    durations: shape (replicas, steps).
    together: seconds of each step.
    """
    replicas, steps = durations.shape
    begin = np.append(0.0, np.cumsum(together)[:-1])
    return Trace.from_columns(
        np.repeat(begin, replicas), np.tile(np.arange(replicas), steps), "step", "duration",
        durations.T.ravel(), "the record",
    )  # fmt: skip


def host_shares(record: Record, layout: Layout) -> tuple[float, ...]:
    """The least and the greatest share of the host in what contention added to computing.

    Contention adds to a rank's step what it has beyond the median over ranks.  What parts named in
    `HOST_PARTS` add is the host's, what those in `DEVICE_PARTS` add is not; the rest may be either.
    One number where that is nothing.
    """
    if record.is_pipeline:
        return 0.0, 1.0
    own = ~layout.communicates
    seconds = np.asarray(layout.duration[own], np.float64)
    added = seconds - np.median(seconds, axis=1, keepdims=True)
    added = np.where(added.sum(axis=0) > 0, added, 0.0).sum(axis=(1, 2))
    names = [layout.kinds[k] for k in layout.kind[own]]
    host, device = (
        sum(max(float(each), 0.0) for each, name in zip(added, names, strict=True) if name in known)
        for known in (HOST_PARTS, DEVICE_PARTS)
    )
    total = max(float(added.sum()), host + device)
    if total <= 0:
        return (0.0,)
    return tuple(dict.fromkeys((host / total, 1 - device / total)))


def _micro_batches(layout: Layout) -> int:
    """Micro-batches of a replica's step."""
    first = layout.find(FORWARD) & (layout.stage == 0)
    return int(first.sum()) // len(np.unique(layout.chunk[first]))


def _bubble(layout: Layout, micro_batches: int) -> float:
    """Share of a clean step in which a stage waits for others, whatever the micro-batches.

    (p - 1) / v of m + (p - 1) / v forward and backward times of a micro-batch, with p stages of v
    chunks (Narayanan et al., SC 2021).
    """
    chunks = len(np.unique(layout.chunk[layout.find(FORWARD, BACKWARD)]))
    idle = (layout.stages - 1) / chunks
    return idle / (micro_batches + idle)
