"""Logs of `nvidia-smi --query-gpu=... --format=csv`, a row per card and sample.

Source of the names: `nvidia-smi --help-query-gpu`.  Bits of reasons are those of NVML's
`nvmlClocksEventReasons`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Reals
from simstrag.errors import InputError
from simstrag.records.columns import LogColumns
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_table import LogTable, shorten
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
from simstrag.records.series import QUERY, counts_of, differing_parts, numbers_of, record_of_series

NAME = "nvidia-smi"
TIME, HOST_NAME, CARD, MODEL = "time", "host", "card", "model"
QUERIED = {
    TIME: ("timestamp",),
    HOST_NAME: ("hostname", "host", "node"),
    CARD: (
        "index", "gpu_index", "pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "serial",
        "gpu_serial", "minor_number",
    ),
    MODEL: ("name", "gpu_name"),
    GPU: ("utilization.gpu",),
    SM_CLOCK: (
        "clocks.current.sm", "clocks.sm", "clocks.current.graphics", "clocks.gr",
        "clocks.current.gr", "clocks.graphics",
    ),
    SM_CLOCK_MAX: ("clocks.max.sm", "clocks.max.graphics", "clocks.max.gr"),
    POWER: ("power.draw.instant", "power.draw", "power.draw.average"),
    POWER_LIMIT: ("enforced.power.limit", "power.limit"),
    TEMPERATURE: ("temperature.gpu",),
    REASONS: ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    PCIE: ("pcie.link.gen.gpucurrent", "pcie.link.gen.current"),
    LANES: ("pcie.link.width.current", "pcie.link.width"),
}  # fmt: skip
"""The properties that nvidia-smi can be asked for, by meaning, the surest first."""
BITS = {
    "gpu_idle": 0x1, "applications_clocks_setting": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8,
    "sync_boost": 0x10, "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80, "display_clock_setting": 0x100,
}  # fmt: skip
"""The bit of each reason, by the end of its property's name."""
REASON = re.compile(rf"clocks_(?:event|throttle)_reasons\.({'|'.join(BITS)})")
PROPERTIES = {name for names in QUERIED.values() for name in names} | {
    f"clocks_{word}_reasons.{reason}" for word in ("event", "throttle") for reason in BITS
}
ONLY_SMI = re.compile(
    r"(utilization|temperature|memory|clocks(\.\w+)?|power|enforced|pcie\.link|pci|ecc|fan|"
    r"clocks_(event|throttle)_reasons)\.[\w.]+"
)
"""Properties that no other tool calls so."""
STAMP = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}", re.ASCII)
SHAPES = {
    TIME: STAMP.pattern,
    CARD: r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|GPU-[0-9a-f-]{8,}",
    GPU: r"\d{1,3} %", SM_CLOCK: r"\d+ MHz", POWER: r"\d+(\.\d+)? W",
    REASONS: r"0x[0-9A-Fa-f]{4,16}", MODEL: r"(NVIDIA|Tesla|GeForce|Quadro) .*",
}  # fmt: skip
"""What a column without a header is, where all of its cells that are not gaps have this shape."""
GAP = re.compile(r"\[.*\]|N/A|")
PEEK = 20
"""Lines among which a header may stand: a shell greets before it."""


class Rows(NamedTuple):
    """The rows of a log of nvidia-smi.

    columns: cells by property; without a header by number, such as "3".
    others: lines that are no row, such as a tool's message.
    """

    columns: dict[str, list[str]]
    others: list[str]
    has_header: bool


def recognise(file: LogFile) -> bool:
    """Whether it has a header of nvidia-smi's properties, or rows that begin with its times."""
    lines = [line for line in file.head.splitlines()[: 4 * PEEK] if line.strip()][:PEEK]
    for line in lines:
        names = [_property(cell) for cell in _cells(line, _separator(line))]
        if any(map(ONLY_SMI.fullmatch, names)) and len({*names} & PROPERTIES) >= min(2, len(names)):
            return not file.head.lstrip().startswith(("{", "["))
    rows = [[*map(str.strip, line.split(", "))] for line in lines]
    return (
        len(rows) > 1
        and all(STAMP.fullmatch(row[0]) or STAMP.fullmatch(row[-1]) for row in rows[:-1])
        and len({len(row) for row in rows[:-1]}) == 1
        and len(rows[0]) > 1
    )


