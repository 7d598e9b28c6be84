"""Asynchronous ranks with a slow one, and what the engine makes of their own times.

The mean staleness of all gradients is the number of other ranks whatever happens, so each rank is
looked at alone, and its whole distribution.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from simstrag.validation.replay import replay
from tests.support.ranks import Ranks, ranks

if TYPE_CHECKING:
    from simstrag.runs.run import Run

__all__ = ["ranks"]

WORLD, STEPS = 3, 600
"""So many that a fifth of them, of the slow rank, tell a distribution to some hundredths."""
SECONDS = 0.02
"""Of a step of a rank that is not slow."""
LIMIT = 200.0


class Flat(nn.Module):
    """So many parameters, a step of which costs nothing but what it is told to."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count))


def burn(seconds: float) -> None:
    """Take so much of a core, however long that lasts."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def training(rank: int, world: int, count: int, slowdown: float, busy: bool, out: str) -> None:
    from simstrag.ddp import wrap

    model = Flat(count)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds = SECONDS * (slowdown if rank == world - 1 else 1.0)

    def loss() -> torch.Tensor:
        (burn if busy else time.sleep)(seconds)
        return model.weight[:16].square().sum()

    with wrap(
        model, optimizer, "asgd", batch=1, samples=world * STEPS, precision="full", out=out
    ) as trainer:
        while not trainer.over:
            trainer.step(loss)


def staleness(run: Run, rank: int) -> np.ndarray:
    """Of the applied gradients of a rank: how often each value came, as shares."""
    frame = run.frame("gradients")
    own = frame[(frame["rank"] == rank) & (frame["fate"] == "applied")]
    found = np.bincount((own["update"] - 1 - own["version"]).to_numpy(np.int64), minlength=64)
    return found / found.sum()


@pytest.mark.parametrize(
    ("count", "slowdown", "busy", "apart"),
    [(2_500_000, 2.5, False, 0.05), (250_000, 2.0, True, 0.2)],
    ids=["the server orders ranks", "ranks share cores"],
)
def test_the_engine_makes_of_recorded_times_the_staleness_of_each_rank(
    count: int, slowdown: float, busy: bool, apart: float, ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(training, WORLD, count, slowdown, busy, str(tmp_path), limit=LIMIT)
    found = replay(tmp_path)
    for line in found.lines:
        print(f"{line.what}: really {line.real:.5g}, replayed {line.replayed:.5g} {line.unit}")
    distances = [
        0.5 * np.abs(staleness(found.real, rank) - staleness(found.again, rank)).sum()
        for rank in range(WORLD)
    ]
    print("total variation of staleness by rank:", *(f"{each:.3f}" for each in distances))
    lines = {line.what: line for line in found.lines}
    assert abs(lines["makespan"].error) <= 0.03
    assert abs(lines[f"share of rank {WORLD - 1}"].error) <= 0.05
    for rank in range(WORLD):
        assert abs(lines[f"staleness of rank {rank}"].error) <= 0.05
    assert max(distances) < apart
