"""One simulated run: the policy answers, and the kernel advances the plan in force."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator
from dataclasses import asdict
from importlib import metadata
from typing import Any, cast

import numpy as np
import simpy

from simstrag import policies
from simstrag.arrays import Floats
from simstrag.contract import Hints, JudgesBlocks, Plan, Policy, View
from simstrag.engine.failures import Failures
from simstrag.engine.kernel import Kernel, Stop, Truth
from simstrag.engine.native.library import LIBRARY
from simstrag.engine.plain import Plain
from simstrag.engine.recorder import Recorder
from simstrag.engine.reviews import Reviews
from simstrag.engine.rule_state import Limits
from simstrag.engine.summary import summarise, unslowed_warning, unused_noise_warning
from simstrag.errors import InputError, PlanError, StallError
from simstrag.learning.noise_scale import NoiseScale, unmodelled
from simstrag.learning.training import Trained
from simstrag.learning.update_rule import UpdateRule
from simstrag.runs.run import TABLES, Run, provenance
from simstrag.scenario.beyond_measured import beyond_measured, doubts
from simstrag.scenario.scenario import Scenario
from simstrag.timing.constants import Step, gain_key
from simstrag.timing.timing import Timing

Engine = Kernel | Plain
Permit = Callable[[Plan], Plan]
ENGINES: dict[str, type[Engine]] = {"native": Kernel, "plain": Plain}


class Simulation:
    """One run: a policy and the kernel.

    timing: in place of the scenario's.
    telemetry: of a cluster, what `View.telemetry` shows now.
    permit: sees each resolved plan of the policy before it takes force; returns it, or the plan
        that takes force in its place.
    trained: of a real learner, the training by the gradients of this very run.
    """

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        name: str,
        seed: int,
        recorder: Recorder,
        hints: Hints | None = None,
        engine: str = "native",
        timing: Timing | None = None,
        telemetry: Callable[[], Floats] | None = None,
        permit: Permit | None = None,
        trained: Trained | None = None,
    ) -> None:
        learner = scenario.learner
        self.scenario = scenario
        self.policy = policy
        self.oracle = bool(getattr(policy, "oracle", False))
        self.name = name
        self.seed = seed
        self.timing = scenario.timing(seed) if timing is None else timing
        self.learner = NoiseScale(learner.batch, learner.noise_scale, learner.c_tau)
        self.recorder = recorder
        self.other_hints = hints
        self.hints = _hints(self.timing, scenario) if hints is None else hints
        self._telemetry = telemetry
        limits = Limits(scenario.updates, scenario.sample_target, scenario.progress_target)
        self.trained = trained
        if trained is not None and trained.reached is not None:
            limits = Limits(trained.evaluations.updates[-1], None, None)
        self.rules: dict[UpdateRule, None] = {}  # of its plans, for a real learner
        self._asked: Plan | None = None
        self._answered: Plan | None = None
        self._permit, self._permitted = permit, Plan()
        self._refused = False
        self._delay, self._delayed = 0.0, (Plan(), Plan())
        section, workers = scenario.failures, scenario.workers
        self._failures = None if section is None else Failures.of(section, seed, workers)
        self._truth_error: InputError | None = None
        self.kernel: Engine = _engine(engine)(
            scenario.workers, self.timing, self._ask(self._first_view()), self.learner, limits,
            self.recorder, scenario.straggler_ratio,
        )  # fmt: skip
        self._shown_truth = self._truth(self.kernel.truth)
        others_look = permit is not None or telemetry is not None or self.oracle
        self._reviews = None
        if isinstance(self.kernel, Kernel) and isinstance(policy, JudgesBlocks) and not others_look:
            self._reviews = Reviews(self.kernel, name)
        if self._failures is not None:
            self._failures.begin(self)

    def run(self, world: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Advance the run from one event of the clock to the next."""
        while not self.advance(world.peek()):  # events of the clock come last (rule 15)
            yield world.timeout(world.peek() - world.now)
        self.kernel.end()

    def advance(self, until: float) -> bool:
        """Go on until the run ends, or to what happens at `until`; whether it ends."""
        failures = self._failures
        while failures is not None and failures.next <= until:
            if self._advance(failures.next):
                return True
            failures.happen(self)
        return self._advance(until)

    def _advance(self, until: float) -> bool:
        """The same, while no rank fails, is lost or comes back."""
        kernel, failures = self.kernel, self._failures
        while (stop := self._go_on(until)) in (Stop.REVIEW, Stop.CHECKPOINT):
            if stop is Stop.REVIEW:
                plan = self._ask(kernel.view(self.hints, self._shown_truth, self._refused))
                if self._reviews is not None:
                    self._reviews.learn(plan is kernel.plan)
                kernel.replan(plan)
            else:
                assert failures is not None
                failures.save(self)
        if stop is Stop.STALLED and not (failures is not None and failures.awaits):
            raise self._stalled()
        return stop is Stop.DONE

    def _go_on(self, until: float) -> Stop:
        """Go on to the next moment at which the policy, or this, must act."""
        if self._reviews is None:
            return self.kernel.advance(until)
        return self._reviews.advance(cast(JudgesBlocks, self.policy), self.hints, until)

    @property
    def full_plan(self) -> Plan:
        """The policy's plan, as if all ranks were there."""
        return self._permitted

    def go_back(self, policy: Policy, plan: Plan) -> None:
        """Ask this policy from now on, and take this plan for its last answer."""
        self.policy, self._permitted = policy, plan
        self._asked = self._answered = None

    def delay(self, at: float, seconds: float) -> None:
        """From `at` on, to which the run was advanced, every pause is so much longer (rule 5a)."""
        self._delay = seconds
        self.kernel.pause(at)
        self.kernel.change_pause(self._in_force(self._permitted))

    def result(self) -> Run:
        """The finished run."""
        inputs = self.scenario.inputs
        if self.trained is not None:
            self.recorder.evaluated(self.trained.evaluations)
        summary, warnings = summarise(
            self.scenario,
            self.policy,
            self.name,
            self.recorder,
            self.learner,
            self.trained,
            None if self._failures is None else self._failures.counts,
        )
        hashes = {
            name: None if given is None else given.sha256
            for name, given in (("trace", inputs.trace), ("profile", inputs.profile))
        }
        made = {**provenance(), "sha256": hashes}
        if self.trained is not None:
            made["torch"] = metadata.version("torch")
        if self.other_hints is not None:
            made["hints"] = asdict(self.other_hints)
        tables: dict[str, Any] = {name: self.recorder.storage.table(name) for name in TABLES}
        unslowed = unslowed_warning(self.scenario, {self.seed: summary["makespan"]})
        unused = unused_noise_warning(self.scenario)
        beyond = beyond_measured(self.scenario, [summary])
        doubtful = doubts(self.scenario)
        return Run(
            self.name,
            self.seed,
            self.scenario.declared,
            summary,
            made,
            **tables,
            warnings=(*doubtful, *filter(None, [unslowed, unused]), *warnings, *map(str, beyond)),
            excerpt=self.recorder.storage.excerpt,
        )

    def _first_view(self) -> View:
        workers, hints, timing = self.scenario.workers, self.hints, self.timing

        def truth() -> Floats:
            return np.array([timing.noise_free(rank, 0, 0.0) for rank in range(workers)])

        oracle_truth = self._truth(truth)
        return View(workers, hints=hints, noise_scale=hints.noise_scale, truth=oracle_truth)

    def _ask(self, view: View) -> Plan:
        """The plan that is in force from now on."""
        plan = self._plan(view)
        self._permitted = plan if self._permit is None else self._permit(plan)
        self._refused = self._permitted is not plan
        return self._in_force(self._permitted)

    def _in_force(self, plan: Plan) -> Plan:
        """A plan without lost ranks, and with a longer pause; the same object for the same plan."""
        if self._failures is not None:
            left = self._failures.restrict(self, plan)
            if left is None:
                return self.kernel.plan  # until one of its ranks is back
            plan = left
        if not self._delay:
            return plan
        of, delayed = self._delayed
        if of is not plan or delayed.pause != plan.pause + self._delay:
            self._delayed = plan, plan.paused(self._delay)
        return self._delayed[1]

    def _plan(self, view: View) -> Plan:
        """The policy's plan, resolved; the same object is resolved once."""
        if self._telemetry is not None:
            view.show_telemetry(self._telemetry())
        try:
            plan = policies.ask(self.policy, view, self.name)
            view.close()
        except PlanError:
            if self._truth_error is not None:
                raise self._truth_error from None  # the trace's end is no mistake of the policy
            raise
        if plan is self._asked and self._answered is not None:
            return self._answered
        self._refuse_a_target(plan)
        self._refuse_long_contributions(plan)
        if self.scenario.learner.is_real:
            self.rules[UpdateRule.of(plan)] = None
        try:
            resolved = plan.resolved(self.scenario.workers)
            resolved.sizes(self.scenario.learner.batch, self.scenario.workers)
        except PlanError as error:
            raise PlanError(f"policy {self.name}: {error}") from None
        if self.timing.step.amp_ratio is None and resolved.in_amp.any():
            raise unknown_gain(self.name, self.timing.step)
        self._asked, self._answered = plan, resolved
        return resolved

    def _truth(self, truth: Truth) -> Truth | None:
        """The truth, for an oracle only; an error of the trace is kept and raised later."""
        if not self.oracle:
            return None

        def checked() -> Floats:
            try:
                return truth()
            except InputError as error:
                self._truth_error = error
                raise

        return checked

    def _refuse_a_target(self, plan: Plan) -> None:
        """Refuse a target where the noise-scale learner does not know the progress of a plan."""
        if self.scenario.progress_target is None:
            return
        reason = getattr(self.policy, "unmodelled", None) or unmodelled(plan)
        if reason:
            raise PlanError(
                f"policy {self.name} cannot be measured by a target: {reason}, and the "
                "noise-scale formula does not hold there; declare samples alone, or train for real"
            )

    def _refuse_long_contributions(self, plan: Plan) -> None:
        """Refuse private steps of one rank that have more samples than the whole run."""
        limit, batch = self.scenario.sample_target, self.scenario.learner.batch
        steps = max(quorum.most_steps for quorum in plan.quorums) if plan.average else 1
        if limit is not None and (steps - 1) * batch >= limit:
            raise PlanError(
                f"policy {self.name}: {steps:,} private steps of one rank have more samples than "
                f"the whole run, {limit:,.0f}; lower them, or raise samples"
            )

    def _stalled(self) -> StallError:
        kernel = self.kernel
        if self._failures is not None and self._failures.too_few:
            return StallError(
                f"policy {self.name}, seed {self.seed}: too few ranks are left at {kernel.now:g} "
                "s, and none comes back; give failures.rejoin, or failures.on_fault: restart"
            )
        ranks = kernel.holding
        held = f"ranks {ranks} hold gradients" if ranks else "no rank computes"
        return StallError(
            f"policy {self.name} waits for ever at {kernel.now:g} s, "
            f"version {kernel.version}: {held}; the plan is {kernel.plan}"
        )


