"""Processes that stay alive between visits and do what they are told through their pipes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from typing import Any

from simstrag.calibration.cells import Skipped
from simstrag.processes.children import LEAVE, Children

__all__ = ["STALL", "STOP", "Crew", "obey", "toil"]

STALL = 60.0
"""Seconds after which a silent process is given up."""

STOP = "stop"
"""The order that ends a work of `toil`."""

Target = Callable[..., None]

Fresh = Callable[[], AbstractContextManager[Any]]

Under = tuple[Callable[[], object], Callable[[], Any]]
"""Work under way: what does a short piece of it, and what says how much was done."""


class Crew:
    """`count` processes, one per rank, each running `target(pipe, rank, *arguments)`.

    The target ends in `obey` or `toil`.  A crew that failed an order is sent home, for one of it
    may wait for another for ever; the next order calls in a new one.  One that cannot even start
    refuses every order, with the reason, and so does one that was left.

    fresh: what no two crews may share, such as where they meet; its value comes before the
    arguments, and it is left when they leave.  name: of one of them in messages.
    """

    def __init__(
        self,
        target: Target,
        count: int,
        *arguments: Any,
        fresh: Fresh | None = None,
        name: str = "rank",
    ) -> None:
        self.target, self.count, self.arguments = target, count, arguments
        self.fresh, self.name = fresh, name
        self._children = Children()
        self._refused = ""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Crew:
        self._refused = ""
        self._start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._refused = self._refused or f"each {self.name} has been sent home"
        self.dismiss()

    def _start(self) -> None:
        try:
            first = [] if self.fresh is None else [self._stack.enter_context(self.fresh())]
            for rank in range(self.count):
                self._children.start(self.target, rank, *first, *self.arguments)
            self._answers(range(self.count))
        except Skipped as reason:
            self._refused = str(reason)
            self.dismiss()
        except BaseException:
            self.dismiss()
            raise

    def dismiss(self) -> None:
        """All leave, those that hang are killed; nothing is left."""
        try:
            self._children.reap()
        finally:
            self._stack.close()

    def ask(self, orders: Mapping[int, Any]) -> list[Any]:
        """Give each of some ranks an order; their answers, in the order of ranks.

        Raises `Skipped` with the reason of the first that fails or ends, or when all stay silent.
        """
        if not (self._children.pipes or self._refused):
            self._start()
        if self._refused:
            raise Skipped(self._refused)
        try:
            for rank, order in orders.items():
                try:
                    self._children.pipes[rank].send(order)
                except OSError:
                    raise self._ended(rank) from None
            return self._answers(sorted(orders))
        except BaseException:
            self.dismiss()
            raise

    def _answers(self, ranks: Iterable[int]) -> list[Any]:
        """One answer of each, as they come in: who waits for one that failed is not waited for."""
        until = time.monotonic() + STALL
        waiting = {self._children.pipes[rank]: rank for rank in ranks}
        answers: dict[int, Any] = {}
        while waiting:
            ready = wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                silent = " and ".join(map(str, waiting.values()))
                raise Skipped(f"{self.name} {silent} of {self.count} did not answer in {STALL:g} s")
            answers |= self._heard({pipe: rank for pipe, rank in waiting.items() if pipe in ready})
            waiting = {pipe: rank for pipe, rank in waiting.items() if pipe not in ready}
        return [answers[rank] for rank in sorted(answers)]

    def _heard(self, ready: Mapping[Connection, int]) -> dict[int, Any]:
        """What some of them answer; that one has ended comes before what others say of it."""
        heard: dict[int, tuple[str, Any]] = {}
        for pipe, rank in ready.items():
            try:
                heard[rank] = pipe.recv()
            except (EOFError, OSError):
                raise self._ended(rank) from None
        for rank, (fate, answer) in heard.items():
            if fate == "failed":
                raise Skipped(f"{self.name} {rank} of {self.count}: {answer}")
        return {rank: answer for rank, (_, answer) in heard.items()}

    def _ended(self, rank: int) -> Skipped:
        return Skipped(f"the process of {self.name} {rank} ended early")


def obey(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """Say that all is ready, then answer orders until told to leave; what fails is answered too."""
    pipe.send(("done", None))
    while (order := pipe.recv()) != LEAVE:
        try:
            pipe.send(("done", work(order)))
        except Exception as error:
            pipe.send(_failed(error))


def toil(pipe: Connection, begin: Callable[[Any], Under]) -> None:
    """Obey orders whose work goes on until `STOP`, which is answered with what was done.

    begin: makes ready for an order; when that is answered, pieces follow each other.
    """
    pipe.send(("done", None))
    while (order := pipe.recv()) != LEAVE:
        if order == STOP:  # a work that failed meanwhile, and was answered so
            continue
        try:
            piece, report = begin(order)
            pipe.send(("done", None))
            while not pipe.poll():
                piece()
            done = report()
        except Exception as error:
            pipe.send(_failed(error))
            continue
        if pipe.recv() == LEAVE:
            return
        pipe.send(("done", done))


def _failed(error: Exception) -> tuple[str, str]:
    said = str(error).splitlines() or [""]
    return "failed", f"{type(error).__name__}: {said[0][:200]}"
