"""Comparisons: the same luck and contention for everybody, a clean control, true columns."""

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import simstrag
from simstrag import Scenario
from simstrag.experiments import cluster_backends
from simstrag.experiments.comparison import Comparison
from simstrag.experiments.sensitivity import sensitivity
from simstrag.processes.pool import InProcess

SLOW = {"time": 0.0, "node": 1, "resource": "gpu", "kind": "slowdown", "value": 2.0}
HANDMADE: dict[str, Any] = {
    "workers": 2,
    "samples": 40,
    "target_progress": 1.0,
    "step": {"compute": 0.5, "amp_ratio": 1.25},
    "server": {"service": 0.25, "push": 0.125, "pull": 0.0625},
    "learner": {"batch": 10, "noise_scale": 20},
    "trace": [SLOW],
}


@pytest.fixture(scope="module")
def handmade() -> Comparison:
    policies = ["bsp", "amp_all", "bsp:via=server"]
    return simstrag.compare(Scenario.of(HANDMADE), policies, seeds=2, jobs=1)


def test_the_clean_control_is_bsp_without_the_contention(handmade: Comparison) -> None:
    clean = Scenario.of(HANDMADE | {"trace": None})
    makespans = handmade.column("bsp", "makespan", "clean")
    assert makespans.tolist() == [
        simstrag.simulate(clean, "bsp", s).summary["makespan"] for s in (0, 1)
    ]
    assert makespans.tolist() == [1.0, 1.0]


def test_mitigation_is_that_of_hand_made_times(handmade: Comparison) -> None:
    row = handmade.ranking.set_index("policy").loc["amp_all"]
    assert row["makespan"] == 1.6  # two updates of 1 s / 1.25, against 2 s and, clean, 1 s
    assert row["makespan_mitigation"] == pytest.approx(0.4)
    assert row["makespan_speedup"] == pytest.approx(1.25)


def test_a_comparison_prints_its_short_answer(handmade: Comparison) -> None:
    choice, one_run, *lines = str(handmade).splitlines()
    assert choice.startswith("Run mixed precision on every worker (amp_all): 20.0 % sooner")
    assert one_run == "Every run of this job reaches the target after 1.60 s."
    table = lines[1:5]
    assert [line.split()[:2] for line in table] == [
        ["changes", "policy"], ["nothing", "\N{EN DASH}"], ["some", "gradients"],
        ["the", "algorithm"],
    ]  # fmt: skip
    assert "amp_all" in table[2]
    assert len(lines) < 12


def test_a_comparison_at_a_prompt_is_one_line(handmade: Comparison) -> None:
    assert repr(handmade) == "<Comparison: policies 3, seeds 2; print it for its choice>"


def test_one_policy_may_be_a_plain_string() -> None:
    assert simstrag.compare(Scenario.of(HANDMADE), "bsp", jobs=1).policies == ["bsp"]


@pytest.mark.usefixtures("no_page")
def test_the_units_of_columns_are_with_the_tables(handmade: Comparison, tmp_path: Path) -> None:
    handmade.write(tmp_path / "out")
    for comparison in (handmade, Comparison.read(tmp_path / "out")):
        ranking, runs = (t.attrs["units"] for t in (comparison.ranking, comparison.runs))
        assert ranking["time_to_target_difference_low"] == runs["makespan"] == "s"
        assert ranking["makespan_speedup"] == "ratio"
        assert runs["throughput"] == "samples/s"
        assert runs["detection_precision"] == "share"
        assert ranking.keys() <= {*comparison.ranking.columns}


def test_bsp_is_run_where_nobody_asked_for_it() -> None:
    comparison = simstrag.compare(Scenario.of(HANDMADE), ["amp_all"], jobs=1)
    assert comparison.policies == ["amp_all"]
    assert list(comparison.controls[["policy", "variant"]].itertuples(index=False, name=None)) == [
        ("bsp", "contended"),
        ("bsp", "clean"),
    ]


def test_goodput_is_samples_per_second_times_their_worth(handmade: Comparison) -> None:
    summary = handmade.examples["bsp"].summary
    assert summary["throughput"] == 20.0  # 20 samples in each second
    assert summary["efficiency"] == pytest.approx(0.75)  # 20/40 an update; twice 10/30 for one each
    assert summary["goodput"] == pytest.approx(15.0)


def test_time_goes_into_computing_communication_and_waiting(handmade: Comparison) -> None:
    summary = handmade.examples["bsp:via=server"].summary
    # A round: pull 1/16; 1/2 and 1 s of computing; push 1/8; the second job ends 1/4 later.
    assert summary["makespan"] == 2 * (0.0625 + 1.0 + 0.125 + 0.25)
    assert summary["compute_by_rank"] == [1.0, 2.0]
    assert summary["communication_by_rank"] == [2 * 0.4375, 2 * 0.4375]
    assert summary["wait_by_rank"] == [1.0, 0.0]


