"""Parameters spread over processes: the bits of one server, and the staleness of each slice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")

from simstrag import policies  # noqa: E402
from simstrag.ddp.parameters import packed  # noqa: E402
from simstrag.ddp.record.journal import read  # noqa: E402
from simstrag.ddp.record.replay import run_of  # noqa: E402
from simstrag.ddp.server.client import Link, ServerFailure, connect  # noqa: E402
from simstrag.ddp.server.messages import Compute, Job  # noqa: E402
from simstrag.errors import InputError  # noqa: E402
from simstrag.policy import Plan, Quorum, Review, Via  # noqa: E402
from tests.ranks import Ranks, ranks  # noqa: E402
from tests.test_ddp_trainer import BATCH, task  # noqa: E402
from tests.verification.test_ddp_server import (  # noqa: E402
    Fixed,
    Notes,
    Server,
    gradient_of,
    serving,
)

__all__ = ["ranks"]

WORLD = 3
SIZES = (100, 40, 60, 90, 10)
COUNT = sum(SIZES)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def job_of(spec: Any, shards: int, optimizer: str = "sgd") -> Job:
    torch.manual_seed(0)
    own = [torch.nn.Parameter(torch.randn(n)) for n in SIZES]
    policy = policies.load(spec) if isinstance(spec, str) else spec
    return Job(packed(OPTIMIZERS[optimizer](own)), policy, BATCH, shards=shards)


@contextlib.contextmanager
def linked(
    job: Job, shared: bool = True, stall_limit: float = 30.0, **given: Any
) -> Iterator[tuple[Server, list[Link]]]:
    """A server and all its ranks, in one thread, each with its first order."""
    with serving(WORLD, stall_limit, **given) as server:
        links = [connect(server.address, rank, stall_limit) for rank in range(WORLD)]
        try:
            for link in links:
                link.begin(COUNT, torch.float32, job if link.rank == 0 else None, shared)
            for link in links:
                link.pull()
            yield server, links
        finally:
            for link in links:
                link.leave()


def step(link: Link) -> None:
    assert isinstance(link.order, Compute)
    link.push(gradient_of(link.parameters, link.rank, link.order.step), 0.1)


def arrivals(count: int) -> list[int]:
    return random.Random(5).choices(range(WORLD), k=count)


def driven(shards: int, optimizer: str, shared: bool = True) -> tuple[Any, list[Any]]:
    """What there is after 40 updates of asgd in an order of arrival that is told."""
    with linked(job_of("asgd", shards, optimizer), shared) as (_, links):
        for rank in arrivals(40):
            step(links[rank])
            links[rank].pull()
        state = links[0].state()
        return state, [link.parameters.clone() for link in links]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shards", [2, 3])
def test_parameters_and_optimizer_are_those_of_one_server_to_the_last_bit(
    shards: int, optimizer: str, shared: bool
) -> None:
    state, pulled = driven(shards, optimizer, shared)
    expected, others = driven(1, optimizer)
    assert torch.equal(state["parameters"], expected["parameters"])
    assert state["facts"].version == expected["facts"].version == 40
    assert str(state["optimizer"]) == str(expected["optimizer"])
    for one, other in zip(pulled, others, strict=True):
        assert torch.equal(one, other)


def test_gradients_that_wait_for_others_are_summed_up_as_by_one_server() -> None:
    found = []
    for shards in (1, 3):
        with linked(job_of("bsp:via=server", shards)) as (_, links):
            for _ in range(5):
                for link in links:
                    step(link)
                for link in links:
                    link.pull()
            found.append(links[1].state()["parameters"])
    assert torch.equal(*found)


def test_the_staleness_of_each_slice_is_recorded_and_the_first_is_the_one_that_is_booked() -> None:
    notes = Notes()
    with linked(job_of("asgd", 3), journal=notes) as (_, links):
        for rank in arrivals(30):
            step(links[rank])
            links[rank].pull()
    rows = [row for (row,) in notes.of("push")]
    assert len(rows) == 30
    booked = {
        (rank, own): version - 1 - pulled
        for version, gradients, _ in notes.of("applied")
        for rank, own, pulled, _ in gradients
    }
    for row in rows:
        assert row["staleness"][0] == booked[row["rank"], row["step"]]
        assert len(row["staleness"]) == len(row["versions"]) == 3
        assert all(0 <= each <= row["staleness"][0] for each in row["staleness"])


def test_a_learning_rate_reaches_all_slices() -> None:
    from simstrag.ddp.parameters import settings

    with linked(job_of("asgd", 2)) as (_, links):
        before = links[0].parameters.clone()
        own = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5, momentum=0.9)
        links[0].push(torch.ones(COUNT), 0.1, settings=settings(own))
        links[0].pull()
        assert torch.equal(links[0].parameters, before - 0.5 / WORLD * torch.ones(COUNT))


def shards_here() -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process().children()
        if "simstrag.ddp.server.shard" in each.cmdline()
    ]


def goes_on(link: Link) -> None:
    for _ in range(1000):
        step(link)
        link.pull()


def test_a_shard_that_is_killed_ends_the_job_and_is_named() -> None:
    with linked(job_of("asgd", 2)) as (_, links):
        shards_here()[0].kill()
        with pytest.raises(ServerFailure, match=r"shard 1 ended with code -9 \(process \d+\)"):
            goes_on(links[0])
    assert not shards_here()


def test_a_shard_that_is_stopped_ends_the_job_and_is_named() -> None:
    with linked(job_of("asgd", 2), stall_limit=1.0) as (_, links):
        os.kill(shards_here()[0].pid, signal.SIGSTOP)
        with pytest.raises(ServerFailure, match=r"shard 1 was silent for \d"):
            goes_on(links[0])
    assert not shards_here()


def test_the_others_go_on_without_a_rank_that_is_lost() -> None:
    with linked(job_of("asgd", 2)) as (_, links):
        links[2].close()
        for _ in range(20):
            for link in links[:2]:
                step(link)
                link.pull()
        assert set(links[0].lost) == {2}
        assert links[0].state()["facts"].version == 40


def test_a_plan_that_cannot_be_sharded_is_refused_when_it_comes() -> None:
    asgd = Plan((Quorum(count=1, via=Via.SERVER),), review=Review(updates=1))
    averaging = Plan((Quorum(count=2),), average=True)
    with (
        pytest.raises(InputError, match="policy fixed: by this plan ranks sum up"),
        linked(job_of(Fixed((asgd, asgd, averaging)), 2)) as (_, links),
    ):
        goes_on(links[0])


# -- through a training script ----------------------------------------------------------------


def train(rank: int, world: int, policy: str, out: str, shards: int) -> tuple[list[float], Any]:
    from simstrag.ddp import wrap

    model, optimizer, loss = task(rank)
    losses = []
    with wrap(
        model, optimizer, policy, batch=BATCH, samples=BATCH * world * 60, out=out, shards=shards
    ) as trainer:
        while not trainer.over:
            losses.append(float(trainer.step(lambda: loss(BATCH))))
        found = trainer.state_dict()
    return losses, {name: tuple(each.shape) for name, each in found["model"].items()}


def test_three_ranks_train_with_two_shards_and_leave_a_record(ranks: Ranks, tmp_path: Path) -> None:
    answers = ranks.run(train, WORLD, "ssp:bound=2", str(tmp_path / "run"), 2)
    first, last = (
        sum(sum(losses[part]) for losses, _ in answers) for part in (slice(15), slice(-15, None))
    )
    assert last < 0.8 * first
    _, lines = read(tmp_path / "run")
    rows = [values[0] for kind, *values in lines if kind == "push"]
    stale = [row["staleness"] for row in rows if "staleness" in row]
    assert len(stale) > 100
    assert {len(each) for each in stale} == {2}
    told = run_of(tmp_path / "run").summary["staleness_by_shard"]
    assert told == [sum(values) / len(stale) for values in zip(*stale, strict=True)]


def refused(rank: int, world: int, policy: str) -> str:
    from simstrag.ddp import wrap

    model, optimizer, _ = task(rank)
    with pytest.raises(InputError) as caught:
        wrap(model, optimizer, policy, batch=BATCH, shards=2)
    return str(caught.value)


@pytest.mark.parametrize("policy", ["korel", "local_sgd:h=2"])
def test_shards_are_refused_at_start_where_nothing_is_pushed(policy: str, ranks: Ranks) -> None:
    (said,) = ranks.run(refused, 1, policy)
    assert said.startswith(f"policy {policy}: by this plan ranks sum up")
