"""Sensitivity in words: the constants that would change the policy with the best mean.

They come from the thresholds of a comparison (`--sensitivity`), and from the few costs of staleness
that every comparison runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simstrag.analysis.derived.ranking import Standings, faster
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.brief import Brief
from simstrag.analysis.text.number_format import join, percent, with_unit
from simstrag.analysis.text.remark import say
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import kind_of, name_of, uncertain

C_TAU = "learner.c_tau"
COARSE = 1.1
"""Ratio of the ends of the interval in which the lead changes above which both are named."""
MOST = 3
"""Conditions in one sentence."""
ROWS = 5
"""Most constants in the table of the short answer."""
STALENESS = (
    "A gradient is stale where the model has moved on before it arrives. Its cost (c_tau) is 1 by "
    "theory, 0.5 with a tuned learning rate, and up to 4 with a momentum that was left untuned."
)

ABOUT = (
    "One assumed or fitted constant at a time was divided and multiplied by four (the severity of "
    "contention by two; the cost of staleness divided by two), and the policies that it can affect "
    "were simulated again under {seeds}. Where another policy than {leader} had the best mean, "
    "further runs enclosed the value at which it takes over; else nothing was run in between. "
    "Measured constants and those that are 0 were not varied, and no two at once."
)
NOT_ALL = (
    " Only what decides the choice was varied: placeholders, the severity of contention, and with "
    "a target the cost of staleness and the noise scale. --sensitivity varies all that was not "
    "measured."
)


def value_text(value: float, unit: str, digits: int = 3) -> str:
    """The value of a constant in a sentence.

    >>> value_text(4.0, ""), value_text(0.0094, "s")
    ('4', '9.40 ms')
    """
    return with_unit(value, unit, digits) if unit else f"{value:.{digits}g}"


Row = Mapping[Any, Any]
"""One row of the thresholds of a comparison."""


class Turn(NamedTuple):
    """A change of the lead to another policy, between holds_at and turns_at of a constant.

    value: the value in force.
    shown: whether the new lead is beyond a 95 % interval at the outermost value tried.
    """

    quantity: str
    value: float
    unit: str
    rival: str
    holds_at: float
    turns_at: float
    shown: bool

    @property
    def larger(self) -> bool:
        """Whether larger values change the lead."""
        return self.turns_at > self.holds_at

    @property
    def distance(self) -> float:
        """How far the value in force is from where the lead changes, as a factor's logarithm."""
        return abs(math.log(self.turns_at / self.value)) if self.value else math.inf

    @property
    def place(self) -> str:
        """Where the lead changes, as exactly as the search has found it."""
        low, high = sorted((self.holds_at, self.turns_at))
        ratio = low / high if low and high else math.inf
        if max(ratio, 1 / ratio) > COARSE:
            return f"a value between {value_text(low, self.unit)} and {value_text(high, self.unit)}"
        middle = math.copysign(math.sqrt(low * high), high)
        return f"about {value_text(middle, self.unit, digits=2)}"

    def condition(self, scenario: Scenario) -> str:
        """The range in which the leader has the best mean, and the leader beyond it.

        >>> case = Scenario(workers=2, updates=1, step={"compute": 0.1})
        >>> Turn("learner.c_tau", 1.0, "", "bsp", 1.54, 1.61, True).condition(case)
        'the cost of staleness (c_tau) stays below about 1.6 (above that bsp is faster)'
        >>> Turn("server.service", 0.005, "s", "bsp", 0.005, 0.02, False).condition(case)
        "the server's service stays below a value between 5.00 ms and 20.0 ms"
        """
        side, beyond = ("below", "above") if self.larger else ("above", "below")
        rival = f" ({beyond} that {self.rival} is faster)" if self.shown else ""
        return f"{name_of(scenario, self.quantity)} stays {side} {self.place}{rival}"


def turns(s: Standings) -> list[Turn]:
    """The changes of the lead: c_tau first, then the nearest to the value in force.

    None where `explain_lost_lead` gives a reason, and none of the search where
    `Standings.is_untested`.
    """
    if explain_lost_lead(s):
        return []
    table = s.comparison.thresholds
    found = [] if table is None or s.is_untested else turns_of(table.to_dict("records"))
    known = {t.larger for t in found if t.quantity == C_TAU}
    found += [t for t in _of_costs(s) if t.larger not in known]
    return sorted(found, key=lambda t: (t.quantity != C_TAU, t.distance))


def turns_of(rows: Sequence[Row]) -> list[Turn]:
    """The changes of the lead among the rows of thresholds."""
    return [Turn(*(r[name] for name in Turn._fields)) for r in rows if r["rival"]]


