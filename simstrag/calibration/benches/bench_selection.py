"""The benches of a calibration, by the parts that are to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from simstrag.calibration.benches.allreduce import AllReduceBench, rank_counts, sizes_of
from simstrag.calibration.benches.anatomy import AnatomyBench
from simstrag.calibration.benches.bench import Bench
from simstrag.calibration.benches.gradient_norms import GradientBench
from simstrag.calibration.benches.overlap import OverlapBench
from simstrag.calibration.benches.power import PowerBench
from simstrag.calibration.benches.server import SIZES, ServerBench
from simstrag.calibration.benches.steps import ContentionBench, StepBench
from simstrag.calibration.benches.training_jobs import Jobs
from simstrag.calibration.benches.training_ranks import LEVELS, TrainingBench
from simstrag.calibration.benches.visit_forecast import VisitForecast
from simstrag.calibration.cells import PARTS, MeasurementCell, Part
from simstrag.processes.affinity import cores

if TYPE_CHECKING:
    from simstrag.workloads import Precisions

NESTED = 4
"""Number of ranks of which also one half alone, and both halves at once, reduce."""

SHARING = 8
"""Largest number of ranks that share one GPU."""

TRAINING = 4
"""Most ranks that train the workload on a CPU.  Lockstep is timed at 2 ranks and, given two cores,
at this number; the server at one rank per core, from 2 to this number."""

NET_LEVELS = (0.25, 0.5, 1.0)
"""Streams beside an all-reduce times their share of the time."""


def build_benches(
    jobs: Jobs,
    chosen: Precisions,
    gradient_bytes: int,
    gpus: int,
    parts: Sequence[Part] = PARTS,
    forecast: VisitForecast | None = None,
) -> list[Bench]:
    """Build the benches of some parts, and start none.

    Overlap and the all-reduce's constants are for the same number of ranks: the largest with a core
    each.

    gradient_bytes: bytes of one gradient, one of the sizes to time.
    gpus: number of GPUs; 0 on a CPU.
    forecast: of visits on a GPU, where steps are timed.
    """
    workload, pair = jobs.workload, (chosen.full, chosen.amp)
    backend: Literal["gloo", "nccl"] = "nccl" if gpus > 1 else "gloo"
    kind: Literal["cpu", "cuda"] = "cuda" if gpus else "cpu"
    benches: list[Bench] = []
    if "step" in parts:
        timed = StepBench(jobs, chosen, forecast=forecast)
        benches.append(timed)
        if forecast is not None:
            benches.append(AnatomyBench(jobs, timed.cells, forecast))
    elif "contention" in parts and forecast is not None:
        nominal = [
            MeasurementCell("step", precision=precision, batch=workload.nominal)
            for precision in dict.fromkeys(pair)
        ]
        benches.append(AnatomyBench(jobs, nominal, forecast))
    if "contention" in parts:
        benches.append(ContentionBench(jobs, chosen, forecast=forecast))
    if "allreduce" in parts:
        ranks = rank_counts(_rank_limit(gpus))
        benches.append(AllReduceBench(
            backend, kind, ranks, sizes_of(max(*ranks, NESTED), kind, gradient_bytes),
            nested=NESTED if backend == "gloo" or gpus >= NESTED else 0,
            traffic=NET_LEVELS,
        ))  # fmt: skip
    if "overlap" in parts:
        steps = [(precision, workload.nominal) for precision in pair]
        most = max(2, min(_rank_limit(gpus), len(cores())))
        benches.append(OverlapBench(workload.build, steps, most, backend, kind))
    if "server" in parts:
        benches.append(ServerBench(sorted({*SIZES, gradient_bytes})))
    if "gradient" in parts:
        benches.append(GradientBench(jobs))
    if "power" in parts:
        benches.append(PowerBench(jobs, chosen, forecast=forecast))
    if gpus or not (chosen.full == "fp32" or chosen.stand_in):  # precisions of `simstrag.ddp`
        return benches
    training = partial(
        TrainingBench, build=workload.build, precision=chosen.full, batch=workload.nominal,
        size=gradient_bytes, stand_in=chosen.stand_in,
    )  # fmt: skip
    if "lockstep" in parts:
        counts = {2, TRAINING} if len(cores()) > 1 else {2}
        benches += [training("lockstep", ranks=ranks, levels=LEVELS) for ranks in sorted(counts)]
    if "server" in parts:
        benches.append(training("server", ranks=min(TRAINING, _rank_limit(gpus))))
    return benches


def _rank_limit(gpus: int) -> int:
    """Largest number of ranks: one per GPU, several on a single GPU, else one per core."""
    if gpus == 1:
        return max(2, min(SHARING, len(cores())))
    return gpus or max(2, len(cores()))
