"""`simstrag ddp`, with a launcher that starts no ranks: what is refused, resumed, told, written."""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from simstrag import Run  # noqa: E402
from simstrag.cli.ddp import PrecisionName  # noqa: E402
from simstrag.cli.validate import describe_kept  # noqa: E402
from simstrag.contract import Outer  # noqa: E402
from simstrag.ddp.journal.journal import facts_to_json  # noqa: E402
from simstrag.ddp.precision import PAIRS  # noqa: E402
from simstrag.ddp.replica import Replica  # noqa: E402
from simstrag.ddp.workload_rank import Training, load_global_model  # noqa: E402
from simstrag.engine.live import Live  # noqa: E402
from simstrag.learning.outer_model import OuterModel  # noqa: E402
from tests.ddp.test_ddp_journal import HINTS, recorded  # noqa: E402
from tests.support.commands import Call, refusal  # noqa: E402

RANKS, SAMPLES = 4, 40 * 32
LINKS = json.dumps(
    {"seconds": 9, "episodes": [
        {"rank": "%d", "kind": "link", "level": 0.1, "start": at, "stop": at + 1} for at in (1, 3)
    ]}
).replace('"%d"', "%d")  # fmt: skip
"""A schedule that limits the link to a rank, and then that to another."""
GEMM = {"rank": 1, "kind": "gemm", "level": 0.5, "start": 0.1, "stop": 60.0}
DDP = ("ddp", "digits", "--ranks", "4", "--batch", "32", "--policy", "bsp", "--samples", "6400")


@dataclass
class Launcher:
    """Does in place of ranks what they would, and remembers what it was asked for."""

    asked: list[Training] = field(default_factory=list)
    commands: list[Sequence[str]] = field(default_factory=list)
    does: Callable[[Path], int] = lambda folder: 0
    live: Live | None = None

    def run(self, command: Sequence[str], ranks: int, on_fault: str, **_: Any) -> int:
        self.commands.append(command)
        if command[0] != "-m":
            return self.does(Path())
        given = Training(**json.loads(command[2]))
        self.asked.append(given)
        assert given.out is not None
        folder = Path(given.out)
        record = folder / f"attempt-{given.attempt}" if given.attempt else folder
        self.live = recorded(record, given.policy, 40, self.live if given.attempt else None)
        return self.does(folder)

    def finishes(self, folder: Path) -> int:
        (folder / "result.json").write_text('{"accuracy": 0.75}')
        return 0

    def stops(self, folder: Path) -> int:
        """With a checkpoint."""
        state = {"world_size": RANKS, "facts": facts_to_json(self.live.facts())}
        torch.save(state, folder / "checkpoint.pt")
        return 1

    def is_interrupted(self, folder: Path) -> int:
        self.stops(folder)
        raise KeyboardInterrupt


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    found = Launcher()
    found.does = found.finishes
    monkeypatch.setattr("simstrag.ddp.launch.run", found.run)
    return found


# -- what is refused -----------------------------------------------------------------------------

