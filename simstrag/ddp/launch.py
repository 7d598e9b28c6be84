"""The launcher of the ranks of a job on this host; no rank outlives it.

When a rank dies the others end, go on, or are started anew.  The launcher holds the store with
which those that go on form a smaller group, says there which ranks have ended, and starts servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import psutil

from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.job_store import hold_store, report_ended, requested_server, store_of_attempt
from simstrag.ddp.secret import VARIABLE, known_secret, new_secret
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.processes.children import ProcessTree, require_posix

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

OnFault = Literal["continue", "stop", "restart"]
"""Reactions to the death of a rank."""

LAST_WORK = 10.0
"""Seconds in which a server may end by itself when all ranks have ended."""

CROWD = 32
"""Most ranks per core of this host; more are taken for a typing error."""

RESTARTS = 3
"""Most restarts of all ranks."""

PARTING = 10.0
"""Seconds in which the other ranks may report a failure, and save a checkpoint."""

POLL = 0.05
"""Interval of polling processes, in seconds."""

SERVER = ("-m", "simstrag.ddp.server.server_main")
"""The program of a server; it publishes its address on the store."""


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


def launch(
    command: Sequence[str],
    ranks: int,
    *,
    on_fault: OnFault = "continue",
    server: Sequence[str] = SERVER,
    stall_limit: float = 60.0,
    pinned: bool = False,
    network: Network | None = None,
) -> ExitCodes:
    """Run a command, such as `["train.py", "--epochs", "3"]`, on ranks of this host.

    command: one that begins with "*.py" or "-m" is run by `simstrag.ddp.script_rank`.
    on_fault: what follows when a rank fails: the others go on, all end, or all are started anew,
        `RESTARTS` times at most.
    server: the program of a server, which starts when ranks ask for one and ends after them; all
        end when it fails.
    stall_limit: seconds after which ranks are killed if all that are left are stopped.
    pinned: rank r runs on core r, modulo the cores.
    network: default: the loopback of this host.
    """
    require_startable(ranks, stall_limit)
    address = "127.0.0.1" if network is None else network.address_of(None)
    with contextlib.nullcontext() if network is None else network.inside():
        store = hold_store(address, 0, stall_limit)
    variables = {
        "MASTER_ADDR": address, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks), "SIMSTRAG_STORE": "launcher",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # for scripts that make a process group themselves
        "SIMSTRAG_ON_FAULT": on_fault, VARIABLE: known_secret() or new_secret(),
    }  # fmt: skip
    if network is not None or sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo" if network is None else network.device
    with _tree(stall_limit, pinned) as tree:
        for attempt in range(RESTARTS + 1):
            variables["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
            processes = _Processes(tree, variables, ranks, network)
            codes = _run_attempt(
                processes, store_of_attempt(store, attempt), command, server, on_fault, stall_limit
            )
            if on_fault != "restart" or not codes.lost or attempt == RESTARTS:
                break
            warn(f"{codes}; all ranks are started anew ({attempt + 1} of {RESTARTS})")
        return codes


class _Processes:
    """Starts ranks and servers of one attempt, each in its network.

    tree: the processes of the job.
    variables: environment variables of all of them.
    """

    def __init__(
        self, tree: ProcessTree, variables: Mapping[str, str], ranks: int, network: Network | None
    ) -> None:
        self.tree, self.ranks = tree, ranks
        self._variables, self._network = dict(variables), network

    def start(
        self, rank: int | None, command: Sequence[str], **more: str
    ) -> subprocess.Popen[bytes]:
        """Start a rank; for None, a server."""
        if command[0] == "-m" or command[0].endswith(".py"):
            command = [sys.executable, "-m", "simstrag.ddp.script_rank", *command]
        if rank is not None:
            more |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if self._network is not None:
            more["SIMSTRAG_HOST"] = self._network.address_of(rank)
            command = self._network.wrap(rank, command)
        return self.tree.start(command, {**self._variables, **more})


def _run_attempt(
    processes: _Processes,
    store: Store,
    command: Sequence[str],
    server: Sequence[str],
    on_fault: OnFault,
    stall_limit: float,
) -> ExitCodes:
    """Start all ranks, and servers that they ask for, and wait until all have ended."""
    report_ended(store, ())
    ranks = [processes.start(rank, command) for rank in range(processes.ranks)]
    servers: dict[int, subprocess.Popen[bytes]] = {}
    reported: list[int] = []
    all_well = some_ran = time.monotonic()
    while running := [process for process in ranks if process.poll() is None]:
        now = time.monotonic()
        all_well = all_well if any(process.poll() for process in ranks) else now
        some_ran = some_ran if all(map(_is_stopped, running)) else now
        failed = on_fault != "continue" and now - all_well > PARTING
        abandoned = now - some_ran > stall_limit
        broken = bool(servers) and bool(servers[max(servers)].poll())  # others are superseded
        if failed or abandoned or broken:
            processes.tree.end(ranks, signal.SIGTERM)
        ended = [rank for rank, process in enumerate(ranks) if process.poll() is not None]
        if ended != reported:
            report_ended(store, reported := ended)
        wanted = requested_server(store, processes.ranks)
        if wanted is not None and wanted.generation not in servers:
            servers[wanted.generation] = processes.start(
                None, server, SIMSTRAG_SERVED=json.dumps(wanted)
            )
        time.sleep(POLL)
    until = time.monotonic() + LAST_WORK
    while any(each.poll() is None for each in servers.values()) and time.monotonic() < until:
        time.sleep(POLL)
    processes.tree.end(list(servers.values()), signal.SIGTERM)
    code = servers[max(servers)].returncode if servers else None
    return ExitCodes(tuple(process.returncode for process in ranks), code)


def run(
    command: Sequence[str],
    ranks: int,
    on_fault: OnFault = "stop",
    *,
    stall_limit: float = 60.0,
    pinned: bool = False,
    network: Network | None = None,
) -> int:
    """Run a script or a module on ranks of this host, as `launch` does; return an exit code.

    It is 0 if all ranks finished; where the others go on without one that failed, if one finished.
    Failed ranks are named on standard error.
    """
    codes = launch(
        command, ranks, on_fault=on_fault, stall_limit=stall_limit, pinned=pinned, network=network
    )
    if codes.lost:
        print(codes, file=sys.stderr)
    return int(all(codes.codes) if on_fault == "continue" else any(codes.codes))


def _tree(stall_limit: float, pinned: bool) -> ProcessTree:
    """The processes of one job; ranks that call `end_with_launcher` end with this one."""
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return ProcessTree({
        **defaults,
        **os.environ,
        "SIMSTRAG_PARENT": str(os.getpid()),
        "SIMSTRAG_STALL_LIMIT": repr(stall_limit),
        "SIMSTRAG_PINNED": str(int(pinned)),
    })  # fmt: skip


def require_startable(ranks: int, stall_limit: float) -> None:
    """Raise `InputError` for a number of ranks or a stall limit that no launch takes.

    Raises `SimstragError` on Windows, where no ranks start.
    """
    require_posix("a job of real ranks")
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
