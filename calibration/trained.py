"""Times what real ranks add to their steps: they train the workload under `simstrag.ddp`.

Part "server", under `asgd`: what a rank takes to hand over a gradient and to begin with new
parameters, and a server to book it, update and answer, is more than moving the bytes takes; and it
comes after a step, which has filled the caches with other things.

Part "lockstep", under `bsp`: what remains after the slowest rank's last gradient until all begin
anew, which is what backward did not hide of the all-reduce, the update, the decision, and all that
happens between; alone, and beside a load on the core of rank 0.

In both, `local` steps are those of ranks that compute at the same time, which share caches, memory
and perhaps cores; `alone` are steps of nothing else on each of the cores in turn, in the same
visit, so that what drifts over minutes falls out of their ratio.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from simstrag.calibration.cells import Cell
from simstrag.calibration.collective_ranks import join
from simstrag.calibration.crew import Crew, obey
from simstrag.calibration.loads import Loads
from simstrag.places import cores

if TYPE_CHECKING:
    from simstrag.workloads import Parts

__all__ = ["LEVELS", "TrainedBench"]

LEVELS = (1.0, 3.0)
"""Of load "cpu" on the core of rank 0, beside which ranks in lockstep are timed."""

POLICY = {"server": "asgd", "lockstep": "bsp"}

SPAN = 0.3
"""Seconds of steps alone on each core."""

VISIT = 1.2
"""Seconds of steps together that a visit should have."""

FEWEST, MOST = 8, 100
"""Steps of a rank in a visit, at least and at most, beside the first of each order, before which
it waited for the order."""

Series = dict[str, tuple[float, ...]]


class Setup(NamedTuple):
    """What the ranks of a crew train. build: makes the workload's parts, and can be pickled."""

    build: Callable[[], Parts]
    policy: str
    precision: str
    batch: int
    stand_in: bool


class TrainedBench:
    """Cells of one part, for one number of ranks on the CPU.

    build: makes the workload's parts, in every rank, so it can be pickled: `Workload.build`.
    precision: the full one.  size: bytes of a gradient.  stand_in: full precision is double.
    levels: of load "cpu" on the core of rank 0; a cell each, beside the one without.
    """

    def __init__(
        self,
        part: Literal["server", "lockstep"],
        build: Callable[[], Parts],
        precision: str,
        batch: int,
        size: int,
        ranks: int = 2,
        stand_in: bool = False,
        levels: Sequence[float] = (),
    ) -> None:
        self.setup = Setup(build, POLICY[part], precision, batch, stand_in)
        self.ranks = ranks
        plain = Cell(part, precision=precision, batch=batch, ranks=ranks, bytes=size)
        loaded = (
            Cell(part, precision=precision, batch=batch, ranks=ranks, bytes=size, load="cpu",
                 level=level)
            for level in levels
        )  # fmt: skip
        self.cells = (plain, *loaded)
        self._held = contextlib.ExitStack()

    def seconds(self, cell: Cell) -> float:
        """What a visit aims at, the steps that say how long one is, and those alone."""
        return 2 * VISIT + 2 * SPAN * min(self.ranks, len(cores()))

    def visit(self, cell: Cell) -> tuple[Series, dict[str, Any]]:
        """`alone`, and of steps together `local` (rank by rank, each as many) and what the part is
        about: `push`, `service` and `pull`, or `rest`; the load's report.
        """
        alone: Series = {"alone": ()}
        for rank in range(min(self.ranks, len(cores()))):
            alone["alone"] += self.crew.ask({rank: SPAN})[0]["alone"]
        if not cell.load:
            return alone | self._timed(), {}
        with self._loads.on(cell.load, cell.level) as report:
            found = self._timed()
        return alone | found, report

    def __enter__(self) -> TrainedBench:
        most = max(cell.level for cell in self.cells)
        first = cores()[0]
        there = sum(cores()[r % len(cores())] == first for r in range(self.ranks))
        self._loads = Loads(int(most), first, steps=there)
        if most:
            self._held.enter_context(self._loads)
        self.crew = Crew(
            _train, self.ranks, self.ranks, self.setup, fresh=tempfile.TemporaryDirectory
        )
        self._held.enter_context(self.crew)
        return self

    def __exit__(self, *failure: object) -> None:
        self._held.close()

    def _timed(self) -> Series:
        """Steps for about `VISIT` seconds, after some that say how many these are."""
        begun = time.monotonic()
        self._steps(FEWEST)
        pace = (time.monotonic() - begun) / FEWEST
        return self._steps(min(MOST, max(FEWEST, round(VISIT / pace))))

    def _steps(self, count: int) -> Series:
        """What all ranks took for so many steps, each name's rank by rank."""
        found = self.crew.ask(dict.fromkeys(range(self.ranks), count))
        return {name: tuple(s for own in found for s in own.get(name, ())) for name in found[0]}


def _train(pipe: Connection, rank: int, folder: str, world: int, setup: Setup) -> None:
    """A rank: an order of steps (an int) is for all together, one of seconds (a float) for one."""
    from simstrag.calibration.device import device
    from simstrag.calibration.steps import block
    from simstrag.ddp import wrap
    from simstrag.ddp.journal import read
    from simstrag.workloads import Job, mapped

    join(rank, world, folder, "gloo", "cpu")
    parts, record = setup.build(), Path(folder) / "run"
    single = Job(setup.build(), setup.precision, "cpu")
    model = parts.model.train()
    weights = copy.deepcopy(model.state_dict())
    trainer = wrap(
        model, parts.optimizer, setup.policy, batch=setup.batch, out=record,
        precision="stand-in" if setup.stand_in else "full",
    )  # fmt: skip
    begun = 0

    def alone(seconds: float) -> Series:
        batches = [single.batch(setup.batch) for _ in range(2)]
        return {"alone": block(single, batches, device("cpu"), seconds)["seconds"]}

    def together(steps: int) -> Series:
        nonlocal begun
        drawn = parts.make_batch(setup.batch)
        if setup.stand_in:
            drawn = mapped(drawn, lambda t: t.double() if t.is_floating_point() else t)
        if setup.policy == "bsp":  # trained for long, a step is another; all ranks go back at once
            model.load_state_dict(weights)
        for _ in range(1 + steps):
            trainer.step(lambda: parts.loss(model, drawn))
        fresh = begun + 1
        begun += 1 + steps
        if setup.policy == "asgd":
            return _served(read(record)[1], rank, fresh)
        return _locked(read(record)[1], fresh) if rank == 0 else {}  # it writes the journal

    with trainer:
        obey(pipe, lambda order: together(order) if isinstance(order, int) else alone(order))


def _served(lines: Sequence[Sequence[Any]], rank: int, fresh: int) -> Series:
    """The ways of a rank's gradients to the server and back, from number `fresh` on."""
    from simstrag.ddp.trips import WAYS, trips

    own = trips(lines)[rank][fresh:]
    found = {name: tuple(t[name] for t in own if name in t) for name in WAYS}
    return found | {"local": tuple(t["seconds"] for t in own)}


def _locked(lines: Sequence[Sequence[Any]], fresh: int) -> Series:
    """The local steps of all ranks, from number `fresh` on, and the rest up to the next step."""
    rows = [(line[1], line[2]) for line in lines if line[0] == "lockstep"][fresh:]
    pairs = itertools.pairwise(rows)
    return {
        "local": tuple(s for own in zip(*(local for _, local in rows), strict=True) for s in own),
        "rest": tuple(then - start - max(local) for (start, local), (then, _) in pairs),
    }
