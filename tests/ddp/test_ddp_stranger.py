"""A stranger on this machine at a job on real ranks: what it reads, and what it can do."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

from simstrag.ddp.server.client import Client  # noqa: E402
from simstrag.ddp.server.listener import CHALLENGE, MAGIC  # noqa: E402

PATIENCE = 300.0
STALL_LIMIT = 5
STRANGERS = 80
LOOPBACK = ("127.0.0.1", "::1")


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


@dataclass
class Job:
    """`simstrag ddp digits` under a policy, and what a stranger can learn of it."""

    launcher: subprocess.Popen[str]

    def listening(self) -> list[tuple[str, int]]:
        """The addresses at which its processes listen, as `ss -ltn` shows them."""
        parent = psutil.Process(self.launcher.pid)
        found = set()
        for each in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                connections = each.net_connections("tcp")
                found |= {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}
        return sorted(found)

    def store(self) -> Any:
        """A connection of the stranger to the store, which is in the launcher."""
        own = psutil.Process(self.launcher.pid).net_connections("tcp")
        port = next(c.laddr.port for c in own if c.status == psutil.CONN_LISTEN)
        return dist.TCPStore(
            "127.0.0.1", port, None, False, timedelta(seconds=2), wait_for_workers=False
        )

    def entries(self) -> dict[str, bytes]:
        """All keys of the store with their contents."""
        store = self.store()
        return {key: bytes(store.get(key)) for key in store.list_keys()}

    def wait_until(self, key: str) -> dict[str, bytes]:
        """The entries of the store once the key of one ends in what this pattern takes."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.launcher.poll() is None:
            with contextlib.suppress(StopIteration, RuntimeError, psutil.Error):
                found = self.entries()
                if any(re.search(f"{key}$", each) for each in found):
                    return found
            time.sleep(0.1)
        raise AssertionError(f"no {key}: {self.launcher.communicate()}")


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job of two ranks of this policy that would train for minutes; the last test ends it."""
    command = [
        sys.executable, "-m", "simstrag", "ddp", "digits", "--ranks", "2", "--policy",
        request.param, "--on-fault", "continue", "--stall-limit", f"{STALL_LIMIT}",
        "--samples", "1000000", "--precision", "full",
        "--out", str(tmp_path_factory.mktemp("job") / "run"),
    ]  # fmt: skip
    launcher = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    )
    yield Job(launcher)
    if launcher.poll() is None:
        os.killpg(launcher.pid, signal.SIGINT)
    launcher.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("job", ["asgd"], indirect=True)
def test_a_job_on_one_machine_listens_on_the_loopback_alone_and_publishes_no_secret(
    job: Job,
) -> None:
    entries = job.wait_until(r"server(/\d+)?")
    assert {host for host, _ in job.listening()} <= set(LOOPBACK)
    words = {word for content in entries.values() for word in re.findall(rb"\w{16,}", content)}
    with contextlib.ExitStack() as opened:
        strangers = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            for port in {port for _, port in job.listening()}
        ]
        assert wait(strangers, PATIENCE)
        time.sleep(1.0)  # for others that greet
        ports = [
            each.getpeername()[1]
            for each in wait(strangers, 0.0)
            if each.recv(CHALLENGE.size).startswith(MAGIC)
        ]
    assert ports
    for port, word in itertools.product(ports, words):
        with pytest.raises(ConnectionError, match="does not take rank 0 in"):
            Client(f"127.0.0.1:{port}:{word.decode()}", 0, PATIENCE)
    assert job.launcher.poll() is None


@pytest.mark.parametrize(
    "job", [pytest.param("bsp", marks=pytest.mark.thorough), "asgd"], indirect=True
)
def test_a_stranger_that_rewrites_all_keys_and_floods_all_ports_runs_nothing_of_its_own(
    job: Job, tmp_path: Path
) -> None:
    mark = tmp_path / "unpickled"
    trap = pickle.dumps(Trap(mark))
    job.wait_until("who/1")
    over = threading.Event()

    def rewrite() -> None:
        while not over.is_set():
            with contextlib.suppress(RuntimeError, StopIteration, psutil.Error):
                store = job.store()
                for key in store.list_keys():
                    store.set(key, trap)

    def flood() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError, psutil.Error), contextlib.ExitStack() as opened:
                for _, port in job.listening() * STRANGERS:
                    stranger = socket.create_connection(("127.0.0.1", port), 1.0)
                    opened.enter_context(stranger).sendall(trap)
                over.wait(0.2)

    threads = [threading.Thread(target=act) for act in (rewrite, flood)]
    for each in threads:
        each.start()
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.launcher.wait(STALL_LIMIT + 1.0)
    over.set()
    for each in threads:
        each.join()
    with contextlib.suppress(subprocess.TimeoutExpired):  # it may be about to end
        job.launcher.wait(2.0)
    if job.launcher.poll() is None:
        os.killpg(job.launcher.pid, signal.SIGINT)
    said, _ = job.launcher.communicate(timeout=PATIENCE)
    assert not mark.exists()
    assert "Traceback" not in said, said
