"""Outer steps, delay compensation and the screen of real training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from simstrag.contract import Compensation, Outer, Screen  # noqa: E402
from simstrag.errors import InputError  # noqa: E402
from simstrag.learning.averaging_replay import AveragingReplay  # noqa: E402
from simstrag.learning.batches import Batches, iid_shards  # noqa: E402
from simstrag.learning.gradient_log import GradientLog  # noqa: E402
from simstrag.learning.gradient_replay import GradientReplay  # noqa: E402
from simstrag.learning.gradients import GradientEngine  # noqa: E402
from simstrag.learning.optimizers import OptimizerChoice  # noqa: E402
from simstrag.learning.outer_model import OuterSgd  # noqa: E402
from simstrag.learning.outer_replay import OuterReplay  # noqa: E402
from simstrag.learning.tasks.task import LearningTask  # noqa: E402
from simstrag.learning.training import Replay  # noqa: E402
from simstrag.learning.update_rule import UpdateRule  # noqa: E402
from tests.support.outer_references import (  # noqa: E402
    follow,
    log_of_rounds,
    log_of_rows,
    log_of_turns,
    stream,
)
from tests.support.plain_training import BATCH, plain_training  # noqa: E402

RANKS = 3
INNER = {"lr": 0.05, "momentum": 0.9}
PLAIN = plain_training(RANKS)


class Slope(nn.Module):
    """Two weights that start at 1; the gradient of any sample is 2 for both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.ones(1)) for _ in range(2))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return 2 * self.first + 2 * self.second + 0 * samples


def constant_slope() -> LearningTask:
    data = torch.zeros(4)
    return LearningTask(Slope(), data, data, data, data, lambda out, _: out, lambda out, _: out)


class Watched(OuterReplay):
    """Keeps the parameters at which each private step was computed, by rank and step."""

    def __init__(self, *given: Any) -> None:
        self.seen: dict[tuple[int, int], list[float]] = {}
        super().__init__(*given)

    def sums(self, parameters: Any, rows: Any, *given: Any) -> Any:
        for own, row in zip(parameters, rows, strict=True):
            key = int(self.gradients["rank"][row]), int(self.gradients["step"][row])
            self.seen[key] = own.tolist()
        return super().sums(parameters, rows, *given)


# Parameters of layers 0 and 1 before local steps 0 to 15, the same on both replicas: figures of
# meta-pytorch/torchft at 7eb7087, test_fixtures, streaming DiLoCo, BSD-3-Clause, Copyright (c) Meta
# Platforms, Inc. and affiliates.  By delay and alpha.
TORCHFT = {
    (0, 0.0): (
        (1, -1, -3, -11, -13, -15, -17, -19, -21, -35, -37, -39, -41, -43, -45, -59),
        (1, -1, -3, -5, -7, -9, -23, -25, -27, -29, -31, -33, -47, -49, -51, -53),
    ),
    (0, 0.5): (
        (1, -1, -3, -8, -10, -12, -14, -16, -18, -24.5, -26.5, -28.5, -30.5, -32.5, -34.5, -40.25),
        (1, -1, -3, -5, -7, -9, -17, -19, -21, -23, -25, -27, -32, -34, -36, -38),
    ),
    (1, 0.0): (
        (1, -1, -3, -7, -9, -11, -13, -15, -17, -27, -29, -31, -33, -35, -37, -47),
        (1, -1, -3, -5, -7, -9, -19, -21, -23, -25, -27, -29, -39, -41, -43, -45),
    ),
}
# The global copies after syncs 1 to 4.
TORCHFT_GLOBAL = {
    (0, 0.0): ((-11, 1), (-11, -23), (-35, -23), (-35, -47)),
    (0, 0.5): ((-11, 1), (-11, -23), (-29, -23), (-29, -35)),
    (1, 0.0): ((-7, 1), (-7, -19), (-27, -19), (-27, -39)),
}


@pytest.mark.parametrize(("delay", "alpha"), TORCHFT)
def test_weights_of_every_step_are_those_of_torchft(delay: int, alpha: float) -> None:
    log, task = log_of_rounds(2, 6, 3, delay), constant_slope()
    rule = UpdateRule(True, Outer(lr=2.0, mix=alpha), 2, delay)
    batches = Batches(iid_shards(4, 2, 0), 1, 0)
    replay = Watched(log, GradientEngine(task), batches, OptimizerChoice("sgd", 1.0), rule)
    copies = []
    with torch.no_grad():
        for update in range(1, 7):
            replay.apply(update)
            copies.append(tuple(replay.parameters.tolist()))
    wanted = [list(pair) for pair in zip(*TORCHFT[delay, alpha], strict=True)]
    for rank in range(2):
        assert [replay.seen[rank, step] for step in range(16)] == wanted
    assert tuple(copies[:4]) == TORCHFT_GLOBAL[delay, alpha]


