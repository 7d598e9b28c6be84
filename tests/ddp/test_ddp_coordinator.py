"""Decisions of the server in plain numbers: commands to ranks, and updates."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from simstrag import policies
from simstrag.contract import (
    Compensation,
    Damping,
    Hints,
    Late,
    Outer,
    Plan,
    Quorum,
    Review,
    Screen,
    Via,
    View,
    Weigh,
)
from simstrag.ddp.policy_support import plan_obstacle
from simstrag.ddp.server.coordinator import Coordinator
from simstrag.ddp.server.messages import (
    Abort,
    Apply,
    Command,
    Compute,
    Deliver,
    Finish,
    GradientRoute,
    Handover,
    Keep,
    Reduce,
)
from simstrag.ddp.server.worker_state import (
    ReducedSum,
    gradient_weights,
    is_fixed,
    model_weights,
    rescale,
)
from simstrag.engine.live import Live
from simstrag.errors import PlanError

BATCH = 32
PUSH, READY, GROUP = GradientRoute
HINTS = Hints(batch=BATCH, samples=1 << 14, noise_scale=500)


@dataclass
class Planned:
    """Answers with one plan, and from a version on with another."""

    plans: tuple[Plan, ...]

    def plan(self, view: View) -> Plan:
        return self.plans[min(view.version, len(self.plans) - 1)]


def coordinate(plan: Any, world_size: int, **given: Any) -> Coordinator:
    policy = Planned((plan,)) if isinstance(plan, Plan) else plan
    live = Live(policy, world_size, BATCH, HINTS, fixed=is_fixed)
    return Coordinator(live, world_size, BATCH, **given)


def test_models_are_merged_only_where_all_begin_together() -> None:
    """The plan of everybody comes while one rank is left in a step on a model of its own."""
    pairs = policies.load("p_reduce:p=2").plan(View(3))
    plans = replace(pairs, review=Review(updates=1)), Plan()
    coordinator = coordinate(Planned(plans), 3, is_synchronous=lambda plan: not plan.average)

    def train() -> None:
        commands, at = deque(coordinator.begin()), 0.0
        while commands:
            command, at = commands.popleft(), at + 0.1
            if isinstance(command, Compute) and command.rank != 2:
                commands += coordinator.on_step(command.rank, command.step, at, 0.1, here=False)
            elif isinstance(command, Reduce):
                commands += coordinator.on_reduction(command.rank, command.closing, at)

    with pytest.raises(PlanError, match="averages models and then does not"):
        train()


EACH = Review(updates=1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Plan(average=True, review=EACH), Plan(average=True, outer=Outer(0.5))),
        (Plan(average=True, outer=Outer(0.7), review=EACH), Plan(average=True, outer=Outer(0.5))),
        (Plan(average=True, fragments=2, review=EACH), Plan(average=True, fragments=3)),
        (Plan(average=True, review=EACH), Plan((Quorum(via=Via.SERVER),), average=True)),
    ],
)
def test_averages_are_made_in_one_way_throughout(first: Plan, second: Plan) -> None:
    coordinator = coordinate(Planned((first, second)), 2)
    coordinator.begin()
    for rank in range(2):
        coordinator.on_step(rank, 0, 1.0, 1.0, here=False)
    coordinator.on_reduction(0, 1, 1.1)
    with pytest.raises(PlanError, match="changes in mid-run how models are averaged"):
        coordinator.on_reduction(1, 1, 1.1)


def test_averages_by_all_reduce_begin_at_all_ranks_together() -> None:
    """The first rank begins at update 1, while the other still computes a gradient."""
    plans = Plan((server(),), review=EACH), Plan((Quorum(steps=2),), average=True)
    coordinator = coordinate(Planned(plans), 2)
    coordinator.begin()
    coordinator.on_step(0, 0, 1.0, 1.0, here=True)
    coordinator.on_step(0, 1, 2.0, 1.0, here=False)
    coordinator.on_step(0, 2, 3.0, 1.0, here=False)
    with pytest.raises(PlanError, match="rank 1 enters at 0; all ranks must begin together"):
        coordinator.on_step(1, 0, 4.0, 4.0, here=True)


def test_a_rank_that_was_left_out_of_averages_by_all_reduce_does_not_go_on_from_its_old_model() -> (
    None
):
    both, alone = (Plan((Quorum(ranks),), average=True, review=EACH) for ranks in ((0, 1), (0,)))
    coordinator = coordinate(Planned((both, alone, both)), 2)
    coordinator.begin()
    for rank in range(2):
        coordinator.on_step(rank, 0, 1.0, 1.0, here=False)
    coordinator.on_reduction(0, 1, 1.1)
    commands = coordinator.on_reduction(1, 1, 1.1)
    assert brief(commands) == [("Apply", 1), ("Compute", 0, 1, 1)], "rank 1 is left out"
    coordinator.on_step(0, 1, 2.0, 1.0, here=False)
    with pytest.raises(PlanError, match="left rank 1 out of averages after update 1 and takes it"):
        coordinator.on_reduction(0, 2, 2.1)


def test_models_meet_the_outer_optimizer_of_the_plan_that_they_were_trained_under() -> None:
    first = Plan((server(),), average=True, outer=Outer(0.7), review=EACH)
    second = Plan((server(ranks=(1,)),), average=True, outer=Outer(0.5))
    coordinator = coordinate(Planned((first, second)), 2)
    coordinator.begin()
    (apply,) = coordinator.on_step(0, 0, 1.0, 1.0, here=True)
    assert isinstance(apply, Apply)
    assert apply.outer == Outer(0.7)


def server(count: int | None = 1, **given: Any) -> Quorum:
    return Quorum(count=count, via=Via.SERVER, **given)


def ended(seconds: dict[int, float]) -> dict[int, tuple[float, bool, float]]:
    """What a group's lowest rank says of its members; no norms are measured."""
    return {rank: (each, True, math.nan) for rank, each in seconds.items()}


