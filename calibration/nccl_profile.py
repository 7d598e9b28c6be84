"""A profile of nccl-tests logs: what an all-reduce costs on a cluster, and nothing else.

Constants are fitted to sizes of 1 MiB and more, which gradients have, over all logs at once.  Which
formula they belong to is told by leaving out each placement in turn.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.calibration import nccl_tests
from simstrag.calibration.cells import Cell
from simstrag.calibration.fits import collective_fit
from simstrag.calibration.fits.collective_fit import ALGORITHMS, Algorithm, Fit, Point, Predictor
from simstrag.calibration.fits.held_out import LARGE, Prediction, account
from simstrag.calibration.fits.medians import short
from simstrag.errors import InputError
from simstrag.profile.measurements import CollectiveCell, CollectiveFit, HeldOut, Residual
from simstrag.profile.profile import AllReduceTimes, Profile
from simstrag.profile.quantity import Quantity

__all__ = ["GRADIENT", "choose", "left_out", "profile"]

GRADIENT = 4 * 25_557_032
"""Bytes of ResNet-50's gradient, which stands in where nobody says how many there are."""

MISSING = (
    "steps",
    "parameter server",
    "overlap of all-reduce and backward, taken to be 0",
    "spread between runs: each time is the mean of one run",
)


def profile(
    paths: Sequence[Path], name: str, gradient_bytes: int = 0, **provenance: Any
) -> Profile:
    """From one log per placement; provenance: fields of the profile to add or to replace.

    gradient_bytes: of the gradient to simulate, which no log tells; 0 for `GRADIENT`.  Raises
    `InputError` for a log of something else, and where times do not tell the constants.
    """
    logs = nccl_tests.read_all(paths)
    points = [point for log in logs for point in nccl_tests.points(log)]
    large = [point for point in points if point.bytes >= LARGE] or points
    try:
        algorithm, errors = choose(large)
        fitted = collective_fit.fit(large, algorithm)
        single = [_fit(of, "ring", "over all sizes of one placement") for of in _placements(points)]
    except ValueError as error:
        raise InputError(
            f"{', '.join(map(str, paths))}: {error}; give logs of more sizes from 1 MiB on"
        ) from None
    size = gradient_bytes or GRADIENT
    whose = "as stated" if gradient_bytes else "that of ResNet-50, for no log tells it"
    told = ", ".join(f"{each} {error:.1%}" for each, error in errors.items())
    stated = {
        "name": name,
        "origin": "derived",
        "source": "nccl-tests: " + ", ".join(path.name for path in paths),
        "missing": MISSING,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": _command(paths, name, gradient_bytes),
        "device": {
            "kind": "cuda",
            "model": logs[0].gpu,
            "gpus_per_node": {str(log.ranks): list(log.ranks_per_node) for log in logs},
        },
        "software": {},
    }
    return Profile(
        **(stated | provenance),
        allreduce=AllReduceTimes(
            **_constants(fitted, len(large)),
            bytes=Quantity(value=size, kind="assumed", note=whose),
            overlap=Quantity(value=0, kind="assumed", note="measured without any backward"),
            algorithm=fitted.algorithm,
        ),
        collectives=tuple(_cell(point) for point in points),
        collective_fits=(
            *single,
            _fit(large, algorithm, f"over all placements; placements left out in turn: {told}"),
        ),
        held_out=tuple(each for each in (left_out(large),) if each is not None),
    )


def choose(points: Sequence[Point]) -> tuple[Algorithm, dict[Algorithm, float]]:
    """The algorithm with the smallest median error, and that of each that can be told.

    Errors are at placements left out in turn, or, where there are fewer than three, at sizes left
    out in turn; of algorithms that do equally well it is the first of `ALGORITHMS`.
    """
    few = len({point.ranks_per_node for point in points}) < 3
    found: dict[Algorithm, float] = {}
    for algorithm in ALGORITHMS:
        errors = collective_fit.errors(
            points,
            lambda given, of=algorithm: collective_fit.fit(given, of).seconds,  # type: ignore[misc]
            (lambda p: p.bytes) if few else (lambda p: p.ranks_per_node),
        )
        if errors:
            found[algorithm] = round(float(np.median([abs(error) for _, error in errors])), 6)
    if not found:
        raise ValueError(f"{len(points)} times do not tell the constants of any algorithm")
    return min(found, key=lambda a: found[a]), found


def left_out(points: Sequence[Point]) -> HeldOut | None:
    """How well the other placements predict each: the algorithm chosen and fitted without it."""

    def fitter(given: Sequence[Point]) -> Predictor:
        algorithm, _ = choose(given)
        chosen.append(algorithm)
        return collective_fit.fit(given, algorithm).seconds

    chosen: list[Algorithm] = []
    errors = collective_fit.errors(points, fitter, lambda p: p.ranks_per_node)
    found = [
        Prediction(
            Cell("allreduce", backend="nccl", ranks=point.ranks, bytes=point.bytes, group="all"),
            Quantity(value=short(point.seconds), kind="measured"),
            (1 + error) * point.seconds,
        )
        for point, error in errors
    ]
    note = (
        f"every placement left out in turn, its times of {LARGE} bytes and more predicted by the "
        f"algorithm chosen and fitted without it ({', '.join(dict.fromkeys(chosen))}); the "
        "constants of this profile are of all placements, so that the error stated is of the method"
    )
    return account("allreduce", found, note)


def _command(paths: Sequence[Path], name: str, gradient_bytes: int) -> str:
    """What makes such a profile in the folder of the logs, by their names there."""
    size = f" --gradient-bytes {gradient_bytes}" if gradient_bytes else ""
    logs = " ".join(path.name for path in paths)
    return f"simstrag calibrate import nccl-tests {logs}{size} --out {name}.json"


def _placements(points: Sequence[Point]) -> list[list[Point]]:
    placements = dict.fromkeys(point.ranks_per_node for point in points)
    return [[p for p in points if p.ranks_per_node == each] for each in placements]


def _cell(point: Point) -> CollectiveCell:
    return CollectiveCell(
        backend="nccl",
        ranks=point.ranks,
        bytes=point.bytes,
        seconds=Quantity(value=short(point.seconds), kind="measured", note="in place, one run"),
    )


def _fit(points: Sequence[Point], algorithm: Algorithm, note: str) -> CollectiveFit:
    fitted = collective_fit.fit(points, algorithm)
    return CollectiveFit(
        backend="nccl",
        algorithm=algorithm,
        ranks=tuple(sorted({point.ranks for point in points})),
        smallest=min(point.bytes for point in points),
        largest=max(point.bytes for point in points),
        **_constants(fitted, len(points)),
        residuals=tuple(
            Residual(ranks=point.ranks, bytes=point.bytes, error=short(error))
            for point, error in zip(points, fitted.residuals(points), strict=True)
            if fitted.freedom
        ),
        note=note,
    )


def _constants(fitted: Fit, count: int) -> dict[str, Quantity]:
    """Those that the fit has, with their intervals."""
    found = {}
    for name in ("alpha", "bandwidth", "intra_alpha", "intra_bandwidth"):
        value = getattr(fitted, name)
        if value is None:
            continue
        low, high = fitted.low.get(name), fitted.high.get(name)
        found[name] = Quantity(
            value=short(value), kind="fitted", n=count,
            note="no interval" if low is None else "interval by the residuals",
            low=None if low is None else short(low), high=None if high is None else short(high),
        )  # fmt: skip
    return found
