"""Drawn logs of `nvidia-smi` of one host: clean ones, and ones with a card that is throttled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simstrag.records.record import GPU, POWER, REASONS, SM_CLOCK, Record
from simstrag.records.series import record_of_series

CARDS, SAMPLES, SECONDS = 4, 120, 5
BOOST, IDLE_CLOCK, UNIT = 1980, 345, 15
"""MHz: of a card at full speed, of an idle one, and of the steps of a clock."""
HEADER = (
    "timestamp, index, utilization.gpu [%], clocks.current.sm [MHz], power.draw [W], "
    "clocks_event_reasons.active"
)
MASKS = {"software thermal slowdown": 0x20, "power cap": 0x4, "power brake": 0x88}


class DrawnLog(NamedTuple):
    """Samples of every card, shape (samples, cards); which card is throttled, why and when."""

    busy: Any
    clock: Any
    power: Any
    masks: Any
    card: int
    reason: str
    span: tuple[float, float]

    @property
    def text(self) -> str:
        """What `nvidia-smi` writes."""
        lines = [
            f"2026/11/20 10:{s // 60:02d}:{s % 60:02d}.{100 * k:03d}, {k}, {self.busy[n, k]} %, "
            f"{self.clock[n, k]:.0f} MHz, {self.power[n, k]:.2f} W, 0x{self.masks[n, k]:016x}"
            for n in range(SAMPLES)
            for s in (n * SECONDS,)
            for k in range(CARDS)
        ]
        return "\n".join([HEADER, *lines]) + "\n"

    @property
    def record(self) -> Record:
        """The record that the reader makes of the text, at once."""
        time = SECONDS * np.arange(SAMPLES)[:, None] + 0.1 * np.arange(CARDS)
        values = {GPU: self.busy / 100, SM_CLOCK: self.clock, POWER: self.power.round(2),
                  REASONS: self.masks.astype(float)}  # fmt: skip
        labels = [f"GPU {k}" for _ in range(SAMPLES) for k in range(CARDS)]
        flat = {name: each.ravel() for name, each in values.items()}
        return record_of_series("smi.csv", "nvidia-smi", labels, time.ravel(), flat)


def draw(seed: int, slowdown: float = 1.0) -> DrawnLog:
    """A log of a host; without a slowdown no card is throttled for long.

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
    card, reason = int(rng.integers(CARDS)), str(rng.choice([*MASKS]))
    if slowdown > 1:
        clock[start : start + length, card] /= slowdown
        masks[start : start + length, card] = MASKS[reason]
    is_idle = np.zeros(shape, bool)
    for first in rng.integers(0, SAMPLES, 3):
        is_idle[first : first + rng.integers(1, 6)] = True
    clock[is_idle], busy[is_idle], masks[is_idle] = IDLE_CLOCK, 0, 1
    clock[rng.random(shape) < 0.02] = IDLE_CLOCK
    clock = np.minimum(UNIT * np.rint(clock / UNIT), BOOST)
    power = np.where(is_idle, 90.0, 650 * clock / BOOST)
    span = float(start * SECONDS), float((start + length) * SECONDS)
    return DrawnLog(busy, clock, power, masks, card, reason, span)
