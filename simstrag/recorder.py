"""Writes down what a kernel does: the update log, each rank's time, windows for the view, truth.

Nothing here changes what happens; a recorder only listens.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simstrag.gradient import Closing, Gradient, State
from simstrag.plan import Plan, Precision, Weigh
from simstrag.policies import ways
from simstrag.view import WINDOW, Hints, View

if TYPE_CHECKING:
    from simstrag.timing import Timing

__all__ = ["Recorder"]

UPDATE_COLUMNS = (
    "time", "version", "members", "n_own", "samples", "staleness_mean", "staleness_max", "progress",
)  # fmt: skip
STEP_COLUMNS = (
    "rank", "step", "version", "precision", "start", "finish", "wait", "communication",
)  # fmt: skip
COUNTS = ("started", "amp", "rebatched", "applied", "dropped", "aborted")
GRADIENT_COLUMNS = (
    "update", "rank", "step", "version", "precision", "samples", "weight", "fate",
)  # fmt: skip
DECISION_COLUMNS = ("update", "time", "suspects", "amp", "way", "groups", "batch")


class Recorder:
    """Listens to one run of `world_size` ranks.

    straggler_ratio: who counts as a straggler in truth (rule 27).
    keep_steps, keep_gradients: whether to keep a row per step and per gradient.
    on_update: called after every update as (seconds, samples, progress).

    asked: samples that started steps were to compute; cut: those of them that a deadline cut away.
    """

    def __init__(
        self,
        world_size: int,
        timing: Timing,
        batch: int,
        straggler_ratio: float,
        keep_steps: bool = False,
        keep_gradients: bool = False,
        on_update: Callable[[float, int, float | None], None] | None = None,
    ) -> None:
        ranks = range(world_size)
        self.world_size = world_size
        self.timing = timing
        self.batch = batch
        self.straggler_ratio = straggler_ratio
        self.updates: list[tuple[Any, ...]] = []
        self.steps: list[tuple[Any, ...]] | None = [] if keep_steps else None
        self.gradients: list[tuple[Any, ...]] | None = [] if keep_gradients else None
        self.decisions: list[tuple[Any, ...]] = []
        self.counts = dict.fromkeys(COUNTS, 0)
        self.asked = self.cut = 0
        self.applied_by = [0 for _ in ranks]
        self.staleness_by = [0 for _ in ranks]
        self.compute = [0.0 for _ in ranks]
        self.communication = [0.0 for _ in ranks]
        self.wait = [0.0 for _ in ranks]
        self.deviation = 0.0
        self.beyond = 0.0
        self.ways: dict[str, None] = {}
        self.detection = {"hits": 0, "false_alarms": 0, "misses": 0}
        self.judged = False
        self._on_update = on_update
        self._plan: Plan | None = None
        self._last: list[Gradient | None] = [None for _ in ranks]
        self._ended = [math.nan for _ in ranks]
        self._busy = [0.0 for _ in ranks]
        self._clean: list[tuple[int, float]] = [(-1, math.nan) for _ in ranks]
        self._seen = [0 for _ in ranks]
        self._windows = {
            name: [deque([blank] * WINDOW, WINDOW) for _ in ranks]
            for name, blank in (
                ("local_times", math.nan), ("amp", False), ("batch", math.nan),
                ("lower_bound", False), ("communication", math.nan),
            )
        }  # fmt: skip

    def planned(self, plan: Plan, version: int, time: float) -> None:
        """A resolved plan comes into force; one that decides what is in force leaves no trace."""
        if plan == self._plan:
            return
        self._plan = plan
        way = ways(plan)
        self.ways |= dict.fromkeys(way)
        decided = (_suspects(plan), _amp(plan), " + ".join(way), len(plan.quorums), plan.batch)
        if not self.decisions or self.decisions[-1][2:] != decided:
            self.decisions.append((version, time, *decided))

    # -- the life of a gradient --------------------------------------------------------------

    def started(self, g: Gradient) -> None:
        self._close_cycle(g.rank, g.pulled)
        self._last[g.rank] = g
        self._ended[g.rank], self._busy[g.rank] = g.finish, 0.0
        self.counts["started"] += 1
        self.counts["amp"] += g.amp
        self.counts["rebatched"] += g.share != 1
        asked = round(g.share * self.batch)
        self.asked += asked
        self.cut += asked - g.samples

    def kept(self, g: Gradient, busy: float) -> None:
        """`g` was reduced inside its group; `busy` seconds of communication."""
        self._busy[g.rank] = busy

    def applied(
        self, g: Gradient, closing: Closing, version: int, before: int, together: int
    ) -> None:
        """`g` enters the update that ends at `version` + 1.

        before: samples applied until then; together: samples of that update.
        """
        self.counts["applied"] += 1
        self.applied_by[g.rank] += 1
        self.staleness_by[g.rank] += version - g.version
        world = self.world_size * self.batch
        self.deviation += ((before - g.seen) / world) ** 2
        self._busy[g.rank] = closing.busy
        self._show(g, g.finish - g.start, lower_bound=False)
        if self.gradients is not None:
            plan = closing.plan
            mean = plan.average or plan.weigh is Weigh.MEMBERS
            weight = g.samples / (together if mean else world)
            self._fate(g, "applied", version + 1, weight * plan.damping.factor(version - g.version))

    def dropped(self, g: Gradient, busy: float = 0.0) -> None:
        """`g` was thrown away, after `busy` seconds of communication beyond its push."""
        self.counts["dropped"] += 1
        self._busy[g.rank] = busy
        self._show(g, g.finish - g.start, lower_bound=False)
        self._fate(g, "dropped")

    def aborted(self, g: Gradient, now: float) -> None:
        self.counts["aborted"] += 1
        self._ended[g.rank] = min(now, g.finish)
        self._show(g, max(self._ended[g.rank] - g.start, 0.0), lower_bound=now < g.finish)
        self._fate(g, "aborted")

    def updated(
        self,
        time: float,
        version: int,
        samples: int,
        progress: float | None,
        gradients: list[Gradient],
        suspects: frozenset[int] | None,
    ) -> None:
        """An update made of `gradients`, in order of rank."""
        staleness = [version - 1 - g.version for g in gradients]
        self.updates.append((
            time, version, tuple(dict.fromkeys(g.rank for g in gradients)), len(gradients), samples,
            sum(staleness) / len(staleness), max(staleness), progress,
        ))  # fmt: skip
        if suspects is not None:
            self.judged = True
            stragglers = self.stragglers()
            self.detection["hits"] += len(suspects & stragglers)
            self.detection["false_alarms"] += len(suspects - stragglers)
            self.detection["misses"] += len(stragglers - suspects)
        if self._on_update is not None:
            self._on_update(time, samples, progress)

    def end(self, time: float) -> None:
        """The run ends: what is in flight is counted as far as it came."""
        for rank, g in enumerate(self._last):
            if g is not None:
                self._close_cycle(rank, time)
                if g.state is not State.GONE:
                    for pending in g.whole:
                        self._fate(pending, "in_flight")

    # -- truth and view ----------------------------------------------------------------------

    def stragglers(self) -> frozenset[int]:
        """The ranks whose noise-free step exceeds the ratio to the median over ranks (rule 27)."""
        clean: dict[int, float] = {}
        for rank, g in enumerate(self._last):
            if g is None:
                continue
            if self._clean[rank][0] != g.step:
                self._clean[rank] = g.step, self.timing.noise_free(rank, g.step, g.start)
            clean[rank] = self._clean[rank][1]
        limit = self.straggler_ratio * float(np.median(list(clean.values())))
        return frozenset(rank for rank, seconds in clean.items() if seconds > limit)

    def view(self, version: int, samples: int, time: float, hints: Hints) -> View:
        """The facts a policy may use now."""
        windows = {name: np.array(list(map(list, rows))) for name, rows in self._windows.items()}
        pending = [math.nan if g is None or g.state is State.GONE else g.pulled for g in self._last]
        return View(
            self.world_size, version, samples, time, np.array(self._seen), hints=hints,
            pending_since=np.array(pending), noise_scale=hints.noise_scale,
            truth=lambda: self._truth(time), **windows,
        )  # fmt: skip

    def _truth(self, time: float) -> npt.NDArray[np.float64]:
        """Seconds of each rank's noise-free full-precision step started at `time`."""
        steps = (0 if g is None else g.step + 1 for g in self._last)
        return np.array([self.timing.noise_free(rank, k, time) for rank, k in enumerate(steps)])

    # -- inside ------------------------------------------------------------------------------

    def _show(self, g: Gradient, seconds: float, lower_bound: bool) -> None:
        """Rule 7: a policy sees a step once its gradient has met its fate."""
        rank = g.rank
        self._seen[rank] += 1
        self._windows["local_times"][rank].append(seconds)
        self._windows["amp"][rank].append(g.amp)
        self._windows["batch"][rank].append(g.share if lower_bound else g.samples / self.batch)
        self._windows["lower_bound"][rank].append(lower_bound)
        self._windows["communication"][rank].append(g.got - g.pulled + g.pushed)

    def _fate(self, g: Gradient, fate: str, update: int | None = None, weight: float = 0.0) -> None:
        if self.gradients is not None:
            self.gradients.append(
                (update, g.rank, g.step, g.version, _name(g), g.samples, weight, fate)
            )

    def _close_cycle(self, rank: int, time: float) -> None:
        """Account for the time of `rank` from its last pull up to `time`, its next one."""
        g = self._last[rank]
        if g is None:
            return
        ended = min(self._ended[rank], time)
        pulled = min(g.got, time) - g.pulled
        compute = max(ended - g.got, 0.0)
        pushed = time - g.finish if g.state is State.PUSHING else g.pushed
        after = min(pushed + self._busy[rank], max(time - ended, 0.0))
        wait = max(time - g.pulled - pulled - compute - after, 0.0)
        self.compute[rank] += compute
        if compute:
            self.beyond += self.timing.beyond(rank, g.step, g.start, ended)
        self.communication[rank] += pulled + after
        self.wait[rank] += wait
        if self.steps is not None and self._ended[rank] <= time:
            self.steps.append((
                rank, g.step, g.version, _name(g), g.start, self._ended[rank], wait, pulled + after,
            ))  # fmt: skip


def _suspects(plan: Plan) -> tuple[int, ...] | None:
    return None if plan.suspects is None else tuple(sorted(plan.suspects))


def _amp(plan: Plan) -> tuple[int, ...]:
    """The ranks whose next steps are in reduced precision."""
    assert isinstance(plan.precision, tuple), "resolve the plan first"
    return tuple(rank for rank, own in enumerate(plan.precision) if own is Precision.AMP)


def _name(g: Gradient) -> str:
    return "amp" if g.amp else "full"
