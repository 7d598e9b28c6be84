"""The file of results: sections that are measured separately, each with its machine.

`speed.<noise>.ratios.<policy>.<N>.<a|b|c>` and `speed.<noise>.rates.<policy>.<N>.<engine|a|b|c>`
are the comparison with other engines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.tables import Table, plain, show

__all__ = [
    "MEASURED", "RESULTS", "add_write", "describe_machine", "keep_tables", "read", "report", "save",
]  # fmt: skip

RESULTS = Path(__file__).parent / "results.json"
MEASURED = Path(__file__).parent.parent / "docs" / "measured"
"""Tables that benchmarks write and pages refer to."""
PACKAGES = ("numpy", "simpy", "simstrag")


def describe_machine() -> dict[str, Any]:
    """Processor, versions, date and command of a measurement."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
    }


def _cpu() -> str:
    """The processor's model name on Linux, else its name in `platform`."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read() -> dict[str, Any]:
    """All sections of the file; empty before the first measurement."""
    sections: dict[str, Any] = {}
    if RESULTS.exists():
        sections = json.loads(RESULTS.read_text(encoding="utf-8"))
    return sections


def save(sections: Mapping[str, Any]) -> None:
    """Replace these sections of the file and keep the others."""
    text = json.dumps(read() | _round(sections), indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def _round(value: Any) -> Any:
    """Numbers to four digits, more than a repetition reproduces."""
    if isinstance(value, Mapping):
        return {str(key): _round(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_round(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def keep_tables(
    name: str, tables: Iterable[Table], machine: Mapping[str, Any] | None = None
) -> None:
    """Write tables as text to `docs/measured/NAME.txt`, to which a page refers.

    machine: a description of the machine, for the line below the tables.
    """
    lines = [line for table in tables for line in plain(table)]
    if machine is not None:
        lines += [_made(machine), ""]
    (MEASURED / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")


def _made(machine: Mapping[str, Any]) -> str:
    """When and where a measurement was made."""
    versions = ", ".join(f"{key} {machine[key]}" for key in ("python", *PACKAGES))
    return f"Measured {machine['date']} on {machine['cpu']}, {machine['cores']} cores; {versions}."


def add_write(parser: argparse.ArgumentParser, name: str = "") -> None:
    """Add the option by which a benchmark keeps its tables."""
    files = f"docs/measured/{name}.txt" if name else "the files of docs/measured"
    parser.add_argument("--write", action="store_true", help=f"replace {files}")


def report(
    about: str | None,
    name: str,
    measure: Callable[..., Iterable[Any]],
    table: Callable[[Sequence[Any]], Table],
    **options: Mapping[str, Any],
) -> None:
    """The command line of a benchmark with one table: measure, print, and keep it.

    about: the text of its help.  name: of its file in docs/measured.
    measure: yields outcomes, named tuples, which are printed as they come; takes the options.
    options: of `argparse`, by name.
    """
    parser = argparse.ArgumentParser(description=about)
    for option, more in options.items():
        parser.add_argument(f"--{option}", **more)
    add_write(parser, name)
    given = vars(parser.parse_args())
    write, begin, outcomes = given.pop("write"), time.perf_counter(), []
    for outcome in measure(**given):
        outcomes.append(outcome)
        print(json.dumps(outcome._asdict(), default=float), flush=True)
    found = table(outcomes)
    show([found])
    print(f"{time.perf_counter() - begin:.0f} s")
    if write:
        keep_tables(name, [found], describe_machine())
