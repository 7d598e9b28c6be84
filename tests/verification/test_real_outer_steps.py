"""Outer steps on real ranks, and the same private steps in the recorded order by the replay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from simstrag.ddp.journal.journal import NAME  # noqa: E402
from simstrag.learning import tasks  # noqa: E402
from tests.support.ranks import Ranks, ranks  # noqa: E402
from tests.support.recorded_order import (  # noqa: E402
    BATCH,
    MOMENTUM,
    RATE,
    batches,
    distance,
    furthest,
    rule_of,
)

__all__ = ["ranks"]

STEPS, WORLD = 24, 3


def train(
    rank: int,
    world: int,
    policy: str,
    out: str,
    half: tuple[str, int] | None = None,
    steps: int = STEPS,
    before: Callable[[int, int, Path], None] | None = None,
    fetch: bool = False,
) -> list[float]:
    """A rank's parameters at the end; with `fetch` those of the server.

    half: a checkpoint, which is read if it exists, and after how many steps it is written.
    before: is called before each step is computed, with rank, step and folder.
    """
    from simstrag.ddp import wrap

    task, drawn, step = tasks.load("tabular"), batches(WORLD), 0
    model = task.model.double()
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)

    def loss() -> torch.Tensor:
        if before is not None:
            before(rank, step, Path(out))
        own = torch.from_numpy(drawn.of([rank], [step], [BATCH]))
        return task.loss(model(task.inputs[own].double()), task.targets[own].double()).mean()

    path = None if half is None else Path(f"{half[0]}.{rank}")
    samples = BATCH * world * steps
    with wrap(
        model, optimizer, policy, batch=BATCH, samples=samples, precision="stand-in", out=out
    ) as trainer:
        if path is not None and half is not None and path.exists():
            trainer.load_state_dict(torch.load(path, weights_only=False))
            step = half[1]
        while not trainer.over:
            trainer.step(loss)
            step += 1
            if path is not None and half is not None and step == half[1]:
                torch.save(trainer.state_dict(), path)
        if fetch:
            model.load_state_dict(trainer.state_dict()["model"])
    return list(nn.utils.parameters_to_vector(model.parameters()).tolist())


@pytest.mark.parametrize(
    "policy",
    [
        "diloco:h=4", "diloco:h=3,momentum=0,nesterov=false",
        "streaming_diloco:h=4,p=2,tau=0,alpha=0.25", "streaming_diloco:h=6,p=2,tau=1,alpha=0.25",
        "streaming_diloco:h=6,p=2,tau=2,alpha=0.25",
    ],
)  # fmt: skip
def test_outer_steps_on_real_ranks_are_those_of_the_replay(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train, WORLD, policy, str(tmp_path / "run"))
    assert furthest(found, tmp_path / "run", policy, WORLD) < 1e-9


@pytest.mark.parametrize(
    ("policy", "after", "steps"),
    [("diloco:h=4", 12, STEPS), ("streaming_diloco:h=4,p=1,tau=1,alpha=0", 8, 22)],
)
def test_a_checkpoint_holds_the_state_of_outer_steps(
    policy: str, after: int, steps: int, ranks: Ranks, tmp_path: Path
) -> None:
    # Under an overlap, 8 steps are 3 and 4 of two updates, and one beside the second all-reduce:
    # a resumed rank goes on from there as it would have, though it books one step fewer.
    half = str(tmp_path / "half.pt"), after
    whole = ranks.run(train, WORLD, policy, str(tmp_path / "one"), half, steps)
    resumed = ranks.run(train, WORLD, policy, str(tmp_path / "two"), half, steps)
    assert resumed == whole


def train_and_fetch(rank: int, world: int, policy: str, out: str) -> list[float]:
    """The parameters of the server, as a rank leaves it."""
    return train(rank, world, policy, out, fetch=True)


@pytest.mark.parametrize(
    "policy",
    [
        "async_local_sgd:h=3", "async_local_sgd:h=3,delay=2", "async_local_sgd:h=2,lr=1",
        "decoupled_diloco:h=4,p=2,tau=0,alpha=0.25", "decoupled_diloco:h=6,p=2,tau=2,alpha=0.25",
        "decoupled_diloco:h=4,p=2,tau=1,k=1,alpha=0.25",
        "decoupled_diloco:h=4,p=2,tau=1,k=2,grace=0.003,alpha=0.25",
    ],
)  # fmt: skip
def test_outer_steps_at_a_real_server_are_those_of_the_replay(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train_and_fetch, WORLD, policy, str(tmp_path / "run"))
    assert distance(found, tmp_path / "run", rule_of(policy, WORLD), WORLD) < 1e-9


# -- steps beside an all-reduce ---------------------------------------------------------------

BESIDE = "streaming_diloco:h=3,p=1,tau=1,alpha=0.25"
"""A rank prepares with step 1, and each third step after it; the step after that is beside."""


def until(folder: Path, so: Callable[[list[list[Any]]], bool]) -> None:
    """Wait until something stands in the journal of a run."""
    end = time.monotonic() + 30.0
    while not so(lines_of(folder)):
        assert time.monotonic() < end, "what this rank waits for does not happen"
        time.sleep(0.005)


def lines_of(folder: Path) -> list[list[Any]]:
    """The lines of a journal that are complete."""
    text = (folder / NAME).read_text()
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def done(lines: list[list[Any]], rank: int) -> list[int]:
    """The places in a journal of the ends of a rank's steps."""
    return [i for i, line in enumerate(lines) if line[0] == "done" and line[2] == rank]


