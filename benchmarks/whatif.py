"""Seconds of a what-if analysis of one record, imports apart, beside another program's.

    python -m benchmarks.whatif RECORD [--turns N] [--other COMMAND]

Processor seconds are those of all threads, which a loaded machine does not stretch.  Every turn
starts a new process that reads and analyses the record, and then the other command if one is
given (such as the published analysis of the same record), so that both meet the same load.  A ratio
compares the two of one turn, imports included; a line has the median and the range.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import json, sys, time
begin = time.perf_counter(), time.process_time()
import pyarrow.parquet
from simstrag.records import operations
from simstrag.whatif.analysis import analyse
loaded = time.perf_counter(), time.process_time()
analyse(sys.argv[1])
end = time.perf_counter(), time.process_time()
print(json.dumps({
    "imports": loaded[0] - begin[0], "analysis": end[0] - loaded[0],
    "imports, processor": loaded[1] - begin[1], "analysis, processor": end[1] - loaded[1],
}))
"""
PARTS = ("imports", "imports, processor", "analysis", "analysis, processor", "process")


def measure(record: Path) -> dict[str, float]:
    """Seconds of imports, of the analysis, and of the process from its start to its end."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, str(record)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout), "process": time.perf_counter() - begin}


def measure_other(command: str) -> float:
    """Seconds of another command, its output thrown away."""
    begin = time.perf_counter()
    subprocess.run(shlex.split(command), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def main() -> None:
    """Print the parts, and the ratio where there is another command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("record", type=Path, help="what simstrag whatif reads")
    parser.add_argument("--turns", type=int, default=5, help="processes of each program")
    parser.add_argument("--other", metavar="COMMAND", help="another analysis of the same record")
    options = parser.parse_args()
    own, ratios = [], []
    for _ in range(options.turns):
        own.append(measure(options.record))
        if options.other is not None:
            ratios.append(measure_other(options.other) / own[-1]["process"])
    for part in PARTS:
        _print(part, [each[part] for each in own], "s")
    if ratios:
        _print("other / this process", ratios, "times")


def _print(name: str, values: list[float], unit: str) -> None:
    least, most = min(values), max(values)
    print(f"{name}: {statistics.median(values):.3g} {unit} ({least:.3g} to {most:.3g})")


if __name__ == "__main__":
    main()
