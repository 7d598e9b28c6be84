"""What to know before relying on a comparison: what its intervals cover, and what it hangs on."""

from __future__ import annotations

import itertools

from simstrag.analysis.tables.standings import NEGLIGIBLE, Standings, faster
from simstrag.analysis.text.number_format import listed
from simstrag.analysis.text.sensitivity_text import conditions, explain_lost_lead, leader
from simstrag.experiments.compare import BASELINE
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.uncertain_constants import THROUGH
from simstrag.timing.collectives import ranks_per_node

__all__ = [
    "REDUCING",
    "SERVING",
    "cautions",
    "classes",
    "coverage",
    "ignored",
    "replays",
    "turnover",
    "unknown",
    "warn_of_few_seeds",
]  # fmt: skip

COVERED = {2: 50, 3: 76, 4: 80, 5: 84, 6: 86, 7: 87, 8: 89, 9: 89}
BEYOND = 0.05
OVERSHOOT = 0.005
"""From which share of additional work on a makespan is told to be of it."""
REDUCING, SERVING = THROUGH["allreduce"], THROUGH["server"]
"""The ways of making updates that take an all-reduce, and those that take the server."""
LASTING = 0.2
"""From which lag-1 autocorrelation on noise is told to last."""


def cautions(s: Standings) -> list[str]:
    """What a reader must know before relying on the answer, most important first."""
    inputs = s.comparison.scenario.inputs
    found = _of_the_worth(s)
    if inputs.trace is not None and s.delay < NEGLIGIBLE:
        found.append(
            f"Contention delays bsp by {100 * s.delay:.2g} % only: there is hardly anything to "
            "mitigate, and M is not defined."
        )
    if inputs.trace is None:
        slow = "nobody is slow here" if inputs.step.draw is None else "who is slow here is slow by"
        noise = ", for there is no noise either" if inputs.step.draw is None else " noise alone"
        found.append(f"There is no contention trace: {slow}{noise}.")
    found += _without_effect(s.comparison.scenario)
    found += _of_the_turns(s)
    if s.spread:
        found.append(warn_of_few_seeds(s.seeds))
    if any(p.mitigation[n].value > 1 for p in s.policies for n in s.times):
        found.append(
            "M above 100 % is no error: such a policy is faster than bsp without contention, "
            "so its gain is not mitigation alone."
        )
    found += _of_the_profile(s.comparison.scenario)
    found += _of_the_noise(s.comparison.scenario)
    found += _of_the_gain(s)
    found += _of_the_batches(s)
    found += _of_the_work(s)
    found += _of_the_learner(s)
    found += _of_the_deadlines(s)
    found += _free(s)
    found += [
        f"{p.policy} was past the end of the trace for {100 * p.other['beyond_trace']:.0f} % of "
        "its computing; the last values were held."
        for p in s.policies
        if p.other.get("beyond_trace", 0.0) > BEYOND
    ]
    if replays(s):
        found.append(
            "The trace replays recorded step durations: what reduced precision makes of them is "
            "assumed, so no M is claimed from it. Durations have no run without contention: the "
            "clean control takes each step at the median over ranks of that step."
        )
    if s.seeds > 1 and len(s.policies) > 2:
        found.append("Intervals are of one policy each, not corrected for looking at several.")
    return [text for text in found if text]


def _of_the_worth(s: Standings) -> list[str]:
    """Whether times are of samples that are not worth the same."""
    if s.comparison.has_target:
        return []
    found = []
    if s.stale:
        found.append(
            "No target is declared, so times are of a number of samples, whatever they are worth: "
            f"{listed(s.stale)} applied stale gradients, and may need more of them to get as far. "
            "Declare a target to compare what counts."
        )
    if s.unknown:
        found.append(
            f"What a sample is worth is unknown for {unknown(s)}: to get as far may take more "
            "samples than are counted here, how many only real training tells."
        )
    return found


def unknown(s: Standings) -> str:
    """The policies whose progress is unknown, with the reason of each in brackets."""
    by_reason: dict[str, list[str]] = {}
    for name, why in s.unknown.items():
        by_reason.setdefault(why, []).append(name)
    return listed([f"{listed(names)} ({why})" for why, names in by_reason.items()])


def ignored(s: Standings, policy: str) -> str:
    """What a time without a target ignores of a policy's samples; empty where that is nothing."""
    if s.comparison.has_target:
        return ""
    if policy in s.unknown:
        return f"what its samples are worth is unknown, since {s.unknown[policy]}"
    if policy in s.stale:
        return "its gradients are stale, so that its samples may be worth less"
    return ""


