"""The timeline of a run: what each rank did when, over the slowdown of its node.

A close look shows single steps; a strip shows the whole run in coarse bins.  All timelines of a
page share one time axis, so that policies can be compared by eye.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb

from simstrag.analysis.charts import chart as spec
from simstrag.analysis.charts.chart import Bars, Chart, Events, Image, Mark, Rule
from simstrag.analysis.charts.matplotlib_renderer import pixels
from simstrag.analysis.derived.example_runs import Example
from simstrag.analysis.derived.phase_intervals import (
    COMMUNICATION,
    COMPUTE,
    WAITING,
    Phases,
    Spans,
    segments,
)
from simstrag.analysis.derived.steps import RunSteps, fates_of, plan_changes, suspicions
from simstrag.analysis.derived.timeline_excerpt import (
    CloseLook,
    bin_means,
    changes,
    cycle_of,
    kept_of,
)
from simstrag.analysis.text.number_format import number
from simstrag.arrays import Floats
from simstrag.runs.run import Run
from simstrag.timing.timing import Timing
from simstrag.trace.slowdown import Piecewise
from simstrag.trace.step_functions import Pieces

MOST = 100_000
"""Steps, updates and changes of slowdown that all timelines of a page may draw."""
BINS = 360
FULLEST = 2.5
FADED = 0.35
"""Opacity of discarded work in a strip; the legend's swatch has the same."""
UPDATES, PLAN = -1.0, -2.0
"""Rows above that of the first rank: updates, and changes of plan."""
LEVELS = (1.0, 1.25, 1.75)
"""Slowdowns from which on the shade is mild, middle, strong."""
PARTS = {
    "full": ("full precision", 0.62, "computes step {step}"),
    "amp": ("reduced precision", 0.62, "computes step {step} in reduced precision"),
    "full, lost": ("thrown away", 0.5, "computes step {step}, for nothing"),
    "amp, lost": ("thrown away", 0.5, "computes step {step} in reduced precision, for nothing"),
    "wait": ("waiting", 0.16, "waits"),
    "blocked": ("waiting", 0.28, "is blocked"),
    "communication": ("communication", 0.4, "is busy with {how}"),
}
"""Parts of a step: word in a legend, height, and tooltip."""
FACTS = (("", "rank @rank @what"), ("", "@left{t} to @right{t} s@more"))
"""The tooltip of a bar."""


class SlowdownSpan(NamedTuple):
    """A rank's constant slowdown from start to end, in seconds.

    network: whether it slows the rank's network and not its steps.
    """

    rank: int
    start: float
    end: float
    factor: float
    network: bool

    @property
    def level(self) -> int | None:
        """0, 1, 2: mild, middle, strong; None without slowdown."""
        return None if self.factor <= 1 + 1e-9 else sum(self.factor >= at for at in LEVELS) - 1


class Scope(NamedTuple):
    """The part of runs that their timelines draw.

    shown: the first view.
    start, end: seconds between which single steps are drawn.
    until: the end of the longest run.
    digits: decimals of a second that are kept.
    """

    shown: CloseLook
    start: float
    end: float
    until: float
    digits: int

    @property
    def left_out(self) -> str:
        """A sentence on the time that is not drawn; empty where all is."""
        if self.start <= 0.0 and self.end >= self.until:
            return ""
        drawn = f"{number(self.start, 4)} to {number(self.end, 4)}"
        return f"Single steps are drawn from {drawn} s of {number(self.until, 4)} s."


def scope_of(examples: Sequence[Example], shown: CloseLook, most: int = MOST) -> Scope:
    """As much time around the close look as `most` allows, all runs taken together."""
    until = max(e.end for e in examples)
    times: list[Any] = []
    for e in examples:
        times += [e.steps.start[np.isin(e.steps.rank, shown.ranks)], e.run.updates["time"]]
        if e.timing is not None:
            times.append([c.time for c in changes(e.timing.contention, until)])
    every = np.concatenate([np.asarray(column, dtype=np.float64) for column in times])
    beyond = np.sort(np.maximum(np.maximum(shown.start - every, every - shown.end), 0.0))
    room = float(beyond[most]) if len(beyond) > most else math.inf
    cycle = cycle_of([e.steps for e in examples])
    digits = max(0, 2 - math.floor(math.log10(cycle))) if cycle > 0 else 4
    low, high = kept_of(examples, cycle).around(shown.start)
    start, end = max(shown.start - room, low), min(shown.end + room, high, until)
    return Scope(shown, start, end, until, digits)


