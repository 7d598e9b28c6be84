"""The collector: who computed and who waited, in DDP and FSDP2 on real ranks of gloo."""

from __future__ import annotations

import contextlib
import errno
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import simstrag.ddp.collector.record as recording
from simstrag.ddp import record
from simstrag.ddp.collector import step_marks
from simstrag.ddp.collector.hooks import EndOfBackward
from simstrag.ddp.collector.record import BEFORE, PART, Looks, StepFile, StepRecorder
from simstrag.ddp.collector.stand_ins import StandIns
from simstrag.ddp.collector.step_marks import StepMarks, StepSeconds
from simstrag.errors import InputError
from simstrag.records.read import read_record
from simstrag.records.record import Record
from simstrag.workloads.clocks import HostClock
from tests.support.ranks import Ranks, ranks
from tests.support.virtual_time import virtual_time

__all__ = ["ranks"]

USUAL, LATE, STEPS = 0.02, 0.06, 12
"""Seconds of each forward, by which rank 1 is late in it, and the steps that are recorded."""

OPTIMIZER = 0.01
"""Seconds of each step after its backward."""
EXACT = 5e-6
"""Seconds by which the sum of a step's rows differs from what was told: they have six decimals."""

WRAPPERS = ["DistributedDataParallel", "fully_shard"]


class Layer(nn.Module):
    """A layer whose forward takes seconds of its own."""

    def __init__(self, compute: Callable[[float], None], seconds: float) -> None:
        super().__init__()
        self.linear, self.compute, self.seconds = nn.Linear(8, 8), compute, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.compute(self.seconds)
        return self.linear(x).relu()


def wrapped(
    wrapper: str, compute: Callable[[float], None] = time.sleep, seconds: float = 0.0
) -> nn.Module:
    """A model; for a test on the host's clock, sleeping is computing."""
    torch.manual_seed(0)
    layers = [Layer(compute, seconds / 2) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(8, 1))
    if wrapper == "DistributedDataParallel":
        return DistributedDataParallel(model)
    for layer in layers:
        fully_shard(layer)
    return fully_shard(model)  # type: ignore[no-any-return]


