"""Times one gradient's communication: gloo's all-reduce, and push, service and pull over TCP.

`python -m simstrag.calibration.communication --out DIR` adds `allreduce.csv.gz`, `server.csv.gz`
and `communication.json` to a recording.  Two processes, a core each where there are two; every
sample is kept; all stamps are of one clock (CLOCK_MONOTONIC), which one host's processes share.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import gzip
import io
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from simstrag.calibration import allreduce, server
from simstrag.calibration.machine import (
    busy_seconds,
    describe_device,
    describe_software,
    wait_for_calm,
)

if TYPE_CHECKING:
    from simstrag.workloads import Shape

__all__ = ["FOREIGN_LIMIT", "measure"]

FOREIGN_LIMIT = 0.02
"""Share of all cores that other processes may take while communication is timed."""

Stamps = tuple[float, ...]


def measure(out: Path, shape: Shape, repetitions: int, rounds: int, patience: float = 0.0) -> None:
    """Measure both and add them to the recording in `out`.

    patience: seconds to spend on waiting for calm and on measuring again, for each of the two,
    while others take more than `FOREIGN_LIMIT` of the machine; the calmest attempt is kept.
    """
    from simstrag.workloads import Task

    size = 4 * Task(shape).parameters
    out.mkdir(parents=True, exist_ok=True)
    rows, reduce_load = _calmest(
        lambda: allreduce.measure_allreduce([*allreduce.SMALL_SIZES, size], repetitions), patience
    )
    _write(out / "allreduce.csv.gz", allreduce.COLUMNS, rows)
    rows, server_load = _calmest(lambda: server.measure_server(shape, rounds), patience)
    _write(out / "server.csv.gz", server.COLUMNS, rows)
    described = {
        "format": "simstrag-communication/1",
        "how": {"allreduce": allreduce.HOW, "server": server.HOW},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python -m simstrag.calibration.communication --out DIR "
        f"--repetitions {repetitions} --rounds {rounds} --patience {patience:g}",
        "device": describe_device(),
        "software": describe_software(),
        "shape": asdict(shape),
        "gradient_bytes": size,
        "foreign_load": {"allreduce": reduce_load[-1], "server": server_load[-1]},
        "foreign_load_of_attempts": {"allreduce": reduce_load[:-1], "server": server_load[:-1]},
    }
    (out / "communication.json").write_text(json.dumps(described, indent=1) + "\n")


def _calmest(
    timed: Callable[[], list[Stamps]], patience: float
) -> tuple[list[Stamps], list[float]]:
    """The rows of the calmest attempt; the load of every attempt, and of the kept one last."""
    begun = time.monotonic()
    kept: list[Stamps] = []
    loads: list[float] = []
    while not kept or (min(loads) > FOREIGN_LIMIT and time.monotonic() - begun < patience):
        wait_for_calm(patience)
        rows, load = _with_load(timed)
        kept = rows if load < min(loads, default=math.inf) else kept
        loads.append(load)
    return kept, [*loads, min(loads)]


def _with_load(timed: Callable[[], list[Stamps]]) -> tuple[list[Stamps], float]:
    """The rows, and the share of all cores that processes other than ours took meanwhile."""
    begun, busy, own = time.monotonic(), busy_seconds(), sum(os.times()[:4])
    rows = timed()
    foreign = busy_seconds() - busy - (sum(os.times()[:4]) - own)
    share = foreign / ((time.monotonic() - begun) * (os.cpu_count() or 1))
    return rows, round(max(0.0, share), 4)


def _write(path: Path, columns: Sequence[str], rows: Sequence[Stamps]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    from simstrag.workloads import Shape

    parser = argparse.ArgumentParser(
        prog="python -m simstrag.calibration.communication", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the recording")
    parser.add_argument("--repetitions", type=int, default=200, help="all-reduces of each size")
    parser.add_argument("--rounds", type=int, default=240, help="round trips to the server")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds to try for a calm machine"
    )
    given = parser.parse_args(arguments)
    measure(given.out, Shape(), given.repetitions, given.rounds, given.patience)


if __name__ == "__main__":
    main()
