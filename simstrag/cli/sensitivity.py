"""`simstrag sensitivity`: which constant changes the ranking, and at what value."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simstrag.cli.console import capture_warnings, print_line, print_result, print_table
from simstrag.cli.options import Jobs, Json, Policies, Quiet, ScenarioFile, Seeds, option
from simstrag.cli.progress import show_count, warn_of_hours
from simstrag.cli.read_inputs import read_scenario
from simstrag.documents.file_io import writable, write_atomically

if TYPE_CHECKING:
    import pandas as pd

QUANTITY = "Such as learner.c_tau; may be repeated; all by default."


def sensitivity(
    scenario: ScenarioFile,
    policy: Policies = None,
    quantity: Annotated[list[str] | None, option(QUANTITY, "KEY", "--quantity", "-k")] = None,
    seeds: Seeds = None,
    out: Annotated[Path | None, option("CSV to write.", "FILE", "--out", "-o")] = None,
    jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find which constant changes the ranking, and at what value."""
    from simstrag.experiments.sensitivity import sensitivity as run_sensitivity

    case = read_scenario(scenario)
    if out is not None:
        writable(out, ".csv")
    with capture_warnings() as warnings, show_count(quiet) as show:
        runs = len(case.seed_list) if seeds is None else seeds
        warn_of_hours(case, policy or case.policies, runs, jobs, quiet)
        thresholds = run_sensitivity(
            case, policy, seeds=seeds, quantities=quantity, jobs=jobs, on_progress=show
        )
    if out is not None:
        write_atomically(out, lambda part: thresholds.to_csv(part, index=False))
    rows = thresholds.to_dict("records")
    document = {"sensitivity": rows, "warnings": warnings, "written": out}
    print_result(as_json, quiet, document, partial(_print, thresholds), warnings, table=out)


def _print(thresholds: pd.DataFrame) -> None:
    leader = thresholds["leader"].iloc[0] if len(thresholds) else "none"
    print_line(f"best mean with the scenario as it is: {leader}")
    rows = []
    for quantity, group in thresholds.groupby("quantity", sort=False):
        by = {row["direction"]: row for row in group.to_dict("records")}
        first = group.iloc[0]
        value = f"{first['value']:.4g} {first['unit']}".strip()
        rows.append([str(quantity), value, _effect(by.get("smaller")), _effect(by.get("larger"))])
    print_table(["quantity", "value", "smaller", "larger"], rows)


def _effect(row: dict[Any, Any] | None) -> str:
    """The effect of a change in one direction on the leader; none is tried beyond the bounds."""
    if row is None:
        return "not tried"
    if not row["rival"]:
        return f"stays, to {row['tried']:.3g}"
    low, high = sorted((row["holds_at"], row["turns_at"]))
    doubt = "" if row["shown"] else ", within the noise"
    return f"{row['rival']} from {low:.3g}..{high:.3g}{doubt}"
