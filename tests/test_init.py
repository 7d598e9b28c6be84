"""A first scenario from a trace: it runs as it is written, and says what it assumes."""

import re
from pathlib import Path
from typing import Any

import pytest

import simstrag
from simstrag import Scenario, Trace
from simstrag.cli.first_scenario import first_scenario, write_first_scenario

TRACES: dict[str, list[tuple[Any, ...]]] = {
    "eight nodes": [(9.0 * n, n, "gpu", "slowdown", 1.5) for n in range(8)],
    "one node": [(2, 3, "gpu", "slowdown", 2.0), (6, 3, "gpu", "slowdown", 1.0)],
    "two nodes, far numbers": [(2, 70, "gpu", "slowdown", 2.0), (6, 99, "step", "slowdown", 3.0)],
    "host": [(2, 0, "host", "slowdown", 2.0), (60, 1, "host", "slowdown", 1.0)],
    "network": [(2, 0, "net", "slowdown", 2.0), (60, 1, "net", "slowdown", 1.0)],
    "constants": [(0, 0, "step", "slowdown", 2.0), (0, 1, "step", "slowdown", 1.0)],
    "faster": [(0, 0, "step", "slowdown", 0.9), (3, 1, "step", "slowdown", 1.0)],
    "durations": [(k / 9, n, "step", "duration", 0.1 + n) for k in range(30) for n in range(3)],
    "durations and network": [
        (1, 0, "step", "duration", 0.1), (1, 1, "step", "duration", 0.2),
        (1, 0, "net", "slowdown", 2.0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_first_scenario_can_be_compared_as_it_is(name: str, tmp_path: Path) -> None:
    Trace.from_rows(TRACES[name]).write(tmp_path / "slow.csv")
    path = write_first_scenario(tmp_path / "slow.csv", tmp_path / "scenario.yaml")
    comparison = simstrag.compare(path, seeds=1, jobs=1)
    assert comparison.has_target
    assert comparison.runs["time_to_target"].notna().all()


def test_there_is_a_worker_on_each_node_of_the_trace() -> None:
    def keys(name: str) -> tuple[Any, Any]:
        text = first_scenario(Trace.from_rows(TRACES[name]), "slow.csv")
        found = re.search(r"^nodes: (\[.*?\])", text, re.MULTILINE)
        workers = re.search(r"^workers: (\d+)", text, re.MULTILINE)
        return workers and int(workers[1]), found and found[1]

    assert keys("eight nodes") == (8, None)
    assert keys("two nodes, far numbers") == (2, "[70, 99]")
    assert keys("one node") == (4, "[3, 4, 5, 6]")


def test_no_step_and_no_noise_is_written_for_durations_which_take_none() -> None:
    text = first_scenario(Trace.from_rows(TRACES["durations"]), "slow.csv")
    assert not re.search(r"^ *(step|compute|cv):", text, re.MULTILINE)
    assert "# step: {compute: 1.1, amp_ratio: 1.5}" in text


def test_workers_without_durations_take_the_mean_of_those_recorded() -> None:
    rows = [(float(k), 3, "step", "duration", 0.1 + k / 5) for k in range(3)]
    text = first_scenario(Trace.from_rows(rows), "slow.csv")
    assert re.search(r"^  compute: 0\.3 .*the mean of those recorded$", text, re.MULTILINE)


@pytest.mark.parametrize("key", ["compute", "cv", "batch", "noise_scale", "c_tau"])
def test_what_nobody_measured_is_said_to_be_assumed(key: str) -> None:
    lines = first_scenario(Trace.from_rows(TRACES["eight nodes"]), "slow.csv").splitlines()
    at = next(k for k, line in enumerate(lines) if re.search(rf"^[^#]*\b{key}:", line))
    assert any("ASSUMED" in line for line in lines[at - 2 : at + 1])


def test_communication_is_stated_where_the_trace_slows_it() -> None:
    def costs(name: str) -> bool:
        text = first_scenario(Trace.from_rows(TRACES[name]), "slow.csv")
        return re.search(r"^allreduce:", text, re.MULTILINE) is not None

    assert costs("network")
    assert not costs("eight nodes")


def test_a_trace_is_found_from_the_folder_of_the_scenario(tmp_path: Path) -> None:
    for folder in ("traces", "mine"):
        (tmp_path / folder).mkdir()
    Trace.from_rows(TRACES["host"]).write(tmp_path / "traces" / 'a "strange" one.csv')
    path = write_first_scenario(
        tmp_path / "traces" / 'a "strange" one.csv', tmp_path / "mine" / "s.yaml"
    )
    assert Scenario.read(path).trace == '../traces/a "strange" one.csv'


def test_a_scenario_is_never_overwritten(tmp_path: Path) -> None:
    Trace.from_rows(TRACES["host"]).write(tmp_path / "slow.csv")
    (tmp_path / "s.yaml").write_text("mine")
    with pytest.raises(simstrag.InputError, match="is there already"):
        write_first_scenario(tmp_path / "slow.csv", tmp_path / "s.yaml")
    assert (tmp_path / "s.yaml").read_text() == "mine"


def test_a_trace_is_found_from_a_folder_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    Trace.from_rows(TRACES["host"]).write(tmp_path / "slow.csv")
    path = write_first_scenario(tmp_path / "slow.csv", tmp_path / "link" / "s.yaml")
    found = Scenario.read(path).inputs.trace
    assert found is not None
    assert found.rows == Trace.read(tmp_path / "slow.csv").rows


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    Trace.from_rows(TRACES["host"]).write(tmp_path / "slow.csv")
    with pytest.raises(simstrag.InputError, match=r"s\.yaml: there is no folder '.*nodir'"):
        write_first_scenario(tmp_path / "slow.csv", tmp_path / "nodir" / "s.yaml")


def test_a_trace_that_cannot_be_simulated_is_refused(tmp_path: Path) -> None:
    Trace.from_rows([(0, 0, "gpu", "utilisation", 0.5)]).write(tmp_path / "slow.csv")
    with pytest.raises(simstrag.InputError, match="utilisation"):
        write_first_scenario(tmp_path / "slow.csv", tmp_path / "s.yaml")
    assert not (tmp_path / "s.yaml").exists()


def test_a_slowdown_that_never_ends_is_held() -> None:
    """Begun anew, a trace forgets its last value in the very instant."""
    text = first_scenario(Trace.from_rows([(10, 3, "gpu", "slowdown", 2.0)]), "slow.csv")
    assert re.search("^trace_end: hold", text, re.MULTILINE)
    assert "leave node 3 (gpu) slowed" in text
    assert "trace_per_seed: shift" not in text
