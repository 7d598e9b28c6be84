"""Records a run: the kernel's logs as record batches, the policy's decisions, and the totals.

Nothing here changes what happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa

from simstrag.arrays import Array
from simstrag.contract import Plan, Quorum
from simstrag.learning.training import Evaluations
from simstrag.policies import architecture
from simstrag.runs.tables import (
    MEMBERS,
    RANK_SET,
    RANK_SETS,
    InMemory,
    Storage,
    lists,
    lists_of,
    numbers,
    words,
)  # fmt: skip

COUNTS = ("started", "amp", "rebatched", "applied", "dropped", "aborted", "asked", "cut")
DETECTION = ("hits", "false_alarms", "misses")
PRECISIONS = ("full", "amp")
FATES = ("applied", "dropped", "aborted", "in_flight")
UPDATE_COLUMNS = (
    "time", "version", "members", "n_own", "samples", "staleness_mean", "staleness_max", "progress",
)  # fmt: skip
STEP_COLUMNS = (
    "rank", "step", "version", "precision", "start", "finish", "wait", "communication",
)  # fmt: skip
GRADIENT_COLUMNS = (
    "update", "rank", "step", "version", "precision", "samples", "weight", "fate", "round",
)  # fmt: skip
EVALUATION_COLUMNS = ("time", "updates", "samples", "accuracy", "loss")
DECISION_COLUMNS = ("update", "time", "suspects", "amp", "way", "groups", "batch")

SAMPLED = ("time", "version", "samples", "progress")
"""Columns of a sample of updates."""
DECIDED = ("suspects", "precision", "batch")
"""Fields of a plan that make it another decision, beside its architecture and groups."""
SHAPED = ("quorums", "average")
"""Fields of a plan that make its architecture and its groups."""
DECISIONS = 64
"""Decisions in a record batch."""


class Recorder:
    """Records one run.

    keep_updates: keep a row per update, else `SAMPLED` columns of a sample of updates.
    keep_steps, keep_gradients: keep a row per step, per gradient.
    on_update: called as (seconds, samples, progress) with each batch of updates.
    storage: the place of the rows; in memory by default.
    """

    def __init__(
        self,
        keep_updates: bool = True,
        keep_steps: bool = False,
        keep_gradients: bool = False,
        on_update: Callable[[float, int, float | None], None] | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.keeps_updates = keep_updates
        self.storage = InMemory() if storage is None else storage
        self.ways: dict[str, None] = {}
        self.judged = False
        self.counts: dict[str, int] = {}
        self.detection: dict[str, int] = {}
        self._keeps = {"steps": keep_steps, "gradients": keep_gradients}
        self.on_update = on_update
        self._decided: Plan | None = None
        self._shape: tuple[tuple[str, ...], int] = (), 0
        self._decisions: list[tuple[int, float, str, Plan]] = []
        self._sets = 0
        self._numbers: dict[tuple[tuple[int, ...], bytes], int] = {}
        self.version = 0

    def keeps(self, table: str) -> bool:
        """Whether rows of `steps` or of `gradients` are kept."""
        return self._keeps[table]

    def planned(
        self, plan: Plan, version: int, time: float, changed: Set[str] | None = None
    ) -> None:
        """Record a resolved plan that comes into force, if it decides other than the last one.

        changed: the fields that differ from those of the plan before, where they are known.
        """
        self.judged = self.judged or plan.judges
        shape = self._shape
        if changed is None or not changed.isdisjoint(SHAPED):
            shape = architecture(plan), len(plan.quorums)
            self.ways |= dict.fromkeys(shape[0])
        if changed is None and self._decided is not None:
            changed = plan.changes(self._decided)
        if changed is None or shape != self._shape or not changed.isdisjoint(DECIDED):
            self._decided, self._shape = plan, shape
            self._decisions.append((version, time, " + ".join(shape[0]), plan))
            if len(self._decisions) == DECISIONS:
                self._hand_on_decisions()

    def names(self, quorums: Sequence[Quorum]) -> int:
        """The number of the members of the first quorum; updates name it instead of listing ranks.

        Quorums whose members were named together before keep their numbers; a sample of updates
        names none.
        """
        if not self.keeps_updates:
            return 0
        ranks = np.concatenate([quorum.indices for quorum in quorums]).astype(np.int32)
        sizes = tuple([len(quorum.indices) for quorum in quorums])
        key = sizes, ranks.tobytes()
        if key not in self._numbers:
            self._numbers[key], self._sets = self._sets, self._sets + len(sizes)
            sets = pa.RecordBatch.from_arrays([lists_of(ranks, np.array(sizes))], names=["ranks"])
            self.storage.add(RANK_SETS, sets)
        return self._numbers[key]

    def take(self, logs: Mapping[str, Array]) -> None:
        """Copy rows of the logs: updates, their members, steps and fates of gradients."""
        if "updates" in logs:
            self._take_updates(logs["updates"], logs["members"])
        if self._keeps["steps"]:
            self.storage.add("steps", _batch(logs["steps"], STEP_COLUMNS))
        if self._keeps["gradients"]:
            self.storage.add("gradients", _batch(logs["fates"], GRADIENT_COLUMNS))

    def _take_updates(self, rows: Any, members: Any) -> None:
        if not self.keeps_updates:
            self.storage.add("updates", _batch(rows, SAMPLED))
        else:
            named = rows["members"] < 0
            own = lists_of(members.astype(np.int32), np.where(named, 0, rows["count"]))
            sets = numbers(np.where(named, -1 - rows["members"], -1).astype(np.int32))
            batch = _batch(rows, UPDATE_COLUMNS, {MEMBERS: own, RANK_SET: sets})
            self.storage.add("updates", batch)
        if len(rows):
            last = rows[-1]
            self.version, progress = int(last["version"]), float(last["progress"])
            if self.on_update is not None:
                known = None if math.isnan(progress) else progress
                self.on_update(float(last["time"]), int(last["samples"]), known)

    def evaluated(self, evaluations: Evaluations) -> None:
        """Take the evaluations of the real learner."""
        columns = [numbers(np.array(getattr(evaluations, name))) for name in EVALUATION_COLUMNS]
        batch = pa.RecordBatch.from_arrays(columns, names=list(EVALUATION_COLUMNS))
        self.storage.add("evaluations", batch)

    def totals(self, machine: Any, ranks: Any, progress: float | None) -> None:
        """Take the totals at the end; a sample of updates contains the last one too."""
        before, self.version = self.version, int(machine["version"])
        self.time = float(machine["now"])
        if not self.keeps_updates and before != self.version:
            known = math.nan if progress is None else progress
            last = self.time, self.version, int(machine["samples"]), known
            dtype = [(name, type(value)) for name, value in zip(SAMPLED, last, strict=True)]
            self.storage.add("updates", _batch(np.array([last], dtype), SAMPLED))
        self._hand_on_decisions()
        self.counts = {name: int(machine[name]) for name in COUNTS}
        self.detection = {name: int(machine[name]) for name in DETECTION}
        self.missed_squares = wide(machine["missed_low"], machine["missed_high"])
        self.beyond = float(machine["beyond"])
        self.makespan, self.target = float(machine["makespan"]), float(machine["target"])
        self.applied_by, self.staleness_by = ranks["applied"].tolist(), ranks["staleness"].tolist()
        self.compute, self.wait = ranks["compute"].tolist(), ranks["wait"].tolist()
        self.communication = ranks["communication"].tolist()

    def _hand_on_decisions(self) -> None:
        if not self._decisions:
            return
        version, time, way, plans = zip(*self._decisions, strict=True)
        ways = list(dict.fromkeys(way))
        suspects = [plan.suspected if plan.judges else None for plan in plans]
        columns = [
            numbers(np.array(version)), numbers(np.array(time)), lists(suspects, np.int32),
            lists([plan.in_amp.nonzero()[0] for plan in plans], np.int32),
            words(np.array([ways.index(w) for w in way]), ways),
            numbers(np.array([len(plan.quorums) for plan in plans])),
            lists([plan.shares for plan in plans], np.float64),
        ]  # fmt: skip
        self.storage.add("decisions", pa.RecordBatch.from_arrays(columns, names=DECISION_COLUMNS))
        self._decisions = []


def wide(low: Any, high: Any) -> int:
    """A sum of rules 25 and 25a from its low 64 bits, signed or not, and the others.

    >>> wide(-1, 0) == 2**64 - 1
    True
    """
    return (int(high) << 64) + int(low) % 2**64


def _batch(
    rows: Any, names: Sequence[str], more: Mapping[str, pa.Array] | None = None
) -> pa.RecordBatch:
    """Columns of rows of a log, copied; more: columns that take the place of one, or follow."""
    columns: dict[str, pa.Array] = {}
    for name in names:
        if name == "precision":
            columns[name] = words(rows["amp"], PRECISIONS)
        elif name == "fate":
            columns[name] = words(rows["fate"], FATES)
        elif name == "progress":
            columns[name] = numbers(rows[name].copy(), np.isnan(rows[name]))
        elif name in ("update", "round"):  # below 0 for a gradient that entered none
            columns[name] = numbers(rows[name].copy(), rows[name] < 0)
        else:
            columns[name] = numbers(rows[name].copy())
    columns |= more or {}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
