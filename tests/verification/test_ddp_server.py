"""Ranks and their server over real sockets: parameters, updates and lost ranks agree."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from simstrag import policies
from simstrag.contract import Late, Plan, Quorum, Review, Via, View
from simstrag.ddp.flat_parameters import pack_optimizer, settings_of, unflatten
from simstrag.ddp.flat_parameters import trained_parameters as trained_by
from simstrag.ddp.journal.journal import facts_from_json, facts_to_json
from simstrag.ddp.pickled_policy import pack_policy
from simstrag.ddp.plain_data import load
from simstrag.ddp.server.client import Client
from simstrag.ddp.server.messages import (
    Compute,
    Deliver,
    Finish,
    GradientRoute,
    Handover,
    JobSpec,
    Reduce,
)
from simstrag.ddp.server.server import Server
from simstrag.ddp.server.server_main import start_server
from simstrag.ddp.server.wire import HEADER
from simstrag.errors import InputError
from simstrag.processes.children import die_with_parent
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

BATCH = 8
COUNT = 300
LIMIT = 30.0
"""Seconds after which a test that hangs has failed."""


# -- what is trained --------------------------------------------------------------------------


def optimizer_of(dtype: torch.dtype = torch.float32) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    halves = [torch.nn.Parameter(torch.randn(n, dtype=dtype)) for n in (100, COUNT - 100)]
    return torch.optim.SGD(halves, lr=0.1, momentum=0.9)


def gradient_of(parameters: torch.Tensor, rank: int, step: int) -> torch.Tensor:
    """A gradient that depends on who computes it, which time, and from what."""
    drawn = torch.Generator().manual_seed(1000 * rank + step)
    noise = torch.randn(len(parameters), generator=drawn, dtype=parameters.dtype)
    return 0.3 * parameters + noise


def job_of(spec: str | Any, **given: Any) -> JobSpec:
    policy = policies.load(spec) if isinstance(spec, str) else spec
    return JobSpec(pack_policy(policy), BATCH, bulk=pack_optimizer(optimizer_of()), **given)


@dataclass
class Meeting:
    """An all-reduce among threads: weighted sums in order of rank."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    brought: dict[Any, dict[int, torch.Tensor]] = field(default_factory=dict)

    def total(self, key: Any, members: tuple[int, ...], rank: int, own: torch.Tensor) -> Any:
        with self.changed:
            here = self.brought.setdefault((key, members), {})
            here[rank] = own
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: len(here) == len(members), LIMIT)
        return torch.stack([here[other] for other in members]).sum(0)


