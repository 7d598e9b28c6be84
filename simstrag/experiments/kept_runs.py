"""Runs that are kept in a folder as they finish, so that a study goes on where it stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from simstrag.documents.file_io import write_atomically
from simstrag.errors import InputError, SimstragError
from simstrag.experiments.cluster_backends import first_line
from simstrag.experiments.runner import program
from simstrag.processes.pool import REASON, Backend, LostCall, compute

PAUSE = 10.0
"""Least time between two writings of the tables while runs are computed, in seconds."""
SHARE = 20
"""Least time between them, as a multiple of the time that one writing takes."""
LOST = f"what computed it ended each time it was tried: {REASON}"

Report = Callable[[int, int, str], None]


class KeyedRun(Protocol):
    """One run of a study.

    key: the file name, a digest of everything that the run depends on.
    """

    @property
    def key(self) -> str: ...


R = TypeVar("R", bound=KeyedRun)


@dataclass(frozen=True, slots=True)
class KeptRuns(Generic[R]):
    """The runs of a study in its folder, finished or not, in the order of the study."""

    folder: Path
    runs: tuple[R, ...]

    def outcomes(self) -> dict[R, Mapping[str, Any]]:
        """What is kept of each run that has ended; `error` is None where it is finished.

        A run whose file cannot be read counts as not yet run.
        """
        files = ((run, self._read(run)) for run in self.runs)
        return {run: kept for run, kept in files if kept is not None}

    @property
    def failed(self) -> dict[R, str]:
        """The error of each run that failed."""
        return {run: kept["error"] for run, kept in self.outcomes().items() if kept["error"]}

    def describe(self) -> str:
        """A sentence on the runs that an interrupt leaves."""
        finished = sum(kept["error"] is None for kept in self.outcomes().values())
        return f"{finished} of {len(self.runs)} runs are finished and kept in {self.folder}"

    def compute(
        self,
        backend: Backend,
        function: Callable[..., dict[str, Any]],
        calls: Callable[[list[R]], Iterable[tuple[R, tuple[Any, ...]]]],
        report: Report,
        describe: Callable[[R], str],
        write_tables: Callable[[], None] | None,
    ) -> None:
        """Compute, keep and report the unfinished runs.

        function: makes a run's outcome from its arguments, the last of which is `needs()`.
        calls: the arguments of runs.  write_tables: called now and then.

        A `KeyboardInterrupt` says how many runs are finished.  Raises `InputError` where a worker
        has another program, `SimstragError` where the backend fails.
        """
        finished = {run for run, kept in self.outcomes().items() if kept["error"] is None}
        missing = [run for run in self.runs if run not in finished]
        done, total = len(finished), len(self.runs)
        if finished:
            report(done, total, "found finished")
        if not missing:
            return
        results = compute(backend, function, calls(missing))
        next_tables = time.monotonic() + PAUSE
        try:
            while True:
                try:
                    run, outcome = next(results)
                except StopIteration:
                    return
                except Exception as error:  # of the backend: `function` raises nothing
                    kept = f"{self.describe()}; the same command goes on from there"
                    raise SimstragError(f"{first_line(error)}; {kept}") from error
                if isinstance(outcome, LostCall):
                    outcome = {"error": LOST, "summary": {}}
                if "other" in outcome:
                    raise InputError(outcome["other"])
                self._keep(run, outcome)
                done += 1
                failed = ", failed" if outcome["error"] else ""
                report(done, total, f"{describe(run)}{failed}")
                if write_tables is not None and time.monotonic() > next_tables:
                    start = time.monotonic()
                    write_tables()
                    next_tables = time.monotonic() + max(PAUSE, SHARE * (time.monotonic() - start))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self.describe()) from None

    def _place(self, run: R) -> Path:
        return self.folder / "runs" / f"{run.key}.json"

    def _read(self, run: R) -> dict[str, Any] | None:
        try:
            kept = json.loads(self._place(run).read_text(encoding="utf-8"))
            return {"warnings": [], **kept, "error": kept["error"], "summary": kept["summary"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, run: R, outcome: Mapping[str, Any]) -> None:
        """Write the result of a run to its file, atomically."""
        text = json.dumps(outcome, indent=1)
        write_atomically(self._place(run), lambda part: part.write_text(text, encoding="utf-8"))


def needs() -> dict[str, Any]:
    """Versions and digests that must be equal on two machines for equal results."""
    return {name: value for name, value in program().items() if name != "commit"}


def outcome(needed: Mapping[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `run` returns, its error in words, or how this machine's program differs."""
    for name, version in needs().items():
        if version != needed[name]:
            other = "other sources of simstrag" if name == "sources" else f"{name} {version}"
            here = "" if name == "sources" else f", and {needed[name]} is needed"
            return {"other": f"a worker has {other}{here}: its results would not be the same"}
    try:
        return {"error": None, **run()}
    except SimstragError as error:
        return {"error": " ".join(str(error).split()), "summary": {}}
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        return {"error": f"{type(error).__name__}: {message}", "summary": {}}
