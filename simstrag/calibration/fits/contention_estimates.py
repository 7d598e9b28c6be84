"""Steps and all-reduces beside a load: slowdown at each level, and the law of each load."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from simstrag.calibration.cells import MeasurementCell, Part, Visit
from simstrag.calibration.fits.counted_visits import NEAR, describe_instability
from simstrag.calibration.fits.device_estimates import DeviceSteps
from simstrag.calibration.fits.held_out import CellPrediction
from simstrag.calibration.fits.law_fits import LawFit, choose_load_law
from simstrag.calibration.fits.visit_statistics import (
    CellEstimate,
    estimate,
    measured_quantity,
    round_digits,
    visit_medians,
)
from simstrag.calibration.samples import Samples
from simstrag.errors import InputError
from simstrag.profile.doubtful import UNSTABLE
from simstrag.profile.measurements import Law, Level, Response
from simstrag.profile.quantity import Quantity
from simstrag.profile.responses import evaluate

Resource = Literal["gpu", "host", "net"]

RESOURCES: dict[str, Resource] = {"gemm": "gpu", "copy": "gpu", "net": "net"}
"""The resource of a trace that a load uses; all other loads use the host's cores."""

LOADS = ("cpu", "gemm", "memory", "copy", "net")
"""Order of the responses in a profile."""

TimedVisits = dict[MeasurementCell, tuple[Visit, ...]]
"""Cells beside a load, and their visits."""


def cell_of_level(response: Response, level: float) -> MeasurementCell:
    """The cell of one level of a response.

    >>> levels = [{"level": 0.5, "slowdown": {"value": 1.0, "kind": "measured"}}]
    >>> of = {"resource": "gpu", "load": "cpu", "law": "none", "levels": levels}
    >>> steps = Response.model_validate({**of, "precision": "fp32", "batch": 8})
    >>> str(cell_of_level(steps, 0.5))
    'contention fp32 batch 8 beside cpu 0.5'
    >>> str(cell_of_level(Response.model_validate({**of, "ranks": 2, "bytes": 1024}), 0.5))
    'allreduce 2 ranks 1024 B beside cpu 0.5'
    """
    part: Part = "contention" if response.precision else "allreduce"
    return replace(MeasurementCell.of(part, response), level=level)


def resource_of(load: str, device_kind: str) -> Resource:
    """The resource of a trace that a load uses; on a CPU the host's cores are the device.

    >>> resource_of("cpu", "cpu"), resource_of("cpu", "gpu"), resource_of("gemm", "gpu")
    ('gpu', 'host', 'gpu')
    """
    return RESOURCES.get(load, "gpu" if device_kind == "cpu" else "host")


def responses(
    samples: Samples,
    held_out: frozenset[MeasurementCell],
    ranks: int,
    steps: DeviceSteps | None = None,
) -> tuple[Response, ...]:
    """The response of steps to each load in each precision, and of all-reduces to load "net".

    ranks: number of ranks of the all-reduces; their size is the nearest to the gradient's.
    steps: a GPU's; loads slow the device's part of them, and visits after a profiler count nothing.
    """
    device_kind = str(samples.header["device"].get("kind", "cpu"))
    timed = samples.by_cell("contention")
    if steps is not None:
        timed = {
            cell: tuple(v for v in samples.visits if v.cell == cell and not v.skipped
                        and not steps.is_after_profiler(v))
            for cell in timed
        }  # fmt: skip
        timed = {cell: visits for cell, visits in timed.items() if visits}
    wanted = max(1, int(samples.header["workload"].get("gradient_bytes") or 1))
    reduces = {
        cell: visits
        for cell, visits in samples.by_cell("allreduce").items()
        if cell.load == "net" and cell.ranks == ranks and cell.group == "all"
    }
    sizes = {cell.bytes for cell in reduces}
    size = min(sizes, key=lambda b: max(b, wanted) / min(b, wanted), default=0)
    timed |= {cell: visits for cell, visits in reduces.items() if cell.bytes == size}
    groups: dict[MeasurementCell, TimedVisits] = {}
    for cell, visits in timed.items():
        groups.setdefault(replace(cell, level=0.0), {})[cell] = visits
    fits = []
    for key, group in groups.items():
        resource = resource_of(key.load, device_kind)
        if steps is not None and resource == "gpu":
            known = _knows_device(group, steps)
            fits.append(
                _device_response(group, held_out, steps) if known
                else _response(group, held_out, resource)
            )  # fmt: skip
        else:
            fits.append(_response(group, held_out, resource))
    known_fits = [each for each in fits if each is not None]
    return tuple(
        sorted(known_fits, key=lambda r: LOADS.index(r.load) if r.load in LOADS else len(LOADS))
    )


def _response(
    timed: TimedVisits, held_out: frozenset[MeasurementCell], resource: Resource
) -> Response | None:
    cells = sorted(timed, key=lambda cell: cell.level)
    seen = [cell for cell in cells if cell not in held_out]
    if not seen:
        return None
    slowdowns = {
        cell: estimate([v.median() / v.median("clean") for v in timed[cell]]) for cell in cells
    }
    first = cells[0]
    what = f"an all-reduce of {first.bytes} bytes" if first.part == "allreduce" else "a whole step"
    fit = choose_load_law([cell.level for cell in seen], [slowdowns[cell] for cell in seen])
    origin = "beside the load over alone, in the same visit"
    return _of_levels(timed, slowdowns, seen, fit, resource, what, origin)


