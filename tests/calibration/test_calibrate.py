"""`simstrag calibrate` from end to end, on a model so small that it says nothing of a machine."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simstrag.calibration import plan as module
from simstrag.calibration.benches.training_ranks import TrainingBench
from simstrag.calibration.calibrate import Calibration, derive
from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.check import CheckResult, cells_to_check
from simstrag.calibration.compare import compare
from simstrag.calibration.plan import CalibrationRequest
from simstrag.calibration.remarks import remarks
from simstrag.calibration.samples import Samples, read
from simstrag.errors import InputError
from simstrag.profile.profile import Profile
from simstrag.scenario.scenario import Scenario
from simstrag.validation import InterleavedCalibration
from tests.support.commands import Call, refusal

OWN = """
import torch

def job():
    model = torch.nn.Linear(64, 8)
    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, loss, optimizer, lambda n: (torch.randn(n, 64), torch.randn(n, 8))

def broken():
    raise ValueError("no data here")
"""
ARGUMENTS = (
    "calibrate", "--workload", "mine:job", "--device", "cpu", "--minutes", "0.5", "--part", "step",
    "--part", "server", "--batch", "4", "--batch", "8", "--batch", "16", "--precision", "fp32",
    "--precision", "bf16", "--out", "mine",
)  # fmt: skip


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visits of a twentieth of a second, two message sizes, no ranks that train."""
    build_benches = module.build_benches

    def short(*arguments: Any) -> Any:
        benches = [b for b in build_benches(*arguments) if not isinstance(b, TrainingBench)]
        for bench in benches:
            if hasattr(bench, "span"):
                bench.span = 0.05
        return benches

    monkeypatch.setattr(module, "build_benches", short)
    monkeypatch.setattr("simstrag.calibration.benches.bench_selection.SIZES", (1 << 16,))
    monkeypatch.setattr("simstrag.calibration.benches.server.VISIT", 0.02)
    monkeypatch.setattr("simstrag.calibration.measurement_rounds.MOST", 5)
    monkeypatch.setattr("simstrag.calibration.benches.machine_state.TIMES", 3)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the finished calibration is kept, to be copied."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def done(here: Path, kept: Path, quick: None, call: Call) -> Path:
    """A finished calibration in the folder `mine`."""
    if not (kept / "mine").exists():
        code, _, err = call(*ARGUMENTS, "--quiet")
        assert code == 0, err
        shutil.copytree(here / "mine", kept / "mine")
    if not (here / "mine").exists():
        shutil.copytree(kept / "mine", here / "mine")
    return here / "mine"


def test_a_profile_says_what_was_measured_and_how_sure_it_is(done: Path) -> None:
    profile = Profile.read(done / "profile.json")
    assert (profile.workload.name, profile.workload.parameters) == ("mine:job", 520)
    assert {(c.precision, c.batch) for c in profile.cells} == {
        (precision, batch) for precision in ("fp32", "bf16") for batch in (4, 8, 16)
    }
    assert all(c.seconds.low and c.seconds.low <= c.seconds.value for c in profile.cells)
    assert profile.commit
    assert profile.command.startswith("simstrag calibrate --workload mine:job")
    assert "all-reduce" in profile.missing
    assert profile.server


def test_the_file_of_samples_makes_the_same_profile_again(done: Path, call: Call) -> None:
    assert derive(done).text == (done / "profile.json").read_text()
    assert call("calibrate", "derive", "mine", "--out", "again.json")[0] == 0
    assert Path("again.json").read_bytes() == (done / "profile.json").read_bytes()


def test_what_is_finished_is_not_measured_again(done: Path, call: Call) -> None:
    before = read(done)
    assert call(*ARGUMENTS)[0] == 0
    assert read(done) == before


