"""The result of a validation: verdicts per case, rankings and mitigation, as values and as JSON."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from simstrag.experiments.paired_statistics import Estimate
from simstrag.validation.cases import CLEAN, Case, ValidationPlan, windows
from simstrag.validation.distributions import FEWEST, LEVELS, Distance, Distributions
from simstrag.validation.judgement import (
    MISSED,
    PREDICTED,
    PolicyPair,
    Verdict,
    judge,
    mitigations,
    pairs,
)
from simstrag.validation.prediction import Constant, Prediction
from simstrag.validation.real_runs import RunOutcome
from simstrag.validation.run_metrics import Measure, document_of, measure

COMPARED = ("makespan", "step")
"""Numbers of a run whose distributions are compared."""


class WindowResult(NamedTuple):
    """One window of constant load. step: on its step time; None if most runs ended before it."""

    start: float
    stop: float
    load: str
    step: Verdict | None


class Mitigation(NamedTuple):
    """The mitigation M of one policy under one schedule.

    real: interval over repetitions.
    evened: the same interval from makespans normalised to the profile's pace.
    simulated: interval over seeds.
    amp: share of steps in reduced precision, real and simulated.
    """

    policy: str
    ranks: int
    schedule: str
    real: Estimate
    evened: Estimate
    simulated: Estimate
    amp: tuple[float, float]


@dataclass(frozen=True)
class CaseResult:
    """One case with its real runs and its prediction.

    real: measures of finished runs, by repetition.
    failed: reasons of failed runs.
    spans: windows of constant load (start, stop, load).
    distributions: of makespans and steps; None with fewer than `distributions.FEWEST` real runs.
    """

    case: Case
    real: Mapping[int, Measure]
    failed: tuple[str, ...]
    predicted: Prediction
    spans: tuple[tuple[float, float, str], ...]
    distributions: Distributions | None = None

    @cached_property
    def makespan(self) -> Verdict | None:
        """The verdict on the makespan; None if no run finished."""
        return self._verdict_on("makespan")

    @cached_property
    def at_pace(self) -> Verdict | None:
        """The verdict on real makespans over those simulated at the pace of each run."""
        adapted = self.predicted.adapted
        shares = [run.makespan / adapted[k] for k, run in self.real.items() if k in adapted]
        return judge(shares, [1.0]) if shares else None

    @cached_property
    def step(self) -> Verdict | None:
        """The verdict on the mean step: seconds per full batch of all ranks."""
        return self._verdict_on("step")

    def _verdict_on(self, name: str) -> Verdict | None:
        real = [getattr(each, name) for each in self.real.values()]
        return judge(real, [getattr(each, name) for each in self.predicted.runs]) if real else None

    @cached_property
    def windows(self) -> tuple[WindowResult, ...]:
        """One result per window of constant load; the last window has no end."""
        found = []
        runs = self.predicted.runs
        for k, (start, stop, load) in enumerate(self.spans):
            real = drop_nan(each.windows[k] for each in self.real.values())
            simulations = drop_nan(each.windows[k] for each in runs)
            reached = 2 * len(real) > len(self.real) and 2 * len(simulations) > len(runs)
            step = judge(real, simulations) if reached else None
            found.append(WindowResult(start, stop, load, step))
        return tuple(found)

    def by_rank(self, name: str) -> list[Verdict | None]:
        """Verdicts on `staleness` or `shares` of each rank; None where all are 0 or unknown."""
        found: list[Verdict | None] = []
        for rank in range(self.case.workers):
            real = drop_nan(getattr(each, name)[rank] for each in self.real.values())
            simulations = drop_nan(getattr(each, name)[rank] for each in self.predicted.runs)
            if not (real and simulations) or not (any(real) or any(simulations)):
                found.append(None)
            elif any(real):
                found.append(judge(real, simulations))
            else:
                simulated = statistics.fmean(simulations)
                found.append(Verdict(0.0, simulated, math.nan, math.nan, 0.0, MISSED))
        return found

    @property
    def stale(self) -> bool:
        """Whether any applied gradient was stale, in real or simulated runs."""
        runs = (*self.real.values(), *self.predicted.runs)
        return any(value > 0 for each in runs for value in each.staleness)

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the accuracy over real runs."""
        found = [run.accuracy for run in self.real.values() if run.accuracy is not None]
        spread = statistics.stdev(found) if len(found) > 1 else math.nan
        return (statistics.fmean(found), spread) if found else None

    @property
    def makespans(self) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
        """Makespans of real runs, of real runs scaled to the profile's pace, and of simulated runs.

        By repetition or seed. The scale is the ratio of simulated makespans at both paces.
        """
        usual, adapted = self.predicted.usual, self.predicted.adapted
        real = {k: run.makespan for k, run in self.real.items()}
        evened = {k: time * usual / adapted[k] for k, time in real.items() if k in adapted}
        return real, evened, {seed: run.makespan for seed, run in enumerate(self.predicted.runs)}