def brief(commands: list[Command]) -> list[tuple[Any, ...]]:
    """Commands in brief: the name and what matters."""
    short: dict[type, Any] = {
        Compute: lambda o: (o.rank, o.step, o.version), Apply: lambda o: (o.version, *o.parts),
        Reduce: lambda o: (o.rank, o.closing, o.members), Abort: lambda o: (o.rank, o.step),
    }  # fmt: skip
    return [
        (type(command).__name__, *short.get(type(command), lambda o: (o.rank,))(command))
        for command in commands
    ]


# -- one story each ---------------------------------------------------------------------------


def test_under_asgd_each_gradient_is_applied_and_its_rank_goes_on() -> None:
    coordinator = coordinate(policies.load("asgd"), 2)
    assert brief(coordinator.begin()) == [("Compute", 0, 0, 0), ("Compute", 1, 0, 0)]
    commands = coordinator.on_step(1, 0, 0.5, 0.4, here=True)
    assert brief(commands) == [("Apply", 1, (1, 0.5)), ("Compute", 1, 1, 1)]
    (apply, compute) = commands
    assert isinstance(apply, Apply)
    assert isinstance(compute, Compute)
    assert apply.gradients == ((1, 0, 0, 0.5),)
    assert (compute.route, compute.samples, compute.pull) == (PUSH, BATCH, True)


def test_an_aborted_rank_goes_on_only_when_it_is_back_and_from_what_is_newest_then() -> None:
    coordinator = coordinate(Plan((server(2, late=Late.ABORT),)), 3)
    coordinator.begin()
    coordinator.on_step(0, 0, 1.0, 1.0, here=True)
    assert brief(coordinator.on_step(1, 0, 1.5, 1.5, here=True)) == [
        ("Abort", 2, 0), ("Apply", 1, (0, 1 / 3), (1, 1 / 3)),
        ("Compute", 0, 1, 1), ("Compute", 1, 1, 1),
    ]  # fmt: skip
    coordinator.on_step(0, 1, 2.0, 0.5, here=True)
    commands = brief(coordinator.on_step(1, 1, 2.5, 1.0, here=True))
    assert ("Abort", 2, 1) not in commands, "it was never told of step 1"
    assert brief(coordinator.on_withdrawal(2, 0, 2.6)) == [("Compute", 2, 2, 2)]


def test_a_gradient_that_crosses_its_abort_on_the_way_is_left_aside() -> None:
    coordinator = coordinate(Plan((server(1, late=Late.ABORT),)), 2)
    coordinator.begin()
    coordinator.on_step(0, 0, 1.0, 1.0, here=True)
    assert brief(coordinator.on_step(1, 0, 1.1, 1.1, here=True)) == [("Compute", 1, 1, 1)]


def test_parameters_are_kept_for_an_aborted_rank_that_others_leave_behind() -> None:
    groups = Quorum((0, 1), 1, Via.SERVER, Late.ABORT), Quorum((2,), via=Via.SERVER)
    coordinator = coordinate(Plan(groups), 3)
    coordinator.begin()
    coordinator.on_step(0, 0, 1.0, 1.0, here=True)
    commands = brief(coordinator.on_step(2, 0, 1.5, 1.5, here=True))
    assert commands == [("Keep", 1), ("Apply", 2, (2, 1 / 3)), ("Compute", 2, 1, 2)]
    assert brief(coordinator.on_withdrawal(1, 0, 1.6)) == [("Compute", 1, 1, 1)]


def test_a_dropped_rank_goes_on_at_its_own_finish() -> None:
    coordinator = coordinate(Plan((server(1, late=Late.DROP),)), 2)
    coordinator.begin()
    coordinator.on_step(0, 0, 1.0, 1.0, here=True)
    assert brief(coordinator.on_step(1, 0, 1.5, 1.5, here=True)) == [("Compute", 1, 1, 1)]


def test_a_window_closes_an_all_reduce_with_who_is_there() -> None:
    coordinator = coordinate(Plan((Quorum(window=0.5),)), 3)
    assert [o.route for o in coordinator.begin() if isinstance(o, Compute)] == [READY] * 3
    coordinator.on_step(0, 0, 1.0, 1.0, here=False)
    coordinator.on_step(2, 0, 1.2, 1.2, here=False)
    assert coordinator.expiry == 1.5
    assert brief(coordinator.on_time(1.5)) == [("Reduce", 0, 1, (0, 2)), ("Reduce", 2, 1, (0, 2))]
    assert coordinator.on_reduction(2, 1, 1.6) == []
    assert brief(coordinator.on_reduction(0, 1, 1.7)) == [
        ("Apply", 1, (0, 1.0)), ("Compute", 0, 1, 1), ("Compute", 2, 1, 1),
    ]  # fmt: skip


