"""Replays updates that average models: each rank has a model and an optimizer of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag.learning.optimizers import FlatOptimizer
from simstrag.learning.training import Replay

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Contribution:
    """Private steps of a rank between two updates, which it takes part in with its model.

    version: of the parameters that it went on from; update: the one that it goes into.
    steps: rows of `Replay.gradients`.
    early: how many of them it took before it went on, while its last contribution was under way.
    weight: of its model in the update.
    """

    rank: int
    version: int
    update: int
    steps: tuple[int, ...]
    early: int
    weight: float


class Worker:
    """A rank's model, its optimizer, and how far it is in its contributions.

    base: the global parameters from which its model started, by fragment.
    prepared: its model at the end of a contribution, by the update that takes it.
    """

    def __init__(self, model: torch.Tensor, optimizer: FlatOptimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.base = model.clone()
        self.prepared: dict[int, torch.Tensor] = {}
        self.contributions: list[Contribution] = []
        self.at, self.done = 0, 0  # its contribution now, and how many steps of it

    @property
    def now(self) -> Contribution:
        """The contribution that it works on."""
        return self.contributions[self.at]

    def can_step(self, version: int) -> bool:
        """Whether it has a step to take, given the parameters up to a version."""
        if self.at == len(self.contributions):
            return False
        return self.done < self.now.early or self.now.version <= version


class AveragingReplay(Replay):
    """Training in which an update is the average of models, by their samples.

    A rank's private steps are those of its own optimizer, whose state stays its own.  The model of
    the job is the mean of the averages that ranks took last.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._by_update: dict[int, list[Contribution]] = {}
        self._workers: dict[int, Worker] = {}
        self._live = {0: self.engine.initial}
        self._users: Counter[int] = Counter()  # contributions that still start from a version
        for each in _contributions(self.gradients, self.rule.overlap):
            if each.rank not in self._workers:
                flat = self.engine.initial.clone()
                self._workers[each.rank] = Worker(flat, self.optimizer.make(flat))
            self._workers[each.rank].contributions.append(each)
            self._by_update.setdefault(each.update, []).append(each)
            self._users[each.version] += 1
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
        members = self._by_update[update]
        workers = [self._workers[each.rank] for each in members]
        while any(update not in worker.prepared for worker in workers):
            self._step(update - 1)
        models = [worker.prepared.pop(update) for worker in workers]
        self.merge(update, workers, models, [each.weight for each in members])

    def merge(
        self,
        update: int,
        workers: Sequence[Worker],
        models: Sequence[torch.Tensor],
        weights: Sequence[float],
    ) -> None:
        """Make the parameters of an update of its members' models, and keep them."""
        parts = [weight * model for weight, model in zip(weights, models, strict=True)]
        self._live[update] = sum(parts[1:], start=parts[0])
        for each in self._by_update[update]:
            self._held[each.rank] = update
        self.prune({*self._held.values()})

    def prune(self, kept: Collection[int] = ()) -> None:
        """Let go of the versions that no contribution starts from any more, but for some."""
        for version in [version for version in self._live if not self._users[version]]:
            if version not in kept:
                del self._live[version]

    def go_on(self, worker: Worker) -> None:
        """Give a worker the parameters that its contribution starts from."""
        worker.model.copy_(self._live[worker.now.version])

    def _step(self, version: int) -> None:
        """Take the next private step of every rank that can, given the parameters so far."""
        ready = [worker for worker in self._workers.values() if worker.can_step(version)]
        for worker in ready:
            if worker.done == worker.now.early:
                self.go_on(worker)
                self._users[worker.now.version] -= 1
        for amp in (False, True):
            chosen = [w for w in ready if self.gradients["amp"][w.now.steps[w.done]] == amp]
            if not chosen:
                continue
            rows = [worker.now.steps[worker.done] for worker in chosen]
            models = [worker.model for worker in chosen]
            one_each = np.ones(len(rows), np.int64)
            sums = self.sums(models, np.array(rows), one_each, amp, np.ones(len(rows)))
            for worker, gradient, row in zip(chosen, sums, rows, strict=True):
                self.step(worker.optimizer, worker.model, gradient, np.array([row]))
        for worker in ready:
            worker.done += 1
            if worker.done == len(worker.now.steps):
                runs_on = self.rule.overlap > 0
                worker.prepared[worker.now.update] = (
                    worker.model.clone() if runs_on else worker.model
                )
                worker.at, worker.done = worker.at + 1, 0


def _contributions(gradients: dict[str, Any], overlap: int) -> Iterator[Contribution]:
    """All contributions, in the order of their updates.

    overlap: steps of all but a rank's first one that it takes before it goes on.
    """
    order = np.lexsort((gradients["step"], gradients["rank"], gradients["update"]))
    update, rank = gradients["update"][order], gradients["rank"][order]
    first = np.flatnonzero((np.diff(update) != 0) | (np.diff(rank) != 0)) + 1
    started: set[int] = set()
    for rows in np.split(order, first):
        own = int(gradients["rank"][rows[0]])
        yield Contribution(
            own, int(gradients["version"][rows[0]]), int(gradients["update"][rows[0]]),
            tuple(rows.tolist()), overlap if own in started else 0,
            float(gradients["weight"][rows].sum()),
        )  # fmt: skip
        started.add(own)
