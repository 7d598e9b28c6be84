"""Ranks that train the workload together: what their steps take, and what comes after them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simstrag.calibration.cells import Cell, Visit
from simstrag.calibration.medians import cut, over_visits, told
from simstrag.calibration.samples import Samples
from simstrag.calibration.step_cells import noise_of
from simstrag.measurements import LockstepCell
from simstrag.quantity import Quantity

__all__ = ["beside_others", "locksteps"]


def locksteps(samples: Samples) -> tuple[LockstepCell, ...]:
    """Ranks in lockstep, by their number, then alone and beside each level of a load."""
    cells = [cell for cell in samples.cells if cell.part == "lockstep"]
    cells.sort(key=lambda c: (c.ranks, c.load, c.level))
    return tuple(_lockstep(cell, samples.of(cell)) for cell in cells if samples.of(cell))


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
        slowdown=beside_others(visits) if clean else None,
        interference=_interference(visits) if clean else None,
        noise=noise_of(_by_rank(cell, visits)) if clean else None,
    )  # fmt: skip


def beside_others(visits: Sequence[Visit]) -> Quantity | None:
    """How much longer steps take among ranks that compute at the same time, than alone.

    None where steps alone were not timed.
    """
    there = [v for v in visits if v.samples.get("alone")]
    if not there:
        return None
    ratios = [_slower(v) for v in there]
    note = "step among the ranks over one alone on its core, in the same visit; means over ranks"
    return told(over_visits(ratios), note, sum(len(v.samples["local"]) for v in there))


def _interference(visits: Sequence[Visit]) -> Quantity | None:
    there = [v for v in visits if v.samples.get("beside")]
    if not there:
        return None
    ratios = []
    for v in there:
        alone, beside = (
            np.reshape(v.samples[name], (v.facts["cores"], -1)).mean(axis=1)
            for name in ("alone", "beside")
        )
        ratios.append(float(np.mean(beside / alone)))
    note = "bare step on all the ranks' cores at once over one alone, in the same visit"
    return told(over_visits(ratios), note, sum(len(v.samples["beside"]) for v in there))


def _slower(visit: Visit) -> float:
    """Of each rank its mean step over that alone on its core, then the mean of these."""
    ranks = visit.cell.ranks
    local = np.reshape(visit.samples["local"], (ranks, -1)).mean(axis=1)
    cores = visit.facts.get("cores", ranks)
    alone = np.reshape(visit.samples["alone"], (cores, -1)).mean(axis=1)
    return float(np.mean([each / alone[rank % cores] for rank, each in enumerate(local)]))


def _by_rank(cell: Cell, visits: Sequence[Visit]) -> list[list[float]]:
    """Local steps of each visit and rank, which has a mean of its own."""
    return [
        own.tolist() for v in visits for own in np.reshape(v.samples["local"], (cell.ranks, -1))
    ]