def test_an_all_reduce_whose_member_dies_is_done_again_without_it() -> None:
    coordinator = coordinate(Plan((Quorum(window=0.5),)), 3)
    coordinator.begin()
    for rank in range(3):
        commands = coordinator.on_step(rank, 0, 1.0, 1.0, here=False)
    assert len(commands) == 3
    assert coordinator.on_failure(2, 1.1, closing=1) == []
    assert coordinator.on_reduction(0, 1, 1.1) == []
    assert brief(coordinator.on_loss(1, 1.2)) == [
        ("Reduce", 0, 1, (0, 2)),
        ("Reduce", 2, 1, (0, 2)),
    ]
    coordinator.on_reduction(0, 1, 1.3)
    apply, *computes = coordinator.on_reduction(2, 1, 1.3)
    assert isinstance(apply, Apply)
    assert (apply.parts, apply.missing) == (((0, 1.0),), (1,))
    assert brief(computes) == [("Compute", 0, 1, 1), ("Compute", 2, 1, 1)]


OVERLAPPED = Plan((Quorum(steps=2, overlap=1),), average=True)


def prepare(coordinator: Coordinator, *ranks: int) -> list[Command]:
    """Ranks end their first contributions, and run on; what follows from the last of them."""
    commands: list[Command] = []
    for rank in ranks:
        work = coordinator._workers[rank].work
        assert work is not None
        assert work.prepares
        compute, *commands = coordinator.on_step(rank, 0, 1.0, 1.0, here=False)
        assert brief([compute]) == [("Compute", rank, 1, 0)]
    return commands


def test_a_rank_goes_on_beside_an_all_reduce_and_then_waits_for_its_update() -> None:
    coordinator = coordinate(OVERLAPPED, 2)
    coordinator.begin()
    reduces = [each for each in prepare(coordinator, 0, 1) if isinstance(each, Reduce)]
    assert [(each.rank, each.weights, each.beside) for each in reduces] == [
        (0, (0.5, 0.5), True), (1, (0.5, 0.5), True),
    ]  # fmt: skip
    assert coordinator.on_step(0, 1, 2.0, 1.0, here=False) == [], "it waits"
    assert coordinator.on_reduction(0, 1, 2.5) == []
    assert brief(coordinator.on_reduction(1, 1, 3.0)) == [("Apply", 1), ("Compute", 0, 2, 1)]
    assert brief(coordinator.on_step(1, 1, 4.0, 1.0, here=False)) == [("Compute", 1, 2, 1)]


def test_what_a_rank_ran_on_counts_in_its_next_average_alone() -> None:
    """Shares change after the first contribution, 48 samples at rank 0 and 16 at rank 1."""
    plans = [
        replace(OVERLAPPED, quorums=(Quorum(steps=3, overlap=1),), batch=shares, review=EACH)
        for shares in ((1.5, 0.5), (0.5, 1.5))
    ]
    coordinator = coordinate(Planned(tuple(plans)), 2)
    coordinator.begin()
    weights: list[tuple[float, ...]] = []
    for step in range(6):
        commands = [
            each for rank in range(2)
            for each in coordinator.on_step(rank, step, float(step), 1.0, here=False)
        ]  # fmt: skip
        for each in commands:
            if isinstance(each, Reduce):
                weights.append(each.weights)
                coordinator.on_reduction(each.rank, each.closing, step + 0.5)
    own = 48 + 16 + 16, 16 + 48 + 48
    assert weights[:2] == [(0.75, 0.25)] * 2
    assert weights[2:] == [tuple(n / sum(own) for n in own)] * 2


def test_an_all_reduce_beside_steps_is_done_again_without_a_rank_that_died() -> None:
    coordinator = coordinate(OVERLAPPED, 3)
    coordinator.begin()
    prepare(coordinator, 0, 1, 2)
    coordinator.on_failure(0, 1.1, closing=1)
    coordinator.on_failure(1, 1.1, closing=1)
    reduces = coordinator.on_loss(2, 1.2)
    assert brief(reduces) == [("Reduce", 0, 1, (0, 1)), ("Reduce", 1, 1, (0, 1))]
    assert [each.again for each in reduces if isinstance(each, Reduce)] == [True, True]
    coordinator.on_reduction(0, 1, 1.5)
    (apply,) = coordinator.on_reduction(1, 1, 1.5)
    assert isinstance(apply, Apply)
    assert (apply.missing, len(apply.gradients)) == ((2,), 3)


def sum_of_the_first_two(*left: int) -> Coordinator:
    """Rank 2 of 3 still computes when the sum of the others is over; `left` have run on."""
    plan = Plan((Quorum(count=2, steps=2, overlap=1),), average=True, fragments=2)
    coordinator = coordinate(plan, 3)
    coordinator.begin()
    reduces = [each for each in prepare(coordinator, 0, 1) if isinstance(each, Reduce)]
    assert [(each.members, each.beside) for each in reduces] == [((0, 1), True)] * 2
    for rank in left:
        assert coordinator.on_step(rank, 1, 1.5, 0.5, here=False) == [], "it waits"
    assert coordinator.on_reduction(0, 1, 2.0) == []
    return coordinator


def test_the_server_asks_a_rank_that_waits_for_the_sum_of_some() -> None:
    commands = sum_of_the_first_two(1).on_reduction(1, 1, 2.0)
    assert commands == [Deliver(1, closing=1)]


def test_the_server_asks_the_first_that_has_run_on_for_the_sum_of_some() -> None:
    coordinator = sum_of_the_first_two()
    assert coordinator.on_reduction(1, 1, 2.0) == []
    assert coordinator.on_step(1, 1, 2.5, 1.5, here=False) == [Deliver(1, closing=1)]
    assert brief(coordinator.on_step(2, 0, 2.6, 2.6, here=False)) == [("Compute", 2, 1, 0)]
    apply, compute = coordinator.on_delivery(1, 2.7, closing=1)
    assert isinstance(apply, Apply)
    assert isinstance(compute, Compute)
    assert (apply.parts, apply.fragments) == (((1, 1.0),), 2)
    assert (compute.pull, compute.takes, compute.version) == (True, 0, 1)


