"""Which jobs a manager has let leave their barriers, and whom that delays until they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simstrag.arrays import Floats
from simstrag.cluster.barrier_gate import Gate
from simstrag.cluster.constants import Constants
from simstrag.cluster.job import STRAGGLES, RunningJob
from simstrag.cluster.managers import LeaveRequest, ManagedJob, Manager, Need
from simstrag.policies.estimators.time_to_progress import straggle

ROUNDING = 1e-9
"""Relative error of a sum of delays."""


@dataclass(frozen=True, slots=True)
class _Grant:
    """What a job was granted: what it needs, and the delays of others, by number."""

    job: RunningJob
    needs: tuple[Need, ...]
    delays: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class _Delay:
    """From `start` on a job is delayed for the sake of others; what it had done until then.

    lost: of each rank.
    """

    start: float
    seconds: float
    beneficiaries: tuple[str, ...]
    updates: int
    lost: Floats


class Grants:
    """Asks a manager for jobs that want to leave, and carries out what it answers (rule C12).

    constants: of each workload.
    rows: the delays that are over: start, end, job, seconds per iteration, iterations, seconds
        lost, whether these are within what the grants said, and for whom.
    """

    def __init__(self, manager: Manager, constants: Mapping[str, Constants]) -> None:
        self.manager, self.constants = manager, constants
        self.rows: list[dict[str, Any]] = []
        self._open: dict[int, _Grant] = {}
        self._delays: dict[RunningJob, _Delay] = {}

    def settle(self, now: float, jobs: Sequence[RunningJob], spare: Callable[[], Floats]) -> None:
        """Answer all requests, and delay the jobs that are to give.

        jobs: all that run, in order of arrival; those that may ask are advanced to `now`.
        spare: what is left of each node; see `Manager.answer`.
        """
        running = set(jobs)
        for number, grant in list(self._open.items()):
            if grant.job not in running or not _gate(grant.job).permitted:
                del self._open[number]
        asking = [job for job in jobs if _gate(job).asks]
        if asking:
            left = self._unreserved(spare())
            for job in asking:
                self._answer(job, [other for other in jobs if other is not job], left)
        for job in jobs:
            self._delay(now, job)

    def end(self, job: RunningJob) -> None:
        """Note the delay of a job that has ended."""
        if job in self._delays:
            assert job.end is not None
            self._note(job.end, job)

    def close(self, now: float) -> None:
        """The run is over; some jobs may not be."""
        for job in list(self._delays):
            self._note(now, job)

    def _unreserved(self, spare: Floats) -> Floats:
        """What is left of each node once all have gone who may."""
        for grant in self._open.values():
            if not _gate(grant.job).left:
                _reserve(spare, grant.needs)
        return spare

    def _answer(self, job: RunningJob, others: Sequence[RunningJob], spare: Floats) -> None:
        """Ask the manager, unless the job itself is delayed: then it may not leave."""
        if self._beneficiaries(job):
            _gate(job).answer(granted=False)
            return
        needs = self._needs(job)
        request = LeaveRequest(job.job.number, _saving(job.iteration_seconds()), needs)
        managed = [
            ManagedJob(
                other.job.number, other.at_barrier, other.gradients, other.iteration_seconds(),
                other.placement.workers, self.constants[other.job.workload],
            )
            for other in others
        ]  # fmt: skip
        answer = self.manager.answer(request, spare, managed)
        _gate(job).answer(answer.granted)
        if answer.granted:
            self._open[job.job.number] = _Grant(job, needs, answer.delays)
            _reserve(spare, needs)
            for other in others:
                self._free(spare, other, answer.delays.get(other.job.number, 0.0))

    def _free(self, spare: Floats, job: RunningJob, delay: float) -> None:
        """Add what a delay of a job frees on the nodes of its workers."""
        constants = self.constants[job.job.workload]
        freed = np.array([constants.freed_cores, constants.freed_bytes, constants.freed_bytes])
        np.add.at(spare, job.nodes, delay * freed)

    def _needs(self, job: RunningJob) -> tuple[Need, ...]:
        """On the node of each server shard its share; what comes from that node passes no card."""
        if not job.uses_server:
            return ()
        constants = self.constants[job.job.workload]
        return tuple(
            Need(
                node, constants.extra_cores * share,
                constants.extra_bytes * share * float((job.nodes != node).mean()),
            )
            for node, share in zip(job.servers.tolist(), job.shares, strict=True)
        )  # fmt: skip

    def _beneficiaries(self, job: RunningJob) -> tuple[_Grant, ...]:
        """The grants for which a job is delayed, be it by 0 s."""
        return tuple(grant for grant in self._open.values() if job.job.number in grant.delays)

    def _delay(self, now: float, job: RunningJob) -> None:
        """Delay a job by the sum of what its grants say; note what the delay before it took."""
        grants = self._beneficiaries(job)
        seconds = sum(grant.delays[job.job.number] for grant in grants)
        names = tuple(grant.job.job.name for grant in grants)
        before = self._delays.get(job)
        if before is None and not grants:
            return
        if before is not None:
            if (before.seconds, before.beneficiaries) == (seconds, names):
                return
            job.advance(now - job.start)
            self._note(now, job)
        job.delay(now, seconds)
        if grants:
            self._delays[job] = _Delay(now, seconds, names, job.updates, job.lost(now))

    def _note(self, now: float, job: RunningJob) -> None:
        """A delay is over."""
        delay = self._delays.pop(job)
        iterations, lost = job.updates - delay.updates, float((job.lost(now) - delay.lost).max())
        most = delay.seconds * (iterations + 1)  # of the last step that began, too
        self.rows.append({
            "start": delay.start, "end": now, "job": job.job.name, "seconds": delay.seconds,
            "iterations": iterations, "lost": lost, "within_grant": lost <= most * (1 + ROUNDING),
            "for": delay.beneficiaries,
        })  # fmt: skip


def _gate(job: RunningJob) -> Gate:
    assert job.gate is not None
    return job.gate


def _reserve(spare: Floats, needs: Sequence[Need]) -> None:
    """Take what is needed from what is left of nodes, which may fall below 0."""
    for need in needs:
        spare[need.node] -= need.cores, need.bytes, need.bytes


def _saving(seconds: Floats) -> float:
    """Seconds by which an iteration shortens without its stragglers.

    >>> round(_saving(np.array([1.0, 1.1, 1.5])), 9)
    0.4
    """
    return float(seconds.max() - seconds[~straggle(seconds, STRAGGLES)].max())
