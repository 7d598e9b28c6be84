"""Durations of the steps of each rank from PyTorch profiles, one file per rank.

`simstrag.records.kineto` reads the files, and says what a local time and a transfer are.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from simstrag.errors import InputError
from simstrag.records.kineto import RankSteps, read_rank
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import (
    Labelled,
    constant_allreduce,
    contents,
    count_note,
    run_of,
)

NAME = "kineto"


def kineto(*paths: str | Path) -> Labelled:
    """A duration per step and rank from Chrome traces (JSON or .json.gz), a file per rank.

    A file states its rank; otherwise its position among the files is the rank.
    Raises `InputError` for any other file, a file without steps, and a second file of a rank.
    """
    files: dict[int, str] = {}
    by_rank: dict[int, RankSteps] = {}
    unnamed = 0
    for place, path in enumerate(paths):
        named, _, steps = read_rank(path)
        unnamed += named is None
        rank = place if named is None else named
        if rank in files:
            raise InputError(
                f"{path}: is of rank {rank}, like {files[rank]}; give one file for each rank"
            )
        files[rank], by_rank[rank] = str(path), steps
    if not files:
        raise InputError(f"{NAME}: give a trace file for each rank")
    ranks = sorted(files)
    common = functools.reduce(np.intersect1d, [by_rank[rank].number for rank in ranks])
    if not len(common):
        raise InputError(f"{paths[0]}: no step number is in all {len(paths)} files")
    dropped = sum(len(steps.number) - len(common) for steps in by_rank.values())
    start, span, exposed = (
        np.array([getattr(by_rank[r], name)[np.isin(by_rank[r].number, common)] for r in ranks])
        for name in ("start", "span", "exposed")
    )
    if np.any(np.diff(start) < 0):
        k, step = np.argwhere(np.diff(start) < 0)[0]
        raise InputError(
            f"{files[ranks[k]]}: step {common[step + 1]} begins before step {common[step]}"
        )
    local = span - exposed
    if np.any(local <= 0):
        k, step = np.argwhere(local <= 0)[0]
        raise InputError(
            f"{files[ranks[k]]}: rank {ranks[k]} computed for no time in step {common[step]}; "
            "was the device recorded at all?"
        )
    trace = Trace.from_columns(
        (start - start[:, :1]).ravel(), np.repeat(ranks, len(common)), "step", "duration",
        local.ravel(), NAME,
    )  # fmt: skip
    transfer = float(np.median(exposed.min(axis=0)))
    shares = exposed.sum(axis=1) / span.sum(axis=1)
    listed = ", ".join(f"rank {r} {share:.0%}" for r, share in zip(ranks, shares, strict=True))
    return Labelled(
        trace,
        NAME,
        contents(paths),
        notes=(
            f"Measured: {len(common)} steps of {len(ranks)} ranks, {span.mean():.4g} s in the "
            f"mean; collectives under way with nothing computed meanwhile: {listed}.",
            "Derived: a duration is the span of a step less that time.",
            "Derived: the least of it among the ranks of a step, which is nearly transfer alone, "
            f"is {transfer:.4g} s in the median.",
            "Assumed: between collectives a rank waits for no other; the host's own pauses (input, "
            "Python) belong to its computing.",
            *count_note("Assumed", (unnamed, "files name no rank; their order is it")),
            *count_note("Dropped", (dropped, "steps that not all files have")),
        ),
        scenario=(
            *([constant_allreduce(transfer, len(ranks))] if len(ranks) > 1 else []),
            *run_of(len(common), len(ranks)),
        ),
    )
