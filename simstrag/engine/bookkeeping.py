"""What a run counts and shows, beside what happens: docs/semantics.md, part D.

A driver of `simstrag.engine.rules` tells when steps and pushes begin and end, and passes `Update`
and `Lost` on.  Nothing here changes what happens.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

import numpy as np

from simstrag.arrays import Array, Floats, Ints
from simstrag.contract import WINDOW, Hints, View
from simstrag.engine.messages import Lost, Start, Update
from simstrag.engine.recorder import COUNTS, DETECTION, Recorder
from simstrag.engine.rule_state import State
from simstrag.engine.rules import Rules

__all__ = ["Accounts", "StepAccount"]

BY_RANK = attrgetter("rank")
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
    ("samples", "i8"), ("weight", "f8"), ("fate", "i8"), ("round", "i8"),
]  # fmt: skip
BLANK = {
    "local_times": math.nan, "communication": math.nan, "batch": math.nan, "amp": False,
    "lower_bound": False,
}  # fmt: skip
"""What a view shows of a step, and what stands in it where there is none."""
SHOWN = tuple(BLANK)


@dataclass(slots=True)
class StepAccount:
    """The times of a step.

    samples: of its gradient, once it is finished; a deadline may cut it short.
    pulled, got: when its pull began and ended.  relayed: when its parent's did, in a tree [11a].
    begun, finish: when it began to compute, and when it ends or was aborted.
    sent, pushed: when its push began, and seconds of it.
    busy: seconds of all other communication of its gradient.
    round: number of the round whose collective summed its gradient; -1 where an update did [11].
    streams: when its launching and its computing end by the overlapping law.
    """

    start: Start
    samples: int
    pulled: float
    got: float
    begun: float
    finish: float
    paused: float = 0.0
    relayed: float = -math.inf
    sent: float = math.nan
    pushed: float = 0.0
    busy: float = 0.0
    round: int = -1
    streams: tuple[float, float] | None = None


class Accounts:
    """Times, counts and logs of the ranks of one job, and the views made of them.

    recorder: takes the rows; without one there are none.
    job_seconds: communication of a gradient that is a job of the server by itself.
    beyond: seconds of a step that lie beyond the trace, of (rank, step, begun, ended) [8].
    """

    def __init__(
        self,
        rules: Rules,
        recorder: Recorder | None,
        job_seconds: float = 0.0,
        beyond: Callable[[int, int, float, float], float] | None = None,
    ) -> None:
        ranks = range(rules.workers)
        self.rules, self.recorder = rules, recorder
        self.held: list[list[StepAccount]] = [[] for _ in ranks]  # last contribution of each rank
        self.busy: dict[int, float] = {}  # seconds of communication, by closing
        self.counts = dict.fromkeys((*COUNTS, *DETECTION), 0)
        self.job_seconds = job_seconds
        self._batch, self._beyond = rules.learner.batch, beyond
        self._shown: list[deque[Sequence[Any]]] = [deque(maxlen=WINDOW) for _ in ranks]
        self._known = [0] * rules.workers
        self._missed_squares = 0
        self._sums = {"beyond": 0.0, "makespan": math.nan, "target": math.nan}
        self._applied, self._staleness = [0] * rules.workers, [0] * rules.workers
        self._compute, self._wait = [0.0] * rules.workers, [0.0] * rules.workers
        self._communication, self._paused = [0.0] * rules.workers, [0.0] * rules.workers
        self._last_round: tuple[int, int] = (-1, -1)  # its closing and its number
        self._every = 0 if recorder is None or recorder.keeps_updates else 1
        self._keeps_steps = recorder is not None and recorder.keeps("steps")
        self._keeps_fates = recorder is not None and recorder.keeps("gradients")
        self._updates: list[tuple[Any, ...]] = []
        self._members: list[int] = []
        self._step_log: list[tuple[Any, ...]] = []
        self._fate_log: list[tuple[Any, ...]] = []

    # -- views -------------------------------------------------------------------------------

    def view(
        self,
        hints: Hints,
        truth: Any = None,
        refused: bool = False,
        noise_scale: float | None = None,
    ) -> View:
        """The facts that a policy may use now."""
        rules, known = self.rules, np.array(self._known, np.int64)
        return View.of(
            self._tell, rules.version, rules.learner.samples, rules.now, known, hints, truth,
            refused=refused, noise_scale=noise_scale,
        )  # fmt: skip

    def _tell(self, name: str, columns: int) -> Array:
        """An array of a view that is computed when it is asked for; the newest of its columns."""
        if name == "pending_since":
            pairs = zip(self.held, self.rules.gradients, strict=True)
            return np.array([math.nan if g is None else held[-1].pulled for held, g in pairs])
        column, blank = SHOWN.index(name), BLANK[name]
        table = []
        for shown in self._shown:
            newest = [step[column] for step in islice(reversed(shown), columns)]
            table.append([*[blank] * (columns - len(newest)), *reversed(newest)])
        return np.array(table, type(blank))

    @property
    def windows(self) -> dict[str, Array]:
        """What views are made of: known steps, and shape (WINDOW, N), step k in row k % WINDOW."""
        windows = {name: np.full((WINDOW, len(self._shown)), BLANK[name]) for name in SHOWN}
        for rank, shown in enumerate(self._shown):
            for k, step in enumerate(shown, start=self._known[rank] - len(shown)):
                for name, value in zip(SHOWN, step, strict=True):
                    windows[name][k % WINDOW, rank] = value
        return {"known": np.array(self._known), **windows}

    @windows.setter
    def windows(self, windows: dict[str, Array]) -> None:
        self._known = windows["known"].tolist()
        for rank, known in enumerate(self._known):
            rows = [k % WINDOW for k in range(max(known - WINDOW, 0), known)]
            self._shown[rank].extend(
                tuple(windows[name][row, rank].item() for name in SHOWN) for row in rows
            )

    @property
    def reached(self) -> dict[str, float]:
        """When the samples and the target were reached; NaN where they were not."""
        return {name: self._sums[name] for name in ("makespan", "target")}

    def restore(self, windows: dict[str, Array], reached: dict[str, float]) -> None:
        """Go back to what views showed, and to the limits that were reached."""
        for shown in self._shown:
            shown.clear()
        self.windows = windows
        self._sums |= reached

    @property
    def applied(self) -> Ints:
        """Gradients of each rank so far."""
        return np.array(self._applied)

    # -- steps -------------------------------------------------------------------------------

    def step(self, rank: int) -> StepAccount:
        """The last step of a rank."""
        return self.held[rank][-1]

    def begin(
        self,
        start: Start,
        samples: int,
        got: float,
        begun: float,
        finish: float,
        paused: float = 0.0,
        relayed: float = -math.inf,
    ) -> StepAccount:
        """A rank begins a step; its last one is over."""
        rank, held = start.rank, self.held[start.rank]
        if start.closing is not None:
            held[-1].busy, held[-1].round = self.busy[start.closing], self._round_of(start.closing)
        if held:
            self._close(rank)
        if start.private and held[-1].start.version != start.version:  # it goes on after a run-on
            for ran in held:
                ran.start = ran.start._replace(version=start.version)
        step = StepAccount(start, samples, self.rules.now, got, begun, finish, paused, relayed)
        self.held[rank] = [*held, step] if start.private else [step]
        counts = self.counts
        counts["started"] += 1
        counts["asked"] += start.samples
        counts["cut"] += start.samples - samples
        counts["amp"] += start.amp
        counts["rebatched"] += start.samples != self._batch
        return step

    def _round_of(self, closing: int) -> int:
        """The number of a round, from 0, whose ranks begin their next steps one after the other."""
        last, number = self._last_round
        if closing != last:
            self._last_round = closing, number + 1
        return self._last_round[1]

    def call_off(self, rank: int) -> None:
        """The push of a rank is cancelled."""
        step = self.step(rank)
        step.pushed = self.rules.now - step.sent

    def _close(self, rank: int) -> None:
        """Account for the time of a rank since its last pull."""
        s, now = self.step(rank), self.rules.now
        got, ended = s.got, s.finish
        if ended > now:  # the run ends in the middle of a step
            got, ended = min(got, now), now
        pull, seconds = got - s.pulled, ended - got
        after = min(s.pushed + s.busy, now - ended)
        wait = max(now - s.pulled - pull - seconds - after, 0.0)
        paused = min(seconds, s.paused)
        seconds, wait = seconds - paused, wait + paused
        self._compute[rank] += seconds
        self._communication[rank] += pull + after
        self._wait[rank] += wait
        self._paused[rank] += paused
        if self._beyond is not None and seconds:
            self._sums["beyond"] += self._beyond(rank, s.start.step, s.begun, ended)
        if self._keeps_steps and s.finish <= now:
            _, step, version, amp, *_ = s.start
            row = (rank, step, version, amp, s.begun, s.finish, wait, pull + after)
            self._step_log.append(row)

    def usage(self, at: float, ends: Mapping[int, float]) -> tuple[Floats, ...]:
        """Seconds that each rank computed until `at`, communicated, and pauses in the steps begun.

        ends: when each collective under way ends, by its closing.
        """
        sums = self._compute, self._communication, self._paused
        compute, communication, paused = map(np.array, sums)
        for closing, end in ends.items():
            for rank in self.rules.members(closing):
                self.step(rank).busy = max(self.busy[closing] - (end - at), 0.0)
        for rank, gradient in enumerate(self.rules.gradients):
            if self.held[rank]:
                s = self.step(rank)
                got, ended = min(s.got, at), min(s.finish, at)
                pushes = gradient is not None and gradient.state is State.PUSHING
                pull, seconds = got - s.pulled, max(ended - got, 0.0)
                after = min((at - s.sent if pushes else s.pushed) + s.busy, max(at - ended, 0.0))
                paused[rank] += s.paused
                compute[rank] += seconds - min(seconds, s.paused)
                communication[rank] += pull + after
        return compute, communication, paused

    def _show(self, step: StepAccount, seconds: float, is_bound: bool = False) -> None:
        """Show a step to the policy, once its gradient has met its fate [7]."""
        start = step.start
        share = (start.samples if is_bound else step.samples) / self._batch
        communicated = step.got - step.pulled + step.pushed
        self._shown[start.rank].append((seconds, communicated, share, start.amp, is_bound))
        self._known[start.rank] += 1

    def _note_fate(self, step: StepAccount, fate: str, update: int = -1, weight: float = 0) -> None:
        if self._keeps_fates:
            rank, number, version, amp, *_ = step.start
            row = (update, rank, number, version, amp, step.samples, weight, FATES[fate])
            self._fate_log.append((*row, step.round))

    # -- fates -------------------------------------------------------------------------------

    def lose(self, lost: Lost) -> None:
        """A gradient comes to nothing."""
        held, now = self.held[lost.rank], self.rules.now
        step = held[lost.step - held[0].start.step]
        is_bound = lost.fate == "aborted" and now < step.finish
        if is_bound:
            step.got, step.finish = min(step.got, now), now
        elif lost.closing is not None:
            held[-1].busy = self.busy.get(lost.closing, self.job_seconds)
        self.counts[lost.fate] += 1
        self._show(step, max(step.finish - step.begun, 0.0), is_bound)
        self._note_fate(step, lost.fate)

    def update(self, update: Update) -> None:
        """An update was made."""
        rules, learner, sums = self.rules, self.rules.learner, self._sums
        before, now, progress = update.version - 1, rules.now, learner.progress
        had = learner.samples - sum([gradient.samples for gradient in update.gradients])
        for rank, contribution in groupby(update.gradients, BY_RANK):
            held, own = self.held[rank], list(contribution)
            last, n = own[-1], len(own)
            for gradient in own:
                step = held[gradient.step - held[0].start.step]
                self._show(step, step.finish - step.begun)
                self._note_fate(step, "applied", update.version, gradient.weight)
            self._applied[rank] += n
            self._staleness[rank] += n * (before - last.version)
            self._missed_squares += n * (had - last.seen) ** 2
            held[-1].busy = self.busy.get(last.closing, self.job_seconds)
            self.held[rank] = [s for s in held if s.start.step > last.step] or held[-1:]
        for closing in {gradient.closing for gradient in update.gradients}:
            self.busy.pop(closing, None)
        self.counts["applied"] += len(update.gradients)
        self._log_update(update, math.nan if progress is None else progress)
        if rules.limits.progress is not None and not (progress or 0.0) < rules.limits.progress:
            sums["target"] = now if math.isnan(sums["target"]) else sums["target"]
        if rules.limits.samples is not None and learner.samples >= rules.limits.samples:
            sums["makespan"] = now if math.isnan(sums["makespan"]) else sums["makespan"]

    def _log_update(self, update: Update, progress: float) -> None:
        if self.recorder is None or (self._every and update.version % self._every):
            return
        staleness = [update.version - 1 - g.version for g in update.gradients]
        n, now, samples = len(staleness), self.rules.now, self.rules.learner.samples
        members = list(dict.fromkeys(g.rank for g in update.gradients))
        mean, most = sum(staleness) / n, max(staleness)
        row = (now, update.version, n, samples, mean, most, progress, 0, len(members))
        self._updates.append(row)
        if not self._every:  # a sample has no members
            self._members += members
        if len(self._updates) < LOGGED:
            return
        if self._every:  # of a sample leave every other one
            self._every *= 2
            self._updates = [row for row in self._updates if row[1] % self._every == 0]
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the recorder all rows that there are."""
        assert self.recorder is not None
        self.recorder.take({
            "updates": np.array(self._updates, UPDATE),
            "members": np.array(self._members, np.int64),
            "steps": np.array(self._step_log, STEP),
            "fates": np.array(self._fate_log, FATE),
        })  # fmt: skip
        self._updates, self._members, self._step_log, self._fate_log = [], [], [], []

    def end(self) -> None:
        """The run is over: account for what is in flight, and hand all totals over."""
        for rank, gradient in enumerate(self.rules.gradients):
            if self.held[rank]:
                if gradient is not None and gradient.state is State.PUSHING:
                    self.call_off(rank)
                self._close(rank)
            for number in self.rules.unfated(rank):
                step = self.held[rank][number - self.held[rank][0].start.step]
                self._note_fate(step, "in_flight")
        if self.recorder is None:
            return
        self._hand_over()
        rules, learner = self.rules, self.rules.learner
        high, low = divmod(self._missed_squares, 2**64)
        job = self.counts | self._sums | {"missed_low": low, "missed_high": high}
        job |= {"version": rules.version, "now": rules.now, "samples": learner.samples}
        ranks = {
            "applied": np.array(self._applied), "staleness": np.array(self._staleness),
            "compute": np.array(self._compute), "wait": np.array(self._wait),
            "communication": np.array(self._communication),
        }  # fmt: skip
        self.recorder.totals(job, ranks, learner.progress)
