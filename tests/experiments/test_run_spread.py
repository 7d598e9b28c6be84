"""The spread of one run: where it ends in nine of ten cases, apart from that of the mean."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.run_spread import coverage
from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.text.answer import answer
from simstrag.analysis.text.brief import LINES, Brief
from simstrag.analysis.text.spread_text import describe_one_run, spread_table
from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import Comparison
from simstrag.experiments.run_spread import CERTAIN, NONE, NORMAL, ORDER, RANKED, predict_run
from simstrag.scenario.scenario import Scenario

CASE = {
    "workers": 4,
    "target_progress": 5,
    "step": {"compute": 0.1, "cv": 0.05},
    "trace": [{"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 2.0}],
}


@pytest.fixture(scope="module")
def few() -> Comparison:
    return compare(Scenario.of(CASE | {"seeds": 5}), ["bsp", "drain"], sensitivity=False, jobs=1)


def with_times(comparison: Comparison, policy: str, times: list[float]) -> Comparison:
    runs = comparison.runs.copy()
    runs.loc[runs["policy"] == policy, "time_to_target"] = times
    return dataclasses.replace(comparison, runs=runs)


# -- the interval ----------------------------------------------------------------------------------


def test_few_runs_have_the_prediction_interval_of_normal_logarithms() -> None:
    times = np.array([9.0, 10.0, 11.0, 13.0])
    logs, spread = np.log(times), predict_run(times)
    half = stats.t(3).ppf(0.95) * logs.std(ddof=1) * math.sqrt(1 + 1 / 4)
    assert spread.law == NORMAL
    assert (spread.low, spread.high) == pytest.approx(
        (math.exp(logs.mean() - half), math.exp(logs.mean() + half))
    )


def test_it_is_wider_than_the_interval_of_the_mean_and_does_not_shrink_with_the_seeds() -> None:
    rng = np.random.default_rng(0)
    widths = [
        np.mean([np.diff([s.low, s.high]) for s in
                 (predict_run(np.exp(0.1 * rng.normal(size=n))) for _ in range(200))])
        for n in (20, 200)
    ]  # fmt: skip
    assert widths[1] == pytest.approx(2 * 1.645 * 0.1, rel=0.05)
    assert widths[0] >= widths[1]


def test_many_runs_need_no_law() -> None:
    times = np.random.default_rng(1).permutation(np.arange(1.0, 100.0))
    spread = predict_run(times)
    assert (spread.low, spread.high) == pytest.approx((5, 95))  # of ranks 5 and 95
    assert spread.law == ORDER


@pytest.mark.parametrize("n", [3, 5, 10, 20, 50])
def test_nine_of_ten_normal_logarithms_lie_inside(n: int) -> None:
    rng = np.random.default_rng(n)
    inside = []
    for times in np.exp(0.2 * rng.normal(size=(4000, n + 1))):
        spread = predict_run(times[:n])
        inside.append(spread.low <= times[n] <= spread.high)
    assert np.mean(inside) == pytest.approx(0.9, abs=3 * math.sqrt(0.09 / 4000))


def test_runs_that_missed_the_target_are_counted_and_the_interval_is_of_the_others() -> None:
    times = np.array([9.0, math.nan, 10.0, 11.0, math.inf])
    spread = predict_run(times)
    assert (spread.runs, spread.missed) == (3, 2)
    others = predict_run(times[[0, 2, 3]])
    assert (spread.low, spread.high, spread.law) == (others.low, others.high, others.law)


def test_two_runs_give_no_interval_but_one_of_a_certain_job_does() -> None:
    assert predict_run(np.array([1.0, 2.0])).law == NONE
    assert math.isnan(predict_run(np.array([1.0, 2.0])).low)
    certain = predict_run(np.array([3.0]), certain=True)
    assert (certain.low, certain.high, certain.law) == (3.0, 3.0, CERTAIN)


def test_the_measured_coverage_is_that_of_a_known_law() -> None:
    rng = np.random.default_rng(0)
    times = np.exp(0.1 * rng.normal(size=400))
    for n in (3, 20):
        assert coverage(times, n, rng) == pytest.approx(0.9, abs=0.03)


# -- in words --------------------------------------------------------------------------------------


def test_the_answer_has_the_interval_of_one_run_beside_that_of_the_mean(few: Comparison) -> None:
    s = standings(with_times(few, "bsp", [0.497, 0.505, 0.508, 0.511, 0.521]))
    spread = s.one_run("bsp")
    assert describe_one_run(s, "bsp") == (
        "One run of this job ends between 0.49 and 0.53 s in nine of ten cases (by a normal law of "
        "5 seeds); the mean is 0.51 (0.50–0.52) s."  # noqa: RUF001
    )
    assert spread.low < s.baseline[s.decides].low < s.baseline[s.decides].high < spread.high


def test_missed_runs_are_named_in_the_sentence_and_in_the_table(few: Comparison) -> None:
    s = standings(with_times(few, "drain", [0.5, math.nan, 0.52, 0.51, 0.53]))
    assert describe_one_run(s, "drain") == (
        "Of the runs that reach the target nine of ten do so between 0.48 and 0.55 s (by a normal "
        "law of 4 seeds); 1 of 5 runs missed the target."
    )
    assert "A further run that reaches the target ends" in spread_table(s).notes[0]
    row = next(row for row in spread_table(s).rows if row[0] == "drain")
    assert row[-1] == "normal law of log times, 4 runs; 1 missed"


def test_too_few_runs_are_said(few: Comparison) -> None:
    s = standings(with_times(few, "drain", [0.5, *[math.nan] * 4]))
    assert describe_one_run(s, "drain") == (
        "No interval for one run: it takes 3 runs that reach the target, and 4 of 5 runs missed "
        "the target."
    )


def test_json_and_csv_have_the_interval_its_policy_and_its_share(few: Comparison) -> None:
    found = answer(standings(few))
    one = json.loads(json.dumps(found.to_dict()["one_run"]))
    row = few.ranking.set_index("policy").loc[one["policy"]]
    assert one["policy"] == found.decision.safe
    assert one["share"] == 0.9
    assert (one["low"], one["high"]) == (row["one_run_low"], row["one_run_high"])
    assert one["low"] < one["mean"]["low"] < one["mean"]["high"] < one["high"]
    assert few.ranking.attrs["units"]["one_run_low"] == "s"


def test_the_short_answer_keeps_the_sentence_and_drops_cautions(few: Comparison) -> None:
    found = answer(standings(few))
    long = "A caution of many words that fills its line to the very end of a terminal. " * 2
    brief = dataclasses.replace(found.brief, cautions=(long, long, long), turning=5 * long)
    assert found.one_run in str(brief)
    assert brief.lines > LINES
    assert "caution:" not in str(brief)
    assert str(brief).endswith("3 cautions with --verbose.")


def test_a_caution_that_has_room_is_shown() -> None:
    assert str(Brief("Do it.", cautions=("one", "two", "three"))).splitlines()[1:] == [
        "caution: one", "caution: two (1 more with --verbose)",
    ]  # fmt: skip


def test_order_statistics_begin_where_their_ends_are_no_longer_the_extremes() -> None:
    assert 0.05 * (RANKED + 1) > 1


def test_the_spread_of_a_profile_with_a_pace_says_that_it_is_without_it() -> None:
    profile = Path("simstrag/calibration/profiles/intel-xeon-2-core-amx-mlp.json").absolute()
    case = {"workers": 2, "samples": 256 * 20, "profile": str(profile), "seeds": 3}
    case |= {"learner": {"batch": 128}}
    left_out = ", without the 6.97 % by which the profile's runs differ in pace (noise.pace); the"
    stated = ({"noise": {"pace": pace}} for pace in (0.07, 0))
    for noise, is_told in (({}, True), *((each, False) for each in stated)):
        s = standings(compare(Scenario.of(case | noise), ["bsp"], sensitivity=False, jobs=1))
        assert (left_out in describe_one_run(s, "bsp")) is is_told
