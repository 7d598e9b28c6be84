"""What the rules say of windows, joining, private models, deadlines, shares and weights.

Each run is worked out by hand from docs/semantics.md (see tests/support/stories.py), and
where samples and weights matter they are written beside the story.
"""

from __future__ import annotations

from typing import Any

import pytest

from simstrag.contract import Damping, Late, Plan, Policy, Quorum, Via, Weigh
from simstrag.engine.simulate import simulate
from simstrag.errors import PlanError
from simstrag.policies import load
from simstrag.scenario.scenario import Scenario
from tests.support import reference, stories
from tests.support.stories import Engine, served, tell, world
from tests.support.strategies import Fixed, Script
from tests.support.trace_rows import slowed

Gradients = dict[tuple[int, int], Any]


def applied(engine: Engine, scenario: Scenario, policy: Policy | Plan) -> Gradients:
    """(samples, weight) of each gradient that was applied, by rank and step."""
    policy = Fixed(policy) if isinstance(policy, Plan) else policy
    if engine is stories.by_reference:
        log = reference.simulate(scenario, policy).log
        return {(g.rank, g.step): (g.samples, g.weight) for entry in log for g in entry.gradients}
    table = simulate(scenario, policy, record_gradients=True).frame("gradients")
    table = table[table["fate"] == "applied"]
    keys = zip(table["rank"], table["step"], strict=True)
    return dict(zip(keys, zip(table["samples"], table["weight"], strict=True), strict=True))


# -- fragments, partial collectives and grace (11b, 17a)


def test_a_fragment_takes_its_share_of_the_bytes(engine: Engine) -> None:
    # Two hops of 1/4 s, and 2 s for all the bytes: 0.5 s for a quarter of them.
    allreduce = {"alpha": 0.25, "bytes": 2000, "bandwidth": 1000}
    tell(
        engine, world([[1], [2]], updates=2, allreduce=allreduce), Plan(average=True, fragments=4)
    )("""
        0  start 0.0 1.0 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 on 1
        6  update 0.1 1.1 to 2
    """)


def test_a_fragment_takes_its_share_of_an_all_reduce_without_bytes(engine: Engine) -> None:
    tell(
        engine,
        world([[1], [2]], updates=1, allreduce={"alpha": 1}),
        Plan(average=True, fragments=4),
    )("""
        0   start 0.0 1.0 on 0
        2.5 update 0.0 1.0 to 1
    """)


def test_ranks_without_a_gradient_take_part_in_a_partial_collective(engine: Engine) -> None:
    # Among two, one of whom has a network of half the speed, 2 s; among the only contributor none.
    scenario = world([[1], [5]], updates=2, allreduce={"alpha": 0.5}, net={1: 2})
    tell(engine, scenario, Plan((Quorum(count=1, partial=True),)))("""
        0  start 0.0 1.0 on 0
        3  update 0.0 to 1
        3  start 0.1 on 1
        6  update 0.1 to 2
    """)


def test_a_quorum_with_grace_takes_who_comes_in_time(engine: Engine) -> None:
    # Two are enough, 1 s after the second: at 3 without rank 3, at 5 with rank 1, which comes then.
    tell(engine, world([[1], [2], [2.5], [4]], updates=2), Plan((Quorum(count=2, grace=1.0),)))("""
        0  start 0.0 1.0 2.0 3.0 on 0
        3  update 0.0 1.0 2.0 to 1
        3  start 0.1 1.1 2.1 on 1
        5  update 0.1 1.1 3.0 to 2
    """)


def test_a_quorum_with_grace_waits_no_longer_than_for_all(engine: Engine) -> None:
    tell(engine, world([[1], [1.5], [1.75]], updates=1), Plan((Quorum(count=1, grace=1.0),)))("""
        0    start 0.0 1.0 2.0 on 0
        1.75 update 0.0 1.0 2.0 to 1
    """)


def test_a_grace_that_is_over_aborts_who_is_late(engine: Engine) -> None:
    tell(
        engine,
        world([[1], [1.5], [4]], updates=1),
        Plan((Quorum(count=1, grace=0.5, late=Late.ABORT),)),
    )("""
        0   start 0.0 1.0 2.0 on 0
        1.5 update 0.0 1.0 to 1
        aborted 2.0
    """)


# -- windows (17)


def test_p_reduce_has_two_collectives_under_way_and_forms_its_groups_anew(engine: Engine) -> None:
    # Pairs all-reduce for 2 s: 0 and 1 from 2.5 to 4.5, 2 and 3 from 4 to 6.  Then rank 1 needs
    # 5 s and rank 0 pairs with 2, from 9 to 11, and 1 with 3, from 10 to 12.
    tell(
        engine,
        world([[2], [2.5, 5], [3], [4]], updates=4, allreduce={"alpha": 1}),
        load("p_reduce:p=2"),
    )("""
        0    start 0.0 1.0 2.0 3.0 on 0
        4.5  update 0.0 1.0 to 1
        4.5  start 0.1 1.1 on 1
        6    update 2.0 3.0 to 2
        6    start 2.1 3.1 on 2
        11   update 0.1 2.1 to 3
        11   start 0.2 2.2 on 3
        12   update 1.1 3.1 to 4
    """)


