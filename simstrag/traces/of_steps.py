"""Slowdowns of ranks, the clean step, its noise and communication, from the steps of a record.

*Groups*: ranks whose own clean steps differ by more than noise makes them, such as those on two
kinds of card.  *Start-up*, steps at the beginning that take many times the usual, is left out.

*Clean step*: of the steps whose running median is at most 1.2 times the median over the ranks of
the fastest group of lower quartiles, the mean of each rank, then the median over these ranks, as
calibration takes the mean step of each visit and then the median over visits
(`calibration.fits.step_estimates`).  So a rank that is always slow is slow in the trace.

*Noise*: of unbroken stretches of 20 clean steps or more, each step over the mean of its stretch;
deviations from it times sqrt(n / (n - 1)), and the correlation of successive ones, as in
`calibration.fits.visit_statistics`.

*Slowdowns*: along a rank, a new row begins where the running median departs from the row's value by
more than 10 %, or 3 standard deviations of the noise if they are more.  Its value is the median of
its steps over the clean step, and 1 where that is within the error of 1.

*Communication* holds waiting for other ranks, too; the rank that arrives last waits least, so the
cost is the median over steps of the least among the ranks.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simstrag.arrays import Floats
from simstrag.errors import InputError
from simstrag.profile.plausible import doubt
from simstrag.records.columns import rank_name
from simstrag.records.record import ALL_REDUCE, Record, assumed_gpus
from simstrag.records.steps import NO_COLLECTIVE
from simstrag.statistics.startup import leading
from simstrag.statistics.student import upper_tail
from simstrag.statistics.walls import shared_walls
from simstrag.trace.trace import Trace
from simstrag.traces.gaps import describe_gaps
from simstrag.traces.provenance import STEPS, Labelled, constant_allreduce, contents, run_of

if TYPE_CHECKING:
    import pandas as pd

NAME = "steps"
STEP = "step.compute"
# The limits.  None was measured; each is ASSUMED for the reason beside it.
WINDOW = 5
"""Steps of a running median: two outliers among them do not move it."""
CLEAN = 1.2
"""Running medians up to this multiple of the first estimate of a clean step are clean: noise of a
median of five steps seldom reaches it, and slowdowns that matter exceed it."""
STRETCH = 20
"""Least steps of a clean stretch; see `CORRELATED_STEPS` of calibration."""
OUTLIER = 3.0
"""Single steps beyond this multiple of the clean step are no noise: checkpoints and other pauses
take several steps, noise a fraction of one."""
DEPARTURE = 0.1
"""Least relative change of a slowdown that begins a new row: beyond the error of a simulated
makespan (4.6 %), so that finer rows would make no answer surer."""
DEVIATIONS = 3.0
"""Standard deviations of noise within which a difference is none, as is usual."""
LEAST_SLOWDOWN = 0.02
"""Least slowdown that counts: clocks and temperatures of equal cards differ by as much."""
LARGEST_LAG1 = 0.95
"""Largest autocorrelation, and share of the most negative one that lognormal noise can have: the
noise that is simulated cannot reach either end."""
LEVEL, LEAST_FREEDOM = 0.01, 4.0
"""Probability that noise alone splits ranks into groups, over all places where it may; and the
fewest steps, less one, of which that can be told."""
NOISELESS = 1e-6
"""Variation below which steps have no noise but rounding."""
SHOWN = 8
"""Most ranks of a group to name."""
UNSEEN = (
    "Not seen: what slows most ranks at once for three quarters of the log or more. A clean step "
    "is ASSUMED to be as long as the faster quarter of steps."
)


class CleanNoise(NamedTuple):
    """Coefficient of variation and lag-1 autocorrelation of `steps` clean steps.

    outliers: steps left out.
    """

    cv: float
    lag1: float
    steps: int
    outliers: int


def trace_of_steps(
    record: Record, *, resource: str = "step", name: str = NAME, paths: Sequence[str | Path] = ()
) -> Labelled:
    """The slowdowns of a record's ranks, with what it measures of a scenario.

    resource: the slowed resource.
    name: the label of the trace.
    paths: the files of the record.
    Raises `InputError` for a record of one rank: no policy can be compared on it.
    """
    frame, names = _frame(record), _names(record)
    frame, transfer, start = _clocked(frame, ALL_REDUCE in record.kinds)
    ranks, most = len(names), int(frame.groupby("node").size().max())
    gaps = _gaps(frame, names)
    groups = _groups(frame)
    level, noise = _clean_step(frame, [node for node, _ in groups[0]])
    trace = _slowdowns(frame, level, noise, resource)
    called = {r: text for r, text in names.items() if text != str(r)}
    trace = replace(trace, names=called, began=record.began)
    share = float(frame["clean"].mean())
    slowest = float(trace.changes.value.max())
    dropped = [each for each in record.missing if each != NO_COLLECTIVE]
    doubts = (
        *(f"Not seen: {each.what}. What shows it: {each.remedy}." for each in record.unseen),
        *_doubts(frame, ALL_REDUCE in record.kinds),
        *(f"{text} Then end the name of its column in _ms." for text in doubt(STEP, level)),
    )
    notes = (
        f"Measured: {len(frame):,} steps of {ranks} ranks over {trace.end:.4g} s.",
        *(note for note in record.notes if note != assumed_gpus(ranks)),
        *start,
        *_note_on_groups(groups, names),
        f"Derived: the clean step is {level:.4g} s: of steps within {CLEAN:g} times the median "
        f"over ranks of lower quartiles ({share:.0%} of all), the mean of each rank, then the "
        f"median over ranks{' of the fastest group' if len(groups) > 1 else ''}.",
        _note_on_noise(noise),
        f"Derived: a slowdown is the median of successive steps over the clean step, {slowest:.3g} "
        f"at most; a new row begins where a running median of {WINDOW} steps departs by more than "
        f"{_departure(noise):.0%}. What is slower by less than {LEAST_SLOWDOWN:.0%}, or by "
        "less than the error of its mean, counts as clean, and so does what is faster.",
        "Assumed: the limits of these rules (simstrag/traces/of_steps.py has the reason for "
        f"each); the slowdowns are of resource {resource} (--resource).",
        *(
            [
                "Assumed: the log has no times: a step begins when the slowest rank ends the one "
                "before."
            ]
            if record.time is None
            else []
        ),
        UNSEEN,
        *(f"Missing: {each}." for each in (*dropped, *gaps)),
        *doubts,
    )
    variation = "" if noise.cv == 0 else f", cv: {noise.cv:.3g}"
    return Labelled(
        trace, name, contents(paths), notes,
        (*(f"The log of steps has {gap}." for gap in gaps), UNSEEN, *doubts),
        (
            f"step: {{compute: {level:.6g}{variation}}}  # measured",
            *([f"noise: {{lag1: {noise.lag1:.2g}}}  # measured"] if noise.lag1 else []),
            *([constant_allreduce(transfer, ranks)] if transfer else []),
            *run_of(min(most, STEPS), ranks),
        ),
    )  # fmt: skip


def _frame(record: Record) -> pd.DataFrame:
    """The steps of each rank in their order.

    Columns: node, step, time (NaN if unknown), `local` seconds and communication.
    """
    import pandas as pd

    if len(np.unique(record.rank)) == 1:
        raise InputError(
            f"{record.source}: is of one rank, which shows no other to wait for, so that no policy "
            "can be compared; give the logs of all ranks: simstrag trace import steps FILE FILE..."
        )
    is_collective = np.array([kind == ALL_REDUCE for kind in record.kinds])[record.kind]
    columns = {
        "node": record.rank, "step": record.step,
        "time": np.nan if record.time is None else record.time,
        "local": np.where(is_collective, 0.0, record.duration),
        "communication": np.where(is_collective, record.duration, 0.0),
    }  # fmt: skip
    how = {"time": "min", "local": "sum", "communication": "sum"}
    frame = pd.DataFrame(columns).groupby(["node", "step"], as_index=False).agg(how)
    wrong = frame[frame["local"] <= 0]
    if len(wrong):
        rank, step = wrong.iloc[0][["node", "step"]].astype(int)
        raise InputError(f"{record.source}: rank {rank} has no seconds of computing in step {step}")
    return frame


def _names(record: Record) -> dict[int, str]:
    """What each rank is called: by its host, with its number if the host has several."""
    many = Counter(record.hosts.values())
    return {
        rank: rank_name(rank) if not (host := record.hosts.get(rank))
        else f"{host}/{rank}" if many[host] > 1 else host
        for rank in np.unique(record.rank).tolist()
    }  # fmt: skip


def _clocked(
    frame: pd.DataFrame, has_collective: bool
) -> tuple[pd.DataFrame, float | None, tuple[str, ...]]:
    """The steady steps with their times, the cost of communication, and a note on start-up."""
    seconds = frame.pivot(index="node", columns="step", values="local")
    count = leading(seconds.to_numpy())
    first, start = seconds.columns[count], tuple[str, ...]()
    if count:
        longest = seconds.max()
        beyond = longest.iloc[:count].sum() - count * longest.iloc[count:].median()
        start = (
            f"Derived: the first {count} steps are start-up, such as compiling, and left out; they "
            f"took {beyond:.4g} s more than steady ones.",
        )
        frame = frame[frame["step"] >= first].reset_index(drop=True)
    transfer = None
    if has_collective:
        transfer = float(frame.groupby("step")["communication"].min().median())
    if frame["time"].isna().any():
        longest = frame.groupby("step")["local"].max() + (transfer or 0.0)
        frame["time"] = frame["step"].map(longest.cumsum().shift(fill_value=0.0))
    else:  # steps at the same time of a clock with whole seconds follow each other
        done = frame.groupby(["node", "time"])["local"].cumsum() - frame["local"]
        frame["time"] += done
    return frame.sort_values(["node", "time"], kind="stable", ignore_index=True), transfer, start


def _gaps(frame: pd.DataFrame, names: Mapping[int, str]) -> tuple[str, ...]:
    """The gaps of a log, by a clock that counts a step of the slowest rank as a usual one."""
    beyond = frame.groupby("step")["local"].max() - float(frame["local"].median())
    waited = beyond.clip(lower=0).cumsum().shift(fill_value=0.0)
    clock = frame["time"] - frame["step"].map(waited)
    samples = (
        (names[int(str(node))], times.to_numpy()) for node, times in clock.groupby(frame["node"])
    )
    return describe_gaps(samples, "the slowdown", "clean")


def _groups(frame: pd.DataFrame) -> list[list[tuple[int, float]]]:
    """Ranks and their own clean steps in groups, the fastest first.

    A group ends where the next rank is slower by more than `LEAST_SLOWDOWN`, and by more than noise
    makes it with probability `LEVEL`: by Welch's test of the logarithms, with as many independent
    steps as the correlation of successive ones leaves, corrected for the number of places.
    """
    levels = []
    for node, local in frame.groupby("node")["local"]:
        own = np.log(local[local <= CLEAN * local.quantile(0.25)].to_numpy())
        rest = own - own.mean()
        squares = float(rest @ rest) if rest.std() > NOISELESS else 0.0
        lag1 = min(max(float(rest[1:] @ rest[:-1]) / squares, 0.0), LARGEST_LAG1) if squares else 0
        count = len(own) * (1 - lag1) / (1 + lag1)
        error = squares / max(len(own) - 1, 1) / count
        levels.append((float(own.mean()), error, count - 1, int(str(node))))
    levels.sort()
    groups = [[levels[0]]]
    for before, after in itertools.pairwise(levels):
        gap, freedom = after[0] - before[0], min(before[2], after[2])
        t = gap / math.sqrt(error) if (error := before[1] + after[1]) else math.inf
        is_other = gap > math.log1p(LEAST_SLOWDOWN) and freedom >= LEAST_FREEDOM
        if is_other and upper_tail(t, freedom) < LEVEL / (len(levels) - 1):
            groups.append([])
        groups[-1].append(after)
    return [[(node, math.exp(level)) for level, _, _, node in group] for group in groups]


def _note_on_groups(
    groups: list[list[tuple[int, float]]], names: Mapping[int, str]
) -> tuple[str, ...]:
    """Which groups of ranks there are, if there are several."""
    if len(groups) == 1:
        return ()
    said = []
    for group in groups[:SHOWN]:
        nodes = sorted(node for node, _ in group)
        more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
        named = ", ".join(names[node] for node in nodes[:SHOWN]) + more
        said.append(f"{np.median([level for _, level in group]):.4g} s ({named})")
    return (
        f"Derived: ranks are of {len(groups)} groups by their own clean steps, which differ by "
        f"more than noise: {', '.join(said)}. Clean is what the fastest group does.",
    )


def _clean_step(frame: pd.DataFrame, fastest: list[int]) -> tuple[float, CleanNoise]:
    """Seconds of a clean step of the fastest ranks, and the noise.

    Adds the columns `smooth` and `clean`.
    """
    by_node = frame.groupby("node")["local"]
    frame["smooth"] = by_node.transform(
        lambda steps: steps.rolling(WINDOW, center=True, min_periods=1).median()
    )
    first = float(by_node.quantile(0.25)[fastest].median())
    frame["clean"] = frame["smooth"] <= CLEAN * first
    usual = frame["clean"] & (frame["local"] <= OUTLIER * first)
    level = float(frame[usual].groupby("node")["local"].mean().reindex(fastest).median())
    turns = (frame["clean"] != frame["clean"].shift()) | (frame["node"] != frame["node"].shift())
    stretches = [
        steps.to_numpy() / steps.mean() - 1
        for _, steps in frame[usual].groupby(turns.cumsum()[usual])["local"]
        if len(steps) >= STRETCH
    ]
    outliers = int((frame["clean"] & ~usual).sum())
    n = sum(map(len, stretches))
    if not n:
        return level, CleanNoise(0.0, 0.0, 0, outliers)
    squares = sum(float(np.sum(s * s)) * len(s) / (len(s) - 1) for s in stretches)
    cv = float(f"{math.sqrt(squares / n):.3g}")
    before, after = (np.concatenate([s[part] for s in stretches])
                     for part in (slice(None, -1), slice(1, None)))  # fmt: skip
    lag1 = 0.0 if cv < NOISELESS else float(np.corrcoef(before, after)[0, 1])
    if cv < NOISELESS or abs(lag1) < 2 / math.sqrt(n):  # within twice its standard error of 0
        lag1 = 0.0
    # Lognormal noise cannot have less.
    least = LARGEST_LAG1 * math.expm1(-math.log1p(cv * cv)) / (cv * cv) if cv else 0.0
    lag1 = min(max(lag1, least), LARGEST_LAG1)
    return level, CleanNoise(cv if cv >= NOISELESS else 0.0, lag1, n, outliers)


def _departure(noise: CleanNoise) -> float:
    return max(DEPARTURE, min(DEVIATIONS * noise.cv, 1.0))


def _slowdowns(frame: pd.DataFrame, level: float, noise: CleanNoise, resource: str) -> Trace:
    """A row of each rank where its slowdown changes, and one at the end of the log."""
    rows: list[tuple[float, int, str, str, float]] = []
    end = float((frame["time"] + frame["local"]).max())
    for key, mine in frame.groupby("node"):
        node = int(str(key))
        time, local = mine["time"].to_numpy(), mine["local"].to_numpy()
        before, value = 1.0, 1.0
        for first, last in _segments(mine["smooth"].to_numpy() / level, _departure(noise)):
            value = float(np.median(local[first:last])) / level
            error = max(LEAST_SLOWDOWN, DEVIATIONS * noise.cv / math.sqrt(last - first))
            value = 1.0 if value <= 1 + error else round(value, 2)
            if value != before:
                rows.append((float(time[first]), node, resource, "slowdown", value))
                before = value
        rows.append((end, node, resource, "slowdown", value))
    return Trace.from_rows(sorted(rows), NAME)


def _segments(smooth: Floats, departure: float) -> Iterator[tuple[int, int]]:
    """First and last place of stretches of which no value departs from the first by more.

    >>> list(_segments(np.array([1.0, 1.05, 2.0, 2.1, 1.0]), 0.1))
    [(0, 2), (2, 4), (4, 5)]
    """
    first, held = 0, 1.0
    for k, value in enumerate(smooth.tolist()):
        if abs(value - held) > departure * held:
            if k > first:
                yield first, k
            first, held = k, value
    yield first, len(smooth)


def _note_on_noise(noise: CleanNoise) -> str:
    if not noise.steps:
        return f"Unknown: noise; no stretch has {STRETCH} clean steps."
    left_out = f", {noise.outliers} beyond {OUTLIER:g} times it left out" if noise.outliers else ""
    lag1 = f"{noise.lag1:.2f}" if noise.lag1 else "not told apart from 0"
    return (
        f"Derived: noise of {noise.steps:,} clean steps in stretches of {STRETCH} or more, each "
        f"over the mean of its stretch{left_out}: standard deviation over mean {noise.cv:.3g}; "
        f"correlation of successive steps {lag1}."
    )


def _doubts(frame: pd.DataFrame, has_collective: bool) -> tuple[str, ...]:
    """Whether these are whole synchronous steps, which are as long on all ranks."""
    seconds = frame.pivot_table(index="node", columns="step", values="local").dropna(axis=1)
    if has_collective or not shared_walls(seconds.to_numpy()).hide_ranks:
        return ()
    return (
        "Doubtful: in each step all ranks take equally long. These look like whole synchronous "
        "steps, in which ranks wait for the slowest; log each rank's own forward and backward.",
    )
