"""Tables of a comparison: plain cells for a terminal, for a notebook and for the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simstrag.analysis.pages.templates import template
from simstrag.analysis.tables.cells import Cell, estimated, numbered, shared
from simstrag.analysis.tables.standings import TIMES, Standing, Standings, standings
from simstrag.analysis.text.cautions import enough_seeds, replays
from simstrag.analysis.text.number_format import MISSING, listed
from simstrag.experiments.compare import BASELINE
from simstrag.experiments.paired_statistics import Estimate

if TYPE_CHECKING:
    from simstrag.experiments.compare import Comparison

__all__ = [
    "Table", "behind_table", "costs_table", "differences_table", "ranking_html", "ranking_rows",
    "ranking_table",
]  # fmt: skip

SERVER_BASELINE = "bsp:via=server"
CONTROL = "bsp without contention"
MEDIAN_CONTROL = "bsp, each step at its median over ranks"
"""The clean control of recorded durations, which have no run without contention."""


@dataclass(frozen=True, slots=True)
class Table:
    """Headers and rows of text. words: how many first columns are words; a number is a `Cell`.

    control: a last row that is not one of the policies.  notes: what stands below, in sentences.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    control: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def ranking_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the ranking for a terminal; the clean control is the last row."""
    table = ranking_table(standings(comparison))
    return list(table.headers), [list(row) for row in (*table.rows, table.control)]


def ranking_html(comparison: Comparison) -> str:
    """The ranking as an HTML fragment with its footnotes, for a notebook."""
    return template("ranking.html").render(table=ranking_table(standings(comparison)))


def ranking_table(s: Standings) -> Table:
    """Times, speed-up and mitigation of every policy."""
    two = len(s.times) > 1
    by = {name: f" by {TIMES[name]}" if two else "" for name in s.times}
    headers = ("policy", "place", "updates through", *(f"{TIMES[n]} (s)" for n in s.times))
    headers += tuple(f"speed-up{by[n]}" for n in s.times) + tuple(f"M{by[n]} (%)" for n in s.times)
    rows = tuple(
        (
            p.policy,
            _place(p.place),
            p.architecture,
            *(estimated(p.time[n]) for n in s.times),
            *(_of_policy(p, "1", p.speedup[n]) for n in s.times),
            *(_of_policy(p, "0", p.mitigation[n], scale=100) for n in s.times),
        )
        for p in s.policies
    )
    control = (
        _control(s),
        "",
        "all-reduce",
        *(estimated(s.clean[n]) for n in s.times),
        *(estimated(s.clean_speedup[n]) for n in s.times),
        *("" for _ in s.times),
    )
    return Table(headers, rows, 3, control, (*_ranking_notes(s), *_narrow(s, rows, 3)))


def _control(s: Standings) -> str:
    return MEDIAN_CONTROL if replays(s) else CONTROL


def _ranking_notes(s: Standings) -> Iterable[str]:
    brackets = ", in brackets 95 % intervals (paired bootstrap over seeds)"
    yield (
        f"{f'Means over {s.seeds} seeds{brackets}' if s.seeds > 1 else 'Times of one seed'}. "
        "Speed-up is the mean time of bsp through an all-reduce over that of the policy. M, "
        "mitigation, is the share of straggler delay removed: (bsp - policy) / (bsp - bsp without "
        "contention). The last line is the clean control: a second scenario, not a policy."
    )
    yield (
        "Place is what paired differences leave open: 2–3 means that the interval of some "  # noqa: RUF001
        f"difference holds zero. The order is by mean {TIMES[s.decides]}."
    )
    if s.times == ("time_to_target",):
        yield "Makespan is the same number: no samples are declared, so runs end at the target."
    if any(math.isnan(p.mitigation[n].value) for p in s.policies for n in s.times):
        reason = (
            "recorded durations are replayed, and a run without contention is not a run of those"
            if replays(s)
            else "contention delays bsp by less than 0.5 % of its time without contention: there is"
            " nothing to mitigate"
        )
        yield f"{MISSING} for M: not defined, because {reason}."
    if s.seeds < 2 and not s.certain:
        yield f"({MISSING}): one seed gives no interval, and no difference can be shown."
    elif not s.spread:
        yield "Intervals have no width: nothing is random here, so that every seed is the same run."
    elif enough_seeds(s.seeds):
        yield enough_seeds(s.seeds)
    for group in s.twins:
        yield f"{listed(group)} made the same runs, to the last digit of what is shown here."


def differences_table(s: Standings) -> Table:
    """Paired differences against bsp, and for server policies against bsp through the server."""
    names = [p.policy for p in s.policies]
    beside = SERVER_BASELINE in names and any(p.architecture == "server" for p in s.policies)
    headers = ("policy", *(f"{TIMES[n]} against bsp (s)" for n in s.times))
    if beside:
        headers += tuple(f"{TIMES[n]} against {SERVER_BASELINE} (s)" for n in s.times)
    rows = []
    for p in s.policies:
        if p.policy == BASELINE:
            continue
        row = [p.policy, *(estimated(p.difference[n], sign=True) for n in s.times)]
        if beside:
            own = p.architecture == "server" and p.policy != SERVER_BASELINE
            row += [
                estimated(s.between(p.policy, SERVER_BASELINE, n), sign=True) if own else ""
                for n in s.times
            ]
        rows.append(tuple(row))
    control = (_control(s), *(estimated(s.clean_difference[n], sign=True) for n in s.times))
    control += ("",) * (len(headers) - len(control))
    notes = (
        "Means of the differences within each seed: both policies met the same noise and the same "
        "contention. Below zero is faster; an interval that holds zero shows no difference.",
        *_narrow(s, rows, 1),
    )
    return Table(headers, tuple(rows), 1, control, notes)


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    key: str
    show: Callable[[float], Cell]


CUT = "cut_share"
BEHIND = (
    _Column("goodput (samples/s)", "goodput", numbered),
    _Column("throughput (samples/s)", "throughput", numbered),
    _Column("statistical efficiency (%)", "efficiency", shared),
    _Column("mean staleness (updates)", "mean_staleness", numbered),
    _Column("S_stale/b (gradients)", "effective_staleness", numbered),
    _Column("deviation", "deviation", numbered),
    _Column("AMP steps (%)", "amp_share", shared),
    _Column("switches", "switches", numbered),
    _Column("detection: precision (%)", "precision", shared),
    _Column("detection: recall (%)", "recall", shared),
    _Column("steps thrown away (%)", "lost", shared),
    _Column("samples cut (%)", CUT, shared),
    _Column("beyond the trace (%)", "beyond_trace", shared),
)


def behind_table(s: Standings) -> Table:
    """What is behind the times: statistics, precision, detection, waste; means over seeds."""
    idle = [k for k in (CUT, "beyond_trace") if not _any(s, k)]
    shown = [c for c in BEHIND if c.key not in idle]

    def cells(policy: str, variant: str = "contended") -> list[Cell]:
        return [c.show(_mean(s, policy, c.key, variant)) for c in shown]

    rows = tuple((p.policy, p.architecture, *cells(p.policy)) for p in s.policies)
    control = (_control(s), "all-reduce", *cells(BASELINE, "clean"))
    notes = [
        "Means over seeds, of whole runs. Goodput is throughput times statistical efficiency, "
        "which is progress per sample against one worker's fresh gradient.",
        "Mean staleness counts updates between a gradient's pull and its application; S_stale/b "
        "counts gradients that nobody had seen when it was applied, which is what progress "
        "depends on. Steps thrown away were dropped or aborted."
        + (" Samples cut are those that a deadline left uncomputed." if _any(s, CUT) else ""),
        "Switches are what the policy counts: changes of precision, of mode, or of protocol. "
        "Deviation is the mean of (samples applied between a gradient's pull and its update, over "
        "those of a full update)²: times (L eta G)² it bounds the mean squared error that "
        "staleness puts into a gradient, for an L-smooth loss, learning rate eta and gradients of "
        "norm G at most. No real gradients were computed, so the bound is not held against any.",
    ]
    text = " ".join(cell for row in (*rows, control) for cell in row)
    if MISSING in text:
        notes.append(
            f"{MISSING}: the policy counts no switches, or names no suspects, so that nothing is "
            "detected, or its progress is unknown; precision also has none where nobody was ever "
            "suspected, recall where nobody was a straggler."
        )
    ratio = s.comparison.scenario.straggler_ratio
    notes.append(
        f"Detection is judged at every update against the trace: a straggler is a rank whose "
        f"noise-free step takes more than {ratio:g} times the median over ranks."
    )
    headers = ("policy", "updates through", *(c.header for c in shown))
    return Table(headers, rows, 2, control, tuple(notes))


def costs_table(s: Standings) -> Table:
    """Time to target under each cost of staleness, with the order of the means."""
    columns = []
    for c in s.costs:
        times = {p.policy: s.mean(s.at_cost(p.policy, c)) for p in s.policies}
        order = sorted(times, key=lambda name: times[name].value)
        cells = {name: estimated(e) for name, e in times.items()}
        columns.append(
            [
                Cell(f"{cell}  #{order.index(name) + 1}", cell.value, cell.ends)
                for name, cell in cells.items()
            ]
        )
    rows = tuple(zip((p.policy for p in s.policies), *columns, strict=True))
    headers = ("policy", *(f"time to target at c_tau {c:g} (s)" for c in s.costs))
    declared = s.comparison.scenario.learner.c_tau
    notes = (
        f"# is the order of the means. The scenario declares c_tau {declared:g}. The others are "
        "simulated anew, not rescaled; runs without stale gradients do not depend on c_tau.",
        *_narrow(s, rows, 1),
    )
    return Table(headers, rows, 1, (), notes)


def _narrow(s: Standings, rows: Iterable[Sequence[str]], words: int) -> list[str]:
    """Why intervals are not there, where the digits shown do not tell their ends apart."""
    cells = [c for row in rows for c in row[words:] if isinstance(c, Cell) and row[0] != BASELINE]
    hidden = [c for c in cells if "(" not in c and c.ends and c.ends[0] <= c.ends[1]]
    return (
        ["A number without an interval has one that is narrower than its last digit."]
        if s.spread and hidden
        else []
    )


def _mean(s: Standings, policy: str, key: str, variant: str) -> float:
    """The mean over seeds of what is known of a column, NaN where nothing is."""
    column = s.comparison.column
    if key == "lost":
        lost = column(policy, "dropped", variant) + column(policy, "aborted", variant)
        return float((lost / column(policy, "started", variant)).mean())
    if key not in s.comparison.runs:
        return math.nan
    values = [v for v in column(policy, key, variant) if not math.isnan(v)]
    return sum(values) / len(values) if values else math.nan


def _any(s: Standings, key: str) -> bool:
    return any(_mean(s, p.policy, key, "contended") > 0 for p in s.policies)


def _of_policy(p: Standing, of_bsp: str, value: Estimate, scale: float = 1.0) -> Cell:
    """An estimate against bsp; of bsp itself it is a number by definition."""
    cell = estimated(value, scale=scale)
    if p.policy == BASELINE and not math.isnan(value.value):
        return Cell(of_bsp, cell.value, cell.ends)
    return cell


def _place(place: tuple[int, int]) -> Cell:
    """Its number is the middle of what is left open."""
    best, worst = place
    text = f"{best}" if best == worst else f"{best}{MISSING}{worst}"
    return Cell(text, (best + worst) / 2, place)
