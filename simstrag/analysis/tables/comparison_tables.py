"""Tables of a comparison, for a terminal, a notebook and the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from simstrag.analysis.derived.ranking import TIMES, Standing, Standings, as_accurate
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.number_format import MISSING, join
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate
from simstrag.runs.run import OF_FORMULA

SERVER_BASELINE = "bsp:via=server"
CONTROL = "bsp without contention"
MEDIAN_CONTROL = "bsp, each step at its median over ranks"
"""The clean control for recorded durations, which have no run without contention."""


def ranking_table(s: Standings) -> Table:
    """Time, speed-up and mitigation of every policy; the clean control is the last row.

    The time is the one that decides; `behind_table` has the makespan beside a time to target.
    """
    n = s.decides
    headers = ("policy", "place", f"{TIMES[n]} (s)", "speed-up", "M (%)")
    rows = tuple(
        (
            p.policy, place_cell(p.place), Number.estimate(p.time[n]),
            _against_bsp(p, "1", p.speedup[n]), _mitigation(s, p, n),
        )
        for p in s.policies
    )  # fmt: skip
    baseline = tuple(
        (name, "", Number.estimate(s.baseline[n]), Number("1", 1.0), "") for name in s.unasked
    )
    clean = Number.estimate(s.clean[n])
    control = (_control(s), "", clean, Number.estimate(s.clean_speedup[n]), "")
    notes = (*_ranking_notes(s), *_narrow(s, rows, 2))
    return Table(headers, rows, 2, (*baseline, control), notes)


def place_cell(place: tuple[int, int] | None) -> Number:
    """A place, or a range of places, which sorts by its middle; a dash for none.

    >>> place_cell((2, 3)), place_cell((1, 1)).value
    ('2–3', 1.0)
    """  # noqa: RUF002 - a dash is meant
    if place is None:
        return Number(MISSING, None)
    low, high = place
    return Number(f"{low}" if low == high else f"{low}{MISSING}{high}", sum(place) / 2, place)


def _control(s: Standings) -> str:
    return MEDIAN_CONTROL if s.replays else CONTROL


def _ranking_notes(s: Standings) -> Iterable[str]:
    brackets = ", with 95 % intervals in brackets (of paired differences over seeds)"
    yield (
        f"{f'Means over {s.seeds} seeds{brackets}' if s.seeds > 1 else 'Times of one seed'}. "
        "Speed-up is the mean time of bsp through an all-reduce over that of the policy. "
        "Mitigation M is the share of the straggler delay that the policy removes: "
        "(bsp - policy) / (bsp - bsp without contention). The last line is the clean control, a "
        "second scenario and not a policy."
    )
    if s.unasked:
        yield "bsp was not among the policies: its line is what the others are compared with."
    yield (
        "The place is a range where paired differences do not separate policies: 2–3 means that "  # noqa: RUF001
        "the interval of at least one difference contains zero. Rows are ordered by mean "
        f"{TIMES[s.decides]}."
    )
    if s.times == ("time_to_target",):
        yield "Makespan is the same number: runs end at the target."
    yield from explain_dashes(s)
    if not s.spread and (s.seeds > 1 or s.certain):
        yield "Intervals have no width: nothing is random here, so every seed is the same run."
    for group in s.twins:
        yield f"{join(group)} made the same runs: all numbers shown here are equal."


def explain_dashes(s: Standings) -> Iterable[str]:
    """Why the ranking has a dash in place of a number or of an interval."""
    if missed := [p.policy for p in s.policies if p.place is None]:
        yield f"{MISSING} for {join(missed)}: the target was not reached under every seed."
    reached = [p for p in s.policies if p.place is not None]
    if any(math.isnan(p.mitigation[n].value) for p in reached for n in s.times):
        reason = (
            "the trace replays recorded durations, and a run without contention does not have them"
            if s.replays
            else "contention delays bsp by less than 0.5 % of its time without contention, so there"
            " is nothing to mitigate"
        )
        yield f"{MISSING} for M: not defined, because {reason}."
    elif vague := [p.policy for p in reached if not all(s.has_mitigation(p, n) for n in s.times)]:
        yield (
            f"{MISSING} for M of {join(vague)}: its interval is wider than 200 %, because the "
            "delay is nearly 0 in some seeds."
        )
    if s.seeds < 2 and not s.certain:
        yield f"({MISSING}): one seed gives no interval, and no difference can be shown."


def differences_table(s: Standings) -> Table:
    """Paired differences against bsp, and for server policies against bsp through the server."""
    servers = [p.policy for p in s.policies if p.architecture == "server"]
    baselines = [BASELINE, *({SERVER_BASELINE} & set(servers))]
    rows = []
    for p in s.policies:
        if p.policy == BASELINE:
            continue
        cells = [Number.estimate(p.difference[n], sign=True) for n in s.times]
        if p.policy in servers and p.policy not in baselines:
            gaps = (s.between(p.policy, base, n) for base in baselines[1:] for n in s.times)
            cells += [Number.estimate(gap, sign=True) for gap in gaps]
        rows.append((p.policy, *cells))
    headers = ("policy", *(f"{TIMES[n]} against {b} (s)" for b in baselines for n in s.times))
    clean = (Number.estimate(s.clean_difference[n], sign=True) for n in s.times)
    *padded, control = (
        row + ("",) * (len(headers) - len(row)) for row in (*rows, (_control(s), *clean))
    )
    notes = (
        "Means of the differences within each seed: both policies met the same noise and the same "
        "contention. Below zero, the policy is faster than the baseline. An interval that contains "
        "zero shows no difference.",
        *_narrow(s, rows, 1),
    )
    return Table(headers, tuple(padded), 1, (control,), notes)


def accuracy_table(s: Standings) -> Table | None:
    """Final accuracy of a real learner, against bsp's; None where nothing was trained."""
    learner = s.scenario.learner
    if not learner.is_real:
        return None
    target = s.scenario.target_accuracy

    def row(policy: str) -> tuple[str, ...]:
        gap = s.accuracy_gap(policy)
        reached, diverged = (
            int(np.isfinite(s.comparison.column(policy, name)).sum())
            for name in ("time_to_target", "diverged")
        )
        return (
            policy,
            Number.estimate(s.accuracy(policy), percent=True),
            Number.estimate(gap, sign=True, percent=True) if policy != BASELINE else "",
            f"{reached} of {s.seeds}" if target
            else "" if policy == BASELINE else as_accurate(gap, learner.margin),
            f"{diverged} of {s.seeds}",
        )  # fmt: skip

    headers = (
        "policy", "final accuracy (%)", "minus bsp's (points)",
        f"runs that reached {100 * target:g} %" if target else "as accurate as bsp",
        "runs that diverged",
    )  # fmt: skip
    notes = [
        f"Task {learner.task}. Accuracy is of the last evaluation of each run, diverged ones among "
        "them; differences are paired over seeds, with 95 % intervals."
    ]
    if target:
        notes.append("Training ends at the target, so final accuracies are near it by choice.")
    else:
        notes.append(
            "As accurate as bsp: yes where the whole interval lies above "
            f"-{100 * learner.margin:g} points (learner.margin), no where it lies below."
        )
    rows = tuple(row(p.policy) for p in s.policies)
    return Table(headers, rows, 1, tuple(map(row, s.unasked)), tuple(notes))


