"""`simstrag init`: a first scenario from a contention trace."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from simstrag.cli.console import print_result
from simstrag.cli.options import Json, Quiet, TraceFile, out_option
from simstrag.cli.read_inputs import check_trace

SHOWN_NODES = 8
"""Most nodes that are listed."""


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
    from simstrag.trace.trace import Trace

    write_first_scenario(check_trace(trace), out)
    print_result(as_json, quiet, {"scenario": out}, scenario=out)
    if not (as_json or quiet):
        nodes = Trace.read(trace).nodes
        if len(nodes) > 1 and nodes != tuple(range(len(nodes))):
            listed = ", ".join(map(str, nodes[:SHOWN_NODES]))
            print(
                f"workers: {len(nodes)}, the nodes with rows ({listed}"
                f"{', ...' if len(nodes) > SHOWN_NODES else ''}); raise it, and add to nodes, for "
                "nodes that were never slowed"
            )
        print(f"first: in {out}, replace each number marked ASSUMED by your own")
        print(f"next: simstrag compare {shlex.quote(str(out))}")
