"""What went other than it should while a machine was measured, and by how much."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simstrag.calibration.benches.occupancy import LIMIT
from simstrag.calibration.benches.pace import OFF, unrest, usual
from simstrag.calibration.campaign import FEWEST
from simstrag.calibration.fits.medians import half_width, statistic
from simstrag.calibration.samples import Samples

__all__ = ["NOISY", "remarks"]

NOISY = 0.03
"""Median relative half-width of the cells' intervals above which a machine is called noisy."""

SHOWN = 5
"""Cells that are named in a line."""


def remarks(samples: Samples) -> list[str]:
    """A line for each: skipped cells, visits beside others' work, intervals too wide."""
    return [*_skipped(samples), *_off(samples), *_disturbed(samples), *_wide(samples)]


def _skipped(samples: Samples) -> Iterator[str]:
    for visit in samples.visits:
        if visit.skipped:
            yield f"skipped: {visit.cell}: {visit.skipped}"


def _off(samples: Samples) -> Iterator[str]:
    off = [visit.cell for visit in samples.visits if visit.facts.get("load_off")]
    if off:
        cells = ", ".join(map(str, list(dict.fromkeys(off))[:SHOWN]))
        yield f"loads did less or more than their level in {len(off)} visits: {cells}"


def _disturbed(samples: Samples) -> Iterator[str]:
    disturbed = [v.facts["foreign"] for v in samples.visits if v.facts.get("disturbed")]
    if disturbed:
        yield (
            f"others were at work here: during {len(disturbed)} of {len(samples.visits)} visits "
            f"they took more than {LIMIT:g} cores, {np.median(disturbed):.2g} in the median; those "
            "visits do not count where enough others were calm"
        )
    known = usual(samples.visits)
    slowed = sum(unrest(visit, known) > OFF for visit in samples.visits)
    if slowed:
        yield (
            f"this machine has neighbours that change: around {slowed} of {len(samples.visits)} "
            f"visits a core took {OFF:g} times its usual time for a loop, or as many times less; "
            "they do not count where at least half of a cell's were as usual"
        )
    stolen = [v.facts.get("stolen", 0.0) for v in samples.visits]
    if stolen and np.mean(stolen) > LIMIT / 10:
        yield f"the hypervisor took {np.mean(stolen):.2g} cores for other machines on average"


def _wide(samples: Samples) -> Iterator[str]:
    widths = {
        cell: half_width([statistic(visit) for visit in samples.of(cell)])
        for cell in samples.cells
        if cell.part != "gradient"
    }
    target = float(samples.header["plan"]["target"])
    wide = sorted((c for c, w in widths.items() if w > target), key=lambda c: -widths[c])
    if not wide:
        return
    fewest = min(len(samples.of(cell)) for cell in widths)
    if fewest < FEWEST:
        yield f"only {fewest} visits to some cells fitted into the minutes; give more --minutes"
    middle = float(np.median([*widths.values()]))
    if middle > NOISY:
        yield (
            f"this machine is too noisy: the median cell is known to {middle:.1%} only, not to "
            f"{NOISY:.0%}; measure when it is idle, or give more --minutes"
        )
    worst = ", ".join(f"{cell} {widths[cell]:.1%}" for cell in wide[:SHOWN])
    yield (
        f"{len(wide)} of {len(widths)} cells are not known to {target:.0%} (95 % intervals); "
        f"the worst: {worst}"
    )