def test_p_reduce_closes_a_group_when_it_is_full_or_its_window_is_over(engine: Engine) -> None:
    # Three at the most, or who is there 1 s after the first.  At 2 the window of 0.0 is over.  At 4
    # 0.1, 2.0 and 1.1 are three, and 3.0, which arrives then too, is the first of the next group:
    # it ends at 5, with 0.2 in it.  0.3 and 1.2, there at 6, wait for a third until 7.
    tell(engine, world([[1], [2], [3.5], [4]], updates=4), load("p_reduce:p=3,window=1"))("""
        0    start 0.0 1.0 2.0 3.0 on 0
        2    update 0.0 1.0 to 1
        2    start 0.1 1.1 on 1
        4    update 0.1 1.1 2.0 to 2
        4    start 0.2 1.2 2.1 on 2
        5    update 0.2 3.0 to 3
        5    start 0.3 3.1 on 3
        7    update 0.3 1.2 to 4
    """)


def test_a_window_takes_in_an_arrival_at_its_very_expiry(engine: Engine) -> None:
    # Leaders with a window of 1 s, service 1 s.  0.0 arrives at 2, 1.0 at 3: in.  2.0 at 3.5 is
    # alone at 4.5.  0.1 and 1.1, released at 4, arrive at 6 and 7: again exactly in.
    tell(
        engine,
        world([[2], [3], [3.5]], updates=3, server={"service": 1}),
        Plan((Quorum(via=Via.LEADER, window=1),)),
    )("""
        0    start 0.0 1.0 2.0 on 0
        4    update 0.0 1.0 to 1
        4    start 0.1 1.1 on 1
        5.5  update 2.0 to 2
        5.5  start 2.1 on 2
        8    update 0.1 1.1 to 3
    """)


def test_a_window_that_was_over_before_it_was_planned_is_over_now(engine: Engine) -> None:
    # 1.0 waits for rank 2 since 1.5.  The plan of version 3, at 3, has a window of 1 s: it ended at
    # 2.5, and so 1.0 closes alone at 3; its job is long done.
    def plan(**keys: Any) -> Plan:
        return Plan((Quorum((0,), via=Via.SERVER), Quorum((1, 2), via=Via.SERVER, **keys)))

    tell(
        engine, world([[1], [1.5], [10]], updates=5), Script(((0, plan()), (3, plan(window=1))))
    )("""
        0  start 0.0 1.0 2.0 on 0
        1  update 0.0 to 1
        1  start 0.1 on 1
        2  update 0.1 to 2
        2  start 0.2 on 2
        3  update 0.2 to 3
        3  start 0.3 on 3
        3  update 1.0 to 4
        3  start 1.1 on 4
        4  update 0.3 to 5
    """)


def test_windows_that_are_over_already_end_by_quorum_whichever_was_over_first(
    engine: Engine,
) -> None:
    # The windows of the plan at 3 ended at 2.5 for 0.0, and at 2 for 2.0: both end now.
    def plan(**keys: Any) -> Plan:
        pairs = (Quorum(ranks, via=Via.SERVER, **keys) for ranks in ((0, 1), (2, 3)))
        return Plan((*pairs, Quorum((4,), via=Via.SERVER)))

    tell(
        engine,
        world([[1.5], [10], [1], [10], [1]], updates=5),
        Script(((0, plan()), (3, plan(window=1)))),
    )("""
        0  start 0.0 1.0 2.0 3.0 4.0 on 0
        1  update 4.0 to 1
        1  start 4.1 on 1
        2  update 4.1 to 2
        2  start 4.2 on 2
        3  update 4.2 to 3
        3  start 4.3 on 3
        3  update 0.0 to 4
        3  start 0.1 on 4
        3  update 2.0 to 5
    """)


def test_what_is_late_for_a_window_may_be_aborted(engine: Engine) -> None:
    # Everybody, or who is there 1 s after the first: 2.0 is cancelled at 2, 2.1 at 4.
    tell(engine, world([[1], [2], [5]], updates=2), Plan((Quorum(window=1, late=Late.ABORT),)))("""
        0  start 0.0 1.0 2.0 on 0
        2  update 0.0 1.0 to 1
        2  start 0.1 1.1 2.1 on 1
        4  update 0.1 1.1 to 2
        aborted 2.0 2.1
    """)


# -- joining (14)


