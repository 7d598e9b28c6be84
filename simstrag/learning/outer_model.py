"""The global parameters under outer steps, which a fragment of each update changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simstrag.contract import Outer
from simstrag.errors import InputError
from simstrag.learning.optimizers import FlatSgd, OptimizerChoice

if TYPE_CHECKING:
    import torch


class OuterModel:
    """Global parameters, flat, and an outer optimizer for each fragment of them.

    flat: shape (P,); its present values are copied.
    outer: the optimizer.
    fragments: equal parts of the parameters, of which an update changes one, in turn.

    Raises `InputError` where there are more fragments than parameters.

    >>> import torch
    >>> model = OuterModel(torch.zeros(3), Outer(lr=0.5), fragments=2)
    >>> model.places
    [slice(0, 2, None), slice(2, 3, None)]
    >>> model.step(0, torch.ones(2))
    >>> model.flat.tolist()
    [0.5, 0.5, 0.0]
    """

    def __init__(self, flat: torch.Tensor, outer: Outer, fragments: int) -> None:
        self.flat, self._outer = flat.clone(), outer
        self.places = places_of(len(flat), fragments)
        self._optimizers = [OuterSgd(self.flat[place], outer) for place in self.places]

    def step(self, fragment: int, mean: torch.Tensor) -> None:
        """Step a fragment with the global parameters less a mean of models as the gradient."""
        self._optimizers[fragment].step(mean)

    def take_over(
        self, fragment: int, model: torch.Tensor, version: torch.Tensor | None = None
    ) -> None:
        """Put a fragment into a rank's model, flat, which keeps the share `mix` of its own.

        version: the global parameters that it is of; the present ones by default.
        """
        place, new = self.places[fragment], self.flat if version is None else version
        mix_in(new[place], model[place], self._outer.mix)

    def state_dict(self) -> dict[str, Any]:
        """The parameters and the state of the optimizers, for a checkpoint."""
        return {"flat": self.flat, "optimizers": [each.state_dict() for each in self._optimizers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.flat.copy_(state["flat"])
        for each, own in zip(self._optimizers, state["optimizers"], strict=True):
            each.load_state_dict(own)


def places_of(count: int, fragments: int) -> list[slice]:
    """The fragments of so many parameters: equal runs, the first ones longer by one.

    Raises `InputError` where there are more fragments than parameters.
    """
    if fragments > count:
        raise InputError(f"{fragments} fragments of {count} parameters: lower their number")
    least, longer = divmod(count, fragments)
    sizes = (least + (number < longer) for number in range(fragments))
    ends = itertools.accumulate(sizes, initial=0)
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def mix_in(new: torch.Tensor, own: torch.Tensor, mix: float) -> None:
    """Put new parameters into a rank's own, of which the share `mix` is kept."""
    own.copy_(new + mix * (own - new) if mix else new)


class OuterSgd:
    """The outer optimizer of one fragment; `torch.optim.SGD`, or delayed Nesterov momentum.

    flat: the fragment's global parameters, which it changes.

    >>> import torch
    >>> flat = torch.ones(2)
    >>> OuterSgd(flat, Outer(lr=0.5)).step(torch.zeros(2))
    >>> flat.tolist()
    [0.5, 0.5]
    """

    def __init__(self, flat: torch.Tensor, outer: Outer) -> None:
        self._flat, self._outer = flat, outer
        choice = OptimizerChoice("sgd", outer.lr, outer.momentum, outer.nesterov)
        self._sgd = FlatSgd(flat, choice)
        self._sum: torch.Tensor | None = None  # of the gradients since the momentum's last change
        self._momentum: torch.Tensor | None = None
        self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Momentum and counters, for a checkpoint."""
        return {
            "velocity": self._sgd.velocity, "sum": self._sum, "momentum": self._momentum,
            "steps": self._steps,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._sgd.velocity = state["velocity"]
        self._sum, self._momentum = state["sum"], state["momentum"]
        self._steps = state["steps"]

    def step(self, mean: torch.Tensor) -> None:
        """Step with the parameters less a mean of models as the gradient."""
        outer = self._outer
        if outer.lr == 1 and not outer.momentum:
            self._flat.copy_(mean)
            return
        gradient = self._flat - mean
        if outer.delay > 1:
            gradient = self._delayed(gradient)
            self._flat.add_(gradient, alpha=-outer.lr)
            return
        self._flat.grad = gradient
        self._sgd.step()

    def _delayed(self, gradient: torch.Tensor) -> torch.Tensor:
        """The change by Liu et al., arXiv:2401.09135, algorithm 3 with c = 0, over -lr."""
        outer = self._outer
        self._sum = gradient if self._sum is None else self._sum + gradient
        self._steps += 1
        part = gradient / outer.delay
        if self._steps % outer.delay:
            return part
        mean, self._sum = self._sum / outer.delay, None
        before = self._momentum
        self._momentum = mean if before is None else outer.momentum * before + mean
        return outer.momentum * self._momentum + part
