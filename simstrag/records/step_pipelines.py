"""Steps of a pipeline whose ranks recorded what they send and receive, on one clock.

A stage sends activations on and receives gradients back.  A rank waits for a receive, or until a
send of its own was taken.  Nothing is received before it was sent, so that the clock of a stage is
moved, in each step, to where its tightest receive from an earlier stage has just been sent.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.documents.job_mesh import JobMesh
from simstrag.errors import InputError
from simstrag.records.record import ALL_REDUCE, ASK, PEER, RECEIVE, SEND
from simstrag.records.step_groups import offsets

if TYPE_CHECKING:
    import pandas as pd


class _Rank(NamedTuple):
    """The usual steps of one rank.

    names, numbers, labels: kind, number and label of each part.
    seconds: shape (steps, parts).
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    labels: tuple[str, ...]
    seconds: Reals


def is_pipeline(frame: pd.DataFrame) -> bool:
    """Whether ranks sent each other something."""
    return bool(frame["group"].str.startswith(f"{RECEIVE}:").any())


def pipeline_of(
    frame: pd.DataFrame, keys: dict[str, tuple[str, int]], mesh: JobMesh | None, source: str
) -> dict[str, Any]:
    """The columns of a `Record` from rows of a pipeline.

    frame: rows with rank, step, part, group and seconds.
    keys: kind and number of each part.
    Raises `InputError` where ranks of a stage do not do the same, or no step is whole.
    """
    steps, ranks = _ranks_of(frame, keys, source)
    stages = (mesh.stage_of() if mesh is not None else {}) or _stages_of(ranks)
    count = 1 + max(stages.get(rank, 0) for rank in ranks)
    by_stage = [sorted(rank for rank in ranks if stages.get(rank, 0) == s) for s in range(count)]
    replica = {rank: k for own in by_stage for k, rank in enumerate(own)}
    names = {rank: [name for name, _ in _ways(each, stages)] for rank, each in ranks.items()}
    for s, own in enumerate(by_stage):
        if len(own) != len(by_stage[0]) or any(names[rank] != names[own[0]] for rank in own):
            raise InputError(
                f"{source}: the ranks of stage {s}, {own}, do not all compute and send the same as "
                "each other; give mesh= to record(), with a dimension pp"
            )
    if count == 1:
        raise InputError(f"{source}: ranks of one stage send to each other, which is not replayed")
    moved = _offsets(ranks, by_stage, replica)
    kinds = tuple(dict.fromkeys(kind for own in names.values() for kind in own))
    groups = _numbers(ranks)
    columns: dict[str, list[Any]] = {name: [] for name in (
        "step", "replica", "stage", "rank", "kind", "number", "start", "duration", "group",
    )}  # fmt: skip
    for rank, each in ranks.items():
        shape, ends = each.seconds.shape, each.seconds.cumsum(axis=1)
        fields: dict[str, Any] = {
            "step": steps[:, None], "replica": replica[rank], "stage": stages.get(rank, 0),
            "rank": rank, "kind": [kinds.index(name) for name in names[rank]],
            "number": each.numbers, "start": ends - each.seconds + moved[rank][:, None],
            "duration": each.seconds, "group": groups[rank],
        }  # fmt: skip
        for name, values in fields.items():
            columns[name].append(np.broadcast_to(values, shape).ravel())
    found: dict[str, Any] = {name: np.concatenate(each) for name, each in columns.items()}
    none = np.full(len(found["step"]), -1)
    return found | {"kinds": kinds, "chunk": none, "model_chunk": none, "micro_batch": none}


