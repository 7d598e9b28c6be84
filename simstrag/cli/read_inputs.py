"""The files that a command line names: scenarios, traces, folders of comparisons."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from simstrag.documents.file_io import require_path
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.scenario.scenario import Scenario

TRACES, SCENARIOS = (".csv", ".parquet"), (".yaml", ".yml")
"""File names of traces and of scenarios, which users mix up."""
LOGS = (*TRACES, ".json", ".jsonl", ".gz")
"""File names of logs that can be imported."""


def read_scenario(path: Path) -> Scenario:
    """The scenario in a file; its folder is searched for `module:Class` policies from then on.

    Raises `InputError`; for a missing file it has the nearest existing name.
    """
    from simstrag.scenario.scenario import Scenario

    if path.is_dir() and (path / "scenario.yaml").exists():
        raise InputError(f"{path}: is a folder; give {path / 'scenario.yaml'}")
    if path.suffix in LOGS:
        check_trace(path)
    if path.suffix in TRACES:
        raise InputError(
            f"{path}: is a trace by its name; `simstrag init {path}` writes a scenario for it"
        )
    sys.path.append(str(path.absolute().parent))
    return Scenario.read(path)


def check_trace(path: Path) -> Path:
    """The path of a trace. Raises `InputError` if it is missing, a scenario or a log."""
    log = find_import(path)
    if log is not None:
        name, command = log
        raise InputError(f"{path}: is a log in format {name} and no trace; make one: {command}")
    return path


def find_import(path: Path) -> tuple[str, str] | None:
    """The format of a log, and the command that imports it; None for a trace, right or wrong.

    A file that cannot be read counts as a trace, whose reading then says why.
    Raises `InputError` for a file that is missing, a scenario, or neither log nor trace.
    """
    from simstrag.trace.trace import COLUMNS
    from simstrag.traces.importers import import_command

    if require_path(path).suffix in SCENARIOS:
        raise InputError(
            f"{path}: is a scenario by its name; give its trace, a file named *.csv or *.parquet"
        )
    try:
        with path.open("rb") as file:  # a trace may be large
            header = file.readline(4096).decode("utf-8", errors="replace")
    except OSError:
        return None
    of_trace = {*COLUMNS} & {name.strip() for name in re.split("[,;\t]", header)}
    return None if len(of_trace) > 2 or not header else import_command(path)


def folder_of(file: Path, out: Path | None) -> Path:
    """The folder for the results of a file: `out`, or reports/<name of the file>."""
    return Path("reports") / file.stem if out is None else out


def refuse_other(folder: Path, file: Path, *, advises: bool = False) -> None:
    """Raise `InputError` where a folder to write holds the comparison of another file.

    advises: whether advice on the file is written, not its comparison; neither replaces the other.
    """
    from simstrag.experiments.comparison import origin

    other, is_advice = origin(folder), (folder / "advice.json").exists()
    if other is not None and (other != file.resolve() or is_advice != advises):
        held = "advice on" if is_advice else "comparison of"
        raise InputError(
            f"{folder}: holds the {held} {os.path.relpath(other)}; choose another folder for "
            f"{file} with --out"
        )


def results_folder(path: Path) -> Path:
    """A folder of results; of a scenario's or a study's file, reports/<name of the file>."""
    folder = folder_of(path, None)
    if path.suffix not in SCENARIOS or not path.is_file():
        return path
    if not folder.is_dir():
        raise InputError(f"{path}: {folder} has no results of it; give the folder that has them")
    return folder


def partial_folder(folder: Path) -> Path:
    """The folder for finished runs, until the comparison is written to `folder`."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(f"{named.name}.partial")
