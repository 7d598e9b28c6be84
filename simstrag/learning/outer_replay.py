"""Replays outer steps: an optimizer takes what ranks' private steps changed as its gradient."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simstrag.aggregation import Outer
from simstrag.errors import InputError
from simstrag.learning.averaging_replay import AveragingReplay, Worker
from simstrag.learning.optimizers import FlatSgd, OptimizerChoice

if TYPE_CHECKING:
    import torch


class OuterReplay(AveragingReplay):
    """Training of one global model by an outer optimizer, a fragment at each update.

    The outer gradient is the mean, by samples, of what each member's private steps took from the
    global parameters that it started from.  Fragments are equal parts of the flat parameters.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        outer = self.rule.outer or Outer()
        self._mix = outer.mix
        self._global = self.engine.initial.clone()
        numbers, parts = len(self._global), self.rule.fragments
        if parts > numbers:
            raise InputError(f"{parts} fragments of {numbers} parameters: lower the fragments")
        ends = itertools.accumulate(map(len, self._global.tensor_split(parts)), initial=0)
        self._fragments = [slice(*pair) for pair in itertools.pairwise(ends)]
        self._optimizers = [OuterSgd(self._global[each], outer) for each in self._fragments]

    @property
    def parameters(self) -> torch.Tensor:
        """The global ones."""
        return self._global

    def merge(
        self,
        update: int,
        workers: Sequence[Worker],
        models: Sequence[torch.Tensor],
        weights: Sequence[float],
    ) -> None:
        """Step the fragment of an update."""
        number = self._number(update)
        place, now = self._fragments[number], self._global[self._fragments[number]]
        # A model that started from older parameters moves as far as they have moved since.
        parts = [
            weight * (model[place] + (now - worker.base[place]))
            for worker, model, weight in zip(workers, models, weights, strict=True)
        ]
        self._optimizers[number].step(sum(parts[1:], start=parts[0]))
        if self._users[update]:
            self._live[update] = self._global.clone()
        for version in [version for version in self._live if not self._users[version]]:
            del self._live[version]

    def go_on(self, worker: Worker) -> None:
        """Take the fragment of its last update over; all of them when it enters."""
        now, new = worker.now, self._live[worker.now.version]
        last = worker.contributions[worker.at - 1] if worker.at else None
        if last is None or (not now.early and not self.rule.server and last.update != now.version):
            worker.base.copy_(new)
            worker.model.copy_(new)
            return
        place = self._fragments[self._number(last.update)]
        own = worker.model[place]
        worker.base[place] = new[place]
        own.copy_(new[place] + self._mix * (own - new[place]) if self._mix else new[place])

    def _number(self, update: int) -> int:
        """The number of the fragment of an update."""
        return (update - 1) % len(self._fragments)


class OuterSgd:
    """The outer optimizer of one fragment; `torch.optim.SGD`, or delayed Nesterov momentum.

    flat: the fragment's global parameters, which it changes.

    >>> import torch
    >>> flat = torch.ones(2)
    >>> OuterSgd(flat, Outer(lr=0.5)).step(torch.zeros(2))
    >>> flat.tolist()
    [0.5, 0.5]
    """

    def __init__(self, flat: torch.Tensor, outer: Outer) -> None:
        self._flat, self._outer = flat, outer
        choice = OptimizerChoice("sgd", outer.lr, outer.momentum, outer.nesterov)
        self._sgd = FlatSgd(flat, choice)
        self._sum: torch.Tensor | None = None  # of the gradients since the momentum's last change
        self._momentum: torch.Tensor | None = None
        self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Its momentum and what it counts, for a checkpoint."""
        return {
            "velocity": self._sgd.velocity, "sum": self._sum, "momentum": self._momentum,
            "steps": self._steps,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._sgd.velocity = state["velocity"]
        self._sum, self._momentum = state["sum"], state["momentum"]
        self._steps = state["steps"]

    def step(self, mean: torch.Tensor) -> None:
        """Step with the parameters less a mean of models as the gradient."""
        outer = self._outer
        if outer.lr == 1 and not outer.momentum:
            self._flat.copy_(mean)
            return
        gradient = self._flat - mean
        if outer.delay > 1:
            gradient = self._delayed(gradient)
            self._flat.add_(gradient, alpha=-outer.lr)
            return
        self._flat.grad = gradient
        self._sgd.step()

    def _delayed(self, gradient: torch.Tensor) -> torch.Tensor:
        """The change by Liu et al., arXiv:2401.09135, algorithm 3 with c = 0, over -lr."""
        outer = self._outer
        self._sum = gradient if self._sum is None else self._sum + gradient
        self._steps += 1
        part = gradient / outer.delay
        if self._steps % outer.delay:
            return part
        mean, self._sum = self._sum / outer.delay, None
        before = self._momentum
        self._momentum = mean if before is None else outer.momentum * before + mean
        return outer.momentum * self._momentum + part
