"""What a profile tells the policies of a real run."""

from __future__ import annotations

from pathlib import Path

from simstrag.policy import Hints
from simstrag.profile import Profile

__all__ = ["hints_of"]


def hints_of(
    profile: str | Path | Profile | None, batch: int | None = None, samples: int | None = None
) -> Hints:
    """The hints of a profile, as a simulation from the same profile would give them.

    Times are those of the profile's own batch; where the run's is another, they are left out.
    Raises `InputError` where the profile cannot be read.

    >>> hints_of(None, batch=32).amp_ratio is None
    True
    """
    if profile is None:
        return Hints(batch=batch, samples=samples)
    known = profile if isinstance(profile, Profile) else Profile.read(profile)
    times, workload = known.step, known.workload
    if times is None or workload is None or batch not in (None, workload.batch):
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
