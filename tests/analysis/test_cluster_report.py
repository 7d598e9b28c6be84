"""The report of a cluster study: the shortest completion time, who pays, who was slowed."""

# ruff: noqa: RUF001 - minus signs are meant

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simstrag.analysis.charts import cluster_charts
from simstrag.analysis.derived.cluster_combinations import (
    Combinations,
    Effect,
    combinations,
)
from simstrag.analysis.derived.cluster_stays import (
    asked_of_nodes,
    beside_job,
    devices_held,
    mean_slowdowns,
    slowdown_beside,
    stays,
)
from simstrag.analysis.pages.cluster_report import render
from simstrag.analysis.tables.cluster_tables import (
    delays_table,
    job_facts,
    jobs_table,
    nodes_table,
    utilisation_table,
    workload_table,
)
from simstrag.analysis.text.cluster_text import cautions, sentences
from simstrag.cluster.runs import COLUMNS, cluster
from tests.cluster.test_managers import NOISY
from tests.support.contention import slow
from tests.support.html_page import Page

CERTAIN: dict[str, Any] = {
    "nodes": [{"count": 2, "gpus": 4, "cores": 1.0}],
    "workloads": {
        name: {"scenario": {"step": {"compute": 0.1, "host_share": share}, "learner": {"batch": 8}}}
        for name, share in (("host", 1.0), ("device", 0.0))
    },
    "jobs": [
        {"workload": "host", "workers": 1, "samples": 1600, "count": 2},
        {"workload": "device", "workers": 1, "samples": 1600},
    ],
    "placers": ["packed", "spread"],
    "seeds": 2,
}
"""Three jobs of 200 steps of 0.1 s, 20 s alone, without noise.

Packed, the two that need a core each share one and take 40 s; spread, each has its own.
"""


def run(folder: Path, **changes: Any) -> Combinations:
    return combinations(cluster(CERTAIN | changes, folder, jobs=1))


