"""The optimizers of real training, over one flat parameter: they treat each parameter alone.

Adam and AdamW are torch's.  SGD is the same arithmetic without the hooks of `torch.optim`, which
take half the time of training where every gradient is an update (docs/learning.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class FlatOptimizer(Protocol):
    """Changes a flat parameter by its `grad`."""

    def step(self) -> object:
        """Apply the gradient."""


@dataclass(frozen=True, slots=True)
class OptimizerChoice:
    """An optimizer and its settings, as in torch.

    kind: "sgd", "adam" or "adamw".
    lr: learning rate.  The sum of an update's gradients is their mean where all ranks are in it;
        where one rank makes an update, it weighs 1/N.
    momentum, nesterov: of "sgd".
    betas: of "adam" and "adamw".
    weight_decay: added to the gradient; of "adamw" decoupled from it.

    >>> import torch
    >>> flat = torch.ones(3)
    >>> flat.grad = torch.ones(3)
    >>> OptimizerChoice("sgd", 0.5).make(flat).step()
    >>> flat.tolist()
    [0.5, 0.5, 0.5]
    """

    kind: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0

    def make(self, flat: torch.Tensor) -> FlatOptimizer:
        """A new optimizer of one parameter."""
        import torch

        if self.kind == "sgd":
            return FlatSgd(flat, self)
        of_kind = torch.optim.AdamW if self.kind == "adamw" else torch.optim.Adam
        return of_kind([flat], self.lr, self.betas, weight_decay=self.weight_decay, foreach=False)


class FlatSgd:
    """`torch.optim.SGD` of one parameter."""

    def __init__(self, flat: torch.Tensor, choice: OptimizerChoice) -> None:
        self._flat, self._choice = flat, choice
        self.velocity: torch.Tensor | None = None

    def step(self) -> None:
        """Apply the gradient; call it without autograd."""
        choice, gradient = self._choice, self._flat.grad
        assert gradient is not None
        if choice.weight_decay:
            gradient = gradient.add(self._flat, alpha=choice.weight_decay)
        if choice.momentum:
            if self.velocity is None:
                self.velocity = gradient.clone()
            else:
                self.velocity.mul_(choice.momentum).add_(gradient)
            nesterov = choice.nesterov
            gradient = (
                gradient.add(self.velocity, alpha=choice.momentum) if nesterov else self.velocity
            )
        self._flat.add_(gradient, alpha=-choice.lr)
