"""Follows the growing files of a record: pieces of whole steps, and which rank has written what.

It only reads, so any number of watchers may follow one run.  A piece ends with the last step that
every rank has; the rest stays for the next piece.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from simstrag.errors import InputError
from simstrag.records.record import Record
from simstrag.records.recorded_rows import RankRows, read_rows
from simstrag.records.steps import absent_ranks, rank_files, world_size

PIECE = 8 << 20
"""Most bytes of all ranks that one piece has, so that a late watcher catches up bit by bit."""
TAIL = 4096
"""Bytes at the end of a file in which its newest step stands."""


class RankProgress(NamedTuple):
    """The progress of one rank's file.

    step: the newest step in it; -1 without one.
    written: when it grew last, in seconds since 1970.
    torn: whether it ends within a line.
    """

    step: int
    written: float
    torn: bool


class Follower(Protocol):
    """Follows the files of one run.

    source: folder or folders, as they were given.
    restarts: how often reading began anew, because files were replaced or ranks came.
    problems: what is wrong with files now, one sentence each.
    is_over: whether the files say that the run has ended.
    is_synced: whether ranks wait for each other in every step.
    """

    source: str
    restarts: int
    problems: list[str]
    is_over: bool
    is_synced: bool

    def piece(self) -> Record | None:
        """The next steps that all ranks have; None where there are none yet."""

    def progress(self) -> dict[int, RankProgress]:
        """The progress of each rank's file, by rank."""

    @property
    def share(self) -> float:
        """Share of what was written that is read."""


