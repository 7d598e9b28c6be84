"""Where the runs of a sweep are computed: on this machine, or on a Dask or Ray cluster.

Both clusters are used without joblib. Its Dask backend hangs on a call that the scheduler has given
up because workers died of it; its Ray backend returns nothing until all calls are done, and fails
when one worker process dies (seen with joblib 1.6, distributed 2026.8, Ray 2.60).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from simstrag.documents.suggestions import choices
from simstrag.documents.units import whole_number
from simstrag.errors import InputError
from simstrag.processes.pool import Backend, InProcess, WorkerPool, core_count
from simstrag.processes.signals import keep_handler

BACKENDS = ("processes", "dask", "ray")
CLUSTERS = {"dask": ("distributed", "tcp://10.0.0.1:8786"), "ray": ("ray", "10.0.0.1:6379")}
"""The package that a cluster needs, and an example of an address."""
PATIENCE = 10.0
"""Seconds in which a cluster must answer."""
WORKERS = 60.0
"""Seconds in which one of its workers must be available."""
AHEAD = 2
"""Calls under way for each core of a cluster, so that none waits for the next."""
RETRIES = 3
"""How often Ray restarts a call whose process ended, as Dask does by default."""


def load_backend(name: str, address: str | None = None, jobs: int | None = None) -> Backend:
    """A backend by its name.  Raises `InputError` if it is not available.

    >>> load_backend("das")
    Traceback (most recent call last):
    simstrag.errors.InputError: there is no backend 'das'; known: processes, dask, ray. Did you mean
    'dask'?
    """
    if name not in BACKENDS:
        raise InputError(f"there is no backend '{name}'; {choices(name, BACKENDS)}")
    if name == "processes":
        if address is not None:
            raise InputError(
                f"address {address}: only clusters have an address; choose the backend dask or ray"
            )
        jobs = core_count() if jobs is None else whole_number(jobs, "jobs", least=1)
        return InProcess() if jobs == 1 else WorkerPool(jobs)
    if jobs is not None:
        raise InputError(f"backend {name} uses all workers of its cluster; leave jobs out")
    package, example = CLUSTERS[name]
    if importlib.util.find_spec(package) is None:
        raise InputError(
            f"backend {name} needs the package {package}; pip install 'simstrag[{name}]'"
        )
    if not isinstance(address, str):
        stated = "" if address is None else f", not {address!r}"
        raise InputError(
            f"backend {name} needs the address of a cluster, such as {example}{stated}"
        )
    return DaskBackend(address) if name == "dask" else RayBackend(address)


@contextlib.contextmanager
def open_backend(
    name: str = "processes", address: str | None = None, jobs: int | None = None
) -> Iterator[Backend]:
    """A backend that is shut down in the end."""
    backend = load_backend(name, address, jobs)
    try:
        yield backend
    finally:
        backend.shut_down()


class DaskBackend:
    """The workers of a Dask scheduler, which restarts calls itself (`allowed-failures`).

    When a worker dies, the scheduler counts it against every call queued there, not only the one
    that ran.
    """

    tries = 1
    blames_neighbours = True

    def __init__(self, address: str) -> None:
        from distributed import Client, KilledWorker

        self.lost: tuple[type[BaseException], ...] = (KilledWorker,)
        with _errors_in_one_line("dask", address):
            _require_answer(address)
            self._client = Client(address, timeout=PATIENCE, set_as_default=False)
            try:
                self._client.wait_for_workers(1, timeout=WORKERS)
            except BaseException:
                self.shut_down()
                raise

    @property
    def room(self) -> int:
        """Calls that may be in flight; changes as workers join and leave."""
        threads: int = sum(self._client.nthreads().values())
        return max(AHEAD * threads, 1)

    def share(self, data: bytes) -> Any:
        """A task that returns the data; the scheduler runs it again if its result is lost."""
        key = f"simstrag-{hashlib.sha256(data).hexdigest()}"
        return self._client.submit(bytes, data, key=key)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A future of Dask's."""
        return self._client.submit(function, *arguments, pure=False)

    def shut_down(self) -> None:
        """Disconnect; the scheduler forgets results that no client waits for."""
        self._client.close()


class RayBackend:
    """The nodes of a Ray cluster, which restarts calls itself."""

    tries = 1
    blames_neighbours = False

    def __init__(self, address: str) -> None:
        import ray
        from ray import exceptions

        self.lost: tuple[type[BaseException], ...] = (
            exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError,
        )  # fmt: skip
        self._ray = ray
        self._remote: dict[Callable[..., Any], Any] = {}
        self._joined_here = not ray.is_initialized()
        with _errors_in_one_line("ray", address):
            if address != "auto":  # Ray's word for the cluster of this machine
                host, port = _host_and_port(address)
                local = host in ("localhost", "127.0.0.1")  # Ray listens on another address
                _require_answer(f"{ray.util.get_node_ip_address()}:{port}" if local else address)
            if self._joined_here:
                with keep_handler(signal.SIGTERM):  # Ray would answer it with its stack's trace
                    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)

    @property
    def room(self) -> int:
        """Calls that may be in flight; changes as nodes join and leave."""
        return max(AHEAD * int(self._ray.cluster_resources().get("CPU", 0)), 1)

    def share(self, data: bytes) -> Any:
        """A reference to the data, which this process keeps for all nodes."""
        return self._ray.put(data)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Compute on one core."""
        if function not in self._remote:  # the cluster receives each function once
            self._remote[function] = self._ray.remote(num_cpus=1, max_retries=RETRIES)(function)
        future: Future[Any] = self._remote[function].remote(*arguments).future()
        return future

    def shut_down(self) -> None:
        """Leave the cluster, unless this process had joined it before."""
        if self._joined_here:
            self._ray.shutdown()


@contextlib.contextmanager
def _errors_in_one_line(name: str, address: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise InputError(f"no {name} cluster at {address}: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    return (str(error) or type(error).__name__).splitlines()[0]


def _require_answer(address: str) -> None:
    """Raise where no cluster answers: `OSError`, or `ValueError` for a malformed address.

    Both clusters speak first, unless they expect encryption; if something else answers there, their
    clients would try for minutes.
    """
    with socket.create_connection(_host_and_port(address), PATIENCE) as connection:
        if not address.startswith("tls://") and os.environ.get("RAY_USE_TLS") != "1":
            connection.recv(1)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not (host and port.isdecimal()):
        raise ValueError("write it as host:port")
    return host, int(port)
