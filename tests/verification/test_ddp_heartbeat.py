"""The board: who is to blame for a collective that failed, of ranks that are processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

from simstrag.ddp.failures import heartbeat as module  # noqa: E402
from simstrag.ddp.failures import process_identity  # noqa: E402
from simstrag.ddp.failures.abort_collectives import Connections  # noqa: E402
from simstrag.ddp.failures.diagnosis import describe_error  # noqa: E402
from simstrag.ddp.failures.heartbeat import HeartbeatStore  # noqa: E402
from simstrag.ddp.failures.process_identity import ProcessIdentity  # noqa: E402

NAMES = (0, 3, 5)
FATES: tuple[tuple[str, set[int]], ...] = (
    ("", {1}), ("stopped", {1}), ("noticed", set()), ("left", set()),
)  # fmt: skip


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[HeartbeatStore]]:
    """Of three ranks, which are threads of this process here, in the middle of step 7."""
    monkeypatch.setattr(module, "BEATS", 400)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = [
        HeartbeatStore(dist.PrefixStore("g", store), k, NAMES, stall_limit=20.0) for k in range(3)
    ]
    for each in found:
        each.mark(7, "reducing")
    yield found
    for each in found:
        each.close()


def falls_silent(board: HeartbeatStore) -> None:
    board._over.set()
    board._thread.join()


def elsewhere(board: HeartbeatStore, host: str) -> None:
    """As if it ran on another host."""
    there = ProcessIdentity(host, os.getpid(), 1.0)
    board._store.set(f"who/{board.rank}", json.dumps(there))


def test_one_that_beats_and_has_not_come_is_slow(boards: list[HeartbeatStore]) -> None:
    boards[1].mark(7, "computing")
    blame = boards[0].diagnose()
    assert (blame.kind, blame.ranks, blame.lost) == ("slow", (1,), ())
    assert (blame.step, blame.phase) == (7, "computing")
    assert str(blame) == (
        "rank 3 is slow: alive, but still at step 7 while computing, and the others wait"
    )


def test_one_that_is_still_in_an_earlier_step_is_slow(boards: list[HeartbeatStore]) -> None:
    boards[2].mark(6, "updating")
    blame = boards[0].diagnose()
    assert (blame.ranks, blame.kind) == ((2,), "slow")


def test_the_slow_one_itself_says_what_the_others_found(boards: list[HeartbeatStore]) -> None:
    boards[1].mark(7, "computing")
    found = boards[0].diagnose()
    boards[0].close()
    boards[2].close("collective failed")
    assert boards[1].diagnose().kind == "left"  # rank 2 had noticed nothing
    boards[2]._report("noticed")
    boards[1].mark(7, "reducing")
    assert boards[1].diagnose() == found


def test_where_all_beat_and_wait_it_is_the_network(boards: list[HeartbeatStore]) -> None:
    blame = boards[0].diagnose()
    assert (blame.kind, blame.ranks) == ("network", ())
    assert "all are alive and wait at step 7 while reducing" in str(blame)


def test_one_that_does_not_beat_is_stopped(boards: list[HeartbeatStore]) -> None:
    falls_silent(boards[1])
    blame = boards[0].diagnose()
    assert (blame.kind, blame.ranks, blame.lost) == ("stopped", (1,), (1,))
    assert "rank 3 is stopped at step 7 while reducing" in str(blame)


def test_of_a_host_of_which_nothing_is_heard_it_is_the_rank_or_the_network(
    boards: list[HeartbeatStore],
) -> None:
    elsewhere(boards[1], "there")
    falls_silent(boards[1])
    blame = boards[0].diagnose()
    assert (blame.kind, blame.ranks) == ("network", (1,))
    assert str(blame).startswith("the network to rank 3, or rank 3: nothing heard for")


def test_one_of_a_host_of_which_others_are_heard_is_stopped(boards: list[HeartbeatStore]) -> None:
    elsewhere(boards[1], "there")
    elsewhere(boards[2], "there")
    falls_silent(boards[1])
    assert boards[0].diagnose().kind == "stopped"


def test_one_that_left_with_an_error_is_named_with_it(boards: list[HeartbeatStore]) -> None:
    boards[1].close(describe_error(ValueError("no data")))
    blame = boards[0].diagnose()
    assert (blame.kind, blame.ranks, blame.lost) == ("left", (1,), (1,))
    assert str(blame) == "rank 3 left at step 7 while reducing: ValueError: no data"


def test_one_that_had_noticed_the_failure_before_it_left_is_no_culprit(
    boards: list[HeartbeatStore],
) -> None:
    assert boards[1].diagnose().kind == "network"
    boards[1]._report("noticed")  # before it came to a verdict
    boards[1].close("RuntimeError: Connection closed by peer")
    assert boards[0].diagnose().kind == "network"


def test_one_that_noticed_and_ended_since_the_board_was_read_is_no_culprit(
    boards: list[HeartbeatStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = boards[0].read()
    boards[1]._report("noticed")
    monkeypatch.setattr(ProcessIdentity, "state", lambda self: "ended")
    assert boards[0]._diagnoser.fates(before) == ((2,), (), ())


def test_one_that_slept_itself_says_so(boards: list[HeartbeatStore]) -> None:
    boards[0]._gap, boards[0]._woke = 13.0, time.monotonic()
    blame = boards[0].diagnose()
    assert (blame.kind, blame.ranks) == ("stopped", (0,))
    assert str(blame).startswith("this one, rank 0, was stopped for 13.0 s")


def test_time_in_which_the_watcher_slept_is_not_the_silence_of_others(
    boards: list[HeartbeatStore],
) -> None:
    board = boards[0]
    falls_silent(board)
    falls_silent(boards[1])
    board._watch_beats(0.1)
    board._last -= 100.0
    board._over.clear()
    thread = threading.Thread(target=board._run)
    thread.start()
    time.sleep(2.5 * board.interval)
    board._over.set()
    thread.join()
    assert 0.0 < board.silent_for(1) < 10.0


@pytest.mark.parametrize(("fate", "given_up"), FATES)
def test_one_whose_board_was_closed_with_good_reason_is_not_killed(
    boards: list[HeartbeatStore], fate: str, given_up: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = set()
    monkeypatch.setattr(boards[0], "kill", killed.add)
    falls_silent(boards[1])
    boards[1]._report(fate)
    assert boards[0]._give_up([1]) == given_up == killed


def test_a_mark_costs_some_microseconds(boards: list[HeartbeatStore]) -> None:
    begun = time.perf_counter()
    for step in range(500):
        boards[0].mark(step, "computing")
    assert (time.perf_counter() - begun) / 500 < 1e-3


def test_what_is_said_without_a_store_is_no_error_and_blames_the_way_to_it() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", store.port, is_master=False)
    board = HeartbeatStore(client, 0, (0, 1), stall_limit=2.0)
    del store
    for _ in range(3):
        board.mark(1, "reducing")
        time.sleep(0.05)
    assert board.broken
    assert str(board.diagnose()).startswith("the network to the store, or who holds it")
    board.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as process:
        yield process
        process.kill()


def test_a_process_with_the_number_of_one_that_has_ended_is_left_alone(
    sleeper: subprocess.Popen[bytes],
) -> None:
    me = ProcessIdentity.here()
    other = ProcessIdentity(me.host, sleeper.pid, process_identity._born(sleeper.pid) - 1)
    assert (other.state(), other.kill()) == ("ended", False)
    assert (
        ProcessIdentity("there", sleeper.pid, process_identity._born(sleeper.pid)).kill() is False
    )
    assert me.kill() is False
    assert sleeper.poll() is None


def test_a_process_is_known_as_stopped_and_as_ended(sleeper: subprocess.Popen[bytes]) -> None:
    there = ProcessIdentity(
        ProcessIdentity.here().host, sleeper.pid, process_identity._born(sleeper.pid)
    )
    assert there.state() == ""
    sleeper.send_signal(signal.SIGSTOP)
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.005)
    assert there.state() == "stopped"
    assert there.kill() is True
    sleeper.wait(10)
    assert there.state() == "ended"


def test_only_connections_of_the_group_are_shut() -> None:
    ours, others = socket.socketpair(), None
    connections = Connections()
    with connections.capture():
        others = socket.socketpair()
    connections.shut()
    ours[0].sendall(b"1")
    assert ours[1].recv(1) == b"1"
    assert others[1].recv(1) == b""
    for each in (*ours, *others):
        each.close()


def test_who_comes_to_a_door_that_was_open_before_is_not_shut_out() -> None:
    connections = Connections()
    with socket.create_server(("127.0.0.1", 0)) as door:
        other = socket.create_connection(door.getsockname())
        with connections.capture():
            ours, _ = door.accept()
        connections.shut()
        ours.sendall(b"1")
        assert other.recv(1) == b"1"
        for each in (ours, other):
            each.close()


RANK = """
import json, os, signal, sys, time
import torch, torch.distributed as dist
from simstrag.ddp.failures.process_identity import ProcessIdentity
from simstrag.ddp.rendezvous import join

