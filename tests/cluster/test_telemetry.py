"""Monitors of a cluster's nodes, and what a policy sees of them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest

from simstrag.cluster.simulate import simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.contract import Plan, Review, View
from simstrag.engine.simulate import simulate
from tests.cluster.test_cluster import SMALL, study

SEEN: list[tuple[float, Any]] = []
STEP = {"compute": 0.1, "host_share": 0.5}
REDUCE = {"bytes": 1e6, "bandwidth": 1e9}
EVEN: dict[str, Any] = {
    "nodes": [{"gpus": 1, "cores": 4, "count": 2, "nic_in": 1e9, "nic_out": 1e9}],
    "workloads": {
        "even": {"scenario": {"step": STEP, "allreduce": REDUCE, "learner": {"batch": 8}}}
    },
    "jobs": [{"workload": "even", "workers": 2, "samples": 16 * 200, "arrival": 3}],
}


@dataclasses.dataclass(frozen=True)
class Sees:
    """Notes what it is shown, and does as bsp."""

    def plan(self, view: View) -> Plan:
        SEEN.append((view.time, view.telemetry))
        return Plan(review=Review(updates=1))


@dataclasses.dataclass(frozen=True)
class Reads(Sees):
    """Asks for telemetry."""

    reads_telemetry: ClassVar[bool] = True


def seen(policy: str, cluster: Any) -> list[tuple[float, Any]]:
    SEEN.clear()
    simulate_cluster(cluster, f"{__name__}:{policy}", alone=False)
    return list(SEEN)


@pytest.mark.parametrize("interval", [0.3, 1.0])
@pytest.mark.parametrize("policy", ["bsp", "asgd", "star_h"])
def test_monitors_change_no_run(policy: str, interval: float) -> None:
    shared = study(interval=interval)
    ticks: list[float] = []
    plain = simulate_cluster(shared, policy, seed=2)
    watched = simulate_cluster(
        shared, policy, seed=2, on_interval=lambda now, monitors, jobs: ticks.append(now)
    )
    assert watched == plain
    assert np.diff(ticks) == pytest.approx(interval)


def test_a_monitor_reads_what_one_job_uses() -> None:
    """A worker on each node: a step of 0.1 s, half of it host work, and an all-reduce of 1 ms."""
    windows: list[Any] = []
    simulate_cluster(
        study(**EVEN), "bsp", on_interval=lambda _, monitors, jobs: windows.append(monitors.windows)
    )
    cycle = 0.1 + 0.001
    for node in (0, 1):
        rates = np.array([window[node, -1] for window in windows])
        assert rates[:3] == pytest.approx(np.zeros((3, 3)))  # it arrives at 3 s
        counted = rates.sum(axis=0)  # of all intervals but the last, which ends with the job
        steps = len(rates) - 3
        assert counted[0] == pytest.approx(steps * 0.05 / cycle / 4, rel=0.01)
        assert counted[1:] == pytest.approx([steps * 1e6 / cycle] * 2, rel=0.01)
        assert rates[3:, 0] == pytest.approx(0.05 / cycle / 4, rel=0.1)


def test_a_view_shows_the_intervals_of_its_ranks_nodes_that_have_ended() -> None:
    apart = {"nodes": [{"gpus": 1, "cores": 4}, {"gpus": 1, "cores": 8}]}
    views = seen("Reads", study(**EVEN | apart))
    for time, windows in views:
        known = ~np.isnan(windows[:, :, 0])
        assert windows.shape == (2, 30, 3)
        assert set(known.sum(axis=1)) == {min(30, int(time + 3))}
    assert views[-1][1][0, -1, 0] == pytest.approx(2 * views[-1][1][1, -1, 0])


def test_only_a_policy_that_reads_telemetry_sees_any() -> None:
    assert {windows.shape for _, windows in seen("Sees", study())} == {(2, 0, 3)}
    SEEN.clear()
    simulate(study().scenario("small", 3, samples=240), Reads())
    assert {windows.shape for _, windows in SEEN} == {(3, 0, 3)}


def test_a_policy_that_only_looks_changes_nothing() -> None:
    looks, blind = (
        simulate_cluster(study(**SMALL), f"{__name__}:{policy}", seed=1).jobs
        for policy in ("Reads", "Sees")
    )
    assert [job["end"] for job in looks] == [job["end"] for job in blind]


def test_a_monitor_reads_the_last_step_of_a_job_once() -> None:
    """One step of 0.9 s of a core, beside a job that keeps the clock of another node."""
    both = ClusterStudy.of({
        "nodes": [{"gpus": 1, "cores": 1.0, "count": 2}],
        "workloads": {
            name: {"scenario": {"step": {"compute": seconds, "host_share": 1.0},
                                "learner": {"batch": 8}}}
            for name, seconds in (("once", 0.9), ("often", 0.5))
        },
        "jobs": [
            {"workload": "once", "workers": 1, "samples": 8},
            {"workload": "often", "workers": 1, "samples": 80},
        ],
    })  # fmt: skip
    read: list[list[float]] = []
    simulate_cluster(
        both, "bsp", alone=False,
        on_interval=lambda now, monitors, jobs: read.append(monitors.windows[:, -1, 0].tolist()),
    )  # fmt: skip
    assert read[0] == pytest.approx([1.0, 0.9])
    assert read[1:] == [pytest.approx([1.0, 0.0])] * 4
