"""A plan in words: what each of its fields asks for, as a person would say it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from simstrag.policy import Damping, Late, Plan, Precision, Quorum, Review, Via, Weigh

__all__ = ["ways", "words"]

VIA = {
    Via.ALLREDUCE: "by all-reduce",
    Via.SERVER: "each gradient a job of the server",
    Via.LEADER: "by all-reduce, then one job of the server",
}
WAYS = {Via.ALLREDUCE: "all-reduce", Via.SERVER: "server", Via.LEADER: "leader"}
LATE = {
    Late.QUEUE: "late ones count for the next update",
    Late.DROP: "late ones are dropped when done",
    Late.ABORT: "late ones are cancelled at once",
    Late.JOIN: "late ones join the next update without counting",
}


def ways(plan: Plan) -> tuple[str, ...]:
    """Through what a plan makes updates of gradients, in a word each.

    >>> ways(Plan((Quorum(via=Via.SERVER),))), ways(Plan(average=True))
    (('server',), ('model averaging',))
    """
    if plan.average:
        return ("model averaging",)
    return tuple(dict.fromkeys(WAYS[quorum.via] for quorum in plan.quorums))


def words(plan: Plan, world_size: int) -> tuple[tuple[str, str], ...]:
    """(field, what it says) for each quorum and for each other field that is not at its default.

    Raises `PlanError` where the plan does not fit the world.

    >>> words(Plan((Quorum(count=6, late=Late.DROP),), review=Review(updates=10)), world_size=8)
    (('quorum', 'the first 6 of all 8 ranks, by all-reduce; late ones are dropped when done'),
     ('review', 'after 10 updates'))
    """
    return tuple(_said(plan.resolved(world_size), world_size))


def _said(plan: Plan, world_size: int) -> Iterator[tuple[str, str]]:
    for quorum in plan.quorums:
        yield "quorum", _quorum(quorum, world_size)
    if plan.fuse:
        yield "fuse", "leaders' jobs that wait together become one update"
    if isinstance(plan.bound, tuple):
        yield "bound", f"{_per_rank(plan.bound)} steps ahead of the slowest rank at most"
    amp = _where(plan.precision, Precision.AMP)
    if amp:
        yield "precision", f"reduced on {_ranks(amp, world_size)}"
    if isinstance(plan.batch, tuple):
        yield "batch", f"{_per_rank(plan.batch)} of the nominal batch"
    if plan.deadline is not None:
        yield "deadline", f"steps stop at the first micro-batch that ends after {plan.deadline:g} s"
    if plan.average:
        yield "average", "ranks keep models of their own; an update averages its contributors'"
    if plan.weigh is Weigh.MEMBERS:
        yield "weigh", "an update is the mean of its gradients, however few"
    if damping := "; ".join(_damping(plan.damping)):
        yield "damping", damping
    if plan.suspects:
        yield "suspects", _ranks(sorted(plan.suspects), world_size)
    if review := " or ".join(_review(plan.review)):
        yield "review", review


def _quorum(quorum: Quorum, world_size: int) -> str:
    whom = _ranks(quorum.members, world_size)
    if quorum.count is not None:
        whom = f"the first{'' if quorum.count == 1 else f' {quorum.count}'} of {whom}"
    parts = [f"{whom}, {VIA[quorum.via]}"]
    if quorum.window < math.inf:
        parts.append(f"or those there {quorum.window:g} s after the first of them")
    if quorum.late is not Late.QUEUE:
        parts.append(LATE[quorum.late])
    if quorum.riders:
        pairs = ", ".join(f"{child} with {parent}" for child, parent in quorum.riders)
        parts.append(f"riders: {pairs}")
    if quorum.steps > 1:
        parts.append(f"each after {quorum.steps} private steps")
    if quorum.rounds > 1:
        parts.append(f"after {quorum.rounds} rounds among themselves")
    return "; ".join(parts)


def _damping(damping: Damping) -> Iterator[str]:
    if damping.power:
        shifted = f"{damping.shift:g} + staleness" if damping.shift else "staleness"
        yield f"a gradient weighs max({shifted}, 1)**-{damping.power:g}"
    if damping.cutoff is not None:
        yield f"gradients of staleness {damping.cutoff} or more are dropped"


def _review(review: Review) -> Iterator[str]:
    if review.updates is not None:
        yield "after every update" if review.updates == 1 else f"after {review.updates} updates"
    if review.samples is not None:
        yield f"after {review.samples} samples"
    if review.seconds is not None:
        yield f"after {review.seconds:g} s"
    if review.on_block:
        yield "when a rank would block"


def _where(values: object, value: object) -> list[int]:
    assert isinstance(values, tuple), "resolve the plan first"
    return [rank for rank, own in enumerate(values) if own is value]


def _per_rank(values: tuple[float | None, ...]) -> str:
    """One value for all, or one per rank."""
    texts = ["inf" if value is None else f"{value:g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else f"by rank {', '.join(texts)}"


def _ranks(ranks: Iterable[int], world_size: int) -> str:
    """Ranks in order, runs of them abbreviated: `ranks 0-3, 7`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    count = sum(len(run) for run in runs)
    if count == world_size > 1:
        return f"all {world_size} ranks"
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank {text}" if count == 1 else f"ranks {text}"
