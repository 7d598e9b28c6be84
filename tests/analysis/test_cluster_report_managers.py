"""What the report of a cluster study says about managers, and about each job."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from simstrag.analysis.derived.cluster_combinations import (
    Combinations,
    combinations,
)
from simstrag.analysis.pages.cluster_report import render
from simstrag.analysis.tables.cluster_tables import (
    delays_table,
    job_facts,
)
from simstrag.analysis.text.cluster_text import sentences
from simstrag.cluster.runs import cluster
from simstrag.cluster.study import ClusterStudy
from tests.cluster.test_managers import NOISY
from tests.support.html_page import Page


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Combinations:
    """A job that leaves its barrier, and one that is delayed for it (see test_managers.py)."""
    folder = tmp_path_factory.mktemp("managed")
    study = ClusterStudy.of(NOISY | {"managers": ["none", "refuse", "star"], "seeds": 3})
    return combinations(cluster(study, folder, jobs=1))


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
    assert "donor seconds" not in asks
    assert "time to target" not in asks
    assert asks["end"].endswith(" s")


def test_a_job_lists_the_delays_that_it_had(managed: Combinations) -> None:
    delays = pd.DataFrame(managed.first_runs["manager star"]["delays"])
    assert [row[0] for row in delays_table(delays, "gives").rows] == ["asks"]
    assert delays_table(delays, "asks").rows == ()
    assert delays_table(pd.DataFrame(), "asks").rows == ()
