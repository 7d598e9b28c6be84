"""What the monitors of a cluster and the views of its jobs showed, interval by interval."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simstrag.cluster.job import RunningJob
from simstrag.cluster.simulate import simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.cluster.telemetry import Monitors
from simstrag.errors import InputError
from simstrag.policies.estimators.predictors import PREDICTORS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SSGD = "star_ring:ratio=1000"
"""All ranks in one all-reduce, with reviews and so with times in views; as in STAR's data."""


@dataclass(slots=True)
class JobRecord:
    """One job; row k is of the interval that begins at the end of interval `first` + k.

    nodes: of its ranks.
    first: number of intervals that ended before its first row.
    times: shape (rows, N), seconds of an iteration of each rank in that interval, without noise,
        over those of a clean one.
    predicted: by name of a predictor, the same as predicted when the interval begins.
    """

    nodes: Ints
    first: int
    times: list[Floats] = field(default_factory=list)
    predicted: dict[str, list[Floats]] = field(default_factory=dict)


@dataclass(slots=True)
class Recording:
    """One run.

    interval: seconds.
    loads: shape (nodes, 3) for each interval, as in `View.telemetry`.
    jobs: by name.
    """

    interval: float
    loads: list[Floats] = field(default_factory=list)
    jobs: dict[str, JobRecord] = field(default_factory=dict)

    def note(self, now: float, monitors: Monitors, jobs: list[RunningJob]) -> None:
        """Add an interval that has ended; called by `simulate_cluster`."""
        self.loads.append(monitors.windows[:, -1])
        for job in jobs:
            name = job.job.name
            if name not in self.jobs:
                self.jobs[name] = JobRecord(job.nodes, len(self.loads))
            record, clean = self.jobs[name], job.local_seconds(slowed=False)
            record.times.append(job.local_seconds() / clean)
            view = job.view()
            for predictor, predict in PREDICTORS.items():
                record.predicted.setdefault(predictor, []).append(predict(view) / clean)

    @property
    def digest(self) -> str:
        """The SHA-256 of its loads and times."""
        found = hashlib.sha256(np.array(self.loads).tobytes())
        for name, job in sorted(self.jobs.items()):
            found.update(name.encode() + np.array(job.times).tobytes())
        return found.hexdigest()


def record(study: ClusterStudy, seed: int) -> Recording:
    """A run of a study with its first placer, where jobs without a policy of their own do `SSGD`.

    Raises `InputError` where its views hold no times.
    """
    recording = Recording(study.interval)
    simulate_cluster(study, SSGD, seed=seed, alone=False, record=False, on_interval=recording.note)
    known = [np.nan_to_num(job.predicted["last"]).any() for job in recording.jobs.values()]
    if known and not any(known):  # an engine keeps no times for plans without reviews
        raise InputError(
            "no job's own policy asks for reviews, so that no view has any times; leave it out, or "
            f"give one that does, such as {SSGD}"
        )
    return recording
