"""The recorded steps of a run, the fates of their gradients, and the decisions of the policy.

A step row says when a rank computed and which version it had pulled; an update row names the ranks
of its gradients.  Together they determine which update took which gradient, because a rank has one
gradient at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.runs.run import Run

UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, eq=False)
class RunSteps:
    """The steps of a run as arrays, in order of rank and step.

    step: number of the step on its rank.  Steps whose fate is not in an excerpt are left out.
    applied: version after the update that holds the gradient; 0 where no update does (dropped,
    aborted, or in flight at the end).
    pulled_next: version at the rank's next recorded pull, -1 at its last.
    gap_end: when the rank computes again; at its last recorded step, the time of its update.
    blocked: seconds from the update that holds the gradient to the later one at which the rank may
    continue, as at a bound; the last part of `wait`.
    kept: whether the rank went on without a pull; the gradient then has the fate of its next one.
    last: whether it is the rank's last recorded step, which an excerpt never has.
    """

    rank: Ints
    step: Ints
    version: Ints
    amp: Bools
    start: Floats
    finish: Floats
    wait: Floats
    communication: Floats
    applied: Ints
    pulled_next: Ints
    gap_end: Floats
    blocked: Floats
    kept: Bools
    last: Bools

    @property
    def lost(self) -> Bools:
        """Whether the work was dropped or aborted: the rank pulled again, and no update held it."""
        return np.asarray((self.applied == 0) & (self.pulled_next >= 0))

    @property
    def follows(self) -> Bools:
        """Whether a step comes right after the one in the row above, on the same rank."""
        found = np.zeros(len(self.rank), dtype=np.bool_)
        found[1:] = (np.diff(self.rank) == 0) & (np.diff(self.step) == 1)
        return found

    @property
    def entered(self) -> Bools:
        """Whether a step's own gradient completed a contribution to an update."""
        return np.asarray((self.applied > 0) & ~self.kept)


def steps_of(run: Run) -> RunSteps:
    """The recorded steps with the fate of each. Raises `InputError` where the run kept none."""
    table = run.frame("steps").sort_values(["rank", "step"], kind="stable")
    rank, step, version = (
        table[name].to_numpy(dtype=np.int64) for name in ("rank", "step", "version")
    )
    start, finish, wait, communication = (
        table[name].to_numpy(dtype=np.float64)
        for name in ("start", "finish", "wait", "communication")
    )
    last = np.append(rank[1:] != rank[:-1], True)
    if run.excerpt is not None:
        last[:-1] |= step[1:] != step[:-1] + 1
    kept = ~last & np.append(version[1:] == version[:-1], False)
    # the step that completes each step's contribution: itself, unless it is kept
    ends = np.where(kept, len(kept), np.arange(len(kept)))
    ends = np.minimum.accumulate(ends[::-1])[::-1]
    pulled_next = np.where(last, -1, np.append(version[1:], -1))[ends]
    applied = np.zeros(len(rank), dtype=np.int64)
    for r, versions in _updates_of(run, version, pulled_next).items():
        own = np.flatnonzero(rank == r)
        at = np.searchsorted(versions, version[own], side="right")
        found = np.append(versions, np.iinfo(np.int64).max)[at]
        limit = np.where(pulled_next[own] < 0, run.summary["updates"], pulled_next[own])
        applied[own] = np.where(found <= limit, found, 0)
    made = update_times(run, applied)
    gap_end = np.where(last, np.maximum(made, finish + wait), np.roll(start, -1))
    amp = table["precision"].to_numpy() == "amp"
    held_back = (applied > 0) & ~kept & (pulled_next > applied)
    blocked = np.minimum(np.where(held_back, update_times(run, pulled_next) - made, 0.0), wait)
    columns = (
        rank, step, version, amp, start, finish, wait, communication, applied, pulled_next,
        gap_end, blocked, kept, last,
    )  # fmt: skip
    if run.excerpt is None:
        return RunSteps(*columns)
    # in an excerpt: steps for which it has the next pull of the rank and all updates until then
    versions = np.asarray(run.updates["version"], dtype=np.int64)
    before, after = (np.searchsorted(versions, v, side="right") for v in (version, pulled_next))
    known = (pulled_next >= 0) & (after - before == pulled_next - version)
    return RunSteps(*(column[known] for column in columns))


def _updates_of(run: Run, pulled: Ints, pulled_next: Ints) -> dict[int, Ints]:
    """The versions of the updates that hold a gradient of each rank.

    In an excerpt, only updates between two pulls of some rank.
    """
    versions = np.asarray(run.updates["version"], dtype=np.int64)
    rows = np.arange(len(versions))
    members: Sequence[Any] = run.updates["members"]
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


def update_times(run: Run, versions: Ints) -> Floats:
    """Times of the updates that made these versions, 0 for version 0.

    They are meaningless for updates that an excerpt leaves out.
    """
    known = np.append(0, np.asarray(run.updates["version"], dtype=np.int64))
    times = np.append(0.0, np.asarray(run.updates["time"], dtype=np.float64))
    at = np.searchsorted(known, np.maximum(versions, 0))
    return np.asarray(times[np.minimum(at, len(times) - 1)])


# -- fates ---------------------------------------------------------------------------------------


class Fate(NamedTuple):
    """The fate of a gradient, and the version that its update made, if any.

    word: applied, dropped, aborted, in flight (at the end of the run), or the possible ones.
    """

    word: str
    update: int | None


