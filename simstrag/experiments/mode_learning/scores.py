"""What the choices of star_ml, star_h and fixed modes cost over the best mode of each moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simstrag.experiments.mode_learning.moments import Moment
from simstrag.policies.estimators.modes import ModeNetwork


@dataclass(frozen=True, slots=True)
class RegretScore:
    """The regret of one way to choose.

    name: star_ml, star_h or a fixed mode.
    mean, worst: cost over the least of all modes, minus 1.
    best: share of the moments in which it is within 1 % of the least.
    """

    name: str
    mean: float
    worst: float
    best: float


def _share(share: float) -> Callable[[Moment], int]:
    """The number of the tried x that is nearest to a share of the ranks."""

    def choose(moment: Moment) -> int:
        apart = [
            np.inf if mode.groups else abs(mode.x - max(share * moment.ranks, 1))
            for mode in moment.modes
        ]
        return int(np.argmin(apart))

    return choose


FIXED: dict[str, Callable[[Moment], int]] = {
    "all": lambda moment: 0,
    "x = 3N/4": _share(0.75), "x = N/2": _share(0.5), "x = N/4": _share(0.25),
    "x = 1": _share(0.0),
    "groups": lambda moment: len(moment.modes) - 1 if moment.modes[-1].groups else 0,
}  # fmt: skip
"""Modes that stay whatever is seen; groups are those of the moment, all together if it has none."""


def regrets(found: Sequence[Moment], network: ModeNetwork) -> list[RegretScore]:
    """Of star_ml, star_h and every fixed mode; a mode that was not tried stands for its nearest."""
    rules: dict[str, Callable[[Moment], int]] = {
        "star_ml": lambda moment: int(np.argmin(network.scores(moment.features))),
        "star_h": lambda moment: moment.star_h,
        **FIXED,
    }
    rows = []
    for name, choose in rules.items():
        lost = np.array([each.regrets[choose(each)] for each in found])
        rows.append(
            RegretScore(name, float(lost.mean()), float(lost.max()), float((lost <= 0.01).mean()))
        )
    return rows
