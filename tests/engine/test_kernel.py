"""What only long, crowded or rare runs ask of the kernel, held against the reference engine."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from simstrag import policies
from simstrag.contract import Plan, Quorum
from simstrag.engine.native import memory
from simstrag.engine.native.memory import LOGGED, SPARE
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario
from tests.support import reference
from tests.support.trace_rows import recorded, slowed

COLUMNS = ("time", "version", "members", "n_own", "samples", "progress")


def case(workers: int, updates: int, **changes: Any) -> Scenario:
    data = {
        "workers": workers, "updates": updates,
        "step": {"compute": 0.1, "cv": 0.2, "amp_ratio": 1.5},
        "server": {"service": 0.001, "push": 0.002, "pull": 0.001},
    }  # fmt: skip
    return Scenario(**data | changes)


def agree(scenario: Scenario, policy: str) -> None:
    """Both engines make the same updates."""
    expected = reference.simulate(scenario, policies.load(policy), 3)
    found = simulate(scenario, policy, 3)
    rows = [(e.time, e.version, e.members, e.n_own, e.samples, e.progress) for e in expected.log]
    assert list(zip(*(found.updates[name] for name in COLUMNS), strict=True)) == rows
    assert found.summary["dropped"] == expected.dropped
    assert found.summary["aborted"] == expected.aborted


def test_a_log_that_is_full_is_taken_over_and_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOGGED", 256)
    agree(case(4, 1000), "asgd")


def test_noise_goes_on_where_a_block_of_it_ends() -> None:
    agree(case(2, 2500), "bsp")


def test_who_would_have_ended_after_a_breakpoint_and_is_aborted_is_as_slow_as_before() -> None:
    factors = ((0, 0, 4.0), (9.5, 0, 1.0), (2.5, 1, 2.0))
    rows = [slowed(r, v, t, "step") for t, r, v in factors]
    scenario = Scenario(workers=3, updates=12, step={"compute": 1.0}, trace=rows)
    agree(scenario, "backup:b=1")
    assert simulate(scenario, "backup:b=1").summary["makespan"] == 15.5


@pytest.mark.parametrize("policy", ["bsp", "bsp:via=server", "amp_all", "lb_bsp", "korel", "cgp"])
@pytest.mark.parametrize(
    ("every", "trace_end", "cv"),
    [(0.04, "loop", 0.0), (0.04, "hold", 0.2), (0.1, "loop", 0.2), (0.25, "hold", 0.0)],
)
def test_all_cross_breakpoints_together_where_a_trace_was_sampled(
    policy: str, every: float, trace_end: str, cv: float
) -> None:
    slowdowns = 1 + np.random.default_rng(0).integers(0, 4, (60, 9)) / 4
    rows = [
        slowed(rank, value, k * every)
        for k, row in enumerate(slowdowns.tolist())
        for rank, value in enumerate(row)
    ]
    step = {"compute": 0.1, "cv": cv, "amp_ratio": 1.5}
    scenario = case(9, 120, step=step, trace=rows, trace_end=trace_end)
    agree(scenario, policy)
    native, plain = (simulate(scenario, policy, engine=name) for name in ("native", "plain"))
    for column in ("compute_by_rank", "wait_by_rank", "communication_by_rank"):
        assert native.summary[column] == plain.summary[column]


def test_recorded_steps_leave_the_noise_of_others_alone() -> None:
    agree(case(2, 2600, trace=recorded([[0.1]]), trace_end="loop"), "ssp:bound=3")


def test_in_long_runs_with_many_breakpoints_the_short_ways_agree_with_the_long_one() -> None:
    draw = np.random.default_rng(5)
    rows = [
        slowed(
            int(draw.integers(6)),
            resource=str(draw.choice(["step", "gpu", "host"])),
            value=float(draw.choice([1.0, 1.5, 3.0, 8.0])),
            time=round(float(time), 3),
        )
        for time in np.sort(draw.uniform(0, 60, 120))
    ]
    for end in ("hold", "loop"):
        scenario = case(6, 1500, trace=rows, trace_end=end)
        for policy in (
            "bsp", "bsp:via=server", "backup:b=2", "asgd", "ssp:bound=2", "korel", "lb_bsp",
            "k_async:x=3", "star_h",
        ):  # fmt: skip
            long, short = (simulate(scenario, policy, 1, record_steps=kept) for kept in (1, 0))
            assert short.updates == long.updates, (policy, end)
            beyond = "beyond_trace"  # a sum in another order
            for name in long.summary.keys() - {beyond}:
                assert short.summary[name] == long.summary[name], (policy, end, name)
            assert short.summary[beyond] == pytest.approx(long.summary[beyond], rel=1e-9)


def test_what_a_plan_may_say_is_known_where_ranks_are_advanced_together() -> None:
    """A new field must be thought of in `plan_loading` (lockstep or not) before it is here."""
    assert {f.name for f in fields(Plan) if f.init} == {
        "quorums", "fuse", "bound", "precision", "batch", "deadline", "pause", "average", "weigh",
        "damping", "suspects", "review", "outer", "fragments", "compensation", "screen",
    }  # fmt: skip
    assert {f.name for f in fields(Quorum) if f.init} == {
        "ranks", "count", "via", "late", "window", "riders", "steps", "rounds",
        "overlap", "grace", "partial",
        "parents",
    }  # fmt: skip


def test_a_lone_rank_waits_for_nobody_at_the_server_either() -> None:
    for policy in ("bsp:via=server", "asgd", "backup:b=0"):
        agree(case(1, 60), policy)


def test_steps_that_were_aborted_by_the_hundred_are_forgotten() -> None:
    agree(case(3, 4 * 3 + SPARE + 200, trace=[slowed(2, 1e6)]), "backup")


def test_jobs_that_were_withdrawn_by_the_hundred_are_forgotten() -> None:
    agree(case(6, 400, server={"service": 0.05}), "backup:b=4")


def test_a_rank_may_keep_more_gradients_than_there_was_room_for() -> None:
    scenario = case(3, 12)
    found = simulate(scenario, "local_sgd:h=11", 3, record_gradients=True)
    expected = reference.simulate(scenario, policies.load("local_sgd:h=11"), 3)
    assert found.gradients is not None
    assert found.updates["time"] == [e.time for e in expected.log]
    assert found.summary["applied"] == 12 * 3 * 11


def test_without_its_updates_a_run_has_the_same_summary() -> None:
    scenario = case(4, 3000)
    whole, sample = (simulate(scenario, "asgd", 3, record_updates=kept) for kept in (True, False))
    assert sample.summary == whole.summary
    for name, values in sample.updates.items():
        assert values == whole.updates[name]


def test_a_sample_of_updates_is_even_bounded_and_holds_the_last() -> None:
    last = 2 * LOGGED + 1001
    run = simulate(case(4, last), "asgd", 3, record_updates=False)
    versions = list(run.updates["version"])
    assert versions == [*range(4, last, 4), last]
    assert len(versions) <= LOGGED + 1


def test_an_oracle_that_asks_beyond_the_trace_meets_the_mistake_of_the_trace() -> None:
    rows = recorded([[0.125]])
    scenario = Scenario(workers=1, updates=2, trace=rows, trace_end="error", step={"compute": 0.1})
    with pytest.raises(InputError, match="the trace records 1 durations") as raised:
        simulate(scenario, "star_h_oracle")
    assert type(raised.value) is InputError
