"""Who waited for whom, derived from the steps and updates of one run, and checked against it.

A step row says when a rank computed and which version it had pulled; an update row says whose
gradients it holds.  Together they say which update took which gradient: a rank has one gradient at
a time.  From that follow the arrivals, the last of them, and when the update must have happened.
A derivation that does not come out at the logged times is not shown: `Waiting.reason` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from simstrag.runs.run import Run
from simstrag.timing.timing import Timing

__all__ = ["Steps", "Waiting", "steps_of", "waiting"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a run as arrays, in order of rank and step.

    step: which of its rank's each is; of an excerpt those are here whose fate is in it too.
    applied: version after the update that holds the gradient, 0 where none does (it was dropped,
    aborted, or in flight at the end).  pulled_next: version at the rank's next recorded pull, -1 at
    its last.  gap_end: when the rank computes again; at its last recorded step the update of it.
    blocked: seconds from the update that holds the gradient to the later one at which the rank
    could go on, as at a bound: the last part of `wait`.  kept: whether the rank went on without a
    pull, so that the gradient shares the fate of its next.
    """

    rank: Ints
    step: Ints
    version: Ints
    amp: npt.NDArray[np.bool_]
    start: Floats
    finish: Floats
    wait: Floats
    applied: Ints
    pulled_next: Ints
    gap_end: Floats
    blocked: Floats
    kept: npt.NDArray[np.bool_]

    @property
    def lost(self) -> npt.NDArray[np.bool_]:
        """Whose work was dropped or aborted: the rank went on without an update of it."""
        return np.asarray((self.applied == 0) & (self.pulled_next >= 0))


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Seconds that ranks (rows) waited for ranks (columns).

    held: at an update, from a gradient's arrival to the last one's, own service at the server
    taken out.  blocked: by a bound, until an update of the other rank let it go.  total: all
    waiting of all ranks; what `held` and `blocked` leave of it is the server's queue and the like.
    reason: why there is no derivation, empty where there is one.
    """

    held: Floats
    blocked: Floats
    total: float
    reason: str = ""

    @property
    def by_rank(self) -> Floats:
        """Seconds that others waited for each rank."""
        return np.asarray((self.held + self.blocked).sum(axis=0))

    @property
    def elsewhere(self) -> float:
        """Waiting that was not for a rank."""
        return max(self.total - float(self.held.sum() + self.blocked.sum()), 0.0)


def steps_of(run: Run) -> Steps:
    """The recorded steps with the fate of each. Raises `InputError` where the run kept none."""
    table = run.frame("steps").sort_values(["rank", "step"], kind="stable")
    rank = table["rank"].to_numpy(dtype=np.int64)
    step = table["step"].to_numpy(dtype=np.int64)
    version = table["version"].to_numpy(dtype=np.int64)
    start = table["start"].to_numpy(dtype=np.float64)
    finish = table["finish"].to_numpy(dtype=np.float64)
    wait = table["wait"].to_numpy(dtype=np.float64)
    last = np.append(rank[1:] != rank[:-1], True)
    if run.excerpt is not None:
        last[:-1] |= step[1:] != step[:-1] + 1
    kept = ~last & np.append(version[1:] == version[:-1], False)
    at_last = np.where(last, -1, np.append(version[1:], -1))
    pulled_next = at_last[_ends(kept)]
    applied = np.zeros(len(rank), dtype=np.int64)
    for r, versions in _updates_of(run, version, pulled_next).items():
        own = np.flatnonzero(rank == r)
        at = np.searchsorted(versions, version[own], side="right")
        found = np.append(versions, np.iinfo(np.int64).max)[at]
        limit = np.where(pulled_next[own] < 0, run.summary["updates"], pulled_next[own])
        applied[own] = np.where(found <= limit, found, 0)
    made = _times(run, applied)
    gap_end = np.where(last, np.maximum(made, finish + wait), np.roll(start, -1))
    amp = table["precision"].to_numpy() == "amp"
    held_back = (applied > 0) & ~kept & (pulled_next > applied)
    until = np.where(held_back, _times(run, pulled_next) - made, 0.0)
    blocked = np.minimum(until, wait)
    steps = Steps(
        rank, step, version, amp, start, finish, wait, applied, pulled_next, gap_end, blocked, kept
    )
    return steps if run.excerpt is None else _chosen(steps, _known(run, steps))


def waiting(
    run: Run, steps: Steps, timing: Timing | None, architecture: str, workers: int
) -> Waiting:
    """Who waited for whom; architecture: one way of making updates, leaders are not derived.

    timing: None for a real run, whose times of updates there is nothing to check with.
    """
    held = np.zeros((workers, workers))
    total = float(np.sum(run.summary["wait_by_rank"]))
    blank = Waiting(held, np.zeros_like(held), total)
    if architecture not in ("all-reduce", "model averaging", "server"):
        return Waiting(held, held, total, f"it is not derived for updates through {architecture}")
    if timing is None and architecture == "server":
        return Waiting(held, held, total, "no table says when a gradient came to the server")
    updates = _arrivals(steps, timing, architecture)
    times = np.asarray(run.updates["time"], dtype=np.float64)
    if len(updates) != len(times):
        return Waiting(held, held, total, "its steps do not account for all its updates")
    if timing is None:
        for gradients in updates.values():
            closing, last = max(gradients)
            for arrival, rank in gradients:
                held[rank, last] += closing - arrival
        return blank
    served = _serve(updates, timing.server.job) if architecture == "server" else {}
    for version, gradients in updates.items():
        closing, last = max(gradients)
        if architecture == "server":
            end = served[version, last] + timing.server.job
        else:
            end = timing.reduce(tuple(sorted(r for _, r in gradients)), closing)
        if not math.isclose(end, times[version - 1], rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return Waiting(
                held * 0,
                held * 0,
                total,
                "its steps alone do not give the times of its updates (as with windows, dropped "
                "gradients and riders)",
            )
        for arrival, rank in gradients:
            begun = served.get((version, rank), math.inf)
            in_service = max(min(begun + timing.server.job, closing) - begun, 0.0)
            held[rank, last] += closing - arrival - in_service
    return Waiting(held, _blocked(run, steps, blank.blocked), total)


def _ends(kept: npt.NDArray[np.bool_]) -> Ints:
    """For each step the one that completes its contribution: itself, unless it is kept."""
    rows = np.where(kept, len(kept), np.arange(len(kept)))
    return np.asarray(np.minimum.accumulate(rows[::-1])[::-1])


def _updates_of(run: Run, pulled: Ints, pulled_next: Ints) -> dict[int, Ints]:
    """For each rank the versions of the updates that hold a gradient of it.

    Of an excerpt only those that were made between two pulls of some rank.
    """
    versions = np.asarray(run.updates["version"], dtype=np.int64)
    rows, members = np.arange(len(versions)), run.updates["members"]
    if run.excerpt is not None:
        own = pulled_next >= 0
        begun, ended = np.zeros((2, len(versions) + 1), dtype=np.int64)
        np.add.at(begun, np.searchsorted(versions, pulled[own], side="right"), 1)
        np.add.at(ended, np.searchsorted(versions, pulled_next[own], side="right"), 1)
        rows = np.flatnonzero(np.cumsum(begun - ended)[:-1])
        members = [members[row] for row in rows.tolist()]
    found: dict[int, list[int]] = {}
    for version, ranks in zip(versions[rows].tolist(), members, strict=True):
        for rank in ranks:
            found.setdefault(int(rank), []).append(version)
    return {rank: np.array(made, dtype=np.int64) for rank, made in found.items()}


def _times(run: Run, versions: Ints) -> Floats:
    """When these updates were, 0 for none; of no meaning for those that an excerpt leaves out."""
    known = np.append(0, np.asarray(run.updates["version"], dtype=np.int64))
    times = np.append(0.0, np.asarray(run.updates["time"], dtype=np.float64))
    at = np.searchsorted(known, np.maximum(versions, 0))
    return np.asarray(times[np.minimum(at, len(times) - 1)])


def _known(run: Run, steps: Steps) -> npt.NDArray[np.bool_]:
    """Of which steps of an excerpt the rank's next pull is there, and all updates until then."""
    versions = np.asarray(run.updates["version"], dtype=np.int64)
    before, after = (
        np.searchsorted(versions, pulled, side="right")
        for pulled in (steps.version, steps.pulled_next)
    )
    return np.asarray(
        (steps.pulled_next >= 0) & (after - before == steps.pulled_next - steps.version)
    )


