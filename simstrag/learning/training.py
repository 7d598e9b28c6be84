"""Real training at virtual time: a model learns by the gradients that a simulated run applied.

The run decides which gradient, of which samples, computed at which parameters and in which
precision, is applied when; nothing here changes a time of it.  Gradients whose parameters are known
are computed together, whenever the first of them is needed.  Everything runs on one thread, so that
the same scenario gives the same bytes on the same kind of processor.  Denormal numbers are taken as
zero: a momentum that decays to them makes processors ten times slower.
"""

from __future__ import annotations

import abc
import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simstrag.arrays import Floats, Ints
from simstrag.learning.batches import Batches
from simstrag.learning.gradient_log import GradientLog
from simstrag.learning.gradients import GradientEngine
from simstrag.learning.loss_scale import LossScale
from simstrag.learning.optimizers import FlatOptimizer, OptimizerChoice
from simstrag.learning.update_rule import WEIGHTED_SUM, UpdateRule

if TYPE_CHECKING:
    import torch


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
    """The results of real training.

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


class Replay(abc.ABC):
    """Trains the model of an engine by a run's gradients.

    log: the run.
    engine: computes gradients.
    batches: says which samples they are of.
    optimizer: applies them.
    rule: what an update makes of them.
    """

    def __init__(
        self,
        log: GradientLog,
        engine: GradientEngine,
        batches: Batches,
        optimizer: OptimizerChoice,
        rule: UpdateRule = WEIGHTED_SUM,
    ) -> None:
        self.rule = rule
        self.gradients, self.times = log.gradients, log.times
        applied = np.bincount(self.gradients["update"], self.gradients["samples"])
        applied[0] = 0  # those of no update
        self._samples_by = np.cumsum(applied).astype(np.int64)
        self.engine, self.batches, self.optimizer = engine, batches, optimizer
        scaled = engine.scales_losses and self.gradients["amp"].any()
        self.scales: dict[int, LossScale] | None = defaultdict(LossScale) if scaled else None
        self.computed = 0

    @property
    @abc.abstractmethod
    def parameters(self) -> torch.Tensor:
        """Present parameters of the job's model, flat, shape (P,)."""

    @abc.abstractmethod
    def apply(self, update: int) -> None:
        """Make the update that leads to this version."""

    def run(
        self,
        every: float,
        target: float | None = None,
        on_update: Callable[[float, int, None], None] | None = None,
    ) -> Trained:
        """Train to the target accuracy, or through all updates of the run.

        every: virtual seconds from one evaluation to the next; one is made by the first update at
            or past each multiple of it, and one at the end.
        on_update: called at each evaluation, with its time, the samples applied and None.
        """
        import torch

        found = Evaluations()
        with one_thread(), flushed_denormals(), torch.no_grad():
            self._evaluate(found, 0)
            reached = 0.0 if target is not None and found.accuracy[0] >= target else None
            due, last, diverged = every, len(self.times), None
            update = 0
            while update < last and reached is None and diverged is None:
                update += 1
                self.apply(update)
                time = float(self.times[update - 1])
                if time < due and update < last:
                    continue
                due = every * (math.floor(time / every) + 1)
                self._evaluate(found, update)
                if on_update is not None:
                    on_update(time, found.samples[-1], None)
                if not math.isfinite(found.loss[-1]):
                    diverged = time
                elif target is not None and found.accuracy[-1] >= target:
                    reached = time
        last_ones = self.parameters.clone().cpu()
        return Trained(found, reached, diverged, self.computed, last_ones)

    def sums(
        self,
        parameters: list[torch.Tensor],
        rows: Ints,
        counts: Ints,
        amp: bool,
        weights: Floats,
    ) -> list[torch.Tensor]:
        """A sum of gradients at each of several parameters, by weights.

        Where losses are scaled a sum is one gradient, which may not be finite.

        rows: of `gradients`, one sum after the other.
        counts: rows of each sum.
        amp: whether in reduced precision.
        weights: of each row.
        """
        import torch

        rank, step, sizes = (self.gradients[name][rows] for name in ("rank", "step", "samples"))
        self.computed += len(rank)
        factors = np.ones(len(rank))
        if amp and self.scales is not None:
            factors = np.array([self.scales[own].value for own in rank.tolist()])
        each = torch.from_numpy(np.repeat(weights / sizes * factors, sizes))
        samples = torch.from_numpy(self.batches.of(rank, step, sizes))
        of_sum = np.add.reduceat(sizes, np.cumsum(counts) - counts).tolist()
        with torch.enable_grad():
            found = self.engine.rows(parameters, samples, each.to(self.engine.dtype), of_sum, amp)
        if not amp or self.scales is None:
            return found
        return [row / factor for row, factor in zip(found, factors.tolist(), strict=True)]

    def step(
        self,
        optimizer: FlatOptimizer,
        flat: torch.Tensor,
        gradient: torch.Tensor,
        rows: Ints,
    ) -> None:
        """Step by a sum of the gradients of some rows; skip one that is not finite in float16."""
        finite = self.scales is None or bool(gradient.isfinite().all())
        if finite:
            flat.grad = gradient
            optimizer.step()
        self.rescale(rows, finite)

    def rescale(self, rows: Ints, finite: bool) -> None:
        """Update the loss scale of each rank with one of these gradients in reduced precision."""
        if self.scales is not None:
            for rank in self.gradients["rank"][rows[self.gradients["amp"][rows]]].tolist():
                self.scales[rank].update(finite)

    def _evaluate(self, found: Evaluations, update: int) -> None:
        accuracy, loss = self.engine.evaluate(self.parameters)
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


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Numbers below the smallest normal one are zero in this context, on processors that can."""
    import torch

    smallest = torch.finfo(torch.float64).smallest_normal
    before = not torch.tensor(smallest / 2, dtype=torch.float64).mul(1.0).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
