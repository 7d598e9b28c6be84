"""What deciding costs a step of real ranks: the control message, the policy's replica, the digest.

Three variants take turns from step to step, so that all of them see the same load: no message, one
that is gathered after backward, and one that goes along with the last bucket, as `Trainer` does it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from simstrag.learning.noise_scale_estimate import SPARSEST
from tests.ddp.test_ddp_trainer import Told
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

NONE, AFTER, ALONG = range(3)
STEPS, SETTLING = 600, 30
LIMIT = 1e-3
"""Seconds that deciding may take a step of four ranks."""
CALM = 0.97
"""Share of a core that a busy process must get, before and after, for its clock to mean much."""


def share_of_core(rank: int, world: int) -> float:
    """Seconds of CPU per second for who wants all of it."""
    begun, used = time.perf_counter(), time.process_time()
    while time.perf_counter() < begun + 0.5:
        pass
    return (time.process_time() - used) / (time.perf_counter() - begun)


def network() -> nn.Module:
    return nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)], nn.Linear(512, 10))


def stepping(rank: int, world: int, steps: int) -> list[tuple[int, float, float, float]]:
    """Seconds of each step: variant, wait for the message, policy and books and digest, whole."""
    from simstrag import policies
    from simstrag.contract import Hints
    from simstrag.ddp.allreduce.control_message import PlanDigests, describe_disagreement, unpack
    from simstrag.ddp.local_step_timer import StepTimer, shared_core_clock
    from simstrag.ddp.precision import NumberFormats
    from simstrag.ddp.replica import Replica
    from simstrag.engine.live import Live

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    replica = Replica(
        model, optimizer, NumberFormats(model, "full"), StepTimer(shared_core_clock(cores=1.0))
    )
    live, digests = Live(policies.load("korel"), world, 64, Hints(batch=64)), PlanDigests()
    reducer, rows = replica.reducer, []
    x, y = torch.randn(64, 512), torch.randint(0, 10, (64,))
    for step in range(steps):
        variant = step % 3
        replica.clock.immediate = variant == ALONG
        begun = time.perf_counter()
        replica.clock.begin()
        reducer.digest, reducer.version = digests.of(live.plan, live.version), live.version
        replica.reduced_gradient(
            lambda: nn.functional.cross_entropy(model(x), y), False, lambda: 1 / world
        )
        reduced = time.perf_counter()
        if variant != NONE:
            told = unpack(reducer.wait())
            assert describe_disagreement(told) is None
        here = time.perf_counter()
        replica.update()
        replica.clear()
        updated = time.perf_counter()
        if variant != NONE:
            live.lockstep(max(float(told.start[0]), live.now), told.seconds)
            digests.of(live.plan, live.version)
        ended = time.perf_counter()
        if step >= SETTLING:
            rows.append((variant, here - reduced, ended - updated, ended - begun))
    return rows


def shown(seconds: Any) -> str:
    low, middle, high = 1e6 * np.percentile(seconds, (10, 50, 90))
    return f"{middle:.0f} us [{low:.0f}..{high:.0f}]"


@pytest.mark.parametrize("world", [2, 4])
def test_deciding_takes_less_than_a_millisecond_of_a_step(world: int, ranks: Ranks) -> None:
    calm = min(ranks.run(share_of_core, 2))
    rows = np.array([row for own in ranks.run(stepping, world, STEPS, limit=300.0) for row in own])
    calm = min(calm, *ranks.run(share_of_core, 2))
    for variant, name in ((NONE, "no message"), (AFTER, "after backward"), (ALONG, "along")):
        own = rows[rows[:, 0] == variant]
        both = own[:, 1] + own[:, 2]
        print(
            f"{world} ranks, {name}: message {shown(own[:, 1])}, deciding {shown(own[:, 2])}, "
            f"both {shown(both)}, step {shown(own[:, 3])}"
        )
    along = rows[rows[:, 0] == ALONG]
    took = float(np.median(along[:, 1] + along[:, 2]))
    if calm < CALM:
        pytest.skip(f"others use the cores ({calm:.0%} to be had); measured {1e6 * took:.0f} us")
    assert took < LIMIT


def trained(rank: int, world: int, steps: int) -> list[tuple[float, float, float]]:
    """Steps of a trainer; seconds of each for the message, to decide, and to tell the board.

    The board of heartbeats hears five times a step where a rank is; that is no part of deciding,
    and it is shown beside it.  Told times are even, so that the policy looks at them as ever and
    switches nothing.
    """
    from simstrag.ddp import wrap

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(64, 512), torch.randint(0, 10, (64,))
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    rows = []
    with wrap(model, optimizer, "korel", batch=64, precision="full") as trainer:
        trainer.replica.clock = Told(lambda step: 0.05)
        mark = trainer._members.mark

        def timed(step: int, phase: str) -> None:
            begun[phase] = time.perf_counter()
            mark(step, phase)
            ended[phase] = time.perf_counter()

        trainer._members.mark = timed  # type: ignore[method-assign]
        for step in range(steps):
            trainer.step(lambda: nn.functional.cross_entropy(model(x), y))
            if step >= SETTLING:
                message = begun["updating"] - ended["reducing"]
                deciding = begun["loading"] - ended["deciding"]
                rows.append((message, deciding, sum(ended[p] - begun[p] for p in begun)))
    return rows


@pytest.mark.parametrize("world", [2, 4])
def test_a_trainer_decides_in_less_than_a_millisecond_of_a_step(world: int, ranks: Ranks) -> None:
    calm = min(ranks.run(share_of_core, 2))
    rows = np.array([row for own in ranks.run(trained, world, STEPS, limit=300.0) for row in own])
    calm = min(calm, *ranks.run(share_of_core, 2))
    both = rows[:, 0] + rows[:, 1]
    took = float(np.median(both))
    print(
        f"{world} ranks, as trained: message {shown(rows[:, 0])}, deciding {shown(rows[:, 1])}, "
        f"both {shown(both)}; marks on the board {shown(rows[:, 2])}"
    )
    if calm < CALM:
        pytest.skip(f"others use the cores ({calm:.0%} to be had); measured {1e6 * took:.0f} us")
    assert took < LIMIT


def measuring(rank: int, world: int, steps: int) -> list[tuple[float, float]]:
    """Seconds of steps without and with measured gradients, which take turns."""
    from simstrag.ddp import wrap
    from simstrag.engine.live import Live

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(64, 512), torch.randint(0, 10, (64,))
    seconds = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Live, "measures", lambda live, applied=0: live.version % 2 == 1)
        with wrap(model, optimizer, "bsp", batch=64, precision="full") as trainer:
            for _ in range(steps):
                begun = time.perf_counter()
                trainer.step(lambda: nn.functional.cross_entropy(model(x), y))
                seconds.append(time.perf_counter() - begun)
    return list(zip(seconds[SETTLING::2], seconds[SETTLING + 1 :: 2], strict=True))


@pytest.mark.parametrize("world", [2, 4])
def test_measuring_the_noise_scale_takes_less_than_1_percent_of_steps(
    world: int, ranks: Ranks
) -> None:
    calm = min(ranks.run(share_of_core, 2))
    pairs = np.array(ranks.run(measuring, world, STEPS, limit=300.0)).max(axis=0)
    calm = min(calm, *ranks.run(share_of_core, 2))
    without, more = float(np.median(pairs[:, 0])), float(np.median(pairs[:, 1] - pairs[:, 0]))
    share = more / SPARSEST / without
    print(
        f"{world} ranks: step {shown(pairs[:, 0])}, measured {1e6 * more:.0f} us more: {share:.2%}"
    )
    if calm < CALM:
        pytest.skip(f"others use the cores ({calm:.0%} to be had); measured {share:.2%}")
    assert share < 0.01
