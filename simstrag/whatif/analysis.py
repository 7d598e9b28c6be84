"""`analyse`: what a straggler cost, who it was, why, and what fixing it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.errors import InputError
from simstrag.records.read import read_record
from simstrag.records.record import ALL_REDUCE, BACKWARD, FORWARD, Record, Unseen
from simstrag.rendering import html_fragment
from simstrag.statistics.slow_workers import FEWEST
from simstrag.whatif.causes import Cause, causes
from simstrag.whatif.culprits import Culprit, Group, culprits, gather
from simstrag.whatif.fixes import Fix, fixes
from simstrag.whatif.metrics import Decomposition, Metrics, metrics
from simstrag.whatif.operation_array import Layout
from simstrag.whatif.replay import JobReplay
from simstrag.whatif.visibility import find_unseen

if TYPE_CHECKING:
    from simstrag.whatif.policy_outlook import PoliciesOnRecord

DOUBTFUL = 0.05
"""Replay error from which no other number is to be trusted."""


@dataclass(frozen=True, slots=True, eq=False)
class LateReplicas:
    """How often each replica was the last to finish its computing, and what that cost the others.

    last: steps in which it was, shape (replicas,); where ranks wait for each other several times in
        a step, steps in which the others waited longest for it.
    waited: seconds that all other replicas together waited for it.
    arrival: when each replica finished computing, shape (replicas, steps).
    waits: how often replicas wait for each other in a step.
    """

    last: tuple[int, ...]
    waited: tuple[float, ...]
    arrival: Reals
    waits: int


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """The straggler analysis of a record.

    record, replay: what was read, and how it is replayed.
    metrics: S and its parts.
    late, culprits, causes, fixes: who, why, and what a fix gives.
    gpus: of the job; a rank counts as one where nothing says it.
    gpu_price: of a GPU-hour; None if not given.
    warnings: what to read before any number.
    policies: what policies would have given the job; None if none was asked for.
    unseen: what the record cannot show.
    groups: slow workers that are one thing, such as a node.
    """

    record: Record
    replay: JobReplay
    metrics: Metrics
    late: LateReplicas
    culprits: tuple[Culprit, ...]
    causes: tuple[Cause, ...]
    fixes: tuple[Fix, ...]
    gpus: int
    gpu_price: float | None
    warnings: tuple[str, ...]
    policies: PoliciesOnRecord | None = None
    unseen: tuple[Unseen, ...] = ()
    groups: tuple[Group, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The contents of `--json`: the names of metrics are those of ByteDance's output."""
        return _document(self)

    def _repr_html_(self) -> str:
        return html_fragment(self)


def analyse(
    source: str | Path | Record,
    gpu_price: float | None = None,
    *,
    replay: JobReplay | None = None,
) -> WhatIf:
    """What a straggler cost in the job of a record.

    source: its file or folder, or what `read_record` has read of it.
    gpu_price: of a GPU-hour, in any currency.
    replay: of the record, where it was made already.
    Raises `InputError` for a file that is no record, and one that cannot be replayed.
    """
    check_numbers(gpu_price, None, compares=False)
    record = source if isinstance(source, Record) else read_record(source)
    replay = replay or replay_of(record)
    layout = replay.layout
    found = metrics(replay)
    slow = culprits(layout, record.hosts)
    groups = gather(slow, layout, record.hosts, record.mesh)
    why = causes(record, replay, slow)
    gpus = record.gpus or len(np.unique(layout.rank))
    return WhatIf(
        record, replay, found, late_replicas(layout), slow, why,
        fixes(replay, found, slow, why, gpus, gpu_price, groups), gpus, gpu_price,
        tuple(_warnings(record, layout, found)),
        unseen=find_unseen(record, layout, bool(slow)), groups=groups,
    )  # fmt: skip


def replay_of(record: Record) -> JobReplay:
    """The replay of a record. Raises `InputError` that names it where it cannot be replayed."""
    try:
        return JobReplay.of(Layout.of(record))
    except InputError as error:
        text = str(error)
        where = "" if text.startswith(record.source) else f"{record.source}: "
        raise InputError(where + text) from None


def loadable(given: str | Sequence[str]) -> tuple[str, ...]:
    """The specs of policies. Raises `InputError` for what is none, before any file is read."""
    from simstrag.policies import load, specs

    found = specs(given)
    for each in found:
        load(each)
    return found


