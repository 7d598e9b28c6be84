"""Distributions of real and simulated runs: distances, chance levels, intervals of quantiles."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from simstrag.engine.simulate import simulate
from simstrag.profile.profile import Profile
from simstrag.validation import distributions
from simstrag.validation.case_results import Result, build_case_result
from simstrag.validation.cases import Case
from simstrag.validation.distributions import (
    FEWEST,
    LEVELS,
    RunSample,
    compare,
    ks_distances,
    order_quantiles,
    order_ranks,
    run_quantiles,
)
from simstrag.validation.prediction import Predictor
from simstrag.validation.real_runs import RunOutcome
from simstrag.validation.tables import answer, distributions_table, quantiles_table
from simstrag.validation.validation import Validation, compare_distributions
from tests.support.full_profile import quantity
from tests.validation.test_validate import LOAD, a_plan, digits_profile

RNG = np.random.default_rng(11)


def runs_of(makespans: np.ndarray, steps: int = 4) -> list[RunSample]:
    """Runs whose steps are their makespan over their number, but for a little noise."""
    return [RunSample(float(t), t / steps * (1 + 0.01 * RNG.normal(size=steps))) for t in makespans]


def test_the_distance_is_that_of_scipy() -> None:
    one, other = RNG.normal(size=30), RNG.normal(0.3, 1.2, size=70)
    found, permuted = ks_distances([one[:10], one[10:]], [other[:7], other[7:]])
    assert found == pytest.approx(stats.ks_2samp(one, other).statistic, abs=1e-12)
    assert len(permuted) == distributions.ROUNDS


def test_equal_values_jump_together() -> None:
    one, other = np.array([1.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0, 2.0])
    found, _ = ks_distances([one], [other], rounds=0)
    assert found == stats.ks_2samp(one, other).statistic == 0.25


def test_of_single_values_chance_and_p_are_those_of_the_known_law() -> None:
    one, other = RNG.normal(size=40), RNG.normal(0.45, 1.0, size=400)
    found = compare(runs_of(np.exp(0.1 * one)), runs_of(np.exp(0.1 * other))).makespan
    limit = stats.kstwobign.isf(0.05) * math.sqrt(1 / 40 + 1 / 400)
    assert found.chance == pytest.approx(limit, rel=0.1)
    known = stats.ks_2samp(one, other).pvalue
    assert found.p == pytest.approx(known, abs=4 * math.sqrt(known / distributions.ROUNDS) + 0.005)


def test_chance_of_steps_that_resemble_each_other_is_by_their_runs() -> None:
    alike = [np.full(50, x) + 1e-6 * RNG.normal(size=50) for x in RNG.normal(size=60)]
    _, by_runs = ks_distances(alike[:20], alike[20:])
    limit = stats.kstwobign.isf(0.05) * math.sqrt(1 / 1000 + 1 / 2000)
    chance = float(np.quantile(by_runs, 0.95))
    assert chance == pytest.approx(math.sqrt(50) * limit, rel=0.12), "as of 20 and 40 values"


def test_runs_that_all_take_longer_have_the_same_shape() -> None:
    times = np.exp(0.1 * RNG.normal(size=300))
    found = compare(runs_of(times[:100]), runs_of(1.3 * times[100:])).makespan
    assert found.ks > 0.75
    assert found.p == 1 / (1 + distributions.ROUNDS)
    assert found.shape < found.chance


@pytest.mark.parametrize("n", [10, 20, 36, 100, 368, 400])
@pytest.mark.parametrize("level", LEVELS)
def test_order_statistics_enclose_a_quantile_as_often_as_they_say(n: int, level: float) -> None:
    low, high = order_ranks(n, level)
    law = stats.binom(n, level)
    assert law.cdf(low - 1) <= 0.025 < law.cdf(low), "the next one up would miss more often"
    assert law.sf(high - 1) <= 0.025 < law.sf(high - 2)
    assert law.cdf(high - 1) - law.cdf(low - 1) >= 0.95


def test_what_few_runs_cannot_tell_is_not_said() -> None:
    median, ninety, last = order_quantiles(np.arange(1.0, 21.0))
    assert (median.low, median.high) == (6.0, 15.0)
    assert ninety.low == 15.0
    assert math.isnan(ninety.high)
    assert math.isnan(last.value)
    assert math.isnan(last.high)
    assert order_quantiles(np.arange(1.0, 369.0))[-1].high == 368.0


def test_steps_have_intervals_by_whole_runs() -> None:
    spread = [np.full(100, x) for x in RNG.normal(size=200)]
    (median, *_) = run_quantiles(spread)
    half = 1.96 * math.sqrt(math.pi / 2 / 200)
    assert (median.high - median.low) / 2 == pytest.approx(half, rel=0.35)


def test_quantiles_of_steps_have_no_interval_where_few_runs_lie_beyond() -> None:
    runs = [np.full(10, x) for x in RNG.normal(size=50)]
    known = [[not math.isnan(q.low) for q in run_quantiles(runs[:n])] for n in (9, 10, 49, 50)]
    assert known == [[False] * 3, [True, False, False], [True, False, False], [True, True, False]]
    assert all(math.isfinite(q.value) for q in run_quantiles(runs))


def paced(spread: float | None) -> Profile:
    step = digits_profile().step
    assert step is not None
    pace = None if spread is None else quantity(spread)
    return digits_profile(step=step.model_dump() | {"pace": pace})


def test_simulated_runs_spread_by_the_pace_of_the_profile_and_verdicts_do_not_know_it() -> None:
    case = Case("bsp", 2, "clean", 20)
    plan = a_plan((case,))
    still, moved = (Predictor(paced(spread), 2) for spread in (None, 0.05))
    without, spread = (
        np.array([run.makespan for run in each.draw_runs(case, plan, 60)])
        for each in (still, moved)
    )
    assert np.std(np.log(without)) < 0.01
    assert np.std(np.log(spread)) == pytest.approx(0.05, rel=0.35)
    for each in (still, moved):
        assert without[:3].tolist() == [run.makespan for run in each.predict(case, plan, 3).runs]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Of two cases; ten simulated runs of other seeds stand for real ones of the first."""
    folder = tmp_path_factory.mktemp("distributions")
    cases = Case("bsp", 2, "one", 40), Case("asgd", 2, "one", 40)
    plan, predictor = a_plan(cases), Predictor(paced(None), 2)
    outcomes, results = [], []
    for case, repetitions in zip(cases, (FEWEST, 3), strict=True):
        scenario = predictor.scenario(case, LOAD, case.policy == "bsp")
        for k in range(repetitions):
            place = folder / case.name / str(k)
            simulate(
                scenario, case.policy, 1000 + k, out=place,
                record_gradients=True, record_steps=True,
            )  # fmt: skip
            outcomes.append(RunOutcome(case, k, place, True, "", 9.0, 0.0, 0.0, ()))
    for case in cases:
        found = build_case_result(case, plan, predictor.predict(case, plan, 3), outcomes)
        own = compare_distributions(predictor, case, plan, outcomes)
        results.append(replace(found, distributions=own))
    constants = tuple(predictor.constants.values())
    return Result(plan, tuple(results), tuple(outcomes), constants, (), FEWEST, FEWEST)


