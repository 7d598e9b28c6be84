"""Gradient trees (rule 11a): parents that push one message for themselves and their children.

Each run is worked out by hand from docs/semantics.md; tests/support/stories.py says how to read it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from simstrag import policies
from simstrag.contract import ALL, WINDOW, Damping, Hints, Late, Plan, Quorum, Via, View
from simstrag.engine.simulate import simulate
from simstrag.errors import PlanError
from simstrag.policies.tree import Tree
from simstrag.scenario.scenario import Scenario
from tests.support.stories import Engine, tell, world
from tests.support.strategies import Fixed, Script

PAIRS = ((1, 0), (3, 2))


def tree(*pairs: tuple[int, int], ranks: tuple[int, ...] | None = None) -> Quorum:
    return Quorum(ALL if ranks is None else ranks, via=Via.SERVER, parents=pairs)


# -- up and down


def test_a_parent_waits_for_its_children_and_pushes_one_message(engine: Engine) -> None:
    # Pull 0.25, push 0.5, service 1; the network of rank 1 is half as fast.  The parents 0 and 2
    # have the parameters at 0.25, their children 3 at 0.5 and 1 at 0.75.
    # 1.0 ends at 1.75 and is at rank 0 at 2.75, which has waited since 1.25: its push ends at 3.25,
    # its job at 4.25.  3.0 ends at 3.5, is at rank 2 at 4 and at the server at 4.5: job until 5.5.
    # Then the same again, 5.5 s later.
    tell(engine, world(
            [[1], [1], [1], [3]], updates=2, net={1: 2},
            server={"pull": 0.25, "push": 0.5, "service": 1},
        ), Plan((tree(*PAIRS),)))("""
        0.25  start 0.0 2.0 on 0
        0.5   start 3.0 on 0
        0.75  start 1.0 on 0
        5.5   update 0.0 1.0 2.0 3.0 to 1
        5.75  start 0.1 2.1 on 1
        6.0   start 3.1 on 1
        6.25  start 1.1 on 1
        11    update 0.1 1.1 2.1 3.1 to 2
    """)  # fmt: skip


def test_a_rank_without_parent_or_children_pushes_alone(engine: Engine) -> None:
    # Push 0.5, service 1.  2.0 is at the server at 1.5 and served until 2.5; 1.0 is at rank 0 at
    # 2.5, their message at the server at 3, served until 4.
    tell(
        engine,
        world([[1], [2], [1]], updates=1, server={"push": 0.5, "service": 1}),
        Plan((tree((1, 0)),)),
    )("""
        0  start 0.0 1.0 2.0 on 0
        4  update 0.0 1.0 2.0 to 1
    """)


@pytest.mark.parametrize("name", ["native", "plain"])
def test_communication_is_a_push_a_service_and_what_its_pull_takes(name: str) -> None:
    # Of the first story: rank 0 pulls 0.25, pushes 0.5 and is served 1; rank 1 pulls 0.25 + 0.5,
    # pushes 1 and is served 1.  Of 5.5 s they compute 1, and wait for the rest.
    scenario = world(
        [[1], [1], [1], [3]], updates=1, net={1: 2},
        server={"pull": 0.25, "push": 0.5, "service": 1},
    )  # fmt: skip
    summary = simulate(scenario, Fixed(Plan((tree(*PAIRS),))), engine=name).summary
    assert summary["communication_by_rank"][:2] == [1.75, 2.75]
    assert summary["wait_by_rank"][:2] == [2.75, 1.75]


def test_every_gradient_of_a_message_weighs_as_much_as_without_a_tree() -> None:
    scenario = world([[1], [1], [1], [3]], updates=2)
    run = simulate(scenario, Fixed(Plan((tree(*PAIRS),))), record_gradients=True)
    assert run.gradients is not None
    assert run.gradients["weight"][:8] == [0.25] * 8


@pytest.mark.parametrize("fan", [2, 4, 8])
def test_a_server_serves_a_message_of_each_group(fan: int) -> None:
    # All of 8 ranks arrive together: pull twice, compute, push twice, then 8 / fan jobs.
    scenario = Scenario.of({
        "workers": 8, "updates": 1, "step": {"compute": 1.0},
        "server": {"pull": 0.25, "push": 0.5, "service": 0.125},
    })  # fmt: skip
    time = simulate(scenario, f"tree:fan={fan}").updates["time"][-1]
    assert time == 2 * 0.25 + 1 + 2 * 0.5 + 8 / fan * 0.125


# -- a new plan (19)


def test_a_push_to_a_parent_goes_on_under_a_new_plan(engine: Engine) -> None:
    # Push 2.  2.0 is at the server at 2.5, where ranks 2 and 3 become one quorum.  1.0 goes on to
    # rank 0, where it is at 3; their message is at the server at 5.
    def plan(*ranks: tuple[int, ...]) -> Plan:
        others = (Quorum(each, via=Via.SERVER) for each in ranks)
        return Plan((tree((1, 0), ranks=(0, 1)), *others))

    tell(
        engine,
        world([[1], [1], [0.5], [20]], updates=2, server={"push": 2}),
        Script(((0, plan((2,), (3,))), (1, plan((2, 3))))),
    )("""
        0    start 0.0 1.0 2.0 3.0 on 0
        2.5  update 2.0 to 1
        2.5  start 2.1 on 1
        5    update 0.0 1.0 to 2
    """)


def test_a_gradient_at_its_parent_waits_for_the_children_of_a_new_plan(engine: Engine) -> None:
    # Push 1.  At 3 rank 0, which has waited since 1, is alone: its gradient counts unpushed.  1.0,
    # at rank 0 since 2, is now a parent's and waits for 2.0, which ends at 10: it is at rank 1 at
    # 11, and the message at the server at 12.
    def plan(*pairs: tuple[int, int]) -> Plan:
        return Plan((tree(*pairs, ranks=(0, 1, 2)), Quorum((3,), via=Via.SERVER)))

    tell(
        engine,
        world([[1], [1], [10], [2, 20]], updates=2, server={"push": 1}),
        Script(((0, plan((1, 0), (2, 0))), (1, plan((2, 1))))),
    )("""
        0   start 0.0 1.0 2.0 3.0 on 0
        3   update 3.0 to 1
        3   start 3.1 on 1
        12  update 0.0 1.0 2.0 to 2
    """)


def test_a_parent_pushes_anew_where_its_message_lacked_a_child(engine: Engine) -> None:
    # Service 1.  3.0 is served until 2; its window ends at 2.5.  Then rank 0, whose job is in
    # service until 3, becomes the parent of rank 1, whose job waits since 2.25: that one is
    # withdrawn, and the sum pushed at 2.5.  2.0 arrives at 2.75 and closes the quorum.  The job
    # that ends at 3 has no effect; that of the sum ends at 4, that of 2.0 at 5.
    def plan(*pairs: tuple[int, int]) -> Plan:
        own = Quorum((3, 4), via=Via.SERVER, window=1.5)
        return Plan((tree(*pairs, ranks=(0, 1, 2)), own))

    tell(
        engine,
        world([[1.5], [2.25], [2.75], [1, 20], [30]], updates=2, server={"service": 1}),
        Script(((0, plan()), (1, plan((1, 0))))),
    )("""
        0    start 0.0 1.0 2.0 3.0 4.0 on 0
        2.5  update 3.0 to 1
        2.5  start 3.1 on 1
        5    update 0.0 1.0 2.0 to 2
    """)


# -- the plan and the policy


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quorum(parents=PAIRS), "parents need via=SERVER"),
        (lambda: tree((1, 0), (2, 1)), "the parent 1 of child 2 is itself a child"),
        (lambda: tree((1, 0), (1, 2)), "a child has two parents"),
        (lambda: tree((1, 0), ranks=(0, 2)), "rank 1 of the tree is not in the quorum"),
        (lambda: Quorum(via=Via.SERVER, parents=(1,)), "parents must be (child, parent) pairs"),
        (
            lambda: Quorum((0, 1), via=Via.SERVER, parents=((1, 0),), riders=((2, 0),)),
            "parents cannot stand beside riders",
        ),
        (lambda: Quorum(count=1, via=Via.SERVER, parents=PAIRS), "parents need neither count nor"),
        (lambda: Quorum(window=1, via=Via.SERVER, parents=PAIRS), "parents need neither count nor"),
        (
            lambda: Quorum(via=Via.SERVER, late=Late.DROP, parents=PAIRS),
            "parents need late=QUEUE",
        ),
        (lambda: Quorum(steps=2, via=Via.SERVER, parents=PAIRS), "parents cannot stand beside"),
        (
            lambda: Plan((tree((1, 0), ranks=(0, 1)),), bound=1),
            "a bound counts the steps of each rank",
        ),
        (lambda: Plan((tree(*PAIRS),), damping=Damping(cutoff=2)), "damping cannot stand beside"),
        (lambda: Plan((tree(*PAIRS),), damping=Damping(power=1)), "damping cannot stand beside"),
        (lambda: Plan((tree((5, 0)),)).resolved(4), "rank 5 is beyond a world of 4 ranks"),
        (lambda: Tree(fan=1), "fan must be 2 or more, not 1"),
    ],
)
def test_what_a_tree_rules_out_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises((PlanError, ValueError), match=re.escape(message)):
        make()


def test_the_example_of_star_halves_the_messages_of_eight_ranks() -> None:
    (quorum,) = policies.load("tree").plan(View(8)).resolved(8).quorums
    assert quorum.parents == ((1, 0), (3, 2), (5, 4), (7, 6))
    assert quorum.needed == 4


def test_the_last_group_may_be_smaller() -> None:
    (quorum,) = Tree(fan=3).plan(View(7)).resolved(7).quorums
    assert quorum.parents == ((1, 0), (2, 0), (4, 3), (5, 3))
    assert quorum.needed == math.ceil(7 / 3)


# -- which ranks form a group


def by_node(nodes: tuple[int, ...] | None, times: list[float], communication: list[float]) -> View:
    columns = {"local_times": times, "communication": communication}
    windows = {name: np.tile(np.array([values]).T, WINDOW) for name, values in columns.items()}
    steps = np.full(len(times), WINDOW)
    return View(len(times), version=1, steps=steps, hints=Hints(nodes=nodes), **windows)


def test_the_ranks_of_a_node_are_a_group_whose_parent_communicates_in_the_least_time() -> None:
    view = by_node((0, 0, 0, 1, 1), [1.0] * 5, [0.3, 0.1, 0.2, 0.1, 0.1])
    (quorum,) = policies.load("tree:by=node").plan(view).quorums
    assert quorum.parents == ((0, 1), (2, 1), (4, 3))


def test_a_straggler_is_no_parent_where_its_node_has_another_rank() -> None:
    policy = policies.load("tree:by=node")
    assert isinstance(policy, Tree)
    before = policy.plan(by_node((0, 0, 1), [1.0] * 3, [0.1] * 3))
    assert before.quorums[0].parents == ((1, 0),)
    again = policy.plan(by_node((0, 0, 1), [1.1, 1.0, 1.0], [0.1, 0.0, 0.1]))
    assert again is before  # nobody straggles yet: 10 %
    after = policy.plan(by_node((0, 0, 1), [1.5, 1.0, 1.5], [0.1] * 3))
    assert after.quorums[0].parents == ((0, 1),)
    assert after.suspects == {0, 2}


def test_a_tree_by_node_needs_to_know_the_nodes() -> None:
    with pytest.raises(PlanError, match=r"the node of each rank is unknown \(hints.nodes\)"):
        policies.load("tree:by=node").plan(by_node(None, [1.0], [0.1]))


def test_a_tree_by_node_of_ranks_that_share_none_is_no_tree() -> None:
    scenario = Scenario(workers=4, updates=8, step={"compute": 1.0}, server={"service": 0.1})
    runs = [simulate(scenario, policy) for policy in ("tree:by=node", "bsp:via=server")]
    assert runs[0].summary["makespan"] == runs[1].summary["makespan"]


def test_a_tree_by_node_has_as_many_messages_as_nodes() -> None:
    """Eight ranks on two nodes: a job each; by rank four of 0.5 s, by node two."""
    scenario = Scenario(
        workers=8, updates=10, ranks_per_node=4, step={"compute": 1.0}, server={"service": 0.5}
    )
    ends = [simulate(scenario, policy).summary["makespan"] for policy in ("tree", "tree:by=node")]
    assert ends == pytest.approx([10 * 3.0, 10 * 2.0])
