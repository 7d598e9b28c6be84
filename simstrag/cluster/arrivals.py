"""Jobs that arrive at a cluster, from a CSV file."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from simstrag import policies
from simstrag.documents.csv_rows import read_rows
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.scenario.sections import Count, Endless, NonNegative, Positive, Section

COLUMNS = ("submit", "gpus", "samples", "duration", "workload", "policy", "name")
"""The columns of the file; `submit_s` and `duration_s` are read, too."""
LEAST = {"submit": 0.0, "gpus": 1.0, "samples": 1.0, "duration": 1e-9}
MEANT = 0.8
"""Likeness to a column that is read from which a column that is not is taken for a mistake."""
LATEST = 1e9
"""Most seconds of a time, ASSUMED: a clock beyond has too few digits left for a step."""
MOST_WORK = 10**15
"""Most samples of a job, ASSUMED: those of all updates are to fit an integer of 64 bits."""
Work = Annotated[int, Field(ge=1, le=MOST_WORK)]
Instant = Annotated[float, Field(ge=0, le=LATEST)]


class ArrivalRow(NamedTuple):
    """A row: seconds of submission, workers, and work as samples or as a duration in seconds."""

    submit: float
    workers: int
    samples: int | None
    duration: float | None
    workload: str | None
    policy: str | None
    name: str | None


class ArrivalsSection(Section):
    """Jobs from a file: submit (s), gpus, and samples or duration (s); workload, policy, name.

    file: CSV.  A duration is that of the job alone under bsp, without noise.
    workloads: drawn for rows without one, all alike or with these weights.
    first, seconds: the rows submitted from `first` on, for so many seconds; they then arrive from
        0 on.
    most: at most so many jobs.
    largest: rows with more devices are left out.
    compress: times of submission and durations are divided by it.
    """

    file: str
    workloads: tuple[str, ...] | dict[str, Positive] = ()
    first: NonNegative = 0.0
    seconds: Endless = math.inf
    most: Count | None = None
    largest: Count | None = None
    compress: Positive = 1.0

    def weights(self, known: tuple[str, ...]) -> Mapping[str, float]:
        """The weight of each workload that is drawn; known: all of the study."""
        if isinstance(self.workloads, dict):
            return self.workloads
        return dict.fromkeys(self.workloads or known, 1.0)

    def read(self, path: Path, slots: int, workloads: tuple[str, ...]) -> list[ArrivalRow]:
        """The rows that are simulated.

        slots: the most workers of a job.  workloads: of the study.
        Raises `InputError` that names the file, the row and the value.
        """
        rows, names = list[ArrivalRow](), dict[str, int]()
        for line, row in _read(path):
            if not self.first <= row.submit < self.first + self.seconds:
                continue
            if self.largest is not None and row.workers > self.largest:
                continue
            where = f"{path}, row {line}"
            if row.workers > slots:
                raise InputError(
                    f"{where}: gpus is {row.workers}, but the nodes have room for {slots} workers; "
                    "add nodes, or set arrivals.largest"
                )
            if row.workload is not None and row.workload not in workloads:
                raise InputError(
                    f"{where}: workload '{row.workload}' is not in the study; known: "
                    f"{', '.join(workloads)}{nearest(row.workload, workloads)}"
                )
            if row.name is not None and names.setdefault(row.name, line) != line:
                raise InputError(f"{where}: name '{row.name}' is that of row {names[row.name]}")
            submit = (row.submit - self.first) / self.compress
            for name, given, scaled in (
                ("submit", row.submit, submit),
                ("duration", row.duration, (row.duration or 0.0) / self.compress),
            ):
                if scaled > LATEST:
                    raise InputError(
                        f"{where}: {name} is {given:.10g}, over {LATEST:g} seconds; set "
                        "arrivals.first to begin later, or arrivals.compress"
                    )
            rows.append(row._replace(submit=submit))
        if not rows:
            raise InputError(f"{path}: no row is left; look at arrivals.first, seconds and largest")
        return rows[: self.most]


def _read(path: Path) -> Iterator[tuple[int, ArrivalRow]]:
    """Each row with its line."""
    if not path.is_file():
        raise InputError(f"{path}: is no file; arrivals.file names a CSV file")
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = read_rows(file, str(path))
            head = [name.removesuffix("_s") for name in next(rows)[1]]
            _require_columns(path, head)
            checked = set[str]()
            for line, cells in rows:
                row = _row(f"{path}, row {line}", dict(zip(head, cells, strict=True)))
                if row.policy is not None and row.policy not in checked:
                    _check_policy(f"{path}, row {line}", row.policy)
                    checked.add(row.policy)
                yield line, row
        except UnicodeDecodeError:
            raise InputError(f"{path}: not text in UTF-8") from None


def _require_columns(path: Path, head: Sequence[str]) -> None:
    """Raise `InputError` for a column that is missing, stands twice, or has nearly a known name."""
    if len(head) == 1 and ";" in head[0]:
        raise InputError(
            f"{path}: the header is '{head[0]}'; put commas between columns, and points in numbers"
        )
    work = {"samples", "duration"} & set(head)
    for name in ("submit", "gpus", *(() if work else ("duration",))):
        if name not in head:
            raise InputError(
                f"{path}: no column {name}{nearest(name, head)}; arrivals need submit, gpus, and "
                "samples or duration; workload, policy and name may stand beside them"
            )
    for name in COLUMNS:
        if head.count(name) > 1:
            raise InputError(f"{path}: column {name} stands twice; {name}_s is the same column")
    missing = [name for name in COLUMNS if name not in head]
    for name in {*head} - {*COLUMNS}:
        for meant in difflib.get_close_matches(name.lower(), missing, 1, MEANT):
            raise InputError(
                f"{path}: column '{name}' is not read. Did you mean '{meant}'? Rename it, or leave "
                "it out"
            )


def _check_policy(where: str, policy: str) -> None:
    try:
        policies.load(policy)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _row(where: str, cells: Mapping[str, str]) -> ArrivalRow:
    found: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name in COLUMNS:
        text = cells.get(name, "").strip()
        if text:
            found[name] = _number(where, name, text) if name in LEAST else text
    if found["submit"] is None or found["gpus"] is None:
        raise InputError(f"{where}: submit and gpus must be given")
    if found["samples"] is None and found["duration"] is None:
        raise InputError(f"{where}: give samples or duration")
    samples = None if found["samples"] is None else int(found["samples"])
    return ArrivalRow(
        found["submit"], int(found["gpus"]), samples, found["duration"], found["workload"],
        found["policy"], found["name"],
    )  # fmt: skip


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    whole = name in ("gpus", "samples")
    if not LEAST[name] <= value < math.inf or (whole and (value % 1 or value > MOST_WORK)):
        kind = f"a whole number from 1 to {MOST_WORK:g}" if whole else "a number of seconds"
        kind += "" if whole else " above 0" if LEAST[name] else " from 0 on"
        raise InputError(f"{where}: {name} is '{text}', but must be {kind}")
    return value