@dataclass
class Rank:
    """A worker that carries out commands until it has computed `steps` steps."""

    rank: int
    steps: int
    pace: Callable[[int, int], float] = lambda rank, step: 0.0
    meeting: Meeting = field(default_factory=Meeting)
    shared: bool = True
    pulled: list[tuple[int, int]] = field(default_factory=list)
    gave_up: list[int] = field(default_factory=list)
    commands: list[Any] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    handed: Handover | None = None
    model: torch.Tensor = field(default_factory=lambda: torch.zeros(COUNT))

    def train(self, address: str, job: JobSpec | None, stall_limit: float = LIMIT) -> None:
        client = Client(address, self.rank, stall_limit)
        try:
            client.begin(COUNT, torch.float32, job, self.shared)
            while self._obey(client):
                pass
        finally:
            client.leave()
            self.lost = client.lost

    def _obey(self, client: Client) -> bool:
        command = client.receive()
        self.commands.append(command)
        match command:
            case Compute():
                if command.pull:
                    self.model = self._passed_on(client, command)
                if len(self.pulled) == self.steps:
                    return False
                self.pulled.append((command.step, command.version))
                return self._compute(client, command)
            case Reduce():
                weight = command.weights[command.members.index(self.rank)]
                own = (self.model if command.average else self.gradient) * weight
                total = self.meeting.total(command.closing, command.members, self.rank, own)
                if command.average:
                    self.model = total
                leads = self.rank == command.members[0] and not command.average
                client.end_reduction(command.closing, total if leads else None)
            case Deliver():
                client.deliver(self.gradient)
            case Finish():
                return False
            case Handover():
                self.handed, self.model = command, client.parameters.clone()
                return False
        return True

    def _passed_on(self, client: Client, command: Compute) -> torch.Tensor:
        """The parameters of a command; those of a group come through its lowest rank."""
        if not command.passed:
            return client.parameters.clone()
        leads = self.rank == command.members[0]
        own = client.parameters.clone() if leads else torch.zeros(COUNT)
        return self.meeting.total(("pull", command.version), command.members, self.rank, own)

    def _compute(self, client: Client, command: Compute) -> bool:
        begun = time.monotonic()
        over = begun + self.pace(self.rank, command.step)
        while time.monotonic() < over:
            if client.is_aborted():
                self.gave_up.append(command.step)
                client.withdraw()
                return True
            time.sleep(0.001)
        self.gradient = gradient_of(self.model, self.rank, command.step)
        ended = time.monotonic()
        if command.route is GradientRoute.PUSH:
            client.finish_step(self.gradient, ended - begun, begun, ended)
        elif command.route is GradientRoute.READY:
            if command.local:
                self.model = self.model - 0.1 * self.gradient
            client.finish_step(None, ended - begun, begun, ended)
        else:
            own = self.gradient * command.weight
            key = "group", command.version, command.step
            total = self.meeting.total(key, command.members, self.rank, own)
            if self.rank == command.members[0]:
                both = dict.fromkeys(command.members, (ended - begun, True, math.nan))
                client.finish_step(total, ended - begun, members=both)
        return True


@dataclass
class Notes:
    """A journal in memory."""

    lines: list[tuple[Any, ...]] = field(default_factory=list)

    def note(self, kind: str, *values: Any) -> None:
        self.lines.append((kind, *values))

    def of(self, kind: str) -> list[Any]:
        return [line[1:] for line in self.lines if line[0] == kind]


@contextlib.contextmanager
def serving(world_size: int, stall_limit: float = LIMIT, **given: Any) -> Iterator[Server]:
    """A server in a thread, which has ended afterwards."""
    server = Server(world_size, stall_limit=stall_limit, **{"journal": Notes(), **given})
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            server.serve()
        except (InputError, ConnectionError, RuntimeError) as error:
            failures.append(error)  # the ranks hear of it

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        thread.join(LIMIT)
        assert not thread.is_alive()


def stamps(server: Server) -> list[dict[str, Any]]:
    """Rows of the steps that are over."""
    assert isinstance(server.journal, Notes)
    return [row for (row,) in server.journal.of("push")]


def train_all(ranks: list[Rank], address: str, job: JobSpec) -> None:
    """Train with ranks as threads, the first of which brings the job, until all have ended."""
    meeting, failures = Meeting(), list[BaseException]()

    def train(one: Rank) -> None:
        one.meeting = meeting
        try:
            one.train(address, job if one.rank == 0 else None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(one,), daemon=True) for one in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def trained_parameters(spec: Any, ranks: list[Rank], **given: Any) -> Server:
    """Train until each rank has done its steps."""
    with serving(len(ranks), **given) as server:
        train_all(ranks, server.address, job_of(spec))
    return server


def replayed(notes: Notes, reduced: Container[int] = ()) -> tuple[torch.Tensor, int]:
    """The parameters after the same updates in the same order, and how many, without a server.

    reduced: the versions that an all-reduce made; its sums are rounded otherwise.
    """
    own = optimizer_of()
    parameters = [p for group in own.param_groups for p in group["params"]]
    flat = torch.cat([p.detach() for p in parameters])
    history = [flat]
    for version, gradients, missing in notes.of("applied"):
        assert version == len(history)
        own_weights = [
            (gradient_of(history[pulled], rank, step), weight)
            for rank, step, pulled, weight in gradients
            if rank not in missing
        ]
        if version in reduced:
            total = torch.stack([gradient * weight for gradient, weight in own_weights]).sum(0)
        else:
            total = own_weights[0][0] * own_weights[0][1]
            for gradient, weight in own_weights[1:]:
                total = total.add(gradient, alpha=weight)
        for parameter, piece in zip(parameters, total.split([100, COUNT - 100]), strict=True):
            parameter.grad = piece.clone()
        own.step()
        history.append(torch.cat([p.detach() for p in parameters]))
    return history[-1], len(history) - 1


