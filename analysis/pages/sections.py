"""The parts of a report that show runs: curves, timelines, who waited for whom, where time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from simstrag.analysis.charts import drawing, pictures, timeline
from simstrag.analysis.derived.examples import Example, close_look, excerpts
from simstrag.analysis.derived.waiting import Waiting
from simstrag.analysis.tables.comparison_tables import CONTROL
from simstrag.analysis.tables.standings import TIMES, Standings
from simstrag.analysis.tables.table import Number, Table, Value
from simstrag.analysis.text.cautions import unknown
from simstrag.analysis.text.number_format import number, percent
from simstrag.experiments.compare import BASELINE, Comparison

__all__ = [
    "costs_picture",
    "interval_picture",
    "looks",
    "means_of",
    "not_drawn",
    "parts_of",
    "progress_axis",
    "progress_picture",
    "progress_series",
    "spent",
    "spent_by_rank",
    "target_level",
    "timelines",
    "waits",
]  # fmt: skip

Floats = npt.NDArray[np.float64]


def looks(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """One colour and dash per policy for all charts; bsp has the colour of the text."""
    others = [name for name in comparison.policies if name != BASELINE]
    return {
        BASELINE: {"color": drawing.INK, "linestyle": "-"},
        CONTROL: {"color": drawing.INK, "linestyle": drawing.DASHES[1]},
        **{name: drawing.style_of(k) for k, name in enumerate(others)},
    }


def costs_picture(s: Standings) -> Markup:
    """Time to target under every cost of staleness."""
    series = {p.policy: [s.mean(s.at_cost(p.policy, c)) for c in s.costs] for p in s.policies}
    axes = "cost of a stale sample, c_tau", f"{TIMES['time_to_target']} (s)"
    return pictures.lines(
        "costs", "Time to target by c_tau", axes, s.costs, series, looks(s.comparison)
    )


def interval_picture(s: Standings) -> Markup:
    """Speed-up of every policy with its interval, beside bsp and beside no contention."""
    rows = [(p.policy, [p.speedup[n] for n in s.times]) for p in s.policies]
    marks = {"bsp": 1.0, "no contention": s.clean_speedup[s.decides].value}
    return pictures.intervals(
        "speedups", "Speed-up over bsp with 95 % intervals", "speed-up over bsp", rows,
        [f"by {TIMES[n]}" for n in s.times], marks,
    )  # fmt: skip


def progress_axis(s: Standings) -> str:
    """What progress is shown as."""
    declared = s.comparison.scenario.learner.curve is not None
    return "accuracy" if declared else "progress (noise-free updates)"


def progress_picture(s: Standings) -> Markup:
    """Progress, or accuracy where a curve is declared, over time: mean and range over seeds."""
    return pictures.curves(
        "progress", "Progress over time of every policy", ("time (s)", progress_axis(s)),
        progress_series(s), target_level(s), looks(s.comparison),
    )  # fmt: skip


def target_level(s: Standings) -> float | None:
    """The target as `progress_axis` has it, None without one."""
    target = s.comparison.scenario.progress_target
    return None if target is None else float(_level(s, target))


def progress_series(s: Standings) -> dict[str, tuple[Floats, Floats, Floats, Floats]]:
    """For each policy of known progress (mean, least, most time over seeds, level), each (L,)."""
    comparison = s.comparison
    series = {}
    wanted = [("contended", name, name) for name in dict.fromkeys([BASELINE, *comparison.policies])]
    for variant, policy, word in [*wanted, ("clean", BASELINE, CONTROL)]:
        table = comparison.curves
        rows = table[(table["variant"] == variant) & (table["policy"] == policy)]
        seeds = [group for _, group in rows.groupby("seed")]
        if not seeds:  # its progress is unknown
            continue
        levels = np.linspace(0.0, min(g["progress"].max() for g in seeds), 101)
        times = np.array([np.interp(levels, g["progress"], g["time"]) for g in seeds])
        spread = times.mean(axis=0), times.min(axis=0), times.max(axis=0)
        series[word] = *spread, _level(s, levels)
    return series


def _level(s: Standings, progress: Any) -> Any:
    """Progress as accuracy where a curve is declared, NaN beyond it."""
    curve = s.comparison.scenario.learner.curve
    if curve is None:
        return progress
    p, a = np.array(curve).T
    return np.interp(progress, p, a, left=np.nan, right=np.nan)


def not_drawn(s: Standings) -> str:
    """Which policies have no curve of progress, and why; empty where all have one."""
    if not s.unknown:
        return ""
    return f"Not drawn, because nobody can tell their progress: {unknown(s)}."


def timelines(examples: Sequence[Example], workers: int) -> dict[str, Any]:
    """The worker-by-time pictures on common axes: what the template shows of them."""
    contended = [e for e in examples if e.timing is not None and e.timing.contention.slowdowns]
    longest = max(e.end for e in examples)
    shown = close_look(examples, workers)
    entries = []
    for k, e in enumerate(examples):
        words = f"Steps of {e.name}, {shown.start:.4g} to {shown.end:.4g} s"
        window = timeline.window(f"window{k}", words, e.run, e.steps, e.timing, shown)
        strip = timeline.run_strip(
            f"strip{k}", f"The whole run of {e.name}", e.run, e.steps, e.timing, workers, longest,
            shown,
        )  # fmt: skip
        entries.append((e.name, window, strip))
    picture = Markup()
    if contended:
        timing = contended[0].timing
        assert timing is not None
        picture = timeline.contention_strip(
            "contention", "Slowdown of every rank over time", timing, workers, longest, shown
        )
    return {
        "shown": shown,
        "left_out": workers - len(shown.ranks),
        "excerpts": excerpts(examples, workers),
        "contention": picture,
        "entries": entries,
        "switch": max((e.timing.step.amp_switch for e in examples if e.timing), default=0.0),
    }


def waits(examples: Sequence[Example]) -> list[tuple[str, str, Markup]]:
    """For each run its name, a sentence on who waited for whom, and the matrix if there is one."""
    seconds = [e.waiting.held + e.waiting.blocked for e in examples]
    most = max((float(m.max(initial=0.0)) for m in seconds), default=0.0)
    found = []
    for k, (e, m) in enumerate(zip(examples, seconds, strict=True)):
        picture = Markup()
        if m.any():
            words = f"Who waited for whom under {e.name}"
            picture = pictures.matrix(f"waiting{k}", words, m, most)
        found.append((e.name, _waiting_sentence(e.waiting), picture))
    return found


def _waiting_sentence(w: Waiting) -> str:
    total = f"The ranks waited {number(w.total)} s in all"
    if w.reason:
        return f"{total}; for whom is not shown: {w.reason}."
    parts = []
    if w.held.any():
        parts.append(f"{number(float(w.held.sum()))} s for the last gradient of an update")
    if w.blocked.any():
        parts.append(f"{number(float(w.blocked.sum()))} s at the bound for a rank behind")
    if w.elsewhere > 1e-9 * max(w.total, 1.0):
        rest = "for no rank (the server's queue, an update under way, being left out)"
        parts.append(f"{number(w.elsewhere)} s {rest}")
    if not parts:
        return "No rank ever waited."
    text = f"{total}: {', '.join(parts)}."
    if w.by_rank.any():
        slowest = int(np.argmax(w.by_rank))
        share = float(w.by_rank[slowest] / w.by_rank.sum())
        text += f" Of waiting for ranks, {percent(share, 2)} % was for rank {slowest}."
    return text


def spent(examples: Sequence[Example], workers: int) -> tuple[Markup, Table]:
    """Where the time of the ranks went, as a picture and a table of means over ranks."""
    parts = [(e.name, means_of(e, workers)) for e in examples]
    picture = pictures.spent(
        "spent", "Seconds of a rank by what it did", "seconds of a rank, mean over ranks", parts
    )
    rows = tuple(
        (
            name,
            Number.of(sum(p.values()), 4),
            *(Number.percent(v / sum(p.values())) for v in p.values()),
        )
        for name, p in parts
    )
    return picture, Table(("policy", "run (s)", *(f"{word} (%)" for word in DID.values())), rows)


def spent_by_rank(examples: Sequence[Example], workers: int) -> tuple[Markup, Table]:
    """The same of every rank, as a picture and as numbers in seconds."""
    parts = {e.name: parts_of(e, workers) for e in examples}
    rows: list[tuple[Value, ...]] = [
        (policy, rank, *(float(values[rank]) for values in own.values()))
        for policy, own in parts.items()
        for rank in range(workers)
    ]
    columns = "policy", "rank", *(f"{word} (s)" for word in DID.values())
    picture = pictures.spent_by_rank("spent-by-rank", "Seconds of every rank", parts)
    return picture, Table(columns, tuple(rows))


def means_of(e: Example, workers: int) -> dict[str, float]:
    """Mean seconds of a rank by what it did."""
    return {name: float(values.mean()) for name, values in parts_of(e, workers).items()}


DID = {
    "full": "computing in full precision", "amp": "computing in AMP",
    "lost": "computing thrown away", "communication": "communication", "wait": "waiting",
}  # fmt: skip
"""What a rank did, in the order of the bars."""


def parts_of(e: Example, workers: int) -> dict[str, Floats]:
    """Seconds of each rank by what it did, shape (workers,).

    Computing that no recorded step accounts for goes by the rank's share of either precision.  Of
    an excerpt, these are the totals of all steps that go with it.
    """

    def worked(chosen: npt.NDArray[np.bool_]) -> Floats:
        seconds = np.clip(e.steps.finish - e.steps.start, 0.0, None)
        ranks = e.steps.rank[chosen]
        return np.asarray(np.bincount(ranks, seconds[chosen], workers), dtype=np.float64)

    if e.run.excerpt is None:
        lost, kept = worked(e.steps.lost), worked(~e.steps.lost)
        reduced = worked(~e.steps.lost & e.steps.amp)
    else:
        full, reduced, lost = (
            np.array(e.run.excerpt[f"{name}_by_rank"]) for name in ("full", "amp", "lost")
        )
        kept = full + reduced
    amp = reduced / np.where(kept > 0, kept, 1.0)
    compute, communication, wait = (
        np.array(e.run.summary[f"{name}_by_rank"], dtype=np.float64)
        for name in ("compute", "communication", "wait")
    )
    done = compute - lost
    return {
        "full": done * (1 - amp), "amp": done * amp, "lost": lost,
        "communication": communication, "wait": wait,
    }  # fmt: skip
