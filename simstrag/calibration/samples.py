"""The file of all samples: a journal during the calibration, one table at its end.

Each visit is appended to `visits.jsonl` before the next one starts; a kill loses at most the line
that is being written.  At the end all visits go into `samples.parquet`, and the journal is deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.calibration.benches.machine_state import PACE_LIMIT, usual_paces, visit_deviation
from simstrag.calibration.cells import MeasurementCell, Part, Visit
from simstrag.calibration.fits.counted_visits import number_visits
from simstrag.calibration.regimes import is_host_bound
from simstrag.documents.file_io import lock_file, write_atomically
from simstrag.errors import InputError

FORMAT = "simstrag-samples/1"
JOURNAL = "visits.jsonl"
TABLE = "samples.parquet"

Header = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Samples:
    """All that was measured.

    header: device, software, workload and plan.
    visits: in the order in which they were made.
    """

    header: Header
    visits: tuple[Visit, ...]

    def of(self, cell: MeasurementCell) -> tuple[Visit, ...]:
        """The calm visits to one cell, without skipped ones."""
        visits = [v for v in self.visits if v.cell == cell and not v.skipped]
        host_bound = is_host_bound(cell, self.visits)
        return calm_visits(visits, usual_paces(self.visits) if host_bound else {})

    @property
    def cells(self) -> tuple[MeasurementCell, ...]:
        """The cells that were measured, in the order of their first visits."""
        return tuple(dict.fromkeys(v.cell for v in self.visits if not v.skipped))

    def by_cell(self, part: Part) -> dict[MeasurementCell, tuple[Visit, ...]]:
        """The calm visits to each cell of a part, in the order of the cells' first visits."""
        return {cell: self.of(cell) for cell in self.cells if cell.part == part}


def calm_visits(visits: Sequence[Visit], usual: Mapping[int, float]) -> tuple[Visit, ...]:
    """The visits without other processes at work, and with cores at their usual pace around them.

    Each of the two conditions is dropped if less than half of the visits meet it.

    usual: usual pace of each core; {} where the pace does not matter to the cell.
    """
    calm = tuple(visits)
    for is_calm in (
        lambda visit: not visit.facts.get("disturbed"),
        lambda visit: visit_deviation(visit, usual) <= PACE_LIMIT,
    ):
        kept = tuple(filter(is_calm, calm))
        calm = kept if 2 * len(kept) >= len(calm) else calm
    return calm


