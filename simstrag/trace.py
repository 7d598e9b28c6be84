"""Contention traces: who was slowed down, where, when and by how much.

A trace is a table in long form, one row per change: `time` (seconds), `node` (number), `resource`
(gpu, host, net, step), `kind` (slowdown, utilisation, duration) and `value`.  A value holds from
its time on until the next row of the same node, resource and kind.  "gpu" is the computing device,
a CPU included; "step" stretches the whole step.  Rows of kind `duration` are recorded local times
of steps, replayed one per step in their order.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simstrag.errors import InputError
from simstrag.names import nearest
from simstrag.paths import write_whole
from simstrag.slowdown import Piecewise

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "KINDS", "RESOURCES", "Row", "Trace"]

COLUMNS = ("time", "node", "resource", "kind", "value")
RESOURCES = ("gpu", "host", "net", "step")
KINDS = ("slowdown", "utilisation", "duration")
BEFORE = {"slowdown": 1.0, "utilisation": 0.0}
"""What holds before the first row of a key."""
FORMATS = f"a trace is CSV, or parquet in a file named *.parquet, with columns {', '.join(COLUMNS)}"

MEANT = {"time": "in seconds from the start", "node": "the number of a node, from 0 on"}
"""What else is written into columns of numbers: dates, names of machines."""
SEPARATORS = {";": "semicolons", "\t": "tabs"}
"""What spreadsheets write instead of commas."""

Key = tuple[int, str, str]


class Row(NamedTuple):
    """One change: `value` holds from `time` (seconds) on."""

    time: float
    node: int
    resource: str
    kind: str
    value: float

    @property
    def key(self) -> Key:
        """Whose value it is: node, resource and kind."""
        return self.node, self.resource, self.kind

    @property
    def speeds_up(self) -> bool:
        """Whether it is a slowdown below 1, which a scenario must allow."""
        return self.kind == "slowdown" and self.value < 1


@dataclass(frozen=True, slots=True)
class Trace:
    """A validated contention trace.

    rows: in order of time; rows of equal time keep the order they came in.
    source: where it came from, for messages and provenance.
    sha256: of the file's bytes, or of the rows where there is no file.
    lines: where each row stands in its source, as messages count.
    shifted_from: the trace as it was recorded, of one that begins elsewhere.

    >>> rows = [(60.0, 3, "gpu", "slowdown", 2.0), (90.0, 3, "gpu", "slowdown", 1.0)]
    >>> trace = Trace.from_rows(rows)
    >>> trace.end, trace.nodes
    (90.0, (3,))
    """

    rows: tuple[Row, ...]
    source: str = "inline"
    sha256: str = field(default="", compare=False)
    lines: tuple[int, ...] = field(default=(), compare=False, repr=False)
    shifted_from: Trace | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Sequence[Any] | Mapping[str, Any]],
        source: str = "inline trace",
        first_line: int = 1,
        sha256: str | None = None,
    ) -> Trace:
        """Check and keep `rows` (sequences in the order of `COLUMNS`, or mappings).

        Raises `InputError` that names the source, the row and the way out.
        """
        return cls._checked(enumerate(rows, start=first_line), source, sha256)

    @classmethod
    def _checked(
        cls, numbered: Iterable[tuple[int, Any]], source: str, sha256: str | None = None
    ) -> Trace:
        checked: list[tuple[int, Row]] = []
        latest: dict[Key, float] = {}
        for number, raw in numbered:
            where = f"{source}, row {number}"
            row = _row(raw, where)
            key = row.key
            if row.time < latest.get(key, 0.0):
                raise InputError(
                    f"{where}: time {row.time:g} goes backwards, the row before of node "
                    f"{row.node}, {row.resource} {row.kind} is at {latest[key]:g}; "
                    "sort the rows by time"
                )
            latest[key] = row.time
            checked.append((number, row))
        if not checked:
            raise InputError(f"{source}: the trace is empty; leave `trace` out for no contention")
        checked.sort(key=lambda numbered: numbered[1].time)
        lines, rows = zip(*checked, strict=True)
        if sha256 is None:
            sha256 = hashlib.sha256(repr([tuple(row) for row in rows]).encode()).hexdigest()
        return cls(rows, source, sha256, lines)

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """From a CSV or parquet file with the columns `time, node, resource, kind, value`.

        Raises `InputError` where the file is missing, unreadable or wrong in any row.
        """
        path = Path(path)
        if not path.exists():
            raise InputError(f"{path}: no such trace file")
        read = _parquet_rows if path.suffix == ".parquet" else _csv_rows
        try:
            data = path.read_bytes()
            return cls._checked(read(data, path), str(path), hashlib.sha256(data).hexdigest())
        except UnicodeDecodeError:
            raise InputError(f"{path}: not a text file in UTF-8; {FORMATS}") from None
        except OSError as error:
            reason = error.strerror or str(error).splitlines()[0]
            raise InputError(f"{path}: cannot be read as a trace: {reason}") from None

    @property
    def end(self) -> float:
        """Seconds of the last row: what comes after it is not recorded."""
        return self.rows[-1].time

    @property
    def replays(self) -> bool:
        """Whether it has recorded durations of steps to replay."""
        return any(row.kind == "duration" for row in self.rows)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that have rows, in order."""
        return tuple(sorted({row.node for row in self.rows}))

    def first(self, wrong: Callable[[Row], bool]) -> tuple[str, Row] | None:
        """The first row of which something is so, as it was recorded, and where it stands.

        >>> Trace.from_rows([(0, 3, "gpu", "slowdown", 0.5)]).first(lambda row: row.value < 1)
        ('inline trace, row 1', Row(time=0.0, node=3, resource='gpu', kind='slowdown', value=0.5))
        """
        if self.shifted_from is not None:
            return self.shifted_from.first(wrong)
        place = next((k for k, row in enumerate(self.rows) if wrong(row)), None)
        if place is None:
            return None
        number = self.lines[place] if self.lines else place + 1
        return f"{self.source}, row {number}", self.rows[place]

    def series(self, node: int, resource: str, kind: str) -> list[tuple[float, float]]:
        """(time, value) of one key in order of time."""
        return self.by_key().get((node, resource, kind), [])

    def by_key(self) -> dict[Key, list[tuple[float, float]]]:
        """(time, value) of every (node, resource, kind) in order of time."""
        found: dict[Key, list[tuple[float, float]]] = {}
        for row in self.rows:
            found.setdefault(row.key, []).append((row.time, row.value))
        return found

    def shifted(self, offset: float) -> Trace:
        """The same trace begun at `offset` s (0 <= offset < end) and wrapped around its end."""
        if self.end == 0:
            return self
        rows: list[Row] = []
        for (node, resource, kind), recorded in sorted(self.by_key().items()):
            series = recorded
            if kind != "duration":  # the value that holds at the offset opens and closes the trace
                held = Piecewise.of(recorded, self.end, before=BEFORE[kind])
                series = list(zip(held.times, held.values, strict=True))
                edge = held.at(offset)
                rows += [Row(time, node, resource, kind, edge) for time in (0.0, self.end)]
            rows += [Row(t - offset, node, resource, kind, v) for t, v in series if t >= offset]
            rows += [
                Row(t - offset + self.end, node, resource, kind, v) for t, v in series if t < offset
            ]
        rows.sort(key=lambda row: row.time)
        source = f"{self.source} from {offset:.6g} s on"
        return Trace(tuple(rows), source, self.sha256, shifted_from=self)

    def to_frame(self) -> pd.DataFrame:
        """As a pandas DataFrame with one column for each of `COLUMNS`."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(COLUMNS))

    def write(self, path: str | Path) -> None:
        """To a CSV file, or parquet where the name says so."""
        frame = self.to_frame()
        write = frame.to_parquet if Path(path).suffix == ".parquet" else frame.to_csv
        write_whole(path, lambda part: write(part, index=False))


def _row(raw: Sequence[Any] | Mapping[str, Any], where: str) -> Row:
    if isinstance(raw, Mapping):
        unknown = [key for key in raw if key not in COLUMNS]
        if unknown:
            raise InputError(
                f"{where}: unknown column '{unknown[0]}'{nearest(unknown[0], COLUMNS)}"
            )
        missing = [key for key in COLUMNS if key not in raw]
        if missing:
            raise InputError(f"{where}: no '{missing[0]}'; a row has {', '.join(COLUMNS)}")
        raw = [raw[key] for key in COLUMNS]
    if isinstance(raw, str) or len(raw) != len(COLUMNS):
        raise InputError(f"{where}: {raw!r} is not a row of {', '.join(COLUMNS)}")
    time, node, resource, kind, value = raw
    row = Row(
        _number(time, "time", where),
        _node(node, where),
        _choice(resource, "resource", RESOURCES, where),
        _choice(kind, "kind", KINDS, where),
        _number(value, "value", where),
    )
    if row.time < 0:
        raise InputError(f"{where}: time {row.time:g} is negative; a trace begins at 0")
    if row.kind == "slowdown" and row.value <= 0:
        raise InputError(f"{where}: slowdown {row.value:g} must be 1 or more")
    if row.kind == "utilisation" and not 0 <= row.value <= 1:
        raise InputError(f"{where}: utilisation {row.value:g} must lie between 0 and 1")
    if row.kind == "duration" and row.value <= 0:
        raise InputError(f"{where}: duration {row.value:g} must be positive seconds")
    if row.kind == "duration" and row.resource != "step":
        raise InputError(f"{where}: a duration is of resource step, not {row.resource}")
    return row


def _number(value: Any, column: str, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        meant = MEANT.get(column)
        way_out = f"; it is {meant}" if meant else ""
        raise InputError(f"{where}: {column} {value!r} is not a number{way_out}") from None
    if not math.isfinite(number):
        raise InputError(f"{where}: {column} is {value}; it must be a finite number")
    return number


def _node(value: Any, where: str) -> int:
    number = _number(value, "node", where)
    if number != int(number) or number < 0:
        raise InputError(f"{where}: node {value!r} must be a whole number, 0 or more")
    return int(number)


def _choice(value: Any, column: str, allowed: Sequence[str], where: str) -> str:
    name = str(value).strip()
    if name not in allowed:
        raise InputError(
            f"{where}: unknown {column} '{name}'{nearest(name.lower(), allowed)}; "
            f"allowed: {', '.join(allowed)}"
        )
    return name


def _csv_rows(data: bytes, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of `COLUMNS` with the number of the line they end on; blank lines are left out."""
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, skipinitialspace=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            places = _places(header, path)
            for fields in reader:
                if any(fields):
                    if len(fields) != len(header):
                        raise InputError(
                            f"{path}, row {reader.line_num}: {len(fields)} fields, "
                            f"but the header names {len(header)} columns"
                        )
                    yield reader.line_num, [fields[k] for k in places]
        except csv.Error as error:
            raise InputError(
                f"{path}, row {reader.line_num}: not CSV: {error}; {FORMATS}"
            ) from None


def _parquet_rows(data: bytes, path: Path) -> Iterator[tuple[int, tuple[Any, ...]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(data))
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: cannot be read as parquet: {reason}") from None
    places = _places(table.column_names, path)
    columns = [table.column(k).to_pylist() for k in places]
    yield from enumerate(zip(*columns, strict=True), start=1)


def _places(header: Sequence[str], path: Path) -> list[int]:
    """Where each of `COLUMNS` stands."""
    found = ", ".join(header)
    if not found:
        raise InputError(f"{path}: the file is empty; {FORMATS}")
    for mark, what in SEPARATORS.items():
        if len(header) == 1 and mark in found:
            raise InputError(
                f"{path}: its columns are separated by {what}; save it as CSV with commas, and "
                "with decimal points"
            )
    if not found.isprintable():
        raise InputError(f"{path}: not a text file in UTF-8; {FORMATS}")
    for name in COLUMNS:
        if header.count(name) != 1:
            problem = "no column" if name not in header else "more than one column"
            short = found if len(found) <= 100 else found[:97] + "..."
            raise InputError(
                f"{path}: {problem} '{name}'; a trace has {', '.join(COLUMNS)}, this file {short}"
            )
    return [list(header).index(name) for name in COLUMNS]
