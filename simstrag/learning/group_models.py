"""Models that groups train between two updates, and where each gradient of a run is computed.

A group with rounds steps a model of its own by what its all-reduce summed, and pushes all of it
with its last round (docs/semantics.md, rules 11 and 32e).
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Array, Ints
from simstrag.learning.optimizers import FlatOptimizer, OptimizerChoice

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Places:
    """The numbered sets of parameters at which the gradients of a run are computed.

    Places 0 to U are the versions of the job's model.  Place U + 1 + k is the model of a group: the
    one at place `before[k]`, stepped by the gradients of round `round[k]`.

    of: the place of each gradient.
    versions: U + 1.
    known: the version of the job's model by which a place can be known; shape (places,), or None
        where all places are versions.
    depth: 0 of a version; of a model of a group more than of any place that it comes of.

    >>> gradients = {"rank": [0, 0, 1], "step": [0, 1, 0], "version": [0, 0, 0]}
    >>> columns = {name: np.array(column) for name, column in gradients.items()}
    >>> places = Places.among(columns | {"round": np.array([0, -1, 0])}, updates=1)
    >>> places.of.tolist(), places.before, places.round
    ([0, 2, 0], [0], [0])
    """

    of: Ints
    before: list[int]
    round: list[int]
    versions: int
    known: Ints | None = None
    depth: npt.NDArray[np.int32] | None = None

    @classmethod
    def among(cls, gradients: Mapping[str, Array], updates: int) -> Places:
        """The places of gradients with columns rank, step, version and round (-1 for none)."""
        of, rounds, versions = gradients["version"], gradients["round"], updates + 1
        if not (rounds >= 0).any():
            return cls(of, [], [], versions)
        of, rank, step = of.astype(np.int64), gradients["rank"], gradients["step"]
        found: dict[tuple[int, int], int] = {}
        members: dict[int, list[int]] = {}
        for row in np.flatnonzero(rounds >= 0).tolist():
            members.setdefault(int(rounds[row]), []).append(row)
        for last, row in itertools.pairwise(np.lexsort((step, rank)).tolist()):
            if rounds[last] >= 0 and (rank[row], step[row]) == (rank[last], step[last] + 1):
                key = int(of[last]), int(rounds[last])
                of[row] = found.setdefault(key, versions + len(found))
        known = np.arange(versions + len(found))
        depth = np.zeros(len(known), np.int32)
        for (_, number), place in sorted(found.items(), key=lambda item: item[0][1]):
            origins = of[members[number]]
            known[place], depth[place] = known[origins].max(), depth[origins].max() + 1
        before, stepped = [at for at, _ in found], [number for _, number in found]
        return cls(of, before, stepped, versions, known, depth)


class GroupModels:
    """The models of groups while a run is replayed, each with an optimizer of its own.

    places: of the run.
    rounds: the round of each gradient, -1 for none.
    optimizer: of each model; it begins without state where a model leaves a version.
    checks: whether rounds are skipped whose sum is not finite.
    skipped: these rounds.
    """

    def __init__(
        self,
        places: Places,
        rounds: Array,
        optimizer: OptimizerChoice,
        checks: bool = False,
    ) -> None:
        self._before, self._round, self._choice = places.before, places.round, optimizer
        self._versions = places.versions
        self._checks = checks
        self.skipped: set[int] = set()
        self._missing = Counter(rounds[rounds >= 0].tolist())  # gradients that are not added yet
        self._sums: dict[int, torch.Tensor] = {}
        self._heirs = Counter(places.before)  # models that are still to be made of a place
        self._uses = Counter(places.round)  # models that a round is still to step
        self._trained: dict[int, tuple[torch.Tensor, FlatOptimizer]] = {}

    def add(self, number: int, gradient: torch.Tensor) -> bool | None:
        """Add a weighted gradient to a round, all of whose gradients come before its models.

        Returns whether the round counts once it is complete, None before.
        """
        before = self._sums.get(number)
        self._sums[number] = total = gradient if before is None else before + gradient
        self._missing[number] -= 1
        if self._missing[number]:
            return None
        counts = not self._checks or bool(total.isfinite().all())
        if not counts:
            self.skipped.add(number)
        if not self._uses[number]:
            del self._sums[number]
        return counts

    def origin(self, place: int) -> int:
        """The place that a group's model leaves."""
        return self._before[place - self._versions]

    def make(self, place: int, origin: torch.Tensor) -> torch.Tensor:
        """The model at a place, of the parameters at its origin."""
        before, number = self.origin(place), self._round[place - self._versions]
        if before in self._trained:
            flat, optimizer = copy.deepcopy(self._trained[before])
        else:
            flat = origin.clone()
            optimizer = self._choice.make(flat)
        if number not in self.skipped:
            flat.grad = self._sums[number]
            optimizer.step()
            flat.grad = None
        if self._heirs[place]:
            self._trained[place] = flat, optimizer
        _use(self._heirs, before, self._trained)
        _use(self._uses, number, self._sums)
        return flat


def _use(left: Counter[int], key: int, held: dict[int, Any]) -> None:
    """Count a use down, and let go of what has none left."""
    left[key] -= 1
    if not left[key]:
        held.pop(key, None)
        del left[key]
