"""The record of data-parallel ranks from a folder of PyTorch profiles, one file a rank.

A synchronous step takes equally long on all ranks, so only the time in which a rank waits in no
collective is its own; `simstrag.records.kineto` reads it.  All ranks leave a collective
together: a step is counted on each rank's own clock, and the ends of collectives show how far
clocks are apart.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from simstrag.errors import InputError
from simstrag.records.kineto import ProfiledRank, RankSteps, read_rank
from simstrag.records.rank_seconds import absent_ranks
from simstrag.records.record import ALL_REDUCE, COMPUTE, Record, assumed_gpus

FORM = "PyTorch profiles"
SUFFIXES = (".json", ".json.gz")
APART = 0.010
"""Seconds from which clocks are said to be apart."""


def profile_files(folder: Path) -> list[Path]:
    """The files of a folder that are profiles by their names, in order."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))


def read_profiles(folder: str | Path) -> Record:
    """The record of a folder.

    Raises `InputError` for an empty file, one that is no profile, and two of one rank.
    """
    by_rank: dict[int, tuple[Path, ProfiledRank]] = {}
    unnamed = 0
    for place, path in enumerate(profile_files(Path(folder))):
        if not path.stat().st_size:
            raise InputError(f"{path}: is empty; record the rank again, or remove the file")
        found = read_rank(path)
        unnamed += found.rank is None
        rank = place if found.rank is None else found.rank
        if rank in by_rank:
            raise InputError(f"{path}: is of rank {rank}, like {by_rank[rank][0]}; remove one")
        by_rank[rank] = path, found
    ranks = sorted(by_rank)
    steps = {rank: by_rank[rank][1].steps for rank in ranks}
    common = functools.reduce(np.intersect1d, [each.number for each in steps.values()])
    if not len(common):
        raise InputError(f"{folder}: no step number is in all {len(ranks)} files")
    taken = {rank: each.select(np.isin(each.number, common)) for rank, each in steps.items()}
    span, exposed = (
        np.array([getattr(taken[rank], name) for rank in ranks]).T for name in ("span", "exposed")
    )
    idle = np.argwhere(span - exposed <= 0)
    if len(idle):
        k, rank = idle[0]
        raise InputError(
            f"{by_rank[ranks[rank]][0]}: computed for no time in step {common[k]}; was the device "
            "recorded at all?"
        )
    size = max((found.world_size or 0 for _, found in by_rank.values()), default=0)
    dropped = sum(len(each.number) - len(common) for each in steps.values())
    missing = [*absent_ranks(ranks, size)]
    if dropped:
        missing.append(f"steps that not all files have are left out: {dropped}")
    if not exposed.any():
        missing.append(
            "no collective is in the profiles, so that a step is the seconds of its slowest rank"
        )
    notes = [
        "Derived: computing is the span of a step less the time in which only collectives ran.",
        *_clocks(ranks, taken),
        assumed_gpus(len(ranks)),
    ]
    if unnamed:
        notes.append(f"Assumed: {unnamed} files name no rank; their order is it.")
    return Record.of_ranks(
        common.astype(np.int64), np.array(ranks), {COMPUTE: span - exposed, ALL_REDUCE: exposed},
        str(folder), FORM, missing=tuple(missing), notes=tuple(notes),
    )  # fmt: skip


def _clocks(ranks: list[int], steps: dict[int, RankSteps]) -> list[str]:
    """How far clocks are apart at the ends of collectives, in one line."""
    reference = steps[ranks[0]].exit
    lines = []
    for rank in ranks[1:]:
        difference = steps[rank].exit - reference
        known = difference[np.isfinite(difference)]
        if len(known) and abs(offset := float(np.median(known))) > APART:
            ahead = "ahead of" if offset > 0 else "behind"
            lines.append(f"rank {rank} {abs(offset):.3f} s {ahead}")
    if not lines:
        return []
    return [
        f"Derived: at the ends of collectives, clocks are {', '.join(lines)} rank {ranks[0]}; "
        "steps are aligned there."
    ]
