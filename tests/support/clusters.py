"""Real Dask and Ray clusters of two workers each, on this machine."""

from __future__ import annotations

import contextlib
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

from tests.experiments.test_sweep import MORTAL
from tests.processes.test_processes import alive, until

__all__ = ["PROGRAMS", "Cluster", "die_in", "start_cluster"]

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
            timeout=300, check=False,
        )  # fmt: skip


@contextlib.contextmanager
def start_cluster(backend: str, folder: Path) -> Iterator[Cluster]:
    """A cluster that imports from a folder; it leaves no process and no file behind."""
    package, program = PROGRAMS[backend]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
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
        yield Cluster(backend, said.strip(), folder, os.environ | known)
        process.communicate(timeout=300)
        assert until(lambda: not alive(process.pid)), alive(process.pid)
    finally:
        process.kill()
        shutil.rmtree(short, ignore_errors=True)


def die_in(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where policies note that they died; this process finds them in the cluster's folder."""
    graves = cluster.folder / "graves"
    shutil.rmtree(graves, ignore_errors=True)
    graves.mkdir()
    monkeypatch.setenv("GRAVES", str(graves))
    monkeypatch.setenv("SPARED", str(os.getpid()))
    monkeypatch.syspath_prepend(str(cluster.folder))
    return graves
