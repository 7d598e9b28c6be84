"""Metrics of a pipeline that is worked out by hand; see `job_records.pipeline`.

Without delays the step of replica 0 goes 3 (forward 0) + .5 + 1 (forward 1) + 2 (backward 1) + .5
+ 6 (backward 0) = 13, and that of replica 1 the same with 1 and 2: 7.  Then the gradients are
clipped together for .5 and the optimizer takes 1: T = 14.5.  The mean forward takes 1.5, the mean
backward 3, so T* = 1.5 + .5 + 1.5 + 3 + .5 + 3 + 1.5 = 11.5.
"""

from __future__ import annotations

import numpy as np
import pytest

from simstrag.whatif.metrics import Metrics, metrics
from simstrag.whatif.operation_array import Layout
from simstrag.whatif.replay import JobReplay
from tests.support.job_records import pipeline

IDEAL = 11.5


@pytest.fixture(scope="module")
def found() -> Metrics:
    return metrics(JobReplay.of(Layout.of(pipeline())))


def test_a_record_without_delays_is_replayed_as_it_was(found: Metrics) -> None:
    assert found.recorded.tolist() == found.replayed.tolist() == [14.5]
    assert found.replay_error == 1
    assert found.delays is None


def test_the_slowdown_is_the_replayed_over_the_ideal_step(found: Metrics) -> None:
    assert found.ideal.tolist() == [IDEAL]
    assert found.slowdown == 14.5 / IDEAL


def test_a_kind_is_charged_with_its_recorded_durations(found: Metrics) -> None:
    """Forward: 3 + .5 + 1 + 3 + .5 + 3; backward: 1.5 + .5 + 1.5 + 2 + .5 + 6; and 1.5 more."""
    assert found.by_kind.whole == pytest.approx({
        "forward-compute": 12.5 / IDEAL, "backward-compute": 13.5 / IDEAL, "forward-pp-comm": 1,
        "backward-pp-comm": 1, "optimizer-clip-main-grad": 1, "optimizer": 1,
    })  # fmt: skip


def test_replicas_and_stages_are_charged_likewise(found: Metrics) -> None:
    """Stage 0 as recorded beside an ideal stage 1: 3 + .5 + 1.5 + 3 + .5 + 6 + 1.5 = 16."""
    assert found.by_replica.whole == pytest.approx({"0": 14.5 / IDEAL, "1": 1})
    assert found.by_stage.whole == pytest.approx({"0": 16 / IDEAL, "1": 10 / IDEAL})
    assert found.by_worker == pytest.approx(np.array([[14.5, 10], [11.5, 10]]) / IDEAL)


def test_the_top_worker_ideal_removes_more_than_the_slowdown(found: Metrics) -> None:
    """Rank 0 ideal: 1.5 + .5 + 1 + 2 + .5 + 3 + 1.5 = 10; it alone as recorded: 16."""
    assert found.top_ranks == (0,)
    assert (found.top.fixed, found.top.only) == (10, 16)
    assert (found.top.removed, found.top.alone) == pytest.approx((1.5, 1.5))


def test_an_ideal_last_stage_can_make_a_step_longer(found: Metrics) -> None:
    assert (found.last_stage.fixed, found.last_stage.only) == (16, 10)
    assert (found.last_stage.removed, found.last_stage.alone) == pytest.approx((-0.5, -0.5))


def test_a_late_first_operation_is_a_delay_and_no_slowdown() -> None:
    found = metrics(JobReplay.of(Layout.of(pipeline(late=1.45))))
    assert found.slowdown == pytest.approx(14.5 / IDEAL)
    assert found.replay_error == pytest.approx(15.95 / 14.5)
    by_kind = found.delays["kind"].whole
    assert by_kind.pop("first-op") == pytest.approx(15.95 / 14.5)
    assert list(by_kind.values()) == pytest.approx([1] * len(by_kind))
