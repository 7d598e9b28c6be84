"""The record of a run directory: what `simstrag.ddp` recorded, or a simulation with its steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simstrag.errors import InputError
from simstrag.records.record import ALL_REDUCE, COMPUTE, Record, assumed_gpus
from simstrag.runs.run import Run

NAME = "a run directory"


def recognise_folder(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return (folder / "run.json").is_file()


def read_folder(folder: str | Path) -> Record:
    """The record of a run whose ranks stepped together.

    A step's own time is that from its first start to the next one's, the last step's that to its
    end.  Raises `InputError` for a run without its steps, and for one whose ranks took different
    steps at a time.
    """
    run = Run.read(folder)
    if run.steps is None or run.excerpt is not None:
        extent = "no steps" if run.steps is None else "only some steps"
        raise InputError(f"{folder}: the run kept {extent}; simulate it with simstrag run --out")
    names = ("rank", "step", "version", "start", "finish", "wait", "communication")
    columns = {name: np.asarray(run.steps[name]) for name in names}
    order = np.lexsort((columns["rank"], columns["step"]))
    rank, step, version, start, finish, wait, communication = (columns[n][order] for n in names)
    ranks, (steps, counts) = np.unique(rank), np.unique(step, return_counts=True)
    complete = counts == len(ranks)
    kept = np.isin(step, steps[complete])
    shape = (int(complete.sum()), len(ranks))
    versions = version[kept].reshape(shape)
    is_private = np.any(np.diff(versions[:, 0]) == 0)  # several steps on one version
    if not shape[0] or is_private or np.ptp(versions, axis=1).any():
        raise InputError(
            f"{folder}: under {run.policy} ranks do not step together; a what-if analysis replays "
            "synchronous steps, such as bsp's"
        )
    start, finish, exposed = (
        values[kept].reshape(shape) for values in (start, finish, wait + communication)
    )
    begin = start.min(axis=1)
    end = (finish + exposed).max(axis=1)
    follows = np.append(np.diff(steps[complete]) == 1, False)
    lost = int(np.sum(~complete))
    return Record.of_ranks(
        steps[complete].astype(np.int64), ranks.astype(np.int64),
        {COMPUTE: finish - start, ALL_REDUCE: exposed}, str(folder), NAME,
        step_seconds=np.where(follows, np.append(begin[1:], 0.0), end) - begin,
        missing=(f"steps that not all ranks finished are left out: {lost}",) if lost else (),
        notes=(
            f"{'Measured' if run.recorded is not None else 'Simulated'}: under {run.policy}.",
            assumed_gpus(len(ranks)),
        ),
    )  # fmt: skip
