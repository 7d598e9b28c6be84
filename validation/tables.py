"""The tables of a validation, for a terminal, a notebook and the report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simstrag.analysis.tables.cells import Cell, estimated, numbered
from simstrag.analysis.tables.comparison_tables import Table
from simstrag.analysis.text.number_format import MISSING, percent
from simstrag.validation.campaign import OFF, TRIES
from simstrag.validation.cases import SCHEDULES
from simstrag.validation.judgement import PREDICTED, Pair, Verdict
from simstrag.validation.prediction import Constant
from simstrag.validation.result import CaseResult, Ranking, Result, counted, median_error

__all__ = [
    "answer", "cases_table", "constants_table", "loads_table", "mitigation_table", "pictured",
    "ranking_table", "ranks_table", "runs_table", "short", "windows_table",
]  # fmt: skip


def answer(result: Result) -> list[str]:
    """What came of it, in sentences."""
    verdicts = counted(verdict.word for _, verdict in result.verdicts)
    total, worst = len(result.cases), result.worst
    if worst is None:
        return ["No real run finished: nothing can be said."]
    right = verdicts.get(PREDICTED, 0)
    said = [
        f"The makespan of {right} of {total} cases was predicted"
        + "".join(f", {n} {word}" for word, n in verdicts.items() if word != PREDICTED)
        + (
            f", {total - len(result.verdicts)} without a run that finished"
            if total > len(result.verdicts)
            else ""
        )
        + f"; the median error is {percent(result.median_error)} %, the worst "
        f"{_signed(worst[1].error)} % ({worst[0].name})."
    ]
    if at_pace := [verdict for _, verdict in result.at_pace]:
        least, most = (numbered(1000 * seconds) for seconds in result.paces)
        said.append(
            f"Around the runs a step of nothing else took {least} to {most} ms; held against "
            f"simulations at the pace of each run, {sum(v.word == PREDICTED for v in at_pace)} of "
            f"{total} were predicted, with a median error of "
            f"{percent(median_error(result.at_pace))} %."
        )
    words = [w.verdict.word for each in result.cases for w in each.windows if w.verdict]
    if words:
        said.append(
            f"Of {len(words)} windows with load or none, the step of {words.count(PREDICTED)} was "
            "predicted."
        )
    stale = [v for each in result.cases if each.stale for v in each.by_rank("staleness") if v]
    if stale:
        said.append(
            f"The staleness of {sum(v.word == PREDICTED for v in stale)} of {len(stale)} ranks was "
            "predicted."
        )
    if result.rankings:
        pairs = sum(len(each.pairs) for each in result.rankings)
        decided = sum(len(each.decided) for each in result.rankings)
        good = sum(each.predicted for each in result.rankings)
        said.append(
            f"Of {pairs} pairs of policies under the same load, real runs say of {decided} which "
            f"is faster; {good} of these were predicted."
        )
    for each in result.mitigation:
        if each.policy == "korel":
            real, simulated = (estimated(e, scale=100) for e in (each.real, each.simulated))
            said.append(
                f"Of the delay by load ({each.schedule}, {each.ranks} ranks) korel really removed "
                f"{real} %, and {simulated} % in simulation."
            )
    if result.failed:
        said.append(f"{len(result.failed)} of {len(result.outcomes)} runs failed.")
    return said


def cases_table(result: Result) -> Table:
    """A row per case."""
    headers = (
        "case", "verdict", "runs", "makespan (s)", "spread (%)", "simulated (s)", "error (%)",
        "allowed (%)", "at its pace", "error (%)", "spread (%)", "step (ms)", "simulated (ms)",
        "accuracy (%)",
    )  # fmt: skip
    rows = []
    for each in result.cases:
        count = f"{len(each.real)}" + (f", {len(each.failed)} failed" if each.failed else "")
        accuracy = numbered(None if each.accuracy is None else 100 * each.accuracy[0])
        if each.makespan is None or each.step is None:
            rows.append((each.case.name, "no run finished", count, *[""] * 10, accuracy))
            continue
        v, s, p = each.makespan, each.step, each.at_pace
        paced = ("", "", "") if p is None else (p.word, _error(p), numbered(100 * p.spread, 2))
        rows.append(
            (
                each.case.name, v.word, count, numbered(v.real), numbered(100 * v.spread, 2),
                numbered(v.simulated), _error(v), numbered(100 * v.allowed), *paced,
                numbered(1000 * s.real), numbered(1000 * s.simulated), accuracy,
            )
        )  # fmt: skip
    notes = (
        "Means over real runs and over seeds; spread is the standard deviation of real runs over "
        "their mean. A case is predicted if its error is at most 5 %, or at most two standard "
        "deviations if that is more, and never above 10 %. Where two standard deviations exceed "
        "10 %, only an error beyond them counts, as not predicted; the rest is too noisy.",
        "At its pace: the same against simulations whose step takes as many times longer than the "
        "profile's as steps of nothing else, timed on all cores right before and after each run, "
        "did, core by core. A machine that others use too changes its pace by the minute; what is "
        "off only in the first verdict is that.",
        "A case is named by its schedule, its number of ranks and its policy: "
        + "; ".join(f"{name}: {about}" for name, about in SCHEDULES.items()) + ".",
        "Accuracy is of real training, on held-out data; the simulator has no learner that could "
        "predict it.",
    )  # fmt: skip
    return Table(headers, tuple(rows), 3, (), notes)


def windows_table(result: Result) -> Table:
    """A row per window of each case."""
    headers = (
        "case", "load", "verdict", "from (s)", "to (s)", "step (ms)", "spread (%)",
        "simulated (ms)", "error (%)",
    )  # fmt: skip
    rows = [
        (
            each.case.name, window.load or "none", v.word, numbered(window.start),
            numbered(window.stop) if math.isfinite(window.stop) else Cell("end", None),
            numbered(1000 * v.real), numbered(100 * v.spread, 2), numbered(1000 * v.simulated),
            _error(v),
        )
        for each in result.cases for window in each.windows
        for v in (window.verdict,) if v is not None
    ]  # fmt: skip
    note = (
        "Seconds per full batch of all ranks. Windows that most runs did not get to are left out."
    )
    return Table(headers, tuple(rows), 3, (), (note,))


def ranks_table(result: Result) -> Table:
    """Staleness and share of the gradients of each rank, of cases in which any was stale."""
    headers = (
        "case", "rank", "of", "verdict", "real", "spread (%)", "simulated", "error (%)",
        "allowed (%)",
    )  # fmt: skip
    rows = [
        (
            each.case.name, f"{rank}", what, v.word, numbered(v.real), numbered(100 * v.spread, 2),
            numbered(v.simulated), _error(v), numbered(100 * v.allowed),
        )
        for each in result.cases if each.stale and each.real
        for name, what in (("staleness", "staleness"), ("shares", "share of updates"))
        for rank, v in enumerate(each.by_rank(name)) if v is not None
    ]  # fmt: skip
    note = (
        "Of each rank, for the mean over all of them is the number of others whatever happens. "
        "Staleness is in updates; of a rank that was never stale there is no row."
    )
    return Table(headers, tuple(rows), 4, (), (note,))


def ranking_table(result: Result) -> Table:
    """A row per pair of policies; of a tie nothing is shown."""
    headers = (
        "schedule",
        "ranks",
        "faster",
        "slower",
        "verdict",
        "really by (%)",
        "at one pace by (%)",
        "simulated by (%)",
    )
    rows = tuple(
        (
            ranking.schedule, f"{ranking.ranks}", pair.faster, pair.slower,
            "tie" if pair.tie else "predicted" if pair.right else "not predicted",
            numbered(100 * pair.real), _evened(ranking, pair), numbered(100 * pair.simulated),
        )
        for ranking in result.rankings for pair in ranking.pairs
    )  # fmt: skip
    note = (
        "By how much the slower takes longer. A tie is a difference whose 95 % interval (Student's "
        "t, of the paired differences of real runs) has zero in it; nothing is shown of it. At one "
        "pace: of real makespans brought to the profile's pace, below 0 where that turns them over."
    )
    return Table(headers, rows, 5, (), (note,))


def _evened(ranking: Ranking, pair: Pair) -> str:
    for each in ranking.evened:
        if {each.faster, each.slower} == {pair.faster, pair.slower}:
            return numbered(100 * each.real * (1 if each.faster == pair.faster else -1))
    return ""


def mitigation_table(result: Result) -> Table:
    """M of each policy."""
    rows = tuple(
        (
            each.policy, each.schedule, f"{each.ranks}",
            *(estimated(one, scale=100) for one in (each.real, each.evened, each.simulated)),
            *(numbered(100 * share) for share in each.amp),
        )
        for each in result.mitigation
    )  # fmt: skip
    note = (
        "M is the share of the delay by load that a policy removes: (bsp - policy) / (bsp - bsp "
        "without load). In brackets 95 % intervals: bootstraps over repetitions, and over seeds. "
        "At one pace: of real makespans as they would be at the profile's pace, each divided by "
        "what its simulation at its own pace takes longer. "
        f"{MISSING}: load delays bsp by less than 0.5 %, or there is one repetition only. Reduced "
        "is the share of steps in reduced precision, really and in simulation."
    )
    return Table(
        (
            "policy",
            "schedule",
            "ranks",
            "real M (%)",
            "at one pace (%)",
            "simulated M (%)",
            "reduced (%)",
            "simulated (%)",
        ),
        rows,
        3,
        (),
        (note,),
    )


def loads_table(result: Result) -> Table:
    """The schedules as they were drawn."""
    rows = tuple(
        (
            name, f"{ranks}", f"{each.rank}",
            *(numbered(value) for value in (each.level, each.start, each.stop)),
        )
        for (ranks, name), schedule in result.plan.schedules.items() for each in schedule.episodes
    )  # fmt: skip
    headers = ("schedule", "ranks", "beside rank", "level of load", "from (s)", "to (s)")
    return Table(
        headers, rows, 3, (), ("A level is so many processes that want the core for themselves.",)
    )


def constants_table(constants: Sequence[Constant]) -> Table:
    """Which number of the simulation came from where."""
    rows = tuple(
        (each.what, each.ranks or "any", numbered(each.value), each.unit, each.origin)
        for each in constants
    )
    return Table(("constant", "ranks", "value", "unit", "origin"), rows, 5)


def runs_table(result: Result) -> Table:
    """How each run went."""
    rows = tuple(
        (
            each.case.name, f"{each.repetition + 1}", "finished" if each.finished else each.reason,
            numbered(each.took), numbered(each.foreign, 2), numbered(each.stolen, 2),
            *(", ".join(numbered(1000 * s) for s in when) for when in (*each.pace, (), ())[:2]),
            f"{len(each.aside) + len(each.failed_tries)}",
        )
        for each in result.outcomes
    )  # fmt: skip
    headers = (
        "case", "repetition", "", "took (s)", "others took (cores)", "stolen (cores)",
        "pace before (ms)", "pace after (ms)", "made again",
    )  # fmt: skip
    note = (
        "Pace is that of steps of nothing else, of each core. Where one is more than "
        f"{100 * OFF:.0f} % off the calibrated pace around a run, "
        f"the run is made again, whatever it came to, {TRIES} times at most; the last that "
        "finished counts."
    )
    return Table(headers, rows, 3, (), (note,))


def short(result: Result) -> tuple[list[str], list[list[str]]]:
    """Headers and rows for a terminal."""
    table = cases_table(result)
    kept = [table.headers.index(name) for name in ("case", "verdict", "makespan (s)", "spread (%)")]
    kept += [table.headers.index(name) for name in ("simulated (s)", "error (%)", "allowed (%)")]
    return [table.headers[k] for k in kept], [[row[k] for k in kept] for row in table.rows]


def pictured(result: Result) -> Sequence[CaseResult]:
    """The cases of which there is something to draw."""
    return [each for each in result.cases if each.real]


def _error(verdict: Verdict) -> Cell:
    return Cell(_signed(verdict.error), 100 * verdict.error)


def _signed(error: float) -> str:
    return MISSING if math.isnan(error) else f"{100 * error:+.1f}"