def _knows_device(timed: TimedVisits, steps: DeviceSteps) -> bool:
    """Whether the kernels of these steps were seen; else only whole steps can be compared."""
    clean = {MeasurementCell("step", precision=c.precision, batch=c.batch) for c in timed}
    return all(steps.device(cell) is not None for cell in clean)


def _device_response(
    timed: TimedVisits, held_out: frozenset[MeasurementCell], steps: DeviceSteps
) -> Response | None:
    """The stretch of the device's part of a step, at the levels where it bounds the step.

    A step beside the load that takes no longer than launching says only how large the stretch is
    at most; such levels are in the note alone.
    """
    stretched: dict[MeasurementCell, list[float]] = {}
    limits: dict[MeasurementCell, float] = {}
    for cell, visits in timed.items():
        clean = MeasurementCell("step", precision=cell.precision, batch=cell.batch)
        kernel, device = steps.kernels.get(clean), steps.device(clean)
        assert kernel is not None
        assert device is not None
        for visit in visits:
            alone, beside = visit.median("clean"), visit.median()
            by_device = alone <= (1 + NEAR) * kernel.value
            if by_device or beside > (1 + NEAR) * alone:
                seconds = alone if by_device else device.value
                stretched.setdefault(cell, []).append(beside / seconds)
            else:
                limits[cell] = min(limits.get(cell, math.inf), beside / device.value)
    cells = sorted(stretched, key=lambda cell: cell.level)
    seen = [cell for cell in cells if cell not in held_out]
    if not seen:
        return None
    slowdowns = {cell: estimate(values) for cell, values in stretched.items()}
    fit = choose_load_law(
        [cell.level for cell in seen], [slowdowns[cell] for cell in seen], shared=True
    )
    origin = "step beside the load over the device's part alone"
    response = _of_levels(
        {cell: timed[cell] for cell in cells}, slowdowns, seen, fit, "gpu",
        "the device's part of a step", origin,
    )  # fmt: skip
    bounds = [
        f"{cell.level:g} (at most {limit:.3g})"
        for cell, limit in sorted(limits.items(), key=lambda item: item[0].level)
        if cell not in stretched
    ]
    note = f"; the host bounded steps at level {', '.join(bounds)}" if bounds else ""
    return response.model_copy(update={"part": "device", "note": response.note + note})


def _of_levels(
    timed: TimedVisits,
    slowdowns: dict[MeasurementCell, CellEstimate],
    seen: Sequence[MeasurementCell],
    fit: LawFit[Law],
    resource: Resource,
    what: str,
    origin: str,
) -> Response:
    """The response of a law that was fitted to the cells seen.

    what: is slowed, in words.
    origin: of the slowdown at a level, in words.
    """
    cells = sorted(timed, key=lambda cell: cell.level)
    first = cells[0]
    return Response(
        resource=resource,
        load=first.load,
        precision=first.precision,
        batch=first.batch or None,
        ranks=first.ranks or None,
        bytes=first.bytes or None,
        law=fit.law,
        constants={name: fit.constant(name, len(seen), "", "level") for name in fit.constants},
        levels=tuple(
            Level(
                level=cell.level,
                slowdown=measured_quantity(
                    slowdowns[cell],
                    origin,
                    sum(len(v.samples["seconds"]) for v in timed[cell]),
                ),
                held_out=cell not in seen,
            )
            for cell in cells
        ),
        errors={law: round_digits(error) for law, error in fit.errors.items()},
        note=f"of {what}; the law is fitted to {len(seen)} of {len(cells)} levels"
        + ("" if fit.errors else ", too few to tell laws apart")
        + _describe_unstable(timed),
    )


def _describe_unstable(timed: TimedVisits) -> str:
    """The levels whose visits repeat no single slowdown, for a note; "" for none."""
    levels = {
        cell.level: describe_instability(visits, lambda v: v.median() / v.median("clean"))
        for cell, visits in timed.items()
    }
    named = [f"level {level:g}: {why}" for level, why in sorted(levels.items()) if why]
    return f"; {UNSTABLE}{', '.join(named)}" if named else ""


def predictions(responses: Sequence[Response]) -> list[CellPrediction]:
    """The slowdown that each law predicts at the levels held out of it."""
    return [
        CellPrediction(
            cell_of_level(response, level.level), level.slowdown, _predict(response, level.level)
        )
        for response in responses
        for level in response.levels
        if level.held_out
    ]


def _predict(response: Response, level: float) -> float:
    """The slowdown at a level; beyond its last level an interpolation holds its last value."""
    try:
        return float(evaluate(response, level))
    except InputError:
        return float(evaluate(response, max(e.level for e in response.levels if not e.held_out)))


def contended_gain(samples: Samples, full: str, amp: str) -> Quantity | None:
    """Step time in full over reduced precision beside a load: median over loads and levels.

    It has no interval, because the gain truly differs by load and level: the spread is no error.
    """
    both: dict[MeasurementCell, dict[str, float]] = {}
    for cell, visits in samples.by_cell("contention").items():
        if cell.precision in (full, amp):
            pair = both.setdefault(replace(cell, precision=""), {})
            pair[cell.precision] = visit_medians(visits).value
    gains = [of[full] / of[amp] for of in both.values() if {full, amp} <= of.keys()]
    if not gains:
        return None
    return Quantity(
        value=round_digits(statistics.median(gains)), kind="measured", n=len(gains),
        note=f"median over {len(gains)} loads and levels of the median step in {full} over that in "
        f"{amp}; {min(gains):.3f} to {max(gains):.3f} from one to the other, which is no interval",
    )  # fmt: skip
