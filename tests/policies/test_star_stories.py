"""STAR's policies told as stories: what they decide in small runs, and what comes of it.

Nothing costs time but computing, so that whoever waits does so for a gradient.  `predictor=last`
lets a decision follow from one step, which keeps the stories short.
"""

from __future__ import annotations

import pytest

from simstrag.policies import load
from tests.support import reference
from tests.support.stories import Engine, tell, world


def test_two_of_three_gradients_make_an_update_and_the_third_is_never_lost(engine: Engine) -> None:
    # 0.0 waits a second for 1.0.  2.0 is late for it and meets 0.1 at 3, one update old by then;
    # so is 1.1, which meets 0.2.
    tell(engine, world([[1], [2], [3]], updates=3), load("k_async:x=2"))("""
        0  start 0.0 1.0 2.0 on 0
        2  update 0.0 1.0 to 1
        2  start 0.1 1.1 on 1
        3  update 0.1 2.0 to 2
        3  start 0.2 2.1 on 2
        4  update 0.2 1.1 to 3
    """)


def test_the_staleness_of_that_story_is_two_updates_in_six_gradients() -> None:
    from simstrag.engine.simulate import simulate

    scenario, policy = world([[1], [2], [3]], updates=3), load("k_async:x=2")
    assert reference.simulate(scenario, policy).mean_staleness == pytest.approx(2 / 6)
    assert simulate(scenario, policy).summary["mean_staleness"] == pytest.approx(2 / 6)


def test_groups_form_when_a_rank_turns_out_slow_and_merge_when_it_has_recovered(
    engine: Engine,
) -> None:
    # The first round tells that rank 2 is slow; from 3.5 on it updates apart.  Reviews come every
    # three gradients: at 3.5, 5.5, 7, and at 8, where the first quick step of rank 2 is known.
    # From then on all wait for all again: 0.5 and 1.5, done at 8.5, for 2.3.
    tell(
        engine, world([[1], [1], [3.5, 3.5, 1]], updates=8), load("star_dynamic:predictor=last")
    )("""
        0    start 0.0 1.0 2.0 on 0
        3.5  update 0.0 1.0 2.0 to 1
        3.5  start 0.1 1.1 2.1 on 1
        4.5  update 0.1 1.1 to 2
        4.5  start 0.2 1.2 on 2
        5.5  update 0.2 1.2 to 3
        5.5  start 0.3 1.3 on 3
        6.5  update 0.3 1.3 to 4
        6.5  start 0.4 1.4 on 4
        7    update 2.1 to 5
        7    start 2.2 on 5
        7.5  update 0.4 1.4 to 6
        7.5  start 0.5 1.5 on 6
        8    update 2.2 to 7
        8    start 2.3 on 7
        9    update 0.5 1.5 2.3 to 8
    """)


def test_a_straggler_rides_from_the_tenth_update_on(engine: Engine) -> None:
    # Nine quick rounds, then one in which rank 2 takes 2.5 s: the review after it makes it a rider
    # of rank 0, which it joins every third time, at 14.5 and 17.5.
    quick = [f"{k} update 0.{k - 1} 1.{k - 1} 2.{k - 1} to {k}" for k in range(1, 10)]
    quick += [f"{k} start 0.{k} 1.{k} 2.{k} on {k}" for k in range(10)]
    tell(engine, world([[1], [1], [1] * 9 + [2.5]], updates=16), load("star_ring:predictor=last"))(
        "\n".join(quick)
        + """
        11.5 update 0.9 1.9 2.9 to 10
        11.5 start 0.10 1.10 2.10 on 10
        12.5 update 0.10 1.10 to 11
        12.5 start 0.11 1.11 on 11
        13.5 update 0.11 1.11 to 12
        13.5 start 0.12 1.12 on 12
        14.5 update 0.12 1.12 2.10 to 13
        14.5 start 0.13 1.13 2.11 on 13
        15.5 update 0.13 1.13 to 14
        15.5 start 0.14 1.14 on 14
        16.5 update 0.14 1.14 to 15
        16.5 start 0.15 1.15 on 15
        17.5 update 0.15 1.15 2.11 to 16
        """
    )


def test_a_gradient_that_waits_for_its_group_waits_for_everybody_after_the_switch(
    engine: Engine,
) -> None:
    # Ranks 0 and 1 are of one speed, less than 20 % apart.  At 4.625 rank 2 has become a straggler,
    # and groups are estimated to progress fastest.  Its next step is as slow; the one after is
    # quick and applied at 10.1875, while 0.6 waits for 1.6: from then on it waits for 2.4 too.
    tell(
        engine,
        world([[1], [1.125], [1, 3.5, 4.4375, 1.125]], updates=9),
        load("star_h:predictor=last"),
    )("""
        0       start 0.0 1.0 2.0 on 0
        1.125   update 0.0 1.0 2.0 to 1
        1.125   start 0.1 1.1 2.1 on 1
        4.625   update 0.1 1.1 2.1 to 2
        4.625   start 0.2 1.2 2.2 on 2
        5.75    update 0.2 1.2 to 3
        5.75    start 0.3 1.3 on 3
        6.875   update 0.3 1.3 to 4
        6.875   start 0.4 1.4 on 4
        8       update 0.4 1.4 to 5
        8       start 0.5 1.5 on 5
        9.0625  update 2.2 to 6
        9.0625  start 2.3 on 6
        9.125   update 0.5 1.5 to 7
        9.125   start 0.6 1.6 on 7
        10.1875 update 2.3 to 8
        10.1875 start 2.4 on 8
        11.3125 update 0.6 1.6 2.4 to 9
    """)


def test_a_rider_under_way_gets_another_parent_and_arrives_all_the_same(engine: Engine) -> None:
    # At 4.5 rank 3 becomes the rider of rank 0.  At 7.75 rank 2 straggles too: it, the faster of
    # the two, gets rank 0, and rank 3, in the middle of 3.2, gets rank 1, with which it is applied
    # at 8.75.  Nobody in the ring waits for either again.
    tell(
        engine,
        world([[1], [1], [1, 1, 1, 2.25], [1, 3.5]], updates=7),
        load("star_h:form=ring,predictor=last"),
    )("""
        0     start 0.0 1.0 2.0 3.0 on 0
        1     update 0.0 1.0 2.0 3.0 to 1
        1     start 0.1 1.1 2.1 3.1 on 1
        4.5   update 0.1 1.1 2.1 3.1 to 2
        4.5   start 0.2 1.2 2.2 3.2 on 2
        5.5   update 0.2 1.2 2.2 to 3
        5.5   start 0.3 1.3 2.3 on 3
        7.75  update 0.3 1.3 2.3 to 4
        7.75  start 0.4 1.4 2.4 on 4
        8.75  update 0.4 1.4 3.2 to 5
        8.75  start 0.5 1.5 3.3 on 5
        9.75  update 0.5 1.5 to 6
        9.75  start 0.6 1.6 on 6
        10.75 update 0.6 1.6 2.4 to 7
    """)
