"""Policies of outer steps, corrected gradients and partial collectives, with a real learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from simstrag import InputError, Scenario, simulate  # noqa: E402
from simstrag.contract import (  # noqa: E402  # noqa: E402
    Compensation,
    Damping,
    Outer,
    Plan,
    PlanError,
    Policy,
    Quorum,
    Via,
    View,
    Weigh,
)
from simstrag.ddp.policy_support import mechanism  # noqa: E402
from simstrag.engine.recorder import Recorder  # noqa: E402
from simstrag.engine.simulation import Simulation  # noqa: E402
from simstrag.learning.outer_replay import OuterReplay  # noqa: E402
from simstrag.learning.update_rule import UpdateRule  # noqa: E402
from simstrag.policies import load  # noqa: E402
from tests.learning.test_outer_learning import (  # noqa: E402
    INNER,
    PLAIN,
    RANKS,
    maker,
    parameters_after,
)
from tests.support.outer_references import follow  # noqa: E402
from tests.support.plain_training import BATCH, log_of  # noqa: E402
from tests.support.strategies import Fixed, Script  # noqa: E402

KEYS: dict[str, Any] = {
    "workers": RANKS,
    "samples": 40 * RANKS * BATCH,
    "step": {"compute": 0.1, "cv": 0.2},
    "server": {"service": 0.002, "push": 0.01, "pull": 0.01},
    "allreduce": {"alpha": 0.001, "bandwidth": 1e9, "bytes": 1e7},
    "trace": [{"time": 0, "node": 1, "resource": "gpu", "kind": "slowdown", "value": 3.0}],
}
REAL = {
    "kind": "real", "task": "tabular", "batch": BATCH, "full": "fp64", "amp": "fp32",
    "optimizer": INNER,
}  # fmt: skip
NEW = (
    "diloco:h=4", "streaming_diloco:h=8", "decoupled_diloco:h=4,p=1", "async_local_sgd:h=4",
    "async_local_sgd:h=4,grace=0.5", "async_local_sgd:h=4,dylu=yes", "dc_asgd", "zeno",
    "eager_sgd", "eager_sgd:start=solo",
)  # fmt: skip


def run_of(policy: str | Policy, **changes: Any) -> Any:
    return simulate(Scenario(**KEYS | {"learner": {"batch": BATCH}} | changes), policy)


@pytest.mark.parametrize("policy", NEW)
def test_times_are_those_of_the_run_without_a_model(policy: str) -> None:
    plain, real = run_of(policy), run_of(policy, learner=REAL)
    assert real.updates == plain.updates
    assert real.summary["makespan"] == plain.summary["makespan"]
    assert np.isfinite(real.summary["loss"])


@pytest.mark.parametrize(
    "policy",
    [
        "diloco:h=4", "streaming_diloco:h=8,alpha=0.5", "streaming_diloco:h=4,p=1,tau=2,alpha=0",
        "decoupled_diloco:h=8,p=2,grace=0.05", "decoupled_diloco:k=1,h=4,p=2,tau=0",
        "async_local_sgd:h=4", "async_local_sgd:h=4,grace=0.5", "async_local_sgd:h=4,dylu=yes",
        "async_local_sgd:h=4,delay=3",
    ],
)  # fmt: skip
def test_parameters_are_those_of_one_step_at_a_time(policy: str) -> None:
    log, plan = log_of(policy, KEYS), load(policy).plan(View(RANKS))
    rule, outer = UpdateRule.of(plan), plan.outer
    wanted = follow(
        log, PLAIN.engine.initial, PLAIN.slope_at, fragments=rule.fragments, overlap=rule.overlap,
        alpha=outer.mix, inner=INNER, outer=maker(outer),
    )  # fmt: skip
    found = parameters_after(OuterReplay, log, rule)
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_local_sgd_is_diloco_with_an_outer_rate_of_one() -> None:
    one, other = (
        run_of(policy, learner=REAL)
        for policy in ("local_sgd:h=4", "diloco:h=4,lr=1,momentum=0,nesterov=no")
    )
    assert one.evaluations == other.evaluations
    assert one.updates == other.updates


def test_no_time_depends_on_what_is_done_to_gradients_and_models() -> None:
    asgd = run_of("asgd").updates["time"]
    for policy in ("dc_asgd", "zeno"):
        assert run_of(policy).updates["time"] == asgd
    assert run_of("diloco:h=4").updates["time"] == run_of("local_sgd:h=4").updates["time"]


def test_late_gradients_of_eager_sgd_are_in_the_next_all_reduce() -> None:
    """Of three ranks the first two make an update; the slow one's gradient enters the next one."""
    gradients = simulate(
        Scenario(**KEYS | {"step": {"compute": 0.1}}, learner={"batch": BATCH}), "eager_sgd",
        record_gradients=True,
    ).frame("gradients")  # fmt: skip
    applied = gradients[gradients["fate"] == "applied"]
    slow = applied[applied["rank"] == 1]
    assert set(slow["update"] - 1 - slow["version"]) == {2}
    assert set(applied["weight"]) == {1 / RANKS}
    assert set(gradients["fate"]) <= {"applied", "in_flight"}


def test_a_slow_rank_takes_fewer_steps_under_dylu() -> None:
    steps = simulate(
        Scenario(**KEYS | {"step": {"compute": 0.1}}, learner={"batch": BATCH}),
        "async_local_sgd:h=6,dylu=yes", record_gradients=True,
    ).frame("gradients")  # fmt: skip
    applied = steps[steps["fate"] == "applied"]
    sizes = applied.groupby(["rank", "update"]).size()
    assert sizes[1].iloc[0] == 6  # nothing is known of it yet
    assert set(sizes[1].iloc[1:]) == {2}  # it is three times as slow
    assert set(sizes[0]) == set(sizes[2]) == {6}


