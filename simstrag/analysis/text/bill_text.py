"""What contention cost, in words: the bill of a comparison."""

from __future__ import annotations

from collections.abc import Iterator

from simstrag.analysis.derived.comparison_decision import Bill
from simstrag.analysis.derived.ranking import Standings
from simstrag.analysis.text.coverage import NOTHING, contended
from simstrag.analysis.text.gain_text import percent_of
from simstrag.analysis.text.number_format import MISSING, capital, estimate, join
from simstrag.experiments.paired_statistics import NEGLIGIBLE, Estimate


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
