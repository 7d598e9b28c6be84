"""Chosen timeouts against an exhaustive search, on drawn jobs: docs/measured/timeouts.txt.

`python -m benchmarks.timeouts [--jobs N] [--write]`.  The advice sees a record of some days, and
failures; the search knows the laws that these were drawn from.  It tries all settings of a grid
under `FIRST` seeds; the best `FINALISTS` of them and the choice meet under `LAST` fresh seeds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.results import add_write, describe_machine, keep_tables
from benchmarks.tables import Table, show
from simstrag.advice.silences import Silences
from simstrag.advice.timeout_model import DAY, FailingJob, Timeouts
from simstrag.advice.timeout_trials import STILL, Horizon, lost_share
from simstrag.advice.timeouts import timeouts
from simstrag.arrays import Floats
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace

FIRST, LAST, FINALISTS = 3, 16, 6
MOST_STEPS = 60_000
DRAWS = 5000
"""The first seed of a job; nothing was tuned on these."""
SAMPLE = 50_000
"""Silences that stand for their law."""


class DrawnJob(NamedTuple):
    """A job as the advice sees it, and as it is.

    seen: the scenario, with a trace of silences.
    truth: the laws; what the search draws from.
    law: a name.
    """

    seen: Scenario
    truth: FailingJob
    law: str


class Verdict(NamedTuple):
    """The choice, the best setting of the grid, and their losses as shares of the training."""

    job: DrawnJob
    choice: Timeouts
    best: Timeouts
    own: float
    least: float

    @property
    def regret(self) -> float:
        """What the choice loses beyond the best, as a share of that; 0 where it loses less."""
        return max(0.0, self.own / self.least - 1)


def draw_job(seed: int) -> DrawnJob:
    """A drawn job."""
    rng = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    workers, step = int(rng.choice([4, 8, 16, 32])), between(2, 20)
    scale, apart = between(5, 60), between(600, 10_800)  # median and distance of silences
    law = ("lognormal", "exponential", "Pareto", "two kinds")[seed % 4]
    draw = {
        "lognormal": lambda n: scale * np.exp(rng.normal(0, 1, n)),
        "exponential": lambda n: scale / np.log(2) * rng.exponential(1, n),
        "Pareto": lambda n: scale * 0.5 ** (1 / 1.7) * rng.random(n) ** (-1 / 1.7),
        "two kinds": lambda n: (
            np.where(rng.random(n) < 0.9, scale, 8 * scale) * np.exp(rng.normal(0, 0.2, n))
        ),
    }[law]
    seconds = min(between(3, 14) * DAY, MOST_STEPS * step)
    mtbf = workers * between(1800, 43_200)
    failures: dict[str, Any] = {"on_fault": "continue", "regroup": between(5, 60)}
    away = np.full(1, between(30, 1800))
    if seed % 5 == 1:
        failures |= {"on_fault": "restart", "mtbf": mtbf, "restart": float(away[0])}
        failures["checkpoint"] = {"seconds": between(300, 3600), "cost": between(1, 20)}
        del failures["regroup"]
    elif seed % 5 == 3:  # some are back soon, some late, as a series of failures tells
        away = np.where(rng.random(SAMPLE) < 0.7, between(10, 60), between(900, 3600))
        failures["events"] = _events(rng, workers, mtbf, seconds, away)
    else:
        failures |= {"mtbf": mtbf, "rejoin": float(away[0])}
    end = 1.5 * seconds  # silences come until the record ends, which they delay
    pauses = draw(int(rng.poisson(end / apart)))
    batch = 32
    seen = Scenario.of({
        "workers": workers, "samples": batch * workers * int(seconds / step),
        "step": {"compute": step, "cv": 0.03}, "failures": failures,
        "learner": {"batch": batch, "noise_scale": between(100, 20_000)},
        "trace": _trace(rng, pauses, workers, end),
    })  # fmt: skip
    recorded = FailingJob.of(seen)
    silences = Silences.of(draw(SAMPLE), SAMPLE * apart, step)
    truth = replace(recorded, silences=silences, rate=1 / mtbf, returns=away)
    return DrawnJob(seen, truth, law)


def _events(
    rng: np.random.Generator, workers: int, mtbf: float, seconds: float, away: Floats
) -> list[dict[str, float]]:
    """Failures of ranks, with their returns."""
    found = list[dict[str, float]]()
    for rank in range(workers):
        time = 0.0
        while (time := time + float(rng.exponential(mtbf))) < seconds:
            back = time + float(rng.choice(away))
            found.append({"time": time, "rank": rank, "back": back})
            time = back
    return found


def _trace(rng: np.random.Generator, pauses: Floats, workers: int, seconds: float) -> Trace:
    """Silences at drawn times; one that begins in another of its rank is left out."""
    rows = list[tuple[float, int, str, str, float]]()
    busy = [0.0] * workers
    for time, pause in zip(np.sort(rng.random(len(pauses)) * seconds), pauses, strict=True):
        rank = int(rng.integers(workers))
        if time > busy[rank]:
            busy[rank] = float(time + pause)
            rows.append((float(time), rank, "step", "slowdown", STILL))
            rows.append((busy[rank], rank, "step", "slowdown", 1.0))
    return Trace.from_rows(sorted(rows))


def grid(job: FailingJob) -> list[Timeouts]:
    """All settings of the search."""
    detections = np.geomspace(job.silences.step, 3600, 18).tolist()
    if not job.section.continues:
        return [
            Timeouts(detection) for detection in np.geomspace(job.silences.step, 3600, 40).tolist()
        ]
    quorums = dict.fromkeys([0.0, *np.quantile(job.returns, (0.5, 1.0)).tolist()])
    least = dict.fromkeys([1, job.workers - 1, job.workers])
    return [Timeouts(d, q, k) for d in detections for q in quorums for k in least]


def judge(job: DrawnJob, first: int = FIRST, last: int = LAST, seeds: int = 4) -> Verdict:
    """The choice of the advice against the best of the grid, by drawn failures of fresh seeds."""
    choice = timeouts(job.seen, seeds=seeds).choice
    truth, settings = job.truth, grid(job.truth)
    horizon = Horizon.of(truth, 60)
    tried = [list(lost_share(truth, 1000 + seed, settings, horizon)) for seed in range(first)]
    order = np.argsort(np.mean(tried, axis=0))[:FINALISTS]
    finalists = [choice, *(settings[k] for k in order)]
    met = [list(lost_share(truth, 2000 + seed, finalists, horizon)) for seed in range(last)]
    losses = np.mean(met, axis=0)
    best = 1 + int(np.argmin(losses[1:]))
    return Verdict(job, choice, finalists[best], float(losses[0]), float(losses[best]))


def main() -> None:
    """Print a row for each job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20)
    add_write(parser, "timeouts")
    options = parser.parse_args()
    regrets, rows = [], []
    for seed in range(options.jobs):
        found = judge(draw_job(DRAWS + seed))
        regrets.append(found.regret)
        shown = (
            f"{setting.detection:.3g} / {setting.quorum:.3g} / {setting.workers}"
            for setting in (found.choice, found.best)
        )
        section = found.job.truth.section
        row = (seed + 1, found.job.truth.workers, found.job.law, section.on_fault, *shown)
        rows.append((*map(str, row), f"{found.regret:.1%}"))
        print(*rows[-1], flush=True)
    header = ("job", "workers", "silences", "on a fault", "chosen", "best of the grid", "regret")
    table = Table("Detection / quorum timeout / least workers, and regret", header, rows)
    show([table])
    print(f"mean {np.mean(regrets):.1%}, largest {max(regrets):.1%}")
    if options.write:
        keep_tables("timeouts", [table], describe_machine())


if __name__ == "__main__":
    main()
