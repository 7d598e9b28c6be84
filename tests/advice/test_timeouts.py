"""Timeouts against what can be worked out on paper, and how the answer is given."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.advice import timeout_model
from simstrag.advice.silences import Silences
from simstrag.advice.timeout_model import FailingJob, Timeouts
from simstrag.advice.timeout_trials import Horizon, Mishap, failing_scenario, lost_share
from simstrag.advice.timeouts import TimeoutAdvice, timeouts
from simstrag.analysis.text.timeouts_text import brief
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from tests.support.commands import Call

RECORD = Path(__file__).parents[2] / "examples" / "recorded-fsdp2"
DAYS = 20 * 86_400.0


def failing_job(seconds: Any, workers: int = 8, **failures: Any) -> FailingJob:
    """A job of two-second steps with these silences in 20 days, and a failure every two hours."""
    section: dict[str, Any] = {"mtbf": workers * 7200, "on_fault": "continue", **failures}
    scenario = Scenario.of({
        "workers": workers, "samples": 25_600, "step": {"compute": 2.0}, "failures": section,
        "learner": {"noise_scale": 1e9},
    })  # fmt: skip
    return replace(FailingJob.of(scenario), silences=Silences.of(seconds, DAYS, 2.0))


def test_the_timeout_for_exponential_silences_is_that_of_the_derivative() -> None:
    """Rate nu, mean m, cost A of a lost rank, rate r of failures: nu e^(-T/m) (A/m - 1) = r."""
    count, mean, restart, rate = 2000, 20.0, 300.0, 1 / 7200
    seconds = -mean * np.log((np.arange(count) + 0.5) / count)
    job = failing_job(seconds, on_fault="restart", restart=restart, checkpoint={"on_failure": True})
    nu, cost = count / DAYS, restart + 1.0  # and half a step
    expected = mean * math.log(nu * (cost / mean - 1) / rate)
    assert job.choose().detection == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("restart", "expected"), [(600.0, 31.0), (20.0, 2.0)])
def test_the_timeout_for_equal_silences_is_just_beyond_them_or_as_short_as_can_be(
    restart: float, expected: float
) -> None:
    """A silence of 30 s, waited for, costs 30 s, and each failure 30 s; or each a restart."""
    job = failing_job(
        np.full(500, 30.0), on_fault="restart", restart=restart, checkpoint={"on_failure": True}
    )
    assert job.choose().detection == pytest.approx(expected, abs=1.0)


@pytest.mark.parametrize(("regroup", "expected"), [(0.0, 0.0), (55.0, 0.0), (70.0, 60.0)])
def test_all_wait_for_a_rank_that_is_back_sooner_than_a_group_is_formed(
    regroup: float, expected: float
) -> None:
    """After R seconds one group is formed in g; or two, with (R - g) (N - 1)/N of work between."""
    job = failing_job(np.full(500, 30.0), rejoin=60.0, regroup=regroup)
    assert job.choose().quorum == expected


def test_a_quorum_timeout_waits_for_ranks_that_are_soon_back_and_for_no_others() -> None:
    job = failing_job(np.full(500, 30.0), rejoin=60.0, regroup=100.0)
    job = replace(job, returns=np.array([20.0] * 8 + [3600.0] * 2))
    assert job.choose().quorum == 20.0


def test_what_fewer_workers_are_worth_is_their_progress() -> None:
    job = failing_job([30.0], workers=4, rejoin=60.0)
    learner = job.scenario.learner.model_copy(update={"noise_scale": 0.0})
    large = replace(job, scenario=job.scenario.replaced(learner=learner))
    assert job.pace == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=1e-6)
    assert large.pace == pytest.approx([0, 1, 1, 1, 1])


def test_a_silence_beyond_the_timeout_is_a_failure_and_a_shorter_one_is_a_pause() -> None:
    """Steps of 2 s.  Rank 1 is silent for 3 s from 5 s on: the third step ends at 9 s.  Rank 0 is
    silent from 21.5 s on, lost at 31.5 s, and back at 51.5 s: until then the other goes on."""
    job = failing_job([3.0], workers=2, rejoin=20.0)
    mishaps = [Mishap(5.0, 1, 3.0, 20.0), Mishap(21.5, 0, 15.0, 20.0)]
    scenario = failing_scenario(job, mishaps, Timeouts(10.0), Horizon(20, 2.0))
    updates = simulate(scenario, "bsp").updates
    assert list(updates["time"])[:3] == pytest.approx([2.0, 4.0, 9.0])
    alone = [t for t, who in zip(updates["time"], updates["members"], strict=True) if who == (1,)]
    assert (alone[0], alone[-1]) == pytest.approx((33.5, 51.5))


def test_a_longer_run_keeps_the_mishaps_of_a_shorter_one() -> None:
    job = failing_job(np.full(500, 30.0), rejoin=600.0)
    short, long = Horizon(2000, 2.0), Timeouts(3600.0)
    first = [*lost_share(job, 3, [Timeouts(40.0)], short)]
    assert [*lost_share(job, 3, [Timeouts(40.0), long], short)][:1] == first


def test_of_silences_beyond_all_seen_no_fewer_are_expected_than_come() -> None:
    """In a record as long one comes, by exchangeability; two at most are expected."""
    generator = np.random.default_rng(0)
    above = []
    for _ in range(400):
        seen, other = generator.pareto(1.5, (2, 60)) + 1
        above.append((Silences.of(seen, 1.0, 0.1).longer_than(seen.max()), (other > seen.max())))
    expected, found = np.mean([a for a, _ in above]), np.mean([b.sum() for _, b in above])
    assert found == pytest.approx(1.0, abs=0.3)
    assert found < expected < 2


def test_the_interval_of_false_alarms_holds_the_truth() -> None:
    """Silences beyond 40 s, in 50 records of 100 exponential ones of 20 s."""
    truth, held, generator = 100 * math.exp(-2), 0, np.random.default_rng(1)
    for _ in range(50):
        seen = Silences.of(generator.exponential(20.0, 100), 1.0, 0.1)
        drawn = [seen.drawn(generator).longer_than(np.array(40.0)) for _ in range(100)]
        low, high = np.quantile(drawn, (0.025, 0.975))
        held += low <= truth <= high
    assert held >= 42


def scenario_with_silences(count: int = 40, **failures: Any) -> Scenario:
    """Four ranks, steps of 2 s, a silence of 10 s or more every 100 s; failures every hour."""
    rows = list[tuple[float, int, str, str, float]]()
    for k in range(count):
        begin = 100.0 * (k + 1)
        rows.append((begin, k % 4, "step", "slowdown", 1e9))
        rows.append((begin + 10.0 + k % 7, k % 4, "step", "slowdown", 1.0))
    section = {"mtbf": 14_400, "on_fault": "continue", "rejoin": 120, "regroup": 5, **failures}
    return Scenario.of({
        "workers": 4, "samples": 4 * 32 * 2500, "step": {"compute": 2.0}, "failures": section,
        "trace": Trace.from_rows(rows), "learner": {"batch": 32}, "cost": {"gpu_hour": 2.0},
    })  # fmt: skip


@pytest.fixture(scope="module")
def advice() -> TimeoutAdvice:
    return timeouts(scenario_with_silences(detection=90), seeds=3)


def test_silences_are_measured_as_the_trace_has_them(advice: TimeoutAdvice) -> None:
    expected = sorted(10.0 + k % 7 for k in range(40))
    assert advice.job.silences.seconds == pytest.approx(expected, abs=0.01)
    assert advice.job.silences.step == pytest.approx(2.0)


def test_the_choice_loses_less_than_every_default(advice: TimeoutAdvice) -> None:
    assert 16 < advice.choice.detection < 25
    for name in ("torch with NCCL", "torch with gloo", "torchft", "as declared"):
        assert advice.excess(advice.names[name]).value > 0


def test_the_short_answer_has_the_values_their_loss_its_price_and_what_would_change_it(
    advice: TimeoutAdvice,
) -> None:
    text = str(brief(advice))
    assert f"Take a rank for lost after {advice.choice.detection:g} s of silence" in text
    assert "GPU-hours lost per day of training, " in text
    assert " USD" in text
    assert "false alarms" in text
    assert "With twice as many failures" in text
    assert len(text.splitlines()) <= 12


def test_a_choice_beyond_the_longest_silence_says_that_it_is_extrapolated() -> None:
    scenario = scenario_with_silences(2)
    found = brief(timeouts(scenario, seeds=2))
    assert found.cautions[0].startswith("the timeout lies beyond the longest silence of 11 s")
    assert "only 2 silences" in found.cautions[1]


def test_what_timeouts_need_to_know_is_asked_for() -> None:
    plain = Scenario(workers=4, samples=256_000, step={"compute": 2.0})
    never = plain.replaced(failures={"mtbf": 9e4, "on_fault": "continue"})
    anew = plain.replaced(failures={"mtbf": 9e4, "on_fault": "restart"})
    alone = scenario_with_silences().replaced(workers=1, samples=32_000, trace=None)
    for scenario, reason in (
        (plain, "nothing says how often ranks fail"), (never, "give failures.rejoin"),
        (anew, "failures has no checkpoint"), (alone, "one worker"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=reason):
            timeouts(scenario)


def test_the_command_takes_a_record_and_failures_and_writes_a_page_with_two_curves(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "failures.yaml").write_text(
        "workers: 4\nupdates: 1\nstep: {compute: 0.3}\n"
        "failures: {mtbf: 40_000, on_fault: restart, restart: 60, checkpoint: {seconds: 600}}\n"
    )
    record, out = str(RECORD), str(tmp_path / "out")
    given = ("--failures", str(tmp_path / "failures.yaml"), "--seeds", "2", "--out", out)
    code, text, _ = call("advise", record, "--timeouts", *given)
    assert code == 0
    assert "then restart all" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") >= 2
    assert "the choice" in page
    assert json.loads((tmp_path / "out" / "timeouts.json").read_text())["choice"]["workers"] == 1
    assert call("advise", record, "--timeouts", *given)[0] == 0  # its own folder, again
    code, _, error = call("advise", record, "--timeouts", "-p", "bsp")
    assert code == 2
    assert "says nothing about timeouts" in error


def test_a_thousand_workers_have_probabilities_too() -> None:
    found = timeout_model.binomial(1100, np.array([0.01, 0.5]))
    assert found.sum(axis=1) == pytest.approx([1, 1])
    assert found @ np.arange(1101) == pytest.approx([11, 550])
