"""What the numbers of a comparison cover: contention, the network, seeds, costs of staleness."""

from __future__ import annotations

from simstrag.analysis.derived.ranking import Standings
from simstrag.analysis.text.number_format import join
from simstrag.analysis.text.remark import say
from simstrag.analysis.text.sensitivity_text import leader
from simstrag.profile.responses import law_of
from simstrag.scenario.varied_constants import value_of

STRETCHED = {
    "gpu": "the computing device's part of a step",
    "host": "the part of a step that reduced precision cannot shorten",
    "net": "pushes, pulls and all-reduces",
    "step": "the whole step",
}
"""The part of training that a row of each resource slows."""
NOTHING = "the trace slows nothing"


def contended(s: Standings) -> str:
    """The resources that the trace slows, as a clause."""
    trace = s.scenario.inputs.trace
    rows = () if trace is None else trace.rows
    busy = {r.resource for r in rows if r.kind == "utilisation" and r.value > 0}
    texts = [f"{STRETCHED[resource]} ({resource})" for resource in slowed(s)]
    busy -= {*slowed(s)}
    if busy:
        what = "transfers" if busy == {"net"} else "steps" + " and transfers" * ("net" in busy)
        texts.append(f"{what} by the utilisation of {join(sorted(busy))}")
    if any(r.kind == "delay" and r.value > 0 for r in rows):
        texts.append("messages by a delay of each")
    if texts and (response := value_of(s.scenario, "contention.response")):
        texts[-1] += f", as is assumed: a load u by {law_of(response)}"
    if s.replays:
        recorded = "the contention is in the recorded step times themselves"
        return f"the trace slows {join(texts)}, and {recorded}" if texts else recorded
    return f"the trace slows {join(texts)}" if texts else NOTHING


def slowed(s: Standings) -> list[str]:
    """The resources that the trace slows by factors, or by loads under an assumed law."""
    inputs = s.scenario.inputs
    rows = () if inputs.trace is None else inputs.trace.rows
    found = {r.resource for r in rows if r.kind == "slowdown" and r.value != 1}
    if value_of(s.scenario, "contention.response"):
        busy = {r.resource for r in rows if r.kind == "utilisation" and r.value > 0}
        found |= inputs.loads & busy
    return [resource for resource in STRETCHED if resource in found]


def slow_network(s: Standings) -> str:
    """Sentences where an all-reduce takes longer than a step; else empty."""
    scenario, step = s.scenario, s.scenario.inputs.step.clean
    network, hidden = scenario.all_reduce_seconds, scenario.inputs.allreduce.overlap
    if network <= step:
        return ""
    text = (
        "The network is the bottleneck of bsp, not its slowest worker: an all-reduce takes "
        "{network:s}, a step {step:s}."
    )
    if hidden and network / (1 - hidden) * hidden > step:
        text += (
            " That is after backward hides {hidden:%2} of it (allreduce.overlap), more than a step "
            "can hide."
        )
    return say(text, network=network, step=step, hidden=hidden)


def coverage(s: Standings) -> str:
    """The coverage of the intervals, as a clause."""
    scenario, n = s.scenario, s.seeds
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


def turnover(s: Standings) -> str:
    """Who has the best mean at each cost of staleness tried; the table has all others."""
    if s.scenario.learner.is_real:
        return "A real model learned, so no time here depends on it."
    if not s.costs:
        return (
            "No target is declared, so there is no time to it: c_tau changes progress and goodput, "
            "but not the time that a number of samples takes."
        )
    leaders: dict[str, list[str]] = {}
    for c in s.costs:
        leaders.setdefault(leader(s, c), []).append(f"{c:g}")
    where = [f"{name} at c_tau {join(costs)}" for name, costs in leaders.items()]
    return f"The best mean is that of {join([*leaders] if len(leaders) == 1 else where)}."
