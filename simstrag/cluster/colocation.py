"""Slowdowns of workers on one device, by sensitivities and pressures fitted to measured pairs.

A worker that uses its device for the share b of its time alone takes, beside others j,

    max(1, b + sensitivity * sum(pressure_j * b_j))

times as long.  With all sensitivities and pressures at 1 that is time slicing.  Two numbers of each
workload instead of one of each pair, as in Mars et al., "Bubble-Up", MICRO 2011; the product is
ours.  More than two workers are not measured: that pressures add up is assumed.

K80, P100 and V100 are fitted to pairs that Gavel measured (Narayanan et al., OSDI 2020;
stanford-futuredata/gavel @c4fa400, physical_cluster_throughputs.json, MIT).  Busy shares are not in
the data; every job there counts as always busy.  `docs/cluster.md` holds the errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simstrag.arrays import Floats

RIDGE = 0.1
"""Weight of a logarithm of a sensitivity or pressure beside an error of relative speed."""


@dataclass(frozen=True, slots=True)
class Colocated:
    """The response of a workload to others on its device.

    sensitivity: how much a given pressure slows it.
    pressure: how much it slows others while it is busy.
    """

    sensitivity: float = 1.0
    pressure: float = 1.0


@dataclass(frozen=True, slots=True)
class ColocationLaw:
    """The law by which workers on one device slow each other.

    source: of the measurements; "assumed" without any.
    typical: the response of a workload that is not in `workloads`.
    workloads: responses by name.
    held_out_error: mean absolute error of relative speeds in pairs with an unseen batch size.
    """

    name: str
    source: str = "assumed"
    typical: Colocated = Colocated()
    workloads: Mapping[str, Colocated] = field(default_factory=dict)
    held_out_error: float | None = None

    def response(self, workload: str | None) -> Colocated:
        """The response of a workload; the typical one if there is none of this name."""
        return self.workloads.get(workload, self.typical) if workload else self.typical


def colocated_slowdowns(
    busy: Floats, law: ColocationLaw, workloads: Sequence[str | None] | None = None
) -> Floats:
    """By how much the workers of one device are slowed, at least 1.

    busy: the share of the time for which each worker would use the device alone.
    workloads: names in `law.workloads`; all are typical if left out.

    >>> colocated_slowdowns(np.array([0.5, 0.75]), TIME_SLICES)
    array([1.25, 1.25])
    >>> colocated_slowdowns(np.array([1.0, 1.0]), K80, ["ResNet-50", "Recommendation"]).round(2)
    array([1.69, 3.93])
    """
    names = [None] * len(busy) if workloads is None else workloads
    responses = [law.response(name) for name in names]
    sensitivities = np.array([r.sensitivity for r in responses])
    load = busy * np.array([r.pressure for r in responses])
    slowed: Floats = np.maximum(busy + sensitivities * (load.sum() - load), 1.0)
    return slowed


def fit(measured: Iterable[tuple[str, str, float]]) -> dict[str, Colocated]:
    """Responses of always busy workloads by least squares of relative speeds.

    measured: a workload, the one beside it, and its speed there over its speed alone.

    A workload with few measurements stays near time slicing (`RIDGE`).

    >>> found = fit([("a", "b", 0.4), ("b", "a", 0.6), ("a", "a", 0.5), ("b", "b", 0.5)])["a"]
    >>> round(found.sensitivity, 2), round(found.pressure, 2)
    (1.21, 0.83)
    """
    from scipy.optimize import least_squares

    rows = list(measured)
    names = sorted({name for row in rows for name in row[:2]})
    number = {name: k for k, name in enumerate(names)}
    own = np.array([number[row[0]] for row in rows])
    other = np.array([number[row[1]] for row in rows]) + len(names)
    speeds = np.array([row[2] for row in rows])

    measurement = np.arange(len(rows))

    def predict(logs: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(logs[own] + logs[other])))

    def residuals(logs: Floats) -> Floats:
        return np.append(predict(logs) - speeds, RIDGE * logs)

    def slopes(logs: Floats) -> Floats:
        predicted = predict(logs)
        of_speeds = np.zeros((len(rows), len(logs)))
        of_speeds[measurement, own] = of_speeds[measurement, other] = predicted * (predicted - 1)
        return np.append(of_speeds, RIDGE * np.eye(len(logs)), axis=0)

    logs = least_squares(residuals, np.zeros(2 * len(names)), slopes).x
    numbers = np.exp(logs).reshape(2, -1).T.tolist()
    return {name: Colocated(*pair) for name, pair in zip(names, numbers, strict=True)}


def typical(measured: Iterable[tuple[str, str, float]]) -> Colocated:
    """The response by which two such workloads run at the mean of the measured relative speeds.

    >>> typical([("a", "b", 0.3), ("b", "a", 0.7)])
    Colocated(sensitivity=1.0, pressure=1.0)
    """
    both = float(np.sqrt(1 / np.mean([row[2] for row in measured]) - 1))
    return Colocated(both, both)


_GAVEL = "stanford-futuredata/gavel @c4fa400, MIT"

TIME_SLICES = ColocationLaw("time slices")
K80 = ColocationLaw(
    "K80", _GAVEL, Colocated(1.07, 1.07), held_out_error=0.070,
    workloads={
        "A3C": Colocated(0.84, 1.51), "CycleGAN": Colocated(0.78, 1.30),
        "LM": Colocated(1.13, 0.84), "Recommendation": Colocated(2.36, 0.68),
        "ResNet-18": Colocated(0.88, 1.15), "ResNet-50": Colocated(1.02, 1.24),
        "Transformer": Colocated(1.05, 1.03),
    },
)  # fmt: skip
P100 = ColocationLaw(
    "P100", _GAVEL, Colocated(1.00, 1.00), held_out_error=0.062,
    workloads={
        "A3C": Colocated(0.64, 1.24), "CycleGAN": Colocated(0.84, 1.29),
        "LM": Colocated(1.26, 0.72), "Recommendation": Colocated(5.12, 0.46),
        "ResNet-18": Colocated(0.79, 1.19), "ResNet-50": Colocated(0.59, 1.57),
        "Transformer": Colocated(0.68, 1.12),
    },
)  # fmt: skip
V100 = ColocationLaw(
    "V100", _GAVEL, Colocated(0.93, 0.93), held_out_error=0.116,
    workloads={
        "A3C": Colocated(0.85, 0.78), "CycleGAN": Colocated(0.87, 1.09),
        "LM": Colocated(0.61, 0.85), "Recommendation": Colocated(19.54, 0.71),
        "ResNet-18": Colocated(0.22, 0.78), "ResNet-50": Colocated(0.99, 3.17),
        "Transformer": Colocated(0.54, 0.80),
    },
)  # fmt: skip
LAWS = {law.name: law for law in (TIME_SLICES, K80, P100, V100)}
