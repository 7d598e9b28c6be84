"""What a validation tries, predicts and judges; with made-up runs, whose truth is known."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simstrag.analysis.text.number_format import MISSING
from simstrag.ddp.journal.journal import NAME
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.profile.profile import Profile, StepTimes
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.validation.case_results import Ranking, Result, build_case_result, paces
from simstrag.validation.cases import CLEAN, Case, ValidationPlan, cases_of, draw_schedule, windows
from simstrag.validation.judgement import MISSED, NOISY, PREDICTED, judge, mitigations, pairs
from simstrag.validation.loadgen.schedule import Episode, Schedule
from simstrag.validation.prediction import Predictor, slowdowns, with_update
from simstrag.validation.rank_pool import PaceRequest
from simstrag.validation.real_runs import TRIES, Campaign, RunOutcome, count_finished, lock_folder
from simstrag.validation.replay import replay
from simstrag.validation.run_metrics import measure
from simstrag.validation.tables import answer, runs_table, signed
from simstrag.validation.validation import Validation, make_plan, validation_remarks
from tests.ddp.test_ddp_journal import HINTS, recorded
from tests.support.full_profile import full_profile, quantity
from tests.support.trace_rows import slowed

BATCH, STEP, UPDATE, SLOPE = 16, 0.012, 0.0015, 1.05


def digits_profile(**changes: Any) -> Profile:
    """Of the digits in the stand-in, as calibration might have found it."""
    noise = {"kind": "measured", "quantiles": [0.97, 1.0, 1.03], "n": 400}
    cells = [
        {"precision": p, "batch": BATCH, "seconds": quantity(s), "mean": quantity(s),
         "update": quantity(UPDATE)}
        for p, s in (("fp64", STEP), ("fp32_of_fp64", STEP / 1.5))
    ]  # fmt: skip
    levels = [
        {"level": u, "slowdown": quantity(1 + SLOPE * u)} for u in (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)
    ]
    response = {
        "resource": "gpu", "load": "cpu", "precision": "fp64", "batch": BATCH, "law": "linear",
        "constants": {"slope": quantity(SLOPE, kind="fitted")}, "levels": levels,
    }  # fmt: skip
    given = {
        "workload": {"name": "digits", "parameters": 151_306, "batch": BATCH, "full": "fp64",
                     "amp": "fp32_of_fp64", "stand_in": True},
        "step": {"compute": quantity(STEP), "host_share": quantity(0.0, kind="assumed"),
                 "amp_ratio": quantity(1.5), "amp_switch": quantity(0.0), "noise": noise},
        "cells": cells, "batches": [], "responses": [response],
        "overlaps": [{"backend": "gloo", "ranks": 2, "precision": "fp64", "batch": BATCH,
                      "bytes": 1_210_448, "overlap": quantity(-0.25)}],
    }  # fmt: skip
    return full_profile(**given | changes)


ALONE = PaceRequest("fp64", BATCH)
LOAD = Schedule((Episode(1, "cpu", 1.6, 2.0, 6.0),), 20.0)


def a_plan(cases: tuple[Case, ...], schedule: Schedule = LOAD, cores: int = 2) -> ValidationPlan:
    schedules = {
        case.place: Schedule((), 20.0) if case.schedule == CLEAN else schedule for case in cases
    }
    return ValidationPlan(
        cases, schedules, "digits", BATCH, "stand-in", 0, cores, "made up", "0" * 64
    )


# -- what is tried ---------------------------------------------------------------------------


def test_by_default_there_are_13_cases_of_two_ranks_and_bsp_and_korel_on_four() -> None:
    cases = cases_of((), (), 300, cores=2)
    two = [case for case in cases if case.ranks == 2]
    assert len(two) == 13
    assert len(cases) == 13 + 3
    assert {c.policy for c in two} == {"bsp", "korel", "lb_bsp", "asgd", "ssp", "backup"}
    assert {c.policy for c in cases if c.ranks == 4} == {"bsp", "korel"}
    assert len({case.name for case in cases}) == len(cases)
    for ranks in (2, 4):
        assert ("bsp", CLEAN) in {(c.policy, c.schedule) for c in cases if c.ranks == ranks}
    assert {case.steps for case in cases if case.ranks == 4} == {150}


@given(
    seed=st.integers(0, 10_000), clean=st.floats(1.0, 100.0), name=st.sampled_from(["one", "both"])
)
def test_load_is_of_levels_that_calibration_did_not_see_and_lasts_to_the_end(
    seed: int, clean: float, name: str
) -> None:
    profile = digits_profile()
    found = draw_schedule(name, 2, clean, seed, profile)
    assert found == draw_schedule(name, 2, clean, seed, profile)
    calibrated = {level.level for each in profile.responses for level in each.levels}
    assert not calibrated & {each.level for each in found.episodes}
    assert found.episodes[0].start < 0.31 * clean, "some load comes early in every run"
    assert found.episodes[-1].stop > 4.6 * clean
    assert set(found.ranks) == ({1} if name == "one" else {0, 1})


def test_windows_follow_each_other_without_gaps() -> None:
    schedule = Schedule((Episode(1, "cpu", 1.3, 2.0, 5.0), Episode(0, "cpu", 0.4, 4.0, 9.0)), 20.0)
    found = windows(schedule)
    assert [start for start, *_ in found] == [0.0, 2.0, 4.0, 5.0, 9.0]
    assert [stop for _, stop, _ in found] == [2.0, 4.0, 5.0, 9.0, math.inf]
    assert found[2][2] == "rank 0: 0.4, rank 1: 1.3"


# -- what is predicted ------------------------------------------------------------------------


def test_the_update_is_added_to_a_step_in_either_precision() -> None:
    step = digits_profile().step
    assert isinstance(step, StepTimes)
    found = with_update(step, UPDATE)
    assert found.amp_ratio is not None
    assert found.compute.value == pytest.approx(STEP + UPDATE)
    assert found.compute.value / found.amp_ratio.value == pytest.approx(STEP / 1.5 + UPDATE)


def test_load_stretches_whole_steps_by_the_response_and_a_sibling_is_one_more_level() -> None:
    profile = digits_profile()
    trace = slowdowns(LOAD, profile, ranks=2, paces=[1.0, 1.0])
    assert trace is not None
    assert trace.series(1, "step", "slowdown") == [
        (2.0, pytest.approx(1 + SLOPE * 1.6)), (6.0, 1.0)
    ]  # fmt: skip
    assert trace.nodes == (1,)
    shared = slowdowns(LOAD, profile, ranks=4, paces=[1.0, 1.0])
    assert shared is not None
    assert [v for _, v in shared.series(0, "step", "slowdown")] == [pytest.approx(1 + SLOPE)]
    for rank in (1, 3):
        values = [v for _, v in shared.series(rank, "step", "slowdown")]
        assert values == pytest.approx([1 + SLOPE, 1 + SLOPE * 2.6, 1 + SLOPE])
    assert slowdowns(Schedule((), 5.0), profile, ranks=2, paces=[1.0, 1.0]) is None
    describe_differences = Schedule((Episode(1, "memory", 1.0, 2.0, 6.0),), 20.0)
    with pytest.raises(InputError, match="rank 1: load memory: only load cpu is simulated"):
        slowdowns(describe_differences, profile, ranks=2, paces=[1.0, 1.0])
    slow = slowdowns(Schedule((), 5.0), profile, ranks=2, paces=[1.0, 1.3])
    assert slow is not None
    assert slow.series(1, "step", "slowdown") == [(0.0, 1.3)]


def test_a_clean_cycle_is_step_and_update_and_what_of_the_all_reduce_is_not_hidden() -> None:
    noise = {"kind": "measured", "quantiles": [1.0, 1.0], "n": 9}
    still = digits_profile(step=digits_profile().step.model_dump() | {"noise": noise})  # type: ignore[union-attr]
    predictor = Predictor(still, cores=2)
    case = Case("bsp", 2, CLEAN, 50)
    run = simulate(predictor.scenario(case, Schedule((), 5.0), updates_in_step=True), "bsp")
    reduced = predictor.constants["all-reduce of a gradient", "2"].value
    cycle = STEP + UPDATE + 1.25 * reduced  # an overlap of -0.25 costs a quarter more
    assert run.summary["makespan"] == pytest.approx(50 * cycle, rel=1e-6)
    assert predictor.clean(case) == pytest.approx(50 * cycle, rel=1e-6)


REST, AMONG, BARE, BESIDE = 0.004, 1.03, 1.02, 0.010


def together(ranks: int, **changes: Any) -> list[dict[str, Any]]:
    """So many ranks in lockstep without load and beside two levels of it."""
    place = {"ranks": ranks, "precision": "fp64", "batch": BATCH, "bytes": 9} | changes
    still = {"kind": "measured", "quantiles": [1.0, 1.0], "n": 9}
    clean = {"rest": quantity(REST), "slowdown": quantity(AMONG), "noise": still}
    clean |= {"interference": quantity(BARE)}
    loads = [
        {"load": "cpu", "level": u, "rest": quantity(rest), "slowdown": quantity(slower)}
        for u, rest, slower in ((1, 0.007, 1.8), (3, BESIDE, 3.2))
    ]
    return [place | each for each in (clean, *loads)]


def test_ranks_that_were_timed_in_lockstep_are_predicted_from_that_alone() -> None:
    predictor = Predictor(digits_profile(locksteps=together(2)), cores=2)
    case = Case("bsp", 2, CLEAN, 50)
    run = simulate(predictor.scenario(case, Schedule((), 5.0), updates_in_step=True), "bsp")
    assert run.summary["makespan"] == pytest.approx(50 * (AMONG * STEP + REST), rel=1e-6)
    whats = {each.what for each in predictor.constants.values()}
    assert not any("update" in what or "all-reduce" in what for what in whats)
    beside = Schedule((Episode(1, "cpu", 2.0, 0.0, 5.0),), 5.0)
    run = simulate(predictor.scenario(case, beside, updates_in_step=True), "bsp")
    slowed = AMONG * STEP * 2.5 + (0.007 + BESIDE) / 2
    assert run.summary["makespan"] == pytest.approx(50 * slowed, rel=1e-6)
    assert "slowdown of a step under load cpu 3" in {
        each.what for each in predictor.constants.values()
    }


def test_the_pace_of_cores_is_that_of_steps_side_by_side() -> None:
    profile = digits_profile(locksteps=together(2))
    assert Predictor(profile, cores=2).pace(2) == pytest.approx(BARE * STEP)
    assert Predictor(profile, cores=8).pace(2) == pytest.approx(BARE * STEP)
    assert Predictor(digits_profile(), cores=2).pace(4) == STEP


def test_other_numbers_of_ranks_and_batches_are_predicted_without_it() -> None:
    cells = [*together(4), *together(2, batch=2 * BATCH), *together(2, precision="bf16")]
    with_cells = Predictor(digits_profile(locksteps=cells), cores=2)
    without = Predictor(digits_profile(), cores=2)
    case = Case("bsp", 2, CLEAN, 50)
    assert with_cells.clean(case) == without.clean(case)


def test_ranks_on_one_core_are_as_slow_together_as_they_were_timed() -> None:
    trace = slowdowns(
        LOAD, digits_profile(), ranks=4, paces=[1.0, 1.0], among=1.9, rests={0: 2.0, 4: 4.0}
    )
    assert trace is not None
    assert [v for _, v in trace.series(0, "step", "slowdown")] == [1.9]
    slowed = 1.9 * (1 + SLOPE * 2.6) / (1 + SLOPE)
    for rank in (1, 3):
        values = [v for _, v in trace.series(rank, "step", "slowdown")]
        assert values == pytest.approx([1.9, slowed, 1.9])
        assert trace.series(rank, "net", "slowdown") == [(2.0, pytest.approx(1.4)), (6.0, 1.0)]
    assert not trace.series(0, "net", "slowdown")


def test_beside_load_ranks_are_as_slow_as_they_were_timed_and_beyond_by_the_response() -> None:
    def values(level: float) -> list[float]:
        beside = Schedule((Episode(1, "cpu", level, 2.0, 6.0),), 20.0)
        trace = slowdowns(
            beside, digits_profile(), ranks=4, paces=[1.0, 1.0], among=1.9,
            loaded={0.5: 1.2, 1.5: 1.8},
        )  # fmt: skip
        assert trace is not None
        return [v for _, v in trace.series(1, "step", "slowdown")]

    assert values(0.25) == pytest.approx([1.9, 1.9 * 1.1, 1.9])
    assert values(1.0) == pytest.approx([1.9, 1.9 * 1.5, 1.9])
    beyond = (1 + SLOPE * 4) / (1 + SLOPE * 2.5)
    assert values(3.0) == pytest.approx([1.9, 1.9 * 1.8 * beyond, 1.9])


def test_levels_that_ranks_in_lockstep_were_timed_beside_are_not_tried() -> None:
    timed = [
        each | {"level": float(level)}
        for each in together(2)[1:2] for level in (0.4, 0.6, 0.9, 1.3, 1.6)
    ]  # fmt: skip
    profile = digits_profile(locksteps=timed)
    assert {e.level for e in draw_schedule("one", 2, 10.0, 0, profile).episodes} == {2.4}


@pytest.mark.parametrize(
    ("timed", "what", "value"),
    [({"slowdown": quantity(1.1)}, "under a server", 1.1), ({}, "in lockstep", AMONG)],
)
def test_steps_under_a_server_are_as_slow_as_they_were_timed_there_or_in_lockstep(
    timed: dict[str, Any], what: str, value: float
) -> None:
    ways = {name: quantity(0.001) for name in ("push", "service", "pull")}
    served = {"bytes": 9, "ranks": 2, **ways, **timed}
    predictor = Predictor(digits_profile(transfers=[served], locksteps=together(2)), cores=2)
    predictor.scenario(Case("asgd", 2, CLEAN, 50), Schedule((), 5.0), updates_in_step=False)
    found = {each.what: each.value for each in predictor.constants.values()}
    assert found[f"slowdown of a step by the other ranks, {what}"] == value


def test_at_a_server_the_update_is_in_the_service() -> None:
    predictor = Predictor(digits_profile(), cores=2)
    case = Case("asgd", 2, CLEAN, 50)
    scenario = predictor.scenario(case, Schedule((), 5.0), updates_in_step=False)
    step, server = scenario.inputs.step, scenario.inputs.server
    known = digits_profile().server
    assert known is not None
    assert step.host + step.gpu == pytest.approx(STEP)
    assert server.service == pytest.approx(known.service.value + UPDATE)
    assert (server.push, server.pull) == (known.push.value, known.pull.value)


def test_a_service_that_ranks_measured_has_the_update_in_it() -> None:
    cell = {"bytes": 9, "ranks": 2} | {n: quantity(0.001) for n in ("push", "service", "pull")}
    predictor = Predictor(digits_profile(transfers=[cell]), cores=2)
    scenario = predictor.scenario(Case("asgd", 2, CLEAN, 50), Schedule((), 5.0), False)
    known = digits_profile().server
    assert known is not None
    assert scenario.inputs.server.service == known.service.value


def test_constants_say_where_they_are_from() -> None:
    predictor = Predictor(digits_profile(), cores=2)
    predictor.predict(case := Case("bsp", 4, "one", 8), a_plan((case,)), seeds=1)
    origins = {each.what: each.origin for each in predictor.constants.values()}
    assert "assumed" in origins["slowdown by a rank on the same core"]
    assert "taken from 2 ranks" in origins["share of an all-reduce that backward hides"]
    assert "4 ranks, ranks sharing cores" in origins["all-reduce of a gradient"]


def planned_and_predicted(profile: Profile, policies: tuple[str, ...]) -> None:
    plan = make_plan(profile, policies, (2,), 10, seed=0)
    predictor = Predictor(profile, plan.cores)
    for case in plan.cases:
        predictor.predict(case, plan, seeds=1)


@pytest.mark.parametrize(
    ("changes", "policies", "message"),
    [
        ({"server": None}, ("asgd",), "has no parameter server; calibrate with --part server"),
        ({"allreduce": None, "collectives": []}, (), "has no all-reduce"),
        ({"workload": None, "step": None}, (), "has no workload"),
        ({"device": {"kind": "cuda", "model": "A GPU"}}, (), "is of a GPU"),
        ({}, ("asg",), "there is no policy 'asg'"),
        ({}, ("dropcompute",), "is for simulation only"),
        ({"responses": []}, (), "no response to load cpu"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    changes: dict[str, Any], policies: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        planned_and_predicted(digits_profile(**changes), policies)


def test_a_policy_that_asks_how_long_the_run_is_can_be_validated() -> None:
    planned_and_predicted(digits_profile(), ("sync_switch",))


# -- measuring -------------------------------------------------------------------------------


def of_samples(samples: int, *trace: dict[str, Any]) -> Scenario:
    """Two ranks whose steps take 0.1 s for one sample."""
    case = {"workers": 2, "samples": samples, "step": {"compute": 0.1}, "learner": {"batch": 1}}
    return Scenario.of(case | ({"trace": trace} if trace else {}))


def test_a_run_is_measured_up_to_the_update_that_does_its_work() -> None:
    scenario = of_samples(80, slowed(1, 2.0, 1.0, "step"), slowed(1, 1.0, 3.0, "step"))
    run = simulate(scenario, "bsp", record_gradients=True)
    found = measure(run, 60, 1, [0.0, 1.0, 3.0], [0.0, 1.0])
    assert found.makespan == pytest.approx(4.0)
    assert found.step == pytest.approx(4.0 / 30)
    assert found.windows == pytest.approx((0.1, 0.2, 0.1))
    assert found.staleness == (0.0, 0.0)
    with pytest.raises(InputError, match="ended after 80 of 100 samples"):
        measure(run, 100, 1, [0.0], [0.0, 1.0])


def test_a_window_that_a_run_hardly_saw_says_nothing() -> None:
    run = simulate(of_samples(20), "bsp", record_gradients=True)
    found = measure(run, 20, 1, [0.0, 0.85, 5.0], [0.0, 1.0])
    assert found.windows[0] == pytest.approx(0.1)
    assert math.isnan(found.windows[1])
    assert math.isnan(found.windows[2])


def test_staleness_and_shares_are_by_rank() -> None:
    scenario = of_samples(400, slowed(1, 3.0, resource="step"))
    found = measure(simulate(scenario, "asgd", record_gradients=True), 400, 1, [0.0], [0.0, 1.0])
    assert found.shares == pytest.approx((0.75, 0.25), abs=0.01)
    assert found.staleness == pytest.approx((1 / 3, 3.0), abs=0.05)


# -- judging ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spread", "error", "word"),
    [
        (0.00, 0.049, PREDICTED), (0.00, 0.051, MISSED), (0.00, -0.051, MISSED),
        (0.04, 0.079, PREDICTED), (0.04, 0.081, MISSED),
        (0.06, 0.0, NOISY), (0.06, 0.119, NOISY), (0.06, 0.121, MISSED),
    ],
)  # fmt: skip
def test_a_verdict_follows_the_spread_of_real_runs(spread: float, error: float, word: str) -> None:
    real = (10.0 * (1 + spread * np.array([-1.0, 0.0, 1.0]))).tolist()
    found = judge(real, [10.0 * (1 + error)])
    assert (found.word, round(found.error, 6), round(found.spread, 6)) == (word, error, spread)
    assert found.allowed <= 0.10


def test_one_real_run_has_no_spread_and_the_least_is_allowed() -> None:
    found = judge([10.0], [10.6])
    assert math.isnan(found.spread)
    assert (found.word, found.allowed) == (MISSED, 0.05)


def numbered(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_a_pair_in_the_wrong_order_is_not_predicted_and_a_tie_is_neither() -> None:
    real = {
        "bsp": numbered(10.0, 10.1, 9.9), "korel": numbered(8.0, 8.1, 7.9),
        "asgd": numbered(10.0, 9.7, 10.2),
    }  # fmt: skip
    said = {"bsp": numbered(9.0), "korel": numbered(9.5), "asgd": numbered(20.0)}
    ranking = Ranking(2, "one", tuple(pairs(real, said)))
    by = {frozenset((each.faster, each.slower)): each for each in ranking.pairs}
    wrong, tie = by[frozenset(("bsp", "korel"))], by[frozenset(("bsp", "asgd"))]
    assert (wrong.faster, wrong.tie, wrong.right) == ("korel", False, False)
    assert tie.tie
    assert by[frozenset(("korel", "asgd"))].right
    assert (len(ranking.decided), ranking.predicted) == (2, 1)


def test_of_one_repetition_nobody_knows_which_is_faster() -> None:
    assert pairs({"a": {0: 1.0}, "b": {0: 2.0}}, {"a": {0: 1.0}, "b": {0: 2.0}})[0].tie


def test_repetitions_are_paired_so_that_drift_makes_no_tie() -> None:
    drifting = {"a": numbered(10.0, 12.0, 14.0), "b": numbered(11.0, 13.0, 15.1)}
    assert not pairs(drifting, {"a": numbered(1.0), "b": numbered(2.0)})[0].tie


def test_a_run_that_failed_leaves_the_others_in_their_pairs() -> None:
    drifting = {"a": {0: 10.0, 2: 14.0, 3: 16.0}, "b": numbered(11.0, 99.0, 15.1, 17.0)}
    (found,) = pairs(drifting, {"a": numbered(1.0), "b": numbered(2.0)})
    assert (found.faster, found.tie) == ("a", False)
    assert found.real == pytest.approx(3.1 / 40.0)


def test_mitigation_has_an_interval_over_repetitions_that_all_have() -> None:
    found = mitigations(
        numbered(11.0, 11.2, 10.8), numbered(12.0, 12.1, 11.9), numbered(10.0, 10.1, 9.9, 7.0)
    )
    assert found.value == pytest.approx(0.5)
    assert found.low < 0.5 < found.high


# -- runs of a plan, here simulated ones -----------------------------------------------------


def made(tmp_path: Path) -> Result:
    """Of four cases; what stands for a real run is a simulated one of another seed."""
    cases = tuple(
        Case(policy, 2, schedule, 100)
        for policy, schedule in (("bsp", CLEAN), ("bsp", "one"), ("korel", "one"), ("asgd", "one"))
    )
    plan = a_plan(cases, Schedule((Episode(1, "cpu", 2.4, 0.3, 2.5),), 20.0))
    predictor = Predictor(digits_profile(), 2)
    predicted = {case: predictor.predict(case, plan, seeds=3) for case in cases}
    outcomes = []
    for case in cases:
        scenario = predictor.scenario(case, plan.schedule(case), case.policy != "asgd")
        for k in range(3):
            run = simulate(scenario, case.policy, 100 + k, record_gradients=True)
            known = replace(run, summary={**run.summary, "accuracy": 0.5 + 0.1 * k})
            known.write(folder := tmp_path / case.name / str(k))
            pace = ((STEP, STEP), (STEP, STEP))
            outcomes.append(RunOutcome(case, k, folder, True, "", 9.0, 0.0, 0.0, (), pace))
    adapted = {
        case: predictor.adapt(predicted[case], plan, paces(case, outcomes)) for case in cases
    }
    results = tuple(build_case_result(case, plan, adapted[case], outcomes) for case in cases)
    constants = tuple(predictor.constants.values())
    return Result(plan, results, tuple(outcomes), constants, ("a remark",), 3, 3)


def slower(result: Result, factor: float) -> Result:
    """With real runs that took so many times as long."""
    cases = tuple(
        replace(
            each,
            real={
                k: replace(m, makespan=factor * m.makespan, step=factor * m.step)
                for k, m in each.real.items()
            },
        )
        for each in result.cases
    )  # fmt: skip
    return replace(result, cases=cases)


def without_runs(result: Result, case: Case) -> Result:
    """All runs of a case have failed."""
    why = "rank 1: its process ended"
    cases = tuple(
        replace(each, real={}, failed=(why,)) if each.case == case else each
        for each in result.cases
    )
    outcomes = tuple(
        replace(each, finished=False, reason=why) if each.case == case else each
        for each in result.outcomes
    )
    return replace(result, cases=cases, outcomes=outcomes)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return made(tmp_path_factory.mktemp("true"))


def test_runs_of_the_simulator_itself_are_predicted(result: Result) -> None:
    assert [verdict.word for _, verdict in result.verdicts] == [PREDICTED] * 4
    assert result.median_error < 0.01
    assert all(ranking.predicted == len(ranking.decided) > 0 for ranking in result.rankings)
    (korel, asgd) = result.mitigation
    assert (korel.policy, asgd.policy) == ("korel", "asgd")
    assert korel.real.value == pytest.approx(korel.simulated.value, abs=0.05)
    assert korel.real.value > 0.1
    words = [w.step.word for each in result.cases for w in each.windows if w.step]
    assert len(words) > 6
    assert set(words) == {PREDICTED}


def test_a_machine_that_changes_its_pace_is_told_from_a_simulation_that_is_off(
    result: Result,
) -> None:
    predictor = Predictor(digits_profile(), 2)
    slow = {0: (1.25 * STEP, 1.25 * STEP), 1: (STEP, STEP), 2: (STEP, 1.25 * STEP)}
    adapted = predictor.adapt(result.cases[0].predicted, result.plan, slow).adapted
    usual = result.cases[0].predicted.makespan
    update = UPDATE / (STEP + UPDATE)
    assert adapted[1] == pytest.approx(usual, rel=0.02)
    assert 1.25 > adapted[0] / usual > 1.25 - update
    assert adapted[2] == pytest.approx(adapted[0], rel=0.02), "bsp waits for the slow core"
    at_pace = result.cases[0].at_pace
    assert at_pace is not None
    assert at_pace.word == PREDICTED


def test_a_simulation_that_is_a_tenth_off_is_found_out(result: Result) -> None:
    found = slower(result, 1.12)
    assert [verdict.word for _, verdict in found.verdicts] == [MISSED] * 4
    assert found.median_error == pytest.approx(1 - 1 / 1.12, abs=0.01)
    assert found.worst is not None
    assert found.worst[1].error == pytest.approx(1 / 1.12 - 1, abs=0.02)


def test_an_error_that_nobody_knows_is_shown_as_missing() -> None:
    assert (signed(math.nan), signed(-0.123)) == (MISSING, "-12.3")


def test_failed_runs_are_counted_and_shown(result: Result, tmp_path: Path) -> None:
    found = without_runs(result, result.cases[-1].case)
    assert len(found.failed) == 3
    assert found.rows()[-1]["verdict"] == "no run finished"
    assert len(found.verdicts) == 3
    assert "1 without a finished run" in " ".join(answer(found))
    validation = Validation(found, tmp_path)
    assert validation.failed
    assert validation.write().read_text().count("rank 1: its process ended") >= 3


def test_what_is_written_is_all_there_and_asks_nobody(result: Result, tmp_path: Path) -> None:
    validation = Validation(result, tmp_path)
    page = validation.write("simstrag validate --profile p.json").read_text()
    document = json.loads((tmp_path / "validation.json").read_text())
    with (tmp_path / "validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["case"] for row in rows] == [case["case"] for case in document["cases"]]
    assert document["median_error"] == pytest.approx(result.median_error)
    assert float(rows[0]["error"]) == pytest.approx(document["cases"][0]["makespan"]["error"])
    assert document["plan"]["schedules"][1]["episodes"][0]["level"] == 2.4
    assert len(document["cases"][0]["real"]) == 3
    assert page.count('<svg class="picture"') == 1 + len(result.cases)
    assert "&lt;svg" not in page, "pictures are drawn, and not read out"
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "prefers-color-scheme: dark" in page
    for words in ("one-2-korel", "a remark", "predicted", "fitted response"):
        assert words in page
    assert "<table" in validation._repr_html_()


# -- the folder ------------------------------------------------------------------------------


def test_a_folder_is_of_one_plan_and_of_one_process_at_a_time(tmp_path: Path) -> None:
    plan = a_plan((Case("bsp", 2, CLEAN, 10),))
    other = a_plan((Case("bsp", 2, CLEAN, 20),))
    with lock_folder(tmp_path / "v", plan):
        with pytest.raises(InputError, match="another validation is running"):
            lock_folder(tmp_path / "v", plan).__enter__()
        (tmp_path / "v" / "runs").mkdir()
    with lock_folder(tmp_path / "v", plan):
        pass
    with pytest.raises(InputError, match="holds another validation"):
        lock_folder(tmp_path / "v", other).__enter__()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds other files"):
        lock_folder(tmp_path / "mine", plan).__enter__()


RUN = Case("bsp", 2, CLEAN, 10)


def campaign_of(folder: Path, *cases: Case, seconds: float = 1.0) -> Campaign:
    predicted = dict.fromkeys(cases or (RUN,), seconds)
    return Campaign(a_plan((*predicted,)), folder, predicted, folder / "p.json", ALONE, 1.0)


def outcome_of(**known: Any) -> str:
    """What a run writes when it is over."""
    told = {"finished": True, "reason": "", "took": 1.0, "foreign": 0.0, "stolen": 0.0, "load": []}
    return json.dumps(told | known)


def stand_in(
    campaign: Campaign, attempt: Callable[[Case, int, Any], RunOutcome | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Make something else of each attempt than a real run, without a wait for calm cores."""
    monkeypatch.setattr(campaign, "_attempt", lambda ranks, *given: attempt(*given))
    monkeypatch.setattr(campaign, "_wait_for_calm", lambda *_: None)


