"""The live view: it says of the steps so far what a diagnosis says of them, and loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import simstrag
from simstrag.analysis.monitor import follow
from simstrag.analysis.monitor import watcher as watching
from simstrag.analysis.monitor.follow import RecordFollower
from simstrag.analysis.monitor.snapshot import Snapshot
from simstrag.analysis.monitor.totals import SHOWN, concatenate
from simstrag.analysis.monitor.watcher import Watcher
from simstrag.ddp.collector.record import HEADER
from simstrag.ddp.journal.journal import NAME
from simstrag.ddp.journal.run_from_journal import finish
from simstrag.errors import InputError
from simstrag.records import recorded_rows
from simstrag.records.log_file import LogFile
from simstrag.records.record import Record
from simstrag.records.recorded_rows import PLAIN, RankRows
from simstrag.records.steps import rank_files, read
from simstrag.whatif.analysis import late_replicas
from simstrag.whatif.diagnosis import diagnose
from tests.ddp.test_ddp_journal import recorded
from tests.support.growing_records import GrowingRecord, drawn, rows, write_record
from tests.whatif.test_whatif_groups import by_hand as write_groups

FSDP = Path("examples/recorded-fsdp2")


def assert_as_diagnosed(found: Snapshot, *files: Path) -> None:
    """The totals of a snapshot are those of a diagnosis of the same steps."""
    steps = diagnose(*files, compare=[]).steps
    late = late_replicas(steps.replay.layout)
    assert found.steps == len(steps.metrics.step)
    assert [each.last for each in found.ranks] == list(late.last)
    assert [each.awaited for each in found.ranks] == pytest.approx(list(late.waited), rel=1e-9)
    hours = [each["others_waited_gpu_hours"] for each in steps.document["last"]]
    assert found.lost_hours == pytest.approx(sum(hours), rel=1e-9)
    assert found.spent == pytest.approx(steps.metrics.recorded.sum() * steps.gpus, rel=1e-9)


def old(folder: Path, seconds: float = 3600.0) -> None:
    """The files of a folder were written so long ago."""
    for path in folder.iterdir():
        at = time.time() - seconds
        os.utime(path, (at, at))


def only_warning(found: Snapshot) -> str:
    (warned,) = (each.text for each in found.warnings)
    return warned


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Path]:
    """Writes a record of these ranks; its folder."""
    return lambda parts=1, **drawing: write_record(tmp_path / "run", drawn(**drawing), parts)


Write = Callable[..., Path]


# -- what a growing record says


@pytest.mark.parametrize("parts", [1, 3])
def test_a_record_that_grows_byte_by_byte_gives_the_losses_of_a_diagnosis(
    parts: int, tmp_path: Path
) -> None:
    record = GrowingRecord(tmp_path / "run", drawn(), parts)
    record.grow(0, 10)
    watcher, rng = Watcher([record.folder]), np.random.default_rng(1)
    seen = []
    while not record.is_whole:
        for rank, count in enumerate(rng.integers(0, 2500 * parts, 4).tolist()):
            record.grow(rank, count)
        seen.append(watcher.update().steps)
    assert len(set(seen)) > 5
    assert_as_diagnosed(watcher.catch_up(), record.folder)


@pytest.mark.parametrize("piece", [4, 500, 1900])
@pytest.mark.parametrize("steps", [2, 4, 15])
def test_steps_that_are_larger_than_a_piece_are_read_to_the_last_one(
    piece: int, steps: int, record: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PIECE", piece)
    folder = record(3, steps=steps)
    found = Watcher([folder]).catch_up()
    assert found.share == 1
    assert found.last == 2 + steps
    assert_as_diagnosed(found, folder)


def test_the_losses_of_the_shipped_record_are_those_of_its_diagnosis() -> None:
    assert_as_diagnosed(simstrag.watch(FSDP), FSDP)


def test_who_waited_is_told_by_group_where_ranks_have_several(tmp_path: Path) -> None:
    """In replica 0 rank 0 waits 3 s for rank 1, so that shard 0 then waits for rank 0.

    In shard 1 ranks 3 and 5 wait for rank 1.
    """
    write_groups(tmp_path)
    found = simstrag.watch(tmp_path)
    assert_as_diagnosed(found, tmp_path)
    groups = {each.rank: each.groups for each in found.ranks}
    assert groups[1] == ("shard 1", "replica 0")
    assert groups[0] == ("shard 0",)
    assert "for rank 1, in shard 1 and replica 0:" in str(found)


def test_start_up_counts_for_neither(tmp_path: Path) -> None:
    own = drawn(steps=200, slow=None)
    own[:, :12] *= 40
    found = simstrag.watch(write_record(tmp_path / "run", own))
    assert found.steps == 188
    assert_as_diagnosed(found, tmp_path / "run")


def test_the_slow_rank_is_named_once_the_tests_are_sure(record: Write) -> None:
    found = simstrag.watch(record(steps=400), gpu_price=3.0)
    assert found.slowest == (2, pytest.approx(1.47, abs=0.05))  # the optimizer is of all alike
    assert found.warnings[0].text.startswith("rank 2 is chronically slow")
    assert found.lost_money == pytest.approx(3 * found.lost_hours)
    assert str(found).startswith("Rank 2 computes 1.4")
    assert "rank 2" in found._repr_html_()


def test_without_a_slow_rank_the_first_sentence_says_that_all_is_well(tmp_path: Path) -> None:
    own = np.full((4, 100), 0.03) * np.linspace(1, 1.0001, 4)[:, None]
    found = simstrag.watch(write_record(tmp_path / "run", own))
    assert str(found).startswith("All is well: no rank is chronically slow")


def test_the_picture_has_the_latest_steps_and_memory_stays_bounded(record: Write) -> None:
    found = simstrag.watch(record(ranks=2, steps=3000, slow=1))
    assert found.own.shape == (2, SHOWN)
    ratios, begins = found.picture(60)
    assert ratios.shape == (2, 60)
    assert begins[0] == 3003 - SHOWN


def test_one_rank_alone_is_as_long_as_its_peers(record: Write) -> None:
    found = simstrag.watch(record(ranks=1, slow=None))
    assert [each.factor for each in found.ranks] == [1.0]
    assert found.lost == 0


# -- rows in bulk


def same(first: Record, second: Record) -> bool:
    """Starts are sums, whose last digit depends on how they are added."""
    return all(
        np.allclose(a, b, rtol=0, atol=1e-15) if isinstance(a, np.ndarray) else a == b
        for each in fields(Record)
        for a, b in [(getattr(first, each.name), getattr(second, each.name))]
    )


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_in_bulk_are_the_record_that_reading_them_one_by_one_gives(
    parts: int, record: Write
) -> None:
    paths = rank_files(record(parts, ranks=12, steps=20))
    pieces = {path: RankRows(PLAIN, path.read_bytes().removeprefix(PLAIN)) for path in paths}
    assert same(recorded_rows._in_bulk(pieces), read(list(map(LogFile.open, paths))))


def test_a_row_that_is_damaged_is_named_as_reading_names_it(record: Write) -> None:
    folder = record(ranks=2, steps=6, slow=None)
    path = folder / "rank-1.csv"
    path.write_text(path.read_text().replace("1,4,compute,0.0", "1,4,compute,no"))
    warned = only_warning(Watcher([folder]).catch_up())
    assert "steps up to 8 are left out" in warned
    assert "rank-1.csv" in warned


def test_pieces_joined_are_the_record(tmp_path: Path) -> None:
    record = GrowingRecord(tmp_path / "run", drawn())
    following, pieces = None, []
    while not record.is_whole:
        for rank in range(4):
            record.grow(rank, 700)
        following = following or RecordFollower([record.folder])
        pieces.append(following.piece())
    whole = read(list(map(LogFile.open, rank_files(record.folder))))
    assert same(concatenate([each for each in pieces if each is not None]), whole)


# -- what goes wrong: one line each, and nothing lost


def test_a_killed_rank_is_named_and_what_all_had_done_counts(record: Write) -> None:
    folder = record(slow=None)
    (folder / "rank-1.csv").write_text(HEADER + rows(drawn(slow=None)[:, :50], 1))
    at = time.time() - 30
    os.utime(folder / "rank-1.csv", (at, at))
    found = Watcher([folder]).catch_up()
    assert only_warning(found) == (
        "rank 1 has written nothing after step 52, and others are at 122: it may have been killed"
    )
    assert str(found).startswith("Rank 1 has written nothing for 30.0 s")
    assert_as_diagnosed(found, folder)


def test_a_full_disk_of_a_rank_is_told_by_its_last_line(record: Write) -> None:
    folder = record(slow=None)
    path = folder / "rank-3.csv"
    path.write_bytes(path.read_bytes()[:-7])
    old(folder)
    found = Watcher([folder]).catch_up()
    said = "rank 3: its file ends within a line; its disk may be full"
    assert only_warning(found).startswith(said)
    assert found.steps == 119
    assert_as_diagnosed(found, folder)


def test_a_disk_without_room_is_said_once(record: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = record(slow=None)
    usage = shutil.disk_usage(folder)._replace(free=0)
    monkeypatch.setattr(watching.shutil, "disk_usage", lambda _: usage)
    watcher = Watcher([folder])
    watcher.update()
    warned = only_warning(watcher.update())
    assert warned.endswith("the disk is full, and recording ends there")


def test_two_watchers_see_the_same_and_change_nothing(record: Write) -> None:
    folder = record()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    one, other = (watcher.catch_up() for watcher in [Watcher([folder]), Watcher([folder])])
    assert str(one) == str(other)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_two_hosts_folders_give_what_they_give_when_copied_together(tmp_path: Path) -> None:
    own = drawn()
    whole = write_record(tmp_path / "whole", own)
    hosts = [tmp_path / "host1", tmp_path / "host2"]
    for k, host in enumerate(hosts):
        host.mkdir()
        for rank in (2 * k, 2 * k + 1):
            shutil.copy(whole / f"rank-{rank}.csv", host)
    shutil.copy(whole / "meta.yaml", hosts[0])
    apart = simstrag.watch(*hosts)
    assert [each.awaited for each in apart.ranks] == [
        each.awaited for each in simstrag.watch(whole).ranks
    ]
    assert not [each for each in apart.warnings if "no file" in each.text]
    assert_as_diagnosed(apart, *hosts)


def test_the_same_rank_in_two_folders_is_refused(tmp_path: Path) -> None:
    folders = [write_record(tmp_path / name, drawn()) for name in ("first", "second")]
    with pytest.raises(InputError, match=r"second/rank-0\.csv: is of rank 0, as .*first"):
        simstrag.watch(*folders)


def test_a_rank_without_a_file_is_named(record: Write) -> None:
    folder = record(slow=None)
    (folder / "rank-0.csv").unlink()
    assert only_warning(simstrag.watch(folder)).startswith("rank 0 of 4 has no file")


@pytest.mark.parametrize("is_shorter", [True, False])
def test_a_file_that_was_replaced_is_read_anew(is_shorter: bool, record: Write) -> None:
    lengths = {"steps": 120}, {"steps": 60}
    first, second = lengths if is_shorter else lengths[::-1]
    folder = record(**first)
    watcher = Watcher([folder])
    watcher.catch_up()
    record(**second, slow=None, seed=3)
    watcher.update()
    found = watcher.catch_up()
    if is_shorter:
        assert "was replaced or cut: the run is read anew" in found.warnings[-1].text
    assert_as_diagnosed(found, folder)


def test_a_folder_that_is_deleted_leaves_what_it_said(record: Write) -> None:
    folder = record(slow=None)
    watcher = Watcher([folder])
    before = watcher.catch_up()
    shutil.rmtree(folder)
    after = watcher.update()
    assert after.lost == before.lost
    assert all(each.text.endswith("is gone; what it said is kept") for each in after.warnings)


def test_a_rank_that_comes_late_counts_from_the_first_step(record: Write) -> None:
    folder = record()
    text = (folder / "rank-0.csv").read_text()
    (folder / "rank-0.csv").unlink()
    watcher = Watcher([folder])
    watcher.catch_up()
    (folder / "rank-0.csv").write_text(text)
    watcher.update()
    assert_as_diagnosed(watcher.catch_up(), folder)


def test_a_record_of_long_ago_is_over(record: Write) -> None:
    folder = record()
    assert not simstrag.watch(folder).is_over
    old(folder)
    assert simstrag.watch(folder).is_over


def test_what_is_no_folder_of_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no record of simstrag"):
        simstrag.watch(tmp_path)
    with pytest.raises(InputError, match="nowhere"):
        simstrag.watch(tmp_path / "nowhere")
    (tmp_path / "steps.csv").write_text("rank,step,seconds\n")
    with pytest.raises(InputError, match="is a file; give the folder"):
        simstrag.watch(tmp_path / "steps.csv")


# -- runs of `simstrag ddp`


def test_a_run_that_is_recorded_gives_what_its_diagnosis_gives_in_the_end(tmp_path: Path) -> None:
    recorded(tmp_path / "run", "bsp")
    folder = tmp_path / "run"
    text = (folder / NAME).read_text()
    assert '["lockstep"' in text or '["done"' in text
    found = Watcher([folder]).catch_up()
    finish(folder)
    if found.is_synced:
        assert_as_diagnosed(found, folder)
    assert found.is_over


def lockstep_journal(steps: int = 60, ranks: int = 4) -> list[str]:
    """The lines of a run whose ranks step together."""
    own, now = drawn(ranks, steps), 0.0
    header = {"format": "simstrag-journal/1", "policy": "bsp", "world_size": ranks}
    lines = [json.dumps(["header", header])]
    for seconds in own.T:
        end = now + float(seconds.max()) + 0.004
        lines.append(json.dumps(["lockstep", now, seconds.tolist(), end]))
        now = end
    return lines


END = '["end", 9.0, {}]'
LOST = float((drawn(4, 60).max(axis=0) - drawn(4, 60)).sum())
"""Seconds that ranks wait in a journal of 60 steps."""


def journalled(folder: Path, *lines: str) -> Watcher:
    """The watcher of a run whose journal has these lines."""
    folder.mkdir(exist_ok=True)
    (folder / NAME).write_text("\n".join([*lines, ""]))
    return Watcher([folder])


def test_a_journal_that_grows_counts_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text("")
    text, watcher = "\n".join([*lockstep_journal(), END]) + "\n", None
    for begin in range(0, len(text), 333):
        with path.open("a") as file:
            file.write(text[begin : begin + 333])
        watcher = watcher or Watcher([tmp_path])
        found = watcher.update()
    assert found.steps == 60
    assert found.is_over
    assert found.lost == pytest.approx(LOST, rel=1e-9)


def test_a_rank_that_has_left_a_run_is_named(tmp_path: Path) -> None:
    watcher = journalled(tmp_path, *lockstep_journal(), '["gone", 7.0, 2]')
    watcher.update()
    found = watcher.update()
    assert "rank 2 is gone since second 7 of the run" in [each.text for each in found.warnings]


def test_a_restarted_run_is_watched_from_its_latest_start(tmp_path: Path) -> None:
    watcher = journalled(tmp_path, *lockstep_journal())
    watcher.catch_up()
    journalled(tmp_path / "attempt-1", *lockstep_journal(20), END)
    watcher.update()
    found = watcher.catch_up()
    assert found.steps == 20
    assert any("began anew" in each.text for each in found.warnings)


def test_under_a_server_ranks_are_shown_and_no_loss_is_invented(tmp_path: Path) -> None:
    recorded(tmp_path, "asgd")
    found = Watcher([tmp_path]).catch_up()
    assert not found.is_synced
    assert found.document["lost_gpu_hours"] is None
    assert found.own.shape[0] == 4
    assert "not known while it runs" in str(found)


def test_a_run_that_changes_to_a_server_and_back_keeps_its_losses(tmp_path: Path) -> None:
    lines = lockstep_journal()
    served = [json.dumps(["done", 0.1 * k, k % 4, 0.03]) for k in range(42)]
    watcher = journalled(tmp_path, *lines[:31], *served, *lines[31:], END)
    found = watcher.catch_up()
    assert (found.steps, found.is_synced, found.is_over) == (70, True, True)
    assert found.lost == pytest.approx(LOST, rel=1e-9)
    assert len(np.unique(watcher.latest.step)) == 30


@pytest.mark.parametrize(
    "bad", ['["lockstep", 0.1, [0.1', "{}", "7", '["lockstep", 1.0, [0.1], 2.0]', '["gone"]', ""]
)
def test_a_damaged_line_of_a_journal_is_said_once_and_left_out(bad: str, tmp_path: Path) -> None:
    lines = lockstep_journal()
    text = ['["done", 0.1, 1, 0.5]', *lines[:20], bad, *lines[20:40], bad, *lines[40:], END]
    watcher = journalled(tmp_path, *text)
    watcher.catch_up()
    found = watcher.update()
    (warned,) = (each.text for each in found.warnings if "rank 2" not in each.text)
    assert warned.endswith("lines that are none of a journal are left out")
    assert found.steps == 60
