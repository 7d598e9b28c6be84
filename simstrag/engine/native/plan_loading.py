"""Puts a plan into memory: its quorums, and what it says of the next steps."""

from __future__ import annotations

import math
from collections.abc import Set
from operator import attrgetter
from typing import Any

import numpy as np

from simstrag.contract import Late, Plan, Quorum, Via, Weigh
from simstrag.contract.plan import NEVER
from simstrag.engine.native.loading import Loading

__all__ = ["adopt", "allow_lockstep", "file", "retime"]

VIA, LATE = tuple(Via), tuple(Late)
"""Values of each enumeration, in the order of their numbers in records.h."""
EVENTS, QUEUED, BARRIER, RACE = range(4)
"""Shapes of a quorum, as in lockstep.c."""
UNUSED = {
    "ready": -1, "joining": -1, "net": -1, "pending": -1, "ready_count": 0, "asks": 0,
    "lockstep": 0, "try_at": 0, "arrived": 0,
}  # fmt: skip
"""Fields of a quorum without gradients yet."""
QUORUM = (
    "window", "steps", "overlap", "rounds", "grace", "partial", "ridden", "tree", "via", "late",
)  # fmt: skip
"""Fields of a quorum as a plan states them, in the order of `_fields`."""
kind = attrgetter(
    "count", "via", "late", "window", "riders", "steps", "rounds", "parents", "overlap", "grace",
    "partial",
)  # fmt: skip
"""All that a plan states of a quorum but its members."""
BY_RANK = frozenset(("bound", "precision", "batch", "suspects"))
"""Fields of a plan that say something of each rank."""


def adopt(plan: Plan, changed: Set[str], loading: Loading, unknown: bool) -> None:
    """What a resolved plan says of steps, updates and reviews.

    changed: names of the fields that differ from the plan before; all of them at first.
    unknown: whether progress is.
    """
    memory, m = loading.memory, loading.memory.job
    new_rules, switches = not changed <= BY_RANK | {"quorums"}, "precision" in changed
    stays = not (switches and m["amp_switch"])  # a switch takes its time
    if new_rules:
        allow_lockstep(plan, m)
        stays = stays and m["may_lockstep"] and m["shows"] == (plan.review != NEVER)
    if (new_rules or "suspects" in changed) and memory.quorums[0]["shape"] == QUEUED:
        stays = stays and not plan.review.on_block and m["judged"] == plan.judges
    if not stays:
        memory.native.disband_all(memory.address)
    resized = "batch" in changed and _resize(plan, loading)
    if switches:
        memory.next_amp[:] = plan.in_amp
    if resized or switches:
        memory.native.resize(memory.address)
    if switches and not loading.knows_amp and plan.in_amp.any():
        loading.stretches(amp=True)
    if "suspects" in changed:
        suspected = plan.suspected
        memory.suspected.fill(False)
        memory.suspected[suspected] = True
        m["judged"], m["suspects"] = plan.judges, len(suspected)
    if not changed <= BY_RANK:
        m["loaded"] = any(quorum.via is not Via.ALLREDUCE for quorum in plan.quorums)
        m["unknown"] = unknown
    if new_rules:
        _adopt_rules(plan, loading)


def allow_lockstep(plan: Plan, m: Any, hung: Set[int] = frozenset()) -> None:
    """Whether ranks may be in lockstep (lockstep.c); hung: failed ranks of the plan."""
    logs = m["keeps_steps"] or m["keeps_fates"]
    cuts = plan.damping.cutoff is not None or plan.deadline is not None
    m["may_lockstep"] = not (logs or cuts or plan.pause or hung)


def _resize(plan: Plan, loading: Loading) -> bool:
    """The samples of each rank's next steps; whether they change."""
    memory, batch = loading.memory, int(loading.memory.job["batch"])
    sizes = plan.sizes(batch, len(memory.ranks))
    if not np.count_nonzero(sizes != memory.next_samples):
        return False
    memory.next_samples[:] = sizes
    np.divide(sizes, batch, out=memory.next_share)
    return True


