"""The times of a step at any batch: as measured, or by the profile's fit against the batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Floats
from simstrag.errors import InputError
from simstrag.profile.measurements import BatchFit, StepCell
from simstrag.profile.profile import PrecisionSeconds, Profile, StepTimes
from simstrag.profile.quantity import Kind, Quantity


def batch_seconds(constants: npt.ArrayLike, batches: npt.ArrayLike) -> Floats:
    """Median seconds of clean steps of some batches: fixed + per_sample * batch.

    constants: fixed, per_sample, knee.  Batches below the knee (0: none) take as long as the knee.

    >>> batch_seconds((1.0, 0.5, 4.0), [1, 8]).tolist()
    [3.0, 5.0]
    """
    fixed, per_sample, knee = np.asarray(constants, np.float64)
    return np.asarray(fixed + per_sample * np.maximum(batches, knee))


def seconds(fit: BatchFit, batch: float) -> float:
    """Median seconds of a clean step, or of its device's part, by a fit."""
    knee = 0.0 if fit.knee is None else fit.knee.value
    return float(batch_seconds((fit.fixed.value, fit.per_sample.value, knee), batch))


def times_at(profile: Profile, batch: int) -> StepTimes:
    """The profile's step at a batch: its constants, else a measured cell, else by its fit.

    A fit gives the median; mean over median, noise and host share are taken from the nearest
    measured batch.  With launch and device, the batch changes the device's seconds alone, and
    `amp_ratio` is derived from both at this batch.

    Raises `InputError` without step times, and beyond the measured batches.
    """
    step, workload = profile.step, profile.workload
    if step is None or workload is None:
        raise InputError(
            f"the profile {profile.name} has no step times; state step: {{compute: ...}}"
        )
    if batch == workload.batch:
        fixed = step.fixed_share or _fixed_share(profile, batch)
        gain = step.amp_ratio if step.streams is None else gain_of(step, batch)
        return step.model_copy(update={"fixed_share": fixed, "amp_ratio": gain})
    cells = [cell for cell in profile.cells if cell.precision == workload.full]
    fit = fit_of(profile, workload.full)
    if fit is None or not cells:
        raise InputError(
            f"learner.batch is {batch}, but the profile timed steps of {workload.batch} samples; "
            f"say learner: {{batch: {workload.batch}}}"
        )
    smallest, largest = fit.range
    if not smallest <= batch <= largest:
        raise InputError(
            f"learner.batch is {batch}, but the profile timed steps of {smallest} to {largest} "
            "samples, and its fit is not trusted beyond; choose a batch between, or state "
            "step: {compute: ...}"
        )
    near = min(cells, key=lambda cell: max(cell.batch, batch) / min(cell.batch, batch))
    if step.streams is not None:
        return _overlapping(profile, step, near, batch)
    share = step.host_share
    assert share is not None, "the serial law has it"
    assumed = share.kind == "assumed"  # then the nearest cell knows no better
    return StepTimes(
        compute=_compute(fit, near, batch),
        host_share=share if assumed else near.host_share or share,
        amp_ratio=_amp_ratio(profile, batch) or step.amp_ratio,
        amp_switch=step.amp_switch,
        fixed_share=_fixed_share(profile, batch),
        noise=near.noise or step.noise,
    )


def _overlapping(profile: Profile, step: StepTimes, near: StepCell, batch: int) -> StepTimes:
    """The step of the overlapping law at a batch: launching stays, the device's seconds change."""
    workload, launch = profile.workload, step.launch
    assert workload is not None
    assert launch is not None
    full, amp = (device_at(profile, each, batch) for each in (workload.full, workload.amp))
    assert full is not None, "the batch lies in the range of the fit"
    longer = max(launch.full, full, key=lambda each: each.value)
    cell = near if near.batch == batch else None
    note = f"the longer of launching and the device's part at {batch} samples"
    times = StepTimes(
        compute=Quantity(value=longer.value, kind="fitted", note=note) if cell is None
        else cell.mean,
        launch=launch,
        device=PrecisionSeconds(full=full, amp=amp),
        amp_switch=step.amp_switch,
        fixed_share=_fixed_share(profile, batch),
        noise=near.noise or step.noise,
    )  # fmt: skip
    return times.model_copy(update={"amp_ratio": gain_of(times, batch)})


