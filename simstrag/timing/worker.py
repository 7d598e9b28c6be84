"""`WorkerRanks`: a data-parallel worker that is a group of ranks, and how long they take together.

Ranks of a stage share its computing, as tensor or sharded-data ranks do: the stage is as slow as
the slowest of them.  Stages are a pipeline, whose operations wait for each other:

- 1F1B (Narayanan et al., "Memory-efficient pipeline-parallel DNN training", ICML 2021): stage i
  does min(p - 1 - i, m) forwards, then a forward and a backward in turns, then the backwards that
  are left.  Alike stages take (m + p - 1) (f + b).
- Interleaved (Narayanan et al., "Efficient large-scale language model training on GPU clusters
  using Megatron-LM", SC 2021): a stage has v chunks of the model, and begins with
  2 (p - 1 - i) + (v - 1) p forwards.  Alike stages take (m + (p - 1) / v) (f + b).

p: stages.  m: micro-batches.  f, b: seconds of a stage's forward and backward of a micro-batch.
Transfers between stages cost nothing (assumed); a stage's chunks are alike (assumed).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.timing.operation_graph import BLOCK, Dependencies, GraphLevel, ends_of, levels_of


class StageOperation(NamedTuple):
    """A forward or backward operation of one micro-batch in one chunk of a stage."""

    is_forward: bool
    chunk: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class WorkerRanks:
    """A worker of several ranks.

    ranks: those of stage 0 first; every stage has as many.
    stages: of its pipeline; they divide the ranks.
    micro_batches: of a step; a multiple of the stages where there are several chunks.
    chunks: of the model on each stage; with more than one the schedule is interleaved.
    backward: seconds of a backward operation over those of a forward one.

    >>> pipeline = WorkerRanks(ranks=4, stages=4, micro_batches=8)
    >>> pipeline.stretch   # (8 + 4 - 1) / 8
    1.375
    """

    ranks: int
    stages: int = 1
    micro_batches: int = 1
    chunks: int = 1
    backward: float = 2.0

    @property
    def stretch(self) -> float:
        """A clean step over the computing of each rank: 1 without a pipeline."""
        return float(self.step(np.ones((self.ranks, 1)))[0])

    def step(self, computing: Floats) -> Floats:
        """Seconds of steps, shape (cases,).

        computing: seconds that each rank computes in a step, shape (ranks, cases).

        >>> WorkerRanks(ranks=2, stages=2, micro_batches=1).step(np.array([[4.0], [1.0]]))
        array([5.])
        """
        of_stage = computing.reshape(self.stages, -1, computing.shape[1]).max(axis=1)
        if self.stages == 1:
            return np.asarray(of_stage[0])
        known, place = np.unique(of_stage, axis=1, return_inverse=True)
        graph = _graph(self.stages, self.micro_batches, self.chunks)
        each = max(1, BLOCK // (8 * len(graph.stage)))
        parts = [
            self._makespans(graph, known[:, k : k + each]) for k in range(0, known.shape[1], each)
        ]
        return np.concatenate(parts)[place.ravel()]

    def _makespans(self, graph: _Graph, of_stage: Floats) -> Floats:
        forwards = self.micro_batches * self.chunks * (1 + self.backward)
        works = np.where(graph.is_forward, 1.0, self.backward)[:, None] * of_stage[graph.stage]
        ends = ends_of(graph.levels, works.shape, lambda own: works[own])
        return np.asarray(ends.max(axis=0) / forwards)  # divided last: whole numbers are exact


class _Graph(NamedTuple):
    """The operations of a step: their stages, directions and levels."""

    stage: Ints
    is_forward: Bools
    levels: tuple[GraphLevel, ...]


@functools.lru_cache(maxsize=8)
def _graph(stages: int, micro_batches: int, chunks: int) -> _Graph:
    place: dict[tuple[int, StageOperation], int] = {}
    orders = []
    for stage in range(stages):
        own = [(stage, each) for each in schedule(stage, stages, micro_batches, chunks)]
        orders.append([place.setdefault(each, len(place)) for each in own])
    needs = Dependencies([set() for _ in place])
    for order in orders:
        needs.chain(order)
    for (stage, operation), number in place.items():
        if (before := _input(stage, operation, stages, chunks)) is not None:
            needs.before[number].add(place[before])
    return _Graph(
        np.array([stage for stage, _ in place]),
        np.array([operation.is_forward for _, operation in place]), levels_of(needs),
    )  # fmt: skip


def schedule(
    stage: int, stages: int, micro_batches: int, chunks: int = 1
) -> Iterator[StageOperation]:
    """The operations of a stage in their order.

    >>> "".join("FB"[not each.is_forward] for each in schedule(0, stages=3, micro_batches=4))
    'FFFBFBBB'
    """
    pairs = micro_batches * chunks
    ahead = stages - 1 - stage
    if chunks > 1:
        ahead = 2 * ahead + (chunks - 1) * stages
    ahead = min(ahead, pairs)

    def operation(k: int, is_forward: bool) -> StageOperation:
        group, within = divmod(k, stages * chunks)
        if chunks == 1:
            return StageOperation(is_forward, 0, k)
        chunk, member = divmod(within, stages)
        own = chunk if is_forward else chunks - 1 - chunk
        return StageOperation(is_forward, own, group * stages + member)

    for k in range(ahead):
        yield operation(k, True)
    for k in range(pairs - ahead):
        yield operation(ahead + k, True)
        yield operation(k, False)
    for k in range(pairs - ahead, pairs):
        yield operation(k, False)


def _input(
    stage: int, operation: StageOperation, stages: int, chunks: int
) -> tuple[int, StageOperation] | None:
    """The stage and operation whose result an operation needs; None for the first one.

    Chunk c of stage i is part c x stages + i of the model.  The last part's backward needs its
    forward.
    """
    is_forward, chunk, micro_batch = operation
    part = chunk * stages + stage
    if not is_forward and part == stages * chunks - 1:
        return stage, StageOperation(True, chunk, micro_batch)
    part += -1 if is_forward else 1
    if part < 0:
        return None
    chunk, stage = divmod(part, stages)
    return stage, StageOperation(is_forward, chunk, micro_batch)