def check_numbers(gpu_price: float | None, amp_ratio: float | None, compares: bool) -> None:
    """Raise `InputError` for a price or a gain that is none.

    compares: whether policies are compared, which alone need the gain.
    """
    for name, value in (("gpu_price", gpu_price), ("amp_ratio", amp_ratio)):
        if value is not None and not (isinstance(value, Real) and not np.isnan(value)):
            raise InputError(f"{name} is not a number")
    if gpu_price is not None and not 0 <= gpu_price < np.inf:
        raise InputError(f"gpu_price is {gpu_price!r}; give the price of a GPU-hour, 0 or more")
    if amp_ratio is not None and not (compares and 0 < amp_ratio < np.inf):
        reason = (
            "give the gain of a whole step, above 0"
            if compares
            else "give policies to compare, which alone need it"
        )
        raise InputError(f"amp_ratio is {amp_ratio!r}; {reason}")


def _warnings(record: Record, layout: Layout, found: Metrics) -> list[str]:
    lines = []
    error = found.replay_error - 1
    if record.is_timed and abs(error) > DOUBTFUL:
        lines.append(
            f"the replay takes {1 / found.replay_error:.3f} of the recorded time; beyond "
            f"{100 * DOUBTFUL:.0f} %, no other number is to be trusted: time passes in what the "
            "record does not have"
        )
    lines += record.missing
    if len(layout.dropped):
        lines.append(f"steps that lack operations are left out: {len(layout.dropped)}")
    if layout.is_alone:
        return lines
    if len(layout.replica) < 2:
        lines.append("there is one replica, so that no worker has peers and none is named")
    elif len(layout.step) < FEWEST:
        lines.append(
            f"no worker is named: to tell takes {FEWEST} steps; recorded: {len(layout.step)}"
        )
    return lines


def late_replicas(layout: Layout) -> LateReplicas:
    """Which replica was the last in each step, and how long the others waited for it."""
    own = layout.find(FORWARD, BACKWARD)
    if not own.any():
        own = ~layout.communicates
    arrival = layout.end[own].max(axis=0).astype(np.float64)
    entries = arrival[None]
    if layout.find(ALL_REDUCE).sum() > 1:  # the ranks wait for each other more than once in a step
        entries = layout.start[layout.find(ALL_REDUCE)]
    replicas = np.arange(len(layout.replica))[:, None]
    if layout.group is None:
        waited = (entries.max(axis=1, keepdims=True) - entries).sum(axis=1, keepdims=True)
        caused = np.where(np.argmax(entries, axis=1)[:, None] == replicas, waited, 0.0).sum(axis=0)
    else:
        shared = layout.find(ALL_REDUCE)
        caused = _caused_in_groups(layout.start[shared], layout.group[shared])
    last = np.where(caused.any(axis=0), np.argmax(caused, axis=0), np.argmax(arrival, axis=0))
    return LateReplicas(
        tuple(np.bincount(last, minlength=len(replicas)).tolist()),
        tuple(caused.sum(axis=1).tolist()),
        arrival,
        len(entries),
    )


def waited_in_groups(layout: Layout) -> dict[tuple[int, ...], Reals]:
    """Seconds that the other ranks of a group waited for each of its replicas, shape (replicas,).

    Groups by their ranks, where the layout has several; their sum is `LateReplicas.waited`.
    """
    if layout.group is None:
        return {}
    own = layout.find(ALL_REDUCE)
    entries, members = layout.start[own], layout.group[own]
    alone = -1 - np.arange(members.shape[1])  # each in a group of its own, where none waits
    found: dict[tuple[int, ...], Reals] = {}
    for group in np.unique(members):
        ranks = tuple(np.unique(layout.rank[own][members == group]).tolist())
        waited = _caused_in_groups(entries, np.where(members == group, members, alone))
        found[ranks] = found.get(ranks, 0.0) + waited.sum(axis=1)
    return found


