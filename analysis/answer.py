"""The answer in two sentences of plain words, never surer than the numbers.

A policy is called faster than another only where the whole 95 % interval of their paired difference
says so; everything else is "no difference shown".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simstrag.analysis.cautions import coverage, ignored, leader, listed, replays
from simstrag.analysis.formats import estimate, number, seconds
from simstrag.analysis.standings import NEGLIGIBLE, Standing, Standings, faster
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
        start = _runner_up(s, best)
        if ignored(s, best.policy):
            start = f"But {ignored(s, best.policy)}; {start[0].lower()}{start[1:]}"
        return _winner(s, best, bsp), _second(s, start, best.policy)
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


def _winner(s: Standings, best: Standing, bsp: str) -> str:
    speedup = estimate(*best.speedup[s.decides])
    text = (
        f"{best.policy} {_does(s)} in {_time(best.time[s.decides])} against {bsp} for bsp, "
        f"a speed-up of {speedup}"
    )
    m = best.mitigation[s.decides]
    grain = s.grain
    if -best.difference[s.decides].value < grain:
        return f"{text}, a difference of less than one update of bsp ({seconds(grain)})."
    if s.comparison.scenario.inputs.trace is None:
        return f"{text}, but not by mitigation: there is no contention."
    if s.delay < NEGLIGIBLE:
        return f"{text}, but not by mitigation: contention delays bsp by less than 0.5 %."
    if math.isnan(m.value) or replays(s):
        return f"{text}."
    share = estimate(*m, scale=100)
    if m.low > 1:
        return (
            f"{text}; that is faster than bsp without any contention (M = {share} %), "
            "so the gain is not mitigation alone."
        )
    return f"{text}, which removes {share} % of the delay that contention causes."


def _runner_up(s: Standings, best: Standing) -> str:
    """How the best of those shown to be faster than bsp stands to the others."""
    rest = [p for p in s.policies if p.policy not in (best.policy, BASELINE)]
    better = [p.policy for p in rest if faster(s.between(p.policy, best.policy))]
    if better:
        return f"The mean of {listed(better)} is lower still, but not shown to be below bsp's"
    twins = [p.policy for p in rest if s.same(p.policy, best.policy)]
    others = [p for p in rest if p.policy not in twins]
    tied = [p.policy for p in others if not _apart(s, best, p)]
    text = ""
    if tied:
        text = f"No difference is shown between it and {listed(tied)}"
    elif others:
        lead = s.between(others[0].policy, best.policy)
        text = f"The next, {others[0].policy}, takes {estimate(*lead)} s longer"
    if twins:
        same = f"same runs were made by {listed(twins)}"
        text = f"{text}; the {same}" if text else f"The {same}"
    return text or "No other policy was compared"


def _second(s: Standings, start: str, reference: str = BASELINE) -> str:
    """The second sentence: what else the numbers say, what they hang on, what they cover."""
    rivals: dict[str, list[str]] = {}
    for c in s.costs if s.comparison.has_target and reference != BASELINE else ():
        rival = leader(s, c)
        gap = s.gap(s.at_cost(rival, c), s.at_cost(reference, c))
        if c != s.comparison.scenario.learner.c_tau and faster(gap):
            rivals.setdefault(rival, []).append(f"{c:g}")
    if rivals:
        where = listed([f"{name} at c_tau {listed(cs)}" for name, cs in rivals.items()])
        start += f"; under another assumed cost of staleness {where} would be ahead of it"
    return f"{start}; {coverage(s)}."


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
