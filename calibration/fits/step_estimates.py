"""Steps without load: estimates of each cell, ranks in lockstep, and the fit against the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits.held_out import CellPrediction
from simstrag.calibration.fits.model_selection import BatchLawFit, choose_batch_law
from simstrag.calibration.fits.visit_statistics import (
    CORRELATED_STEPS,
    clip,
    estimate,
    fitted,
    lag1_autocorrelation,
    measured,
    noise_quantiles,
    round_digits,
    visit_medians,
)
from simstrag.calibration.samples import Samples
from simstrag.profile.batch_laws import seconds
from simstrag.profile.measurements import BatchFit, LockstepCell, StepCell
from simstrag.profile.quantity import NoiseSamples, Quantity

FEWEST_STEPS = 30
"""Least number of steps of a noise distribution."""

OF_CONSTANTS = (
    "seconds of any step",
    "seconds per sample",
    "samples below which no step is quicker",
)


def step_cells(samples: Samples, held_out: frozenset[MeasurementCell]) -> tuple[StepCell, ...]:
    """The cells of part step, by precision in the order of measurement, and by batch."""
    cells = [cell for cell in samples.cells if cell.part == "step"]
    order = list(dict.fromkeys(cell.precision for cell in cells))
    cells.sort(key=lambda cell: (order.index(cell.precision), cell.batch))
    return tuple(_step_cell(cell, samples.of(cell), cell in held_out) for cell in cells)


def _step_cell(cell: MeasurementCell, visits: Sequence[Visit], held_out: bool) -> StepCell:
    steps = [v.samples["seconds"] for v in visits]
    n = sum(map(len, steps))
    means = estimate([float(np.mean(each)) for each in steps])
    peaks = [v.facts["peak_bytes"] for v in visits if v.facts.get("peak_bytes")]
    return StepCell(
        **cell.coordinates,
        seconds=measured(visit_medians(visits), "median step of each visit, then over visits", n),
        mean=measured(means, "mean step of each visit, then the median over visits", n),
        update=_series(visits, "update", "optimizer and clearing of gradients"),
        host=_series(visits, "host", "until the launching thread comes back"),
        host_share=_host_share(visits),
        peak_bytes=max(peaks, default=None),
        noise=_noise(steps),
        held_out=held_out,
    )


def _noise(steps: Sequence[Sequence[float]]) -> NoiseSamples | None:
    """The spread of steps within their visits; None for too few steps."""
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
        else "Successive steps are correlated as stated; simulated draws are independent and do "
        "not honour that"
    )
    return NoiseSamples(
        kind="measured",
        quantiles=tuple(round_digits(value) for value in noise_quantiles(steps)),
        n=n,
        lag1_autocorrelation=None if lag is None else round(lag, 4),
        note="clean steps, each over the mean of its own visit, and of n steps sqrt(n / (n - 1)) "
        f"times as far from it; visits differ by {drift:.2%} (standard deviation), which is in the "
        f"interval of the mean and not here. {order}",
    )


def _series(visits: Sequence[Visit], name: str, note: str) -> Quantity | None:
    timed = [v for v in visits if v.samples.get(name)]
    if not timed or min(min(v.samples[name]) for v in timed) <= 0:
        return None
    return measured(visit_medians(timed, name), note, sum(len(v.samples[name]) for v in timed))


def _host_share(visits: Sequence[Visit]) -> Quantity | None:
    """The part of a step in which the device is idle; see `Device.anatomy` of the benches.

    On a GPU it is what kernels leave idle of a step, on a CPU what lies outside of operators at
    most.
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
    share = measured(estimate(shares, relative=False), "part of a step that is not the device's")
    return clip(share, 0.0, 1.0)


def batch_fits(samples: Samples, held_out: frozenset[MeasurementCell]) -> tuple[BatchFit, ...]:
    """The law of the batch of each precision, fitted to the cells that are not held out."""
    groups: dict[str, list[MeasurementCell]] = {}
    for cell in samples.cells:
        if cell.part == "step":
            groups.setdefault(cell.precision, []).append(cell)
    fits = (
        _batch_fit(precision, sorted(cells, key=lambda c: c.batch), samples, held_out)
        for precision, cells in groups.items()
    )
    return tuple(fit for fit in fits if fit is not None)


