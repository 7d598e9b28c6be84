"""Child processes: how they start, receive arguments, and end with their parent.

`start_module` starts a module as a program, which calls `receive_arguments` first.  `Children` are
functions in processes with a pipe each.  A `ProcessTree` is commands and all that they start.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

from simstrag.errors import SimstragError
from simstrag.processes.affinity import keep_memory, pin_rank
from simstrag.processes.signals import STOP_SIGNALS, ignore, interrupt_by_default

if TYPE_CHECKING:
    import psutil

LEAVE = "leave"
"""The last message to each of `Children`."""

LEAVE_GRACE = 2.0
"""Seconds in which all `Children` together may leave before they are killed."""

TREE_GRACE = 1.0
"""Seconds in which all processes of a `ProcessTree` together may end before they are killed."""

POLL = 0.02
"""Seconds between two looks at processes that are to end."""

TREE = "SIMSTRAG_JOB"
"""Environment variable by which processes of a tree are recognised."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 1, 36, 37


def require_posix(what: str) -> None:
    """Raise `SimstragError` on Windows.

    what: what needs the signals, process groups and pinned cores that Windows lacks.
    """
    if sys.platform == "win32":
        raise SimstragError(f"{what} needs Linux or macOS, and this is Windows; WSL is Linux")


def die_with_parent(parent: int) -> None:
    """Make Linux kill this process when `parent` ends; exit at once if it has already ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def start_module(module: str, *arguments: Any) -> subprocess.Popen[bytes]:
    """Start a module as a program that calls `receive_arguments`, and send it picklable arguments.

    It dies with the thread that called this (Linux).
    """
    command = [sys.executable, "-P", "-m", module, str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    with _kill_on_error(process):
        process.stdin.write(pickle.dumps(sys.path) + pickle.dumps(arguments))
        process.stdin.close()
    return process


def read_address(process: subprocess.Popen[bytes], name: str) -> str:
    """Wait for the first line that a program prints: the address at which it listens.

    name: the program's name, for messages.
    """
    assert process.stdout is not None
    with _kill_on_error(process):
        address = process.stdout.readline().decode().strip()
        process.stdout.close()
        if not address:
            raise RuntimeError(f"{name} ended with code {process.wait()} before it began")
    return address


def receive_arguments() -> Any:
    """The arguments of `start_module`, in the program that it started; first of all there."""
    die_with_parent(int(sys.argv[1]))
    ignore(signal.SIGINT)  # a terminal sends it to all; the program ends when its ranks leave
    sys.path[:] = pickle.load(sys.stdin.buffer)
    return pickle.load(sys.stdin.buffer)


@contextlib.contextmanager
def _kill_on_error(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        process.kill()
        process.wait()
        raise


class Children:
    """Pinned processes with a pipe each, started one by one and ended together.

    They ignore stop signals, which a terminal and a scheduler send to every process of a group: the
    parent receives them too and ends its children, which die with it.
    """

    def __init__(self) -> None:
        self.pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []

    def start(self, target: Callable[..., None], rank: int, *arguments: Any) -> None:
        """Run `target(pipe, rank, *arguments)` in a new process on core number `rank`."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_run_child, args=(target, os.getpid(), theirs, rank, *arguments), daemon=True
        )
        self.pipes.append(ours)
        self._processes.append(process)
        try:
            process.start()
        finally:
            theirs.close()

    def end(self) -> None:
        """Send `LEAVE` to all and kill those that hang; none is left."""
        started = [process for process in self._processes if process.pid is not None]
        try:
            for pipe in self.pipes:
                with contextlib.suppress(OSError):
                    pipe.send(LEAVE)
            until = time.monotonic() + LEAVE_GRACE
            for process in started:
                process.join(max(0.0, until - time.monotonic()))
        finally:
            for process in started:
                process.kill()
            for process in started:
                process.join()
            for pipe in self.pipes:
                pipe.close()
            self.pipes.clear()
            self._processes.clear()


def _run_child(
    target: Callable[..., None], parent: int, pipe: Connection, rank: int, *arguments: Any
) -> None:
    die_with_parent(parent)
    ignore(*STOP_SIGNALS)
    pin_rank(rank)
    keep_memory()
    target(pipe, rank, *arguments)


class ProcessTree:
    """Commands and all processes that they start in their turn; a context manager that leaves none.

    Each command has a process group of its own, so that Ctrl-C reaches this process alone, which
    passes it on and waits `TREE_GRACE` seconds.

    environment: environment variables of all commands.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._mark = uuid.uuid4().hex
        self._environment = {**environment, TREE: self._mark}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command with more environment variables."""
        variables = {**self._environment, **environment}
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, process_group=0
        )
        self._started.append(process)
        return process

    def end(
        self,
        processes: Sequence[subprocess.Popen[bytes]],
        number: signal.Signals,
        grace: float = TREE_GRACE,
    ) -> None:
        """Send processes a signal, and kill those that still run after `grace` seconds."""
        running = [process for process in processes if process.poll() is None]
        try:
            for process in running:
                process.send_signal(number)
            until = time.monotonic() + grace
            while any(p.poll() is None for p in running) and time.monotonic() < until:
                time.sleep(POLL)
        finally:
            for process in running:
                process.kill()
                process.wait()

    def __enter__(self) -> ProcessTree:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(_adopt_orphans())
        self._stack.enter_context(interrupt_by_default())
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        import psutil

        try:
            self.end(self._started, signal.SIGTERM if kind is None else signal.SIGINT)
        finally:
            for process in self._descendants():
                with contextlib.suppress(psutil.Error):
                    process.kill()
                    process.wait(TREE_GRACE)
            self._stack.close()

    def _descendants(self) -> Iterator[psutil.Process]:
        import psutil

        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.environ().get(TREE) == self._mark:
                    yield process


@contextlib.contextmanager
def _adopt_orphans() -> Iterator[None]:
    """Descendants that lose their parent become children of this process (Linux)."""
    if sys.platform != "linux":
        yield
        return
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
