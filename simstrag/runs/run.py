"""Runs: what happened under one scenario, policy and seed, and how to make it happen again."""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.documents.file_io import path_of
from simstrag.errors import InputError
from simstrag.runs.tables import RunTable, frame, read_table, write_table

if TYPE_CHECKING:
    import pandas as pd

RUN = (
    "run.json", "*.parquet", "report.html", "journal.jsonl", "result.json", "checkpoint.pt",
    "checkpoint.part", "trace.csv", "training.json", "load.json", "attempt-*", "generation-*",
)  # fmt: skip
OWN = {
    "run.json": RUN,
    "training.json": RUN,  # of a real run that may not have come to an end
    "comparison.csv": (
        "comparison.csv", "controls.csv", "ranking.csv", "sensitivity.csv", "curves.csv",
        "thresholds.csv", "extremes.csv", "waiting.csv", "evaluations.csv", "examples",
        "examples.json",
        "report.html", "scenario.yaml", "trace.*", "profile.json", "origin.txt", "made.json",
        "advice.json",
    ),
    "diagnosis.json": (
        "diagnosis.json", "report.html", "scenario.yaml", "scenario-host.yaml", "trace.csv",
        "trace.md",
    ),
    "timeouts.json": ("timeouts.json", "report.html"),
}  # fmt: skip
"""By marker: patterns of the files that are written with it into a folder."""

FORMAT = "simstrag-run/1"
TABLES = ("updates", "steps", "gradients", "decisions", "evaluations")
REQUIRED = ("policy", "seed", "scenario", "provenance", "summary", "warnings")
"""Keys of `run.json`."""
OPTIONAL = ("excerpt", "recorded")
"""Keys of `run.json` that are left out where they are None."""
UNITS = {
    "makespan": "s", "time_to_target": "s", "progress": "noise-free updates",
    "mean_staleness": "updates", "staleness_by_rank": "updates",
    "effective_staleness": "gradients (S_stale/b)", "started": "gradients",
    "applied": "gradients", "dropped": "gradients", "aborted": "gradients",
    "in_flight": "gradients", "throughput": "samples/s", "goodput": "samples/s",
    "efficiency": "share", "amp_share": "share", "rebatched_share": "share", "cut_share": "share",
    "compute_by_rank": "s", "communication_by_rank": "s", "wait_by_rank": "s",
    "beyond_trace": "share", "detection_precision": "share", "detection_recall": "share",
    "hits": "ranks at updates", "false_alarms": "ranks at updates", "misses": "ranks at updates",
    "theta": "s", "diverged": "s", "useful_throughput": "samples/s", "down_seconds": "s",
    "lost_samples": "samples", "lost_updates": "updates", "noise_scale": "samples",
    "noise_scale_low": "samples", "noise_scale_high": "samples",
}  # fmt: skip
"""The unit of each number of a summary whose name does not say it."""
OF_FORMULA = ("progress", "progress_unknown", "goodput", "efficiency")
"""Numbers of a summary by the noise-scale formula, which are None of a real learner."""


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """One simulated or recorded run.

    policy: as it was requested.
    scenario: as declared.
    summary: see `simstrag.engine.summary`.
    updates: time (s), version, members, n_own, samples (so far), staleness_mean, staleness_max,
        progress.
    steps: rank, step, version, precision, start, finish, wait, communication (s).
    gradients: update, rank, step, version pulled, precision, samples, weight, fate.
    decisions: a row for the first plan, and for each that decides otherwise than the one before:
        update and time (s) at which it came into force, suspects (None: it judges no rank), amp
        (ranks), way, groups, batch (shares; None: equal).  None where an older version wrote the
        run.
    evaluations: of a real learner: time (s), updates, samples, accuracy, loss; else None.
    excerpt: None if all steps and updates are kept.  Else `ranks` whose steps are kept; `period`
        and `window` (s; None: all time): only steps, updates and decisions in the first `window` of
        each `period` are kept, the decision in force before, and updates evenly spread; and seconds
        of all steps: `full_by_rank`, `amp_by_rank`, and `lost_by_rank` if the gradient was lost.
    recorded: what the record of a real run states, such as precision and clock; else None.

    Tables map names to columns, which equal lists of their values: `run.updates["time"][-1]`.
    `run.updates.frame()` is a DataFrame.
    """

    policy: str
    seed: int
    scenario: Mapping[str, Any]
    summary: Mapping[str, Any]
    provenance: Mapping[str, Any]
    updates: RunTable
    steps: RunTable | None = None
    gradients: RunTable | None = None
    decisions: RunTable | None = None
    evaluations: RunTable | None = None
    warnings: tuple[str, ...] = field(default=())
    excerpt: Mapping[str, Any] | None = None
    recorded: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        tables = ", ".join(name for name in TABLES if getattr(self, name) is not None)
        return f"<Run: {self.policy}, seed {self.seed}; summary, and tables {tables}>"

    @property
    def scalars(self) -> dict[str, Any]:
        """The values of the summary that are no lists, in JSON's own types."""
        return {k: v for k, v in plain(self.summary).items() if not isinstance(v, list)}

    def frame(self, table: str = "updates") -> pd.DataFrame:
        """A table as a DataFrame: a name of `TABLES`; units in `.attrs`.

        Raises `InputError` for a table that the run did not keep.
        """
        columns = getattr(self, table) if table in TABLES else None
        if columns is None:
            way_out = "ask for it when it is simulated"
            if table == "decisions":
                way_out = "an older version wrote it; simulate it again"
            raise InputError(f"this run kept no table '{table}'; {way_out}")
        return frame(columns)

    def _repr_html_(self) -> str:
        import pandas as pd

        scalars = {k: v for k, v in self.summary.items() if not isinstance(v, list)}
        column = pd.Series(scalars, dtype=object, name=f"{self.policy}, seed {self.seed}")
        return str(column.to_frame().to_html(float_format="{:.6g}".format))

    def to_json(self) -> str:
        """The contents of `run.json`."""
        optional = {name: getattr(self, name) for name in OPTIONAL}
        document = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in REQUIRED},
            **{name: value for name, value in optional.items() if value is not None},
        }
        return json.dumps(plain(document), indent=2)

    def write(self, folder: str | Path) -> Path:
        """Write the run directory, whole or not at all; replaces an earlier run there.

        Raises `InputError` where the folder holds something else or cannot be written.
        """

        def fill(target: Path) -> None:
            self.note(target)
            for table in TABLES:
                columns = getattr(self, table)
                if columns is not None:
                    write_table(target, table, columns)

        return write_directory(path_of(folder, "a folder to write"), "run.json", fill)

    def note(self, folder: Path) -> None:
        """Write its `run.json`."""
        (folder / "run.json").write_text(self.to_json() + "\n", encoding="utf-8")

    def at(self, folder: Path) -> Run:
        """The run with the tables of a run directory."""
        tables: dict[str, Any] = {table: read_table(folder, table) for table in TABLES}
        return replace(self, **tables)

    @classmethod
    def read(cls, folder: str | Path) -> Run:
        """From a run directory; a column is read when it is first used.

        Raises `InputError` where the folder is no run directory.
        """
        folder = path_of(folder, "a run directory")
        try:
            data = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise InputError(f"{folder / 'run.json'}: not a run: its format is not {FORMAT}")
            given = {name: data[name] for name in REQUIRED}
            tables: dict[str, Any] = {table: read_table(folder, table) for table in TABLES}
        except KeyError as error:
            raise InputError(f"{folder / 'run.json'}: not a run: it has no {error}") from None
        except OSError as error:
            raise InputError(f"{folder}: not a run directory: {error.strerror or error}") from None
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            reason = str(error).splitlines()[0]
            raise InputError(f"{folder}: not a run directory: {reason}") from None
        if tables["updates"] is None:
            raise InputError(f"{folder}: not a run directory: updates.parquet is missing")
        given |= {
            "warnings": tuple(data["warnings"]),
            **{name: data.get(name) for name in OPTIONAL},
        }
        return cls(**given, **tables)


