"""Gradient descent with delayed gradients against its closed form.

x(t+1) = x(t) - eta lambda x(t - tau) is stable exactly where eta lambda < 2 sin(pi / (2 (2 tau +
1))), the bound of delay tau.  Under asgd with N equal workers every gradient is N - 1 updates old
and weighs 1/N.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from simstrag import Scenario  # noqa: E402
from simstrag.engine.recorder import Recorder  # noqa: E402
from simstrag.engine.simulate import simulate_into  # noqa: E402
from simstrag.learning.batches import Batches, iid_shards  # noqa: E402
from simstrag.learning.gradient_log import GradientLog  # noqa: E402
from simstrag.learning.gradient_replay import GradientReplay  # noqa: E402
from simstrag.learning.gradients import GradientEngine  # noqa: E402
from simstrag.learning.optimizers import OptimizerChoice  # noqa: E402
from simstrag.learning.tasks import LearningTask  # noqa: E402

CURVATURE = 2.0
UPDATES = 800
"""For each worker."""


class Parabola(nn.Module):
    """One parameter x; the loss of any sample is lambda x^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(1))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return 0.5 * CURVATURE * self.x.square() + 0 * samples


def distance(workers: int, rate: float) -> float:
    """|x| after `UPDATES` updates of asgd for each worker, of the last ones the largest."""
    scenario = Scenario(
        workers=workers, updates=UPDATES * workers, step={"compute": 1.0}, learner={"batch": 1},
        server={"service": 1e-3},
    )  # fmt: skip
    log = GradientLog()
    simulate_into(Recorder(keep_gradients=True, storage=log), scenario, "asgd", 0)
    staleness = log.gradients["update"] - 1 - log.gradients["version"]
    assert set(staleness[workers:].tolist()) == {workers - 1}
    data = torch.zeros(workers, dtype=torch.float64)
    task = LearningTask(Parabola(), data, data, data, data, lambda out, _: out, lambda out, _: out)
    batches = Batches(iid_shards(workers, workers, 0), 1, 0)
    optimizer = OptimizerChoice("sgd", rate)
    engine = GradientEngine(task, "fp64", "fp32", "one by one")
    found = GradientReplay(log, engine, batches, optimizer).run(scenario.workers / 4)
    return max(math.sqrt(2 * loss / CURVATURE) for loss in found.evaluations.loss[-20:])


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_a_quadratic_diverges_just_above_the_bound_of_its_delay_and_not_below(workers: int) -> None:
    delay = workers - 1
    bound = 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / CURVATURE * workers
    assert distance(workers, 0.98 * bound) < 1e-3
    assert distance(workers, 1.02 * bound) > 1e3
