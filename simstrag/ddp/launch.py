"""The launcher of the ranks of a job on this host; no rank outlives it.

`torchrun` starts them as one: when a rank dies all are started anew.  `launch` starts ranks that
may die one by one, and holds the store with which the others form a smaller group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import psutil

from simstrag.ddp.rendezvous import end_with_launcher, open_store
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.processes.children import ProcessTree

LAST_WORK = 10.0
"""Grace of a server when all ranks have ended, in seconds."""

CROWD = 32
"""Most ranks per core of this host; more are taken for a typing error."""

RESTARTS = 3
"""How often all ranks are started anew before `run` gives up."""

PARTING = 10.0
"""Seconds in which the other ranks may report a failure, and save a checkpoint."""

POLL = 0.02
"""Interval of polling processes, in seconds."""

SERVER = ("-m", "simstrag.ddp.server.server_main")
"""The program of a server that outlives ranks; it publishes its address on the store."""


class Network(Protocol):
    """A network of ranks other than the loopback of this host.

    device: its network interface.
    """

    @property
    def device(self) -> str: ...

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Sockets opened in this block are reached at `address_of(None)`."""

    def address_of(self, rank: int | None) -> str:
        """The address of a server that `rank` starts; for None, of a server beside the store."""

    def wrap(self, rank: int | None, command: Sequence[str]) -> list[str]:
        """A command that runs `command` in the network of a rank; for None, of the server."""


