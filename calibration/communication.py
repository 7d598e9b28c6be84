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

from simstrag.calibration.benches import allreduce, server
from simstrag.calibration.benches.allreduce import AllReduceBench
from simstrag.calibration.benches.machine import busy_seconds, describe_software, wait_for_calm
from simstrag.calibration.benches.server import ServerBench
from simstrag.workloads.device import describe_device

if TYPE_CHECKING:
    from simstrag.workloads import Shape

__all__ = ["FOREIGN_LIMIT", "SMALL_SIZES", "measure"]

SMALL_SIZES = (256, 64 << 10, 1 << 20)
"""Bytes of all-reduces beside the model's own size."""

REDUCES = ("bytes", "repetition", "start_0", "end_0", "start_1", "end_1")

ROUNDS = ("round", "t0", "s0", "received", "applied", "s1", "t1")

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
    rows, reduce_load = _calmest(lambda: reduces([*SMALL_SIZES, size], repetitions), patience)
    _write(out / "allreduce.csv.gz", REDUCES, rows)
    rows, server_load = _calmest(lambda: round_trips(size, rounds), patience)
    _write(out / "server.csv.gz", ROUNDS, rows)
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


def reduces(sizes: Sequence[int], repetitions: int) -> list[Stamps]:
    """Rows of `REDUCES`: both ranks' stamps of every all-reduce of two processes."""
    rows: list[Stamps] = []
    with AllReduceBench(ranks=(2,), sizes=sizes) as bench:
        for size in sizes:
            bench.stamps((0, 1), size, max(1, repetitions // 10))
            first, second = bench.stamps((0, 1), size, repetitions)
            rows += [
                (size, number, *one, *other)
                for number, (one, other) in enumerate(zip(first, second, strict=True))
            ]
    return _from_zero(rows, 2)


def round_trips(size: int, rounds: int) -> list[Stamps]:
    """Rows of `ROUNDS`: the stamps of every push, service and pull of one gradient."""
    with ServerBench([size]) as bench:
        stamps = bench.stamps(size, rounds)
    return _from_zero([(number, *row) for number, row in enumerate(stamps)], 1)


def _from_zero(rows: list[Stamps], labels: int) -> list[Stamps]:
    """The same with stamps counted from the first; the first `labels` columns are no stamps."""
    zero = rows[0][labels]
    return [(*row[:labels], *(round(stamp - zero, 7) for stamp in row[labels:])) for row in rows]


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
