"""The lasting pace of runs: what noise within visits explains is no pace."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simstrag.calibration.fits.pace_estimate import FEWEST, lasting_pace


def visits(pace: float, lag: float, cells: int, each: int, steps: int) -> list[list[list[float]]]:
    """Steps with noise of 4 % and this autocorrelation, in visits of their own pace."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(cells):
        noise = np.empty((each, steps))
        noise[:, 0] = rng.normal(size=each)
        for k in range(1, steps):
            fresh = rng.normal(size=each)
            noise[:, k] = lag * noise[:, k - 1] + math.sqrt(1 - lag * lag) * fresh
        level = np.exp(pace * rng.normal(size=(each, 1)))
        found.append((level * (1 + 0.04 * noise)).tolist())
    return found


@pytest.mark.parametrize("lag", [0.0, 0.5])
@pytest.mark.parametrize("steps", [25, 60])
def test_the_pace_that_visits_were_drawn_with_is_found(lag: float, steps: int) -> None:
    found = lasting_pace(visits(0.03, lag, cells=1, each=800, steps=steps))
    assert found.value == pytest.approx(0.03, rel=0.08), "its standard error is 3 %"
    assert (found.kind, found.n) == ("measured", 800)


@pytest.mark.parametrize("lag", [0.0, 0.5])
@pytest.mark.parametrize("steps", [20, 25, 60])
def test_noise_alone_is_no_pace(lag: float, steps: int) -> None:
    """Of the variance of means that correlated noise makes, less than a twelfth is left over."""
    between = 0.04 * math.sqrt((1 + lag) / (1 - lag) / steps)
    found = lasting_pace(visits(0.0, lag, cells=1, each=3000, steps=steps))
    assert found.value**2 < between**2 / 12


def test_the_interval_holds_the_pace_as_often_as_it_says_also_where_rounds_share_it() -> None:
    """Five cells are visited in turn in each of ten rounds, and visits of a round are alike."""
    rng, held = np.random.default_rng(3), 0
    for _ in range(400):
        level = np.exp(0.05 * rng.normal(size=(10, 1)))
        cells = [level * (1 + 0.01 * rng.normal(size=(10, 8))) for _ in range(5)]
        found = lasting_pace([cell.tolist() for cell in cells])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.05 <= found.high
    assert 0.92 < held / 400 < 0.99


def test_short_visits_say_that_the_correlation_is_unknown() -> None:
    found = lasting_pace(visits(0.03, 0.5, cells=1, each=20, steps=8))
    assert "no visit is long enough to tell; at most this" in found.note


def test_few_visits_tell_no_pace() -> None:
    assert lasting_pace([]) is None
    assert lasting_pace(visits(0.03, 0.0, cells=20, each=1, steps=25)) is None
    enough = visits(0.03, 0.0, cells=1, each=FEWEST, steps=2)
    assert lasting_pace(enough) is not None
    assert lasting_pace([enough[0][1:]]) is None
