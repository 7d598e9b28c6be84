"""What jobs used of their nodes is the sum of what their steps and gradients cost."""

from __future__ import annotations

import math
from typing import Any

import pytest

from simstrag.cluster.simulate import ClusterRun, simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.engine.simulate import simulate
from simstrag.timing.noise import keys

NODE = {"gpus": 2, "cores": 4.0, "nic_in": 1e9, "nic_out": 1e9}
SCENARIO: dict[str, Any] = {
    "step": {"compute": 0.1, "host_share": 0.5}, "learner": {"batch": 8},
    "allreduce": {"bytes": 1e7, "bandwidth": 1e9},
    "server": {"service": 0.001, "push": 0.01, "pull": 0.01},
}  # fmt: skip
"""Steps of 0.05 s of one core and 0.05 s of a device; gradients of 10 MB."""
JOB = {"workload": "small", "workers": 4, "samples": 3200}
"""100 steps of each of four ranks."""


def run(policy: str = "bsp", scenario: dict[str, Any] = SCENARIO, **changes: Any) -> ClusterRun:
    """Two nodes with two ranks each; the server is on the first."""
    study: dict[str, Any] = {
        "nodes": [NODE | {"count": 2}], "workloads": {"small": {"scenario": scenario}},
        "jobs": [JOB],
    }  # fmt: skip
    return simulate_cluster(ClusterStudy.of(study | changes), policy, alone=False)


def column(found: ClusterRun, name: str) -> list[float]:
    return [node[name] for node in found.utilisation]


def test_a_job_alone_uses_what_its_steps_and_all_reduces_cost() -> None:
    """An all-reduce of four ranks moves 15 MB of each in 0.015 s: 11.5 s in all."""
    found = run()
    assert column(found, "cores_used") == pytest.approx([2 * 100 * 0.05 / (4 * 11.5)] * 2)
    assert column(found, "gpus_used") == pytest.approx([2 * 100 * 0.05 / (2 * 11.5)] * 2)
    assert column(found, "gpus_held") == pytest.approx([1.0] * 2)
    for card in ("nic_in_used", "nic_out_used"):
        assert column(found, card) == pytest.approx([2 * 100 * 1.5e7 / (1e9 * 11.5)] * 2)
    assert found.summary["cores_used"] == pytest.approx(10 / 46)


def test_through_a_server_gradients_pass_the_cards_and_services_its_processor() -> None:
    """Ranks 2 and 3 are not on the server's node: 200 pushes and 200 pulls of 10 MB."""
    found = run("bsp:via=server")
    seconds = found.summary["makespan"]
    for card in ("nic_in_used", "nic_out_used"):
        assert column(found, card) == pytest.approx([200 * 1e7 / (1e9 * seconds)] * 2)
    served = [400 * 0.001, 0.0]
    assert column(found, "cores_used") == pytest.approx([(10 + s) / (4 * seconds) for s in served])


def test_of_a_group_the_leader_alone_pushes_and_pulls() -> None:
    """One group: 100 messages of rank 0, which is beside the server, and 100 services."""
    found = run("cgp")
    seconds = found.summary["makespan"]
    assert column(found, "nic_in_used") == pytest.approx([2 * 100 * 1.5e7 / (1e9 * seconds)] * 2)
    served = [100 * 0.001, 0.0]
    assert column(found, "cores_used") == pytest.approx([(10 + s) / (4 * seconds) for s in served])


def test_in_a_tree_a_child_uses_the_cards_of_its_parent() -> None:
    """Ranks 0 and 1, 2 and 3 are pairs on a node: of each update one message goes from node 1."""
    found = run("tree")
    seconds = found.summary["makespan"]
    assert column(found, "nic_out_used") == pytest.approx([100 * 1e7 / (1e9 * seconds)] * 2)
    served = [200 * 0.001, 0.0]
    assert column(found, "cores_used") == pytest.approx([(10 + s) / (4 * seconds) for s in served])


@pytest.mark.parametrize("policy", ["bsp", "asgd", "star_h", "lb_bsp"])
def test_sharing_changes_when_a_job_uses_its_nodes_and_not_how_much(policy: str) -> None:
    """Of two jobs the second comes in the middle of a step of the first; 1 core for 2."""
    jobs = [JOB | {"samples": 3200}, JOB | {"arrival": 1.234}]
    scenario = SCENARIO | {"learner": {"batch": 8, "noise_scale": 100}}
    found = run(policy, scenario, jobs=jobs, nodes=[NODE | {"gpus": 4, "cores": 1.0, "count": 2}])
    seconds = found.summary["makespan"]
    assert found.summary["makespan"] > 20
    steps = sum(column(found, "gpus_used")) * 4 * seconds / 0.05
    assert steps == pytest.approx(800, abs=2 * 3.5)  # and what was under way at an end
    assert max(column(found, "cores_used")) <= 1 + 1e-9


