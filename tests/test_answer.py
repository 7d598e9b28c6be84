"""The answer as whole sentences, for comparisons whose numbers are made up to ask for each."""

# ruff: noqa: RUF001 - dashes are meant

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simstrag.analysis.charts import matplotlib_renderer
from simstrag.analysis.charts.comparison_charts import draw_thresholds
from simstrag.analysis.derived.standings import Standings, standings
from simstrag.analysis.pages.report import render
from simstrag.analysis.pages.templates import code
from simstrag.analysis.tables.comparison_tables import differences_table, ranking_table
from simstrag.analysis.text.answer import answer
from simstrag.analysis.text.cautions import cautions
from simstrag.analysis.text.sensitivity_text import Turn, round_safely, thresholds
from simstrag.experiments.compare import C_TAUS, Comparison, compare
from simstrag.experiments.sensitivity import COLUMNS
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import NAMES, QUANTITIES

CASE: dict[str, Any] = {
    "workers": 4,
    "target_progress": 5,
    "step": {"compute": 0.1, "amp_ratio": 1.6, "cv": 0.05},
    "server": {"service": 0.005},
    "trace": [{"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}],
    "seeds": 10,
}
SPREAD = np.linspace(-1, 1, 10)
COVERS = "The intervals cover the noise of step times in 10 seeds over one fixed trace, so they say nothing about another day."  # noqa: E501
TIMES = {"bsp": 100, "asgd": 90, "korel": 93}
"""Mean seconds to the target; asgd's are 90 at every c_tau up to 1, and 120 at 4."""


@pytest.fixture(scope="module")
def base() -> Comparison:
    return compare(Scenario.of(CASE), ["bsp", "asgd", "korel"], jobs=1)


def times_of(
    base: Comparison, times: dict[str, float], turns: Sequence[tuple[Any, ...]] | None = None,
    at_4: float = 120, spread: float = 1.0, **changes: Any,
) -> Standings:  # fmt: skip
    """Standings with these mean times; turns: rows of thresholds; at_4: asgd's at a c_tau of 4."""
    scenario = base.scenario.replaced(**changes) if changes else base.scenario
    runs = base.runs[base.runs["policy"].isin(times)].reset_index(drop=True)
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
        base, scenario=scenario, runs=runs, sensitivity=pd.DataFrame(costs, columns=columns),
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


KOREL = "korel is 7.0 % (6.4–7.6 %) sooner than bsp at any c_tau"
GPU = ("The trace slows the computing device's part of a step (gpu).", COVERS)
COST = "c_tau (the cost of a stale gradient)"


def test_the_gain_has_its_interval_and_the_best_mean_its_condition(base: Comparison) -> None:
    found = [stays("learner.c_tau", False), turn("learner.c_tau", "korel", 1.54, 1.61)]
    assert answer(times_of(base, TIMES, found)) == (
        "Under this trace asgd reaches the target first, 10.0 % (9.4–10.6 %) sooner than bsp.",
        f"asgd has the best mean as long as {COST} is at most 1.54; from 1.61 on korel leads.",
        f"{KOREL}.",
        *GPU,
    )


def test_the_answer_and_the_table_agree_about_both_ends(base: Comparison) -> None:
    """The lead is claimed neither beyond a value that was simulated nor lost before one."""
    s = times_of(base, TIMES, [turn("learner.c_tau", "korel", 1.4786, 1.5374)])
    assert answer(s)[1].endswith(" is at most 1.47; from 1.54 on korel leads.")
    table = thresholds(s).table
    assert table is not None
    assert table.rows[0][5:] == ("1.47", "1.54")
    down = times_of(base, TIMES, [turn("learner.c_tau", "korel", 0.6012, 0.5879)], at_4=90)
    assert answer(down)[1].endswith(" is at least 0.602; from 0.587 down korel leads.")


def test_c_tau_is_explained_once(base: Comparison) -> None:
    text = " ".join(answer(times_of(base, TIMES)))
    assert text.count(COST) == 1
    assert text.index("c_tau") == text.index(COST)
    assert text.count("c_tau") == 2


SERVICE = turn("server.service", "korel", 0.0094, 0.0099, value=0.005, unit="s")


def test_other_constants_stand_beside_c_tau(base: Comparison) -> None:
    found = [SERVICE, turn("learner.c_tau", "korel", 1.54, 1.61)]
    assert answer(times_of(base, TIMES, found))[1] == (
        f"asgd has the best mean as long as {COST} is at most 1.54 (from 1.61 on korel leads) "
        "and the server's service is at most 9.4 ms (from 9.9 ms on korel leads)."
    )


def test_different_rivals_are_named_each(base: Comparison) -> None:
    found = [SERVICE, turn("learner.c_tau", "bsp", 0.63, 0.61)]
    assert answer(times_of(base, TIMES, found, at_4=90))[1] == (
        f"asgd has the best mean as long as {COST} is at least 0.63 (from 0.61 down bsp leads) "
        "and the server's service is at most 9.4 ms (from 9.9 ms on korel leads)."
    )


def test_both_sides_of_a_constant_are_one_condition(base: Comparison) -> None:
    found = [
        turn("learner.c_tau", "korel", 0.63, 0.61),
        turn("learner.c_tau", "korel", 1.54, 1.61),
    ]
    assert answer(times_of(base, TIMES, found))[1] == (
        f"asgd has the best mean as long as {COST} is from 0.63 to 1.54; "
        "from 0.61 down and from 1.61 on korel leads."
    )


def test_the_nearest_turns_stand_in_the_answer(base: Comparison) -> None:
    """By the ratio to the value in force, whatever their order in the table."""
    far = turn("learner.noise_scale", "korel", 190, 200, value=64, unit="samples")
    near = turn("allreduce.bandwidth", "korel", 0.8e9, 0.77e9, value=1e9, unit="bytes/s")
    s = times_of(base, TIMES, [far, SERVICE, near], at_4=90)
    assert answer(s)[1] == (
        f"asgd has the best mean at every {COST} tried, 0.5 to 4, and as long as the bandwidth of "
        "a link is at least 800 MB/s (from 770 MB/s down korel leads) and the server's service is "
        "at most 9.4 ms (from 9.9 ms on korel leads)."
    )
    assert (
        "asgd also has the best mean only as long as the noise scale is at most 190 samples; "
        "from 200 samples on korel leads."
    ) in cautions(s)


def test_a_turn_within_the_noise_is_marked(base: Comparison) -> None:
    found = [turn("learner.c_tau", "korel", 1.54, 1.61, shown=False)]
    assert answer(times_of(base, TIMES, found))[1].endswith(
        f" as long as {COST} is at most 1.54 (from 1.61 on korel leads, within the noise)."
    )
    more = turn("server.service", "korel", 0.0094, 0.0099, False, value=0.005, unit="s")
    s = times_of(base, TIMES, [*found, more])
    assert "service" not in " ".join(answer(s))
    assert (
        "asgd also has the best mean only as long as the server's service is at most 9.4 ms "
        "(from 9.9 ms on korel leads, within the noise)."
    ) in cautions(s)


def test_where_nothing_changes_the_lead_the_range_tried_is_given(base: Comparison) -> None:
    found = [stays("learner.c_tau", False), stays("learner.c_tau", True)]
    _, until, rest, *last = answer(times_of(base, TIMES, found, at_4=91))
    assert until == f"asgd has the best mean at every {COST} tried, 0.25 to 4."
    assert rest == "The next, korel, is 7.0 % (6.4–7.6 %) sooner than bsp."
    assert tuple(last) == GPU


def test_a_turn_that_only_the_common_costs_show_is_named(base: Comparison) -> None:
    found = [stays("learner.c_tau", False), stays("learner.c_tau", True)]
    assert answer(times_of(base, TIMES, found))[1].endswith(
        "(at 4, the next value tried, korel leads)."
    )


def test_without_thresholds_the_common_costs_give_the_condition(
    base: Comparison,
) -> None:
    s = times_of(base, TIMES)
    assert answer(s)[1] == (
        f"asgd has the best mean as long as {COST} is at most 1 (at 4, the next value tried, korel "
        "leads)."
    )
    assert "--sensitivity tests it by further runs" in thresholds(s).about
    doubtful = times_of(base, TIMES, at_4=93.01)
    assert answer(doubtful)[1].endswith(
        "(at 4, the next value tried, korel leads, within the noise)."
    )
    assert answer(times_of(base, TIMES, at_4=90))[1].endswith(f" at every {COST} tried, 0.5 to 4.")


BELOW_BSP = [
    turn("learner.c_tau", "asgd", 0.297, 0.288, leader="bsp"),
    turn("step.compute", "asgd", 0.218, 0.225, leader="bsp", value=0.2, unit="s"),
    turn("server.service", "asgd", 0.0183, 0.0178, leader="bsp", value=0.03, unit="s"),
]

OWN = (
    f"{COST} is at least 0.297 (from 0.288 down asgd leads), a clean step is at most 0.218 s "
    "(from 0.225 s on asgd leads) and the server's service is at least 18.3 ms (from 17.8 ms down "
    "asgd leads)"
)


def test_where_bsp_leads_the_conditions_are_its_own(base: Comparison) -> None:
    assert answer(times_of(base, {"bsp": 100, "asgd": 110, "korel": 105}, BELOW_BSP)) == (
        "No policy is faster than bsp, which reaches the target in 100.0 (99.6–100.4) s: all are "
        "slower.",
        f"bsp has the best mean as long as {OWN}.",
        "korel comes nearest, 5.0 (4.3–5.7) s behind.",
        *GPU,
    )


def test_where_no_difference_is_shown_conditions_are_of_means_alone(base: Comparison) -> None:
    first, until, *_ = answer(
        times_of(base, {"bsp": 100, "asgd": 100.1, "korel": 100.2}, BELOW_BSP)
    )
    assert first.endswith(
        "; the best mean of these, of asgd, is a speed-up of 0.999 (0.992–1.006)."
    )
    assert until == f"By means alone bsp is best as long as {OWN}."


def test_a_tied_winner_is_best_by_means_alone(base: Comparison) -> None:
    found = [turn("learner.c_tau", "korel", 1.54, 1.61)]
    assert answer(times_of(base, TIMES | {"korel": 90.2}, found)) == (
        "Under this trace asgd reaches the target 10.0 % (9.4–10.6 %) sooner than bsp.",
        f"By means alone asgd is best as long as {COST} is at most 1.54; from 1.61 on korel leads.",
        "No difference is shown between asgd and korel; korel is 9.8 % (9.2–10.4 %) sooner than "
        "bsp at any c_tau.",
        *GPU,
    )


def test_a_policy_with_the_runs_of_bsp_is_named(base: Comparison) -> None:
    runs = base.runs.copy()
    same = runs.loc[runs["policy"] == "bsp"].assign(policy="korel")
    runs = pd.concat([runs[runs["policy"] != "korel"], same], ignore_index=True)
    twins = dataclasses.replace(base, runs=runs)
    s = times_of(twins, {"bsp": 100, "asgd": 90}, at_4=90)
    assert "korel" not in " ".join(answer(s))
    seconds = s.comparison.runs.set_index(["policy", "seed"])["time_to_target"]
    for policy in ("bsp", "asgd", "korel"):
        source = "bsp" if policy == "korel" else policy
        for name in ("time_to_target", "makespan"):
            runs.loc[runs["policy"] == policy, name] = seconds[source].to_numpy()
    costs = s.comparison.sensitivity
    costs = pd.concat([costs, costs[costs["policy"] == "bsp"].assign(policy="korel")])
    s = standings(dataclasses.replace(twins, runs=runs, sensitivity=costs, thresholds=None))
    assert answer(s)[-3:] == ("korel made the same runs as bsp.", *GPU)


def test_an_end_beside_sooner_is_not_shown_as_zero(base: Comparison) -> None:
    s = times_of(base, {"bsp": 100, "asgd": 89.98}, spread=15.0)
    assert answer(s)[0] == (
        "Under this trace asgd reaches the target 10 % (0.02–19 %) sooner than bsp."
    )
    (row,) = (row for row in differences_table(s).rows if row[0] == "asgd")
    assert row[1] == "−10 (−20 to −0.02)"


def test_the_rounding_of_sums_is_no_difference(base: Comparison) -> None:
    s = times_of(base, {"bsp": 100, "asgd": 100 + 2e-12}, spread=0.0, at_4=100)
    assert answer(s)[0].startswith("No difference shown: asgd takes exactly as long as bsp")
    assert s.between("asgd", "bsp") == (0, 0, 0)


def test_an_interval_narrower_than_four_digits_has_a_note(
    base: Comparison,
) -> None:
    table = ranking_table(times_of(base, {"bsp": 273.8, "asgd": 200}, spread=1e-9))
    assert [row[3] for row in table.rows] == ["200.0", "273.8"]
    note = "A number without an interval has one that is narrower than its last digit."
    assert note in table.notes
    assert note not in ranking_table(times_of(base, TIMES)).notes


def test_another_leader_under_the_few_seeds_takes_the_condition_away(base: Comparison) -> None:
    s = times_of(base, TIMES, [turn("learner.c_tau", "asgd", 0.7, 0.6, leader="korel")])
    assert "best mean" not in " ".join(answer(s))
    assert any("korel has the best mean and not asgd" in text for text in cautions(s))
    assert "korel has the best mean and not asgd" in thresholds(s).about


def test_a_leader_without_stale_gradients_keeps_its_own_gain(base: Comparison) -> None:
    found = [turn("learner.c_tau", "asgd", 0.8, 0.75, leader="korel")]
    first, until, rest, *_ = answer(times_of(base, TIMES | {"korel": 85}, found))
    assert first.startswith("Under this trace korel reaches the target first, 15.0 % (14.4–15.6 %)")
    assert until == (
        f"korel has the best mean as long as {COST} is at least 0.8; from 0.75 down asgd leads."
    )
    assert rest.startswith("The lead of korel over bsp is the same at any c_tau")


def test_without_a_trace_it_is_no_mitigation(base: Comparison) -> None:
    first, *rest = answer(times_of(base, TIMES, trace=None))
    assert first.startswith("Without contention asgd reaches the target first, ")
    assert "There is no contention, so the gain is no mitigation." in rest


def test_where_nothing_is_gained_no_gain_is_spoken_of(base: Comparison) -> None:
    for times in ({"bsp": 100}, {"bsp": 100, "asgd": 110, "korel": 105}, {"bsp": 100, "asgd": 100}):
        said = answer(times_of(base, times, trace=None))
        assert "There is no contention." in said
        assert "gain" not in " ".join(said)


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (
            ["host", "gpu"],
            "The trace slows the computing device's part of a step (gpu) and the part of a step "
            "that reduced precision cannot shorten (host).",
        ),
        (["step"], "The trace slows the whole step (step)."),
    ],
)
def test_what_is_slowed_is_said_by_the_trace(
    base: Comparison, resources: list[str], words: str
) -> None:
    rows = [CASE["trace"][0] | {"resource": resource} for resource in resources]
    step = CASE["step"] | {"host_share": 0.2}
    assert words in answer(times_of(base, TIMES, trace=rows, step=step))


