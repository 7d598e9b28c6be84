"""Sync-Switch's runs with late workers: what one tells of two; tolerances came after a first look.

Li et al., "Sync-Switch", ICDCS 2021, curves in cake-lab/Sync-Switch @09af086 (Apache-2.0): steps
per second of K80 workers, clean and with 10 ms more per message of one or two workers.  How many
workers there are (four, inferred) and how many messages a step has is not said: the messages are
fitted to asynchronous runs with one late worker.
"""

from __future__ import annotations

import pytest

from benchmarks.published import MEASURED, updates_per_second


def test_the_delay_of_one_worker_predicts_that_of_two() -> None:
    clean, one, two = MEASURED["asgd"]
    assert updates_per_second("asgd", 0) == pytest.approx(clean, rel=0.001)
    assert updates_per_second("asgd", 1) == pytest.approx(one, rel=0.001)
    predicted = updates_per_second("asgd", 2)
    print(f"asgd, two late: {predicted:.3f} predicted, {two} published")
    assert predicted == pytest.approx(two, rel=0.01)


def test_a_strict_barrier_is_later_than_theirs_by_one_worker_and_not_by_two() -> None:
    """With two late workers as published; with one theirs is between a barrier's and a clean one's.

    TensorFlow's SyncReplicas is no strict barrier.
    """
    clean, one, two = MEASURED["bsp:via=server"]
    first, second = (updates_per_second("bsp:via=server", late) for late in (1, 2))
    print(f"sync, one and two late: {first:.3f}, {second:.3f} predicted; {one}, {two} published")
    assert second == pytest.approx(two, rel=0.02)
    assert first < one < clean


def test_predictions_for_30_ms_stand_beforehand() -> None:
    """Their measurements were not at hand: these are what the constants above say."""
    predicted = [updates_per_second(policy, late, 0.030) for policy in MEASURED for late in (1, 2)]
    print("+30 ms, asgd and sync, one and two late:", *(f"{each:.3f}" for each in predicted))
    assert predicted == pytest.approx([17.02, 15.16, 2.55, 2.55], rel=0.01)
