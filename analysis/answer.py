"""The answer in two sentences of plain words, never surer than the numbers.

A policy is called faster than another only where the whole 95 % interval of their paired difference
says so; everything else is "no difference shown".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simstrag.analysis.cautions import classes, coverage, ignored, listed
from simstrag.analysis.formats import estimate, number, percent, seconds
from simstrag.analysis.standings import NEGLIGIBLE, Standing, Standings, faster
from simstrag.analysis.turns import C_TAU, conditions, lost_lead, tried, turns
from simstrag.comparison import BASELINE
from simstrag.metrics import Estimate

__all__ = ["answer"]


def answer(s: Standings) -> tuple[str, str]:
    """Two sentences in plain words."""
    others = [p for p in s.policies if p.policy != BASELINE]
    ahead = [p for p in others if faster(p.difference[s.decides])]
    bsp = _time(s.baseline[s.decides])
    if not others:
        return f"Only bsp was run: it needs {bsp}.", _second(s, "Nothing was compared")
    if ahead:
        best = ahead[0]
        rest, but = _runner_up(s, best), ignored(s, best.policy)
        return _winner(s, best), _second(s, f"But {but}, and {rest}" if but else rest)
    if s.seeds < 2 and not s.certain:
        names = listed(_names(others))
        first = f"No difference shown: one seed gives no interval to tell {names} from bsp ({bsp})."
        return first, _second(s, "Run more seeds to learn whether the order of the table holds")
    slower = [p for p in others if p.difference[s.decides].low > 0]
    close = [p for p in others if p not in slower]
    if not close:
        first = f"No policy is faster than bsp, which {_does(s)} in {bsp}: all are slower."
        best = others[0]
        behind = _time(best.difference[s.decides])
        return first, _second(s, f"{best.policy} comes nearest, {behind} behind")
    rest = f"{listed(_names(slower))} took longer" if slower else "No policy was slower either"
    return _undecided(s, close, bsp), _second(s, rest)


def _undecided(s: Standings, close: Sequence[Standing], bsp: str) -> str:
    """Those that are neither shown to be faster nor slower than bsp, best mean first."""
    twins = [p.policy for p in close if s.same(p.policy, BASELINE)]
    open_ = [p for p in close if p.policy not in twins]
    same = f"{listed(twins)} made the same runs as bsp" if twins else ""
    if not open_:
        return f"No difference shown: {same}, which {_does(s)} in {bsp}."
    one = len(open_) == 1
    if all(p.difference[s.decides] == (0.0, 0.0, 0.0) for p in open_):
        text = f"{listed(_names(open_))} {'takes' if one else 'take'} exactly as long as bsp"
        return f"No difference shown: {text}, which {_does(s)} in {bsp}{same and f'; {same}'}."
    verb = "is" if one else "are"
    return (
        f"No difference shown: {listed(_names(open_))} {verb} not shown to be faster or slower "
        f"than bsp, which {_does(s)} in {bsp}; the best mean, of {open_[0].policy}, is a speed-up "
        f"of {estimate(*open_[0].speedup[s.decides])}{same and f'; {same}'}."
    )


def _winner(s: Standings, best: Standing) -> str:
    """How much sooner than bsp, and as long as what."""
    others = [p.policy for p in s.policies if p.policy not in (best.policy, BASELINE)]
    first = others and all(faster(s.between(best.policy, name)) for name in others)
    where = (
        "Without contention" if s.comparison.scenario.inputs.trace is None else "Under this trace"
    )
    grain = s.grain
    slight = -best.difference[s.decides].value < grain
    return "".join([
        f"{where} {best.policy} {_does(s)} {'first, ' if first else ''}{_gain(s, best)} sooner ",
        "than bsp",
        f", which is less than one update of bsp ({seconds(grain)})" if slight else "",
        f", {held}" if (held := _held(s, best.policy)) else "",
        ".",
    ])  # fmt: skip


def _held(s: Standings, best: str) -> str:
    """What the lead of the best mean hangs on; empty where nothing is known of that."""
    if best != s.policies[0].policy or lost_lead(s):
        return ""
    known, (near, _) = s.comparison.has_target, conditions(s)
    texts = [f"as long as {listed(near)}"] if near else []
    if known and not any(turn.quantity == C_TAU for turn in turns(s)):
        least, most = tried(s)
        texts.append(f"whatever c_tau ({least:g} to {most:g} tried)")
    return ", ".join(texts)


def _gain(s: Standings, p: Standing) -> str:
    """The share of bsp's time that a policy does without, with its interval."""
    value, low, high = (1 - 1 / x for x in p.speedup[s.decides])
    if low == high:
        return f"{percent(value)} %"
    shown, _, interval = estimate(value, low, high, scale=100).partition(" (")
    return f"{shown} % ({interval[:-1]} %)"


