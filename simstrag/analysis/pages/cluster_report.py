"""The HTML report of a cluster study: the shortest completion time, who pays, who was slowed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from simstrag.analysis.charts import cluster_charts
from simstrag.analysis.charts.matplotlib_renderer import Picture
from simstrag.analysis.charts.timeline import FULLEST
from simstrag.analysis.derived.cluster_combinations import Combination, Combinations, combinations
from simstrag.analysis.derived.cluster_stays import stays
from simstrag.analysis.pages import page_footer
from simstrag.analysis.pages.templates import template
from simstrag.analysis.tables import cluster_tables
from simstrag.analysis.tables.cluster_tables import frame_table
from simstrag.analysis.tables.table import MOST, Table, csv_data
from simstrag.analysis.text.cluster_text import cautions, sentences
from simstrag.cluster.runs import ClusterResults

STATED = ("workers_per_gpu", "colocation", "constants", "horizon")
"""Keys of a study that a page repeats where they are given."""


class JobPage(NamedTuple):
    """What a page says of one job, below an anchor."""

    anchor: str
    name: str
    facts: dict[str, str]
    beside: Table
    delays: Table


class DrawnRun(NamedTuple):
    """What a page shows of one run: the first seed's under one combination."""

    name: str
    nodes: Picture
    beside: Table
    bars: Picture
    use: Picture
    used: Table
    jobs: Table
    pages: tuple[JobPage, ...]

    @property
    def links(self) -> dict[str, str]:
        """The anchor of each job's page, by its name."""
        return {page.name: page.anchor for page in self.pages}


def render(results: ClusterResults) -> str:
    """The report of a cluster study, finished or not, as one HTML file.

    Raises `InputError` where no seed has ended under every combination.
    """
    found = combinations(results)
    until = max(_end(found, one) for one in found.shown)
    ranking, workloads = cluster_tables.ranking_table(found), cluster_tables.workload_table(found)
    used = cluster_tables.utilisation_table(found)
    return template("cluster.html").render(
        found=found,
        sentences=sentences(found),
        cautions=cautions(found),
        completion=cluster_charts.completion(found),
        changes=cluster_charts.changes(found) if len(found.every) > 1 else None,
        ranking=ranking,
        workloads=workloads,
        used=used,
        runs=[_draw(found, one, until, k) for k, one in enumerate(found.shown)],
        most_bars=cluster_charts.MOST_JOBS,
        most_lanes=cluster_charts.MOST_LANES,
        fullest=FULLEST,
        asked=_asked(found),
        **page_footer.about(results),
        data=csv_data({
            "combinations": ranking,
            "workloads": workloads,
            "utilisation": used,
            "jobs": frame_table(found.jobs.head(MOST + 1)),
            **{name: frame_table(_of_drawn(found, of)) for name, of in
               (("slowdowns", "shares"), ("asked-of-nodes", "nodes"))},
        }),
    )  # fmt: skip


def _end(found: Combinations, one: Combination) -> float:
    """When the drawn run of a combination ended: with its last job, or at the horizon."""
    jobs = found.table(one, "jobs")
    last = jobs["end"].max(skipna=False)
    return float(found.results.study["horizon"] if np.isnan(last) else last)


def _draw(found: Combinations, one: Combination, until: float, k: int) -> DrawnRun:
    jobs, shares, asked = (found.table(one, name) for name in ("jobs", "shares", "nodes"))
    on_nodes = stays(jobs, shares, until)
    study, table = found.results.study, cluster_tables.jobs_table(jobs, cluster_tables.MOST)
    delays, used = (
        pd.DataFrame(found.first_runs[one.name].get(name, ())) for name in ("delays", "utilisation")
    )  # older folders lack them
    listed = {row[0] for row in table.rows}
    pages = tuple(
        JobPage(
            f"run{k}-job{row['number']}",
            row["name"],
            cluster_tables.job_facts(row | {"number": ""}),
            cluster_tables.beside_job_table(on_nodes, row["name"]),
            cluster_tables.delays_table(delays, row["name"]),
        )
        for row in jobs.assign(number=range(len(jobs))).to_dict("records")
        if row["name"] in listed
    )
    return DrawnRun(
        one.name,
        cluster_charts.nodes(on_nodes, until, f"nodes{k}", f"Jobs on each node, {one.name}"),
        cluster_tables.beside_table(on_nodes, found.workloads),
        cluster_charts.jobs(jobs, until, f"jobs{k}", f"Jobs over time, {one.name}"),
        cluster_charts.use(jobs, asked, study, until, f"use{k}"),
        cluster_tables.nodes_table(used),
        table,
        pages,
    )


def _of_drawn(found: Combinations, name: str) -> pd.DataFrame:
    """The rows of all drawn runs in one table, as many as a page saves."""
    frames = [
        found.table(one, name).assign(combination=one.name).head(MOST + 1) for one in found.shown
    ]
    return pd.concat(frames).head(MOST + 1)


def _asked(found: Combinations) -> dict[str, str]:
    study, columns = found.results.study, found.first.values
    values = {
        name: "; ".join(dict.fromkeys(one.values[name] for one in found.every)) for name in columns
    }
    counts = found.table(found.first, "jobs")["workload"].value_counts(sort=False)
    return {
        "nodes": "; ".join(_describe_kind(kind) for kind in study["nodes"]),
        "jobs": ", ".join(f"{count} of {name}" for name, count in counts.items()),
        **values,
        "seeds": ", ".join(map(str, found.seeds)),
        "interval": f"{study.get('interval', 1):g} s",
        **{key.replace("_", " "): str(study[key]) for key in STATED if key in study},
        **({"load of others": _describe_trace(study["trace"])} if study.get("trace") else {}),
    }


def _describe_trace(trace: str | Sequence[object]) -> str:
    return trace if isinstance(trace, str) else f"{len(trace)} rows of slowdowns"


def _describe_kind(kind: object) -> str:
    return json.dumps(kind)[1:-1].replace('"', "")
