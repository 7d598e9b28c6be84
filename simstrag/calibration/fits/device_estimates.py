"""Steps on a GPU: the seconds of launching and of the device, and steps as the longer of the two.

The host launches while the device computes, so a clean step takes about the longer of

    launch   until the thread has launched a step, equal at every batch
    device   kernel time, by the profiler, and what lies between kernels

What lies between kernels, about a microsecond for each of them, is the same seconds at every batch
of a precision.  It is the step less the kernel time of cells that the device bounds; see
`counted_visits` for these and for the visits that count.  Held-out cells enter neither it nor the
fit of the device's seconds against the batch, nor the launching that predicts them.

Launches are only dearer after a profiler was attached.  So the least launching seen then limits
from above what visits that count do not tell, and where they tell nothing it is assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simstrag.calibration.benches.machine_state import usual_paces
from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits.counted_visits import (
    NEAR,
    bounded_by_device,
    describe_instability,
    number_visits,
)
from simstrag.calibration.fits.held_out import CellPrediction
from simstrag.calibration.fits.law_fits import choose_batch_law
from simstrag.calibration.fits.step_estimates import (
    batch_fit,
    by_precision_and_batch,
    describe_noise,
    series_quantity,
)
from simstrag.calibration.fits.visit_statistics import (
    CellEstimate,
    estimate,
    fitted_quantity,
    measured_quantity,
    round_digits,
)
from simstrag.calibration.samples import Samples, calm_visits
from simstrag.profile.batch_laws import seconds
from simstrag.profile.doubtful import ONE_VISIT
from simstrag.profile.measurements import BatchFit, StepCell
from simstrag.profile.quantity import NoiseSamples, Quantity

FEWEST_CALM = 3
"""Calm visits that may stand for all visits to a cell that the host bounds."""

REGIMES = {True: "that the device bounds", False: "that launching bounds"}


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Clean steps of one visit.

    seconds: one after the other, without waiting.
    launch: median until a step is launched into an empty queue; None if it was not timed.
    after_profiler: whether a profiler had been attached in the process before.
    """

    visit: Visit
    seconds: tuple[float, ...]
    launch: float | None
    after_profiler: bool

    @property
    def median(self) -> float:
        """The median step."""
        return statistics.median(self.seconds)