def test_a_reader_is_told_how_to_say_that_another_resource_is_contended(base: Comparison) -> None:
    first, *others = cautions(times_of(base, TIMES))
    assert "contended" not in first
    (text,) = (text for text in others if "contended" in text)
    assert text.startswith("The trace says that the gpu is contended. This decides which policy")
    assert text.endswith(
        "change the `resource` of the trace's rows; the others are host (the part of a step that "
        "reduced precision cannot shorten), net (pushes, pulls and all-reduces) and step (the "
        "whole step)."
    )


def test_without_noise_no_rank_is_called_slow_by_noise(base: Comparison) -> None:
    quiet = times_of(base, TIMES, trace=None, step={"compute": 0.1, "amp_ratio": 1.6})
    assert ("There is no contention trace: no rank is slow, not even by noise.") in cautions(quiet)
    noisy = times_of(base, TIMES, trace=None)
    assert "There is no contention trace: ranks are slow by noise alone." in cautions(noisy)


@pytest.mark.parametrize("value", [0.5, 1.0, 1.07, 64.0, 5e-3, 1.1e9])
@pytest.mark.parametrize("factor", [1.0, 1.003, 1.54, 3.999])
@pytest.mark.parametrize("larger", [True, False])
def test_a_bound_is_rounded_to_the_safe_side(value: float, factor: float, larger: bool) -> None:
    bound = value * factor if larger else value / factor
    shown = float(round_safely(bound, value, ""))
    low, high = sorted((bound, value))
    assert low * (1 - 1e-12) <= shown <= high * (1 + 1e-12)


