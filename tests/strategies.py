"""Policies that say what a test tells them to, and Hypothesis strategies for what to say.

Numbers are drawn from small sets: dyadic ones, whose sums are exact and therefore tie, and awkward
ones, whose sums round.  Plans are drawn as drafts, so that a changed plan can be close to the plan
before it: that is where a gradient is filed anew in interesting ways.

Half of all scripts and scenarios use none of the rarer *features*, the others one to three of them:
so the corners of the plain rules are found as before, and those of a feature where it is alone.
"""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from simstrag.policies import load
from simstrag.policy import (
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
from simstrag.scenario import Scenario

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

    def plan(self, view: View) -> Plan:
        copy: Plan = pickle.loads(pickle.dumps(self.policy.plan(view)))
        return copy


SEEN: list[View] = []
"""What `Watching` policies were shown, of all runs since it was last cleared."""


@dataclass(frozen=True)
class Watching:
    """What another policy says, while `SEEN` keeps its views."""

    policy: Policy

    def plan(self, view: View) -> Plan:
        SEEN.append(view)
        return self.policy.plan(view)


SECONDS = (0.0, 0.0, 0.0625, 0.125, 0.03, 0.1)
TIMES = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 0.1, 0.7, 3.3)
SLOWDOWNS = (1.0, 1.5, 2.0, 4.0, 1.1, 3.7)
COMPUTE = (0.125, 0.25, 0.5, 0.1, 0.3)


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
        if node not in recorded or resource == "net":
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
    data: dict[str, Any] = {
        "workers": workers,
        "step": {
            "compute": draw(st.sampled_from(COMPUTE)),
            "host_share": draw(st.sampled_from((0.0, 0.25, 0.5))),
            "amp_ratio": draw(st.sampled_from((1.0, 1.25, 1.5))),
            "cv": noisy,
            "noise": draw(st.sampled_from(("lognormal", "shifted_exponential"))),
            "amp_switch": draw(seconds),
        },
        "server": {"service": draw(seconds), "push": draw(seconds), "pull": draw(seconds)},
        "allreduce": {
            "alpha": draw(st.sampled_from((0.0, 0.0, 0.015625, 0.01))),
            "bytes": draw(st.sampled_from((0, 2**20, 10**6))),
            "bandwidth": draw(st.sampled_from((2**24, 10**7))),
            "overlap": draw(st.sampled_from((0.0, 0.5, 1.0))),
        },
        "learner": {
            "batch": draw(st.sampled_from((1, 64))),
            "noise_scale": draw(st.sampled_from((0.0, 100.0, 500.0))),
            "c_tau": draw(st.sampled_from((0.0, 1.0, 1.5))),
        },
        "trace_end": draw(st.sampled_from(("hold", "hold", "loop", "loop", "error"))),
    }
    rows = draw(st.just([]) | traces(workers))
    if rows:
        data["trace"] = rows
    batch = data["learner"]["batch"]
    ends = draw(st.sampled_from(("updates", "updates", "samples", "target", "both")))
    if ends == "updates":
        data["updates"] = draw(st.integers(1, 40))
    if ends in ("samples", "both"):
        data["samples"] = draw(st.integers(1, 60)) * batch
    if ends in ("target", "both"):
        data["target_progress"] = draw(st.sampled_from((0.01, 0.5, 1.0, 2.0)))
        data["learner"] |= {"batch": 64, "noise_scale": 100.0}
    return Scenario.of(data)


