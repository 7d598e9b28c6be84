"""Runs that are kept in a folder as they finish, so that a study goes on where it stopped."""

from __future__ import annotations

import contextlib
import json
import operator
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from simstrag.documents.file_io import path_of, refuse_file, write_atomically
from simstrag.errors import InputError, SimstragError
from simstrag.experiments.cluster_backends import first_line
from simstrag.experiments.runner import program
from simstrag.processes.pool import REASON, Backend, LostCall, compute
from simstrag.rendering import html_fragment
from simstrag.runs.run import provenance

PAUSE = 10.0
"""Least time between two writings of the tables while runs are computed, in seconds."""
SHARE = 20
"""Least time between them, as a multiple of the time that one writing takes."""
LOST = f"what computed it ended each time it was tried: {REASON}"

Report = Callable[[int, int, str], None]
Function = Callable[..., dict[str, Any]]
"""Computes one run on any machine: its summary and all that is kept of it, as JSON."""


class KeyedRun(Protocol):
    """One run of a study.

    key: the file name, a digest of everything that the run depends on.
    """

    @property
    def key(self) -> str: ...


R = TypeVar("R", bound=KeyedRun)
Calls = Callable[[list[R]], Iterable[tuple[R, tuple[Any, ...]]]]
"""The arguments of runs."""


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

    def describe_run(self, run: R) -> str:
        """A run in a line."""
        return str(run)

    def describe_kept(self) -> str:
        """A sentence on the runs that an interrupt leaves."""
        finished = sum(kept["error"] is None for kept in self.outcomes().values())
        return f"{finished} of {len(self.runs)} runs are finished and kept in {self.folder}"

    def compute(
        self, backend: Backend, function: Function, calls: Calls[R], report: Report,
        write_tables: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Compute, keep and report the unfinished runs.

        write_tables: called now and then.

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
        needed = needs()
        given = ((run, (needed, function, *own)) for run, own in calls(missing))
        results = compute(backend, outcome, given)
        next_tables = time.monotonic() + PAUSE
        try:
            while True:
                try:
                    run, result = next(results)
                except StopIteration:
                    return
                except Exception as error:  # of the backend: `outcome` raises nothing
                    kept = f"{self.describe_kept()}; the same command goes on from there"
                    raise SimstragError(f"{first_line(error)}; {kept}") from error
                if isinstance(result, LostCall):
                    result = {"error": LOST, "summary": {}}
                if "other" in result:
                    raise InputError(result["other"])
                self._keep(run, result)
                done += 1
                failed = ", failed" if result["error"] else ""
                report(done, total, f"{self.describe_run(run)}{failed}")
                if write_tables is not None and time.monotonic() > next_tables:
                    start = time.monotonic()
                    write_tables()
                    next_tables = time.monotonic() + max(PAUSE, SHARE * (time.monotonic() - start))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self.describe_kept()) from None

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