FAILED: tuple[tuple[str, str], ...] = (
    ("useful samples per second", "useful_throughput"), ("all samples per second", "throughput"),
    ("failures", "failures"), ("updates lost", "lost_updates"), ("samples lost", "lost_samples"),
    ("checkpoints", "checkpoints"), ("seconds at rest", "down_seconds"),
    ("gradients aborted", "aborted"),
)  # fmt: skip
"""Header, and column of the runs."""


def failures_table(s: Standings) -> Table | None:
    """What failures of ranks cost each policy, means over seeds; None where none is declared."""
    section = s.scenario.failures
    if section is None:
        return None
    columns = [column for column in FAILED if column[1] in s.comparison.runs]

    def row(policy: str) -> tuple[str, ...]:
        return (policy, *(Number.of(_mean(s, policy, key)) for _, key in columns))

    rows = tuple(row(p.policy) for p in s.policies)
    controls = tuple(map(row, s.unasked))
    after = (
        "Ranks that are left go on. Aborted gradients are those of failed ranks, and those that "
        "others had to compute again."
        if section.continues
        else "All ranks go back to the last checkpoint. What was applied since then is lost, and "
        "repeated; at rest all ranks wait for detection and restart."
    )
    note = f"Means over seeds; failures come at the same times under every policy. {after}"
    return Table(("policy", *(header for header, _ in columns)), rows, 1, controls, (note,))


CUT = "cut_share"
BEHIND: tuple[tuple[str, str, Callable[[float], Number]], ...] = (
    ("goodput (samples/s)", "goodput", Number.of),
    ("throughput (samples/s)", "throughput", Number.of),
    ("statistical efficiency (%)", "efficiency", Number.percent),
    ("mean staleness (updates)", "mean_staleness", Number.of),
    ("S_stale/b (gradients)", "effective_staleness", Number.of),
    ("deviation", "deviation", Number.of),
    ("in reduced precision (%)", "amp_share", Number.percent),
    ("switches", "switches", Number.of),
    ("detection: precision (%)", "detection_precision", Number.percent),
    ("detection: recall (%)", "detection_recall", Number.percent),
    ("steps thrown away (%)", "lost", Number.percent),
    ("samples cut (%)", CUT, Number.percent),
    ("beyond the trace (%)", "beyond_trace", Number.percent),
)
"""Header, column of the runs, and format."""


