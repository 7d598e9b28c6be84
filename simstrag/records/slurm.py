"""`sacct -P` of Slurm: which jobs shared nodes with mine, and when.

Mine is the job with the most nodes times seconds, unless `columns={"job": "1234"}` says which.
Steps of jobs (`1234.batch`) are part of their job.  What sharing cost is not in such a list.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError
from simstrag.records.columns import LogColumns, plain, wall_clock
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_table import LogTable, shorten
from simstrag.records.record import NodeEpisode, Record, Unseen

NAME = "sacct"
COMMAND = "sacct -P --format=JobID,JobName,NodeList,Start,End,State,AllocTRES"
NEEDED = {"jobid": "JobID", "nodelist": "NodeList", "start": "Start", "end": "End"}
JOB = re.compile(r"\d+([_+](\d+|\[.*\]))?(\.\w+)?")
NONE = frozenset({"", "unknown", "none", "none assigned", "invalid"})
"""Cells of jobs that have not begun, or not ended."""
MOST = 100_000
"""Most nodes of a list; no cluster has more."""
COST = Unseen(
    "what the jobs on the same nodes cost a step",
    "a log of step times of the same hours, or of the GPUs and hosts of these nodes",
)


class _Run(NamedTuple):
    """A time in which a job ran.

    start, end: seconds since 1970.
    """

    job: str
    what: str
    nodes: tuple[str, ...]
    start: float
    end: float


def recognise(file: LogFile) -> bool:
    """Whether a file is a list of jobs, separated by bars, with or without a header."""
    first = file.head.partition("\n")[0].strip().split("|")
    if len(first) < 3:
        return False
    names = {plain(cell) for cell in first}
    return bool({"jobid", "jobidraw"} & names) or _is_job(first)


def read(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The times in which others were on the nodes of my job.

    columns: `job`: the number of my job.
    Raises `InputError` that names the row.
    """
    source = str(files[0].path)
    table = _table(files[0])
    runs, is_open = _runs(table)
    jobs = dict.fromkeys(run.job for run in runs)
    stated = (columns or {}).get("job")
    if stated is not None and stated not in jobs:
        raise InputError(f"{source}: no job {stated} has run{nearest(stated, jobs)}")
    size = dict.fromkeys(jobs, 0.0)
    for run in runs:
        size[run.job] += len(run.nodes) * (run.end - run.start)
    mine = stated or max(size, key=lambda job: size[job])
    own = [run for run in runs if run.job == mine]
    began, ended = min(run.start for run in own), max(run.end for run in own)
    nodes = tuple(sorted({node for run in own for node in run.nodes}))
    place = {node: k for k, node in enumerate(nodes)}
    episodes = [
        NodeEpisode(place[node], start - began, end - began, math.nan, run.what)
        for run in runs
        if run.job != mine
        for time in own
        if (start := max(run.start, time.start)) < (end := min(run.end, time.end))
        for node in sorted({*run.nodes} & {*time.nodes})
    ]
    others = len({episode.what for episode in episodes})
    why = "as stated" if stated else "that with the most nodes times hours (--column job=NUMBER)"
    return Record.without_steps(
        source, NAME, nodes=nodes, unseen=(COST,),
        episodes=tuple(sorted(episodes, key=lambda each: (each.start, each.node))),
        began=wall_clock(_cell(began), began),
        notes=(
            f"Measured: {own[0].what} on {len(nodes)} nodes for {ended - began:.4g} s, and "
            f"{others} other jobs that shared nodes with it, of {len(jobs)} jobs in the list.",
            f"Assumed: mine is job {mine}, {why}.",
            *(["Assumed: jobs without an end last to the latest time in the list."]
              if is_open else []),
        ),
    )  # fmt: skip


READERS = (Reader(NAME, "jobs of Slurm: sacct -P", recognise, read),)


def _is_job(cells: Sequence[str]) -> bool:
    is_dated = any(re.match(r"\d{4}-\d\d-\d\dT", cell) for cell in cells)
    return bool(JOB.fullmatch(cells[0].strip())) and is_dated


def _cell(moment: float) -> str:
    return str(np.datetime64(int(moment), "s"))


