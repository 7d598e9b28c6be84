"""Logs of step times: slowdowns of each rank, the clean step, its noise, and communication.

A log is CSV or JSON with a row per rank and step, or a file per rank, as training loops print it;
a history of Weights & Biases (`run.history()`, or "Export CSV" of a chart, with a column per run);
or scalars of TensorBoard (CSV `Wall time,Step,Value`, or JSON triples), a file per run.

*Clean step*: of the steps whose running median is at most 1.2 times the median over ranks of lower
quartiles, the mean of each rank, then the median over ranks, as calibration takes the mean step of
each visit and then the median over visits (`calibration.fits.step_estimates`).  So a rank that is
always slow is slow in the trace.

*Noise*: of unbroken stretches of 20 clean steps or more, each step over the mean of its stretch;
deviations from it times sqrt(n / (n - 1)), and the correlation of successive ones, as in
`calibration.fits.visit_statistics`.

*Slowdowns*: along a rank, a new row begins where the running median departs from the row's value by
more than 10 %, or 3 standard deviations of the noise if they are more.  Its value is the median of
its steps over the clean step, and 1 where that is within the error of 1.

*Communication* that is measured holds waiting for other ranks, too; as in `import_kineto`, the rank
that arrives last waits least, so the cost is the median over steps of the least among the ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.errors import InputError
from simstrag.profile.plausible import doubt
from simstrag.records.log_columns import LogColumns, describe_moment, number, since, wall_clock
from simstrag.records.log_formats import MEANINGS, match
from simstrag.records.log_table import LogTable, is_json, read_json
from simstrag.trace.trace import Trace
from simstrag.traces.gaps import describe_gaps
from simstrag.traces.provenance import (
    STEPS,
    Labelled,
    constant_allreduce,
    contents,
    count_note,
    run_of,
)

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
ALONG, ACROSS = 0.01, 0.2
"""Steps look like whole synchronous ones if they vary along the log by more than the first of their
mean, which is more than the resolution of clocks, and over ranks by less than the second of that:
ranks of their own would vary about as much."""
INSIDE = 0.5
"""Step times include communication if adding it more than doubles their spread over ranks."""
UNSEEN = (
    "Not seen: what slows most ranks at once for three quarters of the log or more. A clean step "
    "is ASSUMED to be as long as the faster quarter of steps."
)
SHORTEST = {"seconds": 1e-9, "compute": 1e-9, "communication": 0.0}
LONGEST = 1e7
"""Least and most seconds of a step."""
Floats = npt.NDArray[np.float64]


class CleanNoise(NamedTuple):
    """Coefficient of variation and lag-1 autocorrelation of `steps` clean steps.

    outliers: steps left out.
    """

    cv: float
    lag1: float
    steps: int
    outliers: int


def steps(
    *paths: str | Path,
    columns: Mapping[str, str] | None = None,
    resource: str = "step",
    name: str = NAME,
) -> Labelled:
    """The slowdowns of a log's ranks, with what it measures of a scenario.

    columns: names of columns (rank, step, seconds, ...) that are not known.
    resource: the slowed resource.
    name: the format.
    Raises `InputError` that names the row.
    """
    logs = [_columns(read_table(path), columns) for path in paths]
    _require_same_meanings(logs)
    frame, names, begin, began, twice = _frame(logs)
    frame, notes, transfer = _local(frame, logs)
    gaps = _gaps(frame, names)
    level, noise = _clean_step(frame)
    trace = replace(_slowdowns(frame, level, noise, resource), names=names, began=began)
    ranks, most = len(trace.nodes), int(frame.groupby("node").size().max())
    share = float(frame["clean"].mean())
    slowest = float(trace.changes.value.max())
    measured = (
        f"Measured: {len(frame):,} steps of {ranks} ranks over {trace.end:.4g} s; "
        f"{logs[0].taken()}.",
        *notes,
        f"Derived: the clean step is {level:.4g} s: of steps within {CLEAN:g} times the median "
        f"over ranks of lower quartiles ({share:.0%} of all), the mean of each rank, then the "
        "median over ranks.",
        _note_on_noise(noise),
        f"Derived: a slowdown is the median of successive steps over the clean step, {slowest:.3g} "
        f"at most; a new row begins where a running median of {WINDOW} steps departs by more than "
        f"{_departure(noise):.0%}. What is slower by less than {LEAST_SLOWDOWN:.0%}, or by "
        "less than the error of its mean, counts as clean, and so does what is faster.",
        f"Assumed: the limits of these rules (simstrag/traces/import_steps.py has the reason for "
        f"each); the slowdowns are of resource {resource} (--resource); {begin}.",
        UNSEEN,
        *count_note("Dropped", (twice, "repeats of a whole row")),
        *(f"Missing: {gap}." for gap in gaps),
        *_doubts(frame),
        *(f"{text} Then end the name of its column in _ms." for text in doubt(STEP, level)),
    )
    variation = "" if noise.cv == 0 else f", cv: {noise.cv:.3g}"
    return Labelled(
        trace, name, contents(paths), measured,
        (*(f"The log of steps has {gap}." for gap in gaps), UNSEEN),
        (
            f"step: {{compute: {level:.6g}{variation}}}  # measured",
            *([f"noise: {{lag1: {noise.lag1:.2g}}}  # measured"] if noise.lag1 else []),
            *([constant_allreduce(transfer, ranks)] if transfer and ranks > 1 else []),
            *run_of(min(most, STEPS), ranks),
        ),
    )  # fmt: skip


def read_table(path: str | Path) -> LogTable:
    """The table of a log, CSV or JSON; a chart of Weights & Biases as a row per run and step."""
    tag = re.search(r"tag-(.+)$", Path(path).stem)
    value = tag[1] if tag and match(tag[1], "seconds") else "Value"
    if not is_json(path):
        table = LogTable.read(path)
        if list(table.columns) == ["Wall time", "Step", "Value"]:
            cells = dict(zip(("Wall time", "Step", value), table.columns.values(), strict=True))
            return replace(table, columns=cells)
        return (
            table if not _runs(table) else LogTable.of_records(_of_chart(table), str(path), "row")
        )
    document = read_json(path, "a log of steps")
    if isinstance(document, dict):
        document = [document]
    if not isinstance(document, list):
        raise InputError(f"{path}: no list of entries; it is not a log of steps")
    records = []
    for k, entry in enumerate(document, start=1):
        if isinstance(entry, list) and len(entry) == 3:
            records.append((k, dict(zip(("Wall time", "Step", value), entry, strict=True))))
        elif isinstance(entry, dict):
            records.append((k, entry))
        else:
            raise InputError(
                f"{path}, entry {k}: {entry!r:.80} is neither a mapping nor [time, step, value]"
            )
    return LogTable.of_records(records, str(path))


def is_log(table: LogTable) -> bool:
    """Whether a table has steps and their seconds by known names."""
    try:
        log = _columns(table)
    except InputError:
        return False
    return "step" in log or "rank" in log or "node" in log


def _columns(table: LogTable, stated: Mapping[str, str] | None = None) -> LogColumns:
    if stated is None and {"Wall time", "Value"} <= set(table.columns):
        stated = {"seconds": "Value"}
    return LogColumns.of(table, MEANINGS[NAME], stated, ("compute/seconds", "step/time"))


def _require_same_meanings(logs: list[LogColumns]) -> None:
    first = logs[0]
    for log in logs[1:]:
        if log.names.keys() != first.names.keys():
            raise InputError(
                f"{log.table.source}: has {log.taken()}, but {first.table.source} has "
                f"{first.taken()}; files that are imported together need the same columns"
            )


def _runs(table: LogTable) -> dict[str, tuple[str, str]]:
    """Run and metric of each column of a chart of Weights & Biases; empty for another table.

    Beside each column stand its least and most (`__MIN`, `__MAX`), which are left out.
    """
    pairs = {name: name.rpartition(" - ")[::2] for name in table.columns if " - " in name}
    return {name: pair for name, pair in pairs.items() if not re.search("__M(IN|AX)$", pair[1])}


def _of_chart(table: LogTable) -> Iterator[tuple[int, dict[str, str]]]:
    others = [name for name in table.columns if " - " not in name]
    for name, (run, metric) in _runs(table).items():
        for k, cell in enumerate(table.columns[name]):
            if cell:
                shared = {other: table.columns[other][k] for other in others}
                yield table.lines[k], {**shared, "run name": run, metric: cell}


def _frame(logs: list[LogColumns]) -> tuple[pd.DataFrame, dict[int, str], str, str, int]:
    """All steps in order of node and time, names of nodes, what times are, and repeated rows.

    What times are is a clause, and their `wall_clock`.

    Columns: node, step, time (from the earliest), seconds, compute and communication (NaN without
    such a column), log and row (of the cell).
    """
    import pandas as pd

    parts, labels = [], list[str]()
    names: dict[int, str] = {}
    for k, log in enumerate(logs):
        rows = len(log.table.lines)
        if "rank" in log or "node" in log:
            nodes, names = log.nodes()
            labels += [names.get(node, str(node)) for node in nodes]
        else:
            labels += [_run_of(log.table.source)] * rows
        columns = {
            meaning: log.numbers(meaning, gaps=True) if meaning in log else np.nan
            for meaning in ("step", "seconds", "compute", "communication")
        }
        columns["time"] = log.moments("time") if "time" in log else np.nan
        repeats = pd.DataFrame(log.table.columns).duplicated().to_numpy()
        parts.append(pd.DataFrame(columns | {"log": k, "row": np.arange(rows), "repeats": repeats}))
    if len(logs) > 1 or not {"rank", "node"} & set(logs[0].names):
        nodes, names = number(labels)
    frame = pd.concat(parts, ignore_index=True).assign(node=nodes)
    used = "compute" if "compute" in logs[0] else "seconds"
    frame = frame[frame[used].notna()]
    twice = int(frame["repeats"].sum())
    frame = frame[~frame["repeats"]]
    for k, log in enumerate(logs):
        mine = frame[frame["log"] == k]
        for meaning in (used, "communication"):
            wrong = mine[(mine[meaning] < SHORTEST[meaning]) | (mine[meaning] > LONGEST)]
            if len(wrong):
                raise log.mistake(int(wrong["row"].iloc[0]), meaning, "is no time of a step")
    if frame.empty:
        raise InputError(f"{logs[0].table.source}: no row has a time of a step")
    by_step, timed = bool(frame["step"].notna().all()), bool(frame["time"].notna().all())
    order = ["node", "time"] if timed else ["node", "step"]
    frame = frame.sort_values(order, kind="stable", ignore_index=True)
    if not by_step or (timed and frame.duplicated(["node", "step"]).any()):
        frame["step"] = frame.groupby("node").cumcount()
    repeated = frame.duplicated(["node", "step"] if not timed else ["node", "time"], keep=False)
    if repeated.any():
        before, row = (frame[repeated].iloc[k] for k in (0, 1))
        log, other = logs[int(row["log"])], logs[int(before["log"])].table
        of_other = "" if other is log.table else f"{other.source}, "
        raise log.mistake(
            int(row["row"]), "step" if not timed else "time",
            f"is a second row of this rank and step, after {of_other}{other.unit} "
            f"{other.lines[int(before['row'])]}; does another column name the rank? say "
            f"--column rank=NAME; it has {log.table.header}",
        )  # fmt: skip
    began = ""
    if timed:
        first = float(frame["time"].min())
        frame["time"] = since(frame["time"].to_numpy(), first)
        row = frame.iloc[int(frame["time"].argmin())]
        cell = logs[int(row["log"])].cells("time")[int(row["row"])]
        began = wall_clock(cell, first)
        begin = f"steps begin at their times in the log, and time 0 is {describe_moment(cell)}"
    else:
        begin = "the log has no times: a step begins when the slowest rank ends the one before"
    return frame, names, begin, began, twice


def _run_of(source: str) -> str:
    """The name of a run by its file; TensorBoard calls one `run-gpu03-tag-step_time.csv`."""
    stem = Path(source).name.partition(".")[0]
    found = re.match(r"run-(.+?)-tag-", stem)
    return found[1] if found else stem


def _local(
    frame: pd.DataFrame, logs: list[LogColumns]
) -> tuple[pd.DataFrame, tuple[str, ...], float | None]:
    """The steps with their `local` seconds, notes on communication, and its cost.

    Without times in the log, `time` is filled in.
    """
    notes: tuple[str, ...] = ()
    communication = frame["communication"].fillna(0.0)
    if "compute" in logs[0]:
        local, how = frame["compute"], f"{logs[0].taken('compute')} is taken as a step without it"
    else:
        together = frame.assign(both=frame["seconds"] + communication)
        alone, both = (_spread(together, column) for column in ("seconds", "both"))
        if alone < INSIDE * both:
            local = frame["seconds"] - communication
            how = "it is subtracted, since the steps of the ranks are alike with it"
        else:
            local = frame["seconds"]
            how = "it is beside the step times, since the steps of the ranks differ without it"
    frame = frame.assign(local=local)
    wrong = frame[~(frame["local"] > 0)]
    if len(wrong):
        row = wrong.iloc[0]
        raise logs[int(row["log"])].mistake(
            int(row["row"]), "communication", "leaves no time of the step to compute"
        )
    transfer = None
    if "communication" in logs[0]:
        least = frame.groupby("step")["communication"].min()
        transfer = float(least.median())
        notes = (
            f"Derived: communication costs {transfer:.4g} s, the median over steps of the least "
            f"among the ranks, which is nearly transfer alone; {how}.",
        )
    if frame["time"].isna().any():
        longest = frame.groupby("step")["local"].max() + (transfer or 0.0)
        begins = longest.cumsum().shift(fill_value=0.0)
        frame["time"] = frame["step"].map(begins)
    return frame, notes, transfer


def _gaps(frame: pd.DataFrame, names: Mapping[int, str]) -> tuple[str, ...]:
    """The gaps of a log, by a clock that counts a step of the slowest rank as a usual one."""
    beyond = frame.groupby("step")["local"].max() - float(frame["local"].median())
    waited = beyond.clip(lower=0).cumsum().shift(fill_value=0.0)
    clock = frame["time"] - frame["step"].map(waited)
    samples = (
        (names.get(int(str(node)), f"rank {node}"), times.to_numpy())
        for node, times in clock.groupby(frame["node"])
    )
    return describe_gaps(samples, "the slowdown", "clean")


def _spread(frame: pd.DataFrame, column: str) -> float:
    """Mean over steps of the standard deviation over ranks."""
    spread = frame.groupby("step")[column].std()
    return float(spread.mean()) if spread.notna().any() else math.inf


def _clean_step(frame: pd.DataFrame) -> tuple[float, CleanNoise]:
    """Seconds of a clean step, and the noise; adds the columns `smooth` and `clean`."""
    by_node = frame.groupby("node")["local"]
    frame["smooth"] = by_node.transform(
        lambda steps: steps.rolling(WINDOW, center=True, min_periods=1).median()
    )
    first = float(by_node.quantile(0.25).median())
    frame["clean"] = frame["smooth"] <= CLEAN * first
    usual = frame["clean"] & (frame["local"] <= OUTLIER * first)
    level = float(frame[usual].groupby("node")["local"].mean().median())
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
    lag1 = 0.0 if cv < 1e-6 else float(np.corrcoef(before, after)[0, 1])
    if cv < 1e-6 or abs(lag1) < 2 / math.sqrt(n):  # within twice its standard error of 0
        lag1 = 0.0
    # Lognormal noise cannot have less.
    least = LARGEST_LAG1 * math.expm1(-math.log1p(cv * cv)) / (cv * cv) if cv else 0.0
    lag1 = min(max(lag1, least), LARGEST_LAG1)
    return level, CleanNoise(cv if cv >= 1e-6 else 0.0, lag1, n, outliers)


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


def _doubts(frame: pd.DataFrame) -> tuple[str, ...]:
    """Whether these are whole synchronous steps, which are as long on all ranks."""
    if frame["node"].nunique() == 1:
        return ("Doubtful: the log is of one rank; it shows no other to wait for.",)
    across = _spread(frame, "local")
    along: Any = frame.groupby("step")["local"].mean().std()
    if along > ALONG * frame["local"].mean() and across < ACROSS * along:
        return (
            "Doubtful: in each step all ranks take equally long. These look like whole synchronous "
            "steps, in which ranks wait for the slowest; log each rank's own forward and backward.",
        )
    return ()