def conditions(s: Standings) -> tuple[str, str]:
    """Conditions for the answer and for the cautions, to follow `as long as`; "" for none.

    The answer has the conditions on c_tau and all others beyond the noise.
    """
    found = turns(s)
    near = [t for t in found if t.quantity == C_TAU or t.shown]
    far = [t for t in found if t not in near]
    return _joined(s, near), _joined(s, far)


def _joined(s: Standings, found: list[Turn]) -> str:
    """The nearest conditions; the page has all."""
    return join([turn.condition(s.scenario) for turn in found], MOST)


def explain_lost_lead(s: Standings) -> str:
    """Why no thresholds are shown: under the seeds used for them, another policy leads."""
    table = s.comparison.thresholds
    if table is None or not len(table) or s.is_untested:
        return ""
    led, best = table["leader"].iloc[0], s.policies[0].policy
    if led == best:
        return ""
    return (
        f"Under the {table['seeds'].iloc[0]} seeds on which the sensitivity was tested, {led} has "
        f"the best mean and not {best}, so it is unknown when {best} loses its lead."
    )


def explain_untested(s: Standings) -> str:
    """A sentence where the search for thresholds met no contention; else empty."""
    if not s.is_untested:
        return ""
    seeds = f"{len(s.comparison.search_seeds)} of {s.seeds} seeds"
    return (
        f"Not tested: other values of what was not measured. They were simulated under {seeds}, "
        "and contention delays bsp in these by less than 0.5 %; with more seeds more may meet it."
    )


def _of_costs(s: Standings) -> list[Turn]:
    """Changes of the lead among the costs of staleness that every comparison runs."""
    if not s.costs:
        return []
    declared, best = s.scenario.learner.c_tau, s.policies[0].policy
    found = []
    for outward in (
        sorted((c for c in s.costs if c < declared), reverse=True),
        sorted(c for c in s.costs if c > declared),
    ):
        holds = declared
        for cost in outward:
            rival = leader(s, cost)
            if rival != best:
                shown = faster(s.gap(s.at_cost(rival, cost), s.at_cost(best, cost)))
                found.append(Turn(C_TAU, declared, "", rival, holds, cost, shown))
                break
            holds = cost
    return found


def leader(s: Standings, c_tau: float) -> str:
    """The policy with the best mean time to target under a cost of staleness."""
    names = [p.policy for p in s.policies]
    return min(names, key=lambda name: float(s.at_cost(name, c_tau).mean()))


def turnover(s: Standings) -> str:
    """Who has the best mean at each cost of staleness tried; the table has all others."""
    if s.scenario.learner.is_real:
        return "A real model learned, so no time here depends on it."
    if not s.costs:
        return (
            "No target is declared, so there is no time to it: c_tau changes progress and goodput, "
            "but not the time that a number of samples takes."
        )
    leaders: dict[str, list[str]] = {}
    for c in s.costs:
        leaders.setdefault(leader(s, c), []).append(f"{c:g}")
    where = [f"{name} at c_tau {join(costs)}" for name, costs in leaders.items()]
    return f"The best mean is that of {join([*leaders] if len(leaders) == 1 else where)}."


# -- the section of the report ---------------------------------------------------------------------


class Thresholds(NamedTuple):
    """A paragraph on the runs, and the rows and the table of their result, if any."""

    about: str
    rows: Sequence[Row] = ()
    table: Table | None = None


def thresholds(s: Standings) -> Thresholds:
    """The section of the report on the thresholds of a comparison."""
    found = s.comparison.thresholds
    if found is None:
        return Thresholds(
            "Whether other assumed or fitted constants would change the ranking was not tested. "
            "The same command with --sensitivity tests it by further runs."
        )
    if found.empty:
        return Thresholds(
            "There was nothing to vary: sensitivity needs two policies, and a constant that is "
            "assumed or fitted and not 0."
        )
    rows = found.to_dict("records")
    nearest = {r["quantity"]: math.inf for r in rows}
    for turn in turns_of(rows):
        nearest[turn.quantity] = min(turn.distance, nearest[turn.quantity])
    rows.sort(key=lambda r: (r["quantity"] != C_TAU, nearest[r["quantity"]]))
    n, scenario = rows[0]["seeds"], s.scenario
    seeds = f"{n} of {s.seeds} seeds" if n < s.seeds else "the same seeds"
    if n < s.seeds and scenario.inputs.trace is not None:
        every = s.comparison.delays
        here = sum(every[seed] for seed in s.comparison.search_seeds) / n
        seeds += (
            f", chosen so that contention delays bsp as under all (by {percent(here, 2)} % and "
            f"{percent(sum(every.values()) / s.seeds, 2)} % in the mean)"
        )
    about = ABOUT + NOT_ALL * any(name not in nearest for name in uncertain(scenario))
    about = about.format(leader=rows[0]["leader"], seeds=seeds)
    lost = explain_lost_lead(s) or explain_untested(s)
    return Thresholds(f"{about} {lost}".rstrip(), rows, _table(rows, scenario))


