"""What a table of steps means: its columns, its rows, and the tool that wrote it.

Charts have a column of each run or rank, and loops a column of each stage: these become rows.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from simstrag.errors import InputError
from simstrag.records.columns import (
    MEANINGS,
    UNITS,
    LogColumns,
    match,
    plain,
)  # fmt: skip
from simstrag.records.log_file import LogFile
from simstrag.records.log_table import LogTable
from simstrag.records.record import ALL_REDUCE

STEPS, RECORDED, TENSORBOARD, WANDB, LIGHTNING = (
    "step times", "simstrag.ddp.record", "TensorBoard", "Weights & Biases", "Lightning CSVLogger",
)  # fmt: skip
GROUPED = ["rank", "step", "stage", "seconds", "group"]
"""Columns of a file of `simstrag.ddp.record` of a job whose ranks wait in several groups."""
OF_STAGE = {
    "input": "input", "forward": "forward", "backward": "backward", "communication": ALL_REDUCE,
    "optimizer": "optimizer",
}  # fmt: skip
"""What columns of stages mean, and the name of their part."""
OF_RANK = re.compile(
    r"(?P<before>.*?)(?<![a-z])(?P<word>(?:global|world|dp)?[ _]?rank|worker|replica|process|gpu|"
    r"host|node)[ _/.-]?(?P<rank>\d{1,7})(?!\d)(?P<after>.*)", re.I,
)  # fmt: skip
"""A column of one rank, such as `rank0`, `rank_3 (ms)` or `step_time/rank_0`."""


def table_of(file: LogFile, rows: int | None = None) -> LogTable:
    """The table of a file, with a row per rank and step where it has a column per rank.

    rows: only the first ones.
    Raises `InputError` for a file that is no table.
    """
    document, source = file.document, str(file.path)
    tag = re.search(r"tag-(.+)$", file.path.name.partition(".")[0])
    value = _metric_in(tag[1]) if tag else "Value"
    if document is None:
        if re.match(r"[-+.\d][-+.\deE \t,;]*$", file.head, re.MULTILINE):
            raise InputError(f"{source}: has no header; write one, such as rank,step,seconds")
        table = file.table or LogTable.of(file.text, source)
        if list(table.columns) == ["Wall time", "Step", "Value"]:
            cells = dict(zip(("Wall time", "Step", value), table.columns.values(), strict=True))
            table = replace(table, columns=cells)
        return _staged(_melted(table.first(rows)))
    entries = [document] if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise InputError(f"{source}: no list of entries; it is not a log of steps")
    records = []
    for k, entry in enumerate(entries[:rows], start=1):
        if isinstance(entry, list) and len(entry) == 3:
            records.append((k, dict(zip(("Wall time", "Step", value), entry, strict=True))))
        elif isinstance(entry, dict):
            records.append((k, entry))
        else:
            raise InputError(
                f"{source}, entry {k}: {entry!r:.80} is neither a mapping nor [time, step, value]"
            )
    return _staged(_melted(LogTable.of_records(records, source)))


def _metric_in(tag: str) -> str:
    """The name of a scalar of TensorBoard, in which slashes became underscores."""
    words = tag.split("_")
    ends = ("_".join(words[k:]) for k in range(len(words)))
    return next((end for end in ends if match(end, "seconds") or match(end, "rate")), tag)


class _Cell(NamedTuple):
    """What a column is of: a run of Weights & Biases, or "", a rank, or -1, and the metric."""

    run: str
    rank: int
    metric: str


def _of_one_rank(name: str, has_numbers: bool) -> _Cell | None:
    """What a column of one run or rank is; None for any other."""
    run, dash, metric = name.rpartition(" - ")
    found = OF_RANK.fullmatch(metric)
    if found:
        rest = " ".join(filter(None, (found[k].strip(" _/.-()[]") for k in ("before", "after"))))
        rest = f"seconds {rest}" if plain(rest) in UNITS else rest
        is_bare = not rest and found["word"].lower() not in ("gpu", "host", "node")
        if is_bare or any(match(rest, m) for m in ("seconds", "compute", "communication", "rate")):
            return _Cell(run, int(found["rank"]), rest or "seconds")
    if has_numbers and name.isdecimal() and len(name) < 8:
        return _Cell("", int(name), "seconds")
    return _Cell(run, -1, metric) if dash else None


def _melted(table: LogTable) -> LogTable:
    """A row per rank, or run, and step of a table that has a column for each.

    Beside a column of a chart stand its least and most (`__MIN`, `__MAX`), which are left out.
    """
    names = [name for name in table.columns if not re.search("__M(IN|AX)$", name)]
    has_numbers = sum(map(str.isdecimal, names)) > 1 and any(match(n, "step") for n in names)
    cells = {name: cell for name in names if (cell := _of_one_rank(name, has_numbers))}
    ranked = {cell[:2] for cell in cells.values() if cell.rank >= 0}
    if not any(cell.run for cell in cells.values()) and len(ranked) < 2:
        return table
    if ranked and any(rank < 0 for _, rank, _ in cells.values()):
        cells = {name: cell for name, cell in cells.items() if cell.rank >= 0}
    if len({rank for _, rank in ranked}) < len(ranked):
        raise InputError(f"{table.source}: several runs have the same ranks; export one run")
    columns: dict[tuple[str, int], dict[str, str]] = {}
    for name, cell in cells.items():
        columns.setdefault(cell[:2], {})[cell.metric] = name
    others = [name for name in names if name not in cells and " - " not in name]

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        for (run, rank), metrics in columns.items():
            who = {"rank": str(rank)} if rank >= 0 else {"run name": run}
            for k, line in enumerate(table.lines):
                found = {metric: table.columns[name][k] for metric, name in metrics.items()}
                if any(found.values()):
                    yield line, {name: table.columns[name][k] for name in others} | who | found

    return LogTable.of_records(rows(), table.source, "row")


def _staged(table: LogTable) -> LogTable:
    """A row per stage of a table that has a column for each, such as `forward_ms`."""
    found = {
        name: (stage, unit[1])
        for name in table.columns
        for meaning, stage in OF_STAGE.items()
        if (unit := match(name, meaning))
    }
    if not {"forward", "backward"} & {stage for stage, _ in found.values()} or any(
        match(name, meaning) for name in table.columns for meaning in ("stage", "compute")
    ):
        return table
    others = [name for name in table.columns if name not in found and not match(name, "seconds")]

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        for k, line in enumerate(table.lines):
            shared = {name: table.columns[name][k] for name in others}
            for name, (stage, unit) in found.items():
                cell = table.columns[name][k]
                with contextlib.suppress(ValueError):  # else it is named where it is read
                    cell = str(float(cell) * unit)
                yield line, shared | {"stage": stage, "seconds": cell}

    return LogTable.of_records(rows(), table.source, table.unit)


def tool_of(file: LogFile, table: LogTable) -> str:
    """The tool that wrote a table of steps."""
    names = set(table.columns)
    if "Wall time" in names:
        return TENSORBOARD
    if {"_timestamp", "_step", "run name"} & names:
        return WANDB
    if file.path.name.startswith("rank-") and {"rank", "step", "seconds"} <= names:
        return RECORDED
    is_sparse = any("" in cells for cells in table.columns.values())
    return LIGHTNING if {"epoch", "step"} <= names and is_sparse else STEPS


def columns_of(table: LogTable, stated: Mapping[str, str] | None = None) -> LogColumns:
    if stated is None and {"Wall time", "Value"} <= set(table.columns):
        stated = {"seconds": "Value"}
    needed = "compute/seconds/rate", "step/time"
    return LogColumns.of(table, MEANINGS["steps"], stated, needed)


def whole_text(file: LogFile) -> LogFile:
    """A file of `simstrag.ddp.record` without a last line that the disk had no room for."""
    data = file.data[: file.data.rfind(b"\n") + 1]
    if data.count(b"\n") < 2:
        raise InputError(
            f"{file.path}: has no step; the first three are left out, and steps are written once a "
            "second: record longer, or remove the file"
        )
    return LogFile(file.path, data)
