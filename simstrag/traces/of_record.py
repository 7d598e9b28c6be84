"""The trace of any record: by its steps, its metrics, its episodes or its extremes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simstrag.records.record import SM_CLOCK, Record
from simstrag.traces.of_bounds import trace_of_bounds
from simstrag.traces.of_episodes import trace_of_episodes
from simstrag.traces.of_loads import RESPONSES, trace_of_series
from simstrag.traces.of_steps import trace_of_steps
from simstrag.traces.provenance import Labelled


def trace_of(
    record: Record, *, name: str | None = None, paths: Sequence[str | Path] = ()
) -> Labelled:
    """The trace of a record, by the surest that it has, and the scenario that runs it.

    name: the label of the trace; the record's format by default.
    paths: the files of the record.
    Loads slow a step by the first law of `RESPONSES`.
    Raises `InputError` for a record that tells no slowdown.
    """
    if len(record):
        return trace_of_steps(record, name=name or record.form, paths=paths)
    if record.episodes:
        return trace_of_episodes(record, name=name or record.form, paths=paths)
    if record.bounds:
        return trace_of_bounds(record, paths)
    law = None if record.series_of(SM_CLOCK) is not None else next(iter(RESPONSES))
    return trace_of_series(record, response=law, paths=paths)