def check_directory(folder: Path, marker: str) -> None:
    """Refuse a folder that `write_directory` could not write, before the work is done.

    Raises `InputError` where it is a file, holds other things than `marker`, or is locked.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; choose a folder that does not exist yet")
        if folder.resolve() == Path.cwd():
            raise InputError(f"{folder}: is the working directory; choose a folder in it")
        if folder.exists():
            _check_contents(folder, marker)
        place = folder.absolute().parent
        while not place.exists():
            place = place.parent
        if not place.is_dir() or not os.access(place, os.W_OK):
            raise InputError(f"{folder}: cannot be written: {place} is not a writable folder")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _check_contents(folder: Path, marker: str) -> None:
    """Refuse to replace files that `write_directory` did not write."""
    names = sorted(entry.name for entry in folder.iterdir())
    if names and marker not in names:
        raise InputError(f"{folder}: holds other files; choose a folder that does not exist yet")
    own = OWN.get(marker, (marker,))
    others = [name for name in names if not any(fnmatch(name, pattern) for pattern in own)]
    if others:
        raise InputError(
            f"{folder}: holds files that would be lost ({', '.join(others[:3])}); move them, or "
            "choose a folder that does not exist yet"
        )


def write_directory(folder: Path, marker: str, fill: Any) -> Path:
    """Let `fill(temporary folder)` write, then put it in the place of `folder` in one move.

    An existing folder is replaced only if it is empty, or holds the file `marker` and nothing that
    is not written with it. A link to a folder stays one.
    """
    check_directory(folder, marker)
    asked, folder = folder, folder.resolve() if folder.is_symlink() else folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    replaced = temporary.with_name(f"{temporary.name}.replaced")
    try:
        os.chmod(temporary, 0o755)
        fill(temporary)
        if folder.exists():
            folder.rename(replaced)
        temporary.rename(folder)
    except OSError as error:
        if replaced.exists():
            replaced.rename(folder)
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)
    return asked


@functools.cache
def provenance() -> Mapping[str, Any]:
    """Versions of the program and its libraries, and the commit of a source tree."""
    packages = ("numpy", "simpy", "pandas", "pyarrow")
    return {
        "simstrag": metadata.version("simstrag"),
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def _commit() -> str | None:
    """The commit this code was checked out from, with `+` where it was changed since."""
    folder = Path(__file__).parent
    try:
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)  # not a user's repository
        head = _git(folder, "log", "-1", "--format=%H")
        changed = _git(folder, "status", "--porcelain", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    answer = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
    )
    return answer.stdout.strip()


def plain(value: Any) -> Any:
    """JSON's own types: numpy numbers become Python's, NaN and infinities null, paths strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
