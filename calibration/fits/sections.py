"""The constants that a simulation takes from a profile, made of its cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simstrag.calibration.cells import Cell
from simstrag.calibration.fits.collective_cells import in_fit, ring
from simstrag.calibration.fits.collective_fit import Point, around, between
from simstrag.calibration.fits.contended import contended_gain
from simstrag.calibration.fits.medians import Estimate, cut, ratio, short, told
from simstrag.calibration.fits.step_cells import medians
from simstrag.calibration.samples import Samples
from simstrag.profile.measurements import CollectiveCell, OverlapCell, StepCell, TransferCell
from simstrag.profile.profile import AllReduceTimes, ServerTimes, StepTimes, Workload
from simstrag.profile.quantity import Quantity

__all__ = ["allreduce_times", "server_times", "step_times"]


def step_times(samples: Samples, cells: Sequence[StepCell], workload: Workload) -> StepTimes | None:
    """The step at the nominal batch; None where it was not timed, or too little for its noise."""
    cell = _cell(cells, workload.full, workload.batch)
    if cell is None:
        return None
    gain = _gain(samples, workload)
    return StepTimes(
        compute=cell.mean,
        host_share=_host_share(samples, cell, gain),
        amp_ratio=gain,
        amp_ratio_contended=contended_gain(samples, workload.full, workload.amp),
        amp_switch=Quantity(value=0, kind="assumed", note="not measured by calibration"),
        noise=cell.noise,
    )


def _gain(samples: Samples, workload: Workload) -> Quantity | None:
    """Full over reduced precision at the nominal batch, where both were timed."""
    of: list[tuple[Estimate, int]] = []
    for precision in (workload.full, workload.amp):
        visits = samples.of(Cell("step", precision=precision, batch=workload.batch))
        if not visits:
            return None
        of.append((medians(visits), sum(len(v.samples["seconds"]) for v in visits)))
    (full, n), (amp, m) = of
    note = f"median clean step in {workload.full} over that in {workload.amp}, timed in turn"
    return told(ratio(full, amp), note, n + m)


def _host_share(samples: Samples, cell: StepCell, gain: Quantity | None) -> Quantity:
    """What of a step the device's contention leaves alone, and reduced precision too.

    On a CPU nothing: what a load takes of a core, it takes of Python as well.  A GPU's idle share
    may not exceed what reduced precision left of a step, since a host's part stays as it is.
    """
    measured = cell.host_share
    if samples.header["device"].get("kind") == "cpu":
        told_so = (
            "" if measured is None else f" (operators leave {measured.value:.1%} of it at most)"
        )
        return Quantity(
            value=0, kind="assumed",
            note=f"a load on a core stretches all of a step there, so all of it{told_so} is booked "
            "as the device's",
        )  # fmt: skip
    if measured is None:
        return Quantity(value=0, kind="assumed", note="not measured")
    most = 1.0 if gain is None else 0.99 / max(1.0, gain.value)
    if measured.value <= most:
        return measured
    note = (
        f"{measured.value:.3g} of a step was measured to be no kernel's, but reduced precision "
        f"made steps {gain.value if gain else 1:.3g} times as fast: as much as that leaves room for"
    )
    return Quantity(value=short(most), kind="fitted", note=note)


def allreduce_times(
    samples: Samples,
    cells: Sequence[CollectiveCell],
    overlaps: Sequence[OverlapCell],
    gradient_bytes: int,
) -> AllReduceTimes | None:
    """The ring's constants by sizes around the gradient's, where a formula is straight enough.

    Of the most ranks that have a core each; None where too few sizes were timed there.
    """
    alone = [cell for cell in cells if in_fit(cell) and not cell.oversubscribed]
    ranks = max((cell.ranks for cell in alone), default=0)
    chosen = [cell for cell in alone if cell.ranks == ranks]
    if not chosen or not gradient_bytes:
        return None
    points = [Point((ranks,), cell.bytes, cell.seconds.value) for cell in chosen]
    near = {point.bytes for point in around(points, gradient_bytes)}
    beside = [cell for cell in chosen if cell.bytes in near]
    fit = ring(samples, beside, "around the gradient's size")
    if fit is None:
        return None
    worst = max((abs(residual.error) for residual in fit.residuals), default=None)
    off = "nothing checks the fit" if worst is None else f"off by {worst:.1%} there at most"
    note = (
        f"{fit.backend}, {ranks} ranks, {len(beside)} sizes of {fit.smallest} to {fit.largest} "
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


def _overlap(overlaps: Sequence[OverlapCell], backend: str, ranks: int) -> Quantity:
    """As measured on DDP among as many ranks, cut to 0..1; of the first precision timed."""
    found = [o for o in overlaps if (o.backend, o.ranks) == (backend, ranks)]
    if not found:
        return Quantity(value=0, kind="assumed", note="not measured: nothing is taken to be hidden")
    first = found[0]
    note = f"{first.overlap.note}; {first.precision}, batch {first.batch}"
    return cut(first.overlap.model_copy(update={"note": note}), 0.0, 1.0)


def server_times(transfers: Sequence[TransferCell], gradient_bytes: int) -> ServerTimes | None:
    """Push, service and pull of a gradient: as ranks had them that train the workload, else as
    bytes took that were moved, else on lines between measured sizes.
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
            value = between(sizes, seconds, gradient_bytes)
            where = "prolonged beyond" if beyond else "between"
            note = f"on lines {where} the sizes measured, in logs"
        else:
            value = float(np.interp(gradient_bytes, sizes, seconds))
            note = "on lines between the sizes measured, not prolonged, since one took no time"
        return Quantity(value=short(value), kind="fitted", n=len(sizes), note=note)

    return ServerTimes(service=at("service"), push=at("push"), pull=at("pull"))


def _cell(cells: Sequence[StepCell], precision: str, batch: int) -> StepCell | None:
    return next((c for c in cells if (c.precision, c.batch) == (precision, batch)), None)
