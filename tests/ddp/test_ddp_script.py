"""What a training script may do beside its steps, and what is refused because nobody would heed it.

Step hooks, rates that change, parameters that a loss does not depend on, samplers and shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from simstrag.contract import Plan, Quorum, Via, View
from simstrag.errors import InputError
from tests.ddp.test_ddp_trainer import BATCH, plain, task
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]


def clipping(rank: int, world: int, policy: str, steps: int) -> tuple[str, int]:
    """A step pre-hook clips gradients; all bytes at the end, and how often it ran."""
    from simstrag.ddp import wrap
    from simstrag.ddp.allreduce import broadcast_and_average

    model, optimizer, loss = task(rank)
    clipped = 0

    def clip(*_: Any) -> None:
        nonlocal clipped
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        clipped += 1

    optimizer.register_step_pre_hook(clip)
    with wrap(model, optimizer, policy, batch=BATCH, precision="full") as trainer:
        for _ in range(steps):
            trainer.step(lambda: loss(BATCH))
        return broadcast_and_average.digest(model, optimizer), clipped


def test_a_step_hook_clips_reduced_gradients_as_in_plain_ddp(ranks: Ranks) -> None:
    found = ranks.run(clipping, 3, "bsp", 30)
    assert [digest for digest, _ in found] == ranks.run(plain, 3, 30, 0.1)
    assert [clipped for _, clipped in found] == [30] * 3


def test_step_hooks_run_where_each_rank_has_its_own_optimizer(ranks: Ranks) -> None:
    assert [clipped for _, clipped in ranks.run(clipping, 2, "local_sgd:h=2", 6)] == [6, 6]


def unheeded(rank: int, world: int, policy: str) -> str:
    """A step hook and a policy that would not run it; when that is refused, and why."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    optimizer.register_step_post_hook(lambda *_: None)

    def train() -> None:
        trainer = wrap(model, optimizer, policy, batch=BATCH, samples=400 * BATCH, precision="full")
        while True:
            trainer.step(lambda: loss(BATCH))

    with pytest.raises(InputError) as caught:
        train()
    return f"{caught.value}"


@pytest.mark.parametrize("policy", ["asgd", "sync_switch"])
def test_step_hooks_that_a_server_would_not_run_are_refused(policy: str, ranks: Ranks) -> None:
    for said in ranks.run(unheeded, 2, policy):
        assert said.startswith(f"policy {policy} updates parameters at a server, which runs no ")
        assert "this optimizer has 1 of them: remove them" in said


