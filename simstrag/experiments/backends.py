"""Where the runs of a sweep are computed: on this machine, or on a Dask or Ray cluster.

Both clusters are asked directly.  joblib's backend for Dask waits for ever for a call that the
scheduler gave up because its workers died of it; Ray's gives nothing back before all is done, and
ends where one of its processes does (seen with joblib 1.6, distributed 2026.8, Ray 2.60).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError, SimstragError
from simstrag.processes.pool import Processes, cores
from simstrag.processes.signals import handler_kept

__all__ = ["BACKENDS", "Backend", "Gone", "LostCall", "backend_of", "computed"]

BACKENDS = ("processes", "dask", "ray")
PATIENCE = 10.0
"""Seconds in which a cluster answers."""
WORKERS = 60.0
"""Seconds in which one of its workers is there."""
AHEAD = 2
"""Calls given to a cluster for each of its cores, so that none waits for the next."""
RETRIES = 3
"""How often Ray starts a call again whose process ended, as Dask does by default."""

K = TypeVar("K")
_Call = tuple[K, tuple[Any, ...], int]
"""A name, arguments, and how often the call was started, this time with it."""


class LostCall:
    """In the place of what a call returns: whoever computed it ended, as often as it was tried."""


class Gone(SimstragError):
    """The backend itself failed: the cluster is not there any more, or cannot run this program."""


class Backend(Protocol):
    """Something that computes calls and gives futures.

    tries: how often to start a call that was lost; 1 where the backend does so by itself.
    lost: what a future raises then.
    blames_neighbours: a call may be lost by what others did beside it; it is tried again, alone.
    """

    tries: int
    lost: tuple[type[BaseException], ...]
    blames_neighbours: bool

    @property
    def room(self) -> int:
        """How many calls it can do with at a time."""

    def share(self, data: bytes) -> Any:
        """What to give to `start` in the place of data that many calls need."""

    def start(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A future of what the call returns."""

    def end(self) -> None:
        """Let go what it holds; calls under way are given up."""


def computed(
    backend: Backend, function: Callable[..., Any], calls: Iterable[tuple[K, tuple[Any, ...]]]
) -> Iterator[tuple[K, Any]]:
    """What a function returns for (name, arguments), as calls finish; `LostCall` for one given up.

    Raises `Gone` for whatever the function would not raise itself: it is to raise nothing.

    >>> sorted(computed(backend_of("processes", jobs=1), abs, [("a", (-1,)), ("b", (2,))]))
    [('a', 1), ('b', 2)]
    """
    finished: SimpleQueue[tuple[K, tuple[Any, ...], int, Any]] = SimpleQueue()
    waiting, again, alone = iter(calls), deque[_Call[K]](), deque[_Call[K]]()
    running = 0

    def start(call: _Call[K]) -> None:
        future = backend.start(function, *call[1])
        future.add_done_callback(lambda done: finished.put((*call, done)))

    while True:
        while running < backend.room:
            if (call := again.popleft() if again else _first(waiting)) is None:
                break
            start(call)
            running += 1
        if not running:
            if not alone:
                return
            start(alone.popleft())
            running += 1
        name, arguments, tries, done = finished.get()
        running -= 1
        try:
            outcome = done.result()
        except backend.lost:
            if tries < backend.tries:
                again.append((name, arguments, tries + 1))
                continue
            if backend.blames_neighbours and tries == backend.tries:
                alone.append((name, arguments, tries + 1))
                continue
            outcome = LostCall()
        except Exception as error:
            raise Gone(_line(error)) from error
        yield name, outcome


def _first(waiting: Iterator[tuple[K, tuple[Any, ...]]]) -> _Call[K] | None:
    call = next(waiting, None)
    return None if call is None else (*call, 1)


def backend_of(name: str, address: str | None = None, jobs: int | None = None) -> Backend:
    """A backend by its name. Raises `InputError` where it cannot be had.

    >>> backend_of("das")
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no backend 'das'; known: processes, dask, ray. Did you mean
    'dask'?
    """
    if name not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise InputError(f"there is no backend '{name}'; known: {known}{nearest(name, BACKENDS)}")
    if name == "processes":
        if address is not None:
            raise InputError(f"address {address}: is of a cluster; choose the backend dask or ray")
        return Here() if (jobs or cores()) == 1 else Processes(jobs or cores())
    if jobs is not None:
        raise InputError(f"backend {name} uses all workers of its cluster; leave jobs out")
    package = {"dask": "distributed", "ray": "ray"}[name]
    if importlib.util.find_spec(package) is None:
        raise InputError(
            f"backend {name} needs the package {package}; pip install 'simstrag[{name}]'"
        )
    if address is None:
        example = {"dask": "tcp://10.0.0.1:8786", "ray": "10.0.0.1:6379"}[name]
        raise InputError(f"backend {name} needs the address of a cluster, such as {example}")
    return Dask(address) if name == "dask" else Ray(address)