MISTAKES = {
    "unknown workload": (("digitz",), {}, "Did you mean 'digits'?"),
    "unknown policy": (("digits", "-p", "korell"), {}, "Did you mean 'korel'?"),
    "a policy that is told the truth": (
        ("digits", "-p", "star_h_oracle"), {}, "is for simulation only: it reads the true",
    ),
    "replicas that are not equal": (
        ("digits", "--ranks", "3", "--shards", "2"), {}, "are not two or more replicas of 2",
    ),
    "more ranks than a core bears": (("digits", "--ranks", "100000"), {}, "ranks: 100000; give"),
    "a policy of more ranks": (("digits", "-p", "backup:b=2"), {}, "cannot run here"),
    "unknown precision": (("digits", "--precision", "fp8"), {}, "fp8"),
    "a missing profile": (("digits", "--profile", "none.json"), {}, "none.json"),
    "a missing script": (("none.py",), {}, "none.py: no such script"),
    "options of a workload for a script": (
        ("mine.py", "--policy", "bsp", "--out", "r", "--checkpoint", "5"), {"mine.py": ""},
        "--policy, --out, --checkpoint: for workloads only, and mine.py is a script; write its own",
    ),
    "a seed for a script": (("mine.py", "-s", "0"), {"mine.py": ""}, "--seed: for workloads only"),
    "arguments for a workload": (("digits", "--", "--epochs"), {}, "are for a script.py"),
    "load beside no rank": (("digits", "--load", "1,2"), {}, "there is no rank 2 of 2"),
    "load of no kind": (("digits", "--load", "much"), {}, "give ranks, such as 1 or 0,1, or a"),
    "a schedule that is none": (
        ("digits", "--load", "l.json"), {"l.json": "{}"}, "l.json: seconds is missing (and 1 more)",
    ),
    "load beside a rank twice": (("digits", "--load", "1,1"), {}, "names a rank twice"),
    "load that is none": (
        ("digits", "--load", "l.json"), {"l.json": '{"seconds": 9, "episodes": []}'},
        "l.json: has no episodes, so there would be no load",
    ),
    "a link of two ranks": (
        ("digits", "--ranks", "3", "--load", "l.json"), {"l.json": LINKS % (1, 2)},
        "give episodes of kind link to one rank, and not to rank 0",
    ),
    "a link of rank 0": (
        ("digits", "--load", "l.json"), {"l.json": LINKS % (0, 0)}, "and not to rank 0",
    ),
    "load beside ranks anywhere": (("digits", "--load", "1", "--no-pin"), {}, "leave out --no-pin"),
    "load for a script": (("mine.py", "--load", "1"), {"mine.py": ""}, "--load: for workloads"),
    "checkpoints without a folder": (("digits", "--checkpoint", "5"), {}, "give one with --out"),
    "a folder of others": (("digits", "-o", "n"), {"n/mine.md": "x"}, "holds other files"),
    "a file beside a stopped run": (
        ("digits", "-o", "r"), {"r/training.json": "{}", "r/mine.md": "x"}, "would be lost",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_before_any_rank_starts(
    mistake: str, folder: Path, call: Call, launcher: Launcher
) -> None:
    arguments, files, hint = MISTAKES[mistake]
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    before = sorted(folder.rglob("*"))
    assert hint in refusal(call("ddp", *arguments))
    assert (launcher.commands, sorted(folder.rglob("*"))) == ([], before)


def test_a_link_that_cannot_be_is_refused_before_an_old_run_is_removed(
    folder: Path, call: Call, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(*DDP, "--out", "r")
    before = sorted(folder.rglob("*"))
    (folder / "l.json").write_text(LINKS % (1, 1))
    monkeypatch.setattr(
        "simstrag.validation.loadgen.limited_link.probe", lambda: "a limited link needs root"
    )
    code, _, err = call(*DDP, "--load", "l.json", "--out", "r")
    assert (code, err) == (2, "error: --load l.json: a limited link needs root\n")
    assert sorted(folder.rglob("*")) == sorted([*before, folder / "l.json"])


def test_load_that_came_after_the_end_is_said_to_have_been_none(
    folder: Path, call: Call, launcher: Launcher
) -> None:
    late = {"rank": 1, "kind": "cpu", "level": 1.0, "start": 50.0, "stop": 60.0}
    (folder / "l.json").write_text(json.dumps({"seconds": 60.0, "episodes": [late]}))
    code, _, err = call(*DDP, "--load", "l.json", "--out", "r")
    assert code == 0
    assert "no load was on: the run was over before the first episode" in err


def test_options_of_real_runs_are_refused_beside_a_run_to_replay(folder: Path, call: Call) -> None:
    err = refusal(call("validate", "r", "--steps", "9", "--seed", "1"))
    assert err.startswith("error: --steps, --seed: a replay of r takes no options of new runs")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give --profile, a calibration of this machine, or --workload"),
        (("--profile", "p.json", "--workload", "digits"), "leave one out"),
        (("full",), "full: has no record of a real run; give a folder"),
        (
            ("--profile", "p.json", "--batch", "8"),
            "--batch: --profile is already a calibration",
        ),
        (("--workload", "digts"), "there is no workload 'digts'"),
        (("--workload", "digits", "--policy", "dropcompute"), "is for simulation only"),
        (("--workload", "digits", "--out", "full"), "full: holds other files"),
        (
            ("--workload", "digits", "--out", "begun"),
            "holds a validation of a finished profile",
        ),
    ],
)
def test_a_validation_that_cannot_be_ends_before_it_calibrates(
    options: tuple[str, ...],
    message: str,
    folder: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "simstrag.calibration.calibrate.Calibration.run", lambda *_: pytest.fail("it calibrates")
    )
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").touch()
    (folder / "begun" / "runs").mkdir(parents=True)
    (folder / "begun" / "plan.json").touch()
    assert message in refusal(call("validate", *options))
    assert not (folder / "reports").exists()


def test_a_quiet_replay_prints_errors_alone_and_what_machines_ask_for(
    folder: Path, call: Call
) -> None:
    recorded(folder / "r", "asgd", hints={**HINTS, "clean_seconds": 1.0})
    assert call("validate", "r", "--quiet") == (0, "", "")
    assert '"simstrag-replay/1"' in call("validate", "r", "--quiet", "--json")[1]
    assert "makespan" in call("validate", "r")[1]


def test_a_replay_has_a_report_where_one_is_asked_for(folder: Path, call: Call) -> None:
    recorded(folder / "r", "asgd", hints={**HINTS, "clean_seconds": 1.0})
    assert call("validate", "r", "--quiet", "--out", "there") == (0, "there/report.html\n", "")
    told = json.loads((folder / "there" / "replay.json").read_text())
    assert told["lines"][0]["what"] == "makespan"
    page = (folder / "there" / "report.html").read_text()
    for each in (
        "Replay of a real run",
        "makespan (s)",
        "Step time over time",
        "In addition to the local",
    ):
        assert each in page
    err = refusal(call("validate", "r", "--out", "there/report.html"))
    assert "there/report.html: cannot be written" in err
    err = refusal(call("validate", "r", "--out", "r"))
    assert "r: holds other files; choose a folder that does not exist yet" in err
    assert call("validate", "there", "--quiet")[0] == 2


def test_an_interrupted_validation_says_how_many_runs_have_finished(tmp_path: Path) -> None:
    told = {"a-1": True, "a-1.aside-1": True, "a-1.failed-1": False, "b.py-1": True, "c-1": False}
    for name, finished in told.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        text = json.dumps({"finished": finished})
        (tmp_path / "runs" / name / "outcome.json").write_text(text)
    (tmp_path / "runs" / "d-1").mkdir()
    assert describe_kept(tmp_path).startswith("2 finished runs are kept in")


def test_the_precisions_that_are_known_are_those_that_there_are() -> None:
    assert set(get_args(PrecisionName)) == {"auto", *PAIRS}


def test_a_script_has_what_follows_two_dashes(folder: Path, call: Call, launcher: Launcher) -> None:
    (folder / "mine.py").write_text("")
    launcher.does = lambda _: 0
    assert call("ddp", "mine.py", "--ranks", "3", "--", "--policy", "asgd") == (0, "", "")
    assert launcher.commands == [["mine.py", "--policy", "asgd"]]


# -- what is told --------------------------------------------------------------------------------


def test_a_run_is_told_of_and_written(folder: Path, call: Call, launcher: Launcher) -> None:
    code, out, err = call(*DDP, "--seed", "3", "--out", "r")
    assert code == 0
    assert out.endswith("run: r\n")
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["makespan", "updates"]
    assert "0.75" in out
    run = Run.read(folder / "r")
    assert (run.policy, run.seed, run.summary["accuracy"]) == ("bsp", 3, 0.75)
    first, *others = err.splitlines()
    assert first == "4 ranks train digits under bsp: 6400 samples"
    assert set(others) == {f"warning: {each}" for each in run.warnings}


def test_for_scripts_it_says_where_the_run_is(folder: Path, call: Call, launcher: Launcher) -> None:
    assert call(*DDP, "--out", "r", "-q") == (0, "r\n", "")


def test_for_machines_it_is_one_document(folder: Path, call: Call, launcher: Launcher) -> None:
    code, out, err = call(*DDP, "--out", "r", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["failed"], found["written"], found["warnings"]) == (False, "r", [])
    (run,) = found["runs"]
    assert run.pop("written") == "r"
    assert run == json.loads((folder / "r" / "run.json").read_text())


def test_load_beside_a_rank_is_carried_out_and_said_wherever_the_run_is_told_of(
    folder: Path, call: Call, launcher: Launcher
) -> None:
    episode = {"rank": 1, "kind": "cpu", "level": 1.0, "start": 0.1, "stop": 60.0}
    (folder / "l.json").write_text(json.dumps({"seconds": 60.0, "episodes": [episode]}))

    def trains(place: Path) -> int:
        time.sleep(1.0)
        return launcher.finishes(place)

    launcher.does = trains
    code, _, err = call(*DDP, "--load", "l.json", "--out", "r")
    assert code == 0
    assert re.fullmatch(r"load: 1 episode, \d+\.\d s in all, beside rank 1", err.splitlines()[1])
    assert "warning: load was put beside ranks on purpose; load.json says when" in err
    (done,) = json.loads((folder / "r" / "load.json").read_text())["done"]
    assert (done["rank"], done["level"]) == (1, 1.0)
    assert 0.1 <= done["start"] < done["stop"] < 50.0, "it ends with the run"
    assert done["share"] > 0
    assert any("on purpose" in each for each in Run.read(folder / "r").warnings)
    assert call(*DDP, "--out", "r", "-q") == (0, "r\n", ""), "it makes room as every run does"
    assert not (folder / "r" / "load.json").exists()


def test_load_of_a_gpu_is_refused_where_there_is_none(
    folder: Path, call: Call, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (folder / "l.json").write_text(json.dumps({"seconds": 60.0, "episodes": [GEMM]}))
    code, _, err = call(*DDP, "--load", "l.json", "--out", "r")
    assert code == 2
    assert err.endswith("gemm and copy are loads of a GPU, and torch sees none\n")
    assert not (folder / "r").exists()


def test_load_of_a_gpu_is_on_that_of_its_rank(
    folder: Path, call: Call, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    class Loads:
        def __init__(self, count: int, core: int, gpu: str) -> None:
            asked.append((count, gpu))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *failure: object) -> None:
            pass

        @contextmanager
        def on(self, kind: str, level: float) -> Iterator[dict[str, Any]]:
            asked.append((kind, level))
            yield {}

    monkeypatch.setattr("simstrag.validation.loadgen.injector.Loads", Loads)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    episodes = [{**GEMM, "rank": 3}]
    (folder / "l.json").write_text(json.dumps({"seconds": 60.0, "episodes": episodes}))
    code, _, err = call(*DDP, "--load", "l.json", "--out", "r")
    assert code == 0, err
    assert asked[:2] == [(1, "cuda:1"), ("gemm", 0.5)]


def test_without_a_folder_it_is_told_of_and_not_kept(
    folder: Path, call: Call, launcher: Launcher
) -> None:
    before = sorted(folder.rglob("*"))
    code, out, _ = call(*DDP)
    assert (code, "accuracy" in out, "run:" in out) == (0, True, False)
    code, out, err = call(*DDP, "-q")
    assert (code, err, float(out) > 0) == (0, "", True)
    assert sorted(folder.rglob("*")) == before
    assert not any(Path(str(each.out)).exists() for each in launcher.asked)


def test_ranks_that_fail_are_told_of_with_what_there_is(
    folder: Path, call: Call, launcher: Launcher
) -> None:
    launcher.does = lambda _: 1
    code, out, err = call(*DDP, "--out", "r")
    assert (code, "makespan" in out) == (1, True)
    begins_anew = "stopped: there is no checkpoint, so the same command begins anew"
    assert err.splitlines()[-1] == begins_anew


# -- what is stopped -----------------------------------------------------------------------------


def test_a_stopped_training_goes_on_by_the_same_command(
    folder: Path, call: Call, launcher: Launcher
) -> None:
    launcher.does = launcher.stops
    command = (*DDP, "--checkpoint", "10", "--out", "r")
    code, _, err = call(*command)
    assert (code, err.splitlines()[-1]) == (
        1, "stopped: the same command goes on from its last checkpoint",
    )  # fmt: skip
    launcher.does = launcher.finishes
    code, out, err = call(*command)
    assert (code, err.splitlines()[0]) == (0, f"going on at {SAMPLES} of 6400 samples")
    assert [each.attempt for each in launcher.asked] == [0, 1]
    assert out.splitlines()[0].split() == ["first", "attempt-1"]
    assert "2 parts, each a run of its own" in out
    first, second = Run.read(folder / "r"), Run.read(folder / "r" / "attempt-1")
    assert (first.summary["samples"], second.summary["samples"]) == (SAMPLES, 2 * SAMPLES)
    assert (first.summary["accuracy"], second.summary["accuracy"]) == (None, 0.75)


def test_what_goes_on_once_may_go_on_again(folder: Path, call: Call, launcher: Launcher) -> None:
    launcher.does = launcher.stops
    for _ in range(3):
        assert call(*DDP, "--out", "r")[0] == 1
    assert [each.attempt for each in launcher.asked] == [0, 1, 2]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--policy", "asgd"), "with policy bsp was stopped there, and asgd is asked for"),
        (("--ranks", "2"), "with ranks 4 was stopped there, and 2 is asked for"),
        (("--samples", "12800"), "with samples 6400 was stopped there, and 12800 is asked for"),
        (("--seed", "1"), "with seed 0 was stopped there, and 1 is asked for"),
    ],
)
def test_another_training_does_not_go_on_with_a_stopped_one(
    more: tuple[str, ...], said: str, folder: Path, call: Call, launcher: Launcher
) -> None:
    launcher.does = launcher.stops
    call(*DDP, "--out", "r")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    err = refusal(call(*DDP, *more, "--out", "r"))
    assert err.startswith(f"error: r: a training {said}; ask for the same to go on")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_stopped_training_without_a_checkpoint_begins_anew(
    folder: Path, call: Call, launcher: Launcher
) -> None:
    launcher.does = lambda _: 1
    call(*DDP, "--out", "r")
    launcher.does = launcher.finishes
    assert call(*DDP, "--policy", "asgd", "--out", "r")[0] == 0
    assert [each.attempt for each in launcher.asked] == [0, 0]
    assert Run.read(folder / "r").policy == "asgd"


