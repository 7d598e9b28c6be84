"""How stale gradients were when they were applied, rank by rank, in runs that kept their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from simstrag.analysis.charts import pictures
from simstrag.analysis.derived.examples import Example
from simstrag.analysis.derived.waiting import Steps
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.number_format import listed
from simstrag.runs.run import Run

__all__ = ["Stale", "quantiles", "stale_by_rank", "stale_of", "stale_pictures", "stale_table"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SHARES = {"least": 0.0, "lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75, "most": 1.0}


class Stale(NamedTuple):
    """The gradients that one run applied.

    rank: of each, shape (G,).  versions: staleness of each, shape (G,).  applied: how many the run
    itself counted; where its log tells of fewer, G is less.  excerpt: whether that is because only
    an excerpt of its steps was kept.
    """

    name: str
    rank: Ints
    versions: Ints
    applied: int
    excerpt: bool = False

    @property
    def missing(self) -> int:
        """Applied gradients of which the log does not tell the staleness."""
        return self.applied - len(self.versions)


def stale_of(examples: Sequence[Example]) -> list[Stale]:
    """Of every run that applied any stale gradient."""
    found = []
    for e in examples:
        rank, versions = _logged(e.run) if e.run.gradients is not None else _derived(e.steps)
        stale = (
            np.any(versions > 0) if e.run.excerpt is None else e.run.summary["mean_staleness"] > 0
        )
        if stale and len(versions):
            found.append(
                Stale(
                    e.name, rank, versions, int(e.run.summary["applied"]), e.run.excerpt is not None
                )
            )
    return found


def quantiles(stale: Stale, workers: int) -> Floats:
    """Staleness of each rank at the shares of `SHARES`, shape (workers, 5); NaN without gradients.

    Every number is the staleness of some gradient: nothing is interpolated between two.
    """
    rows = np.full((workers, len(SHARES)), np.nan)
    for rank in range(workers):
        own = stale.versions[stale.rank == rank]
        if len(own):
            rows[rank] = np.quantile(own, list(SHARES.values()), method="inverted_cdf")
    return rows


def stale_pictures(found: Sequence[Stale], workers: int) -> list[tuple[str, str, Markup]]:
    """For each run its name, what its log leaves out, and the spread of every rank."""
    most = max((int(stale.versions.max()) for stale in found), default=0)
    return [
        (
            stale.name,
            _caption(stale),
            pictures.spreads(
                f"stale{k}", f"Staleness of every rank under {stale.name}",
                ("staleness (versions)", "rank"), quantiles(stale, workers), most,
            ),
        )
        for k, stale in enumerate(found)
    ]  # fmt: skip


def stale_table(found: Sequence[Stale]) -> Table:
    """Mean, median, 95th percentile and most over all gradients of each run."""
    headers = ("policy", "gradients", "mean", "median", "95th percentile", "most")
    rows = tuple(
        (
            stale.name,
            Number.of(len(stale.versions)),
            Number.of(float(stale.versions.mean())),
            *(
                Number.of(int(np.quantile(stale.versions, share, method="inverted_cdf")))
                for share in (0.5, 0.95, 1.0)
            ),
        )
        for stale in found
    )
    notes: tuple[str, ...] = (
        "In versions: updates between a gradient's pull and its application. An update of one "
        "policy may hold one gradient and that of another many, so for what staleness costs "
        "compare S_stale/b above.",
    )
    excerpts = [stale.name for stale in found if stale.excerpt]
    if excerpts:
        notes += (f"An excerpt of the gradients of {listed(excerpts)}, not all of them.",)
    return Table(headers, rows, 1, (), notes)


def stale_by_rank(found: Sequence[Stale], workers: int) -> Table:
    """The spread of every rank of every run."""
    rows: list[tuple[str | float | int, ...]] = [
        (stale.name, rank, int(np.sum(stale.rank == rank)), *map(float, spread))
        for stale in found
        for rank, spread in enumerate(quantiles(stale, workers))
    ]
    columns = ("policy", "rank", "gradients", *(f"{word} (versions)" for word in SHARES))
    return Table(columns, tuple(rows))


def _caption(stale: Stale) -> str:
    if not stale.missing:
        return ""
    if stale.excerpt:
        return f"Of its {stale.applied} applied gradients the {len(stale.versions)} of the excerpt."
    return f"The log does not tell of {stale.missing} of its {stale.applied} applied gradients."


def _logged(run: Run) -> tuple[Ints, Ints]:
    """From the log of gradients."""
    table = run.frame("gradients")
    applied = table[table["fate"] == "applied"]
    versions = applied["update"] - 1 - applied["version"]
    return applied["rank"].to_numpy(dtype=np.int64), versions.to_numpy(dtype=np.int64)


def _derived(steps: Steps) -> tuple[Ints, Ints]:
    """From the logs of steps and updates."""
    applied = steps.applied > 0
    return steps.rank[applied], (steps.applied - 1 - steps.version)[applied]
