"""A link of limited rate between two network namespaces of this host, for real.

Ranks in the two namespaces see each other over it alone, as two machines would.  It needs root,
iproute2 and a kernel with veth and tbf; `probe` says what is missing.  Delay is not offered: many
kernels lack what that takes.
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

__all__ = ["ADDRESSES", "DEVICE", "Behind", "Link", "probe", "sweep"]

Side = Literal["a", "b"]

ADDRESSES = {"a": "10.213.7.1", "b": "10.213.7.2"}
"""Of the two ends; they are nobody else's, for a namespace is a network of its own."""

NAME = re.compile(r"^simstrag-(\d+)-[ab]$")

DEVICE = "link0"

NETWORK = 0x40000000
"""CLONE_NEWNET: what of a process `setns` changes."""

LATENCY = "200ms"
"""For how long a packet may wait for its turn before it is dropped."""


class Link:
    """Two namespaces and the link between them; a context manager, after which both are gone.

    rate: bits per second each way, none for no limit.  burst: bytes that pass at once; small
    messages are not slowed.  One at a time in a process.  Raises `InputError` with the line that
    says why, where this machine cannot.

        with Link(rate=400e6) as link:
            server = link.start("a", ["python", "server.py", link.address("a")])
    """

    def __init__(self, rate: float | None = None, burst: int = 256 << 10) -> None:
        if rate is not None and not rate >= 8000:
            raise InputError(f"rate of a link: {rate:g} bit/s; give at least 8000")
        self.rate, self.burst = rate, burst

    def __enter__(self) -> Link:
        if missing := _missing():
            raise InputError(missing)
        sweep()
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
        _do("ip", "netns", "add", a)
        _do("ip", "netns", "add", b)
        peer = ("peer", "name", DEVICE, "netns", b)
        _do("ip", "-n", a, "link", "add", DEVICE, "type", "veth", *peer)
        for side, address in ADDRESSES.items():
            inside = ("ip", "-n", self.namespace(side))
            _do(*inside, "addr", "add", f"{address}/24", "dev", DEVICE)
            _do(*inside, "link", "set", DEVICE, "up")
            _do(*inside, "link", "set", "lo", "up")

    def namespace(self, side: str) -> str:
        """The name of one side; it carries the number of this process."""
        return f"simstrag-{os.getpid()}-{side}"

    def address(self, side: Side) -> str:
        """The address at which one side is reached from the other."""
        return ADDRESSES[side]

    def limit(self, rate: float | None) -> None:
        """From now on so many bits per second each way; none for no limit."""
        for side in ADDRESSES:
            tc = ("tc", "-n", self.namespace(side), "qdisc")
            if rate is not None:
                shape = ("rate", f"{round(rate)}bit", "burst", f"{self.burst}b", "latency", LATENCY)
                _do(*tc, "replace", "dev", DEVICE, "root", "tbf", *shape)
            elif self.rate is not None:
                _do(*tc, "del", "dev", DEVICE, "root")
        self.rate = rate

    def cut(self) -> None:
        """Nothing passes from now on, and nobody is told so, as behind a switch that fails."""
        for side in ADDRESSES:
            device = ("dev", DEVICE, "root")
            _do("tc", "-n", self.namespace(side), "qdisc", "replace", *device, "blackhole")

    def start(self, side: Side, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """A process on one side; it is killed when the link is removed, and when this thread ends.

        The namespaces of a process that was killed stay, with nothing in them, until somebody makes
        the next link.
        """
        return subprocess.Popen(self.placed(side, command), **options)

    def placed(self, side: Side, command: Sequence[str]) -> list[str]:
        """The command that runs there."""
        inside = ("ip", "netns", "exec", self.namespace(side), "setpriv", "--pdeathsig", "KILL")
        return [*inside, *command]

    @contextlib.contextmanager
    def inside(self, side: Side) -> Iterator[None]:
        """What this thread opens in here is on that side."""
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
        """Kill what runs on either side, and leave nothing of the link."""
        for side in ADDRESSES:
            _remove(self.namespace(side))


@dataclass(frozen=True)
class Behind:
    """Where `launch` starts ranks when one of them is behind a link, and all others before it."""

    link: Link
    rank: int

    device = DEVICE

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """What is opened in here is where the others are."""
        return self.link.inside("a")

    def address_of(self, rank: int | None) -> str:
        """Of that rank's side, or of the store's."""
        return ADDRESSES[self._side(rank)]

    def placed(self, rank: int | None, command: Sequence[str]) -> list[str]:
        """The command that runs where that rank is, or the server."""
        return self.link.placed(self._side(rank), command)

    def _side(self, rank: int | None) -> Side:
        return "b" if rank == self.rank else "a"


def probe() -> str:
    """Why this machine can have no limited link, in one line; "" where it can, which is tried."""
    try:
        with Link(rate=1e9):
            return ""
    except InputError as error:
        return str(error)


def sweep() -> list[str]:
    """Remove what links of processes that are gone have left; their names."""
    found = []
    for line in _do("ip", "netns", "list").splitlines():
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
        for pid in _do("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
    with contextlib.suppress(InputError):
        _do("ip", "netns", "del", name)


def _do(*command: str) -> str:
    """Run it; what it said.  Raises `InputError` with its complaint."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[0]
        raise InputError(f"a limited link: `{' '.join(command)}` failed: {said}")
    return done.stdout
