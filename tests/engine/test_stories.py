"""What the rules say of small runs, worked out by hand (see tests/support/stories.py)."""

from __future__ import annotations

import pytest

from simstrag.contract import Late, Plan, Precision, Quorum, Review, Via
from tests.support.stories import Engine, served, tell, world
from tests.support.strategies import Script


def test_drop_throws_the_third_of_three_away_and_lets_it_go_on_at_its_own_finish(
    engine: Engine,
) -> None:
    # Two of three gradients make an update.  Rank 2 takes 3 s and is late for every update: at 3
    # its gradient is dropped and it goes on alone.  At 6 it finishes together with the others and
    # is marked since 4: its finish is processed before the closing, so it starts on version 2.
    tell(engine, world([[2], [2], [3]], updates=3), served(count=2, late=Late.DROP))("""
        0  start 0.0 1.0 2.0 on 0
        2  update 0.0 1.0 to 1
        2  start 0.1 1.1 on 1
        3  start 2.1 on 1
        4  update 0.1 1.1 to 2
        4  start 0.2 1.2 on 2
        6  start 2.2 on 2
        6  update 0.2 1.2 to 3
        dropped 2.0 2.1
    """)


def test_a_gradient_dropped_between_closing_and_update_waits_for_the_update(
    engine: Engine,
) -> None:
    # The same with a server that needs 1 s for each gradient: closed at 2, updated at 4.  Rank 2
    # is dropped at 3, costs the server nothing, and is released with the others at 4.
    tell(
        engine,
        world([[2], [2], [3]], updates=2, server={"service": 1}),
        served(count=2, late=Late.DROP),
    )("""
        0  start 0.0 1.0 2.0 on 0
        4  update 0.0 1.0 to 1
        4  start 0.1 1.1 2.1 on 1
        8  update 0.1 1.1 to 2
        dropped 2.0 2.1
    """)


def test_a_mark_of_drop_does_nothing_in_a_quorum_that_queues(engine: Engine) -> None:
    # 2.0 is marked at 1; from version 1 on late gradients queue.  At 2 all three arrive: 0.1 and
    # 1.1 close, 2.0 stays and is the first of the next closing, at 3.
    drop, queue = (served(count=2, late=late) for late in _DROP_QUEUE)
    tell(engine, world([[1], [1], [2]], updates=3), Script(((0, drop), (1, queue))))("""
        0  start 0.0 1.0 2.0 on 0
        1  update 0.0 1.0 to 1
        1  start 0.1 1.1 on 1
        2  update 0.1 1.1 to 2
        2  start 0.2 1.2 on 2
        3  update 0.2 2.0 to 3
    """)


_DROP_QUEUE = (Late.DROP, Late.QUEUE)


def test_abort_cancels_the_losers_step_which_has_used_up_its_number(engine: Engine) -> None:
    # Two of three all-reduce for 1 s.  Rank 2 would need 4 s for its step 0, cancelled at 3, and
    # needs 1 s for every later one: then rank 1 loses.  Losers wait for the end of the all-reduce.
    tell(
        engine,
        world([[2], [3], [4, 1]], updates=3, allreduce={"alpha": 0.5}),
        Plan((Quorum(count=2, late=Late.ABORT),)),
    )("""
        0  start 0.0 1.0 2.0 on 0
        4  update 0.0 1.0 to 1
        4  start 0.1 1.1 2.1 on 1
        7  update 0.1 2.1 to 2
        7  start 0.2 1.2 2.2 on 2
        10 update 0.2 2.2 to 3
        aborted 2.0 1.1 1.2
    """)


def test_abort_cancels_a_push_under_way(engine: Engine) -> None:
    # Both finish at 2 and push for 1 s, rank 1 over a network of half the speed.  At 3 rank 0 has
    # arrived, and rank 1's push is cancelled halfway.
    tell(
        engine,
        world([[2], [2]], updates=2, server={"push": 1}, net={1: 2}),
        served(count=1, late=Late.ABORT),
    )("""
        0  start 0.0 1.0 on 0
        3  update 0.0 to 1
        3  start 0.1 1.1 on 1
        6  update 0.1 to 2
        aborted 1.0 1.1
    """)


