"""What calibration measures, cell by cell, and what one visit to a cell found.

A *cell* is one thing that is timed: a step in one precision and batch, the same beside one load, an
all-reduce of one size.  No cell is measured in one go: calibration goes round all of them several
times, and each *visit* adds a few samples.  What drifts within minutes on a shared machine then
shows in the spread between visits, from which every interval is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol, get_args

__all__ = ["PARTS", "Bench", "Cell", "Part", "Skipped", "Visit"]

Part = Literal["step", "contention", "allreduce", "overlap", "lockstep", "server", "gradient"]

PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Cell:
    """Coordinates of what is timed; those that do not apply stay as they are by default.

    precision: a name of `simstrag.workloads.PRECISIONS`.  batch: samples of a step.
    load, level: kind of the load beside it, and its processes times their duty; "" is none.
    backend, ranks, bytes: of a collective or a transfer.
    group: who of the ranks reduces: "all", "half" (one half alone) or "halves" (both at once).

    >>> str(Cell("step", precision="fp32", batch=8))
    'step fp32 batch 8'
    >>> str(Cell("allreduce", backend="gloo", ranks=2, bytes=1024, group="all"))
    'allreduce gloo 2 ranks 1024 B'
    """

    part: Part
    precision: str = ""
    batch: int = 0
    load: str = ""
    level: float = 0.0
    backend: str = ""
    ranks: int = 0
    bytes: int = 0
    group: str = ""

    def __str__(self) -> str:
        words: list[str] = [self.part, self.backend, self.precision]
        words += [f"batch {self.batch}"] if self.batch else []
        words += [f"{self.ranks} ranks"] if self.ranks else []
        words += [f"{self.bytes} B"] if self.bytes else []
        words += [self.group] if self.group not in ("", "all") else []
        words += [f"beside {self.load} {self.level:g}"] if self.load else []
        return " ".join(filter(None, words))

    @property
    def changed(self) -> dict[str, Any]:
        """The coordinates that apply, as JSON has them."""
        plain = {f.name: f.default for f in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != plain[name]}


@dataclass(frozen=True, slots=True)
class Visit:
    """Samples of one visit to a cell, each series by its name; seconds, unless the name says else.

    number: of the visit to this cell, from 0.  began: seconds since the epoch.
    facts: what else was seen (peak memory, clocks, the share of the machine that others took).
    skipped: why this cell cannot be measured; then there are no samples and no further visits.
    """

    cell: Cell
    number: int
    began: float
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""


class Skipped(Exception):
    """A cell that cannot be measured here, with the reason: no memory for this batch, say."""


class Bench(Protocol):
    """Measures the cells of some parts; a context manager that holds what they need meanwhile.

    Its processes, groups and loads live from `__enter__` to `__exit__`, which leaves none behind.
    """

    @property
    def cells(self) -> Sequence[Cell]:
        """What it can measure, in no particular order."""
        ...

    def seconds(self, cell: Cell) -> float:
        """What one visit to a cell will roughly take, for the plan that is shown beforehand."""
        ...

    def visit(self, cell: Cell) -> tuple[dict[str, tuple[float, ...]], dict[str, Any]]:
        """Samples and facts of one more visit. Raises `Skipped`, and nothing else expected."""
        ...

    def __enter__(self) -> Bench: ...

    def __exit__(self, *failure: object) -> None: ...