@pytest.fixture(scope="module")
def certain(tmp_path_factory: pytest.TempPathFactory) -> Combinations:
    return run(tmp_path_factory.mktemp("certain"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Combinations:
    mixes = ["bsp", "asgd", {"host": "asgd"}]
    return run(tmp_path_factory.mktemp("mixed"), policies=mixes, placers=["packed"])


def effect_of(found: Combinations, combination: str, workload: str) -> Effect:
    (one,) = (one for one in found.every if one.name == combination)
    (effect,) = (effect for effect in one.effects if effect.workload == workload)
    return effect


def test_the_best_combination_is_the_one_by_construction(certain: Combinations) -> None:
    assert [one.name for one in certain.ranking] == ["spread", "packed"]
    assert [one.time.value for one in certain.ranking] == pytest.approx([20, 100 / 3])
    assert certain.best.change == pytest.approx([-0.4] * 3)
    assert certain.best.place == (1, 1)


def test_the_answer_names_it_and_the_time_that_it_saves(certain: Combinations) -> None:
    shortest, lost, paying = sentences(certain)
    assert shortest == (
        "spread has the shortest mean completion time: 20.00 s. Its jobs take 40.0 % less time "
        "than under the first row, packed."
    )
    assert lost.endswith("sharing nodes with other jobs cost 40 % of all run time.")
    assert paying == "Against the first row: under spread, host (−50 %) profits."


def test_a_tie_by_construction_has_no_clear_winner(tmp_path: Path) -> None:
    found = run(tmp_path, jobs=CERTAIN["jobs"][1:])
    assert sentences(found)[0].startswith(
        "No clear winner: packed has the shortest mean, 20.00 s, "
    )
    assert {one.place for one in found.every} == {(1, 2)}


def test_one_seed_shows_no_winner(tmp_path: Path) -> None:
    found = run(tmp_path, seeds=1)
    assert "No clear winner: spread" in sentences(found)[0]
    assert any(text.startswith("One seed gives no interval") for text in cautions(found))


def test_what_sharing_cost_is_beyond_the_time_alone(certain: Combinations) -> None:
    """Spread, every job is as long as alone, to the last digits."""
    packed, spread = (one.shared for one in certain.every)
    assert packed == pytest.approx(0.4)
    assert spread == 0


def test_two_seeds_are_said_to_be_few(certain: Combinations) -> None:
    """Student's quantiles for 1 and 2 degrees of freedom, over the roots of 2 and 3."""
    assert round(12.706 / 2**0.5 / (4.303 / 3**0.5), 1) == 3.6
    assert any("3.6 times narrower" in text for text in cautions(certain))


def test_the_load_of_others_is_not_called_sharing_with_jobs(tmp_path: Path) -> None:
    found = run(tmp_path, trace=[slow(3, 1, resource="host")])
    assert "sharing nodes with other jobs and the load of others cost" in sentences(found)[1]
    assert "1 rows of slowdowns" in render(found.results)


def test_waiting_is_a_share_of_all_completion_time(tmp_path: Path) -> None:
    """Two jobs of 20 s on one device: the second one waits for 20 s of its 40."""
    jobs = [CERTAIN["jobs"][1] | {"count": 2}]
    found = run(tmp_path, nodes=[{"gpus": 1, "cores": 1.0}], jobs=jobs, placers=["packed"])
    assert found.first.waited == pytest.approx(1 / 3)
    assert found.first.held == pytest.approx(1.0)


def test_where_the_first_is_the_best_the_one_that_shares_most_is_drawn_too(tmp_path: Path) -> None:
    found = run(tmp_path, placers=["spread", "random", "packed"])
    assert [one.name for one in found.shown] == ["spread", "packed"]


def test_a_workload_profits_where_its_jobs_end_sooner(certain: Combinations) -> None:
    host, device = (effect_of(certain, "spread", name) for name in ("host", "device"))
    assert (host.profits, host.sooner, host.later) == (True, 4, 0)
    assert (device.profits, device.pays, device.sooner) == (False, False, 0)


def test_the_table_says_who_profits_and_nothing_of_the_first_row(certain: Combinations) -> None:
    rows = workload_table(certain).rows
    assert [row[:4] for row in rows] == [
        ("packed", "device", "bsp", ""), ("packed", "host", "bsp", ""),
        ("spread", "device", "bsp", "neither is shown"), ("spread", "host", "bsp", "profits"),
    ]  # fmt: skip


def test_who_pays_is_said_of_the_best_but_the_first_row(mixed: Combinations) -> None:
    told = next(one for one in mixed.ranking if one is not mixed.first)
    assert sentences(mixed)[-1].startswith(f"Against the first row: under {told.name}, ")


def test_a_combination_is_named_by_the_columns_that_vary(
    certain: Combinations, mixed: Combinations
) -> None:
    assert (certain.varied, mixed.varied) == (("placer",), ("policies",))
    assert [one.name for one in mixed.every] == ["bsp", "asgd", "host=asgd"]


def test_combinations_have_the_columns_of_the_summary(certain: Combinations) -> None:
    names = [*certain.results.summary()]
    assert [*COLUMNS] == names[: names.index("seeds")]


def test_a_manager_names_combinations_too(certain: Combinations) -> None:
    old = certain.results
    managed = [r._replace(manager="star") for r in old.runs[:2]]
    results = replace(old, runs=(*managed, *old.runs[2:]))
    found = combinations(results)
    assert [one.name for one in found.every] == ["packed (manager star)", "spread (manager none)"]
    Page(render(results))


# -- what is drawn -------------------------------------------------------------------------------


def test_a_slowdown_lasts_until_its_job_ends(certain: Combinations) -> None:
    found = stays(*(certain.table(certain.first, name) for name in ("jobs", "shares")), 40.0)
    (host,) = (stay for stay in found if stay.job == "host-0")
    present, slowdown, network = mean_slowdowns([host], np.array([0.0, 10.0, 40.0, 41.0, 50.0]))
    assert present == pytest.approx([1, 1, 0, 0])
    assert slowdown[[0, 1, 3]] == pytest.approx([2, 2, 1])
    assert not network.any()


def test_slowdowns_are_told_apart_by_what_is_on_the_node(certain: Combinations) -> None:
    found = stays(*(certain.table(certain.first, name) for name in ("jobs", "shares")), 40.0)
    means = slowdown_beside(found)
    assert means["host", "host"] == pytest.approx(2.0)
    assert means["device", "host"] == pytest.approx(1.0)


def test_devices_are_held_from_start_to_end(certain: Combinations) -> None:
    held = devices_held(certain.table(certain.first, "jobs"), 8, np.array([0.0, 20.0, 40.0]))
    assert held == pytest.approx([3 / 8, 2 / 8])


def test_what_was_asked_is_over_what_all_nodes_have(certain: Combinations) -> None:
    """Two jobs ask for a core each of the first node; each node has one.  No card has a limit."""
    asked = certain.table(certain.first, "nodes")
    found = asked_of_nodes(asked, CERTAIN["nodes"], 1.0, np.array([0.0, 20.0, 40.0, 60.0]))
    assert list(found) == ["cores", "gpus"]
    assert found["cores"] == pytest.approx([1.0, 1.0, 0.0])


def test_the_table_of_what_was_used_is_the_mean_of_both_nodes(certain: Combinations) -> None:
    """Packed, 40 s of one of two cores, and 20 of 40 s of one of eight devices."""
    packed, spread = utilisation_table(certain).rows
    assert packed == ("packed", "50.0", "–", "–", "6.25", "31.2")
    assert spread == ("spread", "100", "–", "–", "12.5", "37.5")
    nodes = nodes_table(certain.table(certain.first, "utilisation")).rows
    assert [row[:2] for row in nodes] == [("0", "100"), ("1", "0")]


def test_every_job_has_a_lane_or_every_node_a_strip(
    certain: Combinations, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stays(*(certain.table(certain.first, name) for name in ("jobs", "shares")), 40.0)
    assert ">host-1</text>" in cluster_charts.nodes(found, 40.0, "nodes", "nodes")
    monkeypatch.setattr(cluster_charts, "MOST_LANES", 2)
    strips = cluster_charts.nodes(found, 40.0, "nodes", "nodes")
    assert ">host-1</text>" not in strips
    assert ">node 0</text>" in strips


def test_only_the_longest_of_many_jobs_have_bars_and_rows(
    certain: Combinations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_charts, "MOST_JOBS", 2)
    jobs = certain.table(certain.first, "jobs")
    drawn = cluster_charts.jobs(jobs, 40.0, "jobs", "jobs")
    assert [f">{name}</text>" in drawn for name in ("host-0", "host-1", "device")] == [
        True, True, False,
    ]  # fmt: skip
    assert [row[0] for row in jobs_table(jobs, most=2).rows] == ["host-0", "host-1"]


def test_who_stood_beside_a_job_and_how_much_it_was_slowed_meanwhile(certain: Combinations) -> None:
    """Packed, `device` is there for 20 s of 40 s; `host-1` slows `host-0` to half all the time."""
    found = stays(*(certain.table(certain.first, name) for name in ("jobs", "shares")), 40.0)
    beside = beside_job(found, "host-0")
    assert [(one.job, one.node) for one in beside] == [("host-1", 0), ("device", 0)]
    assert [one.seconds for one in beside] == pytest.approx([40.0, 20.0])
    assert [one.slowdown for one in beside] == pytest.approx([2.0, 2.0])


def test_columns_of_managers_are_left_out_where_nobody_asked_one(certain: Combinations) -> None:
    headers = jobs_table(certain.table(certain.first, "jobs")).headers
    assert "granted" not in headers
    assert "slowdown" in headers


# -- managers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Combinations:
    """A job that leaves its barrier, and one that is delayed for it (see test_managers.py)."""
    study = NOISY | {"managers": ["none", "refuse", "star"], "seeds": 3}
    return combinations(cluster(study, tmp_path_factory.mktemp("managed"), jobs=1))


def test_a_managers_grants_and_what_they_cost_are_counted(managed: Combinations) -> None:
    assert [one.name for one in managed.every] == [
        f"manager {k}" for k in ("none", "refuse", "star")
    ]
    none, refuse, star = (one.managed for one in managed.every)
    assert none is None
    assert (refuse.granted, refuse.donors, refuse.lost) == (0, 0, 0.0)
    assert (star.granted, star.donors, star.over) == (3, 3, 0)
    jobs = managed.jobs[managed.jobs["manager"] == "star"]
    assert star.lost == pytest.approx(jobs["lost"].sum())
    assert star.most == pytest.approx((jobs["lost"] / jobs["completion_time"]).max())


def test_the_answer_says_what_donors_lost_at_most(managed: Combinations) -> None:
    text = " ".join(sentences(managed))
    star = (
        r"Under manager star jobs take [\d.]+ % \(.*?\) longer than under manager none; 3 requests"
    )
    assert re.search(star, text)
    assert re.search(r"3 jobs lost [\d.]+ s to delays, each at most [\d.]+ % of its", text)
    assert "never more per iteration than granted (3 delays counted)." in text
    assert re.search(r"; 0 requests were granted, \d+ refused; no job lost time", text)


def test_a_manager_is_compared_with_the_same_jobs_without_one(tmp_path: Path) -> None:
    study = NOISY | {"managers": ["none", "refuse"], "placers": ["packed", "spread"], "seeds": 2}
    results = cluster(study, tmp_path, jobs=1)
    table = results.table("jobs").groupby(["placer", "manager", "seed"])["completion_time"].mean()
    managed = [one for one in combinations(results).every if one.managed is not None]
    assert len(managed) == 2
    for one in managed:
        placer = one.values["placer"]
        assert one.managed.against == f"{placer} (manager none)"
        refused, plain = (table[placer, of].mean() for of in ("refuse", "none"))
        assert one.managed.change.value == pytest.approx(refused / plain - 1)


def test_a_manager_without_another_to_compare_with_says_what_it_granted(tmp_path: Path) -> None:
    found = combinations(cluster(NOISY | {"managers": ["refuse"]}, tmp_path, jobs=1))
    assert sentences(found)[-1].startswith("Under bsp (spread, manager refuse) 0 requests were")


def test_every_listed_job_has_a_page_that_its_name_leads_to(managed: Combinations) -> None:
    page = Page(render(managed.results))
    links = [a[1:] for a in page.addresses if a.startswith("#run")]
    assert len(links) == 2 * 2  # of both drawn runs
    assert set(links) <= set(page.ids)


def test_a_jobs_facts_leave_out_what_it_has_none_of(managed: Combinations) -> None:
    jobs = managed.jobs[managed.jobs["manager"] == "star"].to_dict("records")
    asks, gives = (job_facts(row) for row in jobs[:2])
    assert asks["granted"] == "1"
    assert "donor seconds" in gives
    assert not {"donor seconds", "time to target"} & {*asks}
    assert asks["end"].endswith(" s")
    row = {"name": "a", "nodes": "0", "start": 0.0, "granted": 0, "alone": 2.0}
    assert job_facts(row) == {"nodes": "0", "start": "0 s", "alone": "2.000 s"}


def test_a_job_lists_the_delays_that_it_had(managed: Combinations) -> None:
    delays = pd.DataFrame(managed.first_runs["manager star"]["delays"])
    assert [row[0] for row in delays_table(delays, "gives").rows] == ["asks"]
    assert delays_table(delays, "asks").rows == ()
    assert delays_table(pd.DataFrame(), "asks").rows == ()
