"""Whose fault an error is: a rank's own comes out as it is, and the others learn who has left."""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from simstrag.ddp.failures.abort_collectives import Connections
from simstrag.ddp.rendezvous import RankPlace
from tests.ddp.test_ddp_trainer import BATCH, Told, task
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

STALL = 20.0
FIFTH = 5
"""The step in which a rank fails, or is slow."""


class Broken(torch.autograd.Function):
    """Nothing forward, an error backward."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        raise RuntimeError("no way back")


def wrong_shape() -> torch.Tensor:
    return torch.ones(2, 3) @ torch.ones(2, 3)


def stumbles(*_: Any) -> None:
    raise RuntimeError("not finite, says the script")


WRONG = {
    "closure": ("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)", "wrong_shape"),
    "backward": ("no way back", "backward"),
    "hook": ("not finite, says the script", "stumbles"),
}
"""Where the script of a rank fails: what it says, and the function that does."""


class End(NamedTuple):
    """How a training ended on a rank: the error, the innermost function, whom it blames."""

    error: str
    said: str
    function: str
    blamed: tuple[int, ...]
    phase: str


def place(rank: int, world: int) -> RankPlace:
    """As a launcher would have it."""
    store = dist.PrefixStore("board", distributed_c10d._get_default_store())
    names = tuple(range(world))
    return RankPlace(rank, world, store, 0, 0, names, STALL, store, "gloo", Connections())


def failing(rank: int, world: int, policy: str, culprit: int, where: str) -> End:
    """A training of 40 steps, in the fifth of which one rank fails."""
    from simstrag.ddp import RankFailure, wrap

    model, optimizer, loss = task(rank)
    steps = 0

    def closure() -> torch.Tensor:
        if rank != culprit or steps != FIFTH:
            return loss(BATCH)
        if where == "closure":
            wrong_shape()
        if where == "server":
            if (server := trainer._modes.server) is not None:
                server.kill()
            return loss(BATCH)
        if where == "hook":
            optimizer.register_step_pre_hook(stumbles)
            return loss(BATCH)
        broken: torch.Tensor = Broken.apply(loss(BATCH))  # type: ignore[no-untyped-call]
        return broken

    try:
        with wrap(
            model, optimizer, policy, batch=BATCH, samples=40 * world * BATCH, precision="full",
            joined=place(rank, world),
        ) as trainer:  # fmt: skip
            while not trainer.over:
                trainer.step(closure)
                steps += 1
    except RuntimeError as error:
        frames = traceback.extract_tb(error.__traceback__)
        blame = error.diagnosis if isinstance(error, RankFailure) else None
        blamed, phase = ((), "") if blame is None else (blame.ranks, blame.phase)
        return End(type(error).__name__, str(error), frames[-1].name, blamed, phase)
    return End("", "", "", (), "")


@pytest.mark.parametrize("where", WRONG)
def test_an_error_of_a_rank_s_own_comes_out_there_and_the_others_name_the_rank(
    where: str, ranks: Ranks
) -> None:
    first, culprit, last = ranks.run(failing, 3, "bsp", 1, where)
    said, function = WRONG[where]
    assert culprit == End("RuntimeError", said, function, (), "")
    for other in (first, last):
        assert (other.error, other.blamed) == ("RankFailure", (1,))
        assert other.said.startswith(f"rank 1 left at step {FIFTH} while ")
        assert other.said.endswith(f": RuntimeError: {said}")


def dawdling(rank: int, world: int) -> str:
    """The clock of rank 1 tells of one long step; what is said on standard error here."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    with (
        contextlib.redirect_stderr(io.StringIO()) as said,
        wrap(model, optimizer, "bsp", batch=BATCH, precision="full") as trainer,
    ):
        trainer.replica.clock = Told(lambda step: 1.2 if (rank, step) == (1, FIFTH) else 0.01)
        for _ in range(8):
            trainer.step(lambda: loss(BATCH))
    return said.getvalue()


def test_a_rank_that_is_slow_goes_on_and_is_named(ranks: Ranks) -> None:
    first, *others = ranks.run(dawdling, 3)
    assert first == "warning: rank 1 is slow: it took 1.2 s for step 5, the others 0.01 s\n"
    assert others == ["", ""]


@pytest.mark.parametrize("where", ["closure"])
def test_under_a_server_the_others_go_on_without_a_rank_that_failed(
    where: str, ranks: Ranks
) -> None:
    first, other, culprit = ranks.run(failing, 3, "asgd", 2, where)
    assert culprit == End("RuntimeError", *WRONG[where], (), "")
    assert first == other == End("", "", "", (), "")


def test_with_the_rank_that_started_it_the_server_ends_and_the_others_name_that(
    ranks: Ranks,
) -> None:
    culprit, *others = ranks.run(failing, 3, "asgd", 0, "closure")
    assert culprit == End("RuntimeError", *WRONG["closure"], (), "")
    for other in others:
        assert (other.error, other.blamed, other.phase) == ("RankFailure", (0,), "computing")


def test_a_server_that_was_killed_is_said_to_be_lost_and_no_rank_is_blamed(ranks: Ranks) -> None:
    for end in ranks.run(failing, 3, "asgd", 0, "server"):
        assert (end.error, end.blamed) == ("RankFailure", ())
        assert re.match(r"the server .*; no rank is known to be lost", end.said)


def retrying(rank: int, world: int) -> tuple[int, int]:
    """Rank 1's closure fails once, and is given again; failures, and samples at the end."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    failures = 0

    def closure() -> torch.Tensor:
        if rank == 1 and trainer.samples == 3 * world * BATCH and not failures:
            wrong_shape()
        return loss(BATCH)

    with wrap(model, optimizer, "bsp", batch=BATCH, precision="full") as trainer:
        for _ in range(6):
            try:
                trainer.step(closure)
            except RuntimeError:
                failures += 1
                trainer.step(closure)
        return failures, trainer.samples


def test_a_closure_that_failed_can_be_given_again(ranks: Ranks) -> None:
    assert ranks.run(retrying, 2) == [(0, 12 * BATCH), (1, 12 * BATCH)]
