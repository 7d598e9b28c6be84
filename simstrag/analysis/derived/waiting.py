"""Seconds that ranks waited for ranks, derived from the steps and updates of one run, and checked.

The steps give the arrivals of an update's gradients, and the last arrival gives the time of the
update.  If a logged time differs from that, nothing is shown and `Waiting.reason` says why.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from simstrag.analysis.derived.phase_intervals import TOLERANCE, Phases
from simstrag.analysis.derived.steps import RunSteps
from simstrag.arrays import Floats
from simstrag.runs.run import Run
from simstrag.timing.timing import Timing

MOST = 4096
"""Most ranks of a run for which waiting is derived (chosen): two matrices of 134 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Seconds that ranks (rows) waited for ranks (columns).

    held: from a gradient's arrival to that of its update's last gradient, less its own service;
        shape (N, N), of a run that nothing is derived for also (0, 0).
    blocked: by a bound, until an update of the other rank ended the wait; the same shape.
    total: all waiting of all ranks; the rest beyond `held` and `blocked` is the server's queue etc.
    reason: why there is no derivation, empty if there is one.
    """

    held: Floats
    blocked: Floats
    total: float
    reason: str = ""

    @property
    def by_rank(self) -> Floats:
        """Seconds that other ranks waited for each rank."""
        return np.asarray((self.held + self.blocked).sum(axis=0))

    @property
    def elsewhere(self) -> float:
        """Seconds of waiting that were not for a rank."""
        return max(self.total - float(self.held.sum() + self.blocked.sum()), 0.0)


def waiting(run: Run, steps: RunSteps, phases: Phases, timing: Timing | None) -> Waiting:
    """Seconds that each rank waited for each other rank.

    It is derived for updates through an all-reduce, model averaging or a server alone.
    timing: None for a real run, whose update times cannot be checked.
    """
    architecture, waited = run.summary["architecture"], run.summary["wait_by_rank"]
    total = float(np.sum(waited))
    updates, times = defaultdict(list), np.asarray(run.updates["time"]).tolist()
    for k in np.flatnonzero(steps.entered).tolist():
        updates[int(steps.applied[k])].append(k)
    reason = ""
    if run.excerpt is not None:
        reason = "only an excerpt of its steps was kept"
    elif timing is None and run.recorded is None:
        reason = "the run's trace or profile is not at hand"
    elif architecture not in ("all-reduce", "model averaging", "server"):
        reason = f"it is not derived for updates through {architecture}"
    elif timing is None and architecture == "server":
        reason = "no table says when a gradient came to the server"
    elif len(updates) != len(times):
        reason = "its steps do not account for all its updates"
    elif len(waited) > MOST:
        reason = f"it has more than {MOST:,} ranks"
    held, blocked = np.zeros((2, 0, 0) if reason else (2, len(waited), len(waited)))
    if reason:
        return Waiting(held, blocked, total, reason)
    arrival, begun, job = steps.finish, np.full(len(steps.finish), np.inf), 0.0
    if timing is not None and architecture == "server":
        arrival, begun, job = phases.pushed, phases.served, timing.server.job
    moments = list(zip(arrival.tolist(), steps.rank.tolist(), begun.tolist(), strict=True))
    for version, rows in updates.items():
        gradients = [moments[k] for k in rows]
        closing, last, service = max(gradients)
        if timing is not None:
            ranks = tuple(sorted(rank for _, rank, _ in gradients))
            end = service + job if architecture == "server" else timing.reduce(ranks, closing)
            if not math.isclose(end, times[version - 1], rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                reason = (
                    "its steps alone do not give the times of its updates (as with windows, "
                    "dropped gradients and riders)"
                )
                return Waiting(np.zeros_like(held), blocked, total, reason)
        for arrived, rank, service in gradients:
            in_service = max(min(service + job, closing) - service, 0.0)
            held[rank, last] += closing - arrived - in_service
    if timing is not None:  # from a rank's own update to the later one that let it continue
        members = run.updates["members"]
        for k in np.flatnonzero(steps.blocked > 0).tolist():
            freed = members[int(steps.pulled_next[k]) - 1]
            if len(freed) == 1:
                blocked[steps.rank[k], int(freed[0])] += steps.blocked[k]
    return Waiting(held, blocked, total)
