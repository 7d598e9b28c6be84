"""Lines of a text log, with the rank and the time that a line names, and records made of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag.errors import InputError
from simstrag.records.log_file import LogFile
from simstrag.records.record import ALL_REDUCE, Record, assumed_gpus

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RANK = re.compile(
    r"^\s*(\d{1,6}): |(?<!local )(?<![\w-])(?:rank|default|DP)[ =:_]{0,3}(\d{1,6})\b", re.IGNORECASE
)
"""`srun --label`, torchrun's `[rank0]:` and `[default0]:`, `[Rank 0]`, `rank=0`, `|DP=0|`."""
MOMENT = re.compile(
    r"(?<!\d)(?:(\d{4})[-/](\d\d)[-/](\d\d)|(\d\d)/(\d\d)/(\d{4}))[ T](\d\d):(\d\d):(\d\d)"
    r"(?:[.,](\d{1,6}))?"
)
"""ISO 8601, and month/day/year as Hugging Face's examples set it."""
NAMED = re.compile(r"rank\D{0,3}(\d{1,6})|(\d{1,6})(?!.*\d)", re.IGNORECASE)
WIDEST = 2000
"""Letters of a line that are looked at."""
LONGEST = 1e7
"""Seconds beyond which a number is no time of a step: 115 days."""

Cells = dict[tuple[int, int], dict[str, float]]
"""Seconds of parts, by step and rank."""


class LogLine(NamedTuple):
    """A line of a log."""

    text: str

    @property
    def rank(self) -> int:
        """The rank that it names; -1 for none."""
        found = RANK.search(self.text)
        return int(found[1] or found[2]) if found else -1

    @property
    def moment(self) -> float:
        """Seconds since 1970, as of UTC; NaN where it has no time."""
        found = MOMENT.search(self.text)
        if found is None:
            return math.nan
        date = found.group(1, 2, 3) if found[1] else found.group(6, 4, 5)
        year, month, day, hour, minute, second = map(int, (*date, *found.group(7, 8, 9)))
        try:
            whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
        except ValueError:
            return math.nan
        return whole + float(f"0.{found[10] or 0}")


def lines_of(file: LogFile) -> Iterator[LogLine]:
    """The lines of a log without colours, progress bars split.

    A cut last line loses its last word, and a line its end beyond `WIDEST`.
    """
    lines = COLOURS.sub("", file.text).splitlines()
    if lines and not file.text.endswith(("\n", "\r")):
        lines[-1] = re.sub(r"\S*\s*$", "", lines[-1][:WIDEST])
    return (LogLine(line[:WIDEST]) for line in lines)


def began_at(moment: float) -> str:
    """A moment in ISO 8601; empty for NaN."""
    return "" if math.isnan(moment) else datetime.fromtimestamp(moment, UTC).isoformat()[:-6]


def ranks_by_name(files: Sequence[LogFile]) -> list[int]:
    """The rank of each of a job's files by name or folder; their places where those do not tell."""
    for names in ([f.path.name for f in files], [f.path.parent.name for f in files]):
        found = [NAMED.search(name) for name in names]
        ranks = [int(each[1] or each[2]) for each in found if each is not None]
        if len(set(ranks)) == len(files):
            return ranks
    return list(range(len(files)))


def record_of_cells(
    cells: Cells,
    moments: Mapping[tuple[int, int], float],
    source: Path,
    form: str,
    missing: Sequence[str] = (),
    notes: Sequence[str] = (),
    whole: Mapping[int, float] | None = None,
    **more: Any,
) -> Record:
    """The record of the steps that all ranks have, of the parts that most steps have.

    A rank with fewer than half of the steps of others is left out.

    cells, moments: seconds of parts, and seconds since 1970, by step and rank.
    whole: seconds of each step, where they were timed apart from the parts.
    more: further fields of the record.
    Raises `InputError` where no step is left.
    """
    often = Counter(name for cell in cells.values() for name in cell)
    names = [name for name, n in often.items() if 2 * n >= len(cells)]
    numbers = sorted({step for step, _ in cells})
    cells = {key: cell for key, cell in cells.items() if cell.keys() >= {*names}}
    counts = Counter(rank for _, rank in cells)
    ranks = sorted(r for r, n in counts.items() if 2 * n >= max(counts.values()))
    steps = [step for step in numbers if ranks and all((step, rank) in cells for rank in ranks)]
    if not steps or not names:
        raise InputError(f"{source}: no step has the same times on all {len(ranks)} ranks")
    rows = [[cells[step, rank] for rank in ranks] for step in steps]
    parts = {n: np.array([[cell[n] for cell in row] for row in rows]) for n in names}
    if not any(each.any() for name, each in parts.items() if name != ALL_REDUCE):
        raise InputError(f"{source}: all seconds of computing are 0; are they rounded?")
    left_out = [str(rank) for rank in counts if rank not in ranks]
    lost = len(numbers) - len(steps)
    time = np.array([[moments.get((step, rank), math.nan) for rank in ranks] for step in steps])
    first = float(np.nanmin(time)) if np.isfinite(time).any() else math.nan
    return Record.of_ranks(
        np.array(steps), np.array(ranks), parts, str(source), form,
        missing=(
            *missing,
            *([f"ranks with few steps are left out: {', '.join(left_out)}"] if left_out else []),
            *([f"steps that lack a rank or a part are left out: {lost}"] if lost else []),
        ),
        notes=(
            *_interval(steps), *notes, *([assumed_gpus(len(ranks))] if len(ranks) > 1 else []),
        ),
        is_timed=whole is not None,
        step_seconds=None if whole is None else np.array([whole[step] for step in steps]),
        time=None if math.isnan(first) else np.repeat((time - first).ravel(), len(names)),
        began=began_at(first), **more,
    )  # fmt: skip


def _interval(steps: Sequence[int]) -> list[str]:
    """The note of a log that has one line for several steps."""
    several = int(np.median(np.diff(steps))) if len(steps) > 1 else 1
    return [f"Derived: a step here is the mean of {several} iterations."] if several > 1 else []
