"""Windows that are kept in order are those that would be sorted anew each time."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from simstrag.policies.estimators.windows import Windows

SHOWN = 16


class History:
    """Random values of each rank, a few of them gaps, and what a window of them would hold."""

    def __init__(self, ranks: int, width: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.steps = np.zeros(ranks, dtype=np.int64)
        self.shown = np.full((ranks, SHOWN), np.nan)
        self.kept = np.full((ranks, width), np.nan)

    def go_on(self, most: int) -> np.ndarray:
        """Up to `most` values more of every rank; returns which of those shown are not to enter."""
        ranks = len(self.steps)
        new = self.random.integers(0, most + 1, ranks)
        skip = self.random.random((ranks, SHOWN)) < 0.1
        for rank, count in enumerate(new):
            values = np.round(self.random.normal(1.0, 0.1, count), 2)  # some are equal
            values[self.random.random(count) < 0.03] = np.nan
            self.shown[rank] = np.append(self.shown[rank], values)[count:]
            entering = self.shown[rank, SHOWN - count :][~skip[rank, SHOWN - count :]]
            self.kept[rank] = np.append(self.kept[rank], entering)[len(entering) :]
        self.steps += new
        return skip


@pytest.mark.parametrize("width", [1, 2, 5, 10, 20])
@pytest.mark.parametrize("most", [1, 3, SHOWN])
def test_the_medians_are_those_of_the_last_values(width: int, most: int) -> None:
    ranks = 600  # more than one chunk
    history, windows = History(ranks, width, seed=width), Windows(ranks, width)
    for _ in range(60):
        skip = history.go_on(most)
        new = windows.news(history.steps, SHOWN)
        windows.follow(history.steps, history.shown[:, SHOWN - new :], skip[:, SHOWN - new :])
        assert np.array_equal(windows.medians(), np.median(history.kept, axis=1), equal_nan=True)
        assert np.array_equal(
            windows.of(slice(None)), np.sort(history.kept, axis=1), equal_nan=True
        )
    assert np.isfinite(windows.medians()).any()


def test_a_window_that_was_cleared_begins_anew() -> None:
    windows = Windows(ranks=2, width=2)
    windows.follow(np.array([2, 2]), np.array([[1.0, 3.0], [1.0, 3.0]]))
    windows.clear(1)
    windows.follow(np.array([3, 3]), np.array([[5.0], [5.0]]))
    assert np.array_equal(windows.medians(), [4.0, np.nan], equal_nan=True)
    windows.follow(np.array([4, 4]), np.array([[7.0], [7.0]]))
    assert windows.medians().tolist() == [windows.median(0), windows.median(1)] == [6.0, 6.0]


def test_what_was_entered_is_not_entered_again() -> None:
    windows = Windows(ranks=1, width=3)
    steps, values = np.array([3]), np.array([[1.0, 2.0, 9.0]])
    assert windows.follow(steps, values).tolist() == [3]
    assert windows.news(steps, columns=3) == 0
    assert windows.follow(steps, values).tolist() == [0]
    assert windows.medians().tolist() == [2.0]


def test_a_copy_from_a_file_goes_on_alike() -> None:
    windows = Windows(ranks=1, width=2)
    windows.follow(np.array([1]), np.array([[1.0]]))
    copy = pickle.loads(pickle.dumps(windows))
    for one in (windows, copy):
        one.follow(np.array([2]), np.array([[2.0]]))
    assert copy.medians() == windows.medians() == [1.5]