@pytest.mark.thorough
@pytest.mark.usefixtures("quick")
def test_what_is_finished_goes_on_where_more_minutes_are_asked_for(
    done: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simstrag.calibration.measurement_rounds.MOST", 6)
    before = read(done)
    arguments = [*ARGUMENTS]
    arguments[arguments.index("0.5")] = "0.6"
    assert call(*arguments, "--quiet")[0] == 0
    after = read(done)
    assert after.visits[: len(before.visits)] == before.visits
    assert after.header == before.header | {"plan": before.header["plan"] | {"minutes": 0.6}}


def test_a_folder_of_another_calibration_is_left_alone(done: Path, call: Call) -> None:
    assert "choose another --out" in refusal(call(*ARGUMENTS[:-8], "--out", "mine"))


@pytest.mark.usefixtures("quick")
def test_ctrl_c_keeps_what_was_measured_and_the_same_command_goes_on(
    here: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simstrag.calibration.benches.steps import StepBench

    visit, visited = StepBench.visit, 0

    def interrupted(bench: StepBench, cell: MeasurementCell) -> Any:
        nonlocal visited
        visited += 1
        if visited == 4:
            raise KeyboardInterrupt
        return visit(bench, cell)

    monkeypatch.setattr(StepBench, "visit", interrupted)
    only = (*ARGUMENTS[:9], *ARGUMENTS[15:])
    code, _, err = call(*only)
    assert code == 130
    assert "3 visits are kept in mine; the same command goes on from there" in err
    assert not Path("mine/profile.json").exists()
    assert call(*only, "--quiet") == (0, "mine/profile.json\n", "")
    assert visited > 4


def test_a_profile_of_ones_own_runs_a_scenario(done: Path) -> None:
    scenario = Scenario.of(
        {"workers": 2, "updates": 3, "profile": "mine/profile.json", "learner": {"batch": 12}}
    )
    assert scenario.inputs.step.gpu > 0


def test_a_profile_agrees_with_itself_and_holds(done: Path) -> None:
    profile = Profile.read(done / "profile.json")
    found = CheckResult(compare(profile, profile))
    assert found.holds
    assert "holds here" in found.text


def test_a_profile_of_another_speed_does_not_hold_and_it_is_said_by_how_much(done: Path) -> None:
    profile = Profile.read(done / "profile.json")
    data = json.loads(profile.text)
    for cell in data["cells"]:
        for key in ("value", "low", "high"):
            cell["seconds"][key] *= 3
    found = CheckResult(compare(profile, Profile.model_validate(data)))
    assert not found.holds
    assert "is 3 times the profile's" in found.text


@pytest.mark.usefixtures("quick")
def test_a_validation_calibrates_into_its_own_folder_before_and_between_its_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "simstrag.calibration.measurement_rounds._due", lambda visits, _: list(visits)
    )
    asked = CalibrationRequest("mine:job", None, ("step",), (8,), ("fp32", "bf16"), 0.06)
    begun = InterleavedCalibration(asked, here / "v").begin()
    assert begun == here / "v" / "calibration" / "begun.json"
    before = read(begun.parent)
    assert before.header["plan"]["minutes"] == pytest.approx(0.03)
    assert InterleavedCalibration(asked, here / "v").begin() == begun
    assert read(begun.parent) == before
    later = InterleavedCalibration(asked, here / "v").go_on(0.5)
    after = read(later.parent)
    assert after.header["plan"]["minutes"] == pytest.approx(0.045)
    assert after.visits[: len(before.visits)] == before.visits
    assert len(after.visits) > len(before.visits)
    with pytest.raises(InputError, match="was measured with workload"):
        InterleavedCalibration(replace(asked, batches=(4,)), here / "v").begin()


@pytest.mark.usefixtures("quick")
def test_a_check_measures_again_and_judges(done: Path, call: Call) -> None:
    code, out, _ = call("calibrate", "check", "mine", "--minutes", "0.5", "--json")
    assert code in (0, 1), "this machine may be too busy to agree with itself"
    found = json.loads(out)
    assert {each["cell"] for each in found["cells"]} >= {"step fp32 batch 8", "step bf16 batch 8"}
    assert found["holds"] == (code == 0)


def test_what_is_checked_are_nominal_steps_the_largest_batch_and_the_gradients_size(
    done: Path,
) -> None:
    checked = {str(cell) for cell in cells_to_check(Profile.read(done / "profile.json"))}
    assert checked == {"step fp32 batch 8", "step bf16 batch 8", "step fp32 batch 16"}


MISTAKES = {
    ("--device", "cuda"): "there is no device 'cuda' here; torch sees cpu",
    ("--part", "steps"): "there is no part 'steps'. Did you mean 'step'?",
    ("--workload", "mlpp"): "there is no workload 'mlpp'",
    ("--workload", "mine:broken"): "mine:broken': the function raised ValueError: no data here",
    ("--precision", "fp32"): "give two precisions",
    ("--precision", "fp16", "--precision", "fp32"): "there is no precision 'fp16' on cpu",
    ("--minutes", "0.2", "--precision", "fp32", "--precision", "bf16"): "rounds of",
    ("--part", "lockstep", "--precision", "bf16", "--precision", "fp32"): "ranks train on the CPU",
    ("--workload", "mlp", "--part", "gradient"): "has random inputs, from which nothing is learnt",
    ("--batch", "0"): "greater than or equal to 1",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_a_mistake_is_answered_in_one_line_and_writes_nothing(
    given: tuple[str, ...], here: Path, call: Call
) -> None:
    assert MISTAKES[given] in refusal(call("calibrate", *given))
    assert [path.name for path in here.iterdir() if path.name != "__pycache__"] == ["mine.py"]


def test_a_plan_says_what_would_be_measured_and_measures_nothing(here: Path, call: Call) -> None:
    pair = ("--precision", "fp64", "--precision", "fp32_of_fp64")
    code, out, _ = call("calibrate", "-w", "mlp", "--part", "step", *pair, "--plan", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["cells"] == {"step": 10}
    assert found["held_out"] == 4
    assert not Path(found["folder"]).exists()


def test_the_workloads_are_listed(call: Call) -> None:
    code, out, _ = call("calibrate", "workloads", "--json")
    assert code == 0
    assert {"resnet50", "vit_b16", "bert_base", "gpt2", "mlp"} <= {
        w["name"] for w in json.loads(out)
    }


def test_a_noisy_machine_is_called_so_and_by_how_much() -> None:
    cell = MeasurementCell("step", precision="fp32", batch=8)
    times = (0.1, 0.2, 0.1, 0.15)
    visits = tuple(
        Visit(cell, k, 0.0, {"seconds": (t,) * 3}, {"foreign": 0.6, "disturbed": True})
        for k, t in enumerate(times)
    )
    header = {"workload": {"full": "fp32", "nominal_batch": 8}, "plan": {"target": 0.02}}
    said = " ".join(remarks(Samples(header, visits)))
    assert "too noisy: the median interval is" in said
    assert "other processes were at work: during 4 of 4 visits" in said
    assert "0.6 in the median" in said


def test_a_calibration_may_be_called_from_python(here: Path) -> None:
    asked = CalibrationRequest("mine:job", "cpu", ("step",), precisions=("fp64", "fp32_of_fp64"))
    assert Calibration(asked, here / "x").forecast().cells == {"step": 10}
    with pytest.raises(InputError, match="has no samples"):
        derive(here)


def test_without_minutes_it_takes_ten_or_what_the_fewest_rounds_take(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = CalibrationRequest("mine:job", "cpu", ("step",), precisions=("fp64", "fp32_of_fp64"))
    assert Calibration(asked, here / "x").minutes == 10
    monkeypatch.setattr(
        "simstrag.calibration.benches.steps.StepBench.seconds", lambda self, cell: 30.0
    )
    forecast = Calibration(asked, here / "x").forecast()
    assert forecast.most == forecast.least == 5 * 10 * 30.0


COMPILED = CalibrationRequest(
    "mine:job", "cpu", ("step",), (8,), ("fp32", "bf16"), 0.5, compile=True
)


@pytest.mark.usefixtures("quick")
def test_a_compiled_model_is_timed_beside_itself_without(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a back end that needs no compiler of C++."""
    import torch

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    calibration = Calibration(COMPILED, here / "x")
    profile = calibration.run()
    assert "--compile" in profile.command.split()
    (said,) = (text for text in calibration.remarks() if "torch.compile" in text)
    number = r"[\d.e+-]+"
    assert re.fullmatch(
        rf"torch\.compile: a step takes {number} ms, and {number} ms without it \(fp32, batch 8\)",
        said,
    )
    with pytest.raises(InputError, match="was measured with compile True, now compile is False"):
        Calibration(replace(COMPILED, compile=False), here / "x").run()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own use of torch.jit
def test_a_missing_compiler_is_one_line_and_nothing_is_written(
    here: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", (None, "/nowhere/g++"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(here / "cache"))
    words = COMPILED.command(here / "x").split()[1:]
    assert "torch.compile failed: InvalidCxxCompiler" in refusal(call(*words))
    assert not (here / "x").exists()
