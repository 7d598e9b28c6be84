"""The gradient noise scale as real ranks measure it: the same everywhere, and in every mode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from simstrag.contract import Plan, Quorum, Via, View
from simstrag.ddp.journal.journal import read_journal
from simstrag.ddp.journal.run_from_journal import MeasuredNorms, run_of
from simstrag.ddp.policy_support import profile_hints
from simstrag.learning.noise_scale_estimate import NoiseAverages
from tests.ddp.test_ddp_trainer import BATCH, refused, task, train
from tests.support.full_profile import full_profile
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

STEPS = 24


@dataclass(frozen=True)
class Commanded:
    """All gradients by an all-reduce that the server commands."""

    def plan(self, view: View) -> Plan:
        return Plan.standing(Quorum(count=view.world_size, via=Via.LEADER))


def training(rank: int, world: int, policy: Any, out: str) -> None:
    """The same batches under every policy: a server begins with steps that do not count."""
    from simstrag.ddp import wrap

    model, optimizer, _ = task(rank)
    luck, samples = torch.Generator().manual_seed(rank), STEPS * world * BATCH
    with wrap(
        model, optimizer, policy, batch=BATCH, samples=samples, precision="full", out=out
    ) as trainer:
        while not trainer.over:
            x, y = torch.randn(BATCH, 16, generator=luck), torch.arange(BATCH) % 4
            trainer.step(partial(loss_of, model, x, y))


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y)


def norms_of(folder: Path) -> list[list[float]]:
    _, lines = read_journal(folder)
    return [values for kind, *values in lines if kind == "norms"]


def test_a_server_measures_what_an_all_reduce_does(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(training, 3, "bsp", str(tmp_path / "bsp"))
    one = norms_of(tmp_path / "bsp")
    assert len(one) >= 20
    for name, policy in {"served": "bsp:via=server", "tree": "tree", "led": Commanded()}.items():
        ranks.run(training, 3, policy, str(tmp_path / name))
        for here, there in zip(one, norms_of(tmp_path / name), strict=False):
            assert here[0] == there[0], name
            assert here[1:] == pytest.approx(there[1:], rel=1e-3), name
            assert here[3:] == [BATCH, 3 * BATCH]
        run = run_of(tmp_path / name)
        assert run.summary["noise_scale_low"] <= run.summary["noise_scale"], name
        assert run.summary["progress"] > 0, name
        assert run.summary["progress_unknown"] is None, name
        assert 0 < run.summary["efficiency"] <= 1, name


def test_a_resumed_part_that_measured_too_little_has_the_estimate_without_an_interval() -> None:
    known = NoiseAverages(signal=1.0, noise=5.0, pairs=16)
    names = "noise_scale", "noise_scale_low", "noise_scale_high"
    assert MeasuredNorms([], 4).summary(known) == dict(zip(names, (5.0, None, None), strict=True))


def measuring(rank: int, world: int, policy: str) -> tuple[Any, ...]:
    """What a rank knows of the noise at the end, and after it has taken that up again."""
    from simstrag.ddp import wrap
    from simstrag.ddp.allreduce.allreduce_mode import AllReduceMode

    model, optimizer, loss = task(rank)
    with wrap(model, optimizer, policy, batch=BATCH, precision="full") as trainer:
        for _ in range(STEPS):
            trainer.step(lambda: loss(trainer.next_batch))
        mode = trainer._modes.current
        assert isinstance(mode, AllReduceMode)
        return tuple(mode.live.noise), trainer.state_dict()["facts"]["noise"]


@pytest.mark.parametrize("policy", ["bsp", "lb_bsp"])
def test_all_ranks_have_the_same_numbers_and_a_checkpoint_has_them(
    policy: str, ranks: Ranks
) -> None:
    (first, saved), *others = ranks.run(measuring, 3, policy)
    assert first[2] >= 20
    assert all(noise == first for noise, _ in others)
    assert saved == list(first)


@pytest.mark.parametrize("policy", ["local_sgd:h=2", "dc_asgd", "backup:weigh=members"])
def test_where_progress_is_undefined_nothing_is_measured(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(train, 2, policy, STEPS, str(tmp_path), 0.0, "full")
    assert norms_of(tmp_path) == []
    assert run_of(tmp_path).summary["noise_scale"] is None


def test_asynchronous_gradients_are_measured_together(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(train, 3, "asgd", STEPS, str(tmp_path), 0.004, "full")
    found = norms_of(tmp_path)
    assert len(found) > 3
    assert all(values[3:] == [BATCH, 3 * BATCH] for values in found)


def test_a_profile_gives_its_noise_scale_as_a_hint_for_its_batch() -> None:
    profile = full_profile()
    assert profile.workload is not None
    batch = profile.workload.batch
    measured = sorted(at.scale.value for at in profile.learning)
    hint = profile_hints(profile, batch).noise_scale
    assert hint is not None
    assert measured[0] <= hint <= measured[-1]
    assert profile_hints(profile, batch + 1).noise_scale is None


@pytest.mark.parametrize("policy", ["star_h:noise=hint", "star_ml:noise=hint", "tree:by=node"])
def test_a_hint_that_is_lacking_is_refused_before_a_step(policy: str, ranks: Ranks) -> None:
    (said,) = ranks.run(refused, 1, policy)
    assert said.startswith(f"policy {policy} cannot run here: ")
    assert "unknown" in said
