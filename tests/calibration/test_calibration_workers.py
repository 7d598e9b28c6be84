"""Crews: processes that take orders between visits, and are replaced when one of them fails."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import Any

import pytest

from simstrag.calibration.benches import workers
from simstrag.calibration.benches.bench import Skipped
from simstrag.calibration.benches.workers import (
    STOP,
    ContinuousWork,
    WorkerGroup,
    serve,
    serve_continuous,
)
from simstrag.processes import children
from tests.support.warm_children import warm_children

__all__ = ["warm_children"]


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def double(pipe: Connection, rank: int) -> None:
    """Answers twice what it is told; fails at 0, dies at -1, hangs at -2."""

    def work(order: Any) -> Any:
        if order == -1:
            os._exit(3)
        while order == -2:
            time.sleep(1)
        return 2 * order // (order != 0)

    serve(pipe, work)


def counting(pipe: Connection, rank: int, given: int = 0) -> None:
    """Counts until it is stopped, from what it was given; cannot at 0, fails at once at -1."""

    def begin(order: int) -> ContinuousWork:
        count = given // (order != 0)

        def piece() -> None:
            nonlocal count
            count += 1 // (order + 1)

        return piece, lambda: count

    serve_continuous(pipe, begin)


def unable(pipe: Connection, rank: int) -> None:
    """Ends before it is ready."""


def test_a_group_lives_on_between_requests_and_is_gone_afterwards() -> None:
    with WorkerGroup(double, 2) as group:
        assert group.request({0: 1, 1: 2}) == [2, 4]
        assert group.request({1: 5}) == [10]


def test_a_request_that_fails_is_skipped_with_its_reason_and_the_next_one_works() -> None:
    with WorkerGroup(double, 2) as group:
        with pytest.raises(Skipped, match="rank 1 of 2: ZeroDivisionError"):
            group.request({0: 1, 1: 0})
        assert group.request({0: 3, 1: 4}) == [6, 8]


def test_a_process_that_dies_is_skipped_and_replaced() -> None:
    with WorkerGroup(double, 2) as group:
        with pytest.raises(Skipped, match="rank 1 ended early"):
            group.request({0: 1, 1: -1})
        assert group.request({0: 3, 1: 4}) == [6, 8]


def test_a_group_that_cannot_start_refuses_every_request() -> None:
    with WorkerGroup(unable, 1) as group:
        for _ in range(2):
            with pytest.raises(Skipped, match="rank 0 ended early"):
                group.request({0: 1})


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch) -> float:
    """Less patience with those that hang."""
    monkeypatch.setattr("simstrag.calibration.benches.workers.AFTER", 0.5)
    monkeypatch.setattr(children, "LEAVE_GRACE", 0.5)
    return children.LEAVE_GRACE


@pytest.mark.usefixtures("grace")
def test_who_waits_for_one_that_failed_is_not_waited_for_and_the_reason_is_told() -> None:
    """One that hangs would be waited for longer than a test may last."""
    with WorkerGroup(double, 2, starting=120.0) as group:
        with pytest.raises(Skipped, match="rank 1 of 2: ZeroDivisionError"):
            group.request({0: -2, 1: 0}, limit=1e6)
        with pytest.raises(Skipped, match="rank 1 ended early"):
            group.request({0: -2, 1: -1}, limit=1e6)


def test_those_that_hang_are_given_one_grace_together(
    grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, given, join = 0.0, list[float](), BaseProcess.join

    def wait_for(process: BaseProcess, seconds: float | None = None) -> None:
        nonlocal now
        if seconds is None:
            join(process)
        else:
            given.append(seconds)
            now += seconds

    monkeypatch.setattr(children, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(BaseProcess, "join", wait_for)
    with WorkerGroup(double, 4) as group:
        for pipe in group._children.pipes[:3]:
            pipe.send(-2)
        group.shut_down()
    assert given == [grace, 0, 0, 0]


def test_one_that_was_killed_before_its_request_is_skipped_and_replaced() -> None:
    with WorkerGroup(double, 2) as group:
        for child in multiprocessing.active_children():
            child.kill()
            child.join()
        with pytest.raises(Skipped, match="rank 0 ended early"):
            group.request({0: 1, 1: 2})
        assert group.request({0: 3, 1: 4}) == [6, 8]


@pytest.mark.usefixtures("grace")
def test_all_that_are_silent_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for_one(pipes: list[Any], seconds: float) -> list[Any]:
        """Of three, the first that answers; then the limit is over."""
        return wait(pipes) if len(pipes) == 3 else []

    with WorkerGroup(double, 3) as group:
        monkeypatch.setattr(workers, "STALL", 0.2)
        monkeypatch.setattr(workers, "wait", wait_for_one)
        with pytest.raises(Skipped, match=r"rank 0 and 2 of 3 did not answer in 0\.2 s"):
            group.request({0: -2, 1: 1, 2: -2})


def test_what_ends_a_command_from_outside_does_not_end_its_processes() -> None:
    with WorkerGroup(double, 1) as group:
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child.pid, number)
        assert group.request({0: 1}) == [2]


def test_work_goes_on_until_it_is_stopped_and_tells_how_far_it_came() -> None:
    with WorkerGroup(counting, 1, 1000) as group:
        assert group.request({0: 1}) == [None]
        assert group.request({0: STOP})[0] >= 1000
        with pytest.raises(Skipped, match="rank 0 of 1: ZeroDivisionError"):
            group.request({0: 0})
        group.request({0: -1})
        assert group._children.pipes[0].poll(120)
        with pytest.raises(Skipped, match="rank 0 of 1: ZeroDivisionError"):
            group.request({0: STOP})
        assert group.request({0: 0.5}) == [None]


def test_each_group_has_what_it_must_not_share_with_the_one_before() -> None:
    numbers, left = iter(range(100, 200)), list[int]()

    @contextlib.contextmanager
    def fresh() -> Iterator[int]:
        number = next(numbers)
        yield number
        left.append(number)

    with WorkerGroup(counting, 1, fresh=fresh) as group:
        group.request({0: 2})
        assert group.request({0: STOP}) == [100]
        group.shut_down()
        group.request({0: 2})
        assert group.request({0: STOP}) == [101]
    assert left == [100, 101]
