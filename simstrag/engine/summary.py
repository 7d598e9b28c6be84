"""The summary of a finished run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from simstrag import policies
from simstrag.contract import Policy
from simstrag.engine.recorder import Recorder
from simstrag.learning.noise_scale import NoiseScale
from simstrag.learning.training import Trained
from simstrag.runs.run import OF_FORMULA
from simstrag.scenario.scenario import Scenario

BEYOND_WARNING = 0.05


def summarise(
    scenario: Scenario,
    policy: Policy,
    name: str,
    recorder: Recorder,
    learner: NoiseScale,
    trained: Trained | None = None,
    failed: Mapping[str, float] | None = None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The summary of `run.json` and the warnings that go with it.

    `architecture` says how updates were made, such as by a server, in the order of the plans.
    Times in seconds; `throughput` in applied samples per second, `useful_throughput` in those that
    no restart took back, where ranks fail; `goodput` is the latter times statistical efficiency,
    which is progress per sample relative to one worker's batch (Qiao et al., "Pollux", OSDI 2021);
    `effective_staleness` is S_stale / batch of rule 25, `deviation` the factor of rule 25a;
    `cut_share` the share of the samples of all started steps that a deadline cut away; `hits`,
    `false_alarms` and `misses` count ranks at updates: suspected stragglers, other suspects,
    stragglers that were not suspected; None if the policy judges no rank.  Values that depend on
    progress are None if a plan made it unknown.

    trained: of a real learner.  `accuracy` and `loss` are those of its last evaluation, `diverged`
        the seconds at which its loss was no longer finite, else None.  Its progress is measured by
        its accuracy, so `progress`, `goodput` and `efficiency`, which are of the formula, are None.
    failed: counts of failures, where the scenario declares some; see `engine.failures`.
    """
    counts = recorder.counts
    last_time, updates = recorder.time, recorder.version
    samples, progress = learner.samples, learner.progress
    makespan = _known(recorder.makespan) or last_time
    useful = samples / last_time if last_time else math.inf
    lost = 0.0 if failed is None else failed.get("lost_samples", 0)
    efficiency = None if progress is None else progress / learner.fresh_progress
    fates = counts["applied"] + counts["dropped"] + counts["aborted"]
    computed, world = sum(recorder.compute), scenario.workers * learner.batch
    beyond = recorder.beyond / computed if computed else 0.0
    summary: dict[str, Any] = {
        "architecture": " + ".join(recorder.ways),
        "makespan": makespan,
        "time_to_target": _known(recorder.target),
        "updates": updates,
        "samples": samples,
        "progress": progress,
        "progress_unknown": learner.lost,
        "accuracy": _accuracy(scenario, progress, sum(recorder.staleness_by) / counts["applied"]),
        "mean_staleness": sum(recorder.staleness_by) / counts["applied"],
        "staleness_by_rank": [
            total / n if n else None
            for total, n in zip(recorder.staleness_by, recorder.applied_by, strict=True)
        ],
        "effective_staleness": None if learner.lost else learner.effective_staleness,
        "deviation": None
        if learner.lost
        else recorder.missed_squares / counts["applied"] / world**2,
        **{name: counts[name] for name in ("started", "applied", "dropped", "aborted")},
        "in_flight": counts["started"] - fates,
        "throughput": (samples + lost) / last_time if last_time else math.inf,
        "goodput": None if efficiency is None else efficiency * useful,
        "efficiency": efficiency,
        "amp_share": counts["amp"] / counts["started"],
        "rebatched_share": counts["rebatched"] / counts["started"],
        "cut_share": counts["cut"] / counts["asked"],
        "compute_by_rank": recorder.compute,
        "communication_by_rank": recorder.communication,
        "wait_by_rank": recorder.wait,
        "beyond_trace": beyond,
        **_detection(recorder),
    }
    if failed is not None:
        summary |= {"useful_throughput": useful, **failed}
    if trained is not None:
        found = trained.evaluations
        summary |= {
            "time_to_target": trained.reached, "accuracy": found.accuracy[-1],
            "loss": found.loss[-1], "diverged": trained.diverged,
            **dict.fromkeys(OF_FORMULA),
        }  # fmt: skip
    summary |= policies.counts(policy, name, taken=summary)
    warnings = [beyond_warning(beyond)] if beyond > BEYOND_WARNING else []
    if trained is not None and trained.diverged is not None:
        warnings.append(
            f"training diverged after {trained.diverged:.4g} s: lower learner.optimizer.lr; the "
            "times are of all samples"
        )
    elif trained is not None and scenario.target_accuracy is not None and trained.reached is None:
        warnings.append(
            f"target_accuracy {scenario.target_accuracy:g} was missed: after all samples the "
            f"accuracy is {found.accuracy[-1]:.3g}"
        )
    if learner.lost and trained is None:
        warnings.append(unknown_warning(learner.lost))
    return summary, tuple(warnings)


