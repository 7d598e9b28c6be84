"""What the simulator says of a case, from the profile and the schedule alone.

A real cycle is forward and backward, what remains of the all-reduce, and the update of the
parameters.  Of ranks in lockstep calibration timed that rest as a whole, and how much longer a step
is among them than alone; load beside them stretches both, as it was measured.  Where a profile has
no such times for that number of ranks the rest is put together: of the all-reduce what backward
does not hide, and the update as a part of the step that reduced precision does not shorten; and a
second rank on a core is taken for one more level of load, though that was measured with load that
never waits.  At a server the update is in the service.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag import policies
from simstrag.ddp import support
from simstrag.ddp.hints import hints_of
from simstrag.documents.paths import write_whole
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.policy import Hints, View
from simstrag.profile.batch_laws import times_at
from simstrag.profile.measurements import CollectiveCell, LockstepCell, OverlapCell
from simstrag.profile.profile import Profile, StepTimes
from simstrag.profile.quantity import Quantity
from simstrag.profile.responses import evaluate
from simstrag.scenario.scenario import Scenario
from simstrag.validation.cases import Case, Plan, windows
from simstrag.validation.loadgen.schedule import Schedule, response_to
from simstrag.validation.loadgen.slowdowns import slowdowns
from simstrag.validation.measure import Measure, measure

__all__ = ["GRID", "SEEDS", "Constant", "Prediction", "Predictor", "synchronous", "with_update"]

SEEDS = 20

ADAPTED = 4
"""Seeds for each repetition at its own pace."""

GRID = 60
"""Spans in which the pace of a run is told."""

ITEM = {False: 4, True: 8}
"""Bytes of a parameter; the stand-in's are double."""


class Constant(NamedTuple):
    """A number of the simulation: what, of how many ranks ("" for any), its unit and its origin."""

    what: str
    ranks: str
    value: float
    unit: str
    origin: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was simulated of a case, a measure for each seed; grid: of the pace, in seconds.

    adapted: makespans at the pace of the cores around each real run, by repetition; see `adapt`.
    """

    case: Case
    runs: tuple[Measure, ...]
    grid: tuple[float, ...]
    adapted: Mapping[int, float] = field(default_factory=dict)

    @property
    def makespan(self) -> float:
        """The mean over seeds."""
        return float(np.mean([run.makespan for run in self.runs]))

    @property
    def usual(self) -> float:
        """That over the seeds of `adapted`, at the profile's pace."""
        return float(np.mean([run.makespan for run in self.runs[:ADAPTED]]))


