"""Decisions: a run remembers what its policy asked for, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simstrag.contract import Plan, Precision, Quorum, Review, Via, View
from simstrag.engine.recorder import DECISION_COLUMNS
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import Comparison
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from tests.support.trace_rows import slowed

STEP = {"compute": 0.1, "cv": 0.05, "amp_ratio": 1.5}
SCENARIO = Scenario(workers=4, updates=6, step=STEP)
EVERY = Review(updates=1)
SLOW_FOR_A_WHILE = [slowed(1, 3, time=1), slowed(1, 1, time=4)]


class Says:
    """Answers update k with plan k, the last one for ever."""

    def __init__(self, *plans: Plan) -> None:
        self.plans = plans

    def plan(self, view: View) -> Plan:
        return self.plans[min(view.version, len(self.plans) - 1)]


def rows(run: Run) -> list[tuple[Any, ...]]:
    return list(run.frame("decisions").itertuples(index=False, name=None))


def decided(*plans: Plan) -> list[tuple[Any, ...]]:
    """What a run remembers of these plans, without update and time."""
    return [row[2:] for row in rows(simulate(SCENARIO, Says(*plans)))]


def test_a_policy_that_never_changes_its_mind_decided_once() -> None:
    run = simulate(SCENARIO, "bsp")
    assert rows(run) == [(0, 0.0, None, (), "all-reduce", 1, None)]
    assert tuple(run.decisions or ()) == DECISION_COLUMNS


def test_a_change_has_the_version_and_time_from_which_it_holds() -> None:
    first, second = Plan(review=EVERY), Plan(precision={2: Precision.AMP}, review=EVERY)
    run = simulate(SCENARIO, Says(first, first, second))
    assert rows(run) == [
        (0, 0.0, None, (), "all-reduce", 1, None),
        (2, run.updates["time"][1], None, (2,), "all-reduce", 1, None),
    ]


@pytest.mark.parametrize(
    ("plan", "row"),
    [
        (Plan(suspects=frozenset(), review=EVERY), ((), (), "all-reduce", 1, None)),
        (Plan(suspects=frozenset({3, 0}), review=EVERY), ((0, 3), (), "all-reduce", 1, None)),
        (Plan((Quorum(via=Via.SERVER),), review=EVERY), (None, (), "server", 1, None)),
        (
            Plan((Quorum((0, 1), via=Via.SERVER), Quorum((2, 3), via=Via.SERVER))),
            (None, (), "server", 2, None),
        ),
        (
            Plan(batch={0: 0.5, 1: 1.5}, review=EVERY),
            (None, (), "all-reduce", 1, (0.5, 1.5, 1.0, 1.0)),
        ),
    ],
)
def test_suspects_way_groups_and_shares_are_remembered(plan: Plan, row: tuple[Any, ...]) -> None:
    assert decided(Plan(review=EVERY), plan)[1:] == [row]


def test_who_judges_nobody_is_told_from_who_suspects_nobody() -> None:
    assert [row[0] for row in decided(Plan(review=EVERY), Plan(suspects=frozenset()))] == [None, ()]


def test_a_plan_that_decides_the_same_is_no_row_of_its_own() -> None:
    """It may be another object, and ask to be asked at another time."""
    assert len(decided(*(Plan(review=Review(updates=1, samples=n)) for n in (1, 2, 3)))) == 1


def test_a_decision_that_comes_back_is_a_row_again() -> None:
    full, amp = Plan(review=EVERY), Plan(precision=Precision.AMP, review=EVERY)
    assert [row[1] for row in decided(full, amp, full)] == [(), (0, 1, 2, 3), ()]


@pytest.mark.parametrize(
    "policy", ["bsp", "amp_all", "korel", "lb_bsp", "star_h", "sync_switch", "drain"]
)
def test_decisions_are_read_back_as_they_were(policy: str, tmp_path: Path) -> None:
    scenario = Scenario(workers=4, samples=4 * 128 * 40, step=STEP)
    run = simulate(scenario.replaced(trace=SLOW_FOR_A_WHILE), policy)
    assert Run.read(run.write(tmp_path / "run")).decisions == run.decisions


def test_a_run_of_an_older_version_has_none(tmp_path: Path) -> None:
    folder = simulate(SCENARIO, "bsp").write(tmp_path / "run")
    (folder / "decisions.parquet").unlink()
    run = Run.read(folder)
    assert run.decisions is None
    with pytest.raises(InputError, match=r"no table 'decisions'; an older version wrote it"):
        run.frame("decisions")


@pytest.mark.usefixtures("no_page")
def test_a_comparison_that_goes_on_and_is_read_back_keeps_them(tmp_path: Path) -> None:
    scenario = Scenario(workers=4, samples=4 * 128 * 40, step=STEP, seeds=1)
    scenario = scenario.replaced(trace=SLOW_FOR_A_WHILE)
    first = compare(scenario, ["korel"], jobs=1, keep=tmp_path / "kept")
    resumed = compare(scenario, ["korel"], jobs=1, keep=tmp_path / "kept")
    again = Comparison.read(resumed.write(tmp_path / "report"))
    kept = first.examples["korel"].decisions
    assert kept is not None
    assert len(kept["update"]) > 1
    for comparison in (resumed, again):
        assert comparison.examples["korel"].decisions == kept


# -- suspects against truth, counted


def test_suspicions_are_counted_against_who_was_slow_in_truth() -> None:
    suspects = Plan(suspects=frozenset({1, 2}), review=EVERY)
    run = simulate(
        SCENARIO.replaced(trace=[slowed(1, 3)]),
        Says(suspects, suspects, Plan(suspects=frozenset({0}))),
    )
    counted = {name: run.summary[name] for name in ("hits", "false_alarms", "misses")}
    assert counted == {"hits": 2, "false_alarms": 2 + 4, "misses": 4}
    assert run.summary["detection_precision"] == 2 / 8
    assert run.summary["detection_recall"] == 2 / 6


def test_who_judges_nobody_is_not_counted() -> None:
    summary = simulate(SCENARIO, "bsp").summary
    names = ("detection_precision", "detection_recall", "hits", "false_alarms", "misses")
    assert [summary[name] for name in names] == [None] * 5
