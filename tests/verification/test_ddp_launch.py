"""Ranks that are started, lost, and met again: processes, none of which is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")

from simstrag.ddp.launch import ExitCodes, launch  # noqa: E402
from simstrag.ddp.rendezvous import join  # noqa: E402
from simstrag.errors import InputError  # noqa: E402

PATIENCE = 90.0

OWN = """
import sys
from simstrag.ddp.launch import launch
print(*launch(sys.argv[2:], int(sys.argv[1]), stall_limit=20.0).codes)
"""
ANEW = """
import sys
from simstrag.ddp.launch import launch
sys.exit(any(launch(sys.argv[2:], int(sys.argv[1]), on_fault="restart", stall_limit=20.0).codes))
"""
PLAIN = """
import sys
from torch.distributed.run import main
main(["--standalone", "--nproc-per-node", sys.argv[1], *sys.argv[2:]])
"""
HEAD = """
import json, os, signal, sys, time
import torch, torch.distributed as dist
from simstrag.ddp.job_store import announce_server, request_server, wait_for_server
from simstrag.ddp.rendezvous import Fenced, end_with_launcher, join, open_job_store, regroup

out = sys.argv[1]

def say(name, **facts):
    with open(f"{out}/part-{os.getpid()}", "w") as file:
        json.dump(facts, file)
    os.replace(f"{out}/part-{os.getpid()}", f"{out}/{name}.json")
"""


def run(
    folder: Path, program: str, script: str, ranks: int = 3, *more: str
) -> subprocess.Popen[str]:
    """A launcher in a session of its own, and its ranks, which run a script."""
    (folder / "script.py").write_text(HEAD + script)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(ranks), str(folder / "script.py"), str(folder), *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def said(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def until(folder: Path, count: int) -> dict[str, Any]:
    """What was said once so many have spoken."""
    end = time.monotonic() + PATIENCE
    while len(found := said(folder)) < count:
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def alive(folder: Path) -> list[psutil.Process]:
    """Processes that were started for this folder."""
    found = []
    for each in psutil.process_iter():
        try:
            ours = any(str(folder) in word for word in each.cmdline())
            if ours and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except psutil.Error:
            continue
    return found


def gone(folder: Path, seconds: float = 3.0) -> bool:
    end = time.monotonic() + seconds
    while alive(folder) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(folder)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder, whose processes are ended whatever a test found."""
    yield tmp_path
    for each in alive(tmp_path):
        each.kill()


SHRINK = """
def begin(joined):
    joined.heartbeat.stall_limit = 2.0
    joined.heartbeat.first_step_taken()
    return joined.heartbeat
joined = join(4.0)
board = begin(joined)
tensor = torch.ones(4)
for step in range(10):
    board.mark(step, "reducing")
    if joined.names[joined.rank] == 1 and step == 3:
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    try:
        dist.all_reduce(tensor)
    except RuntimeError:
        blame = board.diagnose()
        begun = time.monotonic()
        joined = regroup(joined, [k for k in range(3) if k not in blame.lost])
        took = time.monotonic() - begun
        board = begin(joined)
ones = torch.ones(1)
dist.all_reduce(ones)
board.close()
say(f"rank{joined.names[joined.rank]}", rank=joined.rank, size=joined.world_size,
    names=joined.names, generation=joined.generation, sum=ones.item(), took=took)
"""


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP"])
def test_those_that_are_left_meet_again_and_go_on(place: Path, fault: str) -> None:
    with run(place, OWN, SHRINK, 3, fault) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == ["0", "-9", "0"], err
    expected = {"size": 2, "names": [0, 2], "generation": 1, "sum": 2.0}
    for name, rank in (("rank0", 0), ("rank2", 1)):
        found = said(place)[name]
        assert found["took"] < 3.0
        assert found == {"rank": rank, "took": found["took"], **expected}
    assert gone(place)