class Predictor:
    """Scenarios of cases, made of a profile.

    folder: where the profiles that they refer to are written.  told: by whose profile policies are
    told step times beforehand, if not by this one.  Raises `InputError` for a profile that lacks
    what is needed.
    """

    def __init__(
        self, profile: Profile, folder: Path, cores: int, told: Predictor | None = None
    ) -> None:
        if profile.step is None or profile.workload is None:
            raise InputError(f"profile {profile.name} has no step times; calibrate a workload")
        self.profile, self.folder, self.cores, self.told = profile, folder, cores, told
        self.workload = profile.workload
        self.constants: dict[tuple[str, str], Constant] = {}

    def scenario(
        self,
        case: Case,
        schedule: Schedule,
        updates_in_step: bool,
        slower: Sequence[float] | None = None,
    ) -> Scenario:
        """The scenario of a case; updates_in_step: whether every rank applies updates itself.

        slower: how many times as long the steps of ranks take on each core as in the profile.
        """
        paces = [1.0] * self.cores if slower is None else slower
        known = self._together(case.ranks)
        together = known if updates_in_step else {}
        rests = {level: each.rest.value for level, each in together.items()}
        trace = slowdowns(
            schedule, self.profile, case.ranks, paces, self._among(case.ranks, updates_in_step),
            rests, self._loaded(known),
        )  # fmt: skip
        data: dict[str, Any] = {
            "workers": case.ranks,
            "samples": case.steps * case.ranks * self.workload.batch,
            "learner": {"batch": self.workload.batch},
            "profile": self._stepping(updates_in_step, together.get(0.0)).name,
            "allreduce": self._rest(together) if together else self._allreduce(case.ranks),
            "seeds": SEEDS,
            "policies": (case.policy,),
        }
        if not updates_in_step:
            data["server"] = self._server()
        if trace is not None:
            data |= {"trace": trace, "allow_speedup": trace.speeds_up}
        return Scenario.of(data, source=case.name, folder=self.folder)

    def pace(self, ranks: int) -> float:
        """Seconds of a step of nothing else on each of the cores of so many ranks, all at once."""
        known = self._together(ranks).get(0.0)
        slower = 1.0 if known is None or known.interference is None else known.interference.value
        return times_at(self.profile, self.workload.batch).compute.value * slower

    def clean(self, case: Case) -> float:
        """Seconds that bsp takes for as many steps without load; one run, under one seed."""
        bsp = Case("bsp", case.ranks, "clean", case.steps)
        scenario = self.scenario(bsp, Schedule((), 1.0), updates_in_step=True)
        return float(simulate(scenario, "bsp", 0).summary["makespan"])

    def predict(self, case: Case, plan: Plan, seeds: int = SEEDS) -> Prediction:
        """Simulate a case under some seeds."""
        schedule = plan.schedule(case)
        hints = hints_of(self.profile, plan.batch, plan.samples(case))
        scenario = self.scenario(case, schedule, synchronous(case, hints))
        told = self._told(case, plan)
        runs = [
            simulate(scenario, case.policy, seed, record_gradients=True, hints=told)
            for seed in range(seeds)
        ]
        longest = max(float(run.summary["makespan"]) for run in runs)
        grid = tuple(np.linspace(0.0, 1.15 * longest, GRID + 1).tolist())
        edges = [start for start, *_ in windows(schedule)]
        found = (measure(run, plan.samples(case), plan.batch, edges, grid) for run in runs)
        return Prediction(case, tuple(found), grid)

    def adapt(
        self, predicted: Prediction, plan: Plan, paces: Mapping[int, Sequence[float]]
    ) -> Prediction:
        """Simulate each repetition at its own pace too: seconds of a step of nothing else then, on
        each core.

        A machine that is shared changes its pace by the minute.  What is still off then is the
        simulation's own, and what is not was the machine's.
        """
        case, schedule = predicted.case, plan.schedule(predicted.case)
        hints = hints_of(self.profile, plan.batch, plan.samples(case))
        told = self._told(case, plan)
        found, usual = {}, self.pace(max(each.ranks for each in plan.cases))
        for repetition, seconds in paces.items():
            slower = [round(each / usual, 3) for each in seconds]
            scenario = self.scenario(case, schedule, synchronous(case, hints), slower)
            runs = [simulate(scenario, case.policy, seed, hints=told) for seed in range(ADAPTED)]
            found[repetition] = float(np.mean([run.summary["makespan"] for run in runs]))
        return replace(predicted, adapted=found)

    def _told(self, case: Case, plan: Plan) -> Hints | None:
        """What the other profile would have a simulated policy told, if there is one."""
        if self.told is None:
            return None
        known = hints_of(self.told.profile, plan.batch, plan.samples(case))
        updates_in_step = synchronous(case, known)
        together = self.told._together(case.ranks) if updates_in_step else {}
        step = self.told._stepping(updates_in_step, together.get(0.0))
        return hints_of(step, plan.batch, plan.samples(case))

    # -- constants ---------------------------------------------------------------------------

    def _together(self, ranks: int) -> dict[float, LockstepCell]:
        """So many ranks in lockstep, by the level of load on a core, 0 among them; or nothing."""
        found = {
            each.level: each
            for each in self.profile.locksteps
            if (each.ranks, each.batch, each.precision)
            == (ranks, self.workload.batch, self.workload.full)
            and each.load == ("cpu" if each.level else "")
        }
        return found if 0.0 in found else {}

    def _among(self, ranks: int, in_step: bool) -> float | None:
        """How many times as long steps of so many ranks take as alone; None where unknown."""
        together = self._together(ranks).get(0.0)
        known = {"in lockstep": None if together is None else together.slowdown}
        if not in_step:
            served = (each.slowdown for each in self.profile.transfers if each.ranks == ranks)
            known = {"under a server": next(served, None)} | known
        for how, found in known.items():
            if found is not None:
                what = f"slowdown of a step by the other ranks, {how}"
                self._note(what, ranks, found.value, "", _origin(found))
                return found.value
        if ranks > self.cores:
            self._note(
                "slowdown by a rank on the same core", ranks, self._beside(1.0), "",
                "assumed: as one level of load, by the response to load cpu",
            )  # fmt: skip
        return None

    def _loaded(self, together: Mapping[float, LockstepCell]) -> dict[float, float]:
        """How many times as long steps take among the ranks beside each level as beside none."""
        found = {}
        for level, each in together.items():
            if level and each.slowdown is not None:
                what = f"slowdown of a step, a core beside cpu {level:g}"
                self._note(what, each.ranks, each.slowdown.value, "", _origin(each.slowdown))
                found[level] = each.slowdown.value
        return found

    def _rest(self, together: Mapping[float, LockstepCell]) -> dict[str, Any]:
        """An all-reduce that takes as long as all that comes after the slowest gradient."""
        for level, each in together.items():
            beside = f", a core beside cpu {level:g}" if level else ""
            what = f"from the slowest gradient to the next step{beside}"
            self._note(what, each.ranks, each.rest.value, "s", _origin(each.rest))
        clean = together[0.0]
        alpha = clean.rest.value / (2 * (clean.ranks - 1))
        return {"alpha": alpha, "bandwidth": math.inf, "bytes": float(clean.bytes), "overlap": 0.0}

    def _stepping(self, updates_in_step: bool, together: LockstepCell | None) -> Path:
        """The file of the profile with the step of a mechanism."""
        among = f"-among-{together.ranks}" if together else ""
        with_update_here = updates_in_step and together is None
        path = self.folder / f"step-with-update-{str(with_update_here).lower()}{among}.json"
        step = times_at(self.profile, self.workload.batch)
        self._note("step", "", step.compute.value, "s", _origin(step.compute))
        if step.amp_ratio is not None:
            self._note(
                "gain of reduced precision", "", step.amp_ratio.value, "", _origin(step.amp_ratio)
            )
        if together is not None and together.noise is not None:
            step = step.model_copy(update={"noise": together.noise})
        if step.noise is not None:
            spread = float(np.std(step.noise.quantiles))
            ranks = together.ranks if together and together.noise else ""
            self._note(
                "noise of steps", ranks, spread, "", f"{step.noise.kind}: empirical quantiles"
            )
        if with_update_here:
            update = self._update()
            self._note(
                "update, by every rank of a synchronous plan",
                "",
                update.value,
                "s",
                _origin(update),
            )
            step = with_update(step, update.value)
        made = self.profile.model_copy(update={"step": step})
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda part: part.write_text(made.text, encoding="utf-8"))
        return path

    def _update(self) -> Quantity:
        full, batch = self.workload.full, self.workload.batch
        for cell in self.profile.cells:
            if (cell.precision, cell.batch) == (full, batch) and cell.update is not None:
                return cell.update
        return Quantity(value=0.0, kind="assumed", note="not in the profile, and taken for nothing")

    def _allreduce(self, ranks: int) -> dict[str, Any]:
        """Constants of an all-reduce among all ranks, what backward hides taken off.

        A measured overlap below 0, which costs, cannot be said by `overlap` itself.
        """
        if ranks == 1:
            return {}
        known = self.profile.allreduce
        size = self.workload.parameters * ITEM[self.workload.stand_in]
        overlap, of_overlap = self._overlap(ranks)
        left = max(0.0, 1.0 - overlap)
        self._note("share of an all-reduce that backward hides", ranks, overlap, "", of_overlap)
        alone = [
            cell for cell in self.profile.collectives
            if cell.ranks == ranks and cell.group == "all" and not cell.load
        ]  # fmt: skip
        seconds = _at_size(alone, size)
        if seconds is not None:
            shared = ", ranks sharing cores" if any(cell.oversubscribed for cell in alone) else ""
            self._note(
                "all-reduce of a gradient", ranks, seconds, "s",
                f"measured among {ranks} ranks{shared}, on lines between the sizes around it",
            )  # fmt: skip
            alpha = seconds * left / (2 * (ranks - 1))
            return {"alpha": alpha, "bandwidth": math.inf, "bytes": float(size), "overlap": 0.0}
        if known is None:
            raise InputError(
                f"profile {self.profile.name} has no all-reduce; calibrate with --part allreduce"
            )
        ring = 2 * (ranks - 1) * (known.alpha.value + size / ranks / known.bandwidth.value)
        self._note(
            "all-reduce of a gradient", ranks, ring, "s", f"by the ring formula; {known.alpha.note}"
        )
        return {
            "alpha": known.alpha.value * left, "bytes": float(size), "overlap": 0.0,
            "bandwidth": known.bandwidth.value / left if left else math.inf,
        }  # fmt: skip

    def _overlap(self, ranks: int) -> tuple[float, str]:
        found = [
            each for each in self.profile.overlaps
            if each.batch == self.workload.batch and each.precision == self.workload.full
        ]  # fmt: skip
        if not found:
            known = self.profile.allreduce
            return (
                (0.0, "not measured")
                if known is None
                else (known.overlap.value, _origin(known.overlap))
            )
        best: OverlapCell = min(found, key=lambda each: abs(each.ranks - ranks))
        other = "" if best.ranks == ranks else f", taken from {best.ranks} ranks"
        return best.overlap.value, f"{_origin(best.overlap)}{other}"

    def _server(self) -> dict[str, float]:
        known = self.profile.server
        if known is None:
            raise InputError(
                f"profile {self.profile.name} has no parameter server; calibrate with --part server"
            )
        for word, each in (("push", known.push), ("service", known.service), ("pull", known.pull)):
            self._note(f"server: {word}", "", each.value, "s", _origin(each))
        service = known.service.value
        if not any(each.ranks for each in self.profile.transfers):  # bytes were moved, no more
            update = self._update()
            what = "update, by the server beside its service"
            self._note(what, "", update.value, "s", _origin(update))
            service += update.value
        return {"push": known.push.value, "service": service, "pull": known.pull.value}

    def _beside(self, level: float) -> float:
        return float(evaluate(response_to("cpu", self.profile), [level])[0])

    def _note(self, what: str, ranks: int | str, value: float, unit: str, origin: str) -> None:
        self.constants[what, str(ranks)] = Constant(what, str(ranks), value, unit, origin)


