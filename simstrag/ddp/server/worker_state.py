"""The state of each rank as the coordinator knows it, and the weights of gradients and models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from simstrag.contract import Plan, Quorum, Via, Weigh
from simstrag.ddp.policy_support import waits_for_all
from simstrag.ddp.server.messages import Apply, Compute, GradientRoute
from simstrag.engine.live import Update
from simstrag.errors import PlanError
from simstrag.learning.update_rule import UpdateRule

TOLERANCE = 1e-9
"""Factors that differ relatively by less than this count as equal: they carry rounding errors."""


@dataclass(frozen=True, slots=True)
class ReducedSum:
    """The result of an all-reduce: each gradient, or model, times its weight.

    root: the rank that has sent the sum to the server.
    members: the ranks whose gradients the engine counts in it.
    weights: weights of the ranks that took part.
    average: whether ranks averaged their models, of which the server gets nothing.
    closing: the number of the all-reduce, if the sum stayed at the ranks.
    in_rounds: whether it is of a group with rounds.
    """

    root: int
    members: tuple[int, ...]
    weights: dict[int, float]
    average: bool
    closing: int | None = None
    in_rounds: bool = False


@dataclass
class WorkerState:
    """One rank.

    work: the step that it computes; None unless it is away.
    aborted: whether that step was aborted.
    next_work: the step that it begins when it is back.
    delivered: whether its gradient is at the server.
    requested: whether the server has asked for the gradient.
    finite: whether the gradient is finite.
    samples, version: samples of its gradient, and version of their parameters.
    squared_norm: of its gradient, as the rank measured it; else NaN.
    sum: the all-reduce that its gradient is part of.
    broken: whether the collective of its group has failed.
    private: whether it has a model of its own.
    averaged: the last update that its model went into.
    started: the version of its last step, as the engine gave it.
    prepared: samples of the contribution that it has run on from, and whether its last gradient is
        finite; None where there is none under way.
    rounds: the sums of its group since its pull, after which it went on without another.
    """

    work: Compute | None = None
    aborted: bool = False
    next_work: Compute | None = None
    delivered: bool = False
    requested: bool = False
    finite: bool = True
    samples: int = 0
    version: int = 0
    squared_norm: float = math.nan
    sum: ReducedSum | None = None
    broken: bool = False
    private: bool = False
    averaged: int = 0
    started: int = 0
    prepared: tuple[int, bool] | None = None
    rounds: tuple[ReducedSum, ...] = ()

    @property
    def holds_gradient(self) -> bool:
        """Whether its gradient is with the rank alone."""
        return self.sum is None and not self.delivered

    def start(self) -> Compute:
        """Begin the next step; nothing of the last one counts any more."""
        assert self.next_work is not None
        self.work, self.next_work = self.next_work, None
        self.delivered, self.requested, self.sum = False, False, None
        return self.work


def is_fixed(quorum: Quorum) -> bool:
    """Whether the members of a group are known before its steps, so that DDP can all-reduce."""
    everyone = quorum.count is None and quorum.window == math.inf and not quorum.private
    leads = quorum.via is Via.LEADER and everyone and not quorum.riders
    return leads or bool(quorum.parents)


def route(rank: int, plan: Plan) -> tuple[GradientRoute, tuple[int, ...]]:
    """The route of a rank's gradient under a resolved plan, and the rank's group."""
    for quorum in plan.quorums:
        if rank in quorum.members and quorum.via is Via.SERVER:
            group = _message(rank, quorum)
            return (GradientRoute.GROUP, group) if group else (GradientRoute.PUSH, ())
        if rank in quorum.members and is_fixed(quorum):
            return GradientRoute.GROUP, quorum.members
    return GradientRoute.READY, ()


def _message(rank: int, quorum: Quorum) -> tuple[int, ...]:
    """The ranks of a gradient tree whose sum goes to the server in one message with a rank's."""
    parent = dict(quorum.parents).get(rank, rank)
    children = [child for child, other in quorum.parents if other == parent]
    return tuple(sorted([parent, *children])) if children else ()