def train(model: nn.Module, rank: int, steps: int) -> float:
    """The loss after some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mse_loss(model(x), torch.ones(4, 1))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return float(loss.detach())


def rank_records(rank: int, world: int, wrapper: str, folder: str, late: float) -> float:
    with virtual_time() as clock:
        model = wrapped(wrapper, clock.compute, USUAL + late * (rank == 1))
        with record(model, folder, look_every=0):
            return train(model, rank, STEPS + 3)


def rank_trains(rank: int, world: int, wrapper: str) -> float:
    """Without a recorder, and without virtual time."""
    return train(wrapped(wrapper), rank, STEPS + 3)


def seconds_of(record: Record, name: str) -> Any:
    """Seconds of all parts of a name, shape (steps, ranks)."""
    own = record.duration * (record.kind == record.kinds.index(name))
    return own.reshape(len(np.unique(record.step)), len(np.unique(record.rank)), -1).sum(axis=-1)


def rank_sums_before_each_step(rank: int, world: int, wrapper: str, folder: str) -> None:
    """As trainers that count the tokens of a step do; rank 1 is late with its batch."""
    with virtual_time() as clock:
        model = wrapped(wrapper, clock.compute, USUAL)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record(model, folder, look_every=0):
            for _ in range(STEPS + 3):
                clock.compute(LATE * (rank == 1))
                dist.all_reduce(torch.ones(1))
                optimizer.zero_grad()
                mse_loss(model(torch.ones(4, 8)), torch.ones(4, 1)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_rank_that_waits_in_the_scripts_own_collectives_does_not_compute(
    wrapper: str, ranks: Ranks, tmp_path: Path
) -> None:
    before = dist.all_reduce
    ranks.run(rank_sums_before_each_step, 2, wrapper, str(tmp_path))
    found = read_record(tmp_path)
    computing = seconds_of(found, "compute") + seconds_of(found, BEFORE)
    assert computing == pytest.approx(np.tile([USUAL, USUAL + LATE], (STEPS, 1)), abs=EXACT)
    assert dist.all_reduce is before


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_late_rank_computes_while_the_others_wait_and_recording_changes_no_bit(
    wrapper: str, ranks: Ranks, tmp_path: Path
) -> None:
    losses = ranks.run(rank_records, 3, wrapper, str(tmp_path / "run"), LATE)
    assert losses == ranks.run(rank_trains, 3, wrapper)
    found = read_record(tmp_path / "run")
    assert found.kinds == (BEFORE, *PART)
    assert found.missing == ()
    computing, waiting = (seconds_of(found, stage) for stage in PART)
    late = np.tile([0, LATE, 0], (STEPS, 1))
    assert computing == pytest.approx(USUAL + late, abs=EXACT)
    assert waiting == pytest.approx(LATE - late, abs=EXACT)
    assert len(np.unique(found.step)) == STEPS


def rank_sleeps(rank: int, world: int, folder: str) -> None:
    model = wrapped("fully_shard", time.sleep, USUAL * (rank == 1))
    with record(model, folder, look_every=0):
        train(model, rank, STEPS + 3)


def test_on_the_clock_of_the_host_a_rank_computes_at_least_as_long_as_it_sleeps(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(rank_sleeps, 2, str(tmp_path / "run"))
    computing = seconds_of(read_record(tmp_path / "run"), "compute")
    assert computing.shape == (STEPS, 2)
    assert computing[:, 1].min() >= USUAL - EXACT


def rank_is_named(rank: int, world: int) -> tuple[list[str], tuple[int, float] | None, int]:
    said = list[str]()
    with virtual_time() as clock:
        model = wrapped("DistributedDataParallel", clock.compute, 0.01 if rank == 1 else 0.002)
        with record(model, look_every=0.1) as recorder:
            if rank == 0:
                recorder._looks._slow[0]._say = said.append  # type: ignore[union-attr]
            assert recorder.latest() is None
            train(model, rank, 120)
            latest, slowest = recorder.latest(), recorder.slowest()
    assert latest is not None
    return said, slowest, latest.step


def test_a_slow_rank_is_named_while_the_job_runs(ranks: Ranks) -> None:
    (said, slowest, latest), *others = ranks.run(rank_is_named, 3)
    assert [line.partition(":")[0] for line in said] == ["rank 1 is chronically slow"]
    assert slowest is not None
    assert slowest[0] == 1
    assert slowest[1] == pytest.approx(5)
    assert latest == 119
    assert [slowest for _, slowest, _ in others] == [None, None]


def rank_0_looks(
    monkeypatch: pytest.MonkeyPatch,
    step: float,
    order: list[int],
    slow: tuple[int, ...] = (2,),
    stages: dict[int, int] | None = None,
) -> list[str]:
    """What rank 0 says in a minute of steps, whose ends ranks reach in this order."""
    now, store, said = [0.0], dict[str, bytes](), list[str]()
    fake = SimpleNamespace(set=store.__setitem__, multi_get=lambda keys: [store[k] for k in keys])
    monkeypatch.setattr(recording, "PrefixStore", lambda *_: fake)
    monkeypatch.setattr(recording, "_get_default_store", lambda: None)
    monkeypatch.setattr(recording.plain_collectives, "broadcast", lambda value, **_: value)
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    device, world = torch.device("cpu"), len(order)
    looks = [Looks(rank, world, 10.0, 1.0, device, stages) for rank in range(world)]
    for each in looks[0]._slow:
        each._say = said.append
    known, collected = dict.fromkeys(order, 0), {rank: rank / 10 for rank in order}
    draw = np.random.default_rng(0)
    for number in range(1, round(60 / step)):
        now[0] = number * step
        for rank in order:
            if now[0] >= collected[rank] + 1:
                new = range(known[rank], number)
                each = draw.normal(step / 2, step / 50, len(new)) * (1.5 if rank in slow else 1.0)
                looks[rank].add(
                    [StepSeconds(k, s, ()) for k, s in zip(new, each.tolist(), strict=True)]
                )
                known[rank], collected[rank] = number, now[0]
    return said


@pytest.mark.parametrize("step", [0.015, 0.03, 0.1])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_rank_0_looks_once_all_have_sent_whoever_is_first(
    step: float, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = rank_0_looks(monkeypatch, step, order)
    assert [line.partition(":")[0] for line in said] == ["rank 2 is chronically slow"]


def test_ranks_of_a_pipeline_are_compared_with_those_of_their_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages = {0: 0, 1: 1, 2: 0, 3: 1}
    assert rank_0_looks(monkeypatch, 0.1, [0, 1, 2, 3], slow=(1, 3), stages=stages) == []
    said = rank_0_looks(monkeypatch, 0.1, [0, 1, 2, 3], slow=(1,), stages=stages)
    assert [line.partition(":")[0] for line in said] == ["rank 1 is chronically slow"]


def test_a_recorder_that_was_closed_keeps_no_step(tmp_path: Path) -> None:
    recorder = recorder_on(Full(room=1000), tmp_path)
    recorder.close()
    recorder._marks.mark = time.monotonic
    for _ in range(3):
        recorder._marks.end()
    assert not recorder._marks._ended


def rank_fails_to_attach(rank: int, world: int, folder: str) -> bool:
    before, attached = dist.all_reduce, vars(recording)["mark_collectives"]

    def fails(*arguments: Any) -> None:
        attached(*arguments)
        raise MemoryError

    vars(recording)["mark_collectives"] = fails
    try:
        with pytest.raises(MemoryError):
            record(wrapped("DistributedDataParallel"), folder, look_every=0)
    finally:
        vars(recording)["mark_collectives"] = attached
    return dist.all_reduce is before


def test_a_recorder_that_fails_half_way_leaves_torch_as_it_was(
    ranks: Ranks, tmp_path: Path
) -> None:
    assert ranks.run(rank_fails_to_attach, 1, str(tmp_path / "run")) == [True]


def rank_is_refused(rank: int, world: int, folder: str) -> list[str]:
    messages, before = [], dist.all_reduce
    for model in (nn.Linear(1, 1), wrapped("DistributedDataParallel")):
        with pytest.raises(InputError) as refused:
            record(model, folder, look_every=0)
        messages.append(str(refused.value))
    assert dist.all_reduce is before
    return messages


def test_a_bare_model_and_a_folder_with_a_record_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "rank-0.csv").touch()
    ((bare, second),) = ranks.run(rank_is_refused, 1, str(tmp_path))
    assert bare.endswith("not a bare Linear; call it after wrapping")
    assert second.endswith("rank-0.csv: a job was recorded there; choose another folder")


def rank_accumulates(rank: int, world: int, folder: str, wrapper: str, unused: bool) -> None:
    """Two micro-steps in each step, of which the first reduces no gradients, and an evaluation."""
    is_ddp = wrapper == "DistributedDataParallel"
    with virtual_time() as clock:
        model: Any = Layer(clock.compute, USUAL + LATE * (rank == 1))
        if is_ddp:
            model = DistributedDataParallel(model, find_unused_parameters=unused)
        else:
            fully_shard(model)
        x, y = torch.randn(4, 8), torch.ones(4, 8)
        with record(model, folder, look_every=0):
            for number in range(2 * (STEPS + 3)):
                is_synced = bool(number % 2)
                if not is_ddp:
                    model.set_requires_gradient_sync(is_synced)
                with model.no_sync() if is_ddp and not is_synced else contextlib.nullcontext():
                    mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
                clock.compute(OPTIMIZER * is_synced)


@pytest.mark.parametrize(
    ("wrapper", "unused"), [(WRAPPERS[0], False), (WRAPPERS[0], True), (WRAPPERS[1], False)]
)
def test_a_step_has_the_computing_of_all_its_micro_steps(
    wrapper: str, unused: bool, ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(rank_accumulates, 2, str(tmp_path / "run"), wrapper, unused)
    found = read_record(tmp_path / "run")
    assert len(np.unique(found.step)) == STEPS
    before, computing, waiting = (seconds_of(found, stage) for stage in (BEFORE, *PART))
    assert before == pytest.approx(np.full((STEPS, 2), OPTIMIZER), abs=EXACT)
    assert computing == pytest.approx(2 * np.tile([USUAL, USUAL + LATE], (STEPS, 1)), abs=EXACT)
    assert waiting == pytest.approx(2 * np.tile([LATE, 0], (STEPS, 1)), abs=EXACT)


def rank_evaluates(rank: int, world: int, folder: str, wrapper: str) -> None:
    """An evaluation after each step."""
    model = wrapped(wrapper)
    x = torch.randn(4, 8)
    with record(model, folder, look_every=0):
        for _ in range(STEPS + 3):
            mse_loss(model(x), torch.ones(4, 1)).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                model(x)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_an_evaluation_ends_no_step(wrapper: str, ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(rank_evaluates, 2, str(tmp_path / "run"), wrapper)
    assert len(np.unique(read_record(tmp_path / "run").step)) == STEPS


def test_a_killed_job_leaves_whole_steps(tmp_path: Path) -> None:
    for rank in (0, 1):
        file = StepFile(tmp_path, rank)
        file.add([StepSeconds(step, 0.1, ((0.2, 0.3),)) for step in range(3 + rank)])
        file._file.close()  # as the kernel does
    found = read_record(tmp_path)
    assert np.unique(found.step).tolist() == [0, 1, 2]
    assert found.missing == ("steps whose ranks or stages are not those of most are left out: 1",)


def test_steps_are_written_once_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, now = list[tuple[int, int]](), itertools.count()
    monkeypatch.setattr(step_marks.time, "monotonic", lambda: next(now) / 2)
    marks = StepMarks(Told(*range(100)), settling=1, pause=5)
    for step in range(25):
        marks.on_end = lambda step=step: calls.append((step, len(list(marks.known()))))
        marks.end()
    assert calls == [(9, 9), (19, 10)]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: is a file; choose a folder that does not exist"):
        StepFile(tmp_path / "file", 0)


class Owner:
    """A class with a function for which others stand in."""

    @staticmethod
    def add(x: int) -> int:
        return x


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_recorders_closed_in_any_order_leave_torch_as_it_was(order: tuple[int, int]) -> None:
    before, called = Owner.add, list[int]()

    def standing(number: int) -> StandIns:
        def wrap(original: Any) -> Any:
            def call(x: int) -> Any:
                called.append(number)
                return original(x)

            return call

        stand_ins = StandIns()
        stand_ins.replace(Owner, "no_such_function", wrap)
        stand_ins.replace(Owner, "add", wrap)
        return stand_ins

    for _ in range(2):
        both = [standing(0), standing(1)]
        assert (Owner.add(5), called) == (5, [1, 0])
        both[order[0]].close()
        called.clear()
        assert (Owner.add(5), called) == (5, [order[1]])
        both[order[1]].close()
        called.clear()
        assert Owner.add is before


class Full:
    """A file on a disk that fills up: it takes some bytes, five at a time, and then none."""

    def __init__(self, room: int) -> None:
        self.room, self.taken, self.closed = room, b"", False

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(self.room, 5, len(data))
        self.room, self.taken = self.room - taken, self.taken + data[:taken]
        return taken

    def close(self) -> None:
        self.closed = True


def recorder_on(disk: Full, folder: Path) -> StepRecorder:
    """A recorder without ranks and model, with a step that it has not written."""
    recorder = StepRecorder.__new__(StepRecorder)
    recorder.rank, recorder._looks, recorder._latest, recorder._waits = 0, None, None, StandIns()
    recorder._marks = StepMarks(Told(0, 1, 2), settling=1)
    recorder._file = StepFile(folder, 0)
    recorder._file._file.close()
    recorder._file._file = disk  # type: ignore[assignment]
    for mark in ("end", "enter", "leave", "end"):
        getattr(recorder._marks, mark)()
    return recorder


def test_a_recorder_that_fails_to_collect_leaves_torch_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Full(room=1000)
    recorder = recorder_on(disk, tmp_path)
    recorder._waits.replace(Owner, "add", lambda original: original)
    monkeypatch.setattr(recorder, "_collect", lambda: 1 / 0)
    before = recorder._waits.are_in_place
    with pytest.raises(ZeroDivisionError):
        recorder.close()
    assert (before, recorder._waits.are_in_place, disk.closed) == (True, False, True)


def test_a_full_disk_ends_the_record_with_a_warning_and_not_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Full(room=12)
    with recorder_on(disk, tmp_path) as recorder:
        recorder._collect()
    assert "the record of rank 0 ends: No space left on device" in capsys.readouterr().err
    assert disk.closed


def test_what_a_write_leaves_is_written_next(tmp_path: Path) -> None:
    disk = Full(room=1000)
    recorder_on(disk, tmp_path).close()
    assert [row.split(b",")[2] for row in disk.taken.splitlines()] == [
        BEFORE.encode(), b"compute", b"all-reduce",
    ]  # fmt: skip


def test_a_backward_that_raises_ends_no_later_step() -> None:
    """Its callbacks never run, because the engine drops them; the forward is tried again."""
    marks = StepMarks(HostClock(""), settling=1)
    watched, weight = EndOfBackward(marks), torch.ones(1, requires_grad=True)

    def step(fails: bool) -> None:
        watched.begin(is_synced=True)
        middle = weight * 2
        if fails:
            middle.register_hook(raises)  # type: ignore[no-untyped-call]
        output = middle * 2
        watched.watch(output)
        output.backward()  # type: ignore[no-untyped-call]

    def raises(_: torch.Tensor) -> None:
        raise MemoryError

    step(fails=False)
    with pytest.raises(MemoryError):
        step(fails=True)
    step(fails=False)
    assert len(list(marks.known())) == 1


def test_a_rank_without_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "meta.yaml").write_text("world_size: 3\n")
    for rank in (0, 2):
        (tmp_path / f"rank-{rank}.csv").write_text(f"rank,step,seconds\n{rank},0,0.1\n")
    assert read_record(tmp_path).missing[0].startswith("rank 1 of 3 has no file")


class Told:
    """A clock whose marks are the seconds that a test gives."""

    reason, immediate = "", True

    def __init__(self, *marks: float) -> None:
        self.marks = list(marks)

    def mark(self) -> float:
        return self.marks.pop(0)

    def is_past(self, mark: float) -> bool:
        return mark < 100

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def taken(self, begin: float, end: float) -> float:
        return 0.0


def test_the_seconds_of_a_step_by_hand() -> None:
    """1 s before the forward, then 1 computes and 2 wait, 1 and 3, which end the step."""
    marks = StepMarks(Told(0, 1, 2, 4, 5, 8), settling=1)
    marks.end()
    marks.forward()
    for _ in range(2):
        marks.enter()
        marks.enter()
        marks.leave()
        marks.leave()
    marks.end()
    assert list(marks.known()) == [StepSeconds(1, before=1, parts=((1, 2), (1, 3)))]


def test_waits_of_an_evaluation_are_none_of_the_next_step() -> None:
    """The wait for a token count comes after it, with gradients on, and is one of the step."""
    marks = StepMarks(Told(0, 1, 2, 3, 4, 8), settling=1)
    marks.end()
    with torch.no_grad():
        for _ in range(3):
            marks.forward_without_gradients()
            marks.enter()
            marks.leave()
            marks.waited(0.5, 0.6)
    marks.enter()
    marks.leave()
    marks.forward()
    with torch.no_grad():  # as the optimizer and FSDP2's backward are
        marks.forward_without_gradients()
        marks.enter()
        marks.leave()
    marks.end()
    assert [len(each.parts) for each in marks.known()] == [2]


def test_a_step_with_too_many_marks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_marks, "MOST", 20)
    marks = StepMarks(HostClock(""), settling=1)
    marks.end()
    for waits in (100, 3):
        for _ in range(waits):
            marks.waited(marks.mark(), marks.mark())
            marks.enter()
            marks.leave()
        assert len(marks._marks) < 24
        marks.end()
    assert [(each.step, len(each.parts)) for each in marks.known()] == [(2, 6)]


def test_a_rank_that_is_alone_waits_for_none() -> None:
    marks = StepMarks(Told(0, 1, 3), settling=1)
    marks.end()
    marks.forward()
    marks.end()
    assert list(marks.known()) == [StepSeconds(1, before=1, parts=((2, 0),))]


def test_a_step_is_known_once_when_the_device_has_passed_its_end() -> None:
    marks = StepMarks(Told(0, 1, 2, 101), settling=1)
    for _ in range(4):
        marks.end()
    assert [each.step for each in marks.known()] == [1, 2]
    assert [each.step for each in marks.known()] == []
