"""`Layout`: the operations of a record as an array: operation x replica x step.

All steps and all replicas of a job do the same operations.  So one operation has one place, and a
replay treats all steps and replicas at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Self

import numpy as np

from simstrag.arrays import Bools, Ints, Reals
from simstrag.errors import InputError
from simstrag.records.record import COMMUNICATION, FORWARD, Record


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The operations of one replica in one step, and when they ran in all replicas and steps.

    kinds: names of the kinds.
    kind, stage, number, chunk, model_chunk, micro_batch: of each operation, shape (operations,);
        see `Record`.
    start, end: seconds from the first start of the step, shape (operations, replicas, steps); from
        the latest beginning of a replica where these have several groups, and so no common one.
    duration: seconds, same shape.
    rank: shape (operations, replicas).
    step: numbers of the steps.
    replica: data-parallel ranks.
    dropped: numbers of the steps that do not have all operations.
    recorded: seconds of each step: as recorded, or else last end - first start.
    group: number of the group in which each replica's collective is, shape (operations, replicas);
        None where all replicas are in it.
    """

    kinds: tuple[str, ...]
    kind: Ints
    stage: Ints
    number: Ints
    chunk: Ints
    model_chunk: Ints
    micro_batch: Ints
    start: Reals
    end: Reals
    duration: Reals
    rank: Ints
    step: Ints
    replica: Ints
    dropped: Ints
    recorded: Reals
    group: Ints | None = None

    @classmethod
    def of(cls, record: Record) -> Self:
        """The layout that most steps have in common; other steps are dropped.

        Raises `InputError` where replicas do not do the same operations.
        """
        if not len(record):
            raise InputError(f"{record.source}: has no operations")
        steps, step = np.unique(record.step, return_inverse=True)
        replicas, replica = np.unique(record.replica, return_inverse=True)
        kinds, most = len(record.kinds), int(record.number.max()) + 1
        own = (record.stage * kinds + record.kind) * most + record.number
        place = replica * (int(own.max()) + 1) + own
        order = np.lexsort((place, step))
        counts = np.bincount(step)
        size = Counter(counts.tolist()).most_common(1)[0][0]
        order = order[(counts == size)[step[order]]].reshape(-1, size)
        places = place[order]
        common = Counter(each.tobytes() for each in places).most_common(1)[0][0]
        order = order[[each.tobytes() == common for each in places]]
        first = order[0].reshape(-1, size // len(replicas)) if size % len(replicas) == 0 else None
        if (
            first is None
            or np.any(own[first] != own[first[0]])
            or np.any(np.diff(place[order[0]]) == 0)
        ):
            raise InputError(_explain(record, order[0], own, replicas))
        kept = step[order[:, 0]]
        start, duration = record.start[order], record.duration[order]
        begin, sample = start.min(axis=1, keepdims=True), first[0]
        if record.group is not None:
            first_stage = np.where(record.stage[order] == 0, start, np.inf)
            by_replica = first_stage.reshape(len(start), len(replicas), -1)
            begin = by_replica.min(axis=2).max(axis=1, keepdims=True)
        recorded = ((start + duration).max(axis=1) - begin[:, 0]).astype(np.float64)
        if record.step_seconds is not None:
            recorded = np.asarray(record.step_seconds[kept], np.float64)

        def arrange(values: Reals) -> Reals:
            shape = len(order), len(replicas), len(sample)
            return np.ascontiguousarray(values.reshape(shape).transpose(2, 1, 0))

        return cls(
            kinds=record.kinds, kind=record.kind[sample], stage=record.stage[sample],
            number=record.number[sample], chunk=record.chunk[sample],
            model_chunk=record.model_chunk[sample], micro_batch=record.micro_batch[sample],
            start=arrange(start - begin), end=arrange(start + duration - begin),
            duration=arrange(duration), rank=record.rank[first].T, step=steps[kept],
            replica=replicas, dropped=np.delete(steps, kept), recorded=recorded,
            group=None if record.group is None else record.group[first].T,
        )  # fmt: skip

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return int(self.stage.max()) + 1

    @property
    def workers(self) -> Ints:
        """The rank of each worker, shape (replicas, stages)."""
        first = [int((self.stage == stage).argmax()) for stage in range(self.stages)]
        return np.asarray(self.rank[first].T)

    @property
    def communicates(self) -> Bools:
        """Whether each operation is communication."""
        return np.array([name in COMMUNICATION for name in self.kinds])[self.kind]

    @property
    def begin(self) -> Reals | None:
        """When replicas begin, shape (replicas, steps); None where all do so together.

        A pipeline begins with its first stage.
        """
        return None if self.group is None else np.asarray(self.start[self.stage == 0].min(axis=0))

    @property
    def is_alone(self) -> bool:
        """Whether one rank did all without pipelines, so that it can be compared with none."""
        return len(self.replica) == 1 and self.stages == 1 and not self.find(FORWARD).any()

    def find(self, *names: str) -> Bools:
        """Whether each operation is of one of these kinds.

        Names that the record does not have match nothing.
        """
        return np.isin(self.kind, [k for k, name in enumerate(self.kinds) if name in names])


def _explain(record: Record, rows: Ints, own: Ints, replicas: Ints) -> str:
    """Which replica does other operations than the first one, or an operation twice."""
    sets = {
        replica: Counter(own[rows][record.replica[rows] == replica].tolist())
        for replica in replicas.tolist()
    }
    first, reference = next(iter(sets.items()))
    for replica, operations in sets.items():
        twice = [each for each, count in operations.items() if count > 1]
        if twice:
            row = rows[(own[rows] == twice[0]) & (record.replica[rows] == replica)][0]
            kind = record.kinds[record.kind[row]]
            return (
                f"{record.source}: step {record.step[row]}, dp_rank {replica} has {kind} number "
                f"{record.number[row]} of stage {record.stage[row]} twice"
            )
        if operations != reference:
            break
    return (
        f"{record.source}: dp_rank {replica} has {sum(operations.values())} operations in step "
        f"{record.step[rows[0]]}, dp_rank {first} {sum(reference.values())}; replicas must do the "
        "same"
    )
