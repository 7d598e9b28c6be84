"""Replicas of two ranks under policies, and the same gradients in the recorded order."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from simstrag.ddp.journal.run_from_journal import finish  # noqa: E402
from tests.support.ranks import Ranks, ranks  # noqa: E402
from tests.support.recorded_order import distance, furthest, rule_of  # noqa: E402
from tests.support.sharded import SHARDS, train  # noqa: E402

__all__ = ["ranks"]

WORLD = 4
REPLICAS = WORLD // SHARDS


@pytest.mark.parametrize(
    "policy",
    [
        "bsp", "lb_bsp", "bsp:via=server", "asgd", "ssp:bound=2", "k_async:x=1", "backup:b=1",
        "dc_asgd:strength=4", "eager_sgd:start=solo", "tree", "hot_spare:spares=1", "drain",
        "sync_switch:share=0.5,samples=384", "local_sgd:h=3", "cgp:groups=rounds,every=2",
    ],
)  # fmt: skip
def test_replicas_end_with_the_parameters_of_the_replay(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train, WORLD, policy, str(tmp_path / "run"), 24)
    for k in range(0, WORLD, SHARDS):
        assert found[k : k + SHARDS] == [found[k]] * SHARDS
    assert distance(found, tmp_path / "run", rule_of(policy, REPLICAS), REPLICAS) < 1e-9


def train_and_fetch(rank: int, world: int, policy: str, out: str) -> list[float]:
    return train(rank, world, policy, out, 24, fetch=True)


@pytest.mark.parametrize(
    "policy",
    ["async_local_sgd:h=3", "decoupled_diloco:h=4,p=2,tau=1,k=1,alpha=0.25"],
)
def test_outer_steps_at_a_server_are_those_of_the_replay(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train_and_fetch, WORLD, policy, str(tmp_path / "run"))
    rule = rule_of(policy, REPLICAS)
    assert distance(found[::SHARDS], tmp_path / "run", rule, REPLICAS) < 1e-9


@pytest.mark.parametrize(
    "policy",
    [
        "diloco:h=4", "diloco:h=3,momentum=0,nesterov=false",
        "streaming_diloco:h=4,p=2,tau=0,alpha=0.25", "streaming_diloco:h=6,p=2,tau=2,alpha=0.25",
    ],
)  # fmt: skip
def test_outer_steps_of_replicas_are_those_of_the_replay(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train, WORLD, policy, str(tmp_path / "run"), 24)
    assert furthest(found[::SHARDS], tmp_path / "run", policy, REPLICAS) < 1e-9


@pytest.mark.parametrize("policy", ["drain:wait=5,checks=1", "hot_spare:checks=1,rest=10"])
def test_a_slow_replica_is_left_out_and_the_replay_knows_it(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train, WORLD, policy, str(tmp_path / "run"), 40, 0.03)
    alone = finish(tmp_path / "run").frame("updates")
    assert distance(found, tmp_path / "run", rule_of(policy, REPLICAS), REPLICAS) < 1e-9
    assert (alone["n_own"] == 1).any()
