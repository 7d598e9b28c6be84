"""Advances a standing plan from event to event, until somebody outside must decide.

The kernel knows steps, quorums, collectives and the server; it knows neither policies nor SimPy.
Its rules are numbered in docs/semantics.md and stand in `native`, in C; here is the side that
Python sees.  `advance` runs until the plan asks for a review, the run reaches its end, the next
event lies beyond the horizon, or nothing is left; the driver answers a review with `replan`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from simstrag.arrays import Array, Bools, Floats, Ints
from simstrag.contract import Block, Hints, Plan, View
from simstrag.contract.compiled import address, loops
from simstrag.contract.plan import COMPARED
from simstrag.engine.native import plan_loading
from simstrag.engine.native.library import library
from simstrag.engine.native.loading import Loading
from simstrag.engine.native.memory import SHOWN, Memory
from simstrag.engine.recorder import Recorder, wide
from simstrag.engine.rule_state import Limits
from simstrag.engine.rules import check_refiling
from simstrag.errors import InputError
from simstrag.learning.noise_scale import NoiseScale, unmodelled
from simstrag.timing.timing import Timing

__all__ = ["Kernel", "Stop", "Truth"]

Truth = Callable[[], Floats]

FIELDS = ("version", "samples", "now")
"""Fields of the job that views show, read faster through arrays of their own."""
BUDGET = 1 << 22
"""Gradients after which native code returns, so that Python sees Ctrl-C and reports progress."""

SAVED = (
    "version", "samples", "booked", "began_at", "own", "stale", "stale_low", "stale_high",
    "makespan", "target", "reviewed_updates", "reviewed_samples", "reviewed_time",
)  # fmt: skip
"""Fields of the job that a checkpoint has."""


class Stop(enum.Enum):
    """The reason for which `Kernel.advance` returned."""

    DONE = "DONE"
    REVIEW = "REVIEW"
    HORIZON = "HORIZON"
    STALLED = "STALLED"
    CHECKPOINT = "CHECKPOINT"


ANSWERED = ("REDUCE", "SERVE", "PAUSE")
"""Stops after which reviews are passed by as before."""
CUTS = ("FLUSH", "ROOM", "DURATIONS", "OVERRUN")
"""Stops that may not happen in a block of reviews, which ends before them."""


STOPS = frozenset(stop.value for stop in Stop)


class _Saved(NamedTuple):
    """A checkpoint."""

    plan: Plan
    reviewed: Ints
    fields: dict[str, Any]
    known: Ints
    windows: dict[str, Array]


class Kernel:
    """The state of one job between two decisions of the outer world.

    plan: a resolved plan for `world_size` ranks; it starts at time 0 when `advance` is called.
    straggler_ratio: who counts as a straggler in truth (rule 27).
    """

    def __init__(
        self,
        world_size: int,
        timing: Timing,
        plan: Plan,
        learner: NoiseScale,
        limits: Limits,
        recorder: Recorder,
        straggler_ratio: float,
    ) -> None:
        built = library()
        self._native, self._loops, self._stops = built.functions, loops(), built.stops
        self._none = built.states["NOBODY"], built.states["GONE"]
        self.timing = timing
        self.learner = learner
        self.recorder = recorder
        self.memory = Memory(
            built, world_size, recorder.keeps("steps"), recorder.keeps("gradients")
        )
        m = self._machine = self.memory.job
        self._hung: set[int] = set()  # failed ranks that are still in the plan
        self._fields = [self.memory.record[name] for name in FIELDS]
        self._find_shown()
        self._reviewed = self.memory.known.copy()  # at the last review
        m["workers"], m["batch"] = world_size, learner.batch
        m["noise_scale"], m["c_tau"] = learner.noise_scale, learner.c_tau
        m["straggler_ratio"] = straggler_ratio
        m["makespan"] = m["target"] = math.nan
        m["server_closing"] = m["call"] = m["out"] = m["to_release"] = m["to_start"] = -1
        m["entering"] = m["reviewing"] = 1  # the first plan answers the first review
        m["most_updates"] = -1 if limits.updates is None else limits.updates
        m["most_samples"] = -1 if limits.samples is None else limits.samples
        m["most_progress"] = math.nan if limits.progress is None else limits.progress
        m["mark_version"] = m["mark_time"] = math.inf
        m["every"] = 0 if recorder.keeps_updates else 1
        m["keeps_steps"], m["keeps_fates"] = recorder.keeps("steps"), recorder.keeps("gradients")
        m["budget"] = BUDGET
        self._loading = Loading(timing, self.memory)
        self.plan = plan
        self._adopt(plan, set(COMPARED))
        self._file(plan, None)

    def _find_shown(self) -> None:
        """Where the tables of what a view shows are, their types and their rows."""
        self._ring = len(self.memory.shown_amp)
        shown = {name: getattr(self.memory, f"shown_{name}") for name in SHOWN}
        self._shown = {
            name: (np.dtype(bool) if table.dtype == np.int8 else table.dtype, address(table))
            for name, table in shown.items()
        }

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return float(self._machine["now"])

    @property
    def version(self) -> int:
        """Updates so far."""
        return int(self._machine["version"])

    @property
    def holding(self) -> list[int]:
        """The ranks that hold a gradient, finished or not."""
        self._native.report(self.memory.address)
        return [int(rank) for rank in np.flatnonzero(~self._idle())]

    def _idle(self) -> Bools:
        """Whether each rank holds no gradient."""
        states, (empty, gone) = self.memory.ranks["state"], self._none
        idle: Bools = (states == empty) | (states == gone)
        return idle

    # -- the driver's side -------------------------------------------------------------------

    def advance(self, until: float = math.inf) -> Stop:
        """Go on to the next moment at which the driver must act; events at `until` included."""
        while True:
            stop = self._stops[self._native.advance(self.memory.address, until)]
            if stop == "REVIEW":
                return Stop.REVIEW
            if stop in STOPS:
                return self._stopped(Stop(stop))
            self._answer(stop)

    def _stopped(self, stop: Stop) -> Stop:
        if stop not in (Stop.REVIEW, Stop.CHECKPOINT):
            self._take_over(least=0 if stop is Stop.DONE else 0.5)
        return stop

    # -- reviews that are passed by (rule 20a) ------------------------------------------------

    def look_ahead(self) -> int:
        """Make room for reviews to pass by; for how many."""
        most = self.memory.look_ahead()
        self._find_shown()
        return most

    def pass_reviews(self, reviews: int, until: float) -> Stop | None:
        """Go on as `advance` does, and pass reviews by; stop at the last of so many.

        None, and nothing has happened, where not one can be passed by.  `accept` or `go_back`
        follows.
        """
        self.memory.hold()
        stop = self._pass(reviews, until)
        if stop is None:  # of those that passed the last one is a stop
            passed = int(self._machine["passed"])
            self._native.go_back(self.memory.address)
            stop = self._pass(passed, until) if passed else None
            if stop is None:
                self._machine["holding"] = 0
        return stop

    def accept(self, stop: Stop) -> None:
        """The plan stays at all reviews that passed by before this stop."""
        m = self._machine
        if m["passed"]:
            self._reviewed = self.memory.passed_steps[m["passed"] - 1].copy()
        m["ahead"] = m["holding"] = 0
        self._stopped(stop)

    def go_back(self, kept: int) -> None:
        """Back to the review at which the plan does not stay, the first after so many."""
        self._native.go_back(self.memory.address)
        stop = self._pass(kept + 1, math.inf)
        assert stop is Stop.REVIEW
        self._machine["ahead"] = self._machine["holding"] = 0

    def _pass(self, reviews: int, until: float) -> Stop | None:
        m = self._machine
        m["ahead"], m["passed"], m["overrun"] = reviews, 0, 0
        while (word := self._stops[self._native.advance(self.memory.address, until)]) in ANSWERED:
            try:
                self._answer(word)
            except InputError:  # asked one by one, the policy may prevent it
                return None
        return None if word in CUTS else Stop(word)

    def block(self, hints: Hints) -> Block:
        """The views of the reviews that passed by, as a block."""
        memory, rows = self.memory, int(self._machine["passed"])
        steps = memory.passed_steps[:rows].copy()
        new = np.empty_like(steps)
        np.subtract(steps[1:], steps[:-1], out=new[1:])
        np.subtract(steps[:1], self._reviewed, out=new[:1])
        facts = (memory.passed_versions, memory.passed_samples, memory.passed_times)
        versions, samples, times = (fact[:rows].copy() for fact in facts)

        def tell(name: str) -> Array:
            dtype, table = self._shown[name]
            newest = np.empty(steps.shape, dtype)
            self._native.newest_passed(memory.address, table, dtype.itemsize, rows, address(newest))
            return newest

        def tell_medians(name: str, columns: int, skip: bool) -> Floats:
            return self._medians_of(name, steps, columns, skip)

        return Block(hints, versions, samples, times, steps[:], new, tell, tell_medians)

    def replan(self, plan: Plan) -> None:
        """Answer a review with a resolved plan; its releases and starts follow in `advance`."""
        if plan is not self.plan:
            self._change(plan)

    def _change(self, plan: Plan, anew: bool = False) -> None:
        """Put another plan in force, and file gradients anew if it says so, or in any case."""
        old = self.plan
        changed = plan.changes(old)
        moved = anew or not changed.isdisjoint(("quorums", "bound", "fuse"))
        if moved and not anew:
            check_refiling(old)
        if moved:
            self._native.disband_all(self.memory.address)
        if changed == {"bound"}:  # then steps, updates and reviews stay the same
            self.plan = plan
        else:
            self._adopt(plan, changed)
        if moved:
            self._file(plan, old)
            self._native.refile(self.memory.address)
        elif "fragments" in changed:
            plan_loading.retime(plan, self._loading)

    def pause(self, at: float) -> None:
        """Complete the records of all ranks as of `at`, to which the kernel was advanced."""
        self._native.disband_all(self.memory.address)
        stop = self.advance(at)  # what fast ways had not looked at yet makes no update
        assert stop in (Stop.HORIZON, Stop.STALLED)

    def retime(self, at: float, timing: Timing) -> None:
        """From `at` on, another timing with other constant slowdowns (rule 8a), after `pause`."""
        (launches, stretches, nets, service), loading = self._loading.speeds, self._loading
        loading.reload(timing)
        self.timing = timing
        plan_loading.retime(self.plan, loading)
        self.memory.ranks["clean_step"] = -1  # rule 27 asks for the speed of now
        launched, after, new, served = loading.speeds
        launching, ratios = launched / launches, after / stretches
        arrays = address(launching), address(ratios), address(nets), address(new)
        self._native.retime(self.memory.address, at, *arrays, served / service if service else 1.0)

    def change_pause(self, plan: Plan) -> None:
        """Between reviews, after `pause`: the plan in force with another pause."""
        self._adopt(plan, {"pause"})

    # -- failures and checkpoints (rules 19a to 19c) ------------------------------------------

    def fail(self, at: float, rank: int) -> None:
        """From `at` on no step and no push of a rank ends, after `pause`."""
        self._native.fail(self.memory.address, rank)
        self._hung.add(rank)
        self._machine["may_lockstep"] = 0

    def regroup(
        self, at: float, plan: Plan, lost: Sequence[int], back: Sequence[int], cost: float
    ) -> None:
        """From `at` on a plan without lost ranks, and with those that are back, after `pause`.

        cost: seconds that ranks which start now pause more.
        """
        m = self._machine
        for rank in lost:
            self._native.lose(self.memory.address, at, rank)
        self.memory.ranks["failed"][list(back)] = 0
        self._hung.difference_update(lost, back)
        self._machine["now"] = at
        self._change(plan, anew=True)
        plan_loading.allow_lockstep(plan, self.memory.job, self._hung)
        pause, may_lockstep = m["pause"], m["may_lockstep"]
        if cost > 0:
            m["pause"], m["may_lockstep"] = pause + cost, 0
        self._native.start_waiting(self.memory.address, at)
        m["pause"], m["may_lockstep"] = pause, may_lockstep

    def halt(self, at: float) -> None:
        """All ranks stop, and lose what is under way, after `pause`."""
        self._native.halt(self.memory.address, at)

    def save(self) -> object:
        """A checkpoint of the present state, for `restart`."""
        memory = self.memory
        windows = {f"shown_{name}": getattr(memory, f"shown_{name}").copy() for name in SHOWN}
        return _Saved(
            self.plan,
            self._reviewed,
            {name: memory.job[name] for name in SAVED},
            memory.known.copy(),
            windows,
        )

    def mark(self, version: float, time: float) -> None:
        """The next checkpoint is due at the first update at or past a version or a time."""
        self._machine["mark_version"], self._machine["mark_time"] = version, time

    def saved(self, cost: float) -> None:
        """Go on after `Stop.CHECKPOINT`; what the update lets go starts so much later."""
        self._machine["cost"] = cost

    def restart(self, at: float, saved: object) -> None:
        """All ranks start anew from a checkpoint at `at`, after `halt`."""
        assert isinstance(saved, _Saved)
        m, old, memory = self._machine, self.plan, self.memory
        for name, value in saved.fields.items():
            m[name] = value
        m["now"], m["entering"] = at, 1
        self._adopt(saved.plan, saved.plan.changes(old))
        self._reviewed = saved.reviewed
        memory.known[:] = saved.known
        memory.show(saved.windows)  # after a plan that may blank them
        self._file(saved.plan, old)
        self._native.find_least(memory.address)
        self._native.start_waiting(memory.address, at)

    def usage(self, at: float) -> tuple[Floats, Floats, Floats]:
        """Seconds that each rank computed until `at`, and communicated.

        Then the seconds that the steps pause which it has begun until then.  The kernel was
        advanced to `at`.
        """
        self._native.disband_all(self.memory.address)
        seconds = np.empty((3, len(self.memory.ranks)))
        self._native.usage(self.memory.address, at, address(seconds))
        return seconds[0], seconds[1], seconds[2]

    @property
    def applied(self) -> tuple[int, float]:
        """Samples and booked progress so far; 0 where progress is unknown."""
        m = self._machine
        return int(m["samples"]), 0.0 if m["unknown"] else float(m["booked"])

    @property
    def started_by_rank(self) -> Ints:
        """Steps that each rank has started so far, after `pause` or `usage`."""
        steps: Ints = self.memory.ranks["started"].copy()
        return steps

    @property
    def applied_by_rank(self) -> Ints:
        """Gradients of each rank so far, after `pause`, `usage` or `end`."""
        gradients: Ints = self.memory.ranks["applied"].copy()
        return gradients

    @property
    def next_event(self) -> float:
        """When something happens next, after `pause`; infinity if nothing does."""
        return float(self._native.next_event(self.memory.address))

    def end(self) -> None:
        """The run is over: account for what is in flight, and hand all totals over."""
        self._native.end(self.memory.address)
        self._take_over(last=True)
        self._learn()
        self.recorder.totals(self._machine, self.memory.ranks, self.learner.progress)

    def view(self, hints: Hints, truth: Truth | None = None, refused: bool = False) -> View:
        """The facts a policy may use now; they hold until the kernel goes on.

        truth: what an oracle is told, `Kernel.truth` for instance.
        refused: whether the last plan was.
        """
        version, samples, now = [field.item() for field in self._fields]
        self._reviewed = steps = self.memory.known.copy()
        return View.of(
            self._tell, version, samples, now, steps, hints, truth, self._tell_medians, refused
        )

    def _tell(self, name: str, columns: int) -> Array:
        """An array of a view that is worked out when it is asked for; the newest of its columns."""
        if name == "pending_since":
            self._native.report(self.memory.address)
            return np.where(self._idle(), math.nan, self.memory.ranks["pulled"])
        dtype, table = self._shown[name]
        rows = np.empty((columns, len(self.memory.known)), dtype)
        if columns:
            self._native.newest(self.memory.address, table, dtype.itemsize, columns, address(rows))
        return rows.T

    def _tell_medians(self, name: str, columns: int, skip: bool) -> Floats:
        """`View.medians`, of the tables themselves."""
        return self._medians_of(name, self.memory.known, columns, skip)

    def _medians_of(self, name: str, steps: Ints, columns: int, skip: bool) -> Floats:
        """Medians of the last columns before so many steps of each rank; a row for each of them."""
        medians, n = np.empty(steps.shape), len(self.memory.known)
        _, table = self._shown[name]
        if not columns:
            medians.fill(math.nan)
        elif not self._loops.medians(
            table, address(steps), steps.size // n, self._ring, columns, n, skip, address(medians)
        ):
            raise MemoryError
        return medians

    def truth(self) -> Floats:
        """Seconds of each rank's noise-free full-precision step started now."""
        self._native.report(self.memory.address)
        ranks, now = self.memory.ranks, self.now
        steps = np.where(ranks["state"] == self._none[0], 0, ranks["step"] + 1).tolist()
        return np.array([self.timing.noise_free(rank, k, now) for rank, k in enumerate(steps)])

    # -- plans -------------------------------------------------------------------------------

    def _adopt(self, plan: Plan, changed: set[str]) -> None:
        self.plan = plan
        if not changed <= plan_loading.BY_RANK:
            self.learner.lost = self.learner.lost or unmodelled(plan)
        plan_loading.adopt(plan, changed, self._loading, self.learner.lost is not None)
        if self._hung:
            self._machine["may_lockstep"] = 0
        self.recorder.planned(plan, self.version, self.now, changed)

    def _file(self, plan: Plan, old: Plan | None) -> None:
        token = self.recorder.names(plan.quorums)
        plan_loading.file(plan, old, self._loading, token)

    # -- what native code asks ---------------------------------------------------------------

    def _answer(self, stop: str) -> None:
        m = self._machine
        if stop == "REDUCE":
            closing = int(m["call"])
            m["call"] = -1
            quorum = self.plan.quorums[int(self.memory.closings[closing]["quorum"])]
            among = quorum.members if quorum.partial else self._contributors(closing)
            members = tuple(sorted(among))
            end = self.timing.reduce(members, self.now, bool(m["loaded"]), self.plan.fragments)
            self.memory.closings[closing]["busy"] = end - self.now
            self._native.ends(self.memory.address, closing, end)
        elif stop == "SERVE":
            end = self.timing.serve(self.now, self._union(), bool(m["loaded"]))
            self._native.serve_until(self.memory.address, end)
        elif stop == "ROOM":
            self.memory.make_room()
            m["crowded"] = 0
        elif stop == "DURATIONS":
            rank = int(m["out"])
            self.timing.compute(rank, int(self.memory.ranks[rank]["step"]), self.now, amp=False)
            raise AssertionError("a rank without a recorded duration is an error of the trace")
        elif stop == "FLUSH":
            if m["every"] and m["updates"] == len(self.memory.update_log):
                self._thin()
            self._take_over()

    def _contributors(self, closing: int) -> list[int]:
        rows, found, c = self.memory.ranks, [], self.memory.closings[closing]
        if c["lockstep"]:
            q = self.memory.quorums[c["quorum"]]
            return self.memory.lists[q["members_at"] :][: q["size"]].tolist()  # type: ignore[no-any-return]
        rank = int(c["head"])
        while rank >= 0:
            if rows[rank]["aboard"] < 0:
                found.append(rank)
            rank = int(rows[rank]["link"])
        return found

    def _union(self) -> tuple[int, ...]:
        """Ranks that contributed to the job in service."""
        union, closing = [], int(self._machine["server_closing"])
        while closing >= 0:
            union += self._contributors(closing)
            closing = int(self.memory.closings[closing]["beside"])
        return tuple(sorted(union))

    # -- logs --------------------------------------------------------------------------------

    def _thin(self) -> None:
        """Of a sample of updates leave every other one, and log half as many from now on."""
        m, log = self._machine, self.memory.update_log
        m["every"] *= 2
        left = log[log["version"] % m["every"] == 0]
        log[: len(left)] = left
        m["updates"] = len(left)

    def _take_over(self, least: float = 0.0, last: bool = False) -> None:
        """Hand the logs to the recorder, if any is that full; a sample of updates at last."""
        memory, m = self.memory, self._machine
        logs = {
            "members": memory.member_log, "steps": memory.step_log, "fates": memory.fate_log,
        }  # fmt: skip
        if last or not m["every"]:
            logs["updates"] = memory.update_log
        full = any(m[name] and m[name] >= least * len(log) for name, log in logs.items())
        if full or last:
            self.recorder.take({name: log[: m[name]] for name, log in logs.items()})
            for name in logs:
                m[name] = 0

    def _learn(self) -> None:
        """The learner knows what was booked for it."""
        m, learner = self._machine, self.learner
        learner.samples = int(m["samples"])
        learner.stale_samples = wide(m["stale_low"], m["stale_high"])
        learner.resume(float(m["booked"]), int(m["began_at"]), int(m["own"]), int(m["stale"]))