fault, group, limit, out = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
joined = join(group)
if fault == "far":  # nobody can kill rank 1
    ProcessIdentity.kill = lambda self: False
    fault = "SIGSTOP"
board = joined.heartbeat
board.stall_limit = limit
board.first_step_taken()
tensor, step = torch.ones(1 << 16), 0
while True:
    board.mark(step, "computing")
    if joined.rank == 1 and step == 3:
        time.sleep(0.3)  # the others wait already
        if fault == "slow":
            time.sleep(4)
        else:
            os.kill(os.getpid(), getattr(signal, fault))
    board.mark(step, "reducing")
    begun = time.monotonic()
    try:
        dist.all_reduce(tensor)
    except RuntimeError:
        failed = time.monotonic() - begun
        blame = board.diagnose()
        said = {"failed": failed, "took": time.monotonic() - begun - failed, "kind": blame.kind,
                "ranks": blame.ranks, "step": blame.step, "phase": blame.phase}
        with open(f"{out}/{joined.rank}.json", "w") as file:
            json.dump(said, file)
        for rank in blame.ranks if blame.kind == "stopped" else ():
            board.kill(rank)  # who started them waits for its end
        board.close()
        sys.exit(0)
    step += 1
"""
LAUNCH = """
import sys
from simstrag.ddp.launch import launch
print(launch(sys.argv[1:], 3, stall_limit=8.0).codes)
"""


def faulty(folder: Path, fault: str, group: float, limit: float) -> tuple[str, list[Any]]:
    """Exit codes, and what each rank said that could."""
    (folder / "rank.py").write_text(RANK)
    command = [str(folder / "rank.py"), fault, str(group), str(limit), str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, *command],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return done.stdout.strip(), said


def test_a_killed_rank_is_dead_at_once(tmp_path: Path) -> None:
    codes, said = faulty(tmp_path, "SIGKILL", group=60.0, limit=20.0)
    assert (codes, len(said)) == ("(0, -9, 0)", 2)
    for each in said:
        assert (each["kind"], each["ranks"]) == ("dead", [1])
        assert (each["step"], each["phase"]) == (3, "computing")
        assert each["failed"] + each["took"] < 10.0


def test_a_stopped_rank_is_killed_within_the_stall_limit_so_that_the_wait_ends(
    tmp_path: Path,
) -> None:
    codes, said = faulty(tmp_path, "SIGSTOP", group=60.0, limit=2.0)
    assert (codes, len(said)) == ("(0, -9, 0)", 2)
    for each in said:
        assert (each["kind"], each["ranks"]) == ("stopped", [1])
        assert (each["step"], each["phase"]) == (3, "computing")
        assert 1.5 < each["failed"] < 10.0


def test_a_wait_for_a_stopped_rank_that_nobody_can_kill_ends_too(tmp_path: Path) -> None:
    codes, said = faulty(tmp_path, "far", group=60.0, limit=2.0)
    assert codes.startswith("(0, -")  # the launcher killed what was left
    assert [each["ranks"] for each in said] == [[1], [1]]
    assert all(1.5 < each["failed"] < 10.0 for each in said)


def test_a_slow_rank_is_called_slow_and_lives(tmp_path: Path) -> None:
    codes, said = faulty(tmp_path, "slow", group=2.0, limit=2.0)
    assert codes == "(0, 0, 0)"
    assert [(each["kind"], each["ranks"]) for each in said] == [("slow", [1])] * 3
    assert said[0]["phase"] == "computing"
