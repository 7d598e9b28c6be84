"""A learning task: a model, samples by number, the loss of each, and the score on held-out ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simstrag.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    Judge = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Of outputs and targets of n samples, a number for each sample; shape (n,)."""

TaskMaker = Callable[[int], "LearningTask"]


@dataclass(frozen=True, slots=True)
class LearningTask:
    """A model with its data: what workers compute gradients of, and how well it has learned.

    model: its initial parameters; it is not changed.
    inputs, targets: all samples for training; dimension 0 counts them.
    test_inputs, test_targets: held-out samples, or those that the score is of.
    loss: a function of outputs and targets of n samples; the loss of each, shape (n,).
    score: the same for what counts as learned, higher is better; its mean over the held-out samples
        is the *accuracy* of a run.
    scored: what the score is, in words.
    label: the class of each sample, by which non-identical shards are cut; None if it has none.
    """

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor
    loss: Judge
    score: Judge
    scored: str = "share of held-out samples classified correctly"
    label: torch.Tensor | None = None

    @property
    def parameters(self) -> int:
        """The number of parameters that are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def check(self, name: str) -> None:
        """Raise `InputError` where it cannot be trained: one line, what to do."""
        import torch

        if not len(self.inputs) == len(self.targets) > 0:
            raise InputError(
                f"task '{name}': {len(self.inputs)} inputs and {len(self.targets)} targets; "
                "want as many, at least one"
            )
        with torch.no_grad():
            losses = self.loss(self.model(self.inputs[:8]), self.targets[:8])
        if losses.shape != (len(self.inputs[:8]),):
            raise InputError(
                f"task '{name}': the loss of {len(self.inputs[:8])} samples has shape "
                f"{tuple(losses.shape)}; want one number a sample, such as by reduction='none'"
            )
        if not bool(losses.isfinite().all()):
            raise InputError(
                f"task '{name}': its loss is {float(losses.mean()):g} before the first update; "
                "look at the initial parameters and at the inputs"
            )
        if buffered := [name for name, _ in self.model.named_buffers()]:
            raise InputError(
                f"task '{name}': the model has buffers ({', '.join(buffered[:3])}), such as those "
                "of BatchNorm, which every worker would change in its own way; use GroupNorm or "
                "LayerNorm"
            )
        for module in self.model.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
                raise InputError(
                    f"task '{name}': the model has dropout, whose draws are no function of seed, "
                    "rank and step; set its p to 0"
                )


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each sample, over classes in the last dimension; a sequence's mean."""
    from torch.nn import functional

    losses = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return losses if targets.ndim == 1 else losses.view(targets.shape).flatten(1).mean(1)


def correct(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1 for a sample whose class is the most likely one, else 0; a sequence's mean."""
    hits = (outputs.argmax(-1) == targets).to(outputs.dtype)
    return hits if targets.ndim == 1 else hits.flatten(1).mean(1)


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Half the squared error of each sample, of outputs of one column."""
    return 0.5 * (outputs.squeeze(-1) - targets).square()


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model whose parameters are a function of the seed; torch's random state is kept."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
