"""Describes a trace: how often, how long and how severely each node is slowed.

An *episode* is an unbroken stretch with slowdowns above 1.  Time runs from 0 to the trace's last
row; rows held or repeated after it do not count.  If all rows are at time 0, they are constants,
and a slowdown counts as the whole time.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag.trace.step_functions import owners
from simstrag.trace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

SLOWDOWN_COLUMNS = [
    "node", "resource", "episodes", "share_slowed", "mean_slowdown", "max_slowdown",
    "longest_clean", "first", "last",
]  # fmt: skip
OTHER_COLUMNS = ["node", "resource", "kind", "rows", "mean", "max", "first", "last"]


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """A trace in tables (DataFrames) and in one paragraph; times in seconds.

    slowdowns: a row per node and resource: host, if the trace has names; episodes; share_slowed, of
        the time; mean_slowdown, over the slowed time, NaN without any; max_slowdown; longest_clean,
        the longest stretch at 1 or below; first and last, the times of the first and last row.
    others: a row per node, resource and kind of utilisations and durations: rows, mean (over time;
        for durations over steps), max, first, last.
    text: a summary in a few sentences.
    """

    slowdowns: pd.DataFrame
    others: pd.DataFrame
    text: str


def episodes(trace: Trace) -> pd.DataFrame:
    """One row per episode in order of time: node, resource, start, end, mean and max slowdown.

    >>> trace = Trace.from_rows([(60, 3, "gpu", "slowdown", 2), (90, 3, "gpu", "slowdown", 1)])
    >>> episodes(trace)
       node resource  start   end  mean  max
    0     3      gpu   60.0  90.0   2.0  2.0
    """
    import pandas as pd

    stretches = _stretches(trace)
    stretches = stretches[stretches["slow"] & (stretches["kind"] == "slowdown")]
    columns = ["node", "resource", "start", "end", "mean", "max"]
    order = ["start", "node", "place"]
    return pd.DataFrame(stretches.sort_values(order)[columns]).reset_index(drop=True)


def describe(trace: Trace) -> TraceDescription:
    """Tables and a paragraph about a trace.

    >>> trace = Trace.from_rows([(60, 3, "gpu", "slowdown", 2), (80, 3, "gpu", "slowdown", 1)])
    >>> describe(trace).slowdowns[["node", "episodes", "share_slowed", "longest_clean"]]
       node  episodes  share_slowed  longest_clean
    0     3         1          0.25           60.0
    """
    import pandas as pd

    segments = dict(list(_segments(trace).groupby("history")))
    stretches = dict(list(_stretches(trace).groupby("history")))
    slowdowns: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for k, (key, rows) in enumerate(trace.by_key().items()):
        node, resource, kind = key
        row = {
            "node": node,
            "host": trace.names.get(node, ""),
            "resource": resource,
            "first": rows[0][0],
            "last": rows[-1][0],
        }
        held = segments[k]
        if kind == "slowdown":
            slow, clean = held["value"] > 1, stretches[k][~stretches[k]["slow"]]
            slowdowns.append(row | {
                "episodes": int(stretches[k]["slow"].sum()),
                "share_slowed": _mean(slow.astype(float), held["seconds"]),
                "mean_slowdown": _mean(held["value"][slow], held["seconds"][slow]),
                "max_slowdown": float(held["value"].max()),
                "longest_clean": float(clean["seconds"].max()) if len(clean) else 0.0,
            })  # fmt: skip
            continue
        values = [value for _, value in rows]
        over_time = kind != "duration"
        mean = _mean(held["value"], held["seconds"]) if over_time else sum(values) / len(values)
        others.append(row | {"kind": kind, "rows": len(values), "mean": mean, "max": max(values)})
    table = pd.DataFrame(slowdowns, columns=_named(SLOWDOWN_COLUMNS, trace))
    kinds = sorted({f"{resource} {kind}" for _, resource, kind in trace.keys})
    text = [
        f"{trace.source}: {_count(len(trace), 'row')} about {_count(len(trace.nodes), 'node')} "
        f"({', '.join(kinds)}), the last at {trace.end:g} s.",
        *_of_slowdowns(table, episodes(trace), trace), *_absent(trace),
        *_sped_up(trace), *_held(trace), *_of_others(others),
    ]  # fmt: skip
    columns = _named(OTHER_COLUMNS, trace)
    return TraceDescription(table, pd.DataFrame(others, columns=columns), " ".join(text))


def _named(columns: list[str], trace: Trace) -> list[str]:
    """The columns of a table, with `host` where the trace has names."""
    return [columns[0], "host", *columns[1:]] if trace.names else columns


def _call(trace: Trace, node: int) -> str:
    """A node by its name and number.

    >>> _call(Trace.from_rows([(0, 3, "gpu", "slowdown", 2.0)]), 3)
    'node 3'
    """
    name = trace.names.get(node)
    return f"{name} (node {node})" if name else f"node {node}"


def _segments(trace: Trace) -> pd.DataFrame:
    """Values from 0 to the end of the trace: history, start, end, seconds, value.

    In a trace without extent each history has one value, for 0 s.
    """
    import pandas as pd

    pieces = trace.histories.pieces()
    end = np.append(pieces.times[1:], trace.end)
    end[pieces.starts[1:] - 1] = trace.end
    seconds = end - pieces.times
    columns = {"start": pieces.times, "end": end, "seconds": seconds, "value": pieces.values}
    frame = pd.DataFrame({"history": owners(pieces.starts), **columns})
    return frame[(seconds > 0) | (trace.end == 0)]


def _stretches(trace: Trace) -> pd.DataFrame:
    """Consecutive segments of one history joined if all are slow or none is."""
    import pandas as pd

    segments = _segments(trace)
    segments["slow"] = segments["value"] > 1
    segments["area"] = segments["value"] * segments["seconds"]
    turns = segments[["history", "slow"]].ne(segments[["history", "slow"]].shift()).any(axis=1)
    stretches = segments.groupby(turns.cumsum()).agg(
        history=("history", "first"), slow=("slow", "first"), start=("start", "first"),
        end=("end", "last"), seconds=("seconds", "sum"), area=("area", "sum"),
        mean=("value", "first"), max=("value", "max"),
    )  # fmt: skip
    mean = stretches["area"] / stretches["seconds"]
    stretches["mean"] = stretches["mean"].where(stretches["seconds"] == 0, mean)
    keys = pd.DataFrame(trace.keys, columns=["node", "resource", "kind"])
    keys["place"] = trace.histories.resource
    return stretches.join(keys, on="history")


def _mean(values: Any, seconds: Any) -> float:
    """The mean over time; for a single instant the value itself."""
    if not len(values):
        return math.nan
    return float(np.average(values, weights=seconds) if seconds.sum() else values.iloc[0])


def _of_slowdowns(table: pd.DataFrame, found: pd.DataFrame, trace: Trace) -> list[str]:
    if table.empty:
        return []
    if found.empty:
        return ["Nothing is ever slowed."]
    share, worst = table["share_slowed"], found.iloc[found["max"].argmax()]
    who = f"{_call(trace, worst['node'])}, {worst['resource']}"
    sentences = [
        f"{_count(len(found), 'episode')} of slowdown; a node's resource is slowed for "
        f"{share.mean():.1%} of the time in the mean ({share.min():.1%} to {share.max():.1%}), "
        f"by a factor of {table['mean_slowdown'].mean():.3g} then, and by {worst['max']:.3g} at "
        f"most ({who}, in the episode from {worst['start']:g} s on)."
    ]
    if trace.end:
        lengths = np.sort(found["end"] - found["start"])
        until = found["end"].cummax().shift(fill_value=0.0)
        covered = (found["end"] - np.maximum(found["start"], until)).clip(lower=0).sum()
        sentences.append(
            f"Episodes last {lengths[len(lengths) // 2]:.4g} s in the median, {lengths[-1]:.4g} s "
            f"at most; some node is slowed for {covered / trace.end:.1%} of the time."
        )
    return sentences


def _absent(trace: Trace) -> list[str]:
    """Nodes between others without rows: forgotten, or never slowed."""
    gaps = (range(a + 1, b) for a, b in itertools.pairwise(trace.nodes))
    absent = list(map(str, itertools.islice(itertools.chain.from_iterable(gaps), 5)))
    if len(absent) < 2:
        return [f"Node {node} has no rows, and counts as clean." for node in absent]
    return [f"Nodes {', '.join(_first(absent))} have no rows, and count as clean."]


def _sped_up(trace: Trace) -> list[str]:
    """Slowdowns below 1: a mistake in the trace, or intended, which a scenario has to say."""
    first = trace.find_first(lambda rows: rows.speeds_up) if trace.speeds_up else None
    if first is None:
        return []
    rows, where = int(trace.changes.speeds_up.sum()), first[0].removeprefix(f"{trace.source}, ")
    return [
        f"{_count(rows, 'row')} with a slowdown below 1, counted as clean here (the first is "
        f"{where}, with {first[1].value:g}): a scenario refuses that unless it says "
        "allow_speedup: true."
    ]


def _held(trace: Trace) -> list[str]:
    """The nodes that are slow at the last row, which `trace_end: hold` continues for ever."""
    last = trace.histories.value[trace.histories.starts[1:] - 1].tolist()
    slow = [
        f"{_call(trace, node)} {resource} {value:g}x"
        for (node, resource, kind), value in zip(trace.keys, last, strict=True)
        if kind == "slowdown" and value > 1 and trace.end > 0
    ]
    said = "Held after the end unless trace_end says otherwise, and not counted here"
    return [f"{said}: {', '.join(_first(slow))}."] if slow else []


def _of_others(rows: list[dict[str, Any]]) -> list[str]:
    sentences = []
    recorded = [row for row in rows if row["kind"] == "duration"]
    if recorded:
        means = [row["mean"] for row in recorded]
        steps = _count(sum(row["rows"] for row in recorded), "recorded step")
        sentences.append(
            f"{steps}; a node's mean step takes {min(means):.4g} to {max(means):.4g} s."
        )
    delays = [row["max"] for row in rows if row["kind"] == "delay"]
    if delays:
        sentences.append(f"Messages of a node take at most {max(delays):.4g} s more each.")
    if len(recorded) + len(delays) < len(rows):
        sentences.append(
            "Utilisation is simulated only with a profile whose response makes slowdowns of it."
        )
    return sentences


def _first(words: list[str]) -> list[str]:
    """The first four words, with dots for more."""
    return words[:4] + ["..."] * (len(words) > 4)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
