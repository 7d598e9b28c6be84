"""Sweeps on real clusters whose workers are killed: no run is lost, and none waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simstrag import Sweep, sweep
from tests.experiments.test_sweep import STUDY, tables
from tests.experiments.test_sweep_clusters import (
    test_a_cluster_makes_the_same_tables_to_the_last_byte,
)
from tests.support.clusters import PROGRAMS, Cluster, die_in, start_cluster

__all__ = ["test_a_cluster_makes_the_same_tables_to_the_last_byte"]

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")


@pytest.fixture(scope="module", params=list(PROGRAMS))
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with start_cluster(request.param, tmp_path_factory.mktemp(request.param)) as cluster:
        yield cluster


@pytest.fixture
def graves(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    return die_in(cluster, monkeypatch)


def test_a_worker_that_is_killed_costs_nothing_but_time(
    cluster: Cluster, graves: Path, tmp_path: Path
) -> None:
    study = STUDY | {"policies": ["bsp", "mortal:Mortal", "asgd"]}
    done = cluster.sweep(study, tmp_path / "killed")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in graves.iterdir()] == ["0"]
    sweep(study, tmp_path / "serial", jobs=1)
    assert tables(tmp_path / "killed") == tables(tmp_path / "serial")


def test_a_run_that_kills_every_worker_is_given_up_and_the_others_go_on(
    cluster: Cluster, graves: Path, tmp_path: Path
) -> None:
    study = STUDY | {"grid": {}, "policies": ["mortal:Mortal:times=9", "asgd"], "seeds": 1}
    done = cluster.sweep(study, tmp_path / "s")
    assert done.returncode == 1, done.stderr
    tried = {"dask": 2, "ray": 1}[cluster.backend]
    assert len(list(graves.iterdir())) == 4 * tried
    errors = Sweep.read(tmp_path / "s").frame().set_index("policy")["error"]
    assert errors["mortal:Mortal:times=9"].startswith("what computed it ended each time")
    assert errors.isna()["asgd"]
