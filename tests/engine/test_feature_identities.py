"""Policies that must do the same as another one do it by other plans, log for log.

An identity that holds because both return one and the same plan shows nothing of the engine; where
that is so it is said, and nothing else is claimed.
"""

from __future__ import annotations

from typing import Any

import pytest

from simstrag.contract import Damping, Late, Plan, Policy, Quorum, Via, View, Weigh
from simstrag.engine.simulate import simulate
from simstrag.errors import PlanError
from simstrag.learning.noise_scale import unmodelled
from simstrag.policies import load, names
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from tests.support.strategies import Fixed
from tests.support.trace_rows import slowed

N, BATCH = 6, 64


def scenario(workers: int = N, rounds: int = 24, **sections: Any) -> Scenario:
    """`rounds` gradients of each rank, noisy steps of 1 s, two ranks contended for a while."""
    contention = [slowed(1, 2.0, 2.0, "net"), slowed(0, 3.0, 5.0), slowed(0, 1.0, 20.0)]
    return Scenario.of(
        {
            "workers": workers,
            "samples": rounds * workers * BATCH,
            "step": {"compute": 1.0, "cv": 0.3},
            "learner": {"batch": BATCH},
            "trace": [*contention, slowed(1, 1.0, 30.0, "net")],
        }
        | sections
    )


COSTLY: dict[str, Any] = {
    "server": {"service": 0.05, "push": 0.02, "pull": 0.03},
    "allreduce": {"alpha": 0.01},
}
CONTENDED, FREE = scenario(**COSTLY), scenario()


def policy_of(given: str | Plan) -> Policy:
    return load(given) if isinstance(given, str) else Fixed(given)


def plan_of(given: str | Plan, workers: int = N) -> Plan:
    return policy_of(given).plan(View(workers)).resolved(workers)


def logs(world: Scenario, given: str | Plan, seed: int, *left_out: str) -> tuple[Any, ...]:
    """Updates, steps, gradients and the summary, but for the columns and fields left out."""
    run = simulate(world, policy_of(given), seed, record_steps=True, record_gradients=True)
    tables = (run.updates, run.steps or {}, run.gradients or {}, run.summary)
    left = {"progress_unknown", "architecture", "theta", "cuttable", *left_out}
    return tuple({k: v for k, v in table.items() if k not in left} for table in tables)


OF_PROGRESS = (
    "progress", "accuracy", "time_to_target", "efficiency", "goodput", "effective_staleness",
    "deviation",
)  # fmt: skip
"""What is null where progress is."""

JOINING = Quorum(via=Via.SERVER, late=Late.JOIN, window=1e9)
SAME = [
    ("dropcompute:theta=1e9", "bsp", CONTENDED.replaced(microbatches=4)),
    ("dropcompute:theta=0.001", "bsp", CONTENDED),  # a step of one micro-batch cannot be cut
    ("ringmaster:r=1000000000", "asgd", CONTENDED),
    ("staleness_lr:power=0,shift=3", "asgd", CONTENDED),
    ("ssp:bound=1000000000", "asgd", CONTENDED),
    ("backup:b=0", "bsp", FREE),  # N jobs of the server each against one collective
    (Plan((JOINING,)), "bsp:via=server", CONTENDED),  # nobody is ever late
    (Plan((Quorum(window=1e9),)), "bsp", CONTENDED),
    (Plan(damping=Damping(cutoff=1)), "bsp", CONTENDED),  # nobody is ever stale
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("special", "plain", "world"), SAME)
def test_a_feature_that_has_nothing_to_do_changes_no_bit(
    special: str | Plan, plain: str, world: Scenario, seed: int
) -> None:
    assert plan_of(special) != plan_of(plain)
    assert logs(world, special, seed) == logs(world, plain, seed)


SAME_BUT_FOR_PROGRESS = [
    (f"p_reduce:p={N}", "bsp", CONTENDED),
    ("p_reduce:p=inf", "bsp", CONTENDED),
    ("local_sgd:h=1", "bsp", CONTENDED),
    ("backup:b=0,weigh=members", "bsp:via=server", CONTENDED),
    ("p_reduce:p=1", "p_reduce:p=2,window=0", FREE),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("special", "plain", "world"), SAME_BUT_FOR_PROGRESS)
def test_what_is_not_modelled_is_the_same_in_all_else(
    special: str, plain: str, world: Scenario, seed: int
) -> None:
    assert plan_of(special) != plan_of(plain)
    assert logs(world, special, seed, *OF_PROGRESS) == logs(world, plain, seed, *OF_PROGRESS)


