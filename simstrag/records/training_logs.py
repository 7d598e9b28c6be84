"""The record in a log of steps as a training loop prints it, by a table of formats.

Sources of the formats: torchtitan/components/metrics.py of pytorch/torchtitan @00fbaaf; NeMo's
`train_step_timing in s` and Megatron-Bridge's lines; tqdm's bars as Lightning and Hugging Face's
Trainer print them; deepspeed/utils/timer.py and runtime/engine.py of DeepSpeed
(`wall_clock_breakdown`), with the names of releases before 0.10; build-nanogpt.  The lines of
PyTorch's ImageNet example, timm and nanoGPT are as remembered, and were not looked up.

A line has seconds of a step or of its parts, or a rate.  Where it has a rate alone, the seconds are
between the times of two lines; without times they are relative, one over the rate.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simstrag.errors import InputError
from simstrag.records import megatron
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.log_lines import (
    LONGEST,
    Cells,
    lines_of,
    ranks_by_name,
    record_of_cells,
)
from simstrag.records.record import ALL_REDUCE, COMPUTE, Record, Unseen

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{0,17})?(?:e-?\d{1,2})?"
UNITS = {
    "us": 1e-6, "ms": 1e-3, "msec": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0,
    "seconds": 1.0, "": 1.0,
}  # fmt: skip
UNIT = r"(?:us|ms|msec|milliseconds|s|secs?|seconds)"
BESIDES = re.compile(
    r"load|valid|test|sanity|download|map|predict|eval|generat|token|filter|fetch", re.IGNORECASE
)
"""Words before a progress bar of something other than training."""
SMOOTH = Unseen(
    "pauses of single steps, which a progress bar smooths",
    "a line with the time of each step",
    hides_ranks=False,
)
DEEPSPEED = {
    "input": "batch_input", "forward": "fwd|forward", "backward": "bwd_inner|backward_inner",
    ALL_REDUCE: "bwd_allreduce|backward_allreduce", "optimizer": "step",
}  # fmt: skip
"""Parts of a step, and DeepSpeed's timers."""


class LineFormat(NamedTuple):
    """The format in which a tool prints a step.

    line: groups `step`, or `epoch` and `batch`, of `of` batches; `seconds` with `unit`, `rate`,
        or `parts`; `label` before a bar; `input`, a part within the seconds.
    words: one of these is in every such text.
    least: fewest steps by which a text is recognised.
    unseen: what such a log cannot show, beside other ranks.
    """

    name: str
    what: str
    line: re.Pattern[str]
    words: tuple[str, ...]
    least: int = 1
    unseen: tuple[Unseen, ...] = ()


