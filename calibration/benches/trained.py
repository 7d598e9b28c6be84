"""Times what real ranks add to their steps: they train the workload under `simstrag.ddp`.

Part "server", under `asgd`: what a rank takes to hand over a gradient and to begin with new
parameters, and a server to book it, update and answer, is more than moving the bytes takes; and it
comes after a step, which has filled the caches with other things.

Part "lockstep", under `bsp`: the rest, from the slowest rank's last gradient until rank 0 begins
anew, which is what backward did not hide of the all-reduce, the update, the decision, the record
and all that happens between; alone, and beside a load on the core of rank 0.  Beside it steps take
longer too, `local` over the `clean` ones just before: not by as much as bare steps do, for a rank
that sleeps while it waits for others is let in sooner afterwards.

In both, `local` steps are those of ranks that compute at the same time, which share caches, memory
and perhaps cores, with what the runtime does within them; `alone` are bare steps on each of the
cores in turn, `beside` bare steps on all of them at once, in the same visit, so that what drifts
over minutes falls out of their ratios.
"""

from __future__ import annotations

import contextlib
import copy
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from simstrag.calibration.benches.collective_ranks import join
from simstrag.calibration.benches.crew import Crew, obey
from simstrag.calibration.benches.loads import Loads
from simstrag.calibration.cells import Cell
from simstrag.processes.affinity import cores

if TYPE_CHECKING:
    from simstrag.workloads import Parts

__all__ = ["LEVELS", "TrainedBench"]

LEVELS = (0.25, 0.5, 1.0, 1.25, 2.0, 2.5, 3.0)
"""Of load "cpu" on the core of rank 0, beside which ranks in lockstep are timed.

So many, since what a step takes is no smooth function of the level: two processes that are at work
for 65 % of the time each slow it as much as two that always are, or nearly so.
"""

POLICY = {"server": "asgd", "lockstep": "bsp"}

SPAN = 0.3
"""Seconds of steps alone on each core."""

VISIT = 1.2
"""Seconds of steps together that a visit should have."""

CLEAN, LOADED = 1 / 3, 2 / 3
"""Of that, before a load comes to them and beside it."""

SETTLE = 3
"""Steps that do not count, and say how long one is."""

FEWEST, MOST = 5, 100
"""Steps of a rank in a visit, at least and at most; the first of each order, before which it waited
for the order, comes before them."""

Series = dict[str, tuple[float, ...]]


class Setup(NamedTuple):
    """What the ranks of a crew train. build: makes the workload's parts, and can be pickled."""

    build: Callable[[], Parts]
    policy: str
    precision: str
    batch: int
    stand_in: bool


class Bare(NamedTuple):
    """An order: steps of nothing else for so many seconds; a rank answers their times."""

    seconds: float


class Together(NamedTuple):
    """An order to all ranks: train for so many steps."""

    steps: int


class Tell(NamedTuple):
    """An order to one rank: what the steps of the last `Together` took, as a `Series`."""


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
        self.part, self.ranks = part, ranks
        self.setup = Setup(build, POLICY[part], precision, batch, stand_in)
        plain = Cell(part, precision=precision, batch=batch, ranks=ranks, bytes=size)
        loaded = (
            Cell(part, precision=precision, batch=batch, ranks=ranks, bytes=size, load="cpu",
                 level=level)
            for level in levels
        )  # fmt: skip
        self.cells = (plain, *loaded)
        self._took: dict[Cell, float] = {}
        self._held = contextlib.ExitStack()

    def seconds(self, cell: Cell) -> float:
        """What the last visit took; before the first, what one aims at."""
        bare = 0.0 if cell.load else SPAN * (1 + self._cores)
        return self._took.get(cell, 2 * (VISIT + bare))

    def visit(self, cell: Cell) -> tuple[Series, dict[str, Any]]:
        """Of steps together `local` and what the part is about: `push`, `service` and `pull`, or
        `rest`; without load `alone` and `beside` too, with one `clean`, which are `local` ones
        before it.  Steps are rank by rank, or core by core, each as many.
        """
        begun = time.monotonic()
        report: dict[str, Any] = {}
        if cell.load:
            clean = self._together(CLEAN * VISIT)["local"]
            with self._loads.on(cell.load, cell.level) as report:
                samples = self._together(LOADED * VISIT) | {"clean": clean}
        else:
            each = range(self._cores)
            alone = [steps for rank in each for steps in self.crew.ask({rank: Bare(SPAN)})]
            beside = self.crew.ask(dict.fromkeys(each, Bare(SPAN)))
            samples = {"alone": _even(alone), "beside": _even(beside)} | self._together(VISIT)
        report["cores"] = self._cores
        self._took[cell] = time.monotonic() - begun
        return samples, report

    def __enter__(self) -> TrainedBench:
        most, first = max(cell.level for cell in self.cells), cores()[0]
        there = sum(cores()[rank % len(cores())] == first for rank in range(self.ranks))
        self._loads = Loads(math.ceil(most), first, steps=there)
        self.crew = Crew(
            _train, self.ranks, self.ranks, self.setup, fresh=tempfile.TemporaryDirectory
        )
        with contextlib.ExitStack() as held:
            if most:
                held.enter_context(self._loads)
            held.enter_context(self.crew)
            self._train(1)  # in which a trainer measures what its reduced precision gains
            self._held = held.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._held.close()

    @property
    def _cores(self) -> int:
        return min(self.ranks, len(cores()))

    def _together(self, seconds: float) -> Series:
        """Steps for about so long, after some that say how many these are."""
        begun = time.monotonic()
        self._train(SETTLE)
        pace = (time.monotonic() - begun) / (1 + SETTLE)
        self._train(min(MOST, max(FEWEST, round(seconds / pace))))
        asked = range(1 if self.part == "lockstep" else self.ranks)
        found = self.crew.ask(dict.fromkeys(asked, Tell()))
        return {name: _even([own[name] for own in found]) for name in found[0]}

    def _train(self, steps: int) -> None:
        self.crew.ask(dict.fromkeys(range(self.ranks), Together(1 + steps)))