def test_a_rider_boards_at_its_parents_finish_and_nobody_waits_for_it(engine: Engine) -> None:
    # Ring 0-1 with 1 s of all-reduce, whether or not rank 2 rides with rank 0.  2.0 is done at 3,
    # too late for 0.0 (done at 2); it boards 0.1 at 6 and is one version stale at 8.
    tell(
        engine,
        world([[2], [3], [3]], updates=3, allreduce={"alpha": 0.5}),
        Plan((Quorum((0, 1), riders=((2, 0),)),)),
    )("""
        0  start 0.0 1.0 2.0 on 0
        4  update 0.0 1.0 to 1
        4  start 0.1 1.1 on 1
        8  update 0.1 1.1 2.0 to 2
        8  start 0.2 1.2 2.1 on 2
        12 update 0.2 1.2 to 3
    """)


def test_a_rider_that_ties_with_its_parent_boards_only_if_its_rank_is_lower(
    engine: Engine,
) -> None:
    # Ranks 0 and 2 ride with rank 1; everybody needs 1 s.  In each instant rank 0 finishes before
    # its parent and rank 2 after it, so that rank 2 boards a step later.
    tell(
        engine, world([[1], [1], [1]], updates=3), Plan((Quorum((1,), riders=((0, 1), (2, 1))),))
    )("""
        0  start 0.0 1.0 2.0 on 0
        1  update 0.0 1.0 to 1
        1  start 0.1 1.1 on 1
        2  update 0.1 1.1 2.0 to 2
        2  start 0.2 1.2 2.1 on 2
        3  update 0.2 1.2 to 3
    """)


def test_leaders_that_wait_together_become_one_update(engine: Engine) -> None:
    # Three groups of one; the server needs 2 s.  At 3 it takes 1.0 and 2.0 as one job, at 5 only
    # 0.1 waits; at 7 its update comes before 1.1 gets to the server, which takes 1.1 alone; at 9
    # it takes 2.1 and 0.2.
    groups = tuple(Quorum((rank,), via=Via.LEADER) for rank in range(3))
    tell(
        engine, world([[1], [2], [2.5]], updates=5, server={"service": 2}), Plan(groups, fuse=True)
    )("""
        0  start 0.0 1.0 2.0 on 0
        3  update 0.0 to 1
        3  start 0.1 on 1
        5  update 1.0 2.0 to 2
        5  start 1.1 2.1 on 2
        7  update 0.1 to 3
        7  start 0.2 on 3
        9  update 1.1 to 4
        9  start 1.2 on 4
        11 update 0.2 2.1 to 5
    """)


def test_bound_1_lets_the_fast_rank_be_one_step_ahead(engine: Engine) -> None:
    # Rank 0 needs 1 s, rank 1 needs 4 s.  With two steps against none rank 0 is blocked at 2, with
    # two against one freed at 4 by rank 1's update, and blocked again at 5.
    tell(
        engine, world([[1], [4]], updates=5), Plan((Quorum(count=1, via=Via.SERVER),), bound=1)
    )("""
        0  start 0.0 1.0 on 0
        1  update 0.0 to 1
        1  start 0.1 on 1
        2  update 0.1 to 2
        4  update 1.0 to 3
        4  start 0.2 1.1 on 3
        5  update 0.2 to 4
        8  update 1.1 to 5
    """)


def test_a_policy_asked_on_block_frees_the_rank_in_the_same_instant(engine: Engine) -> None:
    # Bound 0 would block rank 0 at 1; asked there, the policy allows 2.  At 3 rank 0 is three
    # steps ahead, and the policy, asked again, leaves it blocked until rank 1's update at 4.
    def plan(bound: int) -> Plan:
        quorum = Quorum(count=1, via=Via.SERVER)
        return Plan((quorum,), bound=bound, review=Review(on_block=True))

    tell(engine, world([[1], [4]], updates=5), Script(((0, plan(0)), (1, plan(2)))))("""
        0  start 0.0 1.0 on 0
        1  update 0.0 to 1
        1  start 0.1 on 1
        2  update 0.1 to 2
        2  start 0.2 on 2
        3  update 0.2 to 3
        4  update 1.0 to 4
        4  start 0.3 1.1 on 4
        5  update 0.3 to 5
    """)