def _ranks_of(
    frame: pd.DataFrame, keys: dict[str, tuple[str, int]], source: str
) -> tuple[Ints, dict[int, _Rank]]:
    """The steps that are usual for all ranks, and each rank's seconds in them."""
    whole: dict[Any, dict[Any, Any]] = {}
    usual: dict[Any, Any] = {}
    for rank, own in frame.groupby("rank"):
        parts = {
            step: ([*each["part"]], [*each["group"]], each["seconds"].to_numpy())
            for step, each in own.groupby("step")
        }
        patterns = Counter((tuple(p), tuple(g)) for p, g, _ in parts.values())
        usual[rank] = pattern = patterns.most_common(1)[0][0]
        whole[rank] = {k: s for k, (p, g, s) in parts.items() if (tuple(p), tuple(g)) == pattern}
    steps = sorted(set.intersection(*map(set, whole.values())))
    if not steps:
        raise InputError(f"{source}: no step has all sends and receives of all {len(usual)} ranks")
    ranks = {}
    for rank, (parts, labels) in usual.items():
        names, numbers = zip(*(keys[part] for part in parts), strict=True)
        seconds = np.stack([whole[rank][step] for step in steps])
        ranks[int(rank)] = _Rank(names, numbers, labels, seconds)
    return np.array(steps), ranks


def _way(label: str) -> tuple[str, int]:
    """What a label says of a transfer, and the other rank; "" of none."""
    way, _, other = label.partition(":")
    return (way, int(other)) if way in PEER else ("", -1)


def _ways(each: _Rank, stages: dict[int, int]) -> list[tuple[str, int]]:
    """The kind of each part, and the stage of the other rank in a transfer."""
    ways = [_way(label) for label in each.labels]
    return [
        (way or name, stages.get(other, -1))
        for name, (way, other) in zip(each.names, ways, strict=True)
    ]


def _stages_of(ranks: dict[int, _Rank]) -> dict[int, int]:
    """The stage of each rank: 0 where it sends first, else one more than whom it hears first."""
    first = {
        rank: next((w for w in map(_way, each.labels) if w[0] in (SEND, ASK)), (SEND, -1))
        for rank, each in ranks.items()
    }
    stages = {rank: 0 for rank, (way, _) in first.items() if way == SEND}
    for _ in ranks:
        for rank, (_, other) in first.items():
            if rank not in stages and other in stages:
                stages[rank] = stages[other] + 1
    return stages


def _offsets(
    ranks: dict[int, _Rank], by_stage: list[list[int]], replica: dict[int, int]
) -> dict[int, Reals]:
    """By how much each rank's clock is moved in each step."""
    first = [ranks[rank] for rank in by_stage[0]]
    ends = np.stack([each.seconds.cumsum(axis=1) for each in first], axis=1)
    members = _numbers(ranks)
    is_shared = np.array(
        [
            name == ALL_REDUCE and not _way(label)[0]
            for name, label in zip(first[0].names, first[0].labels, strict=True)
        ]
    )
    own = np.where(is_shared, np.stack([members[rank] for rank in by_stage[0]]), -1)
    moved = dict(zip(by_stage[0], offsets(ends, own).T, strict=True))
    for stage in by_stage[1:]:
        for rank in stage:
            least = None
            mine = ranks[rank].seconds.cumsum(axis=1)
            for other in {o for w, o in map(_way, ranks[rank].labels) if w == RECEIVE}:
                if other in moved:
                    posts = _places(ranks[other], SEND, rank)
                    theirs = ranks[other].seconds.cumsum(axis=1) - ranks[other].seconds
                    places = _places(ranks[rank], RECEIVE, other)
                    pairs = list(zip(posts, places, strict=False))
                    late = [theirs[:, a] + moved[other] - mine[:, b] for a, b in pairs]
                    tight = np.max(late, axis=0)
                    least = tight if least is None else np.maximum(least, tight)
            moved[rank] = np.zeros(len(mine)) if least is None else least
    return moved


def _places(each: _Rank, way: str, other: int) -> list[int]:
    """The parts in which a rank sends to another, or receives from it."""
    return [k for k, label in enumerate(each.labels) if label == f"{way}:{other}"]


def _numbers(ranks: dict[int, _Rank]) -> dict[int, Ints]:
    """A number of each part's group, or of the pair of sender and receiver; -1 of computing."""
    known: dict[Any, int] = {}

    def number(rank: int, label: str) -> int:
        way, other = _way(label)
        key = label if not way else (other, rank) if way in (ASK, RECEIVE) else (rank, other)
        return known.setdefault(key, len(known)) if label else -1

    return {
        rank: np.array([number(rank, label) for label in each.labels])
        for rank, each in ranks.items()
    }
