"""`simstrag sensitivity`: which constant turns the ranking over, and at what value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simstrag.cli.console import capture_warnings, print_json, print_path, print_table, warn
from simstrag.cli.options import Jobs, Json, Policies, Quiet, ScenarioFile, Seeds, read_scenario
from simstrag.cli.progress import show_count
from simstrag.documents.paths import writable, write_whole

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["sensitivity"]


def sensitivity(
    scenario: ScenarioFile,
    policy: Policies = None,
    quantity: Annotated[
        list[str] | None,
        typer.Option(
            "--quantity",
            "-k",
            help="Such as learner.c_tau; may be repeated; all by default.",
            metavar="KEY",
            show_default=False,
        ),
    ] = None,
    seeds: Seeds = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV to write.", metavar="FILE", show_default=False),
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find which constant turns the ranking over, and at what value."""
    from simstrag.experiments.sensitivity import sensitivity as run_sensitivity

    case = read_scenario(scenario)
    if out is not None:
        writable(out, ".csv")
    with capture_warnings() as warnings, show_count(quiet) as show:
        found = run_sensitivity(
            case, policy, seeds=seeds, quantities=quantity, jobs=jobs, on_progress=show
        )
    if out is not None:
        write_whole(out, lambda part: found.to_csv(part, index=False))
    if as_json:
        rows = found.to_dict("records")
        print_json({"sensitivity": rows, "warnings": warnings, "written": out})
        return
    if not quiet:
        leader = found["leader"].iloc[0] if len(found) else "nobody"
        print(f"best mean with the scenario as it is: {leader}")
        print_table(["quantity", "value", "smaller", "larger"], _rows(found))
        warn(warnings)
    if out is not None:
        print_path("table", out, quiet)


def _rows(found: pd.DataFrame) -> list[list[str]]:
    rows = []
    for quantity, group in found.groupby("quantity", sort=False):
        by = {row["direction"]: row for row in group.to_dict("records")}
        first = group.iloc[0]
        value = f"{first['value']:.4g} {first['unit']}".strip()
        rows.append([str(quantity), value, _said(by["smaller"]), _said(by["larger"])])
    return rows


def _said(row: dict[Any, Any]) -> str:
    """What one direction does to the leader."""
    if not row["rival"]:
        return f"stays, to {row['tried']:.3g}"
    low, high = sorted((row["holds_at"], row["turns_at"]))
    doubt = "" if row["shown"] else ", within the noise"
    return f"{row['rival']} from {low:.3g}-{high:.3g}{doubt}"
