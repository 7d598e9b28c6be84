"""The worker pool that runs are computed in, and how calls are computed on any backend.

The workers end with this process: at Ctrl-C and other stop signals it ends them, and where it is
killed they notice.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from simstrag.processes.signals import postpone_stop

PAUSE = 1.0
"""Seconds between two looks whether the parent is alive."""
TRIES = 3
"""Most starts of a call whose worker ended: other processes may have taken the memory."""
REASON = "killed, or out of memory?"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables of a worker that has one core."""

K = TypeVar("K")
_Call = tuple[K, tuple[Any, ...], int]
"""Name, arguments, and how often the call was started, this time included."""


class LostCall:
    """In the place of a call's result: its worker ended each time that the call was tried."""


class Backend(Protocol):
    """Computes calls and returns futures, as an executor of `concurrent.futures` does.

    tries: starts of a call whose worker died; 1 if the backend restarts calls itself.
    lost: the errors that a future raises when its worker ended.
    blames_neighbours: whether another call on the same worker may be the cause; the call is then
        tried again with nothing beside it.
    """

    tries: int
    lost: tuple[type[BaseException], ...]
    blames_neighbours: bool

    @property
    def room(self) -> int:
        """Most calls under way at a time."""

    def share(self, data: bytes) -> Any:
        """A handle that stands for data which many calls need, as an argument of `submit`."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A future of the call's result."""

    def shut_down(self) -> None:
        """Release workers or connections; calls under way are given up."""


def compute(
    backend: Backend, function: Callable[..., Any], calls: Iterable[tuple[K, tuple[Any, ...]]]
) -> Iterator[tuple[K, Any]]:
    """Results for calls given as (name, arguments), as they finish, under the calls' names.

    The result is a `LostCall` where the workers ended.  Raises what the function raises.

    >>> sorted(compute(InProcess(), abs, [("a", (-1,)), ("b", (2,))]))
    [('a', 1), ('b', 2)]
    """
    finished: SimpleQueue[tuple[K, tuple[Any, ...], int, Any]] = SimpleQueue()
    waiting, again, alone = iter(calls), deque[_Call[K]](), deque[_Call[K]]()
    running = 0

    def next_call() -> _Call[K] | None:
        if again:
            return again.popleft()
        if (call := next(waiting, None)) is not None:
            return (*call, 1)
        return alone.popleft() if alone and not running else None

    while True:
        while running < backend.room and (call := next_call()) is not None:
            future = backend.submit(function, *call[1])
            future.add_done_callback(lambda done, call=call: finished.put((*call, done)))
            running += 1
        if not running:
            return
        name, arguments, tries, done = finished.get()
        running -= 1
        try:
            result = done.result()
        except backend.lost:
            if tries < backend.tries:
                again.append((name, arguments, tries + 1))
                continue
            if backend.blames_neighbours and tries == backend.tries:
                alone.append((name, arguments, tries + 1))
                continue
            result = LostCall()
        yield name, result


def core_count() -> int:
    """The number of cores that this process may use, by affinity and container limits.

    >>> core_count() > 0
    True
    """
    import joblib

    return int(joblib.cpu_count())


class InProcess:
    """The backend that computes in this process."""

    tries = 1
    lost: tuple[type[BaseException], ...] = ()
    blames_neighbours = False
    room = 1

    def share(self, data: bytes) -> bytes:
        """The data itself, as calls run in this process."""
        return data

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Compute now."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shut_down(self) -> None:
        """Do nothing, as no worker was started."""


class WorkerPool:
    """Processes that take one call each at a time, so that a lost call is known.

    A worker that ended is replaced.

    >>> pool = WorkerPool(jobs=1)
    >>> pool.submit(abs, -1).result()
    1
    >>> pool.shut_down()
    """

    tries = TRIES
    blames_neighbours = False

    def __init__(self, jobs: int) -> None:
        from joblib.externals.loky.process_executor import BrokenProcessPool

        self.room = jobs
        self.lost: tuple[type[BaseException], ...] = (BrokenProcessPool,)
        self._idle: list[Any] = []
        self._workers: set[Any] = set()

    def share(self, data: bytes) -> bytes:
        """The data, which travels with each call."""
        return data

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Compute in an idle worker or a new one; the caller keeps to `room` calls."""
        with _start_unstopped():
            worker = self._idle.pop() if self._idle else self._start()
            future: Future[Any] = worker.submit(function, *arguments)
        future.add_done_callback(partial(self._release, worker))
        return future

    def shut_down(self) -> None:
        """End all workers, whatever they do: a kept one would keep the policies it imported."""
        for worker in self._workers:
            worker.shutdown(kill_workers=True)

    def _start(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        threads = {name: os.environ.get(name, "1") for name in THREADS}
        worker = ProcessPoolExecutor(
            max_workers=1, initializer=_end_with, initargs=(os.getpid(),), env=threads
        )
        self._workers.add(worker)
        return worker

    def _release(self, worker: Any, done: Future[Any]) -> None:
        if isinstance(done.exception(), self.lost):
            self._workers.discard(worker)
        else:
            self._idle.append(worker)


@contextlib.contextmanager
def _start_unstopped() -> Iterator[None]:
    """Workers started inside never receive stop signals; this process ends them."""
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    with postpone_stop():
        for tracker in (resource_tracker, loky_tracker):
            tracker.ensure_running()  # starting it unblocks signals here
        with postpone_stop():
            yield


def _end_with(parent: int) -> None:
    """End this process, whatever it does, soon after `parent` has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PAUSE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
