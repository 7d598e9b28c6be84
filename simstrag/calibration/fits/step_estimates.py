"""Steps without load: estimates of each cell, ranks in lockstep, and the fit against the batch.

Of a CPU, where a step is one stream of work; `device_estimates` has those of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits.counted_visits import describe_instability
from simstrag.calibration.fits.held_out import CellPrediction
from simstrag.calibration.fits.law_fits import LawFit, choose_batch_law
from simstrag.calibration.fits.visit_statistics import (
    CORRELATED_STEPS,
    clip,
    estimate,
    lag1_autocorrelation,
    measure,
    measured_quantity,
    noise_quantiles,
    round_digits,
    visit_medians,
)
from simstrag.calibration.samples import Samples
from simstrag.profile.batch_laws import seconds
from simstrag.profile.measurements import BatchFit, BatchLaw, LockstepCell, Side, StepCell
from simstrag.profile.quantity import NoiseSamples, Quantity

FEWEST_STEPS = 30
"""Least number of steps of a noise distribution."""

BATCH_CONSTANTS = {
    "fixed": "seconds of any step",
    "per_sample": "seconds per sample",
    "knee": "samples below which no step is quicker",
}


def step_cells(samples: Samples, held_out: frozenset[MeasurementCell]) -> tuple[StepCell, ...]:
    """The cells of part step, by precision in the order of measurement, and by batch."""
    timed, anatomies = samples.by_cell("step"), _anatomies(samples)
    return tuple(
        StepCell(
            **cell.coordinates,
            seconds=measure(visits, Visit.median, "median step of each visit, then over visits"),
            mean=measure(
                visits, Visit.mean, "mean step of each visit, then the median over visits"
            ),
            update=series_quantity(visits, "update", "optimizer and clearing of gradients"),
            host=series_quantity(visits, "host", "until the launching thread comes back"),
            host_share=_host_share([*visits, *anatomies.get(cell, ())]),
            peak_bytes=max(
                filter(
                    None,
                    (v.facts.get("peak_bytes") for v in (*visits, *anatomies.get(cell, ()))),
                ),
                default=None,
            ),
            noise=describe_noise([v.samples["seconds"] for v in visits]),
            unstable=describe_instability(visits),
            held_out=cell in held_out,
        )
        for cell, visits in ((cell, timed[cell]) for cell in by_precision_and_batch(timed))
    )


def by_precision_and_batch(cells: Iterable[MeasurementCell]) -> list[MeasurementCell]:
    """Cells by precision in the order of measurement, and by batch."""
    cells = list(cells)
    order = list(dict.fromkeys(cell.precision for cell in cells))
    return sorted(cells, key=lambda cell: (order.index(cell.precision), cell.batch))


def _anatomies(samples: Samples) -> dict[MeasurementCell, list[Visit]]:
    """The visits that took the steps of a cell to pieces, where those are a part of their own."""
    found: dict[MeasurementCell, list[Visit]] = {}
    for visit in samples.visits:
        if visit.cell.part == "anatomy" and not visit.skipped:
            cell = MeasurementCell("step", **visit.cell.coordinates)
            found.setdefault(cell, []).append(visit)
    return found


def describe_noise(steps: Sequence[Sequence[float]], alike: bool = True) -> NoiseSamples | None:
    """The spread of steps within their visits; None for too few steps.

    alike: whether all visits are to one cell, so that their means tell its drift.
    """
    steps = [each for each in steps if len(each) > 1]
    n = sum(map(len, steps))
    if n < FEWEST_STEPS:
        return None
    means = [float(np.mean(each)) for each in steps]
    drift = float(np.std(means, ddof=1) / np.mean(means)) if len(means) > 1 else 0.0
    lag = lag1_autocorrelation(steps)
    order = (
        f"No visit has {CORRELATED_STEPS} steps to tell how successive ones are correlated"
        if lag is None
        else "Successive steps are correlated as stated"
    )
    apart = (
        f"visits differ by {drift:.2%} (standard deviation), which is in the interval of the mean "
        "and not here. "
    )
    return NoiseSamples(
        kind="measured",
        quantiles=tuple(round_digits(value) for value in noise_quantiles(steps)),
        n=n,
        lag1_autocorrelation=None if lag is None else round(lag, 4),
        note="clean steps, each over the mean of its own visit, and of n steps sqrt(n / (n - 1)) "
        f"times as far from it; {apart if alike else ''}{order}",
    )


def series_quantity(visits: Sequence[Visit], name: str, note: str) -> Quantity | None:
    """One series of some visits; None where it was not timed, or has times of 0 or less.

    name: of the series.
    """
    timed = [v for v in visits if v.samples.get(name)]
    if not timed or min(min(v.samples[name]) for v in timed) <= 0:
        return None
    return measure(timed, lambda visit: visit.median(name), note, name)


def _host_share(visits: Sequence[Visit]) -> Quantity | None:
    """The share of a step outside torch's operators, an upper bound of what the host does."""
    shares = [float(v.facts["host_share"]) for v in visits if "host_share" in v.facts]
    if not shares:
        return None
    note = "part of a step that is not the device's"
    return clip(measured_quantity(estimate(shares, relative=False), note), 0.0, 1.0)


