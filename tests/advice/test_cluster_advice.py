"""Advice for the jobs of a cluster: one policy for all of them, by their mean completion time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simstrag.advice.cluster_advice import (
    ClusterAdvice,
    _with_factor,
    advise_cluster,
    cluster_candidates,
)
from simstrag.cluster.study import ClusterStudy
from simstrag.errors import InputError
from tests.support.commands import Call

SLOW = {"time": 0, "node": 0, "resource": "step", "kind": "slowdown", "value": 2.0}
STUDY: dict[str, Any] = {
    "nodes": [{"count": 2, "gpus": 2, "cores": 8}],
    "workloads": {
        "small": {
            "scenario": {
                "step": {"compute": 0.1, "cv": 0.05}, "server": {"service": 0.001},
                "learner": {"noise_scale": 64, "batch": 8},
            },
        },
    },
    "jobs": [{"workload": "small", "workers": 2, "target_progress": 6, "count": 2}],
    "trace": [{**SLOW, "resource": "gpu"}],
    "placers": ["spread", "packed"],
    "seeds": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def advice(tmp_path_factory: pytest.TempPathFactory) -> ClusterAdvice:
    return advise_cluster(STUDY, tmp_path_factory.mktemp("advice"), ["lb_bsp", "asgd"], jobs=1)


def by_samples() -> dict[str, Any]:
    jobs = [{"workload": "small", "workers": 2, "samples": 320}]
    return STUDY | {"jobs": jobs}


def test_jobs_are_advised_the_policy_of_the_shortest_mean_completion_time(
    advice: ClusterAdvice,
) -> None:
    summary = advice.results.summary().set_index("policies")["mean_completion_time"]
    assert {name: float(of.mean()) for name, of in advice.times.items()} == pytest.approx(
        dict(summary)
    )
    assert advice.choice in ("lb_bsp", "asgd")
    assert summary[advice.choice] < 0.95 * summary["bsp"]
    assert f'policy="{advice.choice}"' in str(advice)


def test_only_the_first_placer_counts_and_is_named(advice: ClusterAdvice) -> None:
    assert {run.placer for run in advice.results.runs} == {"spread"}
    assert "placer spread" in advice.sentences[0]


def test_the_cost_of_staleness_of_all_workloads_is_measured_first(advice: ClusterAdvice) -> None:
    assert advice.assumption.constant == "learner.c_tau"
    assert "Measure the cost of staleness (c_tau) first" in str(advice)
    assert "times the value in use" in str(advice)


def test_cores_that_are_stated_are_not_assumed() -> None:
    workload = STUDY["workloads"]["small"]
    two = {"small": workload | {"host_cores": 2}, "other": workload}
    varied = _with_factor(ClusterStudy.of(STUDY | {"workloads": two}), "host_cores", 4)
    assert [w.host_cores for w in varied.workloads.values()] == [2, 4]


def test_of_jobs_that_end_by_samples_stale_gradients_are_not_compared(tmp_path: Path) -> None:
    found = advise_cluster(by_samples(), tmp_path, ["asgd"], jobs=1)
    (left_out,) = (trial.left_out for trial in found.trials if trial.policy == "asgd")
    assert left_out == "its samples may be worth less, and no target is declared"
    assert found.choice == "bsp"
    assert found.sentences[0].endswith("No policy is shown to be faster.")


def test_one_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give two seeds or more"):
        advise_cluster(STUDY, tmp_path, seeds=1)


def test_jobs_that_do_not_end_under_bsp_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bsp: 1 of 1 jobs do not end: raise horizon"):
        advise_cluster(by_samples() | {"horizon": 0.5}, tmp_path, ["lb_bsp"], jobs=1)


def test_a_candidate_must_suit_every_job() -> None:
    jobs = [{"workload": "small", "workers": n, "samples": 320} for n in (2, 4)]
    found = cluster_candidates(ClusterStudy.of(STUDY | {"jobs": jobs}), ["k_async:x=3", "drain"])
    assert found.specs == ("bsp", "drain")
    assert "k_async:x=3" in found.excluded


def test_the_command_advises_on_a_study(call: Call, tmp_path: Path) -> None:
    study, out = tmp_path / "mine.yaml", tmp_path / "out"
    study.write_text(json.dumps(by_samples()))
    code, text, _ = call("advise", str(study), "-p", "lb_bsp", "-j", "1", "-v", "--out", str(out))
    assert code == 0
    assert "simstrag ddp train.py --ranks 2" in text
    assert json.loads((out / "advice.json").read_text())["choice"] in ("bsp", "lb_bsp")
    assert (out / "report.html").exists()
    code, _, error = call("advise", str(study), "--step", "1s")
    assert (code, error) == (2, f"error: --step: {study} is a study of jobs on a cluster\n")
