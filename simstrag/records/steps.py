"""Tables of the seconds of steps, as training loops and trackers of experiments write them.

A table is CSV or JSON (also a document per line): a row of each rank and step, perhaps of each
`stage` of it; a file per rank; or a column per rank.  So are folders of `simstrag.ddp.record`,
scalars of TensorBoard, histories and charts of Weights & Biases, and `metrics.csv` of Lightning.

A `stage` is a part of a rank's step, such as `input`, `forward` or `backward`: parts follow one
another.  The part `all-reduce` (also `allreduce`, `communication`, `comm`) is the collective,
waiting for other ranks included.  Where ranks wait for each other several times in a step, parts
have numbers: `all-reduce-1` ends the parts of number 1.  `tokens` is the size of the input of a
part.  Throughput stands for seconds: those of a constant number of samples.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simstrag.arrays import Bools, Ints
from simstrag.documents.job_mesh import JobMesh
from simstrag.errors import InputError
from simstrag.records.columns import (
    AREA,
    STEPS_PER_SECOND,
    LogColumns,
    describe_moment,
    number,
    plain,
    rank_name,
    since,
    wall_clock,
)  # fmt: skip
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.record import ALL_REDUCE, COMPUTE, Record, Unseen, assumed_gpus
from simstrag.records.step_groups import aligned
from simstrag.records.step_pipelines import is_pipeline, pipeline_of
from simstrag.records.step_tables import (
    GROUPED,
    LIGHTNING,
    OF_RANK,
    RECORDED,
    STEPS,
    TENSORBOARD,
    WANDB,
    columns_of,
    table_of,
    tool_of,
    whole_text,
)

if TYPE_CHECKING:
    import pandas as pd

COLLECTIVE = frozenset({ALL_REDUCE, "allreduce", "communication", "comm"})
"""Names of the part that is the collective."""
LARGEST = 2**53
"""The largest number of a rank or a step, up to which a double has all whole numbers."""
LONGEST = 1e9
"""The most seconds of a part, ASSUMED: 30 years."""
MOST_RANKS = 0.5
"""Share of ranks whose steps must go back at a restart; it may go on with fewer ranks."""
INSIDE = 0.5
"""Step times include communication if adding it more than doubles their spread over ranks."""
NO_COLLECTIVE = (
    "no stage is all-reduce, so that a step is the seconds of its slowest rank; communication, and "
    "the error of the replay, are unknown"
)
LEFT_OUT = "steps whose ranks or stages are not those of most are left out"
GONE, APART = 0.05, 5
"""Share of the steps, and their number, that a rank may lack at the end, ASSUMED: files of ranks
end a few steps apart."""
RISING, TIMES = 10, 3.0
"""Steps that all rise, and how many times the first the last is, of running sums, ASSUMED: steps of
their own rise ten times in a row once in 3,628,800 times."""
SAMPLE = 50
"""Rows by which a table is recognised."""
ONE_RANK = Unseen(
    "which rank was slow: the log is of one rank",
    "log the step times of every rank, with its number in a column rank",
)
HIDDEN = Unseen(
    "a rank whose own backward was slow: without a stage for the collective, backward contains "
    "DDP's all-reduce, and with it the wait for the slowest rank",
    "simstrag.ddp.record around the training loop, which times the collective by itself",
)


def recognise(file: LogFile, name: str) -> bool:
    """Whether a file is a table of steps, of this tool."""
    try:
        table = table_of(file, SAMPLE)
        log = columns_of(table)
    except InputError:
        return False
    is_log = "step" in log or "rank" in log or "node" in log
    return is_log and tool_of(file, table) == name


def read(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record of the steps that all ranks have.

    columns: names of columns (rank, step, seconds, ...) that are not known.
    Raises `InputError` that names the row.
    """
    return _read(files, columns, is_whole=True)


