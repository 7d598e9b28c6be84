"""The result of a cluster study in words: the shortest mean completion time, and who pays."""

# ruff: noqa: RUF001, RUF002 - dashes are meant

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simstrag.analysis.derived.cluster_combinations import (
    Combination,
    Combinations,
    Effect,
    Managed,
)
from simstrag.analysis.tables.cluster_tables import ranking_table
from simstrag.analysis.text.brief import Brief
from simstrag.analysis.text.fact import say
from simstrag.analysis.text.gain_text import ERROR, percent_of
from simstrag.analysis.text.number_format import capital, estimate, join, number, percent
from simstrag.experiments.decision import MODEL_ERROR
from simstrag.experiments.paired_statistics import Estimate

LITTLE = 0.01
"""Shares below it are not given as numbers."""
MOST = 4
"""Most mixes of policies that have a sentence of their own, and most failed runs that are named."""
LEADING = 2
"""Most combinations that have such a sentence where policies are alike."""
NAMED = 3
"""Most combinations that a sentence names."""
ROWS = 5
"""Most combinations in the table of the short answer."""
SHORT = (0, 2, 3, 4, 5)
"""Columns of the ranking in the short answer."""
WIDEST = 20
"""Longest name of a combination in a header, in characters."""


def sentences(found: Combinations) -> tuple[str, ...]:
    """Which combination has the shortest mean completion time, what jobs lost, and who pays."""
    mixes = [one for one in found.every[1:] if _differs_in_policies_alone(one, found)]
    paying = [_who_pays(one, found) for one in mixes[:MOST]]
    if not mixes:  # placers or managers alone are compared
        mixes = [one for one in found.ranking if one is not found.first][:LEADING]
        paying = [_effects(f"under {one.name}", one.effects) for one in mixes]
    if found.best is not found.first and found.best not in mixes[:MOST]:
        paying.insert(0, _effects(f"under {found.best.name}", found.best.effects))
    against = [f"Against the first row: {text}" for text in paying[:1]]
    harm = [_harm(one, one.managed) for one in found.ranking if one.managed][:NAMED]
    return (_shortest(found), _lost(found), *harm, *against, *map(capital, paying[1:]))


def brief(found: Combinations) -> Brief:
    """The combination with the shortest mean completion time, what sharing cost, and the next."""
    costs = [_costs(found.best, found)]
    if found.best.managed:
        costs.append(_harm(found.best, found.best.managed))
    ranking, first = ranking_table(found), found.first.name
    rows = tuple(tuple(row[k] for k in SHORT) for row in ranking.rows)
    longer = f"longer than {first if len(first) <= WIDEST else 'the first row'} (%)"
    headers = (ranking.headers[0], "mean time (s)", longer, "waiting (%)", "sharing (%)")
    answer = Brief(_shortest(found), tuple(costs), cautions=tuple(_cautions(found)))
    return answer.with_rows(replace(ranking, headers=headers, rows=rows), ROWS)


def cautions(found: Combinations) -> list[str]:
    """What a reader must know before relying on the numbers, most important first."""
    return [*_cautions(found)]


def longer(change: Estimate) -> str:
    """A change of times as a predicate.

    >>> longer(Estimate(0.5, 0.4, 0.6)), longer(Estimate(-0.5, -0.6, -0.4))
    ('take 50 % (40–60 %) longer', 'take 50 % (40–60 %) less time')
    """
    if change.value < 0:
        less = Estimate(-change.value, -change.high, -change.low)
        return f"take {percent_of(less)} less time"
    return f"take {percent_of(change)} longer"


def uses(one: Combination, found: Combinations) -> str:
    """What is different about the policies of a combination, to follow `when`."""
    before, now = found.first.policies, one.policies
    changed = [name for name in now if now[name] != before[name]]
    if len({*now.values()}) == 1:
        return f"all jobs use {now[changed[0]]}" if changed else "no policy is another"
    by = {policy: [name for name in changed if now[name] == policy] for policy in
          dict.fromkeys(now[name] for name in changed)}  # fmt: skip
    parts = [say("{who} {who:uses/use} {what}", who=names, what=p) for p, names in by.items()]
    return f"only {join(parts)}"


