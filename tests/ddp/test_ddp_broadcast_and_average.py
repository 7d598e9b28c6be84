"""Parameters, optimizer state and buffers, made equal after each rank went its own way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from simstrag.ddp.allreduce.broadcast_and_average import average, broadcast, digest
from tests.support.ranks import RankError, Ranks, ranks

__all__ = ["ranks"]

OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


class Net(nn.Module):
    """BatchNorm, a tied weight, a parameter that is one number, and a mask as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.factor = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.factor * self.second(self.norm(self.first(x)).relu())
        return out


def train(rank: int, kind: str, steps: int) -> tuple[Net, torch.optim.Optimizer]:
    """A model and its optimizer after some steps on data of the rank's own."""
    torch.manual_seed(0)
    net = Net()
    optimizer: torch.optim.Optimizer = OPTIMIZERS[kind](net.parameters())
    luck = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        (net(torch.randn(4, 6, generator=luck)) ** 2).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net, optimizer


def held(net: Net, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    found: dict[str, Any] = {n: t.detach().clone() for n, t in net.named_parameters()}
    found |= {name: buffer.clone() for name, buffer in net.named_buffers()}
    for number, parameter in enumerate(net.parameters()):
        for name, value in optimizer.state[parameter].items():
            found[f"{number} {name}"] = value.clone() if isinstance(value, torch.Tensor) else value
    return found


def same(net: Net, optimizer: torch.optim.Optimizer, group: Any = None) -> bool:
    """Whether every member holds the same bytes."""
    told = [""] * dist.get_world_size(group)
    dist.all_gather_object(told, digest(net, optimizer), group=group)
    return len(set(told)) == 1


def rank_averages(
    rank: int, world: int, kind: str, steps: tuple[int, ...]
) -> tuple[bool, dict[str, Any], dict[str, Any], bool]:
    """Whether all are the same before; held before and after; whether they are the same after."""
    net, optimizer = train(rank, kind, steps[rank])
    apart = not same(net, optimizer)
    before = held(net, optimizer)
    average(net, optimizer)
    return apart, before, held(net, optimizer), same(net, optimizer)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_ranks_that_diverged_are_the_same_after_an_average(ranks: Ranks, kind: str) -> None:
    found = ranks.run(rank_averages, 3, kind, (7, 7, 7))
    assert all(apart and equal for apart, _, _, equal in found)
    for name, value in found[0][2].items():
        parts = [before[name] for _, before, _, _ in found]
        lone = name.endswith((" step", " mu_product"))
        if value.is_floating_point() and not lone:
            assert torch.allclose(value, torch.stack(parts).mean(0), rtol=1e-5, atol=1e-7), name
            assert not torch.equal(value, parts[0]), name
        else:
            assert torch.equal(value, parts[0]), name


def test_momentum_after_unequal_steps_is_averaged_and_batch_counts_are_the_lowest_ones(
    ranks: Ranks,
) -> None:
    found = ranks.run(rank_averages, 3, "momentum", (4, 9, 2))
    assert all(equal for _, _, _, equal in found)
    assert {after["norm.num_batches_tracked"].item() for _, _, after, _ in found} == {4}


def test_a_rank_that_has_not_stepped_takes_the_others_moments(ranks: Ranks) -> None:
    found = ranks.run(rank_averages, 3, "adam", (0, 6, 6))
    assert all(equal for _, _, _, equal in found)
    after, parts = found[0][2], [before for _, before, _, _ in found[1:]]
    assert after["0 step"] == 6
    expected = torch.stack([before["0 exp_avg"] for before in parts]).mean(0)
    assert torch.allclose(after["0 exp_avg"], expected)


def test_moments_of_unequally_many_steps_have_no_mean(ranks: Ranks) -> None:
    with pytest.raises(RankError, match=r"steps of parameter 0 differ \(rank 0 5, rank 1 6\)"):
        ranks.run(rank_averages, 2, "adam", (5, 6))


def rank_is_told(rank: int, world: int, kind: str, source: int) -> tuple[str, str, list[float]]:
    """Digest before and after a broadcast, and a loss of further training."""
    net, optimizer = train(rank, kind, 3 * rank)
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + rank)
    before = digest(net, optimizer)
    broadcast(net, optimizer, source)
    after = digest(net, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        (net(torch.ones(4, 6)) ** 2).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return before, after, [p.sum().item() for p in net.parameters()]


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("source", [0, 2])
def test_a_broadcast_makes_all_as_the_source_was_and_they_go_on_alike(
    ranks: Ranks, kind: str, source: int
) -> None:
    """The source may be the one that has not stepped, and the others forget what they had."""
    found = ranks.run(rank_is_told, 3, kind, source)
    assert len({before for before, _, _ in found}) == 3
    assert {after for _, after, _ in found} == {found[source][0]}
    assert found[0][2] == found[1][2] == found[2][2]


def rank_in_pairs(rank: int, world: int) -> tuple[str, bool, bool]:
    net, optimizer = train(rank, "momentum", 3)
    pairs = [(1, 3), (0, 2)]
    own = [dist.new_group(list(pair)) for pair in pairs][rank % 2 == 0]
    if rank % 2:
        broadcast(net, optimizer, 3, own)
    else:
        average(net, optimizer, own)
    return digest(net, optimizer), same(net, optimizer, own), same(net, optimizer)


def test_a_group_is_made_equal_within_itself(ranks: Ranks) -> None:
    found = ranks.run(rank_in_pairs, 4)
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert {(inside, outside) for _, inside, outside in found} == {(True, False)}


@pytest.mark.parametrize("part", ["parameter", "buffer", "moment", "step"])
def test_the_digest_sees_the_last_bit_of_everything(part: str) -> None:
    net, optimizer = train(0, "adam", 2)
    before = digest(net, optimizer)
    state = optimizer.state[net.first.weight]
    tensor = {
        "parameter": net.second.bias.data, "buffer": net.norm.running_var,
        "moment": state["exp_avg_sq"], "step": state["step"],
    }[part]  # fmt: skip
    assert tensor is not None
    flat = tensor.view(-1)
    flat[-1] = torch.nextafter(flat[-1], torch.tensor(9.0))
    assert digest(net, optimizer) != before


def test_a_model_without_an_optimizer_has_a_digest_too() -> None:
    net, optimizer = train(0, "momentum", 2)
    assert digest(net, None) != digest(net, optimizer)
