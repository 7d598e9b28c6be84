"""Policies that say what a test tells them to, and Hypothesis strategies for what to say.

Numbers are drawn from small sets: dyadic ones, whose sums are exact and therefore tie, and awkward
ones, whose sums round.  Plans are drawn as drafts, so that a changed plan can be close to the plan
before it: that is where a gradient is filed anew in interesting ways.

Half of all scripts and scenarios use none of the rarer *features*, a quarter one to three of them,
a quarter more: so the corners of the plain rules are found as before, those of a feature where it
is alone, and those in which features meet.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from simstrag.contract import (
    ALL,
    Damping,
    Late,
    Plan,
    Policy,
    Precision,
    Quorum,
    Review,
    Via,
    View,
    Weigh,
)
from simstrag.policies import load
from simstrag.scenario.scenario import Scenario

EVERY_UPDATE = Review(updates=1)


@dataclass(frozen=True)
class Fixed:
    """Always the same plan."""

    always: Plan

    def plan(self, view: View) -> Plan:
        return self.always


@dataclass(frozen=True)
class Script:
    """The plan of the last of `lines`, (version, plan), whose version is reached.

    It reviews every update, except under a plan that says itself when.
    """

    lines: tuple[tuple[int, Plan], ...]

    def plan(self, view: View) -> Plan:
        plan = [plan for version, plan in self.lines if version <= view.version][-1]
        return replace(plan, review=EVERY_UPDATE) if plan.review == Review() else plan


@dataclass(frozen=True)
class Copied:
    """What another policy says, as a plan equal to it that is never the same object."""

    policy: Policy

    @property
    def oracle(self) -> bool:
        return getattr(self.policy, "oracle", False)

    def plan(self, view: View) -> Plan:
        copy: Plan = pickle.loads(pickle.dumps(self.policy.plan(view)))
        return copy


SEEN: list[View] = []
"""What `Watching` policies were shown, of all runs since it was last cleared."""


@dataclass(frozen=True)
class Watching:
    """What another policy says, while `SEEN` keeps its views."""

    policy: Policy

    @property
    def oracle(self) -> bool:
        return getattr(self.policy, "oracle", False)

    def plan(self, view: View) -> Plan:
        SEEN.append(replace(view))
        return self.policy.plan(view)


@dataclass(frozen=True)
class Switching:
    """What one policy says, and from some version on what another one says."""

    first: Policy
    second: Policy
    version: int

    @property
    def oracle(self) -> bool:
        return any(getattr(policy, "oracle", False) for policy in (self.first, self.second))

    def plan(self, view: View) -> Plan:
        left = self.version - view.version
        if left <= 0:
            return self.second.plan(view)
        plan = self.first.plan(view)
        soon = left if plan.review.updates is None else min(plan.review.updates, left)
        return replace(plan, review=replace(plan.review, updates=soon))


SECONDS = (0.0, 0.0, 0.0625, 0.125, 0.03, 0.1)
TIMES = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 0.1, 0.7, 3.3)
SLOWDOWNS = (1.0, 1.5, 2.0, 4.0, 1.1, 3.7)
COMPUTE = (0.125, 0.25, 0.5, 0.1, 0.3)
WINDOWS = (math.inf, 0.0, 0.0625, 0.125, 0.25, 0.1, 0.3)
GRACES = (0.0, 0.0625, 0.125, 0.25, 0.1, 0.3)
DEADLINES = (None, 0.0625, 0.125, 0.25, 0.05, 0.1, 0.3)

MODELLED = ("window", "join", "batch", "deadline", "pause", "cutoff", "tree", "grace", "partial")
UNMODELLED = ("steps", "rounds", "average", "weigh", "power", "overlap", "fragments")
RARER = ("shards", "algorithm", "nodes", "ranks_per_node", "server_load")
Features = frozenset[str]


def features(names: Sequence[str]) -> st.SearchStrategy[Features]:
    """None of the features in half of all cases, otherwise a few or many."""
    few = st.sets(st.sampled_from(names), min_size=1, max_size=3)
    many = st.sets(st.sampled_from(names), min_size=4)
    return st.one_of(st.just(set()), st.just(set()), few, many).map(frozenset)


@st.composite
def traces(draw: st.DrawFn, workers: int) -> list[dict[str, Any]]:
    """Rows of a trace: some nodes with recorded durations, the others with slowdowns."""
    rows: list[dict[str, Any]] = []
    recorded = draw(st.sets(st.integers(0, workers - 1), max_size=1 + workers // 3))
    if draw(st.booleans()):
        recorded = set()
    for node in sorted(recorded):
        for k in range(draw(st.integers(1, 5))):
            value = draw(st.sampled_from(COMPUTE))
            rows.append(_row(0.25 * k, node, "step", "duration", value))
    for _ in range(draw(st.integers(0 if rows else 1, 8))):
        node = draw(st.integers(0, workers - 1))
        resource = draw(st.sampled_from(("gpu", "host", "net", "step")))
        time, value = draw(st.sampled_from(TIMES)), draw(st.sampled_from(SLOWDOWNS))
        if resource == "net" and draw(st.booleans()):
            rows.append(_row(time, node, resource, "delay", draw(st.sampled_from(SECONDS))))
        elif node not in recorded or resource == "net":
            rows.append(_row(time, node, resource, "slowdown", value))
    rows.sort(key=lambda row: float(row["time"]))
    return rows


def _row(time: float, node: int, resource: str, kind: str, value: float) -> dict[str, Any]:
    return {"time": time, "node": node, "resource": resource, "kind": kind, "value": value}


@st.composite
def scenarios(draw: st.DrawFn, max_workers: int = 12) -> Scenario:
    """A scenario of up to `max_workers` workers that ends after a few dozen updates at most."""
    workers = draw(st.integers(1, max_workers) | st.integers(2, min(5, max_workers)))
    seconds = st.sampled_from(SECONDS)
    noisy = draw(st.sampled_from((0.0, 0.0, 0.0, 0.3, 1.0)))
    batch = draw(st.sampled_from((1, 7, 64)))
    data: dict[str, Any] = {
        "workers": workers,
        "step": {
            "compute": draw(st.sampled_from(COMPUTE)),
            "host_share": draw(st.sampled_from((0.0, 0.25, 0.5))),
            "amp_ratio": draw(st.sampled_from((1.0, 1.25, 1.5))),
            "cv": noisy,
            "noise": draw(st.sampled_from(("lognormal", "shifted_exponential"))),
            "amp_switch": draw(seconds),
            "fixed_share": draw(st.sampled_from((0.0, 0.0, 0.25, 0.1))),
        },
        "noise": {
            "lag1": draw(st.sampled_from((0.0, 0.6, -0.3))) if noisy else 0.0,
            "pace": draw(st.sampled_from((0.0, 0.1))) if noisy else 0.0,
        },
        "microbatches": min(batch, draw(st.sampled_from((1, 2, 4, 5)))),
        "server": {"service": draw(seconds), "push": draw(seconds), "pull": draw(seconds)},
        "allreduce": {
            "alpha": draw(st.sampled_from((0.0, 0.0, 0.015625, 0.01))),
            "bytes": draw(st.sampled_from((0, 2**20, 10**6))),
            "bandwidth": draw(st.sampled_from((2**24, 10**7))),
            "overlap": draw(st.sampled_from((0.0, 0.5, 1.0))),
        },
        "learner": {
            "batch": batch,
            "noise_scale": draw(st.sampled_from((0.0, 100.0, 500.0))),
            "c_tau": draw(st.sampled_from((0.0, 1.0, 1.5))),
        },
        "trace_end": draw(st.sampled_from(("hold", "hold", "loop", "loop", "error"))),
    }
    rows = draw(st.just([]) | traces(workers))
    if rows:
        data["trace"] = rows
    if draw(st.sampled_from((False, False, True))):
        draw(overlapping_step(data["step"]))
    draw(rarer(data))
    ends = draw(st.sampled_from(("updates", "updates", "samples", "target", "both")))
    if ends == "updates":
        data["updates"] = draw(st.integers(1, 40))
    if ends in ("samples", "both"):
        data["samples"] = draw(st.integers(1, 60)) * batch
    if ends in ("target", "both"):
        data["target_progress"] = draw(st.sampled_from((0.01, 0.5, 1.0, 2.0)))
        data["learner"] |= {"batch": 64, "noise_scale": 100.0}
    return Scenario.of(data)


@st.composite
def overlapping_step(draw: st.DrawFn, step: dict[str, Any]) -> None:
    """Turn the serial law of a step into the overlapping one."""
    for name in ("compute", "host_share", "amp_ratio"):
        del step[name]
    seconds = st.sampled_from(COMPUTE)
    for name in ("launch", "device"):
        step[name] = {"full": draw(seconds), "amp": draw(seconds)}


@st.composite
def failing(draw: st.DrawFn, workers: int) -> dict[str, Any]:
    """The section `failures` of a scenario in whose few seconds ranks may well fail."""
    detection, times = draw(st.sampled_from(SECONDS)), st.sampled_from(TIMES)
    section: dict[str, Any] = {"detection": detection}
    goes_on = draw(st.booleans())
    drawn = draw(st.booleans())
    if drawn:
        section["mtbf"] = workers * draw(st.sampled_from((2.0, 5.0, 20.0)))
    else:
        some = st.sets(st.integers(0, workers - 1), min_size=1, max_size=4)
        ranks = draw(st.just(set(range(workers))) | some)
        times = draw(st.just(times) | times.map(st.just))  # of each, or of all at once
        section["events"] = [{"time": draw(times), "rank": rank} for rank in sorted(ranks)]
    if goes_on:
        section["on_fault"] = "continue"
        section["quorum_timeout"] = draw(st.sampled_from((0.0, *SECONDS)))
        section["min_workers"] = draw(st.integers(1, workers))
        section["regroup"] = draw(st.sampled_from((0.0, *SECONDS)))
        away = st.none() | st.sampled_from((0.125, 0.25, 0.3, 1.0))
        for event in (section, *section.get("events", ())):
            seconds = draw(away)
            if seconds is not None and (event is not section or drawn):
                since, name = (0.0, "rejoin") if event is section else (event["time"], "back")
                event[name] = since + max(seconds, detection)
    else:
        section |= {"on_fault": "restart", "restart": draw(st.sampled_from(SECONDS))}
        every = draw(st.sampled_from((None, {"updates": 1}, {"updates": 3}, {"seconds": 0.5})))
        if every is not None:
            cost, written = draw(st.sampled_from(SECONDS)), draw(st.booleans())
            section["checkpoint"] = {**every, "cost": cost, "on_failure": written}
    return section


@st.composite
def rarer(draw: st.DrawFn, data: dict[str, Any]) -> None:
    """Add rarer features to the keys of a scenario."""
    used, workers = draw(features(RARER)), data["workers"]
    algorithms = ["ring", "tree", "halving_doubling"]
    places = list(range(workers))
    if "nodes" in used:
        node = st.integers(0, max(1, workers // 2) - 1)
        data["nodes"] = places = draw(st.lists(node, min_size=workers, max_size=workers))
    elif "ranks_per_node" in used:
        data["ranks_per_node"] = k = draw(st.integers(1, 4))
        places = [rank // k for rank in range(workers)]
    if used & {"nodes", "ranks_per_node"}:
        algorithms.append("hierarchical")
        data["allreduce"]["intra_alpha"] = draw(st.sampled_from((0.0, 0.0078125, 0.003)))
        data["allreduce"]["intra_bandwidth"] = draw(st.sampled_from((2**26, 10**8)))
    if "algorithm" in used:
        data["allreduce"]["algorithm"] = draw(st.sampled_from(algorithms))
    rows = [row for row in data.pop("trace", ()) if row["node"] in places]
    if rows:
        data["trace"] = rows
    replays = any(row["kind"] == "duration" for row in rows)
    alone = used.isdisjoint({"nodes", "ranks_per_node", "server_load"}) and not replays
    if alone and draw(st.sampled_from((False, False, True))):
        stages = draw(st.sampled_from((1, 2)))
        is_whole = data["microbatches"] % stages == 0  # else it cannot be interleaved
        chunks = draw(st.sampled_from((1, 2))) if stages > 1 and is_whole else 1
        data["worker"] = {"ranks": 4, "stages": stages, "chunks": chunks}
        for row in rows:
            row["node"] = 4 * row["node"] + draw(st.integers(0, 3))
    if replays:
        data["contention"] = {"host_share": draw(st.sampled_from((0.0, 0.5, 1.0)))}
    if "shards" in used:
        data["server"]["shards"] = draw(st.sampled_from((2, 3, [0.5, 0.25, 0.25], [0.3, 0.7])))
    data["server"]["fused_allreduce"] = draw(st.sampled_from((False, False, True)))
    if "server_load" in used:
        node = draw(st.sampled_from(places))
        recorded = any(row["node"] == node and row["kind"] == "duration" for row in rows)
        data["server_load"] = {
            "node": node,
            "host": 1.0 if recorded else draw(st.sampled_from((1.0, 1.5, 1.3))),
            "net": draw(st.sampled_from((1.0, 2.0, 1.7))),
        }


@dataclass(frozen=True)
class Group:
    """What a draft says of one quorum."""

    count: int | None
    via: Via
    late: Late
    window: float = math.inf
    steps: tuple[int, ...] = (1,)
    rounds: int = 1
    fan: int = 1
    overlap: int = 0
    grace: float = 0.0
    partial: bool = False
    """fan: members of one message in a gradient tree; 1 without one.
    steps: of the members in turn."""


@dataclass(frozen=True)
class Draft:
    """A plan before it is made possible.

    roles: per rank a group to be a member of, or None to be left out, or -1-p to ride with p.
    groups: what the quorums are like; a count is at most a quorum's size.
    batch: shares relative to each other; 0 is 1 in a quorum.
    """

    roles: tuple[int | None, ...]
    groups: tuple[Group, ...]
    fuse: bool
    bound: int | tuple[int | None, ...] | None
    precision: Precision | tuple[Precision, ...]
    review: Review
    batch: tuple[int, ...] | None = None
    deadline: float | None = None
    pause: float = 0.0
    average: bool = False
    fragments: int = 1
    weigh: Weigh = Weigh.WORLD
    damping: Damping = field(default_factory=Damping)

    def plan(self) -> Plan:
        """The plan: impossible riders are left out, and what a field rules out gives way to it."""
        roles = self.roles if any(r is not None and r >= 0 for r in self.roles) else (0,)
        members: dict[int, list[int]] = {}
        for rank, role in enumerate(roles):
            if role is not None and role >= 0:
                members.setdefault(role, []).append(rank)
        riders: dict[int, list[tuple[int, int]]] = {group: [] for group in members}
        for rank, role in enumerate(roles):
            parent = -1 - role if role is not None else -1
            if parent >= 0 and roles[parent] in members:
                group = roles[parent]
                assert group is not None
                riders[group].append((rank, parent))
        shares = None
        if self.batch is not None:
            busy = {*itertools.chain(*members.values()), *dict(itertools.chain(*riders.values()))}
            own = [max(n, 1) if rank in busy else n for rank, n in enumerate(self.batch)]
            shares = tuple(n * len(own) / sum(own) for n in own)
        quorums = tuple(self._quorum(group, members, riders[group]) for group in sorted(members))
        whole = self.average and len(quorums) == 1 and quorums[0].via is Via.ALLREDUCE
        return Plan(
            quorums,
            fragments=self.fragments if whole else 1,
            fuse=self.fuse,
            bound=self.bound,
            precision=self.precision,
            batch=shares,
            deadline=self.deadline,
            pause=self.pause,
            average=self.average,
            weigh=Weigh.WORLD if self.average else self.weigh,
            damping=replace(self.damping, power=0.0) if self.average else self.damping,
            review=self.review,
        )

    def _quorum(
        self, group: int, members: dict[int, list[int]], riders: list[tuple[int, int]]
    ) -> Quorum:
        """Bound and average come first, then private work, then everything else."""
        own, ranks = self.groups[group], tuple(members[group])
        if self.bound is not None:
            own = replace(own, count=1, steps=(1,), rounds=1)
        if self.average:
            via = Via.SERVER if own.via is Via.SERVER else Via.ALLREDUCE
            own, riders = replace(own, via=via, rounds=1, fan=1, partial=False), []
        else:
            own = replace(own, steps=(1,))
            if len(members) > 1 and own.via is Via.ALLREDUCE:
                own = replace(own, via=Via.SERVER)
        if own.rounds > 1:
            own = replace(own, via=Via.LEADER, count=None, window=math.inf)
        steps = tuple(own.steps[k % len(own.steps)] for k in range(len(ranks)))
        if max(steps) > 1 or own.rounds > 1:
            own, riders = replace(own, late=Late.QUEUE, partial=False), []
        if own.via is not Via.ALLREDUCE or riders or own.late not in (Late.QUEUE, Late.JOIN):
            own = replace(own, partial=False)
        overlap = min(own.overlap, min(steps) - 1) if own.via is Via.ALLREDUCE else 0
        tree = own.via is Via.SERVER and own.fan > 1 and self.bound is None
        if tree and not (riders or self.damping.power or self.damping.cutoff):
            own = replace(own, count=None, late=Late.QUEUE, window=math.inf)
            parents = [(rank, ranks[k // own.fan * own.fan]) for k, rank in enumerate(ranks)]
        else:
            parents = []
        whole = len(members) == 1 and len(ranks) + len(riders) == len(self.roles)
        return Quorum(
            ALL if whole else ranks,
            count=None if own.count is None else min(own.count, len(ranks)),
            via=own.via,
            late=own.late,
            window=own.window,
            riders=tuple(riders),
            steps=steps,
            rounds=own.rounds,
            overlap=overlap,
            grace=0.0 if own.window < math.inf or riders or parents else own.grace,
            partial=own.partial,
            parents=tuple(pair for pair in parents if pair[0] != pair[1]),
        )


def reviews() -> st.SearchStrategy[Review]:
    """Mostly every update (Script's default), else by updates, samples, seconds or on_block."""
    return st.one_of(
        st.just(Review()),
        st.just(Review()),
        st.builds(Review, updates=st.none() | st.just(3), on_block=st.just(True)),
        st.builds(
            Review,
            updates=st.none() | st.integers(1, 4),
            samples=st.none() | st.sampled_from((1, 100, 128, 300)),
            seconds=st.none() | st.sampled_from((0.125, 0.1, 1.0)),
            on_block=st.booleans(),
        ),
    )


@st.composite
def drafts(
    draw: st.DrawFn, workers: int, kind: str | None = None, used: Features = frozenset()
) -> Draft:
    """A fresh draft: everybody in one quorum, groups with riders, or bounded (count = 1)."""
    kind = kind or draw(st.sampled_from(("whole", "groups", "bounded")))
    ranks = st.integers(0, workers - 1)
    whole = kind == "whole" or (kind == "bounded" and draw(st.booleans()))
    member = st.just(0) if whole else st.integers(0, draw(st.integers(0, 2)))
    rider = ranks.map(lambda parent: -1 - parent)
    if whole:
        others = {rank: draw(rider) for rank in draw(st.sets(ranks, max_size=2))}
        role: st.SearchStrategy[int | None] = member
    else:
        others = {}
        role = st.one_of(member, member, member, rider, st.none())
    roles = tuple(others.get(rank, draw(role)) for rank in range(workers))
    bounds = st.one_of(
        st.integers(0, 3),
        st.tuples(*[st.none() | st.integers(0, 2) for _ in range(workers)]),
    )
    precisions = st.one_of(
        st.just(Precision.FULL),
        st.just(Precision.AMP),
        st.tuples(*[st.sampled_from(Precision) for _ in range(workers)]),
    )
    counts = st.none() | st.integers(1, workers)
    draft = Draft(
        roles,
        tuple(draw(groups(counts, st.sampled_from(Via), used)) for _ in range(3)),
        draw(st.booleans()),
        draw(bounds) if kind == "bounded" else None,
        draw(precisions),
        draw(reviews()),
    )
    return draw(featured(draft, used))


@st.composite
def groups(
    draw: st.DrawFn,
    counts: st.SearchStrategy[int | None],
    vias: st.SearchStrategy[Via],
    used: Features,
    lates: Sequence[Late] = (Late.QUEUE, Late.DROP, Late.ABORT),
) -> Group:
    """One group of a draft; `lates` beside JOIN."""
    several = st.sampled_from((1, 2, 3))
    steps = st.sampled_from(((1,), (2,), (3,), (2, 3), (4, 2, 3)))
    return Group(
        draw(counts),
        draw(vias),
        draw(st.sampled_from((*lates, *[Late.JOIN] * 3 * ("join" in used)))),
        draw(st.sampled_from(WINDOWS)) if "window" in used else math.inf,
        draw(steps if used & {"steps", "overlap"} else st.just((1,))),
        draw(several) if "rounds" in used else 1,
        draw(several) if "tree" in used else 1,
        draw(st.integers(0, 3)) if "overlap" in used else 0,
        draw(st.sampled_from(GRACES)) if "grace" in used else 0.0,
        draw(st.booleans()) if "partial" in used else False,
    )


@st.composite
def featured(draw: st.DrawFn, draft: Draft, used: Features) -> Draft:
    """The draft with the features that concern the whole plan."""
    shares = st.none() | st.tuples(*[st.sampled_from((0, 1, 1, 2, 3)) for _ in draft.roles])
    return replace(
        draft,
        batch=draw(shares) if "batch" in used else None,
        deadline=draw(st.sampled_from(DEADLINES)) if "deadline" in used else None,
        pause=draw(st.sampled_from(SECONDS)) if "pause" in used else 0.0,
        average=bool(used & {"average", "steps", "overlap", "fragments"})
        and draw(st.sampled_from((True, True, False))),
        fragments=draw(st.integers(1, 3)) if "fragments" in used else 1,
        weigh=draw(st.sampled_from(Weigh)) if "weigh" in used else Weigh.WORLD,
        damping=Damping(
            power=draw(st.sampled_from((0.0, 0.5, 1.0))) if "power" in used else 0.0,
            shift=draw(st.sampled_from((0.0, 1.0, 0.3))) if "power" in used else 0.0,
            cutoff=draw(st.none() | st.integers(1, 4)) if "cutoff" in used else None,
        ),
    )


@st.composite
def changed(draw: st.DrawFn, before: Draft, used: Features = frozenset()) -> Draft:
    """A draft that differs from the one before it in one or two ways."""
    other = draw(drafts(len(before.roles), used=used))
    rare = ["batch", "deadline", "pause", "average", "fragments", "weigh", "damping"]
    names = ["roles", "groups", "fuse", "bound", "precision", "review", "role"]
    if any(quorum.overlap for quorum in before.plan().quorums) and draw(st.integers(0, 7)):
        names, rare = ["precision", "review"], ["batch", "deadline", "pause", "fragments"]
    names += [name for name in rare if getattr(other, name) != getattr(before, name)]
    after = before
    for name in draw(st.sets(st.sampled_from(names), min_size=1, max_size=2)):
        if name == "role":
            roles = list(after.roles)
            rank = draw(st.integers(0, len(roles) - 1))
            roles[rank] = other.roles[rank]
            after = replace(after, roles=tuple(roles))
        else:
            after = replace(after, **{name: getattr(other, name)})
    return after


@st.composite
def used_in(draw: st.DrawFn, scenario: Scenario) -> Features:
    """Features of a plan; mostly modelled ones where a target needs to know the progress."""
    modelled = scenario.progress_target is not None and draw(st.integers(0, 7)) > 0
    return draw(features(MODELLED if modelled else (*MODELLED, *UNMODELLED)))


@st.composite
def plans(draw: st.DrawFn, scenario: Scenario) -> Plan:
    """One plan that stands for the whole run."""
    draft = draw(drafts(scenario.workers, used=draw(used_in(scenario))))
    return replace(draft, review=Review()).plan()


@st.composite
def scripts(draw: st.DrawFn, scenario: Scenario, kind: str | None = None) -> Script:
    """A few plans, each from some version on, often close to the one before."""
    used, workers = draw(used_in(scenario)), scenario.workers
    draft = draw(drafts(workers, kind, used))
    version = 0
    lines = [(version, draft.plan())]
    for _ in range(draw(st.integers(1, 6))):
        version += draw(st.integers(1, 4))
        near = "overlap" in used or draw(st.integers(0, 3)) > 0
        draft = draw(changed(draft, used) if near else drafts(workers, kind, used))
        lines.append((version, draft.plan()))
    return Script(tuple(lines))


@st.composite
def overlapping(draw: st.DrawFn, workers: int) -> Draft:
    """A plan whose ranks run on, with other features beside that."""
    others = draw(features(("window", "batch", "deadline", "pause", "cutoff", "power", "grace")))
    used = others | {"steps", "overlap", "fragments"}
    draft = draw(drafts(workers, draw(st.sampled_from(("whole", "groups"))), used))
    groups = [
        replace(own, via=Via.ALLREDUCE, steps=tuple(n + 1 for n in own.steps), rounds=1)
        for own in draft.groups
    ]
    running = [replace(own, overlap=max(own.overlap, 1)) for own in groups]
    return replace(draft, groups=tuple(running), average=True, review=Review())


@st.composite
def revised(draw: st.DrawFn, draft: Draft) -> Script:
    """The plan, then plans with the same quorums that say other things of steps and fragments."""
    lines = [(0, draft.plan())]
    for version in range(2, draw(st.integers(3, 9)), 2):
        draft = replace(
            draft,
            precision=draw(st.sampled_from(Precision)),
            deadline=draw(st.sampled_from(DEADLINES)),
            fragments=draw(st.integers(1, 3)),
            review=draw(reviews()),
        )
        lines.append((version, draft.plan()))
    return Script(tuple(lines))


@st.composite
def uneven(draw: st.DrawFn) -> Scenario:
    """Three to six ranks of different speeds, so that gradients wait for each other."""
    workers = draw(st.integers(3, 6))
    seconds = st.sampled_from((0.0, 0.125, 0.25, 0.1, 0.5))
    rows = [
        _row(0.25 * k, rank, "step", "duration", draw(st.sampled_from((*COMPUTE, 1.0))))
        for rank in range(workers)
        for k in range(draw(st.integers(1, 2)))
    ]
    if draw(st.booleans()):
        slowdown = draw(st.sampled_from((2.0, 8.0)))
        rows.append(_row(0.0, draw(st.integers(0, workers - 1)), "net", "slowdown", slowdown))
    data = {
        "workers": workers,
        "updates": draw(st.integers(5, 30)),
        "step": {"compute": 0.5, "amp_ratio": 1.25, "amp_switch": draw(seconds)},
        "microbatches": draw(st.sampled_from((1, 2, 4, 5))),
        "server": {"service": draw(seconds), "push": draw(seconds), "pull": draw(seconds)},
        "allreduce": {"alpha": draw(st.sampled_from((0.0, 0.0625)))},
        "trace": rows,
        "trace_end": "loop",
    }
    draw(rarer(data))
    return Scenario.of(data)


@st.composite
def churning(draw: st.DrawFn, workers: int, bounded: bool = False, trees: bool = False) -> Script:
    """A few plans that take turns at every update or two: most gradients are filed anew."""
    used = draw(features((*MODELLED, *UNMODELLED))) | ({"tree"} if trees else set())
    few, many = (0, 0, 0, 0, 1, 1, None, -1, -2), (0, 0, 1, 1, 2, 2, None, -3)
    roles = st.sampled_from(draw(st.sampled_from((few, many))))
    several = tuple(Via), (Via.SERVER,), (Via.LEADER, Via.SERVER) if trees else (Via.LEADER,)
    vias = st.sampled_from(draw(st.sampled_from(several)))
    lates = (Late.QUEUE, Late.DROP, Late.DROP, Late.ABORT)
    group = groups(st.none() | st.integers(1, 3), vias, used, lates)
    turns = []
    for _ in range(draw(st.integers(2, 4))):
        draft = Draft(
            tuple(draw(roles) for _ in range(workers)),
            (draw(group), draw(group), draw(group)),
            draw(st.booleans()),
            draw(st.none() | st.integers(0, 2)) if bounded else None,
            draw(st.sampled_from(Precision)),
            draw(st.sampled_from((Review(), Review(updates=1, on_block=True)))),
        )
        turns.append(draw(featured(draft, used)).plan())
    order = draw(st.lists(st.sampled_from(turns), min_size=5, max_size=20))
    return Script(tuple(enumerate(order)))


STAR_H = {
    "form": "server ring",
    "interval": "order interp simulated",
    "staleness": "0 1",
    "predictor": "last median",
    "noise": "live hint resnet20",
    "phi": "0 100 none",
    "ratio": "0.05 0.2",
    "relative": "0.05 0.3",
    "absolute": "0.05 none",
}
PARAMETERS: dict[str, dict[str, str]] = {
    "amp_all": {},
    "asgd": {},
    "async_local_sgd": {"h": "1 2 5", "grace": "0.1 0.5 2", "dylu": "true false"},
    "backup": {"b": "0 1 2", "late": "abort drop", "via": "server allreduce"},
    "bsp": {"via": "server allreduce"},
    "cgp": {
        "groups": "planned window rounds",
        "ratio": "1 1.2 2",
        "every": "1 2 5",
        "fuse": "true false",
        "window": "0 0.3 2",
        "max_group": "1 2 inf",
        "power": "0 0.5",
    },
    "dc_asgd": {},
    "decoupled_diloco": {
        "k": "1 2 auto",
        "grace": "0 0.1 0.5",
        "h": "4 8",
        "p": "1 2",
        "tau": "0 1",
    },
    "diloco": {"h": "1 2 8"},
    "drain": {
        "redistribute": "true false",
        "window": "3 5",
        "probe": "1 3",
        "checks": "1 3",
        "wait": "1 3 20",
        "least": "1 2",
    },
    "dropcompute": {"theta": "0.05 0.125 auto", "warmup": "0 1", "measure": "1 3"},
    "dssp": {"low": "0 1 3", "extra": "0 1 4"},
    "eager_sgd": {"start": "solo majority"},
    "fewer": {"leave_out": "0 1", "measure": "1 3"},
    "hot_spare": {"window": "1 3 5", "checks": "1 3", "rest": "0 3"},
    "k_async": {"x": "1 2 3 all"},
    "korel": {
        "W": "1 2 3",
        "z_on": "0.5 3.5",
        "k_on": "1 2",
        "z_off": "2 4",
        "k_off": "1 2",
        "dwell": "0 2",
        "P_probe": "1 3",
        "probes": "true false",
        "efficacy": "0.5 0.95",
        "cooldown": "0 3",
        "global_shift_guard": "true false",
        "rho": "1.5 none",
    },
    "lb_bsp": {"window": "1 2 5", "deadband": "0 0.05 0.5", "low": "0.25 1", "high": "1 1.5 4"},
    "lgc": {"k": "1 2 auto", "via": "server allreduce"},
    "local_sgd": {"h": "1 2 8"},
    "p_reduce": {"p": "1 2 3 inf", "window": "0 0.1 0.125 inf"},
    "ringmaster": {"r": "1 2 auto"},
    "ssp": {"bound": "0 1 3 inf"},
    "staleness_lr": {"power": "0 0.5 1", "shift": "0 1"},
    "star_dynamic": {
        "relative": "0.05 0.2 1",
        "absolute": "0.05 none",
        "predictor": "last median",
    },
    "star_h": STAR_H,
    "star_h_oracle": STAR_H,
    "star_ml": {
        "predictor": "last median",
        "noise": "live hint resnet20",
        "phi": "0 100 none",
        "ratio": "0.05 0.2",
    },
    "star_ring": {"x": "1 2 auto", "ratio": "0.05 0.2", "predictor": "last median"},
    "streaming_diloco": {"h": "4 8", "p": "1 2", "tau": "0 1"},
    "sync_switch": {
        "share": "0 0.125 0.5 1",
        "stragglers": "none greedy elastic",
        "ratio": "1.1 1.2",
        "via": "server allreduce",
        "samples": "64 1000 auto",
    },
    "tree": {"fan": "2 3 5"},
    "zeno": {},
}
"""Of each built-in policy: values of its parameters that make a difference in a short run."""


@st.composite
def policies(draw: st.DrawFn, among: Sequence[str] = tuple(sorted(PARAMETERS))) -> Policy:
    """A built-in policy with one of these names, with some of its parameters off their defaults."""
    name = draw(st.sampled_from(among))
    values = PARAMETERS[name]
    some = draw(st.sets(st.sampled_from(sorted(values)))) if values else set()
    given = [f"{key}={draw(st.sampled_from(values[key].split()))}" for key in sorted(some)]
    return load(f"{name}:{','.join(given)}" if given else name)
