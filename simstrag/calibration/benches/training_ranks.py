"""Times what real ranks add to their steps: they train the workload under `simstrag.ddp`.

Part "server", under `asgd`: a rank sends a gradient and starts with new parameters; a server books
the gradient, updates and answers.  This is more than moving the bytes, and comes after a step,
which has filled the caches.

Part "lockstep", under `bsp`: the rest, from the slowest rank's last gradient until rank 0 starts
its next step.  It has the part of the all-reduce that backward did not hide, the update, the
decision, the record and all between; without load, and beside a load on the core of rank 0.  Load
also lengthens steps (`local` over the `clean` ones just before), but less than bare steps, because
a rank that slept while it waited for others is scheduled sooner.

In both parts, ranks make `local` steps at the same time: they share caches, memory and perhaps
cores, and do the runtime's own work.  `alone` are bare steps on each core in turn, and `beside` on
all cores at once, in the same visit, so that drift over minutes cancels.
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from simstrag.calibration.benches.background_load import Loads
from simstrag.calibration.benches.bench import Bench, Skipped
from simstrag.calibration.benches.workers import WorkerGroup, join_process_group, serve
from simstrag.calibration.cells import MeasurementCell, VisitSeries
from simstrag.processes.affinity import cores

if TYPE_CHECKING:
    from simstrag.workloads import Parts

LEVELS = (0.25, 0.5, 1.0, 1.25, 2.0, 2.5, 3.0)
"""Levels of load "cpu" on the core of rank 0, beside which ranks in lockstep are timed.

They are many because step time is no smooth function of the level: two processes that work for 65 %
of the time each slow a step as much, or nearly so, as two that always work.
"""

POLICY = {"server": "asgd", "lockstep": "bsp"}

SPAN = 0.3
"""Seconds of steps alone on each core."""

VISIT = 1.2
"""Seconds of steps together that a visit aims at."""

CLEAN, LOADED = 1 / 3, 2 / 3
"""Parts of `VISIT` before a load starts and beside it."""

SETTLE = 3
"""Uncounted steps that show how long a step takes."""

FEWEST, MOST = 5, 100
"""Least and most counted steps of a rank in a visit.  One more is first in each request; it is not
counted, because the rank had been idle."""


class TrainingSetup(NamedTuple):
    """What the ranks train. build: makes the workload's parts, and can be pickled."""

    build: Callable[[], Parts]
    policy: str
    precision: str
    batch: int
    stand_in: bool


