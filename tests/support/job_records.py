"""Records of real jobs, made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from simstrag.arrays import Reals
from simstrag.records.record import Record

Operation = tuple[int, int, str, float, float]
"""Replica, stage, kind, start, duration."""


def record_of(operations: Iterable[Operation], steps: int = 1) -> Record:
    """A record in which every step is alike; operations of a kind count on in the order given."""
    rows = list(operations)
    kinds = tuple(dict.fromkeys(kind for _, _, kind, _, _ in rows))
    counted: dict[tuple[int, int, str], int] = {}
    number = []
    for replica, stage, kind, _, _ in rows:
        number.append(counted.get((replica, stage, kind), 0))
        counted[replica, stage, kind] = number[-1] + 1
    stages = 1 + max(stage for _, stage, _, _, _ in rows)

    def column(values: Iterable[float]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.tile(np.array(list(values), dtype=np.int64), steps)

    is_computing = [kind.endswith("-compute") for _, _, kind, _, _ in rows]
    return Record(
        step=np.repeat(np.arange(steps), len(rows)),
        replica=column(d for d, *_ in rows),
        stage=column(p for _, p, *_ in rows),
        rank=column(p + stages * d for d, p, *_ in rows),
        kind=column(kinds.index(kind) for _, _, kind, _, _ in rows),
        number=column(number),
        chunk=column(0 if own else -1 for own in is_computing),
        model_chunk=column(
            p if own else -1 for (_, p, *_), own in zip(rows, is_computing, strict=True)
        ),
        micro_batch=column(n if own else -1 for n, own in zip(number, is_computing, strict=True)),
        start=np.tile([start for *_, start, _ in rows], steps),
        duration=np.tile([duration for *_, duration in rows], steps),
        kinds=kinds,
        source="by hand",
        form="by hand",
    )


def pipeline(late: float = 0.0, steps: int = 1) -> Record:
    """Two replicas of two stages and one micro-batch; one worker takes three times as long.

    Forward takes 1 s and backward 2 s, on stage 0 of replica 0 3 s and 6 s; every transfer takes
    0.5 s of its own, the optimizer 1 s.  The first forward begins `late` seconds after the step.
    """
    rows: list[Operation] = []
    for replica, slow in ((0, 3.0), (1, 1.0)):
        sent = late + slow  # end of the forward of stage 0
        back = sent + 0.5 + 1 + 2  # end of the backward of stage 1
        done = back + 0.5 + 2 * slow  # end of the backward of stage 0
        rows += [
            (replica, 0, "forward-compute", late, slow),
            (replica, 0, "forward-send", sent, 0.5),
            (replica, 1, "forward-recv", 0.0, sent + 0.5),
            (replica, 1, "forward-compute", sent + 0.5, 1.0),
            (replica, 1, "backward-compute", sent + 1.5, 2.0),
            (replica, 1, "backward-send", back, 0.5),
            (replica, 0, "backward-recv", sent, back + 0.5 - sent),
            (replica, 0, "backward-compute", back + 0.5, 2 * slow),
        ]
        end = late + 3 + 0.5 + 1 + 2 + 0.5 + 6  # of the backward that all wait for
        for stage, ready in ((0, done), (1, back)):
            rows += [
                (replica, stage, "optimizer-clip-main-grad", ready, end + 0.5 - ready),
                (replica, stage, "optimizer", end + 0.5, 1.0),
            ]
    return record_of(rows, steps)


def drawn_pipeline(
    forward: Reals, backward: Reals, transfer: Reals | float = 0.01, late: float = 0.0,
    gc: float | None = None,
) -> Record:  # fmt: skip
    """Two stages that do all forwards, then all backwards; recorded without delays but `late`.

    forward, backward: seconds of each micro-batch, shape (steps, replicas, 2, micro-batches).
    transfer: seconds of a transfer in each replica, both ways.
    late: seconds from the beginning of a step to its first operation, but for the first receive.
    gc: seconds of garbage collection at the end; none is recorded by default.
    """
    records = []
    for step, (ahead, back) in enumerate(zip(forward, backward, strict=True)):
        rows: list[Operation] = []
        done = {}
        for replica, (f, b) in enumerate(zip(ahead, back, strict=True)):
            own = float(np.broadcast_to(transfer, len(ahead))[replica])
            rows += _one_replica(replica, f, b, own, late, done)
        ends = {key: end + (gc or 0.0) for key, end in done.items()}
        for (replica, stage), end in ends.items():
            if gc is not None:
                rows.append((replica, stage, "gc", done[replica, stage], gc))
            latest = max(ends.values())
            rows.append((replica, stage, "optimizer-clip-main-grad", end, latest + 0.01 - end))
            rows.append((replica, stage, "optimizer", latest + 0.01, 0.02))
        record = record_of(rows)
        records.append(replace(record, step=record.step + step))
    return replace(
        records[0],
        **{
            field.name: np.concatenate([getattr(each, field.name) for each in records])
            for field in fields(Record)
            if isinstance(getattr(records[0], field.name), np.ndarray)
        },
    )


def _one_replica(
    replica: int, forward: Reals, backward: Reals, transfer: float, late: float,
    done: dict[tuple[int, int], float],
) -> list[Operation]:  # fmt: skip
    """The operations of one replica; `done` takes when its stages end their computing."""
    rows: list[Operation] = []
    first, second, sent, moved = late, 0.0, 0.0, 0.0
    for f0, f1 in forward.T:
        rows.append((replica, 0, "forward-compute", first, f0))
        first += f0
        sent, posted = max(first, moved), second
        moved = max(sent, posted) + transfer
        rows.append((replica, 0, "forward-send", sent, moved - sent))
        rows.append((replica, 1, "forward-recv", posted, moved - posted))
        rows.append((replica, 1, "forward-compute", max(moved, second), f1))
        second = max(moved, second) + f1
    two_before = rows[4 * (forward.shape[1] - 2)]
    asked = two_before[3] + two_before[4]  # the first backward transfers wait for this forward
    for b0, b1 in backward.T:
        rows.append((replica, 1, "backward-compute", second, b1))
        second += b1
        sent = max(second, moved)
        moved = max(sent, asked) + transfer
        rows.append((replica, 1, "backward-send", sent, moved - sent))
        rows.append((replica, 0, "backward-recv", asked, moved - asked))
        rows.append((replica, 0, "backward-compute", max(moved, first), b0))
        first = asked = max(moved, first) + b0
    done[replica, 0], done[replica, 1] = first, second
    return rows


def keep(record: Record, kept: npt.NDArray[np.bool_]) -> Record:
    """Some of the operations of a record."""
    rows = {
        field.name: values[kept]
        for field in fields(record)
        if isinstance(values := getattr(record, field.name), np.ndarray)
    }
    return replace(record, **rows)


def write_parquet(
    record: Record,
    path: Path,
    without: Iterable[str] = (),
    first: Mapping[str, object] | None = None,
) -> Path:
    """A record in ByteDance's columns.

    without: columns to leave out.
    first: other values of the first row.
    """
    columns: dict[str, list[Any]] = {
        "dp_rank": record.replica.tolist(), "stage": record.stage.tolist(),
        "rank": record.rank.tolist(), "step": record.step.tolist(),
        "optype": [record.kinds[k] for k in record.kind.tolist()],
        "start_ts": record.start.tolist(), "duration": record.duration.tolist(),
        "seq_id": record.number.tolist(), "mc": record.chunk.tolist(),
        "gmc": record.model_chunk.tolist(), "mb_id": record.micro_batch.tolist(),
    }  # fmt: skip
    for name, value in (first or {}).items():
        columns[name][0] = value
    table = pa.table({name: values for name, values in columns.items() if name not in without})
    if record.start.dtype == np.float32:
        place = table.column_names.index("start_ts")
        table = table.set_column(place, "start_ts", table["start_ts"].cast(pa.float32()))
    pyarrow.parquet.write_table(table, path)
    return path
