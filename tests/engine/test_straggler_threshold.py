"""Who straggles in truth (rule 27), told without sorting everybody each time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simstrag.engine.native.library import library

RATIO = 1.2

SECONDS = st.sampled_from([0.1, 0.11, 0.1 * RATIO, np.nextafter(0.1 * RATIO, 1), 0.13, 0.15, 0.3])


def threshold(clean: np.ndarray, ratio: float) -> float:
    seconds: float = library().functions.threshold(clean.ctypes.data, len(clean), ratio)
    return seconds


@given(st.lists(SECONDS | st.floats(0.05, 0.5), min_size=1, max_size=30))
def test_the_threshold_tells_who_is_above_the_ratio_times_the_median(seconds: list[float]) -> None:
    clean = np.array(seconds)
    limit = threshold(clean.copy(), RATIO)
    assert np.array_equal(clean > limit, clean > RATIO * np.median(clean))


def test_where_nobody_is_far_from_the_least_nobody_is_above() -> None:
    assert threshold(np.array([1.0, 1.1, 1.2]), RATIO) == np.inf


def test_a_few_far_above_the_others_are_told_apart_without_the_median() -> None:
    assert threshold(np.array([1.0, 5.0, 1.1]), RATIO) == RATIO * 1.1