def _engine(name: str) -> type[Engine]:
    """The engine of a name; the plain one where the native library was not built."""
    if name not in ENGINES:
        raise InputError(f"there is no engine {name!r}; known: {', '.join(ENGINES)}")
    if name == "native" and not LIBRARY.exists():
        _warn_of_plain()
        return Plain
    return ENGINES[name]


@functools.cache
def _warn_of_plain() -> None:
    logging.getLogger("simstrag").warning(
        "the native engine was not built when simstrag was installed: the plain engine runs, with "
        "the same results, and takes far longer; install a C compiler and simstrag again"
    )


def unknown_gain(policy: str, step: Step) -> InputError:
    """The error for a policy that reduces precision where its gain is not known."""
    return InputError(
        f"policy {policy} uses reduced precision, but its gain is unknown: give {gain_key(step)} "
        f"or a profile that measured it, or leave {policy} out"
    )


def _hints(timing: Timing, scenario: Scenario) -> Hints:
    """The hints of a calibrated cluster; recorded durations are not calibrated."""
    step, learner = timing.step, scenario.learner
    known = not timing.contention.durations
    return Hints(
        amp_ratio=step.amp_ratio,
        step=step.hint if known else None,
        host_seconds=step.host if known and not step.overlaps else None,
        clean_seconds=step.clean if known else None,
        amp_switch=step.amp_switch,
        batch=learner.batch,
        microbatches=step.microbatches,
        samples=scenario.sample_target,
        noise_scale=learner.noise_scale,
        nodes=timing.nodes or tuple(range(scenario.workers)),
    )