def fates_of(run: Run, steps: RunSteps, rows: Ints | slice = slice(None)) -> list[Fate]:
    """Fates from the gradient log, else inferred from the updates' members and the run's totals.

    rows: of `steps`, all by default.
    """
    nothing = Fate(UNKNOWN, None)
    if (g := run.gradients) is not None:
        columns = zip(g["rank"], g["step"], g["update"], g["fate"], strict=True)
        known = {
            (rank, step): Fate(fate.replace("_", " "), int(update) if fate == "applied" else None)
            for rank, step, update, fate in columns
        }
        pairs = zip(steps.rank[rows].tolist(), steps.step[rows].tolist(), strict=True)
        return [known.get(pair, nothing) for pair in pairs]
    applied, lost = steps.applied[rows].tolist(), steps.lost[rows].tolist()
    counted = {name: run.summary[name] for name in ("dropped", "aborted")}
    if run.excerpt is None and np.count_nonzero(steps.applied) != run.summary["applied"]:
        return [nothing] * len(applied)
    thrown_away = " or ".join(name for name, count in counted.items() if count)
    every = np.count_nonzero(steps.lost) == sum(counted.values())
    at_end = "in flight" if every else f"{thrown_away} or in flight"
    return [
        Fate("applied", version) if version else Fate(thrown_away if gone else at_end, None)
        for version, gone in zip(applied, lost, strict=True)
    ]


# -- decisions -----------------------------------------------------------------------------------

WORDS = {
    "suspects": "suspects", "amp": "precision", "way": "way", "groups": "groups", "batch": "batch",
}  # fmt: skip
"""Names of the columns of `Run.decisions`, for their changes."""
MOST_RANKS = 8
"""Largest number of ranks to name; above it only the number is given."""


class PlanChange(NamedTuple):
    """A plan that came into force at `time` (s) with an update. what: its changes in words."""

    time: float
    update: int
    what: str


class Suspicion(NamedTuple):
    """The time (s) over which a rank was suspected, and the update after which it began."""

    rank: int
    start: float
    end: float
    update: int


def headings(run: Run) -> list[str]:
    """The changes in each row of the decisions, from the first plan on; empty without decisions.

    >>> from simstrag import Scenario, simulate
    >>> headings(simulate(Scenario(workers=2, updates=3, step={"compute": 0.1}), "bsp"))
    ['first plan']
    """
    rows = _rows(run)
    changed = (
        ", ".join(word for column, word in WORDS.items() if before[column] != after[column])
        for before, after in itertools.pairwise(rows)
    )
    return ["first plan", *changed] if rows else []


def plan_changes(run: Run) -> list[PlanChange]:
    """The changes of plan in order, without those of suspects alone; empty without decisions.

    >>> from types import SimpleNamespace
    >>> same = {"amp": [(), ()], "way": ["server", "server"], "batch": [None, None]}
    >>> decisions = {"time": [0.0, 2.0], "update": [0, 7], "groups": [1, 2]} | same
    >>> plan_changes(SimpleNamespace(decisions=decisions))
    [PlanChange(time=2.0, update=7, what='groups: 1 → 2')]
    """
    phrases: dict[str, tuple[str, Callable[[Any], str]]] = {
        "amp": ("reduced precision:", _ranks), "way": ("updates by", str),
        "groups": ("groups:", str), "batch": ("shares of the batch:", _shares),
    }  # fmt: skip
    found = []
    for before, after in itertools.pairwise(_rows(run)):
        what = [
            f"{phrase} {show(before[column])} → {show(after[column])}"
            for column, (phrase, show) in phrases.items()
            if after[column] != before[column]
        ]
        if what:
            found.append(PlanChange(after["time"], after["update"], "; ".join(what)))
    return found


def suspicions(run: Run) -> list[Suspicion]:
    """All suspicions, by their start and then by rank.

    A suspicion that the policy never lifts lasts until the last update.
    """
    if run.decisions is None:
        return []
    found: list[Suspicion] = []
    began: dict[int, tuple[float, int]] = {}
    columns = (run.decisions[name] for name in ("time", "update", "suspects"))
    end = float(run.updates["time"][-1])
    for time, update, suspects in (*zip(*columns, strict=True), (end, None, ())):
        now = set(suspects or ())
        for rank in began.keys() - now:
            start, since = began.pop(rank)
            found.append(Suspicion(rank, start, time, since))
        for rank in now - began.keys():
            began[rank] = time, update
    return sorted(found, key=lambda s: (s.start, s.rank))


def _rows(run: Run) -> list[dict[str, Any]]:
    table: Mapping[str, Sequence[Any]] = run.decisions or {}
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks in words.

    >>> _ranks(()), _ranks((3,)), _ranks((1, 2)), _ranks(range(9))
    ('no rank', 'rank 3', 'ranks 1, 2', '9 ranks')
    """
    if len(ranks) > MOST_RANKS:
        return f"{len(ranks)} ranks"
    listed = ", ".join(map(str, ranks))
    return f"rank{'s' * (len(ranks) > 1)} {listed}" if ranks else "no rank"


def _shares(batch: Sequence[float] | None) -> str:
    """The shares of a batch in words.

    >>> _shares(None), _shares((0.5, 1.25, 1.25))
    ('equal', '0.5 to 1.25 of the nominal')
    """
    return "equal" if batch is None else f"{min(batch):.3g} to {max(batch):.3g} of the nominal"
