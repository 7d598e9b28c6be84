"""Crews: processes that take orders between visits, and are replaced when one of them fails."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from simstrag.calibration.cells import Skipped
from simstrag.calibration.crew import Crew, obey


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def double(pipe: Connection, rank: int) -> None:
    """Answers twice what it is told; fails at 0, dies at -1."""

    def work(order: Any) -> Any:
        if order == -1:
            os._exit(3)
        return 2 * order // (order != 0)

    obey(pipe, work)


def unable(pipe: Connection, rank: int) -> None:
    """Ends before it is ready."""


def test_a_crew_lives_on_between_orders_and_is_gone_afterwards() -> None:
    with Crew(double, 2) as crew:
        assert crew.ask({0: 1, 1: 2}) == [2, 4]
        assert crew.ask({1: 5}) == [10]


def test_an_order_that_fails_is_skipped_with_its_reason_and_the_next_one_works() -> None:
    with Crew(double, 2) as crew:
        with pytest.raises(Skipped, match="rank 1 of 2: ZeroDivisionError"):
            crew.ask({0: 1, 1: 0})
        assert crew.ask({0: 3, 1: 4}) == [6, 8]


def test_a_process_that_dies_is_skipped_and_replaced() -> None:
    with Crew(double, 2) as crew:
        with pytest.raises(Skipped, match="rank 1 ended early"):
            crew.ask({0: 1, 1: -1})
        assert crew.ask({0: 3, 1: 4}) == [6, 8]


def test_a_crew_that_cannot_start_refuses_every_order() -> None:
    with Crew(unable, 1) as crew:
        for _ in range(2):
            with pytest.raises(Skipped, match="rank 0 ended early"):
                crew.ask({0: 1})
