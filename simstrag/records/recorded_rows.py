"""Rows that ranks have just written with `simstrag.ddp.record`, as the record of their steps.

A file that grows is read in pieces of whole steps.  `steps.read` says what the first step of a
piece means; the others, if all ranks do the same parts in them, are numbers of the same shape.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag.arrays import Ints, Reals
from simstrag.errors import InputError
from simstrag.records import steps
from simstrag.records.log_file import LogFile
from simstrag.records.record import Record

PLAIN = b"rank,step,stage,seconds\n"
"""The header of ranks of one group, whose rows can be read in bulk."""


class RankRows(NamedTuple):
    """Rows of one rank's file.

    header, rows: its first line, and whole lines below it.
    """

    header: bytes
    rows: bytes


def read_rows(files: Mapping[Path, RankRows]) -> Record:
    """The record of the steps that all ranks have in these rows, as `steps.read` reads it.

    Raises `InputError` where rows are none of a record, or no step has rows of all ranks.
    """
    found = _in_bulk(files) if all(each.header == PLAIN for each in files.values()) else None
    if found is not None:
        return found
    return steps.read([LogFile(path, each.header + each.rows) for path, each in files.items()])


def _in_bulk(files: Mapping[Path, RankRows]) -> Record | None:
    """The record where all ranks do the same parts in all steps; None for anything else."""
    import pandas as pd

    names = PLAIN.decode().strip().split(",")
    data = b"".join(each.rows for each in files.values())
    try:
        frame = pd.read_csv(
            io.BytesIO(data), header=None, names=names, na_filter=False,
            dtype={"rank": "int64", "step": "int64", "stage": "category", "seconds": "float64"},
        )  # fmt: skip
    except (ValueError, TypeError):
        return None
    rank, step, seconds = (frame[name].to_numpy() for name in ("rank", "step", "seconds"))
    part = frame["stage"].cat.codes.to_numpy()
    parts = int(np.argmax(np.append(step[1:] != step[:-1], True))) + 1
    ranks = len(files)
    if len(step) % (parts * ranks):
        return None
    shape = ranks, -1, parts
    numbers, kinds, values = step.reshape(shape), part.reshape(shape), seconds.reshape(shape)
    of_rank = rank.reshape(ranks, -1)
    if not (
        (numbers == numbers[0, :, :1]).all()
        and (np.diff(numbers[0, :, 0]) > 0).all()
        and (kinds == kinds[0, 0]).all()
        and (of_rank == of_rank[:, :1]).all()
        and np.unique(of_rank[:, 0]).size == ranks
        and (values >= 0).all()
        and (values <= steps.LONGEST).all()
    ):
        return None
    order = np.argsort(of_rank[:, 0])
    first = _first_step(files, parts)
    if first is None or not np.array_equal(first.duration, values[order, 0].ravel()):
        return None  # its parts are not in the order of the rows
    return _repeated(first, numbers[0, :, 0], values[order])


def _first_step(files: Mapping[Path, RankRows], parts: int) -> Record | None:
    """The record of the first step of all ranks."""
    try:
        return steps.read([
            LogFile(path, each.header + b"\n".join(each.rows.split(b"\n", parts)[:parts]) + b"\n")
            for path, each in files.items()
        ])  # fmt: skip
    except InputError:
        return None


def _repeated(first: Record, numbers: Ints, seconds: Reals) -> Record:
    """The record of steps that are like the first one, by their seconds.

    seconds: shape (ranks, steps, parts).
    """
    count = len(numbers)
    columns: dict[str, Any] = {
        each.name: np.tile(values, count)
        for each in fields(first)
        if isinstance(values := getattr(first, each.name), np.ndarray)
    }
    own = seconds.transpose(1, 0, 2)
    columns |= {
        "step": np.repeat(numbers, own[0].size),
        "start": (own.cumsum(axis=2) - own).ravel(),
        "duration": own.ravel(),
    }
    return replace(first, **columns)
