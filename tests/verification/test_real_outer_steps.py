"""Outer steps on real ranks, and the same private steps in the recorded order by the replay."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from simstrag import policies  # noqa: E402
from simstrag.ddp.record.run_from_journal import finish  # noqa: E402
from simstrag.learning import tasks  # noqa: E402
from simstrag.learning.batches import Batches, iid_shards  # noqa: E402
from simstrag.learning.gradient_log import GradientLog  # noqa: E402
from simstrag.learning.gradients import GradientEngine  # noqa: E402
from simstrag.learning.optimizers import OptimizerChoice  # noqa: E402
from simstrag.learning.outer_replay import OuterReplay  # noqa: E402
from simstrag.learning.update_rule import UpdateRule  # noqa: E402
from simstrag.policy import View  # noqa: E402
from tests.ranks import Ranks, ranks  # noqa: E402

__all__ = ["ranks"]

BATCH, STEPS, RATE, MOMENTUM, WORLD = 8, 24, 0.05, 0.5, 3


def batches() -> Batches:
    samples = len(tasks.load("tabular").inputs)
    return Batches(iid_shards(samples, WORLD, 0), BATCH, 0)


def train(rank: int, world: int, policy: str, out: str, half: str | None) -> list[float]:
    """A rank's parameters at the end; `half`: a checkpoint of the middle, or where one is read."""
    from simstrag.ddp import wrap

    task, drawn, step = tasks.load("tabular"), batches(), 0
    model = task.model.double()
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)

    def loss() -> torch.Tensor:
        own = torch.from_numpy(drawn.of([rank], [step], [BATCH]))
        return task.loss(model(task.inputs[own].double()), task.targets[own].double()).mean()

    path = None if half is None else Path(f"{half}.{rank}")
    samples = BATCH * world * STEPS
    with wrap(
        model, optimizer, policy, batch=BATCH, samples=samples, precision="stand-in", out=out
    ) as trainer:
        if path is not None and path.exists():
            trainer.load_state_dict(torch.load(path, weights_only=False))
            step = STEPS // 2
        while not trainer.over:
            trainer.step(loss)
            step += 1
            if path is not None and step == STEPS // 2:
                torch.save(trainer.state_dict(), path)
    return list(nn.utils.parameters_to_vector(model.parameters()).tolist())


@pytest.mark.parametrize(
    "policy",
    [
        "diloco:h=4",
        "diloco:h=3,momentum=0,nesterov=false",
        "streaming_diloco:h=4,p=2,tau=0,alpha=0.25",
    ],
)
def test_outer_steps_on_real_ranks_are_those_of_the_replay(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train, WORLD, policy, str(tmp_path / "run"), None)
    log = GradientLog.of(finish(tmp_path / "run"))
    engine = GradientEngine(tasks.load("tabular"), "fp64", "fp32")
    rule = UpdateRule.of(policies.ask(policies.load(policy), View(WORLD), policy).resolved(WORLD))
    optimizer = OptimizerChoice("sgd", RATE, MOMENTUM)
    replay = OuterReplay(log, engine, batches(), optimizer, rule)
    model, mix = replay.run(1e9).parameters, 0.0 if rule.outer is None else rule.outer.mix
    place = replay._fragments[(len(log.times) - 1) % rule.fragments]
    for rank, real in enumerate(torch.tensor(found, dtype=torch.float64)):
        expected = replay._workers[rank].model
        expected[place] = model[place] + mix * (expected[place] - model[place])
        assert float((real - expected).abs().max()) < 1e-9


def test_a_checkpoint_holds_the_state_of_outer_steps(ranks: Ranks, tmp_path: Path) -> None:
    half = str(tmp_path / "half.pt")
    whole = ranks.run(train, WORLD, "diloco:h=4", str(tmp_path / "one"), half)
    resumed = ranks.run(train, WORLD, "diloco:h=4", str(tmp_path / "two"), half)
    assert resumed == whole
