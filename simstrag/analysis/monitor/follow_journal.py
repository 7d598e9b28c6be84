"""Follows the journal of a run of `wrap` or `simstrag ddp`, which its lowest rank writes."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.analysis.monitor.follow import PIECE, RankProgress
from simstrag.ddp.journal.journal import NAME
from simstrag.ddp.journal.run_from_journal import part_folders
from simstrag.records.record import ALL_REDUCE, COMPUTE, Record, assumed_gpus

FORM = "a run that is recorded"
Step = tuple[float, list[float], float]
"""Its begin, the seconds that each rank computes, and its end."""


class JournalFollower:
    """Follows the latest start of a run.

    Under a server ranks do not step together: their k-th steps are one row of the picture, and what
    waiting cost is not known before the run has ended.  A run may change to a server and back.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.source = folder, str(folder)
        self.restarts, self.problems = 0, list[str]()
        self._part: Path | None = None
        self._begin()

    @staticmethod
    def recognise(folder: Path) -> bool:
        """Whether a folder is that of a run."""
        return bool(part_folders(folder))

    def _begin(self) -> None:
        self.is_over, self.is_synced, self._policy = False, True, ""
        self._rest, self._read, self._size, self._written = b"", 0, 0, 0.0
        self._lines, self._unread = deque[bytes](), list[str]()
        self._steps, self._own = list[Step](), list[list[float]]()
        self._gone: dict[int, float] = {}
        self._count, self._end, self._ranks = 0, 0.0, 0

    def piece(self) -> Record | None:
        """The next steps that all ranks have; None where there are none yet."""
        self._look()
        if self._part is not None and self._read < self._size:
            with (self._part / NAME).open("rb") as file:
                file.seek(self._read)
                data = file.read(PIECE)
            self._read += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)
        while self._lines:
            if self._lines[0].startswith(b'["done"' if self.is_synced else b'["lockstep"'):
                found = self._synced(are_over=True) if self.is_synced else self._private()
                self.is_synced = not self.is_synced
                self._own = [[] for _ in range(self._ranks)]
                if found is not None:
                    return found
            self._take_or_say(self._lines.popleft())
        return self._synced(self.is_over) if self.is_synced else self._private()

    def _look(self) -> None:
        """Find the latest start, and what is wrong with its journal."""
        self.problems = self._unread + [
            f"rank {rank} is gone since second {at:.0f} of the run"
            for rank, at in sorted(self._gone.items())
        ]
        parts = part_folders(self._folder)
        if not parts:
            self.problems.append(f"{self._part or self._folder} is gone; what it said is kept")
            self._size = self._read
            return
        path = parts[-1] / NAME
        found = path.stat()
        if parts[-1] != self._part or found.st_size < self._size:
            if self._part is not None:
                self.restarts += 1
                self.problems.append(f"the run began anew in {parts[-1]}: numbers are of that")
            self._part = parts[-1]
            self._begin()
        self._size, self._written = found.st_size, found.st_mtime

    def _take_or_say(self, line: bytes) -> None:
        """Take in one line, or say once that lines are left out."""
        try:
            self._take(line)
        except (ValueError, TypeError, LookupError):
            self._unread = [f"{self._part}/{NAME}: lines that are none of a journal are left out"]
            self.problems += [text for text in self._unread if text not in self.problems]

    def _take(self, line: bytes) -> None:
        """Take in one line. Raises errors of Python where it is none of a journal."""
        kind, *values = json.loads(line)
        if kind == "header":
            self._ranks, self._policy = int(values[0]["world_size"]), str(values[0]["policy"])
            self._own = [[] for _ in range(self._ranks)]
        elif kind == "lockstep":
            start, seconds, end = values
            if len(seconds) != self._ranks:
                raise ValueError(seconds)
            begin = max(start, self._end)
            self._end = max(end or 0.0, begin + max(seconds))
            self._steps.append((begin, seconds, self._end))
        elif kind == "done":
            self._own[values[1]].append(float(values[2]))
        elif kind == "gone":
            self._gone[values[1]] = values[0]
        elif kind == "end":
            self.is_over = True

    def _synced(self, are_over: bool) -> Record | None:
        """Steps of which the next has begun, which ends them.

        are_over: whether the last one is over too, as the run is or changes to a server.
        """
        count = len(self._steps) - (not are_over)
        if count <= 0:
            return None
        steps, begins = self._steps[:count], [each[0] for each in self._steps]
        begin, seconds, end = (np.array(column) for column in zip(*steps, strict=True))
        follows = np.append(begins[1 : count + 1], end[-1])[:count]
        del self._steps[:count]
        return self._record(
            {COMPUTE: seconds, ALL_REDUCE: (end - begin)[:, None] - seconds},
            step_seconds=follows - begin,
        )

    def _private(self) -> Record | None:
        """The k-th steps of all ranks, whenever they were."""
        count = min(map(len, self._own), default=0)
        if not count:
            return None
        seconds = np.array([own[:count] for own in self._own]).T
        for own in self._own:
            del own[:count]
        return self._record({COMPUTE: seconds}, is_timed=False)

    def _record(self, parts: dict[str, Any], **more: Any) -> Record:
        steps = np.arange(self._count, self._count + len(parts[COMPUTE]))
        self._count += len(steps)
        return Record.of_ranks(
            steps, np.arange(self._ranks), parts, self.source, FORM,
            notes=(f"Measured: under {self._policy}.", assumed_gpus(self._ranks)), **more,
        )  # fmt: skip

    def progress(self) -> dict[int, RankProgress]:
        """How far each rank has come; ranks in step write by the hand of the lowest one."""
        newest = self._count + len(self._steps) - 1
        return {
            rank: RankProgress(newest + len(own), self._written, bool(self._rest))
            for rank, own in enumerate(self._own)
        }

    @property
    def share(self) -> float:
        """Share of the bytes that are read."""
        waiting = sum(len(line) + 1 for line in self._lines)
        return (self._read - waiting) / self._size if self._size else 1.0
