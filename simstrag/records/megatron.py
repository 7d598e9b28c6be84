"""The record in a log of Megatron-LM: times of all ranks, their extremes, or iterations alone.

Source of the format: megatron/core/timers.py and megatron/core/utils.py (`StragglerDetector`) of
NVIDIA/Megatron-LM @00caa53; logs of BigScience, nanotron and Argonne's fork for iterations.  A
block follows the line of its iteration, and has milliseconds, means since the last block:

    iteration        2/     100 | ... | elapsed time per iteration (ms): 512.3 | ...
    times across ranks (ms):              (min, max) time across ranks (ms):
      forward-compute:                        forward-compute ....: (3998.54, 5899.37)
         rank  0: 150.21

`forward-compute` and `backward-compute` wait for the device.  With `--timing-log-option all`, what
is left of an iteration is the optimizer, collectives and waiting, which counts as the collective.
`--log-straggler` prints the extremes of the GPUs and which ranks have them; it times the forward.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simstrag.errors import InputError
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_lines import Cells, began_at, lines_of, record_of_cells
from simstrag.records.record import (
    ALL_REDUCE,
    BACKWARD,
    COMPUTE,
    FORWARD,
    GPU,
    POWER,
    SM_CLOCK,
    TEMPERATURE,
    Bounds,
    Record,
    Unseen,
)  # fmt: skip

NAME = "Megatron-LM"
NUMBER = r"(\d{1,12}(?:\.\d{1,6})?)"
BLOCK = re.compile(r"(?:^|[\s:])(\(min, max\) time|max time|times) across ranks \(ms\):")
ITERATION = re.compile(
    r"\biteration[:=]? +(\d{1,15}) ?/ *\d{1,15} \|"
    rf"(?:.*\belapsed[ _]time[ _]per[ _]iteration[ _]\(?(ms|s)\)?[:=] *{NUMBER}([KM]?)(?![\d.]))?"
)
TIMER = re.compile(r"\s([a-z][\w-]*):\s*$")
RANK = re.compile(rf"\srank +(\d{{1,9}}): {NUMBER}\s*$")
EXTREME = re.compile(rf"\s([a-z][\w-]*) \.*: (?:\({NUMBER}, {NUMBER}\)|{NUMBER})\s*$")
STRAGGLER = re.compile(rf"\b(Mn|Mx)(Rtt|DRtt|Pwr|Tmp|Utl|Clk)/Rnk: {NUMBER}[A-Za-z%]{{1,3}}/(\d+)")
LOWEST = re.compile(r"\^\^\^\^ Bottom \d+ Ranks with lowest +Etpt\(TF\):(.*)")
OWN = {FORWARD: "forward", BACKWARD: "backward"}
"""Timers of a rank's computing, and the parts of the record."""
BATCH = "batch-generator"
"""A timer within that of the forward."""
PIPELINE = ("forward-recv", "forward-send", "backward-recv", "backward-send")
DETECTED = {
    "Rtt": (FORWARD, 1e-3), "DRtt": (BATCH, 1e-3), "Pwr": (POWER, 1.0), "Tmp": (TEMPERATURE, 1.0),
    "Utl": (GPU, 0.01), "Clk": (SM_CLOCK, 1.0),
}  # fmt: skip
"""Quantity and unit of each name that the straggler detector prints."""
MOST_WATTS = 5000.0
"""More than any GPU takes: `torch.cuda.power_draw` gives milliwatts, which Megatron prints as W."""
WORDS = ("per iteration", "per_iteration", "across ranks", "/Rnk:")
"""Words by which a line is recognised; one suffices."""
SCALE = {"ms": 1e-3, "s": 1.0, "": 1.0, "K": 1e3, "M": 1e6}
ALL = "--timing-log-level 2 --timing-log-option all"

TimerSeconds = dict[str, dict[int, float]]
"""Seconds by timer and rank."""
Extreme = tuple[float, float, int, int]
"""The least and the greatest value, and their ranks or -1."""


