"""Hardware as a cause: cards whose clock falls, and the reasons that NVML gives for it.

A card is slow in the episodes of `simstrag.traces.clocks`: its SM clock at load is 5 % or more
below its own usual clock, or that of the fastest cards of its model, for three samples or more.  A
reason is named where its bit is set in half of an episode's samples.  No reason alone is a cause
where the clock was recorded: a power cap is set on most cards at full load, and costs none of them
more than the others.

Without a clock, a reason that no healthy card has (`FAULTS`) is one; so is a power cap on a card
whose peers have none, and a power limit below theirs.  A PCIe link is compared with the peers' by
the best that each card shows, since idle links slow down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simstrag.arrays import Bools, Reals
from simstrag.records.record import (
    GPU,
    LANES,
    PCIE,
    POWER,
    POWER_LIMIT,
    REASONS,
    TEMPERATURE,
    NodeSeries,
    Record,
)
from simstrag.traces.clocks import (
    LEAST_DROP,
    LEAST_SAMPLES,
    Card,
    Slow,
    at_load,
    beside_peers,
    clocks_of,
    interval_of,
    model_of,
    value_at,
)  # fmt: skip

CLOCK = "clock below usual"
CAP, LIMIT, LINK = "power cap", "power limit below its peers", "PCIe link below its peers"
CAP_BIT = 0x4
BITS = {
    0x40: "hardware thermal slowdown", 0x80: "power brake", 0x20: "software thermal slowdown",
    0x8: "hardware slowdown", CAP_BIT: CAP, 0x10: "sync boost", 0x2: "applications clocks setting",
    0x100: "display clock setting",
}  # fmt: skip
"""NVML's reasons for a lower clock, the gravest first; the bit of an idle card is none."""
FAULTS = 0x8 | 0x20 | 0x40 | 0x80
"""Reasons that a healthy card does not have."""
REASON_SHARE = 0.5
"""Share of an episode's samples in which a reason is active to be named. ASSUMED."""
FEW, MANY = 0.1, 0.5
"""Shares of a card's and of its peers' samples: a cap that peers have less than few of, and a card
more than many, is its own. ASSUMED."""
SILENT, SILENT_SHARE = 10, 0.05
"""Usual times between samples, and share of the log, that a node may lack at the end, ASSUMED."""
BEST = 0.9
"""The quantile of a link's states that is what it can do."""


@dataclass(frozen=True, slots=True)
class HardwareCause:
    """The cause of a slow card.

    node: its name.
    kind: a name of `BITS`, or one of `CLOCK`, `LIMIT` and `LINK`.
    start, end: seconds, of the first and the last episode.
    seconds: how long the episodes are together.
    slowdown: usual clock over clock, at least 1, an upper bound; NaN where no clock was recorded.
    is_constant: whether it lasts for the whole log, so that peers alone show it.
    facts: what was measured, such as "clock" and "usual clock" (MHz), "temperature", "power",
        "power limit", "usual power limit", "reasons" (names), "episodes" (their number).
    """

    node: str
    kind: str
    start: float
    end: float
    seconds: float
    slowdown: float
    is_constant: bool = False
    facts: Mapping[str, float | str] = field(default_factory=dict)


class _Found(NamedTuple):
    kind: str
    start: float
    end: float
    slowdown: float
    facts: dict[str, float | str]


def hardware(record: Record) -> tuple[HardwareCause, ...]:
    """What makes cards slow, the one that costs most first; episodes of one kind are one cause."""
    cards = {card.node: card for card in clocks_of(record)}
    limits = _peers(record, POWER_LIMIT, 0.5)
    links = {quantity: _peers(record, quantity, BEST) for quantity in (PCIE, LANES)}
    caps = _caps(record)
    found: list[HardwareCause] = []
    for node, name in enumerate(record.nodes):
        card = cards.get(node)
        if card is not None:
            each = [_of_clock(record, card, slow, limits) for slow in card.slow]
            each = each or [*_of_flapping(record, card)]
            span = card.begin, card.end
        else:
            span = _span(record, node)
            each = [
                *_of_reasons(record, node, caps),
                *_below(LIMIT, POWER_LIMIT, node, limits, span),
            ]
        for quantity, known in links.items():
            each += _below(LINK, quantity, node, known, span)
        found += [
            _together(name, [one for one in each if one.kind == kind], *span)
            for kind in dict.fromkeys(one.kind for one in each)
        ]
    return tuple(sorted(found, key=lambda one: -_cost(one)))


