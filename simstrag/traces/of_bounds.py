"""A trace of one slow rank, from a record that has only the extremes over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simstrag.errors import InputError
from simstrag.records.record import BACKWARD, FORWARD, QUANTITIES, RELATIVE, Record
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import Labelled, contents, count_note, run_of

STEPS = 500
"""Steps of each worker in the scenario, ASSUMED."""
FEWEST = 8
"""Least workers of the scenario, which the record does not tell."""


def trace_of_bounds(record: Record, paths: Sequence[str | Path] = ()) -> Labelled:
    """One rank as slow as the slowest was against the fastest, all along.

    paths: the files of the record.
    Raises `InputError` for a record without a time's least and greatest value.
    """
    timed = [each for each in record.bounds if each.quantity not in QUANTITIES]
    known = [each for each in timed if np.isfinite(each.middle).all()]
    if not known:
        raise InputError(
            f"{record.source}: has no least and greatest time of ranks: no slowdown is known"
        )
    parts = sum(each.middle[0] for each in known if each.quantity in (FORWARD, BACKWARD))
    seconds = max(parts, *(each.middle[0] for each in known))
    longest = max(known, key=lambda each: each.middle[1] - each.middle[0])
    low, high = longest.middle
    slowdown = 1 + (high - low) / seconds if seconds > 0 else 1.0
    relative = longest.quantity.startswith(RELATIVE)
    rank, times = longest.slowest
    workers = max(FEWEST, 1 + max(int(each.high_rank.max()) for each in known))
    slow = max(rank, 0)
    trace = Trace.from_rows(
        [(0.0, k, "step", "slowdown", slowdown if k == slow else 1.0) for k in range(workers)],
        record.source,
    )
    who = f"rank {rank}, which the log names" if times else "one rank, and which is unknown"
    notes = (
        f"Measured: the least and the greatest {longest.quantity} over ranks, "
        f"{low:.4g} and {high:.4g}"
        f"{'' if relative else ' s'} in the median.",
        f"Derived: {who}, is {slowdown:.3g} times as long as the fastest in all its step.",
        "Assumed: it is slow all along, and all others are as fast as the fastest.",
        f"Assumed: {workers} workers; the log does not say how many there are.",
        *count_note("Dropped", (len(record.bounds) - len(known), "extremes of other quantities")),
    )
    return Labelled(
        trace, record.form, contents(paths), notes, (" ".join(notes[2:4]),),
        (
            f"placeholders: [workers{', step.compute' if relative else ''}]",
            f"step: {{compute: {seconds:.6g}}}  # {'ASSUMED' if relative else 'of the fastest'}",
            *run_of(STEPS, workers),
        ),
    )  # fmt: skip
