"""Real ranks for hundreds of steps: what each of them holds stays the same, whatever is switched.

A slow rank that moves makes policies change precision, shares and mechanism many times.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch")

from simstrag.contract import Plan, Precision, Review, View
from tests.ddp.test_ddp_trainer import BATCH, Told, task, without_statistics
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

WORLD = 4
SLOW, GAIN = 2.5, 1.6
"""How many times as long a slow step takes, and a full-precision one as a reduced."""
KOREL = f"korel:rho={GAIN}"


def moving(rank: int, world: int, in_amp: Callable[[], bool]) -> Callable[[int], float]:
    """Seconds of a step of 0.1 s: for 50 steps a rank is slow, then the next; AMP helps."""

    def seconds(step: int) -> float:
        uneven = 1 + 0.01 * ((7 * step + 3 * rank) % 5)
        slow = SLOW if step // 50 % world == rank else 1.0
        return 0.1 * uneven * slow / (GAIN if in_amp() else 1.0)

    return seconds


def told(rank: int, world: int, policy: str, steps: int) -> tuple[list[str], str, list[Any]]:
    """Steps on told times: the plan of each as JSON, the bytes at the end, and what was switched.

    The last are precisions and samples of all ranks at each step.
    """
    from simstrag.ddp import wrap
    from simstrag.ddp.allreduce import broadcast_and_average
    from simstrag.ddp.journal.journal import plan_to_json

    model, optimizer, loss = task(rank)
    plans, switched = [], []
    with wrap(model, optimizer, policy, batch=BATCH, precision="bf16") as trainer:

        def in_amp() -> bool:
            return trainer.plan is not None and bool(trainer.plan.in_amp[rank])

        trainer.replica.clock = Told(moving(rank, world, in_amp))
        for _ in range(steps):
            trainer.step(lambda: loss(trainer.next_batch))
            assert trainer.plan is not None
            plans.append(json.dumps(plan_to_json(trainer.plan), sort_keys=True))
            sizes = tuple(trainer.plan.samples(BATCH, world))
            switched.append((tuple(trainer.plan.in_amp.tolist()), sizes))
    return plans, broadcast_and_average.digest(without_statistics(model), optimizer), switched


def changes(values: list[Any]) -> int:
    return sum(one != other for one, other in itertools.pairwise(values))


@pytest.mark.parametrize("world", [2, WORLD])
def test_korel_switches_precision_in_500_steps_and_all_ranks_stay_equal(
    world: int, ranks: Ranks
) -> None:
    first, *others = ranks.run(told, world, KOREL, 500, limit=300.0)
    assert all(each == first for each in others)
    switches = sum(changes([amp[rank] for amp, _ in first[2]]) for rank in range(world))
    print(f"korel, {world} ranks: {switches} switches of precision in 500 steps")
    assert switches > 5


@dataclass
class Hasty:
    """Reads a clock: replicas that ask on different sides of a tick decide differently."""

    def plan(self, view: View) -> Plan:
        tick = int(time.time() * 200) % 2 == 1 and view.version > 0
        chosen = Precision.AMP if tick else Precision.FULL
        return Plan(precision=chosen, review=Review(updates=1))


def hasty(rank: int, world: int, steps: int) -> tuple[list[bool], str]:
    """Whether each plan was in reduced precision, up to the step in which that ended; and how."""
    from simstrag.ddp import Disagreement, wrap

    model, optimizer, loss = task(rank)
    decided: list[bool] = []
    with wrap(model, optimizer, Hasty(), batch=BATCH, precision="bf16") as trainer:
        try:
            for _ in range(steps):
                trainer.step(lambda: loss(BATCH))
                assert trainer.plan is not None
                decided.append(bool(trainer.plan.in_amp[0]))
        except Disagreement as error:
            return decided, str(error)
    return decided, ""


@pytest.mark.parametrize("world", [2, 3, WORLD])
def test_a_policy_that_reads_a_clock_is_caught_at_the_first_differing_step(
    world: int, ranks: Ranks
) -> None:
    answers = ranks.run(hasty, world, 2000, limit=120.0)
    (said,) = {said for _, said in answers}
    decided = [each for each, _ in answers]
    version = len(decided[0])
    print(f"{world} ranks: caught at version {version}: {said}")
    assert all(each[:-1] == decided[0][:-1] for each in decided)
    last = [each[-1] for each in decided]
    assert len(set(last)) == 2
    assert said.startswith(f"at version {version}: ")
    (common, count), *_ = Counter(last).most_common(1)
    odd = {rank for rank in range(world) if last[rank] != common}
    named = {rank for rank in range(world) if f"rank {rank} is at version {version} with" in said}
    assert named == (odd if world >= 3 and 2 * count > world else set(range(world)))


@pytest.mark.parametrize("policy", ["bsp", "amp_all", "lb_bsp"])
def test_all_ranks_stay_equal_for_500_steps(policy: str, ranks: Ranks) -> None:
    first, *others = ranks.run(told, WORLD, policy, 500, limit=300.0)
    assert all(each == first for each in others)
    moves = changes([sizes for _, sizes in first[2]])
    print(f"{policy}: shares changed {moves} times in 500 steps")
    assert (moves > 5) == (policy == "lb_bsp")


PACE = 0.02
"""Seconds that each step sleeps, so that neither this machine's noise nor its load straggles."""


def changing(
    rank: int, world: int, policy: str, steps: int
) -> tuple[list[tuple[int, str]], list[bool], str]:
    """Steps in real time; rank 1 is slow for 20 steps of its own, and again later.

    At each return to the synchronous way, samples and bytes of everything; whether each step ended
    in that way; and the bytes at the end.
    """
    from simstrag.ddp import wrap
    from simstrag.ddp.allreduce import broadcast_and_average

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
                returns.append((trainer.samples, broadcast_and_average.digest(model, optimizer)))
    return returns, ways, broadcast_and_average.digest(without_statistics(model), optimizer)


def test_star_h_changes_mechanism_and_all_ranks_return_to_equal_parameters(ranks: Ranks) -> None:
    answers = ranks.run(changing, WORLD, "star_h:form=ring,phi=64", 200, limit=300.0)
    returns, ways, digest = answers[0]
    print(f"star_h: {changes(ways)} changes of mechanism, returns at {[s for s, _ in returns]}")
    assert all(found == returns for found, _, _ in answers)
    assert returns, "it must have gone to the server and come back"
    if ways[-1]:
        assert all(found == digest for _, _, found in answers)
