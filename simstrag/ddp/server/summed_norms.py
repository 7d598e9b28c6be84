"""Squared norms of sums of gradients, as the server makes them, for the gradient noise scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from simstrag.ddp.flat_parameters import squared_norm
from simstrag.learning.noise_scale_estimate import NormPair, pair_of

if TYPE_CHECKING:
    from simstrag.ddp.server.messages import Apply
    from simstrag.ddp.server.shared_buffer import ExchangeBuffers

LONGEST = 8
"""Rounds that single gradients are waited for."""


class SummedNorms:
    """Pairs of the updates that are measured.

    Single gradients are added up over updates: those that were under way when the first of them was
    applied.  None of these was computed from parameters that another one has changed.  A gradient
    that follows another is not independent of its noise: the step along that noise turns it back,
    and so lowers |G|^2, below 0 where a training has settled.
    """

    def __init__(self) -> None:
        self._sum: torch.Tensor | None = None
        self._parts: list[tuple[int, float]] = []
        self._weight, self._first = 0.0, 0

    def add(
        self, apply: Apply, total: torch.Tensor, buffers: Mapping[int, ExchangeBuffers]
    ) -> NormPair | None:
        """The pair that an update completes.

        total: the weighted sum of its gradients.
        buffers: with the gradients whose norms `Apply` does not have.
        """
        if len(apply.norms) == 1:
            return self._add_single(apply, total, len(buffers))
        if not apply.measures and any(norm is None for *_, norm in apply.norms):
            return None
        parts = [
            (samples, float(squared_norm(buffers[rank].gradient)) if norm is None else norm)
            for rank, samples, norm in apply.norms
        ]
        weight = sum(weight for *_, weight in apply.gradients)
        return pair_of(parts, float(squared_norm(total)), weight)

    def _add_single(self, apply: Apply, total: torch.Tensor, ranks: int) -> NormPair | None:
        ((_, _, version, weight),), ((_, samples, _),) = apply.gradients, apply.norms
        pair = None
        if apply.version - self._first > LONGEST * ranks:  # a rank that was under way is lost
            pair = self._take()
        if not self._parts:
            if not apply.measures:
                return pair
            self._first = apply.version
        elif version >= self._first:
            return None
        if self._sum is None:
            self._sum = torch.empty_like(total)
        if self._parts:
            self._sum += total
        else:
            self._sum.copy_(total)
        self._weight += weight
        self._parts.append((samples, float(squared_norm(total)) / weight**2))
        return self._take() if len(self._parts) == ranks else pair

    def _take(self) -> NormPair | None:
        """The pair of what was added up; None of a single gradient."""
        pair = None
        if len(self._parts) > 1:
            assert self._sum is not None
            pair = pair_of(self._parts, float(squared_norm(self._sum)), self._weight)
        self._parts, self._weight = [], 0.0
        return pair
