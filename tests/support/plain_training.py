"""Training of the task `tabular` by plain torch in float64, one gradient at a time."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import nn

from simstrag.engine.recorder import Recorder
from simstrag.engine.simulate import simulate_into
from simstrag.learning import tasks
from simstrag.learning.batches import Batches, iid_shards
from simstrag.learning.gradient_log import GradientLog
from simstrag.learning.gradient_replay import GradientReplay
from simstrag.learning.gradients import GradientEngine
from simstrag.learning.optimizers import OptimizerChoice
from simstrag.learning.update_rule import UpdateRule
from simstrag.scenario.scenario import Scenario

BATCH = 8


def log_of(policy: Any, keys: dict[str, Any], seed: int = 0) -> GradientLog:
    """The gradients of a run without a model; keys: of its scenario."""
    log = GradientLog()
    scenario = Scenario(**keys, learner={"batch": BATCH})
    simulate_into(Recorder(keep_gradients=True, storage=log), scenario, policy, seed)
    return log


class PlainTraining:
    """The task, the engine and the batches of so many ranks, and what plain torch makes of them."""

    def __init__(self, workers: int) -> None:
        self.workers, self.task = workers, tasks.load("tabular")
        self.engine = GradientEngine(self.task, "fp64", "fp32")
        self.batches = Batches(iid_shards(len(self.task.inputs), workers, 0), BATCH, 0)
        self.model = tasks.load("tabular").model.double()

    def replayed(
        self, log: GradientLog, optimizer: OptimizerChoice, rule: UpdateRule | None = None,
        kind: Any = GradientReplay,
    ) -> torch.Tensor:  # fmt: skip
        """The parameters after a replay of this kind."""
        given = () if rule is None else (rule,)
        replay = kind(log, self.engine, self.batches, optimizer, *given)
        return replay.run(1e9).parameters  # type: ignore[no-any-return]

    def slope(self, samples: torch.Tensor, flat: torch.Tensor, amp: bool = False) -> torch.Tensor:
        """The gradient of the mean loss of these samples at flat parameters."""
        nn.utils.vector_to_parameters(flat.clone(), self.model.parameters())
        inputs, targets = self.task.inputs[samples], self.task.targets[samples].double()
        if amp:
            reduced = {name: p.float() for name, p in self.model.named_parameters()}
            out = torch.func.functional_call(self.model, reduced, (inputs.float(),)).double()
        else:
            out = self.model(inputs.double())
        each = torch.autograd.grad(self.task.loss(out, targets).mean(), [*self.model.parameters()])
        return torch.cat([part.flatten() for part in each])

    def slope_at(
        self, rank: int, step: int, flat: torch.Tensor, size: int = BATCH, amp: bool = False
    ) -> torch.Tensor:
        """The gradient of a rank's step."""
        return self.slope(torch.from_numpy(self.batches.of([rank], [step], [size])), flat, amp)

    def one_at_a_time(
        self, log: GradientLog, make: Any = torch.optim.SGD, correct: Any = None,
        in_full: bool = False, **settings: Any,
    ) -> torch.Tensor:  # fmt: skip
        """The parameters at the end, each gradient at its rank's own model.

        A group with rounds trains that anew from its pull, round by round.
        correct: of a gradient, the parameters now and those pulled, and the update; None skips it.
        in_full: as if no step were in reduced precision.
        """
        rows, known = log.gradients, dict[int, torch.Tensor]()
        whole = nn.Parameter(self.engine.initial.clone())
        optimizer, versions = make([whole], **settings), [whole.detach().clone()]

        def own_model(row: int) -> torch.Tensor:
            alike = [rows[name] == rows[name][row] for name in ("rank", "version", "update")]
            is_earlier = (rows["step"] < rows["step"][row]) & (rows["round"] >= 0)
            flat = nn.Parameter(versions[rows["version"][row]].clone())
            own, earlier = make([flat], **settings), np.flatnonzero(np.all(alike, 0) & is_earlier)
            for before in sorted(earlier, key=lambda k: rows["step"][k]):
                members = np.flatnonzero(rows["round"] == rows["round"][before])
                flat.grad = sum(gradient(k) / self.workers for k in members.tolist())
                own.step()
            return flat.detach()

        def gradient(row: int) -> torch.Tensor:
            if row not in known:
                rank, step, size = (int(rows[name][row]) for name in ("rank", "step", "samples"))
                amp = bool(rows["amp"][row]) and not in_full
                known[row] = self.slope_at(rank, step, own_model(row), size, amp)
            return known[row]

        for update in range(1, len(log.times) + 1):
            total: Any = 0
            applied = np.flatnonzero(rows["update"] == update).tolist()
            assert correct is None or len(applied) == 1
            for k in applied:
                g: torch.Tensor | None = gradient(k)
                if correct is not None:
                    g = correct(g, whole.detach(), versions[rows["version"][k]], update)
                total = None if g is None else total + g * float(rows["weight"][k])
            if total is not None:
                whole.grad = total
                optimizer.step()
            versions.append(whole.detach().clone())
        return whole.detach()


@functools.cache
def plain_training(workers: int) -> PlainTraining:
    return PlainTraining(workers)
