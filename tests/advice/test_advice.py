"""Advice: what is tried, what is left out, and what the answer says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from simstrag.advice.advice import Advice
from simstrag.advice.advise import advise
from simstrag.advice.candidates import candidates, grid
from simstrag.advice.recommendation import _runs
from simstrag.errors import InputError
from simstrag.experiments.decision import MODEL_ERROR, OWN
from simstrag.scenario.scenario import Scenario
from simstrag.whatif.first_scenario import (
    JobDescription,
    read_first_scenario,
    write_first_scenario,
)
from tests.support.commands import Call

SLOW = [{"time": 0, "node": 0, "resource": "step", "kind": "slowdown", "value": 2.0}]


def job(**changes: object) -> Scenario:
    """Four workers with noise, one of them slow all the time."""
    case = {
        "workers": 4, "target_progress": 10, "seeds": 2, "step": {"compute": 0.1, "cv": 0.05},
        "server": {"service": 0.001}, "learner": {"noise_scale": 64, "batch": 8}, "trace": SLOW,
    }  # fmt: skip
    return Scenario(**(case | changes))


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(job(), ["lb_bsp", "asgd", "ringmaster"], jobs=1)


def test_every_candidate_is_in_the_shortest_spelling() -> None:
    assert len(grid(64)) == len({*grid(64)}) > 45


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("star_h_oracle", "real ranks cannot run it"),
        ("korel", "its gain is unknown"),
        ("local_sgd", "it averages private models"),
        ("asgd", "changes training more (lane C)"),
    ],
)
def test_a_candidate_that_cannot_be_advised_is_left_out_with_the_reason(
    spec: str, reason: str
) -> None:
    found = candidates(job(), [spec], change="B" if spec == "asgd" else "C")
    assert found.specs == ("bsp",)
    assert reason in found.excluded[spec]


def test_a_lane_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="change D: give one of A, B, C"):
        candidates(job(), change="D")


def test_a_candidate_that_makes_the_same_runs_is_alike(advice: Advice) -> None:
    assert {"asgd", "ringmaster"} <= {*advice.alike, advice.choice}
    assert "not shown to differ from it by more than 1 %" in str(advice)


def test_the_cost_of_staleness_is_measured_first_where_the_choice_hangs_on_it(
    advice: Advice,
) -> None:
    assert (advice.assumption.constant, advice.assumption.value) == ("learner.c_tau", 4.0)
    assert "Measure the cost of staleness (c_tau) first" in str(advice)


def test_nothing_is_changed_without_contention() -> None:
    found = advise(job(trace=None, step={"compute": 0.1}), ["lb_bsp", "drain"], jobs=1)
    assert found.choice == "bsp"
    assert found.attempt is None
    assert "change nothing" in str(found).lower()


def test_halving_gives_more_seeds_to_what_may_be_the_best() -> None:
    specs = ["lb_bsp", "lb_bsp:window=16", "drain", "fewer", "tree", "backup", "ssp", "ssp:bound=1",
             "dssp", "lgc", "hot_spare"]  # fmt: skip
    found = advise(job(seeds=4), specs, jobs=1)
    seeds = {trial.policy: trial.seeds for trial in found.trials}
    assert seeds["lb_bsp"] == 4
    assert min(seeds.values()) == 2
    assert found.trials[-1].left_out == "left out after 2 seeds"


def test_so_many_runs_show_the_gain_in_nine_of_ten_trials() -> None:
    # A gain of 10, standard deviations of 5: (t(.975) + t(.9)) 5 sqrt(2 / n) is 10.4 for 6 runs of
    # each (10 degrees of freedom: 2.228, 1.372), and 9.4 for 7 (12: 2.179, 1.356).
    spread = np.array([-5.0, 5.0, -5 / np.sqrt(2), 5 / np.sqrt(2)])
    assert np.std(spread, ddof=1) == pytest.approx(5.0)
    assert _runs(90 + spread, 100 + spread) == 7
    assert _runs(100 + spread, 90 + spread) is None
    assert _runs(90 + spread[:1], 100 + spread[:1]) is None


def test_the_choice_is_near_the_fastest_and_the_safe_one_may_be_another() -> None:
    case = job(workers=2, step={"compute": 1.0}, seeds=1, target_progress=60)
    found = advise(case, ["asgd", "lb_bsp"], jobs=1)
    own = found.states[OWN]
    assert own[found.choice] <= 1.03 * min(own[p] for p in own if p != "bsp")
    assert found.regret == pytest.approx(own[found.choice] / min(own.values()) - 1)
    worst = {p: found.regrets[p].worst for p in own}
    assert worst[found.safe] <= min(worst.values()) + MODEL_ERROR


def test_a_target_is_needed_to_advise_stale_gradients() -> None:
    found = advise(job(target_progress=None, samples=1600), ["lb_bsp", "asgd"], jobs=1)
    (asgd,) = (trial for trial in found.trials if trial.policy == "asgd")
    assert asgd.left_out == "its samples may be worth less, and no target is declared"
    assert found.choice == "lb_bsp"


def test_advice_says_what_any_candidate_took_beyond_the_measured_range(tmp_path: Path) -> None:
    """Only asgd, which is no finalist, goes through the server: it was timed with one rank."""
    shipped = Path("simstrag/calibration/profiles/intel-xeon-2-core-amx-mlp.json")
    data = json.loads(shipped.read_text())
    data["transfers"] = [each | {"ranks": 1} for each in data["transfers"]]
    (tmp_path / "one.json").write_text(json.dumps(data))
    batch = data["workload"]["batch"]
    case = Scenario(
        workers=2, samples=4 * batch, profile=str(tmp_path / "one.json"),
        learner={"batch": batch}, seeds=2,
    )  # fmt: skip
    found = advise(case, ["asgd"], jobs=1)
    assert list(found.times) == ["bsp"]
    (said,) = (text for text in found.sentences if "beyond what the profile measured" in text)
    assert "server of 2 ranks: measured up to 1 ranks; 2x beyond" in said


def test_a_trace_becomes_the_scenario_that_init_writes(tmp_path: Path) -> None:
    trace, written = tmp_path / "slow.csv", tmp_path / "mine.yaml"
    trace.write_text("time,node,resource,kind,value\n0,0,step,slowdown,2\n0,3,step,slowdown,1\n")
    described = JobDescription(step=0.1, workers=4)
    read = read_first_scenario(trace, described)
    write_first_scenario(trace, written, described)
    again = Scenario.read(written)
    assert read.inputs.trace.sha256 == again.inputs.trace.sha256
    assert {**read.declared, "trace": ""} == {**again.declared, "trace": ""}


def test_the_command_advises_on_a_record(call: Call, tmp_path: Path) -> None:
    record = tmp_path / "steps.csv"
    lines = [f"{rank},{step},{0.2 if rank else 0.1}" for step in range(30) for rank in range(2)]
    record.write_text("rank,step,seconds\n" + "\n".join(lines) + "\n")
    out = tmp_path / "advice"
    code, text, _ = call("advise", str(record), "-p", "lb_bsp", "-j", "1", "--out", str(out))
    assert code == 0
    assert 'policy="lb_bsp"' in text
    assert json.loads((out / "advice.json").read_text())["choice"] == "lb_bsp"


def test_the_facts_of_a_job_are_refused_beside_a_scenario(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workers: 2\nsamples: 640\nstep: {compute: 0.1}\n")
    code, _, error = call("advise", str(path), "--step", "1s")
    assert code == 2
    assert f"--step: {path} is a scenario, which says that itself" in error