def test_too_little_time_takes_repetitions_away_first(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, seconds=22.0)
    assert campaign.repetitions(5, minutes=60) == 5
    assert campaign.repetitions(5, minutes=1.6) == 3
    with pytest.raises(InputError, match=r"one repetition of 1 cases takes about 0\.5 minutes"):
        campaign.repetitions(5, minutes=0.3)


def test_finished_runs_are_not_made_again_and_broken_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign, folder = campaign_of(tmp_path), tmp_path / "runs" / "clean-2-bsp-1"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("cut o")
    assert campaign.outcome(RUN, 0) is None
    (folder / "outcome.json").write_text(outcome_of(finished=False, reason="rank 1: ended"))
    (found,) = campaign.carry_out(1)
    assert (found.finished, found.reason) == (False, "rank 1: ended")
    (folder / "outcome.json").write_text("{cut o")
    done = RunOutcome(RUN, 0, folder, True, "", 2.0, 0.0, 0.0, ())
    stand_in(campaign, lambda *_: done, monkeypatch)
    (found,) = campaign.carry_out(1)
    assert found.finished


def test_between_repetitions_that_are_still_to_be_made_there_is_time_for_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign, shares = campaign_of(tmp_path, RUN, Case("korel", 2, CLEAN, 10)), list[float]()

    def tried(case: Case, k: int, aside: Sequence[Any]) -> RunOutcome | None:
        folder = campaign._at(case, k)
        folder.mkdir(parents=True)
        (folder / "outcome.json").write_text(outcome_of())
        return campaign.outcome(case, k)

    stand_in(campaign, tried, monkeypatch)
    campaign.carry_out(2, between=shares.append)
    assert shares == [0.5]
    campaign.carry_out(4, between=shares.append)
    assert shares == [0.5, 0.5, 0.75]


