"""Jobs that share nodes."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag import policies
from simstrag.cluster.colocation import LAWS
from simstrag.cluster.demands import Slowdowns
from simstrag.cluster.job import RunningJob
from simstrag.cluster.negotiation import Nodes
from simstrag.cluster.placers import Placement
from simstrag.cluster.runs import ClusterResults, cluster
from simstrag.cluster.simulate import simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.contract import Plan, Quorum
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulate import simulate
from simstrag.engine.simulation import Simulation
from simstrag.errors import PlanError
from simstrag.experiments.paired_statistics import ratio
from simstrag.timing.noise import keys
from tests.support.contention import slow
from tests.support.strategies import Fixed

STEP = {"compute": 0.2, "host_share": 0.5, "cv": 0.1}
WORKLOAD = {
    "scenario": {
        "step": STEP, "learner": {"batch": 8},
        "allreduce": {"bytes": 1e6, "bandwidth": 1e9, "alpha": 1e-3},
        "server": {"service": 0.01, "push": 0.002, "pull": 0.001},
    }
}  # fmt: skip
SMALL: dict[str, Any] = {
    "nodes": [{"gpus": 2, "cores": 1.0, "nic_in": 1e9, "nic_out": 1e9, "count": 2}],
    "workloads": {"small": WORKLOAD},
    "jobs": [{"workload": "small", "workers": 2, "samples": 1600, "count": 4, "every": 1.5}],
    "placers": ["spread"],
}
ONE_GPU = [{"gpus": 1, "cores": 8}]


def study(**changes: Any) -> ClusterStudy:
    return ClusterStudy.of(SMALL | changes)


def plain(
    step: dict[str, float], samples: int = 800, workers: int = 1, count: int = 1,
    workload: dict[str, Any] | None = None, scenario: dict[str, Any] | None = None, **changes: Any,
) -> ClusterStudy:  # fmt: skip
    """A study of jobs of one workload; scenario and workload: more of their keys."""
    section = {"step": step, "learner": {"batch": 8}, **(scenario or {})}
    return study(
        workloads={"plain": {"scenario": section, **(workload or {})}},
        jobs=[{"workload": "plain", "workers": workers, "samples": samples, "count": count}],
        **changes,
    )


@pytest.mark.parametrize(
    ("policy", "step", "noise"),
    [
        *((policy, STEP, None) for policy in ("bsp", "asgd", "backup", "dssp", "cgp", "lb_bsp",
                                              "star_h", "tree")),
        *((policy, {"launch": 0.15, "device": 0.2, "cv": 0.1}, None)
          for policy in ("bsp", "asgd", "lb_bsp")),
        ("asgd", STEP, {"pace": 0.3}),
    ],
)  # fmt: skip
def test_a_job_alone_on_nodes_that_it_cannot_fill_runs_as_a_single_job(
    policy: str, step: dict[str, float], noise: dict[str, float] | None
) -> None:
    """Also where launching overlaps the device, and with a pace of its own."""
    workload = {"scenario": WORKLOAD["scenario"] | {"step": step, "noise": noise}}
    job = {"workload": "small", "workers": 4, "samples": 6400}
    nodes = [{"gpus": 2, "cores": 8, "count": 2}]
    alone = study(jobs=[job], nodes=nodes, workloads={"small": workload})
    end = simulate_cluster(alone, policy, seed=3).jobs[0]["end"]
    scenario = alone.scenario("small", 4, samples=6400, nodes=(0, 0, 1, 1))
    seed = int(keys(3, [0])[0])  # of the study's third seed and the first job
    assert end == simulate(scenario, policy, seed).summary["makespan"]


@pytest.mark.parametrize(
    "plan",
    [
        Plan((Quorum(count=1, partial=True),)),
        Plan((Quorum(steps=2, overlap=1),), average=True),
    ],
)
def test_a_shared_job_refuses_collectives_that_are_not_modelled(
    monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    monkeypatch.setattr(policies, "load", lambda _: Fixed(plan))
    with pytest.raises(PlanError, match="is not modelled; simulate the job by itself"):
        simulate_cluster(study(), "bsp", seed=0)


def test_two_jobs_alike_on_a_processor_that_is_half_of_what_they_ask_for_get_half_each() -> None:
    """Host work alone, without noise: two workers ask for a core each, and one core is there."""
    nodes = [{"gpus": 2, "cores": 1.0}]
    run = simulate_cluster(plain({"compute": 0.1, "host_share": 1.0}, 1600, count=2, nodes=nodes))
    assert [job["end"] for job in run.jobs] == pytest.approx([40.0, 40.0], rel=1e-9)
    assert [job["slowdown"] for job in run.jobs] == pytest.approx([2.0, 2.0], rel=1e-9)


def test_two_jobs_alike_on_one_card_get_half_each() -> None:
    """All-reduces of 0.1 s each across two nodes; both cards are asked for twice what they have."""
    reduce = {"allreduce": {"bytes": 1e8, "bandwidth": 1e9}}
    run = simulate_cluster(plain({"compute": 1e-6}, 1600, workers=2, count=2, scenario=reduce))
    assert [job["end"] for job in run.jobs] == pytest.approx([20.0, 20.0], rel=1e-4)


def test_a_gradient_tree_asks_for_the_cards_of_parents_and_of_the_server() -> None:
    """Ranks 0 and 1 are on node 0, 2 on node 1 and 3 on node 2, where the server is."""
    alone = study(
        nodes=[{"gpus": 2, "cores": 8, "count": 3}],
        jobs=[{"workload": "small", "workers": 4, "samples": 6400}],
    )
    (job,) = alone.arriving("tree", 0)
    running = RunningJob(alone, job, Placement((0, 0, 1, 2), (2,)), range(4), 0.0, 0)
    demands = running.demands(0.0)
    nodes = Nodes(alone.each_node, alone.others(0), LAWS[alone.colocation])
    table = nodes.asked(running, demands)
    # 1 is on its parent's node.  0 and 2 push to the server's node; 3, which is there, to rank 2.
    up, down = demands.push, demands.pull
    assert table[:, 1] == pytest.approx([down[0], down[2] + up[3], up[0] + up[2] + down[3]])
    assert table[:, 2] == pytest.approx([up[0], up[2] + down[3], down[0] + down[2] + up[3]])
    assert demands.service == pytest.approx([0.01 * (up[0] + up[2]) / 1e6])


def test_a_gradient_tree_halves_what_a_full_card_of_the_server_carries() -> None:
    """Of eight ranks on four nodes six push 10 MB to the server's, in pairs three: at 100 MB/s."""
    full = plain(
        {"compute": 0.01}, 64 * 50, workers=8, placers=["packed"],
        scenario={"server": {"push": 0.01, "pull": 0.01}}, workload={"gradient_bytes": 1e7},
        nodes=[{"gpus": 2, "cores": 8, "nic_in": 1e8, "nic_out": 1e8, "count": 4}],
    )  # fmt: skip
    ends = [simulate_cluster(full, policy).jobs[0]["end"] for policy in ("bsp:via=server", "tree")]
    assert ends[1] == pytest.approx(ends[0] / 2, rel=0.01)


