"""Replicas that FSDP2 shards, as workers of a policy, on 2 x 2 real ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: E402

from simstrag.contract import (  # noqa: E402
    Plan,
    Precision,
    Review,
    View,
)
from simstrag.ddp.flat_parameters import split  # noqa: E402
from simstrag.errors import InputError  # noqa: E402
from tests.support.ranks import Ranks, ranks  # noqa: E402
from tests.support.recorded_order import batches  # noqa: E402
from tests.support.sharded import SHARDS, shard, train, whole  # noqa: E402
from tests.support.strategies import Fixed  # noqa: E402

__all__ = ["ranks"]

WORLD, RATE = 4, 0.1


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def data(rank: int, step: int, samples: int = 4) -> torch.Tensor:
    return torch.randn(samples, 6, generator=torch.Generator().manual_seed(10 * rank + step))


def rank_compares_with_native_hsdp(rank: int, world: int, kind: str) -> bool:
    """Whether five steps under bsp end with the bits of FSDP2 on the mesh of all replicas."""
    from simstrag.ddp import wrap

    dtype = getattr(torch, kind)
    ours, theirs = network().to(dtype), shard(network().to(dtype), world, whole=True)
    ours = shard(ours, world)
    one, other = (torch.optim.SGD(each.parameters(), RATE, 0.9) for each in (ours, theirs))
    with wrap(ours, one, "bsp", batch=8, precision="full") as trainer:
        for step in range(5):
            x = data(rank, step).to(dtype)
            trainer.step(lambda x=x: ours(x).square().mean())
            theirs(x).square().mean().backward()
            other.step()
            other.zero_grad()
    return torch.equal(whole(ours.parameters()), whole(theirs.parameters()))


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_bsp_over_replicas_has_the_bits_of_fsdp2_on_the_mesh_of_all(
    kind: str, ranks: Ranks
) -> None:
    assert ranks.run(rank_compares_with_native_hsdp, WORLD, kind) == [True] * WORLD


@dataclass
class Alternating:
    """Replica 0 computes every second step in reduced precision."""

    def plan(self, view: View) -> Plan:
        reduced = {0: Precision.AMP} if view.version % 2 == 0 else {}
        return Plan(precision=reduced, review=Review(updates=1))


def rank_switches_precision(rank: int, world: int) -> tuple[list[float], list[str]]:
    """Distances from steps by FSDP2's gradients of models made in both precisions; formats seen."""
    from simstrag.ddp import wrap

    replica, place = divmod(rank, SHARDS)
    reduced = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    ours, full = shard(network(), world), shard(network(), world)
    low = shard(network(), world, mp_policy=reduced)
    optimizer, seen, off = torch.optim.SGD(ours.parameters(), RATE), list[str](), list[float]()
    flat = whole(full.parameters())
    with wrap(ours, optimizer, Alternating(), batch=8, precision="bf16") as trainer:
        for step in range(4):
            x = data(rank, step)
            own = low if replica == 0 and step % 2 == 0 else full
            for each, part in zip(
                own.parameters(), split(flat, list(own.parameters())), strict=True
            ):
                local = each.detach().to_local()
                local.copy_(part.chunk(SHARDS)[place][: len(local)])
            own(x).float().square().mean().backward()
            gradients: list[Any] = [None] * world
            dist.all_gather_object(gradients, whole([p.grad for p in own.parameters()]))
            own.zero_grad()
            mean = 0.5 * gradients[0] + 0.5 * gradients[SHARDS]
            flat = flat.add(mean, alpha=-RATE)
            if step == 0:
                ours[0].register_forward_hook(lambda _m, _a, out: seen.append(str(out.dtype)))
            trainer.step(lambda x=x: ours(x).square().mean())
            off.append(float((whole(ours.parameters()) - flat).abs().max()))
    return off, seen[-4:]


