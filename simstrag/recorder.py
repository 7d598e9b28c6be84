"""Keeps what a kernel hands over: the logs, what the policy decided, and totals in the end.

Nothing here changes what happens; a recorder only listens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from simstrag.plan import Plan
from simstrag.policies import ways

__all__ = ["COUNTS", "Recorder"]

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
    "update", "rank", "step", "version", "precision", "samples", "weight", "fate",
)  # fmt: skip
DECISION_COLUMNS = ("update", "time", "suspects", "amp", "way", "groups", "batch")

SAMPLED = ("time", "version", "samples", "progress")
"""Columns of a sample of updates."""

Columns = dict[str, list[Any]]


class Recorder:
    """Listens to one run.

    keep_updates: whether to keep a row per update, or only of a sample of them (`SAMPLED`).
    keep_steps, keep_gradients: whether to keep a row per step and per gradient.
    on_update: called as (seconds, samples, progress) whenever updates are handed over.
    """

    def __init__(
        self,
        keep_updates: bool = True,
        keep_steps: bool = False,
        keep_gradients: bool = False,
        on_update: Callable[[float, int, float | None], None] | None = None,
    ) -> None:
        self.keeps_updates = keep_updates
        self.updates: Columns = {n: [] for n in (UPDATE_COLUMNS if keep_updates else SAMPLED)}
        self.steps: Columns | None = {n: [] for n in STEP_COLUMNS} if keep_steps else None
        gradients: Columns = {name: [] for name in GRADIENT_COLUMNS}
        self.gradients = gradients if keep_gradients else None
        self.decisions: list[tuple[Any, ...]] = []
        self.ways: dict[str, None] = {}
        self.judged = False
        self.counts: dict[str, int] = {}
        self.detection: dict[str, int] = {}
        self._on_update = on_update
        self._plan: Plan | None = None
        self._names: list[tuple[int, ...]] = []

    def keeps(self, table: str) -> bool:
        """Whether it wants rows of `steps` or of `gradients`."""
        return getattr(self, table) is not None

    def planned(self, plan: Plan, version: int, time: float) -> None:
        """A resolved plan comes into force; one that decides what is in force leaves no trace."""
        if plan == self._plan:
            return
        self._plan = plan
        self.judged = self.judged or plan.suspects is not None
        way = ways(plan)
        self.ways |= dict.fromkeys(way)
        decided = (_suspects(plan), _amp(plan), " + ".join(way), len(plan.quorums), plan.batch)
        if not self.decisions or self.decisions[-1][2:] != decided:
            self.decisions.append((version, time, *decided))

    def names(self, members: Iterable[tuple[int, ...]]) -> int:
        """Sets of ranks that updates name by number instead of listing them; the first's."""
        first = len(self._names)
        self._names += members
        return first

    def take(self, logs: Mapping[str, Any]) -> None:
        """Rows of the logs of updates, their members, steps and fates."""
        if "updates" in logs:
            self._take_updates(logs["updates"], logs["members"].tolist())
        if self.steps is not None:
            _extend(self.steps, _named(logs["steps"], STEP_COLUMNS))
        if self.gradients is not None:
            columns = _named(logs["fates"], GRADIENT_COLUMNS)
            columns["update"] = [None if update < 0 else update for update in columns["update"]]
            columns["fate"] = [FATES[fate] for fate in columns["fate"]]
            _extend(self.gradients, columns)

    def _take_updates(self, rows: Any, members: list[int]) -> None:
        columns = {name: rows[name].tolist() for name in self.updates}
        columns["progress"] = [None if math.isnan(p) else p for p in columns["progress"]]
        if self.keeps_updates:
            columns["members"] = [
                self._names[-1 - at] if at < 0 else tuple(members[at : at + count])
                for at, count in zip(columns["members"], rows["count"].tolist(), strict=True)
            ]
        _extend(self.updates, columns)
        if self._on_update is not None and len(rows):
            last = (self.updates[name][-1] for name in ("time", "samples", "progress"))
            self._on_update(*last)

    def totals(self, machine: Any, ranks: Any, progress: float | None) -> None:
        """The run is over; a sample of updates holds the last one too."""
        last = float(machine["now"]), int(machine["version"]), int(machine["samples"]), progress
        if not self.keeps_updates and self.updates["version"][-1:] != [last[1]]:
            _extend(self.updates, {n: [value] for n, value in zip(SAMPLED, last, strict=True)})
        self.counts = {name: int(machine[name]) for name in COUNTS}
        self.detection = {name: int(machine[name]) for name in DETECTION}
        self.deviation, self.beyond = float(machine["deviation"]), float(machine["beyond"])
        self.makespan, self.target = float(machine["makespan"]), float(machine["target"])
        self.applied_by, self.staleness_by = ranks["applied"].tolist(), ranks["staleness"].tolist()
        self.compute, self.wait = ranks["compute"].tolist(), ranks["wait"].tolist()
        self.communication = ranks["communication"].tolist()


def _named(rows: Any, names: tuple[str, ...]) -> Columns:
    found = {name: rows[name].tolist() for name in names if name != "precision"}
    found["precision"] = [PRECISIONS[amp] for amp in rows["amp"].tolist()]
    return found


def _extend(columns: Columns, more: Columns) -> None:
    for name, values in columns.items():
        values.extend(more[name])


def _suspects(plan: Plan) -> tuple[int, ...] | None:
    return None if plan.suspects is None else tuple(sorted(plan.suspects))


def _amp(plan: Plan) -> tuple[int, ...]:
    """The ranks whose next steps are in reduced precision."""
    return tuple(np.flatnonzero(plan.in_amp).tolist())