@dataclass(frozen=True)
class Ranking:
    """The pairs of policies at one world size under one schedule.

    evened: pairs by real makespans normalised to the profile's pace.
    """

    ranks: int
    schedule: str
    pairs: tuple[PolicyPair, ...]
    evened: tuple[PolicyPair, ...] = ()

    @property
    def decided(self) -> tuple[PolicyPair, ...]:
        """The pairs that are no tie."""
        return tuple(pair for pair in self.pairs if not pair.tie)

    @property
    def predicted(self) -> int:
        """Number of decided pairs in the same order in the simulation."""
        return sum(pair.right for pair in self.decided)


@dataclass(frozen=True)
class Result:
    """The whole result of a validation.

    requested: requested repetitions.
    repetitions: repetitions that fit into the time.
    """

    plan: ValidationPlan
    cases: tuple[CaseResult, ...]
    outcomes: tuple[RunOutcome, ...]
    constants: tuple[Constant, ...]
    remarks: tuple[str, ...]
    requested: int
    repetitions: int

    @property
    def failed(self) -> list[RunOutcome]:
        """The outcomes of failed runs."""
        return [each for each in self.outcomes if not each.finished]

    @property
    def verdicts(self) -> list[tuple[Case, Verdict]]:
        """Verdicts on the makespans, in the order of the cases."""
        return [(each.case, each.makespan) for each in self.cases if each.makespan is not None]

    @property
    def at_pace(self) -> list[tuple[Case, Verdict]]:
        """Verdicts against simulations at the pace of each run."""
        return [(each.case, each.at_pace) for each in self.cases if each.at_pace is not None]

    @property
    def paces(self) -> tuple[float, float]:
        """Least and most seconds of a bare step around the runs; NaN without any."""
        each = (paces(case.case, self.outcomes).values() for case in self.cases)
        found = [pace for runs in each for cores in runs for pace in cores]
        return (min(found), max(found)) if found else (math.nan, math.nan)

    @property
    def median_error(self) -> float:
        """Median of the absolute errors of the makespans; NaN without any."""
        return median_error(self.verdicts)

    @property
    def worst(self) -> tuple[Case, Verdict] | None:
        """The case with the largest error."""
        return worst(self.verdicts)

    @cached_property
    def rankings(self) -> tuple[Ranking, ...]:
        """One ranking for each schedule with several policies."""
        found = []
        for place in dict.fromkeys(each.case.place for each in self.cases):
            here = [each for each in self.cases if each.case.place == place and each.real]
            if len(here) > 1:
                times = {each.case.policy: each.makespans for each in here}
                real, even, simulated = (
                    {policy: own[k] for policy, own in times.items()} for k in range(3)
                )
                ranked = (tuple(pairs(each, simulated)) for each in (real, even))
                found.append(Ranking(*place, *ranked))
        return tuple(found)

    @cached_property
    def mitigation(self) -> tuple[Mitigation, ...]:
        """M of every policy under load whose world size has bsp with and without load."""
        known = {(each.case.policy, *each.case.place): each for each in self.cases if each.real}
        found = []
        for (policy, ranks, schedule), each in known.items():
            bsp, clean = known.get(("bsp", ranks, schedule)), known.get(("bsp", ranks, CLEAN))
            if policy == "bsp" or schedule == CLEAN or bsp is None or clean is None:
                continue
            times = zip(each.makespans, bsp.makespans, clean.makespans, strict=True)
            real, even, simulated = (mitigations(*trio) for trio in times)
            amp = (
                statistics.fmean(run.amp for run in each.real.values()),
                statistics.fmean(run.amp for run in each.predicted.runs),
            )
            found.append(Mitigation(policy, ranks, schedule, real, even, simulated, amp))
        return tuple(found)

    @property
    def distributions(self) -> tuple[tuple[Case, Distributions], ...]:
        """Cases with enough runs to compare distributions."""
        found = ((each.case, each.distributions) for each in self.cases)
        return tuple((case, each) for case, each in found if each is not None)

    @property
    def why_no_distributions(self) -> str:
        """Why distributions of some or all cases are not compared; "" if all are."""
        few = sum(each.distributions is None for each in self.cases)
        if not few:
            return ""
        which = "1 case does not have" if few == 1 else f"{few} cases do not have"
        return (
            f"{'no case has' if few == len(self.cases) else which} {FEWEST} finished runs, the "
            "fewest whose distribution is compared; give --repetitions 20, and --minutes for them"
        )

    @property
    def inside(self) -> tuple[int, int]:
        """Real runs within the simulated nine-of-ten interval of their case, and all of these."""
        known = [each for _, each in self.distributions]
        return sum(each.inside for each in known), sum(each.runs for each in known)

    def median_distance(self, name: str) -> float:
        """Median Kolmogorov-Smirnov distance over cases, of `makespan` or `step`; NaN without."""
        known: list[Distance] = [getattr(each, name) for _, each in self.distributions]
        return statistics.median(each.ks for each in known) if known else math.nan

    def document(self) -> dict[str, Any]:
        """JSON-like values; may contain NaN."""
        found: dict[str, Any] = document_of({
            "format": "simstrag-validation/3",
            "plan": self.plan.document(),
            "repetitions": {"asked": self.requested, "made": self.repetitions},
            **_summary(self.verdicts),
            "at_pace": {**_summary(self.at_pace), "least": self.paces[0], "most": self.paces[1]},
            "cases": [_case(each) for each in self.cases],
            "distributions": {
                "cases": len(self.distributions), "inside": self.inside[0], "of": self.inside[1],
                **{f"median_ks_{name}": self.median_distance(name) for name in COMPARED},
                "missing": self.why_no_distributions,
            },
            "rankings": [
                {"ranks": r.ranks, "schedule": r.schedule, "decided": len(r.decided),
                 "predicted": r.predicted, "pairs": r.pairs, "evened": r.evened}
                for r in self.rankings
            ],
            "mitigation": self.mitigation,
            "constants": self.constants,
            "runs": [
                {"case": each.case.name, "repetition": each.repetition + 1,
                 "finished": each.finished, "reason": each.reason, "seconds": each.took,
                 "foreign": each.foreign, "stolen": each.stolen, "load": each.load,
                 "pace": each.pace, "aside": each.aside, "failed_tries": each.failed_tries}
                for each in self.outcomes
            ],
            "remarks": self.remarks,
        })  # fmt: skip
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Rows of validation.csv, one per case; None where nothing is known."""
        return [_row(each) for each in self.cases]


def build_case_result(
    case: Case, plan: ValidationPlan, predicted: Prediction, outcomes: Sequence[RunOutcome]
) -> CaseResult:
    """The result of a case; `outcomes` may contain outcomes of other cases."""
    spans = windows(plan.schedule(case))
    edges = [start for start, *_ in spans]
    own, batch = [each for each in outcomes if each.case == case], plan.worker_batch(case)
    real = {
        each.repetition: measure(each.run(), plan.samples(case), batch, edges, predicted.grid)
        for each in own
        if each.finished
    }
    failed = tuple(
        f"repetition {each.repetition + 1}: {each.reason}" for each in own if not each.finished
    )
    return CaseResult(case, real, failed, predicted, spans)


def paces(case: Case, outcomes: Iterable[RunOutcome]) -> dict[int, tuple[float, ...]]:
    """Mean seconds of a bare step on each core around each finished run, by repetition."""
    return {
        each.repetition: tuple(map(statistics.fmean, zip(*each.pace, strict=True)))
        for each in outcomes
        if each.case == case and each.finished and each.pace
    }


def median_error(verdicts: Sequence[tuple[Case, Verdict]]) -> float:
    """Median of the absolute errors; NaN without any."""
    errors = [abs(verdict.error) for _, verdict in verdicts]
    return statistics.median(errors) if errors else math.nan


def worst(verdicts: Sequence[tuple[Case, Verdict]]) -> tuple[Case, Verdict] | None:
    """The case with the largest error; None without any."""
    return max(verdicts, key=lambda each: abs(each[1].error), default=None)


def drop_nan(values: Iterable[float]) -> list[float]:
    """The values that are not NaN."""
    return [value for value in values if not math.isnan(value)]


def _summary(verdicts: Sequence[tuple[Case, Verdict]]) -> dict[str, Any]:
    most = worst(verdicts)
    return {
        "median_error": median_error(verdicts),
        "worst": None if most is None else {"case": most[0].name, "error": most[1].error},
        "verdicts": Counter(verdict.word for _, verdict in verdicts),
    }


def _case(of: CaseResult) -> dict[str, Any]:
    return {
        "case": of.case.name,
        **{name: getattr(of, name) for name in ("makespan", "at_pace", "step", "windows")},
        **{name: of.by_rank(name) for name in ("staleness", "shares")},
        "accuracy": of.accuracy,
        "failed": of.failed,
        "distributions": of.distributions and of.distributions.document(),
        "real": list(of.real.values()),
        "simulated": of.predicted.runs,
    }


def _row(of: CaseResult) -> dict[str, Any]:
    def pick(verdict: Verdict | None, **fields: str) -> dict[str, Any]:
        return {name: verdict and getattr(verdict, field) for name, field in fields.items()}

    steps = [window.step.word for window in of.windows if window.step is not None]
    return {
        "case": of.case.name, "policy": of.case.policy, "ranks": of.case.ranks,
        "schedule": of.case.schedule, "runs": len(of.real), "failed": len(of.failed),
        **pick(
            of.makespan, makespan_real="real", makespan_spread="spread",
            makespan_simulated="simulated", error="error", allowed="allowed",
        ),
        "verdict": "no run finished" if of.makespan is None else of.makespan.word,
        **pick(of.at_pace, error_at_pace="error", spread_at_pace="spread", verdict_at_pace="word"),
        **pick(of.step, step_real="real", step_simulated="simulated"),
        "windows_predicted": steps.count(PREDICTED), "windows": len(steps),
        "accuracy": None if of.accuracy is None else of.accuracy[0],
        **_distributions_row(of.distributions),
    }  # fmt: skip


def _distributions_row(known: Distributions | None) -> dict[str, Any]:
    """Columns of the distributions; None where they are not compared."""
    found: dict[str, Any] = {"inside_one_run": known and known.inside / known.runs}
    for name in COMPARED:
        distance: Distance | None = known and getattr(known, name)
        for field in ("ks", "chance", "p", "shape"):
            found[f"{name}_{field}"] = distance and getattr(distance, field)
        for side in ("real", "simulated"):
            for k, level in enumerate(LEVELS):
                column = f"{name}_{side}_q{100 * level:.0f}"
                found[column] = distance and getattr(distance, side)[k].value
    return found
