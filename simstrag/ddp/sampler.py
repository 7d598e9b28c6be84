"""Batches whose sizes follow a plan's shares, from one shuffled order that all ranks share.

All ranks go through the same permutation of an epoch, and each takes its own part of every step's
samples.  So every sample of an epoch is used exactly once, at any sizes, without communication.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from simstrag.errors import InputError


class ShareSampler(Sampler[list[int]]):
    """Batches of indices for one rank, as `DataLoader(..., batch_sampler=sampler)` takes them.

    size: samples in the data set.
    batch: samples of each rank's batch, until `set_sizes`.
    seed: seed of the shuffle.

    Each call of `take` consumes one drawn batch and returns all ranks' sizes in that step; a
    gradient weighs its own size over their sum.  The last step of an epoch may be smaller, or
    larger by fewer samples than ranks, so that no batch is empty.

    A loader with workers draws batches ahead.  Sizes cannot change then: ranks that are ahead by
    different numbers of batches would use samples twice.

    >>> one, other = (ShareSampler(10, batch=2, rank=rank, world_size=2) for rank in range(2))
    >>> steps = zip(one, other)
    >>> len(next(steps)[0]), one.take(), other.take()
    (2, (2, 2), (2, 2))
    >>> one.set_sizes((1, 3)); other.set_sizes((1, 3))
    >>> len(next(steps)[1]), one.take(), other.take(), len(next(steps)[0]), one.take()
    (3, (1, 3), (1, 3), 1, (1, 1))
    """

    def __init__(self, size: int, batch: int, rank: int, world_size: int, seed: int = 0) -> None:
        if not 0 <= rank < world_size <= size:
            raise InputError(
                f"rank {rank} of {world_size} on a data set of {size}: want 0 <= rank < ranks, and "
                "a sample for each of them"
            )
        self.size, self.rank, self.world_size, self.seed = size, rank, world_size, seed
        self.epoch = self.position = 0
        self.sizes = self._checked((batch,) * world_size)
        self._drawn: deque[tuple[int, ...]] = deque()

    def set_sizes(self, sizes: Sequence[int]) -> None:
        """Set each rank's batch size from now on; the same call on every rank.

        Raises `InputError` where batches have been drawn that no step has taken.
        """
        checked = self._checked(sizes)
        if checked == self.sizes:
            return
        if self._drawn:
            raise InputError(
                f"batch sizes cannot become {checked} while the loader is {len(self._drawn)} "
                "batches ahead; use DataLoader(num_workers=0), or a policy without batch shares"
            )
        self.sizes = checked

    def check(self, rank: int, world_size: int, batch: int | None) -> None:
        """Raise `InputError` if it was made for another rank or world, or if `batch` is None."""
        if batch is None:
            raise InputError(
                "with a ShareSampler wrap() needs batch=, the samples of a rank's batch"
            )
        if (self.rank, self.world_size) != (rank, world_size):
            raise InputError(
                f"the ShareSampler is for rank {self.rank} of {self.world_size}, and this is rank "
                f"{rank} of {world_size}"
            )

    def take(self) -> tuple[int, ...]:
        """The sizes of the loader's next batch, one per rank."""
        if not self._drawn:
            raise InputError("take() was called more often than batches were drawn")
        sizes = self._drawn.popleft()
        self.position += sum(sizes)
        if self.position == self.size:
            self.epoch, self.position = self.epoch + 1, 0
        return sizes

    def __iter__(self) -> Iterator[list[int]]:
        """Batches from the last taken step to the end of the epoch.

        Batches that were drawn and never taken are drawn again; after a whole epoch the next one
        follows.
        """
        self._drawn.clear()
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.size)
        cursor = self.position
        while cursor < self.size:
            sizes = self._next_sizes(self.size - cursor)
            first = cursor + sum(sizes[: self.rank])
            cursor += sum(sizes)
            self._drawn.append(sizes)
            yield order[first : first + sizes[self.rank]].tolist()

    def __len__(self) -> int:
        """Steps in an epoch at the present sizes."""
        steps, rest = divmod(self.size, sum(self.sizes))
        return max(1, steps + (rest >= self.world_size))

    def _next_sizes(self, left: int) -> tuple[int, ...]:
        """The set sizes; if they would leave fewer samples than ranks, all that are left."""
        after = left - sum(self.sizes)
        if after == 0 or after >= self.world_size:
            return self.sizes
        return share_out(left, self.sizes)

    def _checked(self, sizes: Sequence[int]) -> tuple[int, ...]:
        checked = tuple(int(size) for size in sizes)
        if len(checked) != self.world_size or min(checked) < 1:
            raise InputError(
                f"batch sizes {checked}: want one of at least 1 for each of {self.world_size} ranks"
            )
        return checked

    def state_dict(self) -> dict[str, Any]:
        """The position after the last taken step."""
        return {
            "size": self.size, "seed": self.seed, "epoch": self.epoch, "position": self.position,
            "sizes": self.sizes,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position; raises `InputError` for another data set."""
        if (state["size"], state["seed"]) != (self.size, self.seed):
            raise InputError(
                f"a checkpoint of {state['size']} samples shuffled by seed {state['seed']} does "
                f"not fit {self.size} samples and seed {self.seed}"
            )
        self.epoch, self.position = state["epoch"], state["position"]
        self.sizes = self._checked(state["sizes"])
        self._drawn.clear()


def share_out(total: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Share out `total` samples by `sizes`, at least one each; lower ranks round up first.

    >>> share_out(9, (8, 4, 4)), share_out(3, (100, 1, 1))
    ((4, 3, 2), (1, 1, 1))
    """
    rest = total - len(sizes)
    exact = [rest * size / sum(sizes) for size in sizes]
    whole = [int(part) for part in exact]
    order = sorted(range(len(sizes)), key=lambda k: (whole[k] - exact[k], k))
    for k in order[: rest - sum(whole)]:
        whole[k] += 1
    return tuple(part + 1 for part in whole)
