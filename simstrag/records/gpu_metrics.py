"""Other logs of cards: `dcgmi dmon`, and the system metrics of W&B.

Sources: the short names in DCGM's `dcgm_fields.cpp`; W&B's page "System metrics reference".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simstrag.arrays import Reals
from simstrag.errors import InputError
from simstrag.records.columns import LogColumns
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
)
from simstrag.records.series import counts_of, differing_parts, numbers_of, record_of_series

DMON, WANDB = "dcgmi dmon", "wandb-system"
DMON_QUERY = "dcgmi dmon -e 203,100,155,150,112"
DMON_NAMES = {
    "GPUTL": (GPU, 0.01), "GRACT": (GPU, 1.0), "SMCLK": (SM_CLOCK, 1.0),
    "SMMAX": (SM_CLOCK_MAX, 1.0), "POWER": (POWER, 1.0), "TMPTR": (TEMPERATURE, 1.0),
    "EPLMT": (POWER_LIMIT, 1.0), "PMLMT": (POWER_LIMIT, 1.0), "DVCCTR": (REASONS, 1.0),
}  # fmt: skip
"""The short names of DCGM's fields, the surest of a quantity first, and their scales."""
DMON_LINE = re.compile(r"\s*(?:(\S+):\s*)?GPU\s+(\d+)\s+(.*)")
DMON_SECONDS = 1.0
"""Default of `dcgmi dmon -d`, in seconds."""
SYSTEM = re.compile(r"(?:(.*) - )?_?(?:system[./])?_?gpu\.(\d+)\.(\w+)")
SYSTEM_NAMES = {
    "gpu": (GPU, 0.01), "smClock": (SM_CLOCK, 1.0), "graphicsClock": (SM_CLOCK, 1.0),
    "powerWatts": (POWER, 1.0), "enforcedPowerLimitWatts": (POWER_LIMIT, 1.0),
    "temp": (TEMPERATURE, 1.0), "pcieLinkGen": (PCIE, 1.0), "pcieLinkWidth": (LANES, 1.0),
}  # fmt: skip
CLOCKS = ("_timestamp", "_runtime", "Relative Time (Process)", "Relative Time (Wall)", "Wall Time")
"""Columns of time in an export of W&B, the surest first."""


def recognise_dmon(file: LogFile) -> bool:
    """Whether it has the header of `dcgmi dmon`."""
    return re.search(r"^\s*#\s?Entity\s+\S", file.head, re.MULTILINE) is not None


def read_dmon(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record of logs of `dcgmi dmon -e ...`, a file per host or one; they have no times."""
    hosts = differing_parts([file.path.stem for file in files])
    source = ", ".join(str(file.path) for file in files)
    labels: list[str] = []
    rows: list[dict[str, str]] = []
    for file, host in zip(files, hosts, strict=True):
        names: list[str] = []
        for line in file.text.splitlines():
            if line.lstrip().startswith("#"):
                names = line.split("Entity", 1)[-1].split()
            elif (found := DMON_LINE.match(line)) and len(cells := found[3].split()) == len(names):
                name = found[1] or (host if len(files) > 1 else "")
                label = f"{name}/{found[2]}" if name else f"GPU {found[2]}"
                labels.append(label)
                rows.append(dict(zip(names, cells, strict=True)))
    values = _scaled(rows, DMON_NAMES, source)
    if not values:
        raise InputError(f"{source}: has no samples of a known field; log by {DMON_QUERY}")
    notes = (
        f"Measured: {', '.join(values)} of {len(set(labels))} GPUs, by dcgmi dmon.",
        f"Assumed: samples are {DMON_SECONDS:g} s apart, the default of its option -d: the log has "
        "no times.",
    )
    time = DMON_SECONDS * np.array(counts_of(labels), float)
    return record_of_series(source, DMON, labels, time, values, DMON_QUERY, notes=notes)


def _scaled(
    rows: list[dict[str, str]], names: Mapping[str, tuple[str, float]], source: str
) -> dict[str, Reals]:
    """The quantities of rows, by the surest of their names."""
    values: dict[str, Reals] = {}
    for name, (quantity, scale) in names.items():
        if quantity in values or not any(name in row for row in rows):
            continue
        cells = [row.get(name, "") for row in rows]
        values[quantity] = scale * numbers_of(cells, f"{source}: {name}")
    return values


def recognise_system(file: LogFile) -> bool:
    """Whether it has W&B's system metrics of GPUs."""
    first: Any = file.document
    if isinstance(first, list):
        first = next(filter(None, first), None)
    names = [*first] if isinstance(first, dict) else [*file.table.columns] if file.table else []
    return any((m := SYSTEM.fullmatch(name)) and m[3] in SYSTEM_NAMES for name in map(str, names))


def read_system(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record of W&B's system metrics, of one run or a file per run."""
    runs = differing_parts([file.path.stem for file in files])
    source = ", ".join(str(file.path) for file in files)
    labels: list[str] = []
    cells: list[str] = []
    rows: list[dict[str, str]] = []
    clock = ""
    for file, run in zip(files, runs, strict=True):
        table = _history(file)
        clock = next((name for name in CLOCKS if name in table.columns), "")
        if not clock:
            raise InputError(
                f"{file.path}: has no column {CLOCKS[0]} or {CLOCKS[1]}; export the history with it"
            )
        cards: dict[str, dict[str, str]] = {}
        for name in table.columns:
            if (found := SYSTEM.fullmatch(name)) and found[3] in SYSTEM_NAMES:
                host = found[1] or (run if len(files) > 1 else "")
                label = f"{host}/{found[2]}" if host else f"GPU {found[2]}"
                cards.setdefault(label, {})[found[3]] = name
        for label, names in cards.items():
            for k, cell in enumerate(table.columns[clock]):
                row = {short: table.columns[name][k] for short, name in names.items()}
                if cell and any(row.values()):
                    labels.append(label)
                    cells.append(cell)
                    rows.append(row)
    values = _scaled(rows, SYSTEM_NAMES, source)
    if not values:
        raise InputError(f"{source}: has no value of a GPU")
    log = LogColumns(LogTable(source, [*range(1, len(cells) + 1)], {clock: cells}), {"time": clock})
    (time,), begin, began = log.times("time")
    notes = (
        f"Measured: {', '.join(values)} of {len(set(labels))} GPUs, by W&B.",
        f"Derived: time 0 is {begin} of the file.",
    )
    return record_of_series(source, WANDB, labels, time, values, began=began, notes=notes)


def _history(file: LogFile) -> LogTable:
    """The rows of a run's history, CSV or JSON."""
    document = file.document
    if document is None:
        return file.table or LogTable.of(file.text, str(file.path))
    entries = document if isinstance(document, list) else [document]
    records = [(k, each) for k, each in enumerate(entries, start=1) if isinstance(each, dict)]
    return LogTable.of_records(records, str(file.path))


READERS = (
    Reader(DMON, "the table of dcgmi dmon", recognise_dmon, read_dmon, many=True),
    Reader(WANDB, "system metrics of W&B, CSV or JSON", recognise_system, read_system, many=True),
)