def test_lgc_adds_a_stragglers_gradient_to_the_next_update_it_can_reach(engine: Engine) -> None:
    # Two of three make an update, every 2 s.  2.0, late at 2, is done at 3 and joins the update at
    # 4.  2.1 then takes 5 s: late at 6 and again at 8, done at 9, it joins the update at 10.
    tell(engine, world([[2], [2], [3, 5]], updates=5), load("lgc:k=2"))("""
        0  start 0.0 1.0 2.0 on 0
        2  update 0.0 1.0 to 1
        2  start 0.1 1.1 on 1
        4  update 0.1 1.1 2.0 to 2
        4  start 0.2 1.2 2.1 on 2
        6  update 0.2 1.2 to 3
        6  start 0.3 1.3 on 3
        8  update 0.3 1.3 to 4
        8  start 0.4 1.4 on 4
        10 update 0.4 1.4 2.1 to 5
    """)


def test_a_gradient_that_joins_pays_the_server_but_closes_nothing(engine: Engine) -> None:
    # One of two makes an update, service 1 s.  1.0, late at 2, arrives at 3 and is served until 4,
    # but waits for 0.1, which arrives at 5.  1.1 arrives at 9, late for 0.2 at 8, and is served
    # until 10; 0.3 comes at 11.
    tell(engine, world([[2], [3]], updates=4, server={"service": 1}), load("lgc:k=1"))("""
        0  start 0.0 1.0 on 0
        3  update 0.0 to 1
        3  start 0.1 on 1
        6  update 0.1 1.0 to 2
        6  start 0.2 1.1 on 2
        9  update 0.2 to 3
        9  start 0.3 on 3
        12 update 0.3 1.1 to 4
    """)


def test_of_equal_arrivals_the_highest_rank_joins_the_next_update(engine: Engine) -> None:
    # All arrive at 2, two are needed: 2.0 is late though it is done, and joins at 5.  All-reduce
    # takes 1 s among two, 2 s among three; then all start together, and it happens again.
    tell(
        engine,
        world([[2], [2], [2]], updates=3, allreduce={"alpha": 0.5}),
        load("lgc:k=2,via=allreduce"),
    )("""
        0  start 0.0 1.0 2.0 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 on 1
        7  update 0.1 1.1 2.0 to 2
        7  start 0.2 1.2 2.1 on 2
        10 update 0.2 1.2 to 3
    """)


def test_a_mark_to_join_ends_when_gradients_are_filed_anew(engine: Engine) -> None:
    # Two of three: 2.0 is late at 2.  From version 1 on three are needed, and 2.0, now unmarked,
    # counts: the update at 4 is of all three.
    join = served(count=2, late=Late.JOIN)
    tell(engine, world([[2], [2], [3]], updates=2), Script(((0, join), (1, served()))))("""
        0  start 0.0 1.0 2.0 on 0
        2  update 0.0 1.0 to 1
        2  start 0.1 1.1 on 1
        4  update 0.1 1.1 2.0 to 2
    """)


def test_a_mark_that_was_taken_off_lets_the_gradient_close_an_update(engine: Engine) -> None:
    # The same, but from version 1 on one is enough: 2.0 closes an update by itself at 3.
    join = served(count=2, late=Late.JOIN)
    tell(engine, world([[2], [2], [3]], updates=2), Script(((0, join), (1, served(count=1)))))("""
        0  start 0.0 1.0 2.0 on 0
        2  update 0.0 1.0 to 1
        2  start 0.1 1.1 on 1
        3  update 2.0 to 2
    """)


# -- pauses (5a)


def test_a_pause_delays_the_steps_that_start_under_its_plan(engine: Engine) -> None:
    # The pull takes 1 s, and the pause 5 s after it.  Under the second plan nothing is delayed.
    quorum = (Quorum(via=Via.SERVER),)
    policy = Script(((0, Plan(quorum, pause=5)), (1, Plan(quorum))))
    tell(engine, world([[2], [3]], updates=2, server={"pull": 1}), policy)("""
        6  start 0.0 1.0 on 0
        9  update 0.0 1.0 to 1
        10 start 0.1 1.1 on 1
        13 update 0.1 1.1 to 2
    """)


def test_a_private_step_does_not_pause(engine: Engine) -> None:
    plan = Plan((Quorum(steps=2),), average=True, pause=5)
    tell(engine, world([[2]], updates=1), plan)("""
        5  start 0.0 on 0
        7  start 0.1 on 0
        9  update 0.0 0.1 to 1
    """)


# -- deadlines (6a)


def test_dropcompute_stops_a_step_at_the_end_of_a_micro_batch(engine: Engine) -> None:
    # Four micro-batches, two samples each.  Rank 0's end at 1, 2, 3 and 4 s: the first that ends
    # after 2.5 s is the third.  Rank 1 never passes 2.5 s.
    scenario = world([[4], [2]], updates=2, microbatches=4, learner={"batch": 8})
    policy = load("dropcompute:theta=2.5")
    tell(engine, scenario, policy)("""
        0  start 0.0 1.0 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 on 1
        6  update 0.1 1.1 to 2
    """)
    assert applied(engine, scenario, policy) == {
        (0, 0): (6, 6 / 16),
        (1, 0): (8, 8 / 16),
        (0, 1): (6, 6 / 16),
        (1, 1): (8, 8 / 16),
    }


