"""Measure speed and cost on this machine, print the tables, and keep them in docs/measured.

python -m benchmarks             # speed, cost, start-up: about ten minutes on two cores
python -m benchmarks --quick     # about one minute: fewer sizes and repetitions; writes nothing
python -m benchmarks study       # ten policies x twenty seeds, 1e9 gradients
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from benchmarks import cost, pictures, speed, study, tables
from benchmarks.results import describe_machine, keep_tables, read, save
from benchmarks.stopwatch import Progress

SECTIONS = ("speed", "cost", "study")
QUICK_SIZES = (8, 4096)


def main() -> None:
    """Measure the sections that the command line names."""
    options = _parse_arguments()
    with Console(stderr=True).status("starting") as status:
        results = _measure(options, status.update)
    if not options.quick and options.scale == 1:
        save(results)
        _write_documentation(read())
    tables.show(_tables(results))


def _measure(options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    machine = {"machine": describe_machine()}
    if "study" in options.what:
        return {"study": study.measure(options.scale, options.jobs, progress) | machine}
    results: dict[str, Any] = {}
    if "cost" in options.what:
        results["cost"] = cost.measure(options.quick, progress) | machine
    if "speed" in options.what:
        sizes = QUICK_SIZES if options.quick else options.sizes or speed.SIZES
        effort = speed.Effort(3, 0.1) if options.quick else speed.Effort()
        results["speed"] = speed.measure(sizes, effort, progress) | machine
    return results


def _tables(results: dict[str, Any]) -> list[tables.Table]:
    shown: list[tables.Table] = []
    if "speed" in results:
        shown += tables.speed(results["speed"])
    if "cost" in results:
        shown += tables.cost(results["cost"])
    if "study" in results:
        shown.append(tables.study(results["study"]))
    return [*shown, tables.aims(results)]


def _write_documentation(results: dict[str, Any]) -> None:
    """Write the pictures and the tables to which docs/cost.md refers."""
    if "speed" in results:
        pictures.speed(results["speed"]["no noise"])
        keep_tables("cost-speed", tables.speed(results["speed"]), results["speed"]["machine"])
    if "cost" in results:
        pictures.cost(results["cost"])
        keep_tables("cost-growth", tables.cost(results["cost"]), results["cost"]["machine"])
    if "study" in results:
        keep_tables("cost-study", [tables.study(results["study"])], results["study"]["machine"])
    keep_tables("cost-aims", [tables.aims(results)])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", help="speed, cost or study; default: speed and cost")
    parser.add_argument("--quick", action="store_true", help="fewer cases; writes nothing")
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of workers for speed")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="length of the study; 0.01 is 1:100"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes of the study")
    options = parser.parse_args()
    for word in options.what:
        if word not in SECTIONS:
            parser.error(f"unknown '{word}'; allowed: {', '.join(SECTIONS)}")
    options.what = options.what or ["speed", "cost"]
    return options


if __name__ == "__main__":
    main()
