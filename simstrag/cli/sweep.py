"""`simstrag sweep`: run a grid of scenarios, on this machine or on many."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from warnings import warn

import typer

from simstrag.cli.console import capture_warnings, print_line
from simstrag.cli.options import JobsOption, SeedsOption, argument, flag, option, out_option
from simstrag.cli.output import emit, mode
from simstrag.cli.progress import show_count, warn_of_hours_of_study
from simstrag.cli.read_inputs import folder_of
from simstrag.documents.file_io import require_path, write_atomically
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.experiments.kept_runs import KeptStudy
    from simstrag.experiments.sweep import Planned, Sweep

S = TypeVar("S", bound="KeptStudy[Any]")

MACHINES, NOTHING = "Many machines", "Finished runs"

BackendOption = Annotated[
    str | None, option("processes by default, dask or ray.", "NAME", group=MACHINES)
]
AddressOption = Annotated[str | None, option("Of the cluster.", "ADDRESS", group=MACHINES)]
ShardOption = Annotated[
    str | None, option("Only part i of k, for a batch scheduler.", "I/K", group=MACHINES)
]

MOST = 10
"""Most failed runs to list."""
DRAWING = 3.0
"""About the seconds that the report takes; the time left counts them."""


def sweep(
    study: Annotated[Path, argument("A study in YAML.", "STUDY")],
    out: Annotated[
        Path | None, out_option("Folder of the results; reports/<study> by default.")
    ] = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    backend: BackendOption = None,
    address: AddressOption = None,
    shard: ShardOption = None,
    collect: Annotated[
        bool, flag("Run nothing; write the tables of finished runs.", "--collect", group=NOTHING)
    ] = False,
    status: Annotated[
        bool, flag("Run nothing; count finished and failed runs.", "--status", group=NOTHING)
    ] = False,
) -> None:
    """Run a grid of scenarios; run it again to go on."""
    from simstrag.experiments.sweep import Sweep
    from simstrag.experiments.sweep import sweep as run_sweep

    folder, page = folder_of(study, out), None
    warnings: list[str] = []
    if status or collect:
        _refuse_run_options(
            "--collect" if collect else "--status",
            {
                "--seeds": seeds,
                "--jobs": jobs,
                "--backend": backend,
                "--address": address,
                "--shard": shard,
            },
        )
        if out is None:  # only the name of the study is used
            require_path(study)
        result = Sweep.read(folder)
        if collect:
            result.write()
            page = _draw(result, unfinished=True)
    else:
        part = parse_shard(shard)
        sys.path.append(str(study.absolute().parent))
        if backend is None and not (folder / Sweep.MARKER).exists():  # nothing is finished
            warn_of_hours_of_study(study, seeds, part[1] if part else 1, jobs)
        run = partial(run_sweep, study, folder, seeds=seeds, jobs=jobs, address=address, shard=part)
        result, page, warnings = run_and_draw(run, backend, _draw)
    total, outcomes = len(result.runs), result.outcomes()
    failed = {run: outcome["error"] for run, outcome in outcomes.items() if outcome["error"]}
    finished = len(outcomes) - len(failed)
    is_whole = shard is None or Sweep.read(result.folder).has_ended
    tables = result.tables if is_whole else []  # else they are of fewer seeds, if there are any
    document = {
        "runs": total,
        "finished": finished,
        "failed": [
            {"point": run.point, "policy": run.policy, "seed": run.seed, "error": error}
            for run, error in failed.items()
        ],
        "warnings": warnings,
        "written": result.folder,
        "tables": tables,
        "report": page,
    }
    shown, path = partial(_print, total, finished, failed), [result.folder, *tables][-1]
    emit(document, shown, warnings, results=path, report=None if mode().quiet else page)
    if finished < total:
        raise typer.Exit(1)


def run_and_draw(
    run: Callable[..., S], backend: str | None, draw: Callable[[S], Path | None]
) -> tuple[S, Path | None, list[str]]:
    """Run a study and draw its report while a line counts its runs; also what was warned of."""
    with capture_warnings() as warnings, show_count(DRAWING) as show:
        result = run(backend=backend or "processes", on_progress=show)
        show.begin_last("drawing the report")
        page = draw(result)
    return result, page, warnings


def draw_report(result: S, render: Callable[[S], str], *, unfinished: bool = False) -> Path | None:
    """The report of a study, of all its shards or none; none where there is nothing to compare.

    unfinished: also where runs are missing.
    """
    whole, path = result.read(result.folder), result.folder / "report.html"
    if not (unfinished or whole.has_ended):
        return None
    try:
        page = render(whole)
        write_atomically(path, lambda part: part.write_text(page, encoding="utf-8"))
    except InputError as error:
        warn(f"no report: {error}", stacklevel=1)
        return None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(whole.describe_kept()) from None
    return path


def _draw(result: Sweep, *, unfinished: bool = False) -> Path | None:
    """The report of a sweep; a single point has none."""
    from simstrag.analysis.pages.sweep_report import render

    return draw_report(result, render, unfinished=unfinished) if len(result.points) > 1 else None


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """The part of `--shard`, and the number of parts.

    >>> parse_shard("3/16")
    (3, 16)
    """
    if text is None:
        return None
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise InputError(f"--shard {text}: write i/k, such as 1/16 for the first of 16 parts")
    return int(part), int(parts)


def _refuse_run_options(command: str, options: dict[str, object]) -> None:
    """Raise `InputError` for options of runs with a command that runs nothing.

    >>> _refuse_run_options("--status", {"--jobs": None, "--shard": "1/2"})
    Traceback (most recent call last):
    simstrag.errors.InputError: --shard 1/2: --status runs nothing and shows all parts; leave it out
    """
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"{name} {value}: {command} runs nothing and shows all parts; leave it out"
            )


def _print(total: int, finished: int, failed: dict[Planned, str]) -> None:
    print_line(f"{finished} of {total} runs are finished, {len(failed)} failed")
    for run, error in islice(failed.items(), MOST):
        print_line(f"failed: point {run.point}, {run.policy}, seed {run.seed}: {error}")
    if len(failed) > MOST:
        print_line(f"and {len(failed) - MOST} more; all are in the column 'error'")