SAME_BUT_FOR_WEIGHTS = [
    ("backup:weigh=members", "backup"),
    ("backup:b=2,late=drop,weigh=members", "backup:b=2,late=drop"),
    ("staleness_lr", "asgd"),
    ("staleness_lr:power=0.5,shift=1", "asgd"),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("special", "plain"), SAME_BUT_FOR_WEIGHTS)
def test_weights_change_no_time_and_no_fate(special: str, plain: str, seed: int) -> None:
    left_out = ("weight", *OF_PROGRESS)
    assert logs(CONTENDED, special, seed, *left_out) == logs(CONTENDED, plain, seed, *left_out)
    runs = [simulate(CONTENDED, p, seed, record_gradients=True) for p in (special, plain)]
    weights = [run.frame("gradients")["weight"].tolist() for run in runs]
    assert weights[0] != weights[1]


def test_what_resolves_to_one_plan_is_no_evidence() -> None:
    for special, plain in (
        (f"lgc:k={N}", "bsp:via=server"),
        (f"lgc:k={N},via=allreduce", "bsp"),
        ("staleness_lr:power=0", "asgd"),
        ("dropcompute:theta=inf", "bsp"),
        ("dropcompute", "bsp"),  # where nothing says how many micro-batches there are
        ("backup:b=2,late=abort", f"backup:b={N - 4}"),
        ("backup:b=0", "bsp:via=server"),
        ("backup:b=0,via=allreduce", "bsp"),
    ):
        assert plan_of(special) == plan_of(plain)


# -- a part of one run is the whole of another


def of_members(run: Run, *members: int) -> list[float]:
    """Times of the updates of exactly these ranks."""
    pairs = zip(run.updates["time"], run.updates["members"], strict=True)
    return [time for time, who in pairs if tuple(who) == members]


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_average_apart_are_each_a_world_of_its_own(seed: int) -> None:
    """Noise is of a rank and its step, so ranks 0 and 1 fare as they would alone."""
    apart = Plan((Quorum((0, 1)), Quorum((2, 3, 4, 5))), average=True)
    pair = of_members(simulate(CONTENDED, Fixed(apart), seed), 0, 1)
    alone = simulate(scenario(2, 60, **COSTLY), "bsp", seed).updates["time"]
    assert len(pair) > 10
    assert pair == alone[: len(pair)]


@pytest.mark.parametrize("seed", range(3))
def test_local_sgd_of_one_rank_ends_every_fourth_of_its_steps_with_an_update(seed: int) -> None:
    world = Scenario.of({"workers": 1, "samples": 40 * BATCH, "step": {"compute": 1, "cv": 0.3}})
    every, fourth = (simulate(world, p, seed).updates["time"] for p in ("bsp", "local_sgd:h=4"))
    assert len(fourth) == len(every) // 4
    assert fourth == every[3::4]


@pytest.mark.parametrize("seed", range(3))
def test_two_rounds_of_one_rank_are_two_private_steps(seed: int) -> None:
    world = Scenario.of({"workers": 1, "samples": 40 * BATCH, "step": {"compute": 1, "cv": 0.3}})
    rounds = Plan((Quorum((0,), via=Via.LEADER, rounds=2),))
    steps = Plan((Quorum((0,), steps=2),), average=True)
    left_out = ("weight", "round", "architecture", *OF_PROGRESS)
    assert logs(world, rounds, seed, *left_out) == logs(world, steps, seed, *left_out)


@pytest.mark.parametrize("seed", range(3))
def test_partial_reduce_of_one_is_asynchronous_without_a_server(seed: int) -> None:
    alone, asgd = (simulate(FREE, p, seed) for p in ("p_reduce:p=1", "asgd"))
    for column in ("time", "version", "members", "samples", "staleness_mean"):
        assert alone.updates[column] == asgd.updates[column], column


@pytest.mark.parametrize("theta", ["0.7", "1.1"])
def test_a_deadline_saves_time_and_costs_samples_of_the_slowest(theta: str) -> None:
    """As many updates under the same luck: none is later, and the samples are fewer."""
    world = scenario(samples=None, updates=40, microbatches=8, **COSTLY)
    cut, whole = (simulate(world, p) for p in (f"dropcompute:theta={theta}", "bsp"))
    assert cut.summary["makespan"] < whole.summary["makespan"]
    assert cut.summary["samples"] < whole.summary["samples"]
    assert cut.summary["applied"] == whole.summary["applied"] == 40 * N