def test_the_sum_of_some_is_asked_of_another_where_a_rank_dies() -> None:
    coordinator = sum_of_the_first_two(0, 1)
    assert coordinator.on_reduction(1, 1, 2.0) == [Deliver(0, closing=1)]
    assert Deliver(1, closing=1) in coordinator.on_loss(0, 2.1)


def test_an_average_of_a_fragment_waits_for_those_that_began_before() -> None:
    plan = Plan((Quorum(count=1, steps=2),), average=True, fragments=2)
    coordinator = coordinate(plan, 2)
    coordinator.begin()
    found = [
        each.fragment for rank in (0, 1) for step in (0, 1)
        for each in coordinator.on_step(rank, step, 1.0, 1.0, here=False)
        if isinstance(each, Reduce)
    ]  # fmt: skip
    assert found == [0, 1]
    assert coordinator.on_reduction(1, 2, 2.0) == []
    applied = [each for each in coordinator.on_reduction(0, 1, 3.0) if isinstance(each, Apply)]
    assert [(each.version, each.parts) for each in applied] == [(1, ((0, 1.0),)), (2, ((1, 1.0),))]


def test_an_all_reduce_that_only_the_dead_could_have_ended_is_done_again() -> None:
    coordinator = coordinate(Plan((Quorum(window=0.5),)), 2)
    coordinator.begin()
    coordinator.on_step(0, 0, 1.0, 1.0, here=False)
    coordinator.on_step(1, 0, 1.0, 1.0, here=False)
    coordinator.on_reduction(1, 1, 1.1)  # the sum was to come from rank 0
    assert brief(coordinator.on_loss(0, 1.2)) == [("Reduce", 1, 1, (1,))]


def test_an_all_reduce_that_fails_though_all_live_is_given_up_after_a_while() -> None:
    coordinator = coordinate(Plan((Quorum(window=0.5),)), 2)
    coordinator.begin()
    for rank in range(2):
        coordinator.on_step(rank, 0, 1.0, 1.0, here=False)
    for k in range(7):
        coordinator.on_failure(k % 2, 1.0 + k, closing=1)
    with pytest.raises(RuntimeError, match=r"ranks \[0, 1\] fails though all of them are alive"):
        coordinator.on_failure(1, 9.0, closing=1)


def test_models_are_averaged_among_those_who_live_with_weights_that_sum_to_1() -> None:
    coordinator = coordinate(Plan((Quorum(count=3),), average=True), 4)
    assert all(o.local and o.pull for o in coordinator.begin() if isinstance(o, Compute))
    for rank in range(3):
        commands = coordinator.on_step(rank, 0, 1.0, 1.0, here=False)
    assert {o.weights for o in commands if isinstance(o, Reduce)} == {(1 / 3,) * 3}
    coordinator.on_failure(0, 1.1, closing=1)
    coordinator.on_failure(1, 1.1, closing=1)
    again = coordinator.on_loss(2, 1.2)
    assert {o.weights for o in again if isinstance(o, Reduce)} == {(0.5, 0.5)}
    coordinator.on_reduction(0, 1, 1.3)
    apply, *computes = coordinator.on_reduction(1, 1, 1.3)
    assert isinstance(apply, Apply)
    assert apply.parts == ()
    assert [(o.pull, o.local) for o in computes if isinstance(o, Compute)] == [(False, True)] * 2


def test_a_rank_delivers_its_model_to_the_server_after_its_private_steps() -> None:
    coordinator = coordinate(Plan((server(1, steps=2),), average=True), 2)
    coordinator.begin()
    (private,) = coordinator.on_step(0, 0, 1.0, 1.0, here=False)
    assert isinstance(private, Compute)
    assert (private.pull, private.local, private.route) == (False, True, PUSH)
    assert brief(coordinator.on_step(0, 1, 2.0, 1.0, here=False)) == [("Deliver", 0)]
    apply, compute = coordinator.on_delivery(0, 2.1)
    assert isinstance(apply, Apply)
    assert isinstance(compute, Compute)
    assert (apply.parts, apply.outer) == (((0, 1.0),), Outer())
    assert (compute.pull, compute.local, compute.version) == (True, True, 1)


def test_a_grace_ends_at_its_time_without_those_who_are_late() -> None:
    coordinator = coordinate(Plan((server(1, grace=0.5),)), 3)
    coordinator.begin()
    assert coordinator.on_step(0, 0, 1.0, 1.0, here=True) == []
    assert coordinator.on_step(1, 0, 1.2, 1.2, here=True) == []
    assert coordinator.expiry == 1.5
    assert brief(coordinator.on_time(1.5))[0] == ("Apply", 1, (0, 1 / 3), (1, 1 / 3))


def test_the_others_keep_their_numbers_of_steps_where_a_rank_is_lost() -> None:
    coordinator = coordinate(Plan((Quorum(steps=(1, 2, 3)),), average=True), 3)
    coordinator.begin()
    coordinator.on_loss(0, 0.5)
    assert coordinator.live._rules.plan.quorums[0].steps == (2, 3)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan((Quorum(count=1, late=Late.DROP),), average=True), "cannot take back"),
        (Plan((Quorum(count=1),), average=True, damping=Damping(cutoff=1)), "cannot take back"),
        (Plan((Quorum((0,)), Quorum((1,), via=Via.SERVER)), average=True), "nor does a server"),
        (
            Plan((Quorum(via=Via.LEADER, rounds=2),), weigh=Weigh.MEMBERS),
            "a round does not know",
        ),
        (Plan(compensation=Compensation()), "needs each of them at the server"),
        (Plan(screen=Screen()), "needs each of them at the server"),
    ],
)
def test_a_plan_that_real_ranks_do_not_carry_out_says_why(plan: Plan, reason: str) -> None:
    assert reason in (plan_obstacle(plan) or "")