@pytest.mark.parametrize(
    ("theta", "seconds", "samples"), [("3", 4, 8), ("2.75", 3, 6), ("0.5", 1, 2), ("inf", 4, 8)]
)
def test_a_micro_batch_that_ends_at_the_deadline_does_not_pass_it(
    engine: Engine, theta: str, seconds: float, samples: int
) -> None:
    # At theta = 3 s the third has ended: no more than 3 s have passed, and the fourth is computed.
    # At least one is, however early the deadline.
    scenario = world([[4]], updates=1, microbatches=4, learner={"batch": 8})
    policy = load(f"dropcompute:theta={theta}")
    tell(engine, scenario, policy)(f"0 start 0.0 on 0\n {seconds} update 0.0 to 1")
    assert applied(engine, scenario, policy) == {(0, 0): (samples, samples / 8)}


def test_contention_in_the_middle_of_a_step_stretches_its_later_micro_batches(
    engine: Engine,
) -> None:
    # A step of 4 s, from 2 s on at half the speed: its quarters end at 1, 2, 4 and 6.  With
    # theta = 3 s it stops at 4.  The quarters of the next one end 2, 4, ... s after its start: it
    # stops at 8, after two.  Of 10 samples these are 7 and 5.
    scenario = Scenario.of(
        {
            "workers": 1,
            "updates": 2,
            "step": {"compute": 4},
            "microbatches": 4,
            "learner": {"batch": 10},
            "trace": [slowed(0, 2.0, time=2)],
        }
    )
    policy = load("dropcompute:theta=3")
    tell(engine, scenario, policy)("""
        0  start 0.0 on 0
        4  update 0.0 to 1
        4  start 0.1 on 1
        8  update 0.1 to 2
    """)
    assert applied(engine, scenario, policy) == {(0, 0): (7, 7 / 10), (0, 1): (5, 5 / 10)}


def test_a_new_deadline_is_for_steps_that_start_from_now_on(engine: Engine) -> None:
    # Each for itself.  The deadline of 1.5 s comes at 1, with rank 0's first update; 1.0, under way
    # since 0, is whole; every step of rank 1 after it stops at 2 s, after half of it.
    def plan(deadline: float | None) -> Plan:
        return Plan((Quorum(count=1, via=Via.SERVER),), deadline=deadline)

    scenario = world([[1], [4]], updates=8, microbatches=4, learner={"batch": 8})
    policy = Script(((0, plan(None)), (1, plan(1.5))))
    tell(engine, scenario, policy)("""
        0  start 0.0 1.0 on 0
        1  update 0.0 to 1
        1  start 0.1 on 1
        2  update 0.1 to 2
        2  start 0.2 on 2
        3  update 0.2 to 3
        3  start 0.3 on 3
        4  update 0.3 to 4
        4  start 0.4 on 4
        4  update 1.0 to 5
        4  start 1.1 on 5
        5  update 0.4 to 6
        5  start 0.5 on 6
        6  update 0.5 to 7
        6  start 0.6 on 7
        6  update 1.1 to 8
    """)
    found = applied(engine, scenario, policy)
    assert (found[1, 0], found[1, 1]) == ((8, 8 / 16), (4, 4 / 16))


# -- private steps (6b) and averaged models


def test_local_sgd_averages_after_two_private_steps_of_each(engine: Engine) -> None:
    # All-reduce 1 s.  Rank 0 needs 1 s a step and has two at 2, rank 1 at 4: averaged at 5.  The
    # second step of each starts on the private model, made from the version of the first.
    scenario = world([[1], [2]], updates=2, allreduce={"alpha": 0.5})
    tell(engine, scenario, load("local_sgd:h=2"))("""
        0  start 0.0 1.0 on 0
        1  start 0.1 on 0
        2  start 1.1 on 0
        5  update 0.0 0.1 1.0 1.1 to 1
        5  start 0.2 1.2 on 1
        6  start 0.3 on 1
        7  start 1.3 on 1
        10 update 0.2 0.3 1.2 1.3 to 2
    """)
    weights = [weight for _, weight in applied(engine, scenario, load("local_sgd:h=2")).values()]
    assert weights == [1 / 4] * 8