def test_dropcompute_measures_itself_and_then_gains_throughput() -> None:
    """With steps as uneven as cv 0.3 makes them, and once 50 of them have been measured."""
    world = scenario(rounds=200, trace=None, microbatches=12, **COSTLY)
    own, bsp = (simulate(world, p).summary for p in ("dropcompute", "bsp"))
    assert own["throughput"] > bsp["throughput"]
    assert own["architecture"] == "all-reduce"


# -- lateness that costs nothing, cutoffs that do


@pytest.mark.parametrize("seed", range(3))
def test_lgc_loses_no_gradient(seed: int) -> None:
    summary = simulate(CONTENDED, "lgc", seed).summary
    assert summary["dropped"] == summary["aborted"] == 0
    assert summary["staleness_by_rank"][0] > summary["staleness_by_rank"][3]


@pytest.mark.parametrize("seed", range(3))
def test_ringmaster_applies_nothing_as_stale_as_its_threshold(seed: int) -> None:
    for r in (2, 4, 2 * N):
        run = simulate(CONTENDED, f"ringmaster:r={r}", seed)
        assert max(run.updates["staleness_max"]) < r
    assert run.summary["dropped"] < run.summary["applied"] / 20
    assert simulate(CONTENDED, "ringmaster", seed).updates == run.updates


@pytest.mark.parametrize("seed", range(3))
def test_ringmaster_by_default_drops_hardly_anything_where_nobody_straggles(seed: int) -> None:
    """Less than 1 % of the gradients, though steps are as uneven as cv 0.3 makes them."""
    summary = simulate(scenario(rounds=100, trace=None), "ringmaster", seed).summary
    assert summary["dropped"] < 0.01 * summary["applied"]


# -- what the noise-scale learner cannot tell

UNMODELLED = {
    "p_reduce": "averages private models",
    "local_sgd": "averages private models",
    "backup:weigh=members": "weighs gradients by the members",
    "staleness_lr": "damps stale gradients",
    "diloco": "an outer optimizer steps by the average",
    "dc_asgd": "compensates stale gradients",
    "zeno": "screens gradients by a test",
}
MODELLED = ["bsp", "asgd", "backup", "lgc", "eager_sgd", "ringmaster", "dropcompute:theta=0.9"]


@pytest.mark.parametrize("policy", UNMODELLED)
def test_progress_is_null_where_the_formula_does_not_hold(policy: str) -> None:
    assert UNMODELLED[policy] in (unmodelled(plan_of(policy)) or "")
    run = simulate(CONTENDED, policy)
    assert set(run.updates["progress"]) == {None}
    assert {run.summary[name] for name in OF_PROGRESS} == {None}
    assert run.summary["makespan"] > 0


def test_rounds_are_not_modelled_either() -> None:
    rounds = Plan((Quorum(via=Via.LEADER, rounds=2),))
    assert "models of their own between two updates" in (unmodelled(rounds) or "")
    assert simulate(CONTENDED, Fixed(rounds)).summary["progress"] is None


@pytest.mark.parametrize("policy", MODELLED)
def test_progress_is_told_where_it_holds(policy: str) -> None:
    assert unmodelled(plan_of(policy)) is None
    assert simulate(CONTENDED, policy).summary["progress"] > 0


@pytest.mark.parametrize("policy", UNMODELLED)
def test_a_target_that_cannot_be_measured_is_refused_before_anything_happens(policy: str) -> None:
    world = scenario(target_progress=3.0)
    with pytest.raises(PlanError, match=f"policy {policy} .*{UNMODELLED[policy]}") as caught:
        simulate(world, policy)
    assert "train for real" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted({"p_reduce", "local_sgd", "staleness_lr"} & {*names()}))
def test_samples_alone_are_a_goal_for_everybody(name: str) -> None:
    assert simulate(CONTENDED, name).summary["samples"] >= 24 * N * BATCH


def test_members_weigh_a_full_step_together() -> None:
    table = simulate(CONTENDED, "backup:b=2,weigh=members", record_gradients=True).frame(
        "gradients"
    )
    sums = table[table["fate"] == "applied"].groupby("update")["weight"].sum()
    assert sums.to_numpy() == pytest.approx(1.0)
    assert plan_of("backup:weigh=members").weigh is Weigh.MEMBERS
