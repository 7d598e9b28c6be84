"""The answer in a few sentences, never surer than the numbers.

A policy is called faster than another only where the whole 95 % interval of their paired difference
says so; everything else is "no difference shown".  The conditions of the best mean are a sentence
of their own, because the gain over bsp does not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simstrag.analysis.derived.standings import NEGLIGIBLE, Standing, Standings, faster
from simstrag.analysis.text.cautions import contended, coverage, ignored
from simstrag.analysis.text.number_format import estimate, join, number, percent, seconds
from simstrag.analysis.text.sensitivity_text import (
    C_TAU,
    conditions,
    explain_lost_lead,
    tried,
    turns,
)
from simstrag.experiments.compare import BASELINE
from simstrag.experiments.paired_statistics import Estimate


def answer(s: Standings) -> tuple[str, ...]:
    """Sentences: the leader, the conditions of its lead if known, and what the intervals cover."""
    others = [p for p in s.policies if p.policy != BASELINE]
    bsp = _time(s.baseline[s.decides])
    if not others:
        return f"Only bsp was run: it needs {bsp}.", *_last(s, "Nothing was compared", False)
    best = next((p for p in others if faster(p.difference[s.decides])), None)
    slower = [p for p in others if p.difference[s.decides].low > 0]
    if best is not None:
        rest, but = _runner_up(s, best), ignored(s, best.policy)
        first, last = _winner(s, best), f"But {but}, and {rest}" if but else rest
    elif s.seeds < 2 and not s.certain:
        names = _names(others)
        first = f"No difference shown: one seed gives no interval to tell {names} from bsp ({bsp})."
        last = "Run more seeds to learn whether the order of the table holds"
    elif len(slower) == len(others):
        nearest = others[0]
        first = f"No policy is faster than bsp, which {_does(s)} in {bsp}: all are slower."
        last = f"{nearest.policy} comes nearest, {_time(nearest.difference[s.decides])} behind"
    else:
        first = _undecided(s, [p for p in others if p not in slower], bsp)
        last = f"{_names(slower)} took longer" if slower else "No policy was slower either"
    texts = [*filter(None, (first, _until(s))), *_last(s, last, best is not None)]
    for k, text in enumerate(texts):
        if "c_tau" in text:
            texts[k] = text.replace("c_tau", "c_tau (the cost of a stale gradient)", 1)
            break
    return tuple(texts)


def _undecided(s: Standings, close: Sequence[Standing], bsp: str) -> str:
    """The policies that are not shown to be faster or slower than bsp, best mean first."""
    twins = [p.policy for p in close if s.same(p.policy, BASELINE)]
    open_ = [p for p in close if p.policy not in twins]
    same = f"{join(twins)} made the same runs as bsp" if twins else ""
    if not open_:
        return f"No difference shown: {same}, which {_does(s)} in {bsp}."
    one = len(open_) == 1
    if all(p.difference[s.decides] == (0.0, 0.0, 0.0) for p in open_):
        text = f"{_names(open_)} {'takes' if one else 'take'} exactly as long as bsp"
        return f"No difference shown: {text}, which {_does(s)} in {bsp}{same and f'; {same}'}."
    verb = "is" if one else "are"
    return (
        f"No difference shown: {_names(open_)} {verb} not shown to be faster or slower "
        f"than bsp, which {_does(s)} in {bsp}; the {'' if one else 'best '}mean of "
        f"{'' if one else 'these, of '}{open_[0].policy}{'' if one else ','} is a speed-up "
        f"of {estimate(*open_[0].speedup[s.decides])}{same and f'; {same}'}."
    )


def _winner(s: Standings, best: Standing) -> str:
    others = [p.policy for p in s.policies if p.policy not in (best.policy, BASELINE)]
    first = others and all(faster(s.between(best.policy, name)) for name in others)
    where = (
        "Without contention" if s.comparison.scenario.inputs.trace is None else "Under this trace"
    )
    slight = ""
    if -best.difference[s.decides].value < s.grain:
        slight = f", which is less than one update of bsp ({seconds(s.grain)})"
    sooner = f"{'first, ' if first else ''}{_gain(s, best)} sooner than bsp"
    return f"{where} {best.policy} {_does(s)} {sooner}{slight}."


def _until(s: Standings) -> str:
    """The conditions of the best mean, as a sentence; empty where none are known.

    A lead within the noise is called a lead of means alone.
    """
    leader, (near, _) = s.policies[0].policy, conditions(s)
    names = [p.policy for p in s.policies if p.policy == leader or s.same(p.policy, leader)]
    rest = [p.policy for p in s.policies if p.policy not in names]
    shown = all(faster(s.between(leader, name)) for name in rest)
    texts = [f"as long as {near}"] if near else []
    hangs = any(turn.quantity == C_TAU for turn in turns(s))
    if s.comparison.has_target and shown and rest and not hangs and not explain_lost_lead(s):
        least, most = tried(s)
        texts.insert(0, f"at every c_tau tried, {least:g} to {most:g}{',' if near else ''}")
    if not texts:
        return ""
    has, are = ("has", "is") if len(names) == 1 else ("have", "are")
    lead = f"{join(names)} {has} the best mean"
    means = f"By means alone {join(names)} {are} best"
    return f"{lead if shown else means} {' and '.join(texts)}."


def _gain(s: Standings, p: Standing) -> str:
    """The share of bsp's time that a policy saves, with its interval."""
    value, low, high = (1 - 1 / x for x in p.speedup[s.decides])
    if low == high:
        return f"{percent(value)} %"
    shown, _, interval = estimate(value, low, high, scale=100).partition(" (")
    return f"{shown} % ({interval[:-1]} %)" if interval else f"{shown} %"


