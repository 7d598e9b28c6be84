"""Real ranks for hundreds of steps: what each of them holds stays the same, whatever is switched.

A slow rank that moves makes policies change precision, shares and mechanism many times.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.ranks import Ranks, ranks
from tests.test_ddp_trainer import BATCH, Told, task, without_statistics

__all__ = ["ranks"]

WORLD = 4
SLOW, GAIN = 2.5, 1.6
"""How many times as long a slow step takes, and a full-precision one as a reduced."""


def moving(rank: int, in_amp: Callable[[], bool]) -> Callable[[int], float]:
    """Seconds of a step of 0.1 s: for 50 steps a rank is slow, then the next; AMP helps."""

    def seconds(step: int) -> float:
        uneven = 1 + 0.01 * ((7 * step + 3 * rank) % 5)
        slow = SLOW if step // 50 % WORLD == rank else 1.0
        return 0.1 * uneven * slow / (GAIN if in_amp() else 1.0)

    return seconds


def told(rank: int, world: int, policy: str, steps: int) -> tuple[list[str], str, list[Any]]:
    """Steps on told times: the plan of each as JSON, the bytes at the end, and what was switched.

    The last are precisions and samples of all ranks at each step.
    """
    from simstrag.ddp import equal, wrap
    from simstrag.ddp.journal import plan_as_written

    model, optimizer, loss = task(rank)
    plans, switched = [], []
    with wrap(model, optimizer, policy, batch=BATCH, precision="bf16") as trainer:
        trainer.replica.clock = Told(
            moving(rank, lambda: trainer.plan is not None and bool(trainer.plan.in_amp[rank]))
        )
        for _ in range(steps):
            trainer.step(lambda: loss(trainer.next_batch))
            assert trainer.plan is not None
            plans.append(json.dumps(plan_as_written(trainer.plan), sort_keys=True))
            sizes = tuple(trainer.plan.samples(BATCH, world))
            switched.append((tuple(trainer.plan.in_amp.tolist()), sizes))
    return plans, equal.digest(without_statistics(model), optimizer), switched


def changes(values: list[Any]) -> int:
    return sum(one != other for one, other in itertools.pairwise(values))


def test_korel_switches_precision_in_500_steps_and_all_ranks_stay_equal(ranks: Ranks) -> None:
    first, *others = ranks.run(told, WORLD, "korel", 500, limit=300.0)
    assert all(each == first for each in others)
    switches = sum(changes([amp[rank] for amp, _ in first[2]]) for rank in range(WORLD))
    print(f"korel: {switches} switches of precision in 500 steps")
    assert switches > 5


def test_lb_bsp_moves_shares_in_200_steps_and_all_ranks_stay_equal(ranks: Ranks) -> None:
    first, *others = ranks.run(told, WORLD, "lb_bsp", 200, limit=300.0)
    assert all(each == first for each in others)
    moves = changes([sizes for _, sizes in first[2]])
    print(f"lb_bsp: shares changed {moves} times in 200 steps")
    assert moves > 5


PACE = 0.02
"""Seconds that each step sleeps, so that neither this machine's noise nor its load straggles."""


def changing(
    rank: int, world: int, policy: str, steps: int
) -> tuple[list[tuple[int, str]], list[bool], str]:
    """Steps in real time; rank 1 is slow for 20 steps of its own, and again later.

    At each return to the synchronous way, samples and bytes of everything; whether each step ended
    in that way; and the bytes at the end.
    """
    from simstrag.ddp import equal, wrap

    model, optimizer, loss = task(rank)
    returns, ways = [], []
    whole = world * BATCH * steps
    with wrap(model, optimizer, policy, batch=BATCH, samples=whole, precision="bf16") as trainer:
        own = 0
        while not trainer.over:
            slow = rank == 1 and own < 160 and own % 80 in range(20, 40)
            time.sleep(PACE * (SLOW if slow else 1.0))
            trainer.step(lambda: loss(trainer.next_batch))
            own += 1
            ways.append(trainer.plan is not None)
            if ways[-2:] == [False, True]:
                returns.append((trainer.samples, equal.digest(model, optimizer)))
    return returns, ways, equal.digest(without_statistics(model), optimizer)


def test_star_h_changes_mechanism_and_all_ranks_return_to_equal_parameters(ranks: Ranks) -> None:
    answers = ranks.run(changing, WORLD, "star_h:form=ring,phi=64", 200, limit=300.0)
    returns, ways, digest = answers[0]
    print(f"star_h: {changes(ways)} changes of mechanism, returns at {[s for s, _ in returns]}")
    assert all(found == returns for found, _, _ in answers)
    assert returns, "it must have gone to the server and come back"
    if ways[-1]:
        assert all(found == digest for _, _, found in answers)
