"""Processes that stay alive between visits and do what they are told through their pipes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from simstrag.calibration.cells import Skipped
from simstrag.calibration.processes import STALL, child

__all__ = ["Crew", "obey"]

Target = Callable[..., None]


class Crew:
    """`count` processes, one per rank, each running `target(pipe, rank, *arguments)`.

    The target ends in `obey`.  A crew that failed an order is sent home, for one of it may wait for
    another for ever; the next order calls in a new one.  One that cannot even start refuses every
    order, with the reason.
    """

    def __init__(self, target: Target, count: int, *arguments: Any) -> None:
        self.target, self.count, self.arguments = target, count, arguments
        self.pipes: list[Connection] = []
        self._refused = ""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Crew:
        self._start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.dismiss()

    def _start(self) -> None:
        try:
            for rank in range(self.count):
                pipe = self._stack.enter_context(child(self.target, rank, *self.arguments))
                self.pipes.append(pipe)
            self._answers(range(self.count))
        except Skipped as reason:
            self._refused = str(reason)
            self.dismiss()
        except BaseException:
            self.dismiss()
            raise

    def dismiss(self) -> None:
        """All leave, those that hang are killed; nothing is left."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send("leave")
        self.pipes.clear()
        self._stack.close()

    def ask(self, orders: Mapping[int, Any]) -> list[Any]:
        """Give each of some ranks an order; their answers, in the order of ranks.

        Raises `Skipped` with the reason of the first that fails, ends or stays silent.
        """
        if not (self.pipes or self._refused):
            self._start()
        if self._refused:
            raise Skipped(self._refused)
        try:
            for rank, order in orders.items():
                self.pipes[rank].send(order)
            return self._answers(sorted(orders))
        except BaseException:
            self.dismiss()
            raise

    def _answers(self, ranks: range | list[int]) -> list[Any]:
        """One answer of each; of several failures the first that says why is the one raised."""
        until = time.monotonic() + STALL
        answers: list[Any] = []
        for rank in ranks:
            pipe = self.pipes[rank]
            if not pipe.poll(max(0.0, until - time.monotonic())):
                raise Skipped(f"rank {rank} of {self.count} did not answer for {STALL:g} s")
            try:
                fate, answer = pipe.recv()
            except EOFError:
                raise Skipped(f"the process of rank {rank} ended early") from None
            if fate == "failed":
                raise Skipped(f"rank {rank} of {self.count}: {answer}")
            answers.append(answer)
        return answers


def obey(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """Say that all is ready, then answer orders until told to leave; what fails is answered too."""
    pipe.send(("done", None))
    while (order := pipe.recv()) != "leave":
        try:
            pipe.send(("done", work(order)))
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"))
