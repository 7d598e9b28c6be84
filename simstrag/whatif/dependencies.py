"""Which operation of a step waits for which: the dependency rules of a recorded job.

Source of the rules of pipelines: Lin et al., "Understanding Stragglers in Large Model Training
Using What-if Analysis", OSDI 2025, and the output of its authors' program for one job.  The rules
are read off the first replica of the first step, and hold for all.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from simstrag.errors import InputError
from simstrag.records.record import (
    ASK,
    BACKWARD,
    COLLECTIVES,
    FORWARD,
    LAST,
    RECEIVE,
    SEND,
    SENT,
    TRANSFERS,
)
from simstrag.timing.operation_graph import Dependencies
from simstrag.whatif.operation_array import Layout

CLOCK = 5e-5
"""Seconds by which clocks of two ranks may differ where starts and ends are compared."""
GATHER, SCATTER, SEPARATE, LAYERNORM, EMBEDDING, CLIP, ALL_REDUCE = COLLECTIVES
GC, OPTIMIZER = LAST


def dependencies(layout: Layout) -> Dependencies:
    """The dependencies of a layout.

    Raises `InputError` for a pipeline whose sends and receives do not match.
    """
    found = Dependencies([set() for _ in layout.kind])
    if layout.find(RECEIVE).any():
        return _parts_of_stages(layout, found)
    if not layout.find(FORWARD).any():
        return _parts_and_collective(layout, found)
    stages = [_Stage(layout, stage) for stage in range(layout.stages)]
    ends: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for stage in stages:
        found.chain(stage.computing)
        for kind in TRANSFERS:
            found.chain(stage.of(kind))
            _match(stage, kind, found, ends)
        _first_backward(stage, found)
        if len(layout.replica) > 1:
            _parameters(stage, found)
        _after_computing(stage, found)
    for (direction, sender, k), pair in ends.items():
        if len(pair) != 2:
            raise InputError(
                f"{direction} transfer {k} from stage {sender} has {len(pair)} end, not two; one "
                "stage's record may be cut off"
            )
        found.groups.append(pair)
    if embedding := [each for stage in stages for each in stage.of(EMBEDDING)]:
        found.groups.append(embedding)
    if clips := [each for stage in stages for each in stage.of(CLIP)]:
        found.groups.append(clips)
        found.synced.update(clips)
    if len(layout.replica) > 1:
        shared = np.flatnonzero(layout.find(GATHER, SCATTER, SEPARATE)).tolist()
        found.groups += [[each] for each in shared]
        found.synced.update(shared)
    found.last = np.flatnonzero(layout.find(OPTIMIZER)).tolist() or list(range(len(layout.kind)))
    return found


def _parts_and_collective(layout: Layout, found: Dependencies) -> Dependencies:
    """The parts of a rank one after the other, each number ended by a collective of its group."""
    collective = layout.find(ALL_REDUCE)
    shared = np.flatnonzero(collective).tolist()
    found.chain(np.lexsort((layout.kind, collective, layout.number)).tolist())
    found.groups = [[each] for each in shared]
    found.synced.update(shared)
    if layout.group is not None:
        found.members = {each: layout.group[each] for each in shared}
    found.last = list(range(len(layout.kind)))
    return found


def _parts_of_stages(layout: Layout, found: Dependencies) -> Dependencies:
    """The parts of each stage one after the other, with its groups, sends and receives.

    Raises `InputError` where a rank receives another number of times than it was sent something.
    """
    assert layout.group is not None
    previous: dict[int, int] = {}
    waits: dict[tuple[str, int], list[int]] = defaultdict(list)
    communicates = layout.communicates
    for stage in range(layout.stages):
        own = np.flatnonzero(layout.stage == stage)
        order = own[np.lexsort((communicates[own], layout.number[own]))].tolist()
        found.chain(order)
        previous |= dict(zip(order[1:], order, strict=False))
        for each in order:
            if communicates[each]:
                kind = layout.kinds[layout.kind[each]]
                waits[kind, int(layout.group[each, 0])].append(each)
    for (kind, pair), places in waits.items():
        if kind == ALL_REDUCE:
            for place in places:
                found.groups.append([place])
                found.synced.add(place)
                found.members[place] = layout.group[place]
            continue
        other = {RECEIVE: SEND, SENT: ASK}.get(kind)
        if other is None:
            continue
        if len(waits[other, pair]) != len(places):
            raise InputError(
                f"a rank of stage {layout.stage[places[0]]} has {len(places)} {kind} in a step and "
                f"the other rank {len(waits[other, pair])} {other}; they must be equal"
            )
        for place, partner in zip(places, waits[other, pair], strict=True):
            found.before[place].add(previous[partner])
            found.received.append(place)
    found.last = list(range(len(layout.kind)))
    return found


class _Stage:
    """The operations of one stage in the first step of the first replica."""

    def __init__(self, layout: Layout, stage: int) -> None:
        self.layout, self.stage = layout, stage
        self.start, self.end = layout.start[:, 0, 0], layout.end[:, 0, 0]
        self._by_kind: dict[str, list[int]] = defaultdict(list)
        own = np.flatnonzero(layout.stage == stage)
        for place in own[np.lexsort((layout.number[own], self.start[own]))].tolist():
            self._by_kind[layout.kinds[layout.kind[place]]].append(place)
        self.computing = sorted(
            self.of(FORWARD) + self.of(BACKWARD),
            key=lambda k: (self.start[k], layout.number[k], layout.kind[k]),
        )

    def of(self, kind: str) -> list[int]:
        """The operations of a kind in order of their start."""
        return self._by_kind.get(kind, [])

    def by_number(self, kind: str) -> list[int]:
        """The operations of a kind in order of their number."""
        return sorted(self.of(kind), key=lambda k: int(self.layout.number[k]))


def _match(
    stage: _Stage, kind: str, found: Dependencies, ends: dict[tuple[str, int, int], list[int]]
) -> None:
    """Sends follow the computing that they carry on, receives precede theirs.

    Receives after the last computing of their direction began, and sends before the first ended,
    carry nothing.  So do those of the first and the last chunk of the model, outward.
    """
    direction, way = kind.split("-")
    computing = stage.by_number(f"{direction}-compute")
    sends = way == "send"
    if sends:
        first_end = min((stage.end[k] for k in computing), default=np.inf)
        live = [k for k in stage.of(kind) if stage.end[k] >= first_end - CLOCK]
    else:
        last_start = max((stage.start[k] for k in computing), default=-np.inf)
        live = [k for k in stage.of(kind) if stage.start[k] <= last_start + CLOCK]
    missing = len(computing) - len(live)
    if live and missing not in (0, 1):
        raise InputError(
            f"stage {stage.stage} has {len(live)} {kind} and {len(computing)} {direction}-compute; "
            "they must be equal, or one transfer less"
        )
    skipped = missing if not sends else 0  # a first receive that carries nothing may be missing
    stages = stage.layout.stages
    chunks = stages * (int(stage.layout.chunk.max()) + 1)
    step = 1 if (direction == "forward") == sends else -1
    sender = stage.stage if sends else (stage.stage + step) % stages
    partnered = 0
    for k, operation in enumerate(live, start=skipped):
        if sends:
            found.before[operation].add(computing[k])
        else:
            found.before[computing[k]].add(operation)
            if k:
                found.before[operation].add(computing[k - 1])
        if 0 <= stage.layout.model_chunk[computing[k]] + step < chunks:
            ends[direction, sender, partnered].append(operation)
            partnered += 1


def _first_backward(stage: _Stage, found: Dependencies) -> None:
    """The first backward transfers wait for the computing two before the first backward."""
    order = stage.computing
    first = next((k for k, each in enumerate(order) if each in set(stage.of(BACKWARD))), 0)
    if first >= 2:
        for kind in TRANSFERS[2:]:
            if transfers := stage.by_number(kind):
                found.before[transfers[0]].add(order[first - 2])


def _parameters(stage: _Stage, found: Dependencies) -> None:
    """Gathers and scatters in order; a chunk's first forward waits for its last gather."""
    found.chain(sorted(stage.of(GATHER) + stage.of(SCATTER), key=lambda k: float(stage.start[k])))
    chunk = stage.layout.chunk
    last_gather = {int(chunk[k]): k for k in stage.by_number(GATHER)}
    for own, gather in last_gather.items():
        first = next((k for k in stage.of(FORWARD) if chunk[k] == own), None)
        if first is not None:
            found.before[first].add(gather)
    if stage.layout.find(SEPARATE).any():
        first_scatter = {int(chunk[k]): k for k in reversed(stage.by_number(SCATTER))}
        for own, scatter in first_scatter.items():
            backward = [k for k in stage.of(BACKWARD) if chunk[k] == own]
            if backward:
                found.before[scatter].add(max(backward, key=lambda k: float(stage.end[k])))


def _after_computing(stage: _Stage, found: Dependencies) -> None:
    """What follows the last computing operation, one after the other."""
    scatters = stage.by_number(SCATTER) if len(stage.layout.replica) > 1 else []
    last = max(stage.computing, key=lambda k: float(stage.end[k]))
    gc = stage.of(GC)
    found.chain(gc, (last,))
    after: tuple[int, ...] = (gc[-1] if gc else last,)
    overlapped = stage.layout.find(SEPARATE).any()
    if overlapped:
        after, between = (*after, *scatters[-1:]), stage.of(SEPARATE)
    else:
        between = scatters
    found.chain(
        [
            *stage.of(LAYERNORM), *stage.of(EMBEDDING), *between, *stage.of(CLIP),
            *stage.of(OPTIMIZER),
        ],
        after,
    )  # fmt: skip