def flat_of(server: Server) -> torch.Tensor:
    assert server.store is not None
    return server.store.flat


@dataclass
class Fixed:
    """A policy whose plan of version k is the k-th, or the last."""

    plans: tuple[Plan, ...]
    name: str = "fixed"

    def plan(self, view: View) -> Plan:
        return self.plans[min(view.version, len(self.plans) - 1)]


# -- plans by real sockets --------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_every_gradient_of_asgd_is_one_update_and_the_recorded_order_gives_the_same_bits(
    shared: bool,
) -> None:
    notes = Notes()
    ranks = [Rank(rank, 40, shared=shared) for rank in range(3)]
    server = trained_parameters("asgd", ranks, journal=notes)
    expected, updates = replayed(notes)
    assert updates == 120
    assert len(notes.of("end")) == 1
    assert torch.equal(flat_of(server), expected)


def test_under_ssp_no_rank_is_further_ahead_than_the_bound() -> None:
    notes = Notes()
    ranks = [Rank(0, 12, lambda rank, step: 0.02), Rank(1, 12)]
    trained_parameters("ssp:bound=2", ranks, journal=notes)
    finished = [0, 0]
    ahead = []
    for _, rank, _ in notes.of("done"):
        finished[rank] += 1
        ahead.append(finished[1] - finished[0])
    assert max(ahead[: ahead.index(3) + 1]) == 3  # two ahead and one in work
    assert max(ahead) == 3


def test_k_async_applies_two_gradients_at_a_time() -> None:
    notes = Notes()
    ranks = [Rank(rank, 20) for rank in range(3)]
    server = trained_parameters("k_async:x=2", ranks, journal=notes)
    sizes = [len(gradients) for _, gradients, _ in notes.of("applied")]
    assert set(sizes[:20]) == {2}
    expected, _ = replayed(notes)
    assert torch.equal(flat_of(server), expected)


@pytest.mark.parametrize("late", ["abort", "drop"])
def test_a_backup_worker_s_gradient_is_given_up_or_thrown_away(late: str) -> None:
    notes = Notes()
    ranks = [Rank(0, 15), Rank(1, 15), Rank(2, 15, lambda rank, step: 0.1)]
    server = trained_parameters(f"backup:b=1,late={late}", ranks, journal=notes)
    assert bool(ranks[2].gave_up) == (late == "abort")
    first = [{rank for rank, *_ in gradients} for _, gradients, _ in notes.of("applied")[:10]]
    assert first == [{0, 1}] * 10
    expected, _ = replayed(notes)
    assert torch.equal(flat_of(server), expected)


def test_an_all_reduce_with_a_window_closes_without_the_slow_rank() -> None:
    notes = Notes()
    plan = Plan((Quorum(window=0.03),))
    ranks = [Rank(0, 8), Rank(1, 8), Rank(2, 2, lambda rank, step: 0.2)]
    server = trained_parameters(Fixed((plan,)), ranks, journal=notes)
    sums = [command for command in ranks[0].commands if isinstance(command, Reduce)]
    assert {(command.members, command.weights) for command in sums} >= {((0, 1), (1 / 3, 1 / 3))}
    expected, _ = replayed(notes, reduced=range(1000))
    assert torch.equal(flat_of(server), expected)


