"""`simstrag demo`: the main job from an installed wheel, without a file of one's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from simstrag.cli.commands import EXAMPLES
from simstrag.scenario.scenario import DEMO
from tests.support.commands import Call

ROOT = Path(__file__).parents[2]
FILES = {"h200.yaml", "h200.csv", "nvidia-h200-resnet50.json"}


@pytest.fixture
def small(
    tmp_path_factory: pytest.TempPathFactory, no_page: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A demo of seconds, in place of the shipped one; returns its working directory."""
    shipped = tmp_path_factory.mktemp("shipped") / "simstrag"
    profile = Path("calibration/profiles/nvidia-h200-resnet50.json")
    (shipped / "examples").mkdir(parents=True)
    (shipped / profile.parent).mkdir(parents=True)
    shutil.copy(DEMO.parent.parent / profile, shipped / profile)
    shutil.copy(DEMO.with_name("h200.csv"), shipped / "examples")
    text = DEMO.read_text(encoding="utf-8").replace("seeds: 20", "seeds: 1")
    text = text.replace("[bsp, amp_all, korel, lb_bsp]", "[bsp, lb_bsp]")
    small = shipped / "examples" / DEMO.name
    small.write_text(text.replace("samples: 1024000", "samples: 10240"), encoding="utf-8")
    for module in ("scenario", "demo"):
        monkeypatch.setattr(f"simstrag.scenario.{module}.DEMO", small)
    work = tmp_path_factory.mktemp("work")
    (work / "tmp").mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", str(work / "tmp"))
    return work


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_demo_writes_a_report_and_files_to_edit(small: Path, call: Call) -> None:
    code, out, _ = call("demo", "--out", "mine")
    *_, report, after = out.splitlines()
    assert (code, report) == (0, "report: mine/comparison/report.html")
    assert after == "next: edit mine/h200.yaml, then simstrag compare mine/h200.yaml"
    assert names(small / "mine") == {*FILES, "comparison"}
    assert names(small / "tmp") == set()
    assert "profile: nvidia-h200-resnet50.json\n" in (small / "mine/h200.yaml").read_text()
    assert call("compare", "mine/h200.yaml", "-q")[:2] == (0, "reports/h200/report.html\n")


def test_without_a_folder_the_demo_makes_one(small: Path, call: Call) -> None:
    code, out, _ = call("demo", "--quiet")
    (folder,) = (small / "tmp").iterdir()
    assert (code, out) == (0, f"{folder}/comparison/report.html\n")


def test_the_demo_answers_as_compare_does(small: Path, call: Call) -> None:
    demo = json.loads(call("demo", "--out", "mine", "--json")[1])
    compare = json.loads(call("compare", "mine/h200.yaml", "--out", "again", "--json")[1])
    differ = {key for key in compare if demo[key] != compare[key]}
    assert differ == {"written", "report"}


def test_the_demo_is_repeated_in_its_folder_but_not_over_edits(small: Path, call: Call) -> None:
    again = [call("demo", "--out", "mine", "-q")[0] for _ in range(2)]
    assert again == [0, 0]
    (small / "mine" / "h200.csv").write_text("mine")
    assert call("demo", "--out", "mine") == (
        2, "", "error: mine/h200.csv: is not the demo's any more; run simstrag compare "
        "mine/h200.yaml, or choose a folder that does not exist yet\n",
    )  # fmt: skip


def test_the_demo_is_written_over_nothing_else(small: Path, call: Call) -> None:
    (small / "tmp" / "notes.md").write_text("mine")
    way_out = "choose a folder that does not exist yet\n"
    assert call("demo", "--out", "tmp")[1:] == ("", f"error: tmp: holds other files; {way_out}")
    file = "tmp/notes.md"
    assert call("demo", "--out", file)[1:] == ("", f"error: {file}: is a file; {way_out}")
    code, _, err = call("demo", "--out", "/proc/demo")
    assert (code, err) == (2, "error: /proc/demo: cannot write: No such file or directory\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing was written"),
        (["--out", "mine"], "mine keeps what is finished; the same command goes on"),
    ],
)
def test_an_interrupted_demo_says_what_is_kept(
    small: Path, call: Call, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simstrag.experiments.compare.compare", stop)
    assert call("demo", *options) == (130, "", f"interrupted; {message}\n")
    assert names(small / "tmp") == set()
    assert (small / "mine").exists() == bool(options)


@pytest.mark.parametrize("display", ["", ":0"])
def test_the_report_is_opened_where_there_is_a_screen(
    small: Path, call: Call, monkeypatch: pytest.MonkeyPatch, display: str
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    err = call("demo", "--out", "mine", "--open", "--quiet")[2]
    page = "mine/comparison/report.html"
    none = f"warning: there is no browser to open here; copy {page} to a machine that has one\n"
    assert opened == ([(small / page).as_uri()] if display else [])
    assert err == ("" if display else none)


def test_the_examples_of_the_help_work(small: Path, call: Call) -> None:
    assert [call(*line.split()[1:])[0] for line in EXAMPLES["demo"]] == [0, 0]
