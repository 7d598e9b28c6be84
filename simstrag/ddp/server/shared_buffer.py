"""Buffers for the gradient and the parameters of a rank, in shared memory where that is possible.

On one host frames travel without their buffers, which lie in memory that both sides have mapped.
The memory has no name: the rank allocates it, the server opens it through the rank's entry in
/proc, and the system frees it when both processes have ended, also if they are killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from dataclasses import dataclass
from typing import Any

import torch

PAGE = 4096
TAG = 16
"""Bytes at the beginning of shared memory by which the server recognises it."""


@dataclass(frozen=True, slots=True)
class MemoryHandle:
    """Shared memory of another process: file `fd` of process `pid`, which begins with `tag`."""

    pid: int
    fd: int
    tag: bytes


@dataclass(frozen=True, slots=True)
class ExchangeBuffers:
    """A rank's gradient on its way to the server, and parameters on their way back.

    gradient, parameters: shape (count,), contiguous, on the CPU.
    shared: whether the other side sees what is written into them.
    """

    gradient: torch.Tensor
    parameters: torch.Tensor
    shared: bool


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU, of any dtype.

    >>> as_bytes(torch.zeros(3)).nbytes
    12
    """
    array: Any = tensor.detach().view(torch.uint8).numpy()
    return memoryview(array)


def allocate_private(count: int, dtype: torch.dtype) -> ExchangeBuffers:
    """Buffers that this process alone has."""
    gradient, parameters = (torch.zeros(count, dtype=dtype) for _ in range(2))
    return ExchangeBuffers(gradient, parameters, shared=False)


def allocate_shared(count: int, dtype: torch.dtype) -> tuple[ExchangeBuffers, MemoryHandle] | None:
    """Buffers that another process of this host can map; None where the system has no memfd.

    Close `fd` of the handle when the other side has mapped the memory, or will not.
    """
    if not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("simstrag", os.MFD_CLOEXEC)
    try:
        size = 2 * _padded(count, dtype) + PAGE
        os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
    except OSError:
        os.close(fd)
        return None
    tag = secrets.token_bytes(TAG)
    memory[:TAG] = tag
    return _in_memory(memory, count, dtype), MemoryHandle(os.getpid(), fd, tag)


def map_shared(handle: MemoryHandle, count: int, dtype: torch.dtype) -> ExchangeBuffers | None:
    """Map the memory of another process; None where that is on another host or unreadable."""
    with contextlib.suppress(OSError, ValueError):
        path = f"/proc/{handle.pid}/fd/{handle.fd}"
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if os.pread(fd, TAG, 0) == handle.tag:
                memory = mmap.mmap(fd, 2 * _padded(count, dtype) + PAGE)
                return _in_memory(memory, count, dtype)
        finally:
            os.close(fd)
    return None


def _padded(count: int, dtype: torch.dtype) -> int:
    """Bytes of one buffer, rounded up to whole pages."""
    return -(-count * dtype.itemsize // PAGE) * PAGE


def _in_memory(memory: mmap.mmap, count: int, dtype: torch.dtype) -> ExchangeBuffers:
    offsets = PAGE, PAGE + _padded(count, dtype)
    gradient, parameters = (
        torch.frombuffer(memory, dtype=dtype, count=count, offset=offset) for offset in offsets
    )
    return ExchangeBuffers(gradient, parameters, shared=True)
