"""What a run counts and shows, beside what happens: docs/semantics.md, part D.

A driver of `simstrag.engine.rules` tells it when steps begin and end and which decisions were
made.  Nothing here changes what happens.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag.engine.messages import Applied, Lost, Start, Update
from simstrag.engine.recorder import COUNTS, DETECTION, Recorder
from simstrag.engine.rules import Rules
from simstrag.view import WINDOW, Hints, View

__all__ = ["Accounts", "StepAccount"]

LOGGED = 1 << 14
"""Updates in a log before it is handed over, or thinned."""
FATES = {"applied": 0, "dropped": 1, "aborted": 2, "in_flight": 3}
UPDATE = [
    ("time", "f8"), ("version", "i8"), ("n_own", "i8"), ("samples", "i8"),
    ("staleness_mean", "f8"), ("staleness_max", "i8"), ("progress", "f8"), ("members", "i8"),
    ("count", "i8"),
]  # fmt: skip
STEP = [
    ("rank", "i8"), ("step", "i8"), ("version", "i8"), ("amp", "i8"), ("start", "f8"),
    ("finish", "f8"), ("wait", "f8"), ("communication", "f8"),
]  # fmt: skip
FATE = [
    ("update", "i8"), ("rank", "i8"), ("step", "i8"), ("version", "i8"), ("amp", "i8"),
    ("samples", "i8"), ("weight", "f8"), ("fate", "i8"),
]  # fmt: skip
SHOWN = ("local_times", "communication", "batch", "amp", "lower_bound")
"""What a view shows of a step, in the order in which it is kept here."""


@dataclass(slots=True)
class StepAccount:
    """A step, from its start on.

    version, seen: updates and samples applied before the pull of its contribution.
    pulled: when the pull began.  got: when it ended.  ended: the finish, or when it was aborted.
    asked: samples that it was to compute.
    pushed, busy: seconds of its push, and of all other communication of its gradient.
    """

    step: int
    version: int
    seen: int
    amp: bool
    asked: int
    samples: int
    pulled: float
    got: float
    start: float
    finish: float
    ended: float
    pushed: float = 0.0
    busy: float = 0.0
    is_pushing: bool = False


class Accounts:
    """Times, counts and logs of the ranks of one job, and the views made of them.

    recorder: is handed the rows; without one there are none.
    job_seconds: the communication of a gradient that is a job of the server by itself.
    """

    def __init__(self, rules: Rules, recorder: Recorder | None, job_seconds: float) -> None:
        world_size = rules.workers
        self.rules, self.recorder = rules, recorder
        self.steps: list[StepAccount | None] = [None] * world_size  # the last of each rank
        self.busy: dict[int, float] = {}  # seconds of communication, by closing
        self.counts: Counter[str] = Counter()
        self.beyond = 0.0
        self._job_seconds = job_seconds
        self._contributions: list[list[StepAccount]] = [[] for _ in range(world_size)]
        self._shown: list[deque[Sequence[Any]]] = [deque(maxlen=WINDOW) for _ in range(world_size)]
        self._known = np.zeros(world_size, np.int64)
        self._sums = {"deviation": 0.0, "makespan": math.nan, "target": math.nan}
        self._of_rank = {
            name: np.zeros(world_size, dtype)
            for name, dtype in (
                ("applied", "i8"), ("staleness", "i8"), ("compute", "f8"), ("wait", "f8"),
                ("communication", "f8"),
            )
        }  # fmt: skip
        self._every = 0 if recorder is None or recorder.keeps_updates else 1
        self._updates: list[tuple[Any, ...]] = []
        self._members: list[int] = []
        self._step_log: list[tuple[Any, ...]] = []
        self._fate_log: list[tuple[Any, ...]] = []

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.rules.now

    # -- views -------------------------------------------------------------------------------

    def view(self, hints: Hints, truth: Any = None) -> View:
        """The facts that a policy may use now."""
        samples, known = self.rules.learner.samples, self._known.copy()
        return View.of(self._tell, self.rules.version, samples, self.now, known, hints, truth)

    def _tell(self, name: str, columns: int) -> npt.NDArray[Any]:
        """An array of a view that is computed when it is asked for; the newest of its columns."""
        if name == "pending_since":
            pairs = zip(self.steps, self.rules.work, strict=True)
            return np.array([math.nan if g is None or s is None else s.pulled for s, g in pairs])
        column, table = SHOWN.index(name), self._blank(name, (len(self._shown), columns))
        for rank, shown in enumerate(self._shown):
            newest = [step[column] for step in shown][-columns:]
            table[rank, columns - len(newest) :] = newest
        return table

    @staticmethod
    def _blank(name: str, shape: tuple[int, int]) -> npt.NDArray[Any]:
        return np.zeros(shape, bool) if name in ("amp", "lower_bound") else np.full(shape, math.nan)

    @property
    def windows(self) -> dict[str, npt.NDArray[Any]]:
        """What views are made of: known steps, and shape (WINDOW, N), step k in row k % WINDOW."""
        windows = {name: self._blank(name, (WINDOW, len(self._shown))) for name in SHOWN}
        for rank, shown in enumerate(self._shown):
            for k, step in enumerate(shown, start=self._known[rank] - len(shown)):
                for name, value in zip(SHOWN, step, strict=True):
                    windows[name][k % WINDOW, rank] = value
        return {"known": self._known.copy(), **windows}

    @windows.setter
    def windows(self, windows: dict[str, npt.NDArray[Any]]) -> None:
        self._known = windows["known"].copy()
        for rank, known in enumerate(self._known.tolist()):
            rows = [k % WINDOW for k in range(max(known - WINDOW, 0), known)]
            self._shown[rank].extend(
                tuple(windows[name][row, rank].item() for name in SHOWN) for row in rows
            )

    # -- steps -------------------------------------------------------------------------------

    def step(self, rank: int) -> StepAccount:
        """The last step of a rank."""
        step = self.steps[rank]
        assert step is not None
        return step

    def begin(self, start: Start, step: StepAccount) -> None:
        """A rank begins a step; its last one must be closed."""
        rank = start.rank
        if start.private:
            step.seen = self.step(rank).seen
        self.steps[rank] = step
        self._contributions[rank] = [*(self._contributions[rank] if start.private else ()), step]
        self.counts["started"] += 1
        self.counts["amp"] += start.amp
        self.counts["rebatched"] += start.samples != self.rules.learner.batch
        self.counts["asked"] += start.samples
        self.counts["cut"] += start.samples - step.samples

    def end_push(self, rank: int) -> None:
        """The push of a rank has ended, or is called off."""
        step = self.step(rank)
        step.pushed, step.is_pushing = self.now - step.finish, False

    def close(self, rank: int) -> float:
        """Account for the time of a rank since its last pull; returns its seconds of computing."""
        s, time, of_rank = self.steps[rank], self.now, self._of_rank
        if s is None:
            return 0.0
        ended, got = min(s.ended, time), min(s.got, time) - s.pulled
        seconds = max(ended - s.got, 0.0)
        pushed = time - s.finish if s.is_pushing else s.pushed
        after = min(pushed + s.busy, max(time - ended, 0.0))
        wait = max(time - s.pulled - got - seconds - after, 0.0)
        of_rank["compute"][rank] += seconds
        of_rank["communication"][rank] += got + after
        of_rank["wait"][rank] += wait
        if self._keeps("steps") and s.ended <= time:
            row = (rank, s.step, s.version, s.amp, s.start, s.ended, wait, got + after)
            self._step_log.append(row)
        return seconds

    def _keeps(self, table: str) -> bool:
        return self.recorder is not None and self.recorder.keeps(table)

    def _show(self, rank: int, step: StepAccount, seconds: float, is_bound: bool) -> None:
        """Rule 7: a policy sees a step once its gradient has met its fate."""
        share = (step.asked if is_bound else step.samples) / self.rules.learner.batch
        communicated = step.got - step.pulled + step.pushed
        self._shown[rank].append((seconds, communicated, share, step.amp, is_bound))
        self._known[rank] += 1

    def _note_fate(
        self, update: int | None, rank: int, step: StepAccount, weight: float, fate: str
    ) -> None:
        if self._keeps("gradients"):
            number = -1 if update is None else update
            row = (number, rank, step.step, step.version, step.amp, step.samples, weight)
            self._fate_log.append((*row, FATES[fate]))

    # -- fates -------------------------------------------------------------------------------

    def lose(self, lost: Lost) -> None:
        """A gradient comes to nothing."""
        step = next(s for s in self._contributions[lost.rank] if s.step == lost.step)
        is_bound = False
        if lost.fate == "aborted" and step is self.steps[lost.rank]:
            is_bound = self.now < step.finish
            step.got, step.ended = min(step.got, self.now), min(self.now, step.finish)
        elif lost.closing is not None:
            step.busy = self.busy.get(lost.closing, self._job_seconds)
        self.counts[lost.fate] += 1
        self._show(lost.rank, step, max(step.ended - step.start, 0.0), is_bound)
        self._note_fate(None, lost.rank, step, 0.0, lost.fate)

    def update(self, update: Update) -> None:
        """An update was made."""
        counts, before, learner = self.counts, update.version - 1, self.rules.learner
        staleness = [before - g.version for g in update.gradients]
        had = learner.samples - sum(g.samples for g in update.gradients)
        world = len(self.steps) * learner.batch
        for rank, group in itertools.groupby(update.gradients, key=lambda g: g.rank):
            self._apply(rank, list(group), update.version, had, world)
        for gradient in update.gradients:
            self.busy.pop(gradient.closing, None)
        counts["applied"] += len(staleness)
        progress = learner.progress
        self._log_update(update, staleness, math.nan if progress is None else progress)
        limits, sums = self.rules.limits, self._sums
        if limits.progress is not None and not (progress or 0.0) < limits.progress:
            sums["target"] = self.now if math.isnan(sums["target"]) else sums["target"]
        if limits.samples is not None and learner.samples >= limits.samples:
            sums["makespan"] = self.now if math.isnan(sums["makespan"]) else sums["makespan"]

    def _apply(
        self, rank: int, gradients: Sequence[Applied], version: int, had: int, world: int
    ) -> None:
        """Account for the contribution of a rank to an update."""
        last, n, stale = self.step(rank), len(gradients), version - 1 - gradients[0].version
        drift = (had - last.seen) / world
        self._sums["deviation"] += n * (drift * drift)
        self._of_rank["applied"][rank] += n
        self._of_rank["staleness"][rank] += n * stale
        last.busy = self.busy.get(gradients[0].closing, self._job_seconds)
        for gradient, step in zip(gradients, self._contributions[rank], strict=True):
            self._show(rank, step, step.finish - step.start, False)
            self._note_fate(version, rank, step, gradient.weight, "applied")

    def _log_update(self, update: Update, staleness: Sequence[int], progress: float) -> None:
        if self.recorder is None or (self._every and update.version % self._every):
            return
        members = list(dict.fromkeys(g.rank for g in update.gradients))
        n = len(staleness)
        self._updates.append(
            (self.now, update.version, n, self.rules.learner.samples, sum(staleness) / n,
             max(staleness), progress, 0, len(members))
        )  # fmt: skip
        self._members += members
        if len(self._updates) < LOGGED:
            return
        if self._every:  # of a sample leave every other one
            self._every *= 2
            self._updates = [row for row in self._updates if row[1] % self._every == 0]
        else:
            self.hand_over()

    def hand_over(self) -> None:
        """Give the recorder all rows that there are."""
        if self.recorder is None:
            return
        logs = {
            "updates": np.array(self._updates, UPDATE),
            "members": np.array(self._members, np.int64),
            "steps": np.array(self._step_log, STEP),
            "fates": np.array(self._fate_log, FATE),
        }
        self.recorder.take(logs)
        self._updates, self._members, self._step_log, self._fate_log = [], [], [], []

    def end(self) -> None:
        """The run is over: account for what is in flight, and hand all totals over.

        All steps must be closed.
        """
        for rank, gradient in enumerate(self.rules.work):
            for each in self._contributions[rank] if gradient is not None else ():
                self._note_fate(None, rank, each, 0.0, "in_flight")
        self.hand_over()
        if self.recorder is None:
            return
        learner = self.rules.learner
        job = {name: self.counts[name] for name in (*COUNTS, *DETECTION)} | self._sums
        job |= {"beyond": self.beyond, "version": self.rules.version}
        job |= {"now": self.now, "samples": learner.samples}
        self.recorder.totals(job, self._of_rank, learner.progress)
