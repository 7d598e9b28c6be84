"""What `simstrag cluster` tells its reader, and what it leaves in a folder that is used again."""

from __future__ import annotations

import json
from pathlib import Path

from simstrag.cluster.runs import cluster
from tests.commands import Call
from tests.test_cluster_report import CERTAIN
from tests.test_managers import NOISY


def test_rows_of_other_jobs_are_not_printed_without_a_warning(call: Call, tmp_path: Path) -> None:
    """At 30 s the two jobs that share a core have not ended: packed has 1 job, spread all 3."""
    study, out = tmp_path / "study.yaml", str(tmp_path / "out")
    study.write_text(json.dumps(CERTAIN | {"horizon": 30.0}))
    code, _, err = call("cluster", str(study), "--jobs", "1", "--out", out)
    assert (code, err[: err.index(",")]) == (
        0, "warning: only 1 to 3 of 3 jobs ended by the horizon",
    )  # fmt: skip
    study.write_text(json.dumps(CERTAIN | {"horizon": 100.0}))
    assert call("cluster", str(study), "--jobs", "1", "--out", out)[2] == ""


def test_a_folder_keeps_nothing_to_read_of_another_study(tmp_path: Path) -> None:
    cluster(NOISY | {"managers": ["star"]}, tmp_path, jobs=1)
    (tmp_path / "report.html").write_text("of the other")
    made = json.loads((tmp_path / "cluster.json").read_text())["made"]
    assert (tmp_path / "delays.csv").exists()
    grown = cluster(NOISY | {"managers": ["star", "none"]}, tmp_path, jobs=1)
    assert (grown.made, (tmp_path / "report.html").exists()) == (made, True)
    cluster(CERTAIN, tmp_path, jobs=1)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "cluster.json", "jobs.csv", "nodes.csv", "runs", "shares.csv", "summary.csv",
    ]  # fmt: skip
