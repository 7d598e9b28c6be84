"""`Record`: what every rank of a real job did, one row per operation.

A reader makes it from a file of another tool, and says in `notes` what the file leaves out and what
was derived in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

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
COMMUNICATION = frozenset({*TRANSFERS, *COLLECTIVES})
OPERATIONS = (FORWARD, BACKWARD, *TRANSFERS, *COLLECTIVES[:-1], *LAST)
"""The kinds of operations in a step of a pipeline."""


def assumed_gpus(ranks: int) -> str:
    """The note of a record that does not say how many GPUs its ranks have."""
    return f"Assumed: {'the rank' if ranks == 1 else f'each of {ranks} ranks'} is one GPU."


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """The operations of a real job as columns of equal length.

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
    missing: what the record leaves out and nothing replaces.
    notes: what was derived or assumed.
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
    start: Floats
    duration: Floats
    kinds: tuple[str, ...]
    source: str
    form: str
    gpus: int | None = None
    is_timed: bool = True
    step_seconds: Floats | None = None
    tokens: Floats | None = None
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of_ranks(
        cls,
        steps: Ints,
        ranks: Ints,
        parts: Mapping[str, Floats] | Mapping[tuple[str, int], Floats],
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

    @property
    def is_pipeline(self) -> bool:
        """Whether operations are those of a pipeline; otherwise a rank's parts and a collective."""
        return FORWARD in self.kinds

    def __len__(self) -> int:
        return len(self.step)
