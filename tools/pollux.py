"""T4 profiles derived from Pollux's measurements: steps against the batch, and synchronisation.

Their files give `step_time` and `sync_time`, the part of it that waits for the all-reduce, by
placement and local batch.  A step here is `step_time - sync_time` on one GPU.  The larger the
batch, the more of an all-reduce is hidden behind backward and missing in `sync_time`; so constants
are of the smallest batch, where the least is hidden.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simstrag.calibration.fits import allreduce_fit
from simstrag.calibration.fits.allreduce_fit import AllReduceFit, AllReducePoint
from simstrag.calibration.fits.law_fits import choose_batch_law
from simstrag.calibration.fits.visit_statistics import CellEstimate, fitted_quantity, round_digits
from simstrag.errors import InputError
from simstrag.profile.measurements import BatchFit, StepCell
from simstrag.profile.profile import AllReduceTimes, MeasuredWorkload, Profile, StepTimes
from simstrag.profile.quantity import Quantity

APPLICATIONS = {
    "bert": ("BERT-base", 109_483_778),
    "imagenet": ("ResNet-50", 25_557_032),
    "cifar10": ("ResNet-18", 11_173_962),
}
"""Folder to model and its parameters: of the models themselves, no file states them."""

FEW = 8
"""GPUs up to which placements are fitted when the larger ones are predicted."""

SOURCE = "petuum/adaptdl, branch osdi21-artifact @c793c70 (Apache-2.0): placements.csv, 4 T4 a node"

EXPOSED = "of what backward did not hide, over all placements; interval by the residuals"

JobRow = tuple[tuple[int, ...], int, float, float]


def t4(traces: Path, application: str) -> Profile:
    """One application of `pollux` in a folder of public traces."""
    rows = read(traces / "pollux" / application / "placements.csv")
    model, parameters = APPLICATIONS[application]
    alone = {batch: step - sync for nodes, batch, step, sync in rows if nodes == (1,)}
    batches = sorted(alone)
    nominal = batches[len(batches) // 2]
    points = synchronisation_points(rows, 4 * parameters)
    small = _constants(fit_synchronisation(points))
    few, errors = predict_larger(points)
    return Profile(
        name=f"t4-pollux-{application}",
        origin="derived",
        source=SOURCE,
        missing=(
            "reduced precision, and which precision was used (fp32 is assumed)",
            "noise of steps, host share",
            "response to contention",
            "parameter server",
            "size of the gradient, taken from the model",
        ),
        note="Synchronisation on two nodes takes longer than on three in the source, which no "
        f"formula here follows. Constants of up to {FEW} GPUs ({len(points) - len(errors)} "
        f"placements, ring, {few}) predict the {len(errors)} larger placements with a median "
        f"error of {np.median(errors):.1%}, worst {np.max(errors):.1%}; at larger batches backward "
        "hides more, and errors are larger.",
        date="2026-11-21",
        command=f"python -m tools.public_profiles t4-pollux-{application} TRACES "
        f"--out t4-pollux-{application}.json",
        device={"kind": "cuda", "model": "T4", "gpus_per_node": 4},
        software={},
        workload=MeasuredWorkload(
            name=model, parameters=parameters, batch=nominal, full="fp32", amp="", stand_in=False
        ),
        step=StepTimes(
            compute=_measured(alone[nominal], "step_time - sync_time on one GPU"),
            host_share=Quantity(value=0, kind="assumed", note="not in the source"),
            amp_switch=Quantity(value=0, kind="assumed", note="not in the source"),
        ),
        allreduce=AllReduceTimes(
            **small,
            bytes=Quantity(value=4 * parameters, kind="assumed", note="4 bytes per parameter"),
            overlap=Quantity(
                value=0, kind="assumed", note="sync_time is without what backward hid"
            ),
            ranks=tuple(sorted({point.ranks for point in points})),
            smallest=4 * parameters,
            largest=4 * parameters,
        ),
        cells=tuple(
            StepCell(
                precision="fp32", batch=batch, seconds=_measured(alone[batch], "one value"),
                mean=_measured(alone[batch], "one value"),
            )
            for batch in batches
        ),
        batches=(_batch_fit(batches, [alone[batch] for batch in batches]),),
        recordings={"sync_seconds_at_the_smallest_batch": _table(points)},
    )  # fmt: skip


def synchronisation_points(rows: Sequence[JobRow], size: int) -> list[AllReducePoint]:
    """`sync_time` of every placement of several GPUs at its smallest batch, as an all-reduce."""
    least: dict[tuple[int, ...], tuple[int, float]] = {}
    for nodes, batch, _, sync in rows:
        if sum(nodes) > 1 and (nodes not in least or batch < least[nodes][0]):
            least[nodes] = batch, sync
    return [AllReducePoint(nodes, size, sync) for nodes, (_, sync) in least.items()]


def fit_synchronisation(points: Sequence[AllReducePoint]) -> AllReduceFit:
    """A ring without hops: all points have one size, which does not tell a hop from bandwidth."""
    return allreduce_fit.fit(points, "ring", hops=False)


def predict_larger(points: Sequence[AllReducePoint]) -> tuple[str, list[float]]:
    """Constants of placements of up to `FEW` GPUs, in words, and errors at all larger ones."""
    few = [point for point in points if point.ranks <= FEW]
    larger = [point for point in points if point.ranks > FEW]
    law = fit_synchronisation(few)
    assert law.intra_bandwidth is not None
    words = f"{law.intra_bandwidth / 1e9:.3g} GB/s inside a node, {law.bandwidth / 1e9:.3g} between"
    return words, [abs(error) for error in law.residuals(larger)]


def read(path: Path) -> list[JobRow]:
    """GPUs of each node, local batch, step_time and sync_time of each row.

    Raises `InputError` for a file of something else.
    """
    try:
        with path.open(newline="") as file:
            return [
                (tuple(map(int, row["placement"])), int(row["local_bsz"]),
                 float(row["step_time"]), float(row["sync_time"]))
                for row in csv.DictReader(file)
            ]  # fmt: skip
    except OSError as error:
        raise InputError(f"{path}: cannot read the placements: {error.strerror}") from None
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: is no table of placements of Pollux: {error}") from None


def _measured(value: float, note: str) -> Quantity:
    return Quantity(value=round_digits(value), kind="measured", n=1, note=note)


def _constants(law: AllReduceFit) -> dict[str, Quantity]:
    assert law.intra_bandwidth is not None
    zero = Quantity(value=0, kind="assumed", note="one size does not tell it from bandwidth")
    constants = {"alpha": zero, "intra_alpha": zero}
    for name in ("bandwidth", "intra_bandwidth"):
        constants[name] = fitted_quantity(
            getattr(law, name), EXPOSED, (law.low[name], law.high[name])
        )
    return constants


def _batch_fit(batches: Sequence[int], seconds: Sequence[float]) -> BatchFit:
    single = [CellEstimate(value, float("inf"), None, None, 1) for value in seconds]
    law = choose_batch_law(batches, single)
    note = "of one value per batch, so without an interval"

    return BatchFit(
        precision="fp32",
        law=law.law,
        fixed=fitted_quantity(law.constants["fixed"], note),
        per_sample=fitted_quantity(law.constants["per_sample"], note),
        knee=fitted_quantity(law.constants["knee"], note) if law.law == "knee" else None,
        fitted=tuple(batches),
        errors={name: round_digits(error) for name, error in law.errors.items()},
    )


def _table(points: Sequence[AllReducePoint]) -> dict[str, float]:
    """By placement, as the source writes it: GPUs of each node."""
    return {"".join(map(str, p.ranks_per_node)): round_digits(p.seconds) for p in points}
