"""What is in a trace: how often, how long and how severely each node is slowed.

An *episode* is an unbroken stretch with a slowdown above 1, however it varies meanwhile.  Time runs
from 0 to the trace's last row; what is held or repeated beyond it is not counted.  A trace with
rows at time 0 only describes constants: a slowdown there counts as the whole time.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from simstrag.slowdown import Piecewise
from simstrag.trace import BEFORE, Trace

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Description", "Episode", "describe", "episodes"]


class Episode(NamedTuple):
    """A stretch of slowdown above 1, in seconds; mean and max are of its slowdown over time."""

    node: int
    resource: str
    start: float
    end: float
    mean: float
    max: float


class Piece(NamedTuple):
    """A value and how long it holds, in seconds."""

    start: float
    seconds: float
    value: float


SLOWDOWN_COLUMNS = (
    *("node", "resource", "episodes", "share_slowed", "mean_slowdown", "max_slowdown"),
    *("longest_clean", "first", "last"),
)
OTHER_COLUMNS = ("node", "resource", "kind", "rows", "mean", "max", "first", "last")


@dataclass(frozen=True, slots=True)
class Description:
    """A trace in tables (DataFrames) and in one paragraph; times in seconds.

    slowdowns: a row per node and resource: episodes; share_slowed, of the time; mean_slowdown, over
    the slowed time, NaN where there is none; max_slowdown; longest_clean, the longest stretch at 1
    or below; first and last, when its first and last row come.
    others: a row per node, resource and kind of utilisations and durations: rows, mean (over time,
    of durations over steps), max, first, last.
    text: the most of it in a few sentences.
    """

    slowdowns: pd.DataFrame
    others: pd.DataFrame
    text: str


def episodes(trace: Trace) -> pd.DataFrame:
    """One row per episode in order of time, columns as in `Episode`.

    >>> trace = Trace.from_rows([(60, 3, "gpu", "slowdown", 2), (90, 3, "gpu", "slowdown", 1)])
    >>> episodes(trace)
       node resource  start   end  mean  max
    0     3      gpu   60.0  90.0   2.0  2.0
    """
    import pandas as pd

    return pd.DataFrame(_episodes(trace), columns=list(Episode._fields))


def describe(trace: Trace) -> Description:
    """Tables and a paragraph about a trace.

    >>> trace = Trace.from_rows([(60, 3, "gpu", "slowdown", 2), (80, 3, "gpu", "slowdown", 1)])
    >>> describe(trace).slowdowns[["node", "episodes", "share_slowed", "longest_clean"]]
       node  episodes  share_slowed  longest_clean
    0     3         1          0.25           60.0
    """
    import pandas as pd

    found = _episodes(trace)
    counted = Counter((episode.node, episode.resource) for episode in found)
    slowdowns: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for (node, resource, kind), series in sorted(trace.by_key().items()):
        spans = {"first": series[0][0], "last": series[-1][0]}
        if kind == "slowdown":
            count = {"episodes": counted[node, resource]}
            measures = count | _slowdown(_pieces(series, kind, trace.end))
            slowdowns.append({"node": node, "resource": resource} | measures | spans)
        else:
            measures = {"kind": kind, "rows": len(series)} | _other(series, kind, trace.end)
            others.append({"node": node, "resource": resource} | measures | spans)
    table = pd.DataFrame(slowdowns, columns=list(SLOWDOWN_COLUMNS))
    return Description(
        table,
        pd.DataFrame(others, columns=list(OTHER_COLUMNS)),
        " ".join([
            _span(trace), *_of_slowdowns(table, found, trace.end), *_absent(trace),
            *_sped_up(trace), *_held(trace), *_of_others(others),
        ]),
    )  # fmt: skip


def _absent(trace: Trace) -> list[str]:
    """Nodes between others of which the trace says nothing: forgotten, or never slowed."""
    nodes = range(min(trace.nodes), max(trace.nodes))
    absent = [str(node) for node in nodes if node not in trace.nodes]
    if not absent:
        return []
    listed = ", ".join(absent[:4] + ["..."] * (len(absent) > 4))
    said = (
        "node {} has no rows, and counts"
        if len(absent) == 1
        else "nodes {} have no rows, and count"
    )
    return [f"{said.format(listed).capitalize()} as clean."]


def _sped_up(trace: Trace) -> list[str]:
    """What is below 1: a mistake in the trace, or meant, which a scenario has to say."""
    first = trace.first(lambda row: row.speeds_up)
    if first is None:
        return []
    rows = _count(sum(row.speeds_up for row in trace.rows), "row")
    where = first[0].removeprefix(f"{trace.source}, ")
    return [
        f"{rows} with a slowdown below 1, counted as clean here (the first is {where}, with "
        f"{first[1].value:g}): a scenario refuses that unless it says allow_speedup: true."
    ]


def _held(trace: Trace) -> list[str]:
    """Which nodes are slow at the last row: `trace_end: hold` goes on with that for ever."""
    slow = [
        f"node {node} {resource} {series[-1][1]:g}x"
        for (node, resource, kind), series in sorted(trace.by_key().items())
        if kind == "slowdown" and series[-1][1] > 1 and trace.end > 0
    ]
    if not slow:
        return []
    listed = ", ".join(slow[:4] + ["..."] * (len(slow) > 4))
    return [f"Held after the end unless trace_end says otherwise, and not counted here: {listed}."]


def _pieces(series: list[tuple[float, float]], kind: str, end: float) -> list[Piece]:
    """What holds from 0 to `end`; a trace without extent is one constant piece."""
    held = Piecewise.of(series, before=BEFORE[kind])
    stops = (*held.times[1:], end)
    pieces = [
        Piece(start, stop - start, value)
        for start, stop, value in zip(held.times, stops, held.values, strict=True)
        if stop > start
    ]
    return pieces or [Piece(0.0, 0.0, held.values[-1])]


def _stretches(pieces: list[Piece]) -> list[list[Piece]]:
    """Neighbours that are all slowed, or all clean, together."""
    found: list[list[Piece]] = []
    for piece in pieces:
        if found and (found[-1][-1].value > 1) == (piece.value > 1):
            found[-1].append(piece)
        else:
            found.append([piece])
    return found


def _mean(pieces: list[Piece]) -> float:
    """Over time; of a single instant the value itself."""
    seconds = sum(piece.seconds for piece in pieces)
    if not seconds:
        return pieces[0].value if pieces else math.nan
    return sum(piece.seconds * piece.value for piece in pieces) / seconds


def _episodes(trace: Trace) -> list[Episode]:
    found = []
    for (node, resource, kind), series in trace.by_key().items():
        if kind != "slowdown":
            continue
        for stretch in _stretches(_pieces(series, kind, trace.end)):
            last, most = stretch[-1], max(piece.value for piece in stretch)
            if last.value > 1:
                end = last.start + last.seconds
                mean = _mean(stretch)
                found.append(Episode(node, resource, stretch[0].start, end, mean, most))
    return sorted(found, key=lambda episode: (episode.start, episode.node, episode.resource))


def _slowdown(pieces: list[Piece]) -> dict[str, Any]:
    slowed = [piece for piece in pieces if piece.value > 1]
    clean = [s for s in _stretches(pieces) if s[0].value <= 1]
    return {
        "share_slowed": _mean([piece._replace(value=float(piece.value > 1)) for piece in pieces]),
        "mean_slowdown": _mean(slowed),
        "max_slowdown": max(piece.value for piece in pieces),
        "longest_clean": max((sum(piece.seconds for piece in s) for s in clean), default=0.0),
    }


def _other(series: list[tuple[float, float]], kind: str, end: float) -> dict[str, Any]:
    values = [value for _, value in series]
    over_time = kind == "utilisation"
    mean = _mean(_pieces(series, kind, end)) if over_time else sum(values) / len(values)
    return {"mean": mean, "max": max(values)}


def _span(trace: Trace) -> str:
    kinds = sorted({f"{row.resource} {row.kind}" for row in trace.rows})
    nodes = _count(len(trace.nodes), "node")
    return (
        f"{trace.source}: {_count(len(trace.rows), 'row')} about {nodes} "
        f"({', '.join(kinds)}), the last at {trace.end:g} s."
    )


def _of_slowdowns(table: pd.DataFrame, found: list[Episode], end: float) -> list[str]:
    if table.empty:
        return []
    if not found:
        return ["Nothing is ever slowed."]
    share, worst = table["share_slowed"], max(found, key=lambda episode: episode.max)
    at = f"node {worst.node}, {worst.resource}, in the episode from {worst.start:g} s on"
    sentences = [
        f"{_count(len(found), 'episode')} of slowdown; a node's resource is slowed for "
        f"{share.mean():.1%} of the time in the mean ({share.min():.1%} to {share.max():.1%}), "
        f"by a factor of {table['mean_slowdown'].mean():.3g} then, and by {worst.max:.3g} at most "
        f"({at})."
    ]
    if end:
        lengths = sorted(episode.end - episode.start for episode in found)
        sentences.append(
            f"Episodes last {lengths[len(lengths) // 2]:.4g} s in the median, {lengths[-1]:.4g} s "
            f"at most; some node is slowed for {_covered(found) / end:.1%} of the time."
        )
    return sentences


def _of_others(rows: list[dict[str, Any]]) -> list[str]:
    sentences = []
    recorded = [row for row in rows if row["kind"] == "duration"]
    if recorded:
        means = sorted(row["mean"] for row in recorded)
        steps = sum(row["rows"] for row in recorded)
        sentences.append(
            f"{_count(steps, 'recorded step')}; a node's mean step takes {means[0]:.4g} to "
            f"{means[-1]:.4g} s."
        )
    if len(recorded) < len(rows):
        sentences.append("Utilisation is described, but cannot be simulated: no profile maps it.")
    return sentences


def _covered(found: list[Episode]) -> float:
    """Seconds during which there is an episode anywhere."""
    covered = until = 0.0
    for episode in found:
        covered += max(0.0, episode.end - max(episode.start, until))
        until = max(until, episode.end)
    return covered


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