# -- refusals ------------------------------------------------------------------------------------


def averaging(**changes: Any) -> Plan:
    return Plan((Quorum(steps=2),), average=True, **changes)


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (Plan(), averaging(), "agree on average"),
        (averaging(), averaging(outer=Outer(0.7)), "agree on outer"),
        (
            Plan((Quorum(count=1, via=Via.SERVER),)),
            Plan((Quorum(count=1, via=Via.SERVER),), compensation=Compensation()),
            "agree on compensation",
        ),
    ],
)
def test_a_run_whose_plans_make_updates_in_different_ways_is_not_trained(
    first: Plan, then: Plan, words: str
) -> None:
    with pytest.raises(InputError, match=f"a real learner needs plans that {words}: nothing says"):
        run_of(Script(((0, first), (5, then))), learner=REAL)


def test_quorums_that_overlap_differently_are_not_trained() -> None:
    quorums = Quorum((0, 1), steps=3, overlap=1), Quorum((2,), steps=3)
    with pytest.raises(InputError, match=r"one overlap in all quorums, not \[0, 1\]"):
        run_of(Fixed(Plan(quorums, average=True)), learner=REAL)


def test_a_run_without_a_model_keeps_no_rules() -> None:
    scenario = Scenario(**KEYS, learner={"batch": BATCH})
    assert not Simulation(scenario, load("diloco"), "diloco", 0, Recorder()).rules


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("diloco:h=0", "h must be 1 or more"),
        ("diloco:momentum=0", "nesterov needs a momentum above 0"),
        ("streaming_diloco:h=7", "h must be a multiple of p, not 7 of 2"),
        ("streaming_diloco:tau=4", "tau must be 0 or more and below h/p, not 4"),
        ("decoupled_diloco:k=0", "k must be 1 or more, or auto"),
        ("decoupled_diloco:grace=-1", "grace must be 0 or more seconds"),
        ("async_local_sgd:seconds=1/x", "seconds must be numbers with / between"),
        ("async_local_sgd:seconds=1/0", "seconds must be positive"),
        ("async_local_sgd:delay=2,nesterov=no", "delay needs nesterov"),
        ("dc_asgd:strength=0", "strength must be positive"),
        ("streaming_diloco:alpha=2", "alpha must be between 0 and 1, not 2"),
        ("decoupled_diloco:p=0", "p must be 1 or more, not 0"),
        ("zeno:every=0", "screen: every must be 1 or more"),
        ("eager_sgd:start=all", "start must be solo or majority, not all"),
    ],
)
def test_parameters_that_are_impossible_are_refused_in_one_line(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load(spec)


@pytest.mark.parametrize("fields", [{"weigh": Weigh.MEMBERS}, {"damping": Damping(power=1.0)}])
def test_an_average_has_no_other_weights_than_samples(fields: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="leave weigh and the power of damping out"):
        Plan(average=True, **fields)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Quorum((3, 1), steps=(5, 2)), r"must ascend, not \(3, 1\)"),
        (lambda: Quorum(steps=()), "a number, or one of each member"),
        (lambda: Outer(momentum=0.9, nesterov="no"), "nesterov must be True or False, not 'no'"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        make()


def test_a_real_learner_drops_no_contribution_that_a_rank_has_gone_on_from() -> None:
    plan = Plan((Quorum(count=2, steps=2, overlap=1),), average=True, damping=Damping(cutoff=1))
    with pytest.raises(InputError, match="dropped by damping's cutoff beside an overlap"):
        UpdateRule.of(plan)


def test_momentum_of_async_local_sgd_is_delayed_by_as_many_updates_as_there_are_ranks() -> None:
    for policy, delay in (("", 3), (":nesterov=no", 1), (":delay=2", 2)):
        (outer,) = {load(f"async_local_sgd{policy}").plan(View(3)).outer}
        assert outer.delay == delay


def test_seconds_must_be_of_every_rank() -> None:
    policy = load("async_local_sgd:grace=1,seconds=1/2")
    with pytest.raises(PlanError, match="2 seconds for 3 ranks"):
        policy.plan(View(3))
    with pytest.raises(PlanError, match="decoupled_diloco: k=4 is more than 3 ranks"):
        load("decoupled_diloco:k=4").plan(View(3))


@pytest.mark.parametrize(
    "policy",
    ["diloco", "streaming_diloco", "async_local_sgd", "dc_asgd", "decoupled_diloco", "eager_sgd",
     "zeno"],
)  # fmt: skip
def test_real_ranks_take_a_policy_through_their_server(policy: str) -> None:
    assert mechanism(policy).startswith("server")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("zeno:batch=99999999", "a screen's batch of 99999999 is larger than the task"),
        ("async_local_sgd:h=1000000", "have more samples than the whole run"),
    ],
)
def test_what_a_run_cannot_do_is_refused_in_one_line(policy: str, words: str) -> None:
    learner = {"kind": "real", "task": "tabular", "batch": 8}
    case = Scenario(
        workers=2, samples=1600, step={"compute": 0.1}, server={"service": 0.001}, learner=learner
    )
    with pytest.raises((InputError, PlanError), match=words):
        simulate(case, policy)
