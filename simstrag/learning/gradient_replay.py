"""Replays updates that are sums of gradients: one model, which an optimizer changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Array, Bools, Ints
from simstrag.learning.correction import Correction
from simstrag.learning.group_models import GroupModels, Places
from simstrag.learning.optimizers import FlatSgd
from simstrag.learning.training import Replay

if TYPE_CHECKING:
    import torch

MOST_AT_ONCE = 256
"""Gradients at different parameters that are computed together."""
MOST_NUMBERS = 1 << 25
"""Numbers of these parameters; fewer gradients are computed together of a large model."""


@dataclass(frozen=True, slots=True)
class _Cells:
    """Gradients of one update at one place in one precision, which are computed as one sum.

    Where gradients are corrected, scaled or summed in rounds, a cell is one gradient.

    first: the first gradient of each, and the end of the last; shape (C + 1,).
    place, known, depth, amp: of each; shape (C,).
    of_update: the first cell of each update, and the end of the last.
    in_order: cells in the order in which their places become known.
    """

    first: Ints
    place: Ints
    known: Ints
    depth: npt.NDArray[np.int32]
    amp: Bools
    of_update: Ints
    in_order: Ints

    @classmethod
    def of(cls, gradients: dict[str, Array], places: Places, updates: int, alone: bool) -> _Cells:
        """Cells of gradients that are sorted by update, version and precision."""
        keys = np.stack([gradients["update"], places.of, gradients["amp"]])
        differs = np.any(keys[:, 1:] != keys[:, :-1], axis=0)
        first = np.flatnonzero(differs | alone) + 1
        first = np.concatenate([[0], first])
        update, place, amp = keys[:, first]
        ends = np.concatenate([first, [keys.shape[1]]])
        of_update = np.searchsorted(update, np.arange(1, updates + 2))
        known, depth = place, np.broadcast_to(np.int32(0), len(place))
        if places.known is not None and places.depth is not None:
            known, depth = places.known[place], places.depth[place]
        order = np.argsort(known, kind="stable")
        return cls(ends, place, known, depth, amp.astype(bool), of_update, order)


class GradientReplay(Replay):
    """Training whose updates are steps of one optimizer, with a sum of gradients.

    An update all of whose gradients failed their test leaves model and optimizer as they are.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._correction = Correction.of(self.rule, self.engine, self.batches, self.optimizer.lr)
        updates, self._rounds = len(self.times), self.gradients["round"]
        places = Places.among(self.gradients, updates)
        corrected, scaled = self._correction is not None, self.scales is not None
        self._alone = corrected or scaled or len(places.before) > 0
        self._weights = self.gradients["weight"]
        self._cells = _Cells.of(self.gradients, places, updates, self._alone)
        self._groups = GroupModels(places, self._rounds, self.optimizer, checks=scaled)
        self._pulled: dict[int, torch.Tensor] = {}  # parameters of gradients to be corrected
        self._flat = self.engine.initial.clone()
        self._at_once = max(1, min(MOST_AT_ONCE, MOST_NUMBERS // len(self._flat)))
        self._optimizer = self.optimizer.make(self._flat)
        count = places.versions + len(places.before)
        self._users = np.bincount(self._cells.place, minlength=count).tolist()
        for place in places.before:
            self._users[place] += 1
        self._live: dict[int, torch.Tensor] = {}
        self._ready: dict[int, torch.Tensor] = {}
        self._known = self._cells.known[self._cells.in_order]
        self._next = 0  # of `in_order`: all cells before it have been computed
        self._computed = -1  # the version up to which that is so
        self._after: dict[int, torch.Tensor] = {}  # parameters after updates that were made at once
        self._now = self._flat
        self._keep(0)

    @property
    def parameters(self) -> torch.Tensor:
        """Parameters after the last update."""
        return self._now

    def apply(self, update: int) -> None:
        """Make one update, and keep its parameters where a gradient will be computed at them."""
        if self._alone or not isinstance(self._optimizer, FlatSgd):
            self._apply_alone(update)
            return
        if update not in self._after:
            self._apply_at_once(update, self._optimizer)
        self._now = self._after.pop(update)

    def _apply_at_once(self, update: int, optimizer: FlatSgd) -> None:
        """Make updates up to the first that needs a version which they make."""
        cells = self._cells
        bounds = cells.of_update[update - 1 : update + self._at_once]
        known = cells.known[bounds[0] : bounds[-1]]
        needs = np.maximum.reduceat(known, bounds[:-1] - bounds[0])  # versions, of each update
        if needs[0] > self._computed:
            self._compute(update - 1)
        later = needs > self._computed
        count = int(later.argmax()) if later.any() else len(later)
        bounds = bounds[: count + 1].tolist()
        sums = []
        for start, end in itertools.pairwise(bounds):
            rows = [self._ready.pop(cell) for cell in range(start, end)]
            sums.append(sum(rows[1:], start=rows[0]))
        for number, row in enumerate(optimizer.steps(sums), update):
            self._after[number] = row
            if self._users[number]:
                self._live[number] = row

    def _apply_alone(self, update: int) -> None:
        start, end = self._cells.of_update[update - 1 : update + 1].tolist()
        total: torch.Tensor | None = None
        for cell in range(start, end):
            if cell not in self._ready:
                self._compute(update - 1)
            row = self._corrected(self._ready.pop(cell), cell, update)
            if row is not None:
                total = row if total is None else total + row
        rows = np.arange(*self._cells.first[[start, end]])
        last = rows[self._rounds[rows] < 0]
        if total is None:
            self.rescale(last, True)
        else:
            self.step(self._optimizer, self._flat, total, last)
        self._keep(update)

    def _corrected(self, row: torch.Tensor, cell: int, update: int) -> torch.Tensor | None:
        """The weighted sum of one cell after its correction.

        It is None where it failed its test, or was in a round that was skipped.
        """
        if not self._alone:
            return row
        if int(self._rounds[self._cells.first[cell]]) in self._groups.skipped:
            return None
        found: torch.Tensor | None = row
        if self._correction is not None:
            found = self._correction.correct(row, self._flat, self._pulled.pop(cell), update)
        return None if found is None else float(self._weights[self._cells.first[cell]]) * found

    def _keep(self, version: int) -> None:
        if self._users[version]:
            self._live[version] = self._flat.clone()

    def _compute(self, version: int) -> None:
        """Compute all gradients at the places that are known, so many sums at once."""
        cells, start, self._computed = self._cells, self._next, version
        # Rows that are still needed, such as a straggler's, no longer keep all those beside them.
        self._ready = {cell: row.clone() for cell, row in self._ready.items()}
        self._next = int(np.searchsorted(self._known, version, "right"))
        fresh = cells.in_order[start : self._next]
        for depth in np.unique(cells.depth[fresh]):
            level = fresh[cells.depth[fresh] == depth]
            for first in range(0, len(level), self._at_once):
                self._compute_together(level[first : first + self._at_once])

    def _compute_together(self, chosen: Ints) -> None:
        """Compute cells whose places are known, or can be made of what was computed."""
        cells = self._cells
        for amp in (False, True):
            own = chosen[cells.amp[chosen] == amp]
            if not len(own):
                continue
            parameters = [self._at(place) for place in cells.place[own].tolist()]
            counts = cells.first[own + 1] - cells.first[own]
            rows = np.repeat(cells.first[own] - (np.cumsum(counts) - counts), counts)
            rows += np.arange(len(rows))
            weights = np.ones(len(rows)) if self._alone else self._weights[rows]
            sums = self.sums(parameters, rows, counts, amp, weights)
            if self._alone:
                self._keep_alone(own.tolist(), rows, sums, parameters)
            else:
                self._ready.update(zip(own.tolist(), sums, strict=True))
        for place in cells.place[chosen].tolist():
            self._let_go(place)

    def _keep_alone(
        self,
        cells: Sequence[int],
        rows: Ints,
        gradients: Sequence[torch.Tensor],
        parameters: Sequence[torch.Tensor],
    ) -> None:
        """Keep gradients, one of each cell and row, that were computed at these parameters."""
        for cell, row, gradient, pulled in zip(
            cells, rows.tolist(), gradients, parameters, strict=True
        ):
            if self.gradients["update"][row]:
                self._ready[cell] = gradient
                if self._correction is not None:
                    self._pulled[cell] = pulled
            number = int(self._rounds[row])
            if number < 0:
                continue
            share = float(self.gradients["samples"][row]) / self.batches.of_all_ranks
            finite = self._groups.add(number, share * gradient)
            if finite is not None and self.scales is not None:
                self.rescale(np.flatnonzero(self._rounds == number), finite)

    def _at(self, place: int) -> torch.Tensor:
        """The parameters at a place that is known; a group's model is made when it is needed."""
        if place not in self._live:
            origin = self._groups.origin(place)
            self._live[place] = self._groups.make(place, self._at(origin))
            self._let_go(origin)
        return self._live[place]

    def _let_go(self, place: int) -> None:
        """One use of a place fewer is left."""
        self._users[place] -= 1
        if not self._users[place]:
            del self._live[place]
