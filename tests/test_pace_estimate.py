"""The lasting pace of runs: what noise within visits explains is no pace."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simstrag.calibration.fits.pace_estimate import FEWEST_FREEDOM, lasting_pace


def visits(pace: float, lag: float, cells: int, each: int, steps: int) -> list[list[list[float]]]:
    """Steps with noise of 4 % and this autocorrelation, in visits of their own pace."""
    rng = np.random.default_rng(7)
    found = []
    for cell in range(cells):
        noise = np.empty((each, steps))
        noise[:, 0] = rng.normal(size=each)
        for k in range(1, steps):
            fresh = rng.normal(size=each)
            noise[:, k] = lag * noise[:, k - 1] + math.sqrt(1 - lag * lag) * fresh
        level = (1 + cell) * np.exp(pace * rng.normal(size=(each, 1)))
        found.append((level * (1 + 0.04 * noise)).tolist())
    return found


@pytest.mark.parametrize("lag", [0.0, 0.5])
def test_the_pace_that_visits_were_drawn_with_is_found(lag: float) -> None:
    found = lasting_pace(visits(0.03, lag, cells=100, each=6, steps=25))
    assert found is not None
    assert found.value == pytest.approx(0.03, rel=0.08), "its standard error is 4 %"
    assert (found.kind, found.n) == ("measured", 600)


@pytest.mark.parametrize("lag", [0.0, 0.5])
def test_noise_alone_is_no_pace(lag: float) -> None:
    between = 0.04 * math.sqrt((1 + lag) / (1 - lag) / 25)
    found = lasting_pace(visits(0.0, lag, cells=100, each=6, steps=25))
    assert found is not None
    assert found.value < 0.4 * between


def test_few_visits_tell_no_pace() -> None:
    assert lasting_pace([]) is None
    assert lasting_pace(visits(0.03, 0.0, cells=20, each=1, steps=25)) is None
    enough = visits(0.03, 0.0, cells=1, each=FEWEST_FREEDOM + 1, steps=2)
    assert lasting_pace(enough) is not None
    assert lasting_pace([enough[0][1:]]) is None
