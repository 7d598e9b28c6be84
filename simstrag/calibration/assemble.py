"""Makes a profile from samples; the same samples make the same bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simstrag.calibration.cells import MeasurementCell
from simstrag.calibration.fits import communication_estimates, contention_estimates, step_estimates
from simstrag.calibration.fits.allreduce_fit import AllReducePoint, interpolate, points_around
from simstrag.calibration.fits.device_estimates import DeviceSteps
from simstrag.calibration.fits.held_out import summarize_errors
from simstrag.calibration.fits.noise_scale import noise_scales
from simstrag.calibration.fits.pace_estimate import clean_steps, lasting_pace
from simstrag.calibration.fits.visit_statistics import (
    clip,
    estimate,
    fitted_quantity,
    measured_quantity,
    ratio,
    round_digits,
    visit_medians,
)
from simstrag.calibration.samples import Samples
from simstrag.profile.batch_laws import seconds
from simstrag.profile.measurements import (
    CollectiveCell,
    OverlapCell,
    SkippedCell,
    StepCell,
    TransferCell,
)
from simstrag.profile.profile import (
    AllReduceTimes,
    MeasuredWorkload,
    PowerDraw,
    PrecisionSeconds,
    Profile,
    ServerTimes,
    StepTimes,
)
from simstrag.profile.quantity import Quantity

NOTE = (
    "Fits and the constants made of them never saw the cells that are held out. Steps and "
    "slowdowns held out are predicted by the fits of this profile; an all-reduce held out by a "
    "ring fitted to the sizes around it, as the constants of allreduce are fitted around the "
    "gradient's size: the error stated is that of such fits, each at its own size. A constant that "
    "is a measured cell's is that cell's."
)

OF_STEPS = "median step at batches that no fit against the batch saw"

OF_LOADS = (
    "slowdown of a step, or an all-reduce, at levels that no law saw: a step beside the load over "
    "one without in the same visit, so that its error is that of the step's time"
)

PARTS = {
    "contention": "responses to contention",
    "allreduce": "all-reduce",
    "overlap": "overlap of all-reduce and backward",
    "lockstep": "steps of ranks in lockstep",
    "server": "parameter server",
    "gradient": "gradient noise scale",
}
"""What a profile lacks where a part was not measured."""


def assemble(samples: Samples, files: Mapping[str, str] | None = None) -> Profile:
    """Make the profile of samples and their header.

    files: SHA-256 by name of the file that holds the samples.
    """
    header = samples.header
    stated = header["workload"]
    workload = MeasuredWorkload(
        name=stated["name"],
        parameters=stated["parameters"],
        batch=stated["nominal_batch"],
        full=stated["full"],
        amp=stated["amp"],
        stand_in=stated["stand_in"],
    )
    held_out = frozenset(MeasurementCell(**cell) for cell in header["plan"].get("held_out", ()))
    gradient = int(stated.get("gradient_bytes") or 0)
    kind = str(header["device"].get("kind", "cpu"))
    of_gpu = DeviceSteps(samples, held_out)
    device = of_gpu if kind != "cpu" and of_gpu.kernels else None
    if device is not None:
        steps, fits = device.cells(), device.fits()
        predicted, by_regime = device.predictions(steps, fits)
    else:
        steps = step_estimates.step_cells(samples, held_out)
        fits = step_estimates.batch_fits(samples, held_out)
        predicted, by_regime = step_estimates.predictions(steps, fits), ""
    reduces = communication_estimates.collective_cells(samples, held_out)
    ranks = max((c.ranks for c in reduces if not c.oversubscribed), default=0)
    responses = contention_estimates.responses(samples, held_out, ranks, device)
    overlaps = communication_estimates.overlap_cells(samples)
    transfers = communication_estimates.transfer_cells(samples)
    scales, without_scale = noise_scales(samples)
    timed = {cell.part for cell in samples.cells}
    reasons: dict[str, str] = {}
    for visit in samples.visits:
        if visit.skipped:
            reasons.setdefault(str(visit.cell), visit.skipped)
    skipped = (SkippedCell(cell=cell, reason=reason) for cell, reason in reasons.items())
    errors = (
        summarize_errors("step", predicted, "; ".join(filter(None, (OF_STEPS, by_regime)))),
        summarize_errors("contention", contention_estimates.predictions(responses), OF_LOADS),
        communication_estimates.predict_held_out_sizes(reduces),
    )
    return Profile(
        name=header["name"],
        note=NOTE,
        missing=(
            *(words for part, words in PARTS.items() if part not in timed),
            "cost of a change of precision",
            "c_tau, what a stale gradient costs",
        ),
        date=header["date"],
        command=header["command"],
        commit=header.get("commit") or "",
        device=header["device"],
        conditions=_conditions(samples),
        software=header["software"],
        workload=workload,
        step=_step_times(samples, steps, workload, kind) if device is None
        else _overlapping_times(device, steps, workload),
        allreduce=_allreduce_times(samples, reduces, overlaps, gradient),
        server=_server_times(transfers, gradient),
        power=measured_power(samples, workload, device),
        cells=steps,
        batches=fits,
        responses=responses,
        collectives=reduces,
        collective_fits=communication_estimates.collective_fits(samples, reduces),
        transfers=transfers,
        overlaps=overlaps,
        locksteps=step_estimates.lockstep_cells(samples),
        learning=scales,
        held_out=tuple(each for each in errors if each is not None),
        skipped=(*skipped, *without_scale),
        samples=dict(files or {}),
    )  # fmt: skip


def _conditions(samples: Samples) -> dict[str, tuple[float, float]]:
    """Range over all visits of each clock, temperature and power."""
    seen: dict[str, list[float]] = {}
    for visit in samples.visits:
        for name, value in (visit.facts.get("state") or {}).items():
            if math.isfinite(value):
                seen.setdefault(name, []).append(value)
    return {
        name: (round_digits(min(values)), round_digits(max(values)))
        for name, values in seen.items()
    }


def measured_power(
    samples: Samples, workload: MeasuredWorkload, device: DeviceSteps | None = None
) -> PowerDraw | None:
    """Watts without work, and at the nominal batch in both precisions; None if not measured.

    device: a GPU's steps; after a profiler their watts do not count, as nothing tells whether the
        host bounded them.
    """
    found: dict[str, Quantity] = {}
    source = ""
    names = {"": "idle", workload.full: "busy", workload.amp: "busy_amp"}
    for cell, timed in samples.by_cell("power").items():
        of_steps = device if cell.precision else None
        visits = [v for v in timed if of_steps is None or not of_steps.is_after_profiler(v)]
        if not visits:
            continue
        source = visits[0].facts["source"]
        watts = estimate([visit.median("watts") for visit in visits])
        what = f"steps in {cell.precision}" if cell.precision else "no work"
        note = f"{source}, mean over each visit, with {what}"
        found[names[cell.precision]] = measured_quantity(watts, note)
    return PowerDraw.model_validate({"source": source, **found}) if found else None


def _step_times(
    samples: Samples, cells: Sequence[StepCell], workload: MeasuredWorkload, kind: str
) -> StepTimes | None:
    """The step at the nominal batch by the serial law; None where it was not timed.

    kind: of the device, in the words of torch.
    """
    nominal = (workload.full, workload.batch)
    cell = next((c for c in cells if (c.precision, c.batch) == nominal), None)
    if cell is None:
        return None
    return StepTimes(
        compute=cell.mean,
        host_share=_host_share(cell, kind),
        amp_ratio=_gain(samples, workload),
        amp_ratio_contended=contention_estimates.contended_gain(
            samples, workload.full, workload.amp
        ),
        amp_switch=Quantity(value=0, kind="assumed", note="not measured by calibration"),
        noise=cell.noise,
        pace=lasting_pace(clean_steps(samples, *nominal)),
    )


def _overlapping_times(
    device: DeviceSteps, cells: Sequence[StepCell], workload: MeasuredWorkload
) -> StepTimes | None:
    """The step at the nominal batch by its two streams; None where one of them is unknown.

    What reduced precision gains follows from them at each batch, and is no constant.
    """
    nominal = (workload.full, workload.batch)
    cell = next((c for c in cells if (c.precision, c.batch) == nominal), None)
    launch = device.launch(workload.full)
    pair = workload.full, workload.amp
    full, amp = (_device_part(device, precision, workload.batch) for precision in pair)
    if cell is None or full is None or launch is None:
        return None
    return StepTimes(
        compute=cell.mean,
        launch=PrecisionSeconds(full=launch, amp=device.launch(workload.amp)),
        device=PrecisionSeconds(full=full, amp=amp),
        amp_switch=Quantity(value=0, kind="assumed", note="not measured by calibration"),
        noise=cell.noise,
        pace=lasting_pace(
            [
                [step.seconds for step in steps]
                for at, steps in device.counted.items()
                if (at.precision, at.batch) == nominal
            ]
        ),
    )


def _device_part(device: DeviceSteps, precision: str, batch: int) -> Quantity | None:
    """The device's part of a step: of its cell, else by the fit of its precision."""
    found = device.device(MeasurementCell("step", precision=precision, batch=batch))
    fit = next((fit for fit in device.fits() if fit.precision == precision), None)
    if found is not None or fit is None:
        return found
    note = "kernels at this batch were not seen; by the fit of the device's part"
    return fitted_quantity(seconds(fit, batch), note, n=len(fit.fitted))


