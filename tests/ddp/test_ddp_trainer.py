"""Real ranks under real policies: what a training script sees, and what its record says."""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from simstrag import policies
from simstrag.contract import Hints, Plan, Precision, Quorum, Review, Via, View
from simstrag.ddp.journal.journal import read_journal
from simstrag.ddp.journal.run_from_journal import finish, part_folders, run_of
from simstrag.engine.live import Live, Start, Update
from simstrag.errors import InputError, SimstragError
from simstrag.trace.trace import Trace
from simstrag.workloads.device import describe_device
from tests.ddp.test_ddp_replayed import Rest
from tests.engine.test_live import judged
from tests.support.ranks import Ranks, ranks
from tests.support.strategies import Fixed

BATCH = 16

__all__ = ["ranks"]


def task(rank: int) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[int], torch.Tensor]]:
    """A small model, its optimizer, and the loss of a batch of so many samples."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    luck = torch.Generator().manual_seed(100 + rank)
    truth = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))

    def loss(samples: int) -> torch.Tensor:
        x = torch.randn(samples, 16, generator=luck)
        return nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))

    return model, optimizer, loss


class Told:
    """A clock that tells prescribed local times, so that decisions do not hang on this machine."""

    immediate = True
    reason = "told by a test"

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds, self.steps = seconds, 0
        self.start = self.seconds = 0.0

    def begin(self) -> None:
        self.start = float(self.steps)

    def ended(self) -> None:
        self.seconds = self._seconds(self.steps)
        self.steps += 1


def without_statistics(model: nn.Module) -> nn.Module:
    """Running statistics are each rank's own."""
    for buffer in model.buffers():
        buffer.zero_()
    return model


def slow_at_times(rank: int) -> Callable[[int], float]:
    """Rank 1 is slow for 40 of every 100 steps."""
    return lambda step: (
        0.1
        + 0.001 * ((7 * step + 3 * rank) % 5)
        + (0.25 if rank == 1 and step % 100 >= 60 else 0.0)
    )


def train(
    rank: int,
    world: int,
    policy: Any,
    steps: int,
    out: str | None = None,
    slow: float = 0.0,
    precision: str = "bf16",
) -> dict[str, Any]:
    """Some steps under a policy; what there is at the end."""
    from simstrag.ddp import wrap
    from simstrag.ddp.allreduce import broadcast_and_average

    model, optimizer, loss = task(rank)
    losses = []
    every = BATCH * world * steps
    with wrap(
        model, optimizer, policy, batch=BATCH, samples=every, precision=precision, out=out
    ) as trainer:
        while not trainer.over:
            losses.append(float(trainer.step(lambda: loss(trainer.next_batch))))
            if slow and rank == world - 1:
                time.sleep(slow)
        state = trainer.state_dict()
        return {
            "losses": losses,
            "digest": broadcast_and_average.digest(model, optimizer),
            "samples": trainer.samples,
            "facts": state["facts"],
        }


def plain(rank: int, world: int, steps: int, clip: float | None = None) -> str:
    """The same training by DDP as everybody uses it."""
    from torch.nn.parallel import DistributedDataParallel

    from simstrag.ddp.allreduce import broadcast_and_average

    model, optimizer, _ = task(0)
    ddp = DistributedDataParallel(model, forward_sync_buffers=False)
    luck = torch.Generator().manual_seed(100 + rank)
    truth = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        x = torch.randn(BATCH, 16, generator=luck)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), (x @ truth).argmax(1)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return broadcast_and_average.digest(model, optimizer)


def test_a_policy_may_rest_a_rank_and_take_it_back(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(train, 2, Rest(2, 5), 4, str(tmp_path))
    assert len({each["samples"] for each in found}) == 1
    applied = finish(tmp_path).frame("gradients").query("fate == 'applied'")
    assert applied.groupby("update")["rank"].nunique().tolist()[:6] == [2, 2, 1, 1, 1, 2]


def test_bsp_is_plain_ddp_bit_for_bit_on_three_ranks(ranks: Ranks) -> None:
    found = [each["digest"] for each in ranks.run(train, 3, "bsp", 30, None, 0.0, "full")]
    assert found == ranks.run(plain, 3, 30)


def test_a_run_in_reduced_precision_leaves_a_trace_of_full_precision(
    ranks: Ranks, tmp_path: Path
) -> None:
    """Without a profile what reduced precision gains is measured at the first step."""
    ranks.run(train, 2, "amp_all", 20, str(tmp_path))
    run = finish(tmp_path)
    gain = (run.recorded or {})["gain"]
    steps = run.frame("steps")
    assert set(steps["precision"]) == {"amp"}
    told = [row.value for row in Trace.read(tmp_path / "trace.csv").rows]
    seconds = (steps["finish"] - steps["start"]) * gain
    assert sorted(told) == pytest.approx(sorted(seconds))


@dataclass
class Uneven:
    """Shares of 40 and 24 samples, everybody waiting for everybody."""

    def plan(self, view: View) -> Plan:
        return Plan(batch=(1.25, 0.75))


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y)


