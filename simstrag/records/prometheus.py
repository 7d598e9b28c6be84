"""Range queries of Prometheus, as its HTTP API answers them and as Grafana exports them.

Sources of the formats: `/api/v1/query_range` of Prometheus, whose result is a `matrix` of series
with labels and (time, text) pairs; and "Download CSV" of a panel of Grafana, which has a column per
series, or a row per series and time.  A series is called by its legend: a host, or the labels in
braces.  Labels such as `Hostname` and `gpu` of NVIDIA's dcgm-exporter name node and card.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simstrag.arrays import Reals
from simstrag.errors import InputError
from simstrag.records.columns import LOADED, MEANINGS, LogColumns, choose, match, plain
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_table import LogTable
from simstrag.records.record import (
    GPU,
    LANES,
    PCIE,
    POWER,
    POWER_LIMIT,
    REASONS,
    SM_CLOCK,
    SM_CLOCK_MAX,
    TEMPERATURE,
    Record,
)  # fmt: skip
from simstrag.records.series import numbers_of, record_of_series
from simstrag.records.utilisation import of_table

NAME = "prometheus"
HOSTS = (
    "Hostname", "hostname", "node", "host", "nodename", "kubernetes_node", "k8s_node", "instance",
)  # fmt: skip
"""Labels that name the node, the surest first; a port after it is left out."""
CARDS = ("gpu", "card", "device", "minor_number", "UUID", "uuid")
MIG = "GPU_I_ID"
"""The label of a part of a card."""
METRIC = "__name__"
UNKNOWN = "value"
"""The column of a series without a name."""
SERIES, LABEL = re.compile(r"([\w:]*)\{(.*)\}"), re.compile(r'(\w+)\s*=\s*"([^"]*)"')
LOOKBACK = 300.0
"""Seconds for which Prometheus repeats the last value of a series that has ended."""
METRICS = {
    SM_CLOCK: ("dcgmfidevsmclock", "nvidiasmiclockscurrentsmclockhz", "gpusmclocks", "smclock"),
    SM_CLOCK_MAX: ("dcgmfidevmaxsmclock",),
    POWER: ("dcgmfidevpowerusage", "nvidiasmipowerdrawwatts", "gpupowerusage"),
    POWER_LIMIT: (
        "dcgmfidevenforcedpowerlimit", "dcgmfidevpowermgmtlimit",
        "nvidiasmienforcedpowerlimitwatts",
    ),
    TEMPERATURE: ("dcgmfidevgputemp", "nvidiasmitemperaturegpu", "gputemperature"),
    REASONS: ("dcgmfidevclocksthrottlereasons", "dcgmfidevclockthrottlereasons",
              "dcgmfidevclockseventreasons"),
    PCIE: ("dcgmfidevpcielinkgen",),
    LANES: ("dcgmfidevpcielinkwidth",),
}  # fmt: skip
"""Names of metrics, in small letters and digits, the surest first."""
HERTZ = "hz"
"""The end of the name of a clock that is not in MHz."""
COUNTERS = re.compile(r"DCGM_FI_DEV_\w*_VIOLATION|\w+_(total|count|bucket|sum)")
QUERY = (
    '{__name__=~"DCGM_FI_DEV_(GPU_UTIL|SM_CLOCK|POWER_USAGE|GPU_TEMP|CLOCK.*REASONS)"} '
    "by query_range"
)
Point = dict[str, Any]


def recognise(file: LogFile) -> bool:
    """Whether it is an answer of Prometheus, an error too, or what Grafana exports."""
    document = file.document
    if document is None:
        return file.table is not None and _is_export(file)
    is_error = isinstance(document, dict) and document.get("status") == "error"
    return is_matrix(document) or (is_error and "errorType" in document)


def read(
    files: Sequence[LogFile],
    columns: Mapping[str, str] | None = None,
    fraction: bool | None = None,
) -> Record:
    """The record of one range query, JSON or CSV.

    columns: `{"gpu": "value"}` for series that do not name their metric.
    fraction: as in `utilisation.of_table`.
    """
    return record_of(read_table(files[0]), columns, fraction)


def read_table(file: LogFile) -> LogTable:
    """A row per node, card and time, with a column per metric.

    Raises `InputError` for any other file.
    """
    if file.document is not None:
        return _table(_of_matrix(file.document, file.path), file.path, "series")
    if file.head.lstrip().startswith(("{", "[")):
        raise InputError(f"{file.path}: not a range query of Prometheus: it is no whole JSON")
    table = file.table or LogTable.of(file.text, str(file.path))
    return _table(_of_grafana(table, file.path), file.path, "row")


def record_of(
    table: LogTable,
    columns: Mapping[str, str] | None = None,
    fraction: bool | None = None,
) -> Record:
    """The record of a table of metrics. Raises `InputError` if none of them is known."""
    stated, of = dict(columns or {}), metrics_of(table)
    if (name := next((n for n in stated.values() if n == of.get(REASONS)), None)) is not None:
        raise InputError(f"{table.source}: {name} is a mask of bits, and no utilisation")
    known = {quantity: name for quantity, name in of.items() if name not in stated.values()}
    metrics = [name for name in table.columns if name not in ("node", "card", "time")]
    rest, notes = [m for m in metrics if m not in known.values()], []
    if counters := [m for m in rest if COUNTERS.fullmatch(m)]:
        notes.append(f"Dropped: {', '.join(counters)}, which count and are no state.")
    has_load = any(choose(rest, LOADED)) or any(each in stated for each in LOADED)
    if not known and not has_load and rest == [UNKNOWN]:
        shares = table.numbers(UNKNOWN, gaps=True)
        if not ((shares < 0) | (shares > 100)).any():
            stated[GPU], has_load = UNKNOWN, True
            notes.append(
                "Assumed: the values are utilisations of GPUs in percent; the query names no "
                "metric, and all values are from 0 to 100."
            )
    if not known and not has_load:
        raise InputError(
            f"{table.source}: has {', '.join(rest) or 'no metric'}, which is no load, clock or "
            f"power that is known; query {QUERY}, or name a utilisation: --column gpu=NAME"
        )
    values = {q: _numbers(table, name) for q, name in known.items()}
    said = ", ".join(f"{quantity} from {name}" for quantity, name in known.items())
    measured = [f"Measured: {said}."] if known else []
    if has_load:
        loads = of_table(NAME, table, stated, fraction, values)
        unseen = tuple(each._replace(remedy=QUERY) for each in loads.unseen)
        return replace(loads, notes=(*measured, *loads.notes, *notes), unseen=unseen)
    log = LogColumns.of(table, ("time", "node", "card"), {}, ("node", "time"))
    node, names = log.nodes()
    (time,), begin, began = log.times("time")
    return record_of_series(
        table.source, NAME, [names.get(each, str(each)) for each in node], time, values, QUERY,
        began=began, notes=(*measured, f"Derived: time 0 is {begin} of the file.", *notes),
    )  # fmt: skip


def metrics_of(table: LogTable) -> dict[str, str]:
    """The column of each known quantity that is no utilisation."""
    found = {
        quantity: next((name for a in names for name in table.columns if plain(name) == a), "")
        for quantity, names in METRICS.items()
    }
    return {quantity: name for quantity, name in found.items() if name}


def _numbers(table: LogTable, name: str) -> Reals:
    scale = 1e-6 if plain(name).endswith(HERTZ) else 1.0
    return scale * numbers_of(table.columns[name], f"{table.source}: {name}")


def is_matrix(document: Any) -> bool:
    """Whether a JSON document is what a range query answers, or only its `data`."""
    data = document.get("data", document) if isinstance(document, dict) else None
    return isinstance(data, dict) and isinstance(data.get("result"), list)


def is_grafana(table: LogTable) -> bool:
    """Whether a CSV file has columns or rows of series over time.

    >>> is_grafana(LogTable.of('"Time","gpu03"\\n2026-01-31 10:00:00,45%\\n', "gpu.csv"))
    True
    """
    return _time(table) is not None and (
        {"Series", "Value"} <= set(table.columns)
        or all(SERIES.fullmatch(name) or _is_load(table, name) for name in list(table.columns)[1:])
    )


def _of_matrix(document: Any, path: str | Path) -> Iterator[tuple[int, Point]]:
    if not is_matrix(document):
        error = document.get("error") if isinstance(document, dict) else None
        said = f": the query failed with {error!r}" if error else ""
        raise InputError(
            f"{path}: no list data.result{said}; it is not what a range query of Prometheus answers"
        )
    found: dict[str, list[tuple[int, Point, str, list[list[Any]]]]] = {}
    for k, series in enumerate(document.get("data", document)["result"], start=1):
        where = f"{path}, series {k}"
        labels, points = (
            (series.get("metric"), series.get("values")) if isinstance(series, dict) else (0, 0)
        )
        if not isinstance(labels, dict) or not isinstance(points, list):
            raise InputError(
                f"{where}: has no metric and values; ask for a range (query_range), "
                "whose result is a matrix"
            )
        start, metric = _labels(labels, where)
        for point in points:
            if not isinstance(point, list) or len(point) != 2:
                raise InputError(f"{where}: {point!r:.80} is not [time, value]")
        if points:
            found.setdefault(repr((start, metric)), []).append((k, start, metric, points))
    for same in found.values():
        for k, start, metric, points in _joined(same):
            for time, value in points:
                yield k, {**start, "time": time, metric: value}


def _joined(
    series: list[tuple[int, Point, str, list[list[Any]]]],
) -> list[tuple[int, Point, str, list[list[Any]]]]:
    """Series of one card, as of pods that took turns, without the repeated end of each."""
    if len(series) < 2 or not all(_is_moment(each[3][k][0]) for each in series for k in (0, -1)):
        return series
    series = sorted(series, key=lambda each: (float(each[3][0][0]), float(each[3][-1][0])))
    cut = []
    for each, after in itertools.zip_longest(series, series[1:]):
        points = each[3]
        begin = float(after[3][0][0]) if after else math.inf
        if float(points[0][0]) < begin <= float(points[-1][0]) <= begin + LOOKBACK:
            points = [point for point in points if float(point[0]) < begin]
        cut.append((*each[:3], points))
    return cut


def _is_moment(cell: Any) -> bool:
    return isinstance(cell, (int, float)) and math.isfinite(cell)


def _is_export(file: LogFile) -> bool:
    """Whether a CSV file is surely an export of Grafana: by labels, units or its name."""
    table = file.table
    if table is None or not is_grafana(table):
        return False
    names = [name for name in table.columns if name != _time(table)]
    if {"Series", "Value"} <= set(table.columns) or all(map(SERIES.fullmatch, names)):
        return True
    cells = [cell for name in names for cell in table.columns[name][:20]]
    return _time(table) == "Time" and (
        any(cell.endswith(("%", "Hz", "W", "°C")) for cell in cells)
        or ("-data" in file.path.stem and not choose(names, MEANINGS["steps"]))
    )


def _of_grafana(table: LogTable, path: str | Path) -> Iterator[tuple[int, Point]]:
    time = _time(table)
    if time is None:
        raise InputError(
            f"{path}: no column Time; it is not what Grafana exports; it has {table.header}"
        )
    title = re.sub(r"-data\b.*", "", Path(path).stem)
    is_known = any(match(title, resource) for resource in LOADED)
    is_known |= any(plain(title) in names for names in METRICS.values())
    unknown = title if is_known else UNKNOWN
    if {"Series", "Value"} <= set(table.columns):
        cells = [("Value", table.columns["Series"])]
    else:
        names = [name for name in table.columns if name != time]
        cells = [(name, [name] * len(table.lines)) for name in names]
    for column, series in cells:
        for k, name in enumerate(series):
            found = SERIES.fullmatch(name)
            labels = dict(LABEL.findall(found[2])) if found else {"node": name}
            labels[METRIC] = (found and found[1]) or unknown
            start, metric = _labels(labels, f"{path}, series {name}")
            moment, cell = table.columns[time][k], table.columns[column][k]
            yield table.lines[k], {**start, "time": moment, metric: cell}


def _labels(labels: Mapping[str, Any], where: str) -> tuple[Point, str]:
    """Node and card of a series, and its metric."""
    host = next((str(labels[name]) for name in HOSTS if labels.get(name)), "")
    if not host:
        raise InputError(
            f"{where}: no label names the node; keep one of {', '.join(HOSTS)} in the query, as "
            "in avg by (Hostname) (...)"
        )
    record = {"node": re.sub(r":\d+$", "", host)}
    card = next((str(labels[name]) for name in CARDS if labels.get(name)), None)
    if card is not None and labels.get(MIG):
        card = f"{card}:{labels[MIG]}"
    return record if card is None else {**record, "card": card}, str(labels.get(METRIC) or UNKNOWN)


def _table(records: Iterator[tuple[int, Point]], path: str | Path, unit: str) -> LogTable:
    """The table of points, with those of one node, card and time in one row."""
    rows: dict[tuple[Any, ...], tuple[int, Point]] = {}
    for number, record in records:
        metric = next(name for name in reversed(record))
        key: tuple[Any, ...] = (record["node"], record.get("card"), str(record["time"]))
        if metric in rows.get(key, (0, {}))[1]:
            key = (*key, len(rows))
        rows.setdefault(key, (number, {}))[1].update(record)
    if not rows:
        raise InputError(f"{path}: the query found no series; ask for a longer range")
    return LogTable.of_records(rows.values(), str(path), unit)


def _time(table: LogTable) -> str | None:
    """The column of times, which is the first, or the second beside a column of series."""
    names = [name for name in table.columns if name != "Series"][:1]
    is_time = names and match(names[0], "time") and not match(names[0], "start")
    return names[0] if is_time else None


def _is_load(table: LogTable, name: str) -> bool:
    """Whether the cells of a column are numbers, or gaps, and not all of them gaps."""
    try:
        return bool((numbers_of(table.columns[name], name) >= 0).any())
    except InputError:
        return False


READERS = (Reader(NAME, "range query of Prometheus (JSON), or Grafana's CSV", recognise, read),)
