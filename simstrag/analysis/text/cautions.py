"""Cautions of a comparison: what its intervals cover, and what its answer depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simstrag.analysis.derived.ranking import Standings
from simstrag.analysis.text.bill_text import slowed
from simstrag.analysis.text.number_format import capital, join
from simstrag.analysis.text.profile_text import caution
from simstrag.analysis.text.remark import Remark, Sentences, Severity, rows, say
from simstrag.analysis.text.sensitivity_text import (
    conditions,
    explain_lost_lead,
    explain_untested,
)
from simstrag.experiments.comparison import BASELINE
from simstrag.profile.profile import Profile
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import kind_of

BEYOND = 0.05
"""Report time beyond the trace above this share of computing."""
OVERSHOOT = 0.005
"""Report overshoot above this share of the work."""
LASTING = 0.2
"""Report the lag-1 autocorrelation of noise from this value on."""
STALE = (
    "No target is declared, so times are of a number of samples and not of progress: {who} applied "
    "stale gradients, and may need more samples for the same progress. Declare a target to compare "
    "times to equal progress."
)
FREE = (
    "Communication through {which} takes no time in this scenario, which favours the policies that "
    "use it."
)
DECIDES, DOUBT, NOTE = Severity
CAUTIONS: Sentences = {
    DECIDES: {
        "not slowed": "{text}.",
        "untested": "{text}",
        "free server": FREE,
        "overshoot": "Updates are large, so runs overshoot the work, and makespans are of more "
        "work: {by}.",
        "diverged": "bsp's own training diverged under {count} of {seeds} seeds, so no accuracy "
        "can be compared with it: lower learner.optimizer.lr.",
        "not comparable": "{who}: {why}.",
        "small model": "A small model learned (task {task}), with one optimizer for all policies, "
        "tuned for none of them: gradients that are late, few or in reduced precision may be "
        "worth more or less on your model.",
        "stale": STALE,
        "unknown worth": "The worth of a sample is unknown for {who}: equal progress may take "
        "more samples than are counted here, and only real training tells how many.",
        "beyond trace": "{shares} % of the computing of {who} lies beyond the end of the trace; "
        "the last values were held.",
        "replay": "The trace replays recorded step durations. The effect of reduced precision on "
        "them is assumed, so no M is claimed, and the clean control takes each step at the median "
        "over ranks of that step.",
        "held out": "The fits of the profile {name} miss held-out measurements, in the median: "
        "{parts}. Calibrate again on an otherwise idle machine.",
        "doubtful": "{text}",
        "beyond measured": "Times are extrapolated beyond what the profile measured, and may be "
        "far off: {what}.",
        "lasting noise": "Measured noise lasts over steps (lag-1 autocorrelation {lag:.2g}), "
        "simulated noise does less ({simulated:.2g}, by `noise.lag1`): real runs are likely to "
        "spread more than the intervals say.",
    },
    DOUBT: {
        "unused noise": "{text}.",
        "no effect": "The trace's {resource} rows have no effect: {why}.",
        "lost lead": "{text}",
        "condition": "{best} also has the best mean only as long as {far}.",
        "few seeds": "The sensitivity of the lead was tested with {tried} of {seeds} seeds only.",
        "moved samples": "A step with fewer samples takes proportionally less time here: any part "
        "of a step that does not depend on its samples would slow down {who}.",
        "contended precision": "Reduced precision was measured to gain {contended:.3g} times "
        "under contention; the simulation uses its gain without, {idle:.3g} times, which "
        "{favours} {who}.",
        "model of progress": "Times to target come from a model of progress; nothing was trained. "
        "Its constants are the noise scale of {noise:g} samples (learner.noise_scale, assumed; "
        "`simstrag calibrate` can measure it) and c_tau {c_tau:g}, the cost of staleness "
        "(learner.c_tau, {kind}; `simstrag fit` finds it for a small task of yours).",
        "equal precision": "For {who}, times to target also assume that a gradient in reduced "
        "precision is worth as much as one in full.",
        "uncut": "{who} {does} here: microbatches is 1, so a deadline has nowhere to stop a step.",
        "free communication": FREE,
    },
    NOTE: {
        "launching": "Launching bounds a clean step: {host:s}, and {device:s} on the device. "
        "Compiling the model, CUDA graphs or a larger batch change that, and no policy does.",
        "more than mitigation": "M above 100 % is no error: such a policy is faster than bsp "
        "without contention.",
        "resource": "By the trace, the {which} {which:is/are} contended. This decides which policy "
        "help: if another resource is contended on your cluster, change the `resource` of the "
        "trace's rows.",
        "many intervals": "Each interval is of one policy; none is corrected for multiple "
        "comparisons.",
    },
}
"""The severity and the sentence of each kind."""

Row = tuple[str, Mapping[str, Any]]
"""The kind of a caution, and its values."""


def cautions(s: Standings) -> list[Remark]:
    """What a reader must know before relying on the answer, most severe first."""
    return rows(CAUTIONS, (
        *_runs(s), *_worth(s), *_progress(s), *_trace(s), *_profile(s), *_lead(s),
        *_reduced_precision(s), *_deadlines(s),
    ))  # fmt: skip


def _runs(s: Standings) -> Iterator[Row]:
    """Contention, noise or communication that these runs have not met, and work beyond the end."""
    made, scenario, inputs = s.comparison, s.scenario, s.scenario.inputs
    if made.unslowed:
        yield "not slowed", {"text": capital(made.unslowed)}
    if untested := explain_untested(s):
        yield "untested", {"text": untested}
    if made.unused_noise:
        yield "unused noise", {"text": capital(made.unused_noise)}
    free = ["the server"] * _free_server(s)
    if free and scenario.all_reduce_seconds:
        yield "free server", {"which": free}
    elif (
        free := ["an all-reduce"] * bool(s.uses("allreduce") and not scenario.all_reduce_seconds)
        + free
    ):
        yield "free communication", {"which": free}
    contended, pulls = slowed(s), inputs.server.push or inputs.server.pull
    reasons = {
        "host": "" if inputs.step.host else "host_share is 0",
        "gpu": "" if inputs.step.gpu else "host_share is 1",
        "net": "" if scenario.all_reduce_seconds or pulls else "no transfer takes any time",
    }
    for resource, why in reasons.items():
        if resource in contended and why:
            yield "no effect", {"resource": resource, "why": why}
    if contended:
        yield "resource", {"which": contended}
    if s.seeds > 1 and len(s.policies) > 2:
        yield "many intervals", {}


def _worth(s: Standings) -> Iterator[Row]:
    """Times of samples that are not worth the same."""
    learner = s.scenario.learner
    if learner.is_real:
        if diverged := int(np.isfinite(s.comparison.column(BASELINE, "diverged")).sum()):
            yield "diverged", {"count": diverged, "seeds": s.seeds}
        for why, who in _by_reason(s.incomparable).items():
            yield "not comparable", {"who": who, "why": why}
        yield "small model", {"task": learner.task}
    elif not s.comparison.has_target:
        if s.stale:
            yield "stale", {"who": s.stale}
        if s.unknown:
            yield "unknown worth", {"who": unknown(s)}


def unknown(s: Standings) -> str:
    """The policies whose progress is unknown, with the reasons in brackets."""
    return join([f"{names} ({why})" for why, names in _by_reason(s.unknown).items()])


def _by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    """The policies of each reason, in words."""
    found: dict[str, list[str]] = {}
    for name, why in reasons.items():
        found.setdefault(why, []).append(name)
    return {why: join(names) for why, names in found.items()}


def _lead(s: Standings) -> Iterator[Row]:
    """What else the lead depends on, how few seeds showed it, and a gain above all delay."""
    table, best = s.comparison.thresholds, s.policies[0].policy
    if table is not None and len(table):
        if lost := explain_lost_lead(s):
            yield "lost lead", {"text": lost}
        if far := conditions(s)[1]:
            yield "condition", {"best": best, "far": far}
        if (n := int(table["seeds"].iloc[0])) < s.seeds and not s.is_untested:
            yield "few seeds", {"tried": n, "seeds": s.seeds}
    if any(
        p.mitigation[n].value > 1 and s.has_mitigation(p, n) for p in s.policies for n in s.times
    ):
        yield "more than mitigation", {}


def _profile(s: Standings) -> Iterator[Row]:
    """Fits that missed their held-out cells, use beyond what was measured, and lasting noise."""
    profile, times = s.scenario.inputs.profile, s.scenario.inputs.times
    missed = [] if profile is None else [h for h in profile.held_out if h.median > h.threshold]
    if missed and profile is not None:
        parts = [f"{h.part} by {h.median:.0%} (allowed: {h.threshold:.0%})" for h in missed]
        yield "held out", {"name": profile.name, "parts": parts}
    for text in doubtful_constants(s.scenario):
        yield "doubtful", {"text": text}
    if beyond := [*map(str, s.comparison.beyond_measured)]:
        yield "beyond measured", {"what": beyond}
    lag = None if times is None or times.noise is None else times.noise.lag1_autocorrelation
    drawn = s.scenario.inputs.step.noise
    simulated = 0.0 if drawn is None else drawn.lag1
    if lag is not None and lag - simulated >= LASTING:
        yield "lasting noise", {"lag": lag, "simulated": simulated}


def doubtful_constants(scenario: Scenario) -> list[str]:
    """A sentence on the constants in force that a reader must not take as they stand, if any."""
    profile = scenario.inputs.profile
    if profile is None:
        return []
    return caution(profile, scenario.inputs.times, _in_force(scenario, profile))


def _in_force(scenario: Scenario, profile: Profile) -> set[str]:
    """The parts of the profile whose constants the scenario takes from it."""
    parts = {"step": scenario.inputs.times, "allreduce": scenario.allreduce is None,
             "server": scenario.server is None}  # fmt: skip
    laws = {
        f"responses.{each.load}.{each.precision or 'all-reduce'}"
        for each in scenario.inputs.responses
    }
    workload, batch = profile.workload, scenario.learner.batch
    if scenario.inputs.times is not None and workload is not None:
        measured = {cell.precision for cell in profile.cells if cell.batch == batch}
        laws |= {f"batches.{name}" for name in {workload.full, workload.amp} - measured}
    return {part for part, is_taken in parts.items() if is_taken} | laws


def _reduced_precision(s: Standings) -> Iterator[Row]:
    """What bounds a step, a change of the gain by contention, and parts that may be fixed."""
    inputs = s.scenario.inputs
    if inputs.step.overlaps and inputs.step.host >= inputs.step.gpu:
        yield "launching", {"host": inputs.step.host, "device": inputs.step.gpu}
    amp, moving = _whose(s, "amp_share"), _whose(s, "rebatched_share")
    ratio = inputs.times and inputs.times.amp_ratio
    contended = inputs.times and inputs.times.amp_ratio_contended
    if amp and ratio and contended and contended.value != ratio.value:
        favours = "favours" if contended.value < ratio.value else "disadvantages"
        yield "contended precision", {
            "contended": contended.value, "idle": ratio.value, "favours": favours, "who": amp,
        }  # fmt: skip
    if moving and not inputs.step.fixed_share:
        yield "moved samples", {"who": moving}


def _whose(s: Standings, share: str) -> list[str]:
    """The policies with a column of the ranking above 0."""
    return [p.policy for p in s.policies if p.other[share] > 0]


def _progress(s: Standings) -> Iterator[Row]:
    """With a target, the assumptions of the progress model; else the overshoot of large updates."""
    scenario, learner = s.scenario, s.scenario.learner
    if s.costs:
        yield "model of progress", {
            "noise": learner.noise_scale, "c_tau": learner.c_tau,
            "kind": kind_of(scenario, "learner.c_tau"),
        }  # fmt: skip
        if amp := _whose(s, "amp_share"):
            yield "equal precision", {"who": amp}
    elif (wanted := scenario.sample_target) is not None:
        over = {p.policy: p.other["samples"] / wanted - 1 for p in s.policies}
        far = {who: share for who, share in over.items() if share > OVERSHOOT}
        if by := [f"{who} by {float(f'{100 * share:.2g}'):g} %" for who, share in far.items()]:
            yield "overshoot", {"by": by}


def _deadlines(s: Standings) -> Iterator[Row]:
    runs = s.comparison.runs
    if "cuttable" not in runs:
        return
    whole = list(dict.fromkeys(runs.loc[runs["cuttable"] == 0, "policy"]))
    if whole:
        bsp = all(s.same(name, BASELINE) for name in whole)
        does = say("{who:is/are} bsp", who=whole) if bsp else "cannot cut any step"
        yield "uncut", {"who": whole, "does": does}


def _free_server(s: Standings) -> bool:
    """Whether some policy goes through a server that takes no time."""
    server = s.scenario.inputs.server
    return s.uses("server") and not (server.service or server.push or server.pull)


def _trace(s: Standings) -> Iterator[Row]:
    """Time after the end of the trace, and durations that it replays."""
    shares = {p.policy: p.other.get("beyond_trace", 0.0) for p in s.policies}
    beyond = {name: share for name, share in shares.items() if share > BEYOND}
    if beyond:
        ends = [f"{100 * share:.0f}" for share in (min(beyond.values()), max(beyond.values()))]
        who = "all policies" if len(beyond) == len(shares) > 1 else join([*beyond])
        yield "beyond trace", {"shares": " to ".join(dict.fromkeys(ends)), "who": who}
    if s.replays:
        yield "replay", {}
