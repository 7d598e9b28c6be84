"""Ranks that train the workload together: what their steps take, and what comes after them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simstrag.calibration.cells import Cell, Visit
from simstrag.calibration.fits.medians import cut, over_visits, told
from simstrag.calibration.fits.step_cells import noise_of
from simstrag.calibration.samples import Samples
from simstrag.profile.measurements import LockstepCell
from simstrag.profile.quantity import Quantity

__all__ = ["beside_others", "locksteps"]


def locksteps(samples: Samples) -> tuple[LockstepCell, ...]:
    """Ranks in lockstep, by their number, then alone and beside each level of a load."""
    cells = [cell for cell in samples.cells if cell.part == "lockstep"]
    cells.sort(key=lambda c: (c.ranks, c.load, c.level))
    return tuple(_lockstep(cell, samples.of(cell)) for cell in cells)


def _lockstep(cell: Cell, visits: Sequence[Visit]) -> LockstepCell:
    rests = [float(np.mean(v.samples["rest"])) for v in visits]
    note = "from the slowest rank's last gradient to the next step; mean of each visit, then median"
    clean = not cell.load
    return LockstepCell(
        ranks=cell.ranks,
        precision=cell.precision,
        batch=cell.batch,
        bytes=cell.bytes,
        load=cell.load,
        level=cell.level,
        rest=cut(
            told(
                over_visits(rests, relative=min(rests) > 0), note,
                sum(len(v.samples["rest"]) for v in visits),
            )
        ),
        slowdown=beside_others(visits) if clean else _response(visits),
        interference=beside_others(visits, "beside") if clean else None,
        noise=noise_of(_by_rank(cell, visits)) if clean else None,
    )  # fmt: skip


def beside_others(visits: Sequence[Visit], name: str = "local") -> Quantity | None:
    """How much longer steps take while other ranks compute too, than alone on their core.

    name: of those of the runtime, or "beside", bare ones.  None where they were not timed, or steps
    alone were not.
    """
    there = [v for v in visits if v.samples.get("alone") and v.samples.get(name)]
    if not there:
        return None
    ratios = [_slower(v, name) for v in there]
    what = "step among the ranks" if name == "local" else "bare step on all their cores at once"
    note = f"{what} over one alone on its core, in the same visit; mean over ranks"
    return told(over_visits(ratios), note, sum(len(v.samples[name]) for v in there))


def _response(visits: Sequence[Visit]) -> Quantity | None:
    """How much longer steps on the core of rank 0 take beside a load there than without it."""
    there = [v for v in visits if v.samples.get("clean")]
    if not there:
        return None
    note = "step on the loaded core over the same ranks' without the load, in the same visit"
    ratios = [_beside_load(v) for v in there]
    return told(over_visits(ratios), note, sum(len(v.samples["local"]) for v in there))


def _beside_load(visit: Visit) -> float:
    """Mean local step of the ranks on the core of rank 0 over their mean without the load."""
    ranks, cores = visit.cell.ranks, visit.facts["cores"]
    loaded, clean = (
        np.reshape(visit.samples[name], (ranks, -1))[::cores].mean() for name in ("local", "clean")
    )
    return float(loaded / clean)


def _slower(visit: Visit, name: str) -> float:
    """Of each rank its mean step over that alone on its core, then the mean of these."""
    cores: int = visit.facts["cores"]
    alone = np.reshape(visit.samples["alone"], (cores, -1)).mean(axis=1)
    own = np.reshape(visit.samples[name], (visit.cell.ranks if name == "local" else cores, -1))
    means = own.mean(axis=1)
    return float(np.mean([mean / alone[rank % cores] for rank, mean in enumerate(means)]))


def _by_rank(cell: Cell, visits: Sequence[Visit]) -> list[list[float]]:
    """Local steps of each visit and rank, which has a mean of its own."""
    return [
        own.tolist() for v in visits for own in np.reshape(v.samples["local"], (cell.ranks, -1))
    ]
