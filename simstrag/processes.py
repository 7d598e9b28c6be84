"""The processes that runs are spread over: they do not outlive who started them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["cores", "spread", "stopped"]

PAUSE = 1.0
"""Seconds between two looks whether the parent is alive."""

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
    is killed they see that it is gone.

    >>> import joblib
    >>> list(spread([joblib.delayed(abs)(-1), joblib.delayed(abs)(2)], jobs=1))
    [1, 2]
    """
    import joblib

    parallel = joblib.Parallel(
        n_jobs=jobs,
        return_as="generator",
        batch_size=1,
        initializer=_end_with,
        initargs=(os.getpid(),),
    )
    with _spared() if jobs > 1 else contextlib.nullcontext():
        return iter(parallel(calls))


def stopped(jobs: int) -> None:
    """Let the processes go: kept ones would go on with the policies they once imported."""
    from joblib.externals.loky import get_reusable_executor

    if jobs > 1:
        get_reusable_executor().shutdown()


@contextlib.contextmanager
def _spared() -> Iterator[None]:
    """Processes started meanwhile hear no Ctrl-C and its like, and print no traceback of it.

    A terminal sends it to all; this process hears it afterwards, and ends them.
    """
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    told = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, told)
    try:
        for tracker in (resource_tracker, loky_tracker):
            tracker.ensure_running()  # where that starts it, it unblocks signals here
        signal.pthread_sigmask(signal.SIG_BLOCK, told)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with(parent: int) -> None:
    """End this process, whatever it does, soon after `parent` has."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PAUSE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
