"""Times push, service and pull of a workload's own gradients under the server of `simstrag.ddp`.

What a rank takes to hand over a gradient and to begin with new parameters, and a server to book it,
update and answer, is more than moving the bytes takes; and it comes after a step, which has filled
the caches with other things.  A visit is some steps of all ranks, each at its own pace.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.calibration.cells import Cell
from simstrag.calibration.collective_ranks import join
from simstrag.calibration.crew import Crew, obey

if TYPE_CHECKING:
    from simstrag.workloads import Parts

__all__ = ["ServedBench"]

VISIT = 0.8
"""Seconds that a visit should take."""

FEWEST, MOST = 5, 100
"""Steps of a rank in a visit, at least and at most."""

Ways = dict[str, tuple[float, ...]]


class ServedBench:
    """The cell of part "server" that the ranks of a CPU train for, under `asgd`.

    build: makes the workload's parts, in every rank, so it can be pickled: `Workload.build`.
    precision: the full one.  size: bytes of a gradient.  stand_in: full precision is double.
    """

    def __init__(
        self,
        build: Callable[[], Parts],
        precision: str,
        batch: int,
        size: int,
        ranks: int = 2,
        stand_in: bool = False,
    ) -> None:
        self.build, self.ranks, self.stand_in = build, ranks, stand_in
        self.cell = Cell("server", precision=precision, batch=batch, ranks=ranks, bytes=size)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """One, of the workload's nominal batch."""
        return (self.cell,)

    def seconds(self, cell: Cell) -> float:
        """What a visit aims at, and the steps that say how long one is."""
        return 2 * VISIT

    def visit(self, cell: Cell) -> tuple[dict[str, tuple[float, ...]], dict[str, Any]]:
        """`push`, `service` and `pull` of all ranks' steps."""
        begun = time.monotonic()
        self._steps(FEWEST)
        pace = (time.monotonic() - begun) / FEWEST
        found = self._steps(min(MOST, max(FEWEST, round(VISIT / pace))))
        return {name: tuple(s for own in found for s in own[name]) for name in found[0]}, {}

    def __enter__(self) -> ServedBench:
        self.crew = Crew(
            _train, self.ranks, self.ranks, self.build, self.cell.batch, self.stand_in,
            fresh=tempfile.TemporaryDirectory,
        )  # fmt: skip
        self.crew.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self.crew.dismiss()

    def _steps(self, count: int) -> list[Ways]:
        return self.crew.ask(dict.fromkeys(range(self.ranks), count))


def _train(
    pipe: Connection,
    rank: int,
    folder: str,
    world: int,
    build: Callable[[], Parts],
    batch: int,
    stand_in: bool,
) -> None:
    from simstrag.ddp import wrap
    from simstrag.ddp.journal import read
    from simstrag.ddp.trips import WAYS, trips
    from simstrag.workloads import mapped

    join(rank, world, folder, "gloo", "cpu")
    parts, record = build(), Path(folder) / "run"
    model = parts.model.train()
    trainer = wrap(
        model, parts.optimizer, "asgd", batch=batch, out=record,
        precision="stand-in" if stand_in else "full",
    )  # fmt: skip
    known = 0

    def work(steps: int) -> Ways:
        nonlocal known
        drawn = parts.make_batch(batch)
        if stand_in:
            drawn = mapped(drawn, lambda t: t.double() if t.is_floating_point() else t)
        for _ in range(steps):
            trainer.step(lambda: parts.loss(model, drawn))
        own = trips(read(record)[1])[rank]
        fresh, known = own[known:], len(own)
        return {name: tuple(t[name] for t in fresh if name in t) for name in WAYS}

    with trainer:
        obey(pipe, work)
