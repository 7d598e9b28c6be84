"""The answer as whole sentences, for comparisons whose numbers are made up to ask for each."""

# ruff: noqa: RUF001 - dashes are meant

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simstrag.analysis.answer import answer
from simstrag.analysis.cautions import cautions
from simstrag.analysis.report import render
from simstrag.analysis.standings import Standings, standings
from simstrag.analysis.thresholds import thresholds
from simstrag.analysis.turns import Turn, rounded
from simstrag.comparison import C_TAUS, Comparison, compare
from simstrag.scenario import Scenario
from simstrag.sensitivity import COLUMNS

CASE: dict[str, Any] = {
    "workers": 4,
    "target_progress": 5,
    "step": {"compute": 0.1, "amp_ratio": 1.6, "cv": 0.05},
    "server": {"service": 0.005},
    "trace": [{"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}],
    "seeds": 10,
}
SPREAD = np.linspace(-1, 1, 10)
COVERS = "the intervals cover the luck of step times in 10 seeds over one fixed trace, so they say nothing of another day"  # noqa: E501
TIMES = {"bsp": 100, "asgd": 90, "korel": 93}
"""Mean seconds to the target; asgd's are 90 at every c_tau up to 1, and 120 at 4."""


@pytest.fixture(scope="module")
def made() -> Comparison:
    return compare(Scenario.of(CASE), ["bsp", "asgd", "korel"], jobs=1)


def told(
    made: Comparison, times: dict[str, float], turns: Sequence[tuple[Any, ...]] | None = None,
    at_4: float = 120, spread: float = 1.0, **changes: Any,
) -> Standings:  # fmt: skip
    """Standings with these mean times; turns: rows of thresholds; at_4: asgd's at a c_tau of 4."""
    scenario = made.scenario.replaced(**changes) if changes else made.scenario
    runs = made.runs[made.runs["policy"].isin(times)].reset_index(drop=True)
    costs = []
    for k, (policy, mean) in enumerate(times.items()):
        rows = runs["policy"] == policy
        seconds = mean + spread * np.roll(SPREAD, 3 * k)
        runs.loc[rows, "time_to_target"] = runs.loc[rows, "makespan"] = seconds
        for c in C_TAUS:
            late = at_4 - mean if policy == "asgd" and c == 4 else 0.0
            costs += [(policy, seed, c, t + late) for seed, t in enumerate(seconds)]
    table = None
    if turns is not None:
        table = pd.DataFrame(turns, columns=list(COLUMNS))
    columns = ["policy", "seed", "c_tau", "time_to_target"]
    return standings(dataclasses.replace(
        made, scenario=scenario, runs=runs, sensitivity=pd.DataFrame(costs, columns=columns),
        thresholds=table,
    ))  # fmt: skip


def turn(
    quantity: str, rival: str, holds_at: float, turns_at: float, shown: bool = True,
    leader: str = "asgd", value: float = 1.0, unit: str = "", seeds: int = 5,
) -> tuple[Any, ...]:  # fmt: skip
    larger = turns_at > holds_at
    return (
        quantity, value, unit, "assumed (default)", "larger" if larger else "smaller",
        value * (4 if larger else 0.25), leader, rival, holds_at, turns_at, shown, seeds,
    )  # fmt: skip


def stays(quantity: str, larger: bool, leader: str = "asgd", value: float = 1.0) -> tuple[Any, ...]:
    end = value * (4 if larger else 0.25)
    nan = float("nan")
    direction = "larger" if larger else "smaller"
    return (quantity, value, "", "fitted", direction, end, leader, "", nan, nan, False, 5)


def test_the_gain_stands_with_its_interval_and_its_condition(made: Comparison) -> None:
    found = [stays("learner.c_tau", False), turn("learner.c_tau", "korel", 1.54, 1.61)]
    assert answer(told(made, TIMES, found)) == (
        "Under this trace asgd reaches the target first, 10.0 % (9.4–10.6 %) sooner than bsp, "
        "as long as c_tau <= 1.5.",
        "korel is 7.0 % (6.4–7.6 %) sooner than bsp whatever c_tau; contention is of the gpu "
        f"class, and {COVERS}.",
    )


def test_other_constants_stand_beside_c_tau(made: Comparison) -> None:
    found = [
        turn("server.service", "korel", 0.0094, 0.0099, value=0.005, unit="s"),
        turn("learner.c_tau", "korel", 1.54, 1.61),
    ]
    assert answer(told(made, TIMES, found))[0].endswith(
        ", as long as c_tau <= 1.5 and the server's service <= 9.4 ms."
    )


def test_both_sides_of_a_constant_are_one_condition(made: Comparison) -> None:
    found = [
        turn("learner.c_tau", "korel", 0.63, 0.61),
        turn("learner.c_tau", "korel", 1.54, 1.61),
    ]
    assert answer(told(made, TIMES, found))[0].endswith(", as long as 0.63 <= c_tau <= 1.5.")


def test_a_turn_within_the_noise_is_said_to_be_so(made: Comparison) -> None:
    found = [turn("learner.c_tau", "korel", 1.54, 1.61, shown=False)]
    first, _ = answer(told(made, TIMES, found))
    assert first.endswith(", as long as c_tau <= 1.5 (a turn within the noise).")
    more = turn("server.service", "korel", 0.0094, 0.0099, False, value=0.005, unit="s")
    s = told(made, TIMES, [*found, more])
    assert "service" not in answer(s)[0]
    assert (
        "asgd is ahead also only as long as the server's service <= 9.4 ms (a turn within the "
        "noise)."
    ) in cautions(s)


def test_where_nothing_turns_it_over_it_is_said_how_far_was_tried(made: Comparison) -> None:
    found = [stays("learner.c_tau", False), stays("learner.c_tau", True)]
    first, second = answer(told(made, TIMES, found, at_4=91))
    assert first.endswith(" sooner than bsp, whatever c_tau (0.25 to 4 tried).")
    assert second.startswith("The next, korel, is 7.0 % (6.4–7.6 %) sooner than bsp; contention")


def test_without_thresholds_the_costs_that_were_run_anyway_are_the_condition(
    made: Comparison,
) -> None:
    s = told(made, TIMES)
    assert answer(s)[0].endswith(", as long as c_tau <= 1 (not at 4, the next tried).")
    assert "--sensitivity does, by further runs" in thresholds(s).about
    doubtful = told(made, TIMES, at_4=93.01)
    assert answer(doubtful)[0].endswith("(within the noise not at 4, the next tried).")
    assert answer(told(made, TIMES, at_4=90))[0].endswith("whatever c_tau (0.5 to 4 tried).")


def test_another_leader_under_the_few_seeds_takes_the_condition_away(made: Comparison) -> None:
    s = told(made, TIMES, [turn("learner.c_tau", "asgd", 0.7, 0.6, leader="korel")])
    assert answer(s)[0].endswith(" sooner than bsp.")
    assert any("korel has the best mean and not asgd" in text for text in cautions(s))
    assert "korel has the best mean and not asgd" in thresholds(s).about


def test_a_lead_that_is_not_shown_is_no_first_place(made: Comparison) -> None:
    first, second = answer(told(made, TIMES | {"korel": 90.2}, [stays("learner.c_tau", True)]))
    assert first.startswith("Under this trace asgd reaches the target 10.0 % (9.4–10.6 %) sooner")
    assert second.startswith("No difference is shown between it and korel; contention is")


def test_a_leader_without_stale_gradients_keeps_its_own_gain(made: Comparison) -> None:
    found = [turn("learner.c_tau", "asgd", 0.8, 0.75, leader="korel")]
    first, second = answer(told(made, TIMES | {"korel": 85}, found))
    assert first.startswith("Under this trace korel reaches the target first, 15.0 % (14.4–15.6 %)")
    assert first.endswith(", as long as c_tau >= 0.8.")
    assert second.startswith("Its own lead over bsp is the same whatever c_tau; ")


def test_no_difference_shown_stays_no_difference(made: Comparison) -> None:
    s = told(made, {"bsp": 100, "asgd": 99.9, "korel": 100.2}, [stays("learner.c_tau", True)])
    first, second = answer(s)
    assert first.startswith("No difference shown: asgd and korel are not shown to be faster or ")
    assert "as long as" not in first + second


def test_without_a_trace_it_is_no_mitigation(made: Comparison) -> None:
    first, second = answer(told(made, TIMES, trace=None))
    assert first.startswith("Without contention asgd reaches the target first, ")
    assert "; there is no contention, so this is no mitigation, and " in second


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (["host", "gpu"], "contention is of the gpu and host class"),
        (["step"], "contention is of no known class (the whole step is slowed)"),
    ],
)
def test_the_class_is_that_of_the_trace(made: Comparison, resources: list[str], words: str) -> None:
    rows = [CASE["trace"][0] | {"resource": resource} for resource in resources]
    step = CASE["step"] | {"host_share": 0.2}
    assert words in answer(told(made, TIMES, trace=rows, step=step))[1]


