"""Processes that serve a job beside its ranks: how they are started, and what they are told."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from typing import Any

from simstrag.processes.affinity import die_with_parent

__all__ = ["address_of", "begun", "told"]


def begun(module: str, *said: Any) -> subprocess.Popen[bytes]:
    """Start a module as a program that begins with `told`, and tell it that.

    It dies with the thread that called this (Linux).  What is said must pickle.
    """
    command = [sys.executable, "-P", "-m", module, str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    try:
        process.stdin.write(pickle.dumps(sys.path) + pickle.dumps(said))
        process.stdin.close()
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def address_of(process: subprocess.Popen[bytes], name: str) -> str:
    """Where it listens, as it prints; it is waited for.  name: in messages."""
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        process.stdout.close()
        if not address:
            raise RuntimeError(f"{name} ended with code {process.wait()} before it began")
    except BaseException:
        process.kill()
        process.wait()
        raise
    return address


def told() -> Any:
    """In such a program: what it was told."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells everybody; the ranks leave
    sys.path[:] = pickle.load(sys.stdin.buffer)
    return pickle.load(sys.stdin.buffer)
