"""Records of several groups: HSDP, FSDP2 with tensor parallelism, pipelines, on ranks of gloo."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import ProcessGroup, Work
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import simstrag
from simstrag.ddp import record
from simstrag.ddp.collector import group_waits
from simstrag.ddp.collector.group_waits import GroupWaits
from simstrag.ddp.collector.groups import GroupLabels
from simstrag.ddp.collector.stand_ins import StandIns
from simstrag.ddp.collector.step_marks import StepMarks
from simstrag.whatif.diagnosis import Diagnosis
from simstrag.workloads.clocks import HostClock
from tests.support.ranks import Ranks, ranks
from tests.support.virtual_time import virtual_time

__all__ = ["ranks"]

USUAL, LATE, STEPS = 0.04, 0.12, 24
"""Seconds of each forward, by which slow ranks are late in it, and the steps that are recorded."""
DIMENSIONS = {"HSDP": ("replicate", "shard"), "FSDP2 x TP": ("dp", "tp")}


class Block(nn.Module):
    """Two layers whose forward takes told seconds, which differ a little from step to step."""

    def __init__(self, compute: Callable[[float], None], seconds: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.compute, self.seconds = compute, seconds
        self.draw = np.random.default_rng(dist.get_rank())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.compute(self.seconds * self.draw.uniform(0.98, 1.02))
        return self.down(self.up(x).relu())


def wrapped(wrapper: str, compute: Callable[[float], None], seconds: float) -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block(compute, seconds / 2) for _ in range(2)]
    model = nn.Sequential(*blocks, nn.Linear(8, 1))
    if wrapper == "TP":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in blocks:
            parallelize_module(block, mesh, plan)
        return model
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=DIMENSIONS[wrapper])
    if wrapper == "FSDP2 x TP":
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in blocks:
            parallelize_module(block, mesh["tp"], plan)
        mesh = mesh["dp"]
    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model: nn.Module, rank: int, wrapper: str) -> str:
    """The loss after all steps, all its digits."""
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    share = {"FSDP2 x TP": rank // 2, "TP": 0}.get(wrapper, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(share))
    loss = torch.zeros(())
    for _ in range(STEPS + 3):
        optimizer.zero_grad()
        loss = mse_loss(model(x), torch.ones(4, 1))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return float(loss.detach()).hex()


def rank_records(rank: int, world: int, wrapper: str, folder: str, slow: list[int]) -> str:
    with virtual_time() as clock:
        model = wrapped(wrapper, clock.compute, USUAL + LATE * (rank in slow))
        with record(model, folder, look_every=0):
            return train(model, rank, wrapper)


def rank_trains(rank: int, world: int, wrapper: str) -> str:
    """Without a recorder, and without virtual time."""
    return train(wrapped(wrapper, lambda _: None, 0.0), rank, wrapper)


def names_of(found: Diagnosis) -> list[str]:
    """What is named: groups, and the ranks that are of none."""
    assert found.steps is not None
    groups = found.steps.groups
    grouped = {each.rank for group in groups for each in group.members}
    single = sorted(each.rank for each in found.steps.culprits if each.rank not in grouped)
    return [*(group.name for group in groups), *(f"rank {rank}" for rank in single)]


def seconds_of(found: Diagnosis) -> Any:
    """Seconds that each rank computes in a step, the median of steps."""
    assert found.steps is not None
    return np.median(found.steps.replay.alone(), axis=1)


def replay_errors(found: Diagnosis) -> Any:
    """Recorded over replayed seconds of each step."""
    assert found.steps is not None
    return found.steps.metrics.replay_error_by_step


@pytest.mark.parametrize(
    ("wrapper", "slow", "name"),
    [
        pytest.param("HSDP", [1], "rank 1", marks=pytest.mark.thorough),
        ("HSDP", [2, 3], "replica 1"),
        ("HSDP", [1, 3], "shard 1"),
        pytest.param("FSDP2 x TP", [2], "rank 2", marks=pytest.mark.thorough),
        pytest.param("FSDP2 x TP", [0, 1], "replica 0", marks=pytest.mark.thorough),
        ("FSDP2 x TP", [1, 3], "tensor-parallel rank 1"),
    ],
)
def test_slow_ranks_are_named_by_what_they_are_together_and_recording_changes_no_bit(
    wrapper: str, slow: list[int], name: str, ranks: Ranks, tmp_path: Path
) -> None:
    losses = ranks.run(rank_records, 4, wrapper, str(tmp_path / "run"), slow)
    assert losses == ranks.run(rank_trains, 4, wrapper)
    rows = (tmp_path / "run" / "rank-3.csv").read_text().splitlines()
    dims = {row.rsplit(",", 1)[1].partition(":")[0] for row in rows[1:]} - {""}
    assert dims == {*DIMENSIONS[wrapper]}
    found = simstrag.diagnose(tmp_path / "run", compare=[])
    assert names_of(found) == [name]
    seconds, usual = seconds_of(found), [k for k in range(4) if k not in slow]
    for rank in slow:
        assert seconds[rank] - seconds[usual].mean() == pytest.approx(LATE, rel=0.03)
    assert found.steps is not None
    fix = next(each for each in found.steps.fixes if each.kind == "worker")
    assert fix.name == f"{name} like the others"
    assert fix.seconds == pytest.approx(LATE, rel=0.03)
    assert replay_errors(found) == pytest.approx(1, abs=1e-4)


def rank_closes(rank: int, world: int) -> bool:
    places = [
        (dist, "all_reduce"), (functional, "all_reduce"), (functional, "wait_tensor"),
        (ProcessGroup, "send"), (Work, "wait"),
    ]  # fmt: skip
    before = [vars(owner)[name] for owner, name in places]
    recorder = record(wrapped("TP", time.sleep, 0.0), look_every=0)
    during = [vars(owner)[name] for owner, name in places]
    recorder.close()
    assert all(a is not b for a, b in zip(before, during, strict=True))
    return all(a is vars(owner)[name] for a, (owner, name) in zip(before, places, strict=True))


def test_a_closed_recorder_leaves_the_functions_of_torch_as_they_were(ranks: Ranks) -> None:
    assert all(ranks.run(rank_closes, 2))


def test_tensor_parallelism_alone_is_recorded_by_optimizer_steps(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(rank_records, 2, "TP", str(tmp_path / "run"), [1])
    found = simstrag.diagnose(tmp_path / "run", compare=[])
    assert len(np.unique(found.record.step)) == STEPS
    seconds = seconds_of(found)
    assert seconds[1] - seconds[0] == pytest.approx(LATE, rel=0.03)


def rank_has_part(rank: int, world: int, folder: str) -> None:
    groups = [dist.new_group([k, k + 1]) for k in (0, 2)]
    with virtual_time() as clock:
        inner = nn.Sequential(Block(clock.compute, USUAL + LATE * (rank == 3)), nn.Linear(8, 1))
        model = DistributedDataParallel(inner, process_group=groups[rank // 2])
        with record(model, folder, look_every=0):
            train(model, rank, "DDP")


def test_ddp_in_groups_of_its_own_is_told_apart_by_their_lowest_ranks(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(rank_has_part, 4, str(tmp_path / "run"))
    last = [(tmp_path / "run" / f"rank-{k}.csv").read_text().splitlines()[-1] for k in range(4)]
    assert [row.rsplit(",", 1)[1] for row in last] == ["group:0", "group:0", "group:2", "group:2"]
    found = simstrag.diagnose(tmp_path / "run", compare=[])
    assert len(np.unique(found.record.step)) == STEPS
    assert names_of(found) == ["rank 3"]


def rank_pipes(rank: int, world: int, folder: str, slow: list[int], sharded: bool) -> list[str]:
    """The losses of the last steps of two replicas of two stages, four micro-batches a step."""
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    number = mesh["pp"].get_local_rank()
    torch.manual_seed(number)
    losses: list[torch.Tensor] = []
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(rank // 2))
    with virtual_time() as clock:
        model: nn.Module = Block(clock.compute, (USUAL + LATE * (rank in slow)) / 4)
        if sharded:
            model = fully_shard(model, mesh=mesh["dp"])
        stage = PipelineStage(model, number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
        schedule = Schedule1F1B(stage, 4, loss_fn=mse_loss)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorded = contextlib.nullcontext()
        with recorded if not folder else record(model, folder, look_every=0, mesh=mesh):
            for _ in range(STEPS + 3):
                optimizer.zero_grad()
                if number:
                    schedule.step(target=torch.ones(8, 8), losses=losses)
                else:
                    schedule.step(x)
                optimizer.step()
    return [float(each.detach()).hex() for each in losses]


def test_a_slow_rank_of_a_pipeline_is_named_with_its_stage_and_changes_no_bit(
    ranks: Ranks, tmp_path: Path
) -> None:
    with_record = ranks.run(rank_pipes, 4, str(tmp_path / "run"), [2], True)
    assert with_record == ranks.run(rank_pipes, 4, "", [2], True)
    found = simstrag.diagnose(tmp_path / "run", compare=[])
    assert found.steps is not None
    ((rank, replica, stage),) = [(c.rank, c.replica, c.stage) for c in found.steps.culprits]
    assert (rank, replica, stage) == (2, 1, 0)
    fix = next(each for each in found.steps.fixes if each.kind == "worker")
    assert fix.seconds == pytest.approx(LATE, rel=0.03)
    assert replay_errors(found) == pytest.approx(1, abs=1e-4)


def test_a_slow_stage_is_named_where_it_is_slow_in_all_replicas(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(rank_pipes, 4, str(tmp_path / "run"), [1, 3], False)
    found = simstrag.diagnose(tmp_path / "run", compare=[])
    assert found.steps is not None
    assert [each.subject for each in found.steps.causes] == ["stage 1"]
    assert not found.steps.culprits


# -- without ranks: waits of a bare model --------------------------------------------------------


@contextlib.contextmanager
def waits_of(model: nn.Module) -> Iterator[StepMarks]:
    """The marks of a model that is in no group."""
    marks, stand_ins = StepMarks(HostClock(""), settling=1), StandIns()
    GroupWaits(model, marks, GroupLabels([]), stand_ins)
    try:
        yield marks
    finally:
        stand_ins.close()


def test_an_optimizer_whose_first_group_is_empty_ends_the_step() -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    groups = [{"params": []}, {"params": [*other.parameters(), *model.parameters()]}]
    empty = torch.optim.SGD([{"params": []}, {"params": other.parameters()}], lr=0.1)
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with waits_of(model) as marks:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            empty.step()
            optimizer.step()
        assert [each.step for each in marks.known()] == [1]


def test_a_send_in_a_group_that_torch_does_not_know_is_no_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(ProcessGroup, "send", lambda _, tensors, dstRank, tag: sent.append(dstRank))
    group = ProcessGroup(dist.HashStore(), 0, 2)
    with waits_of(nn.Linear(2, 1)) as marks:
        group.send([torch.ones(1)], 1, 0)
        group.send([torch.ones(1)], dstRank=2, tag=0)
        assert not marks.has_begun
    assert sent == [1, 2]


def test_works_that_nobody_waits_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_waits, "MOST_WORKS", 2)
    waits = GroupWaits(nn.Linear(2, 1), StepMarks(HostClock("")), GroupLabels([]), StandIns())
    waits._stand_ins.close()
    works: list[Any] = [object() for _ in range(5)]
    for work in works:
        waits._keep(work, "dp:0")
    assert [work for work, _ in waits._works.values()] == works[-2:]