def test_groups_sum_up_on_the_way_and_push_their_sums() -> None:
    notes = Notes()
    plan = Plan(tuple(Quorum(ranks, via=Via.LEADER) for ranks in ((0, 2), (1,))))
    ranks = [Rank(0, 10), Rank(1, 20), Rank(2, 10)]
    server = trained_parameters(Fixed((plan,)), ranks, journal=notes)
    pairs = [tuple(rank for rank, *_ in gradients) for _, gradients, _ in notes.of("applied")]
    assert pairs.count((0, 2)) == 10
    assert pairs.count((1,)) == 20
    expected, _ = replayed(notes, reduced=range(1000))
    assert torch.equal(flat_of(server), expected)


def test_models_of_their_own_are_averaged_after_two_steps_of_each() -> None:
    ranks = [Rank(rank, 6) for rank in range(3)]
    trained_parameters("local_sgd:h=2", ranks)
    torch.manual_seed(0)
    models = [torch.cat([torch.randn(100), torch.randn(COUNT - 100)])] * 3
    for step in range(6):
        models = [model - 0.1 * gradient_of(model, rank, step) for rank, model in enumerate(models)]
        if step % 2:
            models = [torch.stack([model * (1 / 3) for model in models]).sum(0)] * 3
    for one, model in zip(ranks, models, strict=True):
        assert torch.equal(one.model, model)


def test_a_gradient_kept_for_an_all_reduce_is_fetched_when_the_server_sums_up() -> None:
    notes = Notes()
    plans = (
        Plan((Quorum(count=2),), review=Review(updates=1)),
        Plan((Quorum(via=Via.SERVER),)),
    )
    ranks = [Rank(0, 4), Rank(1, 4), Rank(2, 3, lambda rank, step: 0.1 * (step == 0))]
    server = trained_parameters(Fixed(plans), ranks, journal=notes)
    assert [type(command) for command in ranks[2].commands[:2]] == [Compute, Deliver]
    _, (_, gradients, _), *_ = notes.of("applied")
    assert [(rank, pulled) for rank, _, pulled, _ in gradients] == [(0, 1), (1, 1), (2, 0)]
    expected, _ = replayed(notes, reduced={1})
    assert torch.equal(flat_of(server), expected)


def test_all_ranks_go_on_without_the_server_when_the_plan_needs_none() -> None:
    ranks = [Rank(rank, 50, lambda rank, step: 0.003 * rank) for rank in range(2)]
    asgd = Plan((Quorum(count=1, via=Via.SERVER),), review=Review(updates=1))
    policy = Fixed((asgd,) * 4 + (Plan(),))
    with serving(2) as server:
        train_all(ranks, server.address, job_of(policy, hand_over=True))
    first, second = (one.handed for one in ranks)
    assert first is not None
    assert second is not None
    assert first.facts == second.facts
    facts = facts_from_json(first.facts)
    assert facts.version == 5
    assert facts.plan == Plan().resolved(2)
    assert torch.equal(ranks[0].model, ranks[1].model)
    assert torch.equal(ranks[0].model, flat_of(server))
    states = [load(one.optimizer, "an optimizer")["state"][0] for one in (first, second)]
    assert torch.equal(*(state["momentum_buffer"] for state in states))


# -- what travels -----------------------------------------------------------------------------


@contextlib.contextmanager
def connected(
    spec: Any, world_size: int, shared: bool = True, **given: Any
) -> Iterator[tuple[Server, list[Client]]]:
    """A server and all its ranks, in one thread."""
    with serving(world_size, **given) as server:
        clients = [Client(server.address, rank, LIMIT) for rank in range(world_size)]
        try:
            for client in clients:
                job = job_of(spec) if client.rank == 0 else None
                client.begin(COUNT, torch.float32, job, shared)
            yield server, clients
        finally:
            for client in clients:
                client.leave()


@contextlib.contextmanager
def connected_alone(spec: Any = "asgd", **given: Any) -> Iterator[tuple[Server, Client]]:
    """One rank and its server."""
    with connected(spec, 1, **given) as (server, (client,)):
        yield server, client


