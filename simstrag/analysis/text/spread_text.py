"""The spread of one run in words and as a table, the mean beside it, and what intervals cover."""

from __future__ import annotations

import math
from typing import Any

from simstrag.analysis.derived.ranking import TIMES, Standings
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.bill_text import prose
from simstrag.analysis.text.number_format import MISSING, between, decimals, number, percent, plural
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate
from simstrag.experiments.run_spread import FEWEST, NONE, NORMAL, RANKED, SHARE, RunSpread

CASES = "nine of ten cases"
assert SHARE == 0.9, "CASES says it in words"


def describe_one_run(s: Standings, policy: str) -> str:
    """Where one run of a policy ends in nine of ten cases, and the mean of runs beside it."""
    spread, mean = s.one_run(policy), _mean(s, policy)
    runs = spread.runs + spread.missed
    missed = f"{spread.missed} of {plural(runs, 'run')} missed the target" if spread.missed else ""
    if spread.law == NONE:
        needed = f"{FEWEST} runs that reach the target" if missed else f"{FEWEST} seeds"
        return f"No interval for one run: it takes {needed}{missed and f', and {missed}'}."
    ends = "ends" if len(s.times) == 1 else "reaches the target"
    if spread.low == spread.high:
        end = f"Every run of this job {ends} after {number(spread.low)} s"
        return f"{end}, except that {missed}." if missed else f"{end}."
    between = " and ".join(_between(spread, mean))
    text = f"One run of this job {ends} between {between} s in {CASES}"
    if missed:
        text = f"Of the runs that reach the target nine of ten do so between {between} s"
    if spread.law == NORMAL:
        text += f" (by a normal law of {spread.runs} seeds)"
    return f"{text}{_without_pace(s)}; {missed or f'the mean is {prose(mean)} s'}."


def one_run(s: Standings, policy: str) -> dict[str, Any]:
    """The same for JSON: the policy, its interval and the mean of its runs."""
    return {"policy": policy, **s.one_run(policy).to_dict(), "mean": _mean(s, policy)._asdict()}


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


def spread_table(s: Standings) -> Table:
    """The mean, and the ends of nine of ten runs, of every policy."""
    spreads = {name: s.one_run(name) for name in [*(p.policy for p in s.policies), *s.unasked]}
    rows = tuple(
        (name, Number.estimate(mean), *_ends(spread, mean), _basis(spread))
        for name, spread in spreads.items()
        for mean in [_mean(s, name)]
    )
    share = f"{100 * SHARE:g} %"
    headers = (
        "policy", f"mean {TIMES[s.decides]} (s)", f"{share} of runs from (s)", "to (s)", "by",
    )  # fmt: skip
    all_end = not any(spread.missed for spread in spreads.values())
    which = "One further run" if all_end else "A further run that reaches the target"
    notes = [
        f"{which} ends between both with a probability of {share}; half of the others end "
        "before, half after. The interval in brackets is of the mean, at 95 %; more seeds make it "
        "narrower, and not the spread of runs."
    ]
    if s.spread and any(spread.law == NORMAL for spread in spreads.values()):
        notes.append(
            f"With fewer than {RANKED} runs, logarithms of times are assumed to be normal; from "
            f"{RANKED} on, the order of the times says it."
        )
    if not all_end:
        notes.append("Runs that missed the target are counted, and are in no interval.")
    if left_out := _without_pace(s):
        notes.append(f"The spread is{left_out}.")
    return Table(headers, rows, 1, (), tuple(notes))


def _basis(spread: RunSpread) -> str:
    """What an interval rests on."""
    law = f"{spread.law}, " if spread.law != NONE else ""
    missed = f"; {spread.missed} missed" if spread.missed else ""
    return f"{law}{plural(spread.runs, 'run')}{missed}"


def _without_pace(s: Standings) -> str:
    """What a scenario leaves out of the spread that its profile has measured."""
    scenario = s.scenario
    step = None if scenario.inputs.profile is None else scenario.inputs.profile.step
    pace = None if step is None else step.pace
    stated = scenario.noise is not None and "pace" in scenario.noise.model_fields_set
    if pace is None or not pace.value or stated or scenario.step or scenario.replays:
        return ""
    return (
        f", without the {percent(pace.value)} % by which the profile's runs differ in pace "
        "(noise.pace)"
    )


def _between(spread: RunSpread, mean: Estimate) -> tuple[str, str]:
    """Both ends, with as many decimal places as the mean or more."""
    known = all(map(math.isfinite, mean))
    places = [decimals(*mean)] if known and mean.low < mean.high else []
    return between(spread.low, spread.high, *places)


def _ends(spread: RunSpread, mean: Estimate) -> tuple[Number, Number]:
    if math.isnan(spread.low):
        return Number(MISSING, None), Number(MISSING, None)
    low, high = _between(spread, mean)
    return Number(low, spread.low), Number(high, spread.high)


def _mean(s: Standings, policy: str) -> Estimate:
    own = {p.policy: p.time for p in s.policies} | ({BASELINE: s.baseline} if s.unasked else {})
    return own[policy][s.decides]
