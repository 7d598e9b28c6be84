"""The loops of the compiled library and those of numpy and Python agree to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simstrag.compiled import address, loops
from simstrag.policies.estimators import columns, time_to_progress
from simstrag.policies.estimators.columns import centre, enter, exact_sum, medians
from simstrag.policies.estimators.time_to_progress import _merge

WIDTHS = [1, 2, 31, 32, 33, 200]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Computes something with the library and without it, and compares the bytes."""

    def compare(compute: Callable[[], Any]) -> None:
        results = [compute()]
        for module in (columns, time_to_progress):
            monkeypatch.setattr(module, "loops", lambda: None)
        results.append(compute())
        monkeypatch.undo()
        native, plain = ([np.array(part).tobytes() for part in result] for result in results)
        assert native == plain

    return compare


def some(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Times, some of them equal, some of them unknown."""
    times = np.round(random.lognormal(0, 0.1, shape), random.integers(1, 17))
    times[random.random(shape) < random.choice([0, 0.02, 0.3, 1])] = np.nan
    return times


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("height", [1, 2, 3, 5, 10, 16, 40])
def test_medians(both: Any, height: int, width: int) -> None:
    random = np.random.default_rng(height)
    for _ in range(10):
        times = some(random, (height, width))
        both(lambda times=times: [medians(times, skip) for skip in (False, True)])


@pytest.mark.parametrize("width", WIDTHS)
def test_the_centre_of_a_row(both: Any, width: int) -> None:
    random = np.random.default_rng(width)
    for digits in range(1, 17):
        row = np.round(random.lognormal(0, 0.1, width), digits)
        row[1:][random.random(width - 1) < 0.1] = np.nan
        both(lambda row=row: centre(row))
        assert centre(row).middle == np.nanmedian(row)


def test_a_sum_is_rounded_once(both: Any) -> None:
    random = np.random.default_rng(0)
    for n in (0, 1, 2, 3, 7, 512):
        for spread in (0.0, 0.1, 3.0, 30.0):
            row = random.lognormal(0, spread, n) * random.choice([1, -1], n)
            halves = np.append(row, [2.0**53, 1.0, -(2.0**53), 2.0**-60])  # near a tie
            for values in (row, np.round(row, 1), halves, np.append(row, -row)):
                both(lambda values=values: [exact_sum(values)])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("height", [1, 2, 5, 10])
def test_windows(both: Any, height: int, width: int) -> None:
    def follow() -> list[np.ndarray]:
        random = np.random.default_rng(height)
        ordered, oldest = np.full((height, width), np.nan), np.arange(width)
        values, entered = ordered.ravel().copy(), []
        for _ in range(12):
            shown = some(random, (int(random.integers(0, 5)), width))
            usable = random.random(shown.shape) < 0.8
            fresh = random.integers(0, 6, width)
            entered.append(enter(ordered, values, oldest, shown, usable, fresh))
        return [ordered, values, oldest, *entered]

    both(follow)


def test_arrays_that_may_only_be_read_are_read(both: Any) -> None:
    times = np.broadcast_to(np.array([2.0, 1.0, 4.0]), (4, 3))
    both(lambda: [medians(times, skip=False), centre(times[0])])


@pytest.mark.parametrize("kind", range(3))
def test_clusters(both: Any, kind: int) -> None:
    random = np.random.default_rng(kind)
    for n in [*range(1, 12), 64, 65, 300]:
        times = np.sort(random.lognormal(0, 0.1, n))
        if kind:  # tied, to the last bit or nearly so
            times = np.sort(np.round(times, 2) * (1 + random.integers(0, kind, n) * 4e-10))
        for threshold in (0.0, 1e-9, 1e-3, 0.05, 0.5, math.inf):
            both(lambda times=times, threshold=threshold: [_merge(times, threshold)])


def test_an_array_without_an_address_of_its_own_is_refused() -> None:
    for array in (np.zeros((2, 2)).T[:1], np.broadcast_to(np.zeros(1), 3)):
        with pytest.raises((TypeError, ValueError)):
            address(array)
    assert loops() is not None
