"""The loops of the compiled library and those of numpy and Python agree to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import simstrag.contract.medians
from simstrag.contract import compiled
from simstrag.contract.compiled import address, loops
from simstrag.contract.medians import medians
from simstrag.contract.ranks import samples_of_shares
from simstrag.engine.native import library
from simstrag.errors import InputError
from simstrag.policies.estimators import columns, time_to_progress
from simstrag.policies.estimators.columns import centre, correctly_rounded_sum, enter
from simstrag.policies.estimators.time_to_progress import cluster_sizes

WIDTHS = [1, 2, 31, 32, 33, 200]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Computes something with the library and without it, and compares the bits."""

    def compare(compute: Callable[[], Any]) -> None:
        results = [compute()]
        for module in (columns, simstrag.contract.medians, time_to_progress):
            monkeypatch.setattr(module, "loops", lambda: None)
        results.append(compute())
        monkeypatch.undo()
        native, plain = ([bits(part) for part in result] for result in results)
        assert native == plain

    return compare


def bits(part: Any) -> bytes:
    """The bytes of numbers; numpy's NaN has other bytes on aarch64 than on x86-64."""
    array = np.array(part)
    return np.where(np.isnan(array), np.nan, array).tobytes()


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
def test_the_centre_of_a_row(width: int) -> None:
    random = np.random.default_rng(width)
    for digits in range(1, 17):
        row = np.round(random.lognormal(0, 0.1, width), digits)
        row[1:][random.random(width - 1) < 0.1] = np.nan
        known, median, mad = centre(row)
        assert known == np.count_nonzero(~np.isnan(row))
        assert median == np.nanmedian(row)
        assert mad == np.nanmedian(np.abs(row - median))


def test_a_sum_is_rounded_once(both: Any) -> None:
    random = np.random.default_rng(0)
    for n in (0, 1, 2, 3, 7, 512):
        for sigma in (0.0, 0.1, 3.0, 30.0):
            row = random.lognormal(0, sigma, n) * random.choice([1, -1], n)
            halves = np.append(row, [2.0**53, 1.0, -(2.0**53), 2.0**-60])  # near a tie
            for values in (row, np.round(row, 1), halves, np.append(row, -row)):
                both(lambda values=values: [correctly_rounded_sum(values)])


def test_rounded_shares_keep_their_sum() -> None:
    random = np.random.default_rng(0)
    for n in (1, 2, 3, 33, 512):
        for digits in (0, 1, 2, 16):
            shares = np.round(random.lognormal(0, 0.5, n), digits)
            shares *= n / shares.sum()
            for batch in (1, 2, 127, 128):
                assert samples_of_shares(shares, batch, n).sum() == n * batch


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


@pytest.mark.parametrize("width", [3, 33, 1000, 30_000])
@pytest.mark.parametrize("kind", ["strided", "read-only", "integers", "single precision"])
def test_an_array_that_the_library_cannot_read_as_it_is_is_copied(kind: str, width: int) -> None:
    random = np.random.default_rng(width)
    for _ in range(5):  # fresh data each time: freed memory may still hold those before
        rows = random.lognormal(0, 0.1, (3, 2 * width))[:, ::2]
        if kind == "read-only":
            rows = np.ascontiguousarray(rows)
            rows.flags.writeable = False
        elif kind != "strided":
            rows = (1000 * rows).astype(np.int64 if kind == "integers" else np.float32)
        doubles = rows.astype(np.float64)
        assert np.array_equal(medians(rows, skip=False), np.median(doubles, axis=0))
        for row, exact in zip(rows, doubles, strict=True):
            median = np.median(exact)
            assert centre(row) == (width, median, np.median(np.abs(exact - median)))
            assert correctly_rounded_sum(row) == math.fsum(exact.tolist())
        assert cluster_sizes(np.sort(rows[0]), 1e-3) == cluster_sizes(np.sort(doubles[0]), 1e-3)


def test_windows_take_other_types(both: Any) -> None:
    def follow() -> list[np.ndarray]:
        ordered, oldest = np.full((3, 4), np.nan), np.arange(4)
        values, shown = ordered.ravel().copy(), np.arange(8).reshape(2, 4)
        usable, fresh = (shown % 3).astype(np.int64), np.array([2, 1, 2, 0], np.int32)
        return [enter(ordered, values, oldest, shown, usable, fresh), ordered, values, oldest]

    entered, ordered, *_ = follow()
    assert entered.tolist() == [1, 1, 1, 0]
    assert ordered[0].tolist()[:3] == [4.0, 5.0, 2.0]
    both(follow)


@pytest.mark.parametrize("kind", range(3))
def test_clusters(both: Any, kind: int) -> None:
    random = np.random.default_rng(kind)
    for n in [*range(1, 12), 64, 65, 300]:
        times = np.sort(random.lognormal(0, 0.1, n))
        if kind:  # tied, to the last bit or nearly so
            times = np.sort(np.round(times, 2) * (1 + random.integers(0, kind, n) * 4e-10))
        for threshold in (0.0, 1e-9, 1e-3, 0.05, 0.5, math.inf):
            both(lambda times=times, threshold=threshold: [cluster_sizes(times, threshold)])


def test_an_array_without_an_address_of_its_own_is_refused() -> None:
    for array in (np.zeros((2, 2)).T[:1], np.broadcast_to(np.zeros(1), 3)):
        with pytest.raises((TypeError, ValueError)):
            address(array)
    assert loops() is not None


def test_a_library_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiled.LOOPS, "later", (None, "p"))
    monkeypatch.setitem(library.FUNCTIONS, "later", "")
    for load in (loops, library.library):
        with pytest.raises(InputError, match=r"has no later: .*; install simstrag again"):
            load.__wrapped__()