def test_a_group_sums_up_on_the_way_and_its_sum_is_one_part() -> None:
    plan = Plan(tuple(Quorum(ranks, via=Via.LEADER) for ranks in ((0, 2), (1,))))
    coordinator = coordinate(plan, 3)
    commands = [o for o in coordinator.begin() if isinstance(o, Compute)]
    assert [(o.route, o.members, o.weight) for o in commands] == [
        (GROUP, (0, 2), 1 / 3), (GROUP, (1,), 1 / 3), (GROUP, (0, 2), 1 / 3),
    ]  # fmt: skip
    assert brief(coordinator.on_group(0, 0, 1.0, ended({0: 0.9, 2: 1.0}))) == [
        ("Apply", 1, (0, 1.0)), ("Compute", 0, 1, 1), ("Compute", 2, 1, 1),
    ]  # fmt: skip


def test_a_group_whose_member_died_begins_its_step_anew_from_the_same_parameters() -> None:
    coordinator = coordinate(
        Plan((Quorum((0, 1, 2), via=Via.LEADER), Quorum((3,), via=Via.LEADER))), 4
    )
    coordinator.begin()
    assert coordinator.on_failure(0, 1.0) == []
    assert brief(coordinator.on_loss(1, 1.1)) == []
    commands = coordinator.on_failure(2, 1.2)
    assert brief(commands) == [("Compute", 0, 0, 0), ("Compute", 2, 0, 0)]
    assert {(o.route, o.pull) for o in commands if isinstance(o, Compute)} == {(READY, True)}


def test_a_group_that_was_told_to_be_another_waits_until_all_its_members_are_back() -> None:
    pairs = [((0, 1), (2, 3)), ((0, 2), (1, 3))]
    plans = tuple(
        Plan(tuple(Quorum(ranks, via=Via.LEADER) for ranks in own), review=Review(updates=1))
        for own in pairs
    )
    coordinator = coordinate(Planned(plans), 4)
    coordinator.begin()
    both = ended({0: 1.0, 1: 1.0})
    assert brief(coordinator.on_group(0, 0, 1.0, both)) == [("Apply", 1, (0, 1.0))]
    _, *commands = coordinator.on_group(2, 0, 1.5, ended({2: 1.5, 3: 1.5}))
    assert [(o.rank, o.members) for o in commands if isinstance(o, Compute)] == [
        (0, (0, 2)), (1, (1, 3)), (2, (0, 2)), (3, (1, 3)),
    ]  # fmt: skip


def test_a_rank_that_computes_takes_part_in_a_partial_all_reduce_with_nothing() -> None:
    coordinator = coordinate(policies.load("eager_sgd:start=solo"), 3)
    coordinator.begin()
    reduces = coordinator.on_step(1, 0, 1.0, 1.0, here=False)
    assert [
        (each.rank, each.members, each.weights, each.beside)
        for each in reduces if isinstance(each, Reduce)
    ] == [(rank, (0, 1, 2), (0.0, 1 / 3, 0.0), True) for rank in range(3)]  # fmt: skip
    assert coordinator.on_reduction(1, 1, 1.1) == []
    assert coordinator.on_reduction(0, 1, 1.2) == []
    assert coordinator.on_reduction(2, 1, 1.3) == [Deliver(1, closing=1)]
    commands = coordinator.on_delivery(1, 1.4, closing=1)
    assert brief(commands) == [("Apply", 1, (1, 1.0)), ("Compute", 1, 1, 1)]


# -- groups with rounds -------------------------------------------------------------------------


def leading(ranks: tuple[int, ...], rounds: int = 1) -> Quorum:
    return Quorum(ranks, via=Via.LEADER, rounds=rounds)


def sum_up(coordinator: Coordinator, step: int, *ranks: int) -> list[Command]:
    """Ranks end a step, and the all-reduce that follows; what comes of the last of them."""
    commands: list[Command] = []
    for rank in ranks:
        commands = coordinator.on_step(rank, step, step + 1.0, 1.0, here=False)
    for reduce in commands:
        assert isinstance(reduce, Reduce)
        commands = coordinator.on_reduction(reduce.rank, reduce.closing, step + 1.5)
    return commands


def test_a_group_with_rounds_sends_one_sum_after_its_last() -> None:
    coordinator = coordinate(Plan((leading((0, 1), rounds=2), leading((2,)))), 3)
    assert [each.route for each in coordinator.begin() if isinstance(each, Compute)] == [
        READY, READY, GROUP,
    ]  # fmt: skip
    again = [each for each in sum_up(coordinator, 0, 0, 1) if isinstance(each, Compute)]
    assert [(each.rank, each.version, each.pull, each.is_round) for each in again] == [
        (0, 0, False, True), (1, 0, False, True),
    ]  # fmt: skip
    assert sum_up(coordinator, 1, 0, 1) == [Deliver(0, closing=2)]
    apply, *_ = coordinator.on_delivery(0, 3.0, closing=2)
    assert isinstance(apply, Apply)
    assert apply.parts == ((0, 1.0),)
    assert [gradient[:2] for gradient in apply.gradients] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_group_whose_members_change_in_its_rounds_sends_what_each_has_kept() -> None:
    first = Plan((leading((0, 1), rounds=2), leading((2,), rounds=3)), review=EACH)
    coordinator = coordinate(Planned((first, Plan((leading((0, 1, 2), rounds=2),)))), 3)
    coordinator.begin()
    sum_up(coordinator, 0, 0, 1)
    for step in range(3):
        commands = sum_up(coordinator, step, 2)
    assert commands == [Deliver(2, closing=4)]
    coordinator.on_delivery(2, 4.0, closing=4)
    coordinator.on_step(2, 3, 5.0, 1.0, here=False)
    assert sum_up(coordinator, 1, 0, 1) == [Deliver(0), Deliver(1), Deliver(2)]
    commands = [each for rank in range(3) for each in coordinator.on_delivery(rank, 6.0)]
    (apply,) = [each for each in commands if isinstance(each, Apply)]
    assert apply.parts == ((0, 2 / 3), (1, 2 / 3), (2, 1 / 3))


