"""The numbers of a profile, each with its origin, its interval and what it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simstrag.calibration import estimate
from simstrag.calibration.recording import Floats, Recording

__all__ = ["allreduce_part", "quantity", "server_part", "short", "step_part"]

Quantity = dict[str, Any]


def quantity(
    value: float,
    kind: str,
    note: str,
    interval: tuple[float, float] | None = None,
    n: int | None = None,
) -> Quantity:
    """One number of a profile: its origin (measured, fitted, assumed) and its 95 % interval."""
    low, high = interval or (None, None)
    return {
        "value": short(value),
        "kind": kind,
        "low": None if low is None else short(low),
        "high": None if high is None else short(high),
        "n": n,
        "note": note,
    }


def step_part(recording: Recording) -> dict[str, Any]:
    """Seconds of a clean step, its noise, and what reduced precision gains."""
    series = recording.series
    full = [estimate.clean(each) for each in series]
    amp = [estimate.clean(each, amp=True) for each in series]
    pooled = np.concatenate(full)
    median = float(np.median(pooled))
    count = len(pooled)
    by_series = "interval: bootstrap over series"
    return {
        "compute": quantity(
            float(pooled.mean()),
            "measured",
            f"mean of clean full-precision steps (noise has mean 1); their median is {median:.6g}; "
            f"{by_series}",
            estimate.bootstrap(lambda groups: float(np.concatenate(groups).mean()), full),
            count,
        ),
        "host_share": quantity(
            0.0,
            "assumed",
            "not measured: the gain of reduced precision is of the whole step, so all of it is "
            "booked as gpu",
        ),
        "amp_ratio": amp_ratio(full, amp),
        "amp_ratio_contended": amp_ratio_contended(recording),
        "amp_switch": amp_switch(recording),
        "noise": {
            "kind": "measured",
            "quantiles": [short(value) for value in estimate.noise_quantiles(full)],
            "n": count,
            "lag1_autocorrelation": round(estimate.lag1(series), 4),
            "note": "clean full-precision steps, each divided by its own series' mean; contended "
            "steps are in the trace only. Successive steps are correlated as stated; simulated "
            "draws are independent and do not honour that",
        },
    }


def amp_ratio(full: Sequence[Floats], amp: Sequence[Floats]) -> Quantity:
    """Median clean full step / median clean amp step."""
    both = list(zip(full, amp, strict=True))

    def ratio(groups: list[tuple[Floats, Floats]]) -> float:
        slow, fast = _medians(groups)
        return slow / fast

    each = [float(np.median(f) / np.median(a)) for f, a in zip(full, amp, strict=True)]
    return quantity(
        ratio(both),
        "measured",
        "median clean full step / median clean amp step, blocks of the two in turn; "
        f"single series {min(each):.3f} to {max(each):.3f}; interval: bootstrap over series",
        estimate.bootstrap(ratio, both),
        sum(map(len, full)) + sum(map(len, amp)),
    )


def amp_ratio_contended(recording: Recording) -> Quantity:
    """The same inside episodes: per episode, then the median over episodes."""
    found = [e for series in recording.series for e in estimate.episodes(series)]
    ratios = [e.amp_ratio for e in found if e.foreign <= estimate.FOREIGN_LIMIT]
    return quantity(
        float(np.median(ratios)),
        "measured",
        f"per episode median full / median amp, then the median over {len(ratios)} episodes; "
        f"single episodes {min(ratios):.3f} to {max(ratios):.3f}; interval: bootstrap over "
        f"episodes; {len(found) - len(ratios)} episodes with undeclared load above "
        f"{estimate.FOREIGN_LIMIT:.0%} of the core left out",
        _median_interval(ratios),
        len(ratios),
    )


def amp_switch(recording: Recording) -> Quantity:
    """Mean over the two directions of what a first step takes beyond the next ones."""

    def by_direction(to_amp: bool) -> list[Floats]:
        return [estimate.switch_seconds(series, to_amp) for series in recording.series]

    to_amp, to_full = by_direction(True), by_direction(False)
    both = list(zip(to_amp, to_full, strict=True))

    def value(groups: list[tuple[Floats, Floats]]) -> float:
        return sum(_medians(groups)) / 2

    medians = _medians(both)
    low, high = estimate.bootstrap(value, both)
    return quantity(
        max(0.0, value(both)),
        "measured",
        "first step after a change minus the median of its block's others, clean blocks; medians "
        f"{1e3 * medians[0]:+.2f} ms to amp and {1e3 * medians[1]:+.2f} ms to full; value: their "
        "mean, 0 where that is negative; interval: bootstrap over series",
        (max(0.0, low), max(0.0, high)),
        sum(map(len, to_amp)) + sum(map(len, to_full)),
    )


def allreduce_part(samples: dict[int, Floats], communication: dict[str, Any]) -> dict[str, Any]:
    """The ring's constants, fitted at n = 2."""
    gradient_bytes = communication["gradient_bytes"]
    alpha, bandwidth = estimate.ring_fit(samples, gradient_bytes)
    shown = "; ".join(
        f"{size} B: {1e3 * np.median(times):.3f} [{1e3 * np.quantile(times, 0.1):.3f} to "
        f"{1e3 * np.quantile(times, 0.9):.3f}] ms, formula "
        f"{1e3 * (2 * alpha + size / bandwidth):.3f}"
        for size, times in sorted(samples.items())
    )
    draws = _refits(samples, gradient_bytes)
    count = sum(map(len, samples.values()))
    source = (
        "two gloo processes over loopback, T = 2*alpha + bytes/bandwidth, exact at the smallest "
        f"size and the gradient's; median [p10 to p90] against the formula: {shown}. Other world "
        "sizes are an extrapolation by the ring formula (assumed); "
        f"{_load(communication, 'allreduce')}"
    )
    return {
        "alpha": quantity(alpha, "fitted", source, _interval(draws[:, 0]), count),
        "bandwidth": quantity(
            bandwidth,
            "fitted",
            "bytes per second, of the same fit as alpha",
            _interval(draws[:, 1]),
            count,
        ),
        "bytes": quantity(gradient_bytes, "measured", "4 bytes per parameter"),
        "overlap": quantity(0.0, "assumed", "measured without any backward to hide behind"),
    }