def _caused_in_groups(entries: Reals, members: Ints) -> Reals:
    """Seconds that the others of its group waited for each replica, shape (replicas, steps).

    entries: when replicas began to wait, shape (collectives, replicas, steps).
    members: number of each one's group, shape (collectives, replicas).
    """
    caused = np.zeros(entries.shape[1:])
    steps = np.arange(entries.shape[2])
    for entered, groups in zip(entries, members, strict=True):
        for group in np.unique(groups):
            own = np.flatnonzero(groups == group)
            last = own[np.argmax(entered[own], axis=0)]
            caused[last, steps] += (entered[own].max(axis=0) - entered[own]).sum(axis=0)
    return caused


def _ranked(values: dict[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda pair: -pair[1]))


def _decomposition(name: str, parts: Decomposition, steps: list[str]) -> dict[str, Any]:
    by_step = {
        step: _ranked({key: float(values[k]) for key, values in parts.by_step.items()})
        for k, step in enumerate(steps)
    }
    return {name: _ranked(parts.whole), f"{name}_per_step": by_step}


def _document(found: WhatIf) -> dict[str, Any]:
    m, layout = found.metrics, found.replay.layout
    steps = [str(step) for step in m.step]

    def by_step(values: Reals) -> dict[str, float]:
        return dict(zip(steps, values.tolist(), strict=True))

    names = {"kind": "optype", "replica": "dp_rank", "stage": "stage"}
    parts = {"kind": m.by_kind, "replica": m.by_replica, "stage": m.by_stage}
    document: dict[str, Any] = {
        "record": {
            "source": found.record.source, "format": found.record.form, "steps": len(steps),
            "replicas": len(layout.replica), "stages": layout.stages, "gpus": found.gpus,
            "notes": list(found.record.notes),
        },
        "warnings": list(found.warnings),
        "unseen": [each._asdict() for each in found.unseen],
        "launch_slowdown": m.replay_error if found.record.is_timed else None,
        "blocking_slowdown": m.slowdown,
        "step_t_base": by_step(m.recorded) if found.record.is_timed else None,
        "step_t_nodelay": by_step(m.replayed),
        "step_t_noblk": by_step(m.ideal),
        "blocking_step_slowdown": _ranked(by_step(m.slowdown_by_step)),
        "launch_step_slowdown": _ranked(by_step(m.replay_error_by_step))
        if found.record.is_timed else None,
    }  # fmt: skip
    for by, name in names.items():
        document |= _decomposition(f"blocking_decompose_by_{name}", parts[by], steps)
        key = f"launch_decompose_by_{name}"
        document |= (
            {key: None, f"{key}_per_step": None} if m.delays is None
            else _decomposition(key, m.delays[by], steps)
        )  # fmt: skip
    means = {"tori": float(m.replayed.mean()), "tideal": float(m.ideal.mean())}
    for name, share in (("Mw", m.top), ("Ms", m.last_stage)):
        document[name] = None if share is None else {
            "trem": share.fixed, "tadd": share.only, **means, "rem": share.removed,
            "add": share.alone, name: share.removed,
        }  # fmt: skip
    replicas = layout.replica.tolist()
    document |= {
        "top_ranks": list(m.top_ranks),
        "worker_slowdown": m.by_worker.tolist(),
        "last": [
            {"replica": d, "steps_last": last, "others_waited_seconds": waited,
             "others_waited_gpu_hours": waited * found.gpus / len(replicas) / 3600}
            for d, last, waited in zip(
                replicas, found.late.last, found.late.waited, strict=True
            )
        ],
        "culprits": [
            {"rank": c.rank, "replica": c.replica, "stage": c.stage, "pattern": c.pattern,
             "slowdown": c.slowdown, "since_step": c.since, "until_step": c.until,
             "slow_steps": len(c.steps), "period": c.period, "p": c.p, "test": c.test}
            for c in found.culprits
        ],
        "groups": [
            {"kind": g.kind, "name": g.name, "ranks": [each.rank for each in g.members],
             "slowdown": g.slowdown}
            for g in found.groups
        ],
        "causes": [
            {"name": c.name, "subject": c.subject, **c.facts,
             "explains_ranks": {str(rank): share for rank, share in c.explains.items()}}
            for c in found.causes
        ],
        "fixes": [
            {"name": f.name, "kind": f.kind, "seconds_per_step": f.seconds, "share": f.share,
             "gpu_hours_per_1000_steps": f.gpu_hours, "cost_per_1000_steps": f.cost}
            for f in found.fixes
        ],
        "policies": None if found.policies is None else found.policies.document,
    }  # fmt: skip
    return document
