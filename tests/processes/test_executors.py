"""What becomes of calls that are lost where they are computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from simstrag.processes.pool import LostCall, compute


class Died(Exception):
    """A process that computed ended."""


class Pair:
    """Two calls beside each other, then each by itself; a deadly one takes down who is beside."""

    tries = 1
    lost = (Died,)
    room = 2

    def __init__(self, blames_neighbours: bool) -> None:
        self.blames_neighbours = blames_neighbours
        self.started: list[str] = []
        self._under_way: list[Future[str]] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[str]:
        (name,) = arguments
        self.started.append(name)
        self._under_way.append(future := Future())
        if len(self.started) > 1:
            deadly = "deadly" in self.started[-len(self._under_way) :]
            for each in self._under_way:
                if deadly:
                    each.set_exception(Died())
                else:
                    each.set_result(name)
            self._under_way.clear()
        return future

    def share(self, data: bytes) -> bytes:
        return data

    def shut_down(self) -> None:
        pass


CALLS = [("a", ("deadly",)), ("b", ("harmless",))]


def test_what_was_lost_beside_another_is_tried_once_more_alone() -> None:
    backend = Pair(blames_neighbours=True)
    outcomes = dict(compute(backend, str, CALLS))
    assert backend.started == ["deadly", "harmless", "deadly", "harmless"]
    assert isinstance(outcomes["a"], LostCall)
    assert outcomes["b"] == "harmless"


def test_what_was_lost_is_given_up_where_nothing_else_can_be_to_blame() -> None:
    backend = Pair(blames_neighbours=False)
    outcomes = dict(compute(backend, str, CALLS))
    assert all(isinstance(outcome, LostCall) for outcome in outcomes.values())