FENCED = """
joined = join(3.0)
if joined.rank == 1:
    say("pid", pid=os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    dist.all_reduce(torch.ones(1))
except RuntimeError:
    try:
        joined = regroup(joined, [0, 2] if joined.rank != 1 else [0, 1, 2])
    except Fenced as error:
        say("fenced", error=str(error))
        sys.exit(4)
say(f"rank{joined.names[joined.rank]}", names=joined.names)
"""


def test_a_rank_that_wakes_up_too_late_finds_out_and_leaves(place: Path) -> None:
    with run(place, OWN, FENCED) as process:
        found = until(place, 3)
        os.kill(found["pid"]["pid"], signal.SIGCONT)
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == ["0", "4", "0"], err
    assert said(place)["fenced"]["error"] == (
        "rank 1 was left behind: generation 1 of the group has ranks 0, 2; it must end"
    )


VANISHING = """
joined = join()
dist.all_reduce(torch.ones(1))
if joined.rank == 2:
    os._exit(0)
joined = regroup(joined, [0, 1, 2] if joined.rank == 0 else [0, 1], patience=1.0)
say(f"rank{joined.names[joined.rank]}", names=joined.names, generation=joined.generation)
dist.barrier()
"""


def test_one_that_is_expected_and_does_not_come_is_left_behind(place: Path) -> None:
    with run(place, OWN, VANISHING) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == ["0", "0", "0"], err
    found = said(place)
    assert [found[name]["names"] for name in ("rank0", "rank1")] == [[0, 1], [0, 1]]
    assert found["rank0"]["generation"] == found["rank1"]["generation"] >= 1


RESTARTED = """
joined = join()
ones = torch.ones(1)
for step in range(5):
    dist.all_reduce(ones.fill_(1.0))
    if joined.attempt == 0 and joined.rank == 1 and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
say(f"rank{joined.rank}", attempt=joined.attempt, sum=ones.item(), threads=torch.get_num_threads())
dist.destroy_process_group()  # without it torch may abort at the end of the process
"""


def test_all_are_started_anew_when_one_is_killed(place: Path) -> None:
    with run(place, ANEW, RESTARTED, 2) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert said(place) == {f"rank{k}": {"attempt": 1, "sum": 2.0, "threads": 1} for k in (0, 1)}
    assert gone(place)


FOREVER = """
import subprocess
joined = join()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", out])
say(f"rank{joined.rank}", pid=os.getpid())
if joined.rank == 1 and sys.argv[2] == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "program", [OWN, ANEW, PLAIN], ids=["continue", "restart", "torchrun itself"]
)
def test_with_a_launcher_that_is_killed_all_ranks_end(place: Path, program: str) -> None:
    with run(place, program, FOREVER.replace("subprocess.Popen", "str"), 2, "running") as process:
        until(place, 2)
        process.kill()
        process.wait(10)
        assert gone(place), alive(place)


@pytest.mark.parametrize(
    ("number", "state"), [(signal.SIGINT, "running"), (signal.SIGTERM, "stopped")]
)
@pytest.mark.parametrize("program", [OWN, ANEW], ids=["continue", "restart"])
def test_ctrl_c_ends_all_and_what_they_started_in_three_seconds(
    place: Path, program: str, number: signal.Signals, state: str
) -> None:
    with run(place, program, FOREVER, 2, state) as process:
        until(place, 2)
        begun = time.monotonic()
        os.killpg(process.pid, number)
        process.communicate(timeout=PATIENCE)
        took = time.monotonic() - begun
    assert process.returncode != 0
    assert took < 3.0
    assert alive(place) == []


SERVED = """
if sys.argv[2] == "server":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    end_with_launcher()
    announce_server(open_job_store(), 0, "127.0.0.1:4321")
    if sys.argv[3] == "fails":
        sys.exit(5)
    signal.pause()
joined = join()
if joined.rank == 1:
    request_server(joined.root, 0, joined.names)
say(f"rank{joined.rank}", server=wait_for_server(joined.root, 0, 60.0))
while sys.argv[3] == "fails":
    time.sleep(1)