def test_a_coarse_turn_names_the_value_at_which_it_does_not_hold() -> None:
    assert Turn("learner.c_tau", 1.0, "", "bsp", 0.5, 0.125, True).condition == (
        "c_tau is at least 0.5 (at 0.125, the next value tried, bsp leads)"
    )


def test_the_report_shows_the_thresholds_and_lets_them_be_saved(base: Comparison) -> None:
    found = [stays("learner.c_tau", False), turn("learner.c_tau", "korel", 1.54, 1.61)]
    service = turn("server.service", "bsp", 0.0094, 0.0099, False, value=0.005, unit="s")
    s = times_of(base, TIMES, [service, *found])
    page = render(s.comparison)
    assert "3 policies, 4 workers, 10 seeds</h1>" in page
    assert 'id="thresholds-' in page
    assert "constant at a time was divided and multiplied by four" in page
    assert "under the first 5 of 10 seeds" in page
    table = thresholds(s).table
    assert table is not None
    assert [row[0] for row in table.rows] == ["c_tau", "c_tau", "the server's service"]
    assert [row[2] for row in table.rows] == ["none", "korel", "bsp, within the noise"]
    assert table.rows[2][5:] == ("9.40 ms", "9.90 ms")
    assert '"thresholds": {"columns": ["constant"' in page


