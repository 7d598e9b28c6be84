"""A rate-limited link between two network namespaces of this host.

Ranks in the two namespaces reach each other only over this link, like two machines. It needs root,
iproute2 and a kernel with veth and tbf; `probe` reports what is missing. There is no delay option,
because many kernels lack netem.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil

from simstrag.errors import InputError

LinkEnd = Literal["a", "b"]

ADDRESSES = {"a": "10.213.7.1", "b": "10.213.7.2"}
"""Addresses of the two ends; private to the namespaces."""

NAME = re.compile(r"^simstrag-(\d+)-[ab]$")

DEVICE = "link0"

NETWORK = 0x40000000
"""CLONE_NEWNET, the namespace type that `setns` changes."""

LATENCY = "200ms"
"""Longest time that a packet may queue before it is dropped."""


class LimitedLink:
    """Two network namespaces and the link between them; a context manager that removes both.

    rate: bits per second each way; None for no limit.
    burst: bytes that pass without delay, so small messages are not slowed.

    A process can have one link at a time.  Raises `InputError` if this machine cannot make one.

        with LimitedLink(rate=400e6) as link:
            server = link.start("a", ["python", "server.py", link.address("a")])
    """

    def __init__(self, rate: float | None = None, burst: int = 256 << 10) -> None:
        if rate is not None and not rate >= 8000:
            raise InputError(f"rate of a link: {rate:g} bit/s; give at least 8000")
        self.rate, self.burst = rate, burst

    def __enter__(self) -> LimitedLink:
        if missing := _missing():
            raise InputError(missing)
        remove_stale_links()
        try:
            self._build()
            self.limit(self.rate)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self.remove()

    def _build(self) -> None:
        a, b = self.namespace("a"), self.namespace("b")
        _run("ip", "netns", "add", a)
        _run("ip", "netns", "add", b)
        peer = ("peer", "name", DEVICE, "netns", b)
        _run("ip", "-n", a, "link", "add", DEVICE, "type", "veth", *peer)
        for side, address in ADDRESSES.items():
            inside = ("ip", "-n", self.namespace(side))
            _run(*inside, "addr", "add", f"{address}/24", "dev", DEVICE)
            _run(*inside, "link", "set", DEVICE, "up")
            _run(*inside, "link", "set", "lo", "up")

    def namespace(self, side: str) -> str:
        """The name of the namespace of one side; contains the process id."""
        return f"simstrag-{os.getpid()}-{side}"

    def address(self, side: LinkEnd) -> str:
        """The address of one side."""
        return ADDRESSES[side]

    def limit(self, rate: float | None) -> None:
        """Set the rate in bits per second each way; None removes the limit."""
        for side in ADDRESSES:
            tc = ("tc", "-n", self.namespace(side), "qdisc")
            if rate is not None:
                shape = ("rate", f"{round(rate)}bit", "burst", f"{self.burst}b", "latency", LATENCY)
                _run(*tc, "replace", "dev", DEVICE, "root", "tbf", *shape)
            elif self.rate is not None:
                _run(*tc, "del", "dev", DEVICE, "root")
        self.rate = rate

    def cut(self) -> None:
        """Drop all packets silently from now on, like a failing switch."""
        for side in ADDRESSES:
            device = ("dev", DEVICE, "root")
            _run("tc", "-n", self.namespace(side), "qdisc", "replace", *device, "blackhole")

    def start(self, side: LinkEnd, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on one side; it is killed with the link, and when this thread ends.

        If this process is killed, its empty namespaces stay until the next link is made.
        """
        return subprocess.Popen(self.wrap_command(side, command), **options)

    def wrap_command(self, side: LinkEnd, command: Sequence[str]) -> list[str]:
        """The command line that runs a command on one side."""
        inside = ("ip", "netns", "exec", self.namespace(side), "setpriv", "--pdeathsig", "KILL")
        return [*inside, *command]

    @contextlib.contextmanager
    def inside(self, side: LinkEnd) -> Iterator[None]:
        """Within this context, sockets that this thread opens are on that side."""
        setns = ctypes.CDLL(None, use_errno=True).setns
        with (
            open("/proc/thread-self/ns/net") as home,
            open(f"/run/netns/{self.namespace(side)}") as there,
        ):
            if setns(there.fileno(), NETWORK):
                raise InputError(f"a limited link: {os.strerror(ctypes.get_errno())}")
            try:
                yield
            finally:
                if setns(home.fileno(), NETWORK):
                    raise OSError(ctypes.get_errno(), "cannot return to the network of this host")

    def remove(self) -> None:
        """Kill the processes on both sides and remove the namespaces."""
        for side in ADDRESSES:
            _remove(self.namespace(side))


@dataclass(frozen=True)
class Behind:
    """Places one rank behind a link and all others in front of it, for `launch`."""

    link: LimitedLink
    rank: int

    device = DEVICE

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Within this context, sockets that this thread opens are in front of the link."""
        return self.link.inside("a")

    def address_of(self, rank: int | None) -> str:
        """Address of the side of a rank, or of the store for None."""
        return ADDRESSES[self._side(rank)]

    def wrap(self, rank: int | None, command: Sequence[str]) -> list[str]:
        """The command line on the side of a rank, or of the server for None."""
        return self.link.wrap_command(self._side(rank), command)

    def _side(self, rank: int | None) -> LinkEnd:
        return "b" if rank == self.rank else "a"


def probe() -> str:
    """Try to make a link; returns "", or one line on why this machine cannot."""
    try:
        with LimitedLink(rate=1e9):
            return ""
    except InputError as error:
        return str(error)


def remove_stale_links() -> list[str]:
    """Remove the namespaces of processes that no longer exist; returns their names."""
    found = []
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        match = NAME.match(name)
        if match and not psutil.pid_exists(int(match[1])):
            _remove(name)
            found.append(name)
    return found


def _missing() -> str:
    if sys.platform != "linux":
        return "a limited link needs Linux"
    if os.geteuid() != 0:
        return "a limited link needs root, for network namespaces"
    absent = [tool for tool in ("ip", "tc", "setpriv") if shutil.which(tool) is None]
    if absent:
        return f"a limited link needs {' and '.join(absent)} (iproute2, util-linux)"
    return ""


def _remove(name: str) -> None:
    with contextlib.suppress(InputError):
        for pid in _run("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
    with contextlib.suppress(InputError):
        _run("ip", "netns", "del", name)


def _run(*command: str) -> str:
    """Run a command; returns its output.  Raises `InputError` with its error message."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[0]
        raise InputError(f"a limited link: `{' '.join(command)}` failed: {message}")
    return done.stdout