def unknown_warning(reason: str) -> str:
    """The warning of a run whose progress is unknown (rule 25)."""
    return (
        f"progress is unknown: {reason}, and the noise-scale formula does not hold there; "
        "the makespan stands, what its updates are worth takes real training"
    )


def beyond_warning(share: float) -> str:
    """The warning of a run that computed this share of its time beyond the trace (rule 8)."""
    return (
        f"{share:.0%} of the computing lies beyond the end of the trace; the last values were held"
    )


def unslowed_warning(scenario: Scenario, ends: Mapping[int, float]) -> str | None:
    """The warning of runs that all end before the trace first slows one of their ranks.

    ends: seconds of the longest run of each seed.
    """
    closest: tuple[float, float, float] | None = None
    for seed, end in ends.items():
        contention = scenario.timing(seed).contention
        first = contention.first_slowdown
        if scenario.inputs.trace is None or contention.durations or first < end:
            return None
        closest = min(closest or (math.inf,) * 3, (first - end, first, end))
    if closest is None:
        return None
    _, first, end = closest
    if first == math.inf:
        return "no step was slowed: the trace has no slowdown other than 1 on the nodes of ranks"
    return (
        f"no step was slowed: the trace's first slowdown is at {first:.4g} s, and the longest run "
        f"ends at {end:.4g} s"
    )


def unused_noise_warning(scenario: Scenario) -> str | None:
    """The warning of noise that no step has, because all durations are recorded."""
    named = {} if scenario.noise is None else scenario.noise.model_dump(exclude_unset=True)
    idle = " and ".join(f"noise.{key}" for key, value in named.items() if value)
    if not idle or not scenario.replays:
        return None
    have = "have" if " and " in idle else "has"
    return f"{idle} {have} no effect: all steps take their recorded durations, which have no noise"


def _known(time: float) -> float | None:
    """A time, None where it is NaN."""
    return None if math.isnan(time) else time


def _accuracy(scenario: Scenario, progress: float | None, staleness: float) -> float | None:
    """Accuracy by the declared curve, less the loss by staleness; None outside the curve."""
    curve: Sequence[tuple[float, float]] = scenario.learner.curve or ()
    if progress is None:
        return None
    for (p0, a0), (p1, a1) in itertools.pairwise(curve):
        if p0 <= progress <= p1:
            reached = a0 + (a1 - a0) * (progress - p0) / (p1 - p0)
            return max(reached - scenario.learner.staleness_loss * staleness, 0.0)
    return None


def _detection(recorder: Recorder) -> dict[str, float | None]:
    """The suspects against rule 27, over (update, rank) pairs; all None if no rank was judged."""
    counts = recorder.detection
    if not recorder.judged:
        return {"detection_precision": None, "detection_recall": None, **dict.fromkeys(counts)}
    hits, false_alarms, misses = counts.values()
    return {
        "detection_precision": hits / (hits + false_alarms) if hits + false_alarms else None,
        "detection_recall": hits / (hits + misses) if hits + misses else None,
        **counts,
    }
