"""The processes that runs are spread over: they do not outlive who started them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from simstrag.errors import SimstragError
from simstrag.processes.signals import blocked

__all__ = ["REASON", "Processes", "cores", "shut_down", "spread"]

PAUSE = 1.0
"""Seconds between two looks whether the parent is alive."""
TRIES = 3
"""How often a call whose process ended is started: others may have taken the memory."""
REASON = "killed, or out of memory?"

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def cores() -> int:
    """How many this process may use, which may be fewer than there are.

    >>> cores() > 0
    True
    """
    import joblib

    return int(joblib.cpu_count())


def spread(calls: Iterable[Call], jobs: int) -> Iterator[Any]:
    """What `joblib.delayed` calls return, in their order, computed by so many processes.

    Who ends this process ends those: at Ctrl-C and its like they are told by this one, and where it
    is killed they see that it is gone. Where one of those is killed, what was not returned yet is
    computed anew. Raises `SimstragError` where that happens again and again.

    >>> import joblib
    >>> list(spread([joblib.delayed(abs)(-1), joblib.delayed(abs)(2)], jobs=1))
    [1, 2]
    """
    from joblib.externals.loky.process_executor import BrokenProcessPool

    left, tries = list(calls), 0
    while tries < TRIES:
        try:
            for outcome in _spread(left, jobs):
                yield outcome
                left, tries = left[1:], 0
        except BrokenProcessPool:
            tries += 1
        else:
            return
    raise SimstragError(f"a process ended {TRIES} times before its run did: {REASON}")


def _spread(calls: list[Call], jobs: int) -> Iterator[Any]:
    import joblib

    parallel = joblib.Parallel(
        n_jobs=jobs,
        return_as="generator",
        batch_size=1,
        initializer=_end_with,
        initargs=(os.getpid(),),
    )
    with _starting() if jobs > 1 else contextlib.nullcontext():
        return iter(parallel(calls))


def shut_down(jobs: int) -> None:
    """Let the processes go: kept ones would go on with the policies they once imported."""
    from joblib.externals.loky import get_reusable_executor

    if jobs > 1:
        get_reusable_executor().shutdown()


class Processes:
    """Processes that take one call each at a time, so that it is known which call one died of.

    A process that ended is replaced. They end as those of `spread` do.

    >>> processes = Processes(jobs=1)
    >>> processes.start(abs, -1).result()
    1
    >>> processes.end()
    """

    tries = TRIES
    blames_neighbours = False

    def __init__(self, jobs: int) -> None:
        from joblib.externals.loky.process_executor import BrokenProcessPool

        self.room = jobs
        self.lost: tuple[type[BaseException], ...] = (BrokenProcessPool,)
        self._idle: list[Any] = []
        self._all: set[Any] = set()

    def share(self, data: bytes) -> bytes:
        """What to give to each call for data that many of them need."""
        return data

    def start(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Compute in a process that is free, or a new one; at most `room` at a time."""
        with _starting():
            process = self._idle.pop() if self._idle else self._fresh()
            future: Future[Any] = process.submit(function, *arguments)
        future.add_done_callback(partial(self._free, process))
        return future

    def end(self) -> None:
        """End all of them, whatever they do."""
        for process in self._all:
            process.shutdown(kill_workers=True)

    def _fresh(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        process = ProcessPoolExecutor(max_workers=1, initializer=_end_with, initargs=(os.getpid(),))
        self._all.add(process)
        return process

    def _free(self, process: Any, done: Future[Any]) -> None:
        if isinstance(done.exception(), self.lost):
            self._all.discard(process)
        else:
            self._idle.append(process)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Processes started inside never receive Ctrl-C and its like; this process ends them."""
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    with blocked():
        for tracker in (resource_tracker, loky_tracker):
            tracker.ensure_running()  # where that starts it, it unblocks signals here
        with blocked():
            yield


def _end_with(parent: int) -> None:
    """End this process, whatever it does, soon after `parent` has."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PAUSE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
