"""Logs of steps as people have them, by the seconds of each rank."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.records.record import Record


def write_rows(path: Path, header: str, rows: Iterable[Iterable[Any]]) -> Path:
    """A CSV file; its header is a line."""
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def write_steps(path: Path, seconds: Any) -> Path:
    """A log of steps; seconds: shape (steps, ranks)."""
    rows = ((rank, step, own) for (step, rank), own in np.ndenumerate(np.asarray(seconds)))
    return write_rows(path, "rank,step,seconds", rows)


def record_of_seconds(seconds: Any) -> Record:
    """A record of computing alone; seconds: shape (steps, ranks)."""
    steps, ranks = np.arange(len(seconds)), np.arange(len(seconds[0]))
    own = {"compute": np.asarray(seconds)}
    return Record.of_ranks(steps, ranks, own, "drawn", "drawn", is_timed=False)