def batch_fits(samples: Samples, held_out: frozenset[MeasurementCell]) -> tuple[BatchFit, ...]:
    """The law of the batch of each precision, fitted to the cells that are not held out."""
    timed, fits = samples.by_cell("step"), []
    for precision in dict.fromkeys(cell.precision for cell in timed):
        cells = sorted((c for c in timed if c.precision == precision), key=lambda c: c.batch)
        seen = [cell for cell in cells if cell not in held_out]
        if len(seen) < 2:
            continue
        estimates = [visit_medians(timed[cell]) for cell in seen]
        fits.append(batch_fit(choose_batch_law([c.batch for c in seen], estimates), cells, seen))
    return tuple(fits)


def batch_fit(
    fit: LawFit[BatchLaw],
    cells: Sequence[MeasurementCell],
    seen: Sequence[MeasurementCell],
    part: Side = "step",
) -> BatchFit:
    """A fit against the batch as a part of a profile.

    cells: all of one precision, by batch.
    seen: those in the fit; the others are held out.
    """
    constants = {
        name: fit.constant(name, len(seen), f"{what}; ", "cell")
        for name, what in BATCH_CONSTANTS.items()
        if name != "knee" or fit.law == "knee"
    }
    return BatchFit(
        precision=cells[0].precision,
        part=part,
        law=fit.law,
        **constants,
        fitted=tuple(cell.batch for cell in seen),
        held_out=tuple(cell.batch for cell in cells if cell not in seen),
        errors={law: round_digits(error) for law, error in fit.errors.items()},
    )


def predictions(cells: Sequence[StepCell], fits: Sequence[BatchFit]) -> list[CellPrediction]:
    """The prediction of each fit at the batches held out of it."""
    by_precision = {fit.precision: fit for fit in fits}
    return [
        CellPrediction(
            MeasurementCell.of("step", cell),
            cell.seconds,
            seconds(by_precision[cell.precision], cell.batch),
        )
        for cell in cells
        if cell.held_out and cell.precision in by_precision
    ]


def lockstep_cells(samples: Samples) -> tuple[LockstepCell, ...]:
    """Ranks in lockstep, by their number, then without load and beside each level of a load."""
    timed = samples.by_cell("lockstep")
    note = "from the slowest rank's last gradient to the next step; mean of each visit, then median"
    return tuple(
        LockstepCell(
            **cell.coordinates,
            rest=clip(measure(timed[cell], lambda visit: visit.mean("rest"), note, "rest")),
            slowdown=_slowdown_beside_load(timed[cell]) if cell.load else interference(timed[cell]),
            interference=None if cell.load else interference(timed[cell], "beside"),
            noise=None if cell.load else _noise_of_ranks(timed[cell]),
        )
        for cell in sorted(timed, key=lambda c: (c.ranks, c.load, c.level))
    )


def _noise_of_ranks(visits: Sequence[Visit]) -> NoiseSamples | None:
    series = [np.reshape(v.samples["local"], (v.cell.ranks, -1)).tolist() for v in visits]
    return describe_noise([steps for by_rank in series for steps in by_rank])


def interference(visits: Sequence[Visit], name: str = "local") -> Quantity | None:
    """Step time while other ranks compute too, over that of a step alone on its core.

    None if one of the two was not timed.

    name: "local" for steps of the runtime, or "beside" for bare ones.
    """

    def ratio_to_alone(visit: Visit) -> float:
        """Mean over ranks of a rank's mean step over that of its core's steps alone."""
        cores: int = visit.facts["cores"]
        alone = np.reshape(visit.samples["alone"], (cores, -1)).mean(axis=1)
        ranks = visit.cell.ranks if name == "local" else cores
        means = np.reshape(visit.samples[name], (ranks, -1)).mean(axis=1)
        return float(np.mean([mean / alone[rank % cores] for rank, mean in enumerate(means)]))

    timed = [v for v in visits if v.samples.get("alone") and v.samples.get(name)]
    if not timed:
        return None
    what = "step among the ranks" if name == "local" else "bare step on all their cores at once"
    note = f"{what} over one alone on its core, in the same visit; mean over ranks"
    return measure(timed, ratio_to_alone, note, name)


def _slowdown_beside_load(visits: Sequence[Visit]) -> Quantity | None:
    """Step time on the core of rank 0 beside a load there, over that without the load."""

    def ratio_to_clean(visit: Visit) -> float:
        loaded, clean = (
            np.reshape(visit.samples[name], (visit.cell.ranks, -1))[:: visit.facts["cores"]].mean()
            for name in ("local", "clean")
        )
        return float(loaded / clean)

    timed = [v for v in visits if v.samples.get("clean")]
    note = "step on the loaded core over the same ranks' without the load, in the same visit"
    return measure(timed, ratio_to_clean, note, "local") if timed else None
