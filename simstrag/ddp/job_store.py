"""The store of a job: where it listens, and what launcher and ranks tell each other through it.

Torch's TCPStore has no authentication: whoever reaches it reads and writes every key.  So it
listens at one address alone, on the loopback where all ranks are on one machine.  It holds no
secret (see `secret`), and what is read here is checked before it is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from simstrag.errors import SimstragError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

START = 120.0
"""Seconds in which all ranks must meet, also where the stall limit is shorter."""

LOOK = 0.05
"""Seconds between two looks at whether a server has started."""

ENDED, WANTED = "ended", "server wanted"
"""Keys of the launcher's notice of ended ranks, and of the ranks' request for a server."""

T = TypeVar("T")


class ForeignEntry(SimstragError, RuntimeError):
    """The store holds what no rank of the job wrote: somebody else writes to it."""


class ServerRequest(NamedTuple):
    """A server that ranks need: the generation of their group, and its ranks by first number."""

    generation: int
    names: tuple[int, ...]


def hold_store(host: str, port: int, seconds: float) -> TCPStore:
    """Create a store in this process that listens at one address; on a free port where that is 0.

    seconds: timeout of requests.  Raises `OSError` where this machine cannot listen there.
    """
    listening = listen(host, port)
    own = listening.getsockname()[1]
    return _store(host, own, seconds, listening.detach())


def connect_store(host: str, port: int, seconds: float) -> TCPStore:
    """Connect to the store at an address; seconds: timeout of this and of requests."""
    return _store(host, port, seconds)


def _store(host: str, port: int, seconds: float, listening: int | None = None) -> TCPStore:
    import torch.distributed as dist

    store: TCPStore = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, None, listening is not None, timedelta(seconds=seconds),
        wait_for_workers=False, master_listen_fd=listening,
    )  # fmt: skip
    return store


def store_of_attempt(store: Store, attempt: int) -> Store:
    """The part of a store for one start of all ranks, whose entries a later one does not read."""
    from torch.distributed.distributed_c10d import PrefixStore

    return PrefixStore(f"attempt{attempt}", store)


def listen(host: str, port: int = 0) -> socket.socket:
    """A socket that listens at an address of this machine; port 0 is a free one."""
    family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(place[:2], family=family)


def read_entry(key: str, content: bytes, read: Callable[[str], T]) -> T:
    """What an entry of the store says.  Raises `ForeignEntry` for one that no rank writes.

    >>> read_entry("beat/1", b"12", int)
    12
    >>> read_entry("beat/1", b"x", int)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.ddp.job_store.ForeignEntry: the job's store holds b'x' as beat/1, which ...
    """
    try:
        return read(content.decode())
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        shown = content if len(content) <= 40 else content[:37] + b"..."
        raise ForeignEntry(
            f"the job's store holds {shown!r} as {key}, which none of its ranks wrote"
        ) from None


# -- the launcher's notices ----------------------------------------------------------------------


def launcher_holds_store() -> bool:
    """Whether the job's store lives in the launcher's process; else it ends with rank 0."""
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return agents or launcher_watches()


def launcher_watches() -> bool:
    """Whether the launcher says which ranks have ended, and starts servers: that of `launch`."""
    return "SIMSTRAG_STORE" in os.environ


def report_ended(store: Store, ranks: Sequence[int]) -> None:
    """Publish which ranks have ended; the launcher does, first without any."""
    store.set(ENDED, json.dumps(list(ranks)))


def read_ended(store: Store) -> frozenset[int]:
    """The ranks that have ended, as the launcher says."""
    return read_entry(ENDED, store.get(ENDED), lambda text: frozenset(map(int, json.loads(text))))


def request_server(store: Store, generation: int, names: Sequence[int]) -> None:
    """Ask the launcher for a server."""
    store.set(WANTED, json.dumps([generation, list(names)]))


def requested_server(store: Store, ranks: int) -> ServerRequest | None:
    """The server that ranks have asked for, on the launcher's side; None without a proper one."""
    with contextlib.suppress(RuntimeError):
        if not store.check([WANTED]):
            return None
        generation, names = read_entry(WANTED, store.get(WANTED), _request)
        if 0 <= generation < 10 * ranks + 10 and set(names) <= set(range(ranks)) and names:
            return ServerRequest(generation, names)
    return None


def _request(text: str) -> tuple[int, tuple[int, ...]]:
    generation, names = json.loads(text)
    return int(generation), tuple(map(int, names))


def announce_server(store: Store, generation: int, address: str) -> None:
    """Publish a server's host and port; its secret goes another way."""
    store.set(f"server/{generation}", address)


def wait_for_server(
    store: Store, generation: int, seconds: float, given_up: Callable[[], bool] = lambda: False
) -> str:
    """Wait for a server's host and port.

    given_up: returns whether nobody will need it any more.
    Raises `RuntimeError` then, and after `seconds`.
    """
    key, until = f"server/{generation}", time.monotonic() + seconds
    while not store.check([key]):
        if given_up() or time.monotonic() > until:
            raise RuntimeError(f"no server was started within {seconds:g} s")
        time.sleep(LOOK)
    return read_entry(key, store.get(key), _address)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not text.isprintable() or not 0 < int(port) < 1 << 16:
        raise ValueError(text)
    return text