def _runner_up(s: Standings, best: Standing) -> str:
    """How the best policy compares with the others."""
    rest = [p for p in s.policies if p.policy not in (best.policy, BASELINE)]
    better = [p.policy for p in rest if faster(s.between(p.policy, best.policy))]
    if better:
        return f"the mean of {join(better)} is lower still, but not shown to be below bsp's"
    twins = [p.policy for p in rest if s.same(p.policy, best.policy)]
    idle = [p.policy for p in rest if s.same(p.policy, BASELINE)]
    others = [p for p in rest if p.policy not in (*twins, *idle)]
    gaps = {p.policy: s.between(best.policy, p.policy) for p in others}
    tied = [name for name, gap in gaps.items() if not (gap.high < 0 or gap.low > 0)]
    steady = _steady(s, best, others)
    texts = [f"no difference is shown between {best.policy} and {join(tied)}"] if tied else []
    texts += [f"the same runs were made by {join(twins)}"] if twins else []
    texts += [steady] if steady else []
    if others and not tied and not steady:
        lead = s.between(others[0].policy, best.policy)
        sooner = f"is {_gain(s, others[0])} sooner than bsp"
        later = f"takes {_time(lead)} longer"
        shown = faster(others[0].difference[s.decides])
        texts.insert(0, f"the next, {others[0].policy}, {sooner if shown else later}")
    texts += [f"{join(idle)} made the same runs as bsp"] if idle else []
    return "; ".join(texts) or "no other policy was compared"


def _steady(s: Standings, best: Standing, others: Sequence[Standing]) -> str:
    """If the ranking's lead depends on c_tau: a policy that beats bsp at every c_tau."""
    if not any(turn.quantity == C_TAU for turn in turns(s)):
        return ""
    if best.policy not in s.stale:
        return f"the lead of {best.policy} over bsp is the same at any c_tau"
    sooner = [p for p in others if faster(p.difference[s.decides])]
    for p in sooner:
        if p.policy not in s.stale:
            return f"{p.policy} is {_gain(s, p)} sooner than bsp at any c_tau"
    for p in sooner:
        gaps = (s.gap(s.at_cost(p.policy, c), s.at_cost(BASELINE, c)) for c in s.costs)
        if all(map(faster, gaps)):
            least, most = min(s.costs), max(s.costs)
            return f"{p.policy} is sooner than bsp at every c_tau tried, {least:g} to {most:g}"
    return ""


def _last(s: Standings, start: str, gain: bool) -> list[str]:
    """The last sentences: the rest of the result, the contention, and what the intervals cover.

    They begin with a capital letter, except where one begins with the name of a policy.
    """
    texts = [start, _contention(s, gain), coverage(s)]
    named = start.partition(" ")[0] in s.comparison.policies
    return [f"{t if named and t is start else t[0].upper() + t[1:]}." for t in texts]


def _contention(s: Standings, gain: bool) -> str:
    mitigation = ", so the gain is no mitigation" if gain else ""
    if s.comparison.scenario.inputs.trace is None:
        return f"there is no contention{mitigation}"
    if s.delay < NEGLIGIBLE:
        return f"{contended(s)}, but that delays bsp by less than 0.5 %{mitigation}"
    return contended(s)


def _does(s: Standings) -> str:
    return "reaches the target" if s.decides == "time_to_target" else "finishes the work"


def _time(e: Estimate) -> str:
    """Seconds with their interval, where there is one."""
    text = estimate(*e)
    return f"{number(e.value, 4)} s" if math.isnan(e.low) else f"{text} s"


def _names(found: Sequence[Standing]) -> str:
    return join([p.policy for p in found])


def detection(s: Standings) -> list[str]:
    """How often suspicions were right: a sentence per policy that named suspects at its updates.

    Shares are means over the seeds where they are defined; counts are pairs of update and rank over
    all seeds.  A comparison of an older version has no counts.
    """

    def counted(policy: str, *names: str) -> str:
        """The count over all seeds, in parentheses; empty where it was not counted."""
        if not set(names) <= set(s.comparison.runs):
            return ""
        count = sum(float(s.comparison.column(policy, name).sum()) for name in names)
        return f" ({count:,.0f} in all)"

    found = []
    for p in s.policies:
        right = s.known_mean(p.policy, "detection_precision")
        seen = s.known_mean(p.policy, "detection_recall")
        if math.isnan(right) and math.isnan(seen):
            continue
        first, second = "suspected no rank", "there were no straggler-updates"
        if not math.isnan(right):
            suspicions = counted(p.policy, "hits", "false_alarms")
            first = f"was right in {percent(right)} % of its suspicions{suspicions}"
        if not math.isnan(seen):
            stragglers = counted(p.policy, "hits", "misses")
            second = f"it missed {percent(1 - seen)} % of the straggler-updates{stragglers}"
        found.append(f"{p.policy} {first}; {second}.")
    return found
