"""Power caps: the law between measured rows, and what a cap costs a simulated job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.advice.advise import advise
from simstrag.advice.power import PowerPoint, power_points, read_power_caps
from simstrag.errors import InputError
from simstrag.profile.power_caps import PowerCaps, PowerRow, law
from simstrag.scenario.scenario import Scenario
from tests.support.contention import durations, slow

ROWS = [PowerRow(100, 6824, 99), PowerRow(175, 3946, 165), PowerRow(250, 3604, 222)]


def test_a_measured_row_is_met_exactly() -> None:
    caps = PowerCaps(ROWS)
    for row in ROWS:
        assert caps.slowdown(row.cap) == pytest.approx(row.seconds / 3604)
        assert caps.watts(row.cap) == pytest.approx(row.watts)


def test_a_device_that_never_draws_so_much_is_not_slowed() -> None:
    seconds, watts = law(np.array([100.0, 250.0]), demand=42.0)
    assert seconds.tolist() == [1.0, 1.0]
    assert watts.tolist() == [42.0, 42.0]


def test_rows_of_the_law_give_its_other_caps_back() -> None:
    caps = np.arange(100.0, 251.0, 25.0)
    seconds, watts = law(caps, demand=200.0)
    rows = [PowerRow(float(caps[k]), float(seconds[k]), float(watts[k])) for k in (0, 3, 6)]
    found = PowerCaps(rows)
    assert [found.slowdown(cap) for cap in caps] == pytest.approx(seconds.tolist(), rel=2e-3)
    assert found.most_frugal(caps.tolist()) == caps[np.argmin(seconds * watts)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("power_limit,seconds,watts\n100,1,90\n200,1,90\n", "2 power limits: measure 3 or more"),
        ("power_limit,seconds,watts\n100,1,90\n100,1,90\n200,1,90\n", "given twice"),
        ("power_limit,seconds,watts\n100,0,90\n150,1,90\n200,1,90\n", "must be above 0, not 0"),
        ("power_limit,seconds\n100,1\n", "watts"),
        ("power_limit,seconds,watts\n100,3,90\n150,4,90\n200,6,90\n", "columns swapped"),
    ],
)
def test_rows_that_say_nothing_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "caps.csv").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_power_caps(tmp_path / "caps.csv")


def points_of(**keys: Any) -> Sequence[PowerPoint]:
    """Two ranks compute .1 and .2 s a step and the first waits .1 s; by default 10 steps."""
    case = {
        "workers": 2, "samples": 20, "seeds": 1, "step": {"compute": 0.1}, "learner": {"batch": 1},
        "cost": {"idle_watts": 50, "gpu_hour": 3600}, "trace": [slow(node=1, resource="step")],
    }  # fmt: skip
    return power_points(advise(Scenario(**case | keys), ["bsp"], jobs=1), PowerCaps(ROWS), jobs=1)


def test_energy_of_a_cap_is_that_of_computing_and_of_waiting() -> None:
    """At the highest cap 3 s are computed at 222 W and 1 s is waited at 50 W."""
    fastest, *_, slowest = points_of()
    assert (fastest.cap, fastest.seconds) == (250, pytest.approx(2.0))
    assert fastest.kwh == pytest.approx((3 * 222 + 1 * 50) / 3.6e6)
    assert fastest.cost == pytest.approx(4.0)
    assert (slowest.cap, slowest.seconds) == (100, pytest.approx(2.0 * 6824 / 3604))
    assert fastest.efficient


def test_energy_is_that_until_the_target_and_not_until_the_end() -> None:
    """A progress of 5 is reached after 10 of the 100 updates."""
    learner = {"batch": 1, "noise_scale": 2}
    fastest, *_ = points_of(samples=200, target_progress=5, learner=learner)
    assert fastest.seconds == pytest.approx(2.0)
    assert fastest.kwh == pytest.approx((3 * 222 + 1 * 50) / 3.6e6)


def test_a_step_that_no_scenario_states_has_no_cap() -> None:
    with pytest.raises(InputError, match="power caps make a step longer"):
        points_of(samples=64, trace=durations((0.1,), (1.1,)))
