"""A profile with something in each of its parts, of made-up numbers that laws and seeds give."""

from __future__ import annotations

from typing import Any

import numpy as np

from simstrag.profile.profile import Profile

__all__ = ["full_profile", "quantity", "without"]

FIXED, PER_SAMPLE = {"fp32": 0.004, "bf16": 0.003}, {"fp32": 0.0055, "bf16": 0.0031}
BATCHES, BATCHES_HELD_OUT = (1, 2, 4, 8, 16), (4, 16)
LEVELS, LEVELS_HELD_OUT = (0.25, 0.5, 1.0, 2.0, 3.0), (0.5, 3.0)
SLOPES = {
    ("cpu", "fp32"): 0.9,
    ("cpu", "bf16"): 0.8,
    ("memory", "fp32"): 0.3,
    ("memory", "bf16"): 0.4,
}
SIZES, SIZES_HELD_OUT = (1024, 32768, 1 << 20, 4 << 20, 16 << 20, 64 << 20), (4 << 20, 64 << 20)
ALPHA, BANDWIDTH = 8e-5, 1.6e9


def quantity(value: float, width: float = 0.02, kind: str = "measured") -> dict[str, Any]:
    """width: of half of its interval, over the value."""
    reach = width * abs(value)
    return {"value": value, "kind": kind, "low": value - reach, "high": value + reach, "n": 400}


def full_profile(seed: int = 0, noise: float = 0.005, **changes: Any) -> Profile:
    """noise: standard deviation of what seeds add, relative. changes: of whole fields."""
    rng = np.random.default_rng(seed)

    def near(value: float) -> dict[str, Any]:
        return quantity(value * float(np.exp(noise * rng.normal())), 1.96 * max(noise, 0.005))

    return Profile.model_validate(_provenance() | _steps(near) | _communication(near) | changes)


def without(profile: Profile, *parts: str, **changes: Any) -> Profile:
    """The same without some of its fields, and with some changed."""
    data = profile.model_dump(mode="json", exclude=set(parts))
    return Profile.model_validate(data | changes)


def _provenance() -> dict[str, Any]:
    return {
        "name": "a-cpu-encoder",
        "date": "2026-11-21",
        "command": "simstrag calibrate --workload encoder",
        "commit": "0123456789abcdef",
        "device": {"kind": "cpu", "model": "A Processor", "cores": 2, "memory_gib": 23.5},
        "software": {"python": "3.11.7", "torch": "2.13.0+cpu"},
        "workload": {
            "name": "encoder", "parameters": 1_595_968, "batch": 8, "full": "fp32", "amp": "bf16",
            "stand_in": False,
        },
        "skipped": [{"cell": "step fp32 batch 4096", "reason": "out of memory at this batch"}],
        "samples": {"samples.parquet": "0" * 64},
    }  # fmt: skip


