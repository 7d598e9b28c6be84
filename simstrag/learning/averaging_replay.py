"""Replays updates that average models: each rank has a model and an optimizer of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag.learning.optimizers import FlatOptimizer
from simstrag.learning.training import Replay

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class _Contribution:
    """Private steps of a rank between two averages, which it takes part in with its model.

    version: of the average that it began with; update: that of the average it goes into.
    steps: rows of `Replay.gradients`.
    weight: of its model in the average.
    """

    rank: int
    version: int
    update: int
    steps: tuple[int, ...]
    weight: float


class _Worker:
    """A rank's model, its optimizer, and how far it is in its contributions."""

    def __init__(self, model: torch.Tensor, optimizer: FlatOptimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.contributions: list[_Contribution] = []
        self.at, self.done = 0, 0  # its contribution now, and how many steps of it


class AveragingReplay(Replay):
    """Training in which an update is the average of models, by their samples.

    A rank's private steps are those of its own optimizer, whose state stays its own.  The model of
    the job is the mean of the averages that ranks took last.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._by_update: dict[int, list[_Contribution]] = {}
        self._workers: dict[int, _Worker] = {}
        self._live = {0: self.engine.initial}
        for each in _contributions(self.gradients):
            if each.rank not in self._workers:
                flat = self.engine.initial.clone()
                self._workers[each.rank] = _Worker(flat, self.optimizer.make(flat))
            self._workers[each.rank].contributions.append(each)
            self._by_update.setdefault(each.update, []).append(each)
        self._held = dict.fromkeys(self._workers, 0)  # version that each rank took last

    @property
    def parameters(self) -> torch.Tensor:
        """The mean of the averages that ranks took last."""
        import torch

        held = [*self._held.values()]
        if len(set(held)) == 1:
            return self._live[held[0]]
        return torch.stack([self._live[version] for version in held]).mean(0)

    def apply(self, update: int) -> None:
        """Average the models of an update's members."""
        members = [self._workers[each.rank] for each in self._by_update[update]]
        while any(worker.done < len(_now(worker).steps) for worker in members):
            self._step(update - 1)
        pairs = zip(members, self._by_update[update], strict=True)
        models = [each.weight * worker.model for worker, each in pairs]
        self._live[update] = sum(models[1:], start=models[0])
        for worker, each in zip(members, self._by_update[update], strict=True):
            self._held[each.rank] = update
            worker.at, worker.done = worker.at + 1, 0
        for version in self._live.keys() - set(self._held.values()):
            del self._live[version]

    def _step(self, version: int) -> None:
        """Take the next private step of every rank that can, given the averages so far."""
        ready = [
            worker
            for worker in self._workers.values()
            if worker.at < len(worker.contributions)
            and _now(worker).version <= version
            and worker.done < len(_now(worker).steps)
        ]
        for amp in (False, True):
            chosen = [w for w in ready if self.gradients["amp"][_now(w).steps[w.done]] == amp]
            if not chosen:
                continue
            for worker in chosen:
                if worker.done == 0:
                    worker.model.copy_(self._live[_now(worker).version])
            rows = [_now(worker).steps[worker.done] for worker in chosen]
            models = [worker.model for worker in chosen]
            one_each = np.ones(len(rows), np.int64)
            sums = self.sums(models, np.array(rows), one_each, amp, np.ones(len(rows)))
            for worker, gradient in zip(chosen, sums, strict=True):
                worker.model.grad = gradient
                worker.optimizer.step()
        for worker in ready:
            worker.done += 1


def _now(worker: _Worker) -> _Contribution:
    return worker.contributions[worker.at]


def _contributions(gradients: dict[str, Any]) -> Iterator[_Contribution]:
    """All contributions, in the order of their updates."""
    order = np.lexsort((gradients["step"], gradients["rank"], gradients["update"]))
    update, rank = gradients["update"][order], gradients["rank"][order]
    first = np.flatnonzero((np.diff(update) != 0) | (np.diff(rank) != 0)) + 1
    for rows in np.split(order, first):
        yield _Contribution(
            int(gradients["rank"][rows[0]]), int(gradients["version"][rows[0]]),
            int(gradients["update"][rows[0]]), tuple(rows.tolist()),
            float(gradients["weight"][rows].sum()),
        )  # fmt: skip