@dataclass(frozen=True)
class Draft:
    """A plan before it is made possible.

    roles: per rank a group to be a member of, or None to be left out, or -1-p to ride with p.
    groups: per group its count (None, or at most its size), via and late.
    """

    roles: tuple[int | None, ...]
    groups: tuple[tuple[int | None, Via, Late], ...]
    fuse: bool
    bound: int | tuple[int | None, ...] | None
    precision: Precision | tuple[Precision, ...]
    review: Review

    def plan(self) -> Plan:
        """The plan: impossible riders are left out, several quorums never use all-reduce."""
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
        quorums = []
        for group in sorted(members):
            count, via, late = self.groups[group]
            if self.bound is not None:
                count = 1
            if len(members) > 1 and via is Via.ALLREDUCE:
                via = Via.SERVER
            ranks = tuple(members[group])
            whole = len(members) == 1 and len(ranks) + len(riders[group]) == len(self.roles)
            count = None if count is None else min(count, len(ranks))
            quorums.append(Quorum(ALL if whole else ranks, count, via, late, tuple(riders[group])))
        return Plan(tuple(quorums), self.fuse, self.bound, self.precision, review=self.review)


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
def drafts(draw: st.DrawFn, workers: int, kind: str | None = None) -> Draft:
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
    return Draft(
        roles,
        tuple(draw(groups(workers)) for _ in range(3)),
        draw(st.booleans()),
        draw(bounds) if kind == "bounded" else None,
        draw(precisions),
        draw(reviews()),
    )


@st.composite
def groups(draw: st.DrawFn, workers: int) -> tuple[int | None, Via, Late]:
    count = draw(st.none() | st.integers(1, workers))
    return count, draw(st.sampled_from(Via)), draw(st.sampled_from(Late))


@st.composite
def changed(draw: st.DrawFn, before: Draft) -> Draft:
    """A draft that differs from the one before it in one or two ways."""
    other = draw(drafts(len(before.roles)))
    names = st.sampled_from(("roles", "groups", "fuse", "bound", "precision", "review", "role"))
    after = before
    for name in draw(st.sets(names, min_size=1, max_size=2)):
        if name == "role":
            roles = list(after.roles)
            rank = draw(st.integers(0, len(roles) - 1))
            roles[rank] = other.roles[rank]
            after = replace(after, roles=tuple(roles))
        else:
            after = replace(after, **{name: getattr(other, name)})
    return after


@st.composite
def plans(draw: st.DrawFn, workers: int) -> Plan:
    """One plan that stands for the whole run."""
    return replace(draw(drafts(workers)), review=Review()).plan()


@st.composite
def scripts(draw: st.DrawFn, workers: int, kind: str | None = None) -> Script:
    """A few plans, each from some version on, often close to the one before."""
    draft = draw(drafts(workers, kind))
    version = 0
    lines = [(version, draft.plan())]
    for _ in range(draw(st.integers(1, 6))):
        version += draw(st.integers(1, 4))
        near = draw(st.integers(0, 3)) > 0
        draft = draw(changed(draft) if near else drafts(workers, kind))
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
    return Scenario.of(
        {
            "workers": workers,
            "updates": draw(st.integers(5, 30)),
            "step": {"compute": 0.5, "amp_ratio": 1.25, "amp_switch": draw(seconds)},
            "server": {"service": draw(seconds), "push": draw(seconds), "pull": draw(seconds)},
            "allreduce": {"alpha": draw(st.sampled_from((0.0, 0.0625)))},
            "trace": rows,
            "trace_end": "loop",
        }
    )


@st.composite
def churning(draw: st.DrawFn, workers: int, bounded: bool = False) -> Script:
    """A few plans that take turns at every update or two: most gradients are filed anew."""
    few, many = (0, 0, 0, 0, 1, 1, None, -1, -2), (0, 0, 1, 1, 2, 2, None, -3)
    roles = st.sampled_from(draw(st.sampled_from((few, many))))
    vias = st.sampled_from(draw(st.sampled_from((tuple(Via), (Via.SERVER,), (Via.LEADER,)))))
    lates = st.sampled_from((Late.QUEUE, Late.DROP, Late.DROP, Late.ABORT))
    group = st.tuples(st.none() | st.integers(1, 3), vias, lates)
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
        turns.append(draft.plan())
    order = draw(st.lists(st.sampled_from(turns), min_size=5, max_size=20))
    return Script(tuple(enumerate(order)))
