"""A job leaves its barrier where there is room, or where it saves more than it costs others.

What is missing on its server's node comes from the jobs that have workers there and are at their
barrier.  First from their slack: the seconds for which their fast ranks wait anyway (delay 0).
Then from a delay v_k of each job k at its barrier: what is missing is split by the inverse of
their sensitivities, and v_k frees its part.

    v_k = [(1/s_k) / sum_l (1/s_l)] * missing / (n_k * r_k)

s: sensitivity.  r: what a worker frees per second of delay.  n: workers on the node.  The larger
of the processor's and the card's counts.  Granted iff the request saves more seconds per iteration
than sum_k v_k * (1 + gradients_k / 10,000): a job that is far on counts for more.

Source: Zhang & Shen, "Straggler Tolerant and Resilient DL Training on Homogeneous GPUs", 2025,
arXiv:2512.09685.  Of the paper only the abstract was at hand: resources are moved in a way that
harms neighbours little.  From the released code: both steps, the split, the comparison, the
constants' names.  Ours: a grant ends the answer; equal units; the factor of progress is a penalty
in the comparison and no part of the delay; without donors nothing is freed, which is a refusal;
a job that frees nothing does not donate; several server nodes are asked for one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simstrag.cluster.manager import Floats, LeaveAnswer, LeaveRequest, ManagedJob, Need

PROGRESS = 10_000
"""Gradients after which a second of a job's delay counts twice."""
REFUSED = LeaveAnswer(granted=False)


class StarManager:
    """Moves resources from jobs at their barrier to one that leaves it."""

    asked = True

    def answer(
        self, request: LeaveRequest, spare: Floats, others: Sequence[ManagedJob]
    ) -> LeaveAnswer:
        """See the module."""
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
                return REFUSED
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


def make() -> StarManager:
    """The manager."""
    return StarManager()
