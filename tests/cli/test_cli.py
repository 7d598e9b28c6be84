"""The command line: what a user types, what comes back, and how mistakes are answered."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simstrag.analysis.text.number_format import MISSING
from simstrag.cli import commands
from simstrag.cli.commands import EXAMPLES, OLD
from simstrag.cli.doctor import examine
from simstrag.contract import Hints, View
from simstrag.ddp import policy_support
from simstrag.documents.units import BYTES_PER_SECOND, parse_quantity
from simstrag.errors import InputError
from simstrag.experiments.comparison import Comparison
from simstrag.policies import ask, describe, load, names
from simstrag.scenario.scenario import Scenario
from tests.support.commands import SCENARIO, TRACE, Call, plain_lines, refusal
from tests.support.growing_records import drawn, write_record


def test_run_writes_a_run_directory(folder: Path, call: Call) -> None:
    code, _, _ = call("run", "case.yaml", "--policy", "ssp:bound=1", "--seed", "3", "--out", "r")
    assert code == 0
    data = json.loads((folder / "r" / "run.json").read_text())
    assert (data["policy"], data["seed"]) == ("ssp:bound=1", 3)
    summary = data["summary"]
    assert summary["started"] == sum(
        summary[fate] for fate in ("applied", "dropped", "aborted", "in_flight")
    )
    assert list(pd.read_parquet(folder / "r" / "updates.parquet").columns) == [
        "time", "version", "members", "n_own", "samples", "staleness_mean", "staleness_max",
        "progress",
    ]  # fmt: skip


def test_steps_and_gradients_are_written_on_request(folder: Path, call: Call) -> None:
    call("run", "case.yaml", "--out", "r", "--steps", "--gradients")
    assert list(pd.read_parquet(folder / "r" / "steps.parquet").columns) == [
        "rank", "step", "version", "precision", "start", "finish", "wait", "communication",
    ]  # fmt: skip
    gradients = pd.read_parquet(folder / "r" / "gradients.parquet")
    assert list(gradients.columns) == [
        "update", "rank", "step", "version", "precision", "samples", "weight", "fate", "round",
    ]  # fmt: skip
    summary = json.loads((folder / "r" / "run.json").read_text())["summary"]
    assert len(gradients) == summary["started"]


@pytest.mark.usefixtures("no_page")
def test_compare_prints_a_table_and_writes_one_row_per_policy_and_seed(
    folder: Path, call: Call
) -> None:
    code, out, _ = call("compare", "case.yaml", "--out", "c", "--jobs", "1")
    assert code == 0
    assert "asgd" in out
    assert "c/report.html" in out
    table = pd.read_csv(folder / "c" / "comparison.csv")
    assert [tuple(row) for row in table[["policy", "seed"]].to_numpy()] == [
        ("bsp", 0), ("bsp", 1), ("asgd", 0), ("asgd", 1),
    ]  # fmt: skip
    assert (folder / "c" / "report.html").exists()
    assert not (folder / "c.partial").exists()


@pytest.mark.usefixtures("no_page")
def test_compare_says_on_the_terminal_which_updates_overshoot_the_work(
    folder: Path, call: Call
) -> None:
    (folder / "few.yaml").write_text("workers: 2\nsamples: 256\nstep: {compute: 0.1}\nseeds: 1\n")
    _, out, _ = call("compare", "few.yaml", "--policy", "diloco:h=2", "--out", "c", "--jobs", "1")
    assert "runs overshoot the work, and makespans are of more work: diloco:h=2 by 100 %" in out


@pytest.mark.usefixtures("no_page")
def test_two_scenarios_of_one_name_do_not_overwrite_each_others_report(
    folder: Path, call: Call
) -> None:
    (folder / "other").mkdir()
    for name in ("case.yaml", "slow.csv"):
        (folder / "other" / name).write_text((folder / name).read_text())
    asked = ("--jobs", "1", "--seeds", "1", "-p", "bsp", "-q")
    assert call("compare", "case.yaml", *asked)[0] == 0
    assert call("compare", "other/case.yaml", *asked) == (
        2, "", "error: reports/case: holds the comparison of case.yaml; choose another folder for "
        "other/case.yaml with --out\n",
    )  # fmt: skip
    assert call("compare", "other/case.yaml", *asked, "-o", "reports/other")[0] == 0
    for command in ("compare", "advise"):
        assert call(command, "case.yaml", "-o", "reports/other")[::2] == (
            2, f"error: reports/other: holds the comparison of {Path('other/case.yaml')}; choose "
            "another folder for case.yaml with --out\n",
        )  # fmt: skip
    assert call("advise", "other/case.yaml", "-o", "reports/other")[0] == 2
    (folder / "case.yaml").write_text(SCENARIO.replace("5120", "10240"))
    assert call("compare", "case.yaml", *asked)[0] == 0


TWICE = pytest.mark.filterwarnings("default:.* compared once")


@TWICE
@pytest.mark.usefixtures("no_page")
def test_two_spellings_of_one_policy_are_compared_once_and_it_is_said(
    folder: Path, call: Call
) -> None:
    asked = ("compare", "case.yaml", "--jobs", "1", "--seeds", "1", "-p", "bsp:via=allreduce")
    code, _, err = call(*asked, "-p", "bsp", "-o", "c")
    assert (code, err) == (0, "warning: bsp is bsp:via=allreduce; compared once\n")
    assert Comparison.read(folder / "c").policies == ["bsp:via=allreduce"]
    assert document(call, *asked, "-p", "bsp", "-o", "c")["warnings"] == [
        "bsp is bsp:via=allreduce; compared once"
    ]
    assert call(*asked, "-p", "bsp", "-o", "c", "-q") == (0, "c/report.html\n", "")


@pytest.mark.usefixtures("no_page")
def test_a_dash_in_the_ranking_is_explained_below_it(folder: Path, call: Call) -> None:
    asked = ("compare", "case.yaml", "--jobs", "1", "-o", "c", "--no-sensitivity")
    assert "for M" not in call(*asked, "--verbose")[1]
    case = (folder / "case.yaml").read_text().replace("trace: slow.csv", "")
    (folder / "case.yaml").write_text(case.replace("trace_end: loop", ""))
    out = call(*asked, "--seeds", "1", "--verbose")[1]
    assert f"{MISSING} for M: not defined, because contention delays bsp by less than" in out
    assert f"({MISSING}): one seed gives no interval" in out


@TWICE
def test_two_spellings_of_one_policy_are_no_rivals(folder: Path, call: Call) -> None:
    asked = ("sensitivity", "case.yaml", "--jobs", "1", "--seeds", "1", "-k", "learner.c_tau")
    _, _, err = call(*asked, "-p", "asgd", "-p", "bsp", "-p", "bsp:via=allreduce")
    assert err == "warning: bsp:via=allreduce is bsp; compared once\n"


@pytest.mark.usefixtures("no_page")
def test_runs_that_nobody_can_use_now_are_named(folder: Path, call: Call) -> None:
    kept = folder / "c.partial"
    (kept / "0123456789abcdef").mkdir(parents=True)
    (kept / "finished-runs.txt").write_text("")
    _, _, err = call("compare", "case.yaml", "-o", "c", "--jobs", "1", "--seeds", "1")
    assert err == (
        "warning: c.partial keeps runs of an earlier scenario or program; you may remove it\n"
    )


@pytest.mark.usefixtures("no_page")
def test_a_comparison_folder_stands_by_itself(folder: Path, finished: Path, call: Call) -> None:
    shutil.copytree(finished, folder / "c")
    (folder / "slow.csv").unlink()
    assert call("compare", "c/scenario.yaml", "--out", "again", "--jobs", "1")[0] == 0
    again = folder / "again" / "comparison.csv"
    assert again.read_bytes() == (finished / "comparison.csv").read_bytes()


def test_report_renders_what_compare_wrote_earlier(
    folder: Path, finished: Path, call: Call
) -> None:
    shutil.copytree(finished, folder / "c")
    code, out, _ = call("report", "c", "--out", "page.html")
    assert (code, out.strip()) == (0, "report: page.html")
    assert "<html" in (folder / "page.html").read_text()


@pytest.mark.usefixtures("no_page")
def test_report_takes_the_file_of_a_scenario_for_the_folder_of_its_results(
    folder: Path, finished: Path, call: Call
) -> None:
    code, out, err = call("report", "case.yaml")
    where = Path("reports") / "case"
    assert (code, out) == (2, "")
    assert err == f"error: case.yaml: {where} has no results of it; give the folder that has them\n"
    shutil.copytree(finished, folder / where)
    assert call("report", "case.yaml", "-q") == (0, f"{where / 'report.html'}\n", "")


def test_report_renders_a_run(folder: Path, call: Call) -> None:
    call("run", "case.yaml", "--out", "r", "--steps")
    assert call("report", "r")[0] == 0
    assert "<html" in (folder / "r" / "report.html").read_text()


@pytest.fixture(params=[80, 120])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A terminal so many columns wide."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def test_the_list_of_policies_fits_a_terminal_and_cuts_no_name(call: Call, terminal: int) -> None:
    lines = plain_lines(call("policies")[1])
    assert max(map(len, lines)) <= terminal
    listed = [re.split(r"  +", line)[:2] for line in lines if line[:1].isalpha()]
    assert [row for row in listed if row[0] in names()] == [
        [d.name, d.architecture] for d in describe()
    ]
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("name", names())
def test_what_is_told_of_a_policy_fits_a_terminal(
    name: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call("policies", name)
    lines = plain_lines(out)
    assert (code, err) == (0, "")
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "…" not in out
    told = " ".join(out.split())
    assert describe(name).source.split(", ")[-1] in told
    assert all(re.search(rf"(?m)^{p.name} ", "\n".join(lines)) for p in describe(name).parameters)


def test_a_policy_by_all_reduce_under_a_server_says_what_the_server_does(call: Call) -> None:
    """hot_spare leaves ranks out, which DDP cannot."""
    told = " ".join(call("policies", "hot_spare")[1].split())
    assert told.startswith("hot_spare (all-reduce) ")
    assert "ranks 0-6, by all-reduce" in told
    assert "On real ranks: a server process orders the all-reduces." in told


def test_policies_explains_one_with_plan_parameters_source_and_what_is_whose(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = call("policies", "lgc:k=5")
    assert code == 0
    assert "lgc:k=5 (server)" in out
    assert "On real ranks: server." in out
    assert "the first 5 of all 8 ranks, each gradient a job of the server" in out
    assert re.search(r"k +auto +K, gradients per update; .*\n +a whole number or auto", out)
    assert "INFOCOM 2021" in out
    assert "Ours: weights 1/N" in out


def test_the_list_of_policies_says_of_each_what_real_ranks_would_make_of_it(call: Call) -> None:
    rows = [re.split(r"  +", line) for line in call("policies")[1].splitlines()]
    listed = {row[0]: row[2] for row in rows if row[0] in names()}
    real = {each["name"]: each["real"].partition(":")[0] for each in document(call, "policies")}
    assert listed == {name: real[name] for name in names()}


@pytest.mark.parametrize("name", names())
def test_policies_says_of_each_what_real_ranks_would_make_of_it(name: str, call: Call) -> None:
    told = document(call, "policies", name)["real"]
    for ranks in (2, 4, 16):
        first = View(ranks, hints=Hints(batch=32, samples=12_800))
        reason = policy_support.refusal_reason(load(name), name, first)
        if reason is not None:
            assert told == f"no: {reason}"
            with pytest.raises(InputError, match="is for simulation only"):
                policy_support.check_policy(load(name), name, first)
        else:
            way = (
                "DDP"
                if policy_support.is_synchronous(ask(load(name), first, name), ranks)
                else "server"
            )
            assert told == way


def test_policies_explains_one_in_the_working_directory(folder: Path, call: Call) -> None:
    (folder / "told.py").write_text(
        'import simstrag\nclass All:\n    """Everybody waits."""\n'
        "    def plan(self, view):\n        return simstrag.Plan()\n"
    )
    code, out, _ = call("policies", "told:All")
    assert code == 0
    assert "Everybody waits." in out


def test_a_generated_trace_can_be_described(folder: Path, call: Call) -> None:
    arguments = ("--nodes", "4", "--seconds", "3600", "--seed", "1", "--out", "g.csv")
    assert call("trace", "generate", *arguments)[0] == 0
    code, out, _ = call("trace", "describe", "g.csv")
    assert code == 0
    assert "gpu" in out


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simstrag", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("simstrag ")


HELPED = ["", *EXAMPLES, "trace"]


@pytest.mark.parametrize("command", HELPED)
def test_a_help_fits_a_screen(command: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(*command.split(), "--help")
    assert code == 0
    # One for the prompt; those with many options have them in groups, some have other commands
    # below them, `validate` calibrates too, `advise` is asked for a policy or for timeouts, and
    # `trace import` has the options of nine formats.
    most = dict.fromkeys(("", "advise", "calibrate", "validate", "trace import"), 40)
    assert len(out.splitlines()) <= most.get(command, 35 if "\nOutput:\n" in out else 23)
    assert max(map(len, out.splitlines())) <= 80


LONG = {"compare", "init", "calibrate", "ddp", "validate", "sweep", "trace import"}


@pytest.mark.parametrize("command", EXAMPLES)
def test_a_long_help_has_its_options_in_groups_and_hides_none(command: str, call: Call) -> None:
    out = call(*command.split(), "--help")[1].partition("\n  Examples:")[0]
    titles = re.findall(r"(?m)^(\w[^:\n]*):$", out.partition("\n")[2])
    groups = [title for title in titles if title not in {"Arguments", "Options", "Commands"}]
    assert (len(groups) > 1) >= (command in LONG), groups
    if groups:
        assert [each for each in titles if each != "Commands"][-1] == "Output"
    found = command_of(command)
    assert [p.name for p in found.params if getattr(p, "hidden", False)] == []
    for each in found.params:
        assert any(f"{name}" in out for name in [*each.opts, each.metavar or ""]), each.name
    mentioned = re.findall(r"(?<!\S)--?[a-z][a-z-]*", " ".join(EXAMPLES[command]))
    assert [name for name in mentioned if name not in out] == []


def command_of(path: str) -> Any:
    """A command by its name."""
    found = commands.command()
    for name in path.split():
        found = found.commands[name]
    return found


def test_the_help_lists_every_command_in_a_group_and_cuts_no_sentence(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = call("--help")[1]
    assert "Commands:" not in out
    listed = {*re.findall(r"(?m)^  ([a-z]+) ", out)}
    assert listed == {name.split()[0] for name in EXAMPLES} - {*OLD}
    for command in ("", "trace", "calibrate"):
        assert "..." not in call(*command.split(), "--help")[1].partition("\n")[2]
    assert "  --install-completion " in out


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_help_is_as_wide_as_the_terminal(
    columns: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    options = call("calibrate", "--help")[1].partition("Examples:")[0]
    assert columns - 20 < max(map(len, options.splitlines())) <= columns


@pytest.mark.parametrize("command", EXAMPLES)
def test_a_help_ends_with_examples_that_are_not_cut(
    command: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in call(*command.split(), "--help")[1].splitlines()]
    assert lines[-len(EXAMPLES[command]) :] == list(EXAMPLES[command])
    assert all(example.startswith(f"simstrag {command}") for example in EXAMPLES[command])


ELSEWHERE = {
    "advise", "policies", "calibrate", "calibrate check", "calibrate import", "claims", "ddp",
    "validate", "whatif", "diagnose", "demo",
}  # fmt: skip
"""They measure for minutes, train on ranks, or need logs: see tests/calibration/test_calibrate.py,
test_advice.py, test_demo.py, test_nccl_tests.py, test_claims.py, test_policy_contract.py,
test_whatif_report.py, and in verification test_ddp_examples.py and test_validate.py, which run
such."""
LEARNING = """
workers: 2
samples: 2560
target_accuracy: 0.5
step: {compute: 0.1}
server: {service: 0.001}
learner: {kind: real, task: tabular, batch: 8, optimizer: {lr: 0.2}}
seeds: 3
"""


TWO_MODELS = """
nodes: [{count: 2, gpus: 4, cores: 16}]
workers_per_gpu: 2
workloads:
  small: {scenario: {step: {compute: 0.1, host_share: 0.5, cv: 0.1}}, host_cores: 2}
  large: {scenario: {step: {compute: 0.3, host_share: 0.5, cv: 0.1}}, host_cores: 4}
