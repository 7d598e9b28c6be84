"""A learning task: a model, samples by number, the loss of each, and the score on held-out ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from simstrag.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    Judge = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Of outputs and targets of n samples, a number for each sample; shape (n,)."""

TaskMaker = Callable[[int], "LearningTask"]
Made = TypeVar("Made")


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

    def check(self) -> None:
        """Raise `InputError` where it cannot be trained: one line, what to do.

        It computes the losses (twice), their gradient and the scores of 8 samples; what its
        functions raise is passed on.
        """
        import torch

        for name in ("", "test_"):
            inputs, targets = getattr(self, f"{name}inputs"), getattr(self, f"{name}targets")
            for what, given in ((f"{name}inputs", inputs), (f"{name}targets", targets)):
                if not isinstance(given, torch.Tensor):
                    raise InputError(f"{what} is of type {type(given).__name__}; want a tensor")
            if not len(inputs) == len(targets) > 0:
                raise InputError(
                    f"{len(inputs)} {name}inputs and {len(targets)} {name}targets; want as many, "
                    "at least one"
                )
        if self.label is not None and self.label.shape != self.targets.shape[:1]:
            raise InputError(
                f"label has shape {tuple(self.label.shape)}; want ({len(self.targets)},), the "
                "class of each sample"
            )
        if not self.parameters:
            raise InputError("no parameter of its model requires a gradient")
        self._check_layers(torch)
        few, held_out = slice(8), self.test_inputs[:8]
        losses = self.loss(self.model(self.inputs[few]), self.targets[few])
        with torch.no_grad():
            scores = self.score(self.model(held_out), self.test_targets[few])
        for what, found, count in (
            ("loss", losses, len(self.inputs[few])), ("score", scores, len(held_out)),
        ):  # fmt: skip
            if found.shape != (count,):
                raise InputError(
                    f"the {what} of {count} samples has shape {tuple(found.shape)}; want one "
                    "number a sample, such as by reduction='none'"
                )
        if not bool(losses.isfinite().all()):
            raise InputError(
                f"its loss is {float(losses.detach().mean()):g} before the first update; look at "
                "the initial parameters and at the inputs"
            )
        if not bool(scores.isfinite().all()):
            raise InputError(
                f"its score is {float(scores.double().mean()):g} before the first update; want a "
                "number for each held-out sample"
            )
        if not torch.equal(losses, self.loss(self.model(self.inputs[few]), self.targets[few])):
            raise InputError(
                "the loss of the same samples differs from one call to the next; draw no random "
                "numbers in model and loss, as functional.dropout does"
            )
        trained = [p for p in self.model.parameters() if p.requires_grad]
        torch.autograd.grad(losses.sum(), trained, allow_unused=True)

    def _check_layers(self, torch: Any) -> None:
        """Refuse layers whose results depend on more than parameters and samples."""
        if buffered := [name for name, _ in self.model.named_buffers()]:
            raise InputError(
                f"the model has buffers ({', '.join(buffered[:3])}), such as those of BatchNorm, "
                "which every worker would change in its own way; use GroupNorm or LayerNorm"
            )
        for module in self.model.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
                raise InputError(
                    "the model has dropout, whose draws are no function of seed, rank and step; "
                    "set its p to 0"
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


def seeded(make: Callable[[], Made], seed: int) -> Made:
    """What is made by torch's random numbers from a seed on; torch's random state is kept."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