@pytest.mark.parametrize("shared", [True, False])
def test_parameters_of_a_group_are_kept_in_case_the_lowest_dies_before_it_has_passed_them_on(
    shared: bool,
) -> None:
    groups = Plan(tuple(Quorum(ranks, via=Via.LEADER) for ranks in ((0, 2), (1,))))
    with connected(Fixed((groups,)), 3, shared) as (_, clients):
        assert [client.receive().members for client in clients] == [(0, 2), (1,), (0, 2)]
        first = clients[0].parameters.clone()
        assert first.any()
        assert clients[2].parameters.any() == shared  # on one host nothing is passed on
        for version in (1, 2):
            clients[1].finish_step(torch.ones(COUNT), 0.1, members={1: (0.1, True, math.nan)})
            assert clients[1].receive().version == version
        clients[0].close()
        clients[2].report_failure()
        command = clients[2].receive()
        assert (command.route, command.version) == (GradientRoute.READY, 0)
        assert torch.equal(clients[2].parameters, first)


def in_one_group(rank: int, world: int, near: bool) -> tuple[bool, list[Any]]:
    """Whether parameters were passed on inside the group, and what they are at the end."""
    from simstrag.ddp import wrap
    from simstrag.ddp.server import client as client_module
    from simstrag.ddp.server import server_mode
    from tests.ddp.test_ddp_trainer import task

    allocate, broadcast, passed = client_module.allocate_shared, server_mode.dist.broadcast, []

    def counted(*given: Any, **named: Any) -> Any:
        passed.append(given)
        return broadcast(*given, **named)

    model, optimizer, loss = task(rank)
    policy = Fixed((Plan((Quorum(via=Via.LEADER),)),))
    try:
        if not near:
            client_module.allocate_shared = lambda count, dtype: None
        with wrap(model, optimizer, policy, batch=16, samples=16 * world * 30) as trainer:
            trainer.step(lambda: loss(16))
            server_mode.dist.broadcast = counted
            while not trainer.over:
                trainer.step(lambda: loss(16))
    finally:
        client_module.allocate_shared, server_mode.dist.broadcast = allocate, broadcast
    return bool(passed), [each.detach().numpy() for each in model.parameters()]


def test_ranks_of_a_group_pass_parameters_on_where_they_share_no_memory_with_the_server(
    ranks: Ranks,
) -> None:
    far, near = (ranks.run(in_one_group, 3, each) for each in (False, True))
    assert [passed for passed, _ in far] == [True] * 3
    assert [passed for passed, _ in near] == [False] * 3
    first = near[0][1]
    for _, own in (*far, *near):
        for one, other in zip(own, first, strict=True):
            assert (one == other).all()


def test_what_was_kept_for_a_step_that_never_began_is_not_given_to_the_next() -> None:
    quorums = Quorum((0, 1), 1, Via.SERVER, Late.ABORT), Quorum((2,), via=Via.SERVER)
    with connected(Fixed((Plan(quorums),)), 3) as (_, clients):
        for client in clients:
            client.receive()
        for rank, version in ((0, 1), (2, 2), (0, 3)):  # rank 1 is late for two of them
            clients[rank].finish_step(torch.ones(COUNT), 0.1)
            assert clients[rank].receive().version == version
        clients[1].withdraw()
        assert clients[1].receive().version == 3
        assert torch.equal(clients[1].parameters, clients[0].parameters)


def test_a_gradient_that_is_not_finite_changes_nothing_and_counts_as_a_version() -> None:
    notes = Notes()
    with connected_alone(journal=notes) as (_, client):
        client.receive()
        before = client.parameters.clone()
        client.finish_step(torch.full((COUNT,), math.nan), 0.1, finite=False)
        command = client.receive()
        assert isinstance(command, Compute)
        assert command.version == 1
        assert torch.equal(client.parameters, before)
    assert notes.of("applied")[0][2] == (0,)


def test_a_learning_rate_is_set_before_the_step_of_the_gradient_it_came_with() -> None:
    own = optimizer_of()
    with connected_alone() as (_, client):
        client.receive()
        before = client.parameters.clone()
        own.param_groups[0]["lr"] = 0.5
        client.finish_step(torch.ones(COUNT), 0.1, settings=settings_of(own))
        client.receive()
        assert torch.equal(client.parameters, before - 0.5)


