"""What a job lost, by kind: slow workers, pauses, drift, slower collectives, and chance.

The time of a step is that of its slowest rank, and then the collective.  Losses are taken away one
after the other, in the order of `KINDS`; each is what the mean step is shorter by.  So they add up,
and none is counted twice: a pause of a slow worker is the worker's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.statistics.drift import find_drift
from simstrag.statistics.pauses import Pauses, find_pauses, gather

STRAGGLERS, SCATTERED, COMMON, DRIFT, NETWORK, CHANCE = KINDS = (
    "stragglers", "scattered pauses", "common pauses", "drift", "network", "chance",
)  # fmt: skip
WORTH = 0.01
"""Share of the time from which pauses and drift are said."""


class NamedWorker(Protocol):
    """A worker that was named, as `simstrag.whatif.culprits` names it."""

    @property
    def pattern(self) -> str: ...
    @property
    def steps(self) -> tuple[int, ...]: ...


class Loss(NamedTuple):
    """One kind of loss.

    seconds: per mean steady step.
    share: of the mean steady step.
    facts: of common pauses `steps`, `period` (0: not periodic), `phase`, `each` (seconds of one);
        of scattered ones `pauses`, `ranks`, `each`, `together` (share won by pausing at the same
        steps); of drift `since`, `until`, `ratio`, `steps`.
    """

    kind: str
    seconds: float
    share: float
    facts: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """The losses of a record.

    start_up: how many leading steps are set apart, and the seconds that they took beyond steady
        ones, once.
    step: seconds of a mean steady step.
    parts: one of each kind, in the order of `KINDS`.
    pauses: of each rank and step.
    """

    start_up: tuple[int, float]
    step: float
    parts: tuple[Loss, ...]
    pauses: Pauses

    def of(self, kind: str) -> Loss:
        """The loss of a kind."""
        return next(each for each in self.parts if each.kind == kind)

    def with_stragglers(self, seconds: float) -> Losses:
        """With what a replay says that named workers cost, where ranks wait more than once."""
        own = Loss(STRAGGLERS, seconds, seconds / self.step, {})
        return replace(self, parts=(own, *self.parts[1:]))


def losses(
    seconds: Reals,
    numbers: Ints,
    slow: Sequence[tuple[int, NamedWorker]] = (),
    communication: float = 0.0,
    network: float = 0.0,
    start_up: tuple[int, float] = (0, 0.0),
) -> Losses:
    """The losses in the steady steps of ranks.

    seconds: that each rank computes, shape (ranks, steps).
    numbers: of the steps.
    slow: places of ranks in `seconds` that were named, and how.
    communication: seconds of the collective in a mean step.
    network: seconds of it that are lost to slower collectives.
    """
    found = find_pauses(seconds, numbers)
    recorded = found.level + found.scattered
    level, scattered = _like_peers(found, numbers, slow)
    drift = find_drift(level)
    drifted = drift.seconds / (drift.seconds + drift.base)  # share of a step, the slowest's, too
    best = float((np.median(level, axis=0) * (1 - drifted)).mean())
    step = float(recorded.max(axis=0).mean() + found.common.mean()) + communication
    paused, slowest = float(found.common.mean()), float(level.max(axis=0).mean())
    without = [step, float((level + scattered).max(axis=0).mean()) + paused + communication]
    without.append(slowest + paused + communication)
    without.append(slowest + communication)
    without.append(without[-1] - float((level.max(axis=0) * drifted).mean()))
    without.append(without[-1] - network)
    without.append(best + communication - network)
    lost = np.maximum(-np.diff(without), 0.0).tolist()
    facts = {
        COMMON: _of_common(found),
        SCATTERED: _of_scattered(scattered, lost[KINDS.index(SCATTERED)], step),
        DRIFT: {} if drift.first < 0 else {
            "since": float(numbers[drift.first]), "until": float(numbers[drift.last]),
            "ratio": drift.ratio, "steps": float(drift.steps),
        },
    }  # fmt: skip
    parts = (
        Loss(kind, each, each / step, facts.get(kind, {}))
        for kind, each in zip(KINDS, lost, strict=True)
    )
    return Losses(start_up, step, tuple(parts), found)


def _like_peers(
    found: Pauses, numbers: Ints, slow: Sequence[tuple[int, NamedWorker]]
) -> tuple[Reals, Reals]:
    """Seconds without pauses, and scattered pauses, with named workers like their peers.

    In its slow steps, a worker's computing is shorter by one factor, so that it keeps its noise.
    """
    level, scattered = found.level.copy(), found.scattered.copy()
    ranks = {rank for rank, _ in slow}
    others = [k for k in range(len(level)) if k not in ranks]
    if not others:
        return level, scattered
    usual = np.median(found.level[others], axis=0)
    for rank, each in slow:
        own = np.isin(numbers, each.steps)
        if each.pattern == "chronic":
            mine = float(np.median(found.level[rank, own]))
            level[rank, own] *= min(1.0, float(np.median(usual[own])) / mine) if mine > 0 else 1.0
        else:
            level[rank, own] = np.minimum(level[rank, own], usual[own])
            scattered[rank, own] = 0.0
    return level, scattered


def _of_common(found: Pauses) -> dict[str, float]:
    places = found.common > 0
    if not places.any():
        return {}
    return {
        "steps": float(places.sum()), "period": float(found.period), "phase": float(found.phase),
        "each": float(np.median(found.common[places])),
    }  # fmt: skip


def _of_scattered(scattered: Reals, lost: float, step: float) -> dict[str, float]:
    places = scattered > 0
    if not places.any():
        return {}
    return {
        "pauses": float(places.sum()), "ranks": float(places.any(axis=1).sum()),
        "each": float(np.median(scattered[places])),
        "together": max(0.0, lost - gather(scattered) / scattered.shape[1]) / step,
    }  # fmt: skip
