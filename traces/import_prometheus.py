"""Range queries of Prometheus, as its HTTP API answers them and as Grafana exports them.

Sources of the formats: `/api/v1/query_range` of Prometheus, whose result is a `matrix` of series
with labels and (time, text) pairs; and "Download CSV" of a panel of Grafana, which has a column per
series, or a row per series and time.  A series is called by its legend: a host, or the labels in
braces.  Labels such as `Hostname` and `gpu` of NVIDIA's dcgm-exporter name node and card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simstrag.errors import InputError
from simstrag.records.log_formats import LOADED, match
from simstrag.records.log_table import LogTable, is_json, read_json
from simstrag.traces.import_utilisation import of_table
from simstrag.traces.provenance import Labelled

NAME = "prometheus"
HOSTS = ("Hostname", "hostname", "node", "host", "nodename", "kubernetes_node", "instance")
"""Labels that name the node, the surest first; a port after it is left out."""
CARDS = ("gpu", "card", "device", "minor_number")
METRIC = "__name__"
UNKNOWN = "value"
"""The column of a series without a name."""
SERIES, LABEL = re.compile(r"([\w:]*)\{(.*)\}"), re.compile(r'(\w+)\s*=\s*"([^"]*)"')
Record = dict[str, Any]


def prometheus(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    fraction: bool | None = None,
    own: Mapping[str, float] | None = None,
    response: str | None = None,
) -> Labelled:
    """Utilisations of a range query, JSON or CSV; see `import_utilisation.of_table`.

    columns: `{"gpu": "value"}` for series that do not name their metric.
    """
    return of_table(NAME, read_table(path), path, columns, fraction, own, response)


def read_table(path: str | Path) -> LogTable:
    """A row per node, card and time, with a column per metric.

    Raises `InputError` for any other file.
    """
    if is_json(path):
        return _table(_of_matrix(read_json(path, "a range query of Prometheus"), path), path)
    return _table(_of_grafana(LogTable.read(path), path), path)


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


def _of_matrix(document: Any, path: str | Path) -> Iterator[tuple[int, Record]]:
    if not is_matrix(document):
        error = document.get("error") if isinstance(document, dict) else None
        said = f": the query failed with {error!r}" if error else ""
        raise InputError(
            f"{path}: no list data.result{said}; it is not what a range query of Prometheus answers"
        )
    for k, series in enumerate(document.get("data", document)["result"], start=1):
        labels, points = (
            (series.get("metric"), series.get("values")) if isinstance(series, dict) else (0, 0)
        )
        if not isinstance(labels, dict) or not isinstance(points, list):
            raise InputError(
                f"{path}, series {k}: has no metric and values; ask for a range (query_range), "
                "whose result is a matrix"
            )
        start = _labels(labels, f"{path}, series {k}")
        for point in points:
            if not isinstance(point, list) or len(point) != 2:
                raise InputError(f"{path}, series {k}: {point!r:.80} is not [time, value]")
            yield k, {**start[0], "time": point[0], start[1]: point[1]}


def _of_grafana(table: LogTable, path: str | Path) -> Iterator[tuple[int, Record]]:
    time = _time(table)
    if time is None:
        raise InputError(
            f"{path}: no column Time; it is not what Grafana exports; it has {table.header}"
        )
    title = re.sub(r"-data\b.*", "", Path(path).stem)
    unknown = title if any(match(title, resource) for resource in LOADED) else UNKNOWN
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


def _labels(labels: Mapping[str, Any], where: str) -> tuple[Record, str]:
    """Node and card of a series, and its metric."""
    host = next((str(labels[name]) for name in HOSTS if labels.get(name)), "")
    if not host:
        raise InputError(
            f"{where}: no label names the node; keep one of {', '.join(HOSTS)} in the query, as "
            "in avg by (Hostname) (...)"
        )
    record = {"node": re.sub(r":\d+$", "", host)}
    card = next((str(labels[name]) for name in CARDS if labels.get(name)), None)
    return record if card is None else {**record, "card": card}, str(labels.get(METRIC) or UNKNOWN)


def _table(records: Iterator[tuple[int, Record]], path: str | Path) -> LogTable:
    """The table of points, with those of one node, card and time in one row."""
    rows: dict[tuple[Any, ...], tuple[int, Record]] = {}
    for number, record in records:
        metric = next(name for name in reversed(record))
        key: tuple[Any, ...] = (record["node"], record.get("card"), str(record["time"]))
        if metric in rows.get(key, (0, {}))[1]:
            key = (*key, len(rows))
        rows.setdefault(key, (number, {}))[1].update(record)
    if not rows:
        raise InputError(f"{path}: the query found no series; ask for a longer range")
    return LogTable.of_records(rows.values(), str(path), "series" if is_json(path) else "row")


def _time(table: LogTable) -> str | None:
    """The column of times, which is the first, or the second beside a column of series."""
    names = [name for name in table.columns if name != "Series"][:1]
    is_time = names and match(names[0], "time") and not match(names[0], "start")
    return names[0] if is_time else None


def _is_load(table: LogTable, name: str) -> bool:
    """Whether the cells of a column are numbers, or gaps, and not all of them gaps."""
    try:
        return bool((table.numbers(name, gaps=True) >= 0).any())
    except InputError:
        return False
