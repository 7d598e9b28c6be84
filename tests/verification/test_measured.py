"""What `docs/measured.md` says of one validation: from its profile and plan, and its real runs.

The calibration's samples make the profile; profile, plan and what policies were told (the profile
of its first half) make the simulated makespans again, and rules of `judgement` the verdicts from
the makespans of the real runs.  The record is older than the noise of today (rule 4), so makespans
agree within their noise: the means of 20 seeds by Welch's test, at p > `LUCK`.
"""

from __future__ import annotations

import copy
import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.machines import cases_of
from benchmarks.results import MEASURED
from benchmarks.tables import plain
from simstrag.calibration.calibrate import derive
from simstrag.experiments.run_spread import predict_run
from simstrag.profile.profile import Profile
from simstrag.validation.cases import Case, ValidationPlan
from simstrag.validation.judgement import MISSED, NOISY, PREDICTED, judge, mitigations
from simstrag.validation.loadgen.schedule import Schedule
from simstrag.validation.prediction import Predictor
from simstrag.validation.validation import make_plan
from tests.support.written import numbers

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "simstrag/validation/measurements/amd-epyc-2-core-digits"
LUCK = 1e-3


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with gzip.open(FOLDER / "validation.json.gz") as file:
        return dict(json.load(file))


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile.read(FOLDER / "profile.json")


@pytest.fixture(scope="module")
def begun() -> Profile:
    return Profile.read(FOLDER / "begun.json")


def test_the_samples_make_the_profile() -> None:
    written = numbers((FOLDER / "profile.json").read_text(encoding="utf-8"))
    derived = numbers(derive(FOLDER).text)
    later = {".allreduce.ranks.0", ".allreduce.smallest", ".allreduce.largest"}
    later |= {f".step.pace.{name}" for name in ("value", "kind", "low", "high", "n", "note")}
    assert derived.keys() - written.keys() <= later, "the profile format has them since then"
    for key in [key for key in written if key.endswith(".noise.note")]:
        then = "; simulated draws are independent and do not honour that"  # the format went on then
        is_stated = derived[key].endswith("correlated as stated")
        assert written[key] == derived[key] + then * is_stated
        written[key] = derived[key]
    assert {key: derived[key] for key in written} == pytest.approx(written, rel=1e-5, abs=0)