def _gain(samples: Samples, workload: MeasuredWorkload) -> Quantity | None:
    """Step time in full over reduced precision at the nominal batch; None where one is missing."""
    full, amp = (
        samples.of(MeasurementCell("step", precision=precision, batch=workload.batch))
        for precision in (workload.full, workload.amp)
    )
    if not (full and amp):
        return None
    note = f"median clean step in {workload.full} over that in {workload.amp}, timed in turn"
    n = sum(len(visit.samples["seconds"]) for visit in (*full, *amp))
    return measured_quantity(ratio(visit_medians(full), visit_medians(amp)), note, n)


def _host_share(cell: StepCell, kind: str) -> Quantity:
    """The part of a step that neither contention nor reduced precision changes: none is known.

    On a CPU a load on a core slows Python as well; on a GPU whose kernels no profiler saw it is
    not measured.
    """
    if kind != "cpu":
        note = "not measured: no profiler saw the device's kernels"
        return Quantity(value=0, kind="assumed", note=note)
    share = cell.host_share
    most = "" if share is None else f" (operators leave {share.value:.1%} of it at most)"
    return Quantity(
        value=0, kind="assumed",
        note=f"a load on a core stretches all of a step there, so all of it{most} is booked "
        "as the device's",
    )  # fmt: skip


