"""The result of a cluster study in words: the shortest mean completion time, and who pays."""

# ruff: noqa: RUF001, RUF002 - dashes are meant

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simstrag.analysis.derived.cluster_combinations import (
    Combination,
    Combinations,
    Managed,
)
from simstrag.analysis.tables.cluster_tables import ranking_table
from simstrag.analysis.text.brief import Brief
from simstrag.analysis.text.gain_text import ERROR, percent_of
from simstrag.analysis.text.number_format import estimate, join, number, percent
from simstrag.analysis.text.remark import say
from simstrag.experiments.decision import MODEL_ERROR
from simstrag.experiments.paired_statistics import Estimate

LITTLE = 0.01
"""Shares below it are not given as numbers."""
MOST = 4
"""Most failed runs that are named."""
NAMED = 3
"""Most combinations that a sentence names."""
ROWS = 5
"""Most combinations in the table of the short answer."""
SHORT = (0, 2, 3, 4, 5)
"""Columns of the ranking in the short answer."""
WIDEST = 20
"""Longest name of a combination in a header, in characters."""


def sentences(found: Combinations) -> tuple[str, ...]:
    """Which combination has the shortest mean completion time, what jobs lost, and who pays.

    Who pays is said of the best one, or of the next where that is the first row; the table of
    workloads has all.
    """
    harm = [_harm(one, one.managed) for one in found.ranking if one.managed][:NAMED]
    others = (one for one in found.ranking if one is not found.first)
    against = [f"Against the first row: {_effects(one)}" for one in others][:1]
    return (_shortest(found), _lost(found), *harm, *against)


def brief(found: Combinations) -> Brief:
    """The combination with the shortest mean completion time, what sharing cost, and the next."""
    costs = [_costs(found.best, found)]
    if found.best.managed:
        costs.append(_harm(found.best, found.best.managed))
    ranking, first = ranking_table(found), found.first.name
    rows = tuple(tuple(row[k] for k in SHORT) for row in ranking.rows)
    longer = f"longer than {first if len(first) <= WIDEST else 'the first row'} (%)"
    headers = (ranking.headers[0], "mean time (s)", longer, "waiting (%)", "sharing (%)")
    answer = Brief(_shortest(found), tuple(costs), cautions=tuple(cautions(found)))
    return answer.with_rows(replace(ranking, headers=headers, rows=rows), ROWS)


def longer(change: Estimate) -> str:
    """A change of times as a predicate.

    >>> longer(Estimate(0.5, 0.4, 0.6)), longer(Estimate(-0.5, -0.6, -0.4))
    ('take 50 % (40–60 %) longer', 'take 50 % (40–60 %) less time')
    """
    if change.value < 0:
        less = Estimate(-change.value, -change.high, -change.low)
        return f"take {percent_of(less)} less time"
    return f"take {percent_of(change)} longer"


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


def _effects(one: Combination) -> str:
    """The workloads that pay or profit under a combination."""
    parts = []
    for word, those in (
        ("{who} {who:pays/pay}", [e for e in one.effects if e.pays]),
        ("{who} {who:profits/profit}", [e for e in one.effects if e.profits]),
    ):
        if who := [f"{e.workload} ({_signed(e.change)})" for e in those]:
            parts.append(say(word, who=who))
    found = ", and ".join(parts) or "no workload is shown to pay or to profit"
    return f"under {one.name}, {found}."


def _signed(change: Estimate) -> str:
    return f"{number(100 * change.value, 2, sign=True)} %"


def cautions(found: Combinations) -> list[str]:
    """What a reader must know before relying on the numbers, most important first."""
    return [*_cautions(found)]


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