class TrainingBench(Bench):
    """Cells of one part, for one number of ranks on the CPU.

    build: makes the workload's parts in every rank, and can be pickled.
    precision: the full precision.
    size: bytes of a gradient.
    stand_in: whether full precision is double.
    levels: levels of load "cpu" on the core of rank 0; a cell for each, and one without load.
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
        self.part, self.ranks, self._cores = part, ranks, min(ranks, len(cores()))
        self.cells = [
            MeasurementCell(
                part, precision=precision, batch=batch, ranks=ranks, bytes=size,
                load="cpu" if level else "", level=level,
            )
            for level in (0.0, *levels)
        ]  # fmt: skip
        self._took: dict[MeasurementCell, float] = {}
        on_first = len(range(0, ranks, len(cores())))
        self._loads = Loads(math.ceil(max(levels, default=0)), cores()[0], steps=on_first)
        setup = TrainingSetup(build, POLICY[part], precision, batch, stand_in)
        self.workers = WorkerGroup(
            _run_rank, ranks, ranks, setup, fresh=tempfile.TemporaryDirectory
        )
        self.held = self._loads, self.workers

    def seconds(self, cell: MeasurementCell) -> float:
        """The time of the last visit; before the first, its aim."""
        bare = 0.0 if cell.load else SPAN * (1 + self._cores)
        return self._took.get(cell, 2 * (VISIT + bare))

    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """`local` steps, and `push`, `service` and `pull`, or `rest`.

        Without load also `alone` and `beside`; with a load also `clean`, the `local` steps before
        it.  Steps are ordered by rank or core, the same number for each.
        """
        start = time.monotonic()
        report: dict[str, Any] = {}
        if cell.load:
            clean = self._train_and_report(CLEAN * VISIT)["local"]
            with self._loads.on(cell.load, cell.level) as report:
                samples = self._train_and_report(LOADED * VISIT) | {"clean": clean}
        else:
            ranks = range(self._cores)
            alone = [s for rank in ranks for s in self.workers.request({rank: ("bare", SPAN)})]
            beside = self.workers.request(dict.fromkeys(ranks, ("bare", SPAN)))
            samples = {
                "alone": _equally_many(alone), "beside": _equally_many(beside),
                **self._train_and_report(VISIT),
            }  # fmt: skip
        report["cores"] = self._cores
        self._took[cell] = time.monotonic() - start
        return samples, report

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._train(1)  # here a trainer measures the gain of its reduced precision
        except Skipped:
            pass  # the visits say why
        except BaseException:
            self.__exit__()
            raise
        return self

    def _train_and_report(self, seconds: float) -> VisitSeries:
        """Train for about `seconds`, after `SETTLE` steps."""
        start = time.monotonic()
        self._train(SETTLE)
        pace = (time.monotonic() - start) / (1 + SETTLE)
        self._train(min(MOST, max(FEWEST, round(seconds / pace))))
        ranks = range(1 if self.part == "lockstep" else self.ranks)
        reports = self.workers.request(dict.fromkeys(ranks, ("report",)))
        return {name: _equally_many([each[name] for each in reports]) for name in reports[0]}

    def _train(self, steps: int) -> None:
        self.workers.request(dict.fromkeys(range(self.ranks), ("train", 1 + steps)))


def _equally_many(series: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """All series cut to the shortest: a rank may report before the server noted its last step."""
    fewest = min(map(len, series))
    return tuple(s for each in series for s in each[:fewest])


def _run_rank(pipe: Connection, rank: int, folder: str, world: int, setup: TrainingSetup) -> None:
    from simstrag.calibration.benches.measured_device import find_device
    from simstrag.calibration.benches.training_jobs import time_steps
    from simstrag.ddp import wrap
    from simstrag.ddp.journal.journal import read_journal
    from simstrag.workloads import TrainingTask

    join_process_group(rank, world, folder, "gloo", "cpu")
    record = Path(folder) / "run"
    bare, trained = (TrainingTask(setup.build(), setup.precision, "cpu") for _ in range(2))
    model, optimizer = trained.model, trained.optimizer
    trainer = wrap(
        model, optimizer, setup.policy, batch=setup.batch, out=record,
        precision="stand-in" if setup.stand_in else "full",
    )  # fmt: skip
    weights = [copy.deepcopy(each.model.state_dict()) for each in (bare, trained)]
    done = first = 0

    def time_bare_steps(seconds: float) -> tuple[float, ...]:
        bare.model.load_state_dict(weights[0])  # long training may change the time of a step
        bare.optimizer.state.clear()
        batches = [bare.batch(setup.batch) for _ in range(2)]
        return time_steps(bare, batches, find_device("cpu"), seconds)["seconds"]

    def train(steps: int) -> None:
        nonlocal done, first
        if setup.policy == "bsp":  # reset all ranks at once; a server cannot be
            model.load_state_dict(weights[1])
            optimizer.state.clear()
        batch = trained.batch(setup.batch)
        for _ in range(steps):
            trainer.step(lambda: trained.parts.loss(model, batch))
        done, first = done + steps, done + 1

    def report() -> VisitSeries:
        """The steps of the last training."""
        lines = read_journal(record)[1]
        if setup.policy == "bsp":
            return _lockstep_series(lines, first)
        return _server_series(lines, rank, first)

    actions: dict[str, Callable[..., Any]] = {
        "bare": time_bare_steps,
        "train": train,
        "report": report,
    }
    with trainer:
        serve(pipe, lambda request: actions[request[0]](*request[1:]))


def _server_series(lines: Sequence[Sequence[Any]], rank: int, first: int) -> VisitSeries:
    """Latencies of a rank's gradients at the server, from gradient number `first` on."""
    from simstrag.ddp.journal.communication_from_journal import PARTS, round_trips

    trips = round_trips(lines)[rank][first:]
    parts = {name: [getattr(trip, name) for trip in trips] for name in PARTS}
    known = {name: tuple(s for s in all_ if not math.isnan(s)) for name, all_ in parts.items()}
    return known | {"local": tuple(trip.seconds for trip in trips)}


def _lockstep_series(lines: Sequence[Sequence[Any]], first: int) -> VisitSeries:
    """Local steps of all ranks from number `first` on, and the rest up to the next step."""
    from simstrag.ddp.journal.communication_from_journal import reduction_rests

    steps = [line[2] for line in lines if line[0] == "lockstep"][first:]
    return {
        "local": tuple(s for own in zip(*steps, strict=True) for s in own),
        "rest": tuple(reduction_rests(lines)[first:]),
    }