def test_a_rank_that_enters_a_bounded_quorum_starts_at_the_least_count(engine: Engine) -> None:
    # Bound 1; ranks 0 and 1 need 1 s and 2 s.  Rank 2 enters at 3, when they count 3 and 1, and
    # counts 1 as well: were it 0, rank 1 would be blocked at its update at 4.
    def plan(*ranks: int) -> Plan:
        return Plan((Quorum(ranks, count=1, via=Via.SERVER),), bound=1)

    tell(
        engine, world([[1], [2], [1]], updates=8), Script(((0, plan(0, 1)), (4, plan(0, 1, 2))))
    )("""
        0  start 0.0 1.0 on 0
        1  update 0.0 to 1
        1  start 0.1 on 1
        2  update 0.1 to 2
        2  update 1.0 to 3
        2  start 0.2 1.1 on 3
        3  update 0.2 to 4
        3  start 2.0 on 4
        4  update 1.1 to 5
        4  start 1.2 on 5
        4  update 2.0 to 6
        4  start 0.3 2.1 on 6
        5  update 0.3 to 7
        5  update 2.1 to 8
    """)


def test_a_new_plan_files_a_running_step_at_its_finish(engine: Engine) -> None:
    # Two of three all-reduce for nothing at 2; then everybody for himself at a server that needs
    # 1 s.  2.0, started under the first plan, is job number (4, 2) and three versions stale.
    tell(
        engine,
        world([[1], [2], [4]], updates=5, server={"service": 1}),
        Script(((0, Plan((Quorum(count=2),))), (1, served(count=1)))),
    )("""
        0  start 0.0 1.0 2.0 on 0
        2  update 0.0 1.0 to 1
        2  start 0.1 1.1 on 1
        4  update 0.1 to 2
        4  start 0.2 on 2
        5  update 1.1 to 3
        5  start 1.2 on 3
        6  update 2.0 to 4
        6  start 2.1 on 4
        7  update 0.2 to 5
    """)


def test_push_service_and_pull_follow_each_other(engine: Engine) -> None:
    # Pull 2 s (the first one too), compute 3 or 4 s, push 1 s, service 1 s.  0.0: pulled 2,
    # finished 5, arrived 6, applied 7.  1.0: finished 6, arrived 7, applied 8.  And so on.
    tell(
        engine,
        world([[3], [4]], updates=4, server={"service": 1, "push": 1, "pull": 2}),
        served(count=1),
    )("""
        2  start 0.0 1.0 on 0
        7  update 0.0 to 1
        8  update 1.0 to 2
        9  start 0.1 on 1
        10 start 1.1 on 2
        14 update 0.1 to 3
        16 start 0.2 on 3
        16 update 1.1 to 4
    """)


def test_a_leader_pushes_and_pulls_for_its_quorum(engine: Engine) -> None:
    # Rank 0 leads over a network of half the speed: 2 s each for pull, all-reduce and push.
    # Pulled 2, finished 4 and 5, reduced 7, pushed 9, served 10, pulled 12; and 10 s later again.
    tell(
        engine,
        world(
            [[2], [3]],
            updates=2,
            server={"service": 1, "push": 1, "pull": 1},
            allreduce={"alpha": 0.5},
            net={0: 2},
        ),
        Plan((Quorum(via=Via.LEADER),)),
    )("""
        2  start 0.0 1.0 on 0
        10 update 0.0 1.0 to 1
        12 start 0.1 1.1 on 1
        20 update 0.1 1.1 to 2
    """)


def test_a_queue_closes_twice_in_one_instant(engine: Engine) -> None:
    # Four gradients arrive at 1 and two make an update: closed twice at once, four jobs of 1 s.
    # 0.1 and 1.1 arrive at 4 and close at once, but queue behind 3.0.
    tell(engine, world([[1]] * 4, updates=3, server={"service": 1}), served(count=2))("""
        0  start 0.0 1.0 2.0 3.0 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 on 1
        5  update 2.0 3.0 to 2
        5  start 2.1 3.1 on 2
        7  update 0.1 1.1 to 3
    """)


def test_of_equal_arrivals_the_highest_rank_is_late_and_its_job_withdrawn(
    engine: Engine,
) -> None:
    # All arrive at 1, two are needed: rank 2 is aborted though it is done, and the server, which
    # takes its next job after the closing, spends 1 s on each of the two others only.
    tell(
        engine, world([[1]] * 3, updates=2, server={"service": 1}), served(count=2, late=Late.ABORT)
    )("""
        0  start 0.0 1.0 2.0 on 0
        3  update 0.0 1.0 to 1
        3  start 0.1 1.1 2.1 on 1
        6  update 0.1 1.1 to 2
        aborted 2.0 2.1
    """)


