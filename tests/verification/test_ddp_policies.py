"""Real ranks learn: each kind of plan trains a network on digits to the accuracy that it should.

A small network gets 0.96 to 0.98 of the held-out digits right after as many samples, whether one
process draws them or four ranks do that wait for each other; here each policy must reach 0.94.
Gradients that were lost, counted twice, weighed wrongly or applied to the wrong parameters cost
more than that; so does a checkpoint that is of other parameters than those of the end.  The last
rank is slow, so that a policy for stragglers has one.

After half as many samples it would not do: one process that applies gradients three updates late
gets 0.86 to 0.91 right then, 0.98 without that, and 0.98 after all of them either way.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from tests.ddp.test_ddp_trainer import Told, slow_at_times
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

SEEDS = 3
BATCH, SAMPLES = 8, 8000
RATE = 0.05
GENTLY = {"sync_switch": (16_000, 0.01)}
"""Samples and rate of those for which that rate is too high.  Leaving BSP, this one has a momentum
that was gathered in updates of four gradients, and takes it into updates of one, of which there are
four times as many; the paper changes the momentum with the protocol, and a plan has no word for it.
One process that does the same by itself gets 0.91 to 0.92 at the higher rate, applying gradients
three updates late, 0.96 to 0.98 with a quarter of the momentum, and 0.96 to 0.98 at this rate."""
REACHED = 0.94
LIMIT = 300.0
DELAY = 0.005
"""Seconds that each step of the last rank takes longer."""

POLICIES = (
    "bsp", "korel", "lb_bsp", "asgd", "ssp:bound=3", "backup:b=1", "k_async:x=2", "cgp", "lgc",
    "local_sgd:h=4", "p_reduce:p=2", "star_ring", "star_h:phi=64", "sync_switch",
    "drain", "hot_spare", "fewer",
)  # fmt: skip


def training(rank: int, world: int, policy: str, seed: int) -> dict[str, Any]:
    """A whole training; what it came to on this rank, and in its checkpoint."""
    from simstrag.ddp import wrap
    from simstrag.workloads import load

    digits = load("digits")
    parts = digits.build(1000 * seed + rank)
    samples, rate = GENTLY.get(policy, (SAMPLES, RATE))
    for group in parts.optimizer.param_groups:
        group["lr"] = rate
    with wrap(
        parts.model, parts.optimizer, policy, batch=BATCH, samples=samples, precision="bf16"
    ) as trainer:
        if policy == "korel":  # what is slow on this machine today is not the same tomorrow
            trainer.replica.clock = Told(slow_at_times(rank))
        in_amp = 0
        while not trainer.over:
            batch = parts.make_batch(trainer.next_batch)
            in_amp += trainer.plan is not None and bool(trainer.plan.in_amp[rank])
            trainer.step(partial(parts.loss, parts.model, batch))
            if rank == world - 1 and policy != "korel":
                time.sleep(DELAY)
        own = digits.accuracy(parts.model)
        parts.model.load_state_dict(trainer.state_dict()["model"])
        saved = digits.accuracy(parts.model)
        return {"own": own, "saved": saved, "samples": trainer.samples, "in_amp": in_amp}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_reaches_its_accuracy_in_every_seed(policy: str, ranks: Ranks) -> None:
    reached = []
    for seed in range(SEEDS):
        answers = ranks.run(training, 4, policy, seed, limit=LIMIT)
        assert max(each["samples"] for each in answers) >= GENTLY.get(policy, (SAMPLES,))[0]
        assert any(each["in_amp"] for each in answers) == (policy == "korel")
        reached.append(min(each[what] for each in answers for what in ("own", "saved")))
    shown = ", ".join(f"{each:.3f}" for each in reached)
    print(f"{policy}: {shown}; mean {statistics.mean(reached):.3f}, least {min(reached):.3f}")
    assert min(reached) >= REACHED
