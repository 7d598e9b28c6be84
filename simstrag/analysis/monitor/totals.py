"""What all steps so far cost, and windows of the latest steps, from pieces of a record.

Each piece is laid out and judged by `simstrag.whatif`, and its sums are added.  So the totals are
those of a diagnosis of all steps.  A refresh costs what the new steps cost, and a median of one
number of each step so far, by which start-up is found.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from simstrag.analysis.monitor.snapshot import NOTABLE
from simstrag.analysis.text.number_format import join
from simstrag.arrays import Ints, Reals
from simstrag.documents.job_mesh import JobMesh
from simstrag.records.record import Record
from simstrag.statistics.startup import leading
from simstrag.whatif.analysis import late_replicas, waited_in_groups
from simstrag.whatif.culprits import computing
from simstrag.whatif.operation_array import Layout

HEAD = 1000
"""First steps that are kept, in which start-up may end: a longer one counts as steps."""
SHOWN = 1200
"""Latest steps of the picture."""
LATEST = 200
"""Latest steps of mean seconds and factors: those that the tests look at."""
ADVISED = 400_000
"""Most rows of the latest steps that are kept for advice."""


def concatenate(records: Sequence[Record]) -> Record:
    """The record of pieces of one record, in order."""
    columns: dict[str, Any] = {
        each.name: np.concatenate([getattr(record, each.name) for record in records])
        for each in fields(Record)
        if isinstance(getattr(records[0], each.name), np.ndarray)
    }
    return replace(records[-1], **columns)


def _are_alike(pieces: Sequence[Record], piece: Record) -> bool:
    """Whether a piece has the parts of these, as of a run that stays with or without a server."""
    return not pieces or pieces[-1].kinds == piece.kinds


class Sums(NamedTuple):
    """Of steps: how many, their seconds, and by rank for how long and how often it was awaited.

    groups: for how long by the ranks of each group, where a record has several.
    """

    steps: int
    seconds: float
    waited: Reals
    last: Ints
    groups: Mapping[tuple[int, ...], Reals]

    @classmethod
    def of(cls, layout: Layout) -> Sums:
        late = late_replicas(layout)
        if not layout.communicates.any():  # under a server ranks do not wait for each other
            none = np.zeros(len(late.waited))
            return cls(len(layout.step), float(layout.recorded.sum()), none, none.astype(int), {})
        return cls(
            len(layout.step), float(layout.recorded.sum()), np.array(late.waited),
            np.array(late.last), waited_in_groups(layout),
        )  # fmt: skip

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        return Sums(
            self.steps + sign * other.steps, self.seconds + sign * other.seconds,
            self.waited + sign * other.waited, self.last + sign * other.last,
            {
                ranks: self.groups.get(ranks, 0.0) + sign * other.groups.get(ranks, np.zeros(1))
                for ranks in {**self.groups, **other.groups}
            },
        )  # fmt: skip


class Totals:
    """The totals of one start of a run."""

    def __init__(self) -> None:
        self.ranks: Ints = np.zeros(0, np.int64)
        self.gpus = 0
        self.mesh: JobMesh | None = None
        self.numbers: Ints = np.zeros(0, np.int64)
        self.own: Reals = np.zeros((0, 0))
        self._waits: Reals = np.zeros((0, 0))
        self._recorded: Reals = np.zeros(0)
        self._usual = array("d")
        self._all: Sums | None = None
        self._head: list[Record] = []
        self._start_up: tuple[int, Sums | None] = 0, None
        self._kept: deque[Record] = deque()
        self.first = self.last = -1

    def add(self, piece: Record) -> tuple[Ints, Reals]:
        """Take in a piece; returns its steps, and each rank's own seconds, shape (ranks, steps).

        Raises `InputError` where its ranks do not do the same.
        """
        layout = Layout.of(piece)
        own = computing(layout).sum(axis=1)
        sums = Sums.of(layout)
        if self._all is None:
            self.ranks, self.gpus = layout.replica, piece.gpus or len(np.unique(layout.rank))
            self.own = self._waits = np.zeros((len(own), 0))
            self.first, self.mesh = int(layout.step[0]), piece.mesh
        self._all = sums if self._all is None else self._all.plus(sums)
        self.last = int(layout.step[-1])
        self._usual.extend(np.median(own, axis=0).tolist())
        waits = layout.duration[layout.communicates].sum(axis=0)
        self.numbers = np.append(self.numbers, layout.step)[-SHOWN:]
        self.own = np.concatenate([self.own, own], axis=1)[:, -SHOWN:]
        self._waits = np.concatenate([self._waits, waits], axis=1)[:, -LATEST:]
        self._recorded = np.append(self._recorded, layout.recorded)[-LATEST:]
        if len(self._usual) - sums.steps < HEAD and _are_alike(self._head, piece):
            self._head.append(piece)
        if not _are_alike(self._kept, piece):
            self._kept.clear()
        self._kept.append(piece)
        while sum(map(len, self._kept)) > ADVISED and len(self._kept) > 1:
            self._kept.popleft()
        return layout.step, own

    @property
    def latest(self) -> Record | None:
        """The latest steps, for advice; None before any."""
        if not self._kept:
            return None
        record = concatenate(self._kept)
        steps = np.unique(record.step)
        most = max(1, ADVISED * len(steps) // len(record))
        return record.of_steps(steps[-most:]) if len(steps) > most else record

    @property
    def sums(self) -> Sums:
        """Of all steps but start-up, which `leading` finds as for a diagnosis."""
        if self._all is None:
            return Sums(0, 0.0, np.zeros(0), np.zeros(0, np.int64), {})
        count = leading(np.array(self._usual)[None])
        if count != self._start_up[0]:
            head = concatenate(self._head)
            first = np.unique(head.step)[:count]
            start = Sums.of(Layout.of(head.of_steps(first))) if count else None
            self._start_up = count, start
        start = self._start_up[1]
        return self._all if start is None else self._all.plus(start, -1)

    def groups_of(self, sums: Sums, place: int) -> tuple[str, ...]:
        """The groups whose ranks waited for the rank at a place, the longest first.

        By what the mesh calls their ranks, such as `shard 0`; none where all ranks are one group.
        """
        slices = {ranks: name for name, ranks in self.mesh.slices()} if self.mesh else {}
        least = NOTABLE * sums.waited[place] if len(sums.waited) else 0.0
        found = {ranks: own[place] for ranks, own in sums.groups.items() if own[place] > least}
        return tuple(
            slices.get(ranks, f"ranks {join(list(map(str, ranks)))}")
            for ranks in sorted(found, key=lambda ranks: -found[ranks])
        )

    @property
    def means(self) -> tuple[float, Reals, Reals]:
        """Of the latest steps: seconds of a step; by rank those of computing and of waiting."""
        if not len(self._recorded):
            return 0.0, np.zeros(0), np.zeros(0)
        return (
            float(self._recorded.mean()), self.own[:, -LATEST:].mean(axis=1),
            self._waits.mean(axis=1),
        )  # fmt: skip