def read(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record of logs of `nvidia-smi --query-gpu=... --format=csv`, a file per host or one.

    columns: names of properties by meaning; without a header, numbers of columns from 1.
    """
    hosts = differing_parts([file.path.stem.split(".")[0] for file in files])
    logs = [_rows(file) for file in files]
    source = ", ".join(str(file.path) for file in files)
    parts = []
    for file, rows, host in zip(files, logs, hosts, strict=True):
        names = _meanings(rows, str(file.path), dict(columns or {}))
        parts.append(_read_rows(rows, names, file, host if len(files) > 1 else ""))
    labels = [label for part in parts for label in part.labels]
    quantities = dict.fromkeys(q for part in parts for q in part.values)
    values = {
        q: np.concatenate([part.values.get(q, np.full(len(part.labels), np.nan)) for part in parts])
        for q in quantities
    }
    if not values or all(np.isnan(value).all() for value in values.values()):
        raise InputError(f"{source}: no utilisation, clock, power or reason in it; log by {QUERY}")
    cells = [cell for part in parts for cell in part.times]
    time, begin, began = _time(cells, [k for part in parts for k in part.sample], source)
    notes = (
        f"Measured: {', '.join(values)} of {len(set(labels))} GPUs, by nvidia-smi.", begin,
        *dict.fromkeys(note for part in parts for note in part.notes),
    )  # fmt: skip
    model = dict(zip(labels, (model for part in parts for model in part.models), strict=True))
    models = tuple(model[label] for label in dict.fromkeys(labels)) if any(model.values()) else ()
    others = [line for rows in logs for line in rows.others]
    what = "lines are no samples of nvidia-smi; the first is"
    missing = (f"{len(others)} {what} '{shorten(others[0])}'",) if others else ()
    return record_of_series(
        source, NAME, labels, time, values, began=began, notes=notes,
        models=models, missing=missing,
    )  # fmt: skip


def _separator(line: str) -> str:
    return max(",;\t", key=line.count)


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip().strip('"').strip() for cell in line.split(separator)]


def _property(cell: str) -> str:
    """A cell of a header as the property that was queried, without its unit."""
    return cell.partition("[")[0].strip().lower()


def _rows(file: LogFile) -> Rows:
    """The rows of a log; repeated headers, and a last line that is cut, are left out."""
    lines = [line for line in file.text.splitlines() if line.strip()]
    separator = _separator(max(lines[: 2 * PEEK], key=len, default=""))
    columns: dict[str, list[str]] = {}
    names: list[str] = []
    others: list[str] = []
    count, has_header = 0, False
    is_cut = not file.text.endswith(("\n", "\r"))
    for k, line in enumerate(lines):
        cells = _cells(line, separator)
        found = [*map(_property, cells)]
        if not PROPERTIES.isdisjoint(found):
            names, has_header = found, True
            continue
        if not names and len(cells) > 1 and any(map(STAMP.fullmatch, cells)):
            names = [str(n) for n in range(1, len(cells) + 1)]
        if len(cells) != len(names) or (
            is_cut
            and k + 1 == len(lines)
            and count
            and _is_other(cells[-1], columns[names[-1]][-1])
        ):
            others += [line] if k + 1 < len(lines) and names else []
            continue
        if separator in ";\t":
            cells = [re.sub(r"(?<=\d),(?=\d)", ".", cell) for cell in cells]
        for name, cell in zip(names, cells, strict=True):
            columns.setdefault(name, [""] * count).append(cell)
        count += 1
        for name in columns.keys() - set(names):
            columns[name].append("")
    if not count:
        raise InputError(f"{file.path}: has no samples of nvidia-smi; log by {QUERY}")
    return Rows(columns, others, has_header)


def _is_other(cell: str, before: str) -> bool:
    """Whether a last cell has another shape than the one above it, as if it were cut."""
    shape = [re.sub(r"[0-9A-Fa-f]", "9", each) for each in (cell, before)]
    return shape[0] != shape[1]


def _meanings(rows: Rows, source: str, stated: dict[str, str]) -> dict[str, str]:
    """The column of each meaning: stated, by the header, or by the cells."""
    for meaning, name in stated.items():
        if meaning not in QUERIED or name not in rows.columns:
            raise InputError(
                f"{source}: --column {meaning}={shorten(name)}: meanings are {', '.join(QUERIED)}, "
                f"and columns {shorten(', '.join(rows.columns))}"
            )
    if rows.has_header:
        known = {
            meaning: next((name for name in names if name in rows.columns), "")
            for meaning, names in QUERIED.items()
        }
        return {meaning: name for meaning, name in known.items() if name} | stated
    found: dict[str, list[str]] = {}
    for name, cells in rows.columns.items():
        values = {cell for cell in cells if not GAP.fullmatch(cell)}
        for meaning, shape in SHAPES.items():
            if values and all(re.fullmatch(shape, cell) for cell in values):
                found.setdefault(meaning, []).append(name)
        if values and values == {str(k) for k in range(len(values))} and len(cells) > len(values):
            found.setdefault(CARD, []).insert(0, name)
    known = {
        meaning: names[0]
        for meaning, names in found.items()
        if len(names) == 1 or meaning in (TIME, CARD)
    } | stated
    if not known.keys() - {TIME, CARD, MODEL}:
        raise InputError(
            f"{source}: no header says what its columns are; leave noheader (and nounits) out of "
            "--format=csv, or name columns by number: --column 'SM clock=3' --column gpu=2"
        )
    return known


class _Part(NamedTuple):
    """The samples of one file, as columns; `sample` counts those of a card."""

    labels: list[str]
    times: list[str]
    sample: list[int]
    models: list[str]
    values: dict[str, Reals]
    notes: list[str]


def _read_rows(rows: Rows, names: dict[str, str], file: LogFile, host: str) -> _Part:
    size = len(next(iter(rows.columns.values())))
    cells = {meaning: rows.columns[name] for meaning, name in names.items()}
    times, notes = cells.get(TIME, [""] * size), []
    cards = cells.get(CARD)
    if cards is None:
        count = _cards_in_turn(times) if TIME in cells else 1
        cards = [str(k % count) for k in range(size)]
        if count > 1:
            notes.append(f"Assumed: rows are of {count} GPUs in turn; index in the query says it.")
    hosts = cells.get(HOST_NAME, [host] * size)
    labels = [
        f"{h}/{card}" if h else f"GPU {card}" if card.isdigit() else card
        for h, card in zip(hosts, cards, strict=True)
    ]
    sample = counts_of(labels)
    values: dict[str, Reals] = {
        q: numbers_of(column, f"{file.path}: {names[q]}") / (100 if q == GPU else 1)
        for q, column in cells.items()
        if q not in (TIME, HOST_NAME, CARD, MODEL, REASONS)
    }
    if GPU in values and np.nanmax(values[GPU], initial=0.0) > 1:
        raise InputError(f"{file.path}: {names[GPU]} has more than 100 percent")
    if REASONS in cells:
        values[REASONS] = _masks(cells[REASONS], f"{file.path}: {names[REASONS]}")
    single = [name for name in rows.columns if REASON.fullmatch(name)]
    if single and REASONS not in values:
        values[REASONS] = np.nansum([_flags(rows.columns[name], name) for name in single], axis=0)
    if not rows.has_header:
        listed = ", ".join(f"{meaning} in column {name}" for meaning, name in names.items())
        notes.append(f"Assumed: without a header, {listed}, by what the cells are.")
    return _Part(labels, times, sample, cells.get(MODEL, [""] * size), values, notes)


def _masks(cells: list[str], where: str) -> Reals:
    """Masks of reasons, in hexadecimal digits or decimal ones."""
    try:
        known = {c: np.nan if GAP.fullmatch(c) else float(int(c, 0) & 0xFFFF) for c in set(cells)}
    except ValueError:
        raise InputError(
            f"{where}: has a cell that is no mask such as 0x0000000000000004"
        ) from None
    return np.array([known[cell] for cell in cells])


def _flags(cells: list[str], name: str) -> Reals:
    """The bit of one reason where it is active; NaN in a gap."""
    found = REASON.fullmatch(name)
    assert found is not None
    known = {"active": float(BITS[found[1]]), "not active": 0.0}
    return np.array([known.get(cell.lower(), np.nan) for cell in cells])


def _cards_in_turn(times: list[str]) -> int:
    """How many rows come together in each sample; 1 where they do not."""
    seconds = LogColumns(LogTable("", [], {TIME: _dates(times)}), {TIME: TIME}).moments(TIME)
    steps = np.diff(seconds)
    starts = np.flatnonzero(steps > 0.5 * np.quantile(steps, 0.9)) + 1 if len(steps) else steps
    lengths = set(np.diff([0, *starts]).astype(int).tolist())
    return lengths.pop() if len(lengths) == 1 else 1


def _time(cells: list[str], sample: list[int], source: str) -> tuple[Reals, str, str]:
    """Seconds of each row, the note on their zero, and the wall clock."""
    if not all(cells):
        note = (
            "Assumed: samples are 1 s apart, as the log has no times; timestamp in the query says "
            "them."
        )
        return np.array(sample, float), note, ""
    table = LogTable(source, [*range(2, len(cells) + 2)], {"timestamp": _dates(cells)})
    (time,), begin, began = LogColumns(table, {TIME: "timestamp"}).times(TIME)
    return time, f"Derived: time 0 is {begin} of the log.", began


def _dates(cells: list[str]) -> list[str]:
    """Times whose dates a spreadsheet wrote, 20/11/2026 or 11/20/2026 10:00:00 AM, as ISO 8601.

    Where both orders are possible, it is the one by which the log is shorter.
    """
    other = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4}) (\d{1,2})(:\S+)( [AP]M)?", re.IGNORECASE)
    found = [other.fullmatch(cell) for cell in cells]
    if not all(found):
        return cells
    pairs = {(int(f[1]), int(f[2])) for f in found if f}
    spans = [len({pair[k] for pair in pairs}) for k in (0, 1)]
    is_day_first = any(a > 12 for a, _ in pairs) or (
        not any(b > 12 for _, b in pairs) and spans[0] > spans[1]
    )
    written = []
    for f in filter(None, found):
        day, month = (f[1], f[2]) if is_day_first else (f[2], f[1])
        half = (f[6] or "").strip().lower()
        hour = int(f[4]) % 12 + 12 * (half == "pm") if half else int(f[4])
        clock = f[5] if f[5].count(":") > 1 else f"{f[5]}:00"
        written.append(f"{f[3]}-{int(month):02d}-{int(day):02d}T{hour:02d}{clock}")
    return written


READERS = (Reader(NAME, "CSV of nvidia-smi --query-gpu", recognise, read, many=True),)
