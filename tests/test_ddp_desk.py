"""What the server decides, told with plain numbers: orders to ranks, and what is applied."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from simstrag import policies
from simstrag.ddp.server.coordinator import Desk
from simstrag.ddp.server.gradient_weights import Sum, averaged, factor_of, weights
from simstrag.ddp.server.messages import (
    Abort,
    Apply,
    Compute,
    Deliver,
    Finish,
    Handover,
    How,
    Keep,
    Order,
    Reduce,
)
from simstrag.ddp.server.worker_state import is_fixed
from simstrag.engine.live import Live
from simstrag.errors import PlanError
from simstrag.policy import Damping, Hints, Late, Plan, Quorum, Review, Via, View, Weigh

BATCH = 32
HINTS = Hints(batch=BATCH, samples=1 << 14, noise_scale=500)


@dataclass
class Planned:
    """Answers with one plan, and from a version on with another."""

    plans: tuple[Plan, ...]

    def plan(self, view: View) -> Plan:
        return self.plans[min(view.version, len(self.plans) - 1)]


def desk_of(plan: Any, world_size: int, **given: Any) -> Desk:
    policy = Planned((plan,)) if isinstance(plan, Plan) else plan
    live = Live(policy, world_size, BATCH, HINTS, fixed=is_fixed)
    return Desk(live, world_size, BATCH, **given)


def test_models_are_merged_only_where_all_begin_together() -> None:
    """The plan of everybody comes while one rank is left in a step on a model of its own."""
    pairs = policies.load("p_reduce:p=2").plan(View(3))
    plans = replace(pairs, review=Review(updates=1)), Plan()
    desk = desk_of(Planned(plans), 3, is_synchronous=lambda plan: not plan.average)

    def train() -> None:
        orders, at = deque(desk.begin()), 0.0
        while orders:
            order, at = orders.popleft(), at + 0.1
            if isinstance(order, Compute) and order.rank != 2:
                orders += desk.done(order.rank, order.step, at, 0.1, here=False)
            elif isinstance(order, Reduce):
                orders += desk.reduced(order.rank, order.closing, at)

    with pytest.raises(PlanError, match="averages models and then does not"):
        train()


def server(count: int | None = 1, **given: Any) -> Quorum:
    return Quorum(count=count, via=Via.SERVER, **given)


def told(orders: list[Order]) -> list[tuple[Any, ...]]:
    """Orders in short: the name and what matters."""
    short: dict[type, Any] = {
        Compute: lambda o: (o.rank, o.step, o.version), Apply: lambda o: (o.version, *o.parts),
        Reduce: lambda o: (o.rank, o.closing, o.members), Abort: lambda o: (o.rank, o.step),
    }  # fmt: skip
    return [
        (type(order).__name__, *short.get(type(order), lambda o: (o.rank,))(order))
        for order in orders
    ]


# -- one story each ---------------------------------------------------------------------------


def test_under_asgd_each_gradient_is_applied_and_its_rank_goes_on() -> None:
    desk = desk_of(policies.load("asgd"), 2)
    assert told(desk.begin()) == [("Compute", 0, 0, 0), ("Compute", 1, 0, 0)]
    orders = desk.done(1, 0, 0.5, 0.4, here=True)
    assert told(orders) == [("Apply", 1, (1, 0.5)), ("Compute", 1, 1, 1)]
    (apply, compute) = orders
    assert isinstance(apply, Apply)
    assert isinstance(compute, Compute)
    assert apply.gradients == ((1, 0, 0, 0.5),)
    assert (compute.how, compute.samples, compute.pull) == (How.PUSH, BATCH, True)


def test_an_aborted_rank_goes_on_only_when_it_is_back_and_from_what_is_newest_then() -> None:
    desk = desk_of(Plan((server(2, late=Late.ABORT),)), 3)
    desk.begin()
    desk.done(0, 0, 1.0, 1.0, here=True)
    assert told(desk.done(1, 0, 1.5, 1.5, here=True)) == [
        ("Abort", 2, 0), ("Apply", 1, (0, 1 / 3), (1, 1 / 3)),
        ("Compute", 0, 1, 1), ("Compute", 1, 1, 1),
    ]  # fmt: skip
    desk.done(0, 1, 2.0, 0.5, here=True)
    orders = told(desk.done(1, 1, 2.5, 1.0, here=True))
    assert ("Abort", 2, 1) not in orders, "it was never told of step 1"
    assert told(desk.withdrawn(2, 0, 2.6)) == [("Compute", 2, 2, 2)]


def test_a_gradient_that_crosses_its_abort_on_the_way_is_left_aside() -> None:
    desk = desk_of(Plan((server(1, late=Late.ABORT),)), 2)
    desk.begin()
    desk.done(0, 0, 1.0, 1.0, here=True)
    assert told(desk.done(1, 0, 1.1, 1.1, here=True)) == [("Compute", 1, 1, 1)]


def test_parameters_are_kept_for_an_aborted_rank_that_others_leave_behind() -> None:
    groups = Quorum((0, 1), 1, Via.SERVER, Late.ABORT), Quorum((2,), via=Via.SERVER)
    desk = desk_of(Plan(groups), 3)
    desk.begin()
    desk.done(0, 0, 1.0, 1.0, here=True)
    orders = told(desk.done(2, 0, 1.5, 1.5, here=True))
    assert orders == [("Keep", 1), ("Apply", 2, (2, 1 / 3)), ("Compute", 2, 1, 2)]
    assert told(desk.withdrawn(1, 0, 1.6)) == [("Compute", 1, 1, 1)]


def test_a_dropped_rank_goes_on_at_its_own_finish() -> None:
    desk = desk_of(Plan((server(1, late=Late.DROP),)), 2)
    desk.begin()
    desk.done(0, 0, 1.0, 1.0, here=True)
    assert told(desk.done(1, 0, 1.5, 1.5, here=True)) == [("Compute", 1, 1, 1)]


def test_a_window_closes_an_all_reduce_with_who_is_there() -> None:
    desk = desk_of(Plan((Quorum(window=0.5),)), 3)
    assert [o.how for o in desk.begin() if isinstance(o, Compute)] == [How.READY] * 3
    desk.done(0, 0, 1.0, 1.0, here=False)
    desk.done(2, 0, 1.2, 1.2, here=False)
    assert desk.expiry == 1.5
    assert told(desk.time(1.5)) == [("Reduce", 0, 1, (0, 2)), ("Reduce", 2, 1, (0, 2))]
    assert desk.reduced(2, 1, 1.6) == []
    assert told(desk.reduced(0, 1, 1.7)) == [
        ("Apply", 1, (0, 1.0)), ("Compute", 0, 1, 1), ("Compute", 2, 1, 1),
    ]  # fmt: skip


def test_an_all_reduce_whose_member_dies_is_done_again_without_it() -> None:
    desk = desk_of(Plan((Quorum(window=0.5),)), 3)
    desk.begin()
    for rank in range(3):
        orders = desk.done(rank, 0, 1.0, 1.0, here=False)
    assert len(orders) == 3
    assert desk.failed(2, 1.1, closing=1) == []
    assert desk.reduced(0, 1, 1.1) == []
    assert told(desk.lost(1, 1.2)) == [("Reduce", 0, 1, (0, 2)), ("Reduce", 2, 1, (0, 2))]
    desk.reduced(0, 1, 1.3)
    apply, *computes = desk.reduced(2, 1, 1.3)
    assert isinstance(apply, Apply)
    assert (apply.parts, apply.missing) == (((0, 1.0),), (1,))
    assert told(computes) == [("Compute", 0, 1, 1), ("Compute", 2, 1, 1)]


def test_an_all_reduce_that_only_the_dead_could_have_ended_is_done_again() -> None:
    desk = desk_of(Plan((Quorum(window=0.5),)), 2)
    desk.begin()
    desk.done(0, 0, 1.0, 1.0, here=False)
    desk.done(1, 0, 1.0, 1.0, here=False)
    desk.reduced(1, 1, 1.1)  # the sum was to come from rank 0
    assert told(desk.lost(0, 1.2)) == [("Reduce", 1, 1, (1,))]


def test_an_all_reduce_that_fails_though_all_live_is_given_up_after_a_while() -> None:
    desk = desk_of(Plan((Quorum(window=0.5),)), 2)
    desk.begin()
    for rank in range(2):
        desk.done(rank, 0, 1.0, 1.0, here=False)
    for k in range(7):
        desk.failed(k % 2, 1.0 + k, closing=1)
    with pytest.raises(RuntimeError, match=r"ranks \[0, 1\] fails though all of them are alive"):
        desk.failed(1, 9.0, closing=1)


def test_models_are_averaged_among_those_who_live_with_weights_that_sum_to_1() -> None:
    desk = desk_of(Plan((Quorum(count=3),), average=True), 4)
    assert all(o.local and o.pull for o in desk.begin() if isinstance(o, Compute))
    for rank in range(3):
        orders = desk.done(rank, 0, 1.0, 1.0, here=False)
    assert {o.weights for o in orders if isinstance(o, Reduce)} == {(1 / 3,) * 3}
    desk.failed(0, 1.1, closing=1)
    desk.failed(1, 1.1, closing=1)
    again = desk.lost(2, 1.2)
    assert {o.weights for o in again if isinstance(o, Reduce)} == {(0.5, 0.5)}
    desk.reduced(0, 1, 1.3)
    apply, *computes = desk.reduced(1, 1, 1.3)
    assert isinstance(apply, Apply)
    assert apply.parts == ()
    assert [(o.pull, o.local) for o in computes if isinstance(o, Compute)] == [(False, True)] * 2


def test_a_group_sums_up_on_the_way_and_its_sum_is_one_part() -> None:
    plan = Plan(tuple(Quorum(ranks, via=Via.LEADER) for ranks in ((0, 2), (1,))))
    desk = desk_of(plan, 3)
    orders = [o for o in desk.begin() if isinstance(o, Compute)]
    assert [(o.how, o.members, o.weight) for o in orders] == [
        (How.GROUP, (0, 2), 1 / 3), (How.GROUP, (1,), 1 / 3), (How.GROUP, (0, 2), 1 / 3),
    ]  # fmt: skip
    assert told(desk.grouped(0, 0, 1.0, {0: (0.9, True), 2: (1.0, True)})) == [
        ("Apply", 1, (0, 1.0)), ("Compute", 0, 1, 1), ("Compute", 2, 1, 1),
    ]  # fmt: skip


def test_a_group_whose_member_died_begins_its_step_anew_from_the_same_parameters() -> None:
    desk = desk_of(Plan((Quorum((0, 1, 2), via=Via.LEADER), Quorum((3,), via=Via.LEADER))), 4)
    desk.begin()
    assert desk.failed(0, 1.0) == []
    assert told(desk.lost(1, 1.1)) == []
    orders = desk.failed(2, 1.2)
    assert told(orders) == [("Compute", 0, 0, 0), ("Compute", 2, 0, 0)]
    assert {(o.how, o.pull) for o in orders if isinstance(o, Compute)} == {(How.READY, True)}


def test_a_group_that_was_told_to_be_another_waits_until_all_its_members_are_back() -> None:
    pairs = [((0, 1), (2, 3)), ((0, 2), (1, 3))]
    plans = tuple(
        Plan(tuple(Quorum(ranks, via=Via.LEADER) for ranks in own), review=Review(updates=1))
        for own in pairs
    )
    desk = desk_of(Planned(plans), 4)
    desk.begin()
    both = {0: (1.0, True), 1: (1.0, True)}
    assert told(desk.grouped(0, 0, 1.0, both)) == [("Apply", 1, (0, 1.0))]
    _, *orders = desk.grouped(2, 0, 1.5, {2: (1.5, True), 3: (1.5, True)})
    assert [(o.rank, o.members) for o in orders if isinstance(o, Compute)] == [
        (0, (0, 2)), (1, (1, 3)), (2, (0, 2)), (3, (1, 3)),
    ]  # fmt: skip


def test_a_gradient_that_was_kept_is_asked_for_and_all_else_waits_for_it() -> None:
    plans = Plan((Quorum(count=2),), review=Review(updates=1)), Plan((server(None),))
    desk = desk_of(Planned(plans), 3)
    desk.begin()
    for rank in range(3):
        desk.done(rank, 0, 1.0, 1.0, here=False)
    desk.reduced(0, 1, 1.1)
    desk.reduced(1, 1, 1.1)
    desk.done(0, 1, 2.0, 0.9, here=True)
    assert told(desk.done(1, 1, 2.0, 0.9, here=True)) == [("Deliver", 2)]
    assert told(desk.delivered(2, 2.1))[0][:2] == ("Apply", 2)


def test_a_gradient_that_died_with_its_rank_before_it_was_sent_is_missing() -> None:
    plans = Plan((Quorum(count=2),), review=Review(updates=1)), Plan((server(None),))
    desk = desk_of(Planned(plans), 3)
    desk.begin()
    for rank in range(3):
        desk.done(rank, 0, 1.0, 1.0, here=False)
    desk.reduced(0, 1, 1.1)
    desk.reduced(1, 1, 1.1)
    desk.done(0, 1, 2.0, 0.9, here=True)
    assert told(desk.done(1, 1, 2.0, 0.9, here=True)) == [("Deliver", 2)]
    apply, *_ = desk.lost(2, 2.1)
    assert isinstance(apply, Apply)
    assert (apply.missing, [rank for rank, _ in apply.parts]) == ((2,), [0, 1])


def test_a_rider_that_is_ready_takes_part_and_one_that_is_not_is_not_awaited() -> None:
    desk = desk_of(Plan((Quorum((0, 1), riders=((2, 0), (3, 1))),)), 4)
    desk.begin()
    desk.done(2, 0, 0.5, 0.5, here=False)
    desk.done(0, 0, 1.0, 1.0, here=False)
    orders = desk.done(1, 0, 1.5, 1.5, here=False)
    assert told(orders) == [("Reduce", rank, 1, (0, 1, 2)) for rank in (0, 1, 2)]
    for rank in (1, 2, 0):
        orders = desk.reduced(rank, 1, 2.0)
    assert told(orders) == [
        ("Apply", 1, (0, 1.0)), *(("Compute", rank, 1, 1) for rank in (0, 1, 2)),
    ]  # fmt: skip


def test_gradients_that_are_not_finite_are_booked_and_left_out() -> None:
    desk = desk_of(Plan((server(None),)), 3)
    desk.begin()
    desk.done(0, 0, 1.0, 1.0, here=True, finite=False)
    desk.done(1, 0, 1.0, 1.0, here=True)
    apply, *_ = desk.done(2, 0, 1.0, 1.0, here=True, finite=False)
    assert isinstance(apply, Apply)
    assert (apply.parts, apply.missing) == (((1, 1 / 3),), (0, 2))
    assert len(apply.gradients) == 3


def test_all_are_let_go_together_at_the_first_update_under_a_plan_that_needs_no_server() -> None:
    asgd = Plan((server(1),), review=Review(updates=1))
    desk = desk_of(Planned((asgd, Plan())), 2, is_synchronous=lambda plan: plan == synchronous)
    synchronous = Plan().resolved(2)
    desk.begin()
    assert told(desk.done(0, 0, 1.0, 1.0, here=True))[1:] == [("Compute", 0, 1, 1)]
    desk.done(1, 0, 1.5, 1.5, here=True)  # of the old plan, filed under the new one
    orders = desk.done(0, 1, 2.0, 1.0, here=False)
    while reduces := [o for o in orders if isinstance(o, Reduce)]:
        for order in reduces:
            orders = desk.reduced(order.rank, order.closing, 3.0)
    assert [type(o) for o in orders] == [Apply, Handover, Handover]
    assert isinstance(orders[-1], Handover)
    assert orders[-1].facts.version == 2
    assert desk.over


def test_a_rank_that_the_plan_leaves_out_is_told_when_the_others_have_left() -> None:
    desk = desk_of(Plan((Quorum((0,), via=Via.SERVER),)), 2)
    desk.begin()
    assert told(desk.lost(0, 1.0)) == [("Finish", 1)]
    assert desk.lost(1, 2.0) == []
    assert desk.over


def test_the_last_to_leave_leaves_nothing_to_decide() -> None:
    desk = desk_of(policies.load("asgd"), 2)
    desk.begin()
    assert desk.lost(0, 1.0) == []
    assert desk.lost(1, 2.0) == []
    assert desk.over
    assert desk.expiry == math.inf


def test_a_policy_that_fails_when_a_rank_is_lost_is_not_taken_for_the_end() -> None:
    class Failing:
        def plan(self, view: View) -> Plan:
            assert view.version == 0, "a mistake of the policy"
            return Plan((Quorum(via=Via.SERVER),), review=Review(updates=1))

    desk = desk_of(Failing(), 3)
    desk.begin()
    for rank in (0, 1):
        desk.done(rank, 0, 1.0, 1.0, here=True)
    with pytest.raises(PlanError, match="a mistake of the policy"):
        desk.lost(2, 2.0)


@pytest.mark.parametrize(
    "said", [lambda d: d.done(0, 5, 1.0, 1.0, here=True), lambda d: d.withdrawn(0, 0, 1.0)]
)
def test_what_nobody_asked_for_costs_a_rank_its_place(said: Any) -> None:
    desk = desk_of(policies.load("asgd"), 2)
    desk.begin()
    with pytest.raises(ConnectionError, match="rank 0"):
        said(desk)


# -- weights ----------------------------------------------------------------------------------


def test_weights_of_an_all_reduce() -> None:
    samples, versions = {0: 24, 1: 40, 2: 32}, {0: 7, 1: 7, 2: 5}
    assert weights(Plan(), samples, versions, 7, 128) == {0: 24 / 128, 1: 40 / 128, 2: 32 / 128}
    mean = Plan(weigh=Weigh.MEMBERS)
    assert weights(mean, samples, versions, 7, 128) == {0: 24 / 96, 1: 40 / 96, 2: 32 / 96}
    damped = Plan(damping=Damping(power=1.0))
    assert weights(damped, samples, versions, 7, 128)[2] == 32 / 128 / 2
    cut = Plan(weigh=Weigh.MEMBERS, damping=Damping(cutoff=2))
    assert weights(cut, samples, versions, 7, 128) == {0: 24 / 64, 1: 40 / 64, 2: 0.0}
    assert averaged(samples)[1] == 40 / 96


def test_a_sum_is_scaled_where_one_factor_does_it_and_refused_where_none_does() -> None:
    whole = Sum(0, (0, 1), {0: 0.25, 1: 0.5}, average=False)
    assert factor_of(whole, {0: 0.25, 1: 0.5}) == 1.0
    assert factor_of(whole, {0: 0.125, 1: 0.25}) == 0.5
    for booked in ({0: 0.125, 1: 0.5}, {0: 0.25}):
        with pytest.raises(PlanError, match="use via=server with such a damping"):
            factor_of(whole, booked)


# -- all policies -----------------------------------------------------------------------------


@dataclass
class World:
    """Ranks that take drawn seconds for a step, and notice an abort after a while."""

    desk: Desk
    luck: np.random.Generator
    now: float = 0.0
    coming: list[tuple[float, int, int, str]] = field(default_factory=list)
    away: dict[int, Compute] = field(default_factory=dict)
    stopped: set[tuple[int, int]] = field(default_factory=set)
    told_weights: dict[int, float] = field(default_factory=dict)
    applied: list[Apply] = field(default_factory=list)
    aborts: int = 0
    paces: dict[int, float] = field(default_factory=dict)

    def obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Compute():
                    assert order.rank not in self.away, "an order to a rank that is away"
                    self.away[order.rank] = order
                    pace = self.paces.setdefault(order.rank, self.luck.uniform(0.8, 2.5))
                    self.come(order.rank, order.step, "back", pace * self.luck.lognormal(0, 0.2))
                case Abort():
                    self.aborts += 1
                    self.stopped.add((order.rank, order.step))
                    self.come(order.rank, order.step, "withdrawn", self.luck.uniform(0, 0.5))
                case Reduce():
                    self.told_weights[order.rank] = order.weights[order.members.index(order.rank)]
                    self.come(order.rank, order.closing, "reduced", self.luck.uniform(0, 0.3))
                case Deliver():
                    self.come(order.rank, 0, "delivered", self.luck.uniform(0, 0.3))
                case Apply():
                    assert order.version == len(self.applied) + 1
                    self.applied.append(order)
                case Keep() | Finish() | Handover():
                    pass

    def come(self, rank: int, number: int, what: str, seconds: float) -> None:
        heapq.heappush(self.coming, (self.now + seconds, rank, number, what))

    def go_on(self) -> None:
        if self.desk.expiry < (self.coming[0][0] if self.coming else math.inf):
            self.now = self.desk.expiry
            self.obey(self.desk.time(self.now))
            return
        self.now, rank, number, what = heapq.heappop(self.coming)
        desk, work = self.desk, self.away.get(rank)
        if what in {"back", "withdrawn"}:
            if work is None or work.step != number:
                return  # it was the other of the two
            if what == "withdrawn" or work.how is not How.GROUP:
                del self.away[rank]
        match what:
            case "reduced":
                self.obey(desk.reduced(rank, number, self.now))
            case "delivered":
                self.obey(desk.delivered(rank, self.now))
            case "withdrawn":
                self.obey(desk.withdrawn(rank, number, self.now))
            case "back" if work is not None and work.how is How.GROUP:
                if rank == work.members[0]:  # as if it were the last
                    steps = {other: self.away.pop(other).step for other in work.members}
                    assert set(steps) == set(work.members)
                    times = dict.fromkeys(work.members, (1.0, True))
                    self.obey(desk.grouped(rank, number, self.now, times))
            case "back":
                here = work is not None and work.how is How.PUSH
                self.obey(desk.done(rank, number, self.now, 1.0, here=here))


PLANS = {
    "window": Plan((Quorum(window=0.4),)),
    "counted": Plan((Quorum(count=2, late=Late.DROP),), weigh=Weigh.MEMBERS),
    "unequal": Plan((Quorum(window=0.4),), batch=(0.5, 1.0, 1.0, 1.5), weigh=Weigh.MEMBERS),
    "mean of groups": Plan(
        tuple(Quorum(ranks, via=Via.LEADER) for ranks in ((0, 3), (1, 2))), weigh=Weigh.MEMBERS
    ),
}
SPECS = (
    "bsp:via=server", "asgd", "ssp:bound=1", "backup:b=1", "backup:b=1,late=drop", "k_async:x=2",
    "lgc", "cgp", "cgp:groups=window", "local_sgd:h=3", "p_reduce:p=2,window=0.05", "star_ring",
    "star_dynamic", "star_h", "ringmaster", "staleness_lr", "dssp", "sync_switch", "korel",
    "lb_bsp", *PLANS,
)  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_every_policy_trains_and_sums_weigh_what_the_books_say(spec: str) -> None:
    policy = PLANS[spec] if spec in PLANS else policies.load(spec)
    world = World(desk_of(policy, 4), np.random.default_rng(7))
    world.obey(world.desk.begin())
    while len(world.applied) < 150:
        before = len(world.applied)
        world.go_on()
        for apply in world.applied[before:]:
            roots = dict(apply.parts)
            for rank, _, _, weight in apply.gradients:
                if rank in roots and rank not in world.told_weights:
                    assert roots[rank] in {weight, 1.0} or spec in {"cgp", "mean of groups"}
                elif rank in world.told_weights and not world.desk.live.plan.average:
                    assert world.told_weights[rank] == pytest.approx(weight, rel=1e-12)
    assert world.aborts > 0 or spec != "backup:b=1"
