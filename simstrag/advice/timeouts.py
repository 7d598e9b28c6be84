"""Which timeouts lose the fewest GPU-hours: chosen in closed form, and tried in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.advice.timeout_model import FailingJob, Timeouts
from simstrag.advice.timeout_trials import Horizon, gpu_hours, lost_share
from simstrag.arrays import Floats
from simstrag.errors import InputError
from simstrag.experiments.paired_statistics import Estimate, difference, mean
from simstrag.scenario.failures import FailuresSection
from simstrag.scenario.scenario import Scenario

SEEDS = 10
"""Runs of each candidate, each with failures, silences and a law of silences of its own."""
APART = 1.5
"""How far the neighbours of the chosen detection timeout are."""
LAWS = 200
"""Drawn laws of an interval around a curve."""
DEFAULTS = {
    "torch with NCCL": Timeouts(600.0),
    "torch with gloo": Timeouts(1800.0),
    "torchft": Timeouts(60.0, 60.0),
    "simstrag ddp": Timeouts(60.0),
}
"""What is in force where nobody chooses; the page on failures says where these numbers are from."""


@dataclass(frozen=True, eq=False)
class TimeoutAdvice:
    """Timeouts for a job, and what they lose beside others.

    job: with its failures and silences.
    modelled: the choice in closed form.
    lost: GPU-hours lost for each day of training without loss, of each setting and seed, by the
        simulator.
    names: of the settings that are somebody's default, or declared in the scenario.
    """

    job: FailingJob
    modelled: Timeouts
    lost: Mapping[Timeouts, Floats]
    names: Mapping[str, Timeouts]

    @cached_property
    def choice(self) -> Timeouts:
        """The choice in closed form, or a neighbour that the simulator shows to lose less."""
        own, best = self.lost[self.modelled], self.modelled
        for setting, lost in self.lost.items():
            is_named = setting in self.names.values()
            if is_named or not difference(lost, own).high < 0:  # NaN of one seed
                continue
            if float(lost.mean()) < float(self.lost[best].mean()):
                best = setting
        return best

    def loss(self, setting: Timeouts) -> Estimate:
        """GPU-hours lost per day of training, with Student's interval over seeds."""
        return mean(self.lost[setting])

    def excess(self, setting: Timeouts) -> Estimate:
        """GPU-hours lost beyond those of the choice, paired over seeds."""
        return difference(self.lost[setting], self.lost[self.choice])

    @property
    def price(self) -> float | None:
        """Price of a GPU-hour; None where the scenario has none."""
        return self.job.scenario.cost.gpu_hour

    @cached_property
    def is_extrapolated(self) -> bool:
        """Whether the chosen timeout lies beyond the longest silence that was seen."""
        return self.choice.detection > self.job.silences.longest

    def false_positives(self, detection: Floats) -> tuple[Floats, Floats, Floats]:
        """Ranks taken for lost though they live, per day, and the 95 % interval of that."""
        laws = [self.job.drawn(np.random.default_rng(seed)) for seed in range(LAWS)]
        drawn = np.array([law.false_positives(detection) for law in laws])
        low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
        return self.job.false_positives(detection), low, high

    def turns(self) -> dict[str, Timeouts]:
        """The choice in closed form where failures are twice or half as frequent as stated."""
        job = self.job
        return {
            "twice": replace(job, rate=2 * job.rate).choose(),
            "half": replace(job, rate=job.rate / 2).choose(),
        }

    def to_dict(self) -> dict[str, Any]:
        """The advice for JSON."""
        job, detection = self.job, self.job.detections
        expected, low, high = self.false_positives(detection)
        names = {setting: name for name, setting in self.names.items()}
        return {
            "choice": self.choice._asdict(),
            "modelled": self.modelled._asdict(),
            "lost_gpu_hours_per_day": self.loss(self.choice)._asdict(),
            "price": self.price,
            "settings": [
                {
                    **setting._asdict(),
                    "name": names.get(setting),
                    "lost_gpu_hours_per_day": self.loss(setting)._asdict(),
                    "beyond_choice": self.excess(setting)._asdict(),
                }
                for setting in self.lost
            ],
            "silences": {
                "seen": len(job.silences.seconds),
                "longest": job.silences.longest,
                "observed": job.silences.observed,
                "tail": job.silences.tail,
            },
            "curves": {
                "detection": detection.tolist(),
                "false_positives_per_day": expected.tolist(),
                "low": low.tolist(),
                "high": high.tolist(),
                "waiting": gpu_hours(job, job.waiting(detection)).tolist(),
                "lost": gpu_hours(job, self.model_losses(detection)).tolist(),
            },
        }

    def model_losses(self, detection: Floats) -> Floats:
        """Seconds lost for each second of training, of each detection timeout."""
        return self.job.losses(detection, self.choice.quorum, (self.choice.workers,))[:, 0]


