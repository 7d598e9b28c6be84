"""Cautions of a comparison: what its intervals cover, and what its answer depends on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from simstrag.analysis.derived.ranking import NEGLIGIBLE, Standings, faster
from simstrag.analysis.text.number_format import capital, join, percent, seconds
from simstrag.analysis.text.profile_text import caution
from simstrag.analysis.text.sensitivity_text import (
    conditions,
    explain_lost_lead,
    explain_untested,
    leader,
)
from simstrag.experiments.comparison import BASELINE
from simstrag.profile.profile import Profile
from simstrag.profile.responses import law_of
from simstrag.scenario.beyond_measured import doubts
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import THROUGH, kind_of, value_of
from simstrag.timing.collectives import ranks_per_node

BEYOND = 0.05
"""Report time beyond the trace above this share of computing."""
OVERSHOOT = 0.005
"""Report overshoot above this share of the work."""
LASTING = 0.2
"""Report the lag-1 autocorrelation of noise from this value on."""
STRETCHED = {
    "gpu": "the computing device's part of a step",
    "host": "the part of a step that reduced precision cannot shorten",
    "net": "pushes, pulls and all-reduces",
    "step": "the whole step",
}
"""What a row of each resource slows."""
CONTENDED = {"gpu": "gpu", "host": "host", "net": "network", "step": "whole step"}
"""Each resource in a sentence."""
REDUCING, SERVING = THROUGH["allreduce"], THROUGH["server"]
"""The architectures that take an all-reduce, and those that take the server."""
NOTHING = "the trace slows nothing"


def cautions(s: Standings) -> list[str]:
    """What a reader must know before relying on the answer, most important first."""
    every = [
        *_worth(s), *_contention(s), *_lead(s), *_profile(s),
        *_reduced_precision(s), *_work(s), *_deadlines(s), *_free_communication(s), *_trace(s),
        *_resource(s),
    ]  # fmt: skip
    if _free_server(s) and _reduces(s.comparison.scenario):
        free = list(_free_communication(s))
        every = [*free, *(text for text in every if text not in free)]
    if s.seeds > 1 and len(s.policies) > 2:
        every.append("Each interval is of one policy; none is corrected for multiple comparisons.")
    return [text for text in every if text]


def _worth(s: Standings) -> Iterator[str]:
    """Times of samples that are not worth the same."""
    learner = s.comparison.scenario.learner
    if learner.is_real:
        if diverged := int(np.isfinite(s.comparison.column(BASELINE, "diverged")).sum()):
            yield (
                f"{BASELINE}'s own training diverged under {diverged} of {s.seeds} seeds, so no "
                "accuracy can be compared with it: lower learner.optimizer.lr."
            )
        yield from (f"{names}: {why}." for why, names in _by_reason(s.incomparable).items())
        yield (
            f"A small model learned (task {learner.task}), with one optimizer for all policies, "
            "tuned for none of them: on your model gradients that are late, few or in reduced "
            "precision may be worth more or less."
        )
        return
    if s.comparison.has_target:
        return
    if s.stale:
        yield warn_of_stale(s.stale)
    if s.unknown:
        yield (
            f"The worth of a sample is unknown for {unknown(s)}. Equal progress may take more "
            "samples than are counted here; only real training tells how many."
        )


def unknown(s: Standings) -> str:
    """The policies whose progress is unknown, with the reasons in brackets."""
    return join([f"{names} ({why})" for why, names in _by_reason(s.unknown).items()])


def _by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    """The policies of each reason, in words."""
    found: dict[str, list[str]] = {}
    for name, why in reasons.items():
        found.setdefault(why, []).append(name)
    return {why: join(names) for why, names in found.items()}


def ignored(s: Standings, policy: str) -> str:
    """Why a policy's deciding time is not of the same learning as bsp's; empty where it is."""
    return s.incomparable.get(policy, "")


def _contention(s: Standings) -> Iterator[str]:
    """Missing or slight contention, and contention without effect in the scenario."""
    scenario, inputs = s.comparison.scenario, s.comparison.scenario.inputs
    if inputs.trace is None:
        noise = inputs.step.noise is not None
        slow = "ranks are slow by noise alone" if noise else "no rank is slow, not even by noise"
        yield f"There is no contention trace: {slow}."
        return
    if unslowed := s.comparison.unslowed:
        yield f"{unslowed[0].upper()}{unslowed[1:]}."
    if unused := s.comparison.unused_noise:
        yield f"{unused[0].upper()}{unused[1:]}."
    if s.delay < NEGLIGIBLE:
        yield (
            f"Contention delays bsp by only {100 * s.delay:.2g} %: there is hardly anything to "
            "mitigate, and M is not defined."
        )
    pulls = inputs.server.push or inputs.server.pull
    reasons = {
        "host": "" if inputs.step.host else "host_share is 0",
        "gpu": "" if inputs.step.gpu else "host_share is 1",
        "net": "" if _reduces(scenario) or pulls else "no transfer takes any time",
    }
    slowed = _slowed(s)
    for resource, reason in reasons.items():
        if resource in slowed and reason:
            yield f"The trace's {resource} rows have no effect: {reason}."


def _resource(s: Standings) -> Iterator[str]:
    """The contended resource, which the trace declares."""
    if slowed := _slowed(s):
        others = [f"{each} ({what})" for each, what in STRETCHED.items() if each not in slowed]
        are = "is" if len(slowed) == 1 else "are"
        rest = f"; the others are {join(others)}" if len(others) > 1 else ""
        rest = f"; the other is {others[0]}" if len(others) == 1 else rest
        yield (
            f"The trace says that the {join([CONTENDED[each] for each in slowed])} {are} "
            "contended. This decides which policy can help: if another resource is contended on "
            f"your cluster, change the `resource` of the trace's rows{rest}."
        )


def _reduces(scenario: Scenario) -> float:
    """Seconds of an all-reduce of all ranks."""
    everybody = ranks_per_node(range(scenario.workers), scenario.network_places)
    return scenario.inputs.allreduce.seconds(everybody)


def deciding(s: Standings) -> list[str]:
    """The cautions that can change the choice, most important first."""
    runs = filter(None, [s.comparison.unslowed, explain_untested(s)])
    every = [
        *map(capital, runs), describe_overshoot(s), *_worth(s), *_trace(s), *_profile(s),
        *doubts(s.comparison.scenario),
    ]  # fmt: skip
    return [text for text in every if text]


def _lead(s: Standings) -> Iterator[str]:
    """What else the lead depends on, how few seeds showed it, and a gain above all delay."""
    table, best = s.comparison.thresholds, s.policies[0].policy
    if table is not None and len(table):
        yield explain_lost_lead(s) or explain_untested(s)
        if far := conditions(s)[1]:
            yield f"{best} also has the best mean only as long as {far}."
        if (n := table["seeds"].iloc[0]) < s.seeds and not s.is_untested:
            yield f"The sensitivity of the lead was tested with {n} of {s.seeds} seeds only."
    if any(
        p.mitigation[n].value > 1 and s.has_mitigation(p, n) for p in s.policies for n in s.times
    ):
        yield (
            "M above 100 % is no error: such a policy is faster than bsp without contention, so "
            "its gain is more than mitigation."
        )


def _profile(s: Standings) -> Iterator[str]:
    """Fits that missed their held-out cells, use beyond what was measured, and lasting noise."""
    profile, times = s.comparison.scenario.inputs.profile, s.comparison.scenario.inputs.times
    missed = [] if profile is None else [h for h in profile.held_out if h.median > h.threshold]
    if missed and profile is not None:
        how = join([f"{h.part} by {h.median:.0%} (allowed: {h.threshold:.0%})" for h in missed])
        yield (
            f"The fits of the profile {profile.name} miss held-out measurements, in the median: "
            f"{how}. Calibrate again on an otherwise idle machine."
        )
    yield from doubtful_constants(s.comparison.scenario)
    if beyond := list(map(str, s.comparison.beyond_measured)):
        yield (
            "Times are extrapolated beyond what the profile measured, and may be far off: "
            f"{join(beyond)}."
        )
    lag = None if times is None or times.noise is None else times.noise.lag1_autocorrelation
    drawn = s.comparison.scenario.inputs.step.noise
    simulated = 0.0 if drawn is None else drawn.lag1
    if lag is not None and lag - simulated >= LASTING:
        yield (
            f"Measured noise lasts over steps (lag-1 autocorrelation {lag:.2g}), simulated noise "
            f"does less ({simulated:.2g}, by `noise.lag1`): real runs are likely to spread more "
            "than the intervals say."
        )


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


def _reduced_precision(s: Standings) -> Iterator[str]:
    """What bounds a step, a change of the gain by contention, and parts that may be fixed."""
    inputs = s.comparison.scenario.inputs
    if inputs.step.overlaps and inputs.step.host >= inputs.step.gpu:
        yield (
            f"Launching bounds a clean step: {seconds(inputs.step.host)}, and "
            f"{seconds(inputs.step.gpu)} on the device. Compiling the model, CUDA graphs or a "
            "larger batch change that, and no policy does."
        )
    amp, moving = _whose(s, "amp_share"), _whose(s, "rebatched_share")
    ratio = inputs.times and inputs.times.amp_ratio
    contended = inputs.times and inputs.times.amp_ratio_contended
    if amp and ratio and contended and contended.value != ratio.value:
        direction = "favours" if contended.value < ratio.value else "disadvantages"
        yield (
            f"Reduced precision was measured to gain {contended.value:.3g} times under contention. "
            f"The simulation uses its gain without contention, {ratio.value:.3g} times, which "
            f"{direction} {join(amp)}."
        )
    if moving and not inputs.step.fixed_share:
        yield (
            "A step with fewer samples takes proportionally less time here. The part of a step "
            "that does not depend on its samples was not measured; any such part would slow down "
            f"{join(moving)}."
        )


def _whose(s: Standings, share: str) -> list[str]:
    """The policies with a column of the ranking above 0."""
    return [p.policy for p in s.policies if p.other[share] > 0]


def _work(s: Standings) -> Iterator[str]:
    """With a target, the assumptions of the progress model; else the overshoot of large updates."""
    learner = s.comparison.scenario.learner
    if s.costs:
        yield (
            "Times to target come from a model of progress; nothing was trained. Its constants are "
            f"the noise scale of {learner.noise_scale:g} samples (learner.noise_scale, assumed; "
            "`simstrag calibrate` can measure it) and c_tau "
            f"{learner.c_tau:g} (learner.c_tau, {kind_of(s.comparison.scenario, 'learner.c_tau')})."
        )
        if amp := _whose(s, "amp_share"):
            yield (
                f"For {join(amp)}, times to target also assume that a gradient in reduced "
                "precision is worth as much as one in full."
            )
        yield (
            "c_tau is the cost of staleness: at 0 a stale gradient is worth as much as a fresh "
            "one, and the larger c_tau, the less it is worth. `simstrag fit` finds it for a "
            "small task of yours and its optimizer, by training. For the job itself, train to the "
            "same loss under bsp and under asgd with `simstrag ddp`, note how many times the "
            "samples of bsp asgd needed, and choose the c_tau that gives the same ratio here."
        )
    elif text := describe_overshoot(s):
        yield text


def describe_overshoot(s: Standings) -> str:
    """Which policies did far more than the work, because their updates are large; "" for none."""
    wanted = s.comparison.scenario.sample_target
    if s.costs or wanted is None:
        return ""
    over = {p.policy: p.other["samples"] / wanted - 1 for p in s.policies}
    far = [
        f"{p} by {float(f'{100 * share:.2g}'):g} %"
        for p, share in over.items()
        if share > OVERSHOOT
    ]
    if not far:
        return ""
    return (
        "Updates are large, so runs overshoot the work, and makespans are of more work: "
        f"{join(far)}."
    )


def _deadlines(s: Standings) -> Iterator[str]:
    runs = s.comparison.runs
    if "cuttable" not in runs:
        return
    whole = list(dict.fromkeys(runs.loc[runs["cuttable"] == 0, "policy"]))
    if whole:
        bsp = all(s.same(name, BASELINE) for name in whole)
        does = f"{'is' if len(whole) == 1 else 'are'} bsp" if bsp else "cannot cut any step"
        yield (
            f"{join(whole)} {does} here: microbatches is 1, so a deadline has nowhere to stop a "
            "step."
        )


def _free_communication(s: Standings) -> Iterator[str]:
    """Communication that costs nothing, as in a scenario without constants for it."""
    which = []
    if _used(s) & REDUCING and not _reduces(s.comparison.scenario):
        which.append("an all-reduce")
    if _free_server(s):
        which.append("the server")
    if which:
        yield (
            f"Communication through {join(which)} takes no time in this scenario, which favours "
            "the policies that use it."
        )


def slow_network(s: Standings) -> str:
    """Sentences where an all-reduce takes longer than a step; else empty."""
    scenario, step = s.comparison.scenario, s.comparison.scenario.inputs.step
    network, whole = _reduces(scenario), step.clean
    hidden = scenario.inputs.allreduce.overlap
    if network <= whole:
        return ""
    text = (
        "The network is the bottleneck of bsp, not its slowest worker: an all-reduce takes "
        f"{seconds(network)}, a step {seconds(whole)}."
    )
    if hidden and network / (1 - hidden) * hidden > whole:
        text += (
            f" That is after backward hides {percent(hidden, 2)} % of it (allreduce.overlap), "
            "which is more than a step can hide."
        )
    return text


def _used(s: Standings) -> set[str]:
    """The architectures of all policies."""
    return {way for p in s.policies for way in p.architecture.split(" + ")}


def _free_server(s: Standings) -> bool:
    """Whether some policy goes through a server that takes no time."""
    server = s.comparison.scenario.inputs.server
    return bool(_used(s) & SERVING) and not (server.service or server.push or server.pull)


def _trace(s: Standings) -> Iterator[str]:
    """Time after the end of the trace, and durations that it replays."""
    shares = {p.policy: p.other.get("beyond_trace", 0.0) for p in s.policies}
    beyond = {name: share for name, share in shares.items() if share > BEYOND}
    if beyond:
        ends = {
            f"{100 * share:.0f}": None for share in (min(beyond.values()), max(beyond.values()))
        }
        whose = "all policies" if len(beyond) == len(shares) > 1 else join([*beyond])
        yield (
            f"{' to '.join(ends)} % of the computing of {whose} lies beyond the end of the trace; "
            "the last values were held."
        )
    if replays(s):
        yield (
            "The trace replays recorded step durations. The effect of reduced precision on them is "
            "assumed, so no M is claimed. Durations have no run without contention: the clean "
            "control takes each step at the median over ranks of that step."
        )


def replays(s: Standings) -> bool:
    """Whether the trace replays recorded durations, which give no mitigation."""
    trace = s.comparison.scenario.inputs.trace
    return trace is not None and trace.replays


# -- sentences that other parts use --------------------------------------------------------------


def contended(s: Standings) -> str:
    """What the trace slows, as a clause."""
    trace = s.comparison.scenario.inputs.trace
    rows = () if trace is None else trace.rows
    busy = {r.resource for r in rows if r.kind == "utilisation" and r.value > 0}
    texts = [f"{STRETCHED[resource]} ({resource})" for resource in _slowed(s)]
    busy -= {*_slowed(s)}
    if busy:
        what = "transfers" if busy == {"net"} else "steps" + " and transfers" * ("net" in busy)
        texts.append(f"{what} by the utilisation of {join(sorted(busy))}")
    if any(r.kind == "delay" and r.value > 0 for r in rows):
        texts.append("messages by a delay of each")
    if texts and (response := assumed_response(s.comparison.scenario)):
        texts[-1] += f", as is assumed: a load u by {law_of(response)}"
    if replays(s):
        recorded = "the contention is in the recorded step times themselves"
        return f"the trace slows {join(texts)}, and {recorded}" if texts else recorded
    return f"the trace slows {join(texts)}" if texts else NOTHING


def assumed_response(scenario: Scenario) -> float:
    """The assumed law of the trace's utilisations; 0 for none."""
    return value_of(scenario, "contention.response")


