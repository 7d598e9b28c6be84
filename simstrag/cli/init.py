"""`simstrag init`: a first scenario from a contention trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from simstrag.cli.console import print_result
from simstrag.cli.options import Json, Quiet, TraceFile, out_option
from simstrag.cli.read_inputs import check_trace


def init(
    trace: TraceFile,
    out: Annotated[Path, out_option("Scenario to write; never over one.", "FILE")] = Path(
        "scenario.yaml"
    ),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a commented first scenario for a trace.

    It runs as it is; replace the numbers marked ASSUMED by your own.
    """
    from simstrag.cli.first_scenario import write_first_scenario

    write_first_scenario(check_trace(trace), out)
    print_result(as_json, quiet, {"scenario": out}, scenario=out)
    if not (as_json or quiet):
        print(f"first: in {out}, replace each number marked ASSUMED by your own")
        print(f"next: simstrag compare {out}")
