"""SM clocks of GPUs at load: what is usual, and where a card computes below it.

A card is at load where its utilisation is at least `LOAD` of its own usual utilisation; where a log
has no utilisation, where the reason "idle" is not given, or else where it draws at least `LOAD` of
its own usual power.  Its clock has levels, as a load has
(`jitter`).  Its usual clock is the highest level that it keeps for `USUAL_SHARE` of its time at
load.  Cards whose usual clocks differ by less than `LEAST_DROP` from one to the next are a group;
a card of a slower group is measured by the fastest one, if that has `FASTEST_SHARE` of the cards of
its model: so a card that is slow all along is seen beside its peers.

A clock that jitters more than a load may has one level: episodes of such a card are not seen.

An episode is a stretch of samples at load whose levels are below (1 - `LEAST_DROP`) of the usual
clock.  It has `LEAST_SAMPLES` or more, and so many that low samples of the log, if they fall by
chance, would make one that long in 1 of 100 logs (`CHANCE`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Bools, Ints, Reals
from simstrag.records.record import GPU, POWER, REASONS, SM_CLOCK, SM_CLOCK_MAX, NodeSeries, Record
from simstrag.traces.gaps import GAP
from simstrag.traces.jitter import MOST_JITTER, levels_of

LOAD = 0.5
"""Share of its usual utilisation from which on a card is at load. ASSUMED."""
LEAST_LOAD = 0.1
"""A card whose usual utilisation is below it is idle. ASSUMED."""
LEAST_DROP = 0.05
"""A clock that is lower by less is usual: cards of one model differ by 1 to 3 % under the same
power limit. ASSUMED."""
LEAST_SAMPLES = 3
"""Samples of an episode: one or two may fall in a gap between kernels. ASSUMED."""
USUAL_SHARE = 0.1
FASTEST_SHARE = 0.25
"""Shares of time and of cards that make a clock usual. ASSUMED."""
CHANCE = 0.01
"""Chance of a log without slow cards to show an episode, if low samples are independent."""
MOST_CHANCE = 0.9
"""Largest share of low samples that is taken as chance."""
IDLE = 1
"""NVML's bit of a card that has nothing to do."""


class Slow(NamedTuple):
    """A stretch of samples at load with a low clock.

    start, end: seconds; the end is the time of the next sample, or one interval after the last.
    clock: its median in MHz, which a gap between kernels does not move.
    samples: places among the card's samples at load.
    """

    start: float
    end: float
    clock: float
    samples: slice


class Card(NamedTuple):
    """The clock of a card at load.

    node: place in `Record.nodes`.
    time, clock: of each sample at load.
    usual: MHz.
    own: the usual clock of this card alone.
    slow: its episodes, in order of time.
    begin, end: seconds, of all its samples.
    """

    node: int
    time: Reals
    clock: Reals
    usual: float
    own: float
    slow: tuple[Slow, ...]
    begin: float
    end: float

    def slowdowns(self) -> Iterator[tuple[float, float]]:
        """Changes of its slowdown: (seconds, factor), with the begin and the end of the log."""
        if not self.slow or self.slow[0].start > self.begin:
            yield self.begin, 1.0
        for each, after in itertools.zip_longest(self.slow, self.slow[1:]):
            yield each.start, self.usual / each.clock
            if after is None or after.start > each.end:
                yield each.end, 1.0
        if not self.slow or self.slow[-1].end < self.end:
            yield self.end, 1.0


def clocks_of(record: Record) -> tuple[Card, ...]:
    """The cards that have a clock and are at load, in order of their nodes."""
    series = record.series_of(SM_CLOCK)
    if series is None:
        return ()
    found = []
    for node in np.unique(series.node).tolist():
        time, clock = series.of_node(node)
        loaded = at_load(record, node, time) & (clock > 0)
        if loaded.sum() >= LEAST_SAMPLES:
            found.append((node, time, clock[loaded], time[loaded]))
    levels = _levels([clock for _, _, clock, _ in found])
    own = [_usual(level) for level in levels]
    usual = beside_peers(own, [model_of(record, node) for node, *_ in found])
    limits = [(1 - LEAST_DROP) * clock for clock in usual]
    runs = [_low_runs(level < limit) for level, limit in zip(levels, limits, strict=True)]
    lower = [
        clock < (1 - LEAST_DROP / 2) * u for (_, _, clock, _), u in zip(found, usual, strict=True)
    ]
    least = _least_lengths(lower)
    return tuple(
        Card(
            node, time, clock, usual[k], own[k],
            _episodes(time, clock, runs[k][np.diff(runs[k]).ravel() >= least[k]], limits[k]),
            float(all_times[0]), float(all_times[-1]),
        )
        for k, (node, all_times, clock, time) in enumerate(found)
    )  # fmt: skip