def test_ranks_contribute_after_private_steps_of_their_own_number(engine: Engine) -> None:
    # All-reduce 1 s.  Rank 0 takes two steps of 1 s and rank 1 one of 2 s: both are there at 2.
    plan = Plan((Quorum((0, 1), steps=(2, 1)),), average=True)
    scenario = world([[1], [2]], updates=2, allreduce={"alpha": 0.5})
    tell(engine, scenario, plan)("""
        0  start 0.0 1.0 on 0
        1  start 0.1 on 0
        3  update 0.0 0.1 1.0 to 1
        3  start 0.2 1.1 on 1
        4  start 0.3 on 1
        6  update 0.2 0.3 1.1 to 2
    """)
    assert {weight for _, weight in applied(engine, scenario, plan).values()} == {1 / 3}


def test_models_are_averaged_through_the_server_one_contribution_after_another(
    engine: Engine,
) -> None:
    # Pull 1 s, push 2 s, service 1 s.  Rank 0 has two steps at 3 and is served from 5 to 6; rank 1
    # has its two at 6, served from 8 to 9.  Each goes on alone from its own update, after a pull.
    plan = Plan((Quorum(count=1, via=Via.SERVER, steps=2),), average=True)
    scenario = world([[1], [2.5]], updates=2, server={"pull": 1, "push": 2, "service": 1})
    tell(engine, scenario, plan)("""
        1   start 0.0 1.0 on 0
        2   start 0.1 on 0
        3.5 start 1.1 on 0
        6   update 0.0 0.1 to 1
        7   start 0.2 on 1
        8   start 0.3 on 1
        9   update 1.0 1.1 to 2
    """)
    assert {weight for _, weight in applied(engine, scenario, plan).values()} == {1 / 2}


# -- overlap (6c)


OVERLAPPED = Plan((Quorum((0, 1), steps=3, overlap=1),), average=True)


def test_a_rank_runs_on_while_its_models_are_averaged(engine: Engine) -> None:
    # All-reduce 1 s.  First contributions are of 3 - 1 steps, prepared at 2 and 4, averaged from 4
    # to 5.  Rank 0 runs on with 0.2 until 3, waits, and goes on with 0.3 at the update; rank 1
    # runs on with 1.2 until 6, and goes on with 1.3 then.  All three are of the next contributions.
    scenario = world([[1], [2]], updates=2, allreduce={"alpha": 0.5})
    tell(engine, scenario, OVERLAPPED)("""
        0  start 0.0 1.0 on 0
        1  start 0.1 on 0
        2  start 0.2 1.1 on 0
        4  start 1.2 on 0
        5  update 0.0 0.1 1.0 1.1 to 1
        5  start 0.3 on 1
        6  start 0.4 1.3 on 1
        7  start 0.5 on 1
        8  start 1.4 on 1
        10 start 1.5 on 1
        11 update 0.2 0.3 0.4 1.2 1.3 1.4 to 2
    """)
    weights = [weight for _, weight in applied(engine, scenario, OVERLAPPED).values()]
    assert weights == [1 / 4] * 4 + [1 / 6] * 6


def test_a_prepared_contribution_of_a_late_rank_counts_for_the_next_update(engine: Engine) -> None:
    # The first of two is enough; all-reduce alone costs nothing.  Rank 0 runs on with 0.1 from 2 to
    # 4, and its update at 2 has come by then; rank 1 with 1.1 from 3 to 6, where it goes on from
    # version 2, for finishes come before closings.
    plan = Plan((Quorum(count=1, steps=2, overlap=1),), average=True)
    tell(engine, world([[2], [3]], updates=4), plan)("""
        0  start 0.0 1.0 on 0
        2  start 0.1 on 0
        2  update 0.0 to 1
        3  start 1.1 on 0
        3  update 1.0 to 2
        4  start 0.2 on 2
        6  start 0.3 on 2
        6  update 0.1 0.2 to 3
        6  start 1.2 on 2
        8  start 0.4 on 3
        9  start 1.3 on 2
        9  update 1.1 1.2 to 4
    """)


@pytest.mark.parametrize("engine", ["native", "plain"])
def test_a_plan_with_overlap_keeps_its_quorums(engine: str) -> None:
    script = Script(((0, OVERLAPPED), (1, Plan())))
    with pytest.raises(PlanError, match="overlap cannot be replaced by one with other quorums"):
        simulate(world([[1], [2]], updates=3), script, engine=engine)


def test_a_contribution_is_dropped_whole(engine: Engine) -> None:
    # Two private steps of the first two.  Rank 2 keeps 2.0 at 2 and leaves at that moment, with
    # version 1; 2.1, under way, is dropped at its finish at 4, and 2.0 with it.
    def plan(*ranks: int) -> Plan:
        return Plan((Quorum(ranks, count=2, steps=2),), average=True)

    tell(
        engine, world([[1], [1], [2]], updates=2), Script(((0, plan(0, 1, 2)), (1, plan(0, 1))))
    )("""
        0  start 0.0 1.0 2.0 on 0
        1  start 0.1 1.1 on 0
        2  start 2.1 on 0
        2  update 0.0 0.1 1.0 1.1 to 1
        2  start 0.2 1.2 on 1
        3  start 0.3 1.3 on 1
        4  update 0.2 0.3 1.2 1.3 to 2
        dropped 2.0 2.1
    """)