@dataclass(frozen=True, slots=True)
class KeptStudy(KeptRuns[R], ABC):
    """A study in its folder: all of its runs, or one shard.

    study: its keys.
    provenance: versions and digests of the program.
    made: `by` and `at`: who began it and when; `job`: the name of the study's file, if it has one.
    """

    study: Mapping[str, Any]
    provenance: Mapping[str, Any]
    made: Mapping[str, str]

    WHAT: ClassVar[str]
    FORMAT: ClassVar[str]
    MARKER: ClassVar[str]
    """The file that lists the runs."""
    TABLES: ClassVar[tuple[str, ...]]
    RUN: ClassVar[type[Any]]

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """From its folder, finished or not.  Raises `InputError` where it holds no such study."""
        folder = path_of(folder, f"a {cls.WHAT}")
        marker = folder / cls.MARKER
        try:
            data = json.loads(marker.read_text(encoding="utf-8"))
            if data.pop("format", None) != cls.FORMAT:
                raise InputError(f"{marker}: not a {cls.WHAT}: its format is not {cls.FORMAT}")
            runs = tuple(cls.RUN(*run) for run in data.pop("runs"))
            for key, value in data.items():
                data[key] = tuple(value) if isinstance(value, list) else value
            return cls(folder=folder, runs=runs, **data)
        except OSError as error:
            raise InputError(f"{folder}: not a {cls.WHAT}: {error.strerror or error}") from None
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{marker}: not a {cls.WHAT}: {error}") from None

    @classmethod
    def check(cls, folder: str | Path, shard: tuple[int, int] | None) -> Path:
        """The folder of a study.  Raises `InputError` for other files there, and no such shard."""
        folder = path_of(folder, f"the folder of a {cls.WHAT}")
        if shard is not None:
            _check_shard(shard)
        refuse_file(folder)
        if folder.exists() and not (folder / cls.MARKER).exists() and any(folder.iterdir()):
            raise InputError(
                f"{folder}: holds other files; choose a folder that does not exist yet"
            )
        return folder

    @classmethod
    def begin(
        cls, folder: Path, runs: Iterable[R], study: Mapping[str, Any], made: Mapping[str, str],
        shard: tuple[int, int] | None = None, **rest: Any,
    ) -> Self:  # fmt: skip
        """Write the list of runs.  Tables and the report of another study in the folder go.

        Warns where a shard has only some of the runs of those before it.
        """
        runs, before = tuple(runs), None
        with contextlib.suppress(InputError):  # no study yet, or what lists its runs is damaged
            before = cls.read(folder)
        known = {run.key for run in before.runs} if before else set()
        keys = {run.key for run in runs}
        if before and known <= keys:
            made = before.made
        else:
            for name in (*cls.TABLES, "report.html"):
                (folder / name).unlink(missing_ok=True)
            if shard is not None and keys < known:
                warnings.warn(
                    f"{folder}: shards before this one are of {len(known)} runs, this one is of "
                    f"{len(keys)}: all shards need the same study and --seeds", stacklevel=2,
                )  # fmt: skip
        text = json.dumps({
            "format": cls.FORMAT, "made": made, "study": study, "provenance": dict(provenance()),
            **rest, "runs": runs,
        }, default=str)  # fmt: skip
        try:
            (folder / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
        write_atomically(folder / cls.MARKER, lambda part: part.write_text(text, encoding="utf-8"))
        return cls.read(folder)

    def compute_shard(
        self, shard: tuple[int, int] | None, backend: Backend, function: Function, calls: Calls[R],
        report: Report,
    ) -> Self:  # fmt: skip
        """Compute the missing runs of a shard; the process that ends the last writes the tables."""
        part = self if shard is None else replace(self, runs=self.runs[shard[0] - 1 :: shard[1]])
        part.compute(backend, function, calls, report, self.write if shard is None else None)
        if self.has_ended:
            self.write()
        return part

    @property
    def has_ended(self) -> bool:
        """Whether every run has ended, finished or failed."""
        return len(self.outcomes()) == len(self.runs)

    @property
    def tables(self) -> list[Path]:
        """The tables that have been written."""
        return [path for name in self.TABLES if (path := self.folder / name).exists()]

    @abstractmethod
    def write(self) -> None:
        """Write the tables of all runs that have ended; each file atomically."""

    def _repr_html_(self) -> str:
        return html_fragment(self)


def _check_shard(shard: Any) -> None:
    """Raise `InputError` where a shard is not (i, k), the i-th of k parts."""
    try:
        i, k = map(operator.index, shard)
    except (TypeError, ValueError):
        form = "give (i, k), such as (1, 16) for the first of 16 parts"
        raise InputError(f"shard {shard!r}: {form}") from None
    if not 1 <= i <= k:
        known = f"must be 1/{k} to {k}/{k}" if k > 0 else "no part"
        raise InputError(f"shard {i}/{k}: {known}")


def needs() -> dict[str, Any]:
    """Versions and digests that must be equal on two machines for equal results."""
    return {name: value for name, value in program().items() if name != "commit"}


def outcome(needed: Mapping[str, Any], function: Function, *arguments: Any) -> dict[str, Any]:
    """What the function returns, its error in words, or how this machine's program differs."""
    for name, version in needs().items():
        if version != needed[name]:
            other = "other sources of simstrag" if name == "sources" else f"{name} {version}"
            here = "" if name == "sources" else f", and {needed[name]} is needed"
            return {"other": f"a worker has {other}{here}: its results would not be the same"}
    try:
        return {"error": None, **function(*arguments)}
    except SimstragError as error:
        return {"error": " ".join(str(error).split()), "summary": {}}
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())
        return {"error": f"{type(error).__name__}: {message}", "summary": {}}
