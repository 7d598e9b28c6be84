"""What each gradient of an all-reduce is multiplied by, before the books say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simstrag.errors import PlanError
from simstrag.plan import Plan, Weigh

__all__ = ["Sum", "averaged", "factor_of", "weights"]

TOLERANCE = 1e-9
"""How far factors of one sum may differ, relatively: they are products of roundings."""


@dataclass(frozen=True, slots=True)
class Sum:
    """What an all-reduce adds up, and at whom: each gradient times its weight, at rank `root`.

    members: whose gradients the books see in it.  weights: of those who took part, by rank.
    average: it is models.
    """

    root: int
    members: tuple[int, ...]
    weights: dict[int, float]
    average: bool


def weights(
    plan: Plan, samples: Mapping[int, int], versions: Mapping[int, int], version: int, whole: int
) -> dict[int, float]:
    """The weight of each gradient, by rank, if it were applied now (rule 24).

    samples, versions: of each gradient, its samples and the version it was computed from.
    version: the present one.  whole: the samples of all ranks in one step, N*b.

    >>> weights(Plan(), {0: 32, 3: 32}, {0: 7, 3: 5}, version=7, whole=128)
    {0: 0.25, 3: 0.25}
    """
    damping = plan.damping
    stale = {rank: version - own for rank, own in versions.items()}
    kept = {rank: own for rank, own in samples.items() if not damping.drops(stale[rank])}
    against = whole if plan.weigh is Weigh.WORLD else sum(kept.values())
    return {
        rank: own / against * damping.factor(stale[rank]) if rank in kept else 0.0
        for rank, own in samples.items()
    }


def averaged(samples: Mapping[int, int]) -> dict[int, float]:
    """The weight of each model: its share of the samples.

    >>> averaged({1: 30, 2: 10})
    {1: 0.75, 2: 0.25}
    """
    return {rank: own / sum(samples.values()) for rank, own in samples.items()}


def factor_of(whole: Sum, booked: Mapping[int, float]) -> float:
    """By what a sum is multiplied so that its gradients weigh what the books say; 1 as a rule.

    booked: weights by rank.  Raises `PlanError` where one factor cannot do it: while the sum was
    made, gradients of different age have grown older.
    """
    factors = [booked.get(rank, 0.0) / told for rank, told in whole.weights.items() if told > 0]
    first = factors[0] if factors else 0.0
    uneven = any(abs(factor - first) > TOLERANCE * first for factor in factors)
    if uneven or any(booked.get(rank, 0.0) for rank, told in whole.weights.items() if not told):
        raise PlanError(
            "a weight that falls with staleness changed while an all-reduce of gradients of "
            "different age was under way; use via=server with such a damping"
        )
    return first
