"""The gradient noise scale of real ranks: as `simstrag calibrate` measures it, and in decisions.

The last rank is slow by a load of its own where a policy for stragglers needs one.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from simstrag import policies
from simstrag.calibration.benches.gradient_norms import PARTS, norm_pair
from simstrag.contract import Hints
from simstrag.ddp.journal.journal import read_journal
from simstrag.ddp.journal.run_from_journal import run_of
from simstrag.engine.live import Live
from simstrag.learning.noise_scale_estimate import NormPair, estimate_at_end
from simstrag.workloads import TrainingTask, load
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

BATCH, ROUNDS = 64, 600
DELAY = 0.03
"""Seconds that a step of the slow rank takes longer: several times those of the others."""
LIMIT = 300.0


def training(rank: int, world: int, policy: str, rounds: int, delay: float, out: str) -> Any:
    """A training of digits; what the last rank knows of the noise, if it knows any."""
    from simstrag.ddp import wrap

    parts = load("digits").build(rank)
    samples = rounds * world * BATCH
    with wrap(
        parts.model, parts.optimizer, policy, batch=BATCH, samples=samples, precision="full",
        out=out,
    ) as trainer:  # fmt: skip
        while not trainer.over:
            batch = parts.make_batch(trainer.next_batch)
            if rank == world - 1:
                time.sleep(delay)
            trainer.step(partial(parts.loss, parts.model, batch))


def calibrated(world: int, samples: list[int]) -> list[NormPair]:
    """Pairs of `calibrate` along a training by the same optimizer, after as many samples."""
    job, small = TrainingTask(load("digits").build(0), "fp32", "cpu"), world * BATCH // PARTS
    found = []
    for done in range(max(samples) // (world * BATCH)):
        norms = norm_pair(job, small)
        if (done + 1) * world * BATCH in samples:
            found.append(NormPair(*norms, small, PARTS * small))
        job.update()
    return found


@pytest.mark.parametrize("policy", ["bsp", "asgd"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_noise_scale_is_that_of_a_calibration(
    policy: str, world: int, ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(training, world, policy, ROUNDS, 0.0, str(tmp_path), limit=LIMIT)
    _, lines = read_journal(tmp_path)
    norms = [values for kind, *values in lines if kind == "norms"]
    whole = world * BATCH
    samples = [int(values[0]) // whole * whole for values in norms]
    own = estimate_at_end([NormPair(*values[1:]) for values in norms], samples, whole)
    again = sorted(set(samples) - {0})
    other = estimate_at_end(calibrated(world, again), again, whole)
    print(f"{world} ranks under {policy}: {len(norms)} pairs, {own}; calibrated: {other}")
    assert own is not None
    assert other is not None
    assert own.low < (other.high or other.low + 1e9)
    assert other.low < (own.high or own.low + 1e9)


@pytest.mark.parametrize("policy", ["star_h", "star_ml", "star_h:form=ring"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_star_decides_by_the_noise_scale_of_real_ranks(
    policy: str, world: int, ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(training, world, policy, 120, DELAY, str(tmp_path), limit=LIMIT)
    run = run_of(tmp_path)
    print({name: run.summary[name] for name in SHOWN})
    print({name: value for name, value in run.summary.items() if name in COUNTS})
    assert run.summary["samples"] >= 120 * world * BATCH
    assert run.summary["decisions"] > run.summary["ssgd"]
    assert run.summary["noise_scale"] > 0
    assert run.summary["progress"] > 0
    assert run.decisions is not None
    assert len(run.decisions["update"]) > 1


SHOWN = ("noise_scale", "noise_scale_low", "noise_scale_high", "progress")
COUNTS = ("decisions", "switches", "ssgd", "static", "dynamic", "ring")


def test_a_replayed_journal_has_the_same_estimates_and_decisions(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(training, 3, "star_h", 60, DELAY, str(tmp_path), limit=LIMIT)
    header, lines = read_journal(tmp_path)
    told: list[list[Any]] = []
    live = Live(
        policies.load("star_h"), 3, BATCH, Hints(**header["hints"]), name="star_h",
        note=lambda kind, *values: told.append([kind, *values]),
    )  # fmt: skip
    for kind, *values in lines:
        if kind == "done":
            live.finish_step(values[1], values[0], values[2])
        elif kind == "norms":
            live.measure(NormPair(*values[1:]))
        elif kind == "wait":
            live.wait(values[0])
        live.news()
    from simstrag.ddp.journal.journal import plan_to_json
    from simstrag.runs.run import plain

    again = [[kind, *map(plain, values)] for kind, *values in told if kind == "norms"]
    assert again == [line for line in lines if line[0] == "norms"]
    plans = [[*values[:2], plan_to_json(values[2])] for kind, *values in told if kind == "plan"]
    assert plans == [values for kind, *values in lines if kind == "plan"]
    assert len(plans) > 1
