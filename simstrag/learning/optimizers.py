"""The optimizers of real training: torch's own, over one flat parameter.

They treat each parameter alone, so that one flat one gives the same numbers as many, in less time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

KINDS = ("sgd", "adam", "adamw")


@dataclass(frozen=True, slots=True)
class OptimizerChoice:
    """An optimizer and its settings, as in torch.

    kind: one of `KINDS`.
    lr: learning rate.  The sum of an update's gradients is their mean where all ranks are in it;
        where one rank makes an update, it weighs 1/N.
    momentum, nesterov: of "sgd".
    betas: of "adam" and "adamw".
    weight_decay: added to the gradient; of "adamw" decoupled from it.

    >>> import torch
    >>> flat = torch.ones(3).requires_grad_()
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

    def make(self, flat: torch.Tensor) -> torch.optim.Optimizer:
        """A new optimizer of one parameter."""
        import torch

        if self.kind == "sgd":
            return torch.optim.SGD(
                [flat], self.lr, self.momentum, weight_decay=self.weight_decay,
                nesterov=self.nesterov, foreach=False,
            )  # fmt: skip
        of_kind = torch.optim.AdamW if self.kind == "adamw" else torch.optim.Adam
        return of_kind([flat], self.lr, self.betas, weight_decay=self.weight_decay, foreach=False)
