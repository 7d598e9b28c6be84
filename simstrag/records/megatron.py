"""The record of data-parallel ranks from a log of Megatron-LM with the times of all ranks.

Source of the format: megatron/core/timers.py of NVIDIA/Megatron-LM @00caa53, with
`--timing-log-level 2 --timing-log-option all`.  A block follows the line of its iteration, and has
the milliseconds of a timer on each rank, means since the last block:

    iteration        2/     100 | ... | elapsed time per iteration (ms): 512.3 | ...
    times across ranks (ms):
      forward-compute:
         rank  0: 150.21

`forward-compute` and `backward-compute` wait for the device.  What is left of an iteration is the
optimizer, collectives and waiting, which counts as the collective.

A report of nvidia-resiliency-ext (@d8686d9) has scores, and no times: it is refused with what it
shows.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from simstrag.errors import InputError
from simstrag.records.log_table import read_bytes
from simstrag.records.record import ALL_REDUCE, BACKWARD, FORWARD, Record, assumed_gpus

FORM = "a log of Megatron-LM"
BLOCK, SCORES = b"across ranks (ms):", b"GPU relative performance:"
ITERATION = re.compile(
    r"iteration +(\d{1,15})/ *\d+ \|"
    r"(?:.*elapsed time per iteration \(ms\): (\d{1,12}(?:\.\d+)?)(?!\d))?"
)
TIMER = re.compile(r"\s([a-z][\w-]*):\s*$")
RANK = re.compile(r"\srank +(\d{1,9}): (\d{1,12}(?:\.\d+)?)\s*$")
SCORE = re.compile(r"Rank=(\d+) Node=(\S+) Score=(\d+(?:\.\d+)?)")
OWN = {FORWARD: "forward", BACKWARD: "backward"}
"""Timers of a rank's computing, and the parts of the record."""
BATCH = "batch-generator"
"""A timer within that of the forward."""
PIPELINE = ("forward-recv", "forward-send", "backward-recv", "backward-send")

Times = dict[str, dict[int, float]]
"""Seconds by timer and rank."""


def is_training_log(data: bytes) -> bool:
    """Whether a file has times of all ranks, or scores."""
    return BLOCK in data or SCORES in data


def read_training_log(path: str | Path) -> Record:
    """The record in a log.

    Raises `InputError` for a log without the computing of each rank, one of a pipeline, whose sums
    over an iteration have lost the order of operations, and one that has only scores.
    """
    text = read_bytes(path).decode("utf-8", "replace")
    if BLOCK.decode() not in text:
        raise InputError(f"{path}: {_describe_scores(text)}")
    if "times across ranks (ms):" not in text:
        raise InputError(
            f"{path}: has the extremes of the ranks only; log with --timing-log-option all"
        )
    iterations, elapsed = _blocks(text)
    computed = {k: each for k, each in iterations.items() if each.keys() >= OWN.keys()}
    if not computed:
        raise InputError(
            f"{path}: no iteration has {' and '.join(OWN)} of the ranks; log with "
            "--timing-log-level 2"
        )
    if any(each.keys() & {*PIPELINE} for each in computed.values()):
        raise InputError(
            f"{path}: is of a pipeline, whose sums over an iteration have lost the order of its "
            "operations; record all operations"
        )
    ranks = sorted({rank for each in computed.values() for rank in each[FORWARD]})
    steps = sorted(k for k, each in computed.items() if _is_complete(each, ranks, k, elapsed))
    if not steps:
        raise InputError(f"{path}: no iteration has the times of all {len(ranks)} ranks")
    has_batches = all(BATCH in computed[k] for k in steps)
    names = [BATCH] * has_batches + [*OWN]
    seconds = {n: np.array([[computed[k][n][r] for r in ranks] for k in steps]) for n in names}
    if has_batches:
        seconds[FORWARD] = np.maximum(seconds[FORWARD] - seconds[BATCH], 0.0)
    whole = np.array([elapsed[k] for k in steps])
    rest = whole[:, None] - sum(seconds.values())
    tensor = re.search(r"tensor_model_parallel_size \.+ (\d+)", text)
    missing = []
    if tensor is not None and int(tensor.group(1)) > 1:
        missing.append(
            f"{tensor.group(1)} ranks are a tensor-parallel group, in which waiting counts as "
            "computing here"
        )
    if len(steps) < len(computed):
        missing.append(f"blocks that lack a rank are left out: {len(computed) - len(steps)}")
    means = int(np.median(np.diff(steps))) if len(steps) > 1 else 1
    return Record.of_ranks(
        np.array(steps), np.array(ranks),
        {OWN.get(n, n): each for n, each in seconds.items()} | {ALL_REDUCE: np.maximum(rest, 0.0)},
        str(path), FORM, step_seconds=whole, missing=tuple(missing),
        notes=(
            *([f"Derived: a step here is the mean of {means} iterations."] if means > 1 else []),
            "Derived: what forward and backward leave of an iteration is communication.",
            assumed_gpus(len(ranks)),
        ),
    )  # fmt: skip


def _blocks(text: str) -> tuple[dict[int, Times], dict[int, float]]:
    """The times of each iteration that has a block, and the seconds of all iterations."""
    found: dict[int, Times] = defaultdict(dict)
    elapsed: dict[int, float] = {}
    iteration: int | None = None
    timer: str | None = None
    for line in text.splitlines():
        if (begin := ITERATION.search(line)) is not None:
            iteration, timer = int(begin.group(1)), None
            if begin.group(2) is not None:
                elapsed[iteration] = float(begin.group(2)) / 1e3
        elif (own := RANK.search(line)) is not None:
            if iteration is not None and timer is not None:
                times = found[iteration].setdefault(timer, {})
                times[int(own.group(1))] = float(own.group(2)) / 1e3
        else:
            name = TIMER.search(line)
            timer = None if name is None else name.group(1)
    return found, elapsed


def _is_complete(times: Times, ranks: list[int], k: int, elapsed: dict[int, float]) -> bool:
    names = [*OWN, *({BATCH} & times.keys())]
    return k in elapsed and all(sorted(times[name]) == ranks for name in names)


def _describe_scores(text: str) -> str:
    """Why scores cannot be replayed, and who had the lowest ones."""
    why = (
        "scores of nvidia-resiliency-ext are ratios to the best rank over minutes, not seconds of "
        "steps, and cannot be replayed"
    )
    lowest: dict[str, list[float]] = defaultdict(list)
    for report in text.split(SCORES.decode())[1:]:
        scores = SCORE.findall(report.partition("GPU individual")[0])
        if scores:
            rank, node, score = min(scores, key=lambda each: float(each[2]))
            lowest[f"rank {rank} on {node}"].append(float(score))
    if not lowest:
        return why
    (name, times), *_ = Counter({k: len(v) for k, v in lowest.items()}).most_common(1)
    reports = sum(map(len, lowest.values()))
    return (
        f"{why}; {name} has the lowest score in {times} of {reports} reports, "
        f"{statistics.median(lowest[name]):.2f} in the median"
    )
