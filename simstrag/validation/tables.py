"""The tables of a validation, for a terminal, a notebook and the report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.number_format import MISSING, estimate, join, number, percent, plural
from simstrag.validation.case_results import COMPARED, Result, median_error
from simstrag.validation.cases import SCHEDULES
from simstrag.validation.distributions import Distance, Quantile
from simstrag.validation.judgement import MISSED, PREDICTED
from simstrag.validation.prediction import Constant
from simstrag.validation.real_runs import OFF, TRIES


def answer(result: Result) -> list[str]:
    """The answer of a validation in sentences."""
    verdicts = Counter(verdict.word for _, verdict in result.verdicts)
    total, worst = len(result.cases), result.worst
    if worst is None:
        return ["No real run finished, so there is no verdict."]
    counts = [f"{verdicts[PREDICTED]} of {total} cases predicted"]
    counts += [f"{n} {word}" for word, n in verdicts.items() if word != PREDICTED]
    if total > len(result.verdicts):
        counts.append(f"{total - len(result.verdicts)} without a finished run")
    sentences = [
        f"{', '.join(counts)}; the median error of the makespan is "
        f"{percent(result.median_error)} %, the largest {signed(worst[1].error)} % "
        f"({worst[0].name})."
    ]
    if at_pace := [verdict for _, verdict in result.at_pace]:
        least, most = map(_milliseconds, result.paces)
        sentences.append(
            f"Around the runs a bare step took {least} to {most} ms; against simulations at the "
            f"pace of each run, {sum(v.word == PREDICTED for v in at_pace)} of {total} cases are "
            f"predicted, with a median error of {percent(median_error(result.at_pace))} %."
        )
    if result.distributions:
        inside, runs = result.inside
        distances = (
            f"{name}s {number(result.median_distance(name), 2)} (more than chance in "
            f"{sum(getattr(found, name).beyond_chance for _, found in result.distributions)})"
            for name in COMPARED
        )
        sentences.append(
            f"Kolmogorov-Smirnov distance of real and simulated runs, median over "
            f"{plural(len(result.distributions), 'case')}: {join(list(distances))}; {inside} of "
            f"{runs} real runs ended in the simulated nine-of-ten interval."
        )
    words = [w.step.word for each in result.cases for w in each.windows if w.step]
    if words:
        sentences.append(
            f"The step time is predicted in {words.count(PREDICTED)} of {len(words)} windows of "
            "constant load."
        )
    stale = [v for each in result.cases if each.stale for v in each.by_rank("staleness") if v]
    if stale:
        sentences.append(
            f"The staleness of {sum(v.word == PREDICTED for v in stale)} of {len(stale)} ranks is "
            "predicted."
        )
    if result.rankings:
        pairs = sum(len(each.pairs) for each in result.rankings)
        decided = sum(len(each.decided) for each in result.rankings)
        good = sum(each.predicted for each in result.rankings)
        sentences.append(
            f"Real runs decide which policy is faster in {decided} of {pairs} pairs under the same "
            f"load; the simulation agrees in {good}."
        )
    for each in result.mitigation:
        if each.policy == "korel":
            real, simulated = (
                Number.estimate(e, percent=True) for e in (each.real, each.simulated)
            )
            sentences.append(
                f"Korel removed {real} % of the delay by load ({each.schedule}, {each.ranks} "
                f"ranks) in real runs and {simulated} % in simulation."
            )
    if result.failed:
        sentences.append(f"{len(result.failed)} of {len(result.outcomes)} real runs failed.")
    return sentences


def cases_table(result: Result) -> Table:
    """One row per case: the rows of validation.csv, without the columns that its name repeats."""
    columns: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("makespan (s)", "makespan_real", Number.of), ("spread (%)", "makespan_spread", _spread),
        ("simulated (s)", "makespan_simulated", Number.of), ("error (%)", "error", signed),
        ("allowed (%)", "allowed", _share), ("at its pace", "verdict_at_pace", str),
        ("error (%)", "error_at_pace", signed), ("spread (%)", "spread_at_pace", _spread),
        ("step (ms)", "step_real", _milliseconds),
        ("simulated (ms)", "step_simulated", _milliseconds),
    )  # fmt: skip
    rows = []
    for row in result.rows():
        count = f"{row['runs']}" + (f", {row['failed']} failed" if row["failed"] else "")
        cells = ("" if row[key] is None else write(row[key]) for _, key, write in columns)
        accuracy = Number.of(None) if row["accuracy"] is None else _share(row["accuracy"])
        rows.append((row["case"], row["verdict"], count, *cells, accuracy))
    notes = (
        "Means over real runs and over seeds. Spread: standard deviation of the real runs over "
        "their mean. A case is predicted if its error is at most 5 %, or at most two standard "
        "deviations if that is more, and never above 10 %. Where two standard deviations exceed "
        "10 %, only an error beyond them counts, as not predicted; the rest is too noisy.",
        "At its pace: the same against simulations whose step times are scaled, core by core, by "
        "bare steps timed right before and after each run. A shared machine changes its pace by "
        "the minute; an error that only the first verdict has is that change.",
        "The name of a case is its schedule, world size and policy. Schedules: "
        + "; ".join(f"{name}: {about}" for name, about in SCHEDULES.items()) + ".",
        "Accuracy: of the real training, on held-out data; it has no simulated counterpart.",
    )  # fmt: skip
    headers = ("case", "verdict", "runs", *(header for header, *_ in columns), "accuracy (%)")
    return Table(headers, tuple(rows), 3, (), notes)


def distributions_table(result: Result) -> Table:
    """Two rows per case with enough runs: the distances of makespans and of steps."""
    headers = (
        "case", "of", "runs", "simulated", "distance", "by chance", "p", "shape", "inside (%)",
    )  # fmt: skip
    rows = [
        (
            case.name, name, f"{found.runs}", f"{found.seeds}",
            *(Number.of(value, 2) for value in (d.ks, d.chance, d.p, d.shape)),
            Number.percent(found.inside / found.runs) if name == "makespan" else Number("", None),
        )
        for case, found in result.distributions
        for name, d in ((name, getattr(found, name)) for name in COMPARED)
    ]  # fmt: skip
    inside, runs = result.inside
    notes = (
        "Distance: Kolmogorov-Smirnov's, the largest difference between the shares of real and "
        "of simulated values up to some time. By chance: samples of as many runs from one law "
        "exceed it in 5 % of cases. It and p are by permuting whole runs, since the steps of a run "
        "resemble each other. Shape: the distance after each side is divided by its median.",
        f"Inside: real runs that ended where one simulated run ends in nine of ten cases; {inside} "
        f"of {runs} in all cases.",
        "Steps: local times of all ranks within the makespan. Simulated runs have a lasting pace "
        "of their own if the profile states one (see the constants). Without lockstep times, "
        "simulated steps include the update, and real ones do not.",
    )  # fmt: skip
    return Table(headers, tuple(rows), 2, (), notes)


def quantiles_table(result: Result) -> Table:
    """The quantiles of makespans and of steps, real and simulated, with intervals."""
    rows = []
    for case, found in result.distributions:
        for name, scale in (("makespan", 1.0), ("step", 1e3)):
            distance: Distance = getattr(found, name)
            for real, simulated in zip(distance.real, distance.simulated, strict=True):
                ends = (_quantile(each, scale) for each in (real, simulated))
                unit = "s" if name == "makespan" else "ms"
                rows.append((case.name, name, f"{100 * real.level:.0f} %", *ends, unit))
    notes = (
        "In brackets 95 % intervals: of makespans distribution-free, by order statistics; of steps "
        "by resampling whole runs. The 90 % quantile of makespans has an upper end from 36 runs, "
        "the 99 % quantile from 368. Until then only the lower end is shown, and below 100 runs no "
        "99 % quantile.",
    )  # fmt: skip
    return Table(("case", "of", "quantile", "real", "simulated", "unit"), tuple(rows), 3, (), notes)


def windows_table(result: Result) -> Table:
    """One row per window of each case."""
    headers = (
        "case", "load", "verdict", "from (s)", "to (s)", "step (ms)", "spread (%)",
        "simulated (ms)", "error (%)",
    )  # fmt: skip
    rows = [
        (
            each.case.name, load or "none", v.word, Number.of(start),
            Number.of(stop) if math.isfinite(stop) else Number("end", None),
            _milliseconds(v.real), _spread(v.spread), _milliseconds(v.simulated), signed(v.error),
        )
        for each in result.cases for start, stop, load, v in each.windows if v is not None
    ]  # fmt: skip
    note = "Time per full batch of all ranks. Windows that most runs did not reach are left out."
    return Table(headers, tuple(rows), 3, (), (note,))


def ranks_table(result: Result) -> Table:
    """Staleness and gradient share of each rank, for cases with stale gradients."""
    headers = (
        "case", "rank", "of", "verdict", "real", "spread (%)", "simulated", "error (%)",
        "allowed (%)",
    )  # fmt: skip
    rows = [
        (
            each.case.name, f"{rank}", what, v.word, Number.of(v.real), _spread(v.spread),
            Number.of(v.simulated), signed(v.error), _share(v.allowed),
        )
        for each in result.cases if each.stale and each.real
        for name, what in (("staleness", "staleness"), ("shares", "share of updates"))
        for rank, v in enumerate(each.by_rank(name)) if v is not None
    ]  # fmt: skip
    note = (
        "Per rank, because the mean staleness over all ranks is fixed by their number. Staleness "
        "is in updates; a rank without stale gradients has no row."
    )
    return Table(headers, tuple(rows), 4, (), (note,))


def ranking_table(result: Result) -> Table:
    """One row per pair of policies."""
    headers = (
        "schedule", "ranks", "faster", "slower", "verdict", "real difference (%)",
        "at one pace (%)", "simulated difference (%)",
    )  # fmt: skip
    rows = []
    for ranking in result.rankings:
        evened = {(each.faster, each.slower): each.real for each in ranking.evened}
        evened |= {(slower, faster): -real for (faster, slower), real in evened.items()}
        for pair in ranking.pairs:
            word = "tie" if pair.tie else PREDICTED if pair.right else MISSED
            even = evened.get((pair.faster, pair.slower))
            rows.append(
                (
                    ranking.schedule, f"{ranking.ranks}", pair.faster, pair.slower, word,
                    _share(pair.real), "" if even is None else _share(even), _share(pair.simulated),
                )
            )  # fmt: skip
    note = (
        "Differences: extra time of the slower policy. Tie: the 95 % interval (Student's t) of the "
        "paired differences of real runs contains zero. At one pace: with real makespans "
        "normalised to the profile's pace; negative where that reverses the order."
    )
    return Table(headers, tuple(rows), 5, (), (note,))


def mitigation_table(result: Result) -> Table:
    """One row per policy with its mitigation M."""
    headers = (
        "policy", "schedule", "ranks", "real M (%)", "at one pace (%)", "simulated M (%)",
        "reduced (%)", "simulated (%)",
    )  # fmt: skip
    rows = tuple(
        (
            each.policy, each.schedule, f"{each.ranks}",
            *(Number.estimate(m, percent=True) for m in (each.real, each.evened, each.simulated)),
            *map(_share, each.amp),
        )
        for each in result.mitigation
    )  # fmt: skip
    note = (
        "M is the share of the delay by load that a policy removes: (bsp - policy) / (bsp - bsp "
        "without load). Brackets: 95 % intervals (Fieller's) over repetitions or seeds. At one "
        "pace: with real makespans normalised to the profile's pace. "
        f"{MISSING}: load delays bsp by less than 0.5 %, or there is only one repetition. Reduced: "
        "share of steps in reduced precision."
    )
    return Table(headers, rows, 3, (), (note,))


def loads_table(result: Result) -> Table:
    """The drawn schedules, one row per episode."""
    headers = ("schedule", "ranks", "beside rank", "level of load", "from (s)", "to (s)")
    rows = tuple(
        (name, f"{ranks}", f"{each.rank}", *map(Number.of, (each.level, each.start, each.stop)))
        for (ranks, name), schedule in result.plan.schedules.items()
        for each in schedule.episodes
    )
    note = "Level: number of processes that each want the whole core."
    return Table(headers, rows, 3, (), (note,))


def constants_table(constants: Sequence[Constant]) -> Table:
    """The constants of the simulation with their origins."""
    rows = tuple(
        (each.what, each.ranks or "any", Number.of(each.value), each.unit, each.origin)
        for each in constants
    )
    return Table(("constant", "ranks", "value", "unit", "origin"), rows, 5)


def runs_table(result: Result) -> Table:
    """One row per real run."""
    headers = (
        "case", "repetition", "", "time (s)", "foreign (cores)", "stolen (cores)",
        "pace before (ms)", "pace after (ms)", "repeated",
    )  # fmt: skip
    rows = tuple(
        (
            each.case.name, f"{each.repetition + 1}", "finished" if each.finished else each.reason,
            Number.of(each.took), Number.of(each.foreign, 2), Number.of(each.stolen, 2),
            *(", ".join(map(_milliseconds, cores)) for cores in (*each.pace, (), ())[:2]),
            f"{len(each.aside) + len(each.failed_tries)}",
        )
        for each in result.outcomes
    )  # fmt: skip
    note = (
        "Pace: time of a bare step on each core. A run around which a core deviates from the "
        f"calibrated pace by more than {100 * OFF:.0f} % is repeated, whatever its result, up to "
        f"{TRIES} attempts in all; the last finished one counts. Foreign: cores used by other "
        "processes."
    )
    return Table(headers, rows, 3, (), (note,))


def short(result: Result) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the short table for a terminal."""
    table = cases_table(result)
    kept = [0, 1, *range(3, 8)]
    return [table.headers[k] for k in kept], [[row[k] for k in kept] for row in table.rows]


def _quantile(q: Quantile, scale: float) -> Number:
    """A quantile with its interval, which may be open."""
    value, low, high = (scale * each for each in (q.value, q.low, q.high))
    if math.isfinite(value + low + high):
        return Number(estimate(value, low, high), value, (low, high))
    least = f"at least {number(low)}" if math.isfinite(low) else "no interval"
    known = f"{number(value)} ({least})" if math.isfinite(value) else least
    return Number(known, value, (low, high))


def _share(value: float) -> Number:
    return Number.of(100 * value)


def _spread(value: float) -> Number:
    return Number.of(100 * value, 2)


def _milliseconds(seconds: float) -> Number:
    return Number.of(1000 * seconds)


def signed(value: float) -> Number:
    """A relative error in percent, with its sign."""
    return Number(MISSING if math.isnan(value) else f"{100 * value:+.1f}", 100 * value)
