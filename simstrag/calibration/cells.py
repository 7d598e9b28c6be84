"""The cells that calibration measures, and the samples of one visit to a cell.

A *cell* is one thing that is timed: a step in one precision and batch, the same step beside one
load, an all-reduce of one size.  Calibration goes round all cells several times, and each *visit*
adds a few samples to one of them.  Drift over minutes shows in the spread between visits, which
gives every interval.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np

Part = Literal[
    "step", "anatomy", "contention", "allreduce", "overlap", "lockstep", "server", "gradient",
    "power",
]  # fmt: skip

PARTS: tuple[Part, ...] = tuple(part for part in get_args(Part) if part != "anatomy")
"""The parts that can be asked for; the anatomy of steps comes with part "step" on a GPU."""

VisitSeries = dict[str, tuple[float, ...]]
"""Samples of a visit by the name of their series."""


@dataclass(frozen=True, slots=True)
class MeasurementCell:
    """Coordinates of one thing that is timed; a coordinate that does not apply has its default.

    precision: a name of `simstrag.workloads.PRECISIONS`.
    batch: samples of a step.
    load: kind of the load beside it; "" for none.
    level: processes of the load times their duty.
    backend, ranks, bytes: of a collective or a transfer.
    group: the ranks that reduce: "all", "half" (one half alone) or "halves" (both at once).

    >>> str(MeasurementCell("step", precision="fp32", batch=8))
    'step fp32 batch 8'
    >>> str(MeasurementCell("allreduce", backend="gloo", ranks=2, bytes=1024, group="all"))
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

    @classmethod
    def of(cls, part: Part, measurement: object) -> MeasurementCell:
        """The cell of a measurement in a profile, by the coordinates that the profile states."""
        values = {f.name: getattr(measurement, f.name, None) for f in fields(cls)[1:]}
        return cls(part, **{name: value for name, value in values.items() if value is not None})

    @property
    def coordinates(self) -> dict[str, Any]:
        """The coordinates that apply, without the part."""
        return {name: value for name, value in self.document.items() if name != "part"}

    @property
    def document(self) -> dict[str, Any]:
        """The coordinates that apply, as JSON."""
        defaults = {f.name: f.default for f in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}


@dataclass(frozen=True, slots=True)
class Visit:
    """Samples of one visit to a cell.

    number: number of the visit to this cell, from 0.
    began: seconds since the epoch.
    samples: each series by its name; seconds, unless the name says otherwise.
    facts: other observations (peak memory, clocks, cores that other processes used).
    skipped: the reason why this cell cannot be measured; there are no samples then.
    """

    cell: MeasurementCell
    number: int
    began: float
    samples: VisitSeries = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""

    def median(self, name: str = "seconds") -> float:
        """The median of one series."""
        return float(np.median(self.samples[name]))

    def mean(self, name: str = "seconds") -> float:
        """The mean of one series."""
        return float(np.mean(self.samples[name]))
