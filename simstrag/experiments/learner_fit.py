"""Fits the noise-scale formula to a real learner, so that scenarios without one can take it.

The formula is that of `simstrag.learning.noise_scale`.  To its target `bsp` with a total batch of B
samples needs progress * (B + noise_scale) of them: a line through four batches gives both.  `asgd`
needs progress * (b + noise_scale + c_tau * S_stale) with gradients of b samples: that gives c_tau.
Policies that are in no fit say how well the formula predicts times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag import policies
from simstrag.arrays import Floats
from simstrag.contract import View
from simstrag.engine.real_training import EVALUATIONS as USUAL_EVALUATIONS
from simstrag.engine.real_training import evaluation_interval
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError, SimstragError
from simstrag.experiments.cluster_backends import open_backend
from simstrag.experiments.paired_statistics import Estimate, difference
from simstrag.learning.noise_scale import unmodelled
from simstrag.processes.pool import LostCall, compute
from simstrag.scenario.scenario import Scenario

SHARES = (0.5, 1.0, 2.0, 4.0)
"""Batches of `bsp` in the fit, over that of the scenario."""
EVALUATIONS = 400
"""Evaluations of a run of `bsp` over all samples: its resolution of the samples to the target."""
FEWEST_SEEDS = 3
FITTED = ("bsp", "asgd")
"""The policies of the fit."""


class _Call(NamedTuple):
    """A training: policy, batch over the scenario's, seed."""

    policy: str
    share: float
    seed: int


class _Reached(NamedTuple):
    """When a run reached its target: samples and seconds; infinite where it did not.

    stale: S_stale, in samples.
    """

    samples: float
    seconds: float
    stale: float


@dataclass(frozen=True, slots=True)
class LearnerFit:
    """The formula's constants for a task, an optimizer and a target accuracy.

    batch: samples per gradient; seeds: of the trainings.
    progress: target_progress of the accuracy.
    noise_scale: B_noise, in samples.
    c_tau: the cost of a stale sample; None where `asgd` missed the target.
    times: of each policy that reached the target, mean seconds to it: trained, and by the formula.
    missed: policies that missed the target under some seed, for which the formula has a time.
    unmodelled: policies for which the formula does not hold; they are not trained.

    Intervals are 95 %, of the trainings' scatter over seeds (jackknife and Student's).
    """

    batch: int
    seeds: int
    progress: Estimate
    noise_scale: Estimate
    c_tau: Estimate | None
    times: Mapping[str, tuple[float, float]]
    missed: tuple[str, ...]
    unmodelled: tuple[str, ...]

    @property
    def errors(self) -> dict[str, float]:
        """The formula's relative error of the time to target of each policy that is in no fit."""
        return {
            name: formula / trained - 1
            for name, (trained, formula) in self.times.items()
            if name not in FITTED
        }

    @property
    def section(self) -> dict[str, Any]:
        """Keys of a scenario's learner with these constants."""
        keys: dict[str, Any] = {"batch": self.batch, "noise_scale": _digits(self.noise_scale.value)}
        if self.c_tau is not None:
            keys["c_tau"] = _digits(self.c_tau.value)
            keys["c_tau_range"] = [_digits(self.c_tau.low), _digits(self.c_tau.high)]
        return keys


