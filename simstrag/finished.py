"""Runs of a comparison that are finished, kept on disk until the whole comparison is."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simstrag import policies
from simstrag.errors import InputError
from simstrag.run import Run, provenance
from simstrag.scenario import Scenario

__all__ = ["Finished", "Outcome", "Task"]

NOTE = "finished-runs.txt"
SAYS = """\
Finished runs of a comparison that was interrupted. The same command goes on from here, as long as
scenario, trace, profile and program are the same, and removes its runs when it is done.
"""


class Task(NamedTuple):
    """One run of a comparison. variant: contended, clean, or a c_tau."""

    variant: str | float
    policy: str
    seed: int
    keep_steps: bool


class Outcome(NamedTuple):
    """What a comparison keeps of a run.

    row: its summary.  curve: (variant, policy, seed, progress, time).  run: itself, if asked for.
    """

    row: dict[str, Any]
    curve: list[tuple[str, str, int, float, float]]
    run: Run | None


@dataclass(frozen=True, slots=True)
class Finished:
    """A folder of finished runs, each under a name that says all it hangs on.

    That is the scenario with its trace and profile, the sources of this package and of the policy
    (of one of yours, its file), and the versions of the libraries: where any of them has changed, a
    run is not found, and is done again. The folder comes into being with the first finished run.
    """

    folder: Path
    origin: str

    @classmethod
    def of(cls, folder: str | Path, scenario: Scenario) -> Finished:
        """The finished runs of a comparison. Raises `InputError` for a folder with other things."""
        folder = Path(folder)
        if folder.exists() and not (folder / NOTE).exists():
            raise InputError(
                f"{folder}: finished runs are kept there, but it holds something else; "
                "move it away, or choose another --out"
            )
        given = (scenario.inputs.trace, scenario.inputs.profile)
        parts = [
            scenario.model_dump(mode="json", exclude_unset=True),
            [None if file is None else file.sha256 for file in given],
            dict(provenance()),
            [_of_file(path) for path in sorted(Path(__file__).parent.rglob("*.py"))],
        ]
        return cls(folder, _digest(parts))

    def read(self, task: Task) -> Outcome | None:
        """What was kept of a run; None where nothing was, or it cannot be read."""
        place = self._place(task)
        try:
            kept: Mapping[str, Any] = json.loads(place.with_suffix(".json").read_text("utf-8"))
            run = Run.read(place) if task.keep_steps else None
        except (OSError, ValueError):
            return None
        return Outcome(kept["row"], [tuple(point) for point in kept["curve"]], run)

    def keep(self, task: Task, outcome: Outcome) -> None:
        """Write a finished run, whole or not at all. Raises `InputError` where that cannot be."""
        place = self._place(task)
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            _write(self.folder / NOTE, SAYS)
            if outcome.run is not None:
                outcome.run.write(place)
            kept = {"row": outcome.row, "curve": outcome.curve}
            _write(place.with_suffix(".json"), json.dumps(kept))
        except OSError as error:
            raise InputError(f"{place}: cannot be written: {error.strerror or error}") from None

    def count(self, tasks: Iterable[Task]) -> int:
        """How many of `tasks` are kept."""
        return sum(self._place(task).with_suffix(".json").exists() for task in tasks)

    def _place(self, task: Task) -> Path:
        source = inspect.getsourcefile(type(policies.load(task.policy)))
        digest = _digest([self.origin, *task, None if source is None else _of_file(Path(source))])
        return self._own / digest[:24]

    @property
    def _own(self) -> Path:
        """Where the runs of this comparison are; the folder may hold those of others."""
        return self.folder / self.origin[:16]

    def forget(self) -> None:
        """Remove the runs of this comparison, and the folder unless it holds those of others."""
        shutil.rmtree(self._own, ignore_errors=True)
        if self.folder.exists() and {entry.name for entry in self.folder.iterdir()} <= {NOTE}:
            shutil.rmtree(self.folder, ignore_errors=True)


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, text: str) -> None:
    """In one move, so that nobody ever finds half of it."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
