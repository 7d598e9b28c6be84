"""Times all-reduces between processes of this machine: sizes, ranks, sub-groups, load beside them.

One time is from the latest start to the latest end over the group's members, after a barrier, so
that nobody's late arrival counts.  Nothing else goes on, unless a load is asked for.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any, Literal

import psutil

from simstrag.calibration.benches.collective_ranks import Group, reduce_ranks, spans
from simstrag.calibration.benches.crew import Crew
from simstrag.calibration.benches.traffic import Traffic
from simstrag.calibration.cells import Cell
from simstrag.processes.affinity import cores

__all__ = ["SIZES", "AllReduceBench", "rank_counts", "sizes_of"]

SIZES = (*(1 << k for k in range(10, 20, 2)), *(1 << k for k in range(20, 29)))
"""1 KiB to 256 MiB: powers of 4 below 1 MiB, powers of 2 from there."""

COARSE = (1 << 14, 1 << 20, 1 << 24)
"""Bytes for ranks that share cores, groups within a group, and beside a load."""

VISIT = 0.25
"""Seconds that a visit should take."""

FEWEST, MOST = 5, 200
"""Repetitions of a visit, at least and at most."""

SHARE = 0.5
"""Of the memory at hand, what buffers may take."""


def rank_counts(most: int) -> tuple[int, ...]:
    """2 to 4, powers of two, and all: rank counts at which a law shows.

    >>> rank_counts(2), rank_counts(12)
    ((2,), (2, 3, 4, 8, 12))
    """
    wanted = {2, 3, 4, most} | {1 << k for k in range(1, most.bit_length())}
    return tuple(sorted(n for n in wanted if 2 <= n <= most))


def sizes_of(ranks: int, device: str, gradient_bytes: int = 0) -> tuple[int, ...]:
    """`SIZES` and the gradient's, those left out for which `ranks` ranks here lack the memory.

    A rank takes a buffer and about twice as much inside gloo.
    """
    if device == "cuda":
        import torch

        room = torch.cuda.mem_get_info()[0] / -(-ranks // torch.cuda.device_count())
    else:
        room = psutil.virtual_memory().available / ranks
    wanted = sorted({*SIZES, *([gradient_bytes] if gradient_bytes else [])})
    return tuple(size for size in wanted if 3 * size <= SHARE * room)


class AllReduceBench:
    """Cells of part "allreduce" on this machine, over one backend.

    backend: "gloo", or "nccl" with a GPU per rank.  device: where the tensors are.
    ranks: counts to measure.  More ranks than cores share cores, more than GPUs share GPUs: both
    are oversubscribed in the facts.  nested: one count more, at which also one half of the ranks
    alone, and both halves at once, are timed; 0 for none.  traffic: levels of load "net" to measure
    beside.
    """

    def __init__(
        self,
        backend: Literal["gloo", "nccl"] = "gloo",
        device: Literal["cpu", "cuda"] = "cpu",
        ranks: Sequence[int] = (2,),
        sizes: Sequence[int] = SIZES,
        nested: int = 0,
        traffic: Sequence[float] = (),
    ) -> None:
        self.backend, self.device = backend, device
        self.ranks = tuple(sorted({*ranks, *([nested] if nested else [])}))
        self.sizes, self.nested, self.levels = tuple(sizes), nested, tuple(traffic)
        self._traffic = Traffic(math.ceil(max(self.levels, default=0)))
        self._stack = contextlib.ExitStack()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every size at every rank count that has the cores; a few sizes of everything else."""
        coarse = tuple(size for size in COARSE if size in self.sizes) or self.sizes[-1:]
        nested = ("half", "halves") if self.nested else ()
        most = max((n for n in self.ranks if not _oversubscribed(n)), default=self.ranks[0])
        return (
            *(
                self._cell(n, size)
                for n in self.ranks
                for size in (coarse if _oversubscribed(n) else self.sizes)
            ),
            *(self._cell(self.nested, size, group) for group in nested for size in coarse),
            *(
                self._cell(most, size, load="net", level=level)
                for level in self.levels
                for size in coarse
            ),
        )

    def seconds(self, cell: Cell) -> float:
        """At about 1 GB/s with half a second of repetitions."""
        once = 2 * cell.bytes * cell.ranks / 2e9
        return max(VISIT, FEWEST * once) * (2 if cell.load else 1) + 2 * once

    def visit(self, cell: Cell) -> tuple[dict[str, tuple[float, ...]], dict[str, Any]]:
        """`seconds`; of both halves at once the other one's as `other`; beside a load the same
        without it, just before, as `clean`."""
        facts: dict[str, Any] = {"oversubscribed": self._shared(cell.ranks)}
        if not cell.load:
            return self._timed(cell), facts
        clean = self._timed(cell)["seconds"]
        with self._traffic.streaming(cell.level) as stream:
            samples = {"clean": clean, **self._timed(cell)}
        return samples, facts | stream.report

    def __enter__(self) -> AllReduceBench:
        world = max(self.ranks)
        groups = {_first(n) for n in self.ranks}
        if self.nested:
            groups |= {_first(self.nested), *_halves(self.nested)}
        self.crew = Crew(
            reduce_ranks, world, world, self.backend, self.device, tuple(sorted(groups)),
            max(self.sizes), fresh=tempfile.TemporaryDirectory,
        )  # fmt: skip
        with contextlib.ExitStack() as stack:  # what has started leaves if the rest cannot start
            stack.enter_context(self._traffic)
            stack.enter_context(self.crew)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    def _timed(self, cell: Cell) -> dict[str, tuple[float, ...]]:
        """Repetitions enough for the visit, after two that say how long one takes."""
        groups = {"half": _halves(cell.ranks)[:1], "halves": _halves(cell.ranks)}.get(
            cell.group, [_first(cell.ranks)]
        )
        pace = statistics.median(self._spans(groups, cell.bytes, 3)[0][1:])
        repetitions = min(MOST, max(FEWEST, round(VISIT / max(pace, 1e-6))))
        return dict(
            zip(("seconds", "other"), self._spans(groups, cell.bytes, repetitions), strict=False)
        )

    def _spans(self, groups: list[Group], size: int, repetitions: int) -> list[tuple[float, ...]]:
        """Seconds of every repetition, for each of the groups; they begin together."""
        room = tuple(sorted(rank for group in groups for rank in group))
        orders = {rank: (group, room, size, repetitions) for group in groups for rank in group}
        answers = dict(zip(room, self.crew.ask(orders), strict=True))
        return [spans([answers[rank] for rank in group]) for group in groups]

    def _shared(self, ranks: int) -> bool:
        """Whether some ranks share a core or a GPU."""
        if self.device == "cuda":
            import torch

            return ranks > min(len(cores()), torch.cuda.device_count())
        return _oversubscribed(ranks)

    def _cell(
        self, ranks: int, size: int, group: str = "all", load: str = "", level: float = 0.0
    ) -> Cell:
        return Cell(
            "allreduce", backend=self.backend, ranks=ranks, bytes=size, group=group,
            load=load, level=level,
        )  # fmt: skip


def _oversubscribed(ranks: int) -> bool:
    return ranks > len(cores())


def _first(count: int) -> Group:
    return tuple(range(count))


def _halves(count: int) -> list[Group]:
    return [tuple(range(count // 2)), tuple(range(count // 2, count))]
