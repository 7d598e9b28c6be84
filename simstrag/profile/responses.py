"""The slowdown of a step by a load: laws that calibration fitted, and utilisation translated.

The level of a load is its share of a resource: 1 is all of one core's or device's time.  A
utilisation (0 to 1) is such a level.  Slowdowns are factors >= 1 that never fall with the level.

    none          1
    constant      factor at any level above 0
    time_slices   1 + cost min(u, 1): a second process takes its slices from the first, not from
                  the step
    linear        1 + slope u
    fair_share    demand + u: the step needs `demand` of the resource, and shares it when short
    reciprocal    1 / (1 - share u)
    power         1 + slope u^exponent
    hinge         1 + slope (u - knee): free up to the knee
    interpolated  linear between measured levels, and 1 at level 0

Which law holds is measured; docs/formats/profile.md shows why fair share is no better than a
constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Floats
from simstrag.errors import InputError
from simstrag.profile.measurements import Response
from simstrag.profile.profile import Profile
from simstrag.timing.constants import Step
from simstrag.trace.row_validation import RESOURCES, SLOWDOWN, UTILISATION
from simstrag.trace.trace import Trace

MOST = 0.9
"""Loads above it count as this one under an assumed law: at 1 a reciprocal has no value."""
SHOWS = 1.08
"""Slowdown of a whole step from which it is taken to be of its shorter stream: steps on a GPU are
up to 8 % longer than their kernels (`simstrag.calibration.fits.counted_visits`)."""


def apply_law(law: str, constants: Mapping[str, float], levels: npt.ArrayLike) -> Floats:
    """Slowdowns at some levels by a law with constants; 1 at level 0.

    Raises `InputError` if a reciprocal has no value.  `interpolated` has no constants; see
    `evaluate`.

    >>> apply_law("hinge", {"slope": 2.0, "knee": 0.5}, [0.0, 0.5, 1.0]).tolist()
    [1.0, 1.0, 2.0]
    """
    u, c = np.asarray(levels, np.float64), constants
    if law == "none":
        slowed = np.ones_like(u)
    elif law == "constant":
        slowed = np.full_like(u, c["factor"])
    elif law == "time_slices":
        slowed = 1 + c["cost"] * np.minimum(u, 1.0)
    elif law == "linear":
        slowed = 1 + c["slope"] * u
    elif law == "fair_share":
        slowed = c["demand"] + u
    elif law == "reciprocal":
        left = 1 - c["share"] * u
        if np.any(left <= 0):
            raise InputError(
                f"a reciprocal law of share {c['share']:g} has no slowdown at level "
                f"{u.max():g}; measure that level"
            )
        slowed = 1 / left
    elif law == "power":
        slowed = 1 + c["slope"] * u ** c["exponent"]
    else:
        assert law == "hinge", law
        slowed = 1 + c["slope"] * np.maximum(0.0, u - c["knee"])
    return np.where(u > 0, np.maximum(1.0, slowed), 1.0)


def evaluate(response: Response, levels: npt.ArrayLike) -> Floats:
    """Slowdowns at some levels by a fitted response.

    Laws with constants extrapolate beyond the highest measured level.  Raises `InputError` for such
    a level under an interpolation.
    """
    u = np.asarray(levels, np.float64)
    if response.law != "interpolated":
        constants = {name: each.value for name, each in response.constants.items()}
        return apply_law(response.law, constants, u)
    known = [(each.level, each.slowdown.value) for each in response.levels if not each.held_out]
    measured, slowdowns = zip(*known, strict=True)
    if u.size and u.max() > max(measured):
        raise InputError(
            f"a load {response.load} of level {u.max():g} is beyond the highest of its "
            f"interpolated response, {max(measured):g}; measure that level"
        )
    return interpolate(measured, slowdowns, u)


def interpolate(measured: npt.ArrayLike, slowdowns: npt.ArrayLike, levels: npt.ArrayLike) -> Floats:
    """Slowdowns on lines between measured levels, from 1 at level 0, never falling.

    They stay constant beyond the highest level.

    >>> interpolate([2.0, 1.0], [1.8, 2.0], [0.0, 0.5, 1.0, 2.0, 3.0]).tolist()
    [1.0, 1.5, 2.0, 2.0, 2.0]
    """
    x, y = np.asarray(measured, np.float64), np.asarray(slowdowns, np.float64)
    order = np.argsort(x)
    rising = np.maximum.accumulate(np.maximum(1.0, y[order]))
    at = np.asarray(levels, np.float64)
    return np.asarray(np.interp(at, np.append(0.0, x[order]), np.append(1.0, rising)))


def responses_for(trace: Trace, profile: Profile | None) -> tuple[Response, ...]:
    """The responses that translate a trace's utilisations: the first one of each resource.

    They are responses of steps in full precision; for the network, of an all-reduce.
    """
    if profile is None:
        return ()
    full = None if profile.workload is None else profile.workload.full
    h = trace.histories
    used = {RESOURCES[k] for k in h.resource[h.kind == UTILISATION]}
    first: dict[str, Response] = {}
    for response in profile.responses:
        if response.resource in used and response.precision in ("", full):
            first.setdefault(response.resource, response)
    return tuple(first.values())


def assume(response: float, levels: npt.ArrayLike) -> Floats:
    """Slowdowns at some levels by the assumed law `contention.response` of a scenario.

    >>> [assume(response, [0.0, 0.5, 0.75]).tolist() for response in (1, 2)]
    [[1.0, 1.5, 1.75], [1.0, 2.0, 4.0]]
    """
    u = np.minimum(np.asarray(levels, np.float64), MOST)
    return 1 + u / (1 - (response - 1) * u)


def law_of(response: float) -> str:
    """The formula of the assumed law.

    >>> law_of(1), law_of(1.5), law_of(2)
    ('1 + u', '1 + u / (1 - 0.5 u)', '1 / (1 - u)')
    """
    known = {1.0: "1 + u", 2.0: "1 / (1 - u)"}
    return known.get(response) or f"1 + u / (1 - {response - 1:g} u)"


def _stretch_of_part(slowed: Floats, part: float, step: Step, is_part: bool) -> Floats:
    """The stretch of a part of a step by which the whole step is as slow as measured.

    is_part: whether `part` is of the step; a transfer is on its own.
    """
    if not is_part:
        return slowed
    if step.overlaps:  # the part must become the longer one first
        shows = slowed > (1.0 if part == step.clean else SHOWS)
        return np.where(shows, np.maximum(1.0, slowed * step.clean / part), 1.0)
    return np.asarray(1 + (slowed - 1) / (part / step.clean))


def translate(
    trace: Trace, profile: Profile | None, step: Step, assumed: float | None = None
) -> Trace:
    """A trace with utilisations as slowdowns, for each resource with a response in the profile.

    assumed: the law of the other resources (`assume`); None leaves their utilisations.

    A slowdown in a trace stretches only the part of the step that uses the resource.  A response of
    the device's part is that stretch; by one that was measured on whole steps the part is stretched
    until the whole step is as slow as measured.
    Source and hash stay as recorded.  Raises `InputError` for a resource with both slowdowns and
    utilisations, and for a resource that steps do not use.
    """
    h = trace.histories
    used = h.kind == UTILISATION
    if not used.any():
        return trace
    kind, value = h.kind.copy(), h.value.copy()
    # Communication is on the network alone.
    parts = {"gpu": step.gpu, "host": step.host}
    for response in responses_for(trace, profile):
        resource = response.resource
        chosen = used & (h.resource == RESOURCES.index(resource))
        part = parts.get(resource, step.clean)
        if part == 0:
            raise InputError(
                f"{trace.source}: utilisation of {resource} would stretch the {resource} part of "
                f"steps, and they have none here (host_share); leave these rows out"
            )
        rows = h.rows_of(chosen)
        slowed = evaluate(response, value[rows])
        if response.part == "step":
            slowed = _stretch_of_part(slowed, part, step, resource in parts)
        value[rows] = slowed
        kind[chosen] = SLOWDOWN
    if assumed is not None:
        rows = h.rows_of(kind == UTILISATION)
        value[rows] = assume(assumed, value[rows])
        kind[kind == UTILISATION] = SLOWDOWN
    slowed, counts = np.unique(
        (h.node * len(RESOURCES) + h.resource)[kind == SLOWDOWN], return_counts=True
    )
    if (counts > 1).any():
        node, place = divmod(int(slowed[np.argmax(counts > 1)]), len(RESOURCES))
        raise InputError(
            f"{trace.source}: node {node} has slowdowns and utilisations of "
            f"{RESOURCES[place]}; keep one of the two"
        )
    return replace(trace, histories=replace(h, kind=kind, value=value))
