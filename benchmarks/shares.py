"""Where the time of a study goes: `python -m benchmarks.shares --write`, three minutes."""

from __future__ import annotations

import builtins
import json
import pkgutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, namedtuple
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import report
from benchmarks.stopwatch import time_call
from benchmarks.study import POLICIES
from benchmarks.tables import Table
from simstrag.cli import main
from simstrag.scenario.scenario import DEMO

EXAMPLES = Path(__file__).parent.parent / "examples"
PARTS = {
    "engine.kernel:Kernel.advance": "native", "policies.ask": "policy",
    "engine.simulation:Simulation.advance": "views, plans",
    "engine.simulation:Simulation.__init__": "set-up", "policies.load": "set-up",
    "scenario.scenario:Scenario.replaced": "set-up",
    "engine.simulation:Simulation.result": "results", "experiments.runner:RunCache.keep": "results",
    "experiments.kept_runs:KeptRuns._keep": "results", "experiments.sweep:Sweep.write": "report",
    "experiments.comparison:Comparison.write": "report", "cli.sweep.draw_report": "report",
}  # fmt: skip
"""The part that the time of a function belongs to, less that of the functions of other parts."""
SHOWN = (*dict.fromkeys(PARTS.values()), "start", "other")
Shares = namedtuple("Shares", ["study", "seconds", "parts"])


def _ten_policies(workers: int) -> dict[str, Any]:
    """Ten policies and twenty seeds, 200 steps per worker; the constants are assumed."""
    return {
        "workers": workers, "samples": workers * 200 * 128, "policies": POLICIES, "seeds": 20,
        "step": {"compute": 0.1, "host_share": 0.1, "amp_ratio": 1.6, "cv": 0.05},
        "allreduce": {"bytes": 1e8, "bandwidth": 1e10}, "server": {"service": 0.05 / workers},
        "trace": [{"time": 5, "node": 3, "resource": "gpu", "kind": "slowdown", "value": 2}],
    }  # fmt: skip


SHORT = _ten_policies(8) | {"samples": 20_480, "policies": ["bsp", "asgd", "backup"]}
STUDIES: dict[str, tuple[str, Path | dict[str, Any]]] = {
    "sweep of 720 short runs": ("sweep", {"scenario": SHORT, "grid": {"workers": [*range(4, 16)]}}),
    "sweep two_keys.yaml": ("sweep", EXAMPLES / "two_keys.yaml"),
    **{f"compare {file.name}": ("compare", file) for file in (DEMO, EXAMPLES / "demo.yaml")},
    **{f"compare ten policies, N = {n}": ("compare", _ten_policies(n)) for n in (8, 64, 512)},
    "advise h200.yaml": ("advise", DEMO),
}
"""The command of each study, and its file or the keys that its file has."""


def measure() -> Iterator[Shares]:
    """The seconds of each study, and those of each part of it."""
    for study, (command, of) in STUDIES.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "study.yaml") if isinstance(of, dict) else of
            if isinstance(of, dict):
                file.write_text(json.dumps(of), encoding="utf-8")
            given = [command, str(file), "--quiet", "--jobs", "1", "--out", f"{folder}/out"]
            call = [sys.executable, "-c", f"import benchmarks.shares as s; s.watch({given})"]
            done = time_call(partial(subprocess.check_output, call))
        parts = json.loads(done.result.splitlines()[-1])
        parts["start"] += done.wall - sum(parts.values())  # Python's own
        yield Shares(study, done.wall, parts)


def watch(arguments: Sequence[str]) -> None:
    """Run the command in this process, and print the seconds of its parts."""
    parts, within, last = defaultdict[str, float](float), ["other"], time.perf_counter()

    def turn() -> None:
        nonlocal last
        before, last = last, time.perf_counter()
        parts[within[-1]] += last - before

    def time_calls(owner: Any, name: str, part: str) -> None:
        def call(*given: Any, **named: Any) -> Any:
            turn()
            within.append(part)
            try:
                return function(*given, **named)
            finally:
                turn()
                within.pop()

        function = getattr(owner, name)
        setattr(owner, name, call)

    time_calls(builtins, "__import__", "start")
    for place, part in PARTS.items():
        owner, _, name = place.rpartition(".")
        time_calls(pkgutil.resolve_name(f"simstrag.{owner}"), name, part)
    sys.argv = ["simstrag", *arguments]
    try:
        main()
    finally:
        print(json.dumps(parts))


def table(outcomes: Sequence[Shares]) -> Table:
    """A row for each study, with its parts in percent."""
    header, rows = ("study", "seconds", *SHOWN), []
    for study, seconds, parts in outcomes:
        shares = (f"{parts.get(part, 0.0) / seconds:.0%}" for part in SHOWN)
        rows.append((study, f"{seconds:.1f}", *shares))
    return Table("Where the time of a study goes", header, rows)


if __name__ == "__main__":
    report(__doc__, "cost-shares", measure, table)