BREAKDOWN = re.compile(
    r"\btime \(ms\) (?P<parts>(?:\| *\w+: *\d+(?:\.\d+)? *)*"
    r"\| *(?:fwd|forward)(?:_microstep)?: *\d.*)"
)
FORMATS = (
    LineFormat(
        "torchtitan", "logs of steps with tokens per second",
        re.compile(rf"(?<!validate )\bstep: *(?P<step>\d{{1,15}}) +loss:.*?\b(?:tps|wps): *"
                   rf"(?P<rate>{NUMBER})"),
        ("tps:", "wps:"),
    ),
    LineFormat(
        "DeepSpeed", "logs with wall_clock_breakdown",
        BREAKDOWN,
        ("time (ms)",),
    ),
    LineFormat(
        "DeepSpeed throughput", "logs with samples per second",
        re.compile(rf"(?:global_step=|\d/)(?P<step>\d{{1,15}}), RunningAvgSamplesPerSec={NUMBER}, "
                   rf"CurrSamplesPerSec=(?P<rate>{NUMBER})"),
        ("CurrSamplesPerSec",),
    ),
    LineFormat(
        "NeMo", "logs with train_step_timing",
        re.compile(
            rf"^(?=.*?train_step_timing in s[=:] *(?P<seconds>{NUMBER}))"
            r"(?:.*?\bglobal_step[=:] *(?P<step>\d{1,15})\b|"
            r".*?(?:[Ee]poch (?P<epoch>\d{1,9})\b.*?)?(?P<batch>\d{1,9})/(?P<of>\d{1,9})\b)"
        ),
        ("train_step_timing in s",),
    ),
    LineFormat(
        "PyTorch's ImageNet example or timm", "logs of batches with their time",
        re.compile(
            r"(?:Epoch: *\[(?P<epoch>\d{1,9})\] *\[ *|Train: (?P<round>\d{1,9}) \[ *)"
            rf"(?P<batch>\d{{1,9}})/(?P<of>\d{{1,9}})\b.*?\bTime:? +(?P<seconds>{NUMBER})"
            rf"(?P<unit>s?)\b(?:.*?\bData:? +(?P<input>{NUMBER}))?"
        ),
        ("Time",), 2,
    ),
    LineFormat(
        "a progress bar", "bars of Lightning, Hugging Face's Trainer and tqdm",
        re.compile(
            r"(?P<label>[^|]{0,80}?)\d{1,3}%\|[^|]{0,300}\| *(?P<batch>\d{1,12})/(?P<of>\d{1,12})"
            rf" \[[\d:]{{4,12}}<[\d:?]{{1,12}}, *(?P<bar>{NUMBER})(?P<per>it/s|s/it)"
        ),
        ("it/s", "s/it"), 2, (SMOOTH,),
    ),
    LineFormat(
        "a step log", "lines with a step and its time, such as `step 7 | dt 352 ms`",
        re.compile(
            r"(?<![\w.])(?:global[_ ]?)?(?:step|iter|iteration)[\"']?(?: ?[=:#] ?| +)"
            r"(?P<step>\d{1,15})\b(?![./]\d*[a-z])(?:.*?"
            r"(?<!total )(?<!data )(?<!elapsed )(?<!wall )(?<!\w)(?:dt|time|took|duration|"
            r"(?:step|iter|iteration|batch)[_ /]?(?:time|duration)|time[_/](?:step|iter))"
            rf"(?:[_ ]?\(?(?P<named>{UNIT})\)?)?[\"']?(?: ?[=:] ?| +)"
            rf"(?P<seconds>{NUMBER})(?![\d:/-]) ?(?P<unit>{UNIT}?)\b"
            rf"|: *(?P<bare>{NUMBER}) ?(?P<bareunit>{UNIT})\b"
            r"|.*?\b(?:tok(?:ens)?|samples|images|img|steps|it|iter)(?:_per_|/|/ ?)"
            rf"s(?:ec(?:ond)?)?(?: ?[=:] ?| +)(?P<rate>{NUMBER}))",
            re.IGNORECASE,
        ),
        ("step", "iter", "Step", "Iter", "STEP", "ITER"), 2,
    ),
)  # fmt: skip
"""The formats, the strictest first: a log may have lines of several."""
SAID = re.compile(r"\bstep=(\d{1,15}), skipped=\d")
"""The line by which DeepSpeed says the number of a step."""
GLOBAL = re.compile(r"\b(?:fwd|forward): ")
"""DeepSpeed's timer of a step, and not of a micro step."""
EPOCH = re.compile(r"[Ee]poch:? (\d{1,9})")
TRAINER = re.compile(r"^(?:.{0,80}: )?\{'(?:loss|train_runtime)': ", re.MULTILINE)


@functools.lru_cache(maxsize=1)
def format_of(file: LogFile) -> LineFormat | None:
    """The first format whose lines a text has; None for JSON, Megatron-LM's logs and others."""
    if "\0" in file.head or file.document is not None or megatron.recognise(file):
        return None
    for each in FORMATS:
        if any(word in file.text for word in each.words):
            found = 0
            for line in lines_of(file):
                found += len(_rows(line.text, each))
                if found >= each.least:
                    return each
    return None


def recognise(file: LogFile, name: str) -> bool:
    """Whether a text has steps in this format, and in none that is stricter."""
    found = format_of(file)
    return found is not None and found.name == name


