"""Jobs that share nodes: SimPy is the clock, and each job's engine advances by itself.

Between two renegotiations nothing couples the jobs.  So a job is advanced alone, and only when it
must be: where its shares are renegotiated, and where it may end.  `RunningJob.earliest_end` is a
time before which it cannot end; the job with the earliest one is advanced to it, and then event by
event, so that ends are found in the order of time (Chandy and Misra, "Distributed simulation: a
case study in design and verification of distributed programs", IEEE TSE 5(5), 1979: lookahead).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from simstrag.arrays import Floats
from simstrag.cluster.barrier_gate import Gate
from simstrag.cluster.colocation import LAWS
from simstrag.cluster.job import RunningJob
from simstrag.cluster.job_rows import finished, started, unfinished
from simstrag.cluster.leave_grants import Grants
from simstrag.cluster.negotiation import RESOURCES, Nodes, negotiate
from simstrag.cluster.placed_jobs import PlacedJobs
from simstrag.cluster.placers import FixedPlacer, Placement, Placer
from simstrag.cluster.study import ArrivingJob, ClusterStudy
from simstrag.cluster.telemetry import Monitors, reads_telemetry
from simstrag.cluster.utilisation import UseOfNodes
from simstrag.engine.recorder import Recorder
from simstrag.timing.contention import Contention

TOGETHER = 1e-12
"""Times that differ by less than this share are one: clocks that begin apart round apart."""
OnEnd = Callable[[RunningJob], None]
OnInterval = Callable[[float, Monitors, list[RunningJob]], None]
SHARES = ("time", "job", "node", "resource", "slowdown")
"""Columns of the table of slowdowns."""


@dataclass(slots=True, eq=False)
class _Bound:
    """A running job, and a time of its own clock before which it cannot end.

    at_these_speeds: whether it may end sooner once its shares change.
    """

    job: RunningJob
    own: float = 0.0
    at_these_speeds: bool = False

    @property
    def earliest_end(self) -> float:
        """The same time on the cluster's clock."""
        return self.job.start + self.own