# -- the chart -----------------------------------------------------------------------------------


def timeline(
    e: Example, ranks: Sequence[int], start: float, end: float, digits: int = 6,
    events: bool = True,
) -> Chart:  # fmt: skip
    """The timeline of a run between two times, in seconds.

    events: whether it has rows of updates and of changes of plan, and marks of suspicions.
    """
    rows = {rank: row for row, rank in enumerate(ranks)}
    marks: list[Mark] = [*_slowdowns(e.timing, rows, start, end), *_parts(e, rows, start, end)]
    named = {float(row): f"rank {rank}" for rank, row in rows.items()}
    top = 0.1
    if events:
        plans = _plan_changes(e.run, start, end, len(rows))
        marks += [*_suspicions(e.run, rows, start, end), _updates(e.run, start, end), *plans]
        top = PLAN if plans else UPDATES
        named |= {UPDATES: "updates"} | ({PLAN: "plan"} if plans else {})
    return Chart(
        f"Steps of {e.name}, {start:.4g} to {end:.4g} s", "time (s)", "", marks, named,
        (start, end), (len(rows) - 0.4, top - 0.6), (spec.WIDTH, 0.5 + 0.17 * (len(rows) - top)),
        round(70 + 19 * (len(rows) - top)), "", False, digits,
    )  # fmt: skip


def _parts(e: Example, rows: dict[int, int], start: float, end: float) -> Iterator[Bars]:
    steps = e.steps
    shown = np.isin(steps.rank, list(rows))
    drawn = np.flatnonzero(shown & (steps.start < end) & (steps.finish > start))
    columns_of = drawn.tolist(), fates_of(e.run, steps, drawn), steps.version[drawn].tolist()
    fates = {
        k: fate.word
        if fate.update is None
        else f"{fate.word} in update {fate.update}, staleness {fate.update - 1 - version}"
        for k, fate, version in zip(*columns_of, strict=True)
    }
    for part, own in parts_of_steps(steps, e.phases).items():
        near = shown[own.row] & (own.right > own.left)
        kept = own.chosen(near & (own.left < end) & (own.right > start))
        if len(kept.row):
            name, height, text = PARTS[part]
            what = [
                text.format(step=steps.step[row], how=e.phases.word(row, kind))
                for row, kind in zip(kept.row.tolist(), kept.kind.tolist(), strict=True)
            ]
            more = [f"; {fates[k]}" if "computes" in text else "" for k in kept.row.tolist()]
            ranks = steps.rank[kept.row].astype(np.int32)
            columns = {"rank": ranks, "what": what, "more": more}
            row = np.array([rows[r] for r in ranks.tolist()], dtype=np.int32)
            yield Bars(name, part, kept.left, kept.right, row, height, columns, FACTS)


def _slowdowns(
    timing: Timing | None, rows: dict[int, int], start: float, end: float
) -> Iterator[Bars]:
    """Shades behind the ranks: slowdowns of steps, and over them slowdowns of the network."""
    if timing is None:
        return
    found = defaultdict(list)
    for span in slowdown_spans(timing, list(rows), start, end):
        if span.level is not None:
            found[span.network, span.level].append(span)
    names = [f"slowed {low:g}-{high:g}x" for low, high in itertools.pairwise(LEVELS)]
    names.append(f"slowed > {LEVELS[-1]:g}x")
    for (network, level), spans in sorted(found.items()):
        kind, height, of = "slowed", 1.0, "over a step in full precision"
        if network:
            kind, height, of = "network", 0.9, "to communicate"
        ranks, left, right, factors, _ = zip(*spans, strict=True)
        what = [f"takes {factor:.3g} times as long {of}" for factor in factors]
        columns = {"rank": list(ranks), "what": what, "more": [""] * len(ranks)}
        yield Bars(
            "network slowed" if network else names[level], f"{kind} {level}", np.array(left),
            np.array(right), np.array([rows[rank] for rank in ranks]), height, columns, FACTS,
            below=True,
        )  # fmt: skip


