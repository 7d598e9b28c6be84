"""The lanes of an answer in words: the best policy of each, what it changes, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator

from simstrag.analysis.derived.comparison_decision import ComparisonDecision
from simstrag.analysis.derived.ranking import Standing, faster
from simstrag.analysis.text.gain_text import (
    ERROR,
    PolicyNames,
    describe_gain,
    describe_regret,
    is_slight,
)
from simstrag.analysis.text.number_format import join, number, percent, seconds
from simstrag.analysis.text.remark import say
from simstrag.analysis.text.sensitivity_text import C_TAU, value_text
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import NEGLIGIBLE
from simstrag.scenario.varied_constants import NAMES, QUANTITIES, name_of, value_of

CHANGED = {"A": "nothing", "B": "some gradients", "C": "the algorithm"}
"""What a lane changes in training."""
EXAMPLES = {"A": "lb_bsp", "B": "backup", "C": "asgd"}
"""A policy to compare where a lane has none."""


def describe_lane(d: ComparisonDecision, lane: str, names: PolicyNames) -> str:
    """The sentences on a lane."""
    s, best = d.s, d.best(lane)
    head = f"{lane}, which changes {CHANGED[lane]}"
    if best is None:
        compared = [p.policy for p in d.lanes[lane]]
        if not compared:
            return f"{head}: no policy was compared, such as {EXAMPLES[lane]}."
        slower = [p.policy for p in d.lanes[lane] if p.difference[s.decides].low > 0]
        others = [name for name in compared if name not in slower]
        found = {"not shown to be faster": others, "slower": slower}
        texts = [say(f"{{who}} {{who:is/are}} {how} than bsp", who=who)
                 for how, who in found.items() if who]  # fmt: skip
        return f"{head}: {'; '.join(texts)}."
    name, does = names.of(best.policy)
    text = f"{head}: {name}, {describe_gain(s, best)} sooner than bsp.{does}"
    if is_slight(s, best):
        return f"{text} That is less than {ERROR}."
    declared = d.effects[best.policy].declared
    said = {
        "It changes: {}.": "; ".join(_effects(d, best)),
        "To be faster than bsp it needs: {}.": "; ".join(_needs(d, best)),
        "It is in this lane by what its runs did, because it declares none.": declared is None,
        "It declares lane {}, but is in this one, because an update has less than half of the "
        "samples of all workers.": declared if declared != lane else "",
        "Over the same settings it {}.": _regret(d, best.policy),
        "But {}.": s.incomparable.get(best.policy),
        "No difference from it is shown for {}.": join([
            p.policy for p in d.lanes[lane]
            if p is not best and not faster(s.between(best.policy, p.policy))
        ]),
    }  # fmt: skip
    return " ".join([text, *(sentence.format(what) for sentence, what in said.items() if what)])


def _regret(d: ComparisonDecision, policy: str) -> str:
    """How far a policy is behind at worst; empty for the choice."""
    is_other = len(d.states) > 1 and policy != d.safe and policy in d.regrets
    return describe_regret(d, policy) if is_other else ""


def _effects(d: ComparisonDecision, p: Standing) -> Iterator[str]:
    """What a policy changes in training, as its runs did."""
    e = d.effects[p.policy]
    if e.averages:
        yield "models are averaged instead of gradients"
    elif e.groups > 1:
        yield f"up to {e.groups} groups of workers update independently"
    elif e.joined < 1 - NEGLIGIBLE:
        yield f"an update has {percent(e.joined, 2)} % of the samples of all workers"
    if e.late:
        yield f"a gradient is {number(e.late, 2)} updates old on average"
    if e.reduced:
        yield f"{percent(e.reduced, 2)} % of steps are in reduced precision"
    if e.lost:
        yield f"{percent(e.lost, 2)} % of gradients are thrown away"
    if e.cut:
        yield f"{percent(e.cut, 2)} % of samples are left out"


def _needs(d: ComparisonDecision, p: Standing) -> Iterator[str]:
    """What must be true for the gain of a policy."""
    s, e = d.s, d.effects[p.policy]
    scenario = s.scenario
    if e.rebatched:
        yield "workers that take batches of different sizes"
    if p.uses("server"):
        server = scenario.inputs.server
        takes = f"needs {seconds(server.job)} for a gradient"
        if not (server.service or server.push or server.pull):
            takes = "costs nothing in this scenario"
        yield f"a parameter server, which {takes}"
    if e.reduced and s.costs:
        yield "gradients in reduced precision that are worth as much as others"
    if p.policy in s.stale and s.costs:
        yield _cost_of_staleness(d, p.policy)
    elif p.policy in s.stale and not scenario.learner.is_real:
        yield "stale gradients that are worth as much as others, because no target is declared"
    for (key, value), gain in d.gains(p.policy).items():
        if gain <= 0 and key and key != C_TAU:
            side = "below" if value > value_of(scenario, key) else "above"
            shown = value_text(value, QUANTITIES[key])
            yield f"{name_of(scenario, key)} {side} {shown}"


def _cost_of_staleness(d: ComparisonDecision, policy: str) -> str:
    """At which of the costs of staleness that were simulated a policy is sooner than bsp."""
    s, bsp = d.s, d.s.comparison.column(BASELINE, "time_to_target")
    sooner = {value: gain > 0 for (key, value), gain in d.gains(policy).items() if key == C_TAU}
    sooner |= {c: faster(s.gap(s.at_cost(policy, c), bsp)) for c in s.costs}
    holds, fails = ([c for c in sorted(sooner) if sooner[c] == yes] for yes in (True, False))
    if not fails:
        return f"{NAMES[C_TAU]} between {holds[0]:g} and {holds[-1]:g}, as far as tried"
    if holds[-1] < fails[0]:
        return f"{NAMES[C_TAU]} up to {holds[-1]:g}, not at {fails[0]:g}"
    listed = (" or ".join(f"{c:g}" for c in costs) for costs in (holds, fails))
    return f"{NAMES[C_TAU]} of {', not of '.join(listed)}"