def fit_learner(
    scenario: Scenario,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> LearnerFit:
    """Fit the formula to the real learner of a scenario, by training its task.

    jobs: processes; all cores by default.
    on_progress: called as (done, total, policy) after each training.

    The scenario's policies, other than `bsp` and `asgd`, are predicted.  Raises `InputError` where
    the scenario has no real learner or target, too few seeds, or `bsp` misses the target.
    """
    _check(scenario)
    shares = [share for share in SHARES if share * scenario.learner.batch >= 1]
    seeds = scenario.seed_list
    asked = [name for name in dict.fromkeys(scenario.policies) if name not in FITTED]
    apart = tuple(name for name in asked if not _is_modelled(scenario, name))
    others = [name for name in asked if name not in apart]
    calls = [_Call("bsp", share, seed) for share in shares for seed in seeds]
    calls += [_Call(name, 1.0, seed) for name in ("asgd", *others) for seed in seeds]
    found = dict(_trainings(scenario, calls, jobs, on_progress))

    def samples(policy: str, share: float = 1.0) -> Floats:
        return np.array([found[_Call(policy, share, seed)].samples for seed in seeds])

    by_share = np.array([samples("bsp", share) for share in shares])
    if not np.isfinite(by_share).all():
        missed = next(call for call in calls if math.isinf(found[call].samples))
        raise InputError(
            f"bsp with batches of {_batch(scenario, missed.share)} missed target_accuracy "
            f"{scenario.target_accuracy:g} under seed {missed.seed}: raise samples, lower the "
            "target, or tune learner.optimizer"
        )
    sizes = np.array([_batch(scenario, share) * scenario.workers for share in shares])
    asgd = samples("asgd")
    stale = np.array([found[_Call("asgd", 1.0, seed)].stale for seed in seeds])

    def constants(chosen: npt.NDArray[np.intp]) -> Floats:
        progress, noise_scale = _line(sizes, by_share[:, chosen].mean(axis=1))
        late = asgd[chosen].mean() / progress - noise_scale - scenario.learner.batch
        return np.array([progress, noise_scale, max(late / stale[chosen].mean(), 0.0)])

    with np.errstate(invalid="ignore"):
        progress, noise_scale, c_tau = _jackknife(constants, len(seeds))
    reached = {
        name: np.array([found[_Call(name, 1.0, seed)].seconds for seed in seeds]).mean()
        for name in (*FITTED, *others)
    }
    missed_by = tuple(name for name in reached if math.isinf(reached[name]))
    if "asgd" in missed_by:
        return LearnerFit(
            scenario.learner.batch, len(seeds), progress, noise_scale, None, {}, missed_by, apart
        )
    names = [name for name in reached if name not in missed_by]
    model = {
        "batch": scenario.learner.batch, "noise_scale": noise_scale.value, "c_tau": c_tau.value,
    }  # fmt: skip
    predicted = _predicted(scenario, model, progress.value, names)
    times = {name: (float(reached[name]), predicted[name]) for name in names}
    return LearnerFit(
        scenario.learner.batch, len(seeds), progress, noise_scale, c_tau, times, missed_by, apart
    )


def _check(scenario: Scenario) -> None:
    if not scenario.learner.is_real:
        raise InputError("there is nothing to train: give learner.kind real and a task")
    if scenario.target_accuracy is None or scenario.samples is None:
        raise InputError("a fit needs target_accuracy, and samples, the most that is trained on")
    if len(scenario.seed_list) < FEWEST_SEEDS:
        raise InputError(f"a fit needs seeds: {FEWEST_SEEDS} or more, for its intervals")


def _is_modelled(scenario: Scenario, name: str) -> bool:
    """Whether the formula holds for a policy, by its class and first plan."""
    policy = policies.load(name)
    if getattr(policy, "unmodelled", None):
        return False
    return unmodelled(policies.ask(policy, View(scenario.workers), name)) is None


def _batch(scenario: Scenario, share: float) -> int:
    return round(share * scenario.learner.batch)


def _trainings(
    scenario: Scenario,
    calls: Sequence[_Call],
    jobs: int | None,
    on_progress: Callable[[int, int, str], None],
) -> Iterator[tuple[_Call, _Reached]]:
    with open_backend(jobs=jobs) as backend:
        tasks = [(call, (scenario, call)) for call in calls]
        for done, (call, reached) in enumerate(compute(backend, _train, tasks), 1):
            if isinstance(reached, LostCall):
                raise SimstragError(f"the process that trained {call.policy} ended each time")
            on_progress(done, len(calls), call.policy)
            yield call, reached


def _train(scenario: Scenario, call: _Call) -> _Reached:
    learner, batch = scenario.learner, _batch(scenario, call.share)
    every = evaluation_interval(scenario)
    if learner.evaluate_every is None:
        every *= USUAL_EVALUATIONS / EVALUATIONS
    keys = learner.model_dump(exclude_unset=True)
    own = keys | {"batch": batch, "evaluate_every": every * call.share}
    summary = simulate(
        scenario.replaced(learner=own), call.policy, call.seed, record_updates=False
    ).summary
    stale = summary["effective_staleness"] * batch
    if summary["time_to_target"] is None:
        return _Reached(math.inf, math.inf, stale)
    return _Reached(summary["samples"], summary["time_to_target"], stale)


def _line(sizes: Floats, samples: Floats) -> tuple[float, float]:
    """The progress and noise scale of the samples that `bsp` needs with total batches of `sizes`.

    >>> [round(x, 6) for x in _line(np.array([64, 128]), np.array([1140.0, 1780.0]))]
    [10.0, 50.0]
    """
    progress, start = np.polyfit(sizes, samples, 1)
    progress = max(float(progress), 1e-9)
    return progress, max(float(start) / progress, 0.0)


def _jackknife(constants: Callable[[npt.NDArray[np.intp]], Floats], seeds: int) -> list[Estimate]:
    """Each constant of all seeds, with the interval of its pseudo-values, from 0 up.

    Source: Tukey, "Bias and confidence in not quite large samples", Ann. Math. Stat. 29, 1958.
    """
    everyone = np.arange(seeds)
    whole = constants(everyone)
    less = np.array([constants(np.delete(everyone, k)) for k in everyone])
    pseudo = seeds * whole - (seeds - 1) * less
    found = []
    for value, values in zip(whole.tolist(), pseudo.T, strict=True):
        scatter = difference(values, np.zeros(seeds))
        half = scatter.high - scatter.value
        found.append(Estimate(value, max(value - half, 0.0), value + half))
    return found


def _predicted(
    scenario: Scenario, model: Mapping[str, float], progress: float, names: Sequence[str]
) -> dict[str, float]:
    """The formula's mean time to target of policies."""
    case = scenario.replaced(
        learner=model, samples=None, target_accuracy=None, target_progress=progress
    )
    return {
        name: float(np.mean([
            simulate(case, name, seed, record_updates=False).summary["time_to_target"]
            for seed in scenario.seed_list
        ])) for name in names
    }  # fmt: skip


def _digits(value: float) -> float:
    return float(f"{value:.3g}")
