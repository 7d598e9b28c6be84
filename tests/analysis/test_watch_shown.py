"""The live view as it is shown: terminal, page, metrics, and the command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import simstrag
from simstrag.analysis.monitor import advisor as advising
from simstrag.analysis.monitor import page as pages
from simstrag.analysis.monitor.advice_process import advise_on
from simstrag.analysis.monitor.advisor import PERIOD, Advisor
from simstrag.analysis.monitor.metrics import MetricsServer, families
from simstrag.analysis.monitor.placement import CROWDED, UNPINNED, UNSEEN, choose
from simstrag.analysis.monitor.snapshot import AdviceSoFar, Snapshot, Warned
from simstrag.analysis.monitor.terminal import frame
from simstrag.analysis.monitor.watcher import Watcher
from simstrag.cli import watch as command
from simstrag.cli.errors import Interrupted
from simstrag.errors import InputError
from tests.support.commands import Call
from tests.support.growing_records import drawn, write_record

ADVICE = AdviceSoFar(
    (("who", "Rank 2 takes 1.50 times as long."), ("fix", "rank 2 like the others: 15 % less.")),
    "Run load-balanced BSP (lb_bsp): 22.1 % sooner. Another is as fast.",
    "a batch of 32 samples a rank", 3, 402, 0.0,
)  # fmt: skip


def latest(folder: Path, **drawing: Any) -> Any:
    """The latest steps of a record that its watcher keeps."""
    watcher = Watcher([write_record(folder / "run", drawn(**drawing))])
    watcher.catch_up()
    return watcher.latest


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Four ranks, the third of which is slow, with advice."""
    folder = write_record(tmp_path_factory.mktemp("watched") / "run", drawn(steps=400))
    seen = simstrag.watch(folder, gpu_price=2.0)
    return replace(seen, advice=ADVICE._replace(made=seen.made - 125))


@pytest.fixture(scope="module")
def crowd(found: Snapshot) -> Snapshot:
    """As many as 64 ranks, a long name, many warnings."""
    ranks = tuple(
        found.ranks[k % 4]._replace(rank=k, factor=1 + k / 1000, silent=40.0 * (k == 60))
        for k in range(64)
    )
    return replace(
        found, ranks=ranks, own=np.tile(found.own, (16, 1)), source="/very/long" * 30,
        warnings=tuple(Warned(k, "a warning that is rather long, " * 9) for k in range(9)),
    )  # fmt: skip


# -- the terminal


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (40, 12)])
def test_a_frame_fits_its_terminal(found: Snapshot, crowd: Snapshot, size: tuple[int, int]) -> None:
    for each in (found, crowd, replace(found, steps=0, ranks=())):
        lines = frame(each, *size).plain.split("\n")
        assert len(lines) < size[1]
        assert max(map(len, lines)) <= size[0]


def test_of_many_ranks_the_silent_and_the_slowest_are_shown(crowd: Snapshot) -> None:
    assert crowd.wrong == {2, 60}
    text = frame(crowd, 80, 24).plain
    assert re.search(r"^  60 .*silent 40 s$", text, re.MULTILINE)
    assert re.search(r"^  63 .*1\.06", text, re.MULTILINE)
    assert "ranks more, 1.00 to 1.06 times as long as their peers" in text


def test_a_frame_says_first_what_is_wrong_and_what_would_help(found: Snapshot) -> None:
    lines = frame(found, 120, 40).plain.split("\n")
    assert lines[1].startswith("Rank 2 computes 1.4")
    assert lines[2] == "help     Run load-balanced BSP (lb_bsp): 22.1 % sooner."
    assert lines[-1] == (
        "advice   of steps 3 to 402, 2 minutes ago, for a batch of 32 samples a rank (assumed)"
    )


def test_slow_steps_have_another_mark_where_there_are_no_colours(found: Snapshot) -> None:
    rows = [line for line in frame(found, 100, 40).plain.split("\n") if re.match(r" +\d ", line)]
    assert [bool(re.search("[░▒▓█]", row)) for row in rows] == [False, False, True, False]


