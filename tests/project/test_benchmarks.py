"""What is compared for speed computes the same, and the results have what the docs promise."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import (
    cluster_tables,
    lasting_noise,
    learning_claims,
    published,
    regret,
    results,
    speed,
    star_cluster,
    tables,
)
from benchmarks.diloco_measured import Cell, Constants, cell_of, predict, ring_seconds
from benchmarks.jobs import NOISES, POLICIES, Job
from benchmarks.results import MEASURED
from simstrag.claims.cluster_claims import draw as star_draw
from simstrag.errors import InputError
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
    monkeypatch.setattr(learning_claims, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
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
    case = regret.write_scenario(tmp_path / "slow.csv").replaced(policies=["bsp", "lb_bsp", "asgd"])
    found = regret.judge("slow", case)
    assert (found.workers, found.safe) == (3, "lb_bsp")
    for own, worst in found.regrets.values():
        assert 0 <= own <= worst
    assert found.regrets["bsp"][0] > found.regrets["choice"][0]
    assert found.gain == pytest.approx(
        1 - (1 + found.regrets["choice"][0]) / (1 + found.regrets["bsp"][0])
    )


def test_the_table_has_a_row_for_every_trace() -> None:
    table = (MEASURED / "regret.txt").read_text(encoding="utf-8")
    missing = [name for name in regret.SHIPPED | regret.PUBLIC if f"\n{name}  " not in table]
    assert missing == []


CONSTANTS = Constants(
    compute={"ddp": 0.5, "diloco": 1.0}, rest={"ddp": 0.5, "diloco": 0.25}, connect=6.0,
    latency=3.0, factors={5e7: 1.2, 2e8: 1.1, 1e9: 1.0}, hidden=2.0, link=1.5e10, measured=0.9,
    windows={4: (10, 1), 128: (200, 20)},
)  # fmt: skip
"""Of a job like those of diloco-measured, with rounder numbers."""


@pytest.mark.parametrize(("window", "syncs", "first"), [((10, 1), 2, 1), ((10, 5), 1, 0)])
def test_utilisation_of_a_window_counts_the_all_reduces_in_it(
    window: tuple[int, int], syncs: int, first: int
) -> None:
    """Of every four steps; the first all-reduce takes 6 s more, and may be in the warm-up."""
    found = CONSTANTS.predict(Cell("diloco", 4, 1e9, False, window))
    steps, seconds = window[0] - window[1], 3.0 + ring_seconds(1e9)
    whole = 1.25 * steps + syncs * seconds + 6.0 * first
    assert found.window == pytest.approx(steps / whole)
    assert found.round == pytest.approx(4 / (5 + seconds))


def test_a_window_without_an_all_reduce_has_no_utilisation() -> None:
    assert math.isnan(CONSTANTS.predict(Cell("diloco", 64, 1e9, False, (10, 1))).window)


def test_ddp_hides_the_same_seconds_of_its_trees_on_every_link() -> None:
    for bandwidth, rate in ((1e9, 1e9), (2e8, 2e8 / 1.1), (math.inf, 1.5e10)):
        blocked = max(ring_seconds(rate) / 0.75 - 2.0, 0)
        found = CONSTANTS.predict(Cell("ddp", 1, bandwidth, False, (10, 5)))
        assert found.window == pytest.approx(0.5 / (1 + blocked))


def test_an_all_reduce_gets_worse_by_the_logarithm_of_the_bandwidth() -> None:
    assert CONSTANTS.rate(1e8) == pytest.approx(1e8 / 1.15)
    assert CONSTANTS.rate(1.25e7) == pytest.approx(1.25e7 / 1.3)
    assert CONSTANTS.rate(5e9) == 5e9


def test_a_file_of_cells_needs_three_columns_and_uses_further_ones() -> None:
    """A link of which nothing is said is not shaped, and steps are those of the nearest H."""
    asked = {"algorithm": "diloco", "H": 8, "bandwidth_requested_bps": 1e8}
    further = {"bandwidth_measured_bps": 9.5e7, "repeat": 1, "steps": 40, "warmup_steps": 4}
    assert cell_of(asked, CONSTANTS) == Cell("diloco", 8, 9e7, False, (10, 1))
    assert cell_of(asked | further, CONSTANTS) == Cell("diloco", 8, 9.5e7, True, (40, 4))
    unshaped = asked | {"bandwidth_requested_bps": math.nan}
    assert cell_of(unshaped, CONSTANTS).bandwidth == math.inf
    with pytest.raises(InputError, match="the cells have no column H; they need algorithm, H, "):
        predict(pd.DataFrame([{"algorithm": "ddp"}]), CONSTANTS)
    with pytest.raises(InputError, match="there is no algorithm 'sgd'; known: ddp, localsgd"):
        predict(pd.DataFrame([asked | {"algorithm": "sgd"}]), CONSTANTS)
    for h in (0, 1.5, math.nan):
        with pytest.raises(InputError, match=f"H of diloco is {h}; want a whole number from 1"):
            cell_of(asked | {"H": h}, CONSTANTS)
    with pytest.raises(InputError, match="the bandwidth is 0 bit/s; want one above 0, or none"):
        cell_of(asked | {"bandwidth_requested_bps": 0}, CONSTANTS)


def test_the_table_has_the_rows_of_every_published_source() -> None:
    table = (MEASURED / "published.txt").read_text(encoding="utf-8")
    assert [name for name in published.SOURCES if f"\n{name}  " not in table] == []


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
    name: str, rows: int, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_tables, "EXAMPLE", tmp_path / "shared.yaml")
    cluster_tables.EXAMPLE.write_text(SHARED, encoding="utf-8")
    node = cluster_tables.OTHERS[0] | {"node": 1}
    monkeypatch.setattr(cluster_tables, "OTHERS", [node])
    found = [*cluster_tables.TABLES[name](2)]
    assert sum(len(table.rows) for table in found) == rows
    assert {len(row) for table in found for row in (table.header, *table.rows)} == {columns}


def test_the_sensitivity_of_star_to_c_tau_has_a_row_for_each_entrant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(number: int, cores: float, jobs: int, **keys: Any) -> dict[str, Any]:
        assert (cores, jobs) == (1.0, 24)
        return star_draw(number, cores, 2, seconds=10.0, **keys)

    monkeypatch.setattr(star_cluster, "draw", short)
    monkeypatch.setattr(star_cluster, "CLUSTER_CLAIMS", star_cluster.CLUSTER_CLAIMS[1:])
    monkeypatch.setattr("simstrag.claims.cluster_sweep.DRAWS", 2)
    boards = star_cluster.run_boards(tmp_path, 1, (0.0, 4.0))
    (costs,) = star_cluster.by_c_tau(boards)
    assert costs.header == ("star-cluster-ring, s", "c_tau 0", "c_tau 4")
    assert [row[0] for row in costs.rows][:2] == ["bsp", "lb_bsp"]
    (times,) = star_cluster.entrants(boards[0.0])
    assert times.title == "star-cluster-ring, by the formula"
    assert len(times.rows) == len(costs.rows) - 1 == 5
    assert (times.header[0], times.header[2]) == ("what", "time (s)")


def test_the_aims_that_are_kept_are_those_of_the_results() -> None:
    kept = (MEASURED / "cost-aims.txt").read_text(encoding="utf-8")
    assert kept == "\n".join(tables.plain(tables.aims(results.read())))
