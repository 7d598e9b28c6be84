"""A sweep on a real Dask cluster of two workers; tests/verification has Ray, and killed workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simstrag import sweep
from tests.experiments.test_sweep import STUDY, tables
from tests.support.clusters import Cluster, start_cluster

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster("dask", tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


def test_a_cluster_makes_the_same_tables_to_the_last_byte(cluster: Cluster, tmp_path: Path) -> None:
    """Also of a trace in a file, which its workers need not have."""
    trace = "time,node,resource,kind,value\n0.2,3,gpu,slowdown,2.0\n"
    (cluster.folder / "slow.csv").write_text(trace)
    study = STUDY | {"grid": {"trace": [None, "slow.csv"], "workers": [4, 8]}}
    done = cluster.sweep(study, tmp_path / "there")
    assert done.returncode == 0, done.stderr
    sweep(cluster.folder / "there.yaml", tmp_path / "here", jobs=1)
    assert tables(tmp_path / "there") == tables(tmp_path / "here")
