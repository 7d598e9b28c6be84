"""A trace of one slow rank, from a record that has only the extremes over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simstrag.errors import InputError
from simstrag.records.record import QUANTITIES, RELATIVE, Bounds, Record
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
    spread = [(_ratio(each), each) for each in timed]
    known = [pair for pair in spread if np.isfinite(pair[0])]
    if not known:
        raise InputError(
            f"{record.source}: has no least and greatest time of ranks: no slowdown is known"
        )
    seconds = max(float(np.median(each.low)) for _, each in known)
    longest = max(known, key=lambda pair: float(np.median(pair[1].high - pair[1].low)))[1]
    slowdown = 1 + float(np.median(longest.high - longest.low)) / seconds
    relative = longest.quantity.startswith(RELATIVE)
    named = longest.high_rank[longest.high_rank >= 0]
    rank = int(np.bincount(named).argmax()) if len(named) else 0
    workers = max(FEWEST, 1 + max(int(each.high_rank.max()) for _, each in known))
    trace = Trace.from_rows(
        [(0.0, k, "step", "slowdown", slowdown if k == rank else 1.0) for k in range(workers)],
        record.source,
    )
    who = f"rank {rank}, which the log names" if len(named) else "one rank, and which is unknown"
    notes = (
        f"Measured: the least and the greatest {longest.quantity} over ranks, "
        f"{np.median(longest.low):.4g} and {np.median(longest.high):.4g}"
        f"{'' if relative else ' s'} in the median.",
        f"Derived: {who}, is {slowdown:.3g} times as long as the fastest in all its step.",
        "Assumed: it is slow all along, and all others are as fast as the fastest.",
        f"Assumed: {workers} workers; the log does not say how many there are.",
        *count_note("Dropped", (len(record.bounds) - len(known), "extremes of other quantities")),
    )
    return Labelled(
        trace, record.form, contents(paths), notes, notes[2:4],
        (
            f"placeholders: [workers{', step.compute' if relative else ''}]",
            f"step: {{compute: {seconds:.6g}}}  # {'ASSUMED' if relative else 'of the fastest'}",
            *run_of(STEPS, workers),
        ),
    )  # fmt: skip


def _ratio(bounds: Bounds) -> float:
    """The greatest over the least, in the median; NaN where one was not recorded."""
    return float(np.median(bounds.high / bounds.low)) if len(bounds.low) else np.nan
