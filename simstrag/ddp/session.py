"""The course of a training on one rank: which mechanism takes its steps, and the changes between.

DDP where all ranks wait for each other, else a server.  The plan says which; at the end of an
update all change together, and parameters, optimizer state and buffers are made equal.
"""

from __future__ import annotations

import atexit
import copy
import dataclasses
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from simstrag import policies
from simstrag.ddp import support
from simstrag.ddp.allreduce import sync_state
from simstrag.ddp.allreduce.allreduce_mode import AllReduceMode
from simstrag.ddp.allreduce.hook import ProcessGroups
from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.failures.heartbeat import describe_error
from simstrag.ddp.failures.membership import Membership, RankFailure, local_error
from simstrag.ddp.failures.process_identity import network_namespace
from simstrag.ddp.parameters import check_served, pack_optimizer, pack_settings
from simstrag.ddp.precision import Closure
from simstrag.ddp.record.journal import Journal, attempt_folder, facts_to_json, latest_attempt
from simstrag.ddp.rendezvous import START, leave_group, wait_for_server
from simstrag.ddp.replica import Replica
from simstrag.ddp.server.client import Client
from simstrag.ddp.server.messages import JobSpec
from simstrag.ddp.server.server_main import find_host, start_server
from simstrag.ddp.server.server_mode import ServerMode
from simstrag.engine.live import Facts, Live
from simstrag.errors import InputError
from simstrag.plan import Plan, Review
from simstrag.policy import Hints, Policy, View
from simstrag.processes.affinity import cores_of_all
from simstrag.workloads.device import describe_device

if TYPE_CHECKING:
    import subprocess

    from simstrag.ddp.sampler import ShareSampler

__all__ = ["Session"]

SETTLED = 2
"""Synchronous steps after which DDP asks nothing of other ranks any more but what the hook does."""


