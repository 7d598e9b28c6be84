"""What a barrier costs on two jobs of Alibaba PAI; the numbers were set beforehand.

alibaba/clusterdata @7a6c496, mini-batch-time: mean of the slowest worker over mean of all workers
is 1.111 in job 1, and 1.12 in job 2, with each cell counting once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.published import BARRIERS, barrier_cost
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from simstrag.traces.of_pai import alibaba_pai_minibatch

FOLDER = Path(__file__).parents[2].parent / "shared" / "traces" / "alibaba-pai-minibatch"
pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="shared/traces/alibaba-pai-minibatch is not beside this checkout"
)
COMPUTE = 0.2
"""Seconds of a clean step: short against the 10 s of a cell, as mini-batches are."""


def imported(job: int) -> Trace:
    return alibaba_pai_minibatch(FOLDER / f"job_{job}_norm.csv").trace


def cells(trace: Trace) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Slowdowns, a row for each time at which every worker has a cell."""
    series = [dict(trace.series(node, "step", "slowdown")) for node in trace.nodes]
    times = sorted(set.intersection(*map(set, series)))
    return np.array([[own[t] for own in series] for t in times])


def test_the_cost_of_a_barrier_in_job_1_is_read_off_the_imported_trace() -> None:
    found = cells(imported(1))
    assert found.shape == (300, 10)
    assert found.max(axis=1).mean() / found.mean() == pytest.approx(1.111, abs=0.0005)


def test_and_that_of_job_2_in_which_cells_are_missing_and_repeated() -> None:
    found = cells(imported(2))
    assert found.shape == (238, 10)
    assert found.max(axis=1).mean() / found.mean() == pytest.approx(1.12, abs=0.005)


def test_bsp_pays_it_when_every_cell_is_one_step() -> None:
    """Cells as recorded durations: the simulator then counts as the source does."""
    assert barrier_cost(FOLDER, 1) == pytest.approx(BARRIERS[1], abs=0.0005)


def test_on_the_clock_a_barrier_costs_less_since_slow_seconds_hold_fewer_steps() -> None:
    """Slowdowns hold for seconds, not for steps.

    bsp does 10 s / (C max) steps in a cell, so that a step takes the harmonic mean over time of the
    slowest, and a worker by itself that of its own slowdown: 1.106, where cells give 1.111.
    """
    trace, found = imported(1), cells(imported(1))
    seconds = np.diff([t for t, _ in trace.series(0, "step", "slowdown")])

    def harmonic(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        return float(seconds.sum() / np.sum(seconds / values[:-1]))

    alone = COMPUTE * np.mean([harmonic(found[:, k]) for k in range(10)])
    slowest = harmonic(found.max(axis=1))
    updates = int(trace.end / (COMPUTE * slowest))
    scenario = Scenario(workers=10, updates=updates, step={"compute": COMPUTE}, trace=trace)
    run = simulate(scenario, "bsp", record_updates=False)
    cost = run.summary["makespan"] / run.summary["updates"] / alone
    assert cost == pytest.approx(COMPUTE * slowest / alone, rel=0.001)
    assert cost == pytest.approx(1.106, abs=0.0005)  # what it comes to
