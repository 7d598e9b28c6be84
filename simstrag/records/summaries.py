"""Records from what tools sum up of a run: scores, reports of sections, means by rank.

Sources of the formats: ptl_resiliency/straggler_det_callback.py and attribution/straggler of
NVIDIA/nvidia-resiliency-ext @d8686d9; reporting/SCHEMA.md (1.7) of traceopt-ai/traceml @d5cec51;
`nsys stats --report nvtx_sum` and `nvtx_gpu_proj_sum` of Nsight Systems; `trainer_state.json` of
transformers' Trainer.

A score is the time of the best rank over that of a rank.  A summary has no single steps: it hides
since when a rank was slow, and pauses.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simstrag.errors import InputError
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_lines import Cells, began_at, lines_of, ranks_by_name, record_of_cells
from simstrag.records.record import ALL_REDUCE, COMPUTE, Bounds, Record, Unseen

AGAINST = {"relative": "time against the best rank", "individual": "time against its own best"}
"""What one over a score is: how many times as long a rank's kernels took."""
HEADING = re.compile(r"GPUs? (relative|individual) perf(?:ormance)?(?: scores)?:")
SCORED = re.compile(
    r"Rank=(\d{1,9}) Node=(\S+) Score=(\d{1,9}(?:\.\d{1,9})?)|"
    r"[{,] *(\d{1,9})()?: (\d{1,9}(?:\.\d{1,17})?)"
)
RECORDED = "a step log of every rank, as `simstrag.ddp.record` writes it"
PARTS = {
    COMPUTE: r"^(?:train\w*[_ .])?(?:step|iter)|(?:fwd|forward).?(?:bwd|backward)",
    "input": r"data|input|load|fetch", "forward": r"forward|fwd", "backward": r"backward|bwd",
    ALL_REDUCE: r"all.?reduce|reduce.?scatter|grad.?sync|nccl", "optimizer": r"optim",
}  # fmt: skip
"""Parts of a step by the names that people give to sections and ranges, in order.  The first is a
whole step, which counts where neither forward nor backward is named."""
TRACEML = {
    "input": "input_wait_ms", "h2d": "h2d_ms", "forward": "forward_ms", "backward": "backward_ms",
    "optimizer": "optimizer_ms", "residual": "residual_ms",
}  # fmt: skip
UNITS = {"ns": 1e-9, "us": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
MIDDLE = ("median", "med", "p50", "mean", "avg", "average", "seconds", "time", "elapsed", "total")
"""Names of a section's time, the surest first; a unit may follow."""


def _unseen(what: str) -> tuple[Unseen, ...]:
    """What no summary shows. what: how many steps it sums up."""
    return (
        Unseen(f"since when a rank was slow: {what}", RECORDED, hides_ranks=False),
        Unseen("pauses of single steps, and of all ranks together", RECORDED, hides_ranks=False),
    )


# -- scores of nvidia-resiliency-ext


def _has_scores(file: LogFile) -> bool:
    return "\0" not in file.head and "perf" in file.text and HEADING.search(file.text) is not None


def read_scores(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """Scores over time, as the least and the greatest of each report.

    Raises `InputError` for a log without any.
    """
    reports: dict[str, list[dict[int, float]]] = defaultdict(list)
    nodes: dict[int, str] = {}
    moments = []
    for file in files:
        kind = ""
        for line in lines_of(file):
            if (heading := HEADING.search(line.text)) is not None:
                kind = heading[1]
                reports[kind].append({})
            if not np.isnan(line.moment):
                moments.append(line.moment)
            scores = SCORED.findall(line.text) if kind else []
            if not scores and heading is None and line.text.strip(" ") and "perf" not in line.text:
                kind = ""
            for rank, node, score, plain, _, value in scores:
                if float(score or value):
                    reports[kind][-1][int(rank or plain)] = 1 / float(score or value)
                if node:
                    nodes[int(rank)] = node
    known = {kind: [each for each in rows if each] for kind, rows in reports.items()}
    if not any(known.values()):
        raise InputError(
            f"{files[0].path}: reports of nvidia-resiliency-ext without a score; set "
            "num_gpu_perf_scores_to_print=5"
        )
    notes = [
        "Derived: times are relative, one over the scores, which are of kernels over minutes.",
        *(_lowest(rows, nodes, kind) for kind, rows in known.items() if rows),
    ]
    return Record.without_steps(
        str(files[0].path), "nvidia-resiliency-ext", notes=tuple(notes), hosts=nodes,
        bounds=tuple(
            _extremes(AGAINST[kind], rows)
            for kind, rows in known.items() if rows
        ),
        began=began_at(min(moments, default=np.nan)),
        unseen=(
            Unseen("seconds of steps, and so what a slow rank cost", RECORDED, hides_ranks=False),
            *_unseen("a report is of minutes"),
        ),
    )  # fmt: skip


def _extremes(quantity: str, reports: Sequence[Mapping[int, float]]) -> Bounds:
    low = [min(each, key=each.__getitem__) for each in reports]
    high = [max(each, key=each.__getitem__) for each in reports]
    return Bounds(
        quantity, np.arange(len(reports)),
        np.array([each[rank] for each, rank in zip(reports, low, strict=True)]),
        np.array([each[rank] for each, rank in zip(reports, high, strict=True)]),
        np.array(low), np.array(high),
    )  # fmt: skip


def _lowest(reports: Sequence[Mapping[int, float]], nodes: Mapping[int, str], kind: str) -> str:
    """A sentence on the rank that has the lowest score most often."""
    lowest: dict[int, list[float]] = defaultdict(list)
    for times in reports:
        rank = max(times, key=times.__getitem__)
        lowest[rank].append(1 / times[rank])
    rank = max(lowest, key=lambda each: len(lowest[each]))
    where = f" on {nodes[rank]}" if rank in nodes else ""
    whose = "" if kind == "relative" else " against its own past"
    return (
        f"Measured: rank {rank}{where} has the lowest score{whose} in {len(lowest[rank])} of "
        f"{len(reports)} reports, {statistics.median(lowest[rank]):.2f} in the median."
    )


# -- reports of sections, by rank


def _sections_of(file: LogFile) -> list[dict[str, Any]]:
    """The reports in JSON or CSV: `rank`, `sections` (section -> statistics), `step`."""
    found = file.document if isinstance(file.document, list) else [file.document]
    if all(isinstance(each, dict) and _is_report(each) for each in found):
        return [each for each in found if each["sections"]]
    table = file.table
    if table is None:
        return []
    names = {name.strip().lower(): name for name in table.columns}
    label = next((names[n] for n in ("section", "section_name", "range") if n in names), None)
    if label is None or "rank" not in names:
        return []
    lines = zip(*table.columns.values(), strict=True)
    rows = [dict(zip(table.columns, cells, strict=True)) for cells in lines]
    step = next((names[n] for n in ("step", "iteration", "report") if n in names), None)
    grouped: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = row[names["rank"]], row[step] if step else ""
        own = grouped.setdefault(key, {"rank": key[0], "step": key[1] or None, "sections": {}})
        own["sections"][row[label]] = row
    return list(grouped.values())


def _is_report(each: Mapping[str, Any]) -> bool:
    sections = each.get("sections")
    return "rank" in each and isinstance(sections, dict)


def read_sections(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """Times of sections by rank and report. Raises `InputError` without any."""
    cells: Cells = {}
    count: Counter[int] = Counter()
    for file in files:
        for report in _sections_of(file):
            rank = _whole(report["rank"], file)
            step = report.get("step", report.get("iteration"))
            number = count[rank] if step is None else _whole(step, file)
            count[rank] += 1
            if own := _by_part(
                (str(name), _middle(values)) for name, values in report["sections"].items()
            ):
                cells[number, rank] = own
    if not cells:
        raise InputError(
            f"{files[0].path}: no section has a time; give each its median and unit, such as "
            "median_ms"
        )
    return record_of_cells(
        cells, {}, files[0].path, "reports of sections",
        notes=["Derived: a step here is a report; its time is the median or mean of a section."],
        unseen=_unseen("a report sums up many steps"),
    )  # fmt: skip


def _whole(value: Any, file: LogFile) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{file.path}: a report has no whole number as its rank or step") from None


def _middle(values: Any) -> float | None:
    """Seconds of a section: its median or mean; None where it has no number."""
    cells = values if isinstance(values, dict) else {"seconds": values}
    for name in MIDDLE:
        for key, cell in cells.items():
            stem, _, unit = re.sub(r"[ (\[\])]+", "_", str(key).lower()).strip("_").rpartition("_")
            if (stem or unit) == name and (not stem or unit in UNITS):
                return _positive(cell, UNITS.get(unit, 1.0) if stem else 1.0)
    return None


def _positive(cell: Any, unit: float) -> float | None:
    try:
        seconds = float(str(cell).replace(",", "")) * unit
    except ValueError:
        return None
    return seconds if 0 <= seconds < np.inf else None


def _by_part(times: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """Parts of a step by the names of sections: sums of those that differ in digits alone.

    A part has the section that is longest, which others are within.
    """
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for name, seconds in times:
        part = next((p for p, words in PARTS.items() if re.search(words, name, re.I)), None)
        if part is not None and seconds is not None:
            sums[part, re.sub(r"\d+", "", name)] += seconds
    found: dict[str, float] = {}
    for (part, _), seconds in sums.items():
        found[part] = max(seconds, found.get(part, 0.0))
    if found.keys() & {"forward", "backward"}:
        found.pop(COMPUTE, None)
    elif COMPUTE in found:
        found = {COMPUTE: found[COMPUTE]}
    return {part: found[part] for part in PARTS if part in found}


# -- TraceML


def _is_traceml(file: LogFile) -> bool:
    found = file.document
    return isinstance(found, dict) and "schema_version" in found and "step_time" in found


def read_traceml(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """Mean times of each rank's steps. Raises `InputError` for a summary without ranks."""
    section = files[0].document["step_time"]
    cells: Cells = {}
    hosts = {}
    for key, row in _at(section, "groups", "rows").items():
        identity, metrics = _at(row, "identity"), _at(row, "metrics")
        rank = _whole(identity.get("global_rank", key), files[0])
        own = {n: _positive(metrics.get(name), 1e-3) for n, name in TRACEML.items()}
        parts = {name: seconds for name, seconds in own.items() if seconds is not None}
        whole = _positive(metrics.get("step_time_ms", metrics.get("total_step_ms")), 1e-3)
        if not parts.keys() >= {"forward", "backward"} and whole is not None:
            parts = {COMPUTE: whole}
        if parts:
            cells[0, rank] = parts
            hosts[rank] = str(identity.get("hostname") or "")
    if not cells:
        raise InputError(f"{files[0].path}: TraceML's summary has no step time of any rank")
    steps = _at(section, "global", "window").get("steps_analyzed")
    size = _at(files[0].document, "meta").get("world_size")
    lost = size - len(cells) if isinstance(size, int) else 0
    return record_of_cells(
        cells, {}, files[0].path, "TraceML",
        [f"ranks that the summary does not have: {lost} of {size}"] if lost > 0 else [],
        [f"Derived: the one step here is the mean of {steps or 'the last'} steps of each rank.",
         "Measured: backward contains DDP's all-reduce, and so the waiting for other ranks."],
        hosts={rank: host for rank, host in hosts.items() if host},
        unseen=(
            Unseen("a slow backward, which contains the all-reduce", RECORDED),
            *_unseen("each rank has one mean"),
        ),
    )  # fmt: skip


def _at(found: Any, *keys: str) -> dict[str, Any]:
    """The dictionary at these keys; empty where it is none."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


# -- trainer_state.json


def _is_trainer_state(file: LogFile) -> bool:
    found = file.document
    return isinstance(found, dict) and "log_history" in found and "global_step" in found


def refuse_trainer_state(
    files: Sequence[LogFile], columns: Mapping[str, str] | None = None
) -> Record:
    """Raises `InputError`: the file has no times."""
    raise InputError(
        f"{files[0].path}: trainer_state.json has losses and no times of steps; record with "
        "simstrag.ddp.record in each rank, or log the time between steps by a TrainerCallback "
        "with logging_steps=1"
    )


# -- Nsight Systems


def _ranges_of(file: LogFile) -> list[dict[str, str]]:
    """Rows of a summary of NVTX ranges; the lines above its header are nsys' own."""
    lines = file.text.splitlines()
    begin = next((k for k, s in enumerate(lines) if "Instances" in s and "Range" in s), None)
    if begin is None or "Total" not in lines[begin] or "," not in lines[begin]:
        return []
    table = [line for line in lines[begin:] if line.strip()]
    rows = csv.DictReader(table)
    return [row for row in rows if None not in row and None not in row.values()]


def read_ranges(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """Mean times of NVTX ranges in a file of each rank.

    Raises `InputError` where no range has the name of a part of a step.
    """
    cells: Cells = {}
    projected = False
    for file, rank in zip(files, ranks_by_name(files), strict=True):
        times: list[tuple[str, float | None]] = []
        counts: list[tuple[str, float | None]] = []
        for row in _ranges_of(file):
            total = next((n for n in row if re.match(r"Total (Proj )?Time \(\w+\)$", n)), "")
            projected = projected or "Proj" in total
            unit = UNITS.get(total.rpartition("(")[2].rstrip(")"), 1e-9)
            name = (row.get("Range") or "").lstrip(":")
            times.append((name, _positive(row.get(total), unit)))
            counts.append((name, _positive(row.get("Instances", row.get("Range Instances")), 1.0)))
        if own := _by_part(times):
            steps = max(1.0, statistics.median(_by_part(counts).values()))
            cells[0, rank if len(files) > 1 else 0] = {n: s / steps for n, s in own.items()}
    if not cells:
        raise InputError(
            f"{files[0].path}: no NVTX range is named like a part of a step (forward, backward, "
            "optimizer, data, step); name them with torch.cuda.nvtx.range_push"
        )
    on_host = "the device's work, which a range on the host does not wait for"
    return record_of_cells(
        cells, {}, files[0].path, "Nsight Systems",
        notes=["Derived: the one step here is the mean of all ranges of a rank."],
        unseen=(
            *([] if projected else [Unseen(on_host, "nsys stats --report nvtx_gpu_proj_sum")]),
            *_unseen("each range has one mean"),
        ),
    )  # fmt: skip


READERS = (
    Reader("nvidia-resiliency-ext", "logs of performance scores", _has_scores, read_scores, True),
    Reader("TraceML", "final_summary.json", _is_traceml, read_traceml),
    Reader("trainer_state.json", "losses of a Trainer", _is_trainer_state, refuse_trainer_state),
    Reader(
        "Nsight Systems", "summaries of NVTX ranges, one a rank",
        lambda file: "\0" not in file.head and bool(_ranges_of(file)), read_ranges, True,
    ),
    Reader(
        "reports of sections", "JSON or CSV of rank, section and time",
        lambda file: "\0" not in file.head and bool(_sections_of(file)), read_sections, True,
    ),
)  # fmt: skip
