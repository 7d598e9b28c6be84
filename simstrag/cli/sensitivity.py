"""`simstrag sensitivity`: which constant changes the ranking, and at what value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simstrag.cli.console import capture_warnings, print_json, print_path, print_table, warn
from simstrag.cli.options import (
    Jobs,
    Json,
    Policies,
    Quiet,
    ScenarioFile,
    Seeds,
    option,
    out_option,
    read_scenario,
)  # fmt: skip
from simstrag.cli.progress import show_count
from simstrag.documents.file_io import writable, write_atomically

if TYPE_CHECKING:
    import pandas as pd


def sensitivity(
    scenario: ScenarioFile,
    policy: Policies = None,
    quantity: Annotated[
        list[str] | None,
        option(
            "--quantity", "-k", metavar="KEY",
            help="Such as learner.c_tau; may be repeated; all by default.",
        ),
    ] = None,
    seeds: Seeds = None,
    out: Annotated[Path | None, out_option("CSV to write.", "FILE")] = None,
    jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Find which constant changes the ranking, and at what value."""
    from simstrag.experiments.sensitivity import sensitivity as run_sensitivity

    case = read_scenario(scenario)
    if out is not None:
        writable(out, ".csv")
    with capture_warnings() as warnings, show_count(quiet) as show:
        thresholds = run_sensitivity(
            case, policy, seeds=seeds, quantities=quantity, jobs=jobs, on_progress=show
        )
    if out is not None:
        write_atomically(out, lambda part: thresholds.to_csv(part, index=False))
    if as_json:
        rows = thresholds.to_dict("records")
        print_json({"sensitivity": rows, "warnings": warnings, "written": out})
        return
    if not quiet:
        leader = thresholds["leader"].iloc[0] if len(thresholds) else "none"
        print(f"best mean with the scenario as it is: {leader}")
        print_table(["quantity", "value", "smaller", "larger"], _rows(thresholds))
        warn(warnings)
    if out is not None:
        print_path("table", out, quiet)


def _rows(thresholds: pd.DataFrame) -> list[list[str]]:
    rows = []
    for quantity, group in thresholds.groupby("quantity", sort=False):
        by = {row["direction"]: row for row in group.to_dict("records")}
        first = group.iloc[0]
        value = f"{first['value']:.4g} {first['unit']}".strip()
        rows.append([str(quantity), value, _effect(by["smaller"]), _effect(by["larger"])])
    return rows


def _effect(row: dict[Any, Any]) -> str:
    """What a change in one direction does to the leader."""
    if not row["rival"]:
        return f"stays, to {row['tried']:.3g}"
    low, high = sorted((row["holds_at"], row["turns_at"]))
    doubt = "" if row["shown"] else ", within the noise"
    return f"{row['rival']} from {low:.3g}-{high:.3g}{doubt}"
