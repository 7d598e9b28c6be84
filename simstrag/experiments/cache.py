"""Runs of a comparison that are finished, kept on disk until the whole comparison is."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from simstrag import policies
from simstrag.documents.paths import write_atomically
from simstrag.errors import InputError
from simstrag.runs.run import Run, provenance
from simstrag.scenario.scenario import Scenario

__all__ = ["Finished", "Outcome", "Task", "key_of", "origin_of", "program", "source_of"]

NOTE = "finished-runs.txt"
ASKED = ("policies", "seeds")
"""Keys of a scenario that say which runs there are, and nothing of what happens in one."""
SAYS = """\
Finished runs of a comparison that was interrupted. The same command goes on from here, also with
other policies or seeds, as long as all else of the scenario, its trace, its profile and the program
are the same; it removes its runs when it is done.
"""


class Task(NamedTuple):
    """One run of a comparison. variant: contended, clean, or `key=value` of a constant.

    again: other costs of staleness under which it is run again if its gradients are ever stale.
    """

    variant: str
    policy: str
    seed: int
    keep_steps: bool
    again: tuple[float, ...] = ()


class Outcome(NamedTuple):
    """What a comparison keeps of a run.

    row: its summary.  curve: (variant, policy, seed, progress, time).  run: itself, if asked for.
    times: (c_tau, seconds to the target) of each time it was run again.
    """

    row: dict[str, Any]
    curve: list[tuple[str, str, int, float, float]]
    run: Run | None
    times: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Finished:
    """A folder of finished runs, each under a name that says all it hangs on.

    That is its policy and seed, the scenario with its trace and profile, the sources of this
    package and of the policy (of one of yours, its file), and the versions of the libraries: where
    any of them has changed, a run is not found, and is done again. Which other policies and seeds
    were asked for is not among them. The folder comes into being with the first finished run.

    asked: these policies and seeds, as the scenario of each run states them.
    """

    folder: Path
    origin: str
    asked: Mapping[str, Any]

    @classmethod
    def of(cls, folder: str | Path, scenario: Scenario) -> Finished:
        """The finished runs of a comparison. Raises `InputError` for a folder with other things."""
        folder = Path(folder)
        if folder.exists() and not (folder / NOTE).exists() and any(folder.iterdir()):
            raise InputError(
                f"{folder}: finished runs are kept there, but it holds something else; "
                "move it away, or choose another --out"
            )
        declared = scenario.model_dump(mode="json", exclude_unset=True)
        asked = {key: declared[key] for key in ASKED if key in declared}
        return cls(folder, origin_of(scenario), asked)

    def read(self, task: Task) -> Outcome | None:
        """What was kept of a run; None where nothing was, or it cannot be read."""
        place = self._place(task)
        try:
            kept: Mapping[str, Any] = json.loads(place.with_suffix(".json").read_text("utf-8"))
            run = self._asked_now(Run.read(place)) if task.keep_steps else None
        except (OSError, ValueError):
            return None
        curve, times = ([tuple(pair) for pair in kept[name]] for name in ("curve", "times"))
        return Outcome(kept["row"], curve, run, times)

    def _asked_now(self, run: Run) -> Run:
        """A kept run whose scenario states the policies and seeds of this comparison."""
        rest = {key: value for key, value in run.scenario.items() if key not in ASKED}
        return replace(run, scenario={**rest, **self.asked})

    def keep(self, task: Task, outcome: Outcome) -> None:
        """Write a finished run, whole or not at all. Raises `InputError` where that cannot be."""
        place = self._place(task)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(self.folder / NOTE, SAYS)
            self._own.mkdir(exist_ok=True)
            if outcome.run is not None:
                outcome.run.write(place)
            kept = {"row": outcome.row, "curve": outcome.curve, "times": outcome.times}
            _write(place.with_suffix(".json"), json.dumps(kept))
        except OSError as error:
            raise InputError(f"{place}: cannot be written: {error.strerror or error}") from None

    def count(self, tasks: Iterable[Task]) -> int:
        """How many of `tasks` are kept."""
        return sum(self._place(task).with_suffix(".json").exists() for task in tasks)

    def _place(self, task: Task) -> Path:
        source = source_of(task.policy)
        return self._own / key_of(self.origin, task.variant, task.policy, task.seed, source)

    @property
    def _own(self) -> Path:
        """Where the runs of this scenario are; the folder may hold those of others."""
        return self.folder / self.origin[:16]

    def forget(self) -> None:
        """Remove all runs of this scenario, and the folder unless it holds those of others.

        That includes those of policies and seeds that are not asked for any more.
        """
        shutil.rmtree(self._own, ignore_errors=True)
        if self.folder.exists() and {entry.name for entry in self.folder.iterdir()} <= {NOTE}:
            shutil.rmtree(self.folder, ignore_errors=True)


def origin_of(scenario: Scenario) -> str:
    """A digest of what all runs under a scenario hang on, whichever policies and seeds it names."""
    declared = scenario.model_dump(mode="json", exclude_unset=True)
    given = (scenario.inputs.trace, scenario.inputs.profile)
    return _digest([
        {key: value for key, value in declared.items() if key not in ASKED},
        [None if file is None else file.sha256 for file in given],
        dict(program()),
    ])  # fmt: skip


def key_of(origin: str, variant: str, policy: str, seed: int, source: str | None) -> str:
    """The name of one run. source: of its policy, as `source_of` tells it."""
    return _digest([origin, variant, policy, seed, source])[:24]


def source_of(policy: str) -> str | None:
    """A digest of the file of a policy as it is now; None for one that has none."""
    source = inspect.getsourcefile(type(policies.load(policy)))
    return None if source is None else _of_file(Path(source))


@functools.cache
def program() -> Mapping[str, Any]:
    """What computes: versions and commit as a run states them, and a digest of this package.

    >>> {"simstrag", "numpy", "commit", "sources"} <= program().keys()
    True
    """
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    return {**provenance(), "sources": _digest([_of_file(path) for path in sources])}


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
