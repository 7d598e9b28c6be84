"""Replays outer steps: an optimizer takes what ranks' private steps changed as its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simstrag.learning.averaging_replay import AveragingReplay, Worker
from simstrag.learning.outer_model import OuterModel

if TYPE_CHECKING:
    import torch


class OuterReplay(AveragingReplay):
    """Training of one global model by an outer optimizer, a fragment at each update.

    The outer gradient is the mean, by samples, of what each member's private steps took from the
    global parameters that it started from.  Fragments are equal parts of the flat parameters.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        rule = self.rule
        self._model = OuterModel(self.engine.initial, rule.outer_or_mean, rule.fragments)

    @property
    def parameters(self) -> torch.Tensor:
        """The parameters of the global model."""
        return self._model.flat

    def merge(
        self,
        update: int,
        workers: Sequence[Worker],
        models: Sequence[torch.Tensor],
        weights: Sequence[float],
    ) -> None:
        """Step the fragment of an update."""
        number = self._number(update)
        place = self._model.places[number]
        now = self._model.flat[place]
        # A model that started from older parameters moves as far as they have moved since.
        parts = [
            weight * (model[place] + (now - worker.base[place]))
            for worker, model, weight in zip(workers, models, weights, strict=True)
        ]
        self._model.step(number, sum(parts[1:], start=parts[0]))
        if self._users[update]:
            self._live[update] = self._model.flat.clone()
        self.prune()

    def go_on(self, worker: Worker) -> None:
        """Take the fragment of its last update over; all of them when it enters."""
        now, new = worker.now, self._live[worker.now.version]
        last = worker.contributions[worker.at - 1] if worker.at else None
        if last is None or (not now.early and not self.rule.server and last.update != now.version):
            worker.base.copy_(new)
            worker.model.copy_(new)
            return
        number = self._number(last.update)
        place = self._model.places[number]
        worker.base[place] = new[place]
        self._model.take_over(number, worker.model, new)

    def _number(self, update: int) -> int:
        """The number of the fragment of an update."""
        return (update - 1) % len(self._model.places)
