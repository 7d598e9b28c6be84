"""`simstrag validate`: compare predictions with real runs on this machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simstrag.cli.console import (
    command_line,
    format_cell,
    print_line,
    print_sentences,
    print_table,
    warn,
)
from simstrag.cli.options import (
    SeedOption,
    argument,
    given_options,
    option,
    out_option,
    policy_option,
)
from simstrag.cli.output import emit, mode, on_interrupt, warn_of_plan
from simstrag.cli.progress import show_count, show_seconds
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.validation.case_results import Result
    from simstrag.validation.replay import Replayed

CALIBRATION, REAL = "Calibration", "Real runs"

OF_CALIBRATION = ("batch", "precision", "calibration_minutes")
"""Options of the calibration before a validation."""

OF_REAL_RUNS = (
    "workload", *OF_CALIBRATION, "policy", "ranks", "shards", "steps", "repetitions", "minutes",
    "seed",
)  # fmt: skip
"""Options that a replay does not take."""


def validate(
    context: typer.Context,
    run: Annotated[Path | None, argument("Recorded real run to replay instead.", "RUN")] = None,
    profile: Annotated[
        Path | None, option("Calibration of this machine.", "FILE", group=CALIBRATION)
    ] = None,
    workload: Annotated[
        str | None,
        option(
            "Calibrate with this workload first, on the CPU, instead of --profile.",
            "NAME",
            "--workload",
            "-w",
            group=CALIBRATION,
        ),
    ] = None,
    batch: Annotated[
        list[int] | None, option("Batch sizes; may be repeated.", "N", min=1, group=CALIBRATION)
    ] = None,
    precision: Annotated[
        list[str] | None, option("Precision; give two.", "WORD", group=CALIBRATION)
    ] = None,
    calibration_minutes: Annotated[
        float, option("Time limit.", "M", min=0.1, group=CALIBRATION)
    ] = 20.0,
    out: Annotated[Path, out_option("Folder to write.")] = Path("reports/validation"),
    policy: Annotated[
        list[str] | None, policy_option("Replaces the default cases; may be repeated.", REAL)
    ] = None,
    ranks: Annotated[
        list[int] | None,
        option("World sizes, by default 2 and 4; may be repeated.", "N", min=2, group=REAL),
    ] = None,
    shards: Annotated[
        int, option("Ranks that shard a worker's model.", "N", min=1, group=REAL)
    ] = 1,
    steps: Annotated[int, option("Steps of a rank per run.", "N", min=1, group=REAL)] = 300,
    repetitions: Annotated[int, option("Real runs per case.", "N", min=1, group=REAL)] = 5,
    minutes: Annotated[float, option("Time limit.", "M", min=0.1, group=REAL)] = 45.0,
    seed: SeedOption = 0,
) -> None:
    """Train under real load, simulate the same, compare."""
    if run is not None:
        if given := given_options(context, OF_REAL_RUNS):
            raise InputError(
                f"{', '.join(given)}: a replay of {run} takes no options of new runs; leave them "
                "out"
            )
        folder = out if given_options(context, ("out",)) else None
        _replay(run, profile, folder)
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
    from simstrag.calibration.plan import CalibrationRequest
    from simstrag.profile.profile import Profile, find_profile
    from simstrag.validation.validation import InterleavedCalibration, describe_differences
    from simstrag.validation.validation import validate as run_validation

    with on_interrupt(lambda _: describe_kept(out)):
        known: Path | InterleavedCalibration
        if profile is not None:
            known = find_profile(profile)
            if mode().talks:
                warn(describe_differences(Profile.read(known)))
        else:
            asked = CalibrationRequest(
                workload, None, (), tuple(batch or ()), tuple(precision or ()),
                calibration_minutes, seed,
            )  # fmt: skip
            known = InterleavedCalibration(asked, out, policy or (), ranks or ())
            if mode().talks:
                print_line(
                    f"{workload}: calibration, {calibration_minutes:g} minutes at most, half of it "
                    f"before the real runs, which take {minutes:g} minutes at most",
                    stderr=True,
                )
            with show_seconds() as visit:
                known.begin(visit, warn_of_plan)
        with show_count() as show:
            outcome = run_validation(
                known, out, policy or (), ranks or (), shards=shards, steps=steps,
                repetitions=repetitions, minutes=minutes, seed=seed, on_run=show,
                on_plan=warn_of_plan,
            )  # fmt: skip
            page = outcome.write(command_line())
    result = outcome.result
    document = {**result.document(), "report": page}
    emit(document, partial(_print, result), result.remarks, report=page)
    if outcome.failed:
        raise typer.Exit(1)


def describe_kept(folder: Path) -> str:
    from simstrag.validation.real_runs import count_finished

    count = count_finished(folder)
    calibration = " and a calibration" if (folder / "calibration").exists() else ""
    kept = f"{count} finished runs{calibration} are kept in {folder}"
    return f"{kept}; the same command goes on from there"


def _print(result: Result) -> None:
    from simstrag.validation.tables import answer, short

    print_table(*short(result))
    print_sentences(" ".join(answer(result)))


def _replay(run: Path, profile: Path | None, out: Path | None) -> None:
    from simstrag.validation.replay import replay

    replayed = replay(run, profile)
    page = None if out is None else replayed.write(out, command_line())
    document = {**replayed.document(), "report": page}
    emit(document, partial(_print_replay, replayed), report=page)


def _print_replay(replayed: Replayed) -> None:
    table = replayed.table()
    print_table(table.headers, table.rows)
    if replayed.constants:
        rows = [[c.what, format_cell(c.value), c.origin] for c in replayed.constants]
        print_table(["from the run", "seconds", ""], rows)
    print_sentences(" ".join(replayed.remarks))
