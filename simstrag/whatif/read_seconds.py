"""The record of data-parallel ranks from a CSV: `rank`, `step`, `seconds`, and perhaps `stage`.

A `stage` is a part of a rank's step, such as `input`, `forward` or `backward`: parts follow one
another.  The part `all-reduce` (also `allreduce`, `communication`, `comm`) is the collective,
waiting for other ranks included.  A column `tokens` is the size of the input of that part.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simstrag.errors import InputError
from simstrag.traces.log_table import LogTable
from simstrag.whatif.record import ALL_REDUCE, COMPUTE, Floats, Ints, Record

FORM = "seconds of ranks"
NAMES = frozenset({ALL_REDUCE, "allreduce", "communication", "comm"})
"""Names of the part that is the collective."""


def read_seconds(path: str | Path) -> Record:
    """The record in a CSV file. Raises `InputError` for any other file."""
    table = LogTable.read(path, ("rank", "step", "seconds"))
    rank, step = _whole(table, "rank"), _whole(table, "step")
    seconds = table.numbers("seconds")
    if np.any(seconds < 0):
        raise table.mistake(int(np.argmax(seconds < 0)), "seconds", "is less than 0")
    stages = table.columns.get("stage", [COMPUTE] * len(rank))
    names = [ALL_REDUCE if each.lower() in NAMES else each for each in stages]
    parts = sorted(dict.fromkeys(names), key=lambda name: name == ALL_REDUCE)  # keeps their order
    if parts == [ALL_REDUCE]:
        raise InputError(f"{path}: every stage is {ALL_REDUCE}; the computing of ranks is missing")
    part = np.array([parts.index(name) for name in names])
    grid, steps, ranks, dropped = _arrange(table, step, rank, part, parts)
    missing, has_collective = [], ALL_REDUCE in parts
    if not has_collective:
        missing.append(
            "no stage is all-reduce, so that a step is the seconds of its slowest rank; "
            "communication, and the error of the replay, are unknown"
        )
    cells: Floats = seconds[grid]
    if not cells[..., : len(parts) - has_collective].any():
        raise InputError(f"{path}: all seconds of computing are 0; are they rounded?")
    if dropped:
        missing.append(f"{dropped} steps that lack a rank or a stage are left out")
    tokens = table.numbers("tokens", gaps=True)[grid].ravel() if "tokens" in table.columns else None
    return Record.of_ranks(
        steps, ranks, {name: cells[..., k] for k, name in enumerate(parts)}, str(path), FORM,
        is_timed=has_collective, tokens=tokens, missing=tuple(missing),
        notes=(f"Assumed: each of {len(ranks)} ranks is one GPU.",),
    )  # fmt: skip


def _whole(table: LogTable, name: str) -> Ints:
    numbers = table.numbers(name)
    wrong = (numbers < 0) | (numbers != np.floor(numbers))
    if wrong.any():
        raise table.mistake(int(np.argmax(wrong)), name, "is no whole number from 0")
    return numbers.astype(np.int64)


def _arrange(
    table: LogTable, step: Ints, rank: Ints, part: Ints, parts: list[str]
) -> tuple[Ints, Ints, Ints, int]:
    """The row of each step, rank and part; steps and ranks; the number of steps left out."""
    steps, at_step = np.unique(step, return_inverse=True)
    ranks, at_rank = np.unique(rank, return_inverse=True)
    grid = np.full((len(steps), len(ranks), len(parts)), -1)
    rows = np.arange(len(step))
    grid[at_step, at_rank, part] = rows
    if np.any(twice := grid[at_step, at_rank, part] != rows):
        raise table.mistake(
            int(np.argmax(twice)), "step", f"has {parts[part[np.argmax(twice)]]} of rank "
            f"{rank[np.argmax(twice)]} twice",
        )  # fmt: skip
    never = np.argwhere((grid < 0).all(axis=0))
    if len(never):
        k, p = never[0]
        raise InputError(
            f"{table.source}: rank {ranks[k]} has no stage '{parts[p]}'; all ranks must have the "
            "same stages, which are parts of their step (a pipeline needs all operations)"
        )
    whole = (grid >= 0).all(axis=(1, 2))
    if not whole.any():
        raise InputError(f"{table.source}: no step has seconds of all {len(ranks)} ranks")
    return grid[whole], steps[whole], ranks, int(np.sum(~whole))