@pytest.mark.parametrize(("delay", "alpha"), TORCHFT)
def test_the_reference_of_streaming_is_torchfts_too(delay: int, alpha: float) -> None:
    history, after = stream(
        torch.ones(2), lambda rank, step, flat: torch.full((2,), 2.0), ranks=2, syncs=6, cycle=3,
        fragments=2, delay=delay, alpha=alpha, inner={"lr": 1.0}, outer={"lr": 2.0},
    )  # fmt: skip
    wanted = [list(pair) for pair in zip(*TORCHFT[delay, alpha], strict=True)]
    assert [[flat.tolist() for flat in own[:16]] for own in history] == [wanted, wanted]
    assert tuple(tuple(copy.tolist()) for copy in after[:4]) == TORCHFT_GLOBAL[delay, alpha]


def parameters_after(kind: type[Replay], log: GradientLog, rule: UpdateRule) -> torch.Tensor:
    return PLAIN.replayed(log, OptimizerChoice("sgd", **INNER), rule, kind)


STREAMED = [
    (Outer(0.7, 0.9, nesterov=True), 1, 0),
    (Outer(0.5, 0.5), 1, 0),
    (Outer(0.7, 0.9, nesterov=True), 3, 0),
    (Outer(0.7, 0.9, nesterov=True), 1, 2),
    (Outer(0.7, 0.9, nesterov=True, mix=0.5), 3, 2),
    (Outer(0.7, 0.9, nesterov=True, mix=1.0), 2, 1),
]


@pytest.mark.parametrize(("outer", "fragments", "overlap"), STREAMED)
def test_streamed_outer_steps_are_those_of_one_step_at_a_time(
    outer: Outer, fragments: int, overlap: int
) -> None:
    log = log_of_rounds(RANKS, 7, 4, overlap, BATCH)
    found = parameters_after(OuterReplay, log, UpdateRule(True, outer, fragments, overlap))
    _, after = stream(
        PLAIN.engine.initial, PLAIN.slope_at, ranks=RANKS, syncs=7, cycle=4, fragments=fragments,
        delay=overlap, alpha=outer.mix, inner=INNER,
        outer={"lr": outer.lr, "momentum": outer.momentum, "nesterov": outer.nesterov},
    )  # fmt: skip
    assert torch.allclose(found, after[-1], rtol=1e-9, atol=1e-12)


TURNS = (0, 1, 0, 0, 2, 1, 0, 1, 0, 2, 0, 1)


class DelayedNesterov(torch.optim.Optimizer):
    """Algorithm 3 of Liu et al., arXiv:2401.09135, line by line, with any c."""

    def __init__(self, server: nn.Parameter, lr: float, beta: float, n: int, c: float) -> None:
        super().__init__([server], {"lr": lr})
        self.t, self.beta, self.n, self.c = 0, beta, n, c
        self.m, self.delta = torch.zeros_like(server), torch.zeros_like(server)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        (theta,) = group["params"]
        g, n, c = theta.grad, self.n, self.c
        self.delta = self.delta + g
        if (self.t + 1) % n == 0:
            self.m = self.beta * self.m + self.delta / n
            theta -= group["lr"] * ((1 - c * n + c) * self.beta * self.m + g / n)
            self.delta = torch.zeros_like(self.delta)
        else:
            theta -= group["lr"] * (c * self.beta * self.m + g / n)
        self.t += 1


@pytest.mark.parametrize(
    "outer", [Outer(0.7, 0.9, nesterov=True), Outer(0.3, 0.9), Outer(0.7, 0.9, True, delay=3)]
)
def test_asynchronous_outer_steps_are_those_of_one_step_at_a_time(outer: Outer) -> None:
    log = log_of_turns(TURNS, 4, BATCH)
    found = parameters_after(OuterReplay, log, UpdateRule(True, outer, server=True))
    start = PLAIN.engine.initial
    wanted = follow(log, start, PLAIN.slope_at, inner=INNER, outer=maker(outer))
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)


def maker(outer: Outer) -> Callable[[nn.Parameter], torch.optim.Optimizer]:
    """The outer optimizer of one fragment, in plain torch."""
    if outer.delay > 1:
        return lambda server: DelayedNesterov(server, outer.lr, outer.momentum, outer.delay, 0.0)
    return lambda server: torch.optim.SGD(
        [server], outer.lr, outer.momentum, nesterov=outer.nesterov
    )


def test_delayed_nesterov_of_every_update_is_nesterov() -> None:
    flats = [torch.ones(5, dtype=torch.float64) for _ in range(2)]
    server = nn.Parameter(flats[1])
    steps, delayed = (
        OuterSgd(flats[0], Outer(0.7, 0.9, True)),
        DelayedNesterov(server, 0.7, 0.9, 1, 0),
    )
    for k in range(4):
        mean = torch.linspace(k, 1, 5, dtype=torch.float64)
        steps.step(mean)
        server.grad = server.detach() - mean
        delayed.step()
    assert torch.allclose(flats[0], server.detach(), rtol=1e-12)