def _shortest(found: Combinations) -> str:
    best, first = found.best, found.first
    took = f"{estimate(*best.time).removesuffix(' (–)')} s"
    if len(found.every) == 1:
        return f"The mean completion time is {took}."
    others = [one.name for one in found.contenders if one is not best]
    text = f"{best.name} has the shortest mean completion time: {took}."
    if others:
        text = f"No clear winner: {best.name} has the shortest mean, {took}, but is not shown to "
        text += f"be faster than {join(others, NAMED)}."
    elif best is first:
        second = found.ranking[1]
        next_ = f"under the next, {second.name}, jobs {longer(second.change)}"
        return f"{text[:-1]}. It is the first row; {next_}."
    if best is first or (others and best.change.high >= 0):
        return text
    return f"{text} Its jobs {longer(best.change)} than under the first row, {first.name}."


def _lost(found: Combinations) -> str:
    return " ".join(_costs(one, found) for one in found.shown)


def _costs(one: Combination, found: Combinations) -> str:
    others = " and the load of others" if found.results.study.get("trace") else ""
    waited = f"{_share(one.waited)} of all completion time was waiting for devices"
    shared = f"sharing nodes with other jobs{others} cost {_share(one.shared)} of all run time"
    return f"Under {one.name} {waited}, and {shared}."


def _harm(one: Combination, managed: Managed) -> str:
    """How a manager changed completion times, the requests it granted, and what donors lost."""
    text = "Under {name} "
    change = managed.change
    if managed.against and (change.low > 0 or change.high < 0):
        text += f"jobs {longer(change)} than under {{against}}; "
    elif managed.against:
        text += "jobs are not shown to differ from {against}; "
    text += "{granted} requests were granted, {refused} refused; "
    if not managed.donors:
        text += "no job lost time to a delay."
    else:
        text += "{donors:# job} lost {lost} s to delays, each at most {most:%2} of its completion "
        text += "time, and "
        text += "in {over} of {delays} delays" if managed.over else "never"
        text += " more per iteration than granted"
        text += "." if managed.over else " ({delays} delays counted)."
    return say(text, name=one.name, **managed._asdict())


def _share(value: float) -> str:
    """A share in percent.

    >>> _share(0.1234), _share(0.002)
    ('12 %', 'less than 1 %')
    """
    return f"{percent(value, 2)} %" if value >= LITTLE else f"less than {percent(LITTLE, 1)} %"


def _differs_in_policies_alone(one: Combination, found: Combinations) -> bool:
    column = next(iter(one.values))
    other = [name for name in one.values if one.values[name] != found.first.values[name]]
    return other == [column]


def _who_pays(one: Combination, found: Combinations) -> str:
    varied = [value for name, value in [*one.values.items()][1:] if name in found.varied]
    return _effects(f"when {uses(one, found)}{f' ({join(varied)})' if varied else ''}", one.effects)


def _effects(when: str, effects: tuple[Effect, ...]) -> str:
    pay = [e for e in effects if e.pays]
    profit = [e for e in effects if e.profits]
    if not pay and not profit:
        return f"{when}, no workload is shown to pay or to profit."
    named = ([f"{e.workload} ({_signed(e.change)})" for e in those] for those in (pay, profit))
    words = ("{who} {who:pays/pay}", "{who} {who:profits/profit}")
    parts = [say(word, who=who) for word, who in zip(words, named, strict=True) if who]
    return f"{when}, {', and '.join(parts)}."


def _signed(change: Estimate) -> str:
    return f"{number(100 * change.value, 2, sign=True)} %"


def _cautions(found: Combinations) -> Iterator[str]:
    if found.missing:
        yield (
            f"{found.missing} of {len(found.results.runs)} runs have not ended; seeds that have "
            "not ended under every combination are left out. The same `simstrag cluster` goes on."
        )
    for run, error in list(found.failed.items())[:MOST]:
        yield f"{run} failed: {error}"
    if (more := len(found.failed) - MOST) > 0:
        yield f"{more} more runs failed; `cluster.json` lists all."
    if found.left_out:
        yield f"{found.left_out} jobs did not end under every combination: no mean has them."
    best = found.best.change
    if found.best is not found.first and -MODEL_ERROR < best.value < 0:
        yield f"The best combination saves less than {ERROR}, so real jobs may not show it."
    if len(found.seeds) < 2:
        yield (
            "One seed gives no interval, so no winner can be shown: run more seeds; only the new "
            "ones are computed."
        )
    if len(found.seeds) == 2:
        yield "Two seeds give wide intervals; three give 3.6 times narrower ones."
    yield "Nodes and workloads are as the study states them, not measured."
    if len(found.every) > 2 and len(found.seeds) > 1:
        yield "Intervals (95 %) are not corrected for the number of combinations."
    yield (
        "The cost of sharing is against the same job alone on the same nodes. Ranks of one job "
        "that slow each other, and nodes far apart, count in the completion time only."
    )
