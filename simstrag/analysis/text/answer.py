"""The answer of a comparison: its decision in words, never surer than the numbers.

A policy is called sooner than another only where the whole 95 % interval of their paired difference
says so.  These sentences stand on the terminal, in JSON, on the report and in notebooks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from simstrag.analysis.derived.comparison_decision import ComparisonDecision, decide
from simstrag.analysis.derived.ranking import Standings, faster
from simstrag.analysis.text.bill_text import (
    NOTHING,
    contended,
    describe_bill,
    name_of_node,
    prose,
    slow_network,
)
from simstrag.analysis.text.brief import Brief
from simstrag.analysis.text.comparison_brief import brief, describe_turns
from simstrag.analysis.text.gain_text import (
    ERROR,
    PolicyNames,
    describe_gain,
    describe_regret,
    describe_setting,
    is_slight,
    saved,
)
from simstrag.analysis.text.lanes import CHANGED, describe_lane
from simstrag.analysis.text.number_format import capital, join, percent, seconds
from simstrag.analysis.text.remark import say
from simstrag.analysis.text.sensitivity_text import conditions, explain_untested
from simstrag.analysis.text.spread_text import coverage, describe_one_run, one_run
from simstrag.contract.policy import LANES
from simstrag.experiments.comparison import BASELINE, costs_of_staleness
from simstrag.experiments.decision import MODEL_ERROR, Choice, PolicyDecision, as_fast
from simstrag.experiments.paired_statistics import NEGLIGIBLE, Estimate
from simstrag.scenario.varied_constants import name_of
from simstrag.timing.noise import share_seen

UNSEEN = 0.9
"""Runs that end before this share of the trace have not seen all of it."""
SAMPLED = 0.5
"""Runs from random moments that see less than this share of the trace are few for it."""
FEW = 3
"""Most policies to name in a clause."""
SYNCHRONOUS = f"synchronous training ({BASELINE})"


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision of a comparison, and its sentences by subject.

    action: what to run, and what is as fast.
    does: what that policy does; empty for bsp.
    safety: how far it can fall behind, if anything was varied.
    inputs: the scenario's cautions on what its trace was made of.
    bill: what contention cost.
    one_run: where one run of the choice ends in nine of ten cases.
    lanes: a sentence for each lane.  conditions: when the best mean stays the best; what the
        intervals cover.
    turning: which constants would change the choice if they were known.
    unseen: the part of the trace that no run reaches; empty where runs see most of it.
    """

    decision: ComparisonDecision
    action: str
    does: str
    safety: str
    inputs: str
    bill: str
    one_run: str
    lanes: dict[str, str]
    conditions: str
    turning: str
    unseen: str

    @property
    def choice(self) -> str:
        """The action, and what the policy does."""
        return f"{self.action} {self.does}".rstrip()

    @property
    def brief(self) -> Brief:
        """The short answer."""
        return brief(self.decision, self.action, self.unseen)

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences, one paragraph each; the choice first."""
        first = (self.choice, self.one_run, self.safety, self.inputs, self.bill)
        texts = (*first, *self.lanes.values(), self.conditions, self.turning)
        return tuple(filter(None, texts))

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_markdown_(self) -> str:
        choice, *rest = self.sentences
        return "\n".join([f"**{choice}**", "", *(f"- {text}" for text in rest)])

    def to_dict(self) -> dict[str, Any]:
        """The sentences and their numbers as a JSON object."""
        d = self.decision
        bill = d.bill and {
            "share_of_gpu_hours": d.bill.share, "gpu_hours": d.bill.hours, "node": d.bill.node,
            "name": None if d.bill.node is None else name_of_node(d.s, d.bill.node),
            "waiting": d.bill.waiting, "waiting_for_node": d.bill.blame,
        }  # fmt: skip
        best = {lane: d.best(lane) for lane in LANES}
        own = next((p for p in d.s.policies if p.policy == d.safe), None)
        return {
            "choice": d.safe,
            "saves": own and saved(d.s, own)._asdict(),
            "one_run": one_run(d.s, d.safe),
            "sentences": self.sentences,
            "bill": bill and {k: v._asdict() if isinstance(v, Estimate) else v
                              for k, v in bill.items()},
            "lanes": {
                lane: p and {"policy": p.policy, "saves": saved(d.s, p)._asdict()}
                for lane, p in best.items()
            },
            "lane_of": d.lane_of,
            "not_told_apart": d.safest.alike,
            "turns": d.turns and [
                {"constant": key, "value": None if math.isnan(at) else at, "choice": policy}
                for key, choices in d.turns.items() for at, policy in choices.items()
            ],
            "settings": [
                {"constant": key or None, "value": value if key else None, "seconds": times}
                for (key, value), times in d.states.items()
            ],
            "worst_regret": {name: regret.worst for name, regret in d.regrets.items()},
            "least_gain": MODEL_ERROR,
        }  # fmt: skip


def answer(s: Standings) -> Answer:
    """The answer of a comparison."""
    d, names = decide(s), PolicyNames()
    action, does = _choice(d, names)
    return Answer(
        d,
        action,
        does,
        _safety(d),
        " ".join(s.scenario.cautions),
        " ".join(filter(None, [describe_bill(s, d.bill), slow_network(s)])),
        describe_one_run(s, d.safe),
        {lane: describe_lane(d, lane, names) for lane in LANES},
        _conditions(d),
        describe_turns(d),
        _unseen(s).rstrip(),
    )


# -- the choice -----------------------------------------------------------------------------------


def _choice(d: ComparisonDecision, names: PolicyNames) -> tuple[str, str]:
    """What to run, and what that policy does; nothing for bsp."""
    s = d.s
    if d.safe == BASELINE:
        return _keep(d), ""
    p = s.of(d.safe)
    name, does = names.of(d.safe)
    slight = ""
    if -p.difference[s.decides].value < s.grain:
        slight = f", which is less than one update of bsp ({seconds(s.grain)})"
    rivals = describe_rivals(d, d.safest)
    run = f"run {name}: {describe_gain(s, p)} sooner than {SYNCHRONOUS}{slight}"
    return f"{if_true(d, run)}.{rivals}{_fastest(d)}", does.strip()


def _keep(d: ComparisonDecision) -> str:
    """The reason to keep bsp."""
    s = d.s
    others = s.others
    does = f"{_does(s)} in {prose(s.baseline[s.decides])} s"
    takes = f"{SYNCHRONOUS}, which {does}"
    if not others:
        return f"Nothing was compared: only {takes}, was run."
    if s.seeds < 2 and not s.certain:
        return f"No difference can be shown with one seed: run more. {capital(SYNCHRONOUS)} {does}."
    if all(p.difference[s.decides].low > 0 for p in others):
        return if_true(d, f"change nothing: every policy compared takes longer than {takes}.")
    sooner = [p.policy for p in others if faster(p.difference[s.decides])]
    keep = if_true(d, f"change nothing: keep {takes}.")
    if len(d.candidates) > 1:
        shares = {name: saved(s, s.of(name)).value for name in d.candidates[1 : FEW + 1]}
        gains = [f"{name} by {percent(share, 2)} %" for name, share in shares.items()]
        why = "may be slower where an assumption fails"
        if d.safest.best != BASELINE:
            why = f"is not shown to differ from it by more than {ERROR}; run more seeds"
        return f"{keep} What is faster here ({join(gains)}) {why}."
    if comparable := [name for name in sooner if name not in s.incomparable]:
        most = s.of(comparable[0])
        return f"{keep} The gain of {most.policy}, {describe_gain(s, most)}, is below {ERROR}."
    if sooner:
        why = "has samples that may be worth less: declare a target to compare the time to it"
        if s.scenario.learner.is_real:
            why = "is not shown to be as accurate: run more seeds, or declare target_accuracy"
        return f"{keep} What is faster ({join(sooner)}) {why}."
    most = min(others, key=lambda p: p.difference[s.decides].value)
    undecided = ""
    if not is_slight(s, most) and most.policy not in s.incomparable:
        undecided = (
            f" {s.seeds} seeds are too few to tell: {most.policy} saves {describe_gain(s, most)}, "
            "and more may show it."
        )
    none = f"change nothing: no policy is shown to be faster than {takes}."
    return f"{if_true(d, none)}{undecided}"


def describe_rivals(d: PolicyDecision, choice: Choice) -> str:
    """The policies that are as fast as the choice, by what they change; "" for none.

    >>> import numpy as np
    >>> from simstrag.experiments.decision import OWN
    >>> class Faster(PolicyDecision):
    ...     shown = ("lb_bsp", "cgp", "star_h")
    >>> lanes = {"lb_bsp": "A", "cgp": "C", "star_h": "C"}
    >>> d = Faster(samples={OWN: {name: np.array([9.0, 9.1]) for name in lanes}}, lane_of=lanes)
    >>> describe_rivals(d, Choice("lb_bsp", "cgp", ("cgp", "star_h", "lb_bsp")))
    ' cgp and star_h are as fast, and change the algorithm.'
    """
    rivals, clauses = as_fast(d.samples, choice, d.by), []
    for lane, what in CHANGED.items():
        names = [name for name in rivals if d.lane_of[name] == lane]
        if not names:
            continue
        text = "{who} {names:is/are} as fast"
        if lane != d.lane_of[choice.policy]:
            text += ", and {names:changes/change} {what}"
        clauses.append(say(text, who=join(names, FEW), names=names, what=what))
    return f" {'; '.join(clauses)}." if clauses else ""


def _fastest(d: ComparisonDecision) -> str:
    """Why the fastest policy is not the choice; empty where it is, or is no faster."""
    s, p = d.s, d.s.policies[0]
    if p.policy not in d.regrets or not faster(s.between(p.policy, d.safe)):
        return ""
    text = f" {p.policy} saves {percent(saved(s, p).value, 2)} %"
    worst = d.regrets[p.policy].worst
    if worst > d.regrets[d.safe].worst:
        return f"{text}, but is {percent(worst, 2)} % behind the best at worst."
    return f"{text}, and changes {CHANGED[d.lane_of[p.policy]]}."


def if_true(d: ComparisonDecision, choice: str) -> str:
    """The choice, conditional on what may decide it: a placeholder, contention that no run met."""
    found, conditions = d.placeholders, []
    if found.stated and found.decisive != ():
        first, *more = found.stated
        many = f"the {1 + len(more)} placeholders hold"
        conditions.append(many if more else f"the placeholder {first} holds")
    if d.s.comparison.unslowed and contended(d.s) != NOTHING:
        conditions.append("the job is never slowed, as in these runs")
    return f"If {join(conditions)}, {choice}" if conditions else capital(choice)


def _safety(d: ComparisonDecision) -> str:
    """How far the choice can fall behind the best, over all settings that were simulated."""
    untested = explain_untested(d.s)
    if len(d.states) < 2 or (d.safe == BASELINE and len(d.candidates) < 2):
        return untested
    text = f"Over {len(d.states)} settings of {_varied(d)} {d.safe} {describe_regret(d, d.safe)}"
    if BASELINE in d.regrets and d.safe != BASELINE:
        text += f"; bsp {describe_regret(d, BASELINE)}"
    best = d.s.policies[0].policy
    if best in d.regrets and d.regrets[best].worst > d.regrets[d.safe].worst:
        text += f"; {best}, the fastest here, {describe_regret(d, best)}"
    return f"{text}.{_alike(d)}{_excluded(d)}{_stated_free(d.s)} {untested}".rstrip()


def _stated_free(s: Standings) -> str:
    """Why a cost of staleness that is stated as 0 is varied; empty where it is not."""
    learner = s.scenario.learner
    if learner.c_tau or learner.c_tau_range or not s.stale or not s.comparison.has_target:
        return ""
    costs = join([f"{cost:g}" for cost in costs_of_staleness(s.scenario)])
    return (
        " The scenario states that stale gradients cost nothing (c_tau 0), but no range, such as "
        f"one of `simstrag fit`: {costs} are among the settings."
    )


def _varied(d: ComparisonDecision) -> str:
    """The constants that were varied, in few words."""
    names = {key: name_of(d.s.scenario, key) for key, _ in d.states if key}
    stated = [key for key in names if key in d.placeholders.stated]
    if len(stated) > 1:
        names = {"": "the placeholders"} | {k: v for k, v in names.items() if k not in stated}
    few = 3 if len(stated) > 1 else 2
    return join([*names.values()]) if len(names) <= few else "what is not measured"


def _alike(d: ComparisonDecision) -> str:
    """Why a candidate with a smaller worst regret is not the choice; empty if there is none."""
    best = d.safest.best
    if d.regrets[best].worst >= d.regrets[d.safe].worst - NEGLIGIBLE:
        return ""
    return (
        f" {best} {describe_regret(d, best)}. It is not shown to differ from {d.safe} by more than "
        f"{ERROR}, and changes {CHANGED[d.effects[best].lane]}."
    )


def _excluded(d: ComparisonDecision) -> str:
    """Why a policy of less regret is no candidate; empty if there is none."""
    better = [
        p for p in d.s.policies
        if p.policy not in d.candidates and p.policy in d.regrets
        and d.regrets[p.policy].worst < d.regrets[d.safe].worst - NEGLIGIBLE
    ]  # fmt: skip
    if not better:
        return ""
    best = min(better, key=lambda p: d.regrets[p.policy].worst)
    why = f"saves less than {ERROR} here"
    if not faster(best.difference[d.s.decides]):
        why = f"is not shown to be faster than bsp by {d.s.seeds} seeds"
    return f" {best.policy} {describe_regret(d, best.policy)}, but {why}."


# -- conditions -----------------------------------------------------------------------------------


def _conditions(d: ComparisonDecision) -> str:
    """When the choice gains, when the best mean stays the best, and what the intervals cover."""
    s, (near, _) = d.s, conditions(d.s)
    first = s.policies[0]
    also = "" if first.policy == d.safe else ", the fastest here,"
    lead = f"{first.policy}{also} has the best mean as long as {near}. " if near else ""
    if first.policy != BASELINE and is_slight(s, first):
        lead = ""
    return f"{_gains(d)}{lead}{_unseen(s)}{capital(coverage(s))}."


def _gains(d: ComparisonDecision) -> str:
    """What the choice gains over all settings, and in which of them that is too little."""
    if d.safe == BASELINE or len(d.states) < 2:
        return ""
    gains = d.gains(d.safe)
    low, high = (percent(ends, 2) for ends in (min(gains.values()), max(gains.values())))
    small = [f"{percent(gain, 2)} % {describe_setting(d, state)}" for state, gain in gains.items()
             if state[0] and gain < MODEL_ERROR]  # fmt: skip
    if low == high:
        return ""
    text = f"Over the settings, {d.safe} gains {low} to {high} % over bsp"
    return f"{text}; less than {ERROR}: {join(small)}. " if small else f"{text}. "


def _unseen(s: Standings) -> str:
    """A sentence on the part of the trace that no run reaches; empty where runs see most of it."""
    scenario, trace = s.scenario, s.scenario.inputs.trace
    if trace is None or trace.replays or not trace.end:
        return ""
    longest, end = float(s.comparison.runs["makespan"].max()), seconds(trace.end)
    if scenario.trace_per_seed == "shift":
        seen = share_seen(scenario.seed_list, longest / trace.end)
        text = (
            f"The runs begin at {s.seeds} moments of the trace and see {percent(seen, 2)} % of its "
            f"{end}: declare more work, or more seeds, to see more. "
        )
        return text if 0 < seen < SAMPLED else ""
    text = (
        f"The runs see the first {seconds(longest)} of the trace's {end} "
        f"({percent(longest / trace.end, 2)} %): declare more work, or trace_per_seed: shift, to "
        "see the rest. "
    )
    return text if 0 < longest < UNSEEN * trace.end else ""


def _does(s: Standings) -> str:
    return "reaches the target" if s.decides == "time_to_target" else "finishes the work"