def _even(each: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """As many of each: a rank may ask before the server has noted its last step."""
    fewest = min(map(len, each))
    return tuple(s for own in each for s in own[:fewest])


def _train(pipe: Connection, rank: int, folder: str, world: int, setup: Setup) -> None:
    from simstrag.calibration.benches.device import device
    from simstrag.calibration.benches.steps import block
    from simstrag.ddp import wrap
    from simstrag.ddp.record.journal import read_journal
    from simstrag.workloads import TrainingTask

    join(rank, world, folder, "gloo", "cpu")
    record = Path(folder) / "run"
    bare, trained = (TrainingTask(setup.build(), setup.precision, "cpu") for _ in range(2))
    model, optimizer = trained.model, trained.optimizer
    trainer = wrap(
        model, optimizer, setup.policy, batch=setup.batch, out=record,
        precision="stand-in" if setup.stand_in else "full",
    )  # fmt: skip
    weights = [copy.deepcopy(each.model.state_dict()) for each in (bare, trained)]
    done = fresh = 0

    def work(order: Bare | Together | Tell) -> Any:
        nonlocal done, fresh
        if isinstance(order, Tell):
            told = read_journal(record)[1]
            return _locked(told, fresh) if setup.policy == "bsp" else _served(told, rank, fresh)
        if isinstance(order, Bare):
            bare.model.load_state_dict(weights[0])  # what is trained for long may step otherwise
            bare.optimizer.state.clear()
            batches = [bare.batch(setup.batch) for _ in range(2)]
            return block(bare, batches, device("cpu"), order.seconds)["seconds"]
        if setup.policy == "bsp":  # all go back at once; at a server nobody can
            model.load_state_dict(weights[1])
            optimizer.state.clear()
        batch = trained.batch(setup.batch)
        for _ in range(order.steps):
            trainer.step(lambda: trained.parts.loss(model, batch))
        done, fresh = done + order.steps, done + 1
        return None

    with trainer:
        obey(pipe, work)


def _served(lines: Sequence[Sequence[Any]], rank: int, fresh: int) -> Series:
    """The ways of a rank's gradients to the server and back, from number `fresh` on."""
    from simstrag.ddp.record.server_latency import PARTS, round_trips

    own = round_trips(lines)[rank][fresh:]
    parts = {name: [getattr(trip, name) for trip in own] for name in PARTS}
    known = {name: tuple(s for s in own if not math.isnan(s)) for name, own in parts.items()}
    return known | {"local": tuple(trip.seconds for trip in own)}


def _locked(lines: Sequence[Sequence[Any]], fresh: int) -> Series:
    """The local steps of all ranks, from number `fresh` on, and the rest up to the next step."""
    from simstrag.ddp.record.server_latency import reduction_rests

    steps = [line[2] for line in lines if line[0] == "lockstep"][fresh:]
    return {
        "local": tuple(s for own in zip(*steps, strict=True) for s in own),
        "rest": tuple(reduction_rests(lines)[fresh:]),
    }