def test_a_name_cannot_write_to_the_terminal(found: Snapshot) -> None:
    bad = replace(found, source="run\x1b[2J", warnings=(Warned(1, "\x1b]0;title\x07"),))
    assert not re.search("[\x00-\x09\x0b-\x1f]", frame(bad, 80, 24).plain)


def test_a_view_in_a_terminal_does_without_what_draws_pages() -> None:
    code = (
        "import sys, simstrag.cli.watch, simstrag.analysis.monitor.terminal\n"
        "import simstrag.analysis.monitor.watcher, simstrag.analysis.monitor.advisor\n"
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- the page


def test_the_page_loads_itself_again_and_nothing_else(found: Snapshot) -> None:
    text = pages.page(found, 5)
    assert '<meta http-equiv="refresh" content="5">' in text
    assert not re.search(r'(src|href)="(?!data:)|url\((?!data:)|@import|<script', text)


def test_the_page_of_a_run_that_is_over_stays_as_it_is(found: Snapshot) -> None:
    text = pages.page(replace(found, is_over=True), 5)
    assert 'http-equiv="refresh"' not in text
    assert "the run is over" in text


def test_the_page_says_what_the_terminal_says(found: Snapshot) -> None:
    text = re.sub(r"<[^>]+>", "", pages.page(found, 5))
    for line in frame(found, 400, 60).plain.split("\n")[1:2]:
        assert line in text
    assert "22.1 % sooner" in text
    assert "rank 2 like the others" in text


def test_the_page_escapes_what_a_file_says(found: Snapshot) -> None:
    text = pages.page(replace(found, warnings=(Warned(1, "<script>alert(1)</script>"),)), 5)
    assert "<script>" not in text


def test_the_page_is_replaced_at_once(found: Snapshot, tmp_path: Path) -> None:
    for _ in range(2):
        pages.write(found, tmp_path / "watch.html", 5)
    assert [path.name for path in tmp_path.iterdir()] == ["watch.html"]


# -- metrics


def read_metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ")[::2] for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_metrics_have_the_numbers_of_the_snapshot(found: Snapshot) -> None:
    pytest.importorskip("prometheus_client")
    with MetricsServer("0") as server:
        assert read_metrics(server.port) == {}
        server.show(found)
        numbers = read_metrics(server.port)
    assert numbers["simstrag_lost_gpu_seconds"] == found.lost
    assert numbers["simstrag_lost_cost"] == found.lost_money
    assert numbers['simstrag_rank_step_seconds{rank="2"}'] == found.ranks[2].computing
    assert numbers["simstrag_slowest_rank"] == 2
    assert numbers["simstrag_slowest_rank_factor"] == found.slowest[1]
    assert all(re.fullmatch(r"simstrag_[a-z_]+(\{rank=\"\d\"\})?", name) for name in numbers)


def test_no_metric_is_a_counter_as_sums_may_fall(found: Snapshot) -> None:
    pytest.importorskip("prometheus_client")
    assert {each.type for each in families(found)} == {"gauge"}


def test_a_port_that_is_taken_is_refused_in_one_line() -> None:
    pytest.importorskip("prometheus_client")
    with MetricsServer("0") as server, pytest.raises(InputError, match="give another port"):
        MetricsServer(str(server.port))


def test_without_the_package_of_metrics_the_extra_is_named(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    folder = write_record(tmp_path / "run", drawn())
    message = (
        'error: this command needs the package prometheus_client; pip install "simstrag[watch]"\n'
    )
    assert call("watch", str(folder), "--metrics", "0") == (2, "", message)


@pytest.mark.parametrize("text", ["here", "70000", "host:", "-1"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="give a port or host:port, such as 9464"):
        MetricsServer(text)


# -- what would help


def test_advice_names_the_slow_rank_and_what_to_run(tmp_path: Path) -> None:
    said = advise_on(latest(tmp_path, steps=60), 2.0)
    assert ["Rank 2 takes" in text for label, text in said["lines"] if label == "who"] == [True]
    assert "sooner" in said["action"]
    assert said["assumed"] == "a batch of 32 samples a rank"


@pytest.mark.parametrize(
    ("ranks", "cores", "note"),
    [
        ([], (), UNSEEN),
        ([{0}, {1}], (2,), ""),
        ([{0}, {1}, {2}], (), CROWDED),
        ([{0, 1, 2}], (0, 1, 2), UNPINNED),
        ([{0, 1, 2}] * 3, (), CROWDED),
        ([{0}, {0, 1, 2}], (1, 2), UNPINNED),
        ([{0}, {1}, {0, 1, 2}], (), CROWDED),
    ],
)
def test_advice_is_never_computed_on_a_core_that_trains(
    ranks: list[set[int]], cores: tuple[int, ...], note: str
) -> None:
    assert choose([0, 1, 2], [frozenset(each) for each in ranks]) == (cores, note)


def test_advice_begins_again_only_for_new_steps_and_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advisor, clock = Advisor([tmp_path], None), [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    assert not advisor.is_due(5, 7)
    assert advisor.is_due(20, 22)
    advisor.begin(latest(tmp_path, steps=30, slow=None), is_over=True)
    advisor.wait()
    assert advisor.advice.line("who").startswith("No rank is slower")
    assert not advisor.is_due(40, 42)
    clock[0] += PERIOD
    assert advisor.is_due(40, 42)
    assert not advisor.is_due(40, 32)


def test_advice_of_an_earlier_start_is_forgotten(tmp_path: Path) -> None:
    advisor = Advisor([tmp_path], None)
    advisor.advice, advisor._of = ADVICE, (3, 5000)
    advisor.forget(0)
    assert advisor.advice is ADVICE
    assert not advisor.is_due(900, 903)
    advisor.forget(1)
    assert advisor.advice is None
    assert advisor.is_due(900, 903)


def test_while_a_run_whose_ranks_are_unseen_writes_no_advice_is_begun(tmp_path: Path) -> None:
    advisor = Advisor([tmp_path], None)
    advisor.begin(latest(tmp_path, steps=30), is_over=False)
    assert (advisor.is_busy, advisor.note) == (False, UNSEEN)
    assert not advisor.is_due(30, 32)
    assert advisor.is_due(30, 32, is_over=True)


def test_a_process_of_advice_that_cannot_start_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(advising, "start_module", refuse)
    advisor = Advisor([tmp_path], None)
    advisor.begin(latest(tmp_path, steps=30), is_over=True)
    note = "what would help was not computed: Broken pipe"
    assert (advisor.is_busy, advisor.note) == (False, note)


# -- the command


def test_a_run_that_is_over_is_shown_once(call: Call, tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", drawn())
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    code, out, err = call("watch", str(folder), "--no-advice")
    assert (code, err) == (0, "")
    assert out.startswith("Rank 2 computes")
    assert "finished or stopped" in out


def test_one_json_document_has_what_the_snapshot_has(call: Call, tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", drawn())
    code, out, _ = call("watch", str(folder), "--json", "--no-advice", "--gpu-price", "2")
    assert code == 0
    document = json.loads(out)
    assert document["slowest"]["rank"] == 2
    assert document["lost_cost"] == pytest.approx(2 * document["lost_gpu_hours"])


def test_without_a_terminal_each_look_is_a_line_and_each_warning_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_record(tmp_path / "run", drawn())
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", sleep)
    with pytest.raises(Interrupted, match="the run goes on, it was only read"):
        command.watch([folder], every=0.5, advice=False, html=tmp_path / "watch.html")
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("warning: rank 2") for line in lines] == [True, False, False, False]
    assert all("running · Rank 2" not in line for line in lines[:1])
    assert (tmp_path / "watch.html").exists()


def test_a_page_in_no_folder_is_refused_before_anything_is_read(call: Call, tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run", drawn())
    code, _, err = call("watch", str(folder), "--once", "--html", str(tmp_path / "no" / "x.html"))
    assert code == 2
    assert "there is no folder" in err


def test_on_a_terminal_a_frame_replaces_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from io import StringIO

    screen = StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80, height=24, _environ={})
    monkeypatch.setattr(command, "console", lambda: terminal)
    monkeypatch.setattr(command.time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(Interrupted):
        command.watch([write_record(tmp_path / "run", drawn())], advice=False)
    written = screen.getvalue()
    assert "Rank 2 computes" in written
    assert written.endswith("\x1b[?25h")  # the cursor is back