def test_a_group_does_not_wait_in_backward_for_a_rank_that_computes_outside_of_it() -> None:
    alone = Plan((leading((0, 1), rounds=3), leading((2,))), review=EACH)
    coordinator = coordinate(Planned((alone, Plan((leading((0, 1, 2)),)))), 3)
    coordinator.begin()
    _, compute = coordinator.on_group(2, 0, 1.0, ended({2: 1.0}))
    assert isinstance(compute, Compute)
    assert (compute.rank, compute.route, compute.members) == (2, READY, ())


def test_a_gradient_that_was_kept_is_asked_for_and_all_else_waits_for_it() -> None:
    plans = Plan((Quorum(count=2),), review=Review(updates=1)), Plan((server(None),))
    coordinator = coordinate(Planned(plans), 3)
    coordinator.begin()
    for rank in range(3):
        coordinator.on_step(rank, 0, 1.0, 1.0, here=False)
    coordinator.on_reduction(0, 1, 1.1)
    coordinator.on_reduction(1, 1, 1.1)
    coordinator.on_step(0, 1, 2.0, 0.9, here=True)
    assert brief(coordinator.on_step(1, 1, 2.0, 0.9, here=True)) == [("Deliver", 2)]
    assert brief(coordinator.on_delivery(2, 2.1))[0][:2] == ("Apply", 2)


def test_a_gradient_that_died_with_its_rank_before_it_was_sent_is_missing() -> None:
    plans = Plan((Quorum(count=2),), review=Review(updates=1)), Plan((server(None),))
    coordinator = coordinate(Planned(plans), 3)
    coordinator.begin()
    for rank in range(3):
        coordinator.on_step(rank, 0, 1.0, 1.0, here=False)
    coordinator.on_reduction(0, 1, 1.1)
    coordinator.on_reduction(1, 1, 1.1)
    coordinator.on_step(0, 1, 2.0, 0.9, here=True)
    assert brief(coordinator.on_step(1, 1, 2.0, 0.9, here=True)) == [("Deliver", 2)]
    apply, *_ = coordinator.on_loss(2, 2.1)
    assert isinstance(apply, Apply)
    assert (apply.missing, [rank for rank, _ in apply.parts]) == ((2,), [0, 1])


def test_a_rider_that_is_ready_takes_part_and_one_that_is_not_is_not_awaited() -> None:
    coordinator = coordinate(Plan((Quorum((0, 1), riders=((2, 0), (3, 1))),)), 4)
    coordinator.begin()
    coordinator.on_step(2, 0, 0.5, 0.5, here=False)
    coordinator.on_step(0, 0, 1.0, 1.0, here=False)
    commands = coordinator.on_step(1, 0, 1.5, 1.5, here=False)
    assert brief(commands) == [("Reduce", rank, 1, (0, 1, 2)) for rank in (0, 1, 2)]
    for rank in (1, 2, 0):
        commands = coordinator.on_reduction(rank, 1, 2.0)
    assert brief(commands) == [
        ("Apply", 1, (0, 1.0)), *(("Compute", rank, 1, 1) for rank in (0, 1, 2)),
    ]  # fmt: skip


def in_pairs() -> Coordinator:
    """Ranks 0 and 1, and 2 and 3, send one message each; that of 0 and 1 has come."""
    coordinator = coordinate(Plan((server(None, parents=((1, 0), (3, 2))),)), 4)
    begun = [command for command in coordinator.begin() if isinstance(command, Compute)]
    assert [(each.route, each.members) for each in begun] == [
        (GROUP, (0, 1)), (GROUP, (0, 1)), (GROUP, (2, 3)), (GROUP, (2, 3)),
    ]  # fmt: skip
    assert coordinator.on_group(0, 0, 1.0, ended({0: 0.9, 1: 1.0})) == []
    return coordinator


def test_the_groups_of_a_tree_send_their_sums() -> None:
    commands = in_pairs().on_group(2, 0, 2.0, ended({2: 1.9, 3: 2.0}))
    assert brief(commands) == [
        ("Apply", 1, (0, 1.0), (2, 1.0)), *(("Compute", rank, 1, 1) for rank in range(4)),
    ]  # fmt: skip


@pytest.mark.parametrize("lost", [0, 1])
def test_the_sum_of_a_tree_counts_where_a_rank_of_it_died_since(lost: int) -> None:
    coordinator = in_pairs()
    assert coordinator.on_loss(lost, 1.5) == []
    apply, *others = coordinator.on_group(2, 0, 2.0, ended({2: 1.9, 3: 2.0}))
    assert isinstance(apply, Apply)
    assert apply.parts == ((0, 1.0), (2, 1.0))
    assert [rank for rank, *_ in apply.gradients] == [rank for rank in range(4) if rank != lost]
    assert brief(others) == [("Compute", rank, 1, 1) for rank in range(4) if rank != lost]


