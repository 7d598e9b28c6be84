"""The pace of a run: a factor that all of its steps have, drawn once a seed (rule 4a)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simstrag.analysis.derived.ranking import standings
from simstrag.analysis.text.spread_text import coverage
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.experiments.compare import compare
from simstrag.policies import load
from simstrag.scenario.scenario import Scenario
from simstrag.timing.noise import Noise, lognormal, pace_of
from tests.support import reference
from tests.support.trace_rows import recorded, slowed

SLOW = [slowed(0, 2.0, 0.5, "step")]
STEPS: dict[str, dict[str, Any]] = {
    "without noise": {},
    "noise": {"step": {"compute": 0.1, "cv": 0.2}},
    "lasting noise": {"step": {"compute": 0.1, "cv": 0.2}, "noise": {"lag1": 0.5}},
}


def job(pace: float, **more: Any) -> Scenario:
    case: dict[str, Any] = {"workers": 3, "samples": 3 * 128 * 20, "step": {"compute": 0.1}} | more
    noise = case.pop("noise", {}) | ({"pace": pace} if pace else {})
    return Scenario(**case, **({"noise": noise} if noise else {}))


@pytest.mark.parametrize("stated", STEPS.values(), ids=STEPS)
def test_every_step_of_a_run_takes_its_pace_times_as_long(stated: dict[str, Any]) -> None:
    plain, paced = (simulate(job(pace, **stated), "bsp", seed=3) for pace in (0.0, 0.2))
    assert pace_of(3, 0.2) != 1
    expected = plain.summary["makespan"] * pace_of(3, 0.2)
    assert paced.summary["makespan"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("stated", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("policy", ["bsp", "asgd", "lb_bsp"])
def test_all_engines_give_the_same_run(policy: str, stated: dict[str, Any]) -> None:
    case = job(0.2, trace=SLOW, **stated)
    expected = [e.time for e in reference.simulate(case, load(policy), 5).log]
    for engine in ("native", "plain"):
        assert list(simulate(case, policy, 5, engine=engine).updates["time"]) == expected


@pytest.mark.parametrize("stated", STEPS.values(), ids=STEPS)
def test_a_pace_of_0_changes_no_byte(stated: dict[str, Any]) -> None:
    without = job(0.0, **stated)
    zero = without.replaced(noise={**stated.get("noise", {}), "pace": 0.0})
    runs = [simulate(case, "asgd", seed=2).updates["time"] for case in (without, zero)]
    assert list(runs[0]) == list(runs[1])


def test_paces_have_mean_1_and_the_stated_deviation() -> None:
    paces = np.array([pace_of(seed, 0.1) for seed in range(4000)])
    assert paces.mean() == pytest.approx(1, abs=3 * 0.1 / np.sqrt(4000))
    assert paces.std() == pytest.approx(0.1, rel=0.05)
    assert pace_of(7, 0.1) == Noise(7, lognormal(0.1)).factor(2**64 - 3, 0)


def test_all_policies_meet_the_same_pace_under_a_seed_and_seeds_differ() -> None:
    case = job(0.3, seeds=3)
    found = compare(case, ["bsp", "drain"], sensitivity=False, jobs=1)
    assert list(found.column("bsp", "makespan")) == list(found.column("drain", "makespan"))
    assert list(found.column("bsp", "makespan")) == list(found.column("bsp", "makespan", "clean"))
    assert len(set(found.column("bsp", "makespan"))) == 3
    assert not case.certain


def test_the_spread_of_one_run_has_the_pace_in_it() -> None:
    noise = {"step": {"compute": 0.1, "cv": 0.05}, "seeds": 20}
    widths = []
    for pace in (0.0, 0.1):
        s = standings(compare(job(pace, **noise), ["bsp"], sensitivity=False, jobs=1))
        spread = s.one_run("bsp")
        widths.append((spread.high - spread.low) / s.baseline["makespan"].value)
    assert widths[0] < 0.05
    assert widths[1] > 0.2


def test_with_a_pace_the_answer_does_not_say_that_it_is_of_one_day_alone() -> None:
    said = []
    for pace in (0.0, 0.1):
        case = job(pace, trace=SLOW, seeds=3, step={"compute": 0.1, "cv": 0.05})
        said.append(coverage(standings(compare(case, ["bsp"], sensitivity=False, jobs=1))))
    assert said[0].endswith("so they say nothing about another day")
    assert "the pace of as many runs (noise.pace)" in said[1]
    assert "another day" not in said[1]


@pytest.mark.parametrize(("value", "words"), [(1.5, "must be 1 or less"), (-0.1, "must be 0 or")])
def test_a_pace_is_a_share(value: float, words: str) -> None:
    with pytest.raises(InputError, match=rf"noise\.pace is {value}: {words}"):
        Scenario.of({**job(0.1).declared, "noise": {"pace": value}})


def test_recorded_durations_keep_their_pace() -> None:
    rows = recorded([[1.0] * 5, [2.0] * 5])
    case = Scenario(workers=2, samples=2 * 128 * 5, trace=rows, noise={"pace": 0.2})
    run = simulate(case, "bsp")
    assert run.summary["makespan"] == 10.0
    assert run.warnings == (
        "noise.pace has no effect: all steps take their recorded durations, which have no noise",
    )
