"""A training on one rank: the mode that takes its steps, and changes between modes.

The plan decides: all-reduce through DDP where all ranks wait for each other, else a server.  All
ranks change together at the end of an update; parameters, optimizer state and buffers are
synchronized.
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
from simstrag.ddp.allreduce import state_sync
from simstrag.ddp.allreduce.allreduce_mode import AllReduceMode
from simstrag.ddp.allreduce.hook import ProcessGroups
from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.failures.heartbeat import describe_error
from simstrag.ddp.failures.membership import Membership, RankFailure, local_error
from simstrag.ddp.failures.process_identity import network_namespace
from simstrag.ddp.flat_parameters import check_served, pack_optimizer, pack_settings
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

SETTLED = 2
"""All-reduce steps after which DDP has no collectives of its own left, but those of the hook."""


class Session:
    """Takes the steps of a replica under a policy.

    policy, facts: what the first step goes on from; see `go_on_from`.
    name: of the policy.
    batch: samples of a rank at a share of 1.
    out: a folder for the record.
    mode: the mode at work; None before the first step.
    failed: the error of the last step in words; the error itself would keep the step's tensors.
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
        self.mode: AllReduceMode | ServerMode | None = None
        self.failed = ""
        self._original = copy.deepcopy(policy)
        self._out = self._folder = out  # a smaller world records in a subfolder
        self._groups = ProcessGroups(stall_limit=members.stall_limit)
        self._journal: Journal | None = None
        self._client: Client | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._batch_read, self._closed = False, False
        self.go_on_from(policy)
        if not support.is_synchronous(self._first_plan, members.world_size):
            self._check_served(self._first_plan)
        elif sampler is not None:
            sampler.set_sizes(self._first_plan.samples(self.batch, members.world_size))

    def go_on_from(self, policy: Policy, facts: Facts | None = None) -> None:
        """Let the first step go on from a checkpoint."""
        world_size = self.members.world_size
        self.policy, self.facts = policy, facts
        if facts is None:
            view = View(world_size, hints=self.hints, noise_scale=self.hints.noise_scale)
            plan = policies.ask(copy.deepcopy(policy), view, self.name)
            self._first_plan = plan.resolved(world_size)
        else:
            self._first_plan = facts.plan

    # -- steps -------------------------------------------------------------------------------

    def step(self, closure: Closure) -> torch.Tensor:
        """The next step; see `Trainer.step`."""
        if self._closed:
            raise InputError("this training was closed; call wrap() anew")
        try:
            loss = self._step(self._guard(closure))
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
                    loss = self._take_step(guarded)
                    if self._client is not None and self._client.lost and self.members.all_end:
                        self.members.end(self._client.lost)
                        raise ConnectionError("; ".join(self._client.lost.values()))
                return loss
            except RankFailure as failure:
                shrinks = self.sampler is None and isinstance(self.mode, AllReduceMode)
                if not shrinks or not self.members.goes_on(failure.diagnosis):
                    raise
                failed = failure

    def _guard(self, closure: Closure) -> Closure:
        """The closure, with its errors marked as local and its batch size checked."""

        def guarded() -> torch.Tensor:
            with local_error():
                loss = closure()
            served = isinstance(self.mode, ServerMode)
            if served and self._size() != self.batch and not self._batch_read:
                raise InputError(
                    f"policy {self.name} shares batches out unevenly: draw trainer.next_batch "
                    "samples before each step"
                )
            return loss

        return guarded

    def _take_step(self, closure: Closure) -> torch.Tensor:
        if self.mode is None:
            self._begin(closure)
            self._change_where_due(closure)
            if self._finished:  # no plan wanted a step of this rank
                return torch.tensor(math.nan)
            self.replica.clock.begin()
        assert self.mode is not None
        loss = self.mode.step(closure)
        self._batch_read = False
        self.members.first_step_taken()
        self._change_where_due(closure)
        return loss

    def _change_where_due(self, closure: Closure) -> None:
        """Change the mode, also again: a rank that rests takes no step before the next change."""
        while self.mode is not None and self.mode.over:
            self._change(closure)

    @property
    def _finished(self) -> bool:
        return isinstance(self.mode, ServerMode) and self.mode.finished

    def next_batch(self) -> int:
        """Size of this rank's next batch.  Reading it obliges the caller to use that size."""
        self._batch_read = True
        return self._size()

    def _size(self) -> int:
        if self.mode is not None:
            return self.mode.next_batch
        return self._first_plan.samples(self.batch, self.members.world_size)[self.members.rank]

    @property
    def samples(self) -> int:
        """Samples applied so far, as far as this rank knows."""
        if self.mode is not None:
            return self.mode.samples
        return 0 if self.facts is None else self.facts.samples

    @property
    def lowest(self) -> bool:
        """Whether no rank below this one is left, as far as it knows."""
        lost = () if self._client is None else self._client.lost
        rank, ranks = self.members.rank, set(range(self.members.world_size))
        return rank == min(ranks - set(lost), default=rank)

    def checkpoint_state(self) -> tuple[Policy, Facts | None, dict[str, Any] | None]:
        """Policy and facts of this moment, and the state of the server that owns the parameters."""
        mode = self.mode
        if mode is None:
            return self.policy, self.facts, None
        if isinstance(mode, AllReduceMode):
            return mode.live.policy, mode.live.facts(), None
        with self.members.diagnosing():
            state = mode.client.fetch_state()
        return state["policy"], state["facts"], None if mode.private else state

    def leave(self, failed: str | None = None) -> None:
        """End the training on this rank.

        failed: the reason, where it failed; then nothing is waited for, and the other ranks can
        read it.  Else the rank that started the server waits until the others have left it too.
        """
        if isinstance(self.mode, AllReduceMode) and self._journal is not None:
            taken = policies.counts(self.mode.live.policy, self.name, taken=())
            self._journal.note("end", time.monotonic() - self.mode.zero, taken)
        if failed is not None:
            self.members.close(failed)
        if self._client is not None:
            self._client.leave(failed or "")
            self._groups.close()  # ranks that wait for this one fail at once
        if self._server is not None:
            if failed is not None:
                self._server.kill()  # it would end with this process anyway
            self._server.wait()
        if self._journal is not None:
            self._journal.close()
        self.members.close()
        if failed is not None:
            self.members.linger()
            atexit.unregister(leave_group)  # leaving a broken group may hang
        self.replica.forget_groups()
        self._closed = True
        self._client = self._server = self._journal = None

    # -- mechanisms --------------------------------------------------------------------------

    def _begin(self, closure: Closure) -> None:
        """Set up at the first step, which brings a closure to measure with."""
        replica = self.replica
        replica.clear()
        replica.formats.settle(closure)
        state_sync.broadcast(replica.model, replica.optimizer, 0)
        place = [self._record_folder() if self.members.rank == 0 else None]
        dist.broadcast_object_list(place, src=0)  # only the lowest rank looks into the folder
        self._out = self._folder = place[0]
        self._start_journal()
        dist.barrier()  # the journal has its header before another process writes
        replica.reducer.over(None)  # all ranks build DDP together, needed now or not
        if support.is_synchronous(self._first_plan, self.members.world_size):
            try:
                self._host()  # better a warning now than an error after hours
            except InputError as error:
                if self._first_plan.review != Review():
                    warn(f"policy {self.name} can have no server, should it need one: {error}")
            self._enter_allreduce_mode(self.policy, self.facts)
        else:
            self._check_served(self._first_plan)
            replica.settle(closure)
            self._enter_server_mode(self.policy, self.facts)

    def _change(self, closure: Closure) -> None:
        """The plan needs the other mode."""
        if isinstance(self.mode, AllReduceMode):
            live = self.mode.live
            self._check_served(live.plan)
            if self.mode.steps < SETTLED:
                self.replica.settle(closure)
            state_sync.broadcast(self.replica.model, self.replica.optimizer, 0)
            self._enter_server_mode(live.policy, live.facts())
            return
        assert isinstance(self.mode, ServerMode)
        handover = self.mode.handover
        assert handover is not None
        if handover.apart:
            state_sync.average(self.replica.model, self.replica.optimizer)
        else:
            self.replica.optimizer.load_state_dict(handover.optimizer)
            state_sync.broadcast(self.replica.model, self.replica.optimizer, 0)
        self._enter_allreduce_mode(handover.policy, handover.facts)

    def _go_on_without(self, failure: RankFailure, closure: Closure) -> None:
        """Go on as a smaller world, in which the policy begins anew; no update is lost.

        The step under way is discarded.  Where some ranks had finished it, their parameters count.
        A server needs all ranks it began with, so a smaller world starts its own.
        """
        mode, replica, members = self.mode, self.replica, self.members
        assert isinstance(mode, AllReduceMode)
        replica.forget_groups()
        generation = members.without(failure.diagnosis.lost)
        if self._client is not None:
            self._client.leave()
            self._client = None
        self._groups = ProcessGroups(stall_limit=members.stall_limit)
        replica.clear()
        told: list[Any] = [None] * members.world_size
        dist.all_gather_object(told, (mode.live.version, mode.live.samples, mode.live.now))
        version, samples, now = max(told)
        state_sync.broadcast(replica.model, replica.optimizer, told.index(max(told)))
        self.policy = copy.deepcopy(self._original)
        fresh = Live(
            copy.deepcopy(self._original), members.world_size, self.batch, self.hints,
            name=self.name, reduced=not replica.formats.refusal,
        )  # fmt: skip
        self.facts = dataclasses.replace(
            fresh.facts(), version=version, samples=samples, now=now,
            reviewed=(version, samples, now),
        )  # fmt: skip
        if self._folder is not None:
            self._out = self._folder / f"generation-{generation}"
        self._start_journal()
        self._enter_allreduce_mode(self.policy, self.facts)
        if not support.is_synchronous(self.facts.plan, members.world_size):
            self._change(closure)
        if members.rank == 0:
            warn(f"{failure}; the others go on without it")

    def _enter_allreduce_mode(self, policy: Policy, facts: Facts | None) -> None:
        note = None if self._journal is None else self._journal.note
        rank, world_size = self.members.rank, self.members.world_size
        live = Live(
            policy, world_size, self.batch, self.hints, name=self.name, facts=facts, note=note,
            reduced=not self.replica.formats.refusal,
        )  # fmt: skip
        self.mode = AllReduceMode(
            self.replica, live, rank, world_size, self.batch, self.members.mark, note,
            self.sampler, () if self.members.joined is None else self.members.joined.names,
        )  # fmt: skip
        dist.barrier()  # the clock starts when all are ready
        zero = [time.monotonic() - live.now]
        dist.broadcast_object_list(zero, src=0)
        self.mode.zero = zero[0]
        if self._batch_read:  # of the batch of this step
            _ = self.mode.next_batch

    def _enter_server_mode(self, policy: Policy, facts: Facts | None) -> None:
        members = self.members
        if self._client is None:
            address, limit = self._server_address(), members.stall_limit
            self._client = Client(address, members.rank, limit, members.cut_off)
        job = None
        if members.rank == 0:
            job = JobSpec(
                pack_optimizer(self.replica.optimizer), policy, self.batch, self.name, self.hints,
                facts,
                hand_over=True, refusal=self.replica.formats.refusal,
                journal=None if self._out is None else partial(Journal, self._out),
            )  # fmt: skip
        now = pack_settings(self.replica.optimizer)
        self._client.begin(self.replica.count, self.replica.dtype, job, settings=now)
        self.mode = ServerMode(self.replica, self._client, self._groups, members.mark)

    def _check_served(self, plan: Plan) -> None:
        """Raise `InputError` for what a server would silently ignore under a plan."""
        if self.sampler is not None:
            raise InputError(
                f"policy {self.name} needs a server, under which ranks take different numbers of "
                "steps, and a ShareSampler counts on equal ones; leave it out, and draw "
                "trainer.next_batch samples before each step"
            )
        if not plan.average:  # there each rank's own optimizer steps
            check_served(self.replica.optimizer, self.name)

    def _server_address(self) -> str:
        """The address of the server: the launcher's, which outlives ranks, or the lowest rank's."""
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
        """The address for a server of the lowest rank; empty on other ranks; collective.

        Raises `InputError` on the lowest rank where the others could not reach it.
        """
        networks: list[Any] = [None] * self.members.world_size
        dist.all_gather_object(networks, network_namespace())
        return find_host(several=len(set(networks)) > 1) if self.members.rank == 0 else ""

    def _record_folder(self) -> Path | None:
        """Where this start is recorded: a later one in a subfolder."""
        joined = self.members.joined
        again = self.facts is not None or (joined is not None and joined.attempt > 0)
        if self._out is None or not again or (before := latest_attempt(self._out)) is None:
            return self._out
        return attempt_folder(self._out, before + 1)

    def _start_journal(self) -> None:
        """Begin a journal on the lowest rank, and end that of a larger world."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._out is not None and self.members.rank == 0:
            self._journal = Journal(self._out, self._header())

    def _header(self) -> dict[str, Any]:
        """The header of the journal."""
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
