"""The metrics of a what-if analysis: what the job lost, and to which operations.

Source: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
OSDI 2025; docs/diagnose.md has the formulas.  All are ratios of replayed step times, of means over
steps or of single steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simstrag.arrays import Bools, Reals
from simstrag.records.record import TRANSFERS
from simstrag.whatif.replay import JobReplay

TOP = 0.03
"""Share of the ranks that count as the top workers of M_W."""
DELAYED = 1.03
"""Replay error from which delays are decomposed."""
FIRST = "first-op"
"""The first forward operation of a step, or its receive, where its delay is meant."""


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """The slowdown if only some operations are as recorded.

    whole: by name, from the mean over steps.
    by_step: shape (steps,), by name.
    """

    whole: dict[str, float]
    by_step: dict[str, Reals]


@dataclass(frozen=True, slots=True, eq=False)
class GroupShare:
    """The part of some operations in the slowdown.

    removed: share of the slowdown that goes if they are ideal (M_W, M_S).
    alone: share of the slowdown that they cause if all others are ideal.
    fixed, only: seconds of a mean step in these two cases.
    """

    removed: float
    alone: float
    fixed: float
    only: float


@dataclass(frozen=True, slots=True, eq=False)
class Metrics:
    """What a job lost to operations that took longer than others of their kind.

    recorded, replayed, ideal: seconds of each step: as recorded, without delays, and with every
        operation at the ideal of its kind.
    by_kind, by_replica, by_stage: S_t, S_d, S_p.
    by_worker: S_w of each replica and stage, shape (replicas, stages).
    delays: slowdown by the delays of each kind, replica or stage; None where the replay error is
        below 1.03.
    top: share of the top 3 % of workers (M_W), and their ranks.
    last_stage: share of the last stage (M_S); None without stages.
    """

    step: tuple[int, ...]
    recorded: Reals
    replayed: Reals
    ideal: Reals
    by_kind: Decomposition
    by_replica: Decomposition
    by_stage: Decomposition
    by_worker: Reals
    delays: Mapping[str, Decomposition] | None
    top: GroupShare
    top_ranks: tuple[int, ...]
    last_stage: GroupShare | None

    @property
    def slowdown(self) -> float:
        """S: mean replayed step over mean ideal step."""
        return float(self.replayed.mean() / self.ideal.mean())

    @property
    def replay_error(self) -> float:
        """Mean recorded step over mean replayed step."""
        return float(self.recorded.mean() / self.replayed.mean())

    @property
    def slowdown_by_step(self) -> Reals:
        """S of each step."""
        return np.asarray(self.replayed / self.ideal)

    @property
    def replay_error_by_step(self) -> Reals:
        """Recorded over replayed, of each step."""
        return np.asarray(self.recorded / self.replayed)


def metrics(replay: JobReplay) -> Metrics:
    """All metrics of a record: two rounds of replays, the second for M_W and M_S."""
    layout = replay.layout
    shape = layout.rank.shape
    by = {name: _masks(replay, name) for name in ("kind", "replica", "stage")}
    names = [(by_name, name) for by_name, masks in by.items() for name in masks]
    cases = np.stack([
        np.ones(shape, np.bool_), np.zeros(shape, np.bool_),
        *(by[by_name][name] for by_name, name in names),
    ])  # fmt: skip
    replayed, ideal, *parts = replay.step_times(cases)
    found = {
        by_name: _decompose({n: t for (b, n), t in zip(names, parts, strict=True) if b == by_name},
                            ideal)
        for by_name in by
    }  # fmt: skip
    scores = np.minimum.outer(
        [found["replica"].whole[str(d)] for d in layout.replica.tolist()],
        [found["stage"].whole[str(p)] for p in range(layout.stages)],
    )
    top_ranks = _top_ranks(replay, scores)
    groups = [np.isin(layout.rank, top_ranks)]
    if layout.stages > 1:
        groups.append(np.broadcast_to((layout.stage == layout.stages - 1)[:, None], shape))
    shares = _shares(replay, groups, float(replayed.mean()), float(ideal.mean()))
    recorded = layout.recorded
    delays = None
    if recorded.mean() / replayed.mean() >= DELAYED:
        delays = _delays(replay, by, replayed)
    return Metrics(
        tuple(layout.step.tolist()), recorded, replayed, ideal, found["kind"], found["replica"],
        found["stage"], scores, delays, shares[0], top_ranks,
        shares[1] if len(shares) > 1 else None,
    )  # fmt: skip


def group_kinds(kinds: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The kinds that count as one, by their common name: sends and receives of a direction.

    >>> group_kinds(("gc", "forward-send", "forward-recv"))
    {'gc': ('gc',), 'forward-pp-comm': ('forward-send', 'forward-recv')}
    """
    groups: dict[str, tuple[str, ...]] = {}
    for kind in kinds:
        name = f"{kind.partition('-')[0]}-pp-comm" if kind in TRANSFERS else kind
        groups[name] = (*groups.get(name, ()), kind)
    return groups


