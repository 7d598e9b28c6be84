"""Processes forked from one that has imported torch: a rank or a server starts in milliseconds.

    forks = ForkServer.start()
    child = forks.fork(answer, 3)
    child.pipe.recv()

The forked process calls `answer(forks, pipe, 3)`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from simstrag.processes.children import die_with_parent

__all__ = ["Child", "ForkServer"]

IMPORTED = (
    "pandas", "simstrag.ddp.collector.record", "simstrag.ddp.server.server_main",
    "simstrag.ddp.wrapping", "simstrag.validation.replay", "tests.support.strategies",
    "tests.support.virtual_time", "torch.distributed.fsdp", "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)  # fmt: skip
"""Modules that a process has before its first function: importing takes seconds on a busy machine,
and would be taken for a stall there."""

STARTING = 480.0
"""Seconds in which the fork server must have imported all, on however busy a machine."""

REQUEST = 65536
"""Largest request in bytes."""

ROOT = str(Path(__file__).parents[2])

PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from tests.support.fork_server import serve; serve({fd}, {parent})"
)


class Child:
    """A forked process, and a pipe to it.  It dies with the fork server."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.pid = pipe, int(pipe.recv())

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.signal(signal.SIGKILL)

    def wait(self) -> None:
        """Wait until the process has ended; what it still sent is lost."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.pipe.recv_bytes()


class ForkServer:
    """A connection to the process that forks; its children have one too."""

    def __init__(
        self, requests: socket.socket, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._requests, self._process = requests, process

    @classmethod
    def start(cls) -> ForkServer:
        """Start the process, which dies with this one; it imports while this one goes on."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = PROGRAM.format(path=[*sys.path, ROOT], fd=theirs.fileno(), parent=os.getpid())
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        return cls(ours, process)

    def close(self) -> None:
        """Kill the process, where this one started it, and with it all that it forked."""
        self._requests.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def fork(self, function: Callable[..., None], *arguments: Any) -> Child:
        """A process that calls `function(fork server, pipe, *arguments)`, and ends with it."""
        ours, theirs = Pipe()
        with theirs:
            request = pickle.dumps((function, arguments))
            descriptors = [theirs.fileno(), self._requests.fileno()]
            socket.send_fds(self._requests, [request], descriptors)
        if not ours.poll(STARTING):
            raise TimeoutError(f"the fork server made no process in {STARTING:g} s")
        return Child(ours)


def serve(descriptor: int, parent: int) -> None:
    """The program of the process that forks."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that end leave no zombie
    import torch

    torch.set_num_threads(1)
    for module in IMPORTED:
        importlib.import_module(module)
    from simstrag.ddp.server.server_main import warm_up

    warm_up()
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=descriptor)
    own = os.getpid()
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, REQUEST, 2)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _call(own, request, *descriptors)
        for each in descriptors:
            os.close(each)


def _call(parent: int, request: bytes, pipe: int, requests: int) -> None:
    """What a forked process does; it does not return."""
    code = 1
    try:
        die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        function, arguments = pickle.loads(request)
        connection = Connection(pipe)
        connection.send(os.getpid())
        function(ForkServer(socket.socket(fileno=requests)), connection, *arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