def _allreduce_times(
    samples: Samples,
    cells: Sequence[CollectiveCell],
    overlaps: Sequence[OverlapCell],
    gradient_bytes: int,
) -> AllReduceTimes | None:
    """The ring's constants, fitted to sizes around the gradient's, where the formula holds.

    The fit is to the largest number of ranks with a core each; None if too few sizes were timed.
    """
    alone = [
        cell
        for cell in cells
        if communication_estimates.is_fitted(cell) and not cell.oversubscribed
    ]
    ranks = max((cell.ranks for cell in alone), default=0)
    chosen = [cell for cell in alone if cell.ranks == ranks]
    if not chosen or not gradient_bytes:
        return None
    points = [AllReducePoint((ranks,), cell.bytes, cell.seconds.value) for cell in chosen]
    near = {point.bytes for point in points_around(points, gradient_bytes)}
    nearest = [cell for cell in chosen if cell.bytes in near]
    fit = communication_estimates.fit_ring(samples, nearest, "around the gradient's size")
    if fit is None:
        return None
    worst = max((abs(residual.error) for residual in fit.residuals), default=None)
    off = "nothing checks the fit" if worst is None else f"off by {worst:.1%} there at most"
    note = (
        f"{fit.backend}, {ranks} ranks, {len(nearest)} sizes of {fit.smallest} to {fit.largest} "
        f"bytes around the gradient's, {off}; other numbers of ranks are an extrapolation by the "
        f"ring formula; {fit.alpha.note}"
    )
    return AllReduceTimes(
        alpha=fit.alpha.model_copy(update={"note": note}),
        bandwidth=fit.bandwidth,
        bytes=Quantity(value=gradient_bytes, kind="measured", note="of one gradient"),
        overlap=_overlap(overlaps, fit.backend, ranks),
        ranks=fit.ranks,
        smallest=fit.smallest,
        largest=fit.largest,
    )


def _overlap(cells: Sequence[OverlapCell], backend: str, ranks: int) -> Quantity:
    """The measured overlap among `ranks` ranks, clipped to 0..1; in the first precision timed."""
    first = next((o for o in cells if (o.backend, o.ranks) == (backend, ranks)), None)
    if first is None:
        return Quantity(value=0, kind="assumed", note="not measured: nothing is taken to be hidden")
    note = f"{first.overlap.note}; {first.precision}, batch {first.batch}"
    return clip(first.overlap.model_copy(update={"note": note}), 0.0, 1.0)


def _server_times(transfers: Sequence[TransferCell], gradient_bytes: int) -> ServerTimes | None:
    """Push, service and pull of a gradient.

    Taken from ranks that train the workload, else from a transfer of `gradient_bytes`, else
    interpolated between the measured sizes.
    """
    if not transfers or not gradient_bytes:
        return None
    same = [t for t in transfers if t.bytes == gradient_bytes]
    if same:
        best = max(same, key=lambda t: t.ranks or 0)
        return ServerTimes(service=best.service, push=best.push, pull=best.pull)
    if len(transfers) < 2:
        return None
    sizes = [t.bytes for t in transfers]
    beyond = not sizes[0] <= gradient_bytes <= sizes[-1]

    def at(name: str) -> Quantity:
        seconds = [getattr(t, name).value for t in transfers]
        if min(seconds) > 0:
            value = interpolate(sizes, seconds, gradient_bytes)
            where = "prolonged beyond" if beyond else "between"
            note = f"on lines {where} the sizes measured, in logs"
        else:
            value = float(np.interp(gradient_bytes, sizes, seconds))
            note = "on lines between the sizes measured, not prolonged, since one took no time"
        return fitted_quantity(value, note, n=len(sizes))

    return ServerTimes(service=at("service"), push=at("push"), pull=at("pull"))
