"""Which samples a worker's gradient is of: a function of seed, rank and step alone.

Each rank draws from its own shard with replacement, as the theory of the gradient noise scale
assumes.  So any batch is found at once, and is the same under every policy; a step that a deadline
cut short has the first samples of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Ints
from simstrag.errors import InputError
from simstrag.timing.noise import keys, nth

STREAM = 2**64 - 3
"""The number of the generator of batches among those of a seed; no rank has it (rule 4)."""
SERVER = 2**64 - 1
"""The number of a server's batches among those of the ranks."""


def iid_shards(samples: int, ranks: int, seed: int) -> list[Ints]:
    """The samples of each rank: a random partition into parts of equal size, give or take one.

    >>> [len(shard) for shard in iid_shards(10, 4, seed=0)]
    [3, 3, 2, 2]
    """
    return np.array_split(np.random.default_rng([seed, STREAM]).permutation(samples), ranks)


def dirichlet_shards(labels: Ints, ranks: int, alpha: float, seed: int) -> list[Ints]:
    """The samples of each rank, whose classes are shared out unequally.

    Each class is cut by shares over ranks that are drawn from a Dirichlet distribution (Hsu, Qi,
    Brown, "Measuring the effects of non-identical data distribution", arXiv:1909.06335); a rank
    that gets none takes one sample of the largest shard.

    alpha: concentration; 100 is nearly even, 0.1 leaves most ranks few classes.
    """
    rng = np.random.default_rng([seed, STREAM])
    parts: list[list[Ints]] = [[] for _ in range(ranks)]
    for label in np.unique(labels):
        of_class = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(ranks, alpha)))[:-1]
        own = np.split(of_class, (cuts * len(of_class)).astype(int))
        for part, some in zip(parts, own, strict=True):
            part.append(some)
    shards = [np.concatenate(part) for part in parts]
    for rank, shard in enumerate(shards):
        if not len(shard):
            largest = max(range(ranks), key=lambda r: len(shards[r]))
            shards[rank], shards[largest] = shards[largest][:1], shards[largest][1:]
    return shards


class Batches:
    """The samples of every gradient of a run.

    shards: samples of each rank, of which it has at least one.
    batch: nominal samples of a step.
    of_all_ranks: nominal samples of a step of each rank.

    Raises `InputError` for a batch that is larger than a shard.

    >>> batches = Batches(iid_shards(100, ranks=2, seed=0), batch=4, seed=0)
    >>> batches.of([0, 1], [7, 7], [4, 2]).shape
    (6,)
    """

    def __init__(self, shards: Sequence[Ints], batch: int, seed: int) -> None:
        smallest = min(range(len(shards)), key=lambda rank: len(shards[rank]))
        if len(shards[smallest]) < batch:
            raise InputError(
                f"a batch of {batch} is larger than the shard of rank {smallest}, "
                f"{len(shards[smallest])} samples: lower learner.batch or workers, raise a "
                "learner.dirichlet, or take a task with more samples"
            )
        self.of_all_ranks = len(shards) * batch
        self._samples = np.concatenate(shards)
        self._sizes = np.array([len(shard) for shard in shards])
        self._starts = np.cumsum(self._sizes) - self._sizes
        of_seed = keys(seed, [STREAM])
        self._keys = nth(of_seed, np.arange(len(shards), dtype=np.uint64))
        self._server = nth(of_seed, np.array([SERVER], dtype=np.uint64))

    @property
    def count(self) -> int:
        """Samples in all shards."""
        return len(self._samples)

    def of(self, ranks: npt.ArrayLike, steps: npt.ArrayLike, sizes: npt.ArrayLike) -> Ints:
        """The samples of several gradients, one after the other.

        ranks, steps, sizes: of each gradient; its rank, its step and its number of samples.
        """
        ranks, sizes = np.asarray(ranks), np.asarray(sizes)
        states = nth(self._keys[ranks], np.asarray(steps).astype(np.uint64))
        owner = np.repeat(np.arange(len(sizes)), sizes)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        words = nth(states[owner], number.astype(np.uint64))
        rank = ranks[owner]
        place = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 * self._sizes[rank]
        found: Ints = self._samples[self._starts[rank] + place.astype(np.int64)]
        return found

    def of_server(self, number: int, size: int) -> Ints:
        """The samples of one of a server's own gradients, from all shards.

        >>> Batches(iid_shards(100, ranks=2, seed=0), batch=4, seed=0).of_server(7, 3).shape
        (3,)
        """
        state = nth(self._server, np.array([number], dtype=np.uint64))
        words = nth(state, np.arange(size, dtype=np.uint64))
        place = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 * len(self._samples)
        found: Ints = self._samples[place.astype(np.int64)]
        return found
