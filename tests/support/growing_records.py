"""Records of `simstrag.ddp.record` that grow as a test says, in place of ranks that train."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simstrag.arrays import Reals
from simstrag.ddp.collector.record import HEADER


def drawn(ranks: int = 4, steps: int = 120, slow: int | None = 2, seed: int = 0) -> Reals:
    """Own seconds of ranks, one of which is 1.5 times as slow from the first third on."""
    own = 0.03 * np.exp(np.random.default_rng(seed).normal(0, 0.03, (ranks, steps)))
    if slow is not None:
        own[slow, steps // 3 :] *= 1.5
    return own


def rows(own: Reals, rank: int, first: int = 3, parts: int = 1) -> str:
    """What a rank writes of its steps, in which it waits `parts` times.

    own: of all ranks, shape (ranks, steps).
    """
    numbers = [""] if parts == 1 else [f"-{k}" for k in range(1, parts + 1)]
    each, lines = own / parts, []
    for step, (mine, most) in enumerate(zip(each[rank], each.max(axis=0), strict=True), first):
        lines.append(f"{rank},{step},optimizer-and-input,{0.002:.6f}\n")
        for number in numbers:
            lines.append(f"{rank},{step},compute{number},{mine:.6f}\n")
            lines.append(f"{rank},{step},all-reduce{number},{most - mine + 0.004:.6f}\n")
    return "".join(lines)


def write_record(folder: Path, own: Reals, parts: int = 1, first: int = 3) -> Path:
    """A whole record; what was there of its ranks is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.yaml").write_text(f"world_size: {len(own)}\n")
    for rank in range(len(own)):
        (folder / f"rank-{rank}.csv").write_text(HEADER + rows(own, rank, first, parts))
    return folder


class GrowingRecord:
    """A record whose files grow by bytes.

    written: bytes of each rank so far.
    """

    def __init__(self, folder: Path, own: Reals, parts: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "meta.yaml").write_text(f"world_size: {len(own)}\n")
        self.folder = folder
        self._texts = [(HEADER + rows(own, rank, 3, parts)).encode() for rank in range(len(own))]
        self.written = [0] * len(own)

    def path(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.csv"

    def grow(self, rank: int, count: int) -> None:
        """Append so many bytes more to the file of a rank."""
        begin = self.written[rank]
        data = self._texts[rank][begin : begin + count]
        with self.path(rank).open("ab") as file:
            file.write(data)
        self.written[rank] += len(data)

    @property
    def is_whole(self) -> bool:
        return self.written == [len(text) for text in self._texts]
