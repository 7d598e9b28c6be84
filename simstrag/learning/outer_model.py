"""The global parameters under outer steps, which a fragment of each update changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simstrag.aggregation import Outer
from simstrag.errors import InputError
from simstrag.learning.outer_replay import OuterSgd

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
        if fragments > len(flat):
            raise InputError(f"{fragments} fragments of {len(flat)} parameters: lower their number")
        self.flat, self._outer = flat.clone(), outer
        ends = itertools.accumulate(map(len, flat.tensor_split(fragments)), initial=0)
        self.places = [slice(*pair) for pair in itertools.pairwise(ends)]
        self._optimizers = [OuterSgd(self.flat[place], outer) for place in self.places]

    def step(self, fragment: int, mean: torch.Tensor) -> None:
        """Step a fragment with the global parameters less a mean of models as the gradient."""
        self._optimizers[fragment].step(mean)

    def take_over(self, fragment: int, model: torch.Tensor) -> None:
        """Put a fragment into a rank's model, flat, which keeps the share `mix` of its own."""
        place, mix = self.places[fragment], self._outer.mix
        new, own = self.flat[place], model[place]
        own.copy_(new + mix * (own - new) if mix else new)

    def state_dict(self) -> dict[str, Any]:
        """The parameters and the state of the optimizers, for a checkpoint."""
        return {"flat": self.flat, "optimizers": [each.state_dict() for each in self._optimizers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.flat.copy_(state["flat"])
        for each, own in zip(self._optimizers, state["optimizers"], strict=True):
            each.load_state_dict(own)
