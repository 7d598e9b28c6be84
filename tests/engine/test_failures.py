"""Failures of ranks, worked out by hand, and what a scenario may say of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from simstrag.contract import Plan, Quorum
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError, PlanError, StallError
from simstrag.runs.run import Run
from simstrag.scenario.failures import FailuresSection
from simstrag.scenario.scenario import Scenario
from tests.support.strategies import Script

pytestmark = pytest.mark.parametrize("engine", ["native", "plain"])


def run(engine: str, policy: str, updates: int, workers: int = 2, **failures: Any) -> Run:
    """A run of steps of one second and free communication, with a row for each step."""
    scenario = Scenario(workers=workers, updates=updates, step={"compute": 1.0}, failures=failures)
    return simulate(scenario, policy, engine=engine, record_steps=True)


def test_the_others_wait_until_they_know_and_repeat_their_step(engine: str) -> None:
    """Rank 1 fails in the second step, at 1.5 s.  Rank 0 ends its own at 2 s, and at 2.25 s it is
    known: rank 0 computes that step anew, to 3.25 s, and then goes on alone."""
    events = [{"time": 1.5, "rank": 1}]
    found = run(engine, "bsp", 3, events=events, on_fault="continue", detection=0.75)
    assert list(found.updates["time"]) == [1.0, 3.25, 4.25]
    assert list(found.updates["members"]) == [(0, 1), (0,), (0,)]
    assert found.summary["aborted"] == 2
    assert found.summary["useful_throughput"] == 4 * 128 / 4.25


def test_who_waits_for_nobody_goes_on_at_once(engine: str) -> None:
    """Rank 1 fails at 1.5 s and is back at 3.25 s, with the parameters of then."""
    events = [{"time": 1.5, "rank": 1, "back": 3.25}]
    found = run(engine, "asgd", 6, events=events, on_fault="continue", detection=0.25)
    assert list(found.updates["time"]) == [1.0, 1.0, 2.0, 3.0, 4.0, 4.25]
    assert list(found.updates["members"]) == [(0,), (1,), (0,), (0,), (0,), (1,)]
    assert found.updates["staleness_mean"][5] == 1


def test_a_bound_holds_the_others_until_they_know(engine: str) -> None:
    """Rank 1 fails at 0.5 s.  Rank 0 may be one step ahead: it ends two, and waits from 2 s until
    it is known, at 5.5 s."""
    events = [{"time": 0.5, "rank": 1}]
    found = run(engine, "ssp:bound=1", 3, events=events, on_fault="continue", detection=5.0)
    assert list(found.updates["time"]) == [1.0, 2.0, 6.5]


def test_a_rank_that_is_back_is_waited_for_again(engine: str) -> None:
    """Rank 1 is away from 0.5 s to 2.25 s, known at once.  Rank 0 repeats its step from 0.5 s;
    rank 1 starts in the middle of the step that rank 0 has begun at 1.5 s."""
    events = [{"time": 0.5, "rank": 1, "back": 2.25}]
    found = run(engine, "bsp", 3, events=events, on_fault="continue")
    assert list(found.updates["time"]) == [1.5, 3.25, 4.25]
    assert list(found.updates["members"]) == [(0,), (0, 1), (0, 1)]


def test_a_quorum_timeout_waits_for_a_rank_that_is_soon_back(engine: str) -> None:
    """Rank 1 fails at 1.5 s and is known to at 2 s.  It is back at 4 s, within 3 s more: then both
    begin the second step anew, together."""
    events = [{"time": 1.5, "rank": 1, "back": 4.0}]
    found = run(
        engine, "bsp", 3, events=events, on_fault="continue", detection=0.5, quorum_timeout=3.0
    )
    assert list(found.updates["time"]) == [1.0, 5.0, 6.0]
    assert list(found.updates["members"]) == [(0, 1)] * 3


def test_a_quorum_timeout_ends_before_a_rank_that_is_late(engine: str) -> None:
    """The same, but the others go on without it at 3 s.  At 4 s rank 0 ends the second step alone,
    before rank 1 is back (15), and begins the third: rank 1 joins it."""
    events = [{"time": 1.5, "rank": 1, "back": 4.0}]
    found = run(
        engine, "bsp", 3, events=events, on_fault="continue", detection=0.5, quorum_timeout=1.0
    )
    assert list(found.updates["time"]) == [1.0, 4.0, 5.0]
    assert list(found.updates["members"]) == [(0, 1), (0,), (0, 1)]


def test_fewer_than_the_least_workers_wait(engine: str) -> None:
    """Rank 2 is away from 0.5 s to 9 s, known at once: two go on.  Rank 1 is away from 2 s to 4 s:
    one does not, and the two begin that step anew at 4 s.  Rank 0 fails at 5.25 s; rank 2 and rank
    0 are back while one is left, and both go on with it."""
    events = [
        {"time": 0.5, "rank": 2, "back": 9.0}, {"time": 2.0, "rank": 1, "back": 4.0},
        {"time": 5.25, "rank": 0, "back": 12.0}, {"time": 6.0, "rank": 1, "back": 13.0},
    ]  # fmt: skip
    found = run(engine, "bsp", 4, workers=3, events=events, on_fault="continue", min_workers=2)
    assert list(found.updates["time"]) == [1.5, 5.0, 13.0, 14.0]
    assert list(found.updates["members"]) == [(0, 1), (0, 1), (0, 2), (0, 1, 2)]


def test_forming_the_group_anew_takes_its_time(engine: str) -> None:
    """Rank 1 is away from 0.5 s to 4 s, known at once.  Rank 0 begins its step anew at 1 s, after
    half a second.  Rank 1 begins at 4.5 s, and rank 0, which began at 4 s, waits for it."""
    events = [{"time": 0.5, "rank": 1, "back": 4.0}]
    found = run(engine, "bsp", 5, events=events, on_fault="continue", regroup=0.5)
    assert list(found.updates["time"]) == [2.0, 3.0, 4.0, 5.5, 6.5]
    assert list(found.updates["members"]) == [(0,), (0,), (0,), (0, 1), (0, 1)]


def test_a_group_forms_after_the_one_that_is_being_formed(engine: str) -> None:
    """Rank 1 is away from 0.5 s to 1 s, known at once; the group without it is formed at 2.5 s, the
    one with it at 4.5 s.  With a quorum timeout one group is formed, from 1 s to 3 s."""
    events = [{"time": 0.5, "rank": 1, "back": 1.0}]
    found = run(engine, "bsp", 2, events=events, on_fault="continue", regroup=2.0)
    assert list(found.updates["time"]) == [5.5, 6.5]
    once = run(engine, "bsp", 2, events=events, on_fault="continue", regroup=2.0, quorum_timeout=9)
    assert list(once.updates["time"]) == [4.0, 5.0]


def test_with_the_last_rank_all_wait_until_one_is_back(engine: str) -> None:
    events = [{"time": 0.5, "rank": 0, "back": 7.0}, {"time": 0.75, "rank": 1, "back": 9.0}]
    found = run(engine, "asgd", 2, events=events, on_fault="continue")
    assert list(found.updates["time"]) == [8.0, 9.0]
    never = [{"time": 0.5, "rank": rank} for rank in (0, 1)]
    with pytest.raises(
        StallError, match=r"seed 0: too few ranks are left at 0.5 s, .* give failures\.rejoin"
    ):
        run(engine, "asgd", 2, events=never, on_fault="continue")


@pytest.mark.parametrize("policy", ["lb_bsp", "drain", "cgp"])
def test_a_review_while_all_ranks_are_lost_is_carried_out_when_they_are_back(
    engine: str, policy: str
) -> None:
    """All ranks fail at 1.25 s, in an all-reduce from 1 s to 1.5 s whose update has a review."""
    events = [{"time": 1.25, "rank": rank, "back": 20.0} for rank in (0, 1)]
    scenario = Scenario(
        workers=2, updates=3, step={"compute": 1.0}, allreduce={"alpha": 0.25},
        failures={"events": events, "on_fault": "continue"},
    )  # fmt: skip
    assert list(simulate(scenario, policy, engine=engine).updates["time"]) == [1.5, 21.5, 23.0]


def test_a_plan_of_lost_ranks_alone_waits_until_one_of_them_is_back(engine: str) -> None:
    """Rank 1 fails at 0.5 s.  From 1.5 s on the policy's plan has no other rank, and rank 0 goes on
    under the plan before it until rank 1 is back, at 4.25 s."""
    script = Script(((0, Plan()), (1, Plan((Quorum((1,)),)))))
    scenario = Scenario(
        workers=2, updates=4, step={"compute": 1.0},
        failures={"events": [{"time": 0.5, "rank": 1, "back": 4.25}], "on_fault": "continue"},
    )  # fmt: skip
    updates = simulate(scenario, script, engine=engine).updates
    assert list(updates["time"]) == [1.5, 2.5, 3.5, 5.25]
    assert list(updates["members"]) == [(0,), (0,), (0,), (1,)]


def test_a_restart_repeats_what_no_checkpoint_holds(engine: str) -> None:
    """Checkpoints of 0.5 s follow the updates at 2 s and 4.5 s.  Rank 1 fails at 6.25 s, in the
    third step since: at 10.25 s both go on from the checkpoint of 4.5 s, which holds 4 updates."""
    found = run(
        engine, "bsp", 7, events=[{"time": 6.25, "rank": 1}], on_fault="restart", detection=1.0,
        restart=3.0, checkpoint={"updates": 2, "cost": 0.5},
    )  # fmt: skip
    times = [1.0, 2.0, 3.5, 4.5, 6.0, 11.25, 12.25, 13.75]
    assert list(found.updates["time"]) == times
    assert list(found.updates["version"]) == [1, 2, 3, 4, 5, 5, 6, 7]
    counts = {name: found.summary[name] for name in ("updates", "checkpoints", "lost_updates")}
    assert counts == {"updates": 7, "checkpoints": 3, "lost_updates": 1}
    assert found.summary["lost_samples"] == 256
    assert found.summary["throughput"] == 8 * 256 / 13.75
    assert found.summary["useful_throughput"] == 7 * 256 / 13.75
    assert found.summary["down_seconds"] == 4.0
    assert found.summary["wait_by_rank"] == [4.0 + 3 * 0.5] * 2


def test_a_checkpoint_that_is_not_complete_is_worth_nothing(engine: str) -> None:
    """The checkpoint of the update at 2 s takes until 4 s; rank 0 fails at 3 s."""
    found = run(
        engine, "bsp", 3, events=[{"time": 3.0, "rank": 0}], on_fault="restart",
        checkpoint={"updates": 2, "cost": 2.0},
    )  # fmt: skip
    assert list(found.updates["version"]) == [1, 2, 1, 2, 3]
    assert list(found.updates["time"]) == [1.0, 2.0, 4.0, 5.0, 8.0]


def test_ranks_that_are_left_may_write_a_checkpoint_at_a_failure(engine: str) -> None:
    """Rank 1 fails at 2.5 s; the two updates until then are kept, and the third step is not."""
    found = run(
        engine, "bsp", 3, events=[{"time": 2.5, "rank": 1}], on_fault="restart", restart=2.0,
        checkpoint={"on_failure": True},
    )  # fmt: skip
    assert list(found.updates["time"]) == [1.0, 2.0, 5.5]
    assert found.summary["lost_updates"] == 0


def test_a_failure_during_a_restart_begins_it_anew(engine: str) -> None:
    events = [{"time": 0.5, "rank": 0}, {"time": 2.5, "rank": 1}]
    found = run(engine, "bsp", 1, events=events, on_fault="restart", restart=3.0)
    assert list(found.updates["time"]) == [6.5]
    assert (found.summary["failures"], found.summary["down_seconds"]) == (2, 5.0)


def test_failures_come_at_the_same_times_under_every_policy(engine: str) -> None:
    section = FailuresSection(mtbf=50.0, on_fault="continue", rejoin=5.0)
    times = [[*itertools.islice(section.coming(seed, 3), 9)] for seed in (0, 0, 1)]
    assert times[0] == times[1] != times[2]
    failures = {"mtbf": 50.0, "on_fault": "continue", "rejoin": 5.0}
    makespan = {
        policy: run(engine, policy, n, 3, **failures).summary for policy, n in
        (("bsp", 40), ("asgd", 120))
    }  # fmt: skip
    within = [sum(f.time <= s["makespan"] for f in times[0]) for s in makespan.values()]
    assert [s["failures"] for s in makespan.values()] == within


@pytest.mark.parametrize("policy", ["bsp", "asgd", "korel", "cgp", "local_sgd"])
@pytest.mark.parametrize("on_fault", ["continue", "restart"])
def test_failures_that_do_not_come_change_nothing(engine: str, policy: str, on_fault: str) -> None:
    declared: dict[str, Any] = {
        "workers": 4, "updates": 60, "step": {"compute": 1.0, "cv": 0.3, "amp_ratio": 1.5},
        "server": {"service": 0.05, "push": 0.01},
    }  # fmt: skip
    never: dict[str, Any] = {"events": [{"time": 1e6, "rank": 0}], "on_fault": on_fault}
    if on_fault == "restart":
        never["checkpoint"] = {"updates": 7}
    tables = [
        simulate(Scenario.of(declared | more), policy, 3, engine=engine).updates
        for more in ({}, {"failures": never})
    ]
    for name in tables[0]:
        assert list(tables[0][name]) == list(tables[1][name])


def test_a_run_that_never_gets_beyond_its_failures_ends(engine: str) -> None:
    with pytest.raises(StallError, match=r"no headway .* version 0: ranks failed 1,000 times"):
        run(engine, "bsp", 1, mtbf=0.05, on_fault="restart")


def test_a_policy_that_cannot_go_on_without_a_rank_is_refused(engine: str) -> None:
    with pytest.raises(PlanError, match=r"streaming_diloco.* cannot go on without a rank"):
        run(engine, "streaming_diloco:h=4,p=2,tau=1", 3, mtbf=9.0, on_fault="continue")


CONTINUE, RESTART = {"on_fault": "continue"}, {"on_fault": "restart"}
EVENT = {"time": 5.0, "rank": 1}
WRONG = (
    (CONTINUE, "nothing says when ranks fail: give mtbf or events"),
    ({"mtbf": 1.0, "events": [EVENT], **CONTINUE}, "two keys say when ranks fail: give mtbf or ev"),
    ({"events": [EVENT], "rejoin": 3.0, **CONTINUE}, "give each of the events its own back"),
    ({"mtbf": 9.0, "restart": 3.0, **CONTINUE}, "restart is a key of on_fault: restart"),
    ({"mtbf": 9.0, "rejoin": 3.0, **RESTART}, "rejoin is a key of on_fault: continue"),
    ({"mtbf": 9.0, "regroup": 3.0, **RESTART}, "regroup is a key of on_fault: continue"),
    ({"mtbf": 9.0, "min_workers": 3, **CONTINUE}, "min_workers is 3, and there are 2 workers"),
    ({"events": [EVENT | {"back": 9.0}], **RESTART}, "back is a key of on_fault: continue"),
    ({"mtbf": 9.0, "rejoin": 1.0, "detection": 2.0, **CONTINUE}, "rejoin 1 is before"),
    ({"events": [EVENT | {"back": 5.5}], "detection": 1.0, **CONTINUE}, "is back at 5.5 s, before"),
    ({"events": [EVENT, EVENT | {"time": 7.0}], **CONTINUE}, "rank 1 fails at 7 s, and is not"),
    ({"events": [EVENT | {"back": 7.0}, EVENT | {"time": 7.0}], **CONTINUE}, "a back before 7$"),
    ({"events": [{"time": 5.0, "rank": 2}], **CONTINUE}, "rank 2 fails, and there are 2 workers"),
    ({"mtbf": 9.0, "checkpoint": {"cost": 1.0}, **RESTART}, "needs an interval: give seconds or"),
    ({"mtbf": 9.0, "checkpoint": {"seconds": 1, "updates": 1}, **RESTART}, "has one interval"),
    ({"mtbf": 9.0, "on_fault": "shrink"}, "on_fault"),
)


@pytest.mark.parametrize(("section", "reason"), WRONG, ids=lambda value: str(value)[:40])
def test_what_a_section_of_failures_rules_out(
    section: dict[str, Any], reason: str, engine: str
) -> None:
    with pytest.raises(InputError, match=reason):
        run(engine, "bsp", 1, **section)


def test_a_real_learner_has_no_restarts(engine: str) -> None:
    declared: dict[str, Any] = {
        "workers": 2, "samples": 256, "step": {"compute": 1.0},
        "learner": {"kind": "real", "task": "digits"}, "failures": {"mtbf": 9.0, **RESTART},
    }  # fmt: skip
    with pytest.raises(InputError, match="a real learner has no checkpoint"):
        Scenario.of(declared)