@dataclass(frozen=True, slots=True)
class ExitCodes:
    """Exit codes of ranks and a server; a code below 0 is the signal that killed the process."""

    codes: tuple[int, ...]
    server: int | None = None

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks that failed.

        >>> ExitCodes((0, -9, 0)).lost
        (1,)
        """
        return tuple(rank for rank, code in enumerate(self.codes) if code)

    def __str__(self) -> str:
        """
        >>> print(ExitCodes((0, -9, 3)))
        rank 0 ended with 0, rank 1 was killed by SIGKILL, rank 2 ended with 3
        """
        ends = {f"rank {k}": code for k, code in enumerate(self.codes)}
        if self.server is not None:
            ends["server"] = self.server
        return ", ".join(
            f"{name} ended with {code}"
            if code >= 0
            else f"{name} was killed by {signal.Signals(-code).name}"
            for name, code in ends.items()
        )


def torchrun(
    script: str,
    ranks: int,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    restarts: int = 0,
    stall_limit: float = 60.0,
    pinned: bool = False,
) -> int:
    """Run a script on ranks of this host under torchrun; return its exit code.

    module: whether `script` names a module.
    restarts: how often all ranks are started anew when one fails.
    pinned: rank r runs on core r, modulo the cores.

    Ranks compute with one thread each unless OMP_NUM_THREADS says otherwise.
    """
    require_startable(ranks, stall_limit)
    command = [
        sys.executable, "-c", "from simstrag.ddp.launch import agent; agent()",
        "--standalone", "--nnodes", "1", "--nproc-per-node", str(ranks),
        "--max-restarts", str(restarts), "--monitor-interval", "0.1",
        "-m", "simstrag.ddp.script_rank", *(["-m"] if module else []), script, *arguments,
    ]  # fmt: skip
    with _tree(stall_limit, pinned) as tree:
        more = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3", "SIMSTRAG_ON_FAULT": "restart"}
        return tree.start(command, more).wait()


def launch(
    command: Sequence[str],
    ranks: int,
    *,
    on_fault: Literal["continue", "stop"] = "continue",
    server: Sequence[str] | None = None,
    stall_limit: float = 60.0,
    pinned: bool = False,
    network: Network | None = None,
) -> ExitCodes:
    """Run a command, such as `["train.py", "--epochs", "3"]`, on ranks of this host.

    command: one that begins with "*.py" or "-m" is run by `simstrag.ddp.script_rank`.
    on_fault: whether the others go on when one fails.
    server: a command that runs once beside them; it ends after all ranks, and all end with it.
    stall_limit: seconds after which ranks are killed if all that are left are stopped.
    pinned: rank r runs on core r, modulo the cores.
    network: default: the loopback of this host.
    """
    require_startable(ranks, stall_limit)
    address = "127.0.0.1" if network is None else network.address_of(None)
    with contextlib.nullcontext() if network is None else network.inside():
        store = open_store(address, 0, True, stall_limit)
    place = {
        "MASTER_ADDR": address, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks), "SIMSTRAG_STORE": "launcher",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # for scripts that make a process group themselves
        "SIMSTRAG_ON_FAULT": on_fault, "SIMSTRAG_SERVER": "" if server is None else "launcher",
    }  # fmt: skip
    if network is not None:
        place["GLOO_SOCKET_IFNAME"] = network.device

    def start(rank: int | None, command: Sequence[str]) -> subprocess.Popen[bytes]:
        if command[0] == "-m" or command[0].endswith(".py"):
            command = [sys.executable, "-m", "simstrag.ddp.script_rank", *command]
        host = {} if network is None else {"SIMSTRAG_HOST": network.address_of(rank)}
        number = {} if rank is None else {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = command if network is None else network.wrap(rank, command)
        return tree.start(command, {**place, **host, **number})

    with _tree(stall_limit, pinned) as tree:
        serving = None if server is None else start(None, server)
        processes = [start(rank, command) for rank in range(ranks)]
        all_well = some_ran = time.monotonic()
        while running := [process for process in processes if process.poll() is None]:
            now = time.monotonic()
            all_well = all_well if any(process.poll() for process in processes) else now
            some_ran = some_ran if all(map(_is_stopped, running)) else now
            failed = on_fault == "stop" and now - all_well > PARTING
            abandoned = now - some_ran > stall_limit
            if failed or abandoned or (serving is not None and serving.poll()):
                tree.end(processes, signal.SIGTERM)
            time.sleep(POLL)
        if serving is not None:
            tree.end([serving], signal.SIGTERM, LAST_WORK)
        code = None if serving is None else serving.returncode
        return ExitCodes(tuple(process.returncode for process in processes), code)


def run(
    command: Sequence[str],
    ranks: int,
    on_fault: Literal["stop", "restart", "continue"] = "stop",
    *,
    stall_limit: float = 60.0,
    pinned: bool = False,
    network: Network | None = None,
) -> int:
    """Run a script or a module on ranks of this host; return an exit code.

    on_fault: what follows when a rank dies: all end ("stop"), torchrun starts all anew, `RESTARTS`
        times at most ("restart"), or the others go on ("continue"); then the code is 0 if one of
        them finished.  Failed ranks are named on standard error.
    """
    if on_fault == "restart":
        if network is not None:
            raise InputError("ranks behind a link are not started anew; choose stop or continue")
        module = command[0] == "-m"
        script, *arguments = command[module:]
        return torchrun(
            script, ranks, arguments, module=module, restarts=RESTARTS, stall_limit=stall_limit,
            pinned=pinned,
        )  # fmt: skip
    codes = launch(
        command, ranks, on_fault=on_fault, server=SERVER if on_fault == "continue" else None,
        stall_limit=stall_limit, pinned=pinned, network=network,
    )  # fmt: skip
    if codes.lost:
        print(codes, file=sys.stderr)
    failed = all(codes.codes) if on_fault == "continue" else any(codes.codes)
    return int(failed)


def _tree(stall_limit: float, pinned: bool) -> ProcessTree:
    """The processes of one job; ranks that call `end_with_launcher` end with this one."""
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    if sys.platform == "linux":
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    return ProcessTree({
        **defaults,
        **os.environ,
        "SIMSTRAG_PARENT": str(os.getpid()),
        "SIMSTRAG_STALL_LIMIT": repr(stall_limit),
        "SIMSTRAG_PINNED": str(int(pinned)),
    })  # fmt: skip


def require_startable(ranks: int, stall_limit: float) -> None:
    """Raise `InputError` for a number of ranks or a stall limit that no launch takes."""
    most = CROWD * len(cores())
    if not 1 <= ranks <= most:
        raise InputError(
            f"ranks: {ranks}; give at least 1, and at most {most}, {CROWD} for each core here"
        )
    if not 0 < stall_limit < float("inf"):
        raise InputError(f"stall limit: {stall_limit:g} s; give a number of seconds above 0")


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    try:
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def agent() -> None:
    """The program of a torchrun that ends with its launcher, and its ranks with it."""
    end_with_launcher()
    os.environ["SIMSTRAG_PARENT"] = str(os.getpid())
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main

    try:
        main(sys.argv[1:])
    except SignalException as end:  # its ranks have ended; the sender of the signal reports why
        raise SystemExit(128 + end.sigval) from None
