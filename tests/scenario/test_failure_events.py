"""Failures from a file: the same as inline, and the ranks of a fleet whose nodes join and leave."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simstrag.engine.simulate import simulate
from simstrag.scenario.failure_events import read_failure_events
from simstrag.scenario.scenario import Scenario
from tests.support.refusals import message_of

SCENARIO = """\
workers: 2
updates: 6
step: {compute: 1}
failures: {events: FILE, on_fault: continue}
"""
BAMBOO = Path(__file__).parents[3] / "shared" / "traces" / "bamboo-spot" / "p3-trace.csv"


def written(folder: Path, text: str, workers: int = 2) -> Path:
    """A scenario file beside a file of failures."""
    (folder / "events.csv").write_text(text, encoding="utf-8")
    path = folder / "scenario.yaml"
    declared = SCENARIO.replace("FILE", "events.csv").replace("2", str(workers), 1)
    path.write_text(declared, encoding="utf-8")
    return path


def test_a_file_says_the_same_as_failures_inline(tmp_path: Path) -> None:
    text = "time, rank, back, why\n1.5, 1, 3.25, preempted\n5, 0, , lost\n"
    scenario = Scenario.read(written(tmp_path, text))
    inline = [{"time": 1.5, "rank": 1, "back": 3.25}, {"time": 5, "rank": 0}]
    failures = {"events": inline, "on_fault": "continue"}
    same = Scenario(workers=2, updates=6, step={"compute": 1.0}, failures=failures)
    assert scenario.failures == same.failures
    runs = [simulate(each, "asgd").updates for each in (scenario, same)]
    assert [*runs[0]["time"]] == [*runs[1]["time"]] == [1, 1, 2, 3, 4, 4.25]


def test_a_written_scenario_has_the_failures_in_it(tmp_path: Path) -> None:
    scenario = Scenario.read(written(tmp_path, "time,rank\n1.5,1\n"))
    (tmp_path / "copy").mkdir()
    scenario.write(tmp_path / "copy")
    assert Scenario.read(tmp_path / "copy" / "scenario.yaml").failures == scenario.failures


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("time,node\n1,0\n", r"failures\.events: .*events\.csv: no column rank"),
        ("time,rank\n", r"events\.csv: no rank fails in it"),
        ("time,rank\n1,0\nsoon,1\n", r"row 3: time is 'soon', but must be a number from 0 on"),
        ("time,rank\n1,0.5\n", r"row 2: rank is '0\.5', but must be a whole number"),
        ("time,rank,back\n1,0,-1\n", r"row 2: back is '-1', but must be a number from 0 on"),
        ("time,rank\n1,7\n", r"rank 7 fails, and there are 2 workers"),
        ("time,rank\n1\n", r"row 2: 1 fields, but the header names 2 columns"),
        ("time,rank,time\n1,0,3\n", r"events\.csv: 2 columns are called time; keep one"),
        ("0,add,a\n9,add,a\n", r"row 2: a joins twice"),
        ("0,add,a\n9,remove,b\n", r"row 2: b leaves, and has not joined"),
        ("5,add,a\n4,remove,a\n", r"row 2: 0\.004 s is before the row above it; sort the rows"),
        ("0,add,a\n4,kill,a\n", r"row 2: must be milliseconds, add or remove, and a node"),
        (None, r"events\.csv: is no file; events names a CSV file"),
    ],
)
def test_a_mistake_names_file_row_and_value(text: str | None, reason: str, tmp_path: Path) -> None:
    path = written(tmp_path, text or "")
    if text is None:
        (tmp_path / "events.csv").unlink()
    assert re.search(reason, message_of(lambda: Scenario.read(path)))


def test_a_node_that_joins_takes_the_lowest_rank_without_one(tmp_path: Path) -> None:
    """a and b join at once, c later; b leaves for ever, a is replaced by d."""
    fleet = "0,add,a\n0,add,b\n2000,add,c\n2500,remove,a\n2500,remove,b\n4250,add,d\n"
    events: list[dict[str, Any]] = [
        {"time": 0.0, "rank": 2, "back": 2.0},
        {"time": 2.5, "rank": 0, "back": 4.25},
        {"time": 2.5, "rank": 1, "back": None},
    ]
    scenario = Scenario.read(written(tmp_path, fleet, workers=3))
    assert read_failure_events(tmp_path / "events.csv") == events
    assert list(simulate(scenario, "asgd").updates["members"]) == [
        (0,), (1,), (0,), (1,), (2,), (2,),
    ]  # fmt: skip


@pytest.mark.skipif(not BAMBOO.exists(), reason="shared/traces/bamboo-spot is not there")
def test_a_real_spot_fleet_has_as_many_ranks_as_its_source_counts_instances() -> None:
    """32 at most, 18 of them at first; 167 nodes leave, and 24.03 are there on average."""
    events = read_failure_events(BAMBOO)
    at_first = [event for event in events if event["time"] == 0]
    assert max(event["rank"] for event in events) == 31
    assert sorted(event["rank"] for event in at_first) == list(range(18, 32))
    assert len(events) - len(at_first) == 167
    scenario = Scenario(
        workers=32, samples=983_000 * 128, step={"compute": 1.0},
        failures={"events": str(BAMBOO), "on_fault": "continue"},
    )  # fmt: skip
    run = simulate(scenario, "asgd", record_updates=False)
    assert run.summary["useful_throughput"] / 128 == pytest.approx(24.03, abs=0.01)
