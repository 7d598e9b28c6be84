"""Predicts a case by simulation, from the profile and the schedule of load alone.

A synchronous step is forward and backward, then a remainder: the exposed part of the all-reduce,
and the update. If calibration timed the same number of ranks in lockstep, the profile has the whole
remainder, the slowdown of a step by the other ranks, and both beside load. Otherwise the remainder
is the exposed part of the measured all-reduce plus the update, which reduced precision does not
shorten, and a second rank on a core counts as one more level of load. Under a server the update is
part of the service time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from simstrag import policies
from simstrag.contract import Hints, View
from simstrag.ddp import policy_support
from simstrag.ddp.policy_support import profile_hints
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.profile.batch_laws import times_at
from simstrag.profile.measurements import CollectiveCell, LockstepCell
from simstrag.profile.profile import PrecisionSeconds, Profile, StepTimes
from simstrag.profile.quantity import Quantity
from simstrag.profile.responses import evaluate
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from simstrag.validation.cases import CLEAN, Case, ValidationPlan, windows
from simstrag.validation.distributions import SEEDS as DRAWN
from simstrag.validation.distributions import RunSample
from simstrag.validation.loadgen.schedule import Schedule, response_to
from simstrag.validation.run_metrics import Measure, measure, sample

SEEDS = 20

ADAPTED = 4
"""Seeds per repetition for predictions at the pace of a run."""

GRID = 60
"""Intervals of the time grid on which the pace of a run is recorded."""

ITEM = {False: 4, True: 8}
"""Bytes of a parameter, by whether the precision pair is the fp64/fp32 stand-in."""


class Constant(NamedTuple):
    """A constant of a simulation and its origin. ranks: the world size it holds for; "" for any."""

    what: str
    ranks: str
    value: float
    unit: str
    origin: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """The simulated runs of a case.

    runs: one measure per seed.
    grid: edges of the intervals of the pace, in seconds.
    adapted: mean makespan at the pace of the cores around each real run, by repetition.
    """

    case: Case
    runs: tuple[Measure, ...]
    grid: tuple[float, ...]
    adapted: Mapping[int, float] = field(default_factory=dict)

    @property
    def makespan(self) -> float:
        """Mean makespan over seeds, in seconds."""
        return float(np.mean([run.makespan for run in self.runs]))

    @property
    def usual(self) -> float:
        """Mean makespan at the profile's pace, over the seeds that `adapted` uses."""
        return float(np.mean([run.makespan for run in self.runs[:ADAPTED]]))