"""
WITH_SERVER = """
import sys
from simstrag.ddp.launch import launch
script, *rest = sys.argv[2:]
found = launch([script, rest[0], "rank", rest[1]], 2, server=[script, rest[0], "server", rest[1]])
print(found.server, *found.codes)
"""


def test_ranks_are_told_where_the_server_is_and_it_ends_after_them(place: Path) -> None:
    with run(place, WITH_SERVER, SERVED, 2, "works") as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == ["0", "0", "0"], err
    assert said(place) == {f"rank{k}": {"server": "127.0.0.1:4321"} for k in (0, 1)}


def test_without_their_server_ranks_end(place: Path) -> None:
    with run(place, WITH_SERVER, SERVED, 2, "fails") as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == ["5", "-15", "-15"], err


ENDS = """
if os.environ["RANK"] == "1":
    sys.exit(3)
time.sleep(float(sys.argv[2]))
"""
RUN = """
import sys
from simstrag.ddp.launch import run
sys.exit(run(sys.argv[3:], int(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("on_fault", "seconds", "code", "first"),
    [("continue", "1", 0, "ended with 0"), ("stop", "99", 1, "was killed by SIGTERM")],
)
def test_a_run_goes_on_without_a_rank_or_ends_with_it(
    place: Path, on_fault: str, seconds: str, code: int, first: str
) -> None:
    (place / "script.py").write_text(HEAD + ENDS)
    script = [str(place / "script.py"), str(place), seconds]
    done = subprocess.run(
        [sys.executable, "-c", RUN, "2", on_fault, *script],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"rank 0 {first}, rank 1 ended with 3")


def test_ranks_can_have_a_core_each(place: Path) -> None:
    script = "say(f'rank{os.environ[\"RANK\"]}', cores=sorted(os.sched_getaffinity(0)))"
    with run(place, OWN.replace("stall_limit", "pinned=True, stall_limit"), script, 3) as process:
        process.communicate(timeout=PATIENCE)
    ours = sorted(os.sched_getaffinity(0))
    expected = {f"rank{k}": {"cores": [ours[k % len(ours)]]} for k in range(3)}
    assert said(place) == expected


SERVING = """
from simstrag.ddp.server.server_main import start_server
process, _ = start_server(1)
say("server", cores=sorted(os.sched_getaffinity(process.pid)))
process.kill()
process.wait()
"""


def test_a_server_that_a_rank_with_a_core_of_its_own_starts_may_use_all(place: Path) -> None:
    with run(place, OWN.replace("stall_limit", "pinned=True, stall_limit"), SERVING, 1) as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert said(place) == {"server": {"cores": sorted(os.sched_getaffinity(0))}}, err


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "RANK and WORLD_SIZE and MASTER_ADDR and MASTER_PORT not set"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT not set"),
        (
            {"RANK": "0", "WORLD_SIZE": "two", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            "WORLD_SIZE='two' is not a number",
        ),
    ],
)
def test_who_was_started_by_no_launcher_is_told_how(
    environment: Mapping[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message) as error:
        join()
    assert "start it with `simstrag ddp" in str(error.value)


TWO_LINES = """
import simstrag.ddp

def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 8)
    trainer = simstrag.ddp.wrap(
        model, optimizer, sys.argv[2], batch=16, samples=3200, precision="full", out=f"{out}/run"
    )
    rank, steps = trainer.rank, 0

    def loss():
        if sys.argv[3] in ("in a step", "caught") and (rank, steps) == (1, 5):
            raise ValueError("my own mistake")
        return model(x).square().mean()

    while not trainer.over:
        try:
            trainer.step(loss)
        except ValueError:
            if sys.argv[3] == "caught":
                sys.exit(3)
            raise
        steps += 1
        if (sys.argv[3], rank, steps) == ("between", 1, 5):
            raise ValueError("my own mistake")
        if (sys.argv[3], rank, steps) == ("by exit", 1, 5):
            sys.exit(3)
    if sys.argv[3] == "late" and rank == 1:
        time.sleep(8)

main()
"""


@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_a_script_that_ends_without_close_leaves_as_it_should(place: Path, policy: str) -> None:
    """The two lines that a script needs: wrap and step."""
    with run(place, PLAIN, TWO_LINES, 3, policy, "ends") as process:
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "Error" not in err
    last = (place / "run" / "journal.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)[0] == "end"
    assert gone(place)


def test_who_waits_for_others_at_the_end_of_its_script_is_not_lost(place: Path) -> None:
    """Rank 0 waits for longer than the stall limit, and the board hears nothing of it."""
    program = OWN.replace("stall_limit=20.0", "stall_limit=2.0")
    with run(place, program, TWO_LINES, 2, "asgd", "late") as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (out.split(), err) == (["0", "0"], "")


@pytest.mark.parametrize("how", ["in a step", "between", "by exit", "caught"])
@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_who_fails_without_close_says_so_to_the_others(place: Path, policy: str, how: str) -> None:
    begun = time.monotonic()
    with run(place, OWN, TWO_LINES, 3, policy, how) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == ["0", "3" if how in ("by exit", "caught") else "1", "0"], err
    if policy == "bsp":
        why = "SystemExit: 3" if how == "by exit" else "ValueError: my own mistake"
        assert re.search(f"rank 1 left at step 5 while .*: {why}", err), err
    assert time.monotonic() - begun < 60
    assert gone(place)


WRAPPED = """
import simstrag.ddp
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters())
"""


ALONE = """trainer = simstrag.ddp.wrap(model, optimizer, 'bsp')
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
trainer.close()"""
OWN_GROUP = (
    WRAPPED
    + """
dist.init_process_group("gloo")
trainer = simstrag.ddp.wrap(model, optimizer, "bsp", precision="full")
rank, steps = dist.get_rank(), 0
try:
    while True:
        if (rank, steps) == (1, 5):
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(lambda: model(torch.ones(1, 2)).sum())
        steps += 1
except simstrag.ddp.RankFailure as failure:
    say(f"rank{rank}", said=str(failure))
    os._exit(1)
"""
)


def test_in_a_group_that_the_script_made_the_lost_rank_is_named_too(place: Path) -> None:
    with run(place, OWN, OWN_GROUP, 3) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == ["1", "-9", "1"], err
    for rank in ("rank0", "rank2"):
        assert said(place)[rank]["said"].startswith("rank 1 is dead: the process ended at step 5")


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (ALONE, "0", "warning: trainer.step() was never called, and the optimizer has stepped"),
        (
            "simstrag.ddp.wrap(model, optimizer, 'nope')",
            "1",
            "error: rank {rank}: {script}, line {line}: there is no policy 'nope'",
        ),
    ],
    ids=["never steps", "refused"],
)
def test_what_a_script_did_wrong_is_said_in_a_line(
    place: Path, line: str, code: str, message: str
) -> None:
    with run(place, OWN, script := WRAPPED + line, 2) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == [code] * 2, err
    number = len((HEAD + script).splitlines())
    told = {message.format(rank=k, script=place / "script.py", line=number) for k in range(2)}
    for each in told:
        assert sum(line.startswith(each) for line in err.splitlines()) == 1, err
    assert len(err.splitlines()) == len(told), err


@pytest.mark.parametrize("ranks", [0, 100_000])
def test_a_slip_of_the_keyboard_starts_nothing(ranks: int) -> None:
    with pytest.raises(InputError, match=f"ranks: {ranks}; give at least 1, and at most "):
        launch(["true"], ranks)


def test_an_outcome_is_a_sentence() -> None:
    found = ExitCodes((0, -9, 3), server=0)
    assert found.lost == (1, 2)
    assert str(found).startswith("rank 0 ended with 0, rank 1 was killed by SIGKILL, ")