def device_at(profile: Profile, precision: str, batch: int) -> Quantity | None:
    """Seconds of the device's part at a batch: of its cell, else by the fit, else unknown."""
    for cell in profile.cells:
        if (cell.precision, cell.batch) == (precision, batch) and cell.device is not None:
            return cell.device
    fit = fit_of(profile, precision)
    if fit is None or fit.part != "device" or not fit.range[0] <= batch <= fit.range[1]:
        return None
    note = f"by the profile's {fit.law} fit of the device's part at {batch} samples"
    return Quantity(value=seconds(fit, batch), kind="fitted", note=note)


def gain_of(times: StepTimes, batch: int) -> Quantity | None:
    """Full over reduced precision by launch and device; None where the latter is unknown there.

    Its interval is that of the longer part of each precision.
    """
    if times.streams is None or times.streams[1].amp is None:
        return None
    launch, device = times.streams
    full = max((launch.full, device.full), key=lambda each: each.value)
    slow = launch.amp or launch.full
    amp = max((slow, times.streams[1].amp), key=lambda each: each.value)
    bounds = "launching" if amp is slow else "the device"
    note = (
        f"the longer of launch and device in full precision over that in reduced precision, at "
        f"{batch} samples, where {bounds} bounds a step in reduced precision"
    )
    ends: dict[str, float] = {}
    if full.low and full.high and amp.low and amp.high:
        ends = {"low": full.low / amp.high, "high": full.high / amp.low}
    if launch.amp is None and amp is slow:
        note += "; launching there is taken to be as in full precision"
    is_assumed = "assumed" in (full.kind, amp.kind) or (launch.amp is None and amp is slow)
    kind: Kind = "assumed" if is_assumed else "fitted"
    return Quantity(value=full.value / amp.value, kind=kind, note=note, **ends)


def _fixed_share(profile: Profile, batch: int) -> Quantity | None:
    """The share of what its fit is of that a smaller batch does not shorten; None without one.

    For a batch below the knee it is 1.
    """
    assert profile.workload is not None
    fit = fit_of(profile, profile.workload.full)
    if fit is None:
        return None
    below = fit.knee is not None and batch <= fit.knee.value
    value = 1.0 if below else fit.fixed.value / seconds(fit, batch)
    note = f"by the profile's {fit.law} fit against the batch, of a step of {batch} samples"
    return Quantity(value=value, kind="fitted", note=note)


def _compute(fit: BatchFit, near: StepCell, batch: int) -> Quantity:
    if near.batch == batch:
        return near.mean
    mean = near.mean.value / near.seconds.value
    beyond = batch > max(fit.fitted) or batch < min(fit.fitted)
    far = f", beyond the batches of the fit ({min(fit.fitted)} to {max(fit.fitted)})"
    return Quantity(
        value=seconds(fit, batch) * mean,
        kind="fitted",
        note=f"by the profile's {fit.law} fit against the batch at {batch} samples"
        f"{far if beyond else ''}, times mean over median at {near.batch} samples, {mean:.4g}; "
        f"noise and host share are those of {near.batch} samples",
    )


def _amp_ratio(profile: Profile, batch: int) -> Quantity | None:
    """Full over reduced precision at a batch, if both are known there."""
    workload = profile.workload
    assert workload is not None
    full, amp = (_median(profile, each, batch) for each in (workload.full, workload.amp))
    if full is None or amp is None:
        return None
    measured = full.kind == amp.kind == "measured"
    by = "both measured" if measured else "by the fits against the batch"
    return Quantity(
        value=full.value / amp.value,
        kind="measured" if measured else "fitted",
        note=f"median step in {workload.full} over that in {workload.amp} at {batch} samples, {by}",
    )


def _median(profile: Profile, precision: str, batch: int) -> Quantity | None:
    for cell in profile.cells:
        if (cell.precision, cell.batch) == (precision, batch):
            return cell.seconds
    fit = fit_of(profile, precision)
    if fit is None or not fit.range[0] <= batch <= fit.range[1]:
        return None
    return Quantity(value=seconds(fit, batch), kind="fitted")


def fit_of(profile: Profile, precision: str) -> BatchFit | None:
    """The fit of a precision, if the profile has one."""
    return next((fit for fit in profile.batches if fit.precision == precision), None)
