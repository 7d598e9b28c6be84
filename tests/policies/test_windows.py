"""Windows hold the last values of each rank that were not left out."""

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
    ranks = 50
    history, windows = History(ranks, width, seed=width), Windows(ranks, width)
    for _ in range(60):
        skip = history.go_on(most)
        new = windows.news(history.steps, SHOWN)
        shown, usable = history.shown.T[SHOWN - new :], ~skip.T[SHOWN - new :]
        windows.follow(history.steps, shown, usable)
        assert np.array_equal(windows.ordered.T, np.sort(history.kept, axis=1), equal_nan=True)
        medians = [windows.median(rank) for rank in range(ranks)]
        assert np.array_equal(medians, np.median(history.kept, axis=1), equal_nan=True)
    assert np.isfinite(medians).any()


def follow(windows: Windows, steps: list[int], values: list[list[float]]) -> list[int]:
    shown = np.array(values).T
    return windows.follow(np.array(steps), shown, np.ones(shown.shape, dtype=bool)).tolist()


def test_a_window_that_was_cleared_begins_anew() -> None:
    windows = Windows(ranks=2, width=2)
    follow(windows, [2, 2], [[1.0, 3.0], [1.0, 3.0]])
    windows.clear(1)
    follow(windows, [3, 3], [[5.0], [5.0]])
    assert windows.median(0) == 4.0
    assert np.isnan(windows.median(1))
    follow(windows, [4, 4], [[7.0], [7.0]])
    assert [windows.median(0), windows.median(1)] == [6.0, 6.0]


def test_what_was_entered_is_not_entered_again() -> None:
    windows = Windows(ranks=1, width=3)
    assert follow(windows, [3], [[1.0, 2.0, 9.0]]) == [3]
    assert windows.news(np.array([3]), rows=3) == 0
    assert follow(windows, [3], [[1.0, 2.0, 9.0]]) == [0]
    assert windows.median(0) == 2.0


def test_a_copy_from_a_file_goes_on_alike() -> None:
    windows = Windows(ranks=1, width=2)
    follow(windows, [1], [[1.0]])
    copy = pickle.loads(pickle.dumps(windows))
    for one in (windows, copy):
        follow(one, [2], [[2.0]])
    assert copy.median(0) == windows.median(0) == 1.5