def test_gradients_that_are_not_finite_are_booked_and_left_out() -> None:
    coordinator = coordinate(Plan((server(None),)), 3)
    coordinator.begin()
    coordinator.on_step(0, 0, 1.0, 1.0, here=True, finite=False)
    coordinator.on_step(1, 0, 1.0, 1.0, here=True)
    apply, *_ = coordinator.on_step(2, 0, 1.0, 1.0, here=True, finite=False)
    assert isinstance(apply, Apply)
    assert (apply.parts, apply.missing) == (((1, 1 / 3),), (0, 2))
    assert len(apply.gradients) == 3


def test_all_are_let_go_together_at_the_first_update_under_a_plan_that_needs_no_server() -> None:
    asgd = Plan((server(1),), review=Review(updates=1))
    coordinator = coordinate(
        Planned((asgd, Plan())), 2, is_synchronous=lambda plan: plan == synchronous
    )
    synchronous = Plan().resolved(2)
    coordinator.begin()
    assert brief(coordinator.on_step(0, 0, 1.0, 1.0, here=True))[1:] == [("Compute", 0, 1, 1)]
    coordinator.on_step(1, 0, 1.5, 1.5, here=True)  # of the old plan, filed under the new one
    commands = coordinator.on_step(0, 1, 2.0, 1.0, here=False)
    while reduces := [o for o in commands if isinstance(o, Reduce)]:
        for command in reduces:
            commands = coordinator.on_reduction(command.rank, command.closing, 3.0)
    assert [type(o) for o in commands] == [Apply, Handover, Handover]
    assert isinstance(commands[-1], Handover)
    assert commands[-1].facts["version"] == 2
    assert coordinator.over


def test_a_rank_that_the_plan_leaves_out_is_told_when_the_others_have_left() -> None:
    coordinator = coordinate(Plan((Quorum((0,), via=Via.SERVER),)), 2)
    coordinator.begin()
    assert brief(coordinator.on_loss(0, 1.0)) == [("Finish", 1)]
    assert coordinator.on_loss(1, 2.0) == []
    assert coordinator.over


def test_the_last_to_leave_leaves_nothing_to_decide() -> None:
    coordinator = coordinate(policies.load("asgd"), 2)
    coordinator.begin()
    assert coordinator.on_loss(0, 1.0) == []
    assert coordinator.on_loss(1, 2.0) == []
    assert coordinator.over
    assert coordinator.expiry == math.inf


def test_a_policy_that_fails_when_a_rank_is_lost_is_not_taken_for_the_end() -> None:
    class Failing:
        def plan(self, view: View) -> Plan:
            assert view.version == 0, "a mistake of the policy"
            return Plan((Quorum(via=Via.SERVER),), review=Review(updates=1))

    coordinator = coordinate(Failing(), 3)
    coordinator.begin()
    for rank in (0, 1):
        coordinator.on_step(rank, 0, 1.0, 1.0, here=True)
    with pytest.raises(PlanError, match="a mistake of the policy"):
        coordinator.on_loss(2, 2.0)


@pytest.mark.parametrize(
    "said", [lambda d: d.on_step(0, 5, 1.0, 1.0, here=True), lambda d: d.on_withdrawal(0, 0, 1.0)]
)
def test_what_nobody_asked_for_costs_a_rank_its_place(said: Any) -> None:
    coordinator = coordinate(policies.load("asgd"), 2)
    coordinator.begin()
    with pytest.raises(ConnectionError, match="rank 0"):
        said(coordinator)


# -- weights ----------------------------------------------------------------------------------


def test_weights_of_an_all_reduce() -> None:
    samples, versions = {0: 24, 1: 40, 2: 32}, {0: 7, 1: 7, 2: 5}
    assert gradient_weights(Plan(), samples, versions, 7, 128) == {
        0: 24 / 128,
        1: 40 / 128,
        2: 32 / 128,
    }
    mean = Plan(weigh=Weigh.MEMBERS)
    assert gradient_weights(mean, samples, versions, 7, 128) == {0: 24 / 96, 1: 40 / 96, 2: 32 / 96}
    damped = Plan(damping=Damping(power=1.0))
    assert gradient_weights(damped, samples, versions, 7, 128)[2] == 32 / 128 / 2
    cut = Plan(weigh=Weigh.MEMBERS, damping=Damping(cutoff=2))
    assert gradient_weights(cut, samples, versions, 7, 128) == {0: 24 / 64, 1: 40 / 64, 2: 0.0}
    assert model_weights(samples)[1] == 40 / 96


def test_a_sum_is_scaled_where_one_factor_does_it_and_refused_where_none_does() -> None:
    whole = ReducedSum(0, (0, 1), {0: 0.25, 1: 0.5}, average=False)
    assert rescale(whole, {0: 0.25, 1: 0.5}) == 1.0
    assert rescale(whole, {0: 0.125, 1: 0.25}) == 0.5
    for booked in ({0: 0.125, 1: 0.5}, {0: 0.25}):
        with pytest.raises(PlanError, match="use via=server with such a damping"):
            rescale(whole, booked)


# -- all policies -----------------------------------------------------------------------------


