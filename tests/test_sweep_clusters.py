"""The same sweep on a real Dask and a real Ray cluster of two workers each, on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simstrag import Sweep, sweep
from tests.test_processes import alive, until
from tests.test_sweep import MORTAL, STUDY, tables

DASK = """
import sys
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""
RAY = """
import sys
from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node)
cluster.add_node(**node)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
PROGRAMS = {"dask": ("distributed", DASK), "ray": ("ray", RAY)}

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")


@dataclass(frozen=True)
class Cluster:
    """A cluster, a folder that its workers import from, and what its clients need to know."""

    backend: str
    address: str
    folder: Path
    environment: dict[str, str]

    def sweep(self, study: dict[str, Any], out: Path) -> subprocess.CompletedProcess[str]:
        """The command, with a study in a file."""
        path = self.folder / f"{out.name}.yaml"
        path.write_text(json.dumps(study))  # which is YAML too
        options = ("--backend", self.backend, "--address", self.address, "--out", str(out))
        command = [sys.executable, "-c", "from simstrag.cli import main; main()", "sweep"]
        return subprocess.run(
            [*command, str(path), *options], env=self.environment, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module", params=list(PROGRAMS))
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One for all tests here; it leaves no process and no file behind."""
    package, program = PROGRAMS[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    short = tempfile.mkdtemp(prefix="ray")  # the names of sockets have a limit
    (folder / "mortal.py").write_text(MORTAL)
    (folder / "cluster.py").write_text(program)
    known = {
        "SPARED": str(os.getpid()),
        "GRAVES": str(folder / "graves"), "RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, str(folder / "cluster.py")], env=os.environ | known, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = next(line for line in process.stdout if ":" in line and " " not in line.strip())
        yield Cluster(request.param, said.strip(), folder, os.environ | known)
        process.communicate(timeout=60)
        assert until(lambda: not alive(process.pid)), alive(process.pid)
    finally:
        process.kill()
        shutil.rmtree(short, ignore_errors=True)


@pytest.fixture
def graves(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where policies note that they died; this process finds them in the cluster's folder."""
    graves = cluster.folder / "graves"
    shutil.rmtree(graves, ignore_errors=True)
    graves.mkdir()
    monkeypatch.setenv("GRAVES", str(graves))
    monkeypatch.setenv("SPARED", str(os.getpid()))
    monkeypatch.syspath_prepend(str(cluster.folder))
    return graves


def test_a_cluster_makes_the_same_tables_to_the_last_byte(cluster: Cluster, tmp_path: Path) -> None:
    """Also of a trace in a file, which its workers need not have."""
    trace = "time,node,resource,kind,value\n0.2,3,gpu,slowdown,2.0\n"
    (cluster.folder / "slow.csv").write_text(trace)
    study = STUDY | {"grid": {"trace": [None, "slow.csv"], "workers": [4, 8]}}
    done = cluster.sweep(study, tmp_path / "there")
    assert done.returncode == 0, done.stderr
    sweep(cluster.folder / "there.yaml", tmp_path / "here", jobs=1)
    assert tables(tmp_path / "there") == tables(tmp_path / "here")


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
