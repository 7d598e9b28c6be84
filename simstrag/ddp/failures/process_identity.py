"""Which process a rank is: whether it still lives, and its end where others depend on that."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

__all__ = ["ProcessIdentity", "network_namespace"]


class ProcessIdentity(NamedTuple):
    """A process among all: the system it runs on, its number there, and when it was started."""

    host: str
    pid: int
    born: float

    @classmethod
    def here(cls) -> ProcessIdentity:
        """This one."""
        return cls(_host(), os.getpid(), _born(os.getpid()))

    def state(self) -> str:
        """Whether it "ended" or is "stopped"; "" for neither, or where that cannot be told."""
        if self.host != _host():
            return ""
        try:
            same = _born(self.pid) == self.born
            status = psutil.Process(self.pid).status() if same else psutil.STATUS_DEAD
        except (psutil.Error, OSError):
            return "ended"
        gone = status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return "ended" if gone else "stopped" if status == psutil.STATUS_STOPPED else ""

    def kill(self) -> bool:
        """End it, if it runs on this host; never another one that has its number by now."""
        if self.host != _host() or self.pid == os.getpid():
            return False
        with contextlib.suppress(psutil.Error, OSError), _handle(self.pid) as handle:
            if _born(self.pid) == self.born:
                if handle is None:
                    os.kill(self.pid, signal.SIGKILL)
                else:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        return False


def network_namespace() -> str:
    """The network of this process: who has the same one has the same loopback."""
    return _namespace("net")


def _host() -> str:
    """This running system, or container: processes see each other where this is the same."""
    return f"{platform.node()} {_namespace('pid')}"


def _namespace(kind: str) -> str:
    """A kernel that runs, and a namespace of it; the host's name where there is no such thing."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(f'/proc/self/ns/{kind}')}"
    except OSError:
        return platform.node()


def _born(pid: int) -> float:
    """When a process was started, on a clock that nobody sets, where the system has one."""
    path = Path(f"/proc/{pid}/stat")
    if path.exists():
        return float(path.read_text().rpartition(")")[2].split()[19])
    return float(psutil.Process(pid).create_time())


@contextlib.contextmanager
def _handle(pid: int) -> Iterator[int | None]:
    """What stands for a process even when its number is given to another one, on Linux."""
    if not hasattr(os, "pidfd_open"):
        yield None
        return
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)
