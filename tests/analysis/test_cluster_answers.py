"""What `simstrag cluster` tells its reader, and what it leaves in a folder that is used again."""

# ruff: noqa: RUF001 - minus signs are meant

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simstrag.analysis.derived.cluster_combinations import combinations
from simstrag.analysis.pages.cluster_report import render
from simstrag.analysis.tables.cluster_tables import job_facts
from simstrag.analysis.text.cluster_text import cautions, sentences
from simstrag.cluster.runs import cluster
from simstrag.cluster.utilisation import UTILISATION
from tests.analysis.test_cluster_report import CERTAIN
from tests.cluster.test_managers import NOISY


def test_a_folder_keeps_nothing_to_read_of_another_study(tmp_path: Path) -> None:
    cluster(NOISY | {"managers": ["star"]}, tmp_path, jobs=1)
    (tmp_path / "report.html").write_text("of the other")
    made = json.loads((tmp_path / "cluster.json").read_text())["made"]
    assert (tmp_path / "delays.csv").exists()
    grown = cluster(NOISY | {"managers": ["star", "none"]}, tmp_path, jobs=1)
    assert (grown.made, (tmp_path / "report.html").exists()) == (made, True)
    cluster(CERTAIN, tmp_path, jobs=1)
    assert not any((tmp_path / name).exists() for name in ("delays.csv", "report.html"))


def test_a_manager_is_compared_with_the_same_jobs_without_one(tmp_path: Path) -> None:
    study = NOISY | {"managers": ["none", "refuse"], "placers": ["packed", "spread"], "seeds": 2}
    results = cluster(study, tmp_path, jobs=1)
    table = results.table("jobs").groupby(["placer", "manager", "seed"])["completion_time"].mean()
    for one in combinations(results).every:
        if one.managed is not None:
            placer = one.values["placer"]
            assert one.managed.against == f"{placer} (manager none)"
            managed, plain = (table[placer, of].mean() for of in ("refuse", "none"))
            assert one.managed.change.value == pytest.approx(managed / plain - 1)


def test_a_manager_without_another_to_compare_with_says_what_it_granted(tmp_path: Path) -> None:
    found = combinations(cluster(NOISY | {"managers": ["refuse"]}, tmp_path, jobs=1))
    assert sentences(found)[-1].startswith("Under bsp (spread, manager refuse) 0 requests were")


def test_where_policies_are_alike_the_answer_says_who_pays_under_a_placer(tmp_path: Path) -> None:
    """Spread, the jobs that share a core take 20 s in place of 40 s."""
    found = combinations(cluster(CERTAIN, tmp_path, jobs=1))
    assert "Against the first row: under spread, host (−50 %) profits." in sentences(found)


def test_the_load_of_others_is_not_called_sharing_with_jobs(tmp_path: Path) -> None:
    trace = [{"time": 1, "node": 0, "resource": "host", "kind": "slowdown", "value": 3}]
    found = combinations(cluster(CERTAIN | {"trace": trace}, tmp_path, jobs=1))
    assert "sharing nodes with other jobs and the load of others cost" in sentences(found)[1]
    assert "1 rows of slowdowns" in render(found.results)


def test_two_seeds_are_said_to_be_few(tmp_path: Path) -> None:
    """Student's quantiles for 1 and 2 degrees of freedom, over the roots of 2 and 3."""
    assert round(12.706 / 2**0.5 / (4.303 / 3**0.5), 1) == 3.6
    found = combinations(cluster(CERTAIN, tmp_path, jobs=1))
    assert any("3.6 times narrower" in text for text in cautions(found))


def test_a_job_on_the_first_node_from_the_beginning_on_says_so() -> None:
    row = {"name": "a", "nodes": "0", "start": 0.0, "granted": 0, "alone": 2.0}
    assert job_facts(row) == {"nodes": "0", "start": "0 s", "alone": "2.000 s"}


def test_a_folder_of_a_program_that_counted_less_is_drawn(tmp_path: Path) -> None:
    whole = cluster(CERTAIN, tmp_path, jobs=1)
    for path in (tmp_path / "runs").iterdir():
        kept = json.loads(path.read_text())
        del kept["utilisation"]
        kept["summary"] = {k: v for k, v in kept["summary"].items() if k not in UTILISATION}
        path.write_text(json.dumps(kept))
    assert "spread has the shortest mean completion time" in render(whole)


def test_rounding_is_no_cost_of_sharing(tmp_path: Path) -> None:
    """Spread, every job is as long as alone, to the last digits."""
    spread = combinations(cluster(CERTAIN, tmp_path, jobs=1)).every[1]
    assert spread.shared == 0
