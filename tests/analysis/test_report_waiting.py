"""Waiting between ranks, and what each rank did when, against what the runs themselves counted."""

import dataclasses

import numpy as np
import pytest

from simstrag.analysis.charts.timeline import FADED, mix_parts, parts_of_steps
from simstrag.analysis.derived.example_runs import Example, example
from simstrag.analysis.derived.phase_intervals import segments
from simstrag.analysis.derived.steps import steps_of
from simstrag.analysis.derived.timeline_excerpt import changes, choose
from simstrag.analysis.derived.waiting import waiting
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from simstrag.trace.slowdown import Piecewise
from tests.support.contention import durations
from tests.support.slowed_runs import WORKERS, run_of, scenario
from tests.support.stepwise import at

POLICIES = [
    "bsp", "bsp:via=server", "asgd", "ssp", "ssp:bound=0", "backup", "backup:b=2,late=drop",
    "backup:via=allreduce", "amp_all", "korel", "k_async:x=2", "lgc", "lgc:via=allreduce",
    "dssp", "star_dynamic", "lb_bsp", "dropcompute:theta=0.05", "p_reduce", "local_sgd:h=4",
    "drain:window=3,wait=4", "hot_spare:window=3", "fewer:measure=2",
]  # fmt: skip


def example_of(policy: str) -> Example:
    run, timing = run_of(policy)
    return example(run.policy, run, timing)


@pytest.mark.parametrize("policy", POLICIES)
class TestEveryPolicy:
    def test_the_derivation_reproduces_every_update(self, policy: str) -> None:
        found = example_of(policy).waiting
        assert found.reason == ""
        assert found.held.min() >= 0
        assert found.blocked.min() >= 0

    def test_no_more_waiting_is_given_away_than_there_was(self, policy: str) -> None:
        found, (run, _) = example_of(policy).waiting, run_of(policy)
        by_row = (found.held + found.blocked).sum(axis=1)
        assert np.all(by_row <= np.array(run.summary["wait_by_rank"]) + 1e-9)

    def test_fates_are_those_that_were_counted(self, policy: str) -> None:
        run, _ = run_of(policy)
        steps = steps_of(run)
        assert np.count_nonzero(steps.applied) == run.summary["applied"]
        lost = run.summary["dropped"] + run.summary["aborted"]
        assert lost - WORKERS <= np.count_nonzero(steps.lost) <= lost

    def test_parts_fill_the_time_of_every_rank(self, policy: str) -> None:
        e = example_of(policy)
        steps, marks = e.steps, e.phases.marks
        parts = parts_of_steps(steps, e.phases)
        for rank in range(WORKERS):
            own = np.flatnonzero(steps.rank == rank)
            spans = [part.chosen(steps.rank[part.row] == rank) for part in parts.values()]
            assert min(float((each.right - each.left).min(initial=0)) for each in spans) >= 0
            filled = sum(float((each.right - each.left).sum()) for each in spans)
            changed = np.count_nonzero(np.diff(steps.amp[own].astype(int)))
            whole = marks[own[-1], -1] - marks[own[0], 0]
            assert filled + 0.01 * changed == pytest.approx(whole, rel=1e-9)


def test_work_thrown_away_is_paler_than_work_applied() -> None:
    e = example_of("backup:b=1")
    steps = e.steps
    applied = dataclasses.replace(steps, applied=np.ones_like(steps.applied))
    as_it_was, all_applied = (
        mix_parts(each, range(WORKERS), e.end)[..., 3] for each in (e, e._replace(steps=applied))
    )
    paler = as_it_was < all_applied - 1e-9
    assert set(np.flatnonzero(paler.any(axis=1))) == set(steps.rank[steps.lost])
    assert (as_it_was[paler] / all_applied[paler]).min() == pytest.approx(FADED)


@pytest.mark.parametrize("policy", ["bsp", "amp_all", "korel"])
def test_all_waiting_at_a_barrier_is_for_a_rank(policy: str) -> None:
    found, waited = example_of(policy).waiting, run_of(policy)[0].summary["wait_by_rank"]
    assert found.held.sum(axis=1) == pytest.approx(waited, rel=1e-9)
    assert found.elsewhere == pytest.approx(0.0, abs=1e-9)


def test_nobody_waits_for_a_rank_in_asgd() -> None:
    found = example_of("asgd").waiting
    assert not found.by_rank.any()
    assert found.elsewhere == pytest.approx(sum(run_of("asgd")[0].summary["wait_by_rank"]))


def test_a_case_that_can_be_counted_by_hand() -> None:
    made = Scenario(
        workers=2, samples=2 * 128 * 3, step={"compute": 1.0},
        trace=durations((1.0,) * 3, (2.0,) * 3),
    )  # fmt: skip
    run = simulate(made, "bsp", record_steps=True)
    found = example(run.policy, run, made.timing(0)).waiting
    assert found.held.tolist() == [[0.0, 3.0], [0.0, 0.0]]
    assert found.by_rank.tolist() == [0.0, 3.0]


def test_what_does_not_come_out_at_the_logged_times_is_not_shown() -> None:
    run, timing = run_of("bsp")
    times = list(run.updates["time"])
    times[7] += 1e-3
    other = dataclasses.replace(run, updates={**run.updates, "time": times})
    found = example(run.policy, other, timing).waiting
    assert "its steps alone do not give the times of its updates" in found.reason
    assert not found.held.any()


def test_another_architecture_is_not_derived() -> None:
    e, run = example_of("bsp"), run_of("bsp")[0]
    led = dataclasses.replace(run, summary={**run.summary, "architecture": "leader"})
    found = waiting(led, e.steps, e.phases, e.timing)
    assert "leader" in found.reason


def test_waiting_of_too_many_ranks_is_not_derived_and_takes_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simstrag.analysis.derived.waiting.MOST", WORKERS - 1)
    found = example_of("bsp").waiting
    assert found.reason == f"it has more than {WORKERS - 1} ranks"
    assert found.held.size == 0
    assert found.elsewhere == found.total > 0


def test_private_steps_share_the_fate_of_the_one_that_completes_them() -> None:
    """Averages of four steps of each: none is lost, and nobody waits after the first three."""
    steps = steps_of(run_of("local_sgd:h=4")[0])
    assert not steps.lost.any()
    assert steps.kept.reshape(-1, 4).tolist() == [[True] * 3 + [False]] * (4 * 13)
    assert (np.diff(steps.applied.reshape(-1, 4), axis=1) == 0).all()
    assert not steps.wait[steps.kept].any()


def test_a_window_is_about_the_loudest_onset() -> None:
    contention = scenario().timing(0).contention
    assert changes(contention, 10.0)[0][:4] == (2.0, 0, "net", 1.0)
    shown = choose(contention, WORKERS, cycle=0.05, until=5.0)
    assert shown.start < 2.0 < shown.end <= 5.0
    assert "net slowdown of rank 0 goes from 1 to 4" in shown.why
    quiet = choose(scenario(trace=None).timing(0).contention, WORKERS, cycle=0.05, until=0.5)
    assert (quiet.start, quiet.end) == (0.0, 0.5)


def test_segments_follow_a_repeating_slowdown() -> None:
    f = Piecewise((0.0, 1.0), (1.0, 2.0), period=1.5)
    pieces = list(segments(f, 0.5, 3.0))
    assert pieces == [(0.5, 1.0, 1.0), (1.0, 1.5, 2.0), (1.5, 2.5, 1.0), (2.5, 3.0, 2.0)]
    for low, high, value in pieces:
        assert at(f, (low + high) / 2) == value