@pytest.mark.parametrize("outer", [Outer(0.7, 0.9, True), Outer(0.7, 0.9), Outer(0.4)])
def test_the_outer_optimizer_is_torchs_sgd(outer: Outer) -> None:
    flat = torch.randn(20, generator=torch.Generator().manual_seed(0))
    server = nn.Parameter(flat.clone())
    ours = OuterSgd(flat, outer)
    sgd = torch.optim.SGD([server], outer.lr, outer.momentum, nesterov=outer.nesterov)
    for k in range(10):
        mean = torch.randn(20, generator=torch.Generator().manual_seed(k + 1))
        ours.step(mean)
        server.grad = server.detach() - mean
        sgd.step()
    assert torch.equal(flat, server.detach())


def test_an_outer_step_of_rate_one_is_the_mean_to_the_last_bit() -> None:
    log = log_of_rounds(RANKS, 7, 4, 0, BATCH)
    mean = parameters_after(AveragingReplay, log, UpdateRule(True))
    outer = parameters_after(OuterReplay, log, UpdateRule(True, Outer(lr=1.0)))
    assert torch.equal(mean, outer)


def test_what_a_rank_runs_on_enters_by_the_mix_alone() -> None:
    log, rule = log_of_rounds(RANKS, 7, 4, 2, BATCH), UpdateRule(True, Outer(0.7), 1, 2)
    gradients, at_once = log.gradients, UpdateRule(True, Outer(0.7))
    early = (gradients["update"] > 1) & (gradients["step"] % 4 >= 2)
    rows = [
        {name: gradients[name][k] for name in gradients if name != "amp"}
        | {"weight": 1 / (RANKS * 2)}
        for k in np.flatnonzero(~early)
    ]
    without = log_of_rows(rows, 7)
    plain = OptimizerChoice("sgd", 0.05, 0.0)  # momentum would remember the steps
    found = [PLAIN.replayed(*each, OuterReplay)
             for each in ((log, plain, rule), (without, plain, at_once))]  # fmt: skip
    assert torch.allclose(*found, rtol=1e-9, atol=1e-12)
    with_momentum = parameters_after(OuterReplay, log, rule)
    assert not torch.allclose(with_momentum, parameters_after(OuterReplay, without, at_once))


# -- compensation and screen ---------------------------------------------------------------------


def asynchronous() -> GradientLog:
    """Single gradients of ranks in turn, at the parameters of their last update."""
    log = log_of_turns(TURNS * 3, 1, BATCH)
    log._gradients[0]["weight"] = np.full(len(TURNS) * 3, 1 / RANKS)
    return log


@pytest.mark.parametrize("decay", [0.0, 0.95])
def test_compensated_gradients_are_those_of_dc_asgd(decay: float) -> None:
    strength, mean_square = 2.0, torch.zeros(1, dtype=torch.float64)

    def compensate(g: Any, now: Any, pulled: Any, update: int) -> torch.Tensor:
        nonlocal mean_square
        mean_square = decay * mean_square + (1 - decay) * g * g
        by = strength / torch.sqrt(mean_square + 1e-7) if decay else strength
        return g + by * g * g * (now - pulled)

    log, rule = asynchronous(), UpdateRule(compensation=Compensation(strength, decay))
    found = parameters_after(GradientReplay, log, rule)
    wanted = PLAIN.one_at_a_time(log, correct=compensate, **INNER)
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found, parameters_after(GradientReplay, log, UpdateRule()))


def test_screened_gradients_are_those_of_zeno() -> None:
    screen, passed, own = Screen(rho=0.02, epsilon=0.01, every=5, batch=64), [], torch.zeros(0)

    def judge(g: Any, now: Any, pulled: Any, update: int) -> torch.Tensor | None:
        nonlocal own
        if (update - 1) % 5 == 0:
            samples = torch.from_numpy(PLAIN.batches.of_server((update - 1) // 5, 64))
            own = PLAIN.slope(samples, now)
        g = g / g.norm() * own.norm()
        score = INNER["lr"] * own @ g - screen.rho * g @ g + INNER["lr"] * screen.epsilon
        passed.append(bool(score >= 0))
        return g if score >= 0 else None

    log, rule = asynchronous(), UpdateRule(screen=screen)
    found = parameters_after(GradientReplay, log, rule)
    wanted = PLAIN.one_at_a_time(log, correct=judge, **INNER)
    assert 0 < sum(passed) < len(passed)
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_no_parameters_are_kept_that_no_gradient_needs() -> None:
    turns = log_of_turns(TURNS, 4, BATCH), UpdateRule(True, Outer(0.7), server=True)
    corrected = asynchronous(), UpdateRule(compensation=Compensation())
    for kind, log, rule in ((GradientReplay, *corrected), (OuterReplay, *turns)):
        replay = kind(log, PLAIN.engine, PLAIN.batches, OptimizerChoice("sgd", **INNER), rule)
        replay.run(1e9)
        assert not replay._live
        assert not getattr(replay, "_pulled", None)


def test_more_fragments_than_parameters_are_refused() -> None:
    task = constant_slope()
    batches, rule = Batches(iid_shards(4, 2, 0), 1, 0), UpdateRule(True, None, 3)
    log = log_of_rounds(2, 2, 1, 0)
    with pytest.raises(InputError, match="3 fragments of 2 parameters: lower their number"):
        OuterReplay(log, GradientEngine(task), batches, OptimizerChoice(), rule)
