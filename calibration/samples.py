"""The file of every sample: a journal while measuring, one table at the end.

While calibration goes on, each visit is appended to `visits.jsonl` and is safe from then on; what
a kill cuts off is at most the line being written.  At the end all visits go into
`samples.parquet`, or `samples.npz` where pyarrow is absent, and the journal goes away.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from simstrag.calibration.benches.pace import OFF, unrest, usual
from simstrag.calibration.cells import Cell, Visit
from simstrag.documents.paths import hold, write_whole
from simstrag.errors import InputError

__all__ = ["FORMAT", "Journal", "Samples", "calm", "find", "read", "write"]

FORMAT = "simstrag-samples/1"
JOURNAL = "visits.jsonl"
TABLES = ("samples.parquet", "samples.npz")

Header = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Samples:
    """All that was measured: a header (device, software, plan, ...) and the visits in order."""

    header: Header
    visits: tuple[Visit, ...]

    def of(self, cell: Cell) -> tuple[Visit, ...]:
        """The calm visits to one cell, those that were skipped left out."""
        visits = [v for v in self.visits if v.cell == cell and not v.skipped]
        return calm(visits, usual(self.visits))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """What was measured, in the order of first visits."""
        return tuple(dict.fromkeys(v.cell for v in self.visits if not v.skipped))


def calm(visits: Sequence[Visit], known: Mapping[int, float]) -> tuple[Visit, ...]:
    """Those during which nobody else was at work, or all where that leaves less than half.

    Of these, those around which all cores were of their usual pace, which are `known`; or all of
    these where that leaves less than half.
    """
    alone = _most(visits, lambda visit: not visit.facts.get("disturbed"))
    return _most(alone, lambda visit: unrest(visit, known) <= OFF)


def _most(visits: Sequence[Visit], good: Callable[[Visit], bool]) -> tuple[Visit, ...]:
    """The good ones, or all where they are less than half."""
    found = tuple(filter(good, visits))
    return found if 2 * len(found) >= len(visits) else tuple(visits)


class Journal:
    """`visits.jsonl` of a folder: what it holds, and where more is appended."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL

    def start(self, header: Header, visits: Iterable[Visit] = ()) -> None:
        """Begin a new one, with what was measured before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"format": FORMAT, **header}, *map(_line, visits)]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        write_whole(self.path, lambda path: path.write_text(text, encoding="utf-8"))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else may add to it meanwhile; what a kill cut off is taken away.

        Raises `InputError` where another process holds it.
        """
        with self.path.open("r+b") as file:
            taken = "another calibration is writing there; wait, or choose another folder"
            hold(file.fileno(), f"{self.path}: {taken}")
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)
            yield

    def add(self, visit: Visit) -> None:
        """Keep one visit."""
        self._append(_line(visit))

    def read(self) -> Samples:
        """What is there; a line that is not whole is left out."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            header, *lines = (json.loads(line) for line in whole.splitlines())
            return Samples(_checked(header), tuple(map(_visit, lines)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"{self.path}: is no journal of a calibration; move it away, or name another folder"
            ) from None

    def _append(self, entry: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def find(folder: Path) -> Path | None:
    """The file of samples in a folder, the journal of one that is not finished, or None."""
    for name in (JOURNAL, *TABLES):
        if (folder / name).exists():
            return folder / name
    return None


def read(path: Path) -> Samples:
    """From a folder or one of its files. Raises `InputError` that says what is wrong."""
    if path.is_dir():
        found = find(path)
        if found is None:
            raise InputError(
                f"{path}: has no samples of a calibration ({', '.join((JOURNAL, *TABLES))}); "
                "measure with simstrag calibrate"
            )
        path = found
    if not path.exists():
        raise InputError(f"{path}: cannot read the samples: no such file")
    if path.name == JOURNAL:
        return Journal(path.parent).read()
    try:
        header, columns = _from_npz(path) if path.suffix == ".npz" else _from_parquet(path)
        visits = tuple(_visits(header.pop("visits"), columns))
        return Samples(_checked(header), visits)
    except ImportError:
        raise InputError(f"{path}: needs pyarrow to be read; pip install pyarrow") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: is no file of samples: {said}") from None


def write(samples: Samples, folder: Path) -> Path:
    """Write the table, whole or not at all, and take the journal away."""
    header = {
        "format": FORMAT,
        **samples.header,
        "visits": [_line(v, samples=False) for v in samples.visits],
    }
    columns = _columns(samples.visits)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        path, to_file = folder / TABLES[1], _to_npz
    else:
        path, to_file = folder / TABLES[0], _to_parquet
    write_whole(path, lambda part: to_file(part, header, columns))
    (folder / JOURNAL).unlink(missing_ok=True)
    return path


def _line(visit: Visit, samples: bool = True) -> dict[str, Any]:
    line: dict[str, Any] = {
        "cell": visit.cell.changed,
        "number": visit.number,
        "began": visit.began,
        "facts": visit.facts,
    }
    if visit.skipped:
        line["skipped"] = visit.skipped
    return line | ({"samples": visit.samples} if samples else {"names": list(visit.samples)})


def _visit(line: dict[str, Any]) -> Visit:
    named = {name: tuple(map(float, values)) for name, values in line["samples"].items()}
    return Visit(
        Cell(**line["cell"]), line["number"], line["began"], named, line["facts"],
        line.get("skipped", ""),
    )  # fmt: skip


Columns = dict[str, Any]


def _columns(visits: Iterable[Visit]) -> Columns:
    """`visit` and `name` (numbers) and `value`: one row per sample."""
    visit: list[Any] = []
    name: list[Any] = []
    value: list[Any] = []
    for k, each in enumerate(visits):
        for n, values in enumerate(each.samples.values()):
            visit.append(np.full(len(values), k, np.int32))
            name.append(np.full(len(values), n, np.int16))
            value.append(np.array(values, np.float64))
    empty = np.zeros(0)
    return {
        "visit": np.concatenate([*visit, empty.astype(np.int32)]),
        "name": np.concatenate([*name, empty.astype(np.int16)]),
        "value": np.concatenate([*value, empty]),
    }


def _visits(lines: list[dict[str, Any]], columns: Columns) -> Iterable[Visit]:
    starts = np.searchsorted(columns["visit"], np.arange(len(lines) + 1))
    for k, line in enumerate(lines):
        rows = slice(starts[k], starts[k + 1])
        name, value = columns["name"][rows], columns["value"][rows]
        named = {word: value[name == n].tolist() for n, word in enumerate(line["names"])}
        yield _visit({**line, "samples": named})


def _checked(header: Any) -> Header:
    if header["format"] != FORMAT:
        raise ValueError(f"format is {header['format']!r}, not {FORMAT!r}")
    return dict(header)


def _to_parquet(path: Path, header: Header, columns: Columns) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(columns).replace_schema_metadata({"simstrag": json.dumps(header)})
    pq.write_table(table, path, compression="zstd", use_byte_stream_split=["value"],
                   use_dictionary=["visit", "name"])  # fmt: skip


def _from_parquet(path: Path) -> tuple[Header, Columns]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    header = json.loads((table.schema.metadata or {})[b"simstrag"])
    return header, {name: table.column(name).to_numpy() for name in ("visit", "name", "value")}


def _to_npz(path: Path, header: Header, columns: Columns) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, header=np.array(json.dumps(header)), **columns)


def _from_npz(path: Path) -> tuple[Header, Columns]:
    with path.open("rb") as file, np.load(file) as data:
        header = json.loads(str(data["header"]))
        return header, {name: data[name] for name in ("visit", "name", "value")}
