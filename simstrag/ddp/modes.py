"""The modes of a training on one rank: how it enters each, and changes between them.

The plan decides: all-reduce through DDP where all ranks wait for each other, else a server process
that the lowest rank starts.  All ranks change together at the end of an update; parameters,
optimizer state and buffers are synchronized.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from simstrag import policies
from simstrag.ddp.allreduce import broadcast_and_average
from simstrag.ddp.allreduce.allreduce_mode import AllReduceMode
from simstrag.ddp.allreduce.hook import ProcessGroups
from simstrag.ddp.checkpoint import TrainingState
from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.failures.process_identity import network_namespace
from simstrag.ddp.failures.rank_failure import RankFailure, local_error
from simstrag.ddp.flat_parameters import pack_optimizer, pack_settings
from simstrag.ddp.journal.journal import Journal
from simstrag.ddp.journal.training_journal import TrainingJournal
from simstrag.ddp.policy_support import is_synchronous
from simstrag.ddp.rendezvous import START, wait_for_server
from simstrag.ddp.server.client import Client
from simstrag.ddp.server.messages import JobSpec
from simstrag.ddp.server.server_main import find_host, start_server
from simstrag.ddp.server.server_mode import ServerMode
from simstrag.ddp.server.validation_gradient import ValidationSpec
from simstrag.errors import InputError
from simstrag.plan import Review

if TYPE_CHECKING:
    import subprocess

    from simstrag.ddp.precision import Closure
    from simstrag.ddp.rank_setup import RankSetup
    from simstrag.engine.live import Facts
    from simstrag.plan import Plan
    from simstrag.policy import Policy

SETTLED = 2
"""After this many all-reduce steps DDP has rebuilt its buckets; only the hook communicates."""


class Modes:
    """The mode that takes this rank's steps, and what it takes to enter another.

    current: the mode; None before the first step.
    start: what the first step goes on from.
    first_plan: the plan of that step, resolved.
    server: the process of a server that this rank started.
    """

    def __init__(self, setup: RankSetup) -> None:
        self._setup, self._members, self._replica = setup, setup.members, setup.replica
        self.current: AllReduceMode | ServerMode | None = None
        self.server: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._journal = TrainingJournal(setup)
        self._groups = self._new_groups()
        self.go_on_from(TrainingState(copy.deepcopy(setup.policy)))
        if not self._is_synchronous(self.first_plan):
            setup.check_served(self.first_plan)
        elif setup.sampler is not None:
            world_size = self._members.world_size
            setup.sampler.set_sizes(self.first_plan.samples(setup.batch, world_size))

    def go_on_from(self, start: TrainingState) -> None:
        """Let the first step go on from a state, or begin anew where that has no facts."""
        facts = start.facts
        self.first_plan = self._setup.first_plan(start.policy) if facts is None else facts.plan
        self.start = start

    def _new_groups(self) -> tuple[ProcessGroups, ProcessGroups]:
        """Groups for collectives of steps, and for those that run beside steps."""
        limit = self._members.stall_limit
        return ProcessGroups(limit), ProcessGroups(limit, "models")

    def _is_synchronous(self, plan: Plan) -> bool:
        return is_synchronous(plan, self._members.world_size)

    @property
    def lost(self) -> Mapping[int, str]:
        """The ranks that a server has lost, and why."""
        return {} if self._client is None else self._client.lost

    def state(self) -> tuple[TrainingState, dict[str, Any] | None]:
        """What a checkpoint holds now, and the state of a server that owns the parameters."""
        mode = self.current
        if mode is None:
            return self.start, None
        if isinstance(mode, AllReduceMode):
            return TrainingState(mode.live.policy, mode.live.facts()), None
        with self._members.diagnose():
            served = mode.client.fetch_state()
        policy, facts = served["policy"], served["facts"]
        if mode.private:
            return TrainingState(policy, facts, mode.averages.state_dict(), apart=True), None
        if mode.served:  # the server's optimizer takes no step
            served["optimizer"] = self._replica.optimizer.state_dict()
        return TrainingState(policy, facts, served["outer"], served["corrected"]), served

    # -- the first mode, and changes ---------------------------------------------------------

    def begin(self, closure: Closure) -> None:
        """Enter the first mode, at the first step: it brings a closure to measure with."""
        replica, start, plan = self._replica, self.start, self.first_plan
        replica.clear()
        replica.formats.settle(closure)
        own = start.apart  # each rank keeps the state of its optimizer
        broadcast_and_average.broadcast(replica.model, None if own else replica.optimizer, 0)
        self._journal.choose_folder(resumed=start.facts is not None)
        self._journal.begin(start.facts)
        dist.barrier()  # the journal has its header before another process writes
        replica.reducer.over(None)  # all ranks build DDP together, needed now or not
        if self._is_synchronous(plan):
            try:
                self._host()  # better a warning now than an error after hours
            except InputError as error:
                if plan.review != Review():
                    name = self._setup.name
                    warn(f"policy {name} can have no server, should it need one: {error}")
            self._enter_allreduce_mode(start.policy, start.facts)
        else:
            self._setup.check_served(plan)
            replica.settle(closure)
            self._enter_server_mode(start.policy, start.facts)

    def change_where_due(self, closure: Closure) -> None:
        """Change the mode while one is due: a resting rank takes no step before the next change."""
        while self.current is not None and self.current.over:
            self._change(closure)

    def _change(self, closure: Closure) -> None:
        """Change to the other mode, which the plan needs."""
        mode, model, optimizer = self.current, self._replica.model, self._replica.optimizer
        if isinstance(mode, AllReduceMode):
            self._setup.check_served(mode.live.plan)
            if mode.steps < SETTLED:
                self._replica.settle(closure)
            broadcast_and_average.broadcast(model, optimizer, 0)
            self._enter_server_mode(mode.live.policy, mode.live.facts())
            return
        assert isinstance(mode, ServerMode)
        handover = mode.handover
        assert handover is not None
        if handover.apart:
            broadcast_and_average.average(model, optimizer)
        else:
            optimizer.load_state_dict(handover.optimizer)
            broadcast_and_average.broadcast(model, optimizer, 0)
        self._enter_allreduce_mode(handover.policy, handover.facts)

    def go_on_without(self, failure: RankFailure, closure: Closure) -> None:
        """Go on as a smaller world, in which the policy begins anew; no update is lost.

        The step under way is discarded.  Where some ranks had finished it, their parameters count.
        A server needs all ranks it began with, so a smaller world starts its own.
        """
        mode, replica, members = self.current, self._replica, self._members
        assert isinstance(mode, AllReduceMode)
        replica.forget_groups()
        generation = members.without(failure.diagnosis.lost)
        if self._client is not None:
            self._client.leave()
            self._client = None
        self._groups = self._new_groups()
        replica.clear()
        states: list[Any] = [None] * members.world_size
        live = mode.live
        dist.all_gather_object(states, (live.version, live.samples, live.now, live.noise))
        version, samples, now, noise = max(states)
        broadcast_and_average.broadcast(replica.model, replica.optimizer, states.index(max(states)))
        policy = self._setup.policy
        facts = dataclasses.replace(
            self._setup.live(copy.deepcopy(policy)).facts(), version=version, samples=samples,
            now=now, reviewed=(version, samples, now), noise=noise,
        )  # fmt: skip
        self._journal.begin(facts, generation)
        self._enter_allreduce_mode(copy.deepcopy(policy), facts)
        if not self._is_synchronous(facts.plan):
            self._change(closure)
        if members.rank == 0:
            warn(f"{failure}; the others go on without it")

    def _enter_allreduce_mode(self, policy: Policy, facts: Facts | None) -> None:
        setup, note = self._setup, self._journal.note
        live = setup.live(policy, facts=facts, note=note)
        self.current = AllReduceMode(
            self._replica, live, self._members, setup.batch, note, setup.sampler
        )
        dist.barrier()  # the clock starts when all are ready
        zero = [time.monotonic() - live.now]
        dist.broadcast_object_list(zero, src=0)
        self.current.zero = zero[0]

    def _enter_server_mode(self, policy: Policy, facts: Facts | None) -> None:
        setup, members, replica, start = self._setup, self._members, self._replica, self.start
        job = None
        if self._client is None:
            address, limit = self._server_address(), members.stall_limit
            self._client = Client(address, members.rank, limit, members.cut_off)
        if members.rank == 0:
            plan, validation = self.first_plan if facts is None else facts.plan, None
            if plan.screen is not None and setup.validation is not None:
                validation = ValidationSpec(setup.validation, replica.names)
            folder = self._journal.folder
            job = JobSpec(
                pack_optimizer(replica.optimizer), policy, setup.batch, setup.name, setup.hints,
                facts, hand_over=True, refusal=replica.formats.refusal, outer=start.outer,
                corrected=start.corrected, validation=validation,
                journal=None if folder is None else partial(Journal, folder),
            )  # fmt: skip
        settings = pack_settings(replica.optimizer)
        self._client.begin(replica.count, replica.dtype, job, settings=settings)
        self.current = ServerMode(replica, self._client, *self._groups, members.mark, start.outer)

    def _server_address(self) -> str:
        """The address of the server: the launcher's, which outlives ranks, or the lowest rank's."""
        members, joined = self._members, self._members.joined
        first = joined is not None and joined.ours and not joined.generation
        if joined is not None and first and os.environ.get("SIMSTRAG_SERVER"):
            return wait_for_server(joined.root, START)
        address, host = [""], self._host()
        if members.rank == 0:
            with local_error():
                started = start_server(members.world_size, host, members.stall_limit)
                self.server, address[0] = started
        dist.broadcast_object_list(address, src=0)
        return address[0]

    def _host(self) -> str:
        """The address for a server of the lowest rank; empty on other ranks; collective.

        Raises `InputError` on the lowest rank where the others could not reach it.
        """
        networks: list[Any] = [None] * self._members.world_size
        dist.all_gather_object(networks, network_namespace())
        return find_host(several=len(set(networks)) > 1) if self._members.rank == 0 else ""

    # -- the end -----------------------------------------------------------------------------

    def note_end(self) -> None:
        """Record the end of the training, and what the policy has counted, under all-reduce."""
        mode, note = self.current, self._journal.note
        if isinstance(mode, AllReduceMode) and note is not None:
            taken = policies.counts(mode.live.policy, self._setup.name, taken=())
            note("end", time.monotonic() - mode.zero, taken)

    def close(self, failed: str | None) -> None:
        """Leave the server, and wait for one that this rank started; end the journal.

        failed: why this rank failed; it then waits for nothing.
        """
        if self._client is not None:
            self._client.leave(failed or "")
            if isinstance(self.current, ServerMode):
                self.current.close()
            for groups in self._groups:
                groups.close()  # ranks that wait for this one fail at once
        if self.server is not None:
            if failed is not None:
                self.server.kill()  # it would end with this process anyway
            self.server.wait()
        self._journal.close()
        self._client = self.server = None