def _slowed(s: Standings) -> list[str]:
    """The resources that the trace slows by factors, or by loads under an assumed law."""
    inputs = s.comparison.scenario.inputs
    rows = () if inputs.trace is None else inputs.trace.rows
    slowed = {r.resource for r in rows if r.kind == "slowdown" and r.value != 1}
    if assumed_response(s.comparison.scenario):
        busy = {r.resource for r in rows if r.kind == "utilisation" and r.value > 0}
        slowed |= inputs.loads & busy
    return [resource for resource in STRETCHED if resource in slowed]


def coverage(s: Standings) -> str:
    """What the intervals cover, and what they do not."""
    scenario, n = s.comparison.scenario, s.seeds
    if n < 2 and not s.certain:
        return "there are no intervals, because there is one seed"
    if n < 2:
        return "nothing is random here, so one seed is enough, and intervals have no width"
    if not s.spread:
        return (
            f"the {n} seeds are one and the same run, because nothing is random here, so the "
            "intervals have no width and cover nothing"
        )
    training = "initial parameters, the samples drawn and " if scenario.learner.is_real else ""
    more = " and the pace of as many runs (noise.pace)" if scenario.pace else ""
    other = "trace" if scenario.pace else "day"
    noise = f"{training}the noise of step times in {n} seeds{more}"
    if scenario.inputs.trace is None:
        return f"the intervals cover {noise} without a contention trace"
    if scenario.trace_per_seed == "shift" and scenario.inputs.trace.end:
        moments = f"{training}{n} starting moments in this one trace{more}"
        return f"the intervals cover {moments}, not other traces"
    over = "over one fixed trace, so they say nothing about another"
    return f"the intervals cover {noise} {over} {other}"


