"""Measuring processes: pinned to a core each, answering through a pipe, always reaped."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from simstrag.calibration.burner import die_with_parent
from simstrag.calibration.machine import cores, pin

__all__ = ["STALL", "child", "receive"]

STALL = 60.0
"""Seconds after which a silent partner is given up."""


@contextlib.contextmanager
def child(target: Callable[..., None], rank: int, *arguments: Any) -> Iterator[Connection]:
    """Run `target(pipe, rank, ...)` in a process on core number `rank`; reaped on leaving."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    core = cores()[rank % len(cores())]
    process = context.Process(
        target=_pinned, args=(target, os.getpid(), core, theirs, rank, *arguments), daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield ours
        with contextlib.suppress(OSError):
            ours.send("leave")
        process.join(10)
    finally:
        ours.close()
        process.kill()
        process.join()


def _pinned(
    target: Callable[..., None],
    parent: int,
    core: int,
    pipe: Connection,
    rank: int,
    *arguments: Any,
) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair, which reaps us
    pin(core)
    target(pipe, rank, *arguments)


def receive(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a measuring process ended early; see its message above") from None
