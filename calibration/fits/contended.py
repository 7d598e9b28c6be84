"""Steps and all-reduces beside a load: slowdowns by level, and the law that each load follows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from simstrag.calibration.cells import Cell, Visit
from simstrag.calibration.fits import laws
from simstrag.calibration.fits.held_out import Prediction
from simstrag.calibration.fits.medians import Estimate, over_visits, short, told
from simstrag.calibration.fits.step_cells import medians
from simstrag.calibration.measured import beside
from simstrag.calibration.samples import Samples
from simstrag.errors import InputError
from simstrag.profile.measurements import Level, Response
from simstrag.profile.quantity import Quantity
from simstrag.profile.responses import evaluate

__all__ = ["contended_gain", "predictions", "resource_of", "responses", "slowdown"]

Resource = Literal["gpu", "host", "net"]
RESOURCES: dict[str, Resource] = {"gemm": "gpu", "copy": "gpu", "net": "net"}
"""What a load takes of a device, in the words of a trace; any other is of the host's cores."""


class Measured(NamedTuple):
    """One cell beside a load: the slowdown and how many samples are behind it."""

    cell: Cell
    slowdown: Estimate
    n: int


def resource_of(load: str, device_kind: str) -> Resource:
    """What a trace calls that which a load takes: on a CPU the host's cores are the device.

    >>> resource_of("cpu", "cpu"), resource_of("cpu", "gpu"), resource_of("gemm", "gpu")
    ('gpu', 'host', 'gpu')
    """
    return RESOURCES.get(load, "gpu" if device_kind == "cpu" else "host")


def slowdown(visit: Visit) -> float:
    """Of one visit: its median beside the load over the one without, timed just before."""
    return statistics.median(visit.samples["seconds"]) / statistics.median(visit.samples["clean"])


def responses(samples: Samples, held_out: frozenset[Cell], ranks: int) -> tuple[Response, ...]:
    """One per load and precision of steps; of all-reduces among so many ranks beside "net".

    In the order in which the loads were measured; loads on cores come before those on memory.
    """
    kind = str(samples.header["device"].get("kind", "cpu"))
    found: dict[Cell, list[Measured]] = {}
    for each in [*_steps(samples), *_reduced(samples, ranks)]:
        found.setdefault(replace(each.cell, level=0.0), []).append(each)
    order = ("cpu", "gemm", "memory", "copy", "net")
    made = [_response(group, held_out, resource_of(key.load, kind)) for key, group in found.items()]
    known = [each for each in made if each is not None]
    return tuple(
        sorted(known, key=lambda r: order.index(r.load) if r.load in order else len(order))
    )


def _steps(samples: Samples) -> Iterable[Measured]:
    return [_measured(samples, cell) for cell in samples.cells if cell.part == "contention"]


def _reduced(samples: Samples, ranks: int) -> Iterable[Measured]:
    """All-reduces of the size nearest the gradient's, beside traffic on their link."""
    wanted = max(1, int(samples.header["workload"].get("gradient_bytes") or 1))
    beside = [
        cell
        for cell in samples.cells
        if cell.part == "allreduce" and cell.load == "net" and cell.ranks == ranks
        and cell.group == "all"
    ]  # fmt: skip
    size = min(
        {cell.bytes for cell in beside}, key=lambda b: max(b, wanted) / min(b, wanted), default=0
    )
    return [_measured(samples, cell) for cell in beside if cell.bytes == size]


def _measured(samples: Samples, cell: Cell) -> Measured:
    visits = samples.of(cell)
    n = sum(len(v.samples["seconds"]) for v in visits)
    return Measured(cell, over_visits([slowdown(v) for v in visits]), n)


def _response(
    group: Sequence[Measured], held_out: frozenset[Cell], resource: Resource
) -> Response | None:
    group = sorted(group, key=lambda each: each.cell.level)
    seen = [each for each in group if each.cell not in held_out]
    if not seen:
        return None
    chosen = laws.choose([e.cell.level for e in seen], [e.slowdown for e in seen])
    first = group[0].cell
    what = f"an all-reduce of {first.bytes} bytes" if first.part == "allreduce" else "a whole step"
    return Response(
        resource=resource,
        load=first.load,
        precision=first.precision,
        batch=first.batch or None,
        ranks=first.ranks or None,
        bytes=first.bytes or None,
        law=chosen.law,
        constants={name: _constant(chosen, name, len(seen)) for name in chosen.constants},
        levels=tuple(
            Level(
                level=each.cell.level,
                slowdown=told(
                    each.slowdown, "beside the load over alone, in the same visit", each.n
                ),
                held_out=each.cell in held_out,
            )
            for each in group
        ),
        errors={law: short(error) for law, error in chosen.errors.items()},
        note=f"of {what}; the law is fitted to {len(seen)} of {len(group)} levels"
        + ("" if chosen.errors else ", too few to tell laws apart"),
    )


def _constant(chosen: laws.LawFit, name: str, n: int) -> Quantity:
    low, high = (None, None) if chosen.intervals is None else map(short, chosen.intervals[name])
    return Quantity(
        value=short(chosen.constants[name]), kind="fitted", low=low, high=high, n=n,
        note=f"{chosen.law} law; interval: refits to draws within each level's error",
    )  # fmt: skip


def predictions(found: Sequence[Response]) -> list[Prediction]:
    """What each law says of the levels left out of it, as slowdowns.

    An interpolation that ends below a level left out is taken to hold there what it holds last.
    """
    made = []
    for response in found:
        for level in response.levels:
            if level.held_out:
                cell, predicted = beside(response, level.level), _at(response, level.level)
                made.append(Prediction(cell, level.slowdown, predicted))
    return made


def _at(response: Response, level: float) -> float:
    try:
        return float(evaluate(response, level))
    except InputError:
        return float(evaluate(response, max(e.level for e in response.levels if not e.held_out)))


def contended_gain(samples: Samples, full: str, amp: str) -> Quantity | None:
    """Full over reduced precision beside a load: per load and level, then the median over these.

    Without an interval: loads and levels differ in truth, and their spread is no error.
    """
    both: dict[tuple[str, float, int], dict[str, Estimate]] = {}
    for cell in samples.cells:
        if cell.part == "contention" and cell.precision in (full, amp):
            place = both.setdefault((cell.load, cell.level, cell.batch), {})
            place[cell.precision] = medians(samples.of(cell))
    gains = [of[full].value / of[amp].value for of in both.values() if {full, amp} <= of.keys()]
    if not gains:
        return None
    return Quantity(
        value=short(statistics.median(gains)), kind="measured", n=len(gains),
        note=f"median over {len(gains)} loads and levels of the median step in {full} over that in "
        f"{amp}; {min(gains):.3f} to {max(gains):.3f} from one to the other, which is no interval",
    )  # fmt: skip
