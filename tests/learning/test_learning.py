"""The noise-scale learner books what rule 25 says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simstrag.learning.noise_scale import NoiseScale

N, BATCH, NOISE_SCALE = 8, 128, 500


def learner(c_tau: float = 1.0) -> NoiseScale:
    return NoiseScale(BATCH, NOISE_SCALE, c_tau)


def rounds_of_one(count: int, anyone_pulls: bool) -> NoiseScale:
    """SSP(0): all pull together, then N gradients become updates one by one."""
    own = learner()
    for _ in range(count):
        began = own.samples
        own.pull()
        for _ in range(N):
            own.apply([(BATCH, began)])
            if anyone_pulls:
                own.pull()
    own.pull()
    return own


def test_a_synchronous_update_makes_mccandlishs_progress() -> None:
    own = learner()
    own.apply([(BATCH, 0)] * N)
    assert own.progress == 1024 / (500 + 1024)
    assert own.samples == 1024


def test_bsp_makes_a_progress_of_84_per_1000_gradients() -> None:
    own = learner()
    for _ in range(125):
        own.pull()
        own.apply([(BATCH, own.samples)] * N)
    assert own.progress == pytest.approx(84, abs=0.02)
    assert own.effective_staleness == 0


def test_ssp_0_makes_the_same_progress_as_bsp_to_the_last_bit() -> None:
    bsp = learner()
    for _ in range(125):
        bsp.pull()
        bsp.apply([(BATCH, bsp.samples)] * N)
    assert rounds_of_one(125, anyone_pulls=False).progress == bsp.progress
    assert rounds_of_one(125, anyone_pulls=False).effective_staleness == 0


def test_taking_each_application_for_itself_would_make_129_out_of_nothing() -> None:
    """The figure that rule 25 warns of: it comes out as soon as somebody pulls in between."""
    each = rounds_of_one(125, anyone_pulls=True)
    assert each.progress == pytest.approx(129, abs=0.2)
    assert each.progress / rounds_of_one(125, anyone_pulls=False).progress == pytest.approx(
        1.54, abs=0.005
    )


@pytest.mark.parametrize(
    ("c_tau", "per_update"), [(0, 128 / 628), (1, 128 / 1524), (4, 128 / 4212)]
)
def test_asgd_pays_for_n_minus_1_stale_gradients(c_tau: float, per_update: float) -> None:
    own = learner(c_tau)
    pulls = [0] * N
    for k in range(N, 1000 + N):
        own.apply([(BATCH, pulls[k % N])])
        own.pull()
        pulls[k % N] = own.samples
    steady = own.progress
    for k in range(1000 + N, 2000 + N):
        own.apply([(BATCH, pulls[k % N])])
        own.pull()
        pulls[k % N] = own.samples
    assert (own.progress - steady) / 1000 == pytest.approx(per_update, rel=1e-12)
    assert own.effective_staleness == pytest.approx(N - 1, rel=0.01)


def test_with_c_tau_1_asgd_is_per_sample_as_efficient_as_a_synchronous_batch_of_all() -> None:
    own = learner()
    own.apply([(BATCH, 0)])
    own.pull()
    before = own.progress
    own.apply([(BATCH, own.samples - (N - 1) * BATCH)])
    assert own.progress - before == pytest.approx(1024 / (500 + 1024) / N, rel=1e-12)


def test_the_staleness_of_a_visible_update_is_the_mean_over_its_gradients() -> None:
    own = learner(c_tau=2.0)
    own.apply([(BATCH, 0)] * 4)
    own.pull()
    before = own.progress
    own.apply([(BATCH, 0)])  # 4 gradients old
    own.apply([(BATCH, 512)])  # fresh
    own.apply([(BATCH, 256)])  # 2 gradients old
    assert own.progress - before == pytest.approx(384 / (500 + 384 + 2 * (512 + 0 + 256) / 3))


def test_the_open_visible_update_counts_as_if_it_ended_now() -> None:
    own = learner()
    own.apply([(BATCH, 0)])
    alone = own.progress
    own.apply([(BATCH, 0)])
    together = own.progress
    assert (alone, together) == (128 / 628, 256 / 756)
    own.pull()
    assert own.progress == together


def test_a_pull_before_anything_is_applied_changes_nothing() -> None:
    own = learner()
    own.pull()
    own.pull()
    assert (own.progress, own.samples, own.effective_staleness) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=40))
def test_every_sample_is_booked_once(log: list[tuple[int, bool]]) -> None:
    """With B_noise = 0 and c_tau = 0 every visible update counts 1, whatever is in it."""
    own = NoiseScale(BATCH, 0.0, 0.0)
    visible, open_ = 0, False
    for count, pull in log:
        own.apply([(BATCH, own.samples)] * count)
        open_ = True
        if pull:
            own.pull()
            visible, open_ = visible + 1, False
    assert own.progress == visible + open_
    assert own.samples == BATCH * sum(count for count, _ in log)


@given(st.integers(1, 64), st.floats(0, 1e5), st.floats(0, 10))
def test_without_staleness_c_tau_does_not_matter(n: int, noise_scale: float, c_tau: float) -> None:
    own = NoiseScale(BATCH, noise_scale, c_tau)
    own.apply([(BATCH, 0)] * n)
    assert own.progress == pytest.approx(n * BATCH / (noise_scale + n * BATCH))


def test_unequal_batches_count_by_their_samples() -> None:
    own = NoiseScale(batch=100, noise_scale=200, c_tau=1.0)
    own.pull()
    own.apply([(100, 0)])
    own.pull()
    own.apply([(50, 100), (150, 0)])  # fresh, and 100 samples old: S_stale = 150 * 100 / 200
    assert own.progress == 100 / 300 + 200 / (200 + 200 + 75)
    assert own.samples == 300


def test_where_the_formula_does_not_hold_there_is_no_progress() -> None:
    own = learner()
    own.apply([(BATCH, 0)])
    own.lost = "a reason"
    assert own.progress is None
    assert own.samples == BATCH
