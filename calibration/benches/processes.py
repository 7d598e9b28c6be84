"""Measuring processes: pinned to a core each, answering through a pipe, always reaped."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from simstrag.processes.affinity import die_with_parent, keep_memory, pin_rank

__all__ = ["LEAVE", "STALL", "Children"]

STALL = 60.0
"""Seconds after which a silent partner is given up."""

GRACE = 2.0
"""Seconds in which those that are told to leave may do so, all together."""

LEAVE = "leave"
"""The last order."""

STOPS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Children:
    """Processes with a pipe each, started one by one and reaped together.

    They ignore what ends a command from outside, for a terminal and a scheduler tell every process
    of a group: the parent hears it too and reaps them, and with the parent they die.
    """

    def __init__(self) -> None:
        self.pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []

    def start(self, target: Callable[..., None], rank: int, *arguments: Any) -> None:
        """Run `target(pipe, rank, ...)` in a process on core number `rank`."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_pinned, args=(target, os.getpid(), theirs, rank, *arguments), daemon=True
        )
        self.pipes.append(ours)
        self._processes.append(process)
        try:
            process.start()
        finally:
            theirs.close()

    def reap(self) -> None:
        """Tell all to leave, and kill those that hang; none is left."""
        started = [process for process in self._processes if process.pid is not None]
        try:
            for pipe in self.pipes:
                with contextlib.suppress(OSError):
                    pipe.send(LEAVE)
            until = time.monotonic() + GRACE
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


def _pinned(
    target: Callable[..., None],
    parent: int,
    pipe: Connection,
    rank: int,
    *arguments: Any,
) -> None:
    die_with_parent(parent)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    pin_rank(rank)
    keep_memory()
    target(pipe, rank, *arguments)