def test_a_change_of_precision_costs_its_rank_half_a_second(engine: Engine) -> None:
    # Steps of 2 s, 1 s in reduced precision.  Rank 0 changes at 2, rank 1 at 4, both back at 5.5.
    full, amp = Precision.FULL, Precision.AMP
    tell(
        engine,
        world([[2], [2]], updates=4, step={"compute": 2, "amp_ratio": 2, "amp_switch": 0.5}),
        Script(
            (
                (0, Plan(precision=full)),
                (1, Plan(precision=(amp, full))),
                (2, Plan(precision=amp)),
                (3, Plan(precision=full)),
            )
        ),
    )("""
        0    start 0.0 1.0 on 0
        2    update 0.0 1.0 to 1
        2    start 1.1 on 1
        2.5  start 0.1 on 1
        4    update 0.1 1.1 to 2
        4    start 0.2 on 2
        4.5  start 1.2 on 2
        5.5  update 0.2 1.2 to 3
        6    start 0.3 1.3 on 3
        8    update 0.3 1.3 to 4
    """)


def test_a_rank_that_leaves_is_dropped_at_its_finish_and_may_enter_again(engine: Engine) -> None:
    # At first ranks 0 and 1, each for itself.  From version 1 on ranks 0 and 2: rank 2, idle so
    # far, starts at 1, and 1.0 is dropped at 2.5.  From version 2 on everybody.
    def server(*groups: tuple[int, ...]) -> Plan:
        return Plan(tuple(Quorum(ranks, via=Via.SERVER) for ranks in groups))

    tell(
        engine,
        world([[1], [2.5], [2]], updates=3),
        Script(((0, server((0,), (1,))), (1, server((0, 2))), (2, server((0, 1, 2))))),
    )("""
        0    start 0.0 1.0 on 0
        1    update 0.0 to 1
        1    start 0.1 2.0 on 1
        3    update 0.1 2.0 to 2
        3    start 0.2 1.1 2.1 on 2
        5.5  update 0.2 1.1 2.1 to 3
        dropped 1.0
    """)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_rest_start_with_the_update_that_takes_them_back(
    engine: Engine, ranks: int
) -> None:
    # Rank 0 alone makes update 2; the others, which rest from 1 to 2, then take their step 1.
    everybody, alone = Plan(), Plan((Quorum((0,)),))
    first, second = (" ".join(f"{r}.{k}" for r in range(ranks)) for k in range(2))
    tell(
        engine,
        world([[1]] * ranks, updates=3),
        Script(((0, everybody), (1, alone), (2, everybody))),
    )(f"""
        0  start {first} on 0
        1  update {first} to 1
        1  start 0.1 on 1
        2  update 0.1 to 2
        2  start 0.2 {second.partition(" ")[2]} on 2
        3  update 0.2 {second.partition(" ")[2]} to 3
    """)


def test_a_waiting_job_is_withdrawn_where_the_new_quorum_has_no_use_for_it(
    engine: Engine,
) -> None:
    # The server needs 2 s.  At 3 the job of 1.0 waits; then ranks 1 and 2 get a leader.  So the
    # server is free for 0.1 at 4, and for the leader's job at 6.
    def plan(via: Via) -> Plan:
        return Plan((Quorum((0,), via=Via.SERVER), Quorum((1, 2), via=via)))

    tell(
        engine,
        world([[1], [2], [6]], updates=4, server={"service": 2}),
        Script(((0, plan(Via.SERVER)), (1, plan(Via.LEADER)))),
    )("""
        0  start 0.0 1.0 2.0 on 0
        3  update 0.0 to 1
        3  start 0.1 on 1
        6  update 0.1 to 2
        6  start 0.2 on 2
        8  update 1.0 2.0 to 3
        8  start 1.1 2.1 on 3
        10 update 0.2 to 4
    """)


def test_a_job_that_is_done_counts_after_refiling(engine: Engine) -> None:
    # 1.0 is served from 2 to 3 but waits for rank 2, until at 6 every rank gets a quorum of its
    # own: it closes at once, and its update is at the closing, without a second job.
    def server(*groups: tuple[int, ...]) -> Plan:
        return Plan(tuple(Quorum(ranks, via=Via.SERVER) for ranks in groups))

    tell(
        engine,
        world([[1, 3], [1], [9]], updates=4, server={"service": 1}),
        Script(((0, server((0,), (1, 2))), (2, server((0,), (1,), (2,))))),
    )("""
        0  start 0.0 1.0 2.0 on 0
        2  update 0.0 to 1
        2  start 0.1 on 1
        6  update 0.1 to 2
        6  start 0.2 on 2
        6  update 1.0 to 3
        6  start 1.1 on 3
        8  update 1.1 to 4
    """)
