"""Draw docs/pictures/architecture.svg: which room imports which, read from the source.

Run `python -m tools.architecture` after a room is added or an arrow changes.  An arrow that follows
from two others (a imports b, b imports c, so a may import c) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import NamedTuple

from tools.imports import DOORSTEP, ROOT, imports, room

PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"


class Box(NamedTuple):
    """A room in the drawing: its column and row, how many columns it spans, what it holds."""

    column: int
    row: int
    caption: str
    columns: int = 1


BOXES = {
    "cli": Box(3, 0, "one file per command"),
    "validation": Box(3, 1, "predicted and measured"),
    "calibration": Box(2, 2, "measures this machine"),
    "analysis": Box(4, 2, "reports, charts, tables"),
    "advice": Box(4, 3, "which policy for a job"),
    "cluster": Box(5, 4, "jobs that share nodes"),
    "claims": Box(5, 3, "what papers claim, tried"),
    "whatif": Box(0, 5, "what stragglers cost"),
    "ddp": Box(2, 4, "policies on real ranks"),
    "experiments": Box(4, 6, "compare, sweep, sensitivity"),
    "workloads": Box(3, 10, "models, batches, clocks"),
    "engine": Box(2, 7, "simulates one run"),
    "processes": Box(5, 7, "child processes, signals"),
    "scenario": Box(2, 8, "what is simulated"),
    "learning": Box(3, 8, "what an update is worth"),
    "runs": Box(4, 10, "a run and its files"),
    "traces": Box(0, 8, "made of records, drawn"),
    "records": Box(0, 9, "a reader per log format"),
    "profile": Box(2, 9, "what was measured"),
    "timing": Box(2, 10, "how long a step takes"),
    "statistics": Box(1, 9, "tests on arrays"),
    "trace": Box(0, 11, "contention over time"),
    "policies": Box(2, 11, "one file per policy"),
    "documents": Box(0, 12, "YAML, CSV, paths, messages", 4),
    "contract": Box(0, 13, "policy, view, plan, quorum: what a policy sees and answers", 6),
}

PITCH_X, PITCH_Y, WIDTH, HEIGHT, MARGIN = 172, 92, 156, 50, 14


def arrows() -> dict[str, set[str]]:
    """Room to the rooms that it imports, without those that follow from others."""
    used: dict[str, set[str]] = {name: set() for name in BOXES}
    for by, target, ours in imports():
        if ours and room(by) not in {"", "__main__"}:
            used[_box(by)] |= {_box(target)} - {_box(by)}
    behind = {name: _reachable(used, name) for name in used}
    return {
        name: {t for t in targets if not any(t in behind[other] for other in targets - {t})}
        for name, targets in used.items()
    }


def _box(module: str) -> str:
    name = room(module)
    return "contract" if name in DOORSTEP or not name else name


def _reachable(graph: Mapping[str, Set[str]], name: str) -> set[str]:
    targets = set(graph[name])
    return targets.union(*(_reachable(graph, target) for target in targets))


def draw() -> str:
    """The drawing as SVG."""
    graph = arrows()
    width = 6 * PITCH_X - (PITCH_X - WIDTH) + 2 * MARGIN
    height = 12 * PITCH_Y + HEIGHT + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" text-anchor="middle">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#567"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        '<g fill="none" stroke="#567" stroke-width="1.4" marker-end="url(#head)">',
        *(_arrow(by, target) for by in BOXES for target in sorted(graph[by])),
        "</g>",
        *(_rectangle(name, box) for name, box in BOXES.items()),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _left(column: int) -> int:
    return MARGIN + column * PITCH_X


def _top(row: int) -> int:
    return MARGIN + row * PITCH_Y


def _middle(name: str) -> float:
    box = BOXES[name]
    return _left(box.column) + ((box.columns - 1) * PITCH_X + WIDTH) / 2


def _arrow(by: str, target: str) -> str:
    """From the lower edge of one box to the upper edge of another.

    An arrow over several rows runs down the column of its source between them.
    """
    source, end = BOXES[by], BOXES[target]
    x1, y1, y2 = _middle(by), _top(source.row) + HEIGHT, _top(end.row) - 1
    x2 = x1 if end.columns > 1 and source.columns == 1 else _middle(target)
    if end.row - source.row == 1 or source.columns > 1:
        return f'<path d="M{x1:.0f} {y1}{_bend(x1, y1, x2, y2)}"/>'
    x, last = _left(source.column) + WIDTH / 2, y2 - PITCH_Y + HEIGHT
    first = _bend(x1, y1, x, _top(source.row + 1))
    return f'<path d="M{x1:.0f} {y1}{first}L{x:.0f} {last}{_bend(x, last, x2, y2)}"/>'


def _bend(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (y1 + y2) / 2
    return f"C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"


def _rectangle(name: str, box: Box) -> str:
    x, y, width = _left(box.column), _top(box.row), (box.columns - 1) * PITCH_X + WIDTH
    fill = "#e8f0e4" if box.columns > 1 else "#eef3fa"
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="6" fill="{fill}" '
        f'stroke="#567"/><text x="{_middle(name):.0f}" y="{y + 21}" font-size="15" '
        f'font-weight="bold">{name}</text><text x="{_middle(name):.0f}" y="{y + 39}" '
        f'font-size="11.5" fill="#345">{box.caption}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(Path(PICTURE).relative_to(ROOT))