class Spare(nn.Module):
    """A model one part of which is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.spare, self.steps = nn.Linear(16, 4), nn.Linear(16, 4), 0

    def forward(self, x: torch.Tensor, unused_from: int) -> torch.Tensor:
        self.steps += 1
        used: torch.Tensor = self.part(x)
        return used if self.steps > unused_from else used + self.spare(x)


def sparing(rank: int, world: int, policy: str, unused_from: int) -> tuple[int, str, bool]:
    """Eight steps; how many were taken, what was said then, and whether the spare part moved."""
    from simstrag.ddp import wrap

    torch.manual_seed(0)
    model, x, taken, said = Spare(), torch.randn(BATCH, 16), 0, ""
    before = model.spare.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with wrap(model, optimizer, policy, batch=BATCH, precision="full") as trainer:
        try:
            for _ in range(8):
                trainer.step(lambda: model(x, unused_from).square().mean())
                taken += 1
        except InputError as error:
            said = str(error)
    return taken, said, not torch.equal(model.spare.weight, before)


@pytest.mark.parametrize("unused_from", [0, 3])
def test_a_parameter_without_a_gradient_is_named_where_ranks_wait_for_each_other(
    unused_from: int, ranks: Ranks
) -> None:
    for taken, said, _ in ranks.run(sparing, 2, "bsp", unused_from):
        assert taken == unused_from
        assert said.startswith("2 of 4 parameters got no gradient (spare.weight, spare.bias): ")


def test_a_parameter_without_a_gradient_counts_as_zeros_under_a_server(ranks: Ranks) -> None:
    assert ranks.run(sparing, 2, "asgd", 0) == [(8, "", False)] * 2


def scheduling(rank: int, world: int, by_samples: bool) -> float:
    """Rates fall with samples, or by a schedule of torch; the rate at the server in the end."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    whole = 40 * BATCH
    with wrap(model, optimizer, "asgd", batch=BATCH, samples=whole, precision="full") as trainer:
        trainer.step(lambda: loss(BATCH))
        dist.barrier()  # now both have told their first rate
        if not by_samples:
            with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`"):
                schedule.step()
            trainer.step(lambda: loss(BATCH))
        while by_samples and not trainer.over:
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * (1 - trainer.samples / (2 * whole))
            trainer.step(lambda: loss(BATCH))
        rate: float = trainer.state_dict()["optimizer"]["param_groups"][0]["lr"]
        return rate


def test_a_rate_that_follows_samples_is_the_same_for_all_gradients(ranks: Ranks) -> None:
    for rate in ranks.run(scheduling, 2, True):
        assert 0.025 < rate < 0.045


def test_a_schedule_of_torch_warns_under_a_server_and_its_rate_arrives(ranks: Ranks) -> None:
    assert ranks.run(scheduling, 2, False)[0] == 0.025


def late(rank: int, world: int) -> float:
    """Rank 1 sends its first gradient when the rate has changed already; the rate in the end."""
    from torch.distributed.distributed_c10d import _get_default_store

    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    store = _get_default_store()
    with wrap(model, optimizer, "asgd", batch=BATCH, precision="full") as trainer:

        def last() -> torch.Tensor:
            if trainer.begun and rank == 1:
                store.wait(["changed"])
            return loss(BATCH)

        trainer.step(last)
        if rank == 0:
            optimizer.param_groups[0]["lr"] = 0.02
            trainer.step(last)
            store.set("changed", "")
        dist.barrier()
        rate: float = trainer.state_dict()["optimizer"]["param_groups"][0]["lr"]
        return rate


def test_a_late_rank_does_not_bring_the_first_rate_back(ranks: Ranks) -> None:
    assert ranks.run(late, 2) == [0.02, 0.02]


def sampled(rank: int, world: int, policy: str) -> str:
    """Batches of a sampler under a policy that needs a server, sooner or later; what is said."""
    from simstrag.ddp import ShareSampler, wrap

    model, optimizer, loss = task(rank)
    sampler = ShareSampler(400 * BATCH, BATCH, rank, world)

    def train() -> None:
        trainer = wrap(
            model, optimizer, policy, batch=BATCH, samples=400 * BATCH, precision="full",
            sampler=sampler,
        )  # fmt: skip
        for _ in sampler:
            trainer.step(lambda: loss(BATCH))

    with pytest.raises(InputError) as caught:
        train()
    return f"{caught.value}"


@pytest.mark.parametrize("policy", ["asgd", "sync_switch"])
def test_a_sampler_is_refused_under_a_server(policy: str, ranks: Ranks) -> None:
    for said in ranks.run(sampled, 2, policy):
        assert said.startswith(f"policy {policy} needs a server, under which ranks take different")


@dataclass
class Shared:
    """Asynchronous, with shares from the start."""

    def plan(self, view: View) -> Plan:
        return Plan((Quorum(count=1, via=Via.SERVER),), batch=(0.5, 1.5))


def sharing(rank: int, world: int, heeds: bool) -> tuple[int, str]:
    """Samples of the first batch, if it is drawn as told; what is said if it is not."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    drawn, said = 0, ""
    with wrap(model, optimizer, Shared(), batch=BATCH, precision="full") as trainer:
        try:
            for _ in range(3):
                drawn = trainer.next_batch if heeds else BATCH
                trainer.step(partial(loss, drawn))
        except InputError as error:
            said = str(error)
        dist.barrier()
    return drawn, said


def test_shares_hold_under_a_server_from_the_first_batch_on(ranks: Ranks) -> None:
    assert ranks.run(sharing, 2, True) == [(8, ""), (24, "")]


def test_shares_that_a_script_does_not_heed_are_refused_under_a_server(ranks: Ranks) -> None:
    for _, said in ranks.run(sharing, 2, False):
        assert "shares batches out unevenly: draw trainer.next_batch samples" in said