def test_a_server_is_asked_for_the_gradients_that_come_whichever_rank_is_slowed() -> None:
    """10 cores for 0.01 s a gradient."""
    apart = study(
        nodes=[{"gpus": 1, "cores": 64.0, "count": 3}],
        workloads={"small": WORKLOAD | {"server_cores": 10}},
        jobs=[{"workload": "small", "workers": 2, "samples": 32000}],
    )
    (job,) = apart.arriving("asgd", 0)
    running = RunningJob(apart, job, Placement((0, 1), (2,)), (0, 1), 0.0, seed=0)
    running.slow(0.0, replace(Slowdowns.none(2), net=np.array([1.0, 100.0])))
    assert not running.advance(40.0)
    service = running.demands(40.0).service
    assert service == pytest.approx([10 * 0.01 * running.updates / 40], rel=0.02)


def test_two_workers_of_one_device_take_turns() -> None:
    """Or they slow each other by a fitted law of colocation."""
    two = {"count": 2, "nodes": ONE_GPU, "workers_per_gpu": 2}
    turns = simulate_cluster(plain({"compute": 0.1}, **two)).jobs
    assert [job["end"] for job in turns] == pytest.approx([20.0] * 2)
    of_law = {"workload": {"colocates_as": "Recommendation"}, "colocation": "K80"}
    fitted = simulate_cluster(plain({"compute": 0.1}, **two, **of_law)).jobs
    assert [job["slowdown"] for job in fitted] == pytest.approx([1 + 2.36 * 0.68] * 2)


