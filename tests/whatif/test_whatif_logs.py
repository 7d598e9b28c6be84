"""Records from what other tools leave: dumps of the flight recorder, logs of Megatron-LM, NVRx."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.errors import InputError
from simstrag.records.read import read_record
from simstrag.whatif.metrics import metrics
from simstrag.whatif.operation_array import Layout
from simstrag.whatif.replay import JobReplay
from tests.support.refusals import message_of

# -- the flight recorder

STEPS, RANKS = 8, 3
COMPUTING = (1.0, 2.0, 1.0)
"""Seconds before the first of two collectives; rank 1 is slow.  A transfer takes .25 s."""


def entry(number: int, sizes: int, begin: float, end: float, **more: Any) -> dict[str, Any]:
    """A collective as torch 2.13 dumps it, without the fields that nothing reads."""
    return {
        "collective_seq_id": number, "process_group": ("0", "default_pg"), "pg_id": 0,
        "profiling_name": "nccl:all_reduce", "input_sizes": [[sizes]], "is_p2p": False,
        "state": "completed", "time_discovered_started_ns": round(1e9 * begin),
        "time_discovered_completed_ns": round(1e9 * end), "duration_ms": 1e3 * (end - begin),
        **more,
    }  # fmt: skip


def dump(rank: int, ahead: float = 0.0, timing: bool = True) -> dict[str, Any]:
    """A broadcast, and steps of 2 s until all have computed, a reduction, .5 s, and another."""
    rows = [entry(1, 7, 0.0, 1.0)]
    for k in range(STEPS):
        begin = 1 + 3.0 * k + ahead
        first = begin + COMPUTING[rank], begin + 2.25
        second = begin + 2.75, begin + 3.0
        rows += [entry(2 + 2 * k, 10, *first), entry(3 + 2 * k, 20, *second)]
    if not timing:
        for row in rows:
            del row["duration_ms"]
    return {
        "version": "2.10", "entries": rows,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
    }  # fmt: skip


def as_pickle(path: Path, content: Any) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def as_json(path: Path, content: Any) -> None:
    path.with_suffix(".json").write_text(json.dumps(content))


def dumps(folder: Path, write: Callable[[Path, Any], None] = as_pickle, **more: Any) -> Path:
    for rank in range(RANKS):
        write(folder / f"nccl_trace_rank_{rank}", dump(rank, **more))
    return folder


@pytest.mark.parametrize("write", [as_pickle, as_json])
@pytest.mark.parametrize("timing", [True, False])
def test_a_step_of_dumps_is_a_period_of_collectives(
    write: Callable[[Path, Any], None], timing: bool, tmp_path: Path
) -> None:
    """Of 3 s, rank 1 computes 2.5 and the others 1.5 s: S = 3 / (5.5 / 3 + .5)."""
    record = read_record(dumps(tmp_path, write, timing=timing))
    assert record.duration.reshape(-1, RANKS, 2)[:, :, 0] == pytest.approx(
        np.tile([1.5, 2.5, 1.5], (STEPS - 1, 1))
    )
    found = metrics(JobReplay.of(Layout.of(record)))
    assert found.replay_error == pytest.approx(1)
    assert found.slowdown == pytest.approx(3 / (5.5 / 3 + 0.5))
    assert record.missing == ()
    assert ("on the device" in record.notes[1]) == timing


def test_a_dump_whose_clock_is_ahead_gives_the_same(tmp_path: Path) -> None:
    as_pickle(dumps(tmp_path) / "nccl_trace_rank_2", dump(2, ahead=1.0))
    assert read_record(tmp_path).duration[0] == pytest.approx(1.5)


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    (dumps(tmp_path) / "nccl_trace_rank_1").unlink()
    assert read_record(tmp_path).missing[0].startswith("rank 1 of 3 has no file")


def test_two_dumps_of_a_rank_are_refused(tmp_path: Path) -> None:
    as_pickle(dumps(tmp_path) / "other_trace_rank_1", dump(1))
    with pytest.raises(InputError, match=r"other_trace_rank_1: is of rank 1, like .*remove one"):
        read_record(tmp_path)


def test_other_groups_are_said_to_count_as_computing(tmp_path: Path) -> None:
    content = dump(0)
    content["entries"].append(entry(1, 5, 1.0, 1.1, process_group=("1", "tensor")))
    as_pickle(dumps(tmp_path) / "nccl_trace_rank_0", content)
    (line,) = read_record(tmp_path).missing
    assert line == "waiting in the collectives of 1 other groups counts as computing here"


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Trap(), "it asks for __builtin__.print, which a dump never does"),
        (b"\x80\x02}", "not a flight recorder dump: Ran out of input"),
        ({"version": "2.4"}, "no list 'entries'; it is no flight recorder dump"),
        (
            dump(0) | {"entries": [entry(k, k, k, k + 0.1) for k in range(1, 9)]},
            "8 collectives that do not repeat 3 times",
        ),
        (
            dump(0) | {"entries": [entry(1, 1, 0, 0, duration_ms="long")]},
            "rank 0: a collective has duration_ms 'long', and no number from 0",
        ),
        (
            dump(0) | {"entries": [entry(1, 1, 0, 0, duration_ms=None)]},
            "1 collectives, none with the times of its start and end; set TORCH_NCCL_ENABLE",
        ),
        (
            dump(0) | {"entries": [entry(k, 1, k, k + 1) for k in range(1, 9)]},
            "the collectives of a rank last as long as the step: they hide its computing",
        ),
    ],
)
def test_a_dump_that_shows_no_steps_gets_one_line(
    content: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        as_pickle(path, content)
    assert re.search(message, message_of(lambda: read_record(tmp_path)))
    assert capsys.readouterr().out == ""


# -- Megatron-LM

SECONDS = {
    "batch-generator": (10, 10),
    "forward-compute": (110, 210),
    "backward-compute": (200, 200),
}
"""Milliseconds of two ranks."""


def log(every: int = 1, names: tuple[str, ...] = tuple(SECONDS), above: str = "") -> str:
    """Blocks as `Timers.log` prints them, the last without its last rank; one before training."""
    blocks = [
        above + "times across ranks (ms):\n  model-and-optimizer-setup:\n     rank  0: 9.00\n"
    ]
    for iteration in range(every, 5 * every + 1, every):
        rows = "".join(
            f"\n  {name}:"
            + "".join(f"\n     rank {r:2d}: {s:.2f}" for r, s in enumerate(SECONDS[name]))
            for name in names
        )
        blocks.append(
            f" [2026-11-26 10:00:00] iteration {iteration:8d}/     100 | consumed samples: 8 | "
            f"elapsed time per iteration (ms): 500.0 | lm loss: 1.0E+00 |\ntimes across ranks (ms):"
            f"{rows}\n"
        )
    return "".join(blocks).rpartition("\n     rank  1")[0] + "\n"


def test_a_log_of_megatron_has_the_parts_of_each_iteration(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(log())
    record = read_record(tmp_path / "train.log")
    assert record.kinds == ("batch-generator", "forward", "backward", "all-reduce")
    seconds = record.duration.reshape(4, 2, 4)
    assert seconds[0] == pytest.approx(np.array([[0.01, 0.1, 0.2, 0.19], [0.01, 0.2, 0.2, 0.09]]))
    assert record.missing == ("blocks that lack a rank are left out: 1",)
    assert metrics(JobReplay.of(Layout.of(record))).replay_error == pytest.approx(1)


def test_means_of_several_iterations_and_tensor_groups_are_said(tmp_path: Path) -> None:
    size = "  tensor_model_parallel_size ...................... 2\n"
    (tmp_path / "train.log").write_text(log(every=10, above=size))
    record = read_record(tmp_path / "train.log")
    assert record.notes[0] == "Derived: a step here is the mean of 10 iterations."
    assert record.missing[0].startswith("2 ranks are a tensor-parallel group, in which waiting")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (log(names=("forward-compute",)), "no iteration has forward-compute and backward-compute"),
        (log().replace("batch-generator", "forward-recv"), "is of a pipeline, whose sums over"),
        (log().replace("elapsed time", "time"), "no iteration has the times of all 2 ranks"),
    ],
)
def test_a_log_that_cannot_be_replayed_gets_one_line(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "train.log").write_text(text)
    assert re.search(message, message_of(lambda: read_record(tmp_path / "train.log")))
