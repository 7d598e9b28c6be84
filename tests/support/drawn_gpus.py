"""Drawn logs of `nvidia-smi` of one host: clean ones, and ones with a card that is throttled."""

from __future__ import annotations

import numpy as np

CARDS, SAMPLES, SECONDS = 4, 120, 5
BOOST, IDLE_CLOCK, UNIT = 1980, 345, 15
"""MHz: of a card at full speed, of an idle one, and of the steps of a clock."""
HEADER = (
    "timestamp, index, utilization.gpu [%], clocks.current.sm [MHz], power.draw [W], "
    "clocks_event_reasons.active"
)
REASONS = {"software thermal slowdown": 0x20, "power cap": 0x4, "power brake": 0x88}


def draw(seed: int, slowdown: float = 1.0) -> tuple[str, int, str, tuple[float, float]]:
    """The text of a log; with a slowdown, also the card, the reason and when it is throttled.

    Clocks jitter by up to 2 %, cards differ by up to 1 %, all wait for data at times (idle, with
    low clocks), half of the logs have a power cap that comes and goes, and 1 sample in 50 falls in
    a gap between kernels.
    """
    rng = np.random.default_rng(seed)
    shape = (SAMPLES, CARDS)
    clock = BOOST * (1 - rng.uniform(0, 0.01, CARDS)) * (
        1 + rng.normal(0, rng.uniform(0.002, 0.02), shape)
    )  # fmt: skip
    busy = rng.integers(92, 101, shape)
    masks = np.where(rng.random(shape) < rng.choice([0.0, 0.5]), 0x4, 0)
    start, length = (
        int(rng.integers(0, SAMPLES // 2)),
        int(rng.integers(SAMPLES // 8, SAMPLES // 2)),
    )
    card, reason = int(rng.integers(CARDS)), str(rng.choice([*REASONS]))
    if slowdown > 1:
        clock[start : start + length, card] /= slowdown
        masks[start : start + length, card] = REASONS[reason]
    is_idle = np.zeros(shape, bool)
    for first in rng.integers(0, SAMPLES, 3):
        is_idle[first : first + rng.integers(1, 6)] = True
    clock[is_idle], busy[is_idle], masks[is_idle] = IDLE_CLOCK, 0, 1
    clock[rng.random(shape) < 0.02] = IDLE_CLOCK
    clock = np.minimum(UNIT * np.rint(clock / UNIT), BOOST)
    power = np.where(is_idle, 90.0, 650 * clock / BOOST)
    lines = [
        f"2026/11/20 10:{s // 60:02d}:{s % 60:02d}.{100 * k:03d}, {k}, {busy[n, k]} %, "
        f"{clock[n, k]:.0f} MHz, {power[n, k]:.2f} W, 0x{masks[n, k]:016x}"
        for n in range(SAMPLES)
        for s in (n * SECONDS,)
        for k in range(CARDS)
    ]
    span = float(start * SECONDS), float((start + length) * SECONDS)
    return "\n".join([HEADER, *lines]) + "\n", card, reason, span