def test_a_contribution_is_aborted_whole(engine: Engine) -> None:
    # Rank 2 averages every third step and has kept 2.0 when, at 3, two of three become enough for a
    # gradient update.  2.1, of 9 s, is cancelled at 6, and 2.0 with it.
    first = Plan((Quorum((0, 1)), Quorum((2,), steps=3)), average=True)
    tell(
        engine,
        world([[3], [3], [2, 9]], updates=2),
        Script(((0, first), (1, Plan((Quorum(count=2, late=Late.ABORT),))))),
    )("""
        0  start 0.0 1.0 2.0 on 0
        2  start 2.1 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 on 1
        6  update 0.1 1.1 to 2
        aborted 2.0 2.1
    """)


def test_kept_gradients_survive_a_change_of_plan(engine: Engine) -> None:
    # Ranks 0 and 1 average every step, rank 2 every third.  At 3 the plan becomes bsp: rank 2 has
    # kept 2.0 and computes 2.1 until 4, which is now enough, and both are in the update at 6.
    first = Plan((Quorum((0, 1)), Quorum((2,), steps=3)), average=True)
    scenario = world([[3], [3], [2]], updates=3)
    policy = Script(((0, first), (1, Plan())))
    tell(engine, scenario, policy)("""
        0  start 0.0 1.0 2.0 on 0
        2  start 2.1 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 on 1
        6  update 0.1 1.1 2.0 2.1 to 2
        6  start 0.2 1.2 2.2 on 2
        9  update 0.2 1.2 2.2 to 3
    """)
    weights = {key: weight for key, (_, weight) in applied(engine, scenario, policy).items()}
    assert weights[0, 0] == weights[1, 0] == 1 / 2
    assert weights[2, 0] == weights[2, 1] == weights[0, 1] == 1 / 3


def test_fewer_private_steps_are_enough_at_the_next_finish(engine: Engine) -> None:
    # Rank 1 has kept three of four steps when, at 4, two become enough: nothing is completed but by
    # a finish, that of 1.3 at 4.25, and all four gradients are in.
    def plan(steps: int) -> Plan:
        return Plan((Quorum((0,)), Quorum((1,), steps=steps)), average=True)

    tell(
        engine,
        world([[4], [1.25, 1.25, 1.25, 0.5]], updates=4),
        Script(((0, plan(5)), (1, plan(2)))),
    )("""
        0     start 0.0 1.0 on 0
        1.25  start 1.1 on 0
        2.5   start 1.2 on 0
        3.75  start 1.3 on 0
        4     update 0.0 to 1
        4     start 0.1 on 1
        4.25  update 1.0 1.1 1.2 1.3 to 2
        4.25  start 1.4 on 2
        4.75  start 1.5 on 2
        5.25  update 1.4 1.5 to 3
        5.25  start 1.6 on 3
        5.75  start 1.7 on 3
        6.25  update 1.6 1.7 to 4
    """)


def test_two_groups_average_by_all_reduces_of_their_own(engine: Engine) -> None:
    # Ranks 0 and 1 need 2 s and 1 s of all-reduce, ranks 2 and 3 need 3 s; each group goes its way,
    # and a member weighs half of its group's average.
    scenario = world([[1], [2], [3], [3]], updates=3, allreduce={"alpha": 0.5})
    plan = Plan((Quorum((0, 1)), Quorum((2, 3))), average=True)
    tell(engine, scenario, plan)("""
        0  start 0.0 1.0 2.0 3.0 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 on 1
        4  update 2.0 3.0 to 2
        4  start 2.1 3.1 on 2
        6  update 0.1 1.1 to 3
    """)
    assert {weight for _, weight in applied(engine, scenario, plan).values()} == {1 / 2}


# -- rounds (11)

FAST_AND_SLOW = (Quorum((0, 1), via=Via.LEADER, rounds=2), Quorum((2, 3), via=Via.LEADER))


def test_a_fast_group_pushes_every_second_round_beside_a_slow_one(engine: Engine) -> None:
    # All-reduce of two 0.5 s, service 1 s.  The fast group's rounds end at 1.5 and 3, its job at 4;
    # the slow one all-reduces from 3 to 3.5 and its job waits until 4.  The fast group computes its
    # second round on its own model, made from the version it pulled.
    scenario = world(
        [[1], [1], [3], [3]], updates=3, server={"service": 1}, allreduce={"alpha": 0.25}
    )
    tell(engine, scenario, Plan(FAST_AND_SLOW))("""
        0    start 0.0 1.0 2.0 3.0 on 0
        1.5  start 0.1 1.1 on 0
        4    update 0.0 0.1 1.0 1.1 to 1
        4    start 0.2 1.2 on 1
        5    update 2.0 3.0 to 2
        5    start 2.1 3.1 on 2
        5.5  start 0.3 1.3 on 1
        8    update 0.2 0.3 1.2 1.3 to 3
    """)
    assert {weight for _, weight in applied(engine, scenario, Plan(FAST_AND_SLOW)).values()} == {
        1 / 4
    }