def _of_the_deadlines(s: Standings) -> list[str]:
    """Whether somebody was asked for a deadline that nothing can be cut at."""
    runs = s.comparison.runs
    if "cuttable" not in runs:
        return []
    whole = list(dict.fromkeys(runs.loc[runs["cuttable"] == 0, "policy"]))
    if not whole:
        return []
    bsp = all(s.same(name, BASELINE) for name in whole)
    does = f"{'is' if len(whole) == 1 else 'are'} bsp" if bsp else "cannot cut any step"
    return [
        f"{listed(whole)} {does} here: microbatches is 1, so that a deadline has nowhere to stop "
        "a step."
    ]


def _without_effect(scenario: Scenario) -> list[str]:
    """Contention in the trace that nothing in the scenario can feel."""
    inputs = scenario.inputs
    rows = () if inputs.trace is None else inputs.trace.rows
    slowed = {row.resource for row in rows if row.kind == "slowdown" and row.value != 1}
    server, everybody = (
        inputs.server,
        ranks_per_node(range(scenario.workers), scenario.network_places),
    )
    transfers = inputs.allreduce.seconds(everybody) or server.push or server.pull
    reasons = {
        "host": "" if inputs.step.host else "host_share is 0",
        "gpu": "" if inputs.step.gpu else "host_share is 1",
        "net": "" if transfers else "no transfer takes any time",
    }
    return [
        f"The trace's {resource} rows have no effect: {reason}."
        for resource, reason in reasons.items()
        if resource in slowed and reason
    ]


def classes(s: Standings) -> str:
    """What kinds of contention there are, in words that follow `is`.

    It is the trace's word: the resource is declared by whoever made it.
    """
    trace = s.comparison.scenario.inputs.trace
    rows = () if trace is None else trace.rows
    found = sorted({r.resource for r in rows if r.kind == "slowdown" and r.value != 1})
    texts = (
        [f"of the {listed([r for r in found if r != 'step'])} class"]
        if set(found) - {"step"}
        else []
    )
    texts += ["of no known class (the whole step is slowed)"] if "step" in found else []
    texts += ["in the recorded step times themselves"] if replays(s) else []
    return listed(texts) or "nowhere in it"


def _of_the_turns(s: Standings) -> list[str]:
    """What more the lead hangs on than the answer says, and how far that was looked at."""
    table, best = s.comparison.thresholds, s.policies[0].policy
    if table is None or not len(table):
        return []
    _, far = conditions(s)
    found = [explain_lost_lead(s)]
    if far:
        found.append(f"{best} has the best mean also only as long as {far}.")
    if (n := table["seeds"].iloc[0]) < s.seeds:
        found.append(f"What the lead hangs on was looked for under the first {n} seeds only.")
    return found


def _of_the_profile(scenario: Scenario) -> list[str]:
    """Whether the profile's fits missed what they had not seen by more than was asked of them."""
    profile = scenario.inputs.profile
    missed = [] if profile is None else [h for h in profile.held_out if h.median > h.threshold]
    if not missed or profile is None:
        return []
    how = listed([f"{h.part} by {h.median:.0%} (asked: {h.threshold:.0%})" for h in missed])
    return [
        f"The profile {profile.name} misses what its fits had not seen, in the median: {how}; "
        "calibrate again on a machine that does nothing else."
    ]


def _of_the_noise(scenario: Scenario) -> list[str]:
    """Whether noise was measured to last longer than a step, which no simulated noise does."""
    times = scenario.inputs.times
    lag = None if times is None or times.noise is None else times.noise.lag1_autocorrelation
    if lag is None or lag < LASTING:
        return []
    return [
        f"Measured noise lasts over steps (lag-1 autocorrelation {lag:.2g}), simulated noise does "
        "not: real runs are likely to spread more than the intervals say."
    ]


def _of_the_gain(s: Standings) -> list[str]:
    """Whether reduced precision was measured to gain less under contention than is simulated."""
    scenario = s.comparison.scenario
    times = scenario.inputs.times
    contended = None if times is None else times.amp_ratio_contended
    amp = [p.policy for p in s.policies if p.other["amp_share"] > 0]
    if times is None or times.amp_ratio is None or contended is None or not amp:
        return []
    clean = times.amp_ratio.value
    if contended.value == clean:
        return []
    direction = "flatters" if contended.value < clean else "wrongs"
    return [
        f"Reduced precision gains {contended.value:.3g} times under contention as measured, and "
        f"{clean:.3g} times as simulated, which is its gain without: that {direction} "
        f"{listed(amp)}."
    ]


def _of_the_batches(s: Standings) -> list[str]:
    """Whether anybody moves samples, and nobody knows what is fixed of a step's time."""
    moving = [p.policy for p in s.policies if p.other["rebatched_share"] > 0]
    if not moving or s.comparison.scenario.inputs.step.fixed_share:
        return []
    return [
        "A step with fewer samples takes proportionally less time here; nobody measured the part "
        f"of a step that does not depend on them, and any such part would hold back "
        f"{listed(moving)}."
    ]