def _masks(replay: JobReplay, by: str) -> dict[str, Bools]:
    """Which operations are of each kind, replica or stage, by its name."""
    layout, shape = replay.layout, replay.layout.rank.shape
    if by == "replica":
        own = np.arange(len(layout.replica))
        return {
            str(d): np.broadcast_to(own == k, shape) for k, d in enumerate(layout.replica.tolist())
        }
    if by == "stage":
        columns = {str(p): layout.stage == p for p in range(layout.stages)}
    else:
        present = tuple(layout.kinds[k] for k in np.unique(layout.kind).tolist())
        columns = {name: layout.find(*kinds) for name, kinds in group_kinds(present).items()}
    return {name: np.broadcast_to(column[:, None], shape) for name, column in columns.items()}


def _decompose(times: Mapping[str, Reals], ideal: Reals) -> Decomposition:
    whole = {name: float(each.mean() / ideal.mean()) for name, each in times.items()}
    return Decomposition(whole, {name: each / ideal for name, each in times.items()})


def _top_ranks(replay: JobReplay, scores: Reals) -> tuple[int, ...]:
    """The 3 % of ranks of highest S_w, of equal ones the lower."""
    layout = replay.layout
    worker = scores[np.arange(len(layout.replica)), layout.stage[:, None]]
    ranks, first = np.unique(layout.rank, return_index=True)
    score = worker.ravel()[first]
    count = math.ceil(TOP * len(ranks))
    return tuple(ranks[np.lexsort((ranks, -score))][:count].tolist())


def _shares(
    replay: JobReplay, groups: list[Bools], recorded: float, ideal: float
) -> list[GroupShare]:
    """The shares of groups of operations, from means of replayed and ideal steps."""
    times = replay.step_times(np.stack([~each for each in groups] + groups)).mean(axis=1)
    lost = recorded - ideal
    shares = []
    for fixed, only in zip(
        times[: len(groups)].tolist(), times[len(groups) :].tolist(), strict=True
    ):
        removed, alone = ((recorded - fixed) / lost, (only - ideal) / lost) if lost else (0.0, 0.0)
        shares.append(GroupShare(removed, alone, fixed, only))
    return shares


def _delays(
    replay: JobReplay, by: Mapping[str, Mapping[str, Bools]], replayed: Reals
) -> dict[str, Decomposition]:
    """Replays of recorded durations with the delays of one group; the first operations apart."""
    shape, first = replay.layout.rank.shape, first_operations(replay)
    kinds = {name: mask & ~first for name, mask in by["kind"].items()}
    grouped: dict[str, Mapping[str, Bools]] = {**by, "kind": {**kinds, FIRST: first}}
    names = [(b, n) for b, masks in grouped.items() for n in masks]
    delayed = np.stack([grouped[b][n] for b, n in names])
    times = replay.step_times(np.ones((len(names), *shape), np.bool_), delayed)
    return {
        b: _decompose(
            {n: t for (own, n), t in zip(names, times, strict=True) if own == b}, replayed
        )
        for b in grouped
    }


def first_operations(replay: JobReplay) -> Bools:
    """Whether an operation is the first forward of the first stage, or the receive before it.

    In a record without pipelines, none is: what precedes computing belongs to it.
    """
    layout = replay.layout
    forward, receive = layout.find("forward-compute"), layout.find("forward-recv")
    first = np.where(layout.stage == 0, forward, receive) & (layout.number == 0)
    return np.broadcast_to(first[:, None], layout.rank.shape)
