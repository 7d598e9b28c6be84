"""The process of a rank: whether it runs, and killing it."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
from pathlib import Path
from typing import NamedTuple

import psutil


class ProcessIdentity(NamedTuple):
    """A process: its running system, its pid there, and its start time."""

    host: str
    pid: int
    born: float

    @classmethod
    def here(cls) -> ProcessIdentity:
        """The identity of this process."""
        return cls(_host(), os.getpid(), _born(os.getpid()))

    def state(self) -> str:
        """Its state: "ended" or "stopped"; "" for neither, and for a process on another host."""
        if self.host != _host():
            return ""
        try:
            same = _born(self.pid) == self.born
            status = psutil.Process(self.pid).status() if same else psutil.STATUS_DEAD
        except (psutil.Error, OSError):
            return "ended"
        gone = status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return "ended" if gone else "stopped" if status == psutil.STATUS_STOPPED else ""

    def is_near(self) -> bool:
        """Whether it has this process's parent, as ranks of one launcher do, or is its child.

        Only such a process is killed: what the store says of a rank may be a stranger's.
        """
        if self.host != _host() or self.pid == os.getpid():
            return False
        with contextlib.suppress(psutil.Error, OSError):
            return psutil.Process(self.pid).ppid() in (os.getppid(), os.getpid())
        return False

    def kill(self) -> bool:
        """Kill it, if it is near this process; never another process that reuses its pid."""
        if not self.is_near():
            return False
        with contextlib.suppress(psutil.Error, OSError):
            # On Linux a handle survives a reuse of the pid.
            handle = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
            try:
                if _born(self.pid) == self.born:
                    if handle is None:
                        os.kill(self.pid, signal.SIGKILL)
                    else:
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                    return True
            finally:
                if handle is not None:
                    os.close(handle)
        return False


def network_namespace() -> str:
    """The network namespace of this process; processes in one namespace share the loopback."""
    return _namespace("net")


def _host() -> str:
    """This running system or container, within which processes see each other."""
    return f"{platform.node()} {_namespace('pid')}"


def _namespace(kind: str) -> str:
    """The running kernel and a namespace of it; the host's name without Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(f'/proc/self/ns/{kind}')}"
    except OSError:
        return platform.node()


def _born(pid: int) -> float:
    """The start time of a process, on a clock that cannot be set where there is one."""
    path = Path(f"/proc/{pid}/stat")
    if path.exists():
        return float(path.read_text().rpartition(")")[2].split()[19])
    return float(psutil.Process(pid).create_time())