class Session:
    """What takes the steps of `replica`, a rank among `members`, under a policy.

    policy, facts: from where the first step goes on; see `take_up`.  name: of the policy.
    batch: samples of a rank at a share of 1.  out: a folder for the record.
    way: the mechanism at work; None before the first step.  failed: what came out of the last step,
    if it was no loss, in words: the error itself would keep all tensors of the step.
    """

    def __init__(
        self,
        replica: Replica,
        members: Membership,
        policy: Policy,
        name: str,
        hints: Hints,
        sampler: ShareSampler | None,
        out: Path | None,
    ) -> None:
        self.replica, self.members, self.policy, self.name = replica, members, policy, name
        self.hints, self.sampler, self.batch = hints, sampler, hints.batch or 1
        self.way: AllReduceMode | ServerMode | None = None
        self.failed = ""
        self._given = copy.deepcopy(policy)
        self._out = self._whole = out  # a smaller world records in a folder inside
        self._groups = ProcessGroups(stall_limit=members.stall_limit)
        self._journal: Journal | None = None
        self._link: Client | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._drawn, self._left = False, False
        self.take_up(policy)
        if not support.is_synchronous(self._first, members.world_size):
            self._check_served(self._first)
        elif sampler is not None:
            sampler.set_sizes(self._first.samples(self.batch, members.world_size))

    def take_up(self, policy: Policy, facts: Facts | None = None) -> None:
        """Let the first step go on from there."""
        world_size = self.members.world_size
        self.policy, self.facts = policy, facts
        if facts is None:
            view = View(world_size, hints=self.hints, noise_scale=self.hints.noise_scale)
            plan = policies.ask(copy.deepcopy(policy), view, self.name)
            self._first = plan.resolved(world_size)
        else:
            self._first = facts.plan

    # -- steps -------------------------------------------------------------------------------

    def step(self, closure: Closure) -> torch.Tensor:
        """The next step; see `Trainer.step`."""
        if self._left:
            raise InputError("this training was closed; call wrap() anew")
        try:
            loss = self._step(self._guarded(closure))
        except BaseException as error:
            self.failed = describe_error(error)
            raise
        self.failed = ""
        self.replica.clock.begin()
        return loss

    def _step(self, guarded: Closure) -> torch.Tensor:
        failed: RankFailure | None = None
        while True:
            try:
                with self.members.diagnosing():
                    if failed is not None:
                        self._go_on_without(failed, guarded)
                    loss = self._taken(guarded)
                    if self._link is not None and self._link.lost and self.members.all_end:
                        self.members.end(self._link.lost)
                        raise ConnectionError("; ".join(self._link.lost.values()))
                return loss
            except RankFailure as failure:
                shrinks = self.sampler is None and isinstance(self.way, AllReduceMode)
                if not shrinks or not self.members.goes_on(failure.diagnosis):
                    raise
                failed = failure

    def _guarded(self, closure: Closure) -> Closure:
        """The closure, whose errors come out, and whose batch must be of the size that counts."""

        def called() -> torch.Tensor:
            with local_error():
                loss = closure()
            served = isinstance(self.way, ServerMode)
            if served and self._size() != self.batch and not self._drawn:
                raise InputError(
                    f"policy {self.name} shares batches out unevenly: draw trainer.next_batch "
                    "samples before each step"
                )
            return loss

        return called

    def _taken(self, closure: Closure) -> torch.Tensor:
        if self.way is None:
            self._begin(closure)
            self._change_where_due(closure)
            if self._finished:  # no plan wanted a step of this rank
                return torch.tensor(math.nan)
            self.replica.clock.begin()
        assert self.way is not None
        loss = self.way.step(closure)
        self._drawn = False
        self.members.first_step_taken()
        self._change_where_due(closure)
        return loss

    def _change_where_due(self, closure: Closure) -> None:
        """A rank that rests may be told to change again before it has taken a step."""
        while self.way is not None and self.way.over:
            self._change(closure)

    @property
    def _finished(self) -> bool:
        return isinstance(self.way, ServerMode) and self.way.finished

    def next_batch(self) -> int:
        """Samples of this rank's next batch; who asks sees to it that they are so many."""
        self._drawn = True
        return self._size()

    def _size(self) -> int:
        if self.way is not None:
            return self.way.next_batch
        return self._first.samples(self.batch, self.members.world_size)[self.members.rank]

    @property
    def samples(self) -> int:
        """Applied so far, as far as this rank knows."""
        if self.way is not None:
            return self.way.samples
        return 0 if self.facts is None else self.facts.samples

    @property
    def lowest(self) -> bool:
        """Whether no rank below this one is left, as far as it knows."""
        lost = () if self._link is None else self._link.lost
        rank, ranks = self.members.rank, set(range(self.members.world_size))
        return rank == min(ranks - set(lost), default=rank)

    def books(self) -> tuple[Policy, Facts | None, dict[str, Any] | None]:
        """Policy and books of this moment; what a server has, where parameters are there."""
        way = self.way
        if way is None:
            return self.policy, self.facts, None
        if isinstance(way, AllReduceMode):
            return way.live.policy, way.live.facts(), None
        with self.members.diagnosing():
            found = way.client.fetch_state()
        return found["policy"], found["facts"], None if way.private else found

    def leave(self, failed: str | None = None) -> None:
        """The training is over here.  failed: why, where it did not come to its end.

        Without a failure the rank that started the server waits until the others have left it too;
        with one nothing is waited for, and those who lose this rank can read why.
        """
        if isinstance(self.way, AllReduceMode) and self._journal is not None:
            taken = policies.counts(self.way.live.policy, self.name, taken=())
            self._journal.note("end", time.monotonic() - self.way.zero, taken)
        if failed is not None:
            self.members.close(failed)
        if self._link is not None:
            self._link.leave(failed or "")
            self._groups.close()  # whoever still counts on this rank hears it at once
        if self._server is not None:
            if failed is not None:
                self._server.kill()  # it would end with this process anyway
            self._server.wait()
        if self._journal is not None:
            self._journal.close()
        self.members.close()
        if failed is not None:
            self.members.linger()
            atexit.unregister(leave_group)  # who leaves a broken group may wait for it
        self.replica.forget_groups()
        self._left = True
        self._link = self._server = self._journal = None

    # -- mechanisms --------------------------------------------------------------------------

    def _begin(self, closure: Closure) -> None:
        """At the first step: now there is a closure to measure with, and no checkpoint to come."""
        replica = self.replica
        replica.clear()
        replica.formats.settle(closure)
        sync_state.broadcast(replica.model, replica.optimizer, 0)
        place = [self._place() if self.members.rank == 0 else None]
        dist.broadcast_object_list(place, src=0)  # the lowest rank's, which has looked
        self._out = self._whole = place[0]
        self._record()
        dist.barrier()  # the journal has its header before anybody else writes
        replica.reducer.over(None)  # all ranks build DDP together, whether they need it now or not
        if support.is_synchronous(self._first, self.members.world_size):
            try:
                self._host()  # it is better known now than after hours
            except InputError as error:
                if self._first.review != Review():
                    warn(f"policy {self.name} can have no server, should it need one: {error}")
            self._synchronise(self.policy, self.facts)
        else:
            self._check_served(self._first)
            replica.settle(closure)
            self._coordinate(self.policy, self.facts)

    def _change(self, closure: Closure) -> None:
        """The plan needs the other mechanism."""
        if isinstance(self.way, AllReduceMode):
            live = self.way.live
            self._check_served(live.plan)
            if self.way.steps < SETTLED:
                self.replica.settle(closure)
            sync_state.broadcast(self.replica.model, self.replica.optimizer, 0)
            self._coordinate(live.policy, live.facts())
            return
        assert isinstance(self.way, ServerMode)
        handover = self.way.handover
        assert handover is not None
        if handover.apart:
            sync_state.average(self.replica.model, self.replica.optimizer)
        else:
            self.replica.optimizer.load_state_dict(handover.optimizer)
            sync_state.broadcast(self.replica.model, self.replica.optimizer, 0)
        self._synchronise(handover.policy, handover.facts)

    def _go_on_without(self, failure: RankFailure, closure: Closure) -> None:
        """Meet again as a smaller world, in which the policy begins anew; no update is lost.

        The step in which it happened is thrown away.  Where some had finished it and others not,
        parameters are those of one who had.  A server counts on all who were there at the start:
        where the smaller world needs one, it starts its own.
        """
        way, replica, members = self.way, self.replica, self.members
        assert isinstance(way, AllReduceMode)
        replica.forget_groups()
        generation = members.without(failure.diagnosis.lost)
        if self._link is not None:
            self._link.leave()
            self._link = None
        self._groups = ProcessGroups(stall_limit=members.stall_limit)
        replica.clear()
        told: list[Any] = [None] * members.world_size
        dist.all_gather_object(told, (way.live.version, way.live.samples, way.live.now))
        version, samples, now = max(told)
        sync_state.broadcast(replica.model, replica.optimizer, told.index(max(told)))
        self.policy = copy.deepcopy(self._given)
        fresh = Live(
            copy.deepcopy(self._given), members.world_size, self.batch, self.hints,
            name=self.name, reduced=not replica.formats.refusal,
        )  # fmt: skip
        self.facts = dataclasses.replace(
            fresh.facts(), version=version, samples=samples, now=now,
            reviewed=(version, samples, now),
        )  # fmt: skip
        if self._whole is not None:
            self._out = self._whole / f"generation-{generation}"
        self._record()
        self._synchronise(self.policy, self.facts)
        if not support.is_synchronous(self.facts.plan, members.world_size):
            self._change(closure)
        if members.rank == 0:
            warn(f"{failure}; the others go on without it")

    def _synchronise(self, policy: Policy, facts: Facts | None) -> None:
        note = None if self._journal is None else self._journal.note
        rank, world_size = self.members.rank, self.members.world_size
        live = Live(
            policy, world_size, self.batch, self.hints, name=self.name, facts=facts, note=note,
            reduced=not self.replica.formats.refusal,
        )  # fmt: skip
        self.way = AllReduceMode(
            self.replica, live, rank, world_size, self.batch, self.members.mark, note,
            self.sampler, () if self.members.joined is None else self.members.joined.names,
        )  # fmt: skip
        dist.barrier()  # what begins a run is no part of it
        zero = [time.monotonic() - live.now]
        dist.broadcast_object_list(zero, src=0)
        self.way.zero = zero[0]
        if self._drawn:  # the batch of this very step
            _ = self.way.next_batch

    def _coordinate(self, policy: Policy, facts: Facts | None) -> None:
        members = self.members
        if self._link is None:
            address, limit = self._served_at(), members.stall_limit
            self._link = Client(address, members.rank, limit, members.cut_off)
        job = None
        if members.rank == 0:
            job = JobSpec(
                pack_optimizer(self.replica.optimizer), policy, self.batch, self.name, self.hints,
                facts,
                hand_over=True, refusal=self.replica.formats.refusal,
                journal=None if self._out is None else partial(Journal, self._out),
            )  # fmt: skip
        now = pack_settings(self.replica.optimizer)
        self._link.begin(self.replica.count, self.replica.dtype, job, settings=now)
        self.way = ServerMode(self.replica, self._link, self._groups, members.mark)

    def _check_served(self, plan: Plan) -> None:
        """Raise `InputError` for what a server would silently leave out under that plan."""
        if self.sampler is not None:
            raise InputError(
                f"policy {self.name} needs a server, under which ranks take different numbers of "
                "steps, and a ShareSampler counts on equal ones; leave it out, and draw "
                "trainer.next_batch samples before each step"
            )
        if not plan.average:  # else each rank's own optimizer steps
            check_served(self.replica.optimizer, self.name)

    def _served_at(self) -> str:
        """Where the server listens: the launcher's, which outlives ranks, or the lowest's own."""
        members = self.members
        joined = members.joined
        first = joined is not None and joined.ours and not joined.generation
        if joined is not None and first and os.environ.get("SIMSTRAG_SERVER"):
            return wait_for_server(joined.root, START)
        address, host = [""], self._host()
        if members.rank == 0:
            with local_error():
                self._server, address[0] = start_server(
                    members.world_size, host, members.stall_limit
                )
        dist.broadcast_object_list(address, src=0)
        return address[0]

    def _host(self) -> str:
        """On the lowest rank, where a server of its own is to listen; all ranks call this.

        Raises `InputError` there, where the others could not reach it.
        """
        networks: list[Any] = [None] * self.members.world_size
        dist.all_gather_object(networks, network_namespace())
        return find_host(several=len(set(networks)) > 1) if self.members.rank == 0 else ""

    def _place(self) -> Path | None:
        """Where this start is recorded: a later one inside the folder, if there are others."""
        joined = self.members.joined
        again = self.facts is not None or (joined is not None and joined.attempt > 0)
        if self._out is None or not again or (before := latest_attempt(self._out)) is None:
            return self._out
        return attempt_folder(self._out, before + 1)

    def _record(self) -> None:
        """The lowest rank begins a record, and ends that of a world that was larger."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._out is not None and self.members.rank == 0:
            self._journal = Journal(self._out, self._header())

    def _header(self) -> dict[str, Any]:
        """What the record says of the run before anything has happened."""
        replica, facts = self.replica, self.facts
        place = replica.parameters[0].device
        return {
            "policy": self.name, "world_size": self.members.world_size, "batch": self.batch,
            "hints": dataclasses.asdict(self.hints), "precision": replica.formats.label,
            "gain": replica.formats.gain, "clock": replica.clock.reason,
            "backend": dist.get_backend(), "began": time.time(),
            "software": {"torch": torch.__version__}, "cores": len(cores_of_all()),
            "device": describe_device("cpu" if place.type == "cpu" else str(place)),
            "facts": None if facts is None else facts_to_json(facts),
        }  # fmt: skip