@dataclass
class World:
    """Ranks that take drawn seconds for a step, and notice an abort after a while."""

    coordinator: Coordinator
    luck: np.random.Generator
    now: float = 0.0
    coming: list[tuple[float, int, int, str]] = field(default_factory=list)
    away: dict[int, Compute] = field(default_factory=dict)
    stopped: set[tuple[int, int]] = field(default_factory=set)
    commanded_weights: dict[int, float] = field(default_factory=dict)
    applied: list[Apply] = field(default_factory=list)
    aborts: int = 0
    paces: dict[int, float] = field(default_factory=dict)

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Compute():
                    assert command.rank not in self.away, "a command to a rank that is away"
                    self.away[command.rank] = command
                    pace = self.paces.setdefault(command.rank, self.luck.uniform(0.8, 2.5))
                    self.come(
                        command.rank, command.step, "back", pace * self.luck.lognormal(0, 0.2)
                    )
                case Abort():
                    self.aborts += 1
                    self.stopped.add((command.rank, command.step))
                    self.come(command.rank, command.step, "withdrawn", self.luck.uniform(0, 0.5))
                case Reduce():
                    self.commanded_weights[command.rank] = command.weights[
                        command.members.index(command.rank)
                    ]
                    self.come(command.rank, command.closing, "reduced", self.luck.uniform(0, 0.3))
                case Deliver(rank, closing):
                    self.come(rank, closing or 0, "delivered", self.luck.uniform(0, 0.3))
                case Apply():
                    assert command.version == len(self.applied) + 1
                    self.applied.append(command)
                case Keep() | Finish() | Handover():
                    pass

    def come(self, rank: int, number: int, what: str, seconds: float) -> None:
        heapq.heappush(self.coming, (self.now + seconds, rank, number, what))

    def go_on(self) -> None:
        if self.coordinator.expiry < (self.coming[0][0] if self.coming else math.inf):
            self.now = self.coordinator.expiry
            self.obey(self.coordinator.on_time(self.now))
            return
        self.now, rank, number, what = heapq.heappop(self.coming)
        coordinator, work = self.coordinator, self.away.get(rank)
        if what in {"back", "withdrawn"}:
            if work is None or work.step != number:
                return  # it was the other of the two
            if what == "withdrawn" or work.route is not GROUP:
                del self.away[rank]
        match what:
            case "reduced":
                self.obey(coordinator.on_reduction(rank, number, self.now))
            case "delivered":
                self.obey(coordinator.on_delivery(rank, self.now, number or None))
            case "withdrawn":
                self.obey(coordinator.on_withdrawal(rank, number, self.now))
            case "back" if work is not None and work.route is GROUP:
                if rank == work.members[0]:  # as if it were the last
                    steps = {other: self.away.pop(other).step for other in work.members}
                    assert set(steps) == set(work.members)
                    times = ended(dict.fromkeys(work.members, 1.0))
                    self.obey(coordinator.on_group(rank, number, self.now, times))
            case "back":
                here = work is not None and work.route is PUSH
                self.obey(coordinator.on_step(rank, number, self.now, 1.0, here=here))


PLANS = {
    "window": Plan((Quorum(window=0.4),)),
    "counted": Plan((Quorum(count=2, late=Late.DROP),), weigh=Weigh.MEMBERS),
    "unequal": Plan((Quorum(window=0.4),), batch=(0.5, 1.0, 1.0, 1.5), weigh=Weigh.MEMBERS),
    "grace": Plan((Quorum(count=2, grace=0.2),)),
    "own steps": Plan((Quorum(steps=(1, 2, 3, 2)),), average=True),
    "models at the server": Plan((server(2, steps=2),), average=True),
    "mean of groups": Plan(
        tuple(Quorum(ranks, via=Via.LEADER) for ranks in ((0, 3), (1, 2))), weigh=Weigh.MEMBERS
    ),
}
SPECS = (
    "bsp:via=server", "asgd", "ssp:bound=1", "backup:b=1", "backup:b=1,late=drop", "k_async:x=2",
    "lgc", "cgp", "cgp:groups=window", "cgp:groups=rounds,every=2", "local_sgd:h=3",
    "p_reduce:p=2,window=0.05", "star_ring",
    "star_dynamic", "star_h", "ringmaster", "staleness_lr", "dssp", "sync_switch", "korel",
    "lb_bsp", "drain:window=1,probe=1,wait=4,checks=1", "hot_spare:window=1,checks=1,rest=4",
    "fewer", "tree", "tree:fan=3", "diloco:h=3", "streaming_diloco:h=6,p=2,tau=1",
    "streaming_diloco:h=6,p=2,tau=2", "decoupled_diloco:h=6,p=2,tau=2",
    "decoupled_diloco:k=1,h=4,grace=0.2", "eager_sgd", "eager_sgd:start=solo", *PLANS,
)  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_every_policy_trains_and_sums_weigh_what_the_books_say(spec: str) -> None:
    policy = PLANS[spec] if spec in PLANS else policies.load(spec)
    world = World(coordinate(policy, 4), np.random.default_rng(7))
    world.obey(world.coordinator.begin())
    kept = spec == "cgp:groups=rounds,every=2"  # booked weights are those of several sums
    while len(world.applied) < 150:
        before = len(world.applied)
        world.go_on()
        for apply in world.applied[before:]:
            roots, weights = dict(apply.parts), Counter[int]()
            for rank, _, _, weight in apply.gradients:
                weights[rank] += weight
            for rank, weight in weights.items():
                if rank in roots and rank not in world.commanded_weights:
                    assert roots[rank] in {weight, 1.0} or spec in {"cgp", "mean of groups"}
                elif rank in world.commanded_weights and not (
                    world.coordinator.live.plan.average or kept
                ):
                    assert world.commanded_weights[rank] == pytest.approx(weight, rel=1e-12)
    assert world.aborts > 0 or spec != "backup:b=1"