def test_runs_of_the_simulator_itself_have_its_distribution(result: Result) -> None:
    ((case, found),) = result.distributions
    assert (case.policy, found.runs, found.seeds) == ("bsp", FEWEST, distributions.SEEDS)
    for distance in (found.makespan, found.step):
        assert distance.p > 0.01
        for one, other in zip(distance.real[:2], distance.simulated[:2], strict=True):
            assert one.value == pytest.approx(other.value, rel=0.05)
    assert result.inside == (found.inside, FEWEST)
    assert found.inside >= FEWEST - 4


def test_the_document_the_table_and_the_page_have_them(result: Result, tmp_path: Path) -> None:
    page = Validation(result, tmp_path).write().read_text()
    document = json.loads((tmp_path / "validation.json").read_text())
    (known, missing) = (case["distributions"] for case in document["cases"])
    assert missing is None
    assert set(known) == {"runs", "seeds", "makespan", "step", "one_run", "inside"}
    assert set(known["step"]) == {"ks", "chance", "p", "shape", "real", "simulated"}
    last = known["makespan"]["real"][2]
    assert (last["level"], last["value"], last["high"]) == (0.99, None, None)
    assert document["distributions"]["of"] == FEWEST
    with (tmp_path / "validation.csv").open() as file:
        first, second = csv.DictReader(file)
    assert float(first["step_ks"]) == pytest.approx(known["step"]["ks"])
    assert float(first["makespan_simulated_q90"]) > 0
    assert (first["makespan_real_q99"], second["makespan_ks"]) == ("", "")
    assert page.count('aria-label="one-2-bsp: cumulative shares') == 1
    assert "1 cases do not have 10 finished runs" not in page
    assert "1 case does not have 10 finished runs" in page
    assert "Kolmogorov-Smirnov distance" in " ".join(answer(result))
    assert len(distributions_table(result).rows) == 2
    assert "at least" in quantiles_table(result).rows[1][3]


def test_too_few_runs_are_named_with_what_to_do(result: Result) -> None:
    few = replace(result, cases=result.cases[1:])
    assert few.why_no_distributions.startswith("no case has 10 finished runs")
    assert "--repetitions 20" in few.why_no_distributions
    assert "Kolmogorov" not in " ".join(answer(few))