class DeviceSteps:
    """The clean steps of a GPU's samples.

    held_out: cells that no fit sees.
    """

    def __init__(self, samples: Samples, held_out: Collection[MeasurementCell]) -> None:
        self.held_out = held_out
        self._usual = usual_paces(samples.visits)
        self._numbered = [n for n in number_visits(samples.visits) if not n.visit.skipped]
        self._after = {id(n.visit): n.after_profiler for n in self._numbered}

    def is_after_profiler(self, visit: Visit) -> bool:
        """Whether a profiler had been attached in the visit's process before it."""
        return self._after[id(visit)]

    @cached_property
    def kernels(self) -> dict[MeasurementCell, CellEstimate]:
        """Kernel seconds of a step, by cell of part step."""
        found: dict[MeasurementCell, list[float]] = {}
        for visit in (n.visit for n in self._numbered):
            if "kernel" in visit.samples:
                found.setdefault(_step(visit.cell), []).append(visit.median("kernel"))
            elif "gpu_busy" in visit.facts:
                found.setdefault(_step(visit.cell), []).append(float(visit.facts["gpu_busy"]))
        return {cell: estimate(values) for cell, values in found.items()}

    @cached_property
    def timed(self) -> dict[MeasurementCell, list[TimedStep]]:
        """All clean steps by cell of part step: those of its visits, and those around a load."""
        found: dict[MeasurementCell, list[TimedStep]] = {}
        for numbered in self._numbered:
            visit = numbered.visit
            name = {"step": "seconds", "contention": "clean"}.get(visit.cell.part, "")
            if visit.samples.get(name):
                launch = (
                    visit.median("launch") if visit.samples.get("launch")
                    else visit.facts.get("host_alone")
                )  # fmt: skip
                timed = TimedStep(visit, visit.samples[name], launch, numbered.after_profiler)
                found.setdefault(_step(visit.cell), []).append(timed)
        return found

    @cached_property
    def counted(self) -> dict[MeasurementCell, list[TimedStep]]:
        """The steps that count, by cell; the pace of cores matters where the host bounds them."""
        counted = {}
        for cell, steps in self.timed.items():
            kept = [s for s in steps if not s.after_profiler or self._is_bounded(cell, s)]
            if not self._are_bounded(cell, kept):
                kept = self._calm([step for step in kept if not step.after_profiler])
            if kept:
                counted[cell] = kept
        return counted

    def _is_bounded(self, cell: MeasurementCell, step: TimedStep) -> bool:
        kernel = self.kernels.get(cell)
        return kernel is not None and bounded_by_device(step.median, kernel.value, step.launch)

    def _calm(self, steps: Sequence[TimedStep]) -> list[TimedStep]:
        """The steps of calm visits; all of them where the calm ones are too few for an interval."""
        calm = {id(visit) for visit in calm_visits([s.visit for s in steps], self._usual)}
        kept = [step for step in steps if id(step.visit) in calm]
        return kept if len(kept) >= FEWEST_CALM else list(steps)

    def bounded_by_device(self, cell: MeasurementCell) -> bool:
        """Whether the device bounds the steps of a cell that count."""
        return self._are_bounded(cell, self.counted.get(cell, []))

    def _are_bounded(self, cell: MeasurementCell, steps: Sequence[TimedStep]) -> bool:
        kernel = self.kernels.get(cell)
        if not steps or kernel is None:
            return False
        return statistics.median(s.median for s in steps) <= (1 + NEAR) * kernel.value

    def gap(self, precision: str) -> tuple[float, str]:
        """Seconds between the kernels of a step, and the cells that they are from, in words.

        A single cell of the precision may still wait for launches, which looks like a gap: then the
        median of the other precisions' cells limits it.
        """
        own: list[float] = []
        others: list[float] = []
        for cell in self.kernels:
            if cell not in self.held_out and self.bounded_by_device(cell):
                step = statistics.median(s.median for s in self.counted[cell])
                between = step - self.kernels[cell].value
                (own if cell.precision == precision else others).append(between)
        limited = len(own) == 1 and others and statistics.median(others) < own[0]
        if own and not limited:
            cells = "a cell" if len(own) == 1 else f"{len(own)} cells"
            return statistics.median(own), f"{cells} that the device bounds"
        if others:
            return statistics.median(others), (
                f"{len(others)} cells of other precisions that the device bounds"
            )
        return 0.0, "no cell, and taken to be nothing"

    def device(self, cell: MeasurementCell) -> Quantity | None:
        """Seconds of the device's part of a cell; None without its kernel time."""
        kernel = self.kernels.get(cell)
        if kernel is None:
            return None
        if self.bounded_by_device(cell):
            kernels = f"kernel time {1e3 * kernel.value:.4g} ms"
            what = f"median step, which the device bounds ({kernels}): each visit's, then over them"
            return _over_visits(self.counted[cell], lambda s: s.median, what)
        between, origin = self.gap(cell.precision)
        note = (
            f"kernel time, {1e3 * kernel.value:.4g} ms by the profiler, and "
            f"{1e3 * between:.3g} ms between kernels, by {origin}"
            + (f"; {ONE_VISIT}" if kernel.visits == 1 else "")
        )
        return fitted_quantity(kernel.value + between, note, n=kernel.visits)

    def launch(self, precision: str, held_out: Collection[MeasurementCell] = ()) -> Quantity | None:
        """Seconds of launching a step in a precision; None if nothing tells them.

        held_out: cells whose visits are not used.
        """
        steps = [
            (self._launching(cell, step), step)
            for cell, steps in self.timed.items()
            if cell.precision == precision and cell not in held_out
            for step in steps
        ]
        known = [(value, step) for value, step in steps if value is not None]
        later = min(
            (min(value, step.median) for value, step in known if step.after_profiler),
            default=math.inf,
        )
        fresh = [(value, step) for value, step in known if not step.after_profiler]
        calm = {id(step) for step in self._calm([step for _, step in fresh])}
        values = [value for value, step in fresh if id(step) in calm]
        if values and statistics.median(values) <= later:
            timed = sum(step.launch is not None for _, step in fresh if id(step) in calm)
            waited = len(values) - timed
            note = f"until a step is launched, in {timed} of {len(values)} visits" + (
                ", else the step, where the device waits for launches" if waited else ""
            )
            over = "median of each visit, then over visits of all batches"
            found = measured_quantity(estimate(values), f"{note}; {over}")
            return found.model_copy(update={"kind": "fitted"}) if waited else found
        if not math.isfinite(later):
            return None
        seen = f"{len(values)} that count tell more" if values else "no visit that counts tells it"
        note = (
            "at most: the least launching, or step, seen after a profiler was attached, when "
            f"launches are dearer ({seen})"
        )
        return Quantity(value=round_digits(later), kind="assumed", note=note)

    def _launching(self, cell: MeasurementCell, step: TimedStep) -> float | None:
        """Seconds of launching in one visit: as timed, else the step where the device waits."""
        if step.launch is not None:
            return float(step.launch)
        kernel = self.kernels.get(cell)
        waits = kernel is not None and step.median > (1 + NEAR) * kernel.value
        return step.median if waits else None

    def cells(self) -> tuple[StepCell, ...]:
        """The cells of part step; steps that no visit tells are the longer of launch and device."""
        known = [cell for cell in by_precision_and_batch(self.timed) if self._seconds(cell)]
        return tuple(self._cell(cell) for cell in known)

    def _cell(self, cell: MeasurementCell) -> StepCell:
        steps = self.counted.get(cell, [])
        visits = [step.visit for step in steps if step.visit.cell.part == "step"]
        own = [step for step in steps if step.launch is not None and not step.after_profiler]
        seconds = self._seconds(cell)
        assert seconds is not None, "its cell is known"
        peaks = (n.visit.facts.get("peak_bytes") for n in self._numbered
                 if _step(n.visit.cell) == cell)  # fmt: skip
        mean = "mean step of each visit, then the median over visits"
        return StepCell(
            **cell.coordinates,
            seconds=seconds,
            mean=_over_visits(steps, lambda s: statistics.fmean(s.seconds), mean)
            if steps else seconds,
            update=series_quantity(visits, "update", "optimizer and clearing of gradients"),
            host=series_quantity(visits, "host", "until the launching thread comes back"),
            launch=_over_visits(own, lambda s: s.launch or 0.0, "launched into an empty queue")
            if own else None,
            device=self.device(cell),
            peak_bytes=max(filter(None, peaks), default=None),
            noise=self._noise(cell),
            unstable=describe_instability(
                [step.visit for step in steps], _median_of(steps)
            ),
            held_out=cell in self.held_out,
        )  # fmt: skip

    def _noise(self, cell: MeasurementCell) -> NoiseSamples | None:
        """The noise of a cell; of few steps, that of all such cells that the device bounds.

        A device repeats its kernels to a thousandth at any batch that fills it.
        """

        def steps_of(each: MeasurementCell) -> list[tuple[float, ...]]:
            # The clean steps of a visit beside a load are two blocks, before and after it.
            steps = self.counted.get(each, [])
            return [step.seconds for step in steps if step.visit.cell.part == "step"]

        own = describe_noise(steps_of(cell))
        if own is not None or not self.bounded_by_device(cell):
            return own
        alike = [
            each
            for each in self.counted
            if each.precision == cell.precision
            and self.bounded_by_device(each)
            and describe_noise(steps_of(each)) is None
        ]
        pooled = describe_noise([steps for each in alike for steps in steps_of(each)], alike=False)
        batches = ", ".join(str(each.batch) for each in alike)
        return pooled and pooled.model_copy(
            update={"note": f"of batches {batches} together; {pooled.note}"}
        )

    def _seconds(self, cell: MeasurementCell) -> Quantity | None:
        """The median step of a cell: as measured, else by the law; None if it knows too little."""
        if cell in self.counted:
            what = "median step of each visit, then over visits"
            return _over_visits(self.counted[cell], lambda s: s.median, what)
        launch, device = self.launch(cell.precision), self.device(cell)
        if launch is None or device is None:
            return None
        longer = max(launch, device, key=lambda each: each.value)
        after = (
            "the longer of launch and device: each visit came after a profiler was attached, and "
            "the host bounded it"
        )
        kind = "assumed" if longer.kind == "assumed" else "fitted"
        note = f"{after}; {longer.note}"
        return Quantity(value=longer.value, kind=kind, note=note)

    def fits(self) -> tuple[BatchFit, ...]:
        """The law of the device's seconds against the batch, by precision."""
        fits = []
        order = by_precision_and_batch(self.kernels)
        for precision in dict.fromkeys(cell.precision for cell in order):
            cells = [cell for cell in order if cell.precision == precision]
            seen = [cell for cell in cells if cell not in self.held_out]
            if len(seen) < 2:
                continue
            law = choose_batch_law([c.batch for c in seen], [self._estimate(c) for c in seen])
            fits.append(batch_fit(law, cells, seen, "device"))
        return tuple(fits)

    def _estimate(self, cell: MeasurementCell) -> CellEstimate:
        """The device's seconds of a cell for a fit: kernel time and the gap of its precision."""
        kernel, (between, _) = self.kernels[cell], self.gap(cell.precision)
        return replace(kernel, value=kernel.value + between)

    def predictions(
        self, cells: Iterable[StepCell], fits: Iterable[BatchFit]
    ) -> tuple[list[CellPrediction], str]:
        """What launch and device predict of held-out cells that were measured; errors by regime."""
        by_precision = {fit.precision: fit for fit in fits}
        found: list[CellPrediction] = []
        errors: dict[bool, list[float]] = {True: [], False: []}
        for each in cells:
            fit = by_precision.get(each.precision)
            if not each.held_out or fit is None or each.seconds.kind != "measured":
                continue
            cell = MeasurementCell("step", precision=each.precision, batch=each.batch)
            launch = self.launch(each.precision, self.held_out)
            by_device = seconds(fit, each.batch)
            if launch is not None and launch.kind == "assumed" and launch.value > by_device:
                continue  # an upper limit predicts nothing
            predicted = max(0.0 if launch is None else launch.value, by_device)
            found.append(CellPrediction(cell, each.seconds, predicted))
            error = abs(predicted / each.seconds.value - 1)
            errors[self.bounded_by_device(cell)].append(error)
        regimes = [
            f"of {len(of)} {REGIMES[regime]} {statistics.median(of):.1%} in the median, "
            f"{max(of):.1%} at worst"
            for regime, of in errors.items()
            if of
        ]
        return found, "; ".join(regimes)


def _step(cell: MeasurementCell) -> MeasurementCell:
    """The clean step that a visit's cell has to do with."""
    return MeasurementCell("step", precision=cell.precision, batch=cell.batch)


def _over_visits(
    steps: Sequence[TimedStep], number: Callable[[TimedStep], float], note: str
) -> Quantity:
    n = sum(len(step.seconds) for step in steps)
    return measured_quantity(estimate([number(step) for step in steps]), note, n)


def _median_of(steps: Sequence[TimedStep]) -> Callable[[Visit], float]:
    medians = {id(step.visit): step.median for step in steps}
    return lambda visit: medians[id(visit)]
