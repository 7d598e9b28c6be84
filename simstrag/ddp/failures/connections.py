"""The TCP connections of a process group, to be shut when a wait for it must end."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

__all__ = ["Connections"]


class Connections:
    """The TCP connections that a process group made, so that a wait for it can be ended.

    gloo knows no way to break off a collective that waits: aborting the group leaves the wait as it
    is.  Once its connections are shut, the wait fails at once, and on the other ranks too.

    >>> connections = Connections()
    >>> with connections.made():
    ...     pass  # dist.init_process_group(...), dist.new_group(...)
    >>> connections.shut()
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """What is connected in here belongs to the group.

        But not who comes meanwhile to a door that was open before, as to a store that this process
        holds: others would lose their connection to that.
        """
        before = _sockets()
        doors = {_port(number) for number in before if _listens(number)}
        try:
            yield
        finally:
            new = _sockets().items() - before.items()
            self._known |= {number: what for number, what in new if _port(number) not in doors}

    def shut(self) -> None:
        """End them; what was closed since, or is another connection by now, is left alone."""
        for number, _ in self._known.items() & _sockets().items():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as each:
                each.getpeername()  # fails where it listens: gloo aborts when that is shut
                each.shutdown(socket.SHUT_RDWR)


def _listens(number: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as each:
        return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _port(number: int) -> int:
    """Of this side; 0 of what has none."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as each:
        if each.family in (socket.AF_INET, socket.AF_INET6):
            return int(each.getsockname()[1])
    return 0


def _sockets() -> dict[int, str]:
    """The sockets of this process: descriptor, and what is behind it.  None but on Linux."""
    found = {}
    folder = "/proc/self/fd"
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        with contextlib.suppress(OSError):
            target = os.readlink(f"{folder}/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found