class Predictor:
    """Builds scenarios of cases from a profile and simulates them.

    cores: number of cores that the ranks share.
    hinting: predictor whose profile gives the policies their hints; by default this one.
    replica: seconds of a step of a replica, from `RankPool.replica_pace`; for cases with shards.
    constants: constants of the simulations so far, by name and world size.

    Raises `InputError` if the profile has no step times.
    """

    def __init__(
        self,
        profile: Profile,
        cores: int,
        hinting: Predictor | None = None,
        replica: Mapping[str, float] | None = None,
    ) -> None:
        if profile.step is None or profile.workload is None:
            raise InputError(f"profile {profile.name} has no step times; calibrate a workload")
        self.profile, self.cores, self.hinting = profile, cores, hinting
        self.replica = replica
        self.workload = profile.workload
        self.constants: dict[tuple[str, str], Constant] = {}

    def pace(self, ranks: int) -> float:
        """Seconds of a bare step while `ranks` cores compute at once."""
        known = self._lockstep(ranks).get(0.0)
        slower = 1.0 if known is None or known.interference is None else known.interference.value
        return times_at(self.profile, self.workload.batch).compute.value * slower

    def clean(self, case: Case) -> float:
        """Simulated makespan of bsp for the same steps without load, in seconds (seed 0)."""
        bsp = Case("bsp", case.ranks, CLEAN, case.steps, case.shards)
        (run,) = self.simulate(bsp, Schedule((), 1.0), seeds=1)
        return float(run.summary["makespan"])

    def predict(self, case: Case, plan: ValidationPlan, seeds: int = SEEDS) -> Prediction:
        """Simulate a case under several seeds."""
        schedule = plan.schedule(case)
        runs = self.simulate(case, schedule, seeds, record_gradients=True)
        longest = max(float(run.summary["makespan"]) for run in runs)
        grid = tuple(np.linspace(0.0, 1.15 * longest, GRID + 1).tolist())
        edges = [start for start, *_ in windows(schedule)]
        batch = plan.worker_batch(case)
        found = (measure(run, plan.samples(case), batch, edges, grid) for run in runs)
        return Prediction(case, tuple(found), grid)

    def draw_runs(self, case: Case, plan: ValidationPlan, seeds: int = DRAWN) -> list[RunSample]:
        """Makespan and steps of a case under many seeds, each at a pace of its own.

        The pace is the profile's `step.pace`; without one all runs have the profile's.
        """
        assert self.profile.step is not None
        known = self.profile.step.pace
        pace = 0.0 if known is None else self._take("pace of a run, standard deviation", known)
        runs = self.simulate(case, plan.schedule(case), seeds, pace=pace, record_steps=True)
        return [sample(run, plan.samples(case)) for run in runs]

    def adapt(
        self, predicted: Prediction, plan: ValidationPlan, paces: Mapping[int, Sequence[float]]
    ) -> Prediction:
        """Add predictions at the pace of each repetition.

        paces: seconds of a bare step on each core around a real run, by repetition.

        A shared machine changes its pace by the minute. An error that remains at the pace of the
        run is the simulation's; the difference is the machine's.
        """
        case = predicted.case
        found, usual = {}, self.pace(max(each.ranks for each in plan.cases))
        for repetition, seconds in paces.items():
            slower = [round(each / usual, 3) for each in seconds]
            runs = self.simulate(case, plan.schedule(case), ADAPTED, slower)
            found[repetition] = float(np.mean([run.summary["makespan"] for run in runs]))
        return replace(predicted, adapted=found)

    def simulate(
        self,
        case: Case,
        schedule: Schedule,
        seeds: int,
        slower: Sequence[float] | None = None,
        pace: float = 0.0,
        record_gradients: bool = False,
        record_steps: bool = False,
    ) -> list[Run]:
        """Runs of a case under seeds 0, 1, ...; the policy gets the hints of `hinting`.

        slower: step time on each core relative to the profile.
        pace: `noise.pace` of the scenario.
        """
        scenario, hints = self._scenario_of(case, schedule, slower), None
        if pace:
            scenario = scenario.replaced(noise={"pace": pace})
        if case.shards > 1:  # no profile has steps of replicas: policies measure
            hints = profile_hints(None, self.workload.batch * case.shards, scenario.samples)
        elif self.hinting is not None:
            known = self.hinting._scenario_of(case, schedule).inputs.profile
            hints = profile_hints(known, self.workload.batch, scenario.samples)
        return [
            simulate(
                scenario, case.policy, seed, record_steps=record_steps,
                record_gradients=record_gradients, hints=hints,
            )
            for seed in range(seeds)
        ]  # fmt: skip

    def _scenario_of(
        self, case: Case, schedule: Schedule, slower: Sequence[float] | None = None
    ) -> Scenario:
        batch = self.workload.batch
        hints = profile_hints(self.profile, batch, case.steps * case.ranks * batch)
        return self.scenario(case, schedule, synchronous(case, hints), slower)

    def scenario(
        self,
        case: Case,
        schedule: Schedule,
        updates_in_step: bool,
        slower: Sequence[float] | None = None,
    ) -> Scenario:
        """The scenario of a case.

        updates_in_step: every rank applies the update itself; no server does.
        slower: step time on each core relative to the profile.
        """
        if case.shards > 1:
            return self._scenario_of_replicas(case, schedule, updates_in_step, slower)
        known = self._lockstep(case.ranks)
        lockstep = known if updates_in_step else {}
        among = self._slowdown_among(case.ranks, updates_in_step)
        loaded = self._slowdown_under_load(case.ranks)
        rests = {level: each.rest.value for level, each in lockstep.items()}
        paces = [1.0] * self.cores if slower is None else slower
        trace = slowdowns(schedule, self.profile, case.ranks, paces, among, rests, loaded)
        profile = self._profile_of(updates_in_step, lockstep.get(0.0))
        data: dict[str, Any] = {
            "workers": case.ranks,
            "samples": case.steps * case.ranks * self.workload.batch,
            "learner": {"batch": self.workload.batch},
            "profile": profile.name,
            "allreduce": self._remainder(lockstep) if lockstep else self._allreduce(case.ranks),
            "seeds": SEEDS,
            "policies": (case.policy,),
        }
        if not updates_in_step:
            data["server"] = self._server()
        if trace is not None:
            data |= {"trace": trace, "allow_speedup": trace.speeds_up}
        return Scenario.of(data, source=case.name, profile=profile)

    def _scenario_of_replicas(
        self, case: Case, schedule: Schedule, updates_in_step: bool, slower: Sequence[float] | None
    ) -> Scenario:
        """The scenario of a case whose workers are replicas of several ranks.

        A step of a replica, with FSDP2's collectives and with all ranks on their cores, is measured
        beforehand.  An all-reduce between replicas is of one shard, behind backward.
        """
        assert self.replica is not None, "cases with shards need the step of a replica"
        profile = self._profile_of(False, None)
        seconds, note = self.replica["full"], "all replicas at once, without a policy"
        self._note("step of a replica", seconds, "s", case.ranks, f"measured: {note}")
        changes: dict[str, Any] = {"compute": Quantity(value=seconds, kind="measured", note=note)}
        assert profile.step is not None
        assert profile.workload is not None
        if "amp" in self.replica and profile.step.amp_ratio is not None:
            gain = seconds / self.replica["amp"]
            self._note("gain of a replica", gain, "", case.ranks, f"measured: {note}")
            changes["amp_ratio"] = Quantity(value=gain, kind="measured", note=note)
        step = profile.step.model_copy(update=changes)
        if updates_in_step:
            step = with_update(step, self._take("update", self._update(), "s") / case.shards)
        batch = self.workload.batch * case.shards
        workload = profile.workload.model_copy(update={"batch": batch})
        profile = profile.model_copy(update={"step": step, "workload": workload})
        paces = [1.0] * self.cores if slower is None else slower
        loaded = self._slowdown_under_load(case.ranks)
        trace = slowdowns(schedule, self.profile, case.ranks, paces, among=1.0, loaded=loaded)
        data: dict[str, Any] = {
            "workers": case.workers, "worker": {"ranks": case.shards},
            "nodes": [
                rank for worker in range(case.workers)
                for rank in range(worker, case.ranks, case.workers)
            ],
            "samples": case.steps * case.ranks * self.workload.batch, "learner": {"batch": batch},
            "profile": profile.name, "allreduce": self._allreduce(case.workers, case.shards),
            "seeds": SEEDS, "policies": (case.policy,),
        }  # fmt: skip
        if not updates_in_step:
            data["server"] = self._server()
        if trace is not None:
            data |= {"trace": trace, "allow_speedup": trace.speeds_up}
        return Scenario.of(data, source=case.name, profile=profile)

    # -- constants ---------------------------------------------------------------------------

    def _note(self, what: str, value: float, unit: str, ranks: int | str, origin: str) -> float:
        self.constants[what, str(ranks)] = Constant(what, str(ranks), value, unit, origin)
        return value

    def _take(self, what: str, known: Quantity, unit: str = "", ranks: int | str = "") -> float:
        """The value of a quantity of the profile, noted as a constant."""
        return self._note(what, known.value, unit, ranks, _origin(known))

    def _lockstep(self, ranks: int) -> dict[float, LockstepCell]:
        """Measured lockstep cells of this world size by level of load; {} without a clean one."""
        found = {
            each.level: each
            for each in self.profile.locksteps
            if (each.ranks, each.batch, each.precision)
            == (ranks, self.workload.batch, self.workload.full)
            and each.load == ("cpu" if each.level else "")
        }
        return found if 0.0 in found else {}

    def _slowdown_under_load(self, ranks: int) -> dict[float, float]:
        """Slowdown of a step among the ranks by level of load, where it was measured."""
        return {
            level: self._take(f"slowdown of a step under load cpu {level:g}", found, "", ranks)
            for level, each in self._lockstep(ranks).items()
            if level and (found := each.slowdown) is not None
        }

    def _slowdown_among(self, ranks: int, in_step: bool) -> float | None:
        """Slowdown of a step by the other ranks; None if it was not measured."""
        lockstep = self._lockstep(ranks).get(0.0)
        known = {"in lockstep": None if lockstep is None else lockstep.slowdown}
        if not in_step:
            served = (each.slowdown for each in self.profile.transfers if each.ranks == ranks)
            known = {"under a server": next(served, None)} | known
        for how, found in known.items():
            if found is not None:
                what = f"slowdown of a step by the other ranks, {how}"
                return self._take(what, found, ranks=ranks)
        if ranks > self.cores:
            origin = "assumed: as one level of load, by the response to load cpu"
            slower = _respond(self.profile, 1.0)
            self._note("slowdown by a rank on the same core", slower, "", ranks, origin)
        return None

    def _remainder(self, lockstep: Mapping[float, LockstepCell]) -> dict[str, Any]:
        """An all-reduce that takes the time from the slowest gradient to the next step."""
        for level, each in lockstep.items():
            load = f", under load cpu {level:g}" if level else ""
            what = f"from the slowest gradient to the next step{load}"
            self._take(what, each.rest, "s", each.ranks)
        clean = lockstep[0.0]
        return _constant_allreduce(clean.rest.value, clean.ranks, clean.bytes)

    def _profile_of(self, updates_in_step: bool, lockstep: LockstepCell | None) -> Profile:
        """The profile with the step of a mechanism."""
        step = times_at(self.profile, self.workload.batch)
        self._take("step", step.compute, "s")
        if step.amp_ratio is not None:
            self._take("gain of reduced precision", step.amp_ratio)
        ranks: int | str = ""
        if lockstep is not None and lockstep.noise is not None:
            step, ranks = step.model_copy(update={"noise": lockstep.noise}), lockstep.ranks
        if step.noise is not None:
            origin = f"{step.noise.kind}: empirical quantiles"
            spread = float(np.std(step.noise.quantiles))
            self._note("noise of steps", spread, "", ranks, origin)
            lag1, origin = step.noise.lag1_autocorrelation, step.noise.kind
            if lag1 is not None:
                self._note("autocorrelation of successive steps", lag1, "", ranks, origin)
        if updates_in_step and lockstep is None:
            what = "update, by every rank of a synchronous plan"
            step = with_update(step, self._take(what, self._update(), "s"))
        return self.profile.model_copy(update={"step": step})

    def _update(self) -> Quantity:
        full, batch = self.workload.full, self.workload.batch
        for cell in self.profile.cells:
            if (cell.precision, cell.batch) == (full, batch) and cell.update is not None:
                return cell.update
        return Quantity(value=0.0, kind="assumed", note="not in the profile; 0")

    def _allreduce(self, ranks: int, shards: int = 1) -> dict[str, Any]:
        """Constants of the exposed part of an all-reduce among all ranks, or of one shard.

        The exposed part is scaled here because `overlap` cannot be negative; a measured one can.
        """
        if ranks == 1:
            return {}
        known, what = self.profile.allreduce, "all-reduce of a gradient"
        size = self.workload.parameters * ITEM[self.workload.stand_in] // shards
        left = max(0.0, 1.0 - self._overlap(ranks)) if shards == 1 else 1.0
        alone = [
            cell for cell in self.profile.collectives
            if cell.ranks == ranks and cell.group == "all" and not cell.load
        ]  # fmt: skip
        seconds = _at_size(alone, size)
        if seconds is not None:
            shared = ", ranks sharing cores" if any(cell.oversubscribed for cell in alone) else ""
            how = f"measured among {ranks} ranks{shared}, on lines between the sizes around it"
            self._note(what, seconds, "s", ranks, how)
            return _constant_allreduce(seconds * left, ranks, size)
        if known is None:
            raise InputError(
                f"profile {self.profile.name} has no all-reduce; calibrate with --part allreduce"
            )
        ring = 2 * (ranks - 1) * (known.alpha.value + size / ranks / known.bandwidth.value)
        self._note(what, ring, "s", ranks, f"by the ring formula; {known.alpha.note}")
        return {
            "alpha": known.alpha.value * left, "bytes": float(size), "overlap": 0.0,
            "bandwidth": known.bandwidth.value / left if left else math.inf,
        }  # fmt: skip

    def _overlap(self, ranks: int) -> float:
        """Share of an all-reduce that backward hides, of the nearest number of ranks."""
        what, known = "share of an all-reduce that backward hides", self.profile.allreduce
        found = [
            each for each in self.profile.overlaps
            if each.batch == self.workload.batch and each.precision == self.workload.full
        ]  # fmt: skip
        if found:
            best = min(found, key=lambda each: abs(each.ranks - ranks))
            other = "" if best.ranks == ranks else f", taken from {best.ranks} ranks"
            return self._note(what, best.overlap.value, "", ranks, _origin(best.overlap) + other)
        if known is not None:
            return self._take(what, known.overlap, ranks=ranks)
        return self._note(what, 0.0, "", ranks, "not measured")

    def _server(self) -> dict[str, float]:
        known = self.profile.server
        if known is None:
            raise InputError(
                f"profile {self.profile.name} has no parameter server; calibrate with --part server"
            )
        times = {
            word: self._take(f"server: {word}", getattr(known, word), "s")
            for word in ("push", "service", "pull")
        }
        if not any(each.ranks for each in self.profile.transfers):  # only bytes were moved
            times["service"] += self._take("update, part of the service", self._update(), "s")
        return times