def behind_table(s: Standings) -> Table:
    """Statistics, precision, detection and waste behind the times; means over seeds."""
    every = {key: [_mean(s, p.policy, key) for p in s.policies] for key in (CUT, "beyond_trace")}
    idle = [key for key, means in every.items() if not any(mean > 0 for mean in means)]
    is_real = s.scenario.learner.is_real
    idle += OF_FORMULA if is_real else ()
    columns = [column for column in BEHIND if column[1] not in idle]

    def cells(policy: str, variant: str = "contended") -> list[Number]:
        return [show(_mean(s, policy, key, variant)) for _, key, show in columns]

    later = s.times[1:]  # the makespan beside a time to target
    rows = tuple(
        (p.policy, p.architecture, *(Number.estimate(p.time[n]) for n in later), *cells(p.policy))
        for p in s.policies
    )
    whole, clean = ([Number.estimate(times[n]) for n in later] for times in (s.baseline, s.clean))
    controls = (
        *((name, "all-reduce", *whole, *cells(name)) for name in s.unasked),
        (_control(s), "all-reduce", *clean, *cells(BASELINE, "clean")),
    )
    worth = (
        ""
        if is_real
        else " Goodput is throughput times statistical efficiency; statistical efficiency is "
        "progress per sample relative to a fresh gradient of one worker."
    )
    untested = "" if is_real else " No real gradients were computed, so the bound is not tested."
    notes = [
        f"Means over seeds, of whole runs.{worth}",
        "Mean staleness counts the updates between a gradient's pull and its application. "
        "S_stale/b counts the gradients that were applied between that pull and that application"
        + ("" if is_real else "; progress depends on it")
        + ". Steps thrown away were dropped or aborted."
        + ("" if CUT in idle else " Samples cut are those that a deadline left uncomputed."),
        "Switches are counted by the policy: changes of precision, of mode, or of protocol. "
        "Deviation is the mean of (samples applied between a gradient's pull and its update, over "
        "those of a full update)². Times (L eta G)² it bounds the mean squared error that "
        "staleness puts into a gradient, for an L-smooth loss, learning rate eta and gradients of "
        f"norm at most G.{untested}",
    ]
    if MISSING in " ".join(cell for row in (*rows, *controls) for cell in row):
        notes.append(
            f"{MISSING}: the policy counts no switches, names no suspects, or has unknown "
            "progress. Precision is also undefined where the policy never suspected a rank, and "
            "recall where no rank was a straggler."
        )
    notes.append(
        "Detection is judged against the trace at every update: a straggler is a rank whose "
        f"noise-free step takes more than {s.scenario.straggler_ratio:g} times the "
        "median over ranks. A rank that a plan leaves out is judged by the step that it would "
        "start."
    )
    headers = (
        "policy", "updates through", *(f"{TIMES[n]} (s)" for n in later),
        *(header for header, _, _ in columns),
    )  # fmt: skip
    return Table(headers, rows, 2, controls, tuple(notes))


def costs_table(s: Standings) -> Table:
    """Time to target under each cost of staleness, with the order of the means."""
    columns = []
    for c in s.costs:
        times = [s.mean(s.at_cost(p.policy, c)) for p in s.policies]
        order = sorted(range(len(times)), key=lambda k: times[k].value)
        cells = enumerate(map(Number.estimate, times))
        columns.append([
            Number(f"{cell}  #{order.index(k) + 1}", cell.value, cell.ends) for k, cell in cells
        ])  # fmt: skip
    rows = tuple(zip((p.policy for p in s.policies), *columns, strict=True))
    headers = ("policy", *(f"time to target at c_tau {c:g} (s)" for c in s.costs))
    declared = s.scenario.learner.c_tau
    notes = (
        f"# is the order of the means. The scenario declares c_tau {declared:g}. The times at "
        "other values are simulated, not rescaled; runs without stale gradients do not depend on "
        "c_tau.",
        *_narrow(s, rows, 1),
    )
    return Table(headers, rows, 1, (), notes)


def _narrow(s: Standings, rows: Iterable[Sequence[str]], words: int) -> list[str]:
    """A note where an interval is too narrow for the digits shown."""
    cells = [c for row in rows for c in row[words:] if isinstance(c, Number) and row[0] != BASELINE]
    hidden = [c for c in cells if "(" not in c and c.ends and c.ends[0] <= c.ends[1]]
    if not s.spread or not hidden:
        return []
    return ["A number without an interval has one that is narrower than its last digit."]


def _mean(s: Standings, policy: str, key: str, variant: str = "contended") -> float:
    """The mean over seeds of a column, or of `lost`: the share of dropped or aborted steps."""
    if key != "lost":
        return s.known_mean(policy, key, variant)
    dropped, aborted, started = (
        s.comparison.column(policy, name, variant) for name in ("dropped", "aborted", "started")
    )
    return float(((dropped + aborted) / started).mean())


def _mitigation(s: Standings, p: Standing, name: str) -> Number:
    """M in percent; a dash where the delay is too small for it to mean anything."""
    cell = _against_bsp(p, "0", p.mitigation[name], percent=True)
    return cell if s.has_mitigation(p, name) else Number(MISSING, cell.value, cell.ends)


def _against_bsp(p: Standing, of_bsp: str, value: Estimate, percent: bool = False) -> Number:
    """An estimate against bsp; for bsp itself it is 1 or 0 by definition."""
    cell = Number.estimate(value, percent=percent)
    if p.policy == BASELINE and not math.isnan(value.value):
        return Number(of_bsp, cell.value, cell.ends)
    return cell