def _table(rows: Sequence[Row], scenario: Scenario) -> Table:
    columns = {
        "in force": "value", "tried at": "tried", "holds at": "holds_at", "turns at": "turns_at"
    }  # fmt: skip
    numbers = [
        [Number(with_unit(r[key], r["unit"]), r[key]) for key in columns.values()] for r in rows
    ]
    shown = tuple(
        (name_of(scenario, r["quantity"]), str(r["kind"]), new_leader(r) or "none", *own)
        for r, own in zip(rows, numbers, strict=True)
    )
    headers = ("constant", "fitted or assumed", "new leader", *columns)
    notes = (
        "The lead changes between the last two values; a dash means no change. Within the noise: "
        "at the value tried, the new lead is not beyond a 95 % interval. The CSV file has seconds, "
        "bytes and samples.",
    )
    return Table(headers, shown, 3, (), notes)


def new_leader(r: Row) -> str:
    """The new leader; empty for none."""
    return r["rival"] if r["shown"] or not r["rival"] else f"{r['rival']}, within the noise"


# -- the short answer ------------------------------------------------------------------------------


def brief(rows: Sequence[Row], scenario: Scenario) -> Brief:
    """Who leads, the nearest value that changes that, and the constants that do.

    rows: of the thresholds, at least one.
    """
    found = sorted(turns_of(rows), key=lambda turn: (not turn.shown, turn.distance))
    names = [name_of(scenario, key) for key in dict.fromkeys(r["quantity"] for r in rows)]
    lead = f"{rows[0]['leader']} has the shortest mean time{' to the target' * scenario.has_target}"
    spans = "each was varied alone, most from a quarter to four times its value"
    if not found:
        none = f"none of {len(names)} constants changes that; {spans}"
        if len(names) == 1:
            none = f"{names[0]} does not change that, from {rows[0]['tried']:.3g} to "
            none += f"{rows[-1]['tried']:.3g}"
        return Brief(f"{lead}; {none}.", cautions=_doubts(rows, found))
    changed = [*dict.fromkeys(turn.quantity for turn in found)]
    turning = "{changed} of {of} constants {changed:changes/change} who leads (--verbose has all); "
    answer = Brief(
        f"{lead}, unless {_reverse(found[0], scenario)}.",
        (STALENESS,) if C_TAU in changed else (),
        turning=say(turning + spans + ".", changed=len(changed), of=len(names)) * (len(names) > 1),
        cautions=_doubts(rows, found),
    )
    shown = tuple(
        (
            name_of(scenario, turn.quantity),
            kind_of(scenario, turn.quantity).partition(" (")[0],
            value_text(turn.value, turn.unit),
            f"{'above' if turn.larger else 'below'} {turn.place.removeprefix('about ')}",
            turn.rival if turn.shown else f"{turn.rival}, within the noise",
        )
        for turn in found
    )
    headers = ("constant", "origin", "now", "lead changes", "then fastest")
    return answer.with_rows(Table(headers, shown, 5), ROWS)


def _reverse(turn: Turn, scenario: Scenario) -> str:
    """What would give the lead to another policy, after `unless`."""
    name = name_of(scenario, turn.quantity).removesuffix(" (c_tau)")
    now = value_text(turn.value, turn.unit)
    where = f"{'above' if turn.larger else 'below'} {turn.place} (now {now})"
    if turn.place == f"about {value_text(turn.value, turn.unit, digits=2)}":
        where = f"slightly {'larger' if turn.larger else 'smaller'} than now ({now})"
    noise = "" if turn.shown else ", within the noise"
    return f"{name} is {where}: then {turn.rival} is faster{noise}"


def _doubts(rows: Sequence[Row], found: Sequence[Turn]) -> tuple[str, ...]:
    """What makes the short answer less sure."""
    texts = ["Two constants that are off at once may act sooner."]
    if found and rows[0]["seeds"] == 1:
        texts.insert(0, "One seed gives no interval, so every new lead is within the noise.")
    elif any(not turn.shown for turn in found):
        texts.insert(0, "Within the noise: not shown even at the outermost value tried.")
    return tuple(texts)
