"""Which operation waits for which, where a stage has several chunks and records empty transfers."""

from __future__ import annotations

import numpy as np

from simstrag.records.record import Record
from simstrag.whatif.dependencies import dependencies
from simstrag.whatif.operation_array import Layout

FORWARDS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Chunk and micro-batch of the forwards of a stage, in order; chunk c of stage p is 2 c + p."""


def interleaved(without_first_receive: bool = False) -> Layout:
    """Two stages of two chunks, two micro-batches; each operation takes 1 s.

    A receive is recorded before each forward and a send after it, also where they carry nothing; a
    third one after the last forward is recorded, too.
    """
    kinds = ("forward-compute", "forward-recv", "forward-send", "backward-compute")
    columns: dict[str, list[int]] = {
        name: [] for name in ("stage", "kind", "number", "chunk", "model_chunk", "micro_batch")
    }
    start: list[float] = []

    def add(kind: int, stage: int, number: int, chunk: int, micro_batch: int, at: float) -> None:
        model_chunk = 2 * chunk + stage if chunk >= 0 else -1
        values = (stage, kind, number, chunk, model_chunk, micro_batch)
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
        start.append(at)

    for stage in (0, 1):
        skipped = int(without_first_receive and stage == 0)
        for k, (chunk, micro_batch) in enumerate(FORWARDS):
            add(0, stage, k, chunk, micro_batch, 10.0 + 3 * k)
            if k >= skipped:
                add(1, stage, k - skipped, -1, -1, 9.0 + 3 * k)
            add(2, stage, k, -1, -1, 11.0 + 3 * k)
        add(1, stage, 4 - skipped, -1, -1, 40.0)
        for k, (chunk, micro_batch) in enumerate(FORWARDS[::-1]):
            add(3, stage, k, chunk, micro_batch, 50.0 + k)
    arrays = {name: np.array(values) for name, values in columns.items()}
    zero = np.zeros(len(start), np.int64)
    record = Record(
        step=zero, replica=zero, rank=arrays["stage"], start=np.array(start),
        duration=np.ones(len(start)), kinds=kinds, source="by hand", form="by hand", **arrays,
    )  # fmt: skip
    return Layout.of(record)


def names(layout: Layout, places: set[int] | list[int]) -> set[str]:
    """Operations as kind, number and stage."""
    return {
        f"{layout.kinds[layout.kind[k]]} {layout.number[k]} of {layout.stage[k]}" for k in places
    }


def place(layout: Layout, kind: str, number: int, stage: int) -> int:
    found = layout.find(kind) & (layout.number == number) & (layout.stage == stage)
    return int(np.flatnonzero(found)[0])


def test_a_send_of_one_chunk_meets_the_receive_of_the_next_one() -> None:
    """From chunk 0 to 1 by stage 0 to 1, from 1 to 2 by stage 1 to 0, from 2 to 3 again to 1."""
    layout = interleaved()
    groups = [names(layout, group) for group in dependencies(layout).groups]
    assert sorted(map(sorted, groups)) == sorted(
        map(
            sorted,
            [
                *({f"forward-send {k} of 0", f"forward-recv {k} of 1"} for k in range(4)),
                *({f"forward-send {k} of 1", f"forward-recv {k + 2} of 0"} for k in range(2)),
            ],
        )
    )


def test_transfers_that_carry_nothing_still_keep_their_place_in_the_order() -> None:
    layout = interleaved()
    before = dependencies(layout).before
    empty, late = (place(layout, "forward-recv", k, 0) for k in (1, 4))
    assert names(layout, before[empty]) == {"forward-recv 0 of 0", "forward-compute 0 of 0"}
    assert names(layout, before[late]) == {"forward-recv 3 of 0"}  # after the last forward began


def test_a_first_receive_that_was_not_recorded_shifts_no_other() -> None:
    layout = interleaved(without_first_receive=True)
    found = dependencies(layout)
    groups = [names(layout, group) for group in found.groups]
    assert {"forward-send 0 of 1", "forward-recv 1 of 0"} in groups
    second = place(layout, "forward-compute", 1, 0)
    assert "forward-recv 0 of 0" in names(layout, found.before[second])
