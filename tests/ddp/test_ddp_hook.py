"""The communication hook: plain DDP's bits, weights, groups, and the message that goes along."""

from __future__ import annotations

import contextlib
import copy
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from simstrag.contract import Plan, Precision
from simstrag.ddp.allreduce.broadcast_and_average import average
from simstrag.ddp.allreduce.broadcast_and_average import digest as bytes_of
from simstrag.ddp.allreduce.control_message import (
    WIDTH,
    PlanDigests,
    describe_disagreement,
    unpack,
)
from simstrag.ddp.allreduce.hook import ProcessGroups, Reducer
from simstrag.ddp.local_step_timer import StepTimer, shared_core_clock
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]


def network(width: int = 64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5)
    )


def batch_of(seed: int, samples: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    luck = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 20, generator=luck), torch.randint(0, 5, (samples,), generator=luck)


def hooked(model: nn.Module, megabytes: float = 0.01) -> tuple[DistributedDataParallel, Reducer]:
    reducer = Reducer(StepTimer(shared_core_clock(cores=1.0)))
    return reducer.wrap(model, bucket_cap_mb=megabytes), reducer


def rank_trains(rank: int, world: int, with_hook: bool, megabytes: float) -> tuple[str, int]:
    """100 steps of momentum SGD with gradient accumulation now and then; digest, buckets."""
    buckets = 0
    model = network()
    if with_hook:
        ddp, reducer = hooked(model, megabytes)
    else:
        ddp = DistributedDataParallel(model, bucket_cap_mb=megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(100):
        x, y = batch_of(1000 * rank + step)
        with ddp.no_sync() if step % 10 == 3 else contextlib.nullcontext():
            cross_entropy(ddp(x), y).backward()
        if step % 10 == 3:
            continue
        if with_hook:
            reducer.measures = reducer.sums = step % 2 == 0
            assert reducer.wait().shape == (world, WIDTH)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        buckets = len(str(ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")).split(","))
    return bytes_of(model, optimizer), buckets


@pytest.mark.parametrize("megabytes", [0.01, 25.0])
def test_all_reduce_through_the_hook_is_plain_ddp_bit_for_bit(
    ranks: Ranks, megabytes: float
) -> None:
    """Three ranks: 1/3 is rounded, while with two or four every way of averaging looks right."""
    plain = ranks.run(rank_trains, 3, False, megabytes)
    hooks = ranks.run(rank_trains, 3, True, megabytes)
    assert {digest for digest, _ in plain} == {digest for digest, _ in hooks}
    assert len({digest for digest, _ in plain}) == 1
    assert {buckets > 1 for _, buckets in plain + hooks} == {megabytes < 1}


def whole_gradient(samples: int) -> list[torch.Tensor]:
    model, (x, y) = network(), batch_of(7, samples)
    cross_entropy(model(x), y).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def rank_shares(rank: int, world: int, shares: tuple[int, ...]) -> list[torch.Tensor]:
    model, (x, y) = network(), batch_of(7, sum(shares))
    ddp, reducer = hooked(model)
    reducer.weight = shares[rank] / sum(shares)
    begin = sum(shares[:rank])
    own = slice(begin, begin + shares[rank])
    cross_entropy(ddp(x[own]), y[own]).backward()
    reducer.wait()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("shares", [(40, 24), (32, 32), (7, 16, 41)])
def test_weighed_shares_give_the_gradient_of_the_whole_batch(
    ranks: Ranks, shares: tuple[int, ...]
) -> None:
    expected = torch.cat([g.flatten() for g in whole_gradient(64)])
    for found in ranks.run(rank_shares, len(shares), shares):
        gradient = torch.cat([g.flatten() for g in found])
        assert (gradient - expected).norm() / expected.norm() < 1e-6


def rank_poisoned(rank: int, world: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Rank 1 has a batch of NaN and weight 0; gradients beside those of rank 0 alone."""
    model, (x, y) = network(), batch_of(7)
    ddp, reducer = hooked(model)
    reducer.weight = 1.0 - rank
    cross_entropy(ddp(x * (float("nan") if rank else 1.0)), y).backward()
    reducer.wait()
    alone = network()
    cross_entropy(alone(x), y).backward()
    return (
        [p.grad for p in model.parameters() if p.grad is not None],
        [p.grad for p in alone.parameters() if p.grad is not None],
    )


def test_a_rank_of_weight_0_with_a_bad_batch_leaves_the_others_as_they_are(ranks: Ranks) -> None:
    for found, expected in ranks.run(rank_poisoned, 2):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def rank_scaled(rank: int, world: int, scale: float) -> list[torch.Tensor]:
    model, (x, y) = network(), batch_of(rank)
    ddp, reducer = hooked(model)
    reducer.scale = scale if rank == 0 else 1.0
    (cross_entropy(ddp(x), y) * reducer.scale).backward()
    reducer.wait()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_a_scale_of_ones_own_is_divided_out_before_the_reduction(ranks: Ranks) -> None:
    plain, scaled = (ranks.run(rank_scaled, 3, scale) for scale in (1.0, 2.0**16))
    for one, other in zip(plain, scaled, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def trained_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Digest of parameters and momentum; running statistics are each rank's own."""
    bare = copy.deepcopy(model)
    for buffer in bare.buffers():
        buffer.zero_()
    return bytes_of(bare, optimizer)


def rank_partitioned(rank: int, world: int) -> tuple[list[str], int, list[str]]:
    """30 and 10 steps in pairs, a merge, and five steps of all, with batch norm and momentum.

    Digests after each; members heard of; the gradients of the last step.
    """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))
    ddp, reducer = hooked(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    own = (0, 1) if rank < 2 else (2, 3)
    count = 30 if rank < 2 else 10

    def step(number: int, members: tuple[int, ...]) -> None:
        x, y = batch_of(1000 * rank + number)
        optimizer.zero_grad(set_to_none=True)
        reducer.digest = number
        cross_entropy(ddp(x), y).backward()
        said = describe_disagreement(unpack(reducer.wait()), members)
        assert said is None, said
        optimizer.step()

    reducer.over(ProcessGroups().get(own))
    reducer.weight = 0.5
    for number in range(count):
        step(number, own)
    digests, heard = [trained_of(model, optimizer)], len(reducer._slots)
    reducer.over(None)
    reducer.weight = 0.25
    optimizer.zero_grad(set_to_none=True)
    average(model, optimizer)
    digests.append(bytes_of(model, optimizer))
    for number in range(40, 45):
        step(number, (0, 1, 2, 3))
    assert len(reducer._slots) == 4
    digests.append(trained_of(model, optimizer))
    gradients = [str(p.grad.sum().item()) for p in model.parameters() if p.grad is not None]
    return digests, heard, gradients


def test_pairs_of_unequal_steps_merge_and_go_on_together(ranks: Ranks) -> None:
    found = ranks.run(rank_partitioned, 4)
    apart, merged, after = zip(*(digests for digests, _, _ in found), strict=True)
    assert apart[0] == apart[1] != apart[2] == apart[3]
    assert [heard for _, heard, _ in found] == [2] * 4
    assert len(set(merged)) == len(set(after)) == 1
    assert found[0][2] == found[1][2] == found[2][2] == found[3][2]


def rank_meets(rank: int, world: int) -> list[tuple[float, list[float]]]:
    """Groups come up one by one, known to their members only; sums of ranks, and slots' versions.

    Ranks have made differently many before (1, 2) meet, and (0, 1) meet again.  Without `settle`
    rank 0 would wait in its second forward for rank 2, which waits for it in the group of all.
    """
    ddp, reducer = hooked(network())
    reducer.settle(lambda: cross_entropy(ddp(batch_of(0)[0]), batch_of(0)[1]))
    groups = ProcessGroups()
    found = []
    for members in ((0, 1), (0, 3), (1, 2), (0, 1), (0, 1, 2, 3), (3, 1, 2)):
        if rank not in members:
            continue
        group = groups.get(members)
        total = torch.tensor(float(rank))
        dist.all_reduce(total, group=group)
        reducer.over(group, groups.get(members, control=True))
        reducer.version = 10 + rank
        x, y = batch_of(rank)
        cross_entropy(ddp(x), y).backward()
        found.append((total.item(), unpack(reducer.wait()).version.tolist()))
    return found


def test_groups_meet_that_only_their_members_know_of(ranks: Ranks) -> None:
    pair, other, late = (1.0, [10, 11]), (3.0, [10, 13]), (3.0, [11, 12])
    whole, three = (6.0, [10, 11, 12, 13]), (6.0, [11, 12, 13])
    assert ranks.run(rank_meets, 4) == [
        [pair, other, pair, whole],
        [pair, late, pair, whole, three],
        [late, whole, three],
        [other, whole, three],
    ]


def rank_returns(rank: int, world: int) -> list[str]:
    """The names of the same group in two trainings of one process."""
    names = []
    for _ in range(2):
        groups = ProcessGroups()
        group = groups.get((0, 1))
        assert group is not None
        dist.all_reduce(torch.zeros(1), group=group)
        names.append(group.group_name)
        groups.close()
    return names


def rank_waits_for_one_that_left(rank: int, world: int) -> None:
    """Rank 0 waits for a group with rank 1, which will not create it."""
    groups = ProcessGroups(stall_limit=1e6)
    if rank == 0:
        threading.Timer(0.1, groups.gone.add, [1]).start()
        with pytest.raises(RuntimeError, match="not all of ranks"):
            groups.get((0, 1))


def test_a_group_is_given_up_once_a_member_has_left(ranks: Ranks) -> None:
    """Before the limit of silence, which is later than that of the test."""
    ranks.run(rank_waits_for_one_that_left, 2)


def test_a_later_training_finds_no_addresses_of_an_earlier_one(ranks: Ranks) -> None:
    """The store keeps them under the group's name."""
    names, others = ranks.run(rank_returns, 2)
    assert names == others
    assert len({*names}) == 2


def rank_decides(rank: int, world: int, odd: int) -> tuple[int, str]:
    """Each decides from what all heard; rank `odd` does otherwise once, at step 10."""
    ddp, reducer = hooked(network())
    digests, said = PlanDigests(), None
    step = 0
    plan = Plan().resolved(world)
    while said is None and step < 30:
        reducer.digest, reducer.version = digests.of(plan, step), step
        x, y = batch_of(step)
        cross_entropy(ddp(x), y).backward()
        slots = unpack(reducer.wait())
        said = describe_disagreement(slots)
        slow = int(slots.version.sum()) % world
        if rank == odd and step == 10:
            slow = (slow + 1) % world
        plan = Plan(precision={slow: Precision.AMP}).resolved(world)
        step += 1
    return step - 1, said or ""


def test_a_rank_that_decides_differently_is_named_at_the_next_step(ranks: Ranks) -> None:
    for step, said in ranks.run(rank_decides, 3, 2):
        assert step == 11
        assert said.startswith("rank 2 is at version 11 "), said
    for step, said in ranks.run(rank_decides, 2, 1):
        assert step == 11
        assert said.startswith("rank 0 is at version 11 "), said
        assert "; rank 1 is at version 11 " in said, said


def rank_agrees(rank: int, world: int) -> str:
    return rank_decides(rank, world, odd=-1)[1]


def test_ranks_that_decide_the_same_go_on(ranks: Ranks) -> None:
    assert ranks.run(rank_agrees, 3) == [""] * 3