def synchronous(case: Case, hints: Hints) -> bool:
    """Whether the first plan of a policy runs on DDP's all-reduce, without a server.

    Raises `InputError` if the policy cannot run on real ranks.
    """
    policy = policies.load(case.policy)
    first = View(case.workers, hints=hints, noise_scale=hints.noise_scale)
    policy_support.check_policy(policies.load(case.policy), case.policy, first)
    return policy_support.is_synchronous(policies.ask(policy, first, case.policy), case.workers)


def with_update(step: StepTimes, update: float) -> StepTimes:
    """Step times that include the update of the parameters.

    update: seconds.  Neither reduced precision nor a smaller batch shortens it; where the host
        launches while the device computes, it takes both.
    """
    compute, ratio = step.compute.value, step.amp_ratio
    whole = compute + update

    def fitted(value: float) -> Quantity:
        return Quantity(value=value, kind="fitted", note="with the update of the parameters")

    def longer(seconds: PrecisionSeconds) -> PrecisionSeconds:
        amp = None if seconds.amp is None else fitted(seconds.amp.value + update)
        return PrecisionSeconds(full=fitted(seconds.full.value + update), amp=amp)

    fixed = 0.0 if step.fixed_share is None else step.fixed_share.value
    if step.streams is not None:
        launch, device = step.streams
        seconds = device.full.value
        share = fitted((seconds * fixed + update) / (seconds + update))
        return step.model_copy(
            update={
                "compute": fitted(whole), "launch": longer(launch), "device": longer(device),
                "fixed_share": share,
            }
        )  # fmt: skip
    assert step.host_share is not None, "the serial law has it"
    changes = {
        "compute": fitted(whole),
        "host_share": fitted((compute * step.host_share.value + update) / whole),
        "fixed_share": fitted((compute * fixed + update) / whole),
    }
    if ratio is not None:
        changes["amp_ratio"] = fitted(whole / (compute / ratio.value + update))
    return step.model_copy(update=changes)


