"""Batch shares: every sample once per epoch, whatever the sizes do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from simstrag.ddp.sampler import ShareSampler, share_out
from simstrag.errors import InputError


def samplers(size: int, batch: int, world: int) -> list[ShareSampler]:
    return [ShareSampler(size, batch, rank, world, seed=3) for rank in range(world)]


@st.composite
def epochs(draw: st.DrawFn) -> tuple[int, list[tuple[int, ...]]]:
    world = draw(st.integers(1, 5))
    sizes = st.tuples(*[st.integers(1, 9)] * world)
    return draw(st.integers(world, 80)), draw(st.lists(sizes, min_size=1, max_size=12))


@given(epochs())
def test_every_sample_of_an_epoch_is_used_once_whatever_the_sizes_do(
    case: tuple[int, list[tuple[int, ...]]],
) -> None:
    size, changes = case
    world = len(changes[0])
    everyone = samplers(size, 4, world)
    for _ in range(2):
        used: list[int] = []
        for step, batches in enumerate(zip(*everyone, strict=True)):
            assert [len(batch) for batch in batches] == list(everyone[0].take())
            assert all(batches)
            used += [index for batch in batches for index in batch]
            for sampler in everyone[1:]:
                sampler.take()
            for sampler in everyone:
                sampler.set_sizes(changes[step % len(changes)])
        assert sorted(used) == list(range(size))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 200))
def test_a_spread_gives_everyone_a_part_near_its_proportion(sizes: list[int], extra: int) -> None:
    parts = share_out(len(sizes) + extra, sizes)
    assert sum(parts) == len(sizes) + extra
    for part, size in zip(parts, sizes, strict=True):
        assert abs(part - 1 - extra * size / sum(sizes)) < 1


@pytest.mark.parametrize(("size", "batch"), [(16, 4), (17, 4), (18, 4), (3, 4), (8, 4), (15, 4)])
def test_the_length_is_the_number_of_steps(size: int, batch: int) -> None:
    sampler = samplers(size, batch, 2)[0]
    assert len(sampler) == len(list(sampler))


def taken(sampler: ShareSampler) -> list[list[int]]:
    """The batches of the rest of an epoch, all of them used."""
    return [batch for batch in sampler if sampler.take()]


def test_epochs_are_shuffled_differently_and_the_same_whenever_asked() -> None:
    one, other = samplers(40, 5, 2)[0], samplers(40, 5, 2)[0]
    first = taken(one)
    assert first == taken(other)
    assert taken(one) != first
    order = [index for batch in first for index in batch]
    assert order != sorted(order)


def test_batches_that_no_step_took_are_drawn_again() -> None:
    sampler = samplers(40, 5, 2)[0]
    batches = iter(sampler)
    next(batches)
    sampler.take()
    unused = next(batches)
    assert taken(sampler)[0] == unused
    with pytest.raises(InputError, match="more often than batches were drawn"):
        sampler.take()


def test_a_checkpoint_goes_on_where_it_was_taken_and_in_the_epochs_after_it() -> None:
    whole = samplers(50, 4, 2)[1]
    batches = iter(whole)
    for _ in range(3):
        next(batches)
        whole.take()
    state = whole.state_dict()
    expected = taken(whole) + taken(whole)
    again = ShareSampler(50, 4, 1, 2, seed=3)
    again.load_state_dict(state)
    assert taken(again) + taken(again) == expected
    with pytest.raises(InputError, match="50 samples shuffled by seed 3 does not fit 60"):
        ShareSampler(60, 4, 1, 2, seed=3).load_state_dict(state)


def test_a_loader_follows_the_sizes_from_the_next_step_on() -> None:
    data = TensorDataset(torch.arange(40))
    sampler = ShareSampler(40, 5, 0, 2)
    seen, wanted = [], []
    for step, (batch,) in enumerate(DataLoader(data, batch_sampler=sampler)):
        sizes = sampler.take()
        seen.append(len(batch))
        wanted.append(sizes[0])
        sampler.set_sizes((2 + step, 8 - step))
    assert seen == wanted
    assert seen[:3] == [5, 2, 3]


def test_sizes_cannot_change_while_a_loader_is_ahead() -> None:
    sampler = ShareSampler(40, 5, 0, 2)
    batches = iter(sampler)
    for _ in range(3):
        next(batches)
    assert sampler.take() == (5, 5)
    sampler.set_sizes((5, 5))
    with pytest.raises(InputError, match="2 batches ahead; use DataLoader"):
        sampler.set_sizes((4, 6))


@pytest.mark.parametrize("sizes", [(0, 4), (1, 2, 3), (-1, 9)])
def test_sizes_that_cannot_be_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="want one of at least 1 for each of 2 ranks"):
        samplers(9, 2, 2)[0].set_sizes(sizes)


def test_a_data_set_smaller_than_the_world_is_refused() -> None:
    with pytest.raises(InputError, match="rank 0 of 4 on a data set of 3"):
        samplers(3, 1, 4)


def test_a_sampler_of_another_place_or_without_a_batch_is_refused() -> None:
    sampler = samplers(9, 2, 2)[1]
    sampler.check(1, 2, batch=2)
    with pytest.raises(InputError, match="for rank 1 of 2, and this is rank 1 of 3"):
        sampler.check(1, 3, batch=2)
    with pytest.raises(InputError, match="needs batch="):
        sampler.check(1, 2, batch=None)