@dataclass
class _RankFile:
    """The file of a rank, as far as it was read.

    begin: its first bytes, by which another file in its place is known.
    usual: rows of the last step that was cut off; 0 before.
    """

    path: Path
    rank: int
    begin: bytes = b""
    usual: int = 0
    header: bytes = b""
    rest: bytes = b""
    read: int = 0
    size: int = 0
    progress: RankProgress = field(default_factory=lambda: RankProgress(-1, 0.0, False))

    def look(self) -> bool:
        """Look how far the file has come; returns whether it is another one than before."""
        found = self.path.stat()
        if found.st_size < self.size:
            return True
        if found.st_size > self.size or not self.progress.written:
            with self.path.open("rb") as file:
                begin = file.read(TAIL)
            if not begin.startswith(self.begin):
                return True
            self.begin = begin
            end = self._end(found.st_size)
            lines = end.split(b"\n")
            cells = lines[-2].split(b",") if len(lines) > 1 else []
            step = int(cells[1]) if len(cells) > 3 and cells[1].isdigit() else self.progress.step
            self.size = found.st_size
            self.progress = RankProgress(step, found.st_mtime, bool(lines[-1]))
        return False

    def _end(self, size: int) -> bytes:
        if self.path.suffix == ".gz":
            return gzip.decompress(self.path.read_bytes())[-TAIL:]
        with self.path.open("rb") as file:
            file.seek(max(0, size - TAIL))
            return file.read(TAIL)

    def fill(self, most: int) -> None:
        """Read on, until so many bytes are here, or as many more as one whole step has."""
        if self.path.suffix == ".gz":
            if not self.read:
                self.rest, self.read = gzip.decompress(self.path.read_bytes()), self.size
        elif self.read < self.size and len(self.rest) < most:
            with self.path.open("rb") as file:
                file.seek(self.read)
                data = file.read(min(self.size - self.read, most - len(self.rest)))
            self.rest, self.read = self.rest + data, self.read + len(data)
            if not data:  # it became shorter just now
                return
        if not self.header and b"\n" in self.rest:
            self.header, _, self.rest = self.rest.partition(b"\n")
            self.header += b"\n"
        if self.read < self.size and self.last_whole() < 0:
            self.fill(2 * max(most, len(self.rest)))

    def last_whole(self) -> int:
        """The last step here of which all rows are here; -1 without one.

        It has as many rows as the one before it, or rows of another step below it.
        """
        found = _step_ends(self.rest[: self.rest.rfind(b"\n") + 1])
        if not found:
            return -1
        (before, usual), (last, count) = [(-1, self.usual), *found][-2:]
        return last if count == usual else before

    def take(self, last: int) -> bytes:
        """Cut off the rows up to a step, which is not the last one here or is whole."""
        end = self.rest.rfind(b"\n") + 1
        low, high = 0, end  # rows before `low` are of steps up to `last`, those from `high` on not
        while low < high:
            middle = self.rest.rfind(b"\n", 0, (low + high) // 2) + 1
            middle = max(middle, low)
            stop = self.rest.find(b"\n", middle) + 1
            if _step_of(self.rest[middle:stop]) <= last:
                low = stop
            else:
                high = middle
        rows, self.rest = self.rest[:low], self.rest[low:]
        if rows:
            self.usual = _step_ends(rows)[-1][1]
        return rows


def _step_of(line: bytes) -> int:
    cells = line.split(b",", 2)
    return int(cells[1]) if len(cells) > 2 and cells[1].strip().isdigit() else -1


def _step_ends(lines: bytes) -> list[tuple[int, int]]:
    """The last two steps of lines and how many rows they have, in order."""
    found: list[tuple[int, int]] = []
    end = len(lines)
    while end > 0:
        begin = lines.rfind(b"\n", 0, end - 1) + 1
        step = _step_of(lines[begin:end])
        if not found or found[-1][0] != step:
            if len(found) == 2:
                break
            found.append((step, 0))
        found[-1] = step, found[-1][1] + 1
        end = begin
    return found[::-1]


class RecordFollower:
    """Follows the files of `simstrag.ddp.record`, in the folders of all hosts of a job."""

    is_over = False
    is_synced = True

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(folders)
        self.source = " and ".join(map(str, folders))
        self.restarts, self.problems = 0, list[str]()
        self._files: dict[int, _RankFile] = {}
        self._unread: list[str] = []

    def piece(self) -> Record | None:
        """The next steps that all ranks have; None where there are none yet."""
        self._look()
        files = list(self._files.values())
        most = max(1, PIECE // max(1, len(files)))
        for each in files:
            try:
                each.fill(most)
            except (OSError, EOFError):  # gone, or half copied; `_look` has said so
                continue
        last = min((each.last_whole() for each in files), default=-1)
        if last < 0:
            return None
        rows = {each.path: RankRows(each.header, each.take(last)) for each in files}
        try:
            return read_rows(rows) if all(each.rows for each in rows.values()) else None
        except InputError as error:
            self._unread.append(f"steps up to {last} are left out: {error}")
            self.problems.append(self._unread[-1])
            return None

    def progress(self) -> dict[int, RankProgress]:
        """The progress of each rank's file, by rank."""
        return {rank: each.progress for rank, each in sorted(self._files.items())}

    @property
    def share(self) -> float:
        """Share of the bytes that are read."""
        files = self._files.values()
        size = sum(each.size for each in files)
        return 1.0 if not size else sum(each.read for each in files) / size

    def _look(self) -> None:
        """Find new files, and what is wrong with known ones."""
        self.problems = list(self._unread)
        found = dict(self._ranks())
        anew = bool(self._files) and bool(found.keys() - self._files.keys())
        for rank, path in found.items():
            if anew or rank not in self._files:
                self._files[rank] = _RankFile(path, rank)
        for each in self._files.values():
            try:
                if each.look():
                    self.problems.append(f"{each.path} was replaced or cut: the run is read anew")
                    anew = True
            except (OSError, EOFError):
                self.problems.append(f"{each.path} is gone; what it said is kept")
        if anew:
            self._begin_anew()
        if found:
            size = max((world_size(folder) for folder in self._folders), default=0)
            self.problems += absent_ranks(sorted(self._files), size)

    def _begin_anew(self) -> None:
        self.restarts += 1
        self._unread.clear()
        for rank, each in list(self._files.items()):
            fresh = self._files[rank] = _RankFile(each.path, rank)
            try:
                fresh.look()
            except (OSError, EOFError):
                del self._files[rank]

    def _ranks(self) -> Iterator[tuple[int, Path]]:
        """The number of each file's rank. Raises `InputError` where two are of one rank."""
        known: dict[int, Path] = {}
        for path in (path for folder in self._folders for path in rank_files(folder)):
            digits = path.name.partition(".")[0].removeprefix("rank-")
            if not digits.isdigit():
                continue
            rank = int(digits)
            if rank in known:
                raise InputError(
                    f"{path}: is of rank {rank}, as {known[rank]} is; give the folders of one "
                    "start of one job"
                )
            known[rank] = path
            yield rank, path