def synchronous(case: Case, hints: Hints) -> bool:
    """Whether DDP carries out the first plan of a policy, each rank updating its own replica.

    Raises `InputError` where the policy cannot run for real.
    """
    policy = policies.load(case.policy)
    first = View(case.ranks, hints=hints, noise_scale=hints.noise_scale)
    support.check(policies.load(case.policy), case.policy, first)
    return support.synchronous(policies.ask(policy, first, case.policy), case.ranks)


def with_update(step: StepTimes, update: float) -> StepTimes:
    """A step with the update of the parameters at its end, which reduced precision leaves alone.

    The part that reduced precision works on gains as much as before, and a smaller batch shortens
    no update.
    """
    compute, ratio = step.compute.value, step.amp_ratio
    whole = compute + update

    def fitted(value: float) -> Quantity:
        return Quantity(value=value, kind="fitted", note="with the update of the parameters")

    fixed = 0.0 if step.fixed_share is None else step.fixed_share.value
    return step.model_copy(
        update={
            "compute": fitted(whole),
            "host_share": fitted((compute * step.host_share.value + update) / whole),
            "amp_ratio": None
            if ratio is None
            else fitted(whole / (compute / ratio.value + update)),
            "fixed_share": fitted((compute * fixed + update) / whole),
        }
    )


def _at_size(cells: Sequence[CollectiveCell], size: int) -> float | None:
    """Seconds on lines between the sizes around one, in logs; None where it lies beyond them."""
    known = sorted({cell.bytes: cell.seconds.value for cell in cells if cell.bytes}.items())
    if not known or not known[0][0] <= size <= known[-1][0]:
        return None
    sizes, seconds = zip(*known, strict=True)
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(seconds))))


def _origin(quantity: Quantity) -> str:
    return f"{quantity.kind}: {quantity.note}" if quantity.note else quantity.kind
