"""What the replay makes of the gradients of a run on real ranks, in the order that was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from simstrag import policies
from simstrag.contract import View
from simstrag.ddp.journal.run_from_journal import finish
from simstrag.learning import tasks
from simstrag.learning.batches import Batches, iid_shards
from simstrag.learning.gradient_log import GradientLog
from simstrag.learning.gradient_replay import GradientReplay
from simstrag.learning.gradients import GradientEngine
from simstrag.learning.optimizers import OptimizerChoice
from simstrag.learning.outer_replay import OuterReplay
from simstrag.learning.update_rule import UpdateRule

BATCH, RATE, MOMENTUM = 8, 0.05, 0.5


def batches(world: int) -> Batches:
    """Those of the real learner, by worker and step."""
    samples = len(tasks.load("tabular").inputs)
    return Batches(iid_shards(samples, world, 0), BATCH, 0)


def rule_of(policy: str, world: int) -> UpdateRule:
    return UpdateRule.of(policies.ask(policies.load(policy), View(world), policy).resolved(world))


def distance(found: Sequence[Sequence[float]], folder: Path, rule: UpdateRule, world: int) -> float:
    """How far the parameters of the worker that pulled last are from those of the replay."""
    engine = GradientEngine(tasks.load("tabular"), "fp64", "fp32")
    choice = OptimizerChoice("sgd", RATE, MOMENTUM)
    replay: type[OuterReplay | GradientReplay] = OuterReplay if rule.average else GradientReplay
    log = GradientLog.of(finish(folder))
    last = replay(log, engine, batches(world), choice, rule).run(1e9).parameters
    return float((torch.tensor(found, dtype=torch.float64) - last).abs().amax(dim=1).min())


def furthest(found: Sequence[Sequence[float]], folder: Path, policy: str, world: int) -> float:
    """How far any of the first workers is from its own model of the replay."""
    log, rule = GradientLog.of(finish(folder)), rule_of(policy, world)
    engine = GradientEngine(tasks.load("tabular"), "fp64", "fp32")
    choice = OptimizerChoice("sgd", RATE, MOMENTUM)
    replay = OuterReplay(log, engine, batches(world), choice, rule)
    model, mix = replay.run(1e9).parameters, 0.0 if rule.outer is None else rule.outer.mix
    assert len(found) > 0
    place, apart = replay._model.places[(len(log.times) - 1) % rule.fragments], 0.0
    for rank, own in enumerate(found):
        worker, taken = replay._workers[rank], int((log.gradients["rank"] == rank).sum())
        for step in range(taken, taken + rule.overlap):  # beside the last all-reduce
            rows = torch.from_numpy(batches(world).of([rank], [step], [BATCH]))
            mean = torch.full((BATCH,), 1 / BATCH, dtype=engine.dtype)
            worker.model.grad = engine.one(worker.model, rows, mean, amp=False)
            worker.optimizer.step()
        worker.model[place] = model[place] + mix * (worker.model[place] - model[place])
        difference = torch.tensor(own, dtype=torch.float64) - worker.model
        apart = max(apart, float(difference.abs().max()))
    return apart