def _suspicions(run: Run, rows: dict[int, int], start: float, end: float) -> Iterator[Bars]:
    first, last = (0.0, math.inf) if run.excerpt is None else (start, end)  # else not known
    found = [s for s in suspicions(run) if s.rank in rows and s.start < end and s.end > start]
    if found:
        what = ["is suspected by the policy"] * len(found)
        columns = {"rank": [s.rank for s in found], "what": what, "more": [""] * len(found)}
        left = np.array([max(s.start, first) for s in found])
        right = np.array([min(s.end, last) for s in found])
        row = np.array([rows[s.rank] - 0.42 for s in found])
        yield Bars("", "suspect", left, right, row, 0.11, columns, FACTS, reach=0.22)


def _updates(run: Run, start: float, end: float) -> Events:
    u = run.updates
    times = np.asarray(u["time"], dtype=np.float64)
    kept = (times >= start) & (times <= end)
    version, gradients, stale, most = (
        np.asarray(u[name])[kept].tolist()
        for name in ("version", "n_own", "staleness_mean", "staleness_max")
    )
    columns = {
        "version": version,
        "gradients": gradients,
        "stale": [f"{mean:.3g}" for mean in stale],
        "most": most,
    }
    facts = (
        ("update", "@version"), ("time (s)", "@time{t}"),
        ("gradients", "@gradients"), ("staleness", "@stale in the mean, @most at most"),
    )  # fmt: skip
    return Events(times[kept], UPDATES, None, columns, facts)


def _plan_changes(run: Run, start: float, end: float, ranks: int) -> list[Events]:
    found = [c for c in plan_changes(run) if start <= c.time <= end]
    if not found:
        return []
    columns = {"update": [c.update for c in found], "what": [c.what for c in found]}
    facts = (("the plan changes", "@what"), ("time (s)", "@time{t}"), ("update", "@update"))
    times = np.array([c.time for c in found])
    return [Events(times, PLAN, ranks - 0.5, columns, facts)]


# -- what it is drawn from -----------------------------------------------------------------------


def parts_of_steps(steps: RunSteps, phases: Phases) -> dict[str, Spans]:
    """The parts of every step's time, by the keys of `PARTS`; a rank is blocked after it waits."""
    computing, waiting = phases.spans(COMPUTE), phases.spans(*WAITING)
    of_both = waiting.right - waiting.left
    own, last = of_both[::2], np.minimum(steps.blocked, of_both[1::2])
    blocked = np.stack([np.minimum(steps.blocked - last, own), last], axis=1).ravel()
    parts = {
        "wait": waiting._replace(right=waiting.right - blocked),
        "blocked": waiting._replace(left=waiting.right - blocked),
        "communication": phases.spans(*COMMUNICATION),
    }
    for key, chosen in (("full", ~steps.amp), ("amp", steps.amp)):
        parts[key] = computing.chosen(chosen & ~steps.lost)
        parts[f"{key}, lost"] = computing.chosen(chosen & steps.lost)
    return {part: parts[part] for part in PARTS}


def slowdown_of(timing: Timing, rank: int) -> Piecewise:
    """The factor by which contention stretches a full-precision step of a rank."""
    f, clean = timing.stretch(rank, amp=False), timing.step.clean
    if timing.step.overlaps:
        f = Pieces.of_each([timing.launching(rank, amp=False), f]).largest()
    return Piecewise(f.times, tuple(value / clean for value in f.values), f.period)


def slowdown_spans(
    timing: Timing, ranks: Sequence[int], start: float, end: float
) -> Iterator[SlowdownSpan]:
    """The slowdowns of ranks and of their networks between two times, factor 1 included."""
    for rank in ranks:
        network = timing.contention.of_rank(rank, "net")
        for of_network, slowdown in ((False, slowdown_of(timing, rank)), (True, network)):
            for low, high, factor in segments(slowdown, start, end):
                yield SlowdownSpan(rank, low, high, factor, of_network)


# -- strips of a whole run -----------------------------------------------------------------------


def run_strip(e: Example, until: float, shown: CloseLook) -> Chart:
    """The activity of every rank during the whole run, as a strip."""
    ranks = range(e.workers) if e.run.excerpt is None else list(e.run.excerpt["ranks"])
    rgba = mix_parts(e, ranks, until)
    return _strip(f"The whole run of {e.name}", rgba, ranks, until, shown)