def test_every_quantity_has_a_word_and_every_turn_its_columns() -> None:
    assert NAMES.keys() == {*QUANTITIES, "learner.batch"}
    assert set(Turn._fields) < set(COLUMNS)


def test_one_worker_is_no_workers() -> None:
    alone = compare(Scenario.of(CASE | {"workers": 1, "seeds": 1}), ["bsp"], jobs=1)
    assert "1 policy, 1 worker, 1 seed</h1>" in render(alone)


@pytest.mark.parametrize("rival", ["korel", "ssp:bound=3,via=server,and=a very long name"])
def test_labels_of_the_picture_stay_clear_of_the_axis(rival: str) -> None:
    """Where they are, by matplotlib's own measure."""
    rows = [
        turn("step.compute", rival, 0.5, 0.49, shown=False, unit="s"),
        turn("allreduce.overlap", rival, 1.5, 1.6, shown=False),
    ]
    with matplotlib_renderer.canvas(9.0, 2.0) as figure:
        ax = draw_thresholds(figure, [dict(zip(COLUMNS, row, strict=True)) for row in rows])
        figure.draw_without_rendering()
        axis = ax.get_window_extent()
        for label in ax.texts:
            box = label.get_window_extent()
            assert axis.x0 < box.x0 < box.x1 < axis.x1 + 1


def test_words_between_backticks_are_code_on_the_page_and_stay_in_the_text(
    base: Comparison,
) -> None:
    s = times_of(base, TIMES)
    assert "`resource`" in " ".join(cautions(s))
    bullets = render(s.comparison).partition("<ul>")[2].partition("</ul>")[0]
    assert "change the <code>resource</code> of the trace" in bullets
    assert "<code>simstrag ddp</code>" in bullets
    assert "`" not in bullets
    assert str(code("`<b>` & `")) == "<code>&lt;b&gt;</code> &amp; `"
