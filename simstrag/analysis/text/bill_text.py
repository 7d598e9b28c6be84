"""What contention and the network did to a comparison, in words, and what that cost: the bill."""

from __future__ import annotations

from collections.abc import Iterator

from simstrag.analysis.derived.comparison_decision import Bill
from simstrag.analysis.derived.ranking import Standings
from simstrag.analysis.text.gain_text import percent_of
from simstrag.analysis.text.number_format import MISSING, capital, estimate, join
from simstrag.analysis.text.remark import say
from simstrag.experiments.paired_statistics import NEGLIGIBLE, Estimate
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


def describe_bill(s: Standings, bill: Bill | None) -> str:
    """The GPU-hours that contention cost bsp, the share of waiting, and the slowest node."""
    if bill is None:
        if s.scenario.inputs.trace is None:
            return "There is no contention, so no gain is mitigation."
        if s.delay < -NEGLIGIBLE:
            return "The trace makes bsp faster than it is without it: there is nothing to mitigate."
        clause = contended(s)
        if clause == NOTHING:
            return f"{capital(clause)}."
        return f"{capital(clause)}, but that delays bsp by less than 0.5 %."
    amounts = join([f"{prose(bill.hours)} GPU-hours", *_converted(s, bill)])
    text = f"{_who(s)} cost this job {percent_of(bill.share)} of its GPU-hours: {amounts}"
    if bill.share.low <= 0:
        return f"{text}, which is not shown to differ from 0. {capital(contended(s))}."
    if bill.waiting.value > 0:
        text += f". {percent_of(bill.waiting)} of that is waiting for slower workers"
        if bill.node is not None:
            name = name_of_node(s, bill.node)
            text += f", and {percent_of(bill.blame)} of all waiting is for {name}"
    return f"{text}. {capital(contended(s))}."


def summarize_bill(s: Standings, bill: Bill | None) -> str:
    """The share of GPU-hours that contention cost bsp, and the slowest node, in one line."""
    if bill is None or bill.share.low <= 0:
        first, stop, _ = describe_bill(s, bill).partition(". ")
        return first + stop.rstrip()
    text = f"{_who(s)} cost {percent_of(bill.share)} of GPU-hours"
    if bill.waiting.value > 0 and bill.node is not None:
        text += f"; {percent_of(bill.blame)} of all waiting was for {name_of_node(s, bill.node)}"
    return f"{text}."


def _who(s: Standings) -> str:
    return "Stragglers" if s.replays else "Contention"


def _converted(s: Standings, bill: Bill) -> Iterator[str]:
    """The bill in money and energy, where the scenario says what a device costs and draws."""
    cost = s.scenario.cost
    if cost.gpu_hour is not None:
        yield f"{prose(bill.hours, cost.gpu_hour)} {cost.currency}"
    if (watts := s.scenario.watts[0]) is not None:
        yield f"{prose(bill.hours, watts / 1000)} kWh"


def prose(e: Estimate, scale: float = 1.0) -> str:
    """An estimate in a sentence; without an interval, the value alone."""
    return estimate(*e, scale=scale).removesuffix(f" ({MISSING})")


def name_of_node(s: Standings, node: int) -> str:
    """The name of a node, as the trace has it; of a worker, where that is several ranks."""
    if s.scenario.worker is not None:
        return f"worker {node}"
    trace = s.scenario.inputs.trace
    name = None if trace is None else trace.names.get(node)
    return name or f"node {node}"


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
