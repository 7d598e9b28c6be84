"""The model that a rank trains with its group between two pulls, and its kept gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from simstrag.ddp.replica import Replica


class GroupModel:
    """A rank's part in the rounds of its group (docs/semantics.md, rules 11 and 32e).

    The rank's own optimizer steps the replica by what its group summed in each round.  The rank
    keeps its gradients since the pull for the update.

    total: the sum of the last round, whose end makes it a step; None before.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.total: torch.Tensor | None = None
        self._group: torch.Tensor | None = None  # sums of all rounds that have ended
        self._own: torch.Tensor | None = None  # of gradients times their samples
        self._samples = 0

    def reset(self) -> None:
        """The rank has pulled: it trains anew, and keeps nothing."""
        self.total = self._group = self._own = None
        self._samples = 0

    def end_round(self, gradient: torch.Tensor | None, samples: int) -> None:
        """Step by the sum of the last round, and keep it.

        gradient: this rank's own, None where it was not finite; samples: of it.
        """
        total, replica = self.total, self._replica
        assert total is not None
        fresh = self._group is None
        if self._group is None or self._own is None:
            self._group, self._own = torch.zeros_like(total), torch.zeros_like(total)
        if gradient is not None:
            self._own.add_(gradient, alpha=samples)
        self._samples += samples
        self._group += total
        replica.update_by(total if total.isfinite().all() else None, fresh)

    def sum_of_group(self) -> torch.Tensor:
        """The sums of all rounds since the pull, the last one included."""
        assert self.total is not None
        return self.total if self._group is None else self._group + self.total

    def mean_of(self, gradient: torch.Tensor | None, samples: int) -> torch.Tensor | None:
        """The mean over the samples of all its gradients since the pull, with the last one."""
        if self._own is None:
            return gradient
        kept = self._own if gradient is None else self._own.add(gradient, alpha=samples)
        return kept / (self._samples + samples)
