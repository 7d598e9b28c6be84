"""`simstrag run`: simulate one policy under one seed."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simstrag.cli.console import format_cell, print_sentences, print_table
from simstrag.cli.options import (
    OUTPUT,
    PolicyOption,
    ScenarioFile,
    SeedOption,
    flag,
    option,
    out_option,
)
from simstrag.cli.output import emit
from simstrag.cli.progress import show_run, warn_of_hours
from simstrag.cli.read_inputs import read_scenario
from simstrag.documents.file_io import writable
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.analysis.pages.perfetto import TimelineFile
    from simstrag.runs.run import Run

IDLE = (
    "mean_staleness", "staleness_by_rank", "effective_staleness", "deviation", "dropped",
    "aborted", "in_flight", "amp_share", "rebatched_share", "cut_share", "communication_by_rank",
    "wait_by_rank", "beyond_trace",
)  # fmt: skip
"""Values of a summary that are 0 where nothing of their kind happened."""


def run(
    scenario: ScenarioFile,
    policy: PolicyOption = "bsp",
    seed: SeedOption = 0,
    out: Annotated[Path | None, out_option("Run directory to write.")] = None,
    steps: Annotated[bool, flag("Also write steps.parquet.", "--steps", group=OUTPUT)] = False,
    gradients: Annotated[
        bool, flag("Also write gradients.parquet.", "--gradients", group=OUTPUT)
    ] = False,
    timeline: Annotated[
        Path | None, option("Also write a timeline for Perfetto.", "FILE", group=OUTPUT)
    ] = None,
    window: Annotated[
        str | None,
        option("Only these seconds of the timeline, such as 10:20.", "FROM:TO", group=OUTPUT),
    ] = None,
    engine: Annotated[str, option("native, or plain: in Python alone.", "NAME")] = "native",
) -> None:
    """Simulate one policy under one seed and print the summary."""
    from simstrag.engine.simulate import require_gain, simulate
    from simstrag.policies import collect_warnings
    from simstrag.runs.run import check_directory

    case = read_scenario(scenario)
    require_gain(case, policy)
    if out is not None:
        check_directory(out, "run.json")
    if timeline is not None:
        writable(timeline, ".json", ".gz")
        steps = gradients = True
    interval = _parse_window(window, timeline)
    warn_of_hours(case, [policy], 1, 1)
    with (
        show_run(f"{policy}, seed {seed}", case) as on_update,
        collect_warnings(policy) as warned,
    ):
        result = simulate(
            case,
            policy,
            seed,
            record_steps=steps,
            record_gradients=gradients,
            on_update=on_update,
            out=out,
            engine=engine,
        )
    written: TimelineFile | None = None
    if timeline is not None:
        from simstrag.analysis.pages.perfetto import write_timeline

        written = write_timeline(result, timeline, case.timing(seed), interval)
    warnings, cut = [*result.warnings, *warned.values()], []
    if written and written.cut:
        cut = [
            f"the timeline shows {written.start:.6g} to {written.end:.6g} s, where ranks "
            "waited longest (--window FROM:TO shows another part); "
            f"{written.steps_left_out} steps are left out"
        ]
    about = written and {"path": timeline, **written._asdict()}
    document = json.loads(result.to_json()) | {"warnings": warnings}
    seconds = result.summary["time_to_target" if case.has_target else "makespan"]
    emit(
        document | {"written": out, "timeline": about}, partial(_print_summary, result),
        warnings + cut, math.inf if seconds is None else seconds, run=out, timeline=timeline,
    )  # fmt: skip


def _print_summary(run: Run) -> None:
    """The summary with units, without what is not defined and shares and counts that are 0."""
    from simstrag.runs.run import UNITS, plain

    summary = plain(run.summary)
    left_out = [key for key, value in summary.items() if value is None or _is_idle(key, value)]
    rows = [
        [key, format_cell(value), UNITS.get(key, "")]
        for key, value in summary.items()
        if key not in left_out
    ]
    print_table(["", f"{run.policy}, seed {run.seed}", "unit"], rows, wraps=1)
    if left_out:
        print_sentences(f"0 or not defined, all in --json: {', '.join(left_out)}")


def _is_idle(key: str, value: Any) -> bool:
    """Whether a value says that nothing of its kind happened.

    >>> _is_idle("cut_share", 0.0), _is_idle("staleness_by_rank", [0.0, 0.0]), _is_idle("hits", 0)
    (True, True, False)
    """
    values = value if isinstance(value, list) else [value]
    return key in IDLE and not any(values)


def _parse_window(window: str | None, timeline: Path | None) -> tuple[float, float] | None:
    """The seconds of `--window`, checked before anything is simulated.

    >>> _parse_window("10:20", Path("t.json"))
    (10.0, 20.0)
    """
    if window is None:
        return None
    mistake, start, end = "", 0.0, math.inf
    if timeline is None:
        mistake = "needs a timeline; give --timeline FILE"
    elif window.endswith(":"):
        mistake = f"has no end; write {window}inf for all that follows"
    else:
        try:
            start, end = map(float, window.split(":"))
        except ValueError:
            mistake = "must be FROM:TO in seconds, such as 10:20, or 10:inf for all that follows"
    if not mistake and not start < end:
        mistake = "must end after it begins"
    elif not mistake and start < 0:
        mistake = "must not begin before 0, where the run does"
    if mistake:
        raise InputError(f"--window {window}: {mistake}")
    return start, end