@pytest.mark.parametrize("policy", ["bsp", "backup", "backup:late=drop", "asgd"])
def test_what_is_aborted_or_in_flight_beyond_the_trace_counts_as_beyond(policy: str) -> None:
    rows = [SLOW | {"value": 5.0}, SLOW | {"value": 5.0, "time": 0.05}]
    run = simstrag.simulate(
        Scenario(workers=4, updates=200, step={"compute": 0.1}, trace=rows), policy
    )
    computed = sum(run.summary["compute_by_rank"])
    assert run.summary["beyond_trace"] == pytest.approx(1 - 4 * 0.05 / computed)


def test_a_curve_passes_every_level_when_the_run_does(handmade: Comparison) -> None:
    curves = handmade.curves
    bsp = curves[(curves.policy == "bsp") & (curves.variant == "contended") & (curves.seed == 0)]
    run = handmade.examples["bsp"]
    progress = np.concatenate([[0.0], run.updates["progress"]])
    time = np.concatenate([[0.0], run.updates["time"]])
    assert bsp["progress"].iloc[-1] == progress[-1]
    assert np.allclose(bsp["time"], np.interp(bsp["progress"], progress, time))


@pytest.mark.usefixtures("no_page")
def test_inputs_that_change_on_disk_meanwhile_change_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "slow.csv"
    trace.write_text("time,node,resource,kind,value\n0,1,gpu,slowdown,2.0\n")
    scenario = Scenario.of(HANDMADE | {"trace": "slow.csv"}, folder=tmp_path)
    quiet = simstrag.compare(scenario, ["bsp", "asgd"], jobs=1)

    def meddle(done: int, total: int, what: str) -> None:
        trace.write_text("time,node,resource,kind,value\n0,1,gpu,slowdown,9.0\n")

    scenario = scenario.replaced(trace="slow.csv")
    trace.write_text("time,node,resource,kind,value\n0,1,gpu,slowdown,2.0\n")
    meddled = simstrag.compare(scenario, ["bsp", "asgd"], jobs=1, on_progress=meddle)
    assert meddled.runs.equals(quiet.runs)
    assert meddled.sensitivity.equals(quiet.sensitivity)
    meddled.write(tmp_path / "out")
    kept, used = (c.scenario.inputs.trace for c in (Comparison.read(tmp_path / "out"), meddled))
    assert kept.rows == used.rows


def test_a_policy_that_a_target_cannot_measure_is_refused_before_anything_runs() -> None:
    def never(*what: Any) -> None:
        raise AssertionError(what)

    case = Scenario.of(HANDMADE)
    with pytest.raises(simstrag.PlanError, match=r"local_sgd cannot be measured by a target"):
        simstrag.compare(case, ["bsp", "local_sgd"], jobs=1, on_progress=never)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(simstrag.InputError, match="seed"):
        simstrag.simulate(Scenario.of(HANDMADE), "bsp", seed)


def test_a_trace_of_constants_has_no_end_to_run_past() -> None:
    run = simstrag.simulate(Scenario.of(HANDMADE | {"trace_end": "error"}))
    assert run.summary["beyond_trace"] == 0.0
    assert run.warnings == ()


def test_of_recorded_durations_no_mitigation_is_claimed() -> None:
    row = {"time": 0.0, "node": 0, "resource": "step", "kind": "duration", "value": 1.0}
    comparison = simstrag.compare(
        Scenario.of(HANDMADE | {"trace": [row]}), ["bsp", "amp_all"], jobs=1
    )
    assert comparison.ranking["makespan_mitigation"].isna().all()


def test_a_comparison_of_a_single_update_has_a_report(tmp_path: Path) -> None:
    scenario = Scenario.of(HANDMADE | {"samples": 20, "target_progress": None})
    simstrag.compare(scenario, ["bsp", "asgd"], jobs=1).write(tmp_path / "out")
    assert (tmp_path / "out" / "report.html").exists()


class Breaks:
    """A policy with a mistake in it."""

    def plan(self, view: simstrag.View) -> simstrag.Plan:
        return view.nope  # type: ignore[attr-defined, no-any-return]


def test_a_mistake_in_somebodys_policy_is_named_with_its_line() -> None:
    with pytest.raises(simstrag.PlanError, match=r"Breaks raised AttributeError.*line \d+\)"):
        simstrag.simulate(Scenario.of(HANDMADE), Breaks())


def test_of_two_spellings_the_first_is_kept_and_the_other_warned_of() -> None:
    with pytest.warns(UserWarning, match="^bsp is bsp:via=allreduce; compared once$"):
        once = simstrag.compare(Scenario.of(HANDMADE), ["bsp:via=allreduce", "bsp"], jobs=1)
    assert once.policies == ["bsp:via=allreduce"]


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("comparison.csv", "junk\n1\n", r"comparison\.csv: .* no column 'variant'"),
        ("comparison.csv", "variant,policy,seed\n", r"comparison\.csv: .* no column 'aborted'"),
        ("curves.csv", "variant,policy,seed\n", r"curves\.csv: .* no column 'progress'"),
        ("examples.json", "[]", r"examples\.json: does not say where"),
        ("examples/bsp/steps.parquet", None, r"examples/bsp: .* steps\.parquet is missing"),
    ],
)
def test_a_folder_with_something_else_in_it_is_named(
    file: str, text: str | None, message: str, handmade: Comparison, tmp_path: Path
) -> None:
    handmade.write(tmp_path / "c")
    if text is None:
        (tmp_path / "c" / file).unlink()
    else:
        (tmp_path / "c" / file).write_text(text)
    with pytest.raises(simstrag.InputError, match=message):
        Comparison.read(tmp_path / "c")