def ends(lines: list[list[Any]]) -> list[int]:
    """The places in a journal of the ends of all-reduces."""
    return [i for i, line in enumerate(lines) if line[0] == "reduced"]


def until_the_models_are_averaged(rank: int, step: int, folder: Path) -> None:
    if step % 3 == 2:
        until(folder, lambda lines: len(ends(lines)) > step // 3)


def until_rank_0_has_run_on(rank: int, step: int, folder: Path) -> None:
    if rank == 2 and step % 3 == 1:
        until(folder, lambda lines: len(done(lines, 0)) > step + 1)


def test_an_all_reduce_ends_while_all_ranks_compute(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ranks.run(train, WORLD, BESIDE, str(folder), None, STEPS, until_the_models_are_averaged)
    lines = lines_of(folder)
    for number, end in enumerate(ends(lines)):
        for rank in range(WORLD):
            own = done(lines, rank)
            assert own[3 * number + 1] < end < own[3 * number + 2]


def test_a_rank_runs_on_before_the_slowest_has_begun_the_all_reduce(
    ranks: Ranks, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    ranks.run(train, WORLD, BESIDE, str(folder), None, STEPS, until_rank_0_has_run_on)
    lines = lines_of(folder)
    for number, end in enumerate(ends(lines)):
        assert done(lines, 0)[3 * number + 2] < done(lines, 2)[3 * number + 1] < end


def rank_2_computes_through_three_all_reduces(rank: int, step: int, folder: Path) -> None:
    if rank == 2 and step == 1:
        before = len(ends(lines_of(folder)))
        until(folder, lambda lines: len(ends(lines)) >= before + 3)


def test_a_rank_joins_partial_all_reduces_while_it_computes(ranks: Ranks, tmp_path: Path) -> None:
    folder, policy = tmp_path / "run", "eager_sgd:start=solo"
    before = rank_2_computes_through_three_all_reduces
    ranks.run(train, WORLD, policy, str(folder), None, STEPS, before)
    one, other = done(lines_of(folder), 2)[:2]
    assert sum(one < end < other for end in ends(lines_of(folder))) >= 3


def rank_2_fails(rank: int, step: int, folder: Path) -> None:
    if rank == 2 and step == 6:
        raise ZeroDivisionError


def train_without_rank_2(rank: int, world: int, policy: str, out: str) -> list[float]:
    try:
        return train(rank, world, policy, out, before=rank_2_fails, fetch=True)
    except ZeroDivisionError:
        return []


@pytest.mark.parametrize("policy", ["eager_sgd:start=solo", "decoupled_diloco:h=4,p=2,tau=1"])
def test_some_ranks_go_on_where_another_fails(policy: str, ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(train_without_rank_2, WORLD, policy, str(tmp_path / "run"))
    assert not found.pop()
    assert distance(found, tmp_path / "run", rule_of(policy, WORLD), WORLD) < 1e-9


def rank_2_fails_beside_an_all_reduce(rank: int, step: int, folder: Path) -> None:
    if rank == 2 and step == 5:
        raise ZeroDivisionError
    if rank == 1 and step == 4:  # its last step before that all-reduce
        until(folder, lambda lines: any(line[0] == "lost" for line in lines))


def train_and_fail(rank: int, world: int, out: str) -> list[float]:
    try:
        return train(rank, world, BESIDE, out, None, STEPS, rank_2_fails_beside_an_all_reduce)
    except ZeroDivisionError:
        return []


def test_the_others_go_on_where_a_rank_fails_beside_an_all_reduce(
    ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train_and_fail, WORLD, str(tmp_path / "run"))
    assert not found.pop()
    assert furthest(found, tmp_path / "run", BESIDE, WORLD) < 1e-9
