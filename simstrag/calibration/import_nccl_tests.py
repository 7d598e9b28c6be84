"""Profiles from logs of nccl-tests: the cost of an all-reduce on a cluster, and nothing else.

Source of the format: https://github.com/NVIDIA/nccl-tests, `src/common.cu`.  The tag of mpirun,
`[1,0]<stdout>:`, may precede a line and, where pipes were cut, occur inside one.  GPUs and nodes
are counted from the lines `#  Rank  0 Pid ... on HOST device 0 ...`; times are microseconds, means
over the test's iterations.

Constants are fitted to sizes of 1 MiB and more, as gradients have, over all logs at once.  The
algorithm is chosen by leaving out each placement in turn.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.calibration.cells import MeasurementCell
from simstrag.calibration.fits import allreduce_fit
from simstrag.calibration.fits.allreduce_fit import (
    ALGORITHMS,
    Algorithm,
    AllReducePoint,
    TimePredictor,
)
from simstrag.calibration.fits.held_out import LARGE, CellPrediction, summarize_errors
from simstrag.calibration.fits.visit_statistics import round_digits
from simstrag.documents.file_io import require_path
from simstrag.errors import InputError
from simstrag.profile.measurements import CollectiveCell, CollectiveFit, HeldOut
from simstrag.profile.profile import AllReduceTimes, Profile
from simstrag.profile.quantity import Quantity

GRADIENT = 4 * 25_557_032
"""Bytes of ResNet-50's gradient, the default where the user states no size."""

MISSING = (
    "steps",
    "parameter server",
    "overlap of all-reduce and backward, taken to be 0",
    "spread between runs: each time is the mean of one run",
)

INTERVAL_NOTES = ("interval by the residuals", "no interval")

TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
RANK = re.compile(r"^#\s*Rank\s+(\d+).*?\bon\s+(\S+)\s+device\s+\S+\s*(?:\[\S+\])?\s*(.*)$")
NUMBER = r"(\d+(?:\.\d+)?)"
ROW = re.compile(
    rf"^\s*(\d+)\s+(\d+)\s+([a-z]\S*)\s+([a-z]\S*)\s+(?:-?\d+\s+)?"
    rf"{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+(\S+)\s+{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+(\S+)\s*$"
)
BUS = 0.1
"""Largest relative difference between the printed busbw and the busbw of an all-reduce."""


@dataclass(frozen=True, slots=True)
class NcclLog:
    """One run of nccl-tests.

    ranks_per_node: GPUs on each node.
    gpu: their model.
    out_of_place, in_place: seconds by bytes, in the log's order.
    """

    ranks_per_node: tuple[int, ...]
    gpu: str
    out_of_place: dict[int, float]
    in_place: dict[int, float]

    @property
    def ranks(self) -> int:
        """GPUs on all nodes."""
        return sum(self.ranks_per_node)


