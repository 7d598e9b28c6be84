"""Ranks of whole jobs are killed and stopped: what ends, what goes on, what is said and kept."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")

from simstrag.runs.run import Run  # noqa: E402
from simstrag.trace.trace import Trace  # noqa: E402

RANKS, STALL = 3, 4.0
PATIENCE = 90.0
MARK = "SIMSTRAG_TEST_OF_FAULTS"
"""A variable of the environment by which the processes of a job are known."""

MOVED = 10
"""Updates that were not under way when a rank was lost."""


@dataclass
class Running:
    """A job that trains for ever, and its folder."""

    launcher: subprocess.Popen[str]
    folder: Path
    mark: str

    def processes(self) -> dict[int, list[str]]:
        """Those that are alive, with their command lines."""
        found = {}
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = each.environ().get(MARK) == self.mark
                if ours and each.status() != psutil.STATUS_ZOMBIE:
                    found[each.pid] = each.cmdline()
        return found

    def rank(self, number: int) -> int:
        """The process of a rank."""
        for pid, command in self.processes().items():
            with contextlib.suppress(psutil.Error):
                trains = "simstrag.ddp.workload_rank" in command
                if trains and psutil.Process(pid).environ().get("RANK") == str(number):
                    return pid
        raise AssertionError(f"rank {number} does not run")

    def ranks(self) -> int:
        """How many of them are alive."""
        return sum("simstrag.ddp.workload_rank" in command for command in self.processes().values())

    def updates(self) -> int:
        """As far as they were recorded, in whatever folder."""
        texts = [path.read_text() for path in self.folder.rglob("journal.jsonl")]
        return sum(text.count('["applied"') + text.count('["lockstep"') for text in texts)

    def until(self, so: Callable[[], bool], what: str) -> float:
        """When something was so."""
        end = time.monotonic() + PATIENCE
        while not so():
            assert time.monotonic() < end, f"{what}; {self.processes()}"
            time.sleep(0.1)  # looking at all processes costs them time
        return time.monotonic()

    def fault(self, rank: int, number: signal.Signals) -> float:
        """Seconds from a signal to a rank until all have ended, or the others are well ahead."""
        pid, before, at = self.rank(rank), self.updates(), time.monotonic()
        os.kill(pid, number)
        lost = self.until(lambda: self.updates() >= before + MOVED or not self.ranks(), "hangs")
        return lost - at

    def said(self) -> str:
        """Standard error so far, of the launcher and all that it started."""
        return (self.folder.parent / "stderr").read_text()

    def end(self) -> str:
        """Ctrl-C, if it still runs; what was said on standard error."""
        if self.launcher.poll() is None and self.ranks():
            self.launcher.send_signal(signal.SIGINT)
        self.launcher.wait(timeout=PATIENCE)
        time.sleep(1.0)
        assert not self.processes()
        return self.said()


@contextlib.contextmanager
def running(
    folder: Path,
    policy: str,
    on_fault: str,
    *more: str,
    ranks: int = RANKS,
    workload: str = "digits",
) -> Iterator[Running]:
    """A job in its stride: it has written a checkpoint."""
    mark = uuid.uuid4().hex
    command = [
        sys.executable, "-P", "-m", "simstrag", "ddp", workload, "--policy", policy,
        "--ranks", str(ranks), "--batch", "64", "--samples", str(1 << 40), "--out", str(folder),
        "--checkpoint", "5", "--stall-limit", str(STALL), "--on-fault", on_fault, *more,
    ]  # fmt: skip
    with (folder.parent / "stderr").open("w") as stderr:
        launcher = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=stderr, text=True,
            env={**os.environ, MARK: mark}, start_new_session=True,
        )  # fmt: skip
    job = Running(launcher, folder, mark)
    try:
        job.until(
            lambda: (
                launcher.poll() is not None
                or ((folder / "checkpoint.pt").exists() and job.updates() > 3 * MOVED)
            ),
            "does not begin",
        )
        assert launcher.poll() is None, job.said()
        yield job
    finally:
        for pid in job.processes():
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).kill()
        launcher.wait()


def kept(folder: Path) -> str:
    """The format of the checkpoint, where run and trace can be read too."""
    assert Run.read(folder).summary["updates"] > 0
    assert Trace.read(folder / "trace.csv").rows
    return str(torch.load(folder / "checkpoint.pt", weights_only=True)["format"])


FAULTS = pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=lambda f: f.name)
ALL = pytest.mark.parametrize("rank", range(RANKS))


@FAULTS
@ALL
@pytest.mark.parametrize(
    "policy",
    ["asgd", "ssp:bound=2", "backup:b=1", "k_async:x=2", "cgp:ratio=100", "local_sgd:h=2",
     "p_reduce:p=2", "star_ring", "lb_bsp", "bsp", "tree", "streaming_diloco:h=4,p=2,tau=1"],
)  # fmt: skip
def test_the_others_go_on_and_it_is_said_who_was_lost_and_where(
    policy: str, rank: int, fault: signal.Signals, tmp_path: Path
) -> None:
    folder, lost = tmp_path / "run", rf"rank {rank} .*(while|at step)"
    with running(folder, policy, "continue") as job:
        took = job.fault(rank, fault)
        assert job.ranks() >= RANKS - 1
        job.until(lambda: job.ranks() == RANKS - 1, "the lost rank is left")
        # Its sockets close with its last thread: the server may notice after others went on.
        job.until(lambda: bool(re.search(lost, job.said())), "the loss is not said")
        job.end()
    print(f"{policy}, {fault.name} of rank {rank}: the others went on after {took:.1f} s")
    assert took < STALL + 2
    assert kept(folder) == "simstrag-training/1"


@FAULTS
@ALL
@pytest.mark.parametrize(
    "policy", ["bsp", "asgd", "cgp:ratio=100", "local_sgd:h=2", "star_ring", "lb_bsp"]
)
def test_where_all_are_to_end_all_end_and_say_who_was_lost_and_where(
    policy: str, rank: int, fault: signal.Signals, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with running(folder, policy, "stop") as job:
        at = time.monotonic()
        os.kill(job.rank(rank), fault)
        took = job.until(lambda: job.ranks() == 0, "hangs") - at
        said = job.end()
    print(f"{policy}, {fault.name} of rank {rank}: all had ended after {took:.1f} s")
    assert took < STALL + 2
    assert re.search(rf"rank {rank} (is|was) .*(while|at step)", said), said
    assert kept(folder) == "simstrag-training/1"


@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_a_rank_that_is_silent_within_the_limit_goes_on(policy: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", policy, "stop") as job:
        pid = job.rank(1)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STALL / 2)
        before = job.updates()
        os.kill(pid, signal.SIGCONT)
        job.until(lambda: job.updates() >= before + MOVED, "does not go on")
        assert job.ranks() == RANKS
        assert "rank 1 was" not in job.end()


@FAULTS
def test_with_the_rank_that_started_the_server_all_end_and_it_is_named(
    fault: signal.Signals, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with running(folder, "ssp:bound=2", "stop") as job:
        at = time.monotonic()
        os.kill(job.rank(0), fault)
        took = job.until(lambda: job.ranks() == 0, "hangs") - at
        said = job.end()
    print(f"ssp, {fault.name} of rank 0: all had ended after {took:.1f} s")
    assert took < STALL + 2
    assert re.search(r"rank 0 (is|was) .* while", said), said
    assert kept(folder) == "simstrag-training/1"


def test_a_job_with_a_server_whose_launcher_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "run", "asgd", "stop", ranks=2) as job:
        os.kill(job.launcher.pid, signal.SIGKILL)
        at = time.monotonic()
        took = job.until(lambda: not job.processes(), "is left") - at
    assert took < 3.0


@FAULTS
@pytest.mark.parametrize(
    ("policy", "sign", "limit"),
    [("korel", '"lockstep"', 10.0), ("asgd", '"push", {"rank": 1', 15.0)],  # a server starts later
)
def test_all_are_started_anew_and_go_on_from_the_checkpoint(
    policy: str, sign: str, limit: float, fault: signal.Signals, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with running(folder, policy, "restart", ranks=2) as job:
        at = time.monotonic()
        os.kill(job.rank(1), fault)
        again = folder / "attempt-1" / "journal.jsonl"
        took = job.until(lambda: again.exists() and sign in again.read_text(), "stays") - at
        first = again.read_text().split("\n")[0]
        said = job.end()
    print(f"{fault.name}: the first update of the next attempt came after {took:.1f} s")
    assert took < limit + STALL * (fault is signal.SIGSTOP)
    assert re.search(r'"version": [1-9]', first), first
    assert re.search(r"rank 1 (is|was) .* while", said), said


def test_two_are_lost_at_once_and_then_a_third(tmp_path: Path) -> None:
    with running(tmp_path / "run", "bsp", "continue", ranks=4) as job:
        os.kill(job.rank(3), signal.SIGKILL)
        assert job.fault(1, signal.SIGKILL) < 2 * STALL + 2
        assert job.ranks() == 2
        assert job.fault(0, signal.SIGKILL) < STALL + 2
        assert job.ranks() == 1
        said = job.end()
    for rank in (0, 1, 3):
        assert re.search(rf"ranks? .*\b{rank}\b.* (is|are) dead.* at step \d+ while", said), said


def test_a_smaller_world_without_reduced_precision_stays_in_full(tmp_path: Path) -> None:
    with running(tmp_path / "run", "amp_all", "continue", "--precision", "full") as job:
        assert job.fault(1, signal.SIGKILL) < STALL + 2
        assert job.ranks() == RANKS - 1
        said = job.end()
    assert "policy amp_all asks for reduced precision, and all steps stay in full" in said


def test_a_smaller_world_that_comes_to_need_a_server_has_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with running(folder, "sync_switch:share=0.5,samples=150000", "continue") as job:
        assert job.fault(0, signal.SIGKILL) < STALL + 2
        record = folder / "generation-1" / "journal.jsonl"
        job.until(lambda: '["push"' in record.read_text(), "it never pushes")
        assert job.ranks() == RANKS - 1
        job.end()
