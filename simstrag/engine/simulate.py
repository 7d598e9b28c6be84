"""Simulates one training job: one policy, through one scenario, under one seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import simpy

from simstrag import policies
from simstrag.contract import Hints, Policy
from simstrag.documents.file_io import path_of
from simstrag.documents.units import whole_number
from simstrag.engine.excerpt import Excerpt
from simstrag.engine.real_training import evaluation_interval, train
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulation import Simulation, unknown_gain
from simstrag.errors import InputError
from simstrag.learning.gradient_log import GradientLog
from simstrag.learning.training import Trained
from simstrag.runs.run import Run, write_directory
from simstrag.runs.tables import OnDisk
from simstrag.scenario.scenario import Scenario


def simulate(
    scenario: Scenario | str | Path,
    policy: str | Policy = "bsp",
    seed: int = 0,
    *,
    record_updates: bool = True,
    record_steps: bool = False,
    record_gradients: bool = False,
    on_update: Callable[[float, int, float | None], None] | None = None,
    out: str | Path | None = None,
    excerpt: Sequence[int] | None = None,
    hints: Hints | None = None,
    engine: str = "native",
) -> Run:
    """Run one policy through a scenario under one seed.

    scenario: a `Scenario` or the path of a YAML file.
    policy: a name with parameters such as ``"ssp:bound=5"``, or an object, which is copied.
    record_updates: keep all updates; else time, version, samples and progress of the last one and
        of at most 16,384 others, evenly spread.
    record_steps, record_gradients: keep all steps, all gradients.
    on_update: called now and then, and at the end, with (seconds, samples, progress) of the last
        update; of a real learner at each evaluation, with None for progress.  It changes nothing.
    out: a run directory to write during the run, so that its tables need not fit into memory; it
        is complete in the end or absent.
    excerpt: ranks; keep updates and steps, but only an excerpt of them (see `Run.excerpt`) once
        they are too many, so that memory does not grow with the run; not with `out`.
    hints: what the policy knows beforehand, where it differs from the scenario, such as a newer
        calibration; the run's provenance states it.
    engine: "native", or "plain", which is Python alone, gives the same results and is far slower.
    Raises `InputError` for mistakes of the user, `StallError` where the policy waits for ever.

    >>> scenario = Scenario(workers=4, updates=10, step={"compute": 0.1})
    >>> round(simulate(scenario, "bsp").summary["makespan"], 9)
    1.0
    """
    seed = whole_seed(seed)
    scenario = Scenario.given(scenario)
    if not isinstance(hints, Hints | None):
        raise InputError(f"hints {hints!r} are none; give simstrag.Hints(...)")
    keep = record_updates, record_steps, record_gradients
    if excerpt is not None:
        if out is not None:
            raise InputError("an excerpt stays in memory: ask for `excerpt` or for `out`")
        storage = Excerpt(scenario.workers, _ranks_of(excerpt, scenario.workers))
        recorder = Recorder(True, True, True, on_update, storage)
        return simulate_into(recorder, scenario, policy, seed, hints, engine)
    if out is None:
        recorder = Recorder(*keep, on_update)
        return simulate_into(recorder, scenario, policy, seed, hints, engine)
    run: Run | None = None

    def fill(folder: Path) -> None:
        nonlocal run
        with OnDisk(folder) as files:
            recorder = Recorder(*keep, on_update, files)
            run = simulate_into(recorder, scenario, policy, seed, hints, engine)
        run.note(folder)

    folder = write_directory(path_of(out, "a folder to write"), "run.json", fill)
    assert run is not None
    return run.at(folder)


def whole_seed(seed: Any) -> int:
    """A seed as an int. Raises `InputError` where it is none.

    >>> whole_seed(-1)
    Traceback (most recent call last):
    simstrag.errors.InputError: seed -1 must be a whole number, 0 or more
    """
    if (number := whole_number(seed, "seed")) >= 2**64:
        raise InputError(f"seed {number} must be below 2**64")
    return number


def _ranks_of(excerpt: Any, workers: int) -> list[int]:
    """The ranks of an excerpt. Raises `InputError` where they are none of the run."""
    if isinstance(excerpt, str) or not isinstance(excerpt, Iterable):
        raise InputError(f"excerpt {excerpt!r} is no list of ranks; give one, such as [0, 1]")
    ranks = [whole_number(rank, "excerpt: rank") for rank in excerpt]
    if absent := [rank for rank in ranks if rank >= workers]:
        raise InputError(f"excerpt: there is no rank {absent[0]}; ranks are 0 to {workers - 1}")
    return ranks


def simulate_into(
    recorder: Recorder,
    scenario: Scenario,
    policy: str | Policy,
    seed: int,
    hints: Hints | None = None,
    engine: str = "native",
) -> Run:
    """Run one policy, with the recorder that takes its rows; the rest is as in `simulate`.

    A run with a real learner is simulated to the end of its samples, trained, and simulated again
    up to the update that reached the target.
    """
    trained = None
    if scenario.learner.is_real:
        evaluation_interval(scenario)  # raises before a long run rather than after it
        log = GradientLog()
        logged = Recorder(keep_gradients=True, storage=log)
        rules = _run(logged, scenario, policy, seed, hints, engine).rules
        trained = train(scenario, seed, log, rules, recorder.on_update)
        recorder.on_update = None  # it was called as the model was trained
    return _run(recorder, scenario, policy, seed, hints, engine, trained).result()


def _run(
    recorder: Recorder,
    scenario: Scenario,
    policy: str | Policy,
    seed: int,
    hints: Hints | None,
    engine: str,
    trained: Trained | None = None,
) -> Simulation:
    """A finished simulation; with `trained` it ends where the training did."""
    name, fresh = policies.new(policy)
    simulation = Simulation(scenario, fresh, name, seed, recorder, hints, engine, trained=trained)
    world = simpy.Environment()
    contention = simulation.timing.contention
    if contention.trace_end == "error" and contention.end < math.inf:
        world.process(_end_of_trace(world, contention.end))
    world.run(until=world.process(simulation.run(world)))
    return simulation


def check(scenario: Scenario, policy: str, seed: int) -> None:
    """Raise what the start of such a run would raise, and what `require_gain` raises."""
    require_gain(scenario, policy)
    Simulation(scenario, policies.load(policy), policy, seed, Recorder())


def require_gain(scenario: Scenario, policy: str) -> None:
    """Refuse a policy that may reduce precision where nothing states what that gains.

    A run would fail when its first rank is slowed, which may be late.
    """
    may_reduce = getattr(policies.load(policy), "reduces_precision", False)
    if may_reduce and scenario.inputs.step.amp_ratio is None:
        raise unknown_gain(policy, scenario.inputs.step)


def _end_of_trace(world: simpy.Environment, end: float) -> Generator[simpy.Event, Any, None]:
    """End a run at the last row under `trace_end: error` (rule 8)."""
    yield world.timeout(end)
    raise InputError(
        f"the trace ends at {end:g} s, before the run does; "
        "record more, or say `trace_end: hold` or `loop`"
    )