def timeouts(
    scenario: Scenario | str | Path,
    failures: FailuresSection | str | Path | None = None,
    *,
    seeds: int = SEEDS,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> TimeoutAdvice:
    """The detection timeout, quorum timeout and minimum of workers that lose the least.

    scenario: a `Scenario` or its path, run under `bsp`; `read_job_scenario` of
        `simstrag.whatif.job_scenario` makes one of a job's record.
    failures: instead of the scenario's: a section, or the path of a scenario that has one.
    seeds: runs of each setting.
    on_progress: called with the runs that are done, all runs, and what is done.

    Raises `InputError` where nothing says how often ranks fail or when they are back, and for
    events that name more ranks than the job has.

    >>> job = Scenario(
    ...     workers=4, samples=256_000, step={"compute": 2.0},
    ...     trace=[
    ...         {"time": 300, "node": 1, "resource": "step", "kind": "slowdown", "value": 1e9},
    ...         {"time": 310, "node": 1, "resource": "step", "kind": "slowdown", "value": 1.0},
    ...     ],
    ...     failures={"mtbf": 14_400, "on_fault": "continue", "rejoin": 120, "regroup": 5},
    ... )
    >>> timeouts(job, seeds=2).choice.detection
    19.0
    """
    job = FailingJob.of(Scenario.given(scenario), _section(failures))
    modelled = job.choose()
    names = _names(job)
    settings = list(dict.fromkeys([modelled, *_neighbours(job, modelled), *names.values()]))
    rows, horizon = list[list[float]](), Horizon.of(job)
    for seed in range(seeds):
        law = job.drawn(np.random.default_rng(seed))
        row = list[float]()
        for share in lost_share(law, seed, settings, horizon):
            row.append(share)
            if on_progress is not None:
                done = seed * len(settings) + len(row)
                on_progress(done, seeds * len(settings), "drawn failures")
        rows.append(row)
    hours = gpu_hours(job, np.array(rows))
    return TimeoutAdvice(job, modelled, dict(zip(settings, hours.T, strict=True)), names)


def _section(failures: FailuresSection | str | Path | None) -> FailuresSection | None:
    if failures is None or isinstance(failures, FailuresSection):
        return failures
    section = Scenario.read(failures).failures
    if section is None:
        raise InputError(f"{failures}: has no section failures; add one, with mtbf or events")
    return section


def _names(job: FailingJob) -> dict[str, Timeouts]:
    """Settings that are somebody's default, and the declared one."""
    section = job.section
    declared = Timeouts(section.detection, section.quorum_timeout, section.min_workers)
    known = {name: setting for name, setting in DEFAULTS.items() if _applies(job, setting)}
    return {"as declared": declared, **known} if "detection" in section.model_fields_set else known


def _applies(job: FailingJob, setting: Timeouts) -> bool:
    """Whether a setting says something of a job; a restart has no quorum."""
    return job.section.continues or not setting.quorum


def _neighbours(job: FailingJob, chosen: Timeouts) -> list[Timeouts]:
    """Settings beside the chosen one, each different in one of its values."""
    least = job.silences.step
    found = [
        chosen._replace(detection=detection)
        for detection in (chosen.detection / APART, chosen.detection * APART)
        if detection >= least
    ]
    if not job.section.continues:
        return found
    longest = float(job.returns.max())
    found += [chosen._replace(quorum=0.0 if chosen.quorum else longest)]
    others = {1, chosen.workers - 1, chosen.workers + 1}
    found += [chosen._replace(workers=k) for k in sorted(others) if 1 <= k <= job.workers]
    return found