jobs:
  - {workload: small, workers: 4, samples: 245_760, count: 2, every: 5}
  - {workload: large, workers: 4, samples: 245_760, arrival: 1, count: 2, every: 5}
"""
"""A cluster of seconds, in place of the example's, which takes half a minute."""


@pytest.mark.parametrize("command", [name for name in EXAMPLES if name not in ELSEWHERE])
def test_the_examples_of_every_help_work(
    command: str,
    folder: Path,
    finished: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")  # no processes beside this one
    monkeypatch.setattr("simstrag.cli.doctor.examine", functools.cache(examine))
    (folder / "examples").mkdir()
    for name in ("examples/demo.yaml", "case.yaml"):
        (folder / name).write_text(SCENARIO)
        (folder / Path(name).parent / "slow.csv").write_text(TRACE)
    (folder / "load.csv").write_text("node,time,gpu\na,0,70\nb,0,0\na,60,90\n")
    root = Path(__file__).parents[2]
    shutil.copy(root / "examples" / "study.yaml", folder / "examples" / "study.yaml")
    (folder / "examples" / "cluster.yaml").write_text(TWO_MODELS)
    for name in ("mine", "other"):
        (folder / "profiles" / name).mkdir(parents=True)
        for measured, kept in (
            ("profiles/intel-xeon-2-core-amx-mlp.json", "profile.json"),
            ("measurements/intel-xeon-2-core-amx-mlp/samples.parquet", "samples.parquet"),
        ):
            shutil.copy(root / "calibration" / measured, folder / "profiles" / name / kept)
    if command == "report":
        shutil.copytree(finished, folder / "reports" / "demo" / "comparison")
        assert call("sweep", "examples/study.yaml", "--out", "reports/study")[0] == 0
    elif command == "fit":
        pytest.importorskip("torch")
        (folder / "examples" / "real-learning.yaml").write_text(LEARNING)
    elif command == "watch":
        pytest.importorskip("prometheus_client")
        for place in ("runs/mine", "host1/mine"):
            write_record(folder / place, drawn(steps=18, slow=None))
        (folder / "host2" / "mine").mkdir(parents=True)
        (folder / "host1/mine/rank-3.csv").rename(folder / "host2/mine/rank-3.csv")
        for path in folder.glob("*/mine/*"):
            os.utime(path, (1e9, 1e9))  # it is over
    if command in ("compare", "report"):
        request.getfixturevalue("no_page")
    if command == "record":
        pytest.skip("tests/ddp/test_record_command.py has jobs of its own")
    for example in EXAMPLES[command]:
        code, _, err = call(*example.removeprefix("simstrag ").split())
        assert (example, code, err) == (example, 0, "")


CLUSTER = """
nodes: [{gpus: 4, cores: 8}]
workloads: {small: {scenario: {step: {compute: 0.1}}}}
jobs: [{workload: small, workers: 4, samples: 5120}]
"""


def _edited(old: str, new: str) -> dict[str, str]:
    assert old in SCENARIO
    return {"case.yaml": SCENARIO.replace(old, new)}


MISTAKES = {
    "missing scenario": (("run", "none.yaml"), {}, "none.yaml"),
    "missing trace": (("run", "case.yaml"), _edited("slow.csv", "fast.csv"), "fast.csv"),
    "missing column": (("run", "case.yaml"), {"slow.csv": "time,node\n0,1\n"}, "resource"),
    "text in a number": (
        ("run", "case.yaml"), {"slow.csv": TRACE.replace("2.0", "fast")}, "slow.csv, row 2",
    ),
    "negative slowdown": (("run", "case.yaml"), {"slow.csv": TRACE.replace("2.0", "-2")}, "-2"),
    "slowdown below 1": (("run", "case.yaml"), {"slow.csv": TRACE.replace("2.0", ".5")}, "0.5"),
    "time going backwards": (
        ("run", "case.yaml"), {"slow.csv": TRACE.replace("0.6", "0.1")}, "backwards",
    ),
    "NaN": (("run", "case.yaml"), {"slow.csv": TRACE.replace("2.0", "nan")}, "nan"),
    "empty value": (("run", "case.yaml"), {"slow.csv": TRACE.replace("2.0", "")}, "row 2"),
    "empty trace": (("run", "case.yaml"), {"slow.csv": ""}, "empty"),
    "header only": (("run", "case.yaml"), {"slow.csv": TRACE.splitlines()[0]}, "empty"),
    "binary trace": (("run", "case.yaml"), {"slow.csv": b"\x00\xff\xfe\x80garbage"}, "slow.csv"),
    "binary scenario": (("run", "case.yaml"), {"case.yaml": b"\x00\xff\xfe\x80"}, "case.yaml"),
    "utilisation": (
        ("run", "case.yaml"), {"slow.csv": TRACE.replace("slowdown,2.0", "utilisation,0.5")},
        "utilisation",
    ),
    "node beyond the world": (("run", "case.yaml"), _edited("workers: 4", "workers: 3"), "node 3"),
    "unknown policy": (("run", "case.yaml", "--policy", "asg"), {}, "asgd"),
    "unknown policy in a comparison": (("compare", "case.yaml", "-p", "korell"), {}, "korel"),
    "unknown policy to explain": (("policies", "korell"), {}, "Did you mean 'korel'?"),
    "impossible plan to explain": (("policies", "backup:b=9"), {}, "b=9 of 8 ranks"),
    "unknown parameter": (("run", "case.yaml", "--policy", "ssp:bond=3"), {}, "bound"),
    "wrong parameter": (("run", "case.yaml", "--policy", "ssp:bound=x"), {}, "bound"),
    "impossible plan": (("run", "case.yaml", "--policy", "backup:b=4"), {}, "b"),
    "policy without a value": (("compare", "case.yaml", "-p"), {}, "'-p' requires an argument"),
    "unknown key": (("run", "case.yaml"), _edited("server:", "sever:"), "server"),
    "unknown inner key": (("run", "case.yaml"), _edited("compute:", "compte:"), "compute"),
    "both searches": (
        ("compare", "case.yaml", "--sensitivity", "--no-sensitivity"), {}, "give one of them",
    ),
    "no policies": (("compare", "case.yaml"), _edited("[bsp, asgd]", "[]"), "policies"),
    "0 workers": (("run", "case.yaml"), _edited("workers: 4", "workers: 0"), "workers"),
    "updates in compare": (
        ("compare", "case.yaml"),
        _edited("samples: 5120\ntarget_progress: 3", "updates: 10"), "equal work",
    ),
    "not YAML": (("run", "case.yaml"), {"case.yaml": "a: [1"}, "line"),
    "a folder that is a file": (
        ("run", "case.yaml", "--out", "slow.csv"), {}, "slow.csv: is a file; choose a folder",
    ),
    "a cluster study's folder that is a file": (
        ("cluster", "mine.yaml", "--out", "slow.csv"), {"mine.yaml": CLUSTER},
        "slow.csv: is a file; choose a folder",
    ),
    "a calibration's folder that is a file": (
        ("calibrate", "--workload", "mlp", "--device", "cpu", "--out", "slow.csv"), {},
        "slow.csv: is a file; choose a folder",
    ),
    "the working directory": (("run", "case.yaml", "--out", "."), {}, "working directory"),
    "a folder with other files": (
        ("run", "case.yaml", "--out", "notes"), {"notes/mine.md": "x"}, "other files",
    ),
    "a file of one's own beside a run": (
        ("run", "case.yaml", "--out", "r"), {"r/run.json": "{}", "r/notes.md": "x"}, "notes.md",
    ),
    "a trace that would be lost": (("trace", "generate", "-o", "slow.csv"), {}, "would be lost"),
    "a scenario that would be a timeline": (
        ("run", "case.yaml", "--timeline", "case.yaml"), {}, "would be lost",
    ),
    "a timeline that is a folder": (("run", "case.yaml", "--timeline", "."), {}, "regular file"),
    "an impossible parent": (("run", "case.yaml", "--out", "slow.csv/r"), {}, "slow.csv/r"),
    "report of nothing": (("report", "none"), {}, "none"),
    "describe of nothing": (("trace", "describe", "none.csv"), {}, "none.csv"),
    "unknown command": (("compere", "case.yaml"), {}, "Did you mean 'compare'?"),
    "unknown command of a group": (("trace", "descibe"), {}, "Did you mean 'describe'?"),
    "a study's own key": (("sweep", "a.yaml", "-p", "bsp"), {}, "set the key policies:"),
    "all and nothing": (("compare", "case.yaml", "-q", "-v"), {}, "--quiet, --verbose: give one"),
    "timeouts over a comparison": (
        ("advise", "case.yaml", "--timeouts", "--out", "c"), {"c/x": ""}, "other files",
    ),
    "unknown option": (("run", "case.yaml", "--police", "b"), {}, "Did you mean '--policy'?"),
    "a scenario beside": (("run", "cas.yaml"), {}, "Did you mean 'case.yaml'?"),
    "a trace beside": (
        ("compare", "case.yaml"), _edited("slow.csv", "slwo.csv"), "Did you mean 'slow.csv'?",
    ),
    "a trace to describe beside": (
        ("trace", "describe", "slw.csv"), {}, "Did you mean 'slow.csv'?",
    ),
    "a report beside": (("report", "case.yml"), {}, "Did you mean 'case.yaml'?"),
    "init of nothing": (("init", "slo.csv"), {}, "Did you mean 'slow.csv'?"),
    "init with a wrong unit": (
        ("init", "slow.csv", "--link", "25Gib"), {},
        "--link 25Gib: there is no unit 'Gib' here; write it as in 25Gbit",
    ),
    "init with a link without a unit": (
        ("init", "slow.csv", "--link", "25"), {},
        "--link 25: has no unit; did you mean 25Gbit (3.125GB) or 25GB (200Gbit)?",
    ),
    "init with a step without a unit": (
        ("init", "slow.csv", "--step", "0.35"), {},
        "--step 0.35: has no unit; did you mean 0.35s (350ms) or 0.35ms (0.00035s)?",
    ),
    "init with a latency without a unit": (
        ("init", "slow.csv", "--latency", "50"), {},
        "--latency 50: has no unit; did you mean 50us (0.05ms) or 50ms (50000us)?",
    ),
    "init with parameters in a unit of bytes": (
        ("init", "slow.csv", "--parameters", "100MB"), {},
        "--parameters 100MB: there is no unit 'MB' here; write it as in 100e6 or 100M",
    ),
    "advise with a step without a unit": (
        ("advise", "slow.csv", "--step", "0.1"), {},
        "--step 0.1: has no unit; did you mean 0.1s (100ms) or 0.1ms (0.0001s)?",
    ),
    "init with no number": (
        ("init", "slow.csv", "--step", "fast"), {},
        "--step fast: is no number with a unit; write it as in 0.35s",
    ),
    "init with nothing": (
        ("init", "slow.csv", "--latency", "0ms"), {}, "--latency 0ms: must be more than 0",
    ),
    "init with a step of a thousand years": (
        ("init", "slow.csv", "--step", "3e10s"), {},
        "--step 3e10s: step.compute must lie between 1e-07 and 100000 s: one kernel takes",
    ),
    "init with a link of a byte a second": (
        ("init", "slow.csv", "--link", "1B"), {}, "must lie between 1000 and 1e+15 bytes/s: 10 M",
    ),
    "init with more parameters than atoms": (
        ("init", "slow.csv", "--parameters", "1e30"), {}, "the largest models have about 1e13",
    ),
    "init with more workers than devices": (
        ("init", "slow.csv", "--workers", "100000000"), {}, "must be 1000000 or less",
    ),
    "init with half a sample": (
        ("init", "slow.csv", "--batch", "2.5"), {}, "--batch 2.5: must be a whole number",
    ),
    "init with an unknown precision": (
        ("init", "slow.csv", "--precision", "int8"), {}, "give one of fp32, bf16, fp16, fp64",
    ),
    "init over a scenario": (("init", "slow.csv", "--out", "case.yaml"), {}, "is there already"),
    "init of utilisation": (
        ("init", "slow.csv"), {"slow.csv": TRACE.replace("slowdown,2.0", "utilisation,0.5")},
        "utilisation",
    ),
    "missing argument": (("run",), {}, "SCENARIO"),
    "a folder that is not there": (
        ("init", "slow.csv", "-o", "nodir/x.yaml"), {}, "nodir/x.yaml: there is no folder 'nodir'",
    ),
    "a folder that is not there, for a trace": (
        ("trace", "generate", "-o", "nodir/g.csv"), {}, "there is no folder 'nodir'",
    ),
    "a folder that is not there, for a timeline": (
        ("run", "case.yaml", "--timeline", "nodir/t.json"), {}, "there is no folder 'nodir'",
    ),
    "a trace named like a spreadsheet": (
        ("trace", "generate", "-o", "g.xlsx"), {}, "g.xlsx: is no name of a trace",
    ),
    "utilisation that begins elsewhere": (
        ("run", "case.yaml"),
        _edited("seeds: 2", "seeds: 2\ntrace_per_seed: shift")
        | {"slow.csv": TRACE.replace("slowdown,1.0", "utilisation,0.5")},
        "slow.csv, row 3: utilisation 0.5 of node 3 at 0.6 s",
    ),
    "a speed-up that begins elsewhere": (
        ("run", "case.yaml"),
        _edited("seeds: 2", "seeds: 2\ntrace_per_seed: shift")
        | {"slow.csv": TRACE.replace("1.0", "0.9")},
        "slow.csv, row 3: slowdown 0.9 of node 3 at 0.6 s is below 1",
    ),
    "semicolons": (
        ("trace", "describe", "slow.csv"), {"slow.csv": TRACE.replace(",", ";")}, "semicolons",
    ),
    "capital letters": (
        ("run", "case.yaml"), {"slow.csv": TRACE.replace("gpu", "GPU")}, "Did you mean 'gpu'?",
    ),
    "a date": (
        ("run", "case.yaml"), {"slow.csv": TRACE.replace("0.6", "10:00")}, "seconds from the start",
    ),
    "a trace for a scenario": (("run", "slow.csv"), {}, "simstrag init slow.csv"),
    "a scenario for a trace": (("init", "case.yaml"), {}, "is a scenario by its name"),
    "policies with commas": (("compare", "case.yaml", "-p", "bsp,asgd"), {}, "-p bsp -p asgd"),
    "policies with commas and parameters": (
        ("compare", "case.yaml", "-p", "ssp:bound=5,via=server,asgd"), {},
        "-p ssp:bound=5,via=server -p asgd",
    ),
    "policies for a run": (("run", "case.yaml", "-p", "bsp,asgd"), {}, "choose one here"),
    "an unknown shell": (("--show-completion", "tcsh"), {}, "bash, zsh, fish"),
    "a policy that leaves": (
        ("run", "case.yaml", "-p", "leaves:Leaves"),
        {"leaves.py": "class Leaves:\n    def plan(self, view):\n        raise SystemExit(3)\n"},
        "policy leaves:Leaves raised SystemExit: 3 (leaves.py, line 3)",
    ),
    "a policy of which two parameters begin so": (
        ("run", "case.yaml", "-p", "korel:k=1"), {}, "Did you mean 'k_on' or 'k_off'?",
    ),
    "a window without an end": (
        ("run", "case.yaml", "--timeline", "t.json", "--window", "1:"), {}, "write 1:inf",
    ),
    "a window before the beginning": (
        ("run", "case.yaml", "--timeline", "t.json", "--window", "-5:1"), {}, "not begin before 0",
    ),
    "a gain that nothing states": (
        ("run", "case.yaml", "-p", "korel"), _edited(", amp_ratio: 1.6", ""),
        "policy korel uses reduced precision, but its gain is unknown: give step.amp_ratio or a "
        "profile that measured it, or leave korel out",
    ),
    "a gain that nothing states, in a comparison": (
        ("compare", "case.yaml", "-p", "bsp", "-p", "korel:W=5"), _edited(", amp_ratio: 1.6", ""),
        "policy korel:W=5 uses reduced precision, but its gain is unknown: give step.amp_ratio",
    ),
    "a name that is near none": (("run", "case.yaml", "-p", "ddp"), {}, "zeno\n"),
    "a folder that cannot be made": (
        ("compare", "case.yaml", "--jobs", "1", "--out", "/proc/xx"), {},
        "error: /proc/xx: cannot be written: ",
    ),
    "a profile that is none": (
        ("calibrate", "show", "slow.csv"), {}, "slow.csv: not a profile (JSON): expected",
    ),
    "a picture for a profile of PyTorch": (
        ("trace", "import", "kineto", "p.png", "-o", "t.csv"), {"p.png": b"\x89PNG\r\n\x1a\n"},
        "p.png: not a PyTorch profile (JSON): ",
    ),
    "a CSV for parquet": (
        ("trace", "import", "bytedance-straggler", "p.csv", "-o", "t.csv"), {"p.csv": "a,b\n1,2\n"},
        "p.csv: cannot be read as parquet: Parquet magic bytes not found in footer\n",
    ),
    "a shipped profile by its bare name": (
        ("calibrate", "show", "intel-xeon-2-core-amx"), {},
        "the shipped profile is " + str(files("simstrag.calibration") / "profiles"),
    ),
    "a shipped profile by its bare name, in a scenario": (
        ("run", "case.yaml"), _edited("seeds: 2", "profile: intel-xeon-2-core-amx"),
        "intel-xeon-2-core-amx: no such file or folder; the shipped profile is ",
    ),
    "huge seed": (("run", "case.yaml", "--seed", "9" * 30), {}, "seed"),
    "negative seed": (("run", "case.yaml", "--seed", "-1"), {}, "seed"),
}  # fmt: skip


def written(folder: Path) -> set[Path]:
    """All that is in a folder but for what Python keeps of a policy that it has imported."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_in_one_line_and_writes_nothing(
    mistake: str, folder: Path, call: Call
) -> None:
    arguments, files, hint = MISTAKES[mistake]
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    before = written(folder)
    assert hint in refusal(call(*arguments))
    assert written(folder) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_answered_in_one_line(folder: Path, call: Call) -> None:
    (folder / "locked").mkdir(mode=0o500)
    code, _, err = call("run", "case.yaml", "--out", "locked/r")
    assert code == 2
    assert "locked/r" in err


def test_a_policy_may_lie_beside_the_scenario(folder: Path, call: Call) -> None:
    (folder / "sub").mkdir()
    for name in ("case.yaml", "slow.csv"):
        (folder / name).rename(folder / "sub" / name)
    (folder / "sub" / "beside.py").write_text(
        "import simstrag\nclass All:\n    def plan(self, view):\n        return simstrag.Plan()\n"
    )
    assert call("run", "sub/case.yaml", "--policy", "beside:All")[0] == 0


def document(call: Call, *arguments: str) -> Any:
    """What `--json` prints: one document, and nothing beside it."""
    code, out, err = call(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_run_for_machines_is_what_run_json_holds(folder: Path, call: Call) -> None:
    found = document(call, "run", "case.yaml", "--out", "r")
    assert found.pop("written") == "r"
    assert found.pop("timeline") is None
    assert found == json.loads((folder / "r" / "run.json").read_text())


@pytest.mark.usefixtures("no_page")
def test_a_comparison_for_machines_is_the_ranking(folder: Path, call: Call) -> None:
    found = document(call, "compare", "case.yaml", "--out", "c", "--jobs", "1")
    assert (found["written"], found["report"]) == ("c", "c/report.html")
    table = pd.read_csv(folder / "c" / "ranking.csv")
    assert [row["policy"] for row in found["ranking"]] == list(table["policy"])
    assert [row["makespan"] for row in found["ranking"]] == list(table["makespan"])
    assert list(found["ranking"][0]) == list(table.columns)


def test_policies_for_machines_are_all_there_is_to_say_of_them(call: Call) -> None:
    found = document(call, "policies")
    assert [each["name"] for each in found] == list(names())
    assert document(call, "policies", "bsp") in found


def test_a_trace_for_machines_has_a_row_per_node_and_resource(folder: Path, call: Call) -> None:
    found = document(call, "trace", "describe", "slow.csv")
    assert [(row["node"], row["resource"]) for row in found["slowdowns"]] == [(3, "gpu")]
    assert found["others"] == []


def test_a_report_for_machines_is_its_path(folder: Path, call: Call) -> None:
    call("run", "case.yaml", "--out", "r", "--steps")
    assert document(call, "report", "r") == {"report": "r/report.html"}


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("run", "case.yaml", "--out", "r"), "r"),
        (("compare", "case.yaml", "--out", "c", "--jobs", "1"), "c/report.html"),
        (("trace", "generate", "--out", "g.csv"), "g.csv"),
        (("init", "slow.csv"), "scenario.yaml"),
    ],
)
@pytest.mark.usefixtures("no_page")
def test_a_quiet_command_says_only_what_it_wrote(
    arguments: tuple[str, ...], path: str, folder: Path, call: Call
) -> None:
    assert call(*arguments, "--quiet") == (0, f"{path}\n", "")
    assert (folder / path).exists()


@pytest.mark.parametrize(
    ("target", "name"), [("target_progress: 3", "time_to_target"), ("", "makespan")]
)
def test_a_quiet_run_that_writes_nothing_says_its_time(
    target: str, name: str, folder: Path, call: Call
) -> None:
    (folder / "case.yaml").write_text(SCENARIO.replace("target_progress: 3", target))
    code, out, err = call("run", "case.yaml", "-q")
    assert (code, err) == (0, "")
    assert float(out) == document(call, "run", "case.yaml")["summary"][name]


def test_a_scenario_and_a_trace_for_machines_are_where_they_are(folder: Path, call: Call) -> None:
    assert document(call, "trace", "generate", "-o", "g.csv")["trace"] == "g.csv"
    answer = document(call, "init", "g.csv", "-o", "g.yaml")
    assert answer["scenario"] == "g.yaml"
    assert "allreduce.bandwidth" in answer["placeholders"]
    assert (folder / "g.yaml").exists()


def test_init_quotes_the_next_command_and_names_the_nodes_that_it_takes(
    folder: Path, call: Call
) -> None:
    there = folder / "a dir"
    there.mkdir()
    for nodes, line in (
        ((0, 2, 5), "workers: 3, the nodes with rows (0, 2, 5); raise it, and add to nodes, for "
                    "nodes that were never slowed"),
        (range(1, 10), "workers: 9, the nodes with rows (1, 2, 3, 4, 5, 6, 7, 8, ...); raise it"),
        (range(3), None),
        ((4,), None),
    ):  # fmt: skip
        rows = "".join(f"9,{node},gpu,slowdown,2\n" for node in nodes)
        (there / "t.csv").write_text(f"time,node,resource,kind,value\n{rows}")
        (there / "s.yaml").unlink(missing_ok=True)
        code, out, err = call("init", "a dir/t.csv", "-o", "a dir/s.yaml")
        lines = out.splitlines()
        assert (code, err, lines[-1]) == (0, "", "next: simstrag compare 'a dir/s.yaml'")
        told = [each for each in lines if each.startswith("workers: ")]
        assert len(told) == (line is not None)
        assert all(each.startswith(line or "") for each in told)


def test_init_takes_a_job_in_the_units_of_people(folder: Path, call: Call) -> None:
    job = "--step 350ms --parameters 100M --link 25Gbit/s --latency 20us --batch 64 --workers 4"
    code, out, err = call("init", "slow.csv", *job.split())
    assert (code, err) == (0, "")
    assert "placeholders: step.cv, learner.noise_scale, learner.c_tau; replace them in" in out
    case = Scenario.read(folder / "scenario.yaml")
    assert case.inputs.allreduce.seconds([1, 1]) == pytest.approx(2 * 20e-6 + 0.128)
    assert (case.workers, case.step.compute, case.learner.batch) == (4, 0.35, 64)


def test_init_doubts_a_step_in_milliseconds(folder: Path, call: Call) -> None:
    code, out, err = call("init", "slow.csv", "--step", "350s")
    assert code == 0
    assert err.startswith("warning: Doubtful: step.compute is 350 s, usual are 1e-05 to 60: ")
    assert "scenario: scenario.yaml\n" in out


@pytest.mark.parametrize(
    ("link", "bandwidth"),
    [("25Gb/s", 3.125e9), ("25Gbps", 3.125e9), ("25Gbit/s", 3.125e9), ("25 Gbit", 3.125e9),
     ("3GB/s", 3e9), ("800MB", 8e8)],
)  # fmt: skip
def test_a_link_is_in_bits_or_in_bytes(link: str, bandwidth: float) -> None:
    assert parse_quantity(link, "--link", BYTES_PER_SECOND, "") == pytest.approx(bandwidth)


def test_a_timeline_is_written_and_read_back(folder: Path, call: Call) -> None:
    code, out, err = call("run", "case.yaml", "--timeline", "t.json")
    assert (code, err) == (0, "")
    assert out.endswith("timeline: t.json\n")
    assert json.loads((folder / "t.json").read_text())["traceEvents"]


def test_what_a_timeline_leaves_out_is_said(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simstrag.analysis.pages.perfetto.MOST", 60)
    _, _, err = call("run", "case.yaml", "--timeline", "t.json")
    assert re.fullmatch(r"warning: the timeline shows .* s, .*; \d+ steps are left out\n", err)


def test_a_command_without_its_package_names_the_extra(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    message = 'error: this command needs the package torch; pip install "simstrag[torch]"\n'
    assert call("calibrate", "--workload", "digits", "--out", "c") == (2, "", message)