def test_a_round_is_not_forgotten_at_a_private_step(engine: Engine) -> None:
    # Rank 0 goes through the first of two rounds at 1.  From 1.5 to 2.75 its contribution is three
    # private steps instead: 0.1 is kept at 2.  Back in rounds at 2.75, it has been through one
    # since it pulled, so the closing at 3 is its last and pushes all three.
    rounds = Plan((Quorum((0,), via=Via.LEADER, rounds=2), Quorum((1,), via=Via.SERVER)))
    private = Plan((Quorum((0,), steps=3), Quorum((1,))), average=True)
    tell(
        engine,
        world([[1], [1.5, 1.25, 9]], updates=3),
        Script(((0, rounds), (1, private), (2, rounds))),
    )("""
        0    start 0.0 1.0 on 0
        1    start 0.1 on 0
        1.5  update 1.0 to 1
        1.5  start 1.1 on 1
        2    start 0.2 on 0
        2.75 update 1.1 to 2
        2.75 start 1.2 on 2
        3    update 0.0 0.1 0.2 to 3
    """)


def test_a_group_whose_rounds_are_over_by_a_new_plan_pushes_at_once(engine: Engine) -> None:
    # Ranks 0 and 1 close their first of two rounds at 1 and all-reduce until 3.  At 2 a plan
    # without rounds comes with rank 2's update: what ends at 3 is pushed.
    def plan(rounds: int) -> Plan:
        return Plan((Quorum((0, 1), via=Via.LEADER, rounds=rounds), Quorum((2,), via=Via.LEADER)))

    tell(
        engine,
        world([[1], [1], [2]], updates=3, allreduce={"alpha": 1}),
        Script(((0, plan(2)), (1, plan(1)))),
    )("""
        0  start 0.0 1.0 2.0 on 0
        2  update 2.0 to 1
        2  start 2.1 on 1
        3  update 0.0 1.0 to 2
        3  start 0.1 1.1 on 2
        4  update 2.1 to 3
    """)


# -- damping and cutoff (24)


def test_a_stale_gradient_weighs_less_by_its_staleness(engine: Engine) -> None:
    # Rank 0 updates every second and is stale by rank 1's updates alone: 0.2 (one) at 3.  1.0, at
    # 2.5, has missed two updates; 1.1, at 5 after 0.4, has missed three.
    scenario = world([[1], [2.5]], updates=7)
    tell(engine, scenario, load("staleness_lr"))("""
        0    start 0.0 1.0 on 0
        1    update 0.0 to 1
        1    start 0.1 on 1
        2    update 0.1 to 2
        2    start 0.2 on 2
        2.5  update 1.0 to 3
        2.5  start 1.1 on 3
        3    update 0.2 to 4
        3    start 0.3 on 4
        4    update 0.3 to 5
        4    start 0.4 on 5
        5    update 0.4 to 6
        5    start 0.5 on 6
        5    update 1.1 to 7
    """)
    staleness = {(0, 2): 1, (1, 0): 2, (1, 1): 3}
    factors = {
        "staleness_lr": (1, 1, 1 / 2, 1 / 3),
        "staleness_lr:power=0.5,shift=1": (1, 2**-0.5, 3**-0.5, 1 / 2),
        "staleness_lr:power=2,shift=0.5": (1, 1.5**-2, 2.5**-2, 3.5**-2),
    }
    for policy, factor in factors.items():
        for key, (samples, weight) in applied(engine, scenario, load(policy)).items():
            assert samples == 128
            assert weight == pytest.approx(factor[staleness.get(key, 0)] / 2, rel=1e-15)


def test_ringmaster_drops_a_gradient_as_stale_as_its_cutoff_and_makes_no_version(
    engine: Engine,
) -> None:
    # Service 0.25 s.  1.0 is served from 2.5 to 2.75; by then there are two versions more than it
    # was computed on, and it is dropped: no version, but rank 1 goes on from the present one.
    tell(
        engine, world([[1], [2.5]], updates=4, server={"service": 0.25}), load("ringmaster:r=2")
    )("""
        0     start 0.0 1.0 on 0
        1.25  update 0.0 to 1
        1.25  start 0.1 on 1
        2.5   update 0.1 to 2
        2.5   start 0.2 on 2
        2.75  start 1.1 on 2
        3.75  update 0.2 to 3
        3.75  start 0.3 on 3
        5     update 0.3 to 4
        dropped 1.0
    """)


