"""Steps and all-reduces beside a load: slowdown at each level, and the law of each load."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from simstrag.calibration.cells import MeasurementCell, Part, Visit
from simstrag.calibration.fits.held_out import CellPrediction
from simstrag.calibration.fits.model_selection import LoadLawFit, choose_load_law
from simstrag.calibration.fits.visit_statistics import (
    CellEstimate,
    estimate,
    fitted,
    measured,
    round_digits,
    visit_medians,
)
from simstrag.calibration.samples import Samples
from simstrag.errors import InputError
from simstrag.profile.measurements import Level, Response
from simstrag.profile.quantity import Quantity
from simstrag.profile.responses import evaluate

Resource = Literal["gpu", "host", "net"]

RESOURCES: dict[str, Resource] = {"gemm": "gpu", "copy": "gpu", "net": "net"}
"""The resource of a trace that a load uses; all other loads use the host's cores."""

LOADS = ("cpu", "gemm", "memory", "copy", "net")
"""Order of the responses in a profile."""


class LoadedCell(NamedTuple):
    """One cell beside a load; n: number of its samples."""

    cell: MeasurementCell
    slowdown: CellEstimate
    n: int


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


def visit_slowdown(visit: Visit) -> float:
    """The median beside the load over the median without it, of one visit."""
    return statistics.median(visit.samples["seconds"]) / statistics.median(visit.samples["clean"])


def responses(
    samples: Samples, held_out: frozenset[MeasurementCell], ranks: int
) -> tuple[Response, ...]:
    """The response of steps to each load in each precision, and of all-reduces to load "net".

    ranks: number of ranks of the all-reduces.
    """
    device_kind = str(samples.header["device"].get("kind", "cpu"))
    groups: dict[MeasurementCell, list[LoadedCell]] = {}
    for each in [*_loaded_steps(samples), *_loaded_reduces(samples, ranks)]:
        groups.setdefault(replace(each.cell, level=0.0), []).append(each)
    fits = [
        _response(group, held_out, resource_of(key.load, device_kind))
        for key, group in groups.items()
    ]
    known = [each for each in fits if each is not None]
    return tuple(
        sorted(known, key=lambda r: LOADS.index(r.load) if r.load in LOADS else len(LOADS))
    )


def _loaded_steps(samples: Samples) -> Iterable[LoadedCell]:
    return [_loaded_cell(samples, cell) for cell in samples.cells if cell.part == "contention"]


def _loaded_reduces(samples: Samples, ranks: int) -> Iterable[LoadedCell]:
    """All-reduces of the size nearest to the gradient's, beside traffic on their link."""
    wanted = max(1, int(samples.header["workload"].get("gradient_bytes") or 1))
    cells = [
        cell
        for cell in samples.cells
        if cell.part == "allreduce" and cell.load == "net" and cell.ranks == ranks
        and cell.group == "all"
    ]  # fmt: skip
    size = min(
        {cell.bytes for cell in cells}, key=lambda b: max(b, wanted) / min(b, wanted), default=0
    )
    return [_loaded_cell(samples, cell) for cell in cells if cell.bytes == size]


def _loaded_cell(samples: Samples, cell: MeasurementCell) -> LoadedCell:
    visits = samples.of(cell)
    n = sum(len(v.samples["seconds"]) for v in visits)
    return LoadedCell(cell, estimate([visit_slowdown(v) for v in visits]), n)


def _response(
    group: Sequence[LoadedCell], held_out: frozenset[MeasurementCell], resource: Resource
) -> Response | None:
    group = sorted(group, key=lambda each: each.cell.level)
    seen = [each for each in group if each.cell not in held_out]
    if not seen:
        return None
    fit = choose_load_law([e.cell.level for e in seen], [e.slowdown for e in seen])
    first = group[0].cell
    what = f"an all-reduce of {first.bytes} bytes" if first.part == "allreduce" else "a whole step"
    return Response(
        resource=resource,
        load=first.load,
        precision=first.precision,
        batch=first.batch or None,
        ranks=first.ranks or None,
        bytes=first.bytes or None,
        law=fit.law,
        constants={name: _constant(fit, name, len(seen)) for name in fit.constants},
        levels=tuple(
            Level(
                level=each.cell.level,
                slowdown=measured(
                    each.slowdown, "beside the load over alone, in the same visit", each.n
                ),
                held_out=each.cell in held_out,
            )
            for each in group
        ),
        errors={law: round_digits(error) for law, error in fit.errors.items()},
        note=f"of {what}; the law is fitted to {len(seen)} of {len(group)} levels"
        + ("" if fit.errors else ", too few to tell laws apart"),
    )


def _constant(fit: LoadLawFit, name: str, n: int) -> Quantity:
    interval = (None, None) if fit.intervals is None else fit.intervals[name]
    note = f"{fit.law} law; interval: refits to draws within each level's error"
    return fitted(fit.constants[name], note, interval, n)


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

    It has no interval, for loads and levels differ in truth, and their spread is no error.
    """
    both: dict[tuple[str, float, int], dict[str, CellEstimate]] = {}
    for cell in samples.cells:
        if cell.part == "contention" and cell.precision in (full, amp):
            pair = both.setdefault((cell.load, cell.level, cell.batch), {})
            pair[cell.precision] = visit_medians(samples.of(cell))
    gains = [of[full].value / of[amp].value for of in both.values() if {full, amp} <= of.keys()]
    if not gains:
        return None
    return Quantity(
        value=round_digits(statistics.median(gains)), kind="measured", n=len(gains),
        note=f"median over {len(gains)} loads and levels of the median step in {full} over that in "
        f"{amp}; {min(gains):.3f} to {max(gains):.3f} from one to the other, which is no interval",
    )  # fmt: skip
