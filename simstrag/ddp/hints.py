"""What a profile tells the policies of a real run."""

from __future__ import annotations

from pathlib import Path

from simstrag.policy import Hints
from simstrag.profile.profile import Profile

__all__ = ["hints_of"]


def hints_of(
    profile: str | Path | Profile | None,
    batch: int | None = None,
    samples: int | None = None,
    pair: tuple[str, str] | None = None,
) -> Hints:
    """The hints of a profile, as a simulation from the same profile would give them.

    Times are those of the profile's own batch and precisions; where the run's are others, they are
    left out.  pair: full and reduced precision of the run, by their names in profiles; reduced is
    "" where it has none.  Raises `InputError` where the profile cannot be read.

    >>> hints_of(None, batch=32).amp_ratio is None
    True
    """
    if profile is None:
        return Hints(batch=batch, samples=samples)
    known = profile if isinstance(profile, Profile) else Profile.read(profile)
    times, workload = known.step, known.workload
    if times is None or workload is None or batch not in (None, workload.batch):
        return Hints(batch=batch, samples=samples)
    if pair is not None and pair not in ((workload.full, workload.amp), (workload.full, "")):
        return Hints(batch=batch, samples=samples)
    clean = times.compute.value
    return Hints(
        amp_ratio=None if times.amp_ratio is None else times.amp_ratio.value,
        host_seconds=clean * times.host_share.value,
        clean_seconds=clean,
        amp_switch=times.amp_switch.value,
        batch=batch or workload.batch,
        samples=samples,
    )