def server_part(rows: Floats, communication: dict[str, Any]) -> dict[str, Any]:
    """Medians of push, service and pull."""
    meanings = {
        "push": "gradient there to first byte readable at the server: flatten and begin to send",
        "service": "first byte to reply handed over: receive, apply, send the parameters",
        "pull": "reply handed over to parameters in place",
    }
    part = {}
    for k, name in enumerate(("push", "service", "pull")):
        low, high = np.quantile(rows[:, k], [0.1, 0.9]) * 1e3
        part[name] = quantity(
            float(np.median(rows[:, k])),
            "measured",
            f"{meanings[name]}; median, p10 {low:.3f} ms, p90 {high:.3f} ms; TCP over loopback, "
            f"one worker; {_load(communication, 'server')}",
            _median_interval(rows[:, k]),
            len(rows),
        )
    return {name: part[name] for name in ("service", "push", "pull")}


def _load(communication: dict[str, Any], part: str) -> str:
    share = communication["foreign_load"][part]
    return f"other processes took {share:.1%} of all cores meanwhile"


def _refits(samples: dict[int, Floats], gradient_bytes: int, rounds: int = 1000) -> Floats:
    rng = np.random.default_rng(0)
    drawn = (
        {size: rng.choice(times, len(times)) for size, times in samples.items()}
        for _ in range(rounds)
    )
    return np.array([estimate.ring_fit(each, gradient_bytes) for each in drawn])


def _medians(groups: list[tuple[Floats, Floats]]) -> tuple[float, float]:
    first, second = (np.concatenate(arrays) for arrays in zip(*groups, strict=True))
    return float(np.median(first)), float(np.median(second))


def _median_interval(values: Sequence[float] | Floats) -> tuple[float, float]:
    return estimate.bootstrap(lambda drawn: float(np.median(drawn)), list(values))


def _interval(draws: Floats) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def short(value: float) -> float:
    return float(f"{value:.6g}")