def test_a_replica_changes_its_precision_between_steps_as_if_it_were_made_so(ranks: Ranks) -> None:
    found = ranks.run(rank_switches_precision, WORLD)
    assert [off for off, _ in found] == [[0.0] * 4] * WORLD
    low, full = "torch.bfloat16", "torch.float32"
    assert [seen for _, seen in found] == [[low, full] * 2] * SHARDS + [[full] * 4] * SHARDS


def rank_trains_uneven_parts(rank: int, world: int) -> list[float]:
    """Parameters after one step in which replicas compute 11 and 5 samples."""
    plan = Plan(batch={0: 11 / 8, 1: 5 / 8}).resolved(2)
    return train(rank, world, Fixed(plan), None, steps=1)


def test_ranks_share_uneven_samples_of_their_replica(ranks: Ranks) -> None:
    from simstrag.learning import tasks

    found = ranks.run(rank_trains_uneven_parts, WORLD)
    task = tasks.load("tabular")
    model = task.model.double()
    drawn = [batches(2).of([k], [0], [size]) for k, size in ((0, 11), (1, 5))]
    rows = torch.from_numpy(np.concatenate(drawn))
    task.loss(model(task.inputs[rows].double()), task.targets[rows].double()).mean().backward()
    torch.optim.SGD(model.parameters(), 0.05).step()
    expected = nn.utils.parameters_to_vector(model.parameters()).detach()
    for own in found:
        assert float((torch.tensor(own, dtype=torch.float64) - expected).abs().max()) < 1e-12


def refusal(rank: int, world: int, case: str) -> str:
    """What wrap() says of a model."""
    from simstrag.ddp import ShareSampler, wrap

    model, options = network(), dict[str, Any]()
    if case == "all replicas":
        shard(model, world, whole=True)
    elif case == "one replica":
        shard(model, world, world)
    elif case == "half":
        shard(model, world)
        model.append(nn.Linear(3, 3))
    elif case == "sampler":
        shard(model, world)
        options["sampler"] = ShareSampler(64, 8, rank, world)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with pytest.raises(InputError) as caught:
        wrap(model, optimizer, "bsp", batch=8, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("all replicas", 'fully_shard(model, mesh=mesh["shard"])'),
        ("one replica", "sharded over all 4 ranks, which is one replica"),
        ("half", "parameter 3.weight is not sharded"),
        ("sampler", "leave it out, and draw trainer.next_batch"),
    ],
)
def test_a_model_that_is_no_replica_is_refused_with_the_way_out(
    case: str, said: str, ranks: Ranks
) -> None:
    for sentence in ranks.run(refusal, WORLD, case):
        assert said in sentence
        assert "\n" not in sentence


def rank_trains_in_halves(rank: int, world: int, policy: str, folder: str) -> list[float]:
    """Parameters of a training that goes on from a checkpoint of its middle."""
    path = Path(folder) / "half.pt"

    def act(trainer: Any, step: int, resumed: bool) -> None:
        if resumed and step == 0:
            trainer.load_state_dict(torch.load(path, weights_only=True))
        if not resumed and step == 6:
            state = trainer.state_dict()
            assert bool(state) == (rank % SHARDS == 0)
            if trainer.lowest:
                torch.save(state, path)

    train(rank, world, policy, None, 6 + 1, act=partial(act, resumed=False))
    torch.distributed.barrier()
    return train(rank, world, policy, None, 8, act=partial(act, resumed=True))


@pytest.mark.parametrize("policy", ["bsp", "bsp:via=server"])
def test_a_checkpoint_has_the_whole_model_and_all_ranks_go_on_from_it(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(rank_trains_in_halves, WORLD, policy, str(tmp_path))
    assert found == [found[0]] * WORLD


def test_a_served_training_ends_as_one_by_all_reduce(ranks: Ranks) -> None:
    reduced, served = (
        torch.tensor(ranks.run(train, WORLD, policy, None)[0], dtype=torch.float64)
        for policy in ("bsp", "bsp:via=server")
    )
    assert float((reduced - served).abs().max()) < 1e-12
