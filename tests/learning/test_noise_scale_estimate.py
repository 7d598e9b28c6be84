"""The two-batch estimator: what gradients of known |G|^2 and tr(Sigma) give, and when."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from simstrag import policies
from simstrag.ddp.journal.journal import facts_from_json, facts_to_json
from simstrag.ddp.server.messages import Apply
from simstrag.ddp.server.shared_buffer import allocate_private
from simstrag.ddp.server.summed_norms import SummedNorms
from simstrag.engine.live import Live
from simstrag.learning.noise_scale import NoiseScale
from simstrag.learning.noise_scale_estimate import (
    LEAST,
    SMOOTHING,
    NoiseAverages,
    NormPair,
    estimate_at_end,
    is_measured,
    pair_of,
)

DIMENSIONS, SIGNAL, NOISE = 50, 2.0, 60.0
"""Of Gaussian gradients: |G|^2 and the trace of the covariance of one sample's gradient."""
PAIR = NormPair(5.0, 2.0, 1, 4)
"""|G|^2 = 1, tr(Sigma) = 4."""


def gradients(rng: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
    mean = np.full(DIMENSIONS, math.sqrt(SIGNAL / DIMENSIONS))
    spread = [math.sqrt(NOISE / DIMENSIONS / size) for size in sizes]
    return mean + rng.normal(size=(len(sizes), DIMENSIONS)) * np.array(spread)[:, np.newaxis]


@pytest.mark.parametrize("sizes", [(8, 8), (8, 8, 8, 8), (4, 20), (1, 2, 13)])
def test_both_parts_of_a_pair_are_without_bias_whatever_the_shares(sizes: tuple[int, ...]) -> None:
    rng, pairs = np.random.default_rng(len(sizes)), []
    weights = np.array(sizes) / (2 * sum(sizes))  # of a sum that lacks half of the samples
    for _ in range(4000):
        own = gradients(rng, sizes)
        parts = zip(sizes, (own**2).sum(axis=1).tolist(), strict=True)
        total = weights @ own
        pair = pair_of(parts, float(total @ total), float(weights.sum()))
        pairs.append(pair)
    for true, found in (
        (SIGNAL, [pair.signal for pair in pairs]),
        (NOISE, [pair.noise for pair in pairs]),
    ):
        error = np.std(found) / math.sqrt(len(found))
        assert abs(np.mean(found) - true) < 3 * error
        assert error < 0.05 * true


@pytest.mark.parametrize(
    ("parts", "squared_sum"),
    [
        ([(8, 1.0)], 1.0),
        ([(8, 1.0), (8, math.nan)], 1.0),
        ([(8, 1.0), (8, math.inf)], 1.0),
        ([(8, 1.0), (8, 1.0)], math.nan),
        ([], math.nan),
    ],
)
def test_a_single_gradient_and_norms_that_are_not_finite_are_no_pair(
    parts: list[tuple[int, float]], squared_sum: float
) -> None:
    assert pair_of(parts, squared_sum, 1.0) is None


def test_an_estimate_needs_some_pairs_and_both_parts_above_0() -> None:
    averages = NoiseAverages()
    for number in range(LEAST):
        assert averages.scale is None
        averages = averages.with_pair(PAIR, 8 * number + 8, 8)
    assert averages.scale == pytest.approx(4.0)
    for bad in (NormPair(5.0, 0.5, 1, 4), NormPair(5.0, 6.0, 1, 4)):
        averages = NoiseAverages()
        for number in range(LEAST):
            averages = averages.with_pair(bad, 8 * number + 8, 8)
        assert averages.scale is None


def test_a_pair_weighs_the_rounds_that_it_stands_for_and_less_with_age() -> None:
    averages = NoiseAverages()
    rounds = [r for r in range(1, 400) if is_measured(r - 1)]
    pairs = [NormPair(5.0 + r / 100, 2.0, 1, 4) for r in rounds]
    for pair, r in zip(pairs, rounds, strict=True):
        averages = averages.with_pair(pair, 8 * r, 8)
    gaps = [r - before for before, r in itertools.pairwise([0, *rounds])]
    weights = [(1 - SMOOTHING**g) * SMOOTHING ** (rounds[-1] - r) for g, r in zip(gaps, rounds)]  # noqa: B905
    signal = sum(w * pair.signal for w, pair in zip(weights, pairs, strict=True))
    noise = sum(w * pair.noise for w, pair in zip(weights, pairs, strict=True))
    assert averages.scale == pytest.approx(noise / signal)
    found = estimate_at_end(pairs, [8 * r for r in rounds], 8)
    assert found.value == pytest.approx(averages.scale)
    assert found.high is not None
    assert found.low < found.value < found.high


def test_early_rounds_are_measured_more_often_and_later_ones_one_in_32() -> None:
    numbers = [number for number in range(2048) if is_measured(number)]
    assert numbers[:17] == list(range(17))
    assert [b - a for a, b in itertools.pairwise(numbers)][-40:] == [32] * 40
    assert sum(1 for number in numbers if 64 <= number < 128) == 8


def test_facts_keep_the_averages_and_may_be_of_a_version_without_them() -> None:
    live = Live(policies.load("bsp"), world_size=2, batch=8)
    live.measure(PAIR)
    written = facts_to_json(live.facts())
    assert facts_from_json(written).noise == live.noise
    del written["noise"]
    assert facts_from_json(written).noise == NoiseAverages()


def test_a_view_shows_the_estimate_once_there_is_one() -> None:
    seen: list[float | None] = []

    class Watching:
        def plan(self, view: policies.View) -> policies.Plan:  # type: ignore[name-defined]
            seen.append(view.noise_scale)
            return policies.load("korel").plan(view)

    live = Live(Watching(), world_size=2, batch=8)
    for step in range(LEAST + 1):
        live.measure(PAIR)
        live.lockstep(float(step), np.array([0.5, 0.5]))
    assert seen[: LEAST - 1] == [None] * (LEAST - 1)
    assert seen[-1] == pytest.approx(4.0)


def test_progress_counts_with_the_noise_scale_of_its_time() -> None:
    learner = NoiseScale(batch=8, noise_scale=24.0)
    learner.begin_at(800)
    for noise_scale in (24.0, 56.0):
        learner.rescale(noise_scale)
        learner.apply([(8, learner.samples)])
        learner.pull()
    assert learner.progress == pytest.approx(8 / 32 + 8 / 64)
    assert learner.fresh_progress == pytest.approx(learner.progress)


def settled(ranks: int, updates: int, rate: float) -> tuple[list[NormPair], list[NormPair], float]:
    """Pairs of gradients under way together, pairs of consecutive ones, and the mean of |G|^2.

    Asynchronous SGD of a quadratic that has settled: G = x, with noise of unit variance.
    """
    rng = torch.Generator().manual_seed(1)
    x, norms, own = torch.zeros(DIMENSIONS), SummedNorms(), []
    under_way = [(0, torch.randn(DIMENSIONS, generator=rng)) for _ in range(ranks)]
    buffers = {rank: allocate_private(DIMENSIONS, torch.float32) for rank in range(ranks)}
    last: list[torch.Tensor] = []
    consecutive, true = [], []
    for version in range(1, updates + 1):
        rank = version % ranks
        pulled, gradient = under_way[rank]
        total = gradient / ranks
        apply = Apply(
            version, ((rank, 1 / ranks),), (), ((rank, 0, pulled, 1 / ranks),),
            norms=((rank, 1, None),), measures=True,
        )  # fmt: skip
        if (pair := norms.add(apply, total, buffers)) is not None:
            own.append(pair)
        last = [*last, gradient][-ranks - 1 :]
        if len(last) > ranks:  # that the first of them was a step to the last one's parameters
            pair = pair_of([(1, float(g @ g)) for g in (last[0], last[-1])],
                           float((last[0] + last[-1]) @ (last[0] + last[-1])), 2.0)  # fmt: skip
            assert pair is not None
            consecutive.append(pair)
        x = x - rate * total
        true.append(float(x @ x))
        under_way[rank] = version, x + torch.randn(DIMENSIONS, generator=rng)
    return own, consecutive, float(np.mean(true))


def test_gradients_under_way_together_are_independent_and_consecutive_ones_are_not() -> None:
    own, consecutive, true = settled(ranks=2, updates=8000, rate=0.2)
    signals = np.array([pair.signal for pair in own])
    assert abs(signals.mean() - true) < 4 * signals.std() / math.sqrt(len(signals)) + 0.1 * true
    assert np.mean([pair.signal for pair in consecutive]) < 0
