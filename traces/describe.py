"""What is in a trace: how often, how long and how severely each node is slowed.

An *episode* is an unbroken stretch with a slowdown above 1, however it varies meanwhile.  Time runs
from 0 to the trace's last row; what is held or repeated beyond it is not counted.  A trace with
rows at time 0 only describes constants: a slowdown there counts as the whole time.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.trace.rows import SLOWDOWN
from simstrag.trace.step_functions import owners
from simstrag.trace.trace import RESOURCES, Trace

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Description", "Episode", "describe", "episodes"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Episode(NamedTuple):
    """A stretch of slowdown above 1, in seconds; mean and max are of its slowdown over time."""

    node: int
    resource: str
    start: float
    end: float
    mean: float
    max: float


class Episodes(NamedTuple):
    """Episodes in order of time, an array for each field of `Episode`."""

    node: Ints
    resource: npt.NDArray[np.str_]
    start: Floats
    end: Floats
    mean: Floats
    max: Floats


class Holding(NamedTuple):
    """Values and how long they hold, in seconds, history after history.

    starts: where the values of each history begin, and where the last ones end.
    """

    starts: Ints
    start: Floats
    seconds: Floats
    value: Floats


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

    return pd.DataFrame(_episodes(trace, _holding(trace))[0]._asdict())


def describe(trace: Trace) -> Description:
    """Tables and a paragraph about a trace.

    >>> trace = Trace.from_rows([(60, 3, "gpu", "slowdown", 2), (80, 3, "gpu", "slowdown", 1)])
    >>> describe(trace).slowdowns[["node", "episodes", "share_slowed", "longest_clean"]]
       node  episodes  share_slowed  longest_clean
    0     3         1          0.25           60.0
    """
    import pandas as pd

    holding, h = _holding(trace), trace.histories
    found, episodes_of, clean = _episodes(trace, holding)
    slowdowns: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for k, (node, resource, kind) in enumerate(trace.keys):
        rows, held = slice(h.starts[k], h.starts[k + 1]), _of(holding, k)
        spans = {"first": float(h.time[rows][0]), "last": float(h.time[rows][-1])}
        if kind == "slowdown":
            measures = _slowdown(held) | {"longest_clean": float(clean[k])}
            count = {"episodes": int(episodes_of[k])}
            slowdowns.append({"node": node, "resource": resource} | count | measures | spans)
        else:
            values = h.value[rows]
            measures = {"kind": kind, "rows": len(values)} | _other(values, kind, held)
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
    gaps = (range(a + 1, b) for a, b in itertools.pairwise(trace.nodes))
    absent = list(itertools.islice(itertools.chain.from_iterable(gaps), 5))
    if not absent:
        return []
    listed = ", ".join([*map(str, absent[:4])] + ["..."] * (len(absent) > 4))
    said = (
        "node {} has no rows, and counts"
        if len(absent) == 1
        else "nodes {} have no rows, and count"
    )
    return [f"{said.format(listed).capitalize()} as clean."]


def _sped_up(trace: Trace) -> list[str]:
    """What is below 1: a mistake in the trace, or meant, which a scenario has to say."""
    first = trace.first(lambda rows: rows.speeds_up) if trace.speeds_up else None
    if first is None:
        return []
    rows = _count(int(trace.changes.speeds_up.sum()), "row")
    where = first[0].removeprefix(f"{trace.source}, ")
    return [
        f"{rows} with a slowdown below 1, counted as clean here (the first is {where}, with "
        f"{first[1].value:g}): a scenario refuses that unless it says allow_speedup: true."
    ]


def _held(trace: Trace) -> list[str]:
    """Which nodes are slow at the last row: `trace_end: hold` goes on with that for ever."""
    last = trace.histories.value[trace.histories.starts[1:] - 1].tolist()
    slow = [
        f"node {node} {resource} {value:g}x"
        for (node, resource, kind), value in zip(trace.keys, last, strict=True)
        if kind == "slowdown" and value > 1 and trace.end > 0
    ]
    if not slow:
        return []
    listed = ", ".join(slow[:4] + ["..."] * (len(slow) > 4))
    return [f"Held after the end unless trace_end says otherwise, and not counted here: {listed}."]


def _holding(trace: Trace) -> Holding:
    """What holds from 0 to the end; of a trace without extent one constant for no time."""
    held = trace.histories.pieces()
    last, end = held.starts[1:] - 1, trace.end
    stop = np.append(held.times[1:], end)
    stop[last] = end
    kept = stop > held.times
    if end == 0:
        kept[last] = True
    starts = np.append(0, np.cumsum(kept))[held.starts]
    return Holding(starts, held.times[kept], (stop - held.times)[kept], held.values[kept])


def _of(holding: Holding, k: int) -> Holding:
    """The values of one history."""
    rows = slice(holding.starts[k], holding.starts[k + 1])
    starts = np.array([0, rows.stop - rows.start])
    return Holding(starts, holding.start[rows], holding.seconds[rows], holding.value[rows])


def _mean(seconds: Floats, values: Floats) -> float:
    """Over time, summed up in its order; of a single instant the value itself."""
    whole = sum(seconds.tolist())
    if not whole:
        return float(values[0]) if len(values) else math.nan
    return float(sum((seconds * values).tolist()) / whole)


def _episodes(trace: Trace, held: Holding) -> tuple[Episodes, Ints, Floats]:
    """All in order of time, as columns; how many each history has; its longest clean stretch."""
    h, owner, slow = trace.histories, owners(held.starts), held.value > 1
    turns = (owner[1:] != owner[:-1]) | (slow[1:] != slow[:-1])
    begins = np.flatnonzero(np.append(True, turns))
    ends = np.append(begins[1:], len(owner))
    seconds, weighed = held.seconds.tolist(), (held.seconds * held.value).tolist()
    lasting = np.array([sum(seconds[a:b]) for a, b in zip(begins, ends, strict=True)])
    areas = np.array([sum(weighed[a:b]) for a, b in zip(begins, ends, strict=True)])
    clean = np.zeros(len(h.kind))
    np.maximum.at(clean, owner[begins], np.where(slow[begins], 0.0, lasting))
    own = slow[begins] & (h.kind == SLOWDOWN)[owner[begins]]
    count = np.bincount(owner[begins][own], minlength=len(h.kind))
    mean = np.divide(areas, lasting, out=held.value[begins], where=lasting > 0)
    start, end = held.start[begins], (held.start + held.seconds)[ends - 1]
    most = np.maximum.reduceat(held.value, begins)
    whose = owner[begins[own]]
    order = np.lexsort((h.resource[whose], h.node[whose], start[own]))
    found = Episodes(
        h.node[whose][order], np.array(RESOURCES)[h.resource[whose]][order],
        *(column[own][order] for column in (start, end, mean, most)),
    )  # fmt: skip
    return found, count, clean


def _slowdown(held: Holding) -> dict[str, Any]:
    slow = held.value > 1
    return {
        "share_slowed": _mean(held.seconds, slow.astype(float)),
        "mean_slowdown": _mean(held.seconds[slow], held.value[slow]),
        "max_slowdown": float(held.value.max()),
    }


def _other(values: Floats, kind: str, held: Holding) -> dict[str, Any]:
    over_time = kind == "utilisation"
    mean = _mean(held.seconds, held.value) if over_time else sum(values.tolist()) / len(values)
    return {"mean": mean, "max": float(values.max())}


def _span(trace: Trace) -> str:
    kinds = sorted({f"{resource} {kind}" for _, resource, kind in trace.keys})
    nodes = _count(len(trace.nodes), "node")
    return (
        f"{trace.source}: {_count(len(trace), 'row')} about {nodes} "
        f"({', '.join(kinds)}), the last at {trace.end:g} s."
    )


def _of_slowdowns(table: pd.DataFrame, found: Episodes, end: float) -> list[str]:
    if table.empty:
        return []
    if not len(found.max):
        return ["Nothing is ever slowed."]
    share, worst = table["share_slowed"], Episode(*(column[found.max.argmax()] for column in found))
    at = f"node {worst.node}, {worst.resource}, in the episode from {worst.start:g} s on"
    sentences = [
        f"{_count(len(found.max), 'episode')} of slowdown; a node's resource is slowed for "
        f"{share.mean():.1%} of the time in the mean ({share.min():.1%} to {share.max():.1%}), "
        f"by a factor of {table['mean_slowdown'].mean():.3g} then, and by {worst.max:.3g} at most "
        f"({at})."
    ]
    if end:
        lengths = np.sort(found.end - found.start)
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


def _covered(found: Episodes) -> float:
    """Seconds during which there is an episode anywhere."""
    until = np.append(0.0, np.maximum.accumulate(found.end)[:-1])
    return float(sum(np.maximum(found.end - np.maximum(found.start, until), 0.0).tolist()))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
