"""Real training at virtual time: a model learns by the gradients that a simulated run applied.

The run decides which gradient, of which samples, computed at which parameters and in which
precision, is applied when; nothing here changes a time of it.  Gradients whose parameters are known
are computed together, whenever the first of them is needed.  Everything runs on one thread, so that
the same scenario gives the same bytes on the same kind of processor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simstrag.learning.batches import Batches
from simstrag.learning.gradient_log import GradientLog
from simstrag.learning.gradients import GradientEngine
from simstrag.learning.optimizers import OptimizerChoice

if TYPE_CHECKING:
    import torch

MOST_AT_ONCE = 256
"""Gradients at different parameters that are computed together."""


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The model of the job when it was evaluated; lists of equal length.

    time: virtual seconds.
    updates: version of the parameters.
    samples: applied so far.
    accuracy: mean score over the held-out samples.
    loss: mean loss over them.
    """

    time: list[float] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Trained:
    """What real training found.

    evaluations: the first is of the initial parameters, the last of the last ones.
    reached: virtual seconds of the first evaluation with the target accuracy; None without it.
    diverged: virtual seconds at which parameters were no longer finite, and training ended; None
        where they stayed finite.
    gradients: how many were computed.
    parameters: the last ones, flat, shape (P,).
    """

    evaluations: Evaluations
    reached: float | None
    diverged: float | None
    gradients: int
    parameters: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Cells:
    """Gradients of one update at one version in one precision, which are computed as one sum.

    first: the first gradient of each, and the end of the last; shape (C + 1,).
    update, version, amp: of each; shape (C,).
    of_update: the first cell of each update, and the end of the last.
    by_version: cells in the order of their versions.
    """

    first: npt.NDArray[np.int64]
    update: npt.NDArray[np.int64]
    version: npt.NDArray[np.int64]
    amp: npt.NDArray[np.bool_]
    of_update: npt.NDArray[np.int64]
    by_version: npt.NDArray[np.int64]

    @classmethod
    def of(cls, gradients: dict[str, npt.NDArray[Any]], updates: int) -> _Cells:
        """Cells of gradients that are sorted by update, version and precision."""
        keys = np.stack([gradients[name].astype(np.int64) for name in ("update", "version", "amp")])
        first = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
        first = np.concatenate([[0], first])
        update, version, amp = keys[:, first]
        ends = np.concatenate([first, [keys.shape[1]]])
        of_update = np.searchsorted(update, np.arange(1, updates + 2))
        order = np.argsort(version, kind="stable")
        return cls(ends, update, version, amp.astype(bool), of_update, order)


class GradientReplay:
    """Trains the model of an engine by a run's gradients.

    log: the run.
    engine: computes gradients.
    batches: says which samples they are of.
    optimizer: applies them.
    """

    def __init__(
        self,
        log: GradientLog,
        engine: GradientEngine,
        batches: Batches,
        optimizer: OptimizerChoice,
    ) -> None:
        self._gradients, self.times = log.gradients, log.times
        self._cells = _Cells.of(self._gradients, len(self.times))
        applied = np.bincount(self._gradients["update"], self._gradients["samples"])
        self._samples_by = np.cumsum(applied).astype(np.int64)
        self.engine, self._batches = engine, batches
        self._flat = engine.initial.clone()
        self._optimizer = optimizer.make(self._flat)
        users = np.bincount(self._cells.version, minlength=len(self.times) + 1)
        self._users = users.tolist()
        self._live: dict[int, torch.Tensor] = {}
        self._ready: dict[int, torch.Tensor] = {}
        self._next = 0  # of `by_version`: all cells before it have been computed
        self.computed = 0

    def run(self, every: float, target: float | None = None) -> Trained:
        """Train to the target accuracy, or through all updates of the run.

        every: virtual seconds from one evaluation to the next; one is made by the first update at
            or past each multiple of it, and one at the end.
        """
        import torch

        found = Evaluations()
        with one_thread(), torch.no_grad():
            self._evaluate(found, 0)
            reached = 0.0 if target is not None and found.accuracy[0] >= target else None
            due, last, diverged = every, len(self.times), None
            self._keep(0)
            update = 0
            while update < last and reached is None and diverged is None:
                update += 1
                self._apply(update)
                time = float(self.times[update - 1])
                if time < due and update < last:
                    continue
                due = every * (math.floor(time / every) + 1)
                self._evaluate(found, update)
                if not math.isfinite(found.loss[-1]):
                    diverged = time
                elif target is not None and found.accuracy[-1] >= target:
                    reached = time
        return Trained(found, reached, diverged, self.computed, self._flat.detach())

    def _apply(self, update: int) -> None:
        """Make one update, and keep its parameters where a gradient will be computed at them."""
        start, end = self._cells.of_update[update - 1 : update + 1].tolist()
        total: torch.Tensor | None = None
        for cell in range(start, end):
            if cell not in self._ready:
                self._compute(update - 1)
            row = self._ready.pop(cell)
            total = row if total is None else total + row
        self._flat.grad = total
        self._optimizer.step()
        self._keep(update)

    def _keep(self, version: int) -> None:
        if self._users[version]:
            self._live[version] = self._flat.detach().clone()

    def _compute(self, version: int) -> None:
        """Compute all gradients at the versions that are known, up to `MOST_AT_ONCE` sums."""
        import torch

        cells, order = self._cells, self._cells.by_version
        # Rows that are still needed, such as a straggler's, no longer keep all those beside them.
        self._ready = {cell: row.clone() for cell, row in self._ready.items()}
        stop = int(np.searchsorted(cells.version[order], version, "right"))
        while self._next < stop:
            chosen = order[self._next : min(stop, self._next + MOST_AT_ONCE)]
            self._next += len(chosen)
            for amp in (False, True):
                places = [int(cell) for cell in chosen if cells.amp[cell] == amp]
                if not places:
                    continue
                parameters = [self._live[int(cells.version[cell])] for cell in places]
                with torch.enable_grad():
                    rows = self.engine.rows(parameters, *self._samples_of(places), amp)
                self._ready.update(zip(places, rows, strict=True))
            for cell in chosen:
                at = int(cells.version[cell])
                self._users[at] -= 1
                if not self._users[at]:
                    del self._live[at]

    def _samples_of(self, cells: list[int]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """The samples of cells, one cell after the other, their weights, and how many of each."""
        import torch

        spans = [slice(*self._cells.first[cell : cell + 2].tolist()) for cell in cells]
        rank, step, sizes, weight = (
            np.concatenate([self._gradients[name][span] for span in spans])
            for name in ("rank", "step", "samples", "weight")
        )
        self.computed += len(rank)
        weights = torch.from_numpy(np.repeat(weight / sizes, sizes)).to(self.engine.dtype)
        counts = [int(self._gradients["samples"][span].sum()) for span in spans]
        return torch.from_numpy(self._batches.of(rank, step, sizes)), weights, counts

    def _evaluate(self, found: Evaluations, update: int) -> None:
        accuracy, loss = self.engine.evaluate(self._flat.detach())
        found.time.append(float(self.times[update - 1]) if update else 0.0)
        found.updates.append(update)
        found.samples.append(int(self._samples_by[update]))
        found.accuracy.append(accuracy)
        found.loss.append(loss)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread in this context, so that sums have one order everywhere."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
