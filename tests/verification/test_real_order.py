"""A real training on real ranks, and the same gradients in the recorded order by the replay."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from simstrag.ddp.journal.run_from_journal import finish  # noqa: E402
from simstrag.learning import tasks  # noqa: E402
from simstrag.learning.update_rule import UpdateRule  # noqa: E402
from tests.learning.test_group_models import Moving  # noqa: E402
from tests.support.ranks import Ranks, ranks  # noqa: E402
from tests.support.recorded_order import (  # noqa: E402
    BATCH,
    MOMENTUM,
    RATE,
    batches,
    distance,
    rule_of,
)

__all__ = ["ranks"]

STEPS = 60
OWN = 16
"""Samples of a gradient of the server's own, under `zeno`."""


def own_workload() -> tuple[Any, Any, Any, Any]:
    """The task as a workload, whose batches are those of the real learner's server."""
    task, turns = tasks.load("tabular"), itertools.count()

    def make_batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = batches(3).of_server(next(turns) if samples == OWN else 0, samples)
        rows = torch.from_numpy(drawn)
        return task.inputs[rows], task.targets[rows]

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return task.loss(model(batch[0]), batch[1].to(batch[0].dtype)).mean()

    return task.model, loss, torch.optim.SGD(task.model.parameters(), RATE), make_batch


def train(rank: int, world: int, policy: Any, out: str, pause: float = 0.0) -> list[float]:
    """The parameters that a rank pulled last; its batches are those of the real learner.

    pause: seconds that a step takes longer with each rank.
    """
    from simstrag.ddp import wrap

    task, drawn, step = tasks.load("tabular"), batches(world), 0
    model = task.model.double()
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    samples = BATCH * world * STEPS

    def loss() -> torch.Tensor:
        time.sleep(pause * rank)
        own = torch.from_numpy(drawn.of([rank], [step], [BATCH]))
        return task.loss(model(task.inputs[own].double()), task.targets[own].double()).mean()

    with wrap(
        model,
        optimizer,
        policy,
        batch=BATCH,
        samples=samples,
        precision="stand-in",
        out=out,
        validation=f"{__name__}:own_workload",
    ) as trainer:
        while not trainer.over:
            trainer.step(loss)
            step += 1
    return list(nn.utils.parameters_to_vector(model.parameters()).tolist())


@pytest.mark.parametrize(
    "policy",
    [
        "bsp", "asgd", "ssp:bound=2", "k_async:x=2", "staleness_lr", "dc_asgd:strength=4",
        "dc_asgd:strength=2,decay=0.95", f"zeno:rho=0.003,every=5,batch={OWN}", "eager_sgd",
        "eager_sgd:start=solo",
    ],
)  # fmt: skip
def test_the_recorded_order_replayed_ends_with_the_same_parameters(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train, 3, policy, str(tmp_path / "run"))
    assert len(finish(tmp_path / "run").updates["time"]) > STEPS / 2
    assert distance(found, tmp_path / "run", rule_of(policy, 3), 3) < 1e-9


@pytest.mark.parametrize("policy", ["cgp:groups=rounds,every=2,max_group=2", Moving()])
def test_groups_with_rounds_end_with_the_parameters_of_the_replay(
    policy: Any, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train, 4, policy, str(tmp_path / "run"), 0.004)
    gradients = finish(tmp_path / "run").frame("gradients")
    assert gradients["round"].max() > 10
    assert distance(found, tmp_path / "run", UpdateRule(), 4) < 1e-9