def test_shares_replayed_as_a_trace_give_the_same_times() -> None:
    """One worker a node: the slowdowns of a job by node are a trace of its ranks."""
    tight = [{"gpus": 2, "cores": 0.7, "nic_in": 1e9, "nic_out": 1e9, "count": 2}]
    jobs = [{"workload": "small", "workers": 2, "samples": 3200, "count": 2}]
    shared = study(nodes=tight, jobs=jobs)
    run = simulate_cluster(shared, "bsp", seed=1)
    assert run.shares
    for number, job in enumerate(run.jobs):
        rows = [
            {name: share[name] for name in ("time", "node", "resource")}
            | {"kind": "slowdown", "value": share["slowdown"]}
            for share in run.shares if share["job"] == job["name"]
        ]  # fmt: skip
        scenario = shared.scenario("small", 2, samples=3200).replaced(trace=rows)
        replayed = simulate(scenario, "bsp", int(keys(1, [number])[0]))
        assert job["end"] == pytest.approx(replayed.summary["makespan"], rel=1e-9)


def test_a_job_starts_at_the_very_moment_at_which_another_leaves_its_devices() -> None:
    run = simulate_cluster(study(), "bsp")
    first, _, third, _ = run.jobs
    assert third["start"] == min(job["end"] for job in run.jobs[:2]) > third["arrival"]
    assert first["queueing"] == 0


def test_a_load_of_others_multiplies() -> None:
    """From when on it begins, a job of 10 s; alone is alone: without others, too."""
    (job,) = simulate_cluster(plain({"compute": 0.1}, nodes=ONE_GPU, trace=[slow(2.0)])).jobs
    assert (job["end"], job["slowdown"]) == pytest.approx((20.0, 2.0))
    (job,) = simulate_cluster(plain({"compute": 0.1}, nodes=ONE_GPU, trace=[slow(3.0, 5)])).jobs
    assert job["end"] == pytest.approx(5 + 5 * 3)


def test_a_load_of_others_that_repeats_is_felt_in_every_cycle() -> None:
    """In 3.3 s of a cycle, half of them at half speed, 2.475 s of work are done: 20 s in 26.6."""
    trace = [slow(v, t, resource="host") for t, v in ((0.0, 1.0), (1.65, 2.0), (3.3, 1.0))]
    step = {"compute": 0.1, "host_share": 1.0}
    slowed = plain(step, 1600, nodes=ONE_GPU, trace=trace, trace_end="loop")
    assert simulate_cluster(slowed, "bsp").jobs[0]["end"] == pytest.approx(26.6)


def test_a_run_stops_at_its_horizon() -> None:
    run = simulate_cluster(study(horizon=15.0), "bsp")
    assert run.summary["finished"] == 0
    assert [math.isnan(job["start"]) for job in run.jobs] == [False, False, True, True]
    assert [job["nodes"] for job in run.jobs] == ["0 1", "0 1", "", ""]


def test_stragglers_are_counted_up_to_the_horizon() -> None:
    """From 1 s on a rank of two takes 0.3 s a step in place of 0.1: of 20 + 40 gradients 10.

    At 1 s ten steps of each rank are done.  Then one makes 10 gradients a second, the other 10/3.
    """
    cut = plain(
        {"compute": 0.1}, 8000, workers=2, trace=[slow(3.0, 1, node=1)], horizon=4.05,
        nodes=[{"gpus": 1, "cores": 8, "count": 2}],
    )  # fmt: skip
    (job,) = simulate_cluster(cut, "asgd").jobs
    assert job["stragglers"] == pytest.approx(1000 * 10 / (20 + 30 + 10))


def test_a_job_has_the_same_luck_whatever_runs_beside_it() -> None:
    wide = [{"gpus": 2, "cores": 64.0, "count": 8}]
    alone = [{"workload": "small", "workers": 2, "samples": 3200}]
    beside = [*alone, {"workload": "small", "workers": 4, "samples": 3200, "arrival": 1.0}]
    ends = [
        simulate_cluster(study(nodes=wide, jobs=jobs), "asgd").jobs[0]["end"]
        for jobs in (alone, beside)
    ]
    assert ends[0] == ends[1]


def test_ends_are_found_event_by_event_as_a_job_advanced_at_once_has_them() -> None:
    """Without contention no job depends on where the others make it stop."""
    many = study(
        nodes=[{"gpus": 2, "cores": 64.0, "count": 8}],
        jobs=[{"workload": "small", "workers": 2, "samples": 1600, "count": 8, "every": 0.3}],
    )
    run = simulate_cluster(many, "dssp")
    for number, job in enumerate(run.jobs):
        scenario = many.scenario("small", 2, samples=1600)
        simulation = Simulation(
            scenario, policies.load("dssp"), "dssp", int(keys(0, [number])[0]), Recorder()
        )
        assert simulation.advance(math.inf)
        assert job["end"] == job["start"] + simulation.kernel.now