class VisitJournal:
    """`visits.jsonl` of a folder: a header line, then one line per visit."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL

    def start(self, header: Header, visits: Iterable[Visit] = ()) -> None:
        """Write a new journal with the visits of an earlier one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"format": FORMAT, **header}, *map(_line, visits)]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        write_atomically(self.path, lambda path: path.write_text(text, encoding="utf-8"))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing; a line that a kill cut off is deleted.

        Raises `InputError` where another process holds the lock.
        """
        with self.path.open("r+b") as file:
            taken = "another calibration is writing there; wait, or choose another folder"
            lock_file(file.fileno(), f"{self.path}: {taken}")
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)
            yield

    def add(self, visit: Visit) -> None:
        """Append one visit and flush it to disk."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_line(visit)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> Samples:
        """Header and visits; an incomplete last line is left out."""
        data = self.path.read_bytes()
        complete = data[: data.rfind(b"\n") + 1]
        try:
            header, *lines = (json.loads(line) for line in complete.splitlines())
            return Samples(_check_format(header), tuple(map(_visit, lines)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"{self.path}: is no journal of a calibration; move it away, or name another folder"
            ) from None


def find(folder: Path) -> Path | None:
    """The journal of an unfinished calibration in a folder, else its table, else None."""
    return next((folder / name for name in (JOURNAL, TABLE) if (folder / name).exists()), None)


def read(path: Path) -> Samples:
    """Read a folder, or one of its files. Raises `InputError` that says what is wrong."""
    if path.is_dir():
        file = find(path)
        if file is None:
            raise InputError(
                f"{path}: has no samples of a calibration ({JOURNAL}, {TABLE}); measure with "
                "simstrag calibrate"
            )
        path = file
    if not path.exists():
        raise InputError(f"{path}: cannot read the samples: no such file")
    if path.name == JOURNAL:
        return VisitJournal(path.parent).read()
    try:
        return _read_table(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: is no file of samples: {reason}") from None


def find_all(path: Path) -> tuple[Path, ...]:
    """The files that make one profile: a file, or a folder's `find` and its `samples-*.parquet`.

    The latter are calibrations of the same device, software and workload, with other cells.  Raises
    `InputError` as `read` does.
    """
    if not path.is_dir():
        return (path,)
    found = find(path)
    return (path if found is None else found, *sorted(path.glob("samples-*.parquet")))


def join(parts: Sequence[Samples]) -> Samples:
    """The samples of several calibrations as one, each visit with the number of its process.

    Raises `InputError` where devices, software or workloads differ.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0].header
    for name in ("device", "software", "workload"):
        for key in dict.fromkeys((*first[name], *(k for p in parts for k in p.header[name]))):
            values = [p.header[name].get(key) for p in parts]
            if key != "probed_gain" and any(value != values[0] for value in values):
                raise InputError(
                    f"samples of {name} {key} {' and of '.join(map(str, values))} make no one "
                    "profile; move one of the files to a folder of its own"
                )
    visits: list[Visit] = []
    seen: Counter[MeasurementCell] = Counter()
    processes: dict[tuple[int, int], int] = {}
    for place, part in enumerate(parts):
        for each in number_visits(part.visits):
            process = processes.setdefault((place, each.process), len(processes))
            facts = {**each.visit.facts, "process": process}
            visits.append(replace(each.visit, number=seen[each.visit.cell], facts=facts))
            seen[each.visit.cell] += 1
    plans = [part.header["plan"] for part in parts]
    plan = {
        **plans[0],
        **{
            key: [cell for plan in plans for cell in plan.get(key, ())]
            for key in ("cells", "held_out", "left_out")
        },
    }
    words = {
        key: " and ".join(dict.fromkeys(str(part.header[key]) for part in parts))
        for key in ("date", "command")
    }
    return Samples({**first, **words, "plan": plan}, tuple(visits))


def write(samples: Samples, folder: Path) -> Path:
    """Write the table, completely or not at all, and delete the journal; the table's path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = [_line(visit, samples=False) for visit in samples.visits]
    header = {"format": FORMAT, **samples.header, "visits": lines}
    series = [
        (k, n, values)
        for k, visit in enumerate(samples.visits)
        for n, values in enumerate(visit.samples.values())
    ]
    counts = [len(values) for _, _, values in series]
    columns = {  # one row per sample; visit and name by their numbers
        "visit": np.repeat(np.array([k for k, _, _ in series], np.int32), counts),
        "name": np.repeat(np.array([n for _, n, _ in series], np.int16), counts),
        "value": np.concatenate([np.zeros(0), *(values for _, _, values in series)]),
    }
    table = pa.table(columns).replace_schema_metadata({"simstrag": json.dumps(header)})
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(
        folder / TABLE,
        lambda path: pq.write_table(
            table, path, compression="zstd", use_byte_stream_split=["value"],
            use_dictionary=["visit", "name"],
        ),
    )  # fmt: skip
    (folder / JOURNAL).unlink(missing_ok=True)
    return folder / TABLE


def _line(visit: Visit, samples: bool = True) -> dict[str, Any]:
    line: dict[str, Any] = {
        "cell": visit.cell.document,
        "number": visit.number,
        "began": visit.began,
        "facts": visit.facts,
    }
    if visit.skipped:
        line["skipped"] = visit.skipped
    return line | ({"samples": visit.samples} if samples else {"names": list(visit.samples)})


def _visit(line: dict[str, Any]) -> Visit:
    series = {name: tuple(map(float, values)) for name, values in line["samples"].items()}
    return Visit(
        MeasurementCell(**line["cell"]), line["number"], line["began"], series, line["facts"],
        line.get("skipped", ""),
    )  # fmt: skip


def _check_format(header: Any) -> Header:
    if header["format"] != FORMAT:
        raise ValueError(f"format is {header['format']!r}, not {FORMAT!r}")
    return dict(header)


def _read_table(path: Path) -> Samples:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    header = json.loads((table.schema.metadata or {})[b"simstrag"])
    lines, visits = header.pop("visits"), []
    visit, names, values = (table.column(name).to_numpy() for name in ("visit", "name", "value"))
    starts = np.searchsorted(visit, np.arange(len(lines) + 1))
    for line, start, end in zip(lines, starts, starts[1:], strict=False):
        name, value = names[start:end], values[start:end]
        series = {word: value[name == n].tolist() for n, word in enumerate(line["names"])}
        visits.append(_visit({**line, "samples": series}))
    return Samples(_check_format(header), tuple(visits))
