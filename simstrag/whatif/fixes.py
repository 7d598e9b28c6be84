"""What fixing something gives: the record replayed with it ideal, in seconds, GPU-hours and money.

Fixes overlap: two slow workers are waited for once.  So all fixes are also replayed together, and
the sum of the single ones is stated beside that only for comparison.  A worker that a cause made
slow has no fix of its own: what helps it is taking the cause away.  In the fix of one that is slow
by itself, too, it keeps its tokens, and takes as long as its peers would for as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simstrag.arrays import Bools, Reals
from simstrag.whatif.causes import TOKENS, Cause
from simstrag.whatif.culprits import Culprit, Group
from simstrag.whatif.losses import COMMON, SCATTERED, WORTH, Losses
from simstrag.whatif.metrics import Metrics, first_operations
from simstrag.whatif.replay import JobReplay, ReplayCase

LEAST = 0.001
"""Least share of a step that a fix saves to be offered."""
STEPS = 1000
"""Steps that GPU-hours and costs are of."""


@dataclass(frozen=True, slots=True)
class Fix:
    """The gain of one fix.

    name: what is ideal in it.
    kind: "worker", "workers", "cause", "pauses", "metric", "together" or "all".
    seconds: saved in a mean step.
    share: of a mean replayed step.
    gpu_hours: saved in 1,000 steps.
    cost: the same in currency; None without a price.
    """

    name: str
    kind: str
    seconds: float
    share: float
    gpu_hours: float
    cost: float | None


def fixes(
    replay: JobReplay, found: Metrics, slow: Sequence[Culprit], why: Sequence[Cause],
    gpus: int, price: float | None, groups: Sequence[Group] = (),
) -> tuple[Fix, ...]:  # fmt: skip
    """A fix for each culprit and cause, for all of them together, for M_W, M_S and for all ideal.

    A rank that is alone has no like, and so only the fixes of causes.  A fix that does not shorten
    the step by `LEAST` is not offered.

    groups: culprits that are one thing, and have one fix.

    gpus: of the job.
    price: of a GPU-hour.

    The replay has the delays of the first operations if they are one of the causes, else none.
    """
    layout = replay.layout
    shape = layout.rank.shape
    delays = np.broadcast_to(first_operations(replay), shape)
    delayed = delays if any(each.removes_delay for each in why) else None
    prompt = None if delayed is None else np.zeros(shape, np.bool_)
    everything = np.ones(shape, np.bool_)
    equal = _without_tokens(replay, why)
    peers = _like_peers(replay, equal, slow, _others(replay, slow))
    own = [each for each in slow if not any(each.rank in cause.explains for cause in why)]
    culprits = _others(replay, own)
    alike = np.maximum(peers + replay.work - equal, 0)  # for the tokens that each has
    rows = [
        (
            f"{describe_worker(replay, each)} like the others",
            "worker",
            ReplayCase(_others(replay, [each]), alike, delayed),
        )
        for each in own
        if not any(each in group.members for group in groups)
    ]
    rows += [
        (
            {"node": f"{group.name} like the other nodes",
             "mesh": f"{group.name} like the others"}.get(
                 group.kind, f"ranks {group.name} like the fastest"),
            "worker", ReplayCase(_others(replay, group.members), alike, delayed),
        )
        for group in groups
    ]  # fmt: skip
    if len(rows) > 1 and len(own) > 1:
        count = "both" if len(own) == 2 else f"all {len(own)}"
        name = f"{count} slow workers like the others"
        rows.append((name, "workers", ReplayCase(culprits, alike, delayed)))
    for cause in why:
        case = ReplayCase(cause.recorded, cause.ideal, prompt if cause.removes_delay else delayed)
        rows.append((describe_cause(cause), "cause", case))
    if len(rows) > 1:
        together = _together(replay, culprits, peers, why, prompt)
        rows.append(("all of these together", "together", together))
    if not slow and not layout.is_alone:
        listed = ", ".join(map(str, found.top_ranks[:4]))
        name = f"the slowest 3 % of ranks ({listed}) like the others"
        top = np.isin(layout.rank, found.top_ranks)
        rows.append((name, "metric", ReplayCase(~top, None, delayed)))
    if layout.stages > 1:
        last = np.broadcast_to((layout.stage == layout.stages - 1)[:, None], shape)
        name = f"the last stage ({layout.stages - 1}) like the others"
        rows.append((name, "metric", ReplayCase(~last, None, delayed)))
    if not layout.is_alone:
        every = ReplayCase(~everything, None, prompt)
        rows.append(("every operation at the average of its kind", "all", every))
    base, *times = replay.means(
        [ReplayCase(everything, None, delayed), *(case for _, _, case in rows)]
    )
    for k, (_, kind, _) in enumerate(rows):
        if kind == "together":  # a fix that undoes another is left out
            times[k] = min(times[: k + 1])
    return tuple(
        _price(name, kind, base, time, gpus, price)
        for (name, kind, _), time in zip(rows, times, strict=True)
        if base - time >= LEAST * base
    )


def pause_fixes(lost: Losses, gpus: int, price: float | None) -> tuple[Fix, ...]:
    """What it gives to pause together, and not to pause; of pauses that cost `WORTH` or more.

    gpus: of the job; price: of a GPU-hour.
    """
    scattered, common = lost.of(SCATTERED), lost.of(COMMON)
    saved = {
        "all ranks pause at the same steps (such as gc.collect() every N steps)":
            lost.step * scattered.facts.get("together", 0.0)
            if scattered.share >= WORTH else 0.0,
        "no pause common to all ranks (such as an asynchronous checkpoint)":
            common.seconds if common.share >= WORTH else 0.0,
    }  # fmt: skip
    return tuple(
        _price(name, "pauses", lost.step, lost.step - seconds, gpus, price)
        for name, seconds in saved.items()
        if seconds >= LEAST * lost.step
    )


def _price(name: str, kind: str, base: float, time: float, gpus: int, price: float | None) -> Fix:
    saved = base - time
    hours = saved * gpus * STEPS / 3600
    return Fix(name, kind, saved, saved / base, hours, None if price is None else hours * price)


def _others(replay: JobReplay, slow: Sequence[Culprit]) -> Bools:
    """Operations that are of none of these workers."""
    layout = replay.layout
    mask: Bools = np.ones(layout.rank.shape, np.bool_)
    for each in slow:
        mask &= ~np.logical_and.outer(layout.stage == each.stage, layout.replica == each.replica)
    return mask


def _without_tokens(replay: JobReplay, why: Sequence[Cause]) -> Reals:
    """What operations take with the mean tokens of their step; as recorded where none count."""
    for cause in why:
        if cause.subject == TOKENS:
            assert cause.ideal is not None
            return np.where(cause.recorded[..., None], replay.work, cause.ideal)
    return replay.work


def _like_peers(replay: JobReplay, work: Reals, slow: Sequence[Culprit], others: Bools) -> Reals:
    """What slow workers' operations take if the workers are like their peers in their slow steps.

    Computing is shorter by one factor for all slow steps, the ratio of medians, so that the worker
    keeps its noise: with the median of its peers in every step, a step would wait for one worker
    less.  One-off steps, and communication, take that median.

    work: seconds of each operation.
    others: operations that are of no slow worker.  Where none are, the ideal of a kind is usual.
    Operations that are of no slow worker take the ideal of their kind.
    """
    layout = replay.layout
    like = np.broadcast_to(replay.ideal, work.shape).copy()
    for each in slow:
        own, k = layout.stage == each.stage, layout.replica.tolist().index(each.replica)
        steps, alike = np.isin(layout.step, each.steps), others[own][0]
        mine = work[own, k]
        usual = np.median(work[own][:, alike], axis=1) if alike.any() else like[own, k]
        shorter = usual[:, steps]
        if each.pattern != "one-off":
            computing = ~layout.communicates[own]
            longer = mine[:, steps][computing]
            middle = np.median(longer, axis=1, keepdims=True)
            theirs = np.median(shorter[computing], axis=1, keepdims=True)
            ratio = np.divide(theirs, middle, out=np.ones_like(middle), where=middle > 0)
            shorter[computing] = longer * ratio
        mine[:, steps] = shorter
        like[own, k] = mine
    return like


def _together(
    replay: JobReplay, culprits: Bools, peers: Reals, why: Sequence[Cause], prompt: Bools | None
) -> ReplayCase:
    """All culprits and causes ideal; an operation of both takes the shorter of its ideal times."""
    ideal, recorded = peers.copy(), culprits.copy()
    for cause in why:
        changed = ~cause.recorded & culprits
        if cause.ideal is not None:
            other = np.broadcast_to(cause.ideal, ideal.shape)
            ideal[changed] = np.where(
                recorded[changed][:, None], other[changed],
                np.minimum(ideal[changed], other[changed]),
            )  # fmt: skip
        recorded &= cause.recorded
    return ReplayCase(recorded, ideal, prompt)


def describe_worker(replay: JobReplay, slow: Culprit) -> str:
    """A slow worker by its rank, and by its replica and stage where ranks are grouped."""
    if replay.layout.stages == 1:
        return f"rank {slow.rank}"
    return f"rank {slow.rank} (replica {slow.replica}, stage {slow.stage})"


def describe_cause(cause: Cause) -> str:
    """The ideal that stands in place of a cause, in words."""
    return {
        "stages": f"{cause.subject} as long as the mean stage",
        "lengths": f"{cause.subject} of equal length",
        "input": "no delay before the first operation",
        "gc": "no garbage collection in a step",
        "link": f"link from {cause.subject} like the others",
    }[cause.name]
