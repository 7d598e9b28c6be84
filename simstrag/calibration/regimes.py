"""What bounds a step on a GPU: the host, which launches kernels, or the device, which runs them.

A step of a full queue takes about as long as the slower of the two.  So its kernels tell which one
it was, and without them launching does, timed from an empty queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simstrag.calibration.benches.background_load import ON_GPU
from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits.counted_visits import bounded_by_device

BOUND = 1.25
"""Step over launching from which the device bounds a step whose kernels are unknown, ASSUMED:
launching varies by less."""


def is_device_bound(step: MeasurementCell, visits: Iterable[Visit]) -> bool:
    """Whether kernels explain the time of a step, a cell of part "step"; never on a CPU.

    Older samples have kernels and launching as facts of first visits, `gpu_busy` and `host_alone`.

    visits: of the whole calibration.

    >>> step = MeasurementCell("step", precision="tf32", batch=8)
    >>> is_device_bound(step, [Visit(step, 0, 0.0, {"seconds": (0.03,), "launch": (0.02,)})])
    True
    """
    place = (step.precision, step.batch)
    parts = ("step", "anatomy")
    found = [
        v for v in visits if v.cell.part in parts and (v.cell.precision, v.cell.batch) == place
    ]
    launches = _numbers(found, "launch", "host_alone")
    if not launches:
        return False
    seconds = _numbers([visit for visit in found if visit.cell == step], "seconds")
    kernels = _numbers(found, "kernel", "gpu_busy")
    if kernels:
        return bounded_by_device(*(float(np.median(of)) for of in (seconds, kernels, launches)))
    return bool(np.median(seconds) > BOUND * np.median(launches))


def is_host_bound(cell: MeasurementCell, visits: Sequence[Visit]) -> bool:
    """Whether the pace of the host's cores shows in a cell.

    It shows in all that a CPU does.  Of a GPU it does not show in kernels, in power without work,
    nor in a step that the device bounds: alone, beside a load on the GPU, or while power is read.

    visits: of the whole calibration; those to the same step without load tell.
    """
    if cell.part == "anatomy":
        return False
    if cell.part == "power" and not cell.precision:
        return not any(v.facts.get("source") == "NVML" for v in visits if v.cell == cell)
    if cell.part in ("step", "power") or (cell.part == "contention" and cell.load in ON_GPU):
        step = MeasurementCell("step", precision=cell.precision, batch=cell.batch)
        return not is_device_bound(step, visits)
    return True


def _numbers(visits: Iterable[Visit], series: str, fact: str = "") -> list[float]:
    """The median of a series of each visit that has it, or in older samples the fact."""
    return [
        visit.median(series) if visit.samples.get(series) else float(visit.facts[fact])
        for visit in visits
        if visit.samples.get(series) or fact in visit.facts
    ]