def test_the_plan_is_made_by_its_seed_and_of_what_was_calibrated_before(
    found: dict[str, Any], profile: Profile, begun: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the unit of time of its schedules: the makespan of a clean run, under other draws."""
    monkeypatch.setattr("simstrag.validation.validation.cores", lambda: [0, 1])
    drawn = make_plan(begun, (), (), 200, seed=0).document()
    written = json.loads((FOLDER / "plan.json").read_text(encoding="utf-8"))
    whole = {"name": profile.name, "sha256": profile.sha256}
    assert found["plan"] == written | {"profile": whole}
    for one, other in zip(drawn.pop("schedules"), written.pop("schedules"), strict=True):
        unit = one["seconds"] / other["seconds"]
        assert unit == pytest.approx(1, abs=0.01), "three standard deviations of two such makespans"
        for episode in other["episodes"]:
            episode |= {key: episode[key] * unit for key in ("start", "stop")}
        expected = other | {"seconds": one["seconds"]}
        assert numbers(json.dumps(one)) == pytest.approx(numbers(json.dumps(expected)), abs=2e-3)
    assert drawn == written


def plan_of(found: dict[str, Any], profile: Profile) -> ValidationPlan:
    """The plan that was written."""
    written = found["plan"]
    cases = tuple(Case(**each) for each in written["cases"])
    schedules = {
        (each.pop("ranks"), each.pop("name")): Schedule.of(each)
        for each in copy.deepcopy(written["schedules"])
    }
    known = {key: written[key] for key in ("workload", "batch", "precision", "seed", "cores")}
    return ValidationPlan(cases, schedules, **known, profile=profile.name, sha256=profile.sha256)


@pytest.mark.parametrize("name", ["both-2-korel", "both-2-asgd", "one-4-bsp"])
def test_profile_and_plan_make_the_simulated_makespans(
    name: str, found: dict[str, Any], profile: Profile, begun: Profile
) -> None:
    plan = plan_of(found, profile)
    case = next(each for each in plan.cases if each.name == name)
    told = Predictor(begun, plan.cores)
    predictor = Predictor(profile, plan.cores, hinting=told)
    predicted = predictor.predict(case, plan, seeds=20)
    (said,) = (each for each in found["cases"] if each["case"] == name)
    real, then = ([each["makespan"] for each in said[kind]] for kind in ("real", "simulated"))
    now = [run.makespan for run in predicted.runs]
    assert np.mean(now) == pytest.approx(np.mean(then), rel=1e-3), "docs/measured.md says so"
    assert stats.ttest_ind(now, then, equal_var=False).pvalue > LUCK
    assert judge(real, now).word == said["makespan"]["word"]


def test_real_runs_end_as_often_where_one_run_ends_in_nine_of_ten_cases_as_the_page_says(
    found: dict[str, Any], profile: Profile, begun: Profile
) -> None:
    plan, derived = plan_of(found, profile), derive(FOLDER).step
    assert derived is not None
    assert derived.pace is not None
    assert profile.step is not None
    assert derived.pace.value == pytest.approx(0.026, abs=5e-4)
    step = profile.step.model_copy(update={"pace": derived.pace})
    paced = profile.model_copy(update={"step": step})
    predictor = Predictor(paced, plan.cores, hinting=Predictor(begun, plan.cores))
    inside = 0
    for case, said in zip(plan.cases, found["cases"], strict=True):
        assert case.name == said["case"]
        spread = predict_run(
            np.array([run.makespan for run in predictor.draw_runs(case, plan, seeds=100)])
        )
        inside += sum(spread.low <= run["makespan"] <= spread.high for run in said["real"])
    assert inside == pytest.approx(54, abs=6), "with 400 seeds; 100 tell the ends roughly"


def test_the_verdicts_are_those_of_the_rule(found: dict[str, Any]) -> None:
    words, errors = [], []
    for each in found["cases"]:
        real, said = ([run["makespan"] for run in each[kind]] for kind in ("real", "simulated"))
        assert (len(real), len(said)) == (5, 20)
        verdict = judge(real, said)
        assert verdict._asdict() == pytest.approx(each["makespan"])
        words.append(verdict.word)
        errors.append(abs(verdict.error))
    assert [words.count(word) for word in (PREDICTED, NOISY, MISSED)] == [12, 4, 0]
    assert statistics.median(errors) == pytest.approx(0.015, abs=5e-4)


def test_the_table_is_that_of_the_numbers(found: dict[str, Any]) -> None:
    kept = (MEASURED / "validation.txt").read_text(encoding="utf-8")
    assert kept == "\n".join(plain(cases_of(found)))


def test_the_older_rule_for_noise_would_have_kept_fewer_runs(
    found: dict[str, Any], profile: Profile
) -> None:
    usual = Predictor(profile, 2).pace(4)
    kept: dict[str, list[float]] = {each["case"]: [] for each in found["cases"]}
    made = {each["case"]: [run["makespan"] for run in each["real"]] for each in found["cases"]}
    for run in found["runs"]:
        before, after = (pace[:2] for pace in run["pace"])
        steady = all(abs(b - a) <= 0.1 * a for a, b in zip(before, after, strict=True))
        if steady and all(abs(each - usual) <= 0.1 * usual for each in (*before, *after)):
            kept[run["case"]].append(made[run["case"]][run["repetition"] - 1])
    assert sum(map(len, kept.values())) == 80 - 6
    verdicts = [
        judge(kept[each["case"]], [run["makespan"] for run in each["simulated"]])
        for each in found["cases"]
    ]
    words, errors = [each.word for each in verdicts], [abs(each.error) for each in verdicts]
    assert [words.count(word) for word in (PREDICTED, NOISY, MISSED)] == [11, 5, 0]
    assert statistics.median(errors) == pytest.approx(0.015, abs=5e-4)


def test_at_the_pace_of_each_run_most_were_predicted(found: dict[str, Any]) -> None:
    words, errors = [], []
    for each in found["cases"]:
        words.append(each["at_pace"]["word"])
        errors.append(abs(each["at_pace"]["error"]))
    assert [words.count(word) for word in (PREDICTED, NOISY, MISSED)] == [12, 3, 1]
    assert statistics.median(errors) == pytest.approx(0.017, abs=5e-4)


def test_of_pairs_that_real_runs_decide_one_was_missed_and_that_of_equals(
    found: dict[str, Any],
) -> None:
    pairs = [pair for ranking in found["rankings"] for pair in ranking["pairs"]]
    decided = [pair for pair in pairs if not pair["tie"]]
    assert (len(pairs), len(decided), sum(pair["right"] for pair in decided)) == (25, 21, 20)
    (wrong,) = (pair for pair in decided if not pair["right"])
    assert (wrong["faster"], wrong["slower"], wrong["simulated"]) == ("korel", "bsp", 0.0)
    (same,) = (each for each in found["cases"] if each["case"] == "clean-2-korel")
    assert {run["amp"] for run in (*same["real"], *same["simulated"])} == {0.0}


def test_no_window_was_missed(found: dict[str, Any]) -> None:
    steps = [window["step"] for each in found["cases"] for window in each["windows"]]
    words = [step["word"] for step in steps if step]
    assert [words.count(word) for word in (PREDICTED, NOISY, MISSED)] == [42, 12, 0]


def test_what_korel_is_worth_follows_from_the_makespans(found: dict[str, Any]) -> None:
    made = {each["case"]: each for each in found["cases"]}

    def makespans(name: str, kind: str) -> dict[int, float]:
        return dict(enumerate(run["makespan"] for run in made[name][kind]))

    told = {}
    for each in found["mitigation"]:
        if each["policy"] == "korel":
            place = f"{each['schedule']}-{each['ranks']}"
            names = f"{place}-korel", f"{place}-bsp", f"clean-{each['ranks']}-bsp"
            for kind in ("real", "simulated"):
                again = mitigations(*(makespans(name, kind) for name in names))
                assert again.value == pytest.approx(each[kind]["value"])
                told[place, kind] = tuple(round(100 * value, 1) for value in again)
    assert told == {
        ("one-2", "real"): (107.1, 69.6, 266.4), ("one-2", "simulated"): (88.4, 87.7, 89.2),
        ("both-2", "real"): (41.9, 30.0, 55.7), ("both-2", "simulated"): (41.4, 41.2, 41.6),
        ("one-4", "real"): (67.5, 58.2, 74.7), ("one-4", "simulated"): (63.2, 62.7, 63.7),
    }  # fmt: skip


def test_the_staleness_of_each_rank_is_as_it_is_told(found: dict[str, Any]) -> None:
    made = {each["case"]: each["staleness"] for each in found["cases"]}
    words = [each["word"] for told in made.values() for each in told or [] if each]
    assert [words.count(word) for word in (PREDICTED, NOISY, MISSED)] == [4, 2, 2]
    told = {
        name: [(round(v["real"], 2), round(v["simulated"], 2)) for v in made[name]]
        for name in ("clean-2-asgd", "one-2-asgd", "both-2-asgd", "one-2-ssp")
    }
    assert told == {
        "clean-2-asgd": [(1.01, 1.0), (0.98, 1.0)], "one-2-asgd": [(0.88, 0.87), (1.13, 1.15)],
        "both-2-asgd": [(1.42, 1.34), (0.7, 0.74)], "one-2-ssp": [(0.55, 0.53), (0.99, 1.02)],
    }  # fmt: skip