def gone(record: Record) -> dict[str, float]:
    """The nodes whose values end before the log does, and when, in seconds."""
    last: dict[int, float] = {}
    usual = 0.0
    for each in record.series:
        for node in np.unique(each.node).tolist():
            time, _ = each.of_node(node)
            usual = max(usual, interval_of(time))
            # A quantity that ends counts, although others of the node go on.
            last[node] = min(last.get(node, np.inf), float(time[-1]))
    end = max((float(each.time.max()) for each in record.series if len(each.time)), default=0.0)
    limit = max(SILENT * usual, SILENT_SHARE * end)
    return {record.nodes[n]: at for n, at in sorted(last.items()) if end - at > limit}


def healthy_facts(record: Record) -> tuple[str, ...]:
    """What a log shows where `hardware` names nothing, as clauses."""
    facts = []
    cards = clocks_of(record)
    busy = record.series_of(GPU)
    if cards:
        clocks = [float(np.median(card.clock)) for card in cards]
        facts.append(f"SM clock {_range(clocks)} MHz at load on {_all(len(cards))}")
    if busy is not None and len(busy.value):
        usual = [100 * float(np.median(busy.of_node(n)[1])) for n in np.unique(busy.node).tolist()]
        facts.append(f"{_range(usual)} % busy")
    if record.series_of(REASONS) is not None:
        shares = _shares(record)
        facts += [f"{BITS[bit]} in {100 * share:.0f} % of samples" for bit, share in shares.items()]
        if not shares:
            facts.append("no reason for lower clocks")
    if not cards and busy is not None:
        facts.append("utilisation alone would not show a slow GPU")
    elif cards and busy is not None:
        facts.append("utilisation alone would not have shown a slow one")
    return tuple(facts)


def _of_clock(
    record: Record, card: Card, slow: Slow, limits: Mapping[int, tuple[float, float]]
) -> _Found:
    """An episode of a card's clock, with its reason."""
    time = card.time[slow.samples]
    facts: dict[str, float | str] = {"clock": slow.clock, "usual clock": card.usual}
    for quantity in (TEMPERATURE, POWER):
        if (value := _median(record.series_of(quantity), card.node, time)) is not None:
            facts[quantity] = value
    own, peers = limits.get(card.node, (np.nan, np.nan))
    if own > 0:
        facts |= {POWER_LIMIT: own, f"usual {POWER_LIMIT}": peers}
    active = _active(record, card.node, time)
    if active:
        facts["reasons"] = ", ".join(active)
    kind = active[0] if active else LIMIT if own < (1 - LEAST_DROP) * peers else CLOCK
    return _Found(kind, slow.start, slow.end, card.usual / slow.clock, facts)


def _of_flapping(record: Record, card: Card) -> Iterator[_Found]:
    """A fault that comes and goes too fast for an episode, and lowers the clock meanwhile."""
    series = record.series_of(REASONS)
    if series is None:
        return
    masks = np.nan_to_num(value_at(series, card.node, card.time)).astype(np.int64)
    is_low = (masks & FAULTS > 0) & (card.clock < (1 - LEAST_DROP) * card.usual)
    if is_low.mean() < FEW:
        return
    time, clock = card.time[is_low], float(card.clock[is_low].mean())
    mean = card.usual / (card.usual + (clock - card.usual) * is_low.mean())
    facts: dict[str, float | str] = {
        "clock": clock, "usual clock": card.usual, "share of samples": float(is_low.mean()),
    }  # fmt: skip
    often = max(BITS, key=lambda bit: int((masks[is_low] & bit & FAULTS > 0).sum()))
    yield _Found(BITS[often], float(time[0]), float(time[-1]), mean, facts)


def _active(record: Record, node: int, time: Reals) -> list[str]:
    """The reasons in force at most of these times, the gravest first."""
    series = record.series_of(REASONS)
    if series is None:
        return []
    bits = value_at(series, node, time)
    masks = bits[~np.isnan(bits)].astype(np.int64)
    return [
        name
        for bit, name in BITS.items()
        if len(masks) and (masks & bit > 0).mean() >= REASON_SHARE
    ]


def _caps(record: Record) -> dict[int, float]:
    """The share of each card's samples in which its power is capped."""
    series = record.series_of(REASONS)
    if series is None:
        return {}
    nodes = np.unique(series.node).tolist()
    return {n: float((series.of_node(n)[1].astype(np.int64) & CAP_BIT > 0).mean()) for n in nodes}


