"""Gradient norms of small and large batches give back a noise scale that is known."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from simstrag.calibration.benches.gradient_norms import PARTS, GradientBench  # noqa: E402
from simstrag.calibration.benches.measured_device import find_device  # noqa: E402
from simstrag.calibration.benches.training_jobs import Jobs  # noqa: E402
from simstrag.workloads import Parts, Workload, load  # noqa: E402

DIMENSIONS, SPREAD, DISTANCE = 50, 3.0, 2.0


def mean_estimation(rate: float = 0.0) -> Parts:
    """Half the squared distance to samples around 0 with covariance SPREAD^2, from DISTANCE away.

    The gradient of a sample is parameter - sample: its expectation has the norm DISTANCE, and the
    trace of its covariance is DIMENSIONS * SPREAD^2.
    """
    model = torch.nn.Linear(1, DIMENSIONS, bias=False)
    with torch.no_grad():
        model.weight.fill_(DISTANCE / DIMENSIONS**0.5)
    generator = torch.Generator().manual_seed(1)

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = (model(torch.ones(1, 1)) - batch).square().sum(1).mean() / 2
        return out

    def make_batch(samples: int) -> torch.Tensor:
        return SPREAD * torch.randn(samples, DIMENSIONS, generator=generator)

    return Parts(model, loss, torch.optim.SGD(model.parameters(), lr=rate), make_batch)


KNOWN = Workload("known", mean_estimation, (4, 16, 64), 16, "cpu", real_data=True)


def bench(workload: Workload, span: float = 0.5) -> GradientBench:
    return GradientBench(Jobs(workload, find_device("cpu")), span)


def test_the_noise_scale_of_a_mean_comes_out_as_computed_by_hand() -> None:
    found = bench(KNOWN)
    for cell in found.cells:
        samples, facts = found.visit(cell)
        b, large = facts["small_batch"], facts["large_batch"]
        small_norm, large_norm = (statistics.mean(samples[name]) for name in ("small", "large"))
        noise = (small_norm - large_norm) / (1 / b - 1 / large)
        signal = (large * large_norm - b * small_norm) / (large - b)
        count = len(samples["small"])
        assert noise == pytest.approx(DIMENSIONS * SPREAD**2, rel=2 / count**0.5)
        error = 4 * SPREAD / large**0.5 * (DIMENSIONS**0.5 * SPREAD / large**0.5 + DISTANCE)
        assert signal == pytest.approx(DISTANCE**2, abs=error / count**0.5)


def test_without_noise_small_and_large_agree_and_training_descends() -> None:
    def noiseless() -> Parts:
        parts = mean_estimation(rate=0.1)
        return parts._replace(make_batch=lambda n: torch.zeros(n, DIMENSIONS))

    found = bench(replace(KNOWN, make=noiseless), 0.05)
    samples, _ = found.visit(found.cells[0])
    assert samples["small"] == pytest.approx(samples["large"])
    assert samples["large"][0] == pytest.approx(DISTANCE**2)
    assert samples["large"][1] == pytest.approx(DISTANCE**2 * 0.9**2)


def test_visits_follow_one_training_run() -> None:
    found = bench(KNOWN, 0.02)
    cell = found.cells[0]
    first, begun = found.visit(cell)
    _, later = found.visit(cell)
    assert begun["trained"] == 0
    assert later["trained"] == PARTS * cell.batch * len(first["small"])
    assert later["large_batch"] == PARTS * later["small_batch"]


def test_random_inputs_have_no_noise_scale_and_it_says_why() -> None:
    found = bench(load("mlp"))
    assert found.cells == []
    assert "'mlp' has random inputs" in found.why_not
    assert bench(KNOWN).why_not == ""
