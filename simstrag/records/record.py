"""`Record`: what is known of a real job, from the files of any tool.

It has the operations of ranks, quantities of nodes over time, extremes over ranks, and episodes;
any of these may be empty.  A reader says in `notes` what was derived or assumed, and in `unseen`
what such a file cannot show, and what would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.documents.job_mesh import JobMesh

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE, ALL_REDUCE = "compute", "all-reduce"
"""All computing of a rank in a step, and the collective that ends it, without pipelines."""
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
"""Point-to-point operations between neighbouring stages."""
COLLECTIVES = (
    "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce",
    "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad",
    ALL_REDUCE,
)  # fmt: skip
LAST = ("gc", "optimizer")
"""Computing at the end of a step."""
PEER = SEND, SENT, ASK, RECEIVE = "send", "sent", "ask", "recv"
"""Transfers between two ranks: a send is begun, and waited for; so is a receive."""
COMMUNICATION = frozenset({*TRANSFERS, *COLLECTIVES, *PEER})
OPERATIONS = (FORWARD, BACKWARD, *TRANSFERS, *COLLECTIVES[:-1], *LAST)
"""The kinds of operations in a step of a pipeline."""


def assumed_gpus(ranks: int) -> str:
    """The note of a record that does not say how many GPUs its ranks have."""
    return f"Assumed: {'the rank' if ranks == 1 else f'each of {ranks} ranks'} is one GPU."


class Unseen(NamedTuple):
    """A gap of a record, and the remedy for it.

    what: a clause such as "which rank was slow".
    remedy: a flag, a query or a line of code, such as "--timing-log-option all".
    hides_ranks: whether a slow rank may be hidden, so that no rank can be called like its peers.
    """

    what: str
    remedy: str
    hides_ranks: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class NodeSeries:
    """A quantity of nodes over time, as columns of equal length, in order of node and time.

    quantity: one of `QUANTITIES`.
    node: place in `Record.nodes`.
    time: seconds from `Record.began`, or from the first sample.
    value: in the unit of the quantity; no NaN.
    """

    quantity: str
    node: Ints
    time: Reals
    value: Reals

    def of_node(self, node: int) -> tuple[Reals, Reals]:
        """Times and values of one node."""
        own = slice(*np.searchsorted(self.node, [node, node + 1]))
        return self.time[own], self.value[own]


class NodeEpisode(NamedTuple):
    """A time in which something was on a node.

    node: place in `Record.nodes`.
    start, end: seconds from `Record.began`.
    factor: how many times as long steps took; NaN where the record does not say.
    what: such as "job 1235 (eval)".
    """

    node: int
    start: float
    end: float
    factor: float
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """The least and the greatest value over ranks, at each of several steps or times.

    quantity: a part of a step, in seconds, such as `FORWARD`, or one of `QUANTITIES`.
    step: numbers of steps; times in seconds where there are none.
    low, high: NaN where it was not recorded.
    low_rank, high_rank: which rank has it; -1 where the record does not say.
    """

    quantity: str
    step: Ints
    low: Reals
    high: Reals
    low_rank: Ints
    high_rank: Ints

    @property
    def middle(self) -> tuple[float, float]:
        """The least and the greatest value, in the median of where both were recorded; or NaN."""
        known = np.isfinite(self.low) & np.isfinite(self.high)
        if not known.any():
            return np.nan, np.nan
        return float(np.median(self.low[known])), float(np.median(self.high[known]))

    @property
    def slowest(self) -> tuple[int, int]:
        """The rank that most often has the greatest value, and how often; -1 without a name."""
        named = self.high_rank[self.high_rank >= 0]
        if not len(named):
            return -1, 0
        counts = np.bincount(named)
        return int(counts.argmax()), int(counts.max())


GPU, HOST, NET = "gpu", "host", "net"
SM_CLOCK, SM_CLOCK_MAX, POWER, POWER_LIMIT, TEMPERATURE, REASONS, PCIE, LANES = (
    "SM clock", "SM clock, highest", "power", "power limit", "temperature", "throttle reasons",
    "PCIe generation", "PCIe lanes",
)  # fmt: skip
QUANTITIES = {
    GPU: "of 1", HOST: "of 1", NET: "of 1", SM_CLOCK: "MHz", SM_CLOCK_MAX: "MHz", POWER: "W",
    POWER_LIMIT: "W", TEMPERATURE: "C", REASONS: "bits", PCIE: "", LANES: "",
}  # fmt: skip
"""What a series may be of, and its unit.  The first three are utilisations, from 0 to 1."""
RELATIVE = "time against"
"""How the quantities of bounds begin that are ratios of times, and no seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What is known of a real job; its operations as columns of equal length.

    step: number of the step; numbers may have gaps.
    replica: data-parallel rank: the group of ranks that computes one share of a batch.
    stage: pipeline stage; 0 without pipelines.
    rank: number of the rank in the job.
    kind: index into `kinds`.
    number: place among the operations of its kind of this rank and step, from 0.
    chunk: model chunk on its stage; -1 where the operation is of none.
    model_chunk: model chunk in the whole model; -1 likewise.
    micro_batch: -1 likewise.
    start: seconds, on a clock that all ranks of a step have in common.
    duration: seconds; of communication, waiting for its peers included.
    kinds: names of the operations.
    source: file or folder.
    form: name of the format.
    gpus: GPUs of the job; None if nothing says it, where each rank counts as one.
    is_timed: whether a step's own time was recorded, which replays are checked against.
    step_seconds: that time, in order of the numbers of steps; None where it is last end - first
        start.
    tokens: size of the input of each operation, or NaN; None where none was recorded.
    group: number of the group of ranks in which each collective is; None where it is all ranks.
    mesh: of the ranks, where the record has it.
    missing: what the record leaves out and nothing replaces.
    notes: what was derived or assumed.
    time: seconds from `began` at which the step of each operation began or was logged; None where
        nothing says it.
    began: the first moment in ISO 8601; empty if times are from another zero.
    hosts: the host of a rank, where it is known.
    nodes: the names of the nodes of series and episodes: hosts, or cards such as `gpu01/3`.
    models: the model of the card of each node, where the log has it.
    series, bounds, episodes: see their types.
    unseen: what such a record cannot show.
    hang: what a job that stopped answering waits for, in a sentence; empty otherwise.
    """

    step: Ints
    replica: Ints
    stage: Ints
    rank: Ints
    kind: Ints
    number: Ints
    chunk: Ints
    model_chunk: Ints
    micro_batch: Ints
    start: Reals
    duration: Reals
    kinds: tuple[str, ...]
    source: str
    form: str
    gpus: int | None = None
    is_timed: bool = True
    step_seconds: Reals | None = None
    tokens: Reals | None = None
    group: Ints | None = None
    mesh: JobMesh | None = None
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    time: Reals | None = None
    began: str = ""
    hosts: Mapping[int, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    series: tuple[NodeSeries, ...] = ()
    bounds: tuple[Bounds, ...] = ()
    episodes: tuple[NodeEpisode, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    hang: str = ""

    @classmethod
    def without_steps(cls, source: str, form: str, **more: Any) -> Self:
        """A record without operations. more: further fields of the record."""
        none, empty = np.zeros(0, np.int64), np.zeros(0)
        return cls(
            step=none, replica=none, stage=none, rank=none, kind=none, number=none, chunk=none,
            model_chunk=none, micro_batch=none, start=empty, duration=empty, kinds=(),
            source=source, form=form, is_timed=False, **more,
        )  # fmt: skip

    @classmethod
    def of_ranks(
        cls,
        steps: Ints,
        ranks: Ints,
        parts: Mapping[str, Reals] | Mapping[tuple[str, int], Reals],
        source: str,
        form: str,
        **more: Any,
    ) -> Self:
        """The record of data-parallel ranks that do the same parts of each step.

        steps, ranks: their numbers.
        parts: seconds of each part, in order, shape (steps, ranks); that named `ALL_REDUCE`
            includes waiting for the others.  A name with a number is one of several parts of it.
        more: further fields of the record.
        """
        shape = len(steps), len(ranks), len(parts)
        seconds = np.stack(list(parts.values()), axis=-1)
        keys = [(key, 0) if isinstance(key, str) else key for key in parts]
        kinds = tuple(dict.fromkeys(name for name, _ in keys))
        step, rank, kind, number = (
            np.broadcast_to(values, shape).ravel()
            for values in (
                steps[:, None, None], ranks[:, None],
                np.array([kinds.index(name) for name, _ in keys]), np.array([k for _, k in keys]),
            )
        )  # fmt: skip
        none, zero = np.full(step.shape, -1), np.zeros_like(step)
        return cls(
            step=step, replica=rank, stage=zero, rank=rank, kind=kind, number=number, chunk=none,
            model_chunk=none, micro_batch=none, start=(seconds.cumsum(axis=-1) - seconds).ravel(),
            duration=seconds.ravel(), kinds=kinds, source=source, form=form, **more,
        )  # fmt: skip

    def of_steps(self, steps: Ints) -> Self:
        """The record of these steps alone, by their numbers."""
        known = np.unique(self.step)
        rows = np.isin(self.step, steps)
        columns: dict[str, Any] = {
            each.name: values[rows]
            for each in fields(self)
            if isinstance(values := getattr(self, each.name), np.ndarray)
            and each.name != "step_seconds"
        }
        seconds = None if self.step_seconds is None else self.step_seconds[np.isin(known, steps)]
        return replace(self, **columns, step_seconds=seconds)

    def series_of(self, quantity: str) -> NodeSeries | None:
        """The series of a quantity; None without one."""
        return next((each for each in self.series if each.quantity == quantity), None)

    @property
    def is_pipeline(self) -> bool:
        """Whether operations are those of a pipeline; otherwise a rank's parts and a collective."""
        return FORWARD in self.kinds

    def __len__(self) -> int:
        return len(self.step)