@pytest.mark.usefixtures("no_page")
def test_a_policy_that_was_edited_between_two_comparisons_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that live on would know the old one only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    updates = []
    for count in (1, 2):
        Path("edited.py").write_text(
            "from simstrag import Plan, Quorum, Via\n"
            "class Edited:\n"
            f"    def plan(self, view): return Plan((Quorum(count={count}, via=Via.SERVER),))\n"
        )
        sys.modules.pop("edited", None)
        importlib.invalidate_caches()
        case = Scenario.of(HANDMADE | {"target_progress": None})
        runs = simstrag.compare(case, ["edited:Edited"], seeds=2, jobs=2).runs
        updates.append(runs["updates"].tolist())
    sys.modules.pop("edited", None)
    assert updates == [[4, 4], [2, 2]]


NOISY: dict[str, Any] = {
    "workers": 4,
    "samples": 4 * 128 * 20,
    "target_progress": 5,
    "step": {"compute": 0.1, "cv": 0.1},
    "server": {"service": 0.001},
    "trace": [{"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}],
    "seeds": 6,
}


def compared(policies: tuple[str, ...] = ("bsp", "asgd"), **how: Any) -> Comparison:
    return simstrag.compare(Scenario.of(NOISY), [*policies], jobs=1, **{"sensitivity": True} | how)


@pytest.fixture(scope="module")
def turned() -> Comparison:
    return compared()


def test_thresholds_are_what_sensitivity_finds_under_the_first_seeds(turned: Comparison) -> None:
    few = Scenario.of(NOISY | {"seeds": 5})
    found = sensitivity(few, ["bsp", "asgd"], jobs=1)
    assert turned.thresholds.equals(found)
    assert set(turned.thresholds["seeds"]) == {5}


def test_thresholds_change_nothing_else(turned: Comparison) -> None:
    plain = compared(sensitivity=False)
    assert plain.thresholds is None
    assert turned.runs.equals(plain.runs)
    assert turned.sensitivity.equals(plain.sensitivity)


@pytest.mark.usefixtures("no_page")
def test_thresholds_are_written_beside_the_comparison_and_read_back(
    turned: Comparison, tmp_path: Path
) -> None:
    turned.write(tmp_path / "out")
    read = Comparison.read(tmp_path / "out").thresholds
    pd.testing.assert_frame_equal(read, turned.thresholds)
    turned.write(tmp_path / "out")  # all that it holds is its own
    simstrag.compare(Scenario.of(NOISY), ["bsp"], jobs=1).write(tmp_path / "out")
    assert not (tmp_path / "out" / "thresholds.csv").exists()


def test_runs_that_a_comparison_made_are_not_made_again_for_its_thresholds() -> None:
    said: list[str] = []
    compared(on_progress=lambda done, total, what: said.append(what))
    again = [what for what in said if "=" in what]
    assert "learner.noise_scale = 125, asgd, seed 1" in again
    assert "learner.c_tau = 4, asgd, seed 1" not in again
    assert len(again) == len(set(again))


def test_thresholds_that_were_interrupted_go_on_where_they_were(
    turned: Comparison, tmp_path: Path
) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if what.startswith("learner.noise_scale"):
            raise KeyboardInterrupt

    found: list[str] = []
    keep = tmp_path / "c.partial"
    with pytest.raises(KeyboardInterrupt, match="all of the comparison itself among them"):
        compared(keep=keep, on_progress=stop)
    again = compared(keep=keep, on_progress=lambda done, total, what: found.append(what))
    assert not any("=" not in what for what in found if not what.startswith("found"))
    assert again.thresholds.equals(turned.thresholds)


def test_one_policy_has_nobody_to_lose_the_lead_to() -> None:
    assert compared(("asgd",)).thresholds.empty


@pytest.mark.parametrize("noise", ["lognormal", "shifted_exponential", "profile"])
def test_a_comparison_can_be_pickled(noise: str) -> None:
    if noise == "profile":
        case = Scenario.read("examples/demo.yaml").replaced(samples=64, target_progress=None)
    else:
        case = Scenario.of(NOISY | {"step": {"compute": 0.1, "cv": 0.1, "noise": noise}})
    done = simstrag.compare(case, ["bsp"], seeds=1, jobs=1)
    back = pickle.loads(pickle.dumps(done))
    assert back.ranking.equals(done.ranking)
    again = simstrag.simulate(back.scenario, "bsp").summary["makespan"]
    assert again == done.examples["bsp"].summary["makespan"]


def test_jobs_are_by_default_the_cores_that_one_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_backends, "core_count", lambda: 3)
    monkeypatch.setattr(cluster_backends, "WorkerPool", lambda jobs: {3: InProcess()}[jobs])
    simstrag.compare(Scenario.of(NOISY | {"seeds": 1}), ["bsp"])