def _steps(near: Any) -> dict[str, Any]:
    quantiles = np.exp(np.linspace(-0.05, 0.07, 101))
    quantiles /= (quantiles[1:] + quantiles[:-1]).mean() / 2
    noise = {"kind": "measured", "quantiles": quantiles.tolist(), "n": 400,
             "lag1_autocorrelation": 0.21}  # fmt: skip
    cells = [
        {
            "precision": precision, "batch": batch, "held_out": batch in BATCHES_HELD_OUT,
            "seconds": near(FIXED[precision] + PER_SAMPLE[precision] * batch),
            "mean": near(1.01 * (FIXED[precision] + PER_SAMPLE[precision] * batch)),
            "update": near(0.0007), "peak_bytes": 40_000_000 + 3_000_000 * batch,
            "host_share": quantity(0.1), "noise": noise,
        }
        for precision in FIXED for batch in BATCHES
    ]  # fmt: skip
    fits = [
        {
            "precision": precision, "law": "affine",
            "fixed": quantity(FIXED[precision], kind="fitted"),
            "per_sample": quantity(PER_SAMPLE[precision], kind="fitted"),
            "fitted": [b for b in BATCHES if b not in BATCHES_HELD_OUT],
            "held_out": BATCHES_HELD_OUT, "errors": {"affine": 0.011, "proportional": 0.19},
        }
        for precision in FIXED
    ]  # fmt: skip
    responses = [
        {
            "resource": "gpu", "load": load, "precision": precision, "batch": 8, "law": "linear",
            "constants": {"slope": quantity(slope, kind="fitted")},
            "levels": [
                {"level": u, "slowdown": near(1 + slope * u), "held_out": u in LEVELS_HELD_OUT}
                for u in LEVELS
            ],
            "errors": {"linear": 0.02, "constant": 0.4},
        }
        for (load, precision), slope in SLOPES.items()
    ]  # fmt: skip
    held_out = {
        "part": "step", "threshold": 0.05, "median": 0.01, "worst": 0.02,
        "cells": [{"cell": "step fp32 batch 16", "measured": quantity(0.092),
                   "predicted": 0.0911, "error": -0.0098}],
    }  # fmt: skip
    return {
        "step": {
            "compute": near(0.0485), "host_share": quantity(0.1), "amp_ratio": near(1.72),
            "amp_switch": quantity(0.0012), "noise": noise,
        },
        "cells": cells, "batches": fits, "responses": responses, "held_out": [held_out],
        "learning": [
            {"trained": 8000 * k, "batch": 8, "scale": quantity(120.0 * 2**k, 0.2)}
            for k in range(5)
        ],
        "amp_ratios": [
            {"model": "encoder", "full": "fp32", "amp": "bf16", "batch": 8, "ratio": near(1.72),
             "source": "this profile"}
        ],
    }  # fmt: skip


def _communication(near: Any) -> dict[str, Any]:
    def seconds(ranks: int, size: int) -> float:
        return 2 * (ranks - 1) * ALPHA + 2 * (ranks - 1) / ranks * size / BANDWIDTH

    alone = [
        {"backend": "gloo", "ranks": ranks, "bytes": size, "seconds": near(seconds(ranks, size)),
         "oversubscribed": ranks > 2, "held_out": size in SIZES_HELD_OUT}
        for ranks in (2, 4) for size in SIZES
    ]  # fmt: skip
    beside = [
        {"backend": "gloo", "ranks": 2, "bytes": size, "load": "cpu", "level": 1.0,
         "seconds": near(1.8 * seconds(2, size))}
        for size in SIZES[2:4]
    ]  # fmt: skip
    fit = {
        "backend": "gloo", "ranks": [2], "smallest": SIZES[0], "largest": SIZES[-2],
        "alpha": quantity(ALPHA, kind="fitted"), "bandwidth": quantity(BANDWIDTH, kind="fitted"),
        "residuals": [
            {"ranks": 2, "bytes": cell["bytes"],
             "error": seconds(2, cell["bytes"]) / cell["seconds"]["value"] - 1}
            for cell in alone[: len(SIZES)] if not cell["held_out"]
        ],
    }  # fmt: skip
    return {
        "allreduce": {
            "alpha": quantity(ALPHA, kind="fitted"), "overlap": quantity(0.4),
            "bandwidth": quantity(BANDWIDTH, kind="fitted"),
            "bytes": {"value": 4 * 1_595_968, "kind": "measured"},
        },
        "server": {"service": near(0.003), "push": near(0.001), "pull": near(0.002)},
        "collectives": alone + beside,
        "collective_fits": [fit],
        "transfers": [
            {"bytes": size, "push": near(0.8e-9 * size), "service": near(1.5e-9 * size),
             "pull": near(0.9e-9 * size)}
            for size in SIZES[2:]
        ],
        "locksteps": [
            {"ranks": 2, "precision": "fp32", "batch": 8, "bytes": 6_383_872,
             "rest": near(0.004), "slowdown": near(1.02), "interference": near(1.01)},
            {"ranks": 2, "precision": "fp32", "batch": 8, "bytes": 6_383_872, "load": "cpu",
             "level": 1.0, "rest": near(0.007), "slowdown": near(1.9)},
        ],
        "overlaps": [
            {"backend": "gloo", "ranks": 2, "precision": "fp32", "batch": 8, "bytes": 6_383_872,
             "overlap": near(0.4)}
        ],
    }  # fmt: skip