def contention_strip(timing: Timing, workers: int, until: float, shown: CloseLook) -> Chart:
    """The slowdown of every rank over the whole run."""
    rgba = mix_slowdowns(timing, workers, until)
    return _strip("Slowdown of every rank over time", rgba, range(workers), until, shown)


def _strip(label: str, rgba: Floats, ranks: Sequence[int], until: float, shown: CloseLook) -> Chart:
    """Pixels over the whole run, a row per rank; two upright lines enclose the close look."""
    n = len(ranks)
    edges = [Rule(shown.start, "x"), Rule(shown.end, "x")]
    marks: list[Mark] = [Image(rgba, (0.0, until, n - 0.5, -0.5)), *edges]
    names = {float(row): f"rank {ranks[row]}" for row in sorted({0, n - 1})}
    height = min(max(n, 4), 32)
    return Chart(
        label, "time (s)", "", marks, names, (0.0, until), (n - 0.5, -0.5),
        (spec.WIDTH, 0.42 + 0.07 * height), 46 + 7 * height, "", False,
    )  # fmt: skip


def mix_parts(e: Example, ranks: Sequence[int], until: float) -> Floats:
    """Colours mixed by their share of each bin, shape (ranks, BINS, 4), of 0..1.

    Discarded work counts `FADED` of its share, so that the page shines through.  The windows of an
    excerpt stand for their whole periods.
    """
    edges = np.linspace(0.0, until, BINS + 1)
    low, high = edges[:-1], edges[1:]
    excerpt = e.run.excerpt
    windows = excerpt is not None and excerpt["period"] is not None
    if excerpt is not None and windows:
        middle, period = (low + high) / 2, excerpt["period"]
        low = np.where(middle < e.end, np.floor(middle / period) * period, until)
        high = low + excerpt["window"]
    rgba = np.zeros((len(ranks), BINS, 4))
    covered = np.zeros((len(ranks), BINS, 1))
    wanted = np.array(ranks)
    for part, spans in parts_of_steps(e.steps, e.phases).items():
        paint = spec.PAGE.paints[part]
        opacity = FADED if paint.face is None else 1.0
        color = np.array(to_rgb(paint.face or paint.edge or ""))
        owners = e.steps.rank[spans.row]  # ascending
        bounds = np.searchsorted(owners, np.stack([wanted, wanted + 1], axis=1)).tolist()
        for row, (first, last) in enumerate(bounds):
            whole = _share(spans.left[first:last], spans.right[first:last], low, high)
            share = opacity * whole
            rgba[row, :, :3] += share[:, None] * color
            rgba[row, :, 3] += share
            covered[row, :, 0] += whole
    alpha = rgba[:, :, 3:]
    np.divide(rgba[:, :, :3], alpha, out=rgba[:, :, :3], where=alpha > 0)
    if windows:
        np.divide(alpha, covered, out=alpha, where=covered > 0)
    return np.clip(rgba, 0.0, 1.0)


def mix_slowdowns(timing: Timing, workers: int, until: float) -> Floats:
    """Mean slowdown of each rank in each bin: of its steps or its network, whichever is larger.

    Colours of shape (workers, BINS, 4), of 0..1; fullest at `FULLEST`.
    """
    edges = np.linspace(0.0, until, BINS + 1)
    stretch = np.array([bin_means(slowdown_of(timing, rank), edges) for rank in range(workers)])
    net = np.array([bin_means(timing.contention.of_rank(r, "net"), edges) for r in range(workers)])
    rgba = pixels(spec.CONTENTION, (stretch - 1) / (FULLEST - 1))
    network = net > stretch
    rgba[network] = pixels(spec.NET, (net - 1) / (FULLEST - 1))[network]
    return rgba


def _share(left: Floats, right: Floats, low: Floats, high: Floats) -> Floats:
    """The share of each bin that intervals cover; the intervals are ordered and disjoint."""
    kept = right > left
    if not kept.any():
        return np.zeros(len(low))
    left, right = left[kept], right[kept]
    times = np.stack([left, right], axis=1).ravel()
    covered = np.repeat(np.cumsum(right - left), 2)
    covered[::2] -= right - left
    until_high, until_low = (np.interp(ends, times, covered) for ends in (high, low))
    return np.asarray((until_high - until_low) / (high - low))