def _batch_fit(
    precision: str,
    cells: Sequence[MeasurementCell],
    samples: Samples,
    held_out: frozenset[MeasurementCell],
) -> BatchFit | None:
    seen = [cell for cell in cells if cell not in held_out]
    if len(seen) < 2:
        return None
    batches = [cell.batch for cell in seen]
    fit = choose_batch_law(batches, [visit_medians(samples.of(cell)) for cell in seen])
    fixed, per_sample, knee = (_batch_constant(fit, k, len(seen)) for k in range(3))
    return BatchFit(
        precision=precision,
        law=fit.law,
        fixed=fixed,
        per_sample=per_sample,
        knee=knee if fit.law == "knee" else None,
        fitted=tuple(batches),
        held_out=tuple(cell.batch for cell in cells if cell in held_out),
        errors={law: round_digits(error) for law, error in fit.errors.items()},
    )


def _batch_constant(fit: BatchLawFit, k: int, n: int) -> Quantity:
    interval = (None, None) if fit.intervals is None else fit.intervals[k].tolist()
    value = (fit.fixed, fit.per_sample, fit.knee)[k]
    note = f"{OF_CONSTANTS[k]}; {fit.law} law; interval: refits to draws within each cell's error"
    return fitted(value, note, interval, n)


def predictions(cells: Sequence[StepCell], fits: Sequence[BatchFit]) -> list[CellPrediction]:
    """What each fit predicts for the batches that it did not see."""
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
    cells = [cell for cell in samples.cells if cell.part == "lockstep"]
    cells.sort(key=lambda c: (c.ranks, c.load, c.level))
    return tuple(_lockstep_cell(cell, samples.of(cell)) for cell in cells)


def _lockstep_cell(cell: MeasurementCell, visits: Sequence[Visit]) -> LockstepCell:
    rests = [float(np.mean(v.samples["rest"])) for v in visits]
    note = "from the slowest rank's last gradient to the next step; mean of each visit, then median"
    clean = not cell.load
    by_rank = [
        steps.tolist() for v in visits for steps in np.reshape(v.samples["local"], (cell.ranks, -1))
    ]
    return LockstepCell(
        **cell.coordinates,
        rest=clip(
            measured(
                estimate(rests, relative=min(rests) > 0), note,
                sum(len(v.samples["rest"]) for v in visits),
            )
        ),
        slowdown=interference(visits) if clean else _slowdown_beside_load(visits),
        interference=interference(visits, "beside") if clean else None,
        noise=_noise(by_rank) if clean else None,
    )  # fmt: skip


def interference(visits: Sequence[Visit], name: str = "local") -> Quantity | None:
    """Step time while other ranks compute too, over that of a step alone on its core.

    None where one of the two was not timed.

    name: "local" for steps of the runtime, or "beside" for bare ones.
    """
    timed = [v for v in visits if v.samples.get("alone") and v.samples.get(name)]
    if not timed:
        return None
    what = "step among the ranks" if name == "local" else "bare step on all their cores at once"
    note = f"{what} over one alone on its core, in the same visit; mean over ranks"
    ratios = [_ratio_to_alone(v, name) for v in timed]
    return measured(estimate(ratios), note, sum(len(v.samples[name]) for v in timed))


def _ratio_to_alone(visit: Visit, name: str) -> float:
    """Mean over ranks of a rank's mean step over that of its core's steps alone."""
    cores: int = visit.facts["cores"]
    alone = np.reshape(visit.samples["alone"], (cores, -1)).mean(axis=1)
    ranks = visit.cell.ranks if name == "local" else cores
    means = np.reshape(visit.samples[name], (ranks, -1)).mean(axis=1)
    return float(np.mean([mean / alone[rank % cores] for rank, mean in enumerate(means)]))


def _slowdown_beside_load(visits: Sequence[Visit]) -> Quantity | None:
    """Step time on the core of rank 0 beside a load there, over that without the load."""
    timed = [v for v in visits if v.samples.get("clean")]
    if not timed:
        return None
    note = "step on the loaded core over the same ranks' without the load, in the same visit"
    ratios = []
    for visit in timed:
        loaded, clean = (
            np.reshape(visit.samples[name], (visit.cell.ranks, -1))[:: visit.facts["cores"]].mean()
            for name in ("local", "clean")
        )
        ratios.append(float(loaded / clean))
    return measured(estimate(ratios), note, sum(len(v.samples["local"]) for v in timed))