def _runner_up(s: Standings, best: Standing) -> str:
    """How the best of those shown to be faster than bsp stands to the others."""
    rest = [p for p in s.policies if p.policy not in (best.policy, BASELINE)]
    better = [p.policy for p in rest if faster(s.between(p.policy, best.policy))]
    if better:
        return f"the mean of {listed(better)} is lower still, but not shown to be below bsp's"
    twins = [p.policy for p in rest if s.same(p.policy, best.policy)]
    others = [p for p in rest if p.policy not in twins]
    tied = [p.policy for p in others if not _apart(s, best, p)]
    steady = _steady(s, best, others)
    texts = [f"no difference is shown between it and {listed(tied)}"] if tied else []
    texts += [f"the same runs were made by {listed(twins)}"] if twins else []
    texts += [steady] if steady else []
    if others and not tied and not steady:
        lead = s.between(others[0].policy, best.policy)
        sooner = f"is {_gain(s, others[0])} sooner than bsp"
        later = f"takes {estimate(*lead)} s longer"
        shown = faster(others[0].difference[s.decides])
        texts.insert(0, f"the next, {others[0].policy}, {sooner if shown else later}")
    return listed(texts) or "no other policy was compared"


def _steady(s: Standings, best: Standing, others: Sequence[Standing]) -> str:
    """Whose lead over bsp does not hang on c_tau, where the lead of the best does."""
    if not any(turn.quantity == C_TAU for turn in turns(s)):
        return ""
    if best.policy not in s.stale:
        return "its own lead over bsp is the same whatever c_tau"
    sooner = [p for p in others if faster(p.difference[s.decides])]
    for p in sooner:
        if p.policy not in s.stale:
            return f"{p.policy} is {_gain(s, p)} sooner than bsp whatever c_tau"
    for p in sooner:
        gaps = (s.gap(s.at_cost(p.policy, c), s.at_cost(BASELINE, c)) for c in s.costs)
        if all(map(faster, gaps)):
            least, most = min(s.costs), max(s.costs)
            return f"{p.policy} is sooner than bsp at every c_tau tried, {least:g} to {most:g}"
    return ""


def _second(s: Standings, start: str) -> str:
    """The second sentence: what else the numbers say, and what they cover.

    It begins with a capital letter unless with the name of a policy.
    """
    if start.partition(" ")[0] not in s.comparison.policies:
        start = start[0].upper() + start[1:]
    return f"{start}; {_contention(s)}, and {coverage(s)}."


def _contention(s: Standings) -> str:
    """What stood in the way of bsp, and so what there was to mitigate."""
    if s.comparison.scenario.inputs.trace is None:
        return "there is no contention, so this is no mitigation"
    if s.delay < NEGLIGIBLE:
        return f"contention {classes(s)} delays bsp by less than 0.5 %, so this is no mitigation"
    return f"contention is {classes(s)}"


def _apart(s: Standings, a: Standing, b: Standing) -> bool:
    gap = s.between(a.policy, b.policy)
    return not math.isnan(gap.low) and (gap.high < 0 or gap.low > 0)


def _does(s: Standings) -> str:
    return "reaches the target" if s.decides == "time_to_target" else "finishes the work"


def _time(e: Estimate) -> str:
    """Seconds with their interval, where there is one."""
    text = estimate(*e)
    return f"{number(e.value, 4)} s" if math.isnan(e.low) else f"{text} s"


def _names(found: Sequence[Standing]) -> list[str]:
    return [p.policy for p in found]
