"""The TCP connections of a process group, shut to abort a pending collective."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator


class Connections:
    """The TCP connections of a process group, or of a store.

    gloo cannot cancel a pending collective: aborting the group leaves the call blocked. Shutting
    its connections makes the call fail at once, on the other ranks too.

    >>> connections = Connections()
    >>> with connections.capture():
    ...     pass  # dist.init_process_group(...), dist.new_group(...)
    >>> connections.shut()
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._before: tuple[dict[int, str], set[int]] | None = None

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Count the connections opened in this block as the group's.

        Connections accepted by a socket that listened before the block, such as the TCPStore of
        this process, are left out.
        """
        before = _sockets()
        self._before = before, {_port(number) for number in before if _listens(number)}
        try:
            yield
        finally:
            self._known |= self._captured()
            self._before = None

    def _captured(self) -> dict[int, str]:
        """The connections opened in the block that is open, up to now."""
        if self._before is None:
            return {}
        before, listening = self._before
        new = _sockets().items() - before.items()
        return {n: target for n, target in new if _port(n) not in listening}

    def shut(self) -> None:
        """Shut them down; a descriptor that was closed or reused since is left alone."""
        known = self._known | self._captured()
        for number, _ in known.items() & _sockets().items():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as each:
                each.getpeername()  # fails for a listening socket, whose end makes gloo abort
                each.shutdown(socket.SHUT_RDWR)


def _listens(number: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as each:
        return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _port(number: int) -> int:
    """The local port; 0 for a socket without one."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as each:
        if each.family in (socket.AF_INET, socket.AF_INET6):
            return int(each.getsockname()[1])
    return 0


def _sockets() -> dict[int, str]:
    """The sockets of this process by descriptor, as /proc names them; empty except on Linux."""
    sockets = {}
    folder = "/proc/self/fd"
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        with contextlib.suppress(OSError):
            target = os.readlink(f"{folder}/{name}")
            if target.startswith("socket:"):
                sockets[int(name)] = target
    return sockets