def test_the_state_of_a_server_begins_another_where_the_first_was() -> None:
    with connected_alone() as (_, client):
        for step in range(5):
            client.receive()
            client.finish_step(gradient_of(client.parameters, 0, step), 0.1)
        client.receive()
        state = client.fetch_state()
        client.finish_step(gradient_of(client.parameters, 0, 5), 0.1)
        client.receive()
        expected = client.parameters.clone()
    own = optimizer_of()
    own.load_state_dict(state["optimizer"])
    unflatten(state["parameters"], trained_by(own))
    job = job_of(state["policy"], facts=facts_to_json(state["facts"]))
    job = replace(job, bulk=pack_optimizer(own))
    with serving(1) as server:
        client = Client(server.address, 0, LIMIT)
        client.begin(COUNT, torch.float32, job)
        command = client.receive()
        assert isinstance(command, Compute)
        assert command.version == 5
        client.finish_step(gradient_of(client.parameters, 0, 5), 0.1)
        client.receive()
        assert torch.equal(client.parameters, expected)
        client.leave()


def test_a_row_of_stamps_is_in_order_on_the_clock_of_one_host() -> None:
    with connected_alone() as (server, client):
        for step in range(3):
            client.receive()
            begun = time.monotonic()
            client.finish_step(
                gradient_of(client.parameters, 0, step), 0.1, begun, time.monotonic(), loss=2.5
            )
        client.receive()
    names = ("begun", "ended", "first", "received", "applied", "replied")
    for row in stamps(server):
        times = [row[name] for name in names]
        assert times == sorted(times)
    assert [(row["step"], row["version"], row["loss"]) for row in stamps(server)] == [
        (0, 0, 2.5), (1, 1, 2.5), (2, 2, 2.5),
    ]  # fmt: skip


# -- what goes wrong --------------------------------------------------------------------------


@dataclass
class Broken:
    """Answers once."""

    name: str = "broken"

    def plan(self, view: View) -> Plan:
        if view.version > 0:
            raise InputError("broken: parameter x must be odd, not 4")
        return Plan((Quorum(count=1, via=Via.SERVER),), review=Review(updates=1))


def test_what_is_wrong_with_a_policy_is_said_at_the_ranks() -> None:
    with connected_alone(Broken()) as (_, client):
        client.receive()
        client.finish_step(torch.ones(COUNT), 0.1)
        with pytest.raises(InputError, match="parameter x must be odd"):
            client.receive()


def test_a_rank_that_does_not_begin_is_named() -> None:
    ranks = [Rank(0, 1)]
    with (
        pytest.raises(RuntimeError, match=r"ranks \[1\] did not begin within 0.5 s"),
        serving(2, start_limit=0.5) as server,
    ):
        ranks[0].train(server.address, job_of("asgd"), stall_limit=5.0)


def test_strangers_are_dropped_and_cost_the_job_nothing() -> None:
    with serving(1, stall_limit=0.5) as server:
        host, port, _ = server.address.split(":")
        silent = socket.create_connection((host, int(port)))
        loud = socket.create_connection((host, int(port)))
        loud.sendall(b"GET / HTTP/1.1\r\n" * 20)
        with pytest.raises(ConnectionError, match="does not take rank 0 in"):
            Client(f"{host}:{port}:wrong", 0, 5.0)
        Rank(0, 3).train(server.address, job_of("asgd"), stall_limit=5.0)
        silent.close()
        loud.close()


def test_a_rank_that_stalls_inside_a_frame_costs_no_other_rank_its_place() -> None:
    with connected("asgd", 2, stall_limit=0.5) as (_, (client, other)):
        other.receive()
        other._wire.connection.sendall(HEADER.pack(100, 0, 4 * COUNT) + bytes(20))
        for _ in range(200):
            client.receive()
            client.finish_step(torch.ones(COUNT), 0.001)
        assert client.lost == {
            1: "rank 1 was silent for 0.5 s inside a frame while computing step 0"
        }


