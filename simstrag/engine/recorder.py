"""Keeps what a kernel hands over: the logs, what the policy decided, and totals in the end.

Nothing here changes what happens; a recorder only listens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag.plan import Plan
from simstrag.policies import architecture
from simstrag.runs.columns import Column, Lists, Numbers, Table, Words, lists
from simstrag.runs.tables import InMemory, Storage

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
GAPS = ("progress", "update")
"""Columns in which NaN, or a number below 0, stands for none."""
DECISIONS = 64
"""Decisions that are handed on at once."""


class Recorder:
    """Listens to one run.

    keep_updates: whether to keep a row per update, or only of a sample of them (`SAMPLED`).
    keep_steps, keep_gradients: whether to keep a row per step and per gradient.
    on_update: called as (seconds, samples, progress) whenever updates are handed over.
    storage: where the rows go; they stay in memory by default.
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
        self._on_update = on_update
        self._plan: Plan | None = None
        self._decided: tuple[Any, ...] = ()
        self._decisions: list[tuple[Any, ...]] = []
        self._sets: list[npt.NDArray[np.int32]] = []
        self._tokens: dict[tuple[tuple[int, ...], bytes], int] = {}
        self.version = 0

    def keeps(self, table: str) -> bool:
        """Whether it wants rows of `steps` or of `gradients`."""
        return self._keeps[table]

    def planned(self, plan: Plan, version: int, time: float) -> None:
        """A resolved plan comes into force; one that decides what is in force leaves no trace."""
        if plan == self._plan:
            return
        self._plan = plan
        self.judged = self.judged or plan.suspects is not None
        way = architecture(plan)
        self.ways |= dict.fromkeys(way)
        decided = (_suspects(plan), _amp(plan), " + ".join(way), len(plan.quorums), plan.batch)
        if decided != self._decided:
            self._decided = decided
            self._decisions.append((version, time, *decided))
            if len(self._decisions) == DECISIONS:
                self._hand_on_decisions()

    def names(self, members: Iterable[tuple[int, ...]]) -> int:
        """Sets of ranks that updates name by number instead of listing them; the first's.

        Sets that were named together before have the numbers that they had.
        """
        arrays = [np.array(own, dtype=np.int32) for own in members]
        key = tuple(map(len, arrays)), b"".join(own.tobytes() for own in arrays)
        if key not in self._tokens:
            self._tokens[key] = len(self._sets)
            ends = np.cumsum(key[0])[:-1]
            self._sets += np.split(np.frombuffer(key[1], dtype=np.int32), ends)
        return self._tokens[key]

    def take(self, logs: Mapping[str, npt.NDArray[Any]]) -> None:
        """Rows of the logs of updates, their members, steps and fates."""
        if "updates" in logs:
            self._take_updates(logs["updates"].copy(), logs["members"].astype(np.int32))
        if self._keeps["steps"]:
            self.storage.add("steps", _table(logs["steps"].copy(), STEP_COLUMNS))
        if self._keeps["gradients"]:
            self.storage.add("gradients", _table(logs["fates"].copy(), GRADIENT_COLUMNS))

    def _take_updates(self, rows: Any, members: Any) -> None:
        if not self.keeps_updates:
            self.storage.add("updates", _table(rows, SAMPLED))
        else:
            block = _table(rows, UPDATE_COLUMNS)
            block["members"] = Lists(rows["members"], rows["count"], members, self._sets)
            self.storage.add("updates", block)
        if len(rows):
            self._tell(rows[-1])

    def _tell(self, row: Any) -> None:
        self.version, progress = int(row["version"]), float(row["progress"])
        if self._on_update is not None:
            known = None if math.isnan(progress) else progress
            self._on_update(float(row["time"]), int(row["samples"]), known)

    def totals(self, machine: Any, ranks: Any, progress: float | None) -> None:
        """The run is over; a sample of updates holds the last one too."""
        before, self.version = self.version, int(machine["version"])
        self.time = float(machine["now"])
        if not self.keeps_updates and before != self.version:
            last = self.time, self.version, int(machine["samples"]), progress
            columns = zip(SAMPLED, last, strict=True)
            self.storage.add(
                "updates",
                {
                    n: Numbers(np.array([v], float if v is None else None), n in GAPS)
                    for n, v in columns
                },
            )
        self._hand_on_decisions()
        self.counts = {name: int(machine[name]) for name in COUNTS}
        self.detection = {name: int(machine[name]) for name in DETECTION}
        self.deviation, self.beyond = float(machine["deviation"]), float(machine["beyond"])
        self.makespan, self.target = float(machine["makespan"]), float(machine["target"])
        self.applied_by, self.staleness_by = ranks["applied"].tolist(), ranks["staleness"].tolist()
        self.compute, self.wait = ranks["compute"].tolist(), ranks["wait"].tolist()
        self.communication = ranks["communication"].tolist()

    def _hand_on_decisions(self) -> None:
        if self._decisions:
            columns = dict(zip(DECISION_COLUMNS, zip(*self._decisions, strict=True), strict=True))
            self.storage.add("decisions", _decisions(columns))
            self._decisions = []


def _table(rows: Any, names: tuple[str, ...]) -> Table:
    """Columns of rows of a log, of which they are views."""
    found: Table = {}
    for name in names:
        if name == "precision":
            found[name] = Words(rows["amp"].astype(np.int8), PRECISIONS)
        elif name == "fate":
            found[name] = Words(rows["fate"].astype(np.int8), FATES)
        else:
            found[name] = Numbers(rows[name], name in GAPS)
    return found


def _decisions(columns: Mapping[str, Any]) -> Table:
    ways = tuple(dict.fromkeys(columns["way"]))
    own: dict[str, Column] = {
        "suspects": lists(columns["suspects"], np.int32),
        "amp": lists(columns["amp"], np.int32),
        "way": Words(np.array([ways.index(way) for way in columns["way"]], dtype=np.int8), ways),
        "batch": lists(columns["batch"], np.float64),
    }
    return {
        name: own[name] if name in own else Numbers(np.array(columns[name]))
        for name in DECISION_COLUMNS
    }


def _suspects(plan: Plan) -> tuple[int, ...] | None:
    return None if plan.suspects is None else tuple(sorted(plan.suspects))


def _amp(plan: Plan) -> tuple[int, ...]:
    """The ranks whose next steps are in reduced precision."""
    return tuple(np.flatnonzero(plan.in_amp).tolist())