def warn_of_stale(names: Sequence[str]) -> str:
    """What times to a number of samples ignore of policies with stale gradients."""
    return (
        "No target is declared, so times are of a number of samples and not of progress: "
        f"{join(names)} applied stale gradients, and may need more samples for the same "
        "progress. Declare a target to compare times to equal progress."
    )


def turnover(s: Standings) -> str:
    """Whether the ranking by time to target changes within the costs of staleness tried."""
    if s.comparison.scenario.learner.is_real:
        return "A real model learned, so no time here depends on it."
    if not s.costs:
        return (
            "No target is declared, so there is no time to it: c_tau changes progress and goodput, "
            "but not the time that a number of samples takes."
        )
    flips, unclear = [], []
    times = {p.policy: [s.at_cost(p.policy, c) for c in s.costs] for p in s.policies}
    for first, second in itertools.combinations(times, 2):
        gaps = list(map(s.gap, times[first], times[second]))
        if any(faster(g) for g in gaps) and any(g.low > 0 for g in gaps):
            flips.append(f"{first} with {second}")
        elif min(g.value for g in gaps) < 0 < max(g.value for g in gaps):
            unclear.append(f"{first} with {second}")
    if flips:
        text = f"The ranking changes: beyond their intervals, {_few(flips)} change places"
        text += f"; within their intervals, {_few(unclear)} do" if unclear else ""
    elif unclear and s.seeds < 2:
        text = f"One seed shows no difference, but the order of its times changes: {_few(unclear)}"
    elif unclear:
        text = f"No change of the ranking is shown: only within their intervals, {_few(unclear)}"
        text += " change places"
    else:
        text = "The ranking does not change"
    leaders: dict[str, list[str]] = {}
    for c in s.costs:
        leaders.setdefault(leader(s, c), []).append(f"{c:g}")
    if len(leaders) == 1:
        return f"{text}. {next(iter(leaders))} has the best mean throughout."
    where = [f"{name} at c_tau {join(costs)}" for name, costs in leaders.items()]
    return f"{text}. The best mean is that of {join(where)}."


def _few(words: list[str], most: int = 6) -> str:
    left = len(words) - most
    return join(words if left <= 1 else [*words[:most], f"{left} more pairs"])
