"""Samples of a machine that is known: laws, drift between visits, noise that lasts over steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simstrag.calibration.cells import MeasurementCell, Visit
from simstrag.calibration.fits.held_out import choose_held_out
from simstrag.calibration.samples import FORMAT, Samples

__all__ = ["Machine", "cells_of", "samples_of"]

BATCHES = (1, 2, 4, 8, 16, 32)
LEVELS = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)
SIZES = (1 << 10, 1 << 16, *(1 << k for k in range(20, 27)))
GRADIENT = 6 << 20
SHARE_HIDDEN = 0.3
REST = 0.003
NOISE_SCALE = 40.0


@dataclass(frozen=True)
class Machine:
    """What is true of it. step: seconds by batch of each precision.  slowdown: by level of a load.

    drift: between visits.  cv, lag: of steps within one.
    """

    step: Mapping[str, Callable[[int], float]] = field(
        default_factory=lambda: {
            "fp32": lambda b: 0.010 + 0.002 * b, "bf16": lambda b: 0.008 + 0.0012 * b,
        }
    )  # fmt: skip
    slowdown: Mapping[str, Callable[[float], float]] = field(
        default_factory=lambda: {"cpu": lambda u: 1 + 1.1 * u, "memory": lambda u: 1 + 0.3 * u}
    )
    alpha: float = 1e-4
    bandwidth: float = 1e9
    drift: float = 0.01
    cv: float = 0.03
    lag: float = 0.4
    kind: str = "cpu"

    def steps(self, rng: np.random.Generator, seconds: float, n: int = 60) -> tuple[float, ...]:
        """Steps of one visit: autocorrelated noise about a mean that drifted."""
        factor, e = np.exp(self.drift * rng.normal()), rng.normal(size=n)
        for k in range(1, n):
            e[k] = self.lag * e[k - 1] + np.sqrt(1 - self.lag**2) * e[k]
        return tuple((seconds * factor * np.exp(self.cv * e)).tolist())

    def visit(
        self, rng: np.random.Generator, cell: MeasurementCell
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Samples and facts of one visit to a cell."""
        if cell.part == "step":
            seconds = self.step[cell.precision](cell.batch)
            samples = {"seconds": seconds, "update": 0.001, "host": 0.2 * seconds}
            facts = {"peak_bytes": 1000 * cell.batch, "host_share": 0.1}
            return {k: self.steps(rng, s) for k, s in samples.items()}, facts
        if cell.part == "contention":
            clean = self.step[cell.precision](cell.batch) * float(np.exp(self.drift * rng.normal()))
            still = Machine(drift=0.0, cv=self.cv, lag=self.lag)
            slowed = clean * self.slowdown[cell.load](cell.level)
            samples = {"clean": clean, "seconds": slowed}
            return {k: still.steps(rng, s) for k, s in samples.items()}, {}
        if cell.part == "allreduce":
            n = cell.ranks
            seconds = 2 * (n - 1) * self.alpha + 2 * (n - 1) / n * cell.bytes / self.bandwidth
            return {"seconds": self.steps(rng, seconds)}, {"oversubscribed": n > 2}
        return self._other(rng, cell)

    def _other(
        self, rng: np.random.Generator, cell: MeasurementCell
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if cell.part == "overlap":
            parts = {"compute": 0.05, "apart": 0.07, "together": 0.05 + (1 - SHARE_HIDDEN) * 0.02}
            still = Machine(drift=0.0, cv=0.001)
            return {k: still.steps(rng, s) for k, s in parts.items()}, {"bytes": GRADIENT}
        if cell.part == "lockstep":
            still = replace(self, drift=0.0)
            clean, local = (
                tuple(
                    s for rank in range(cell.ranks)
                    for s in still.steps(rng, 0.025 * (slower if rank % 2 == 0 else 1.0))
                )
                for slower in (1.0, 1 + 0.9 * cell.level)
            )  # fmt: skip
            rest = self.steps(rng, REST * (1 + cell.level))
            if cell.load:
                return {"clean": clean, "local": local, "rest": rest}, {"cores": 2}
            bare = {"alone": still.steps(rng, 0.02), "beside": still.steps(rng, 0.022)}
            return bare | {"local": local, "rest": rest}, {"cores": 2}
        if cell.part == "server":
            seconds = cell.bytes / self.bandwidth
            parts = {"push": 0.1 * seconds, "service": seconds, "pull": 0.2 * seconds}
            return {k: self.steps(rng, s) for k, s in parts.items()}, {}
        small, large, signal = 8, 64, 2.0
        norms = {
            name: tuple(
                (signal + NOISE_SCALE * signal / b * rng.chisquare(200, 400) / 200).tolist()
            )
            for name, b in (("small", small), ("large", large))
        }
        return norms, {"small_batch": small, "large_batch": large, "trained": 0}


def cells_of(machine: Machine, batches: Sequence[int] = BATCHES) -> list[MeasurementCell]:
    """Steps, contention at batch 8, all-reduces of 2 and 4 ranks, overlap, server, gradient."""
    return [
        *(MeasurementCell("step", precision=p, batch=b) for p in machine.step for b in batches),
        *(
            MeasurementCell("contention", precision=p, batch=8, load=load, level=u)
            for p in machine.step for load in machine.slowdown for u in LEVELS
        ),
        *(
            MeasurementCell("allreduce", backend="gloo", ranks=n, bytes=size, group="all")
            for n in (2, 4) for size in SIZES
        ),
        MeasurementCell("overlap", backend="gloo", ranks=2, precision="fp32", batch=8),
        *(MeasurementCell("server", bytes=size) for size in (1 << 20, 1 << 24)),
        MeasurementCell("gradient", batch=8),
    ]  # fmt: skip


def samples_of(
    machine: Machine, cells: Sequence[MeasurementCell] | None = None, visits: int = 5, seed: int = 0
) -> Samples:
    """Rounds over all cells, as a campaign goes."""
    rng = np.random.default_rng(seed)
    cells = cells_of(machine) if cells is None else cells
    found = []
    for number in range(visits):
        for cell in cells:
            samples, facts = machine.visit(rng, cell)
            if cell.part == "gradient":
                facts |= {"trained": 1000 * number}
            found.append(Visit(cell, number, float(number), samples, facts))
    return Samples(_header(machine, cells), tuple(found))


def _header(machine: Machine, cells: Sequence[MeasurementCell]) -> dict[str, Any]:
    return {
        "format": FORMAT, "name": "a-machine", "date": "2026-11-21",
        "command": "simstrag calibrate", "commit": "abc",
        "device": {"kind": machine.kind}, "software": {"torch": "2.13"},
        "workload": {
            "name": "encoder", "parameters": GRADIENT // 4, "gradient_bytes": GRADIENT,
            "nominal_batch": 8, "full": "fp32", "amp": "bf16", "stand_in": False,
            "real_data": False, "batches": list(BATCHES),
        },
        "plan": {"held_out": [cell.document for cell in choose_held_out(cells)]},
    }  # fmt: skip