def test_a_finished_run_makes_room(folder: Path, call: Call, launcher: Launcher) -> None:
    launcher.does = lambda place: launcher.stops(place) - 1 + launcher.finishes(place)
    call(*DDP, "--out", "r")
    launcher.does = launcher.finishes
    assert call(*DDP, "--policy", "asgd", "--out", "r")[0] == 0
    assert Run.read(folder / "r").policy == "asgd"
    assert not (folder / "r" / "checkpoint.pt").exists()


def test_a_checkpoint_that_is_none_is_named(folder: Path, call: Call, launcher: Launcher) -> None:
    launcher.does = launcher.stops
    call(*DDP, "--out", "r")
    (folder / "r" / "checkpoint.pt").write_bytes(b"none")
    code, _, err = call(*DDP, "--out", "r")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: r/checkpoint.pt: cannot be gone on from (")


def test_ctrl_c_leaves_a_run_and_says_how_to_go_on(
    folder: Path, call: Call, launcher: Launcher
) -> None:
    launcher.does = launcher.is_interrupted
    code, out, err = call(*DDP, "--out", "r")
    assert (code, out) == (130, "")
    assert err.endswith(
        f"\ninterrupted; r holds the run up to {SAMPLES} samples; the same command goes on from "
        "its last checkpoint\n"
    )
    assert Run.read(folder / "r").summary["samples"] == SAMPLES
    assert (folder / "r" / "trace.csv").exists()


@pytest.mark.parametrize(
    ("apart", "outer", "weight"),
    [
        (True, OuterModel(torch.full((1,), 5.0), Outer(), 1).state_dict(), 5.0),
        (False, OuterModel(torch.full((1,), 5.0), Outer(), 1).state_dict(), 3.0),
        (False, None, 3.0),
    ],
)
def test_the_model_that_is_evaluated_is_that_of_the_job(
    apart: bool, outer: dict[str, Any] | None, weight: float
) -> None:
    """Where a server takes the outer steps, its parameters are those of the checkpoint."""
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replica = Replica(model, optimizer, formats=Mock(), clock=Mock())
    state = {"model": {"weight": torch.full((1, 1), 3.0)}, "apart": apart, "outer": outer}
    load_global_model(replica, state)
    assert model.weight.item() == weight
