"""Shared memory of two processes: both see the same bytes, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from simstrag.ddp.server.shared_buffer import (
    MemoryHandle,
    allocate_private,
    allocate_shared,
    as_bytes,
    map_shared,
)

COUNT = 5000

PROGRAM = """
import os, signal, sys, torch
from simstrag.ddp.server.shared_buffer import MemoryHandle, map_shared
tag = bytes.fromhex(sys.argv[3])
theirs = map_shared(MemoryHandle(int(sys.argv[1]), int(sys.argv[2]), tag), {count}, torch.float64)
print(theirs is not None, flush=True)
theirs.parameters.copy_(2 * theirs.gradient)
print("done", flush=True)
if sys.argv[4] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd here")


def other_process(handle: MemoryHandle, end: str = "") -> list[str]:
    arguments = [str(handle.pid), str(handle.fd), handle.tag.hex(), end]
    program = [sys.executable, "-c", PROGRAM.format(count=COUNT), *arguments]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        program, stdout=subprocess.PIPE, text=True, timeout=300, cwd=root, check=False
    )
    return done.stdout.split()


def files() -> set[str]:
    """Shared memory that has a name, without that of worker pools which other programs have."""
    here = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    return {name for name in here if not name.startswith(("joblib", "sem.loky"))}


def test_what_one_process_writes_the_other_reads_and_nothing_is_left_after_a_kill() -> None:
    before = files()
    found = allocate_shared(COUNT, torch.float64)
    assert found is not None
    mine, handle = found
    mine.gradient.copy_(torch.randn(COUNT, dtype=torch.float64))
    assert other_process(handle, "die") == ["True", "done"]
    assert torch.equal(mine.parameters, 2 * mine.gradient)
    os.close(handle.fd)
    assert files() <= before


def test_memory_holds_after_its_file_is_closed() -> None:
    found = allocate_shared(COUNT, torch.float32)
    assert found is not None
    mine, handle = found
    theirs = map_shared(handle, COUNT, torch.float32)
    assert theirs is not None
    os.close(handle.fd)
    mine.gradient.fill_(3.0)
    theirs.parameters.fill_(4.0)
    assert torch.equal(theirs.gradient, torch.full((COUNT,), 3.0))
    assert torch.equal(mine.parameters, torch.full((COUNT,), 4.0))
    assert mine.shared
    assert theirs.shared


def test_memory_that_is_not_the_one_offered_is_not_taken() -> None:
    found = allocate_shared(COUNT, torch.float32)
    assert found is not None
    _, handle = found
    nobody = 1 << 30
    for other in (
        replace(handle, tag=bytes(16)), replace(handle, fd=nobody), replace(handle, pid=nobody),
    ):  # fmt: skip
        assert map_shared(other, COUNT, torch.float32) is None
    os.close(handle.fd)
    assert map_shared(handle, COUNT, torch.float32) is None


def test_a_count_that_the_memory_cannot_hold_is_not_taken() -> None:
    found = allocate_shared(COUNT, torch.float32)
    assert found is not None
    assert map_shared(found[1], 100 * COUNT, torch.float32) is None
    os.close(found[1].fd)


def test_memory_of_one_side_is_not_shared() -> None:
    own = allocate_private(3, torch.float64)
    assert not own.shared
    assert as_bytes(own.gradient).nbytes == 24


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_bytes_are_the_memory_of_a_tensor(dtype: torch.dtype) -> None:
    one, other = torch.randn(7).to(dtype), torch.zeros(7, dtype=dtype)
    as_bytes(other)[:] = as_bytes(one)
    assert torch.equal(one, other)