def test_finished_runs_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(study(seeds=2), tmp_path, jobs=1)
    monkeypatch.setattr("simstrag.cluster.runs.simulate_cluster", None)
    again = cluster(study(seeds=2), tmp_path, jobs=1)
    assert not again.failed
    assert len(again.table("jobs")) == 8


MINE = """
from simstrag import Plan, Quorum, Via


class Mine:
    def plan(self, view):
        return Plan((Quorum(count=COUNT, via=Via.SERVER),))
"""


@pytest.mark.parametrize("where", ["study", "mix", "job"])
def test_a_study_of_an_edited_policy_file_has_new_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    file, seen = tmp_path / "edited_policy.py", []
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    changes = {
        "study": {"policies": [str(file)]}, "mix": {"policies": [{"small": str(file)}]},
        "job": {"jobs": [SMALL["jobs"][0] | {"policy": str(file)}]},
    }[where]  # fmt: skip
    for count in (1, 2):
        file.write_text(MINE.replace("COUNT", str(count)), encoding="utf-8")
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
        done = cluster(study(**changes), tmp_path / "out", jobs=1)
        seen.append(list(done.table("jobs")["completion_time"]))
    assert seen[0] != seen[1]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2


def test_placers_and_mixes_are_compared_pair_by_pair(tmp_path: Path) -> None:
    mixed = study(placers=["spread", "packed"], policies=["bsp", {"small": "asgd"}], seeds=2)
    cluster(mixed, tmp_path, jobs=1)
    table = ClusterResults.read(tmp_path).summary()
    assert list(table["policies"]) == ["bsp", "bsp", "small=asgd", "small=asgd"]
    assert table["ratio"][0] == 1.0
    assert (table["ratio_low"] <= table["ratio"]).all()


def test_a_ratio_is_of_the_seeds_that_ended_in_both_rows(tmp_path: Path) -> None:
    """A seed is missing in each row: the two that both have are compared."""
    placers = study(placers=["spread", "packed"], seeds=4)
    whole = cluster(placers, tmp_path, jobs=1)
    for run in (whole.runs[0], whole.runs[-1]):  # the first seed, and the last one
        (tmp_path / "runs" / f"{run.key}.json").unlink()
    both = whole.table("jobs").query("seed in (1, 2)")
    means = both.groupby(["placer", "seed"])["completion_time"].mean().unstack()
    expected = ratio(means.loc["packed"], means.loc["spread"])
    found = whole.summary().iloc[-1][["ratio", "ratio_low", "ratio_high"]]
    assert list(found) == pytest.approx(list(expected))


@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_half_the_interval_changes_no_completion_time_by_one_percent(policy: str) -> None:
    tight = [{"gpus": 4, "cores": 1.2, "nic_in": 2e7, "nic_out": 2e7, "count": 2}]
    jobs = [{"workload": "small", "workers": 4, "samples": 6400, "count": 2, "every": 7.7}]
    halves = [
        simulate_cluster(study(nodes=tight, jobs=jobs, interval=interval), policy).jobs
        for interval in (1.0, 0.5)
    ]
    assert all(job["slowdown"] > 1.05 for job in halves[0])
    for whole, half in zip(*halves, strict=True):
        assert half["completion_time"] == pytest.approx(whole["completion_time"], rel=0.01)


def test_intervals_shorter_than_an_update_see_all_its_gradients() -> None:
    """Eight gradients come in a burst each update; 0.8 of some 1.4 cores asked for are there."""
    ends = [
        simulate_cluster(
            plain(
                {"compute": 0.2, "cv": 0.1}, 64 * 60, workers=8, count=2, workers_per_gpu=2,
                scenario={"server": {"service": 0.04}}, workload={"server_cores": 1.0},
                nodes=[{"gpus": 8, "cores": 0.8}], interval=interval,
            ),
            "bsp:via=server", "packed",
        ).summary["makespan"]
        for interval in (1.0, 0.5, 0.25)
    ]  # fmt: skip
    assert ends[1:] == pytest.approx([ends[0]] * 2, rel=0.05)
