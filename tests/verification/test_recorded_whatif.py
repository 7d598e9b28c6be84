"""Every number of ByteDance's own analysis of one job, by the same definitions.

ByteDance-Seed/StragglerAnalysis @8efcd7f, trace-AR and the authors' results.  Set beforehand: 1e-6
relative for the file's 32 bits, as their program rounds; 1e-5 in 64 bits, and 1e-7 absolute where a
share is the difference of two nearly equal times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simstrag.records.operations import read_operations
from simstrag.records.record import Record
from simstrag.whatif.metrics import Metrics, metrics
from simstrag.whatif.operation_array import Layout
from simstrag.whatif.replay import JobReplay

FOLDER = Path(__file__).parents[2].parent / "shared" / "traces" / "bytedance-straggler"
pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="shared/traces/bytedance-straggler is not beside this checkout"
)


@pytest.fixture(scope="module")
def record() -> Record:
    return read_operations(FOLDER / "trace-AR.parquet")


def pairs(found: Metrics) -> Iterator[tuple[str, float, float]]:
    """Name, our number and theirs, of every number that they give."""
    result, mw, ms = (
        json.loads((FOLDER / f"{name}-AR.json").read_text()) for name in ("result", "mw", "ms")
    )
    yield "S", found.slowdown, result["blocking_slowdown"]
    yield "replay error", found.replay_error, result["launch_slowdown"]
    steps = [str(step) for step in found.step]
    for name, values in {
        "step_t_base": found.recorded,
        "step_t_nodelay": found.replayed,
        "step_t_noblk": found.ideal,
        "blocking_step_slowdown": found.slowdown_by_step,
        "launch_step_slowdown": found.replay_error_by_step,
    }.items():
        assert result[name].keys() == set(steps)
        yield from ((name, v, result[name][s]) for s, v in zip(steps, values, strict=True))
    for by, parts in {
        "dp_rank": found.by_replica, "stage": found.by_stage, "optype": found.by_kind
    }.items():  # fmt: skip
        name = f"blocking_decompose_by_{by}"
        assert result[name].keys() == parts.whole.keys()
        yield from ((name, parts.whole[key], value) for key, value in result[name].items())
        for k, step in enumerate(steps):
            theirs = result[f"{name}_per_step"][step]
            yield from ((f"{name} {step}", parts.by_step[key][k], v) for key, v in theirs.items())
    assert found.last_stage is not None
    for theirs, share in ((mw, found.top), (ms, found.last_stage)):
        yield "tori", found.replayed.mean(), theirs["tori"]
        yield "tideal", found.ideal.mean(), theirs["tideal"]
        yield "trem", share.fixed, theirs["trem"]
        yield "tadd", share.only, theirs["tadd"]
        yield "rem", share.removed, theirs["rem"]
        yield "add", share.alone, theirs["add"]


def test_every_number_is_theirs_to_1e_6_in_32_bits(record: Record) -> None:
    assert record.start.dtype == np.float32
    found = list(pairs(metrics(JobReplay.of(Layout.of(record)))))
    assert len(found) == 1089  # 2 + 5 x 44 + 19 x 45 + 12
    for name, ours, theirs in found:
        assert ours == pytest.approx(theirs, rel=1e-6), name


def test_every_number_is_theirs_to_1e_5_in_64_bits(record: Record) -> None:
    wide = replace(
        record,
        start=record.start.astype(np.float64),
        duration=record.duration.astype(np.float64),
    )
    for name, ours, theirs in pairs(metrics(JobReplay.of(Layout.of(wide)))):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7), name


def test_the_job_had_64_gpus(record: Record) -> None:
    assert record.gpus == 64