def _of_the_work(s: Standings) -> list[str]:
    """Whether large updates overshoot the samples that everybody was to apply."""
    wanted = s.comparison.scenario.sample_target
    if wanted is None or s.comparison.has_target:
        return []
    over = {p.policy: p.other["samples"] / wanted - 1 for p in s.policies}
    far = [f"{p} by {100 * share:.2g} %" for p, share in over.items() if share > OVERSHOOT]
    if not far:
        return []
    return [
        "Updates are large, so the work asked for is overshot, and makespans are of more work: "
        f"{listed(far)}."
    ]


def _of_the_learner(s: Standings) -> list[str]:
    """What a time to target rests on beyond durations."""
    if not s.comparison.has_target:
        return []
    learner = s.comparison.scenario.learner
    amp = [p.policy for p in s.policies if p.other["amp_share"] > 0]
    found = [
        f"Times to target are of a model of progress with a noise scale of "
        f"{learner.noise_scale:g} samples and c_tau {learner.c_tau:g}, both assumed; nothing was "
        "trained."
    ]
    if amp:
        found.append(
            f"For {listed(amp)} they also assume that a gradient in reduced precision is worth as "
            "much as one in full."
        )
    return found


def _free(s: Standings) -> list[str]:
    """Whether communication that somebody uses costs nothing, as an inline scenario has it."""
    used = {way for p in s.policies for way in p.architecture.split(" + ")}
    scenario = s.comparison.scenario
    server = scenario.inputs.server
    everybody = ranks_per_node(range(scenario.workers), scenario.network_places)
    reduces = scenario.inputs.allreduce.seconds(everybody)
    serves = server.service or server.push or server.pull
    which = ["an all-reduce"] if used & REDUCING and not reduces else []
    which += ["the server"] if used & SERVING and not serves else []
    if not which:
        return []
    return [
        f"Through {listed(which)} communication takes no time in this scenario, which favours "
        "the policies that use it."
    ]


def coverage(s: Standings) -> str:
    """What the intervals cover, and so what they say nothing of."""
    scenario = s.comparison.scenario
    n = s.seeds
    if n < 2 and not s.certain:
        return "there are no intervals, since there is one seed"
    if n < 2:
        return (
            "nothing is random here, so that one seed is all there is, and intervals have no width"
        )
    if not s.spread:
        return (
            f"the {n} seeds are one and the same run, since nothing is random here, "
            "so the intervals have no width and cover nothing"
        )
    intervals = "the intervals" + (", too narrow with so few seeds," if n in COVERED else "")
    if scenario.inputs.trace is None:
        return f"{intervals} cover the luck of step times in {n} seeds without a contention trace"
    if scenario.trace_per_seed == "shift":
        return (
            f"{intervals} cover {n} seeds that begin at different moments of one trace, "
            "and no contention that is not in it"
        )
    return (
        f"{intervals} cover the luck of step times in {n} seeds over one fixed trace, "
        "so they say nothing of another day"
    )


def warn_of_few_seeds(n: int) -> str:
    """How far a percentile bootstrap over `n` seeds can be trusted; empty from ten seeds on.

    The shares are how often it covered the mean of n normal values, 6000 simulated samples each;
    it was 93 % with 20 and 94 % with 30.
    """
    if n not in COVERED:
        return ""
    return (
        f"With {n} seeds the 95 % intervals are too narrow: where noise is normal, a bootstrap of "
        f"{n} values covers the mean {COVERED[n]} % of the time."
    )


def turnover(s: Standings) -> str:
    """Whether the ranking by time to target turns over within the costs of staleness tried."""
    if not s.comparison.has_target:
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
        text = f"The ranking turns over: beyond their intervals change places {_few(flips)}"
        text += f", within them {_few(unclear)}" if unclear else ""
    elif unclear and s.seeds < 2:
        text = f"One seed shows nothing, but the order of its times changes: {_few(unclear)}"
    elif unclear:
        text = f"It is not shown to turn over: within their intervals change {_few(unclear)}"
    else:
        text = "The ranking does not turn over"
    leaders: dict[str, list[str]] = {}
    for c in s.costs:
        leaders.setdefault(leader(s, c), []).append(f"{c:g}")
    if len(leaders) == 1:
        return f"{text}. {next(iter(leaders))} has the best mean throughout."
    where = [f"{name} at c_tau {listed(costs)}" for name, costs in leaders.items()]
    return f"{text}. The best mean is that of {listed(where)}."


def replays(s: Standings) -> bool:
    """Whether the trace replays recorded durations, from which no mitigation is claimed."""
    trace = s.comparison.scenario.inputs.trace
    return trace is not None and trace.replays


def _few(words: list[str], most: int = 6) -> str:
    left = len(words) - most
    return listed(words if left <= 1 else [*words[:most], f"{left} more pairs"])