def test_a_processor_that_is_asked_for_twice_what_it_has_is_used_whole() -> None:
    scenario = {"step": {"compute": 0.1, "host_share": 1.0}, "learner": {"batch": 8}}
    jobs = [{"workload": "small", "workers": 1, "samples": 1600, "count": 2}]
    found = run(scenario=scenario, jobs=jobs, nodes=[{"gpus": 2, "cores": 1.0}])
    assert column(found, "cores_used") == pytest.approx([1.0], rel=1e-9)
    assert column(found, "gpus_used") == [0.0]
    assert column(found, "gpus_held") == pytest.approx([1.0])


def test_a_card_that_is_asked_for_twice_what_it_has_is_used_whole() -> None:
    """All but a thousandth of the time is all-reduces of two jobs over the same two cards."""
    scenario = {
        "step": {"compute": 1e-4}, "learner": {"batch": 8},
        "allreduce": {"bytes": 1e8, "bandwidth": 1e9},
    }  # fmt: skip
    jobs = [{"workload": "small", "workers": 2, "samples": 16 * 100, "count": 2}]
    found = run(scenario=scenario, jobs=jobs, placers=["spread"])
    for card in ("nic_in_used", "nic_out_used"):
        assert column(found, card) == pytest.approx([1.0] * 2, abs=2e-3)
        assert max(column(found, card)) <= 1 + 1e-4  # demands are means over eight steps


def test_a_step_in_reduced_precision_uses_less_of_its_device() -> None:
    """r = 2 where a step of 0.1 s takes 0.075 s."""
    trace = [
        {"time": time, "node": 1, "resource": "gpu", "kind": "slowdown", "value": value}
        for time, value in ((2, 2.0), (6, 1.0))
    ]
    scenario = SCENARIO | {"step": SCENARIO["step"] | {"amp_ratio": 0.1 / 0.075}}
    case = {"nodes": [NODE | {"gpus": 1, "count": 4}], "jobs": [JOB]}
    found = run("korel", scenario, trace=trace, **case)
    study = ClusterStudy.of(case | {"workloads": {"small": {"scenario": scenario}}})
    alone = study.scenario("small", 4, samples=3200).replaced(trace=trace)
    summary = simulate(alone, "korel", int(keys(0, [0])[0])).summary
    amp = 400 * summary["amp_share"]
    assert amp > 10
    assert found.summary["makespan"] == summary["makespan"]
    used = sum(column(found, "gpus_used")) * found.summary["makespan"]
    assert used == pytest.approx((400 - amp) * 0.05 + amp * 0.025)
    assert sum(column(found, "cores_used")) * 4 * summary["makespan"] == pytest.approx(400 * 0.05)


def test_an_aborted_step_uses_what_was_computed_and_its_pull() -> None:
    """Rank 3 takes 0.2 s, and is aborted 0.11 s after its pull, when the others' pushes are there.

    The server is beside rank 0: it gets 100 pushes of ranks 1 and 2 each, and all others pull.
    """
    trace = [{"time": 0, "node": 3, "resource": "gpu", "kind": "slowdown", "value": 3.0}]
    found = run(
        "backup", trace=trace, nodes=[NODE | {"gpus": 1, "count": 4}],
        jobs=[JOB | {"samples": 2400}],
    )  # fmt: skip
    seconds = found.summary["makespan"]
    used = [5.0] * 3 + [100 * 0.11 * 0.05 / 0.2]
    assert column(found, "gpus_used") == pytest.approx([each / seconds for each in used])
    sent, got = [3.0, 1.0, 1.0, 0.0], [2.0, 1.0, 1.0, 1.0]  # 100 gradients of 0.01 s each
    assert column(found, "nic_out_used") == pytest.approx([each / seconds for each in sent])
    assert column(found, "nic_in_used") == pytest.approx([each / seconds for each in got])


def test_until_a_horizon_the_steps_under_way_count_in_part() -> None:
    found = run(horizon=1.15 * 5 + 0.05)
    assert column(found, "gpus_used") == pytest.approx([2 * (50 + 0.5) * 0.05 / (2 * 5.8)] * 2)


def test_devices_are_held_by_workers_and_a_card_without_a_limit_has_no_share() -> None:
    """Two jobs of 11.5 s, one after the other, hold half of the places for two on a device."""
    found = run(nodes=[{"gpus": 4, "cores": 4}], workers_per_gpu=2, jobs=[JOB])
    assert column(found, "gpus_held") == pytest.approx([0.5])
    assert math.isnan(found.summary["nic_in_used"])