def weighing(rank: int, world: int) -> list[torch.Tensor]:
    """Parameters after five steps of batches shared out 40 and 24, or of 64 by one process."""
    from simstrag.ddp import wrap

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    luck = torch.Generator().manual_seed(1)
    policy: Any = Uneven() if world == 2 else "bsp"
    with wrap(model, optimizer, policy, batch=64 // world, precision="full") as trainer:
        for _ in range(5):
            x = torch.randn(64, 16, generator=luck, dtype=torch.float64)
            y = torch.randint(0, 4, (64,), generator=luck)
            own = slice(0, 64) if world == 1 else (slice(0, 40), slice(40, 64))[rank]
            assert trainer.next_batch == own.stop - own.start
            trainer.step(partial(_loss, model, x[own], y[own]))
    return [p.detach() for p in model.parameters()]


def test_uneven_shares_train_as_one_process_with_the_whole_batch(ranks: Ranks) -> None:
    (alone,) = ranks.run(weighing, 1)
    for found in ranks.run(weighing, 2):
        for one, other in zip(found, alone, strict=True):
            assert (one - other).norm() / other.norm() < 1e-6


WHOLE, UPDATES = 48, 22
ALL, WITHOUT_1, WITHOUT_2 = (0, 1, 2), (0, 2), (0, 1)
Members = tuple[tuple[int, ...], ...]


def leaving_out(
    rank: int, world: int, policy: str, members: Members, slow: tuple[int, int], cut: int
) -> tuple[list[torch.Tensor], list[int]]:
    """Parameters after 22 updates of 48 samples, and the versions this rank computed from.

    members: the ranks that share the samples of each update; one process takes all of them.
    slow: a rank, and the version up to which it is slow.
    cut: the version at which the training is left and taken up again; 0 for none.
    """
    from simstrag.ddp import wrap

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    policy, members = (policy, members) if world > 1 else ("bsp", ((0,),) * UPDATES)

    def begin() -> Any:
        trainer = wrap(
            model, optimizer, policy,
            batch=WHOLE // world, samples=UPDATES * WHOLE, precision="full",
        )  # fmt: skip
        trainer.replica.clock = Told(lambda step: seconds())
        return trainer

    def seconds() -> float:
        return 0.04 if rank == slow[0] and trainer.samples // WHOLE < slow[1] else 0.004

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        time.sleep(seconds())  # under a server no step is told to be longer than it was
        return _loss(model, x, y)

    trainer, taken = begin(), []
    while not trainer.over:
        version = trainer.samples // WHOLE
        if cut and version == cut:
            state = trainer.state_dict()
            trainer.close()
            trainer, cut = begin(), 0
            trainer.load_state_dict(state)
        size, there = trainer.next_batch, members[version]
        place = there.index(rank) if rank in there else 0
        luck = torch.Generator().manual_seed(version)
        x = torch.randn(WHOLE, 16, generator=luck, dtype=torch.float64)
        y = torch.randint(0, 4, (WHOLE,), generator=luck)
        own = slice(size * place, size * place + size)
        loss = trainer.step(partial(loss_of, x[own], y[own]))
        if rank in there:
            assert size == WHOLE // len(there)
            taken.append(version)
        else:
            assert loss.isnan()
    model.load_state_dict(trainer.state_dict()["model"])
    trainer.close()
    return [p.detach() for p in model.parameters()], taken


DRAINED = (
    "drain:window=3,checks=1,wait=4,probe=2",
    (ALL,) * 3 + (WITHOUT_2,) * 4 + (ALL,) * 2 + (WITHOUT_2,) * 8 + (ALL,) * 5,
    (2, 12),
)
"""Out after three updates, probed after four without it, found well after eight more."""


@pytest.mark.parametrize(
    ("policy", "members", "slow", "cut"),
    [
        (*DRAINED, 0),
        (*DRAINED, 8),  # within the first probe
        ("hot_spare:window=3,checks=1", (WITHOUT_2,) * 3 + (WITHOUT_1,) * 19, (1, 22), 0),
        ("fewer:measure=2", (ALL,) * 2 + (WITHOUT_1,) * 20, (1, 22), 0),
        ("fewer:ranks=1", (WITHOUT_1,) * 22, (1, 22), 0),
    ],
    ids=["drain", "drain resumed", "hot_spare", "fewer", "fewer from the start"],
)
def test_without_a_slow_rank_the_others_train_as_one_process_with_the_whole_batch(
    policy: str, members: Members, slow: tuple[int, int], cut: int, ranks: Ranks
) -> None:
    """So they do when it is back, and it has the parameters of the others."""
    ((alone, _),) = ranks.run(leaving_out, 1, policy, members, slow, 0)
    trained = ranks.run(leaving_out, 3, policy, members, slow, cut, limit=480)  # twice, if resumed
    for rank, (found, taken) in enumerate(trained):
        assert taken == [version for version in range(UPDATES) if rank in members[version]]
        for one, other in zip(found, alone, strict=True):
            assert (one - other).norm() / other.norm() < 1e-6


@dataclass(frozen=True)
class Pausing:
    """Every step begins 0.04 s late."""

    via: Via

    def plan(self, view: View) -> Plan:
        return Plan((Quorum(via=self.via),), pause=0.04)


def pausing(rank: int, world: int, via: Via) -> float:
    """Seconds of three updates."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    with wrap(model, optimizer, Pausing(via), batch=BATCH) as trainer:
        begun = time.monotonic()
        for _ in range(4):
            trainer.step(lambda: loss(BATCH))
        return time.monotonic() - begun


@pytest.mark.parametrize("via", [Via.ALLREDUCE, Via.SERVER])
def test_ranks_pause_before_a_step_if_the_plan_says_so(via: Via, ranks: Ranks) -> None:
    """The first of four steps may have paused before the first call."""
    assert min(ranks.run(pausing, 2, via)) > 0.12


def switching(rank: int, world: int, steps: int) -> tuple[list[tuple[int, ...]], str]:
    """Korel on told times: who was in reduced precision at each step, and the parameters."""
    from simstrag.ddp import wrap
    from simstrag.ddp.allreduce import broadcast_and_average

    model, optimizer, loss = task(rank)
    decided = []
    with wrap(model, optimizer, "korel", batch=BATCH, precision="bf16") as trainer:
        trainer.replica.clock = Told(slow_at_times(rank))
        for _ in range(steps):
            trainer.step(lambda: loss(BATCH))
            decided.append(tuple(trainer.plan.in_amp.tolist()))
        return decided, broadcast_and_average.digest(without_statistics(model), optimizer)


def test_replicas_that_switch_precision_stay_equal(ranks: Ranks) -> None:
    answers = ranks.run(switching, 3, 130)
    decided, digest = answers[0]
    assert all(each == (decided, digest) for each in answers)
    assert any(any(each) for each in decided), "korel must have switched"


@dataclass
class Odd:
    """Decides otherwise on rank 2, from version 5 on: what a policy that reads a clock does."""

    rank: int
    state_: list[int] = field(default_factory=list)

    def plan(self, view: View) -> Plan:
        wrong = self.rank == 2 and view.version >= 5
        return Plan(
            precision=(Precision.AMP if wrong else Precision.FULL), review=Review(updates=1)
        )


def deciding_alone(rank: int, world: int) -> str:
    from simstrag.ddp import Disagreement, wrap

    model, optimizer, loss = task(rank)
    with wrap(model, optimizer, Odd(rank), batch=BATCH, precision="bf16") as trainer:
        try:
            for _ in range(20):
                trainer.step(lambda: loss(BATCH))
        except Disagreement as error:
            return str(error)
    return ""


def test_a_replica_that_decides_otherwise_is_caught_at_the_next_step_and_named(
    ranks: Ranks,
) -> None:
    for said in ranks.run(deciding_alone, 3):
        assert said.startswith("at version 5: rank 2 is at version 5 with plan")


@pytest.mark.parametrize("policy", ["backup:b=1"])
def test_the_reference_engine_books_recorded_arrivals_as_the_server_did(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    ranks.run(train, 3, policy, 60, str(tmp_path / "run"), 0.01)
    _, lines = read_journal(tmp_path / "run")
    gone = next((k for k, line in enumerate(lines) if line[0] == "gone"), len(lines))
    seconds, booked = told_again(policy, [each for each in lines[:gone] if each[0] != "push"])
    assert len(booked) > 30
    expected = judged(policy, seconds, 10**9, updates=len(booked)).log
    for update, entry in zip(booked, expected, strict=True):
        found = [(g.rank, g.step, update.version - 1 - g.version) for g in update.gradients]
        assert sorted(found) == [each[:3] for each in sorted(map(tuple, entry.gradients))]
    # What the server applied is what it booked, and computed from what its rank says it pulled.
    applied = [line[1:3] for line in lines[:gone] if line[0] == "applied"]
    pulled = {
        (row["rank"], row["step"]): row["version"] for kind, row, *_ in lines if kind == "push"
    }
    for update, (version, gradients) in zip(booked, applied, strict=True):
        assert version == update.version
        told = [(g.rank, g.step, g.version, g.weight) for g in update.gradients]
        assert sorted(map(tuple, gradients)) == sorted(told)
        assert all(pulled.get((g.rank, g.step), g.version) == g.version for g in update.gradients)


def told_again(policy: str, lines: list[list[Any]]) -> tuple[list[list[float]], list[Update]]:
    """From release to arrival, of every step of every rank; and the updates as they were booked."""
    live = Live(policies.load(policy), 3, BATCH, Hints(batch=BATCH))
    begun: dict[int, float] = {}
    seconds: list[list[float]] = [[], [], []]
    booked: list[Update] = []

    def listen() -> None:
        for each in live.news():
            if isinstance(each, Start):
                if len(seconds[each.rank]) < each.step:  # the last one was aborted
                    seconds[each.rank].append(live.now - begun[each.rank] + 1.0)
                begun[each.rank] = live.now
            elif isinstance(each, Update):
                booked.append(each)

    listen()
    for kind, *values in lines:
        if kind == "done":
            at, rank, own = values
            seconds[rank].append(at - begun[rank])
            live.finish_step(rank, at, own)
            listen()
    return [[*own, *[1e6] * 3] for own in seconds], booked


@pytest.mark.parametrize("policy", ["star_ring"])
def test_a_policy_trains_four_ranks_and_leaves_a_record(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    answers = ranks.run(train, 4, policy, 60, str(tmp_path / "run"), 0.006)
    first, last = (
        statistics.mean(loss for answer in answers for loss in answer["losses"][part])
        for part in (slice(15), slice(-15, None))
    )
    assert last < 0.8 * first
    run = run_of(tmp_path / "run")
    assert run.policy == policy
    applied = run.frame("gradients").query("fate == 'applied'")
    assert applied["samples"].sum() == run.summary["samples"] > 0
    assert run.recorded is not None
    assert run.recorded["device"] == describe_device()


@dataclass
class Merging:
    """Ranks train models of their own, and at the end of an update go on from their mean."""

    def plan(self, view: View) -> Plan:
        apart = Plan((Quorum(steps=2),), average=True, review=Review(updates=1))
        return apart if view.version < 3 else Plan()


def merging(rank: int, world: int) -> tuple[list[float], list[float], str]:
    """Sums of a momentum before and after the merge, and a digest of all at the end."""
    from simstrag.ddp import wrap
    from simstrag.ddp.allreduce import broadcast_and_average

    model, optimizer, loss = task(rank)
    sums: list[list[float]] = []
    average = broadcast_and_average.average

    def watched(*given: Any) -> None:
        for apart in (True, False):
            if not apart:
                average(*given)
            state = optimizer.state_dict()["state"]
            sums.append([float(state[k]["momentum_buffer"].sum()) for k in sorted(state)])

    broadcast_and_average.average = watched
    try:
        with wrap(model, optimizer, Merging(), batch=BATCH, precision="full") as trainer:
            while trainer.plan is None:
                trainer.step(lambda: loss(BATCH))
            for _ in range(5):
                trainer.step(lambda: loss(BATCH))
    finally:
        broadcast_and_average.average = average
    return *sums, broadcast_and_average.digest(without_statistics(model), optimizer)


def test_a_policy_that_averaged_models_goes_on_by_ddp_from_the_mean_of_all(ranks: Ranks) -> None:
    found = ranks.run(merging, 3)
    assert len({digest for _, _, digest in found}) == 1
    mean = np.mean([before for before, _, _ in found], axis=0)
    for before, after, _ in found:
        assert after == pytest.approx(mean.tolist(), rel=1e-4, abs=1e-6)
        assert before != pytest.approx(after)


def averaging(rank: int, world: int, plan: Plan) -> tuple[list[Any], list[Any], bool]:
    """Parameters after three averages, those of a checkpoint then, and whether it has momenta."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    with wrap(model, optimizer, Fixed(plan), batch=BATCH, precision="full") as trainer:
        for _ in range(6):
            trainer.step(lambda: loss(BATCH))
        state = trainer.state_dict()
    names = [name for name, _ in model.named_parameters()]
    saved = [state["model"][name].numpy() for name in names]
    own = [each.detach().numpy() for each in model.parameters()]
    return own, saved, bool(state["optimizer"]["state"])


def test_models_are_averaged_at_the_server_as_by_an_all_reduce(ranks: Ranks) -> None:
    by_server, by_all_reduce = (
        ranks.run(averaging, 2, Plan((Quorum(steps=2, via=via),), average=True))
        for via in (Via.SERVER, Via.ALLREDUCE)
    )
    for (own, saved, has_momenta), (expected, *_) in zip(by_server, by_all_reduce, strict=True):
        assert has_momenta
        for one, kept, other in zip(own, saved, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(one, kept)


def after_steps(rank: int, world: int, plan: Plan, steps: tuple[int, ...]) -> int:
    """Samples that were applied when a rank has taken its number of steps."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    with wrap(model, optimizer, Fixed(plan), batch=BATCH, precision="full") as trainer:
        for _ in range(steps[rank]):
            trainer.step(lambda: loss(BATCH))
        return trainer.samples


def test_ranks_average_after_steps_of_their_own_number(ranks: Ranks) -> None:
    plan = Plan((Quorum(steps=(1, 2)),), average=True)
    assert ranks.run(after_steps, 2, plan, (6, 12)) == [18 * BATCH] * 2


def refused(rank: int, world: int, policy: str) -> str:
    from simstrag.ddp import wrap

    model, optimizer, _ = task(rank)
    with pytest.raises(InputError) as caught:
        wrap(model, optimizer, policy, batch=BATCH)
    return str(caught.value)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("star_h_oracle", "is for simulation only: "),
        ("dropcompute", "is for simulation only: "),
        ("zeno", "tests gradients by some that its server takes itself: give"),
    ],
)
def test_what_cannot_run_for_real_is_refused_with_the_reason(
    policy: str, why: str, ranks: Ranks
) -> None:
    (said,) = ranks.run(refused, 1, policy)
    assert said.startswith(f"policy {policy} {why}")


@dataclass
class Cutting:
    """In mid-run it asks for what no real process can do."""

    first: Plan

    def plan(self, view: View) -> Plan:
        deadline = None if view.version < 3 else 0.1
        return replace(self.first, deadline=deadline, review=Review(updates=1))


def cutting(rank: int, world: int, first: Plan) -> str:
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    with wrap(model, optimizer, Cutting(first), batch=BATCH, precision="full") as trainer:
        with pytest.raises(SimstragError) as caught:
            [trainer.step(lambda: loss(BATCH)) for _ in range(20)]
        return str(caught.value)


@pytest.mark.parametrize("first", [Plan(), policies.load("asgd").plan(View(2))])
def test_a_later_plan_that_cannot_be_carried_out_is_refused_then(first: Plan, ranks: Ranks) -> None:
    for said in ranks.run(cutting, 2, first):
        assert "a plan that it made in mid-run is refused: a deadline cuts steps" in said


def resuming(
    rank: int, world: int, policy: str, steps: int, cut: int, out: Path
) -> tuple[list[Any], Any]:
    """Decisions of a training that is left and taken up after `cut` steps (0: it is not)."""
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    clock = Told(slow_at_times(rank))
    decided = []
    trainer = wrap(model, optimizer, policy, batch=BATCH, precision="bf16", out=out)
    trainer.replica.clock = clock
    for step in range(steps):
        if cut and step == cut:
            state = trainer.state_dict()
            trainer.close()
            model, optimizer, _ = task(rank + 10)  # other weights, of which nothing is left
            loss = _of(model, loss)
            trainer = wrap(model, optimizer, policy, batch=BATCH, precision="bf16", out=out)
            trainer.load_state_dict(state)
            trainer.replica.clock = clock
        batch = trainer.next_batch
        trainer.step(partial(loss, batch))
        decided.append(repr(trainer.plan))
    trainer.close()
    return decided, [each.detach().numpy() for each in model.parameters()]


def _of(model: nn.Module, loss: Callable[[int], torch.Tensor]) -> Callable[[int], torch.Tensor]:
    """The same batches for another model."""
    cells = dict(zip(loss.__code__.co_freevars, loss.__closure__ or (), strict=True))
    cells["model"].cell_contents = model
    return loss


@pytest.mark.parametrize("policy", ["korel", "lb_bsp"])
def test_a_resumed_run_decides_trains_and_is_recorded_as_an_undisturbed_one(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    resumed, undisturbed = (
        ranks.run(resuming, 3, policy, 90, cut, tmp_path / str(cut)) for cut in (70, 0)
    )
    for (decided, parameters), (expected, others) in zip(resumed, undisturbed, strict=True):
        assert decided == expected
        for one, other in zip(parameters, others, strict=True):
            # DDP orders its buckets anew, and so the ranks of which sums are made
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert part_folders(tmp_path / "0") == [tmp_path / "0"]
    assert part_folders(tmp_path / "70") == [tmp_path / "70", tmp_path / "70" / "attempt-1"]
    assert [run_of(each).summary["updates"] for each in part_folders(tmp_path / "70")] == [70, 90]


# -- what is refused -----------------------------------------------------------------------------


def rank_wraps_wrongly(rank: int, world: int, wrong: str) -> str:
    from simstrag.ddp import wrap

    model, optimizer, _ = task(rank)
    if wrong == "in DDP":
        model = torch.nn.parallel.DistributedDataParallel(model)
    given: dict[str, Any] = {"policy": "bsp", "batch": BATCH, "precision": "full"}
    given |= {
        "policies": {"policy": ("bsp", "asgd")[rank]}, "batches": {"batch": 16 + rank},
        "no whole number": {"batch": "16"}, "nothing to train": {"samples": 0},
        "samples of what": {"batch": None, "samples": 100},
    }.get(wrong, {})  # fmt: skip
    try:
        with wrap(model, optimizer, **given) as trainer:
            trainer.step({"a loss": torch.ones(()), "no loss": lambda: 1.0}[wrong])  # type: ignore[arg-type]
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("policies", "wrap() was given different values of policy: rank 0 'bsp', rank 1 'asgd'"),
        ("batches", "wrap() was given different values of batch: rank 0 16, rank 1 17"),
        ("no whole number", "batch: '16'; give a whole number from 1 on"),
        ("nothing to train", "samples: 0; give a whole number from 1 on"),
        ("in DDP", "the model is in DistributedDataParallel already"),
        ("samples of what", "give the samples of a rank's batch too"),
        ("a loss", "step() takes a function that computes the loss, not the loss"),
        ("no loss", "must return the loss: a tensor of one element that needs a gradient"),
    ],
)
def test_a_mistake_of_the_script_is_named_on_every_rank(
    wrong: str, said: str, ranks: Ranks
) -> None:
    for found in ranks.run(rank_wraps_wrongly, 2, wrong):
        assert said in found


def stepping_when_closed(rank: int, world: int) -> str:
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    with wrap(model, optimizer, "bsp", precision="full") as trainer:
        trainer.step(lambda: loss(0))
    with pytest.raises(InputError) as refusal:
        trainer.step(lambda: loss(1))
    return str(refusal.value)


def test_no_step_follows_when_a_training_was_closed(ranks: Ranks) -> None:
    assert ranks.run(stepping_when_closed, 1) == ["this training was closed; call wrap() anew"]


def rank_without_reduced_precision(rank: int, world: int) -> tuple[list[str], int]:
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    with (
        contextlib.redirect_stderr(io.StringIO()) as heard,
        wrap(model, optimizer, "amp_all", batch=BATCH, precision="full") as trainer,
    ):
        for _ in range(3):
            trainer.step(lambda: loss(BATCH))
        plan = trainer.plan
    assert plan is not None
    said = [line for line in heard.getvalue().splitlines() if "reduced precision" in line]
    return said, int(sum(plan.in_amp))


def test_without_reduced_precision_all_steps_stay_in_full_and_it_is_said_once(ranks: Ranks) -> None:
    (said, amp), (others, _) = ranks.run(rank_without_reduced_precision, 2)
    assert (len(said), others, amp) == (1, [], 0)
    assert said[0].startswith("warning: policy amp_all asks for reduced precision, and all")
