"""The file of results: sections that are measured apart, each with the machine it was measured on.

`ratios.<policy>.<N>.<a|b|c>` and `rates.<policy>.<N>.<engine|a|b|c>` are of runs without noise;
`noisy` has the same of runs with noise.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.tables import Table, markdown

__all__ = ["RESULTS", "machine", "read", "save", "tell"]

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parent.parent / "docs" / "cost.md"
PACKAGES = ("numpy", "numba", "simpy", "simstrag")


def machine() -> dict[str, Any]:
    """What a measurement is to be read with."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
    }


def _cpu() -> str:
    """The model's name, as Linux has it, else what Python knows."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read() -> dict[str, Any]:
    """All sections; none before anything was measured."""
    if not RESULTS.exists():
        return {}
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def save(sections: Mapping[str, Any]) -> None:
    """Replace these sections, and leave the others."""
    text = json.dumps(read() | _short(sections), indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")


def _short(value: Any) -> Any:
    """Numbers to four digits, which is more than a repetition gives again."""
    if isinstance(value, Mapping):
        return {str(key): _short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def tell(name: str, tables: Iterable[Table], of: Mapping[str, Any] | None = None) -> None:
    """Put tables between the marks `<!-- name -->` and `<!-- end of name -->` of docs/cost.md.

    of: the machine they were measured on.
    """
    head, mark, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition(f"<!-- end of {name} -->")
    assert mark, f"{PAGE} has no mark {name}"
    assert end, f"{PAGE} has no end of {name}"
    lines = [line for table in tables for line in markdown(table)]
    if of is not None:
        versions = ", ".join(f"{key} {of[key]}" for key in ("python", *PACKAGES))
        lines += [f"Measured {of['date']} on {of['cpu']}, {of['cores']} cores; {versions}.", ""]
    PAGE.write_text(head + mark + "\n" + "\n".join(lines) + "\n" + end + tail, encoding="utf-8")