def _of_reasons(record: Record, node: int, caps: Mapping[int, float]) -> Iterator[_Found]:
    """Faults of a card without a clock, by their bits, and a cap that its peers do not have."""
    series = record.series_of(REASONS)
    if series is None or node not in caps:
        return
    time, value = series.of_node(node)
    masks = value.astype(np.int64)
    runs = _runs(masks & FAULTS > 0)
    if (
        not runs
        and caps[node] > MANY
        and len(caps) > 1
        and float(np.median([*caps.values()])) < FEW
    ):
        runs = _runs(masks & CAP_BIT > 0)
    for a, b in runs:
        end = float(time[b]) if b < len(time) else float(time[-1]) + interval_of(time)
        if active := _active(record, node, time[a:b]):
            facts: dict[str, float | str] = {"reasons": ", ".join(active)}
            yield _Found(active[0], float(time[a]), end, np.nan, facts)


def _below(
    kind: str,
    quantity: str,
    node: int,
    known: Mapping[int, tuple[float, float]],
    span: tuple[float, float],
) -> Iterator[_Found]:
    """A cause where a card has less of a quantity than its peers."""
    own, peers = known.get(node, (np.nan, np.nan))
    if own < (1 - LEAST_DROP) * peers:
        yield _Found(kind, *span, np.nan, {quantity: own, f"usual {quantity}": peers})


def _peers(record: Record, quantity: str, quantile: float) -> dict[int, tuple[float, float]]:
    """A quantile of each card's values, and what is usual of its model."""
    series = record.series_of(quantity)
    if series is None:
        return {}
    nodes = np.unique(series.node).tolist()
    own = [float(np.quantile(series.of_node(n)[1], quantile)) for n in nodes]
    usual = beside_peers(own, [model_of(record, n) for n in nodes])
    return dict(zip(nodes, zip(own, usual, strict=True), strict=True))


def _together(node: str, each: list[_Found], begin: float, end: float) -> HardwareCause:
    """Episodes of one kind as one cause; its facts are those of the longest."""
    lengths = np.array([one.end - one.start for one in each])
    longest = each[int(lengths.argmax())]
    weights = lengths if lengths.sum() > 0 else np.ones(len(each))
    slowdown = float(np.average([one.slowdown for one in each], weights=weights))
    first, last = each[0].start, max(one.end for one in each)
    is_constant = len(each) == 1 and first <= begin and last >= end
    facts = longest.facts | {"episodes": len(each)}
    return HardwareCause(
        node, longest.kind, first, last, float(lengths.sum()), slowdown, is_constant, facts
    )


def _cost(cause: HardwareCause) -> float:
    """Seconds that a step of full length loses; a cause without a clock comes last."""
    return 0.0 if np.isnan(cause.slowdown) else (cause.slowdown - 1) * cause.seconds


def _runs(is_set: Bools) -> list[tuple[int, int]]:
    """Begin and end of each stretch of `LEAST_SAMPLES` or more."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], is_set.astype(int), [0]))))
    return [(a, b) for a, b in edges.reshape(-1, 2).tolist() if b - a >= LEAST_SAMPLES]


def _span(record: Record, node: int) -> tuple[float, float]:
    """The first and the last time of a node's samples."""
    times = np.concatenate([each.of_node(node)[0] for each in record.series])
    return (float(times.min()), float(times.max())) if len(times) else (0.0, 0.0)


def _median(series: NodeSeries | None, node: int, time: Reals) -> float | None:
    values = np.zeros(0) if series is None else value_at(series, node, time)
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) else None


def _shares(record: Record) -> dict[int, float]:
    """How often each reason is active on cards at load, of those that are at all."""
    series = record.series_of(REASONS)
    assert series is not None
    masks = []
    for node in np.unique(series.node).tolist():
        time, value = series.of_node(node)
        masks.append(value[at_load(record, node, time)].astype(np.int64))
    together = np.concatenate(masks)
    shares = {bit: float((together & bit > 0).mean()) if len(together) else 0.0 for bit in BITS}
    return {bit: share for bit, share in shares.items() if share > 0}


def rank_of(record: Record, node: str) -> int | None:
    """The rank that computes on a node of the record's series; None where nothing tells it.

    A card is the rank of its number among those of its host; without hosts among all ranks, if
    there are as many.  A host with one rank is that rank.
    """
    ranks = sorted({*record.hosts, *np.unique(record.rank).tolist()})
    host, _, number = node.rpartition("/")
    if host and number.isdecimal():
        own = [rank for rank in ranks if record.hosts.get(rank) == host]
    elif node.startswith(("GPU ", "rank ")) and node[4:].strip().isdecimal():
        number = node[4:].strip()
        own = ranks if len(ranks) == len(record.nodes) else []
    else:
        number, own = "0", [rank for rank in ranks if record.hosts.get(rank) == node]
        own = own if len(own) == 1 else []
    return own[int(number)] if int(number) < len(own) else None


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _all(count: int) -> str:
    return "the GPU" if count == 1 else f"all {count} GPUs"
