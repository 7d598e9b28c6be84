"""Functions run on real ranks: processes that stay, with a fresh process group for each function.

Importing torch is most of what starting a rank costs, so one set of ranks, forked from one process,
serves all tests of a session, through the fixture `ranks`.  A test uses the first few of them:

    from tests.support.ranks import Ranks, ranks

    def rank_twice(rank: int, world: int, factor: int) -> int:
        return factor * rank

    def test_ranks_answer(ranks: Ranks) -> None:
        assert ranks.run(rank_twice, 3, 2) == [0, 2, 4]

A function stands in a module of tests, and its arguments and result can be pickled.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from simstrag.processes.affinity import cores, pin
from tests.support.fork_server import Child, ForkServer

__all__ = ["RankError", "Ranks", "ranks"]

LIMIT = 240.0
"""Seconds after which all ranks are killed, unless a test says otherwise."""

GRACE = 10.0
"""Seconds in which the others may still answer when one has failed."""


class RankError(AssertionError):
    """What went wrong on which rank, with its traceback."""


class Ranks:
    """Up to `most` processes, started when they are first needed; gloo between them.

    Rank r runs on core r % cores with one thread of torch, and warnings are errors there too.  They
    die with this process, and all are replaced when one of them ended or hangs.
    """

    def __init__(self, most: int = 4) -> None:
        self.most = most
        self._forks: ForkServer | None = None
        self._processes: list[Child] = []
        self._store: Any = None
        self._runs = 0

    def run(
        self, function: Callable[..., Any], world: int, *arguments: Any, limit: float = LIMIT
    ) -> list[Any]:
        """`function(rank, world, *arguments)` on the first `world` ranks; results in their order.

        Raises `RankError` with the tracebacks of those that failed, or with the names of those that
        were silent for `limit` seconds.
        """
        assert 1 <= world <= self.most, f"{world} ranks of {self.most}"
        self._start()
        self._runs += 1
        order = (function, world, arguments, self._store.port, self._runs, limit)
        try:
            for process in self._processes[:world]:
                process.pipe.send_bytes(pickle.dumps(order))
            results, failures = self._answers(world, limit)
            if len(results) + len(failures) < world:
                self._stop()
        except BaseException:
            self._stop()
            raise
        if failures:
            raise RankError("".join(f"\nrank {r}: {failures[r]}" for r in sorted(failures)))
        return [results[rank] for rank in range(world)]

    def close(self) -> None:
        """Kill all; none is left."""
        self._stop()
        if self._forks is not None:
            self._forks.close()
            self._forks = None

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            process.pipe.close()
        self._processes.clear()
        self._store = None

    def _start(self) -> None:
        if self._processes:
            return
        self._forks = self._forks or ForkServer.start()
        from torch.distributed import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        try:
            for rank in range(self.most):
                self._processes.append(self._forks.fork(serve, rank))
            self._answers(self.most, LIMIT)
        except BaseException:
            self._stop()
            raise

    def _answers(self, world: int, limit: float) -> tuple[dict[int, Any], dict[int, str]]:
        """What ranks return and what failed; with a failure, some may not have answered."""
        until = time.monotonic() + limit
        waiting = {self._processes[rank].pipe: rank for rank in range(world)}
        results: dict[int, Any] = {}
        failures: dict[int, str] = {}
        while waiting:
            ready = wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    good, answer = pickle.loads(pipe.recv_bytes())
                except (EOFError, OSError):
                    raise RankError(f"rank {rank}: its process ended") from None
                (results if good else failures)[rank] = answer
            if failures:
                until = min(until, time.monotonic() + GRACE)
        if waiting and not failures:
            for rank in waiting.values():  # each says on stderr where it is
                self._processes[rank].signal(signal.SIGUSR1)
            time.sleep(0.3)
            raise RankError(f"ranks {sorted(waiting.values())} gave no answer in {limit:g} s")
        return results, failures


def serve(forks: ForkServer, pipe: Connection, rank: int) -> None:
    """What the process of a rank does: it runs functions as they come."""
    faulthandler.register(signal.SIGUSR1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    pin(cores()[rank % len(cores())])
    if rank == 0:  # which starts servers
        from simstrag.ddp import modes
        from tests.support import warm_server

        modes.start_server = partial(warm_server.start_server, forks)  # type: ignore[assignment]
    warnings.simplefilter("error")
    pipe.send_bytes(pickle.dumps((True, "ready")))
    with contextlib.suppress(EOFError):
        while True:
            order = pipe.recv_bytes()
            try:
                answer = True, _obey(rank, order)
            except BaseException:
                answer = False, traceback.format_exc()
            pipe.send_bytes(pickle.dumps(answer))


def _obey(rank: int, order: bytes) -> Any:
    """Run one function inside a process group of its own."""
    import datetime

    import torch
    import torch.distributed as dist

    function, world, arguments, port, number, limit = pickle.loads(order)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(str(number), store),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=limit),
    )
    try:
        return function(rank, world, *arguments)
    finally:
        dist.destroy_process_group()


KEPT = pytest.StashKey[Ranks]()


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """The ranks of this session: a module that imports this name has them."""
    config = request.config
    if KEPT not in config.stash:
        config.stash[KEPT] = Ranks()
        config.add_cleanup(config.stash[KEPT].close)
    return config.stash[KEPT]
