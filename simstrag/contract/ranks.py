"""Values of a plan by rank, of one value for all, a tuple or a dict; and shares as samples."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sized
from typing import Any, TypeVar

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.contract.ties import argsort, is_less
from simstrag.errors import PlanError

T = TypeVar("T")


def values_of(field: Any) -> tuple[Any, ...]:
    """The values of a field that holds one value, or one per rank."""
    if field is None:
        return ()
    if isinstance(field, Mapping):
        return tuple(field.values())
    return field if isinstance(field, tuple) else (field,)


def bounds_by_rank(bound: Any, world_size: int) -> tuple[int | None, ...] | None:
    """The bound of each rank, None where it has none; None where no rank has one."""
    bounds = by_rank("bound", bound, world_size, None)
    return None if all(b is None for b in bounds) else bounds


@functools.lru_cache(maxsize=64)
def even_samples(batch: int, world_size: int) -> Ints:
    """The samples of gradients at a share of 1, read-only."""
    sizes = np.full(world_size, batch)
    sizes.flags.writeable = False
    return sizes


def by_rank(name: str, value: Any, world_size: int, default: T) -> tuple[T, ...]:
    """The value of a field for each rank; `default` for those that a dict leaves out.

    Raises `PlanError` where the field does not fit the world.
    """
    if isinstance(value, Mapping):
        if value and not 0 <= min(value) <= max(value) < world_size:
            raise PlanError(f"{name} names a rank beyond a world of {world_size} ranks")
        return tuple(value.get(rank, default) for rank in range(world_size))
    if isinstance(value, tuple):
        check_length(name, value, world_size)
        return value
    return (value,) * world_size


def check_length(name: str, values: Sized, world_size: int) -> None:
    """Raise `PlanError` unless there is a value for each rank."""
    if len(values) != world_size:
        raise PlanError(f"{name} has {len(values)} entries for a world of {world_size} ranks")


def samples_of_shares(shares: Floats, batch: int, world_size: int) -> Ints:
    """Samples by share, rounded by largest remainder; they sum to world_size * batch."""
    exact = shares * batch
    sizes = exact.astype(np.int64)
    left = world_size * batch - int(np.add.reduce(sizes))
    sizes += _are_least(1 + sizes - exact, left)
    return sizes


def _are_least(values: Floats, count: int) -> Bools:
    """Whether each is one of the `count` least values, of tied ones those of lowest indices."""
    if 0 < count < len(values):
        ordered = values.copy()
        ordered.sort()
        last, following = ordered[count - 1 : count + 1].tolist()
        if is_less(last, following):
            below: Bools = values <= last
            return below
    least = np.zeros(len(values), dtype=np.bool_)
    least[argsort(values)[:count]] = True
    return least