def slowdowns(
    schedule: Schedule,
    profile: Profile,
    ranks: int,
    paces: Sequence[float],
    among: float | None = None,
    rests: Mapping[float, float] | None = None,
    loaded: Mapping[float, float] | None = None,
) -> Trace | None:
    """The slowdowns of simulated ranks under a schedule, as a trace; None without any.

    Load on a core slows every rank of that core.

    paces: step time on each core relative to the profile, without load.
    among: slowdown of a step by the other ranks; None counts each other rank on the core as one
        level of load.
    rests: seconds from the slowest gradient to the next step, by level of load; interpolated, they
        slow the `net` of the ranks on that core.
    loaded: slowdown of a step among the ranks, by level of load; interpolated, and beyond the last
        level continued by the response to load.

    Raises `InputError` for load of a kind other than "cpu".
    """
    cores = len(paces)
    for each in schedule.episodes:
        if each.kind != "cpu":
            raise InputError(
                f"rank {each.rank}: load {each.kind}: only load cpu is simulated; leave out "
                "episodes of other kinds"
            )

    factors = {0.0: 1.0} | dict(sorted((loaded or {}).items()))

    def stretch(level: float, others: int) -> float:
        last = max(factors)
        beyond = _respond(profile, others + max(level, last)) / _respond(profile, others + last)
        return float(np.interp(level, list(factors), list(factors.values()))) * beyond

    rows: list[tuple[float, int, str, str, float]] = []
    for rank in range(ranks):
        others = sum(r % cores == rank % cores for r in range(ranks)) - 1
        base = paces[rank % cores] * (_respond(profile, others) if among is None else among)
        episodes = [each for each in schedule.episodes if each.rank % cores == rank % cores]
        edges = sorted({0.0, *(t for each in episodes for t in (each.start, each.stop))})
        for t in edges:
            level = sum(e.level for e in episodes if e.start <= t < e.stop)
            value = base * stretch(level, others)
            if t or value != 1.0:
                rows.append((t, rank, "step", "slowdown", value))
            if rests and rests[0.0] and (t or level):
                after = float(np.interp(level, sorted(rests), [rests[k] for k in sorted(rests)]))
                rows.append((t, rank, "net", "slowdown", after / rests[0.0]))
    return Trace.from_rows(sorted(rows), "load of the schedule") if rows else None


def _respond(profile: Profile, level: float) -> float:
    """The slowdown of a step at a level of load, by the measured response."""
    return float(evaluate(response_to("cpu", profile), [level])[0]) if level else 1.0


def _constant_allreduce(seconds: float, ranks: int, size: float) -> dict[str, Any]:
    """An all-reduce that takes `seconds`, whatever the ring's bandwidth."""
    alpha = seconds / (2 * (ranks - 1))
    return {"alpha": alpha, "bandwidth": math.inf, "bytes": float(size), "overlap": 0.0}


def _at_size(cells: Sequence[CollectiveCell], size: int) -> float | None:
    """Seconds at a size, interpolated in log-log; None outside the measured sizes."""
    known = sorted({cell.bytes: cell.seconds.value for cell in cells if cell.bytes}.items())
    if not known or not known[0][0] <= size <= known[-1][0]:
        return None
    sizes, seconds = zip(*known, strict=True)
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(seconds))))


def _origin(quantity: Quantity) -> str:
    return f"{quantity.kind}: {quantity.note}" if quantity.note else quantity.kind