def read_all(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record of all steps, also of those that some ranks lack; else like `read`."""
    return _read(files, columns, is_whole=False)


READERS = tuple(
    Reader(name, what, functools.partial(recognise, name=name), read, many=True)
    for name, what in (
        (RECORDED, "rank-*.csv of simstrag.ddp.record"),
        (TENSORBOARD, "step times as scalars, CSV or JSON"),
        (WANDB, "step times as history or chart, CSV or JSON"),
        (LIGHTNING, "metrics.csv with step times"),
        (STEPS, "CSV or JSON of rank, step and seconds or throughput"),
    )
)


def rank_files(folder: Path) -> list[Path]:
    """The files that `simstrag.ddp.record` wrote into a folder, one of each rank, also gzipped."""
    return sorted([*folder.glob("rank-*.csv"), *folder.glob("rank-*.csv.gz")])


def world_size(folder: Path) -> int:
    """The number of ranks by the `meta.yaml` of a record; 0 where it is not there."""
    size = re.search(r"(?m)^world_size: *(\d+)\s*$", _text(folder / "meta.yaml"))
    return int(size[1]) if size else 0


def absent_ranks(ranks: list[int], size: int) -> list[str]:
    """That ranks of a job of this size have no file, in one line."""
    known = {*ranks}
    absent = [*itertools.islice((k for k in range(size) if k not in known), 6)]
    if not absent:
        return []
    named = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
    return [
        f"rank {named} of {size} has no file: it may be the slowest, and waiting for it counts as "
        "communication here"
    ]


# -- rows


class _Rows(NamedTuple):
    """All parts of all steps, and what is said of them.

    frame: columns log and row (of the cell), rank, step, part, seconds, tokens, time, group (its
        label); also host and repeats.
    began: the wall clock of time 0, or "".
    mesh: of the ranks, where it is known.
    """

    frame: pd.DataFrame
    logs: list[LogColumns]
    missing: list[str]
    notes: list[str]
    began: str = ""
    mesh: JobMesh | None = None

    def mistake(self, wrong: Bools, meaning: str, why: str) -> None:
        """Raise an error about the first cell that is wrong, if any is."""
        if wrong.any():
            row = self.frame[wrong].iloc[0]
            raise self.logs[int(row["log"])].mistake(int(row["row"]), meaning, why)


def _read(files: Sequence[LogFile], columns: Mapping[str, str] | None, *, is_whole: bool) -> Record:
    is_folder = all(file.path.name.startswith("rank-") for file in files)
    if is_folder:
        files = [whole_text(file) for file in files]
    tables = [table_of(file) for file in files]
    logs = [columns_of(table, columns) for table in tables]
    for log in logs[1:]:
        if log.names.keys() != logs[0].names.keys():
            raise InputError(
                f"{log.table.source}: has {log.taken()}, but {logs[0].table.source} has "
                f"{logs[0].taken()}; files that are imported together need the same columns"
            )
    is_one = len(files) == 1 and not is_folder
    source = str(files[0].path if is_one else files[0].path.parent)
    missing = []
    rows = _timed(_ranked(_rows(logs), files))
    if rows.frame["time"].isna().any():
        shared = rows.frame.groupby("rank")["log"].nunique()
        if (shared > 1).any():
            raise InputError(
                f"{files[-1].path}: has steps of rank {shared.idxmax()}, like {files[0].path}; "
                "give the files of one job (of one that was restarted, with a column of times)"
            )
    rows = _steps_of(rows)
    if is_folder:
        folders = dict.fromkeys(file.path.parent for file in files)  # rank 0 wrote into one of them
        meta = next(filter(None, (_text(each / "meta.yaml") for each in folders)), "")
        rows = rows._replace(mesh=JobMesh.of_text(meta))
        size = max(map(world_size, folders))
        missing = absent_ranks(np.unique(rows.frame["rank"]).tolist(), size)
    form = tool_of(files[0], tables[0])
    return _record(rows._replace(missing=[*missing, *rows.missing]), source, form, is_whole)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _rows(logs: list[LogColumns]) -> _Rows:
    """The rows that have seconds, each in the units of its column."""
    import pandas as pd

    parts = []
    used = next(m for m in ("compute", "seconds", "rate") if m in logs[0])
    for k, log in enumerate(logs):
        frame = pd.DataFrame({"log": k, "row": np.arange(len(log.table.lines))})
        for meaning in (used, "communication", "step", "tokens"):
            frame[meaning] = log.numbers(meaning, gaps=True) if meaning in log else np.nan
        frame["time"] = log.moments("time") if "time" in log else np.nan
        stages = log.cells("stage") if "stage" in log else [COMPUTE] * len(frame)
        frame["part"] = [ALL_REDUCE if name.lower() in COLLECTIVE else name for name in stages]
        is_grouped = list(log.table.columns) == GROUPED
        frame["group"] = log.table.column("group") if is_grouped else ""
        frame["repeats"] = pd.DataFrame(log.table.columns).duplicated().to_numpy()
        parts.append(frame)
    frame = pd.concat(parts, ignore_index=True)
    frame = frame[frame[used].notna()]
    rows = _Rows(frame, logs, [], [])
    for meaning, most in ((used, LONGEST), ("communication", LONGEST), ("tokens", LARGEST)):
        rows.mistake(frame[meaning].to_numpy() < 0, meaning, "is less than 0")
        rows.mistake(
            frame[meaning].to_numpy() > most, meaning, f"is too large; the most is {most:g}"
        )
    step = frame["step"].to_numpy()
    rows.mistake((step < 0) | (step != np.floor(step)) & ~np.isnan(step), "step", WHOLE)
    rows.mistake(step > LARGEST, "step", "is too large")
    if used == "rate":
        frame = frame[frame["rate"] > 0]
        frame = frame.assign(seconds=_seconds_of(frame, logs[0], rows))
        wrong = ~(frame["seconds"] <= LONGEST).to_numpy()
        rows._replace(frame=frame).mistake(wrong, "rate", "is too small beside others")
    elif used == "compute":
        frame = frame.assign(seconds=frame["compute"])
    if frame.empty:
        raise InputError(f"{logs[0].table.source}: no row has a time of a step")
    rows.notes.insert(0, f"Measured: {logs[0].taken()}.")
    return rows._replace(frame=frame)


WHOLE = "is no whole number from 0"


def _seconds_of(frame: pd.DataFrame, log: LogColumns, rows: _Rows) -> Any:
    """Seconds by throughput: of a step, or else of as many samples as are usual between rows."""
    name = log.names["rate"]
    if plain(AREA.sub("", name)).startswith(STEPS_PER_SECOND):
        rows.notes.append(f"Derived: seconds of a step are 1 over '{name}'.")
        return 1 / frame["rate"]
    times = np.unique(frame["time"].dropna())
    usual = float(np.median(np.diff(times))) if len(times) > 1 else 1.0
    count = float(f"{frame['rate'].median() * usual:.4g}")
    rows.notes.append(
        f"Derived: a step here is {count:g} of what '{name}' counts, which usually take "
        f"{usual:.4g} s, and its seconds are these over the throughput; the log does not say how "
        "many a step really has."
    )
    return count / frame["rate"]


def _ranked(rows: _Rows, files: Sequence[LogFile]) -> _Rows:
    """With the rank of each row, its number in the job, and its host, or ""."""
    frame, logs = rows.frame, rows.logs
    of_log = {k: frame["row"][frame["log"] == k].to_numpy() for k in range(len(logs))}

    def cells(meaning: str) -> list[str]:
        columns = [log.cells(meaning) for log in logs]
        return [columns[k][row] for k, own in of_log.items() for row in own]

    hosts = cells("node") if "node" in logs[0] else [""] * len(frame)
    if "rank" in logs[0]:
        bare = [_bare_ranks(log) for log in logs]
        values = np.concatenate([log.numbers("rank")[of_log[k]] for k, log in enumerate(bare)])
        rows.mistake((values < 0) | (values != np.floor(values)), "rank", WHOLE)
        rows.mistake(values > LARGEST, "rank", "is too large")
        return _of_local_ranks(
            rows._replace(frame=frame.assign(rank=values.astype(int), host=hosts))
        )
    if "node" in logs[0]:
        rows.mistake(np.array(hosts) == "", "node", "is empty; every row needs its node")
        cards = cells("card") if "card" in logs[0] else [""] * len(frame)
        pairs = dict.fromkeys(zip(hosts, cards, strict=True))
        many = {host for host, count in Counter(host for host, _ in pairs).items() if count > 1}
        labels = [f"{h}/{c}" if h in many else h for h, c in zip(hosts, cards, strict=True)]
    else:
        runs = [_run_of(file.path) for file in files]
        found = [OF_RANK.fullmatch(run) for run in runs]
        numbers = {each["rank"] for each in found if each and "rank" in each["word"].lower()}
        is_numbered = len(numbers) == len(runs)
        if is_numbered:
            runs = [rank_name(each["rank"]) for each in found if each]
        labels = [runs[k] for k, own in of_log.items() for _ in own]
        hosts = hosts if is_numbered or len(logs) == 1 else labels
    return rows._replace(frame=frame.assign(rank=number(labels)[0], host=hosts))


def _bare_ranks(log: LogColumns) -> LogColumns:
    """The log with `rank 3` and `rank_3` written as 3."""
    name = log.names["rank"]
    cells = [re.sub(r"(?i)^rank[ _-]?(?=\d)", "", cell) for cell in log.cells("rank")]
    return replace(log, table=replace(log.table, columns=log.table.columns | {name: cells}))


def _of_local_ranks(rows: _Rows) -> _Rows:
    """Where ranks are numbered on each host anew, numbers in the job."""
    frame = rows.frame
    by = ["rank", "step" if frame["step"].notna().all() else "time", "part"]
    hosts = frame[~frame.duplicated([*by, "host"])].groupby(by)["host"].size()
    if not len(hosts) or (hosts > 1).mean() <= 0.5 or frame.duplicated([*by, "host"]).any():
        return rows
    pairs = sorted(dict.fromkeys(zip(frame["host"], frame["rank"], strict=True)))
    numbers = {pair: k for k, pair in enumerate(pairs)}
    ranks = [numbers[pair] for pair in zip(frame["host"], frame["rank"], strict=True)]
    rows.notes.append("Assumed: ranks are numbered on each host anew; here they count on.")
    return rows._replace(frame=frame.assign(rank=ranks))


def _run_of(path: Path) -> str:
    """The name of a run by its file; TensorBoard calls one `run-gpu03-tag-step_time.csv`."""
    stem = path.name.partition(".")[0]
    found = re.match(r"run-(.+?)-tag-", stem)
    return found[1] if found else stem


def _timed(rows: _Rows) -> _Rows:
    """With times from the first on, and a note on what they are."""
    frame = rows.frame
    if not frame["time"].notna().all():
        return rows._replace(frame=frame.assign(time=np.nan))
    first = frame.iloc[int(frame["time"].to_numpy().argmin())]
    cell = rows.logs[int(first["log"])].cells("time")[int(first["row"])]
    rows.notes.append(
        f"Measured: steps begin at their times in the log, and time 0 is {describe_moment(cell)}."
    )
    frame = frame.assign(time=since(frame["time"].to_numpy(), float(first["time"])))
    return rows._replace(frame=frame, began=wall_clock(cell, float(first["time"])))


# -- steps


def _steps_of(rows: _Rows) -> _Rows:
    """With a number of each step, and no part of a rank's step twice."""
    cell = ["rank", "step", "part"]
    is_timed = bool(rows.frame["time"].notna().all())
    once = rows.frame[~rows.frame["repeats"]]
    is_restart = once["step"].notna().all() and once.duplicated(cell).any()
    if is_restart:  # of which rows may be alike
        rows = _restarted(rows._replace(frame=rows.frame.sort_values("time", kind="stable")))
    frame = rows.frame[~rows.frame["repeats"]]
    if twice := len(rows.frame) - len(frame):
        rows.notes.append(f"Dropped: {twice} repeats of a whole row.")
    is_counted = bool(frame["step"].isna().any())
    if is_counted:
        if not is_timed:
            rows.mistake(frame["step"].isna().to_numpy(), "step", "is empty; every row needs one")
        times = np.unique(frame["time"])
        shared = frame.groupby("rank")["time"].nunique().mean() > 0.9 * len(times)
        frame = frame.sort_values(["rank", "time"], kind="stable")
        counted = frame.groupby(["rank", "part"]).cumcount()
        frame["step"] = np.searchsorted(times, frame["time"]) if shared else counted
    elif is_timed and frame.duplicated(cell).any():
        is_counted = True
        frame = frame.sort_values(["rank", "time"], kind="stable")
        frame["step"] = frame.groupby(["rank", "part"]).cumcount()
    frame = frame.assign(step=frame["step"].astype(np.int64))
    key = ["rank", "time", "part"] if is_counted else cell
    repeated = frame.duplicated(key, keep=False)
    if repeated.any():
        same = frame[repeated]
        before = same.iloc[0]
        row = same[(same[key] == before[key]).all(axis=1)].iloc[1]
        log, other = rows.logs[int(row["log"])], rows.logs[int(before["log"])].table
        of_other = "" if other is log.table else f"{other.source}, "
        place = f"after {of_other}{other.unit} {other.lines[int(before['row'])]}"
        who = row["host"] or rank_name(row["rank"])
        why = f"has {row['part']} of {who} twice, {place}"
        if not {"rank", "node"} & set(log.names):
            why = f"is a second row of this rank and step, {place}"
        raise log.mistake(
            int(row["row"]), "time" if is_counted else "step",
            f"{why}; does another column name the rank? say --column rank=NAME; it has "
            f"{log.table.header}",
        )  # fmt: skip
    return rows._replace(frame=frame)


def _restarted(rows: _Rows) -> _Rows:
    """The steps that count of a job that was restarted: of steps done twice, the last time.

    A restart is where the numbers of most ranks go back, each time for two steps or more.  Where
    they always begin at the first, as those of epochs do, they are counted on.
    """
    frame = rows.frame
    own = frame.groupby(["rank", "part"])["step"]
    attempt = (own.diff() <= 0).groupby([frame["rank"], frame["part"]]).cumsum()
    frame = frame.assign(attempt=attempt)
    tries = frame.groupby(["rank", "part", "attempt"])["step"].agg(["min", "size"]).reset_index()
    is_known = {"rank", "node"} & set(rows.logs[0].names) or len(rows.logs) > 1
    starts = tries.groupby("attempt")["min"].min()
    anew = starts.eq(starts.iloc[0]).all()
    share = tries.groupby("attempt")["rank"].nunique() / frame["rank"].nunique()
    if share.min() <= MOST_RANKS or tries["size"].min() < 2 or (anew and not is_known):
        return rows
    if anew:
        length = int(frame["step"].max() - frame["step"].min()) + 1
        rows.notes.append(
            f"Derived: step numbers begin anew {len(starts) - 1} times, as those of epochs do, or "
            "of a job restarted from its beginning; here they count on."
        )
        frame = frame.assign(step=frame["step"] + length * attempt, repeats=False)
        return rows._replace(frame=frame)
    later = starts[::-1].cummin()[::-1].shift(-1, fill_value=math.inf)
    counts = frame["step"] < frame["attempt"].map(later)
    lost = frame[~counts]
    each = lost.groupby(["attempt", "step", "rank"])["seconds"].sum()
    steps, seconds = each.groupby(["attempt", "step"]).max(), lost["step"]
    rows.missing.append(
        f"the job was restarted {len(starts) - 1} times, after which {len(steps)} steps (of "
        f"{int(seconds.min())} to {int(seconds.max())}) were done again: their first time, "
        f"{steps.sum():.4g} s of lost work, is left out"
    )
    return rows._replace(frame=frame[counts].assign(repeats=False))


# -- the record


def _parts_of(rows: _Rows) -> _Rows:
    """With communication as a part of its own, where it has a column.

    It is inside the seconds of a step if ranks are alike with it, and beside them otherwise.
    """
    import pandas as pd

    frame, logs = rows.frame, rows.logs
    if "communication" not in logs[0]:
        return rows._replace(frame=frame)
    waited = frame["communication"].fillna(0.0)
    local, how = frame["seconds"], f"{logs[0].taken('compute')} is taken as a step without it"
    if "compute" not in logs[0]:
        alone, both = (_spread(frame.assign(s=local + other), "s") for other in (0.0, waited))
        how = "it is beside the step times, since the steps of the ranks differ without it"
        if alone < INSIDE * both:
            local = local - waited
            how = "it is subtracted, since the steps of the ranks are alike with it"
    why = "leaves no time of the step to compute"
    rows.mistake(~(local > 0).to_numpy(), "communication", why)
    least = float(frame.assign(c=waited).groupby("step")["c"].min().median())
    rows.notes.append(
        f"Derived: communication costs {least:.4g} s, the median over steps of the least "
        f"among the ranks, which is nearly transfer alone; {how}."
    )
    collective = frame.assign(part=ALL_REDUCE, seconds=waited, tokens=np.nan)
    return rows._replace(frame=pd.concat([frame.assign(seconds=local), collective]))


def _spread(frame: pd.DataFrame, column: str) -> float:
    """Mean over steps of the standard deviation over ranks."""
    spread = frame.groupby("step")[column].std()
    return float(spread.mean()) if spread.notna().any() else math.inf


def _record(rows: _Rows, source: str, form: str, is_whole: bool) -> Record:
    """The record of the rows; of whole steps only, or of all."""
    rows = _parts_of(rows)
    hosts = _hosts(rows)
    frame, missing = rows.frame, rows.missing
    steps, ranks = np.unique(frame["step"]), np.unique(frame["rank"])
    keys = {name: _part(name) for name in frame["part"].unique()}
    if not any(name == ALL_REDUCE and k for name, k in keys.values()):
        keys = {name: (name, 0) for name in keys}
    parts = sorted(keys, key=lambda name: (keys[name][1], keys[name][0] == ALL_REDUCE))
    if parts == [ALL_REDUCE]:
        raise InputError(f"{source}: every stage is {ALL_REDUCE}; computing is missing")
    frame = frame.assign(order=frame["part"].map({name: k for k, name in enumerate(parts)}))
    if len(parts) == 1 and _is_running_sum(frame):
        frame = frame.sort_values(["rank", "step"], kind="stable")
        frame = frame.assign(seconds=frame.groupby("rank")["seconds"].diff()).dropna(
            subset=["seconds"]
        )
        steps = np.unique(frame["step"])
        rows.notes.append(
            "Derived: seconds rise from step to step on all ranks: they count from the start, and "
            "a step is the difference."
        )
    if is_whole and is_pipeline(frame):
        return _pipeline(rows._replace(frame=frame, missing=missing), keys, source, form)
    found = np.unique(np.searchsorted(ranks, frame["rank"]) * len(parts) + frame["order"])
    if len(found) < len(ranks) * len(parts):
        k, p = divmod(int(np.argmin(np.append(found, -1) == np.arange(len(found) + 1))), len(parts))
        raise InputError(
            f"{source}: rank {ranks[k]} has no stage '{parts[p]}'; all ranks must have the "
            "same stages, which are parts of their step (a pipeline needs all operations)"
        )
    frame = _usual(frame.sort_values(["step", "rank", "order"], kind="stable"), len(parts))
    missing = [*_gone(frame, steps), *missing]
    if is_whole:
        frame = frame[frame.groupby("step")["rank"].transform("nunique") == len(ranks)]
        if frame.empty:
            raise InputError(f"{source}: no step has seconds of all {len(ranks)} ranks")
    named = [keys[name] for name in parts]
    kinds = tuple(dict.fromkeys(named[k][0] for k in sorted(frame["order"].unique())))
    has_collective = ALL_REDUCE in kinds
    if not frame["seconds"][frame["order"].map(lambda k: named[k][0] != ALL_REDUCE)].any():
        raise InputError(f"{source}: all seconds of computing are 0; are they rounded?")
    if not has_collective:
        missing = [*missing, NO_COLLECTIVE]
    grouped: dict[str, Any] = {}
    if is_whole and frame["group"].any():
        frame, grouped = aligned(frame, len(ranks), len(parts))
    dropped = len(steps) - frame["step"].nunique()
    if dropped:
        missing = [*missing, f"{LEFT_OUT}: {dropped}"]
    seconds, rank = frame["seconds"].to_numpy(), frame["rank"].to_numpy(np.int64)
    ends = frame.groupby(["step", "rank"])["seconds"].cumsum().to_numpy()
    start = grouped.pop("start", ends - seconds)
    none = np.full(len(frame), -1)
    hides = any("backward" in kind for kind in kinds) and not has_collective
    return Record(
        step=frame["step"].to_numpy(), replica=rank, stage=none + 1, rank=rank,
        kind=np.array([kinds.index(named[k][0]) for k in frame["order"]]),
        number=np.array([named[k][1] for k in frame["order"]]), chunk=none, model_chunk=none,
        micro_batch=none, start=start, duration=seconds, kinds=kinds, source=source,
        form=form, is_timed=has_collective,
        tokens=frame["tokens"].to_numpy() if frame["tokens"].notna().any() else None,
        missing=(*missing, *_holes(steps)), notes=(*rows.notes, assumed_gpus(len(ranks))),
        time=frame["time"].to_numpy() if frame["time"].notna().all() else None,
        began=rows.began, hosts=hosts, mesh=rows.mesh, **grouped,
        unseen=(*([ONE_RANK] if len(ranks) == 1 else []), *([HIDDEN] if hides else [])),
    )  # fmt: skip


def _gone(frame: pd.DataFrame, steps: Ints) -> list[str]:
    """That a rank has no more steps while others go on, in one line."""
    last = frame.groupby("rank")["step"].max()
    lacking = len(steps) - 1 - np.searchsorted(steps, last)
    gone = last[lacking > max(APART, GONE * len(steps))]
    return [
        f"rank {rank} has no step after {step}, where others go on to {steps[-1]}: it may have "
        "died, and what came after is left out"
        for rank, step in gone.items()
    ][:1]


def _pipeline(rows: _Rows, keys: dict[str, tuple[str, int]], source: str, form: str) -> Record:
    """The record of a pipeline, whose stages differ in what they do."""
    frame = rows.frame.sort_values(["rank", "step", "order"], kind="stable")
    columns = pipeline_of(frame, keys, rows.mesh, source)
    dropped = frame["step"].nunique() - len(np.unique(columns["step"]))
    return Record(
        **columns, source=source, form=form, mesh=rows.mesh, began=rows.began,
        missing=(
            *_gone(frame, np.unique(frame["step"])), *rows.missing,
            *([f"{LEFT_OUT}: {dropped}"] if dropped else []),
        ),
        notes=(*rows.notes, assumed_gpus(frame["rank"].nunique())),
    )  # fmt: skip


def _is_running_sum(frame: pd.DataFrame) -> bool:
    """Whether the seconds of each rank rise with every step, to many times the first ones."""
    by_rank = frame.sort_values(["rank", "step"], kind="stable").groupby("rank")["seconds"]
    rises = by_rank.agg(lambda s: len(s) >= RISING and bool((s.diff().iloc[1:] > 0).all()))
    return bool(rises.all() and (by_rank.last() > TIMES * by_rank.first()).all())


def _hosts(rows: _Rows) -> dict[int, str]:
    """The host of each rank; the last one, if it was moved."""
    frame = rows.frame[rows.frame["host"] != ""]
    pairs = frame.drop_duplicates(["rank", "host"])
    moved = pairs["rank"][pairs["rank"].duplicated()].unique()
    if len(moved):
        named = ", ".join(map(str, moved[:5])) + (", ..." if len(moved) > 5 else "")
        rows.missing.append(f"rank {named} was on several hosts; here it is on its last one")
    return {int(r): str(h) for r, h in frame.groupby("rank")["host"].last().items()}  # type: ignore[call-overload]


def _usual(frame: pd.DataFrame, parts: int) -> pd.DataFrame:
    """Ranks' steps of the parts that most of them have: an evaluation adds some."""
    if parts == 1:
        return frame
    cell = frame.groupby(["step", "rank"]).ngroup().to_numpy()
    present = np.zeros((cell.max() + 1, parts), bool)
    present[cell, frame["order"]] = True
    patterns = [each.tobytes() for each in np.packbits(present, axis=1)]
    usual = Counter(patterns).most_common(1)[0][0]
    return frame[np.array([pattern == usual for pattern in patterns])[cell]]


def _holes(steps: Ints) -> list[str]:
    """That steps are missing, in one line, where most numbers follow each other at one distance."""
    gaps = np.diff(steps)
    if not len(gaps) or np.mean(gaps == gaps.min()) <= 0.5 or np.all(gaps == gaps.min()):
        return []
    first = int(np.argmax(gaps > gaps.min()))
    count = int((gaps // gaps.min() - 1).sum())
    return [
        f"steps are missing of all ranks: {count} between {steps[0]} and {steps[-1]}, the first "
        f"after step {steps[first]}; a stretch of steps spans them"
    ]


def _part(name: str) -> tuple[str, int]:
    """A part that is one of several, such as `all-reduce-2`, and its number; else 0."""
    stem, _, digits = name.rpartition("-")
    is_numbered = stem and digits.isdecimal() and len(digits) < 10
    return (stem, int(digits)) if is_numbered else (name, 0)