def read(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    """The record in the log of a job, or in the logs of its ranks.

    Raises `InputError` where no step has a time.
    """
    form = format_of(files[0]) or FORMATS[-1]
    by_name = ranks_by_name(files)
    cells: Cells = {}
    moments: dict[tuple[int, int], float] = {}
    rates: dict[tuple[int, int], float] = {}
    repeated = 0
    for file, rank in zip(files, by_name, strict=True):
        repeated += _parse(file, form, rank if len(files) > 1 else -1, cells, moments, rates)
    notes = []
    if rates:
        cells, is_relative = _between(rates, moments)
        notes.append(
            "Derived: relative, from the rate: seconds are 1 over it."
            if is_relative
            else "Derived: seconds are between the times of two lines, checkpoints included."
        )
    if not cells:
        raise InputError(f"{files[0].path}: no step of this log has a time")
    missing = [f"steps that stand twice, after a restart, count once: {repeated}"] * (repeated > 0)
    return record_of_cells(
        cells, moments, files[0].path, form.name, missing, notes, unseen=form.unseen
    )


def _parse(
    file: LogFile,
    form: LineFormat,
    own: int,
    cells: Cells,
    moments: dict[tuple[int, int], float],
    rates: dict[tuple[int, int], float],
) -> int:
    """Add the steps of a file; the number of those that replace earlier ones."""
    repeated, said = 0, -1
    last: dict[int, int] = {}
    lines = [(line, _rows(line.text, form)) for line in lines_of(file)]
    totals = Counter(row["of"] for _, rows in lines for row in rows if "bar" in row)
    usual = max(totals, key=totals.__getitem__, default=None)
    has_steps = any(GLOBAL.search(row.get("parts", "")) for _, rows in lines for row in rows)
    for line, rows in lines:
        if form.line is BREAKDOWN and (found := SAID.search(line.text)) is not None:
            said = int(found[1])
        for row in rows:
            if ("bar" in row and row["of"] != usual) or (
                "parts" in row and has_steps and GLOBAL.search(row["parts"]) is None
            ):
                continue
            rank = own if own >= 0 else max(line.rank, 0)
            before = last.get(rank, -1)
            step = _step(row, before, said)
            seconds, rate = _seconds(row), _number(row.get("rate"))
            if rate:
                rates[step, rank] = rate
            elif seconds is not None:
                cells[step, rank] = seconds
            else:
                continue
            repeated += step < before
            last[rank], moments[step, rank] = step, line.moment
    return repeated


def _step(row: Mapping[str, str], before: int, said: int) -> int:
    """The number of a step, after that of the one before it.

    said: the number that a line before it says, for formats whose lines have none.
    """
    if "step" in row:
        return int(row["step"])
    if "parts" in row:
        return max(said, before + 1)
    batch, of = int(row["batch"]), int(row["of"])
    named = EPOCH.search(row.get("label", ""))
    epoch = named[1] if named else row.get("epoch", row.get("round"))
    if epoch is not None:
        return int(epoch) * of + batch
    step = batch + (max(before, 1) - 1) // max(of, 1) * of  # bars of epochs begin again
    return step if step >= before else step + of


def _rows(text: str, form: LineFormat) -> list[dict[str, str]]:
    """The steps of a line, as the groups that matched."""
    if not any(word in text for word in form.words):
        return []
    return [
        {name: value for name, value in row.groupdict().items() if value is not None}
        for row in form.line.finditer(text)
        if not BESIDES.search(row.groupdict().get("label") or "")
    ]


def _seconds(row: Mapping[str, str]) -> dict[str, float] | None:
    """Seconds of the parts of a step; None where they are none of a step."""
    if "parts" in row:
        found = {}
        for part, names in DEEPSPEED.items():
            timer = re.search(rf"\b(?:{names})(?:_microstep)?: *({NUMBER})", row["parts"])
            if timer is not None:
                found[part] = _number(timer[1]) / 1e3
        return found
    if "bar" in row:
        speed = _number(row["bar"])
        seconds = speed if row["per"] == "s/it" else 1 / speed if speed else math.inf
    else:
        unit = row.get("unit") or row.get("named") or row.get("bareunit") or ""
        seconds = _number(row.get("seconds", row.get("bare"))) * UNITS[unit.lower()]
    if not 0 < seconds < LONGEST:
        return None
    waiting = min(_number(row.get("input")), seconds)
    return {"input": waiting, COMPUTE: seconds - waiting} if waiting else {COMPUTE: seconds}


def _number(text: str | None) -> float:
    return float((text or "0").replace(",", ""))


def _between(
    rates: Mapping[tuple[int, int], float], moments: Mapping[tuple[int, int], float]
) -> tuple[Cells, bool]:
    """Seconds of steps by the times of their lines; else 1 over the rates, and that they are."""
    cells: Cells = {}
    for (before, rank), (step, other) in zip(
        by_rank := sorted(rates, key=lambda key: (key[1], key[0])), by_rank[1:], strict=False
    ):
        passed = moments[step, other] - moments[before, rank]
        if rank == other and 0 < passed / (step - before) < LONGEST:
            cells[step, rank] = {COMPUTE: passed / (step - before)}
    if len(cells) * 2 >= len(rates) and len(cells) > 1:
        return cells, False
    return {key: {COMPUTE: 1 / rate} for key, rate in rates.items()}, True


def _is_trainer(file: LogFile) -> bool:
    return format_of(file) is None and TRAINER.search(file.head) is not None


def _refuse_trainer(files: Sequence[LogFile], columns: Mapping[str, str] | None = None) -> Record:
    mean = re.search(r"'train_steps_per_second': '?(\d+(?:\.\d+)?)", files[0].text)
    raise InputError(
        f"{files[0].path}: lines of Hugging Face's Trainer have losses and no times of steps"
        f"{f', but the mean of {mean[1]} steps a second' if mean else ''}; keep its progress bar "
        "(disable_tqdm=False), or time steps on each rank with simstrag.ddp.record"
    )


READERS = (
    *(
        Reader(f.name, f.what, functools.partial(recognise, name=f.name), read, True)
        for f in FORMATS
    ),
    Reader("Hugging Face's console", "lines of losses", _is_trainer, _refuse_trainer),
)
"""One reader a format."""
