"""What autocorrelated noise changes: makespans, barriers and false alarms without contention.

    python -m benchmarks.lasting_noise [--seeds 100] [--workers 8 64] [--write]

Makes docs/measured/lasting-noise.txt.  Steps take 0.1 s with a coefficient of variation of
5 %, communication is free, and each worker computes a thousand steps: noise alone decides.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from benchmarks.results import add_write, describe_machine, keep_tables
from benchmarks.tables import Table, show
from simstrag import Run, Scenario, simulate
from simstrag.timing.noise import lognormal

LAG1 = (0.0, 0.3, 0.56, 0.9)
POLICIES = ("bsp", "ssp", "asgd", "backup", "lb_bsp", "korel", "star_h", "cgp")
STEPS, BATCH, CV = 1000, 32, 0.05


def scenario(workers: int, lag1: float) -> Scenario:
    return Scenario(
        workers=workers, samples=STEPS * BATCH * workers, learner={"batch": BATCH},
        step={"compute": 0.1, "cv": CV, "amp_ratio": 1.6}, noise={"lag1": lag1},
    )  # fmt: skip


def rows(workers: int, seeds: int) -> Iterator[tuple[str, ...]]:
    """A row of each policy and quantity, a column of each autocorrelation."""
    cases = [scenario(workers, lag1) for lag1 in LAG1]
    for policy in POLICIES:
        runs = [[simulate(case, policy, seed) for seed in range(seeds)] for case in cases]
        times = np.array([[run.summary["makespan"] for run in each] for each in runs])
        yield (
            policy,
            "makespan (s)",
            *(f"{each.mean():.2f} ± {each.std(ddof=1):.3f}" for each in times),
        )
        if policy == "bsp":
            yield policy, "autocorrelation of its updates' durations", *map(lasting, runs)
        changes = [sum(len(run.decisions["time"]) - 1 for run in each) for each in runs]
        if any(changes):
            yield policy, "changed plans", *per_thousand(changes, runs)
        if runs[0][0].summary["false_alarms"] is not None:
            alarms = [sum(run.summary["false_alarms"] for run in each) for each in runs]
            yield policy, "falsely suspected ranks", *per_thousand(alarms, runs)


def lasting(runs: list[Run]) -> str:
    """The lag-1 autocorrelation of the durations of updates."""
    durations = np.array([np.diff(run.updates["time"]) for run in runs])
    durations -= durations.mean()
    lag1 = (durations[:, 1:] * durations[:, :-1]).mean() / durations.var()
    return f"{round(float(lag1), 2) + 0.0:.2f}"  # no -0.00


def per_thousand(counts: list[int], runs: list[list[Run]]) -> list[str]:
    updates = [sum(run.summary["updates"] for run in each) for each in runs]
    return [number(1000 * n / of) for n, of in zip(counts, updates, strict=True)]


def number(value: float) -> str:
    """Two decimals below 10, one below 100.

    >>> number(0.0799), number(11.06), number(2340.4), number(0)
    ('0.08', '11.1', '2,340', '0')
    """
    decimals = 0 if value == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"


def main() -> None:
    """Print a table for each number of workers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64])
    add_write(parser, "lasting-noise")
    asked = parser.parse_args()
    print("coefficients rho:", *(f"{lognormal(CV, lag1).rho:.4f}" for lag1 in LAG1))
    header = ("policy", "quantity", *(f"lag1 {lag1:g}" for lag1 in LAG1))
    found = [Table(f"N = {n}", header, [*rows(n, asked.seeds)]) for n in asked.workers]
    show(found)
    if asked.write:
        keep_tables("lasting-noise", found, describe_machine())


if __name__ == "__main__":
    main()
