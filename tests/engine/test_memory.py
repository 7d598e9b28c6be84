"""Memory: what a run takes does not grow with how long it is.

Each in an interpreter of its own, since what counts is the most that it ever took.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, resource, sys
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario

workers, policy, keep, *updates = json.loads(sys.argv[1])
most = []
for count in updates:
    made = Scenario(workers=workers, updates=count, step={"compute": 0.1, "cv": 0.1})
    run = simulate(made, policy, **keep)
    assert run.summary["updates"] == count
    del run
    most.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(json.dumps(most))
"""
FEW = 16.0
"""Megabytes, of what allocators do not give back at once; the rows of the logs would be 200."""


def most_memory(*about: object) -> list[float]:
    """The most megabytes ever taken, after each of the runs."""
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(about)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[float] = json.loads(answer.stdout)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("workers", "policy", "updates"), [(64, "bsp", 40_000), (64, "asgd", 400_000)]
)
def test_a_run_that_is_written_as_it_goes_takes_no_more_if_ten_times_as_long(
    workers: int, policy: str, updates: int, tmp_path: Path
) -> None:
    keep = {"out": str(tmp_path / "run")}
    short, long = most_memory(workers, policy, keep, updates, 10 * updates)
    assert long < short + FEW


@pytest.mark.thorough
def test_a_sample_of_updates_takes_no_more_if_ten_times_as_long() -> None:
    short, long = most_memory(64, "asgd", {"record_updates": False}, 300_000, 3_000_000)
    assert long < short + FEW


@pytest.mark.thorough
def test_an_excerpt_takes_no_more_if_four_times_as_long() -> None:
    """It is full at first; then what it keeps is thinned as often as need be."""
    short, long = most_memory(64, "asgd", {"excerpt": list(range(64))}, 700_000, 2_800_000)
    assert long < short + FEW


def test_a_row_of_a_log_in_memory_takes_eight_bytes_a_value() -> None:
    """Nine numbers an update, its member among them, and a column twice while it is joined."""
    short, long = most_memory(64, "asgd", {}, 100_000, 1_000_000)
    assert (long - short) * 2**20 / 900_000 < 150
