"""Tables of a cluster study, for a page, a notebook and a CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from simstrag.analysis.derived.cluster_combinations import Combinations, Effect
from simstrag.analysis.derived.cluster_stays import Stay, beside_job, slowdown_beside
from simstrag.analysis.tables.comparison_tables import place_cell
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.number_format import MISSING, number
from simstrag.cluster.utilisation import UTILISATION

OPTIONAL = (
    "time_to_target", "stragglers", "granted", "refused", "donor_seconds", "lost", "lost_share",
    "beneficiary_seconds",
)  # fmt: skip
"""Columns of jobs that a page leaves out where no job has a value above 0."""
MOST_BESIDE = 10
"""Most jobs beside one that its table lists."""
MOST = 200
"""Most jobs of a run that a page lists."""
USED = (
    "processors (%)", "cards, inwards (%)", "cards, outwards (%)", "devices computing (%)",
    "devices held (%)",
)  # fmt: skip
"""Headers of the columns of `UTILISATION`."""
UNITS = {
    "arrival": "s", "start": "s", "end": "s", "queueing": "s", "completion_time": "s",
    "run_time": "s", "alone": "s", "time_to_target": "s", "donor_seconds": "s", "lost": "s",
    "beneficiary_seconds": "s",
}  # fmt: skip


def ranking_table(found: Combinations) -> Table:
    """A row per combination, best mean completion time first."""
    rows = tuple(
        (
            one.name, place_cell(one.place), Number.estimate(one.time),
            Number.estimate(one.change, percent=True, sign=True), Number.percent(one.waited),
            Number.percent(one.shared), Number.of(one.p95), Number.of(one.makespan),
            Number.percent(one.held),
        )
        for one in found.ranking
    )  # fmt: skip
    headers = (
        _head(found), "place", "mean completion time (s)", "longer than the first row (%)",
        "waiting for devices (%)", "cost of sharing (%)", "95th percentile (s)", "makespan (s)",
        "devices held (%)",
    )  # fmt: skip
    notes = (
        f"The first row of the study is {found.first.name}. Intervals are 95 %, paired over seeds; "
        "a place is a range where they do not separate combinations. Waiting is a share of all "
        "completion time, the cost of sharing one of all run time, devices held one of all devices "
        "until the last job ended.",
    )
    return Table(headers, rows, 1, (), notes)


def utilisation_table(found: Combinations) -> Table:
    """A row per combination: the shares of what all nodes have that jobs used."""
    rows = tuple((one.name, *_shares(one.used)) for one in found.every)
    notes = (
        "Means over nodes and seeds, until the last job ended: what steps, gradients and services "
        "took, over what the nodes have. A dash is a card without a limit. Devices computing "
        "leaves out the host part of steps, waiting and communication.",
    )
    return Table((_head(found), *USED), rows, 1, (), notes)


def nodes_table(nodes: pd.DataFrame) -> Table:
    """The same of each node of a run, of the first `MOST` nodes."""
    rows = tuple((str(row["node"]), *_shares(row)) for row in nodes[:MOST].to_dict("records"))
    notes = (f"The first {MOST} nodes.",) if len(nodes) > MOST else ()
    return Table(("node", *USED), rows, 1, (), notes)


def _shares(of: Mapping[Any, Any]) -> tuple[Number, ...]:
    return tuple(Number.percent(of[name]) for name in UTILISATION)


def workload_table(found: Combinations) -> Table:
    """A row per combination and workload, and who pays."""
    rows = tuple(
        (
            one.name, e.workload, e.policy, "" if one is found.first else _verdict(e),
            Number.estimate(e.time), Number.estimate(e.change, percent=True, sign=True),
            Number.of(e.sooner), Number.of(e.later), Number.of(e.queueing), Number.of(e.slowdown),
        )
        for one in found.every
        for e in one.effects
    )  # fmt: skip
    headers = (
        _head(found), "workload", "policy of its jobs", "pays or profits",
        "mean completion time (s)", "longer than under the first row (%)", "jobs sooner",
        "jobs later", "queueing (s)", "slowdown",
    )  # fmt: skip
    notes = (
        "A workload pays where the whole interval is above 0, and profits where it is below. Jobs "
        "sooner and later are those that ended earlier or later than the same job, under the same "
        "seed, in the first row. A slowdown is run time over that of the same job alone on the "
        "same nodes.",
    )
    return Table(headers, rows, 4, (), notes)


def beside_table(found: list[Stay], workloads: list[str]) -> Table:
    """Mean slowdown of each workload on a node, by what else is there."""
    means = slowdown_beside(found)
    rows = tuple(
        (of, *(Number.of(means.get((of, name))) for name in ("", *workloads))) for of in workloads
    )
    headers = ("slowdown of", "no other job", *(f"beside {name}" for name in workloads))
    notes = (
        "The mean over time of the largest slowdown on a node, while a job of the other workload "
        "has workers or its server there: of one part of its work, such as the service of "
        "gradients, so it may be far above that of the run time. It says what stood beside it, not "
        "what caused it: a push is slowed at the server's node, too, and ranks of one job slow "
        "each other.",
    )
    return Table(headers, rows, 1, (), notes).trimmed()


def jobs_table(jobs: pd.DataFrame, most: int | None = None) -> Table:
    """The columns of jobs; with `most`, only the jobs that took longest."""
    cut = most is not None and len(jobs) > most
    if cut:
        jobs = jobs.nlargest(most or 0, "completion_time").sort_values("arrival")
    empty = [name for name in OPTIONAL if name in jobs and not jobs[name].fillna(0).any()]
    jobs = jobs.drop(columns=empty)
    numbers = [name for name in jobs.columns if is_numeric_dtype(jobs[name])]
    texts = [name for name in jobs.columns if name not in numbers]
    rows = tuple(
        (*(str(row[name]) for name in texts), *(Number.of(row[name]) for name in numbers))
        for row in jobs.to_dict("records")
    )
    headers = tuple(
        f"{name.replace('_', ' ')} ({UNITS[name]})" if name in UNITS else name.replace("_", " ")
        for name in (*texts, *numbers)
    )
    notes = (f"The {most} jobs that took longest.",) if cut else ()
    return Table(headers, rows, len(texts), (), notes)


def beside_job_table(found: list[Stay], job: str) -> Table:
    """Who stood beside a job on its nodes, the largest slowdown first."""
    rows = tuple(
        (one.job, one.workload, str(one.node), Number.of(one.seconds), Number.of(one.slowdown))
        for one in beside_job(found, job)[:MOST_BESIDE]
    )
    headers = ("beside", "workload", "on node", "for (s)", "largest slowdown of its parts there")
    return Table(headers, rows, 3)


def delays_table(delays: pd.DataFrame, job: str) -> Table:
    """When a manager delayed a job, for whom, and what that took."""
    own = delays[delays["job"] == job] if len(delays) else delays
    names = ("start", "end", "seconds", "iterations", "lost")
    rows = tuple(
        (row["for"], *(Number.of(row[name]) for name in names)) for row in own.to_dict("records")
    )
    headers = (
        "delayed for", "from (s)", "to (s)", "per iteration (s)", "iterations", "lost (s)",
    )  # fmt: skip
    return Table(headers, rows, 1)


def job_facts(row: Mapping[Any, Any]) -> dict[str, str]:
    """A job's times, its nodes, and its requests; what it has none of is left out."""
    nothing = ("name", "policies", "placer", "manager", "seed")
    shown = {}
    for name, value in row.items():
        text = value if isinstance(value, str) else number(value, 4)
        if name not in nothing and text not in ("", MISSING, "0" if name in OPTIONAL else ""):
            unit = " s" if name in UNITS else ""
            shown[name.replace("_", " ")] = f"{text}{unit}"
    return shown


def frame_table(frame: pd.DataFrame) -> Table:
    """A table for a CSV file alone."""
    rows = tuple(frame.astype(object).itertuples(index=False, name=None))
    return Table(tuple(map(str, frame.columns)), rows, 0)


def _head(found: Combinations) -> str:
    """The columns that name a combination."""
    return ", ".join(found.varied)


def _verdict(effect: Effect) -> str:
    return "pays" if effect.pays else "profits" if effect.profits else "neither is shown"