@dataclass
class _Log:
    """What the lines of a log say; a step is the number of an iteration."""

    elapsed: dict[int, float] = field(default_factory=dict)
    moments: dict[int, float] = field(default_factory=dict)
    ranks: dict[int, TimerSeconds] = field(default_factory=lambda: defaultdict(dict))
    extremes: dict[str, dict[int, Extreme]] = field(default_factory=lambda: defaultdict(dict))
    detected: dict[str, list[tuple[int, float, Extreme]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    lowest: list[str] = field(default_factory=list)


def recognise(file: LogFile) -> bool:
    """Whether a text has iterations with their time, blocks of timers, or lines of stragglers."""
    if "\0" in file.head or not any(word in file.text for word in WORDS):
        return False
    for (line,) in lines_of(file):
        if any(word in line for word in WORDS):
            step = ITERATION.search(line)
            if BLOCK.search(line) or STRAGGLER.search(line) or (step is not None and step[3]):
                return True
    return False


def read(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record in a log, or in the parts of one.

    Raises `InputError` for times of all ranks without the computing of each, and for those of a
    pipeline, whose sums over an iteration have lost the order of operations.
    """
    log = _Log()
    for file in files:
        _parse(file, log)
    text = "\n".join(file.text for file in files)
    if "times across ranks (ms):" in text:
        return _of_all_ranks(log, text, files[0])
    bounds, notes = _bounds(log)
    names_ranks = any((each.high_rank >= 0).any() for each in bounds)
    unseen = [
        Unseen("which rank is the slowest of each timer", ALL)
        if log.extremes
        else Unseen("how long each rank computed", f"--log-straggler, or {ALL}")
    ]
    if names_ranks and not log.extremes:
        unseen = [Unseen("ranks between the fastest and the slowest", ALL, hides_ranks=False)]
    if log.elapsed:
        cells: Cells = {(k, 0): {COMPUTE: seconds} for k, seconds in log.elapsed.items()}
        notes.append(
            "Derived: the time of an iteration is of all ranks together; it stands here as one "
            "rank's."
        )
        moments = {(k, 0): moment for k, moment in log.moments.items()}
        return record_of_cells(
            cells, moments, files[0].path, NAME, notes=notes, bounds=bounds, unseen=tuple(unseen)
        )
    if not bounds:
        raise InputError(f"{files[0].path}: no iteration has its time; log with {ALL}")
    first = min((at for rows in log.detected.values() for _, at, _ in rows), default=np.nan)
    return Record.without_steps(
        str(files[0].path), NAME, notes=tuple(notes), bounds=bounds, unseen=tuple(unseen),
        began=began_at(first),
    )  # fmt: skip


def _parse(file: LogFile, log: _Log) -> None:
    step, report = -1, 0
    timer: str | None = None
    is_block = False
    for each in lines_of(file):
        line = each.text
        if (begin := ITERATION.search(line)) is not None:
            step, timer, is_block = int(begin[1]), None, False
            if begin[2] is not None:
                log.elapsed[step] = float(begin[3]) * SCALE[begin[2]] * SCALE[begin[4]]
                log.moments[step] = each.moment
        elif (own := RANK.search(line)) is not None:
            if step >= 0 and timer is not None:
                log.ranks[step].setdefault(timer, {})[int(own[1])] = float(own[2]) / 1e3
        elif BLOCK.search(line) is not None:
            timer, is_block = None, True
        elif is_block and step >= 0 and (pair := EXTREME.search(line)) is not None:
            low = float(pair[2]) / 1e3 if pair[2] else np.nan
            log.extremes[pair[1]][step] = low, float(pair[3] or pair[4]) / 1e3, -1, -1
        elif found := STRAGGLER.findall(line):
            report += 1
            sides = {(side, name): (float(value), int(rank)) for side, name, value, rank in found}
            for name in DETECTED:
                if ("Mn", name) in sides and ("Mx", name) in sides:
                    (least, fast), (most, slow) = sides["Mn", name], sides["Mx", name]
                    at = step if step >= 0 else report
                    log.detected[name].append((at, each.moment, (least, most, fast, slow)))
        elif (lowest := LOWEST.search(line)) is not None:
            log.lowest += re.findall(r"\d/(\d{1,9})", lowest[1])
        else:
            heading = TIMER.search(line)
            timer = None if heading is None else heading[1]


def _bounds(log: _Log) -> tuple[tuple[Bounds, ...], list[str]]:
    """The extremes of timers and of the straggler detector, and notes on them."""
    notes = []
    found = [_column(name, each.items()) for name, each in log.extremes.items()]
    for key, rows in log.detected.items():
        quantity, unit = DETECTED[key]
        if quantity == POWER and max(values[1] for _, _, values in rows) > MOST_WATTS:
            unit = 1e-3
            notes.append("Derived: powers are milliwatts, which Megatron-LM prints as W.")
        first = rows[0][1]
        timed = not log.elapsed and all(np.isfinite(at) for _, at, _ in rows)
        found.append(
            _column(
                quantity,
                (
                    (round(at - first) if timed else k, (low * unit, high * unit, fast, slow))
                    for k, at, (low, high, fast, slow) in rows
                ),
            )
        )
    if log.detected:
        notes.append(f"Measured: {FORWARD} is the forward alone, as --log-straggler times it.")
    if log.lowest:
        named = ", ".join(
            f"rank {rank} ({times} times)" for rank, times in Counter(log.lowest).most_common(4)
        )
        notes.append(f"Measured: the lowest throughput has {named}.")
    return tuple(found), notes


def _column(quantity: str, rows: Iterable[tuple[int, Extreme]]) -> Bounds:
    steps, values = zip(*sorted(rows), strict=True)
    low, high, fast, slow = zip(*values, strict=True)
    return Bounds(
        quantity, np.array(steps), np.array(low), np.array(high), np.array(fast), np.array(slow)
    )


def _of_all_ranks(log: _Log, text: str, file: LogFile) -> Record:
    computed = {k: each for k, each in log.ranks.items() if each.keys() >= OWN.keys()}
    if not computed:
        raise InputError(
            f"{file.path}: no iteration has {' and '.join(OWN)} of the ranks; log with "
            "--timing-log-level 2"
        )
    if any(each.keys() & {*PIPELINE} for each in computed.values()):
        raise InputError(
            f"{file.path}: is of a pipeline, whose sums over an iteration have lost the order of "
            "its operations; record all operations"
        )
    ranks = sorted({rank for each in computed.values() for rank in each[FORWARD]})
    steps = sorted(
        k for k, each in computed.items()
        if k in log.elapsed
        and all(sorted(each[name]) == ranks for name in (*OWN, *({BATCH} & each.keys())))
    )  # fmt: skip
    if not steps:
        raise InputError(f"{file.path}: no iteration has the times of all {len(ranks)} ranks")
    names = [BATCH] * all(BATCH in computed[k] for k in steps) + [*OWN]
    cells: Cells = {}
    for k in steps:
        for rank in ranks:
            own = {name: computed[k][name][rank] for name in names}
            own[FORWARD] = max(own[FORWARD] - own.get(BATCH, 0.0), 0.0)
            rest = max(log.elapsed[k] - sum(own.values()), 0.0)
            cells[k, rank] = {OWN.get(n, n): each for n, each in own.items()} | {ALL_REDUCE: rest}
    tensor = re.search(r"tensor_model_parallel_size \.+ (\d+)", text)
    missing = []
    if tensor is not None and int(tensor[1]) > 1:
        missing.append(
            f"{tensor[1]} ranks are a tensor-parallel group, in which waiting counts as computing "
            "here"
        )
    if len(steps) < len(computed):
        missing.append(f"blocks that lack a rank are left out: {len(computed) - len(steps)}")
    return record_of_cells(
        cells, {(k, rank): log.moments[k] for k in steps for rank in ranks}, file.path, NAME,
        missing, ["Derived: what forward and backward leave of an iteration is communication."],
        log.elapsed, bounds=_bounds(log)[0],
    )  # fmt: skip


READERS = (Reader(NAME, "logs of iterations, timers and stragglers", recognise, read, many=True),)