def test_a_cutoff_leaves_the_fresh_gradients_of_an_update(engine: Engine) -> None:
    # Two of three make an update; whoever is stale at all is dropped.  2.0 and 0.1 close at 2, and
    # 2.0 has missed version 1; 1.1, which was ready then too, has missed version 2 at 3.
    scenario = world([[1], [1], [1.5]], updates=3)
    plan = Plan((Quorum(count=2, via=Via.SERVER),), damping=Damping(cutoff=1))
    tell(engine, scenario, plan)("""
        0  start 0.0 1.0 2.0 on 0
        1  update 0.0 1.0 to 1
        1  start 0.1 1.1 on 1
        2  update 0.1 to 2
        2  start 0.2 2.1 on 2
        3  update 0.2 to 3
        dropped 2.0 1.1
    """)
    assert {weight for _, weight in applied(engine, scenario, plan).values()} == {1 / 3}


# -- shares (6) and weights (24)


def test_a_share_of_the_batch_scales_a_step_from_its_start(engine: Engine) -> None:
    # Steps of 2 s for 4 samples.  First 2 and 6 samples: 1 s and 3 s.  Then equal shares, then 5
    # and 3 samples: 2.5 s and 1.5 s.
    scenario = world([[2], [2]], updates=3, learner={"batch": 4})
    policy = Script(((0, Plan(batch=(0.5, 1.5))), (1, Plan()), (2, Plan(batch={0: 1.25, 1: 0.75}))))
    tell(engine, scenario, policy)("""
        0    start 0.0 1.0 on 0
        3    update 0.0 1.0 to 1
        3    start 0.1 1.1 on 1
        5    update 0.1 1.1 to 2
        5    start 0.2 1.2 on 2
        7.5  update 0.2 1.2 to 3
    """)
    assert applied(engine, scenario, policy) == {
        (0, 0): (2, 2 / 8),
        (1, 0): (6, 6 / 8),
        (0, 1): (4, 4 / 8),
        (1, 1): (4, 4 / 8),
        (0, 2): (5, 5 / 8),
        (1, 2): (3, 3 / 8),
    }


def test_what_is_fixed_of_a_step_does_not_shrink_with_its_batch(engine: Engine) -> None:
    # Steps of 2 s for 4 samples, 1 s of which is fixed: 2 samples take 1.5 s, 6 take 2.5 s.
    tell(
        engine,
        Scenario.of(
            {
                "workers": 2,
                "updates": 1,
                "step": {"compute": 2, "fixed_share": 0.5},
                "learner": {"batch": 4},
            }
        ),
        Script(((0, Plan(batch=(0.5, 1.5))),)),
    )("""
        0    start 0.0 1.0 on 0
        2.5  update 0.0 1.0 to 1
    """)


def test_a_running_step_keeps_its_share(engine: Engine) -> None:
    # Each for itself.  At 1 rank 0 changes the shares: 1.0, of 4 samples, still ends at 2; its next
    # step has 6 and takes 3 s, rank 0's from 1 on have 2 and take 0.5 s.
    def plan(batch: tuple[float, float] | None) -> Plan:
        return Plan((Quorum(count=1, via=Via.SERVER),), batch=batch)

    scenario = world([[1], [2]], updates=4, learner={"batch": 4})
    policy = Script(((0, plan(None)), (1, plan((0.5, 1.5)))))
    tell(engine, scenario, policy)("""
        0    start 0.0 1.0 on 0
        1    update 0.0 to 1
        1    start 0.1 on 1
        1.5  update 0.1 to 2
        1.5  start 0.2 on 2
        2    update 0.2 to 3
        2    start 0.3 on 3
        2    update 1.0 to 4
    """)
    assert applied(engine, scenario, policy) == {
        (0, 0): (4, 4 / 8),
        (0, 1): (2, 2 / 8),
        (0, 2): (2, 2 / 8),
        (1, 0): (4, 4 / 8),
    }


@pytest.mark.parametrize("weigh", Weigh)
def test_members_weigh_by_their_own_update_whose_times_are_the_same(
    engine: Engine, weigh: Weigh
) -> None:
    # The first two of three, with 2 and 6 of 4 samples: 0.5 s and 3 s.  Rank 2 loses.
    scenario = world([[1], [2], [4]], updates=2, learner={"batch": 4})
    plan = Plan(
        (Quorum(count=2, via=Via.SERVER, late=Late.ABORT),), batch=(0.5, 1.5, 1), weigh=weigh
    )
    tell(engine, scenario, plan)("""
        0  start 0.0 1.0 2.0 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 2.1 on 1
        6  update 0.1 1.1 to 2
        aborted 2.0 2.1
    """)
    whole = 12 if weigh is Weigh.WORLD else 8
    assert applied(engine, scenario, plan) == {
        (0, 0): (2, 2 / whole),
        (1, 0): (6, 6 / whole),
        (0, 1): (2, 2 / whole),
        (1, 1): (6, 6 / whole),
    }