class SharedNodes:
    """The state of a cluster between two events."""

    def __init__(
        self,
        study: ClusterStudy,
        coming: list[ArrivingJob],
        placer: Placer,
        seed: int,
        record: bool,
        others: Contention | None = None,
        grants: Grants | None = None,
    ) -> None:
        self.study, self.coming, self.placer, self.seed = study, list(coming), placer, seed
        others = study.others(seed) if others is None else others
        self.nodes = Nodes(study.each_node, others, LAWS[study.colocation])
        self.waiting: list[ArrivingJob] = []
        self.running: list[_Bound] = []
        self.ended: list[dict[str, Any]] = []
        self.placed: list[tuple[ArrivingJob, Placement]] = []
        self.shares: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.now = 0.0
        self.use = UseOfNodes(self.nodes)
        self._placed = PlacedJobs(study, coming)
        self._contended: list[RunningJob] = []
        self._record = record
        self._grants = grants
        self.monitors: Monitors | None = None
        self._on_interval: OnInterval | None = None
        self._recorders: Mapping[int, Recorder] = {}
        self._on_end: OnEnd | None = None

    def keep(self, recorders: Mapping[int, Recorder], on_end: OnEnd | None) -> None:
        """Record jobs by their number, and call `on_end` with each job that has ended."""
        self._recorders, self._on_end = recorders, on_end

    def watch(self, on_interval: OnInterval | None = None) -> None:
        """Monitor the nodes, where any policy reads that, or `on_interval` does."""
        policies_ = {job.policy for job in self.coming}
        if on_interval is not None or any(map(reads_telemetry, policies_)):
            self.monitors = Monitors(self.nodes, self.study.interval)
            self._on_interval = on_interval

    # -- the clock -----------------------------------------------------------------------------

    def go(self) -> None:
        """Run until all jobs have ended, or to the horizon."""
        world = simpy.Environment()
        world.run(until=world.process(self._run(world)))
        for bound in self.running:  # at the horizon
            bound.job.stop(self.now)
            self.use.hold(bound.job, self.now)
        if self._grants is not None:
            self._grants.close(self.now)

    def _run(self, world: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """From one renegotiation to the next, until all jobs have ended or the horizon comes."""
        while (self.coming or self.running) and self.now < self.study.horizon:
            change = self.nodes.next_change(self.now)
            time, ending = self._next(change)
            yield world.timeout(time - world.now)
            self.now = time
            ticked = self._monitor(ending)
            self._depart(ending)
            if self._arrive() or ending:
                self._place()
                self._find_contended()
            elif time >= change:
                self._find_contended()
            self._settle()
            self._renegotiate()
            if ticked and self._on_interval is not None and self.monitors is not None:
                self._on_interval(self.now, self.monitors, [b.job for b in self.running])

    def _next(self, change: float) -> tuple[float, list[RunningJob]]:
        """When something couples the jobs next, and the jobs that end then.

        change: when the load of others changes next.
        """
        until = min(self.coming[0].arrival if self.coming else math.inf, self.study.horizon)
        watched = self._contended or self.monitors is not None
        if watched or any(bound.job.may_ask for bound in self.running):
            tick = self.study.interval * (math.floor(self.now / self.study.interval + 1e-9) + 1)
            until = min(until, tick)
        if self.running:
            until = min(until, change)
        ended: list[RunningJob] = []
        while self.running:
            first = min(self.running, key=lambda bound: (bound.earliest_end, bound.job.job.number))
            if first.earliest_end > until * (1 + TOGETHER):
                break
            if self._approach(first):
                assert first.job.end is not None
                until = max(first.job.end, until) if ended else first.job.end
                self.running.remove(first)
                ended.append(first.job)
        return until, ended

    def _monitor(self, ending: list[RunningJob]) -> bool:
        """Count what all jobs have used; whether an interval is over."""
        if self.monitors is None:
            return False
        for bound in self.running:
            ends = bound.job.advance(self.now - bound.job.start)
            assert not ends, "a job that ends is found before"
        jobs = [*(bound.job for bound in self.running), *ending]
        return self.monitors.count(jobs, self.now)

    @staticmethod
    def _approach(bound: _Bound) -> bool:
        """Advance a job to where it may end, or find that it ends later; whether it ends."""
        job, before = bound.job, bound.own
        if job.advance(before):
            return True
        bound.own = max(before, job.earliest_end())
        bound.at_these_speeds = bound.own <= before + job.quickest
        if bound.at_these_speeds:  # from here on event by event
            bound.own = job.next_event
        return False

    # -- arrivals and departures ---------------------------------------------------------------

    def _arrive(self) -> bool:
        arrived = [job for job in self.coming if job.arrival <= self.now]
        del self.coming[: len(arrived)]
        self.waiting += arrived
        return bool(arrived)

    def _depart(self, ending: list[RunningJob]) -> None:
        for job in ending:
            assert job.end is not None
            self._placed.take(job, -1)
            self.use.hold(job, job.end)
            if self._grants is not None:
                self._grants.end(job)
            self.ended.append(finished(job))
            self.placed.append((job.job, job.placement))
            if self._on_end is not None:
                self._on_end(job)
            job.discard()

    def _place(self) -> None:
        """Start waiting jobs, the first to arrive first, until one does not fit."""
        while self.waiting:
            job = self.waiting[0]
            placement = self._placed.place(job, self.placer)
            if placement is None:
                return
            del self.waiting[0]
            devices = self._placed.devices(placement.workers)
            gate = None if self._grants is None else Gate(job.workers)
            shown = None if self.monitors is None else self.monitors.of
            running = RunningJob(
                self.study,
                job,
                placement,
                devices,
                self.now,
                self.seed,
                gate,
                shown,
                self.use.counter,
                self._recorders.get(job.number),
            )
            self._placed.take(running)
            self.running.append(_Bound(running))

    # -- grants --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let jobs leave their barriers, or not, and delay those that give (rule C12)."""
        if self._grants is None:
            return
        jobs = [bound.job for bound in self.running]
        for job in jobs:
            if job.may_ask:
                job.advance(self.now - job.start)
        self._grants.settle(self.now, jobs, self._spare)

    def _spare(self) -> Floats:
        """Cores and bytes/s, inwards and outwards, of each node that no job demands."""
        left = self.nodes.capacity.copy()
        for bound in self.running:
            bound.job.advance(self.now - bound.job.start)
            left -= self.nodes.asked(bound.job, bound.job.demands(self.now))
        spare: Floats = np.maximum(left[:, :3], 0.0)
        return spare

    # -- shares --------------------------------------------------------------------------------

    def _find_contended(self) -> None:
        """The jobs on nodes that may be asked for more than they have; and those slowed now."""
        jobs = [bound.job for bound in self.running]
        others = self.nodes.others(self.now)
        full = self.nodes.may_be_full(jobs)
        for values in others.values():
            full |= values != 1
        self._contended = [
            job for job in jobs
            if full[job.nodes].any() or full[job.servers].any() or job.is_slowed
        ]  # fmt: skip

    def _renegotiate(self) -> None:
        """Ask the jobs that share a resource what they need, and slow them accordingly."""
        jobs = self._contended
        if not jobs:
            return
        for job in jobs:
            ends = job.advance(self.now - job.start)
            assert not ends, "a job that ends is found before"
        demands = [job.demands(self.now) for job in jobs]
        for job, slowed in zip(jobs, negotiate(self.nodes, jobs, demands, self.now), strict=True):
            if self._record:
                self._note_shares(job, slowed)
            job.slow(self.now, slowed)
        for bound in self.running:
            if bound.at_these_speeds:
                bound.own = min(bound.own, self.now - bound.job.start)
        if self._record:
            self._note_nodes(jobs, demands)
        if not any(job.is_slowed for job in jobs):
            self._find_contended()

    def _note_shares(self, job: RunningJob, slowed: Any) -> None:
        for resource in ("host", "gpu", "net"):
            old, new = getattr(job.slowdowns, resource), getattr(slowed, resource)
            for node in np.unique(job.nodes[old != new]).tolist():
                row = self.now, job.job.name, node, resource, float(new[job.nodes == node].max())
                self.shares.append(dict(zip(SHARES, row, strict=True)))
        if slowed.server != job.slowdowns.server:
            row = self.now, job.job.name, int(job.servers[0]), "server", slowed.server
            self.shares.append(dict(zip(SHARES, row, strict=True)))

    def _note_nodes(self, jobs: list[RunningJob], demands: list[Any]) -> None:
        asked = sum(self.nodes.asked(job, d) for job, d in zip(jobs, demands, strict=True))
        for node, row in enumerate(asked / self.nodes.capacity):
            if row.any():
                shares = dict(zip(RESOURCES, row.tolist(), strict=True))
                self.asked.append({"time": self.now, "node": node, **shares})

    # -- results -------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """A row for each job, in order; those that never started included."""
        rows = list(self.ended)
        rows += [started(bound.job) for bound in self.running]
        rows += [unfinished(job, math.nan) for job in (*self.waiting, *self.coming)]
        return sorted(rows, key=lambda row: (row["arrival"], row["name"]))


def seconds_alone(
    study: ClusterStudy, job: ArrivingJob, placement: Placement, seed: int,
    others: Contention | None = None, grants: Grants | None = None,
) -> float:  # fmt: skip
    """How long a job that arrives at 0 s takes on given nodes, where no other job is.

    others: the load of others; none by default.  NaN where it does not end before the horizon.
    """
    simulation = SharedNodes(
        study, [job], FixedPlacer(placement), seed, record=False,
        others=Contention() if others is None else others, grants=grants,
    )  # fmt: skip
    simulation.watch()
    simulation.go()
    end: float = simulation.rows()[0]["end"]
    return end
