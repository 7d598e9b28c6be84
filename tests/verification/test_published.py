"""Published runs replayed: diloco-measured and Decoupled DiLoCo; tolerances were set beforehand.

The aims, 4 % in the mean and 10 % at worst, hold for each run of LocalSGD and DiLoCo that is
predicted by the others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import published
from benchmarks.diloco_measured import Runs, leave_one_out, predict, ring_seconds

DATA = Path(__file__).parents[2].parent / "shared" / "traces"
needs_runs = pytest.mark.skipif(
    not (DATA / "diloco-measured").exists(), reason="shared/traces/diloco-measured is not there"
)


@pytest.fixture(scope="module")
def data() -> Runs:
    return Runs.read(DATA / "diloco-measured")


@needs_runs
def test_each_run_of_local_steps_is_predicted_by_the_others(data: Runs) -> None:
    found = leave_one_out(data)
    outer = found[found["algorithm"] != "ddp"]
    error = (outer["window"] / outer["utilisation"] - 1).abs()
    print("errors:", *(f"{each:.1%}" for each in error))
    assert len(outer) == 6
    assert error.mean() <= 0.04
    assert error.max() <= 0.10


@needs_runs
def test_all_runs_together_are_described_by_their_constants(data: Runs) -> None:
    found = predict(data.runs, data.constants())
    error = (found["window"] / found["utilisation"] - 1).abs()
    assert error.mean() <= 0.04
    assert error.max() <= 0.10


@needs_runs
def test_no_waiting_grows_with_the_local_steps_but_the_first_all_reduce_is_longer(
    data: Runs,
) -> None:
    """At 5 Gbit/s, after 32 steps of each rank as after one; the first contains connecting."""
    after_1, after_32 = (data.syncs[f"cu_grid-diloco-30m-h{h}-bw5g-r0"] for h in (1, 32))
    assert after_32.iloc[1:].mean() == pytest.approx(after_1.iloc[1:].mean(), rel=0.02)
    assert all(each.iloc[0] - each.iloc[1:].mean() > 0.3 for each in (after_1, after_32))


@needs_runs
def test_ddps_all_reduce_is_that_of_trees(data: Runs) -> None:
    """Predicted without the run of DDP; of its time backward hides at most what it computes."""
    ddp = data.runs.iloc[0]
    blocked = ddp["sync_blocked_s"] / ddp["outer_syncs_in_window"]
    others = data.constants(without=ddp["run_id"])
    trees = 2 * 8 * 4 * 30_846_720 / others.rate(others.measured * 1e9)
    assert blocked < trees < blocked + 0.0226
    assert ring_seconds(others.measured * 1e9) < 0.77 * blocked


@pytest.mark.parametrize("learners", [1, 8])
def test_goodput_is_the_share_of_whole_steps_between_failures(learners: int) -> None:
    """By renewal: a learner does useful_share(m) seconds of work, and is away, in turn."""
    m = published.YEAR * learners / 1.2e6
    expected = published.useful_share(m) / (m + 16)
    found = published.goodput(1.2e6, learners, away=16, seeds=3)
    print(f"{learners} learners: {found:.3f}, by renewal {expected:.3f}")
    assert found == pytest.approx(expected, abs=0.015)


@pytest.mark.skipif(not (DATA / "published").exists(), reason="shared/traces/published is absent")
def test_goodput_of_eight_learners_is_overrated_by_the_time_away_alone() -> None:
    """Second-hand figures; as the notes on them say, a closed form is too high by 1 to 6 points."""
    found = {row.what: row for row in published.decoupled_diloco(DATA)}
    fitted = [row.predicted - row.published for row in found.values() if row.fitted]
    assert np.abs(fitted).max() < 1
    alone = next(row for what, row in found.items() if "alone" in what)
    assert 1 < alone.predicted - alone.published < 6
