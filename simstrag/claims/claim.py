"""A claim of a paper as data, and the two studies that try it.

A claim is tried in the nearest scenario that its setting, as far as it is known, allows; and on a
map, a grid over the two constants that decide most about it.  Under the formula (the noise-scale
learner) the map has every value; where a built-in task can answer too, the nearest scenario is
trained for real.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from simstrag.claims.measures import ClaimMeasure
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.study import with_values

SEVERITY = "contention.severity"
"""The key of a scenario whose value 0 is no contention."""
SEEDS = {"formula": (10, 3), "real": (6, 3)}
"""Seeds under each learner: of the full scoreboard, and of a quick one."""
TARGETS = ("target_progress", "target_accuracy")

Learner = Literal["formula", "real"]


@dataclass(frozen=True, slots=True)
class MapAxis:
    """A constant of a claim's map.

    name: with its unit.
    key: of a scenario.
    values: of the key.
    labels: of the values.
    here: index of the nearest setting.
    """

    name: str
    key: str
    values: tuple[Any, ...]
    labels: tuple[str, ...]
    here: int

    def coarse(self) -> MapAxis:
        """The axis with its ends and the nearest setting alone.

        >>> MapAxis("workers", "workers", (2, 4, 8, 16), ("2", "4", "8", "16"), 2).coarse().labels
        ('2', '8', '16')
        """
        kept = sorted({0, self.here, len(self.values) - 1})
        return self._of(kept)

    def nearest(self) -> MapAxis:
        """The axis with the nearest setting alone."""
        return self._of([self.here])

    def span(self, places: Sequence[int]) -> str:
        """The labels at ascending places, neighbours as a range.

        >>> MapAxis("workers", "workers", (2, 4, 8, 16), ("2", "4", "8", "16"), 2).span([0, 1, 3])
        '2 to 4, 16'
        """
        starts = [k for k in places if k - 1 not in places]
        ends = [k for k in places if k + 1 not in places]
        pairs = [(self.labels[a], self.labels[b]) for a, b in zip(starts, ends, strict=True)]
        return ", ".join(low if low == high else f"{low} to {high}" for low, high in pairs)

    def _of(self, kept: list[int]) -> MapAxis:
        values, labels = (tuple(each[k] for k in kept) for each in (self.values, self.labels))
        return replace(self, values=values, labels=labels, here=kept.index(self.here))


def points_of(axes: Sequence[MapAxis]) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """The index along each axis, and the values by key, of every point; the last varies fastest."""
    for place in itertools.product(*(range(len(axis.values)) for axis in axes)):
        yield place, {axis.key: axis.values[k] for axis, k in zip(axes, place, strict=True)}


class Entrant(NamedTuple):
    """Policy, placer and manager of all jobs of a cluster.

    >>> Entrant.of("star_h | star | star").manager, Entrant.of("asgd")
    ('star', Entrant(policy='asgd', placer='rotate', manager='none'))
    """

    policy: str
    placer: str = "rotate"
    manager: str = "none"

    @classmethod
    def of(cls, text: str) -> Entrant:
        """From `policy | placer | manager`; without the others it is placed as by the launchers."""
        return cls(*(part.strip() for part in text.split("|")))


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim.

    name: for `--only`.
    paper: authors, venue, year.
    says: the claim in one sentence, with where it was read: [V] read, [D] computed from published
        data, [M] from memory.
    number: what the measure must exceed, as a share or ratio.
    policy, rivals: whose runs are measured.
    setting: of the paper, as far as it is known.
    nearest: what of the scenario is from there, and what is assumed.
    scenario: its keys.
    axes: one or two constants of the map.
    is_averaged: whether the number is of the mean over all points of the map.
    real: the keys of a scenario that trains; or the reason why none can tell.
    trained: whether only training can tell.
    trained_rivals: further ones, whose updates have no formula.
    untestable: the reason why nothing can be said; empty where something can.
    draw: of a claim about jobs that share a cluster, the keys of a cluster study from the number
        of a draw of its jobs, `trained=` and the keys of the map; a quick scoreboard gives `jobs=`
        and `seconds=`.  Its policies are entrants.
    beside: entrants that are measured too, and not judged; time is saved against the first.
    parts: what its policy is made of: words and an entrant each, in the nearest setting alone.
    """

    name: str
    paper: str
    says: str
    number: float
    measure: ClaimMeasure
    policy: str
    rivals: tuple[str, ...]
    setting: str
    nearest: str
    scenario: Mapping[str, Any]
    axes: tuple[MapAxis, ...]
    real: Mapping[str, Any] | str
    trained: bool = False
    trained_rivals: tuple[str, ...] = ()
    untestable: str = ""
    is_averaged: bool = False
    draw: Callable[..., dict[str, Any]] | None = None
    beside: tuple[str, ...] = ()
    parts: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.draw and not self.beside:
            raise ValueError(f"{self.name}: a claim with draws has an entrant beside, such as bsp")

    @property
    def learners(self) -> tuple[Learner, ...]:
        """The learners that can answer."""
        if self.untestable:
            return ()
        formula: tuple[Learner, ...] = () if self.trained else ("formula",)
        return formula if isinstance(self.real, str) else (*formula, "real")

    def rivals_under(self, learner: Learner) -> tuple[str, ...]:
        """The rivals that a learner can compare."""
        return (*self.rivals, *(self.trained_rivals if learner == "real" else ()))

    def tried(self, quick: bool) -> tuple[Learner, ...]:
        """The learners of a scoreboard; a quick one trains nothing."""
        return tuple(each for each in self.learners if not quick or each == "formula")

    def drawn_axes(self, learner: Learner, quick: bool) -> tuple[MapAxis, ...]:
        """The axes of a learner's points; training has a map only where the formula has none.

        What the trained scenario states itself is not varied.  Of jobs that share a cluster a quick
        scoreboard has no map: they are few and short.
        """
        if self.draw and quick:
            return ()
        if learner != self.learners[0]:
            return tuple(axis.nearest() for axis in self.axes if axis.key not in self.real)
        return tuple(axis.coarse() for axis in self.axes) if quick else self.axes

    def study(self, learner: Learner, quick: bool) -> dict[str, Any]:
        """The keys of the study, for `sweep`; a claim with draws has none."""
        assert self.draw is None, f"{self.name} has draws in place of a study"
        grid = {axis.key: [*axis.values] for axis in self.drawn_axes(learner, quick)}
        if self.measure.needs_clean:
            grid[SEVERITY] = [0.0, *grid[SEVERITY]]
        scenario = dict(self.scenario)
        if learner == "real" and not isinstance(self.real, str):
            scenario = {key: value for key, value in scenario.items() if key not in TARGETS}
            scenario = {**with_values(scenario, {}), **self.real}
        policies = [*dict.fromkeys((self.policy, *self.rivals_under(learner), BASELINE))]
        seeds = SEEDS[learner][quick]
        return {"scenario": scenario, "grid": grid, "policies": policies, "seeds": seeds}

    def count_runs(self, learner: Learner, quick: bool) -> int:
        """Number of runs of the claim's study."""
        study = self.study(learner, quick)
        points = math.prod(map(len, study["grid"].values()))
        return points * len(study["policies"]) * int(study["seeds"])
