"""Tables of single runs: steps, slowdowns, waiting, where time went, staleness by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simstrag.analysis.charts.timeline import slowdown_spans
from simstrag.analysis.derived.example_runs import Example
from simstrag.analysis.derived.timeline_excerpt import CloseLook
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.number_format import join
from simstrag.arrays import Floats, Ints
from simstrag.runs.run import Run

DID = {
    "full": "computing in full precision", "amp": "computing in reduced precision",
    "lost": "computing thrown away", "communication": "communication", "wait": "waiting",
}  # fmt: skip
SHARES = {"least": 0.0, "lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75, "most": 1.0}


def accuracy(run: Run) -> Table | None:
    """The evaluations of a real learner, unrounded; None where no model learned."""
    if run.evaluations is None:
        return None
    headers = ("time (s)", "updates", "samples", "accuracy", "loss")
    return Table(headers, tuple(zip(*run.evaluations.values(), strict=True)))


def steps_table(examples: Sequence[Example], shown: CloseLook) -> Table:
    """The steps of the close look, each whole even where the picture cuts it off."""
    rows: list[tuple[Any, ...]] = []
    for e in examples:
        t = e.steps
        near = np.isin(t.rank, shown.ranks) & (t.start < shown.end)
        near &= np.maximum(t.gap_end, t.finish) > shown.start
        columns = (t.rank, t.start, t.finish, t.wait, t.gap_end, t.amp, t.lost)
        rows += [
            (e.name, *times, ("full", "amp")[amp], str(lost))
            for *times, amp, lost in zip(*(c[near].tolist() for c in columns), strict=True)
        ]
    headers = (
        "policy", "rank", "computes from (s)", "to (s)", "waited (s)",
        "computes again, or its update is made, at (s)", "precision", "thrown away",
    )  # fmt: skip
    return Table(headers, tuple(rows))


def slowdown_table(examples: Sequence[Example], shown: CloseLook) -> Table | None:
    """Slowdown of the ranks of the close look over the longest run; None without contention."""
    timing = next((e.timing for e in examples if e.timing and e.timing.contention.slowdowns), None)
    if timing is None:
        return None
    until = max(e.end for e in examples)
    rows = [
        (s.rank, "network" if s.network else "step in full precision", s.start, s.end, s.factor)
        for s in slowdown_spans(timing, shown.ranks, 0.0, until)
    ]
    return Table(("rank", "what", "from (s)", "to (s)", "slowdown (factor)"), tuple(rows))


def waits_table(examples: Sequence[Example]) -> Table:
    """Seconds that ranks waited for ranks, longest first; pairs without waiting are left out."""
    rows: list[tuple[Any, ...]] = []
    for e in examples:
        seconds = e.waiting.held + e.waiting.blocked
        pairs = zip(*(side.tolist() for side in np.nonzero(seconds > 0)), strict=True)
        rows += [(e.name, rank, other, float(seconds[rank, other])) for rank, other in pairs]
    rows.sort(key=lambda row: -row[-1])
    return Table(("policy", "rank that waited", "for rank", "waited (s)"), tuple(rows))


def time_table(parts: Mapping[str, Mapping[str, float]]) -> Table:
    """Where the time of the ranks went, in shares of the run."""
    rows = tuple(
        (name, Number.of(total, 4), *(Number.percent(value / total) for value in own.values()))
        for name, own in parts.items()
        for total in [sum(own.values())]
    )
    return Table(("policy", "run (s)", *(f"{word} (%)" for word in DID.values())), rows)


def time_by_rank(parts: Mapping[str, Mapping[str, Floats]]) -> Table:
    """Seconds of every rank by activity."""
    rows = tuple(
        (name, rank, *values)
        for name, own in parts.items()
        for rank, values in enumerate(zip(*(v.tolist() for v in own.values()), strict=True))
    )
    return Table(("policy", "rank", *(f"{word} (s)" for word in DID.values())), rows)


# -- staleness -----------------------------------------------------------------------------------


class Staleness(NamedTuple):
    """The gradients that one run applied.

    rank: of each gradient, shape (G,).
    versions: staleness of each gradient, shape (G,).
    applied: the run's own count; G is smaller where the log lacks gradients.
    excerpt: whether only an excerpt of the steps was kept.
    """

    name: str
    rank: Ints
    versions: Ints
    applied: int
    excerpt: bool = False

    def quantiles(self, workers: int) -> Floats:
        """Staleness of each rank at the shares of `SHARES`, shape (workers, 5); NaN without any.

        Every number is the staleness of a gradient: nothing is interpolated.
        """
        rows = np.full((workers, len(SHARES)), np.nan)
        for rank in range(workers):
            own = self.versions[self.rank == rank]
            if len(own):
                rows[rank] = np.quantile(own, list(SHARES.values()), method="inverted_cdf")
        return rows

    @property
    def caption(self) -> str:
        """A sentence on the gradients that the log lacks; empty where it lacks none."""
        found = len(self.versions)
        if self.applied == found:
            return ""
        if self.excerpt:
            return f"The excerpt holds {found} of the {self.applied} applied gradients."
        missing = self.applied - found
        return f"The log lacks {missing} of the {self.applied} applied gradients."


def staleness_of(examples: Sequence[Example]) -> list[Staleness]:
    """The runs that applied a stale gradient."""
    found = []
    for e in examples:
        excerpt, applied = e.run.excerpt is not None, e.steps.applied > 0
        rank, versions = e.steps.rank[applied], (e.steps.applied - 1 - e.steps.version)[applied]
        if e.run.gradients is not None:  # also has gradients without a row in the steps table
            table = e.run.frame("gradients").query("fate == 'applied'")
            rank = table["rank"].to_numpy(dtype=np.int64)
            versions = (table["update"] - 1 - table["version"]).to_numpy(dtype=np.int64)
        stale = e.run.summary["mean_staleness"] > 0 if excerpt else np.any(versions > 0)
        if stale and len(versions):
            count = int(e.run.summary["applied"])
            found.append(Staleness(e.name, rank, versions, count, excerpt))
    return found


def staleness_table(found: Sequence[Staleness]) -> Table:
    """Mean, median, 95th percentile and most over all gradients of each run."""
    headers = ("policy", "gradients", "mean", "median", "95th percentile", "most")
    rows = []
    for s in found:
        levels = np.quantile(s.versions, (0.5, 0.95, 1.0), method="inverted_cdf")
        mean = float(s.versions.mean())
        levels_shown = (Number.of(int(level)) for level in levels)
        rows.append((s.name, Number.of(len(s.versions)), Number.of(mean), *levels_shown))
    notes: tuple[str, ...] = (
        "In versions: updates between a gradient's pull and its application. An update may hold "
        "one gradient under one policy and many under another, so compare the cost of staleness by "
        "S_stale/b above.",
    )
    if excerpts := [s.name for s in found if s.excerpt]:
        notes += (f"Only an excerpt of the gradients of {join(excerpts)} was kept.",)
    return Table(headers, tuple(rows), 1, (), notes)


def staleness_by_rank(found: Sequence[Staleness], workers: int) -> Table:
    """The spread of every rank of every run."""
    rows = tuple(
        (s.name, rank, int(np.sum(s.rank == rank)), *map(float, spread))
        for s in found
        for rank, spread in enumerate(s.quantiles(workers))
    )
    headers = ("policy", "rank", "gradients", *(f"{word} (versions)" for word in SHARES))
    return Table(headers, rows)
