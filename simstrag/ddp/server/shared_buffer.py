"""Where gradient and parameters of a rank lie for the server: in shared memory, or on either side.

On one host the frames travel without their buffers, which lie in memory that both have mapped.  It
has no name: the rank makes it, the server opens it through the rank's entry in /proc, and it ends
with the last of the two, also if they are killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Offer", "Payload", "accept", "apart", "octets", "offer"]

PAGE = 4096
TAG = 16
"""Bytes at the beginning of shared memory that tell it from any other."""


@dataclass(frozen=True, slots=True)
class Offer:
    """How the other side finds the memory: file `fd` of process `pid`, which begins with `tag`."""

    pid: int
    fd: int
    tag: bytes


class Payload:
    """A rank's gradient on its way to the server, and parameters on their way back.

    gradient, parameters: shape (count,), contiguous, on the CPU.
    shared: whether what is written into them is seen by the other side.
    """

    def __init__(self, gradient: torch.Tensor, parameters: torch.Tensor, shared: bool) -> None:
        self.gradient, self.parameters, self.shared = gradient, parameters, shared


def octets(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU, of any type of number.

    >>> octets(torch.zeros(3)).nbytes
    12
    """
    array: Any = tensor.detach().view(torch.uint8).numpy()
    return memoryview(array)


def apart(count: int, dtype: torch.dtype) -> Payload:
    """Memory of this side only."""
    return Payload(torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype), shared=False)


def offer(count: int, dtype: torch.dtype) -> tuple[Payload, Offer] | None:
    """Memory that another process of this host may map; None where the system has no such thing.

    Close `fd` of the offer when the other side has taken it, or will not.
    """
    if not hasattr(os, "memfd_create"):
        return None
    fd = os.memfd_create("simstrag", os.MFD_CLOEXEC)
    try:
        size = _size(count, dtype)
        os.ftruncate(fd, 2 * size + PAGE)
        memory = mmap.mmap(fd, 2 * size + PAGE)
    except OSError:
        os.close(fd)
        return None
    tag = secrets.token_bytes(TAG)
    memory[:TAG] = tag
    return _mapped(memory, count, dtype), Offer(os.getpid(), fd, tag)


def accept(offered: Offer, count: int, dtype: torch.dtype) -> Payload | None:
    """Map what another process offers; None where it is on another host or cannot be opened."""
    with contextlib.suppress(OSError, ValueError):
        path = f"/proc/{offered.pid}/fd/{offered.fd}"
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if os.pread(fd, TAG, 0) == offered.tag:
                return _mapped(mmap.mmap(fd, 2 * _size(count, dtype) + PAGE), count, dtype)
        finally:
            os.close(fd)
    return None


def _size(count: int, dtype: torch.dtype) -> int:
    """Bytes of one buffer, rounded up to whole pages."""
    return -(-count * dtype.itemsize // PAGE) * PAGE


def _mapped(memory: mmap.mmap, count: int, dtype: torch.dtype) -> Payload:
    one, other = (
        torch.frombuffer(memory, dtype=dtype, count=count, offset=PAGE + k * _size(count, dtype))
        for k in range(2)
    )
    return Payload(one, other, shared=True)