def test_a_rank_that_failed_says_why() -> None:
    with connected("asgd", 2) as (_, (client, other)):
        other.receive()
        other.leave("ValueError: no such batch")
        for _ in range(3):
            client.receive()
            client.finish_step(torch.ones(COUNT), 0.001)
        assert client.lost == {1: "rank 1 left while computing step 0: ValueError: no such batch"}


def test_a_model_that_differs_from_the_job_s_is_refused() -> None:
    def other(address: str) -> None:
        client = Client(address, 1, LIMIT)
        with contextlib.suppress(InputError):
            client.begin(COUNT + 1, torch.float32)
            client.receive()
        client.leave()

    with serving(2) as server:
        thread = threading.Thread(target=other, args=(server.address,))
        thread.start()
        with pytest.raises(InputError, match="rank 1 trains 301 parameters"):
            Rank(0, 1).train(server.address, job_of("asgd"))
        thread.join(LIMIT)


# -- processes that die or stop ---------------------------------------------------------------

STALL = 1.5


PROGRAM = """
import sys
sys.path[:] = {path!r}
from tests.verification.test_ddp_server import train_for_ever
train_for_ever({parent}, {address!r}, {rank}, {pace})
"""


def train_for_ever(parent: int, address: str, rank: int, pace: float) -> None:
    """A process that trains until its server is gone."""
    die_with_parent(parent)
    torch.set_num_threads(1)
    one = Rank(rank, 1 << 40, lambda rank, step: pace)
    with contextlib.suppress(ConnectionError):
        one.train(address, None)


@contextlib.contextmanager
def beside(
    spec: str, world_size: int, pace: float = 0.0
) -> Iterator[tuple[Server, Client, list[int]]]:
    """Rank 0 here, the others as processes (their pids, from rank 1 on), all of them begun."""
    path = [str(Path(__file__).parent.parent.parent), *sys.path]
    processes: list[subprocess.Popen[bytes]] = []
    with serving(world_size, stall_limit=STALL) as server:
        try:
            for rank in range(1, world_size):
                program = PROGRAM.format(
                    path=path, parent=os.getpid(), address=server.address, rank=rank, pace=pace
                )
                processes.append(subprocess.Popen([sys.executable, "-c", program]))
            client = Client(server.address, 0, LIMIT)
            try:
                client.begin(COUNT, torch.float32, job_of(spec))
                yield server, client, [process.pid for process in processes]
            finally:
                client.leave()
        finally:
            for process in processes:
                process.kill()
                process.wait()


def rounds_until(client: Client, over: Callable[[], bool]) -> tuple[int, float]:
    """Pushes until something is so: how many, and the longest that one of them took."""
    count, longest, until = 0, 0.0, time.monotonic() + LIMIT
    while not over() and time.monotonic() < until:
        begun = time.monotonic()
        client.receive()
        client.finish_step(torch.ones(COUNT), 0.001)
        longest = max(longest, time.monotonic() - begun)
        count += 1
    return count, longest


def test_a_killed_rank_is_named_and_the_others_go_on() -> None:
    with beside("asgd", 3) as (server, client, pids):
        rounds_until(client, lambda: len(stamps(server)) > 50)
        os.kill(pids[1], signal.SIGKILL)
        _, longest = rounds_until(client, lambda: bool(client.lost))
        assert longest < STALL
        assert list(client.lost) == [2]
        assert "rank 2" in client.lost[2]
        count, _ = rounds_until(client, lambda: len(stamps(server)) > 500)
        assert count > 0


