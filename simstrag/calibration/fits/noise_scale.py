"""The gradient noise scale of each visit, by `simstrag.learning.noise_scale_estimate`."""

from __future__ import annotations

from simstrag.calibration.fits.visit_statistics import round_digits
from simstrag.calibration.samples import Samples
from simstrag.learning.noise_scale_estimate import NormPair, estimate_noise_scale
from simstrag.profile.measurements import NoiseScaleAt, SkippedCell
from simstrag.profile.quantity import Quantity


def noise_scales(samples: Samples) -> tuple[tuple[NoiseScaleAt, ...], tuple[SkippedCell, ...]]:
    """The noise scale at each visit, by batch and trained samples; and the visits without one."""
    visits = [v for v in samples.visits if v.cell.part == "gradient" and not v.skipped]
    scales, without = [], []
    for visit in sorted(visits, key=lambda v: (v.facts["small_batch"], v.facts["trained"])):
        b, big, trained = (
            int(visit.facts[name]) for name in ("small_batch", "large_batch", "trained")
        )
        norms = zip(visit.samples["small"], visit.samples["large"], strict=True)
        pairs = [NormPair(small, large, b, big) for small, large in norms]
        scale = estimate_noise_scale(pairs)
        note = f"{len(pairs)} pairs of gradients of {b} and {big} samples"
        if scale is None:
            cell = f"{visit.cell}, noise scale after {trained} samples"
            reason = "leave no signal above the noise: more pairs or a larger batch would tell"
            without.append(SkippedCell(cell=cell, reason=f"{note} {reason}"))
            continue
        note += "; bootstrap over pairs"
        high = None if scale.high is None else round_digits(scale.high)
        if high is None:
            note += "; the upper end is unknown"
        quantity = Quantity(
            value=round_digits(scale.value), kind="measured", low=round_digits(scale.low),
            high=high, n=len(pairs), note=note,
        )  # fmt: skip
        scales.append(NoiseScaleAt(trained=trained, batch=b, scale=quantity))
    return tuple(scales), tuple(without)