def test_without_noise_nobody_is_called_slow_by_noise(made: Comparison) -> None:
    quiet = told(made, TIMES, trace=None, step={"compute": 0.1, "amp_ratio": 1.6})
    assert (
        "There is no contention trace: nobody is slow here, for there is no noise either."
    ) in cautions(quiet)
    noisy = told(made, TIMES, trace=None)
    assert "There is no contention trace: who is slow here is slow by noise alone." in cautions(
        noisy
    )


@pytest.mark.parametrize("value", [0.5, 1.0, 1.07, 64.0, 5e-3, 1.1e9])
@pytest.mark.parametrize("factor", [1.0, 1.003, 1.54, 3.999])
@pytest.mark.parametrize("larger", [True, False])
def test_a_bound_is_rounded_to_the_safe_side(value: float, factor: float, larger: bool) -> None:
    bound = value * factor if larger else value / factor
    shown = float(rounded(bound, value, ""))
    low, high = sorted((bound, value))
    assert low * (1 - 1e-12) <= shown <= high * (1 + 1e-12)


def test_a_coarse_turn_names_the_value_at_which_it_does_not_hold() -> None:
    assert Turn("learner.c_tau", 1.0, "", "bsp", 0.5, 0.125, True).condition == (
        "c_tau >= 0.5 (not at 0.125, the next tried)"
    )


def test_the_report_shows_the_thresholds_and_lets_them_be_saved(made: Comparison) -> None:
    found = [stays("learner.c_tau", False), turn("learner.c_tau", "korel", 1.54, 1.61)]
    service = turn("server.service", "bsp", 0.0094, 0.0099, False, value=0.005, unit="s")
    s = told(made, TIMES, [service, *found])
    page = render(s.comparison)
    assert 'id="thresholds-' in page
    assert "One assumed or fitted constant at a time was made a quarter and four times" in page
    assert "under the first 5 of 10 seeds" in page
    table = thresholds(s).table
    assert table is not None
    assert [row[0] for row in table.rows] == ["c_tau", "c_tau", "the server's service"]
    assert [row[2] for row in table.rows] == ["nobody", "korel", "bsp, within the noise"]
    assert table.rows[2][5:] == ("9.40 ms", "9.90 ms")
    assert '"thresholds": {"columns": ["constant"' in page