CALM, RESTLESS = [[1.0, 1.0, 1.0], [1.1, 0.9, 1.5]], [[1.0, 0.8, 1.0], [1.0, 1.0, 1.0]]
SLOW = [[1.2, 1.0, 1.0], [1.2, 1.0, 1.0]]
"""Of three cores before and after, of which two ranks use the first two; usually it is 1."""


def made_of(
    tries: Sequence[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[RunOutcome, list[str]]:
    """What becomes of a run whose tries come out so, each a pace or a failure; folders left."""
    campaign, runs, coming = campaign_of(folder), folder / "runs", iter(tries)

    def tried(case: Case, k: int, aside: Sequence[Any]) -> RunOutcome | None:
        outcome = next(coming)
        failed = {"finished": False, "reason": "why"} if outcome == "failed" else {}
        (runs / "clean-2-bsp-1").mkdir(parents=True)
        told = outcome_of(pace=outcome, aside=list(aside), **failed)
        (runs / "clean-2-bsp-1" / "outcome.json").write_text(told)
        return campaign.outcome(case, k)

    stand_in(campaign, tried, monkeypatch)
    monkeypatch.setattr(Run, "read", lambda folder: SimpleNamespace(summary={"makespan": 7.0}))
    (found,) = campaign.carry_out(1)
    return found, sorted(each.name for each in runs.iterdir())


@pytest.mark.parametrize("disturbed", [RESTLESS, SLOW])
def test_a_run_in_which_a_core_was_of_another_pace_is_made_again_and_kept_beside_it(
    disturbed: list[list[float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folders = made_of([disturbed, disturbed, CALM], tmp_path, monkeypatch)
    assert found.pace == CALM
    assert found.aside == [{"pace": disturbed, "makespan": 7.0}] * 2
    assert folders == ["clean-2-bsp-1", "clean-2-bsp-1.aside-1", "clean-2-bsp-1.aside-2"]


def test_the_last_try_counts_however_restless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folders = made_of([RESTLESS] * TRIES, tmp_path, monkeypatch)
    assert (found.pace, len(found.aside), len(folders)) == (RESTLESS, TRIES - 1, TRIES)


def test_a_run_waits_for_cores_of_the_usual_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign, looks = campaign_of(tmp_path), [SLOW[0], SLOW[0], CALM[0], SLOW[0], SLOW[0]]
    monkeypatch.setattr("simstrag.validation.real_runs.PAUSE", 0.0)
    ranks = SimpleNamespace(pace=lambda alone: looks.pop(0))
    campaign._wait_for_calm(ranks, RUN, math.inf)  # type: ignore[arg-type]
    assert looks == [SLOW[0]] * 2
    campaign._wait_for_calm(ranks, RUN, time.monotonic())  # type: ignore[arg-type]
    assert looks == [SLOW[0]] * 2, "when the time is up nothing is waited for"


def test_a_restless_run_is_better_than_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folders = made_of([RESTLESS, "failed"], tmp_path, monkeypatch)
    assert (found.finished, found.pace, found.failed_tries) == (True, RESTLESS, ("why",))
    assert folders == ["clean-2-bsp-1", "clean-2-bsp-1.failed-1"]
    remarks = validation_remarks(digits_profile(), a_plan((found.case,)), [found], 1, 1, 1.0)
    (said,) = (each for each in remarks if "failed" in each)
    assert "clean-2-bsp, repetition 1: why (kept as runs/clean-2-bsp-1.failed-*)" in said
    assert count_finished(tmp_path) == 1, "tries beside it are no runs"


def test_tries_that_failed_are_counted_so_that_an_end_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts: list[list[Any]] = [[RESTLESS, "failed"], *[["failed"]] * (TRIES - 2), []]
    for tries in restarts:
        found, folders = made_of(tries, tmp_path, monkeypatch)
    assert (found.finished, len(found.failed_tries), len(folders)) == (True, TRIES - 1, TRIES)


def test_the_report_has_rows_for_runs_that_failed_before_their_end(result: Result) -> None:
    broken = replace(result.outcomes[0], finished=False, reason="rank 1: ended", pace=((1.0, 1.0),))
    table = runs_table(replace(result, outcomes=(broken, *result.outcomes[1:])))
    assert {len(row) for row in table.rows} == {len(table.headers)}


# -- a run of one's own ----------------------------------------------------------------------


def gone(folder: Path, after: int, rank: int) -> None:
    """Write into a journal that a rank left after so many lines, counted from the end if below 0;
    of what it did later nothing stays."""
    lines = [json.loads(line) for line in (folder / NAME).read_text().splitlines()]
    at = next(line[1] for line in reversed(lines[:after]) if line[0] == "done")
    kept = [line for line in lines[after:] if not (line[0] == "done" and line[2] == rank)]
    whole = [*lines[:after], ["gone", at, rank], *kept]
    (folder / NAME).write_text("".join(json.dumps(line) + "\n" for line in whole))


def test_a_run_is_predicted_beside_the_load_that_was_put_beside_it(
    tmp_path: Path,
) -> None:
    hints = {**HINTS, "clean_seconds": 1.0}
    recorded(tmp_path, "bsp", hints=hints, batch=BATCH, precision="fp64 and fp32 (stand-in)")
    profile = tmp_path / "profile.json"
    profile.write_text(digits_profile().text)
    clean = replay(tmp_path, profile)
    assert clean.table().headers[-1] == "predicted without load"
    done = {"rank": 1, "kind": "cpu", "level": 1.0, "start": 0.0, "stop": 1e6}
    told = {"format": "simstrag-load/1", "done": [done | {"late": 0.0, "share": 0.5}]}
    (tmp_path / "load.json").write_text(json.dumps(told))
    loaded = replay(tmp_path, profile)
    assert loaded.table().headers[-1] == "predicted with its load"
    assert loaded.lines[0].predicted > 1.3 * clean.lines[0].predicted
    assert len(loaded.paces["predicted"]) == len(loaded.grid) - 1
    told["done"][0]["kind"] = "memory"
    (tmp_path / "load.json").write_text(json.dumps(told))
    other = replay(tmp_path, profile)
    assert {line.predicted for line in other.lines} == {None}
    assert "Not predicted: the run had load of kind memory." in other.remarks


def test_a_profile_of_another_machine_than_that_of_the_run_is_remarked_on(tmp_path: Path) -> None:
    hints, place = {**HINTS, "clean_seconds": 1.0}, {"kind": "cpu", "model": "A Processor"}
    precision = "fp64 and fp32 (stand-in)"
    for cores in (2, 8):
        recorded(
            tmp_path / f"{cores}", "bsp", hints=hints, batch=BATCH, precision=precision,
            device={**place, "cores": cores}, cores=cores,
        )  # fmt: skip
    profile = tmp_path / "profile.json"
    profile.write_text(digits_profile().text)
    same, other = (replay(tmp_path / f"{cores}", profile) for cores in (2, 8))
    assert not any("another machine" in each for each in same.remarks)
    said = "The profile is of another machine: its cores is 2, the run's 8."
    assert said in other.remarks
    assert other.lines[0].predicted < same.lines[0].predicted, "its ranks have a core each"


def test_a_run_whose_ranks_left_at_its_end_is_replayed_and_one_that_lost_a_rank_is_refused(
    tmp_path: Path,
) -> None:
    for name in ("whole", "lost"):
        recorded(tmp_path / name, "asgd", hints={**HINTS, "clean_seconds": 1.0})
    for rank, after in ((0, -1), (1, -3), (2, -3), (3, -1)):
        gone(tmp_path / "whole", after, rank)
    found = replay(tmp_path / "whole")
    assert abs(found.lines[0].error) < 0.1
    gone(tmp_path / "lost", 120, 3)
    with pytest.raises(InputError, match="rank 3 was lost or left before the end"):
        replay(tmp_path / "lost")
    with (tmp_path / "whole" / NAME).open("a") as file:
        file.write('["lost", 9.0, 2, "rank 2 closed its connection while computing step 11"]\n')
    with pytest.raises(InputError, match="rank 2 was lost or left before the end"):
        replay(tmp_path / "whole")
