"""The benches that a calibration needs: what is measured of one workload on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from simstrag.calibration.benches.allreduce import AllReduceBench, rank_counts, sizes_of
from simstrag.calibration.benches.contention import ContentionBench
from simstrag.calibration.benches.gradient import GradientBench
from simstrag.calibration.benches.overlap import OverlapBench
from simstrag.calibration.benches.server import SIZES, ServerBench
from simstrag.calibration.benches.steps import Jobs, StepBench
from simstrag.calibration.benches.trained import LEVELS, TrainedBench
from simstrag.calibration.cells import PARTS, Bench, Part
from simstrag.processes.affinity import cores

if TYPE_CHECKING:
    from simstrag.workloads import Precisions

__all__ = ["equipped"]

NESTED = 4
"""Ranks of which one half, and both halves at once, reduce."""

SHARING = 8
"""Most ranks that share one GPU."""

TRAINING = 4
"""Ranks of a CPU that train the workload, at most: in lockstep as many, and two, where there are
two cores; under a server one a core."""

NET_LEVELS = (0.25, 0.5, 1.0)
"""Streams beside an all-reduce times their share of the time."""


def equipped(
    jobs: Jobs, chosen: Precisions, gradient_bytes: int, gpus: int, parts: Sequence[Part] = PARTS
) -> list[Bench]:
    """Benches for some parts, none of them started.

    Overlap is measured among the most ranks that have a core each, as are the constants of the
    all-reduce that it is a part of.
    gradient_bytes: of one gradient, a size of its own.  gpus: how many there are, 0 on a CPU.
    """
    workload, pair = jobs.workload, (chosen.full, chosen.amp)
    backend: Literal["gloo", "nccl"] = "nccl" if gpus > 1 else "gloo"
    kind: Literal["cpu", "cuda"] = "cuda" if gpus else "cpu"
    benches: dict[Part, Bench] = {}
    if "step" in parts:
        benches["step"] = StepBench(jobs, chosen)
    if "contention" in parts:
        benches["contention"] = ContentionBench(jobs, chosen)
    if "allreduce" in parts:
        ranks = rank_counts(_ranks(gpus))
        benches["allreduce"] = AllReduceBench(
            backend, kind, ranks, sizes_of(max(*ranks, NESTED), kind, gradient_bytes),
            nested=NESTED if backend == "gloo" or gpus >= NESTED else 0,
            traffic=NET_LEVELS,
        )  # fmt: skip
    if "overlap" in parts:
        steps = [(precision, workload.nominal) for precision in pair]
        benches["overlap"] = OverlapBench(
            workload.build, steps, max(2, min(_ranks(gpus), len(cores()))), backend, kind
        )
    if "server" in parts:
        benches["server"] = ServerBench(sorted({*SIZES, gradient_bytes}))
    if "gradient" in parts:
        benches["gradient"] = GradientBench(jobs)
    found = list(benches.values())
    if gpus or not (chosen.full == "fp32" or chosen.stand_in):  # what `simstrag.ddp` trains in
        return found
    training = partial(
        TrainedBench, build=workload.build, precision=chosen.full, batch=workload.nominal,
        size=gradient_bytes, stand_in=chosen.stand_in,
    )  # fmt: skip
    if "lockstep" in parts:
        counts = {2, TRAINING} if len(cores()) > 1 else {2}
        found += [training("lockstep", ranks=ranks, levels=LEVELS) for ranks in sorted(counts)]
    if "server" in parts:
        found.append(training("server", ranks=min(TRAINING, _ranks(gpus))))
    return found


def _ranks(gpus: int) -> int:
    """How many ranks there may be: one per GPU, several on a lone one, else one per core."""
    if gpus == 1:
        return max(2, min(SHARING, len(cores())))
    return gpus or max(2, len(cores()))
