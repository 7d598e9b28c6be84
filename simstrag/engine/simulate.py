"""Simulates one job: SimPy is the clock of the outer world, the kernel advances standing plans."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from simstrag import policies
from simstrag.engine.excerpt import Excerpt
from simstrag.engine.kernel import Kernel, Limits, Stop, Truth
from simstrag.engine.recorder import Recorder
from simstrag.engine.summary import summarise
from simstrag.errors import InputError, PlanError, StallError
from simstrag.learning.noise_scale import NoiseScale, unmodelled
from simstrag.policy import Hints, Plan, Policy, View
from simstrag.runs.run import TABLES, Run, provenance, write_directory
from simstrag.runs.tables import OnDisk
from simstrag.scenario.beyond_measured import beyond_measured
from simstrag.scenario.scenario import Scenario
from simstrag.timing.timing import Timing

__all__ = ["check", "simulate"]


def simulate(
    scenario: Scenario,
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
) -> Run:
    """Run one policy through a scenario under one seed.

    policy: a name with parameters such as ``"ssp:bound=5"``, or an object; it is copied.
    record_updates: whether to keep all updates; else time, version, samples and progress of the
        last and of 16,384 others at most, evenly spread.
    on_update: called now and then, and at the end, with (seconds, samples, progress) of the last
        update; it changes nothing.
    out: a run directory to write while it goes on, so that no table of it need fit into memory; it
        is there as a whole in the end or not at all.
    excerpt: these ranks: keep updates and steps, but where they are too many only what
        `Run.excerpt` says of them, so that memory does not grow with the run; not with `out`.
    hints: what the policy is told beforehand, where it is not what the scenario says: by a
        calibration that has gone on since, for instance. The run's provenance has it then.
    Raises `InputError` for what the user can correct, `StallError` where the policy waits for ever.

    >>> scenario = Scenario(workers=4, updates=10, step={"compute": 0.1})
    >>> round(simulate(scenario, "bsp").summary["makespan"], 9)
    1.0
    """
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise InputError(f"seed {seed} must be a whole number, 0 or more and below 2**64")
    keep = record_updates, record_steps, record_gradients
    if excerpt is not None:
        if out is not None:
            raise InputError("an excerpt stays in memory: ask for `excerpt` or for `out`")
        storage = Excerpt(scenario.workers, excerpt)
        return _simulated(
            scenario, policy, seed, Recorder(True, True, True, on_update, storage), hints
        )
    if out is None:
        return _simulated(scenario, policy, seed, Recorder(*keep, on_update), hints)
    run: Run | None = None

    def fill(folder: Path) -> None:
        nonlocal run
        with OnDisk(folder) as files:
            run = _simulated(scenario, policy, seed, Recorder(*keep, on_update, files), hints)
        run.note(folder)

    folder = write_directory(Path(out), "run.json", fill)
    assert run is not None
    return run.at(folder)


def _simulated(
    scenario: Scenario,
    policy: str | Policy,
    seed: int,
    recorder: Recorder,
    hints: Hints | None,
) -> Run:
    name = policy if isinstance(policy, str) else policies.name_of(policy)
    fresh = policies.load(policy) if isinstance(policy, str) else copy.deepcopy(policy)
    job = _Job(scenario, fresh, name, seed, recorder, hints)
    world = simpy.Environment()
    contention = job.timing.contention
    if contention.trace_end == "error" and contention.end < math.inf:
        world.process(_end_of_trace(world, contention.end))
    world.run(until=world.process(job.run(world)))
    return job.result()


def check(scenario: Scenario, policy: str, seed: int) -> None:
    """Raise at once what the first moment of such a run would raise: a plan that cannot be."""
    _Job(scenario, policies.load(policy), policy, seed, Recorder())


class _Job:
    """One data-parallel job in the outer world."""

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        name: str,
        seed: int,
        recorder: Recorder,
        hints: Hints | None = None,
    ) -> None:
        learner = scenario.learner
        self.scenario = scenario
        self.policy = policy
        self.oracle = bool(getattr(policy, "oracle", False))
        self.name = name
        self.seed = seed
        self.timing = scenario.timing(seed)
        self.learner = NoiseScale(learner.batch, learner.noise_scale, learner.c_tau)
        self.recorder = recorder
        self.told_otherwise = hints
        self.hints = _hints(self.timing, scenario) if hints is None else hints
        limits = Limits(scenario.updates, scenario.sample_target, scenario.progress_target)
        self._asked: Plan | None = None
        self._answered: Plan | None = None
        self._untold: InputError | None = None
        self.kernel = Kernel(
            scenario.workers, self.timing, self._plan(self._first_view()), self.learner, limits,
            self.recorder, scenario.straggler_ratio,
        )  # fmt: skip

    def run(self, world: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Advance the standing plan from one event of the outer world to the next."""
        kernel = self.kernel
        stop = kernel.advance(world.peek())
        while stop is not Stop.DONE:
            if stop is Stop.STALLED:
                raise self._stalled()
            if stop is Stop.REVIEW:
                kernel.replan(self._plan(kernel.view(self.hints, self._told(kernel.truth))))
            else:  # what the outer world does at an instant comes after all else of it (rule 15)
                yield world.timeout(world.peek() - world.now)
            stop = kernel.advance(world.peek())
        kernel.end()

    def result(self) -> Run:
        """The finished run."""
        inputs = self.scenario.inputs
        summary, warnings = summarise(
            self.scenario, self.policy, self.name, self.recorder, self.learner
        )
        hashes = {
            name: None if given is None else given.sha256
            for name, given in (("trace", inputs.trace), ("profile", inputs.profile))
        }
        made = {**provenance(), "sha256": hashes}
        if self.told_otherwise is not None:
            made["hints"] = asdict(self.told_otherwise)
        tables: dict[str, Any] = {name: self.recorder.storage.table(name) for name in TABLES}
        return Run(
            self.name,
            self.seed,
            self.scenario.declared,
            summary,
            made,
            **tables,
            warnings=(*warnings, *map(str, beyond_measured(self.scenario, [summary]))),
            excerpt=self.recorder.storage.excerpt,
        )

    def _first_view(self) -> View:
        """The facts before anything has begun."""
        workers, hints, timing = self.scenario.workers, self.hints, self.timing

        def truth() -> npt.NDArray[np.float64]:
            return np.array([timing.noise_free(rank, 0, 0.0) for rank in range(workers)])

        told = self._told(truth)
        return View(workers, hints=hints, noise_scale=hints.noise_scale, truth=told)

    def _plan(self, view: View) -> Plan:
        """What the policy answers, resolved; the same answer is the same plan."""
        try:
            plan = policies.ask(self.policy, view, self.name)
            view.close()
        except PlanError:
            if self._untold is not None:
                raise self._untold from None  # the trace's end is no mistake of the policy
            raise
        if plan is self._asked and self._answered is not None:
            return self._answered
        self._refuse_a_target(plan)
        try:
            resolved = plan.resolved(self.scenario.workers)
            resolved.sizes(self.scenario.learner.batch, self.scenario.workers)
        except PlanError as error:
            raise PlanError(f"policy {self.name}: {error}") from None
        self._asked, self._answered = plan, resolved
        return resolved

    def _told(self, truth: Truth) -> Truth | None:
        """The truth, for an oracle alone, and a note of what the trace cannot tell."""
        if not self.oracle:
            return None

        def told() -> npt.NDArray[np.float64]:
            try:
                return truth()
            except InputError as error:
                self._untold = error
                raise

        return told

    def _refuse_a_target(self, plan: Plan) -> None:
        """A target needs progress, which the noise-scale learner does not know of every plan."""
        reason = getattr(self.policy, "unmodelled", None) or unmodelled(plan)
        if reason and self.scenario.progress_target is not None:
            raise PlanError(
                f"policy {self.name} cannot be measured by a target: {reason}, and the "
                "noise-scale formula does not hold there; declare samples alone, or train for real"
            )

    def _stalled(self) -> StallError:
        kernel = self.kernel
        ranks = kernel.holding
        held = f"ranks {ranks} hold gradients" if ranks else "no rank computes"
        return StallError(
            f"policy {self.name} waits for ever at {kernel.now:g} s, "
            f"version {kernel.version}: {held}; the plan is {kernel.plan}"
        )


def _end_of_trace(world: simpy.Environment, end: float) -> Generator[simpy.Event, Any, None]:
    """Under `trace_end: error` nobody knows what comes after the last row (rule 8)."""
    yield world.timeout(end)
    raise InputError(
        f"the trace ends at {end:g} s, before the run does; "
        "record more, or say `trace_end: hold` or `loop`"
    )


def _hints(timing: Timing, scenario: Scenario) -> Hints:
    """What a calibrated cluster would tell its policies; recorded durations are not calibrated."""
    step, learner = timing.step, scenario.learner
    known = not timing.contention.durations
    return Hints(
        amp_ratio=step.amp_ratio,
        host_seconds=step.host if known else None,
        clean_seconds=step.host + step.gpu if known else None,
        amp_switch=step.amp_switch,
        batch=learner.batch,
        microbatches=step.microbatches,
        samples=scenario.sample_target,
        noise_scale=learner.noise_scale,
    )