def _adopt_rules(plan: Plan, loading: Loading) -> None:
    """Adopt the fields that are the same for all ranks and quorums."""
    memory, m, review = loading.memory, loading.memory.job, plan.review
    m["deadline"] = _or(plan.deadline, math.nan)
    m["pause"] = plan.pause
    m["cutoff"] = _or(plan.damping.cutoff, -1)
    m["power"], m["shift"] = plan.damping.power, plan.damping.shift
    m["fuse"] = plan.fuse
    m["mean"] = plan.average or plan.weigh is Weigh.MEMBERS
    m["review_updates"] = _or(review.updates, -1)
    m["review_samples"] = _or(review.samples, -1)
    m["review_seconds"] = _or(review.seconds, math.nan)
    if review != NEVER and not m["shows"]:
        memory.blank_windows()
    m["on_block"], m["shows"] = review.on_block, review != NEVER


def _or(value: float | None, none: float) -> float:
    return none if value is None else value


def file(plan: Plan, old: Plan | None, loading: Loading, token: int) -> None:
    """Its quorums and bounds; `old` is the plan before it.

    token: of the members of the first quorum; the others' follow.
    """
    memory, rows = loading.memory, loading.memory.ranks
    bounds = plan.bound if isinstance(plan.bound, tuple) else ()
    if bounds:
        rows["bound"] = [_or(bound, -1) for bound in bounds]
    if old is not None and old.bound and bounds and plan.quorums == old.quorums:
        memory.quorums[: len(plan.quorums)] = loading.filed
        return
    m = memory.job
    was: Any = None if plan.bound is None else rows["named"].astype(bool)
    groups = [quorum.indices for quorum in plan.quorums]
    members, sizes = np.concatenate(groups), np.array([len(group) for group in groups])
    numbers, ends = np.arange(len(sizes)), sizes.cumsum()
    quorum_of = np.empty(len(rows), np.int64)
    quorum_of.fill(-1)
    quorum_of[members] = numbers.repeat(sizes)
    rows["named"], rows["quorum"] = quorum_of >= 0, quorum_of
    if old is not None and _children(old):
        rows["children"], rows["parent"] = 0, -1
    children = _children(plan)
    if len(members) + children > len(memory.lists):
        memory.lists = np.zeros(len(members) + children, np.int64)
    memory.lists[: len(members)] = members
    those = memory.quorums[: len(sizes)]
    those["members_at"], those["size"], those["token"] = ends - sizes, sizes, token + numbers
    for name, value in UNUSED.items():
        those[name] = value
    examples = _examples(plan)
    first = examples[0]
    if len(examples) > 1:
        those["needed"] = [quorum.needed for quorum in examples]
    else:
        those["needed"] = first.count or sizes - len(first.parents)
    stated = zip(*map(_fields, examples), strict=True)
    for name, values in zip(QUORUM, stated, strict=True):
        those[name] = values
    _file_collectives(those, plan, examples, loading)
    at = len(members)
    for quorum in plan.quorums if children else ():
        if quorum.riders or quorum.parents:
            at = _file_children(quorum, loading, at)
    if any(isinstance(quorum.steps, tuple) for quorum in examples):
        _file_steps(rows, plan)
    loading.place()
    m["quorum_count"], m["bounded"], m["freed"] = len(plan.quorums), plan.bound is not None, 1
    if plan.bound is None:
        return
    loading.filed = memory.quorums[: len(plan.quorums)].copy()  # a later plan may change bounds
    if old is not None:
        named = rows["named"].astype(bool)
        if old.bound is None:
            rows["count"] = 0
        stayed = rows["count"][was & named]
        rows["count"][named & ~was] = stayed.min() if len(stayed) else 0
    memory.native.find_least(memory.address)


def _file_steps(rows: Any, plan: Plan) -> None:
    """The private steps of each rank, where the members of a quorum take different numbers."""
    for quorum in plan.quorums:
        if isinstance(quorum.steps, tuple):
            rows["steps"][quorum.indices] = np.array(quorum.steps) - quorum.overlap


def _children(plan: Plan) -> int:
    """Riders, or children of a tree, of all quorums."""
    return sum([len(quorum.riders or quorum.parents) for quorum in plan.quorums])


def _examples(plan: Plan) -> tuple[Quorum, ...]:
    """Its quorums; the first alone if they differ in their members alone."""
    kinds = [*map(kind, plan.quorums)]
    return plan.quorums[:1] if kinds.count(kinds[0]) == len(kinds) else plan.quorums


def _fields(quorum: Quorum) -> tuple[float, ...]:
    """The values of `QUORUM`."""
    return (
        quorum.grace or quorum.window,
        quorum.steps - quorum.overlap if isinstance(quorum.steps, int) else 0, quorum.overlap,
        quorum.rounds, quorum.grace > 0, quorum.partial,
        bool(quorum.riders or quorum.parents), bool(quorum.parents),
        VIA.index(quorum.via), LATE.index(quorum.late),
    )  # fmt: skip


