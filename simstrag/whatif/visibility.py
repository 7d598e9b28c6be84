"""What a record cannot show: whose slowness may be hidden, and what would show it."""

from __future__ import annotations

from collections.abc import Iterator

from simstrag.records.record import Record, Unseen
from simstrag.records.steps import HIDDEN
from simstrag.statistics.walls import shared_walls
from simstrag.whatif.operation_array import Layout

RECORD = "simstrag.ddp.record(model, out=FOLDER) in the script"
LARGE = 0.2
"""Share of a step from which a part that holds the waiting hides a slow rank, ASSUMED: a rank of
1.2 times the others would show in the rest."""
STEPS = "seconds of every rank's own step in a CSV of rank, step, seconds"


def find_unseen(
    record: Record, layout: Layout | None, is_named: bool = False
) -> tuple[Unseen, ...]:
    """What the readers say, and what the numbers themselves show; each once.

    is_named: whether a rank was found slow, so that its own backward is seen.
    """
    found = [each for each in record.unseen if not (is_named and each == HIDDEN)]
    if layout is None:
        found += _without_steps(record)
    elif len(layout.replica) == 1 and not found:
        found.append(Unseen("which rank was slow: the record is of one replica", RECORD))
    else:
        found += _shared(layout)
    return tuple({each.what: each for each in found}.values())


def _without_steps(record: Record) -> Iterator[Unseen]:
    if record.series:
        yield Unseen("what it cost a step: there are no step times", STEPS, hides_ranks=False)


def _shared(layout: Layout) -> Iterator[Unseen]:
    """Whether a step, or a large part of it, holds the waiting; none does beside a collective."""
    if layout.communicates.any():
        return
    parts = {layout.kinds[layout.kind[k]]: layout.duration[k] for k in range(len(layout.kind))}
    whole = layout.duration.sum(axis=0)
    large = {n: each for n, each in parts.items() if each.sum() >= LARGE * whole.sum()}
    for name, seconds in {"step": whole, **(large if len(parts) > 1 else {})}.items():
        walls = shared_walls(seconds)
        if walls.hide_ranks:
            yield Unseen(
                f"which rank was slow: the {name} takes all ranks equally long, to "
                f"{100 * walls.spread:.2g} %, so that it holds the waiting for the slowest",
                RECORD,
            )
            return
