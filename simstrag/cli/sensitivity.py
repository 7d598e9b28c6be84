"""`simstrag sensitivity`: which constant changes the ranking, and at what value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simstrag.cli.console import capture_warnings, print_brief, print_line
from simstrag.cli.options import (
    JobsOption,
    PoliciesOption,
    ScenarioFile,
    SeedsOption,
    VerboseOption,
    option,
)
from simstrag.cli.output import emit
from simstrag.cli.progress import show_count, warn_of_hours
from simstrag.cli.read_inputs import read_scenario
from simstrag.documents.file_io import writable, write_atomically

if TYPE_CHECKING:
    from simstrag.analysis.tables.table import Table
    from simstrag.scenario.scenario import Scenario

QUANTITY = "Such as learner.c_tau; may be repeated; all by default."


def sensitivity(
    scenario: ScenarioFile,
    policy: PoliciesOption = None,
    quantity: Annotated[list[str] | None, option(QUANTITY, "KEY", "--quantity", "-k")] = None,
    seeds: SeedsOption = None,
    out: Annotated[Path | None, option("CSV to write.", "FILE", "--out", "-o")] = None,
    jobs: JobsOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Find which constant changes the ranking, and at what value."""
    from simstrag.experiments.sensitivity import sensitivity as run_sensitivity

    case = read_scenario(scenario)
    if out is not None:
        writable(out, ".csv")
    with capture_warnings() as warnings, show_count() as show:
        runs = len(case.seed_list) if seeds is None else seeds
        warn_of_hours(case, policy or case.policies, runs, jobs)
        thresholds = run_sensitivity(
            case, policy, seeds=seeds, quantities=quantity, jobs=jobs, on_progress=show
        )
    if out is not None:
        write_atomically(out, lambda part: thresholds.to_csv(part, index=False))
    rows = thresholds.to_dict("records")
    document = {"sensitivity": rows, "warnings": warnings, "written": out}
    shown = partial(_print, rows, case, verbose)
    emit(document, shown, warnings, table=out)


def _print(rows: Sequence[Mapping[Any, Any]], scenario: Scenario, verbose: bool) -> None:
    from simstrag.analysis.text.sensitivity_text import brief

    if not rows:
        print_line("nothing to vary: every constant is 0")
        return
    answer = brief(rows, scenario)
    print_brief(replace(answer, table=_every(rows)) if verbose else answer)


def _every(rows: Sequence[Mapping[Any, Any]]) -> Table:
    """A row for each constant, by its key, with the effect of both directions."""
    from simstrag.analysis.tables.table import Table

    shown = []
    for quantity in dict.fromkeys(row["quantity"] for row in rows):
        by = {row["direction"]: row for row in rows if row["quantity"] == quantity}
        first = next(iter(by.values()))
        value = f"{first['value']:.4g} {first['unit']}".strip()
        shown.append((quantity, value, _effect(by.get("smaller")), _effect(by.get("larger"))))
    return Table(("quantity", "value", "smaller", "larger"), tuple(shown), 4, wraps=3)


def _effect(row: Mapping[Any, Any] | None) -> str:
    """The effect of a change in one direction on the leader; none is tried beyond the bounds."""
    if row is None:
        return "not tried"
    if not row["rival"]:
        return f"stays, to {row['tried']:.3g}"
    low, high = sorted((row["holds_at"], row["turns_at"]))
    doubt = "" if row["shown"] else ", within the noise"
    return f"{row['rival']} from {low:.3g}..{high:.3g}{doubt}"
