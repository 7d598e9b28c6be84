"""The page of a cluster study: what stands on it, and when it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simstrag.analysis.derived.cluster_combinations import (
    Combinations,
    combinations,
)
from simstrag.analysis.derived.cluster_stays import (
    stays,
)
from simstrag.analysis.pages.cluster_report import render
from simstrag.analysis.pages.report import report
from simstrag.analysis.text.cluster_text import cautions, sentences
from simstrag.cluster.runs import cluster
from simstrag.cluster.utilisation import UTILISATION
from simstrag.errors import InputError
from tests.analysis.test_cluster_report import CERTAIN, run
from tests.cluster.test_managers import NOISY
from tests.support.commands import Call
from tests.support.html_page import Page


@pytest.fixture(scope="module")
def certain(tmp_path_factory: pytest.TempPathFactory) -> Combinations:
    return run(tmp_path_factory.mktemp("certain"))


@pytest.fixture(scope="module")
def text(certain: Combinations) -> str:
    return render(certain.results)


def test_the_page_is_whole_and_loads_nothing(certain: Combinations, text: str) -> None:
    page = Page(text)
    assert [a for a in page.addresses if not a.startswith(("#", "data:image/png"))] == []
    assert len(set(page.ids)) == len(page.ids)
    for sentence in sentences(certain):
        assert sentence in page.text


def test_versions_and_the_study_come_last(text: str) -> None:
    ids = ("paying", "workloads", "nodes", "jobs", "use", "every", "asked", "again")
    places = [text.index('class="answer"'), *(text.index(f'id="{name}"') for name in ids)]
    assert places == sorted(places)


def test_a_single_combination_has_a_page_without_a_comparison(tmp_path: Path) -> None:
    found = run(tmp_path, placers=["packed"])
    assert sentences(found)[0] == "The mean completion time is 33.33 s."
    assert 'id="paying"' not in render(found.results)


def test_an_unfinished_study_compares_the_seeds_that_ended_everywhere(tmp_path: Path) -> None:
    whole = run(tmp_path).results
    (tmp_path / "runs" / f"{whole.runs[-1].key}.json").unlink()
    found = combinations(whole)
    assert found.seeds == (0,)
    assert cautions(found)[0].startswith("1 of 4 runs have not ended")
    for one in whole.runs[:-1]:
        (tmp_path / "runs" / f"{one.key}.json").unlink()
    with pytest.raises(InputError, match="no seed has ended under every combination yet"):
        report(tmp_path)
    assert "no seed has ended" in whole._repr_html_()


def test_jobs_that_some_combination_did_not_end_are_left_out_everywhere(tmp_path: Path) -> None:
    """At 30 s the two jobs that share a core have not ended."""
    found = run(tmp_path, horizon=30.0)
    for name in ("p95", "makespan"):
        assert [getattr(one, name) for one in found.every] == pytest.approx([20.0, 20.0])
    assert [one.time.value for one in found.every] == pytest.approx([20.0, 20.0])
    assert any(text.startswith("4 jobs did not end") for text in cautions(found))
    Page(render(found.results))


def test_a_job_that_began_after_the_last_end_is_drawn_up_to_the_horizon(tmp_path: Path) -> None:
    """Until 25 s one job has ended, at 20 s; another began on its node then."""
    devices = [{"workload": "device", "workers": 1, "samples": 1600, "count": 3}]
    found = run(
        tmp_path, horizon=25.0, jobs=devices, nodes=[{"gpus": 2, "cores": 1.0}], seeds=1,
        placers=["packed"],
    )  # fmt: skip
    one = found.best
    shown = stays(found.table(one, "jobs"), found.table(one, "shares"), 25.0)
    assert [stay.start for stay in shown] == pytest.approx([0, 0, 20])
    assert [stay.end for stay in shown] == pytest.approx([20, 20, 25])
    Page(render(found.results))


def test_a_failed_run_is_named(tmp_path: Path) -> None:
    whole = run(tmp_path).results
    place = tmp_path / "runs" / f"{whole.runs[-1].key}.json"
    place.write_text(json.dumps({"error": "no luck", "summary": {}}))
    assert "bsp, spread, seed 1 failed: no luck" in cautions(combinations(whole))


def test_a_folder_of_a_program_that_counted_less_is_drawn(tmp_path: Path) -> None:
    whole = run(tmp_path).results
    for path in (tmp_path / "runs").iterdir():
        kept = json.loads(path.read_text())
        del kept["utilisation"]
        kept["summary"] = {k: v for k, v in kept["summary"].items() if k not in UTILISATION}
        path.write_text(json.dumps(kept))
    assert "spread has the shortest mean completion time" in render(whole)


def test_a_folder_keeps_nothing_to_read_of_another_study(tmp_path: Path) -> None:
    cluster(NOISY | {"managers": ["star"]}, tmp_path, jobs=1)
    (tmp_path / "report.html").write_text("of the other")
    made = json.loads((tmp_path / "cluster.json").read_text())["made"]
    assert (tmp_path / "delays.csv").exists()
    grown = cluster(NOISY | {"managers": ["star", "none"]}, tmp_path, jobs=1)
    assert (grown.made, (tmp_path / "report.html").exists()) == (made, True)
    cluster(CERTAIN, tmp_path, jobs=1)
    assert not any((tmp_path / name).exists() for name in ("delays.csv", "report.html"))


def test_a_notebook_shows_the_sentences_and_a_print_a_few_lines(certain: Combinations) -> None:
    shown = certain.results._repr_html_()
    Page(shown)
    assert sentences(certain)[0] in shown
    lines = str(certain.results).splitlines()
    assert lines[0].startswith("4 of 4 runs are finished")
    assert len(lines) == 4


def test_cluster_writes_the_page_and_report_draws_it_again(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(json.dumps(CERTAIN))
    code, out, err = call("cluster", "study.yaml", "--jobs", "1", "--out", "s")
    assert (code, out.splitlines()[-1], err) == (0, "report: s/report.html", "")
    first = Path("s/report.html").read_text()
    assert call("report", "s", "--out", "page.html") == (0, "report: page.html\n", "")
    assert Path("page.html").read_text() == first


@pytest.mark.usefixtures("no_page")
def test_rows_of_other_jobs_are_not_printed_without_a_warning(call: Call, tmp_path: Path) -> None:
    """At 30 s the two jobs that share a core have not ended: packed has 1 job, spread all 3."""
    study = tmp_path / "study.yaml"
    asked = ("cluster", str(study), "--jobs", "1", "--out", str(tmp_path / "out"), "--verbose")
    study.write_text(json.dumps(CERTAIN | {"horizon": 30.0}))
    code, out, err = call(*asked)
    assert (code, err[: err.index(",")]) == (
        0, "warning: only 1 to 3 of 3 jobs ended by the horizon",
    )  # fmt: skip
    assert "some jobs had not ended at the horizon: a row is of the jobs that ended in it" in out
    study.write_text(json.dumps(CERTAIN | {"horizon": 100.0}))
    _, out, err = call(*asked)
    assert (err, "had not ended" in out) == ("", False)


@pytest.mark.usefixtures("no_page")
def test_a_shard_writes_the_page_once_all_runs_have_ended(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(json.dumps(CERTAIN))
    for part, there in (("1/2", False), ("2/2", True)):
        assert call("cluster", "study.yaml", "--jobs", "1", "--out", "s", "--shard", part)[0] == 0
        assert Path("s/report.html").exists() == there
