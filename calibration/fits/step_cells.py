"""Clean steps: what each cell's visits say, and the fit of time against batch of each precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simstrag.calibration.cells import Cell, Visit
from simstrag.calibration.fits import batch_fit
from simstrag.calibration.fits.held_out import Prediction
from simstrag.calibration.fits.medians import (
    LASTING,
    Estimate,
    cut,
    lag1,
    noise_quantiles,
    over_visits,
    short,
    told,
)
from simstrag.calibration.samples import Samples
from simstrag.profile.measurements import BatchFit, StepCell
from simstrag.profile.quantity import NoiseSamples, Quantity

__all__ = ["batch_fits", "medians", "noise_of", "predictions", "step_cells"]

FEWEST_STEPS = 30
"""Steps that a distribution of noise takes at least."""


def medians(visits: Sequence[Visit], name: str = "seconds") -> Estimate:
    """Of each visit's median of one series."""
    return over_visits([float(np.median(v.samples[name])) for v in visits])


def step_cells(samples: Samples, held_out: frozenset[Cell]) -> tuple[StepCell, ...]:
    """Each cell of part step, by precision in the order they were measured, and by batch."""
    cells = [cell for cell in samples.cells if cell.part == "step"]
    order = list(dict.fromkeys(cell.precision for cell in cells))
    cells.sort(key=lambda cell: (order.index(cell.precision), cell.batch))
    return tuple(_cell(cell, samples.of(cell), cell in held_out) for cell in cells)


def _cell(cell: Cell, visits: Sequence[Visit], held_out: bool) -> StepCell:
    steps = [v.samples["seconds"] for v in visits]
    n = sum(map(len, steps))
    means = over_visits([float(np.mean(each)) for each in steps])
    peaks = [v.facts["peak_bytes"] for v in visits if v.facts.get("peak_bytes")]
    return StepCell(
        precision=cell.precision,
        batch=cell.batch,
        seconds=told(medians(visits), "median step of each visit, then over visits", n),
        mean=told(means, "mean step of each visit, then the median over visits", n),
        update=_series(visits, "update", "optimizer and clearing of gradients"),
        host=_series(visits, "host", "until the launching thread comes back"),
        host_share=_host_share(visits),
        peak_bytes=max(peaks, default=None),
        noise=noise_of(steps),
        held_out=held_out,
    )


def noise_of(steps: Sequence[Sequence[float]]) -> NoiseSamples | None:
    """The spread of steps inside their visits; None where there are too few."""
    steps = [each for each in steps if len(each) > 1]
    n = sum(map(len, steps))
    if n < FEWEST_STEPS:
        return None
    means = [float(np.mean(each)) for each in steps]
    drift = float(np.std(means, ddof=1) / np.mean(means)) if len(means) > 1 else 0.0
    lag = lag1(steps)
    order = (
        f"No visit has {LASTING} steps to tell how successive ones are correlated"
        if lag is None
        else "Successive steps are correlated as stated; simulated draws are independent and do "
        "not honour that"
    )
    return NoiseSamples(
        kind="measured",
        quantiles=tuple(short(value) for value in noise_quantiles(steps)),
        n=n,
        lag1_autocorrelation=None if lag is None else round(lag, 4),
        note="clean steps, each over the mean of its own visit, and of n steps sqrt(n / (n - 1)) "
        f"times as far from it; visits differ by {drift:.2%} (standard deviation), which is in the "
        f"interval of the mean and not here. {order}",
    )


def _series(visits: Sequence[Visit], name: str, note: str) -> Quantity | None:
    there = [v for v in visits if v.samples.get(name)]
    if not there or min(min(v.samples[name]) for v in there) <= 0:
        return None
    return told(medians(there, name), note, sum(len(v.samples[name]) for v in there))


def _host_share(visits: Sequence[Visit]) -> Quantity | None:
    """The part of a step in which the device does nothing for it; see `calibration.device`.

    On a GPU what kernels leave idle of a step, on a CPU what lies outside of operators, at most.
    """
    shares = []
    for visit in visits:
        if "gpu_busy" in visit.facts:
            step = float(np.median(visit.samples["seconds"]))
            shares.append(min(1.0, max(0.0, 1 - visit.facts["gpu_busy"] / step)))
        elif "host_share" in visit.facts:
            shares.append(float(visit.facts["host_share"]))
    if not shares:
        return None
    found = told(over_visits(shares, relative=False), "part of a step that is not the device's")
    return cut(found, 0.0, 1.0)


def batch_fits(samples: Samples, held_out: frozenset[Cell]) -> tuple[BatchFit, ...]:
    """One fit for each precision, of the cells that are not held out."""
    found: dict[str, list[Cell]] = {}
    for cell in samples.cells:
        if cell.part == "step":
            found.setdefault(cell.precision, []).append(cell)
    fits = (
        _fit(precision, sorted(cells, key=lambda c: c.batch), samples, held_out)
        for precision, cells in found.items()
    )
    return tuple(fit for fit in fits if fit is not None)


def _fit(
    precision: str, cells: Sequence[Cell], samples: Samples, held_out: frozenset[Cell]
) -> BatchFit | None:
    seen = [cell for cell in cells if cell not in held_out]
    if len(seen) < 2:
        return None
    batches = [cell.batch for cell in seen]
    chosen = batch_fit.choose(batches, [medians(samples.of(cell)) for cell in seen])
    fixed, per_sample, knee = (_constant(chosen, k, len(seen)) for k in range(3))
    return BatchFit(
        precision=precision,
        law=chosen.law,
        fixed=fixed,
        per_sample=per_sample,
        knee=knee if chosen.law == "knee" else None,
        fitted=tuple(batches),
        held_out=tuple(cell.batch for cell in cells if cell in held_out),
        errors={law: short(error) for law, error in chosen.errors.items()},
    )


def _constant(chosen: batch_fit.Fit, k: int, n: int) -> Quantity:
    meaning = (
        "seconds of any step",
        "seconds per sample",
        "samples below which no step is quicker",
    )
    low, high = (None, None) if chosen.intervals is None else map(short, chosen.intervals[k])
    value = (chosen.fixed, chosen.per_sample, chosen.knee)[k]
    note = f"{meaning[k]}; {chosen.law} law; interval: refits to draws within each cell's error"
    return Quantity(value=short(value), kind="fitted", low=low, high=high, n=n, note=note)


def predictions(cells: Sequence[StepCell], fits: Sequence[BatchFit]) -> list[Prediction]:
    """What each fit says of the batches left out of it."""
    from simstrag.profile.batch_laws import seconds

    by_precision = {fit.precision: fit for fit in fits}
    return [
        Prediction(
            Cell("step", precision=cell.precision, batch=cell.batch),
            cell.seconds,
            seconds(by_precision[cell.precision], cell.batch),
        )
        for cell in cells
        if cell.held_out and cell.precision in by_precision
    ]
