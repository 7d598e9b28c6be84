"""Worker processes that stay alive between visits and answer requests through pipes."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from simstrag.calibration.benches.bench import Skipped
from simstrag.processes.children import LEAVE, Children

if TYPE_CHECKING:
    import torch

STALL = 60.0
"""Seconds without an answer after which a worker or a connection is given up."""

AFTER = 3.0
"""Seconds in which other ranks may report their failures after the first failure."""

STOP = "stop"
"""The request that ends the work of `serve_continuous`."""

ContinuousWork = tuple[Callable[[], object], Callable[[], Any]]
"""Work until `STOP`: a function that does a short piece of it, and one that reports its amount."""

Stamps = list[tuple[float, float]]
"""Start and end of each repetition of one rank, seconds of one clock."""


class WorkerGroup:
    """`count` processes, one per rank, each running `target(pipe, rank, *arguments)`.

    The target ends in `serve` or `serve_continuous`.  A group that failed a request is shut down,
    for its members may wait for each other for ever; the next request starts a new group.  A group
    that could not start, or was left, refuses every request with the reason.

    fresh: makes a context of its own for each group, such as a folder to meet in; its value
        precedes the arguments, and the shutdown leaves it.
    name: name of one process in messages.
    starting: seconds for the start of all processes; `STALL` by default.
    lazy: starts at the first request; after a failed start, again at the next request.
    """

    def __init__(
        self,
        target: Callable[..., None],
        count: int,
        *arguments: Any,
        fresh: Callable[[], AbstractContextManager[Any]] | None = None,
        name: str = "rank",
        starting: float | None = None,
        lazy: bool = False,
    ) -> None:
        self.target, self.count, self.arguments = target, count, arguments
        self.fresh, self.name, self.starting, self.lazy = fresh, name, starting, lazy
        self._children = Children()
        self._refusal = ""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._refusal = ""
        if not self.lazy:
            with contextlib.suppress(Skipped):  # the requests are refused
                self._start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._refusal = self._refusal or f"each {self.name} has been shut down"
        self.shut_down()

    def _start(self) -> None:
        try:
            first = [] if self.fresh is None else [self._stack.enter_context(self.fresh())]
            for rank in range(self.count):
                self._children.start(self.target, rank, *first, *self.arguments)
            self._receive(range(self.count), self.starting)
        except BaseException as error:
            if isinstance(error, Skipped) and not self.lazy:
                self._refusal = str(error)
            self.shut_down()
            raise

    def shut_down(self) -> None:
        """End all processes, killing those that hang."""
        try:
            self._children.end()
        finally:
            self._stack.close()

    def request(
        self,
        requests: Mapping[int, Any],
        limit: float | None = None,
        on_begin: Callable[[Any], object] | None = None,
    ) -> list[Any]:
        """Send requests to ranks and return their answers, in the order of ranks.

        limit: seconds without an answer after which the group is given up; `STALL` by default.
        on_begin: receives the value that a rank sends as ("begun", value) before its answer.

        Raises `Skipped` with the reason of each rank that failed or ended, or was silent.
        """
        if not (self._children.pipes or self._refusal):
            self._start()
        if self._refusal:
            raise Skipped(self._refusal)
        try:
            for rank, request in requests.items():
                with contextlib.suppress(OSError):  # it ended; its pipe reports that
                    self._children.pipes[rank].send(request)
            return self._receive(sorted(requests), limit, on_begin)
        except BaseException:
            self.shut_down()
            raise

    def _receive(
        self,
        ranks: Iterable[int],
        limit: float | None = None,
        on_begin: Callable[[Any], object] | None = None,
    ) -> list[Any]:
        """One answer of each rank; processes that ended are named before failures they caused."""
        limit = STALL if limit is None else limit
        until = time.monotonic() + limit
        waiting = {self._children.pipes[rank]: rank for rank in ranks}
        answers: dict[int, Any] = {}
        ended, failed = [], []
        while waiting and (ready := wait(list(waiting), max(0.0, until - time.monotonic()))):
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting[pipe]
                try:
                    status, value = pipe.recv()
                except (EOFError, OSError):
                    ended.append(f"the process of {self.name} {rank} ended early")
                    status = "ended"
                if status == "begun" and on_begin is not None:
                    on_begin(value)
                    continue
                del waiting[pipe]
                if status == "done":
                    answers[rank] = value
                    continue
                if status == "failed":
                    failed.append(f"{self.name} {rank} of {self.count}: {value}")
                until = min(until, time.monotonic() + AFTER)
        if ended or failed:
            raise Skipped("; ".join((*ended, *failed)))
        if waiting:
            silent = " and ".join(map(str, waiting.values()))
            raise Skipped(f"{self.name} {silent} of {self.count} did not answer in {limit:g} s")
        return [answers[rank] for rank in sorted(answers)]


def serve(pipe: Connection, handle: Callable[[Any], Any]) -> None:
    """Report readiness, then answer requests and failures of `handle` until `LEAVE`."""
    pipe.send(("done", None))
    while (request := pipe.recv()) != LEAVE:
        try:
            pipe.send(("done", handle(request)))
        except Exception as error:
            pipe.send(_failure(error))


def serve_continuous(pipe: Connection, begin: Callable[[Any], ContinuousWork]) -> None:
    """Serve requests whose work goes on until `STOP`, which is answered by the work's report.

    begin: prepares the work of a request; the request is answered when it returns.
    """
    pipe.send(("done", None))
    while (request := pipe.recv()) != LEAVE:
        if request == STOP:  # this work has failed; its failure was the answer
            continue
        try:
            work, report = begin(request)
            pipe.send(("done", None))
            while not pipe.poll():
                work()
            amount = report()
        except Exception as error:
            pipe.send(_failure(error))
            continue
        if pipe.recv() == LEAVE:
            return
        pipe.send(("done", amount))


def _failure(error: Exception) -> tuple[str, str]:
    lines = str(error).splitlines() or [""]
    return "failed", f"{type(error).__name__}: {lines[0][:200]}"


def join_process_group(
    rank: int, world: int, folder: str, backend: str, device: str
) -> torch.device:
    """Join the default process group of torch; returns the device of this rank's tensors.

    folder: an empty folder in which the ranks meet.
    backend: "gloo" or "nccl"; barriers always use gloo, because NCCL's would wait on the device.
    device: "cpu" or "cuda".
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    place = torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(place)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
        store=dist.FileStore(str(Path(folder) / "store"), world),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=STALL),
    )
    return place


def elapsed(members: Sequence[Stamps]) -> tuple[float, ...]:
    """Seconds of each repetition, from the latest start to the latest end over the members.

    >>> elapsed([[(0.0, 2.0), (5.0, 6.0)], [(0.5, 1.5), (5.0, 5.5)]])
    (1.5, 1.0)
    """
    return tuple(
        max(end for _, end in stamps) - max(start for start, _ in stamps)
        for stamps in zip(*members, strict=True)
    )
