"""What a scenario takes from its profile beyond the range that was measured, on every surface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simstrag
from simstrag import Scenario
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.text.cautions import cautions
from simstrag.engine.simulate import simulate
from simstrag.profile.profile import Profile
from simstrag.scenario.beyond_measured import beyond_measured, doubts
from simstrag.trace.trace import Trace

PROFILES = Path(__file__).parents[2] / "simstrag" / "calibration" / "profiles"
STEP: dict[str, Any] = {"step": {"compute": 0.1}}


def found(profile: str, **keys: Any) -> list[str]:
    stated: dict[str, Any] = {"workers": 4, "updates": 3} | keys
    path = PROFILES / f"{profile}.json"
    return list(map(str, beyond_measured(Scenario(**stated, profile=str(path)))))


def test_a_gradient_smaller_than_any_of_the_fit_is_said_to_be_beyond_it() -> None:
    """The constants of the A100s are of 1 MiB and more: 37-290 % off below."""
    assert found("a100-nccl-tests", **STEP, allreduce={"bytes": 0.5e6}) == [
        "all-reduce of 500 kB: measured from 1.05 MB on; 2.1x below"
    ]
    assert found("a100-nccl-tests", **STEP) == []


@pytest.mark.parametrize("application", ["bert", "cifar10", "imagenet"])
def test_more_gpus_than_pollux_measured_are_said_to_be_beyond_them(application: str) -> None:
    """Placements of 2 to 16 GPUs: at 64 two of them are 37 % low."""
    name = f"t4-pollux-{application}"
    assert found(name, **STEP, workers=16) == []
    assert found(name, **STEP, workers=64) == [
        "all-reduce among 64 ranks: measured up to 16 ranks; 4x beyond"
    ]


def test_constants_that_the_scenario_states_are_not_the_profiles() -> None:
    stated = {"alpha": 0.0, "bandwidth": 1e9, "bytes": 8}
    assert found("a100-nccl-tests", **STEP, allreduce=stated) == []
    assert beyond_measured(Scenario(workers=99, updates=1, **STEP)) == []


@pytest.mark.parametrize(
    ("level", "severity", "texts"),
    [
        (0.75, 1, []),
        (0.9, 1, ["utilisation of gpu at 0.9: measured up to 0.75; 1.2x beyond"]),
        (0.75, 2, ["slowdown of steps by the load of gpu at severity 2: measured up"]),
    ],
)
def test_a_load_or_severity_above_all_measured_is_beyond_them(
    level: float, severity: float, texts: list[str], tmp_path: Path
) -> None:
    """A load of 0.75 slows steps by what was measured; at twice the severity, by more."""
    data = json.loads((PROFILES / "intel-xeon-2-core-amx-mlp.json").read_text())
    (response,) = [r for r in data["responses"] if r["load"] == "cpu" and r["precision"] == "fp32"]
    response["levels"] = response["levels"][:3]
    data["responses"] = [response]
    (tmp_path / "p.json").write_text(json.dumps(data))
    row = {"time": 0, "node": 0, "resource": "gpu", "kind": "utilisation", "value": level}
    case = Scenario(
        workers=2, updates=1, profile=str(tmp_path / "p.json"), trace=[row],
        contention={"severity": severity},
    )  # fmt: skip
    found = [str(each) for each in beyond_measured(case)]
    assert len(found) == len(texts)
    assert all(said.startswith(text) for said, text in zip(found, texts, strict=True))


def test_run_compare_and_report_say_it_of_what_their_runs_use() -> None:
    profile = str(PROFILES / "t4-pollux-cifar10.json")
    case = Scenario(workers=32, samples=32 * 182 * 2, learner={"batch": 182}, profile=profile)
    text = "all-reduce among 32 ranks: measured up to 16 ranks; 2x beyond"
    assert simulate(case, "bsp").warnings == (text,)
    assert simulate(case, "asgd").warnings == ()
    comparison = simstrag.compare(case, ["bsp"], jobs=1)
    assert comparison.warnings == (text,)
    assert sum(text in caution for caution in cautions(standings(comparison))) == 1


def test_run_compare_and_report_say_when_the_trace_slowed_no_step() -> None:
    slow = {"time": 120, "node": 1, "resource": "gpu", "kind": "slowdown", "value": 3}
    case = Scenario(workers=2, samples=256 * 41, step={"compute": 1.0}, trace=[slow])
    late = (
        "no step was slowed: the trace's first slowdown is at 120 s, and the longest run ends at "
        "41 s"
    )
    never = "no step was slowed: the trace has no slowdown other than 1 on the nodes of ranks"
    for row, warnings in (
        (slow, (late,)),
        (slow | {"time": 0, "value": 1}, (never,)),
        (slow | {"time": 40}, ()),
    ):
        chosen = case.replaced(trace=[row])
        assert simulate(chosen, "bsp").warnings == warnings
        comparison = simstrag.compare(chosen, ["bsp"], jobs=1)
        assert comparison.warnings == warnings
        told = [each for each in cautions(standings(comparison)) if each.startswith("No step was")]
        assert told == [f"N{each[1:]}." for each in warnings]


def test_a_seed_whose_shifted_trace_slows_it_silences_the_warning() -> None:
    rows = [
        {"time": t, "node": 1, "resource": "gpu", "kind": "slowdown", "value": v}
        for t, v in ((0, 1), (120, 3), (130, 1), (200, 1))
    ]
    case = Scenario(
        workers=2, samples=256 * 41, step={"compute": 1.0}, trace=rows, trace_per_seed="shift"
    )
    comparison = simstrag.compare(case, ["bsp"], seeds=20, jobs=1)
    slowed = {seed for seed in range(20) if not simulate(comparison.scenario, "bsp", seed).warnings}
    makespans = comparison.runs.set_index("seed")["makespan"]
    assert slowed == set(makespans.index[makespans > 41.5])
    assert 0 < len(slowed) < 20
    assert comparison.warnings == ()


# -- beyond any usual range


@pytest.mark.parametrize(
    "keys",
    [
        {"step": {"compute": 350}},
        STEP | {"allreduce": {"bandwidth": 25, "bytes": 1e8}},
        STEP | {"allreduce": {"alpha": 50}},
        STEP | {"learner": {"batch": 10**8}},
    ],
)
def test_a_number_in_a_wrong_unit_is_doubted_by_run_and_compare(keys: dict[str, Any]) -> None:
    case = Scenario(workers=2, samples=2 * 10**8, policies=["bsp"], **keys)
    (said,) = doubts(case)
    assert said in simulate(case.replaced(samples=1)).warnings
    assert said in simstrag.compare(case.replaced(samples=1), jobs=1).warnings


def test_recorded_durations_in_milliseconds_are_doubted() -> None:
    rows = [(0.0, node, "step", "duration", 350.0) for node in (0, 1)]
    case = Scenario(workers=2, updates=2, trace=Trace.from_rows(rows))
    assert doubts(case)[0].startswith("Doubtful: step.compute is 350 s")


@pytest.mark.parametrize("name", sorted(path.stem for path in PROFILES.glob("*.json")))
def test_no_shipped_profile_is_doubted(name: str) -> None:
    path = PROFILES / f"{name}.json"
    known = Profile.read(path)
    batch = {"learner": {"batch": known.workload.batch}} if known.workload else {}
    keys = batch if known.step else STEP
    assert doubts(Scenario(workers=4, updates=3, profile=str(path), **keys)) == []
