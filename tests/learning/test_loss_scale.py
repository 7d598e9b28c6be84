"""The loss scales of ranks that compute in float16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from simstrag import Scenario, simulate  # noqa: E402
from simstrag.learning import loss_scale, tasks  # noqa: E402
from simstrag.learning.averaging_replay import AveragingReplay  # noqa: E402
from simstrag.learning.batches import Batches, iid_shards  # noqa: E402
from simstrag.learning.gradient_log import GradientLog  # noqa: E402
from simstrag.learning.gradient_replay import GradientReplay  # noqa: E402
from simstrag.learning.gradients import GradientEngine  # noqa: E402
from simstrag.learning.optimizers import OptimizerChoice  # noqa: E402
from simstrag.learning.training import Replay  # noqa: E402
from tests.support.outer_references import log_of_rows  # noqa: E402

BATCH, RATE, FIRST, INTERVAL = 8, 0.02, 2.0**22, 3


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales begin where gradients overflow, and double after three finite steps."""
    monkeypatch.setattr(loss_scale, "FIRST", FIRST)
    monkeypatch.setattr(loss_scale, "INTERVAL", INTERVAL)


def log_of(
    rows: list[tuple[int, int, int, int, int]], amp: bool | list[bool] = True
) -> GradientLog:
    """A log of rows (update, rank, step, version, round), in reduced precision."""
    names = "update", "rank", "step", "version", "round"
    ranks = len({row[1] for row in rows})
    more = {"samples": BATCH, "weight": 1 / ranks}
    log = log_of_rows(
        [dict(zip(names, row, strict=True)) | more for row in rows], max(row[0] for row in rows)
    )
    log._gradients[0]["amp"] = np.broadcast_to(amp, len(rows))
    return log


def replay_of(log: GradientLog, workers: int, kind: Callable[..., Replay] = GradientReplay) -> Any:
    task = tasks.load("tabular")
    drawn = Batches(iid_shards(len(task.inputs), workers, 0), BATCH, 0)
    engine = GradientEngine(task, "fp32", "fp16")
    replay = kind(log, engine, drawn, OptimizerChoice("sgd", RATE, 0.9))
    return replay, replay.run(1.0).parameters


def by_grad_scaler(log: GradientLog, workers: int) -> tuple[torch.Tensor, list[float]]:
    """Updates of one gradient each, by plain torch with a `GradScaler` for each rank."""
    task, rows = tasks.load("tabular"), log.gradients
    drawn = Batches(iid_shards(len(task.inputs), workers, 0), BATCH, 0)
    model, optimizer = task.model, torch.optim.SGD(task.model.parameters(), RATE, 0.9)
    scalers = [torch.amp.GradScaler("cpu", FIRST, growth_interval=INTERVAL) for _ in range(workers)]
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    versions = [flat.clone()]
    for k in range(len(log.times)):
        rank, step = int(rows["rank"][k]), int(rows["step"][k])
        samples = torch.from_numpy(drawn.of([rank], [step], [BATCH]))
        nn.utils.vector_to_parameters(versions[rows["version"][k]].clone(), model.parameters())
        with torch.autocast("cpu", torch.float16):
            out = model(task.inputs[samples])
        loss = (task.loss(out.float(), task.targets[samples]) / BATCH).sum() / workers
        optimizer.zero_grad()
        scalers[rank].scale(loss).backward()
        nn.utils.vector_to_parameters(versions[-1].clone(), model.parameters())
        scalers[rank].step(optimizer)
        scalers[rank].update()
        versions.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    return versions[-1], [scaler.get_scale() for scaler in scalers]


def test_one_worker_in_float16_is_torchs_grad_scaler() -> None:
    log = log_of([(k + 1, 0, k, k, -1) for k in range(30)])
    replay, found = replay_of(log, 1)
    wanted, (scale,) = by_grad_scaler(log, 1)
    assert torch.equal(found, wanted)
    assert replay.scales[0].value == scale < FIRST


def test_each_worker_has_a_loss_scale_of_its_own() -> None:
    turns = [0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]
    steps = [turns[:k].count(rank) for k, rank in enumerate(turns)]
    pulls = [max((j + 1 for j in range(k) if turns[j] == rank), default=0)
             for k, rank in enumerate(turns)]  # fmt: skip
    rows = [(k + 1, turns[k], steps[k], pulls[k], -1) for k in range(len(turns))]
    replay, found = replay_of(log_of(rows), 2)
    wanted, scales = by_grad_scaler(log_of(rows), 2)
    assert torch.allclose(found, wanted, rtol=1e-6, atol=1e-7)
    assert [replay.scales[rank].value for rank in range(2)] == scales
    assert scales[0] != scales[1]


def test_an_update_that_overflows_lowers_the_scale_of_every_reduced_rank_in_it() -> None:
    """Rank 0 overflows; rank 1 would not at 2**10; rank 2 is in full precision."""
    log = log_of([(1, rank, 0, 0, -1) for rank in range(3)], [True, True, False])
    task = tasks.load("tabular")
    drawn = Batches(iid_shards(len(task.inputs), 3, 0), BATCH, 0)
    engine = GradientEngine(task, "fp32", "fp16")
    replay = GradientReplay(log, engine, drawn, OptimizerChoice())
    replay.scales[1].value = 2.0**10
    with torch.no_grad():
        replay.apply(1)
    assert torch.equal(replay.parameters, engine.initial)
    assert {rank: one.value for rank, one in replay.scales.items()} == {0: FIRST / 2, 1: 2.0**9}


def test_a_private_step_that_overflows_is_skipped_by_its_rank_alone() -> None:
    log = log_of([(1, rank, step, 0, -1) for rank in range(2) for step in range(3)])
    log._gradients[0]["amp"] = np.array([True] * 3 + [False] * 3)
    log._gradients[0]["weight"] = np.full(6, 1 / 6)
    replay, found = replay_of(log, 2, AveragingReplay)
    assert replay.scales.keys() == {0}
    assert replay.scales[0].value == FIRST / 8
    in_full = log_of([(1, 1, step, 0, -1) for step in range(3)], amp=False)
    in_full._gradients[0]["weight"] = np.full(3, 1 / 3)
    _, other = replay_of(in_full, 2, AveragingReplay)
    assert torch.allclose(found, (replay.engine.initial + other) / 2, rtol=1e-6, atol=1e-7)


def test_a_round_that_overflows_is_left_out_of_its_update(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(1, 0, step, 0, step) for step in range(5)]
    replay, found = replay_of(log_of([*rows, (1, 0, 5, 0, -1)]), 1)
    skipped = replay._groups.skipped
    assert skipped == {0, 1, 2, 3}
    rest = range(len(skipped), 5)
    late = log_of([*((1, 0, step, 0, k) for k, step in enumerate(rest)), (1, 0, 5, 0, -1)])
    monkeypatch.setattr(loss_scale, "FIRST", FIRST / 2 ** len(skipped))
    assert torch.equal(replay_of(late, 1)[1], found)


def test_a_scenario_trains_in_float16() -> None:
    learner = {"kind": "real", "task": "digits", "batch": BATCH, "amp": "fp16"}
    keys = {"workers": 2, "samples": 1280, "step": {"compute": 0.1, "amp_ratio": 1.5}}
    run = simulate(Scenario(**keys, learner=learner), "amp_all")
    assert run.summary["accuracy"] > 0.5
