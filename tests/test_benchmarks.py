"""What is compared for speed computes the same, and the results have what the docs promise."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks import (
    cluster_tables,
    lasting_noise,
    learning_claims,
    regret,
    results,
    speed,
    tables,
)
from benchmarks.jobs import NOISES, POLICIES, Job
from simstrag.trace.trace import Trace


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("workers", "breakpoints", "noise"),
    [(8, 0, "no noise"), (40, 7, "noise"), (40, 0, "lasting noise")],
)
def test_all_engines_end_at_the_same_time(
    policy: str, workers: int, breakpoints: int, noise: str
) -> None:
    speed.agree(Job(policy, workers, 40, noise, breakpoints))


def test_engines_that_differ_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed.OTHERS["b"], "asgd", lambda job: 1.0)
    with pytest.raises(AssertionError, match=r"\(b\) ends at 1.0, this engine at"):
        speed.agree(Job("asgd", 8, 3))


def test_what_is_compared_is_what_the_policies_are_about() -> None:
    """Ranks are aborted, groups fuse, stragglers are found; else there was nothing to agree on."""
    assert Job("backup", 8, 40).simulate().summary["aborted"] > 0
    cgp = Job("cgp", 64, 40)
    assert cgp.simulate().summary["updates"] < 40 * len(cgp.groups)
    assert 0 < Job("korel", 40, 40).simulate().summary["amp_share"] < 0.2
    ssp, asgd = (Job(name, 8, 40).simulate().summary for name in ("ssp", "asgd"))
    assert ssp["makespan"] > 1.2 * asgd["makespan"]


def test_the_results_have_the_promised_keys() -> None:
    found = results.read()
    for noise in NOISES:
        section, sizes = found["speed"][noise], speed.NOISY if noise != "no noise" else speed.SIZES
        for policy in POLICIES:
            for n in map(str, sizes):
                assert set(section["ratios"][policy][n]) == set("abc")
                assert set(section["rates"][policy][n]) == {"engine", *"abc"}
                values = [*section["ratios"][policy][n].values()]
                values += section["rates"][policy][n].values()
                assert all(math.isfinite(value) and value > 0 for value in values)
    assert {"cpu", "cores", "python", "numpy", "simpy", "date", "command"} <= {
        *found["speed"]["machine"]
    }
    sections = "breakpoints logs noise policies reviews startup updates workers"
    assert set(sections.split()) <= set(found["cost"])


def test_a_size_that_was_not_measured_has_no_aim() -> None:
    found = results.read()
    del found["speed"]["noise"]["rates"]["korel"]["4096"]
    figures = [row[0] for row in tables.aims(found).rows]
    assert "korel, N = 4,096, noise" not in figures
    assert "korel, N = 4,096, lasting noise" in figures
    assert not any("e+" in cell for row in tables.aims(found).rows for cell in row)


def test_the_table_of_lasting_noise_has_a_column_of_each_autocorrelation() -> None:
    rows = [*lasting_noise.rows(workers=2, seeds=2)]
    assert {len(row) for row in rows} == {2 + len(lasting_noise.LAG1)}
    assert {row[0] for row in rows} == {*lasting_noise.POLICIES}


def test_a_claim_is_judged_by_accuracies_of_equal_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """k_async:x=all makes the updates of bsp, so it is as accurate and not more accurate."""
    pytest.importorskip("torch")
    monkeypatch.setattr(learning_claims, "TASKS", {"tabular": (1280, 2)})
    monkeypatch.setattr(learning_claims, "RATES", {"sgd": ({"lr": 0.1},)})
    as_accurate, more = (
        learning_claims.Claim("k_async", "bsp", "", keeps, ("sgd",)) for keeps in (True, False)
    )
    found = learning_claims.compared((as_accurate, more), 8, "tabular", "sgd")
    assert set(found.comparison.column("k_async", "samples")) == {1280}
    assert as_accurate.judge(found)[1] == "yes"
    assert more.judge(found)[1] == "not shown"


def test_a_choice_is_judged_on_other_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regret, "SEEDS", (0, 1))
    monkeypatch.setattr(regret, "HELD_OUT", (7, 8))
    rows = [(0.0, node, "gpu", "slowdown", 1.0 + (node == 0)) for node in range(3)]
    Trace.from_rows(rows).write(tmp_path / "slow.csv")
    found = regret.judge("slow", regret.write_scenario(tmp_path / "slow.csv"))
    assert (found.workers, found.safe) == (3, "lb_bsp")
    for own, worst in found.regrets.values():
        assert 0 <= own <= worst
    assert found.regrets["bsp"][0] > found.regrets["choice"][0]
    assert found.gain == pytest.approx(
        1 - (1 + found.regrets["choice"][0]) / (1 + found.regrets["bsp"][0])
    )


def test_the_page_has_a_row_for_every_trace() -> None:
    page = regret.PAGE.read_text(encoding="utf-8")
    missing = [name for name in regret.SHIPPED | regret.PUBLIC if f"| {name} |" not in page]
    assert missing == []


SHARED = """\
nodes: [{count: 2, gpus: 2, cores: 2}]
workloads:
  alexnet: &small
    scenario:
      step: {compute: 0.1, host_share: 0.5, cv: 0.1}
      server: {service: 0.01}
      learner: {batch: 8}
  vgg13: *small
jobs:
  - {workload: alexnet, workers: 2, samples: 320}
  - {workload: vgg13, workers: 2, samples: 320}
policies: [bsp, {alexnet: asgd}]
"""


@pytest.mark.parametrize(
    ("name", "rows", "columns"), [("managers", 24, 10), ("policies", 8, 5), ("interval", 2, 8)]
)
def test_the_tables_of_shared_nodes_have_their_rows(
    name: str, rows: int, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(cluster_tables, "EXAMPLE", tmp_path / "shared.yaml")
    cluster_tables.EXAMPLE.write_text(SHARED, encoding="utf-8")
    node = cluster_tables.OTHERS[0] | {"node": 1}
    monkeypatch.setattr(cluster_tables, "OTHERS", [node])
    cluster_tables.TABLES[name](2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    heads = [line for line in lines if line.startswith("| ---")]
    assert len(lines) - 2 * len(heads) == rows
    assert {line.count(" | ") + 1 for line in lines} == {columns}
