"""Replays updates that are sums of gradients: one model, which an optimizer changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simstrag.learning.correction import Correction
from simstrag.learning.training import Replay

if TYPE_CHECKING:
    import torch

MOST_AT_ONCE = 256
"""Gradients at different parameters that are computed together."""
MOST_NUMBERS = 1 << 25
"""Numbers of these parameters; fewer gradients are computed together of a large model."""


@dataclass(frozen=True, slots=True)
class _Cells:
    """Gradients of one update at one version in one precision, which are computed as one sum.

    Where each gradient is corrected alone, a cell is one gradient.

    first: the first gradient of each, and the end of the last; shape (C + 1,).
    update, version, amp: of each; shape (C,).
    of_update: the first cell of each update, and the end of the last.
    by_version: cells in the order of their versions.
    """

    first: npt.NDArray[np.int64]
    update: npt.NDArray[np.int64]
    version: npt.NDArray[np.int64]
    amp: npt.NDArray[np.bool_]
    of_update: npt.NDArray[np.int64]
    by_version: npt.NDArray[np.int64]

    @classmethod
    def of(cls, gradients: dict[str, npt.NDArray[Any]], updates: int, alone: bool) -> _Cells:
        """Cells of gradients that are sorted by update, version and precision."""
        keys = np.stack([gradients[name].astype(np.int64) for name in ("update", "version", "amp")])
        differs = np.any(keys[:, 1:] != keys[:, :-1], axis=0)
        first = np.flatnonzero(differs | alone) + 1
        first = np.concatenate([[0], first])
        update, version, amp = keys[:, first]
        ends = np.concatenate([first, [keys.shape[1]]])
        of_update = np.searchsorted(update, np.arange(1, updates + 2))
        order = np.argsort(version, kind="stable")
        return cls(ends, update, version, amp.astype(bool), of_update, order)


class GradientReplay(Replay):
    """Training whose updates are steps of one optimizer, with a sum of gradients.

    An update all of whose gradients failed their test leaves model and optimizer as they are.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._correction = Correction.of(self.rule, self.engine, self.batches, self.optimizer.lr)
        alone = self._correction is not None
        self._weights = self.gradients["weight"]
        self._cells = _Cells.of(self.gradients, len(self.times), alone)
        self._pulled: dict[int, torch.Tensor] = {}  # parameters of gradients to be corrected
        self._flat = self.engine.initial.clone()
        self._optimizer = self.optimizer.make(self._flat)
        users = np.bincount(self._cells.version, minlength=len(self.times) + 1)
        self._users = users.tolist()
        self._live: dict[int, torch.Tensor] = {}
        self._ready: dict[int, torch.Tensor] = {}
        self._versions = self._cells.version[self._cells.by_version]
        self._next = 0  # of `by_version`: all cells before it have been computed
        self._keep(0)

    @property
    def parameters(self) -> torch.Tensor:
        """Those after the last update."""
        return self._flat

    def apply(self, update: int) -> None:
        """Make one update, and keep its parameters where a gradient will be computed at them."""
        start, end = self._cells.of_update[update - 1 : update + 1].tolist()
        total: torch.Tensor | None = None
        for cell in range(start, end):
            if cell not in self._ready:
                self._compute(update - 1)
            row = self._corrected(self._ready.pop(cell), cell, update)
            if row is not None:
                total = row if total is None else total + row
        if total is not None:
            self._flat.grad = total
            self._optimizer.step()
        self._keep(update)

    def _corrected(self, row: torch.Tensor, cell: int, update: int) -> torch.Tensor | None:
        """The weighted sum of one cell after its correction; None where it failed its test."""
        if self._correction is None:
            return row
        found = self._correction.correct(row, self._flat, self._pulled.pop(cell), update)
        return None if found is None else float(self._weights[self._cells.first[cell]]) * found

    def _keep(self, version: int) -> None:
        if self._users[version]:
            self._live[version] = self._flat.clone()

    def _compute(self, version: int) -> None:
        """Compute all gradients at the versions that are known, so many sums at once."""
        cells, order = self._cells, self._cells.by_version
        # Rows that are still needed, such as a straggler's, no longer keep all those beside them.
        self._ready = {cell: row.clone() for cell, row in self._ready.items()}
        stop = int(np.searchsorted(self._versions, version, "right"))
        at_once = max(1, min(MOST_AT_ONCE, MOST_NUMBERS // len(self._flat)))
        while self._next < stop:
            chosen = order[self._next : min(stop, self._next + at_once)]
            self._next += len(chosen)
            for amp in (False, True):
                places = chosen[cells.amp[chosen] == amp]
                if not len(places):
                    continue
                parameters = [self._live[at] for at in cells.version[places].tolist()]
                counts = cells.first[places + 1] - cells.first[places]
                rows = np.repeat(cells.first[places] - (np.cumsum(counts) - counts), counts)
                rows += np.arange(len(rows))
                alone = self._correction is not None
                weights = np.ones(len(rows)) if alone else self._weights[rows]
                sums = self.sums(parameters, rows, counts, amp, weights)
                self._ready.update(zip(places.tolist(), sums, strict=True))
                if alone:
                    self._pulled.update(zip(places.tolist(), parameters, strict=True))
            for at in cells.version[chosen].tolist():
                self._users[at] -= 1
                if not self._users[at]:
                    del self._live[at]
