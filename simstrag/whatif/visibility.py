"""What a record cannot show: whose slowness may be hidden, and what would show it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simstrag.records.record import SM_CLOCK, Record, Unseen
from simstrag.statistics.walls import shared_walls
from simstrag.whatif.layout import Layout

RECORD = "simstrag.ddp.record(model, out=FOLDER) in the script"
CLOCKS = (
    "nvidia-smi --query-gpu=timestamp,index,utilization.gpu,clocks.current.sm,clocks.max.sm,"
    "power.draw,enforced.power.limit,temperature.gpu,clocks_event_reasons.active --format=csv -l 5"
)
STEPS = "seconds of every rank's own step in a CSV of rank, step, seconds"


def find_unseen(record: Record, layout: Layout | None) -> tuple[Unseen, ...]:
    """What the readers say, and what the numbers themselves show; each once."""
    found = [*record.unseen]
    if layout is None:
        found += _without_steps(record)
    elif len(np.unique(layout.rank)) == 1 and not found:
        found.append(Unseen("which rank was slow: the record is of one rank", RECORD))
    else:
        found += _shared(layout)
    return tuple({each.what: each for each in found}.values())


def _without_steps(record: Record) -> Iterator[Unseen]:
    if record.series and record.series_of(SM_CLOCK) is None:
        yield Unseen(
            "whether a GPU is slow: a slow one is as busy as the others, and there are no clocks",
            CLOCKS,
        )
    if record.series:
        yield Unseen("what it cost a step: there are no step times", STEPS, hides_ranks=False)


def _shared(layout: Layout) -> Iterator[Unseen]:
    """Parts of a step that hold the waiting for other ranks; none does beside a collective."""
    if layout.communicates.any():
        return
    for k in range(len(layout.kind)):
        walls = shared_walls(layout.duration[k])
        if walls.hide_ranks:
            part = "a step" if len(layout.kind) == 1 else f"the {layout.kinds[layout.kind[k]]}"
            yield Unseen(
                f"which rank was slow: {part} takes all ranks equally long, to "
                f"{100 * walls.spread:.2g} %, so that it holds the waiting for the slowest",
                RECORD,
            )
