"""Managers decide whether a job may leave its barrier, and which jobs that delays.

A job is at its barrier while each of its updates waits for all its ranks.  A manager has no clock
and no random numbers, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from simstrag.arrays import Floats
from simstrag.cluster.constants import Constants
from simstrag.documents.suggestions import choices
from simstrag.errors import InputError

PROGRESS = 10_000
"""Gradients after which a second of a job's delay counts twice."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a job that leaves its barrier uses more of, on the node of one of its server shards.

    cores: of the processors.  bytes: bytes/s of the card, in each direction.
    """

    node: int
    cores: float
    bytes: float


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """A job asks to leave its barrier.

    number: of its arrival.
    saving: seconds per iteration: the slowest rank's over the slowest one's that is no straggler.
    """

    number: int
    saving: float
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ManagedJob:
    """A running job as a manager sees it.

    at_barrier: whether it is at its barrier, and may not leave it either.
    gradients: how many it has applied.
    seconds: of each rank, an iteration without waiting.
    nodes: of each rank.
    constants: what it would free, and how sensitive it is.
    """

    number: int
    at_barrier: bool
    gradients: float
    seconds: Floats
    nodes: tuple[int, ...]
    constants: Constants

    def slack(self, node: int) -> float:
        """Seconds for which its ranks on a node wait for its slowest one, together."""
        waits = self.seconds.max() - self.seconds
        return float(waits[np.array(self.nodes) == node].sum())


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """Whether a job may leave, and seconds by which others are delayed per iteration, by number.

    A job that is delayed by 0 s gives what it leaves idle while it waits, and loses nothing.
    """

    granted: bool
    delays: Mapping[int, float] = field(default_factory=dict)


@runtime_checkable
class Manager(Protocol):
    """Answers jobs that want to leave their barriers.

    asked: whether jobs ask it at all; else each leaves when its policy says so.
    """

    asked: bool

    def answer(
        self, request: LeaveRequest, spare: Floats, others: Sequence[ManagedJob]
    ) -> LeaveAnswer:
        """Whether the job may leave.

        spare: shape (nodes, 3): cores and bytes/s, inwards and outwards, that no job demands;
            below 0 where a job that has not left yet was promised what others leave idle.
        others: all other running jobs.
        """
        ...


class NoManager:
    """Every job leaves its barrier when its policy says so, and those beside it suffer."""

    asked = False

    def answer(
        self, request: LeaveRequest, spare: Floats, others: Sequence[ManagedJob]
    ) -> LeaveAnswer:
        """Grant the request without a delay of any job."""
        return LeaveAnswer(granted=True)


class RefusingManager:
    """The manager that lets no job leave its barrier."""

    asked = True

    def answer(
        self, request: LeaveRequest, spare: Floats, others: Sequence[ManagedJob]
    ) -> LeaveAnswer:
        """Refuse the request."""
        return LeaveAnswer(granted=False)


class StarManager:
    """A job leaves its barrier where there is room, or where it saves more than it costs others.

    What is missing on its server's node comes from the jobs that have workers there and are at
    their barrier.  First from their slack: the seconds for which their fast ranks wait anyway
    (delay 0).  Then from a delay v_k of each job k at its barrier: what is missing is split by the
    inverse of their sensitivities, and v_k frees its part.

        v_k = [(1/s_k) / sum_l (1/s_l)] * missing / (n_k * r_k)

    s: sensitivity.  r: what a worker frees per second of delay.  n: workers on the node.  The
    larger of the processor's and the card's counts.  Granted iff the request saves more seconds per
    iteration than sum_k v_k * (1 + gradients_k / 10,000): a job that is far on counts for more.

    Source: Zhang & Shen, "Straggler Tolerant and Resilient DL Training on Homogeneous GPUs", 2025,
    arXiv:2512.09685.  Of the paper only the abstract was at hand: resources are moved in a way that
    harms neighbours little.  From the released code: both steps, the split, the comparison, the
    constants' names.  Ours: a grant ends the answer; equal units; the factor of progress is a
    penalty in the comparison and no part of the delay; without donors nothing is freed, which is a
    refusal; a job that frees nothing does not donate; several server nodes are asked for one by
    one.
    """

    asked = True

    def answer(
        self, request: LeaveRequest, spare: Floats, others: Sequence[ManagedJob]
    ) -> LeaveAnswer:
        """Grant the request if it delays no job, or if the job saves more than the delays cost."""
        delays: dict[int, float] = {}
        for need in request.needs:
            cores, card = spare[need.node, 0], min(spare[need.node, 1:])
            if need.cores <= max(cores, 0.0) and need.bytes <= max(card, 0.0):
                continue
            donors = [job for job in others if job.at_barrier and need.node in job.nodes]
            slack = [job.slack(need.node) for job in donors]
            cores += sum(
                s * job.constants.freed_cores for s, job in zip(slack, donors, strict=True)
            )
            card += sum(s * job.constants.freed_bytes for s, job in zip(slack, donors, strict=True))
            own = _delays(donors, need, need.cores - max(cores, 0.0), need.bytes - max(card, 0.0))
            if own is None:
                return LeaveAnswer(granted=False)
            for job, seconds in own.items():
                delays[job] = max(seconds, delays.get(job, 0.0))
        weights = {job.number: 1 + job.gradients / PROGRESS for job in others}
        cost = sum(seconds * weights[job] for job, seconds in delays.items())
        return LeaveAnswer(granted=cost == 0 or request.saving > cost, delays=delays)


def _delays(
    donors: Sequence[ManagedJob], need: Need, cores: float, card: float
) -> Mapping[int, float] | None:
    """Seconds by which each donor is delayed so that cores and bytes/s are freed; None if none can.

    cores, card: what is missing; not above 0 where nothing is.
    """
    delays = dict.fromkeys((job.number for job in donors), 0.0)
    for missing, freed, sensitivity in (
        (cores, "freed_cores", "sensitivity_cores"), (card, "freed_bytes", "sensitivity_bytes"),
    ):  # fmt: skip
        if missing <= 0:
            continue
        able = [job for job in donors if getattr(job.constants, freed) > 0]
        if not able:
            return None
        weights = [1 / getattr(job.constants, sensitivity) for job in able]
        for job, weight in zip(able, weights, strict=True):
            per_second = job.nodes.count(need.node) * getattr(job.constants, freed)
            seconds = weight / sum(weights) * missing / per_second
            delays[job.number] = max(delays[job.number], seconds)
    return delays


MANAGERS: dict[str, type[Manager]] = {
    "none": NoManager, "refuse": RefusingManager, "star": StarManager,
}  # fmt: skip
"""The shipped managers by name."""


def load_manager(name: str) -> Manager:
    """A new manager.  Raises `InputError` for an unknown name."""
    if name not in MANAGERS:
        raise InputError(f"there is no manager '{name}'; {choices(name, MANAGERS)}")
    return MANAGERS[name]()
