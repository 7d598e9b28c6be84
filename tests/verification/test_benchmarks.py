"""All engines of the benchmarks end at the same time in the cases that tests/ leaves out, too."""

from __future__ import annotations

import pytest

from benchmarks import speed
from benchmarks.jobs import NOISES, POLICIES, Job


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("breakpoints", [0, 7])
@pytest.mark.parametrize("workers", [8, 40])
def test_all_engines_end_at_the_same_time(
    policy: str, noise: str, breakpoints: int, workers: int
) -> None:
    speed.agree(Job(policy, workers, 40, noise, breakpoints))