def test_a_stopped_rank_is_forgotten_after_the_stall_limit_and_a_slow_one_is_not() -> None:
    with beside("asgd", 3, pace=2 * STALL) as (server, client, pids):
        rounds_until(client, lambda: len(stamps(server)) > 50)
        os.kill(pids[0], signal.SIGSTOP)
        stopped = time.monotonic()
        rounds_until(client, lambda: bool(client.lost))
        assert STALL * 0.5 < time.monotonic() - stopped < STALL + 2
        assert client.lost == {1: f"rank 1 was silent for {STALL:g} s while computing step 0"}
        rounds_until(client, lambda: any(row["rank"] == 2 for row in stamps(server)))
        assert list(client.lost) == [1]


def test_under_a_bound_no_rank_waits_for_a_dead_rank_for_ever() -> None:
    with beside("ssp:bound=3", 2, pace=0.01) as (server, client, pids):
        rounds_until(client, lambda: len(stamps(server)) > 20)
        os.kill(pids[0], signal.SIGKILL)
        before = len(stamps(server))
        rounds_until(client, lambda: len(stamps(server)) > before + 100)
        assert list(client.lost) == [1]


def test_a_server_of_its_own_process_trains_and_ends_with_its_ranks() -> None:
    process, address = start_server(2)
    try:
        ranks = [Rank(rank, 10) for rank in range(2)]
        train_all(ranks, address, job_of("asgd"))
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()
    assert [len(one.pulled) for one in ranks] == [10, 10]


def test_a_rank_whose_server_was_killed_says_so_and_what_it_was_at() -> None:
    process, address = start_server(1)
    client = Client(address, 0, LIMIT)
    client.begin(COUNT, torch.float32, job_of("asgd"))
    client.receive()
    process.kill()
    process.wait()
    with pytest.raises(ConnectionError, match=r"the server at .* while rank 0 was .* step 0"):
        client.receive()
    client.close()


def test_a_rank_that_the_plan_leaves_out_is_told_when_all_others_have_left() -> None:
    plans = (
        Plan((Quorum(via=Via.SERVER),), review=Review(updates=1)),
        Plan((Quorum((0,), via=Via.SERVER),)),
    )
    ranks = [Rank(0, 5), Rank(1, 5)]
    trained_parameters(Fixed(plans), ranks)
    assert [type(command) for command in ranks[1].commands] == [Compute, Finish]


def test_a_rank_that_is_slow_is_named_once() -> None:
    said: list[str] = []
    with connected("asgd", 2, say=said.append) as (_, (first, second)):
        reports = ((first, 0.1), (second, 0.1), (second, 3.0), (first, 0.1), (second, 4.0))
        for client, seconds in (*reports, (first, 0.1)):
            client.receive()
            client.finish_step(torch.zeros(COUNT), seconds, 0.0, seconds)
        second.receive()
    assert said == ["rank 1 is slow: it took 3.0 s for step 1, the others 0.1 s"]


def test_a_gradient_that_crosses_with_the_end_costs_its_rank_nothing() -> None:
    plans = (
        Plan((Quorum(count=1, via=Via.SERVER),), review=Review(updates=1)),
        Plan((Quorum((0,), via=Via.SERVER),)),
    )
    with connected(Fixed(plans), 2) as (server, (first, second)):
        for client in (first, second):
            assert isinstance(client.receive(), Compute)
        first.finish_step(torch.zeros(COUNT), 0.1, 0.0, 0.1)
        first.receive()
        first.leave()
        while not server.journal.of("gone"):
            time.sleep(0.001)
        second.finish_step(torch.zeros(COUNT), 0.1, 0.0, 0.1)
        assert isinstance(second.receive(), Finish)
    assert not server.losses


def test_where_the_rank_that_brings_the_job_ends_before_all_have_begun_another_brings_it() -> None:
    ended: set[int] = set()
    with serving(3, ended=lambda: ended) as server:
        clients = [Client(server.address, rank, LIMIT) for rank in (1, 2)]
        try:
            for client in clients:
                client.begin(COUNT, torch.float32, spare=lambda: job_of("asgd"))
            ended.add(0)
            assert [type(client.receive()) for client in clients] == [Compute] * 2
            assert clients[1].lost == {0: "rank 0 is dead: the process ended while setting up"}
        finally:
            for client in clients:
                client.leave()