def retime(plan: Plan, loading: Loading) -> None:
    """The quorums of the plan in force under another timing."""
    those = [loading.memory.quorums[: len(plan.quorums)]]
    for rows in [*those, loading.filed] if plan.bound is not None else those:
        rows["net"], rows["asks"] = -1, 0
        _file_collectives(rows, plan, _examples(plan), loading)
    loading.place()


def _file_collectives(
    rows: Any, plan: Plan, examples: tuple[Quorum, ...], loading: Loading
) -> None:
    """Which fast way each quorum may take, and how long its all-reduce takes."""
    queues = _queues(plan, examples, loading)
    rows["shape"] = [_shape(quorum, plan, loading, queues) for quorum in examples]
    if len(examples) == 1 and examples[0].via is Via.SERVER:
        return
    for k, quorum in enumerate(plan.quorums):
        if quorum.via is not Via.SERVER:
            _file_collective(rows[k], quorum, plan.fragments, loading)


def _file_collective(row: Any, quorum: Quorum, fragments: int, loading: Loading) -> None:
    timing, loaded = loading.timing, bool(loading.memory.job["loaded"])
    row["seconds"] = loading.seconds(quorum.members, fragments)
    felt, late = timing.feels_net(quorum.members, loaded), timing.is_late(quorum.members)
    if (quorum.count is not None or quorum.window < math.inf) and not quorum.partial:
        row["asks"] = felt or late or timing.nodes is not None
        loading.seconds_by_count(fragments)
    elif late:
        row["asks"] = 1
    elif felt:
        row["net"] = loading.piece(timing.slowest_net(quorum.members, loaded))


def _shape(quorum: Quorum, plan: Plan, loading: Loading, queues: bool) -> int:
    """Which fast way a quorum may take (lockstep.c); one of a plan that `queues` may queue."""
    full, reduces = quorum.count is None, quorum.via is Via.ALLREDUCE
    if _needs_events(quorum) or quorum.partial:
        return EVENTS
    alone = len(plan.quorums) == 1 and len(quorum.indices) == len(loading.memory.ranks)
    if alone and plan.bound is None and (full or quorum.late is Late.ABORT):
        free = _is_free(quorum, loading)
        simple = free and (loading.timing.nodes is None if reduces else quorum.via is Via.SERVER)
        if simple or (full and reduces and not loading.timing.is_late(quorum.members)):
            return RACE
    if queues:
        return QUEUED
    if plan.bound is None and full and quorum.via is not Via.SERVER:
        return BARRIER
    return EVENTS


def _queues(plan: Plan, examples: tuple[Quorum, ...], loading: Loading) -> bool:
    """Whether all ranks wait for each other through the server alone (queues.c)."""
    ranks = range(len(loading.memory.ranks))
    return (
        all(
            quorum.via is Via.SERVER and quorum.late is Late.QUEUE and not _needs_events(quorum)
            for quorum in examples
        )
        and sum([len(quorum.indices) for quorum in plan.quorums]) == len(ranks)
        and not loading.timing.feels_net(ranks, bool(loading.memory.job["loaded"]))
        and not loading.timing.is_late(ranks)
    )


def _needs_events(quorum: Quorum) -> bool:
    """Whether a quorum does what no fast way knows."""
    waits = quorum.window < math.inf or quorum.grace > 0
    return bool(waits or quorum.riders or quorum.parents or quorum.private)


def _is_free(quorum: Quorum, loading: Loading) -> bool:
    """Whether no member ever feels contention of the network."""
    loaded, timing = bool(loading.memory.job["loaded"]), loading.timing
    return not timing.feels_net(quorum.members, loaded) and not timing.is_late(quorum.members)


def _file_children(quorum: Quorum, loading: Loading, at: int) -> int:
    """Riders or children of a tree, from that place of the lists on; the place after them."""
    memory, pairs = loading.memory, quorum.riders or quorum.parents
    rows, index = memory.ranks, memory.ranks["quorum"][quorum.members[0]]
    for parent in dict.fromkeys(parent for _, parent in pairs):
        children = [child for child, other in pairs if other == parent]
        end = at + len(children)
        memory.lists[at:end] = children
        rows[parent]["children_at"], rows[parent]["children"] = at, len(children)
        rows["named"][children], rows["parent"][children] = 1, parent
        rows["quorum"][children] = index
        at = end
    return at
