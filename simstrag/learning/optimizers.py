"""The optimizers of real training, over one flat parameter: they treat each parameter alone.

Adam and AdamW are torch's.  SGD is the same arithmetic without the hooks of `torch.optim`, which
take half the time of training where every gradient is an update (docs/learning.md).
"""

from __future__ import annotations

from collections.abc import Sequence
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
        assert self._flat.grad is not None
        change = self._change(self._flat, self._flat.grad)
        self._flat.add_(change, alpha=-self._choice.lr)

    def steps(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Apply gradients one after the other; the parameters after each, as rows of one tensor.

        >>> import torch
        >>> flat = torch.ones(2)
        >>> FlatSgd(flat, OptimizerChoice(lr=0.5)).steps([torch.ones(2), torch.ones(2)])
        [tensor([0.5000, 0.5000]), tensor([0., 0.])]
        """
        import torch

        now, rate = self._flat, -self._choice.lr
        rows = list(now.new_empty(len(gradients), len(now)).unbind())
        for row, gradient in zip(rows, gradients, strict=True):
            torch.add(now, self._change(now, gradient), alpha=rate, out=row)
            now = row
        self._flat.copy_(now)
        return rows

    def _change(self, now: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The direction that the learning rate multiplies."""
        choice = self._choice
        if choice.weight_decay:
            gradient = gradient.add(now, alpha=choice.weight_decay)
        if not choice.momentum:
            return gradient
        if self.velocity is None:
            self.velocity = gradient.clone()
        else:
            self.velocity.mul_(choice.momentum).add_(gradient)
        nesterov = choice.nesterov
        return gradient.add(self.velocity, alpha=choice.momentum) if nesterov else self.velocity
