"""Starting the ranks of a job on this host, and seeing to it that all of them end.

`torchrun` starts them as one: when a rank dies all are started anew.  `launch` starts ranks that
may die one by one, and holds the store at which the others meet again.  In both cases ranks end
with their launcher, whatever ends that.
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

__all__ = ["ExitCodes", "launch", "run", "torchrun"]

LAST_WORK = 10.0
"""Seconds that a server has for it when all its ranks have come to their end."""

CROWD = 32
"""Ranks for each core of this host, at most: more are a slip of the keyboard."""

RESTARTS = 3
"""How often all ranks are started anew before `run` gives up."""

PARTING = 10.0
"""Seconds in which the others may say who failed, and save what there is."""

POLL = 0.02
"""Seconds between two looks at processes that run."""

SERVER = ("-m", "simstrag.ddp.server.server_main")
"""The program of a server that outlives ranks; it says on the store where it listens."""


class Network(Protocol):
    """Where ranks run, if not all on this host as it is.

    device: of the network.
    """

    @property
    def device(self) -> str: ...

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """What is opened in here, such as the store, is reached at `address_of(None)`."""

    def address_of(self, rank: int | None) -> str:
        """Where a server is reached that this rank starts; None is one beside the store."""

    def placed(self, rank: int | None, command: Sequence[str]) -> list[str]:
        """The command that runs where that rank is; None is a server."""


@dataclass(frozen=True, slots=True)
class ExitCodes:
    """How ranks ended: exit codes, below 0 the signal that killed one.  server: the server's."""

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
        names = [f"rank {k}" for k in range(len(self.codes))]
        said = [_ended(*each) for each in zip(names, self.codes, strict=True)]
        return ", ".join(said + ([] if self.server is None else [_ended("server", self.server)]))


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
    """Run a script (or a module) on so many ranks of this host under torchrun; its exit code.

    restarts: how often all ranks are started anew when one fails.  pinned: rank r has core r alone,
    round about.  Ranks compute with one thread each where OMP_NUM_THREADS does not say otherwise.
    """
    _check(ranks, stall_limit)
    command = [
        *_python("agent"), "--standalone", "--nnodes", "1", "--nproc-per-node", str(ranks),
        "--max-restarts", str(restarts), "--monitor-interval", "0.1",
        "-m", "simstrag.ddp.rank_main", *(["-m"] if module else []), script, *arguments,
    ]  # fmt: skip
    with _tree(stall_limit, pinned) as tree:
        told = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3", "SIMSTRAG_ON_FAULT": "restart"}
        return tree.start(command, told).wait()


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
    """Run a command, such as `["train.py", "--epochs", "3"]`, on so many ranks of this host.

    on_fault: whether the others go on when one fails; ranks that are stopped are killed when only
    such are left for `stall_limit` seconds.  server: a command that is run once beside
    them; it is told to end when all ranks have ended, and all end when it fails.  A command that
    begins with "*.py" or "-m" is run by this Python.  network: else the loopback of this host.
    """
    _check(ranks, stall_limit)
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

    def placed(rank: int | None, command: Sequence[str]) -> list[str]:
        own = _command(command)
        return own if network is None else network.placed(rank, own)

    def told(rank: int | None) -> dict[str, str]:
        there = {} if network is None else {"SIMSTRAG_HOST": network.address_of(rank)}
        which = {} if rank is None else {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        return {**place, **there, **which}

    with _tree(stall_limit, pinned) as tree:
        served = None if server is None else tree.start(placed(None, server), told(None))
        processes = [tree.start(placed(rank, command), told(rank)) for rank in range(ranks)]
        moved = broken = time.monotonic()
        while running := [each for each in processes if each.poll() is None]:
            broken = broken if any(each.poll() for each in processes) else time.monotonic()
            failed = on_fault == "stop" and time.monotonic() - broken > PARTING
            moved = moved if all(map(_stopped, running)) else time.monotonic()
            abandoned = time.monotonic() - moved > stall_limit
            if failed or abandoned or (served is not None and served.poll()):
                tree.end(processes, signal.SIGTERM)
            time.sleep(POLL)
        if served is not None:
            tree.end([served], signal.SIGTERM, LAST_WORK)
        code = None if served is None else served.returncode
        return ExitCodes(tuple(each.returncode for each in processes), code)


def run(
    command: Sequence[str],
    ranks: int,
    on_fault: Literal["stop", "restart", "continue"] = "stop",
    *,
    stall_limit: float = 60.0,
    pinned: bool = False,
    network: Network | None = None,
) -> int:
    """Run a script or a module on so many ranks of this host; an exit code.

    on_fault: whether all end when one dies, are started anew by torchrun (`RESTARTS` times at
    most), or the others go on; then it is 0 if one of them came through.  Who failed is said on
    standard error.
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
    outcome = launch(
        command, ranks, on_fault=on_fault, server=SERVER if on_fault == "continue" else None,
        stall_limit=stall_limit, pinned=pinned, network=network,
    )  # fmt: skip
    if outcome.lost:
        print(outcome, file=sys.stderr)
    failed = all(outcome.codes) if on_fault == "continue" else any(outcome.codes)
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


def _check(ranks: int, stall_limit: float) -> None:
    most = CROWD * len(cores())
    if not 1 <= ranks <= most:
        raise InputError(
            f"ranks: {ranks}; give at least 1, and at most {most}, {CROWD} for each core here"
        )
    if not 0 < stall_limit < float("inf"):
        raise InputError(f"stall limit: {stall_limit:g} s; give a number of seconds above 0")


def _ended(name: str, code: int) -> str:
    if code >= 0:
        return f"{name} ended with {code}"
    return f"{name} was killed by {signal.Signals(-code).name}"


def _stopped(process: subprocess.Popen[bytes]) -> bool:
    try:
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _python(role: str) -> list[str]:
    return [sys.executable, "-c", f"from simstrag.ddp.launch import {role}; {role}()"]


def _command(command: Sequence[str]) -> list[str]:
    """Scripts and modules are run by `simstrag.ddp.rank_main`, other programs as they are."""
    if command and (command[0] == "-m" or command[0].endswith(".py")):
        return [sys.executable, "-m", "simstrag.ddp.rank_main", *command]
    return list(command)


def agent() -> None:
    """torchrun, as a process that ends with its launcher and whose ranks end with it."""
    end_with_launcher()
    os.environ["SIMSTRAG_PARENT"] = str(os.getpid())
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main

    try:
        main(sys.argv[1:])
    except SignalException as end:  # its ranks have ended, and whoever told it so says why
        raise SystemExit(128 + end.sigval) from None
