"""Which job was on which node when, and by how much it was slowed there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simstrag.arrays import Floats

NETWORK = "net"
RESOURCES = ("cores", "nic_in", "nic_out", "gpus")
"""What a node has, as columns of what was asked of it."""


class Stay(NamedTuple):
    """A job on a node, with workers or with its server there.

    times, slowdown: the largest of its slowdowns there, from each time to the next.
    network: whether that was the network's.
    """

    job: str
    workload: str
    node: int
    start: float
    end: float
    times: Floats
    slowdown: Floats
    network: Any


def stays(jobs: pd.DataFrame, shares: pd.DataFrame, end: float) -> list[Stay]:
    """All stays of a run, by node and then in order of their start.

    end: of jobs that have not ended.
    """
    changes = defaultdict(list)
    if len(shares):
        rows = zip(
            *(shares[k] for k in ("job", "node", "time", "resource", "slowdown")), strict=True
        )
        for job, node, *change in rows:
            changes[job, int(node)].append(change)
    found = []
    for row in jobs[jobs["start"].notna()].fillna({"end": end}).to_dict("records"):
        job, start, stop = row["name"], row["start"], row["end"]
        for node in sorted({int(n) for n in f"{row['nodes']} {row['server_nodes']}".split()}):
            held, own = dict[str, float](), [(start, 1.0, False)]
            for time, resource, slowdown in changes.get((job, node), ()):
                if start <= time <= stop:
                    held[resource] = slowdown
                    largest = max(held, key=lambda name: held[name])
                    own.append((time, max(held[largest], 1.0), largest == NETWORK))
            times, slowed, network = (np.array(column) for column in zip(*own, strict=True))
            found.append(Stay(job, row["workload"], node, start, stop, times, slowed, network))
    return sorted(found, key=lambda stay: (stay.node, stay.start))


def mean_slowdowns(own: Sequence[Stay], edges: Floats) -> tuple[Floats, Floats, Floats]:
    """Of some stays in each bin: time present, mean slowdown, and the network's share of it.

    Present is the sum over stays, as a share of the bin.  The slowdown is 1 where none is present.
    """
    areas = np.zeros((3, len(edges) - 1))
    for stay in own:
        ends = np.append(stay.times, stay.end)
        width, excess = np.diff(ends), stay.slowdown - 1
        for k, height in enumerate((np.ones(len(width)), excess, excess * stay.network)):
            areas[k] += np.diff(np.interp(edges, ends, np.append(0.0, np.cumsum(width * height))))
    present, excess, network = areas
    nothing = np.zeros_like(present)
    return (
        present / np.diff(edges),
        1 + np.divide(excess, present, out=nothing.copy(), where=present > 0),
        np.divide(network, excess, out=nothing.copy(), where=excess > 0),
    )


def slowdown_beside(found: Sequence[Stay]) -> dict[tuple[str, str], float]:
    """The mean slowdown of jobs of a workload while one of another is on the same node.

    The key's second name is empty for the time without any other job there.
    """
    seconds, slowed = defaultdict[tuple[str, str], float](float), defaultdict[Any, float](float)
    by_node = defaultdict(list)
    for stay in found:
        by_node[stay.node].append(stay)
    for on_node in by_node.values():
        for stay in on_node:
            others = [
                o for o in on_node if o is not stay and o.start < stay.end and o.end > stay.start
            ]
            cuts = [t for o in others for t in (o.start, o.end) if stay.start < t < stay.end]
            edges = np.unique([stay.start, *cuts, stay.end])
            if len(edges) < 2:
                continue
            _, mean, _ = mean_slowdowns([stay], edges)
            for low, high, value in zip(edges, edges[1:], mean, strict=False):
                beside = {o.workload for o in others if o.start <= low and o.end >= high}
                for name in beside or {""}:
                    seconds[stay.workload, name] += high - low
                    slowed[stay.workload, name] += (high - low) * value
    return {key: slowed[key] / seconds[key] for key in seconds}


class Beside(NamedTuple):
    """Another job on a node of a job: how long it was there, and the mean slowdown meanwhile."""

    job: str
    workload: str
    node: int
    seconds: float
    slowdown: float


def beside_job(found: Sequence[Stay], job: str) -> list[Beside]:
    """Who stood beside a job on its nodes, the largest slowdown first."""
    rows = []
    for stay in (one for one in found if one.job == job):
        for other in found:
            start, end = max(stay.start, other.start), min(stay.end, other.end)
            if other.node == stay.node and other.job != job and start < end:
                _, (slowdown,), _ = mean_slowdowns([stay], np.array([start, end]))
                rows.append(
                    Beside(other.job, other.workload, stay.node, end - start, float(slowdown))
                )
    return sorted(rows, key=lambda row: (-row.slowdown, -row.seconds, row.node, row.job))


def devices_held(jobs: pd.DataFrame, slots: int, edges: Floats) -> Floats:
    """The share of places for workers that jobs held, in each bin of time."""
    held = np.zeros(len(edges) - 1)
    last = float(edges[-1])
    started = jobs[jobs["start"].notna()]
    for start, end, workers in zip(
        started["start"], started["end"].fillna(last), started["workers"], strict=True
    ):
        inside = np.clip(edges, start, end)
        held += workers * np.diff(inside)
    return np.asarray(held / np.diff(edges) / slots)


def asked_of_nodes(
    asked: pd.DataFrame, kinds: Sequence[Mapping[str, Any]], interval: float, edges: Floats
) -> dict[str, Floats]:
    """What was asked of all nodes over what they have, in each bin of time, by resource.

    A row holds until the next renegotiation, for `interval` at most.  Cards without a limit are
    left out.
    """
    if not len(asked):
        return {}
    times = np.unique(asked["time"])
    lasts = np.minimum(np.diff(np.append(times, np.inf)), interval)
    found = {}
    for resource in RESOURCES:
        capacity = np.array([
            float(kind.get(resource, np.inf)) for kind in kinds for _ in range(kind.get("count", 1))
        ])  # fmt: skip
        if np.isinf(capacity).any():
            continue
        amounts = asked[resource].to_numpy() * capacity[asked["node"].to_numpy(dtype=int)]
        totals = np.bincount(np.searchsorted(times, asked["time"]), amounts, len(times))
        corners = np.stack([times, times + lasts], axis=1).ravel()
        area = np.repeat(np.cumsum(totals * lasts), 2)
        area[::2] -= totals * lasts
        means = np.diff(np.interp(edges, corners, area)) / np.diff(edges)
        found[resource] = means / capacity.sum()
    return found