def gradient_weights(
    plan: Plan, samples: Mapping[int, int], versions: Mapping[int, int], version: int, whole: int
) -> dict[int, float]:
    """The weight of each gradient, by rank, if it were applied now (rule 24).

    samples, versions: by rank, a gradient's samples and the version it was computed from.
    version: version of the present parameters.
    whole: samples of all ranks in one step, N*b.

    >>> gradient_weights(Plan(), {0: 32, 3: 32}, {0: 7, 3: 5}, version=7, whole=128)
    {0: 0.25, 3: 0.25}
    """
    damping = plan.damping
    staleness = {rank: version - other for rank, other in versions.items()}
    kept = {rank: n for rank, n in samples.items() if not damping.drops(staleness[rank])}
    total = whole if plan.weigh is Weigh.WORLD else sum(kept.values())
    return {
        rank: n / total * damping.factor(staleness[rank]) if rank in kept else 0.0
        for rank, n in samples.items()
    }


def is_served(plan: Plan, world_size: int) -> bool:
    """Whether the server has the model that private steps begin from.

    Ranks have it themselves where there is none but their averages, or all are in each update.
    """
    if not plan.average:
        return False
    (first, *others) = plan.quorums
    together = not others and waits_for_all(first) and len(first.members) == world_size
    rule = UpdateRule.of(plan)
    return rule.server or (rule.has_global_model and not together)


def model_weights(samples: Mapping[int, int]) -> dict[int, float]:
    """The weight of each model in an average: its share of the samples.

    >>> model_weights({1: 30, 2: 10})
    {1: 0.75, 2: 0.25}
    """
    return {rank: n / sum(samples.values()) for rank, n in samples.items()}


def rescale(reduced: ReducedSum, booked: Mapping[int, float]) -> float:
    """The factor that gives a sum the weights booked by the engine; mostly 1.

    booked: weights by rank.
    Raises `PlanError` if no single factor exists: staleness damping changed the weights unequally
    during the all-reduce.
    """
    weights = reduced.weights
    factors = [booked.get(rank, 0.0) / weight for rank, weight in weights.items() if weight > 0]
    first = factors[0] if factors else 0.0
    uneven = any(abs(factor - first) > TOLERANCE * first for factor in factors)
    if uneven or any(booked.get(rank, 0.0) for rank, weight in weights.items() if not weight):
        raise PlanError(
            "a weight that falls with staleness changed while an all-reduce of gradients of "
            "different age was under way; use via=server with such a damping"
        )
    return first


def describe_update(update: Update, workers: Sequence[WorkerState], rule: UpdateRule) -> Apply:
    """The command for an update that the engine has made: single gradients, and whole sums.

    rule: what it makes of models.
    """
    gradients = sorted(update.gradients)
    weight_of: dict[int, float] = {}
    for gradient in gradients:  # the steps of a contribution share one fate
        weight_of[gradient.rank] = weight_of.get(gradient.rank, 0.0) + gradient.weight
    parts: dict[int, float] = {}
    missing: set[int] = set()
    _settle_rounds(workers, weight_of)
    for rank, weight in weight_of.items():
        worker = workers[rank]
        if not (worker.finite or worker.rounds) or (
            worker.sum is not None and rank not in worker.sum.weights
        ):
            missing.add(rank)
        elif worker.sum is None:
            parts[rank] = weight
        elif not worker.sum.average:
            parts[worker.sum.root] = rescale(worker.sum, weight_of)
    norms: list[tuple[int, int, float | None]] = []
    for rank in weight_of:
        worker = workers[rank]
        norms.append((rank, worker.samples, worker.squared_norm if worker.sum else None))
    unknown = missing or any(norm is not None and math.isnan(norm) for *_, norm in norms)
    return Apply(
        update.version,
        tuple(sorted(parts.items())),
        tuple(sorted(missing)),
        tuple((g.rank, g.step, g.version, g.weight) for g in gradients),
        rule.outer_or_mean if any(workers[rank].private for rank in parts) else None,
        rule.fragments,
        () if unknown else tuple(norms),
    )


def _settle_rounds(workers: Sequence[WorkerState], booked: Mapping[int, float]) -> None:
    """Let the last sum of a group with rounds stand for all that its members have kept.

    booked: weights by rank.  Where members changed, or one factor does not give their weights,
    there is no such sum, and each sends what it kept itself.
    """
    for rank in booked:
        last = workers[rank].sum
        if last is None or not last.in_rounds:
            continue
        own = [other for other in booked if workers[other].sum is last]
        sums = (*workers[rank].rounds, last)
        alike = all(workers[other].rounds == sums[:-1] for other in own)
        whole: ReducedSum | None = None
        if alike and all([*each.weights] == own for each in sums):
            weights = {other: sum(each.weights[other] for each in sums) for other in own}
            whole = replace(last, weights=weights, in_rounds=False)
            try:
                rescale(whole, booked)
            except PlanError:
                whole = None
        for other in own:
            workers[other].sum = whole
