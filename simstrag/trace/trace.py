"""Contention traces: which nodes were slowed, when and by how much.

A trace is a table in long form, one row per change: `time` (seconds), `node` (number), `resource`
(gpu, host, net, step), `kind` (slowdown, utilisation, duration, delay), `value`.  It holds until
the next row of the same node, resource and kind.  "gpu" is the computing device, a CPU included;
"step" stretches the whole step.  Rows of kind `duration` are recorded local times of steps, which
are replayed one per step in their order; of kind `delay`, seconds that each message takes more.  A
sixth column `host` may name the nodes.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Bools, Floats, Ints
from simstrag.documents.file_io import path_of, require_path, write_atomically
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.trace import read_files
from simstrag.trace import row_validation as trace_rows
from simstrag.trace.node_histories import Histories
from simstrag.trace.row_validation import (
    BEGAN,
    COLUMNS,
    DELAY,
    DURATION,
    HOST,
    KIND_NAMES,
    KINDS,
    RESOURCES,
    SLOWDOWN,
    Columns,
    HistoryKey,
    Row,
)  # fmt: skip
from simstrag.trace.step_functions import owners

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "KINDS", "RESOURCES", "Changes", "Row", "Trace"]


class Changes(NamedTuple):
    """Rows in order of time, an array for each field of `Row`."""

    time: Floats
    node: Ints
    resource: npt.NDArray[np.str_]
    kind: npt.NDArray[np.str_]
    value: Floats

    @property
    def speeds_up(self) -> Bools:
        """Whether each row is a slowdown below 1, which a scenario must allow."""
        return np.asarray((self.kind == "slowdown") & (self.value < 1))


@dataclass(frozen=True, eq=False)
class Trace:
    """A validated contention trace.

    histories: its rows, sorted by node, resource and kind.
    source: where its rows are from, for messages and provenance.
    sha256_of_file: SHA-256 of its file's bytes, if there is a file.
    shifted_from: the trace as recorded, if this one begins elsewhere in it.
    names: the host name of each node that has one.
    began: time 0 in ISO 8601, where a log had it; else empty.

    >>> rows = [(60.0, 3, "gpu", "slowdown", 2.0), (90.0, 3, "gpu", "slowdown", 1.0)]
    >>> trace = Trace.from_rows(rows)
    >>> trace.end, trace.nodes
    (90.0, (3,))
    """

    histories: Histories
    source: str = "inline"
    sha256_of_file: str | None = None
    shifted_from: Trace | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    began: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.histories, Histories):
            raise InputError(
                f"a trace is made by Trace.from_rows, Trace.from_frame or Trace.read, not of "
                f"{self.histories!r}"
            )

    def __eq__(self, other: object) -> bool:
        """Whether source and rows are equal."""
        if not isinstance(other, Trace):
            return NotImplemented
        same = map(np.array_equal, self.changes, other.changes)
        return self.source == other.source and all(same)

    def __hash__(self) -> int:
        return hash((self.source, len(self), self.end))

    def __getstate__(self) -> dict[str, Any]:
        """The state for another process, with the hash, which takes long to compute."""
        return {**self.__dict__, "sha256": self.sha256}

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Sequence[Any] | Mapping[str, Any]],
        source: str = "inline trace",
        first_line: int = 1,
    ) -> Trace:
        """The trace of rows: sequences in the order of `COLUMNS`, or mappings.

        source, first_line: for messages.
        Raises `InputError` that names the source, the row and the way out.
        """
        rows = list(rows)
        columns = trace_rows.parse(rows, first_line)
        return cls(_histories(columns, enumerate(rows, start=first_line), source), source)

    @classmethod
    def from_columns(
        cls, time: Any, node: Any, resource: str, kind: str, value: Any, source: str
    ) -> Trace:
        """From arrays of one resource and kind, in any order of nodes.

        >>> Trace.from_columns([0.0], [3], "gpu", "slowdown", [2.0], "hand-made").rows
        (Row(time=0.0, node=3, resource='gpu', kind='slowdown', value=2.0),)
        """
        n = len(time)
        columns = trace_rows.validate(
            np.array(time, np.float64), np.array(node, np.float64),
            trace_rows.encode([resource], RESOURCES).repeat(n),
            trace_rows.encode([kind], KIND_NAMES).repeat(n),
            np.array(value, np.float64), np.arange(1, n + 1),
        )  # fmt: skip
        names = itertools.repeat(resource), itertools.repeat(kind)
        rows = enumerate(zip(time, node, *names, value, strict=False), start=1)
        return cls(_histories(columns, rows, source), source)

    @classmethod
    def from_frame(cls, frame: Any, source: str = "frame") -> Trace:
        """From a DataFrame, a table of pyarrow or a dict of columns; other columns are ignored.

        A column `host` names the nodes.
        Raises `InputError` as `from_rows` does, and for a missing column.

        >>> Trace.from_frame(Trace.from_rows([(0.0, 3, "gpu", "slowdown", 2.0)]).to_frame()).rows
        (Row(time=0.0, node=3, resource='gpu', kind='slowdown', value=2.0),)
        """
        names = column_names(frame)
        if missing := [name for name in COLUMNS if name not in names]:
            is_log = len(missing) > 2
            hint = "; simstrag.diagnose reads logs" if is_log else nearest(missing[0], names)
            raise InputError(
                f"{source}: no column '{missing[0]}'; a trace has {', '.join(COLUMNS)}{hint}"
            )
        columns = {name: np.asarray(frame[name]) for name in COLUMNS}
        for name, column in columns.items():
            if column.dtype.kind in "mM":
                raise InputError(f"{source}: {name} is of type {column.dtype}, not a number")
            if column.ndim != 1:
                raise InputError(
                    f"{source}: {name} is {frame[name]!r}, not a column; in a scenario's file a "
                    "row begins with a dash"
                )
        if len({len(column) for column in columns.values()}) > 1:
            lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
            raise InputError(f"{source}: columns of different lengths: {lengths}")
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        trace = cls.from_rows(rows, source)
        if HOST not in names:
            return trace
        pairs = zip(*(np.asarray(frame[name]).tolist() for name in ("node", HOST)), strict=True)
        return replace(trace, names=read_files.match_names(pairs, source))

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """From a CSV or parquet file. Raises `InputError` for a file with any mistake."""
        path = require_path(path_of(path, "a trace"))
        try:
            data = path.read_bytes()
            histories = _histories(*read_files.read(data, path), str(path))
            names = read_files.read_names(data, path)
            began = read_files.read_label(data, path, BEGAN)
            digest = hashlib.sha256(data).hexdigest()
            return cls(histories, str(path), digest, names=names, began=began)
        except UnicodeDecodeError:
            raise InputError(f"{path}: not a text file in UTF-8; {read_files.FORMATS}") from None
        except OSError as error:
            reason = error.strerror or str(error).splitlines()[0]
            raise InputError(f"{path}: cannot be read as a trace: {reason}") from None

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 of the file's bytes, or else of the rows."""
        if self.sha256_of_file is not None:
            return self.sha256_of_file
        if self.shifted_from is not None:
            return self.recorded.sha256
        rows = ", ".join(map(repr, self._tuples()))
        return hashlib.sha256(f"[{rows}]".encode()).hexdigest()

    @property
    def recorded(self) -> Trace:
        """The trace as recorded, whose rows and times a message names."""
        return self if self.shifted_from is None else self.shifted_from.recorded

    def __len__(self) -> int:
        return len(self.histories.time)

    @property
    def end(self) -> float:
        """Seconds of the last row, at which the record ends."""
        return float(self.histories.time[self.histories.starts[1:] - 1].max())

    @property
    def period(self) -> tuple[datetime, datetime] | None:
        """The moments of the beginning and the end of the record; None where they are not known.

        >>> trace = Trace.from_rows([(90, 0, "gpu", "slowdown", 1.0)])
        >>> trace.period, [str(t) for t in replace(trace, began="2026-01-31T10:00").period]
        (None, ['2026-01-31 10:00:00', '2026-01-31 10:01:30'])
        """
        try:
            began = datetime.fromisoformat(self.recorded.began)
            return began, began + timedelta(seconds=self.recorded.end)
        except (ValueError, OverflowError):  # none, or no date
            return None

    @property
    def replays(self) -> bool:
        """Whether it has recorded durations."""
        return bool(self.nodes_with_durations)

    @property
    def nodes_with_durations(self) -> set[int]:
        """The nodes that have recorded durations."""
        return set(self.histories.node[self.histories.kind == DURATION].tolist())

    @property
    def median_duration(self) -> float:
        """The median of all recorded durations, in seconds."""
        h = self.histories
        return float(np.median(h.value[h.rows_of(h.kind == DURATION)]))

    @functools.cached_property
    def speeds_up(self) -> bool:
        """Whether any recorded slowdown is below 1, which a scenario must allow."""
        h = self.recorded.histories
        return bool(np.any(h.value[h.rows_of(h.kind == SLOWDOWN)] < 1))

    @functools.cached_property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that have rows, in order."""
        return tuple(np.unique(self.histories.node).tolist())

    @property
    def keys(self) -> list[HistoryKey]:
        """Every (node, resource, kind) that has rows, in order.

        >>> Trace.from_rows([(0, 3, "gpu", "slowdown", 2.0)]).keys
        [(3, 'gpu', 'slowdown')]
        """
        return self.histories.keys

    @property
    def changes(self) -> Changes:
        """All rows in order of time; rows of equal time are in the order of the source."""
        h = self.histories
        owner = owners(h.starts)[h.order]
        resources, kinds = np.array(RESOURCES), np.array(KIND_NAMES)
        return Changes(
            h.time[h.order], h.node[owner], resources[h.resource[owner]], kinds[h.kind[owner]],
            h.value[h.order],
        )  # fmt: skip

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows as tuples, built anew at each call."""
        return tuple(map(Row._make, self._tuples()))

    def _tuples(self) -> Iterator[tuple[Any, ...]]:
        return zip(*(column.tolist() for column in self.changes), strict=True)

    def find_first(self, condition: Callable[[Changes], Bools]) -> tuple[str, Row] | None:
        """The place in the source, and the values, of the first recorded row with a condition.

        >>> trace = Trace.from_rows([(0, 3, "gpu", "slowdown", 0.5)])
        >>> trace.find_first(lambda rows: rows.value < 1)
        ('inline trace, row 1', Row(time=0.0, node=3, resource='gpu', kind='slowdown', value=0.5))
        """
        trace = self.recorded
        changes, h = trace.changes, trace.histories
        places = np.flatnonzero(condition(changes))
        if not len(places):
            return None
        place = places[0]
        line = h.line[h.order[place]] if h.line is not None else place + 1
        row = Row._make(column[place].item() for column in changes)
        return f"{trace.source}, row {line}", row

    def series(self, node: int, resource: str, kind: str) -> list[tuple[float, float]]:
        """(time, value) of one key in order of time."""
        return self.by_key().get((node, resource, kind), [])

    def by_key(self) -> dict[HistoryKey, list[tuple[float, float]]]:
        """(time, value) of every (node, resource, kind) in order of time."""
        rows = list(zip(self.histories.time.tolist(), self.histories.value.tolist(), strict=True))
        edges = itertools.pairwise(self.histories.starts.tolist())
        return {key: rows[a:b] for key, (a, b) in zip(self.keys, edges, strict=True)}

    def shift(self, offset: float) -> Trace:
        """The trace from `offset` s on (0 <= offset < end), wrapped around its end."""
        if self.end == 0:
            return self
        source = f"{self.source} from {offset:.6g} s on"
        histories = self.histories.shift(offset, self.end)
        return Trace(histories, source, shifted_from=self, names=self.names)

    def without_contention(self, places: Sequence[int]) -> Trace:
        """The control of recorded durations: step k takes the median of step k over the ranks.

        Ranks that recorded fewer steps do not count in the later ones; slowdowns are 1.
        places: the node of each rank.

        >>> rows = [(0, n, "step", "duration", 1.0 + n) for n in (0, 1)]
        >>> [row.value for row in Trace.from_rows(rows).without_contention([0, 1, 1]).rows]
        [2.0, 2.0]
        """
        return replace(self, histories=self.histories.without_contention(places))

    def scaled(self, severity: float, places: Sequence[int]) -> Trace:
        """The trace with its contention, beyond `without_contention`, multiplied.

        places: the node of each rank.

        >>> rows = [(0, 0, "gpu", "slowdown", 2.0), (5, 0, "gpu", "slowdown", 1.0)]
        >>> [row.value for row in Trace.from_rows(rows).scaled(0.5, [0, 1]).rows]
        [1.5, 1.0]
        """
        return replace(self, histories=self.histories.scaled(severity, places))

    @property
    def contends(self) -> bool:
        """Whether it has a slowdown above 1, a delay, or recorded durations."""
        h = self.histories
        least = np.where(h.kind == SLOWDOWN, 1.0, np.where(h.kind == DELAY, 0.0, math.inf))
        return self.replays or bool(np.any(h.value > np.repeat(least, np.diff(h.starts))))

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame with the columns `COLUMNS`."""
        import pandas as pd

        return pd.DataFrame(self.changes._asdict())

    def write(self, path: str | Path, **labels: str) -> None:
        """Write a CSV file, or parquet if the name ends with `.parquet`.

        labels: further columns by name, each with one value for all rows.
        """
        frame = self.to_frame()
        if self.names:
            # a carriage return would end a row, as Python's csv does not quote it
            names = {node: name.replace("\r", " ") for node, name in self.names.items()}
            frame[HOST] = frame["node"].map(names).fillna("")
        if self.began:
            frame[BEGAN] = self.began
        frame = frame.assign(**labels)
        write = frame.to_parquet if Path(path).suffix == ".parquet" else frame.to_csv
        write_atomically(path, lambda part: write(part, index=False))


def column_names(frame: Any) -> list[str]:
    """The columns of a DataFrame, a table of pyarrow or a mapping; none of anything else."""
    if isinstance(frame, Mapping):
        return list(map(str, frame))
    names = getattr(frame, "column_names", getattr(frame, "columns", ()))
    return list(map(str, names))


def _histories(columns: Columns | None, rows: Iterable[tuple[int, Any]], source: str) -> Histories:
    """Histories of columns, or else of rows that are checked one by one.

    Raises `InputError` for the first mistake.
    """
    histories = None if columns is None else Histories.of(columns)
    if histories is None:
        histories = Histories.of(trace_rows.check_each(rows, source))
    assert histories is not None, "rows that were checked one by one are in order"
    return histories
