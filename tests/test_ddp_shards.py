"""Shards of the parameters: each steps its own slice, and together they are the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from simstrag import policies
from simstrag.ddp.parameters import Parameters, cut, packed, put_together
from simstrag.ddp.server.shared_buffer import apart
from simstrag.ddp.support import check_sharded
from simstrag.errors import InputError
from simstrag.policy import View

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adagrad": torch.optim.Adagrad,
}


def optimizer_of(name: str) -> torch.optim.Optimizer:
    """Of five parameters in two groups, with different settings."""
    torch.manual_seed(1)
    own = [torch.nn.Parameter(torch.randn(n)) for n in (7, 20, 3, 30, 2)]
    return OPTIMIZERS[name]([{"params": own[:3], "lr": 0.05}, {"params": own[3:]}])


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slices_that_are_stepped_apart_are_the_whole_that_is_stepped_at_once(
    name: str, shards: int
) -> None:
    given = packed(optimizer_of(name))
    whole = Parameters(given)
    slices = [Parameters(given, k, shards) for k in range(shards)]
    for step in range(4):
        gradient = torch.sin(torch.arange(62.0) + step)
        whole.apply([(gradient, 0.5)])
        for own in slices:
            own.apply([(gradient[own.span], 0.5)])
    assert torch.equal(torch.cat([own.flat for own in slices]), whole.flat)
    again, expected = (optimizer_of(name) for _ in range(2))
    again.load_state_dict(put_together([own.state() for own in slices]))
    expected.load_state_dict(whole.state())
    assert str(again.state_dict()) == str(expected.state_dict())


def test_a_slice_goes_on_from_the_state_that_the_optimizer_had() -> None:
    own = optimizer_of("adam")
    for group in own.param_groups:
        for each in group["params"]:
            each.grad = torch.ones_like(each)
    own.step()
    second = Parameters(packed(own), 1, 2)
    assert {int(each["step"]) for each in second.state()["state"].values()} == {1}
    assert min(second.state()["state"]) > 0


@pytest.mark.parametrize(
    ("sizes", "shards", "expected"),
    [
        ([10, 10, 10, 10], 2, [(0, 2), (2, 4)]),
        ([1000, 1, 1], 3, [(0, 1), (1, 2), (2, 3)]),
        ([1, 1, 1000], 2, [(0, 2), (2, 3)]),
        ([5], 1, [(0, 1)]),
    ],
)
def test_parameters_are_cut_at_their_edges_and_no_shard_is_empty(
    sizes: list[int], shards: int, expected: list[tuple[int, int]]
) -> None:
    assert cut(sizes, shards) == expected


def test_fewer_parameters_than_shards_are_refused() -> None:
    with pytest.raises(InputError, match="2 parameters cannot be cut into 3 shards"):
        cut([5, 5], 3)


def test_a_part_of_memory_is_the_same_memory() -> None:
    memory = apart(10, torch.float32)
    part = memory.part(slice(4, 7))
    part.gradient.fill_(1.0)
    part.parameters.fill_(2.0)
    assert memory.gradient.nonzero().flatten().tolist() == [4, 5, 6]
    assert memory.parameters.nonzero().flatten().tolist() == [4, 5, 6]


@pytest.mark.parametrize("name", ["asgd", "ssp", "backup:b=1", "k_async:x=2", "bsp:via=server"])
def test_what_pushes_every_gradient_can_be_sharded(name: str) -> None:
    check_sharded(policies.load(name).plan(View(4)).resolved(4), name)


@pytest.mark.parametrize("name", ["bsp", "korel", "cgp", "local_sgd:h=2", "p_reduce:p=2"])
def test_what_sums_up_among_ranks_cannot(name: str) -> None:
    with pytest.raises(InputError, match=f"policy {name}: by this plan ranks sum up"):
        check_sharded(policies.load(name).plan(View(4)).resolved(4), name)