def _table(file: LogFile) -> LogTable:
    """The rows of jobs, with columns named in small letters."""
    source = str(file.path)
    lines = [(k, line.rstrip("\r")) for k, line in enumerate(file.text.split("\n"), start=1)]
    rows = [(k, [c.strip() for c in line.split("|")]) for k, line in lines if line.strip()]
    if not rows:
        raise InputError(f"{source}: is empty; a list of jobs is needed: {COMMAND}")
    header = [plain(name) for name in rows[0][1]]
    if "jobid" not in header and "jobidraw" in header:
        header[header.index("jobidraw")] = "jobid"
    absent = [name for known, name in NEEDED.items() if known not in header]
    if absent:
        what = "no header; leave out -n" if _is_job(rows[0][1]) else f"no {', '.join(absent)}"
        raise InputError(f"{source}: is a list of sacct with {what}: {COMMAND}")
    whole = [
        (k, dict(zip(header, cells, strict=True)))
        for k, cells in rows[1:]
        if len(cells) == len(header) and cells[header.index("jobid")].find(".") < 0
    ]
    if not whole:
        raise InputError(f"{source}: no row of a job below the header")
    return LogTable.of_records(whole, source, "row")


def _runs(table: LogTable) -> tuple[list[_Run], bool]:
    """The times in which jobs ran, and whether one has not ended."""
    cells = table.columns
    began = [k for k, cell in enumerate(cells["start"]) if cell.lower() not in NONE]
    began = [k for k in began if cells["nodelist"][k].lower() not in NONE]
    if not began:
        raise InputError(f"{table.source}: no job has begun on a node")
    ends = [cells["end"][k].lower() in NONE for k in began]
    stop = [cells["start" if open_ else "end"][k] for k, open_ in zip(began, ends, strict=True)]
    times = LogTable(
        table.source, [table.lines[k] for k in began],
        {"start": [cells["start"][k] for k in began], "end": stop}, table.unit,
    )  # fmt: skip
    log = LogColumns(times, {"start": "start", "end": "end"})
    start, end = log.moments("start"), log.moments("end")
    end = np.where(ends, max(start.max(), end.max()), end)
    if (end < start).any():
        raise log.mistake(int((end < start).argmax()), "end", "is before the start")
    runs = []
    for k, first, last in zip(began, start.tolist(), end.tolist(), strict=True):
        named = [cells[name][k] for name in ("jobname", "alloctres") if cells.get(name)]
        job, what = cells["jobid"][k], ", ".join(filter(None, named))
        where = f"{table.source}, row {table.lines[k]}"
        nodes = tuple(expand(cells["nodelist"][k], where))
        runs.append(_Run(job, f"job {job} ({what})" if what else f"job {job}", nodes, first, last))
    return runs, any(ends)


def expand(nodes: str, where: str = "") -> Iterator[str]:
    """The nodes of a list as Slurm writes it.

    where: for the `InputError` of anything else.

    >>> list(expand("gpu[01-03,07],login"))
    ['gpu01', 'gpu02', 'gpu03', 'gpu07', 'login']
    >>> list(expand("rack[1-2]node[09-10]"))
    ['rack1node09', 'rack1node10', 'rack2node09', 'rack2node10']
    """
    count = 0
    for each in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", nodes):
        pieces = [_ends(piece) for piece in re.findall(r"\[[^\]]*\]?|[^\[]+", each)]
        count += math.prod(size for _, size in pieces)
        if not count or count > MOST or any(size == 0 for _, size in pieces):
            raise InputError(f"{where}: NodeList '{shorten(nodes)}' is no list of nodes")
        yield from map("".join, itertools.product(*(names for names, _ in pieces)))


def _ends(piece: str) -> tuple[list[str], int]:
    """What a piece of a name may be, and how many; 0 for a wrong range."""
    if not piece.startswith("["):
        return [piece], 1
    names: list[str] = []
    for part in piece.strip("[]").split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if not found or not piece.endswith("]"):
            return [], 0
        first, last = int(found[1]), int(found[2] or found[1])
        if not 0 <= last - first < MOST - len(names):
            return [], 0
        names += [str(k).zfill(len(found[1])) for k in range(first, last + 1)]
    return names, len(names)
