"""What a training is taken up from, under a server that goes on while it is written."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from tests.ddp.test_ddp_trainer import BATCH, task
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]


class Saved(NamedTuple):
    """Whether this rank's model and optimizer stayed as they were, and the checkpoint is newer."""

    stayed: bool
    newer: bool
    momentum: bool
    samples: int


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def saving(rank: int, world: int) -> Saved:
    """Rank 0 waits while rank 1 goes on; then both write a checkpoint."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    with wrap(model, optimizer, "asgd", batch=BATCH, precision="full") as trainer:
        for _ in range(5):
            trainer.step(lambda: loss(BATCH))
        dist.barrier()
        for _ in range(5 * rank):
            trainer.step(lambda: loss(BATCH))
        dist.barrier()
        before = flat(model)
        state = trainer.state_dict()
        stayed = torch.equal(flat(model), before) and not optimizer.state
        dist.barrier()
        other, _, _ = task(rank)
        other.load_state_dict(state["model"])
        newer = not torch.equal(flat(other), before)
        momentum = len(state["optimizer"]["state"]) > 0
        return Saved(stayed, newer, momentum, state["facts"]["samples"])


def test_a_checkpoint_has_what_the_server_has_and_leaves_the_rank_as_it_was(ranks: Ranks) -> None:
    waited, went_on = ranks.run(saving, 2)
    assert waited == Saved(stayed=True, newer=True, momentum=True, samples=15 * BATCH)
    assert went_on == Saved(stayed=True, newer=False, momentum=True, samples=15 * BATCH)


def loading(rank: int, world: int) -> tuple[bool, bool]:
    """Whether a checkpoint has momentum of outer steps, and one of what was loaded the same."""
    from simstrag.ddp import wrap

    def momentum(start: dict[str, Any] | None) -> tuple[dict[str, Any], torch.Tensor]:
        model, optimizer, loss = task(rank)
        with wrap(model, optimizer, "diloco:h=2", batch=BATCH, precision="full") as trainer:
            if start is not None:
                trainer.load_state_dict(start)
            for _ in range(8 if start is None else 0):
                trainer.step(lambda: loss(BATCH))
            state = trainer.state_dict()
        found = [each.reshape(-1) for each in tree_leaves(state["outer"]) if torch.is_tensor(each)]
        return state, torch.cat(found)

    state, first = momentum(None)
    _, again = momentum(state)
    return bool(first.any()), torch.equal(first, again)


def test_a_checkpoint_of_what_was_just_loaded_is_the_same(ranks: Ranks) -> None:
    assert ranks.run(loading, 2) == [(True, True)] * 2
