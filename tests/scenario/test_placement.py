"""Where ranks are in the network: as the scenario says, else as the profile's nodes were filled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simstrag import Scenario
from simstrag.analysis.text.assumptions import assumptions

PROFILES = Path(__file__).parents[2] / "simstrag" / "calibration" / "profiles"


def scenario(profile: Path, **keys: Any) -> Scenario:
    step: dict[str, Any] = {"step": {"compute": 0.1}}
    return Scenario(workers=4, updates=1, profile=str(profile), **step | keys)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Links inside a node have no latency, those between nodes 1 s a hop."""
    known = {"value": 0.0, "kind": "measured"}
    allreduce = {
        "alpha": {"value": 1.0, "kind": "measured"}, "intra_alpha": known, "bytes": known,
        "bandwidth": {"value": 1.0, "kind": "measured"}, "overlap": known,
    }  # fmt: skip
    texts = {"name": "net", "date": "", "command": "", "software": {}}
    device = {"gpus_per_node": {"2": [2], "4": [2, 2]}}
    path = tmp_path / "net.json"
    path.write_text(json.dumps(texts | {"device": device, "allreduce": allreduce}))
    return path


def test_ranks_share_nodes_as_in_the_profile_where_the_scenario_does_not_say(profile: Path) -> None:
    """Ranks 0 and 1 share a node, and so do 2 and 3: a ring of 2 has 2 hops, one of 4 has 6."""
    case = scenario(profile)
    assert case.network_places == (0, 0, 1, 1)
    assert case.timing(0).reduce((2, 3), 0.0) == 0.0
    assert case.timing(0).reduce((0, 1, 2, 3), 0.0) == 6.0
    assert any("filled as those of the profile were" in text for text in assumptions(case, []))


def test_what_the_scenario_says_of_nodes_comes_first(profile: Path) -> None:
    case = scenario(profile, nodes=[0, 1, 2, 3])
    assert case.timing(0).reduce((2, 3), 0.0) == 2.0
    assert not any("filled" in text for text in assumptions(case, []))


def test_a_node_of_the_trace_is_still_a_rank(profile: Path) -> None:
    row = {"time": 0, "node": 3, "resource": "gpu", "kind": "slowdown", "value": 2.0}
    timing = scenario(profile, trace=[row]).timing(0)
    assert [timing.noise_free(rank, 0, 0.0) for rank in range(4)] == [0.1, 0.1, 0.1, 0.2]


def test_four_gpus_of_one_node_take_what_was_measured_inside_it() -> None:
    """4 A100s, 128 MiB: 0.95 ms in the source; it was 1.74 ms with one a node."""
    case = scenario(PROFILES / "a100-nccl-tests.json", allreduce={"bytes": 128 * 2**20})
    assert case.timing(0).reduce((0, 1, 2, 3), 0.0) == pytest.approx(0.95e-3, rel=0.1)
