"""The record of data-parallel ranks from a CSV: `rank`, `step`, `seconds`, and perhaps `stage`.

A `stage` is a part of a rank's step, such as `input`, `forward` or `backward`: parts follow one
another.  The part `all-reduce` (also `allreduce`, `communication`, `comm`) is the collective,
waiting for other ranks included.  Where ranks wait for each other several times in a step, parts
have numbers: `all-reduce-1` ends the parts of number 1.  A column `tokens` is the size of the input
of that part.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from simstrag.errors import InputError
from simstrag.records.log_table import LogTable, read_text
from simstrag.records.record import ALL_REDUCE, COMPUTE, Floats, Ints, Record, assumed_gpus

FORM = "seconds of ranks"
RECORDED = "recorded by simstrag.ddp.record"
NEEDED = ("rank", "step", "seconds")
NAMES = frozenset({ALL_REDUCE, "allreduce", "communication", "comm"})
"""Names of the part that is the collective."""
LARGEST = 2**53
"""The largest number of a rank or a step, up to which a double has all whole numbers."""
LONGEST = 1e9
"""The most seconds of a part, ASSUMED: 30 years."""


def read_seconds(path: str | Path) -> Record:
    """The record in a CSV file. Raises `InputError` for any other file."""
    return _read([LogTable.read(path, NEEDED)], str(path), FORM)


def rank_files(folder: Path) -> list[Path]:
    """The files that `simstrag.ddp.record` wrote into a folder, one of each rank, also gzipped."""
    return sorted([*folder.glob("rank-*.csv"), *folder.glob("rank-*.csv.gz")])


def read_recorded(folder: str | Path) -> Record:
    """The record of a folder of such files, one of each rank, as `simstrag.ddp.record` writes it.

    Raises `InputError` for a file that is none, and one without a step.
    """
    folder = Path(folder)
    tables = [_of_rank(file) for file in rank_files(folder)]
    record = _read(tables, str(folder), RECORDED)
    size = re.search(r"(?m)^world_size: *(\d+)\s*$", _text(folder / "meta.yaml"))
    absent = absent_ranks(np.unique(record.rank).tolist(), int(size.group(1)) if size else 0)
    return replace(record, missing=(*absent, *record.missing))


def _of_rank(file: Path) -> LogTable:
    """The rows of one rank, without a last line that the disk had no room for."""
    text = read_text(file)
    text = text[: text.rfind("\n") + 1]
    if text.count("\n") < 2:
        raise InputError(
            f"{file}: has no step; the first three are left out, and steps are written once a "
            "second: record longer, or remove the file"
        )
    return LogTable.of(text, str(file))


def absent_ranks(ranks: list[int], size: int) -> list[str]:
    """That ranks of a job of this size have no file, in one line."""
    known = {*ranks}
    absent = [*itertools.islice((k for k in range(size) if k not in known), 6)]
    if not absent:
        return []
    named = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
    return [
        f"rank {named} of {size} has no file: it may be the slowest, and waiting for it counts as "
        "communication here"
    ]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _read(tables: list[LogTable], source: str, form: str) -> Record:
    rank, step = (np.concatenate([_whole(t, name) for t in tables]) for name in ("rank", "step"))
    seconds = np.concatenate([_not_negative(table, "seconds", LONGEST) for table in tables])
    stages = [
        stage
        for table in tables
        for stage in table.columns.get("stage", [COMPUTE] * len(table.lines))
    ]
    names = [ALL_REDUCE if each.lower() in NAMES else each for each in stages]
    keys = {name: _part(name) for name in dict.fromkeys(names)}
    if not any(name == ALL_REDUCE and number for name, number in keys.values()):
        keys = {name: (name, 0) for name in keys}
    parts = sorted(keys, key=lambda name: (keys[name][1], keys[name][0] == ALL_REDUCE))
    if parts == [ALL_REDUCE]:
        raise InputError(f"{source}: every stage is {ALL_REDUCE}; computing is missing")
    part = np.array([parts.index(name) for name in names])
    grid, steps, ranks, parts = _arrange(tables, source, step, rank, part, parts)
    dropped = len(np.unique(step)) - len(steps)
    is_own = np.array([keys[name][0] != ALL_REDUCE for name in parts])
    missing, has_collective = [], not is_own.all()
    if not has_collective:
        missing.append(
            "no stage is all-reduce, so that a step is the seconds of its slowest rank; "
            "communication, and the error of the replay, are unknown"
        )
    cells: Floats = seconds[grid]
    if not cells[..., is_own].any():
        raise InputError(f"{source}: all seconds of computing are 0; are they rounded?")
    if dropped:
        missing.append(f"steps that lack a rank or a stage are left out: {dropped}")
    missing += _holes(np.unique(step))
    tokens = None
    if all("tokens" in table.columns for table in tables):
        tokens = np.concatenate([_not_negative(t, "tokens", LARGEST) for t in tables])[grid].ravel()
    return Record.of_ranks(
        steps, ranks, {keys[name]: cells[..., k] for k, name in enumerate(parts)}, source, form,
        is_timed=has_collective, tokens=tokens, missing=tuple(missing),
        notes=(assumed_gpus(len(ranks)),),
    )  # fmt: skip


def _holes(steps: Ints) -> list[str]:
    """That steps are missing, in one line, where most numbers follow each other at one distance."""
    gaps = np.diff(steps)
    if not len(gaps) or np.mean(gaps == gaps.min()) <= 0.5 or np.all(gaps == gaps.min()):
        return []
    first = int(np.argmax(gaps > gaps.min()))
    count = int((gaps // gaps.min() - 1).sum())
    return [
        f"steps are missing of all ranks: {count} between {steps[0]} and {steps[-1]}, the first "
        f"after step {steps[first]}; a stretch of steps spans them"
    ]


def _part(name: str) -> tuple[str, int]:
    """A part that is one of several, such as `all-reduce-2`, and its number; else 0."""
    stem, _, number = name.rpartition("-")
    is_numbered = stem and number.isdecimal() and len(number) < 10
    return (stem, int(number)) if is_numbered else (name, 0)


def _not_negative(table: LogTable, name: str, most: float) -> Floats:
    """The numbers of a column, from 0 to `most`; NaN for tokens that were not measured."""
    numbers = table.numbers(name, gaps=name == "tokens")
    if np.any(numbers < 0):
        raise table.mistake(int(np.argmax(numbers < 0)), name, "is less than 0")
    if np.any(large := numbers > most):
        raise table.mistake(int(np.argmax(large)), name, f"is too large; the most is {most:g}")
    return numbers


def _whole(table: LogTable, name: str) -> Ints:
    numbers = table.numbers(name)
    wrong = (numbers < 0) | (numbers != np.floor(numbers))
    if wrong.any():
        raise table.mistake(int(np.argmax(wrong)), name, "is no whole number from 0")
    large = numbers > LARGEST
    if large.any():
        raise table.mistake(int(np.argmax(large)), name, "is too large")
    return numbers.astype(np.int64)


def _arrange(
    tables: list[LogTable], source: str, step: Ints, rank: Ints, part: Ints, parts: list[str]
) -> tuple[Ints, Ints, Ints, list[str]]:
    """The row of each step, rank and part; steps, ranks and parts, of the usual steps only.

    These have the parts that most steps have: an evaluation adds some.
    """
    steps, at_step = np.unique(step, return_inverse=True)
    ranks, at_rank = np.unique(rank, return_inverse=True)
    found = np.unique(at_rank * len(parts) + part)
    if len(found) < len(ranks) * len(parts):
        absent = int(np.argmin(np.append(found, -1) == np.arange(len(found) + 1)))
        k, p = divmod(absent, len(parts))
        raise InputError(
            f"{source}: rank {ranks[k]} has no stage '{parts[p]}'; all ranks must have the "
            "same stages, which are parts of their step (a pipeline needs all operations)"
        )
    nowhere = InputError(f"{source}: no step has seconds of all {len(ranks)} ranks")
    if np.bincount(at_step).max() < len(ranks):
        raise nowhere
    grid = np.full((len(steps), len(ranks), len(parts)), -1)
    rows = np.arange(len(step))
    first = rows[::-1].copy()  # of rows of the same cell the first stays
    grid[at_step[first], at_rank[first], part[first]] = first
    if np.any(twice := grid[at_step, at_rank, part] != rows):
        row = int(np.argmax(twice))
        why = f"has {parts[part[row]]} of rank {rank[row]} twice"
        ends = np.cumsum([len(table.lines) for table in tables])
        table = tables[int(np.searchsorted(ends, row, side="right"))]
        raise table.mistake(row - int(ends[ends > row][0]) + len(table.lines), "step", why)
    present = np.any(grid >= 0, axis=1)
    whole = ~np.any(present & np.any(grid < 0, axis=1), axis=1)
    if not whole.any():
        raise nowhere
    patterns, counts = np.unique(present[whole], axis=0, return_counts=True)
    usual = patterns[np.argmax(counts)]
    kept = whole & np.all(present == usual, axis=1)
    names = [name for name, is_kept in zip(parts, usual, strict=True) if is_kept]
    return grid[kept][..., usual], steps[kept], ranks, names
