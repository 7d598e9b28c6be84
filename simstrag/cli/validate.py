"""`simstrag validate`: compare predictions with real runs on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import (
    format_cell,
    print_json,
    print_path,
    print_sentences,
    print_table,
    warn,
)  # fmt: skip
from simstrag.cli.errors import Interrupted
from simstrag.cli.options import (
    Json,
    Quiet,
    Seed,
    argument,
    find_profile,
    given_options,
    option,
    policy_option,
)  # fmt: skip
from simstrag.cli.progress import show_count, show_seconds
from simstrag.documents.file_io import require_path
from simstrag.errors import InputError
from simstrag.profile.profile import Profile

if TYPE_CHECKING:
    from simstrag.validation.replay import Replayed
    from simstrag.validation.validation import Validation

OF_CALIBRATION = ("batch", "precision", "calibration_minutes")
"""Options of a calibration that comes first."""

OF_REAL_RUNS = (
    "workload", *OF_CALIBRATION, "policy", "ranks", "steps", "repetitions", "minutes", "seed",
)  # fmt: skip
"""Options that a replay does not take."""


def validate(
    context: typer.Context,
    run: Annotated[
        Path | None, argument(help="Recorded real run to replay instead.", metavar="RUN")
    ] = None,
    profile: Annotated[
        Path | None, option(help="Calibration of this machine.", metavar="FILE")
    ] = None,
    workload: Annotated[
        str | None,
        option("--workload", "-w", metavar="NAME",
               help="Calibrate with this workload first, on the CPU, instead of --profile."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        option(help="Batch sizes to calibrate; may be repeated.", min=1, metavar="N"),
    ] = None,
    precision: Annotated[
        list[str] | None, option(help="Precision to calibrate; give two.", metavar="WORD")
    ] = None,
    calibration_minutes: Annotated[
        float, typer.Option(help="Time limit of the calibration.", min=0.1, metavar="M")
    ] = 20.0,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder to write.", metavar="FOLDER")
    ] = Path("reports/validation"),
    policy: Annotated[
        list[str] | None, policy_option(help="Replaces the default cases; may be repeated.")
    ] = None,
    ranks: Annotated[
        list[int] | None,
        option(help="World sizes, by default 2 and 4; may be repeated.", min=2, metavar="N"),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of a rank per run.", min=1, metavar="N")] = 300,
    repetitions: Annotated[int, typer.Option(help="Real runs per case.", min=1, metavar="N")] = 5,
    minutes: Annotated[
        float, typer.Option(help="Time limit of the real runs.", min=0.1, metavar="M")
    ] = 45.0,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Train under real load, simulate the same, compare."""
    if run is not None:
        if given := given_options(context, OF_REAL_RUNS):
            raise InputError(
                f"{', '.join(given)}: a replay of {run} takes no options of new runs; leave them "
                "out"
            )
        folder = out if given_options(context, ("out",)) else None
        _replay(run, profile, folder, as_json, quiet)
        return
    if profile is None and workload is None:
        raise InputError(
            "give --profile, a calibration of this machine, or --workload, such as digits, to "
            "calibrate first"
        )
    if profile is not None and workload is not None:
        raise InputError(
            "--workload calibrates first, and --profile is a calibration; leave one out"
        )
    if workload is None and (given := given_options(context, OF_CALIBRATION)):
        raise InputError(f"{', '.join(given)}: --profile is already a calibration; leave it out")
    from simstrag.calibration.calibrate import CalibrationRequest
    from simstrag.validation.validation import InterleavedCalibration, describe_differences
    from simstrag.validation.validation import validate as run_validation

    try:
        known: Path | InterleavedCalibration
        if profile is not None:
            known = find_profile(profile)
            if not (quiet or as_json):
                warn(describe_differences(Profile.read(known)))
        else:
            asked = CalibrationRequest(
                workload, None, (), tuple(batch or ()), tuple(precision or ()),
                calibration_minutes, seed,
            )  # fmt: skip
            known = InterleavedCalibration(asked, out, policy or (), ranks or ())
            with show_seconds(quiet) as visit:
                known.begin(visit)
        with show_count(quiet) as show:
            outcome = run_validation(
                known, out, policy or (), ranks or (), steps=steps,
                repetitions=repetitions, minutes=minutes, seed=seed, on_run=show,
            )  # fmt: skip
            page = outcome.write(shlex.join(["simstrag", *sys.argv[1:]]))
    except KeyboardInterrupt:
        raise Interrupted(_describe_kept(out)) from None
    _print(outcome, page, as_json, quiet)
    if outcome.failed:
        raise typer.Exit(1)


def _describe_kept(folder: Path) -> str:
    from simstrag.validation.real_runs import count_finished

    count = count_finished(folder)
    calibration = " and a calibration" if (folder / "calibration").exists() else ""
    kept = f"{count} finished runs{calibration} are kept in {folder}"
    return f"{kept}; the same command goes on from there"


def _print(outcome: Validation, page: Path, as_json: bool, quiet: bool) -> None:
    from simstrag.validation.tables import answer, short

    result = outcome.result
    if as_json:
        print_json({**result.document(), "report": page})
        return
    if not quiet:
        print_table(*short(result))
        print_sentences(" ".join(answer(result)))
        warn(result.remarks)
    print_path("report", page, quiet)


def _replay(run: Path, profile: Path | None, out: Path | None, as_json: bool, quiet: bool) -> None:
    from simstrag.validation.replay import replay

    replayed = replay(require_path(run), None if profile is None else find_profile(profile))
    page = None if out is None else replayed.write(out, shlex.join(["simstrag", *sys.argv[1:]]))
    if as_json:
        print_json({**replayed.document(), "report": page})
        return
    if not quiet:
        _print_replay(replayed)
    if page is not None:
        print_path("report", page, quiet)


def _print_replay(replayed: Replayed) -> None:
    table = replayed.table()
    print_table(table.headers, table.rows)
    if replayed.constants:
        rows = [[c.what, format_cell(c.value), c.origin] for c in replayed.constants]
        print_table(["from the run", "seconds", ""], rows)
    print_sentences(" ".join(replayed.remarks))
