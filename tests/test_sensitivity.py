"""Which constant turns a ranking over, held against cases with a known answer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from simstrag.errors import InputError
from simstrag.scenario import Scenario
from simstrag.sensitivity import FACTORS, sensitivity

SLOW = {"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}
BASE: dict[str, Any] = {
    "workers": 4,
    "samples": 4 * 128 * 50,
    "step": {"compute": 0.1},
    "server": {"service": 0.02},
    "trace": [SLOW],
}


def rows(quantity: str, **changes: Any) -> dict[str, dict[Any, Any]]:
    case = Scenario.of(BASE | changes)
    found = sensitivity(case, ["bsp", "asgd"], quantities=[quantity], jobs=1)
    return {row["direction"]: row for row in found.to_dict("records")}


def test_a_saturated_server_hands_the_lead_to_the_barrier_where_it_must() -> None:
    """bsp takes 10 s for 200 gradients, asgd 0.1 s for the first step and 200 services."""
    larger = rows("server.service")["larger"]
    assert (larger["leader"], larger["rival"]) == ("asgd", "bsp")
    assert larger["holds_at"] < (10 - 0.1) / 200 < larger["turns_at"]
    assert larger["turns_at"] / larger["holds_at"] == pytest.approx(2 ** (1 / 16))


def test_where_the_leader_stays_it_says_how_far_was_tried() -> None:
    smaller = rows("server.service")["smaller"]
    assert smaller["rival"] == ""
    assert smaller["tried"] == 0.02 * min(FACTORS)
    assert math.isnan(smaller["turns_at"])


def test_a_cost_of_staleness_is_varied_too() -> None:
    changes = {"samples": None, "target_progress": 10, "server": {"service": 0.001}}
    found = rows("learner.c_tau", **changes)
    assert found["larger"]["leader"] == "asgd"
    assert found["larger"]["rival"] == "bsp"
    assert 1 <= found["larger"]["holds_at"] < found["larger"]["turns_at"] <= 4


def test_all_that_is_stated_and_not_0_is_varied() -> None:
    case = Scenario.of(BASE | {"samples": 4 * 128})
    found = sensitivity(case, ["bsp"], jobs=1)
    assert set(found["quantity"]) == {"learner.c_tau", "learner.noise_scale", "server.service"}


@pytest.mark.parametrize(
    ("quantity", "message"),
    [
        ("server.servce", "Did you mean 'server.service'"),
        ("allreduce.alpha", "is 0 or not stated here"),
    ],
)
def test_what_cannot_be_varied_is_refused(quantity: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rows(quantity)


def test_progress_is_reported_run_by_run() -> None:
    seen: list[tuple[int, int, str]] = []
    sensitivity(
        Scenario.of(BASE | {"samples": 4 * 128}),
        ["bsp"],
        quantities=["server.service"],
        jobs=1,
        on_progress=lambda *said: seen.append(said),
    )
    assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[0][2] == "as it is"
