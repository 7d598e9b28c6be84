"""The mesh of a job: its ranks as a grid, such as replicas x shards, and what its slices are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Ints

WORDS = {
    "replica": ("replicate", "dp_replicate", "dp", "ddp", "data"),
    "shard": ("shard", "dp_shard", "fsdp"),
    "stage": ("pp", "stage", "pipe", "pipeline"),
    "tensor-parallel rank": ("tp", "tensor"),
    "context-parallel rank": ("cp", "context"),
    "expert-parallel rank": ("ep", "expert"),
}
"""What one place of a dimension is called, by the names that dimensions usually have."""


class JobMesh(NamedTuple):
    """The mesh of a job.

    names: of its dimensions, such as `("replicate", "shard")`.
    shape: how many places each has.
    ranks: in the order of the grid, the last dimension the fastest.

    >>> mesh = JobMesh(("replicate", "shard"), (2, 2), (0, 1, 2, 3))
    >>> [(name, ranks) for name, ranks in mesh.slices()]
    [('replica 0', (0, 1)), ('replica 1', (2, 3)), ('shard 0', (0, 2)), ('shard 1', (1, 3))]
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def grid(self) -> Ints:
        """Ranks by their places."""
        return np.array(self.ranks, np.int64).reshape(self.shape)

    def slices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """What is at one place of a dimension, and its ranks: all of a replica, shard or stage."""
        for dim, name in enumerate(self.names):
            if self.shape[dim] > 1 and self.shape[dim] < len(self.ranks):
                for place, ranks in enumerate(np.moveaxis(self.grid, dim, 0)):
                    yield f"{word_of(name)} {place}", tuple(sorted(ranks.ravel().tolist()))

    def stage_of(self) -> dict[int, int]:
        """The stage of each rank; empty without pipelines."""
        for dim, name in enumerate(self.names):
            if word_of(name) == "stage" and self.shape[dim] > 1:
                stages = np.moveaxis(self.grid, dim, 0).reshape(self.shape[dim], -1)
                return {int(rank): k for k, ranks in enumerate(stages) for rank in ranks}
        return {}

    def worker_of(self) -> dict[int, int]:
        """The worker of each rank, as policies count: a replica of the model, or else a shard.

        Its ranks wait for each other in any case.  Empty where there is one worker.

        >>> JobMesh(("replicate", "shard"), (2, 2), (0, 1, 2, 3)).worker_of()
        {0: 0, 1: 0, 2: 1, 3: 1}
        """
        for word in ("replica", "shard"):
            dims = [k for k, name in enumerate(self.names) if word_of(name) == word]
            dims = [k for k in dims if self.shape[k] > 1]
            if dims:
                workers = np.zeros(self.shape, np.int64)
                for k in dims:
                    workers = workers * self.shape[k] + np.indices(self.shape)[k]
                return dict(zip(self.ranks, workers.ravel().tolist(), strict=True))
        return {}

    def lines(self) -> str:
        """The mesh as it stands in the `meta.yaml` of a record."""
        parts = zip(self._fields, self, strict=True)
        return "mesh:\n" + "".join(f"  {k}: [{', '.join(map(str, each))}]\n" for k, each in parts)

    @classmethod
    def of_text(cls, text: str) -> JobMesh | None:
        """The mesh in a `meta.yaml`; None without a whole one."""
        found = [re.search(rf"(?m)^  {name}: *\[(.*)\] *$", text) for name in cls._fields]
        cells = [each[1].replace(" ", "").split(",") for each in found if each]
        try:
            names, shape, ranks = cells
            mesh = cls(tuple(names), tuple(map(int, shape)), tuple(map(int, ranks)))
        except ValueError:
            return None
        is_grid = len(mesh.names) == len(mesh.shape) and np.prod(mesh.shape) == len(mesh.ranks)
        return mesh if is_grid and len({*mesh.ranks}) == len(mesh.ranks) else None


def word_of(name: str) -> str:
    """What a place of a dimension is called: replica, shard, stage, or as the dimension is."""
    return next((word for word, names in WORDS.items() if name.lower() in names), name)
