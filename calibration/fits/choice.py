"""How one of several laws is chosen, and how much a cell counts in the fit of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from simstrag.calibration.fits.medians import Estimate

__all__ = ["CLEARLY", "FLOOR", "simplest", "tolerances"]

Name = TypeVar("Name", bound=str)

FLOOR = 0.01
"""Relative error that any cell has at least in a fit: what differs from cell to cell for its own
reasons (which kernel is chosen, what fits into a cache) is no smaller, however often it was timed.
"""
CLEARLY = 1.25
"""Times the smallest cross-validation error up to which a simpler law is taken."""


def simplest(errors: Mapping[Name, float], constants: Mapping[Name, int]) -> Name:
    """The law with the fewest constants of those not clearly worse than the best.

    errors: of each law, by cross-validation.  Errors below a quarter of `FLOOR` count as equal.
    Of laws with as many constants it is the one with the smallest error.

    >>> errors = {"proportional": 0.5, "affine": 0.011, "knee": 0.010}
    >>> simplest(errors, {"proportional": 1, "affine": 2, "knee": 3})
    'affine'
    """
    most = CLEARLY * max(min(errors.values()), FLOOR / 4)
    near = [name for name, error in errors.items() if error <= most]
    return min(near, key=lambda name: (constants[name], errors[name]))


def tolerances(estimates: Sequence[Estimate]) -> npt.NDArray[np.float64]:
    """What each value counts by in a fit: its standard error, and `FLOOR` of it at least."""
    shares = [e.error if math.isfinite(e.error) else FLOOR for e in estimates]
    return np.array(
        [e.value * max(FLOOR, share) for e, share in zip(estimates, shares, strict=True)]
    )
