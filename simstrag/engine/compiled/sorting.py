"""Sorts times, of few ranks and of many."""

from __future__ import annotations

from typing import Any

import numpy as np

from simstrag.engine.compiled.compiling import compiled

FEW, MANY = 32, 256
BITS = 11
BUCKETS = 1 << BITS


@compiled
def sort_times(times: Any, spare: Any) -> None:
    """Ascending, in place; no NaN and none below 0. spare: room for as many."""
    n = len(times)
    if n <= FEW:
        _insert(times)
    elif n < MANY:
        times.sort()
    else:
        _by_digits(times.view(np.int64), spare.view(np.int64))


@compiled
def _insert(times: Any) -> None:
    for k in range(1, len(times)):
        time = times[k]
        j = k - 1
        while j >= 0 and times[j] > time:
            times[j + 1] = times[j]
            j -= 1
        times[j + 1] = time


@compiled
def _by_digits(bits: Any, spare: Any) -> None:
    """Numbers that are not negative are ordered as their bits are; digits all share are skipped."""
    common, differ = bits[0], 0
    for number in bits:
        differ |= number ^ common
    places = np.empty(BUCKETS + 1, np.int64)
    source, target, moved = bits, spare, False
    for shift in range(0, 64, BITS):
        if (differ >> shift) & (BUCKETS - 1) == 0:
            continue
        places[:] = 0
        for number in source:
            places[((number >> shift) & (BUCKETS - 1)) + 1] += 1
        for k in range(BUCKETS):
            places[k + 1] += places[k]
        for number in source:
            digit = (number >> shift) & (BUCKETS - 1)
            target[places[digit]] = number
            places[digit] += 1
        source, target, moved = target, source, not moved
    if moved:
        bits[:] = spare