def _chosen(steps: Steps, rows: npt.NDArray[np.bool_]) -> Steps:
    return Steps(*(getattr(steps, column.name)[rows] for column in fields(steps)))


def _arrivals(
    steps: Steps, timing: Timing | None, architecture: str
) -> dict[int, list[tuple[float, int]]]:
    """For each update the (arrival, rank) of its gradients."""
    found: dict[int, list[tuple[float, int]]] = {}
    arrived = (steps.applied > 0) & ~steps.kept
    columns = (steps.applied, steps.rank, steps.finish)
    for version, rank, finish in zip(*(c[arrived].tolist() for c in columns), strict=True):
        through = timing if architecture == "server" else None
        arrival = through.push(rank, finish, loaded=True) if through else finish
        found.setdefault(version, []).append((arrival, rank))
    return found


def _serve(
    updates: dict[int, list[tuple[float, int]]], service: float
) -> dict[tuple[int, int], float]:
    """When the server took up each gradient: first in, first out, by (arrival, rank)."""
    jobs = sorted((a, r, version) for version, gradients in updates.items() for a, r in gradients)
    free, begun = 0.0, {}
    for arrival, rank, version in jobs:
        begun[version, rank] = max(arrival, free)
        free = begun[version, rank] + service
    return begun


def _blocked(run: Run, steps: Steps, blocked: Floats) -> Floats:
    """Time from a rank's own update to the later one at which it could go on."""
    members = run.updates["members"]
    for k in np.flatnonzero(steps.blocked > 0):
        freed = int(steps.pulled_next[k])
        if len(members[freed - 1]) == 1:
            blocked[steps.rank[k], int(members[freed - 1][0])] += steps.blocked[k]
    return blocked
