"""Measure speed and cost on this machine, print what came out, and write it into the docs.

python -m benchmarks             # speed, cost, start-up: some ten minutes on two cores
python -m benchmarks --quick     # about one: fewer sizes and repetitions; writes nothing
python -m benchmarks study       # ten policies x twenty seeds, 1e9 gradients
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from benchmarks import aims, cost, pictures, speed, study, tables
from benchmarks.results import machine, read, save, tell
from simstrag.engine.kernel import ready

QUICK_SIZES = (8, 4096)


def main() -> None:
    """What was asked for."""
    asked = _arguments()
    ready()
    console = Console(stderr=True)
    with console.status("beginning") as status:
        found = _measured(asked, status.update)
    if not asked.quick and asked.scale == 1:
        save(found)
        _document(read())
    tables.show(_tables(found))


def _measured(asked: argparse.Namespace, told: speed.Tell) -> dict[str, Any]:
    if "study" in asked.what:
        return {"study": study.measure(asked.scale, asked.jobs, told) | {"machine": machine()}}
    found: dict[str, Any] = {}
    if "cost" in asked.what:
        found["cost"] = cost.measure(asked.quick, told) | {"machine": machine()}
    if "speed" in asked.what:
        sizes = QUICK_SIZES if asked.quick else asked.sizes or speed.SIZES
        noisy = () if asked.quick else [n for n in sizes if n in speed.NOISY]
        how = speed.How(3, 0.1) if asked.quick else speed.How()
        found |= speed.measure(sizes, noisy, how, told)
        found["machine"] = machine()
    return found


def _tables(found: dict[str, Any]) -> list[tables.Table]:
    shown: list[tables.Table] = []
    if "ratios" in found:
        shown += tables.speed(found)
    if "cost" in found:
        shown += tables.cost(found["cost"])
    if "study" in found:
        shown.append(tables.study(found["study"]))
    return [*shown, aims.table(found)]


def _document(results: dict[str, Any]) -> None:
    """Pictures, and the tables of docs/cost.md."""
    if "ratios" in results:
        pictures.speed(results)
        tell("speed", tables.speed(results), results["machine"])
    if "cost" in results:
        pictures.cost(results["cost"])
        tell("cost", tables.cost(results["cost"]), results["cost"]["machine"])
    if "study" in results:
        tell("study", [tables.study(results["study"])], results["study"]["machine"])
    tell("aims", [aims.table(results)])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.partition("\n")[0])
    words = ["speed", "cost", "study"]
    parser.add_argument("what", nargs="*", help="speed and cost, or one of them, or study")
    parser.add_argument("--quick", action="store_true", help="fewer cases; writes nothing")
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of workers, for speed")
    parser.add_argument("--scale", type=float, default=1.0, help="of the study; 0.01 is 1:100")
    parser.add_argument("--jobs", type=int, default=2, help="processes of the study")
    asked = parser.parse_args()
    for word in asked.what:
        if word not in words:
            parser.error(f"unknown '{word}'; allowed: {', '.join(words)}")
    asked.what = asked.what or ["speed", "cost"]
    return asked


if __name__ == "__main__":
    main()
