"""Utilisation over time as exporters of metrics write it: a row per node and moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.records.columns import LOADED, MEANINGS, NEEDED, SHARES, LogColumns, format_of, plain
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_table import LogTable
from simstrag.records.record import Record
from simstrag.records.series import record_of_series

NAME = "utilisation"


def recognise(file: LogFile) -> bool:
    """Whether it is a table with columns of node, time and a load."""
    return file.table is not None and format_of(file.table.columns) == NAME


def read(
    files: Sequence[LogFile],
    columns: Mapping[str, str] | None = None,
    fraction: bool | None = None,
) -> Record:
    """The record of one file; see `of_table`."""
    file = files[0]
    table = file.table or LogTable.of(file.text, str(file.path))
    return of_table(NAME, table, columns, fraction)


def of_table(
    name: str,
    table: LogTable,
    columns: Mapping[str, str] | None = None,
    fraction: bool | None = None,
    more: Mapping[str, Reals] | None = None,
) -> Record:
    """The series gpu, host and net of the columns that a table has, as shares.

    name: the format.
    columns: names of columns (node, time, card, resource) that are not known.
    fraction: whether values are 0 to 1; else they are percent, 0 to 100, unless the name is of a
        share.
    more: other quantities of the same rows.

    Errors are an `InputError` that names the row.
    """
    log = LogColumns.of(table, MEANINGS[NAME], columns, NEEDED[NAME])
    loads = {resource: _loads(log, resource, fraction) for resource in LOADED if resource in log}
    node, names = log.nodes()
    (time,), begin, began = log.times("time")
    for resource, cells in loads.items():
        _require_one_value(log, resource, np.array(node), time, cells)
    unit = "as fractions" if all(_is_share(log, r, fraction) for r in loads) else "in percent"
    labels = [names.get(each, str(each)) for each in node]
    values = loads | dict(more or {})
    record = record_of_series(table.source, name, labels, time, values, began=began)
    empty = sum(int(np.isnan(cells).sum()) for cells in loads.values())
    kept = sum(len(series.value) for series in record.series if series.quantity in loads)
    twice = sum(map(len, loads.values())) - empty - kept
    highest = max(float(np.nanmax(cells, initial=0.0)) for cells in loads.values())
    notes = [
        f"Measured: utilisation, {log.taken(*loads)}, {unit}; {log.taken('node', 'card', 'time')}.",
        f"Derived: time 0 is {begin} of the file.",
    ]
    if empty:
        notes.append(f"Missing: {empty} empty cells, where the one before stays in force.")
    if twice:
        notes.append(f"Dropped: {twice} cells given twice with the same value.")
    if not fraction and 0 < highest <= 0.01:
        notes.append("Doubtful: no value is above 1 percent; if they are fractions, say so.")
    return replace(record, notes=tuple(notes))


def _require_one_value(
    log: LogColumns, resource: str, node: Ints, time: Reals, cells: Reals
) -> None:
    """Raises `InputError` for two values of one node and time."""
    order = np.lexsort((time, node))
    order = order[~np.isnan(cells[order])]
    same = (np.diff(node[order]) == 0) & (np.diff(time[order]) == 0)
    differs = same & (np.diff(cells[order]) != 0)
    if differs.any():
        first, second = sorted(order[int(differs.argmax()) :][:2].tolist())
        raise log.mistake(
            second, resource,
            f"is a second value of this node and time, which {log.table.unit} "
            f"{log.table.lines[first]} has as '{log.cells(resource)[first]}'; several cards need a "
            "node each: name the column of their numbers, --column card=NAME",
        )  # fmt: skip


def _is_share(log: LogColumns, resource: str, fraction: bool | None) -> bool:
    return plain(log.names[resource]) in SHARES if fraction is None else fraction


def _loads(log: LogColumns, resource: str, fraction: bool | None) -> Reals:
    """Utilisations as fractions, NaN for an empty cell."""
    is_share = _is_share(log, resource, fraction)
    value, most = log.numbers(resource, gaps=True), 1.0 if is_share else 100.0
    wrong = (value < 0) | (value > most)
    if wrong.any():
        way_out = "percent need no --fraction" if is_share else "of several cores, take their mean"
        why = f"must lie between 0 and {most:g}; {way_out}"
        raise log.mistake(int(wrong.argmax()), resource, why)
    if np.isnan(value).all():
        raise log.mistake(0, resource, "is empty, like all cells of its column")
    return value / most


READERS = (Reader(NAME, "CSV of node, time and load", recognise, read),)