def at_load(record: Record, node: int, time: Reals) -> Bools:
    """Whether a card is at load at these times.

    By utilisation, else the reason of an idle card, else power, else the clock itself: an idle
    card's is far below that of a throttled one.
    """
    busy, reasons, power = map(record.series_of, (GPU, REASONS, POWER))
    if busy is not None and len(busy.of_node(node)[0]):
        load = np.nan_to_num(value_at(busy, node, time))
        return np.asarray(load >= max(LOAD * float(np.quantile(load, 0.9)), LEAST_LOAD))
    if reasons is not None and len(reasons.of_node(node)[0]):
        bits = value_at(reasons, node, time)
        return np.asarray(~np.isnan(bits) & (np.nan_to_num(bits).astype(np.int64) & IDLE == 0))
    if power is not None and len(power.of_node(node)[0]):
        drawn = np.nan_to_num(value_at(power, node, time))
        return np.asarray(drawn > LOAD * float(np.quantile(drawn, 0.9)))
    clocks = record.series_of(SM_CLOCK)
    assert clocks is not None, "a card at load has a clock"
    clock = np.nan_to_num(value_at(clocks, node, time))
    return np.asarray(clock > LOAD * float(np.quantile(clock, 0.9)))


def value_at(series: NodeSeries, node: int, time: Reals) -> Reals:
    """The values of a node at these times: of the nearest sample within an interval; else NaN."""
    known, values = series.of_node(node)
    if not len(known):
        return np.full(len(time), np.nan)
    after = np.searchsorted(known, time).clip(0, len(known) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(known[before] - time) < np.abs(known[after] - time), before, after)
    limit = interval_of(known)
    return np.asarray(np.where(np.abs(known[nearest] - time) <= limit, values[nearest], np.nan))


def interval_of(time: Reals) -> float:
    """The usual time between two samples; 0 of a single one."""
    return float(np.median(np.diff(time))) if len(time) > 1 else 0.0


def _levels(clocks: list[Reals]) -> list[Reals]:
    """The levels of clocks, which are shares of the highest while jitter is estimated.

    A clock that jitters by more than `MOST_JITTER` has one level, its median.
    """
    shares = [clock / clock.max() for clock in clocks]
    return [
        np.full(len(clock), np.median(clock))
        if MOST_JITTER < found.scale < math.inf
        else found.level * clock.max()
        for clock, found in zip(clocks, levels_of(shares), strict=True)
    ]


def _usual(level: Reals) -> float:
    """The highest level that a card keeps for a share of its time."""
    return float(np.quantile(level, 1 - USUAL_SHARE, method="lower"))


def model_of(record: Record, node: int) -> tuple[str, float]:
    """What cards must have in common to be peers: the name and the highest clock."""
    highest = record.series_of(SM_CLOCK_MAX)
    known = np.zeros(0) if highest is None else highest.of_node(node)[1]
    name = record.models[node] if record.models else ""
    return name, float(np.median(known)) if len(known) else 0.0


def beside_peers(own: list[float], models: list[tuple[str, float]]) -> list[float]:
    """What is usual of each card: its own value, or that of the highest group of its model.

    >>> beside_peers([1980.0, 1200.0, 1965.0, 1410.0], [("H100", 0.0)] * 3 + [("A100", 0.0)])
    [1980.0, 1972.5, 1965.0, 1410.0]
    """
    usual = list(own)
    for model in set(models):
        peers = sorted((k for k, each in enumerate(models) if each == model), key=own.__getitem__)
        groups = [[peers[-1]]]
        for k in reversed(peers[:-1]):
            if own[k] < (1 - LEAST_DROP) * own[groups[-1][-1]]:
                groups.append([])
            groups[-1].append(k)
        fastest = next((g for g in groups if len(g) >= FASTEST_SHARE * len(peers)), groups[0])
        clock = float(np.median([own[k] for k in fastest]))
        for k in itertools.chain(*groups[groups.index(fastest) + 1 :]):
            usual[k] = clock
    return usual


def _low_runs(is_low: Bools) -> Ints:
    """Begin and end of each stretch of low samples, shape (stretches, 2)."""
    return np.flatnonzero(np.diff(np.concatenate(([0], is_low.astype(int), [0])))).reshape(-1, 2)


def _least_lengths(lower: list[Bools]) -> list[float]:
    """From how many samples on a stretch of each card is no chance, with `CHANCE` for the log.

    Where a sample is low by chance q, a log of n samples has n q^m stretches of m or more.  q is
    how often a stretch of lower samples begins, on the card or on all, whichever is more; one of
    each is not counted.

    lower: which samples of each card are below half of the least drop.
    """
    counts = [len(_low_runs(each)) for each in lower]
    others = [int((~each).sum()) for each in lower]
    total = sum(map(len, lower))
    common = max(sum(counts) - 1, 0) / (sum(others) + 1)
    least = []
    for count, other in zip(counts, others, strict=True):
        q = min(max(common, max(count - 1, 0) / (other + 1)), MOST_CHANCE)
        by_chance = math.log(total / CHANCE) / -math.log(q) if q > 0 else 0.0
        least.append(max(by_chance, LEAST_SAMPLES))
    return least


def _episodes(time: Reals, clock: Reals, runs: Ints, limit: float) -> tuple[Slow, ...]:
    """The stretches whose median is below a limit, each up to the next sample, if that is near."""
    interval = interval_of(time)
    found = []
    for a, b in runs.tolist():
        end = min(float(np.append(time, math.inf)[b]), float(time[b - 1]) + GAP * interval)
        if b == len(time):
            end = float(time[-1]) + interval
        if (median := float(np.median(clock[a:b]))) < limit:
            found.append(Slow(float(time[a]), end, median, slice(a, b)))
    return tuple(found)
