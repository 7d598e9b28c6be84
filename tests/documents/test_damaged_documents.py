"""Damaged scenarios, studies, traces and profiles: read, or refused in lines that name the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simstrag.cluster.study import ClusterStudy
from simstrag.experiments.study import Study
from simstrag.profile.profile import Profile
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from tests.scenario.test_scenario import FULL
from tests.support.commands import TRACE
from tests.support.damage import damaged, outcome

ROOT = Path(__file__).parents[2]
PROFILE = "simstrag/calibration/profiles/intel-xeon-2-core-amx.json"
RECORDED = "simstrag/traces/recorded/intel-xeon-2-core-amx.csv"
MUTATIONS = 100
"""Of each document; with those of logs they are more than 1,500."""


def scenario(path: Path) -> None:
    Scenario.read(path).timing(0)


def profile(path: Path) -> None:
    Profile.read(path)
    _ = Scenario(workers=4, updates=3, profile=str(path), learner={"batch": 8}).inputs


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "full.yaml": (FULL, scenario),
    "demo.yaml": ((ROOT / "examples/demo.yaml").read_text(), scenario),
    "real-learning.yaml": ((ROOT / "examples/real-learning.yaml").read_text(), scenario),
    "replicas.yaml": ((ROOT / "examples/replicas.yaml").read_text(), scenario),
    "study.yaml": ((ROOT / "examples/study.yaml").read_text(), lambda p: Study.read(p).points()),
    "cluster.yaml": ((ROOT / "examples/cluster.yaml").read_text(), ClusterStudy.read),
    "trace.csv": (TRACE, Trace.read),
    "profile.json": ((ROOT / PROFILE).read_text(), profile),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_document_is_read_or_refused_by_its_name(name: str, tmp_path: Path) -> None:
    for file in (PROFILE, RECORDED, "examples/demo.yaml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    text, read = READERS[name]
    path, refused = tmp_path / "examples" / name, 0
    for number in range(MUTATIONS):
        path.write_bytes(damaged(text.encode(), f"{name} {number}"))
        message = outcome(lambda: read(path))
        assert all(len(line) < 600 + len(str(path)) for line in message.splitlines()), number
        assert not message or str(tmp_path) in message or "policy" in message, number
        refused += bool(message)
    assert refused > MUTATIONS // 3
