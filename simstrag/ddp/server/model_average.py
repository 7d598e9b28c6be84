"""A rank's part in averages of models: what it brings to an all-reduce, and takes over from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from simstrag.learning.outer_model import OuterModel, mix_in, places_of

if TYPE_CHECKING:
    from simstrag.ddp.replica import Replica
    from simstrag.ddp.server.messages import Compute, Reduce


class ModelAverage:
    """Averages of the models of ranks, or of a fragment of them under outer steps.

    Each rank takes a mean over, or an outer step on a copy of the global parameters.  Where the
    server has these, a rank brings what its private steps took from the parameters that it started
    from, and takes fragments over as it pulls them.

    state: the state of outer steps in a checkpoint; None where there is none.
    outer: the global parameters under outer steps of the ranks; None without.
    place: the fragment of the parameters that it brought last.

    A mean is taken over only when the update has been made: if a member dies, the all-reduce is
    repeated with the same input.
    """

    def __init__(self, replica: Replica, rank: int, state: Mapping[str, Any] | None = None) -> None:
        self._replica, self._rank = replica, rank
        self.outer: OuterModel | None = None
        self._state = state
        self._base: torch.Tensor | None = None  # what was pulled, where the server has the model
        self._brought: torch.Tensor | None = None  # a copy: steps beside it change the model
        self._mean: torch.Tensor | None = None
        self._fragment, self._version = 0, -1
        self._places = [slice(0, replica.count)]

    @property
    def is_under_way(self) -> bool:
        """Whether this rank has brought its model and not taken the mean over."""
        return self._brought is not None

    @property
    def place(self) -> slice:
        return self._places[self._fragment]

    def state_dict(self) -> dict[str, Any] | None:
        """The state of outer steps, for a checkpoint; None without."""
        return None if self.outer is None else self.outer.state_dict()

    def prepare(self, command: Compute) -> None:
        """Before a step: take the mean over whose update was made, and meet what the plan needs."""
        self.take_over(command.version)
        if len(self._places) != command.fragments:
            self._places = places_of(self._replica.count, command.fragments)
        if command.outer is not None and not command.served and self.outer is None:
            self.outer = OuterModel(self._replica.flat(), command.outer, command.fragments)
            if self._state is not None:
                self.outer.load_state_dict(self._state)

    def pull(self, command: Compute, parameters: torch.Tensor) -> None:
        """Go on from the server's parameters: from all, or from a fragment mixed with its own."""
        self._brought = None
        new = parameters.to(self._replica.device, copy=True)
        if command.takes is None or self._base is None:
            self._base = new
            self._replica.spread(new)
            return
        place, model = self._places[command.takes], self._replica.flat()
        mix_in(new[place], model[place], 0.0 if command.outer is None else command.outer.mix)
        self._base[place] = new[place]
        self._replica.spread(model)

    def keep(self, version: int) -> None:
        """Keep what this rank brings as it is now: it runs on; version: of its last step."""
        self._brought, self._version = self._own(), version

    def taken(self) -> torch.Tensor:
        """What private steps took from the parameters; statistics of layers stay with the rank."""
        return self._own() if self._brought is None else self._brought

    def bring(self, command: Reduce) -> torch.Tensor:
        """This rank's part of a mean, which an all-reduce makes the whole."""
        replica, place = self._replica, self._places[command.fragment]
        weight = command.weights[command.members.index(self._rank)]
        if not weight:  # it computes, and takes part in the collective alone
            rest = replica.buffer_count if self._base is None else 0
            count = place.stop - place.start + rest
            return torch.zeros(count, dtype=replica.dtype, device=replica.device)
        whole = self._own() if self._brought is None else self._brought
        parts = whole[place], whole[replica.count :]
        own = torch.cat(parts) if len(self._places) > 1 else whole
        self._brought, self._fragment, self._mean = whole, command.fragment, own * weight
        return self._mean

    def take_over(self, version: int) -> None:
        """Take the mean over, if there is one and its update has been made.

        version: of the parameters from which the next step begins.
        """
        if self._mean is None or self._base is not None or version <= self._version:
            return
        replica, mean = self._replica, self._mean
        if self.outer is None:
            replica.spread(mean)
        else:
            length = self.place.stop - self.place.start
            self.outer.step(self._fragment, mean[:length])
            model = replica.flat()
            self.outer.take_over(self._fragment, model)
            replica.spread(torch.cat([model, mean[length:]]))
        self._mean = self._brought = None
        self._version = -1

    def _own(self) -> torch.Tensor:
        """Its model and floating buffers; or what was taken from the server's parameters."""
        if self._base is not None:
            return self._base - self._replica.flat()
        return self._replica.flat(buffers=True)
