"""Jitter of a log of loads: what of its changes is load."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simstrag.arrays import Floats
from simstrag.traces.jitter import Levels, levels_of

SAMPLES = 900


def jitter(seed: int, deviation: float = 0.025, correlation: float = 0.0) -> Floats:
    """Normal values of this deviation, an autoregression of first order."""
    drawn = np.random.default_rng(seed).normal(0, deviation, SAMPLES)
    for k in range(1, SAMPLES):
        drawn[k] = correlation * drawn[k - 1] + math.sqrt(1 - correlation**2) * drawn[k]
    return drawn


def episode(load: float, first: int = 300, end: int = 400) -> Floats:
    """A load of 0.6, and from sample `first` to `end` more."""
    values = np.full(SAMPLES, 0.6)
    values[first:end] += load
    return values


def found(values: Floats) -> Levels:
    return levels_of([values])[0]


def changes(values: Floats) -> list[int]:
    return (np.flatnonzero(np.diff(found(values).level)) + 1).tolist()


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_jitter_of_points_is_one_level(correlation: float) -> None:
    """Without the correlation of what is left, 0.6 makes about 70 changes of it."""
    counts = [len(changes(0.6 + jitter(seed, 0.025, correlation))) for seed in range(20)]
    assert sum(counts) <= 2  # a false episode in 3 of 100 series, measured


@pytest.mark.parametrize("length", [1, 5, 100])
def test_an_episode_in_jitter_has_its_edges_and_its_level(length: int) -> None:
    values = episode(0.3, 300, 300 + length) + jitter(7)
    assert changes(values) == [300, 300 + length]
    level = found(values).level
    assert level[300] - level[0] == pytest.approx(0.3, abs=3 * 0.025 / math.sqrt(length))


@pytest.mark.parametrize("length", [10, 100, 400])
def test_the_least_load_that_is_seen_is_as_stated(length: int) -> None:
    """Half of it is missed, and half as much more is found, in 20 series each."""
    least = 2 * 0.025 * math.sqrt(math.log(SAMPLES) / length)

    def share_found(load: float) -> float:
        levels = [found(episode(load, 300, 300 + length) + jitter(k)).level for k in range(20)]
        return sum(each[300 + length // 2] - each[0] > load / 2 for each in levels) / 20

    assert share_found(0.5 * least) <= 0.1
    assert share_found(1.5 * least) >= 0.9


@pytest.mark.parametrize("load", [0.04, 0.1, 0.35])
def test_clean_loads_stay_as_they_are_to_the_bit(load: float) -> None:
    values = sum(episode(load, first, first + 7) - 0.6 for first in range(100, 800, 50)) + 0.6
    rounded = np.round(100 * values) / 100
    for clean in (values, rounded, np.full(SAMPLES, 0.55)):
        assert np.array_equal(found(clean).level, clean)


def test_rounded_percentages_between_two_are_one_level() -> None:
    """62 in most samples and 63 in some: most differences are 0."""
    values = np.round(100 * (episode(0.2) + 0.022 + jitter(3, 0.003))) / 100
    assert {*np.round(100 * values).astype(int).tolist()} == {61, 62, 63, 82} | {81, 83}
    assert changes(values) == [300, 400]


def test_loads_that_change_in_every_sample_are_no_jitter() -> None:
    values = np.random.default_rng(0).uniform(0, 1, SAMPLES)
    assert np.array_equal(found(values).level, values)


def test_few_samples_stay_as_they_are() -> None:
    values = (0.6 + jitter(0))[:19]
    assert np.array_equal(found(values).level, values)