class Here:
    """This process."""

    tries = 1
    lost: tuple[type[BaseException], ...] = ()
    blames_neighbours = False
    room = 1

    def share(self, data: bytes) -> bytes:
        """The data."""
        return data

    def start(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Compute it now."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def end(self) -> None:
        """Nothing is held."""


class Dask:
    """The workers of a Dask scheduler, which starts calls anew itself (`allowed-failures`).

    It counts the end of a worker against every call that waited there too.
    """

    tries = 1
    blames_neighbours = True

    def __init__(self, address: str) -> None:
        from distributed import Client, KilledWorker

        self.lost: tuple[type[BaseException], ...] = (KilledWorker,)
        with _answering("dask", address):
            _reach(address)
            self._client = Client(address, timeout=PATIENCE, set_as_default=False)
        with _answering("dask", address, self.end):
            self._client.wait_for_workers(1, timeout=WORKERS)

    @property
    def room(self) -> int:
        """Workers come and go."""
        threads: int = sum(self._client.nthreads().values())
        return max(AHEAD * threads, 1)

    def share(self, data: bytes) -> Any:
        """A task of its own, which the scheduler does again where its result is lost."""
        key = f"simstrag-{hashlib.sha256(data).hexdigest()}"
        return self._client.submit(bytes, data, key=key)

    def start(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A future of Dask's."""
        return self._client.submit(function, *arguments, pure=False)

    def end(self) -> None:
        """The scheduler forgets what nobody waits for."""
        self._client.close()


class Ray:
    """The nodes of a Ray cluster, which starts calls anew itself."""

    tries = 1
    blames_neighbours = False

    def __init__(self, address: str) -> None:
        import ray
        from ray import exceptions

        self.lost: tuple[type[BaseException], ...] = (
            exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError,
        )  # fmt: skip
        self._ray = ray
        self._known: dict[Callable[..., Any], Any] = {}
        self._own = not ray.is_initialized()
        with _answering("ray", address):
            if address != "auto":  # Ray's word for the cluster of this machine
                host, port = _parts(address)
                local = host in ("localhost", "127.0.0.1")  # Ray does not mean what these say
                _reach(f"{ray.util.get_node_ip_address()}:{port}" if local else address)
            if self._own:
                with handler_kept(signal.SIGTERM):  # Ray would answer it with a trace of its stack
                    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)

    @property
    def room(self) -> int:
        """Nodes come and go."""
        return max(AHEAD * int(self._ray.cluster_resources().get("CPU", 0)), 1)

    def share(self, data: bytes) -> Any:
        """Kept by this process for all nodes."""
        return self._ray.put(data)

    def start(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """One core, and started again where its process ended."""
        if function not in self._known:  # each is told to the cluster once
            self._known[function] = self._ray.remote(num_cpus=1, max_retries=RETRIES)(function)
        future: Future[Any] = self._known[function].remote(*arguments).future()
        return future

    def end(self) -> None:
        """Leave the cluster, unless it was joined before."""
        if self._own:
            self._ray.shutdown()


@contextlib.contextmanager
def _answering(
    name: str, address: str, give_up: Callable[[], None] | None = None
) -> Iterator[None]:
    """What goes wrong in reaching a cluster, in one line."""
    try:
        yield
    except Exception as error:
        if give_up is not None:
            give_up()
        raise InputError(f"no {name} cluster at {address}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _reach(address: str) -> None:
    """Raise where no cluster answers: `OSError`, or `ValueError` for what is no address.

    Both clusters speak first, unless they expect a cipher; a client of either would go on asking
    for minutes whatever else answers there.
    """
    host, port = _parts(address)
    with socket.create_connection((host, port), PATIENCE) as connection:
        if not address.startswith("tls://") and os.environ.get("RAY_USE_TLS") != "1":
            connection.recv(1)


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not (host and port.isdecimal()):
        raise ValueError("write it as host:port")
    return host, int(port)
