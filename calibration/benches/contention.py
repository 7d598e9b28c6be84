"""Times steps beside real load of stated kinds and levels, and alone in the same visit.

What a load costs is a ratio of steps taken within seconds of each other: clocks and neighbours
that drift over minutes fall out of it.  Half of the clean steps come before the loaded ones and
half after, so that what drifts within the visit falls out too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from simstrag.calibration.benches.loads import Loads, levels
from simstrag.calibration.benches.steps import Jobs, Samples, block, skipping
from simstrag.calibration.cells import Cell
from simstrag.workloads import Precisions

__all__ = ["SETTLE", "ContentionBench"]

SETTLE = 0.3
"""Seconds of steps beside a load that do not count, from when it says that it works.

Measured on two Xeon cores, two workloads, 40 cells: from the first step on they scatter around
the later ones' median; what is left out is a margin of several steps and of the scheduler's rounds.
"""


class ContentionBench:
    """Steps of the nominal batch, in the nominal pair of precisions, beside each load.

    span: seconds of clean steps in a visit; the loaded ones, which are longer, have half as much
    again.
    """

    def __init__(self, jobs: Jobs, chosen: Precisions, span: float = 0.4) -> None:
        self.jobs, self.span = jobs, span
        device = jobs.device
        gpu = device.name if device.name != "cpu" else ""
        kinds = ("gemm", "copy", "cpu", "memory") if gpu else ("cpu", "memory")
        loads = Loads(0, device.core, gpu)
        others = [each for each in loads.others if each != device.core]
        self._cells = [
            Cell("contention", precision=precision, batch=jobs.workload.nominal, load=kind,
                 level=level)
            for precision in dict.fromkeys((chosen.full, chosen.amp))
            for kind in kinds
            for level in levels(kind, len(others))
        ]  # fmt: skip
        loads.count = int(max(cell.level for cell in self._cells))
        self._loads = loads
        self._held = contextlib.ExitStack()

    @property
    def cells(self) -> Sequence[Cell]:
        """One for each precision, kind of load and level."""
        return self._cells

    def seconds(self, cell: Cell) -> float:
        """Both blocks, the settling, and some steps to warm up."""
        return 2.5 * self.span + 2 * SETTLE

    def visit(self, cell: Cell) -> tuple[Samples, dict[str, Any]]:
        """`clean`, and of loaded steps `seconds`, `cpu` or `host`, `update`; the load's report."""
        device = self.jobs.device
        with skipping(self.jobs, cell), device.placed():
            job = self.jobs.of(cell.precision)
            batches = [job.batch(cell.batch) for _ in range(2)]
            before = block(job, batches, device, self.span / 2)
            with self._loads.on(cell.load, cell.level) as report:
                block(job, batches, device, SETTLE, warm=0)
                loaded = block(job, batches, device, 1.5 * self.span, warm=0)
            after = block(job, batches, device, self.span / 2)
        samples = loaded | {"clean": before["seconds"] + after["seconds"]}
        return samples, {"state": device.state(), **report}

    def __enter__(self) -> ContentionBench:
        self._held.enter_context(self._loads)
        return self

    def __exit__(self, *failure: object) -> None:
        self._held.close()
        self.jobs.clear()
