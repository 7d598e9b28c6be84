"""`simstrag trace import`, `resample`, `generate --model` and `describe --plot`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from tests.support.commands import Call, refusal

LOAD = "node,time,gpu\ngpu-a,0,70\ngpu-b,0,0\ngpu-a,60,90\n"
SLOW = "time,node,resource,kind,value\n10,0,gpu,slowdown,2\n20,1,gpu,slowdown,1\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "load.csv").write_text(LOAD)
    (tmp_path / "slow.csv").write_text(SLOW)
    return tmp_path


def test_import_writes_a_trace_and_says_what_it_rests_on(folder: Path, call: Call) -> None:
    code, out, err = call("trace", "import", "utilisation", "load.csv", "--out", "t.csv")
    assert (code, err) == (0, "")
    assert out.startswith("trace: t.csv\npage: t.md\n")
    assert "nodes: 0 is gpu-a, 1 is gpu-b" in out
    assert Trace.read("t.csv").series(0, "gpu", "utilisation") == [(0, 0.7), (60, 0.9)]
    assert "| 1 | gpu-b |" in (folder / "t.md").read_text()


def test_import_for_machines_is_one_document(call: Call) -> None:
    options = ("--own", "gpu=0.5", "--column", "time=time", "--percent", "-o", "t.csv", "--json")
    code, out, _ = call("trace", "import", "utilisation", "load.csv", *options)
    found = json.loads(out)
    assert (code, found["trace"], found["page"], found["rows"]) == (0, "t.csv", "t.md", 3)
    assert found["nodes"] == {"0": "gpu-a", "1": "gpu-b"}
    assert found["origin"] == "utilisation"


def test_resample_labels_its_rows_and_describe_tells(call: Call) -> None:
    options = ("--workers", "6", "--seconds", "100", "--block", "5", "-o", "more.csv", "-q")
    assert call("trace", "resample", "slow.csv", *options) == (0, "more.csv\n", "")
    assert Trace.read("more.csv").nodes == tuple(range(6))
    assert "Its rows are labelled: resampled." in call("trace", "describe", "more.csv")[1]
    call("trace", "resample", "more.csv", "-o", "again.csv", "-q")
    assert "they are labelled resampled" in Path("again.md").read_text()


def test_resample_makes_as_many_nodes_and_as_long_a_time_unless_asked(
    call: Call,
) -> None:
    assert call("trace", "resample", "slow.csv", "-o", "more.csv", "--json")[0] == 0
    assert (Trace.read("more.csv").nodes, Trace.read("more.csv").end) == ((0, 1), 20)


@pytest.mark.parametrize("name", ["p.png", "p.svg", "p.pdf"])
def test_describe_draws(name: str, folder: Path, call: Call) -> None:
    code, out, err = call("trace", "describe", "slow.csv", "--plot", name)
    assert (code, err) == (0, "")
    assert f"plot: {name}" in out
    first = (folder / name).read_bytes()[:5]
    assert first == {"p.png": b"\x89PNG\r", "p.svg": b"<?xml", "p.pdf": b"%PDF-"}[name]


def test_generate_has_a_second_model(call: Call) -> None:
    from simstrag.traces.generate import on_off

    options = ("--nodes", "3", "--duration-mean", "30", "--mean-interarrival", "90", "-s", "4")
    assert call("trace", "generate", "--model", "on-off", *options, "-o", "t.csv", "-q")[0] == 0
    assert Trace.read("t.csv").rows == on_off(3, 3600, 4, mean_on=30, mean_off=90).rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "utilization", "load.csv", "-o", "t.csv"), "Did you mean 'utilisation'?"),
        (("import", "utilisaton", "load.csv"), "Did you mean 'utilisation'?"),
        (
            ("import", "load.csv"), "load.csv: is no format but a file in format utilisation; "
            "import it: simstrag trace import utilisation load.csv --response fair-share --out "
            "load-trace.csv --scenario load.yaml\n",
        ),
        (("import", "load.csv", "load.csv", "-o", "t.csv"), "import utilisation load.csv --resp"),
        (("import", "lod.csv"), "Did you mean 'load.csv'?"),
        (("import", "slow.csv", "-o", "t.csv"), "slow.csv: is a trace already"),
        *(
            (
                ("import", name, "slow.csv", "-o", "t.csv"),
                "slow.csv: is a trace already; simstrag init slow.csv writes a first scenario",
            )
            for name in ("steps", "kineto", "prometheus")
        ),
        (("import", "utilisation", "load.csv"), "--out TRACE is missing: simstrag trace import ut"),
        (("import", "utilisation", "-o", "t.csv"), "FILE... is missing: simstrag trace import ut"),
        (("import", "kineto", "load.csv", "-o", "t.csv"), "load.csv: not a PyTorch profile"),
        (("import", "utilisation", "lod.csv", "-o", "t.csv"), "Did you mean 'load.csv'?"),
        (("import", "utilisation", "load.csv", "-o", "slow.csv"), "slow.csv: exists and would"),
        (("import", "utilisation", "load.csv", "-o", "t.txt"), "name it *.csv or *.parquet"),
        (("import", "utilisation", "load.csv", "--own", "gpu", "-o", "t.csv"), "--own gpu: write"),
        (("import", "utilisation", "load.csv", "--own", "gpu=x", "-o", "t.csv"), "not a number"),
        (("import", "kineto", "load.csv", "--clean", "0.1", "-o", "t.csv"), "no option of kineto"),
        (
            ("import", "utilisation", "load.csv", "--column", "gpu=gpu", "--column", "gpu=node",
             "-o", "t.csv"), "say it once",
        ),
        (("resample", "slow.csv", "--block", "60", "-o", "t.csv"), "no longer than the trace"),
        (("resample", "slw.csv", "-o", "t.csv"), "Did you mean 'slow.csv'?"),
        (("describe", "slow.csv", "--plot", "t.jpg"), "t.jpg: is no name of a picture"),
        (("describe", "slow.csv", "--plot", "slow.csv"), "would be lost"),
        (("generate", "--nodes", "1000000000", "-o", "t.csv"), "would have about 1.9e+10 rows"),
        (("generate", "--model", "on-off", "--seconds", "1e12", "-o", "t.csv"), "4.4e+10 rows"),
        (("resample", "slow.csv", "--seconds", "1e15", "-o", "t.csv"), "and 1e+08 are the most"),
        (("resample", "slow.csv", "--workers", "1000000000", "-o", "t.csv"), "of fewer nodes"),
        (("generate", "--model", "onoff", "-o", "t.csv"), "Did you mean 'on-off'?"),
        (("generate", "--model", "on-off", "--gap", "9", "-o", "t.csv"), "needs --model episodes"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_writes_nothing(
    arguments: tuple[str, ...], message: str, folder: Path, call: Call
) -> None:
    assert message in refusal(call("trace", *arguments))
    assert sorted(path.name for path in folder.iterdir()) == ["load.csv", "slow.csv"]


def test_a_trace_of_speed_ups_alone_is_described_without_a_mean_slowdown(
    folder: Path, call: Call
) -> None:
    header = "time,node,resource,kind,value\n"
    (folder / "fast.csv").write_text(header + "0,0,gpu,slowdown,0.5\n9,0,gpu,slowdown,0.5\n")
    code, out, err = call("trace", "describe", "fast.csv")
    assert (code, err) == (0, "")
    assert "Nothing is ever slowed. 2 rows with a slowdown below 1" in " ".join(out.split())
    titles, cells = (line.split() for line in out.splitlines()[-2:])
    row = dict(zip(titles, cells, strict=True))
    assert (row["mean_slowdown"], row["max_slowdown"]) == ("-", "0.5")
    assert "nan" not in out
    code, out, err = call("trace", "describe", "fast.csv", "--json")
    assert json.loads(out)["slowdowns"][0]["mean_slowdown"] is None


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [("0.5", ""), ("0,5", " Decimal commas are read as points in: seconds.")],
)
def test_describe_says_of_a_log_that_it_has_decimal_commas(
    seconds: str, sentence: str, call: Call
) -> None:
    Path("steps.csv").write_text(f"rank;step;seconds\n0;0;{seconds}\n1;0;{seconds}\n")
    text = "steps.csv: a log in format steps, and no trace yet."
    assert call("trace", "describe", "steps.csv")[1].splitlines()[0] == text + sentence


def test_an_import_names_its_placeholders_and_a_command_that_gives_them(call: Call) -> None:
    """The command's numbers are examples: the last line stays the one to type as it is."""
    rows = [f"{k % 4},{k // 4},0.{5 + k % 3}" for k in range(200)]
    Path("steps.csv").write_text("\n".join(["rank,step,seconds", *rows]))
    _, out, _ = call("trace", "import", "steps", "steps.csv", "-o", "t.csv", "--scenario", "s.yaml")
    assert out.splitlines()[-1] == "next: simstrag compare s.yaml"
    (line,) = (line for line in out.splitlines() if line.startswith("placeholders: "))
    names, _, rest = line.removeprefix("placeholders: ").partition("; replace them in s.yaml, ")
    assert names.split(", ") == list(Scenario.read("s.yaml").placeholders)
    program, *words = shlex.split(rest.partition("such as: ")[2])
    assert (program, call(*words)[0]) == ("simstrag", 0)
    left = {"allreduce.alpha", "learner.noise_scale", "learner.c_tau"}
    assert set(Scenario.read(words[-1]).placeholders) == left
