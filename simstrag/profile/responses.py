"""What a load of some level does to a step: laws that calibration fitted, and their use on traces.

A level is what a load takes of a resource: 1 is all of one core's or device's time.  A utilisation
(0 to 1) is such a level.  Slowdowns are factors >= 1 that never fall with the level.

    none          1
    constant      factor at any level above 0
    linear        1 + slope u
    fair_share    demand + u: the step needs `demand` of the resource, what is short is shared
    reciprocal    1 / (1 - share u)
    power         1 + slope u^exponent
    hinge         1 + slope (u - knee): free up to the knee
    interpolated  linear between measured levels, and 1 at level 0

Which law holds is a measurement: the trap that fair share is no better than a constant is told in
docs/formats/profile.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simstrag.errors import InputError
from simstrag.profile.measurements import Response
from simstrag.profile.profile import Profile
from simstrag.timing.constants import Step
from simstrag.trace.rows import RESOURCES, SLOWDOWN, UTILISATION
from simstrag.trace.trace import Trace

__all__ = ["evaluate", "joined", "of_law", "responses_for", "translated"]

Floats = npt.NDArray[np.float64]


def of_law(law: str, constants: Mapping[str, float], levels: npt.ArrayLike) -> Floats:
    """Slowdowns at some levels by a law with constants; at level 0 there is no load: 1.

    Raises `InputError` where a reciprocal has no value. `interpolated` has no constants and is not
    evaluated here.

    >>> of_law("hinge", {"slope": 2.0, "knee": 0.5}, [0.0, 0.5, 1.0]).tolist()
    [1.0, 1.0, 2.0]
    """
    u, c = np.asarray(levels, np.float64), constants
    if law == "none":
        slowed = np.ones_like(u)
    elif law == "constant":
        slowed = np.full_like(u, c["factor"])
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

    Beyond the highest level measured a law with constants goes on as it is; an interpolation
    cannot, and raises `InputError`.
    """
    u = np.asarray(levels, np.float64)
    if response.law != "interpolated":
        constants = {name: each.value for name, each in response.constants.items()}
        return of_law(response.law, constants, u)
    known = [(each.level, each.slowdown.value) for each in response.levels if not each.held_out]
    measured, slowdowns = zip(*known, strict=True)
    if u.size and u.max() > max(measured):
        raise InputError(
            f"a load {response.load} of level {u.max():g} is beyond the highest of its "
            f"interpolated response, {max(measured):g}; measure that level"
        )
    return joined(measured, slowdowns, u)


def joined(measured: npt.ArrayLike, slowdowns: npt.ArrayLike, levels: npt.ArrayLike) -> Floats:
    """Slowdowns at some levels on lines between measured ones, from 1 at level 0, never falling.

    Beyond the highest it holds what it has there.

    >>> joined([2.0, 1.0], [1.8, 2.0], [0.0, 0.5, 1.0, 2.0, 3.0]).tolist()
    [1.0, 1.5, 2.0, 2.0, 2.0]
    """
    x, y = np.asarray(measured, np.float64), np.asarray(slowdowns, np.float64)
    order = np.argsort(x)
    rising = np.maximum.accumulate(np.maximum(1.0, y[order]))
    at = np.asarray(levels, np.float64)
    found: Floats = np.interp(at, np.append(0.0, x[order]), np.append(1.0, rising))
    return found


def responses_for(trace: Trace, profile: Profile | None) -> tuple[Response, ...]:
    """Those by which the utilisations of a trace are translated: the first of each resource.

    In the order of the profile, of steps in full precision; that of the network is of an
    all-reduce, which has no precision.
    """
    if profile is None:
        return ()
    full = None if profile.workload is None else profile.workload.full
    h = trace.histories
    used = {RESOURCES[k] for k in h.resource[h.kind == UTILISATION]}
    found: dict[str, Response] = {}
    for each in profile.responses:
        if each.resource in used and each.precision in ("", full):
            found.setdefault(each.resource, each)
    return tuple(found.values())


def translated(trace: Trace, profile: Profile | None, step: Step) -> Trace:
    """A trace whose utilisations are slowdowns by the profile's responses, where it has them.

    A response was measured of whole steps, a slowdown in a trace is of the part that uses the
    resource; that part is stretched by so much that the whole step takes as long as was measured.
    Source and hash stay those of the trace as it was recorded.  Raises `InputError` for a resource
    with slowdowns beside utilisations, and for one that steps make no use of.
    """
    h = trace.histories
    used = h.kind == UTILISATION
    if not used.any():
        return trace
    kind, value = h.kind.copy(), h.value.copy()
    for response in responses_for(trace, profile):
        resource = response.resource
        chosen, share = used & (h.resource == RESOURCES.index(resource)), _share(step, resource)
        if share == 0:
            raise InputError(
                f"{trace.source}: utilisation of {resource} would stretch the {resource} part of "
                f"steps, and they have none here (host_share); leave these rows out"
            )
        rows = np.repeat(chosen, np.diff(h.starts))
        value[rows] = 1 + (evaluate(response, value[rows]) - 1) / share
        kind[chosen] = SLOWDOWN
    _refuse_both(trace, h.node * len(RESOURCES) + h.resource, kind)
    return replace(trace, histories=replace(h, kind=kind, value=value))


def _share(step: Step, resource: str) -> float:
    """The share of an idle step that a resource works on; communication is the network's alone."""
    parts = {"gpu": step.gpu, "host": step.host}
    return parts[resource] / (step.gpu + step.host) if resource in parts else 1.0


def _refuse_both(trace: Trace, place: npt.NDArray[np.int64], kind: npt.NDArray[np.int8]) -> None:
    slowed = np.sort(place[kind == SLOWDOWN])
    twice = slowed[1:][slowed[1:] == slowed[:-1]]
    if len(twice):
        node, resource = divmod(int(twice[0]), len(RESOURCES))
        raise InputError(
            f"{trace.source}: node {node} has slowdowns and utilisations of "
            f"{RESOURCES[resource]}; keep one of the two"
        )