def read(path: Path) -> NcclLog:
    """Read one log; where a size occurs several times, the last row counts.

    Raises `InputError` for a log of another tool or collective, and for an empty one.
    """
    try:
        lines = [TAG.sub("", line) for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read the log: {error}") from None
    nodes: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    out_of_place, in_place = {}, {}
    for number, line in enumerate(lines, 1):
        if match := RANK.match(line):
            nodes[match[2]] += 1
            gpus[match[3].strip()] += 1
        elif match := ROW.match(line):
            if match[4] == "none":
                raise InputError(
                    f"{path}: line {number}: redop none reduces nothing, so this is no all-reduce; "
                    "give the output of all_reduce_perf"
                )
            size, out, algorithm, bus, inside = (float(match[k]) for k in (1, 5, 6, 7, 9))
            if size > 0 and out > 0 and inside > 0:
                _check_collective(f"{path}: line {number}", algorithm, bus, sum(nodes.values()))
                out_of_place[int(size)], in_place[int(size)] = out * 1e-6, inside * 1e-6
    if not nodes or not out_of_place:
        missing = "lines '# Rank ... on HOST device ...'" if not nodes else "rows of times"
        raise InputError(
            f"{path}: has no {missing}, so it is no log of nccl-tests; give the output of "
            "all_reduce_perf"
        )
    if sum(nodes.values()) < 2:
        raise InputError(f"{path}: is of one GPU, which reduces nothing; give a log of more GPUs")
    return NcclLog(tuple(nodes.values()), gpus.most_common(1)[0][0], out_of_place, in_place)


def points(log: NcclLog) -> list[AllReducePoint]:
    """The in-place times as points to fit; training reduces its gradients in place."""
    return [
        AllReducePoint(log.ranks_per_node, size, seconds) for size, seconds in log.in_place.items()
    ]


def profile(
    paths: Sequence[Path], name: str, gradient_bytes: int = 0, **provenance: Any
) -> Profile:
    """Make a profile from one log per placement.

    gradient_bytes: bytes of the gradient to simulate, which no log states; 0 for `GRADIENT`.
    provenance: fields of the profile to add or to replace.

    Raises `InputError` for another kind of log, and if the times do not determine the constants.
    """
    logs = read_all(paths)
    all_points = [point for log in logs for point in points(log)]
    large = [point for point in all_points if point.bytes >= LARGE] or all_points
    try:
        algorithm, errors = choose(large)
        shown = ", ".join(f"{each} {error:.1%}" for each, error in errors.items())
        note = f"over all placements; placements left out in turn: {shown}"
        fit = _fit(large, algorithm, note)
        single = [_fit(points(log), "ring", "over all sizes of one placement") for log in logs]
    except ValueError as error:
        raise InputError(
            f"{', '.join(map(str, paths))}: {error}; give logs of more sizes from 1 MiB on"
        ) from None
    origin = "as stated" if gradient_bytes else "that of ResNet-50, for no log tells it"
    size = f" --gradient-bytes {gradient_bytes}" if gradient_bytes else ""
    names = " ".join(path.name for path in paths)
    fields = {
        "name": name,
        "origin": "derived",
        "source": "nccl-tests: " + ", ".join(path.name for path in paths),
        "missing": MISSING,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"simstrag calibrate import nccl-tests {names}{size} --out {name}.json",
        "device": {
            "kind": "cuda",
            "model": logs[0].gpu,
            "gpus_per_node": {str(log.ranks): list(log.ranks_per_node) for log in logs},
        },
        "software": {},
    }
    return Profile(
        **(fields | provenance),
        allreduce=AllReduceTimes(
            alpha=fit.alpha,
            bandwidth=fit.bandwidth,
            intra_alpha=fit.intra_alpha,
            intra_bandwidth=fit.intra_bandwidth,
            bytes=Quantity(value=gradient_bytes or GRADIENT, kind="assumed", note=origin),
            overlap=Quantity(value=0, kind="assumed", note="measured without any backward"),
            algorithm=fit.algorithm,
            ranks=fit.ranks,
            smallest=fit.smallest,
            largest=fit.largest,
        ),
        collectives=tuple(
            CollectiveCell(
                backend="nccl",
                ranks=point.ranks,
                bytes=point.bytes,
                seconds=Quantity(
                    value=round_digits(point.seconds), kind="measured", note="in place, one run"
                ),
            )
            for point in all_points
        ),
        collective_fits=(*single, fit),
        held_out=tuple(each for each in (predict_placements(large),) if each is not None),
    )


def choose(points: Sequence[AllReducePoint]) -> tuple[Algorithm, dict[Algorithm, float]]:
    """The algorithm with the smallest median error, and the error of each that can be fitted.

    Errors are at placements left out in turn; with fewer than three placements, at sizes left out
    in turn.  Of algorithms with equal errors the first in `ALGORITHMS` is chosen.
    """
    few = len({point.ranks_per_node for point in points}) < 3
    medians: dict[Algorithm, float] = {}
    for algorithm in ALGORITHMS:
        errors = allreduce_fit.left_out_errors(
            points,
            lambda rest, of=algorithm: allreduce_fit.fit(rest, of).seconds,  # type: ignore[misc]
            (lambda p: p.bytes) if few else (lambda p: p.ranks_per_node),
        )
        if errors:
            medians[algorithm] = round(float(np.median([abs(error) for _, error in errors])), 6)
    if not medians:
        raise ValueError(f"{len(points)} times do not tell the constants of any algorithm")
    return min(medians, key=lambda a: medians[a]), medians


def predict_placements(points: Sequence[AllReducePoint]) -> HeldOut | None:
    """Predict each placement by an algorithm chosen and fitted without it."""

    def fitter(rest: Sequence[AllReducePoint]) -> TimePredictor:
        algorithm, _ = choose(rest)
        chosen.append(algorithm)
        return allreduce_fit.fit(rest, algorithm).seconds

    chosen: list[Algorithm] = []
    errors = allreduce_fit.left_out_errors(points, fitter, lambda p: p.ranks_per_node)
    predictions = [
        CellPrediction(
            MeasurementCell(
                "allreduce", backend="nccl", ranks=point.ranks, bytes=point.bytes, group="all"
            ),
            Quantity(value=round_digits(point.seconds), kind="measured"),
            (1 + error) * point.seconds,
        )
        for point, error in errors
    ]
    note = (
        f"every placement left out in turn, its times of {LARGE} bytes and more predicted by the "
        f"algorithm chosen and fitted without it ({', '.join(dict.fromkeys(chosen))}); the "
        "constants of this profile are of all placements, so that the error stated is of the method"
    )
    return summarize_errors("allreduce", predictions, note)


def read_all(paths: Sequence[Path]) -> list[NcclLog]:
    """Read several logs. Raises `InputError` for none, and for two of the same placement."""
    logs = [read(require_path(path)) for path in paths]
    if not logs:
        raise InputError("no log given; name one or more outputs of all_reduce_perf")
    seen: dict[tuple[int, ...], Path] = {}
    for path, log in zip(paths, logs, strict=True):
        placement = tuple(sorted(log.ranks_per_node))
        if placement in seen:
            raise InputError(
                f"{path}: has the same {log.ranks} GPUs on {len(placement)} nodes as "
                f"{seen[placement]}; give one log for each placement"
            )
        seen[placement] = path
    return logs


def _check_collective(where: str, algorithm: float, bus: float, ranks: int) -> None:
    """Raise `InputError` unless busbw over algbw is 2(n-1)/n, as it is for an all-reduce.

    No column names the collective.  Small values show nothing, because both columns have two digits
    after the point; nor do two GPUs, whose factor is 1 for every collective.
    """
    if ranks < 3 or algorithm < 1:
        return
    factor = 2 * (ranks - 1) / ranks
    if abs(bus / algorithm / factor - 1) > BUS:
        raise InputError(
            f"{where}: busbw is {bus / algorithm:.2f} times algbw, and {factor:.2f} for an "
            f"all-reduce over {ranks} GPUs; give a log of all_reduce_perf"
        )


def _fit(points: Sequence[AllReducePoint], algorithm: Algorithm, note: str) -> CollectiveFit:
    fit = allreduce_fit.fit(points, algorithm)
    return allreduce_fit.record(fit, points, "nccl", note, *INTERVAL_NOTES)
