"""The modes of a training on one rank: how it enters each, and changes between them.

The plan decides: all-reduce through DDP where all ranks wait for each other, else a server process,
which the launcher starts, or without one the lowest rank.  All ranks change together at the end of
an update; parameters, optimizer state and buffers are synchronized.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from simstrag import policies
from simstrag.contract import Review
from simstrag.ddp import plain_collectives
from simstrag.ddp.allreduce import broadcast_and_average
from simstrag.ddp.allreduce.allreduce_mode import AllReduceMode
from simstrag.ddp.allreduce.hook import ProcessGroups
from simstrag.ddp.checkpoint import TrainingState
from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.failures.process_identity import network_namespace
from simstrag.ddp.failures.rank_failure import Stage, local_error
from simstrag.ddp.flat_parameters import settings_of
from simstrag.ddp.job_store import START, launcher_watches, request_server, wait_for_server
from simstrag.ddp.journal.journal import facts_from_json, facts_to_json
from simstrag.ddp.journal.training_journal import TrainingJournal
from simstrag.ddp.pickled_policy import pack_policy, unpack_policy
from simstrag.ddp.policy_support import is_synchronous
from simstrag.ddp.secret import known_secret, read_secret, secret_file
from simstrag.ddp.server.client import Client
from simstrag.ddp.server.messages import JobSpec
from simstrag.ddp.server.server_main import find_host, start_server
from simstrag.ddp.server.server_mode import ServerMode
from simstrag.ddp.server.validation_gradient import ValidationSpec
from simstrag.ddp.sharded.served_modes import FollowingMode, LeadingMode
from simstrag.ddp.sharded.sharded_replica import ShardedReplica
from simstrag.errors import InputError
from simstrag.learning.noise_scale_estimate import NoiseAverages

if TYPE_CHECKING:
    import subprocess

    from simstrag.contract import Plan, Policy
    from simstrag.ddp.precision import Closure
    from simstrag.ddp.rank_setup import RankSetup
    from simstrag.engine.live import Facts

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
        self._world = setup.world
        self.current: AllReduceMode | ServerMode | FollowingMode | None = None
        self.server: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._address = ""
        self._journal = TrainingJournal(setup)
        self._groups = self._new_groups()
        self.go_on_from(TrainingState(copy.deepcopy(setup.policy)))
        if not self._is_synchronous(self.first_plan):
            setup.check_served(self.first_plan)
        elif setup.sampler is not None:
            sizes = self.first_plan.samples(setup.batch, self._world.world_size)
            setup.sampler.set_sizes(sizes)

    def go_on_from(self, start: TrainingState) -> None:
        """Let the first step go on from a state, or begin anew where that has no facts."""
        facts = start.facts
        self.first_plan = self._setup.first_plan(start.policy) if facts is None else facts.plan
        self.start = start

    def _new_groups(self) -> tuple[ProcessGroups, ProcessGroups]:
        """Groups for collectives of steps, and for those that run beside steps."""
        limit, ranks = self._members.stall_limit, self._world.leaders
        return ProcessGroups(limit, ranks=ranks), ProcessGroups(limit, "models", ranks)

    def _is_synchronous(self, plan: Plan) -> bool:
        return is_synchronous(plan, self._world.world_size)

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
        assert isinstance(mode, ServerMode), "the leader makes the checkpoint"
        with self._members.diagnose():
            served = mode.client.fetch_state()
        policy, facts = served["policy"], served["facts"]
        if mode.private:
            return TrainingState(policy, facts, mode.averages.state_dict(), apart=True), None
        if mode.served:  # the server's optimizer takes no step
            served["optimizer"] = self._replica.optimizer_state()
        return TrainingState(policy, facts, served["outer"], served["corrected"]), served

    def release(self) -> None:
        """Let the other ranks of a replica go on, when this one has made a checkpoint."""
        if isinstance(self.current, LeadingMode):
            self.current.release()

    # -- the first mode, and changes ---------------------------------------------------------

    def begin(self, closure: Closure) -> None:
        """Enter the first mode, at the first step: it brings a closure to measure with.

        All of it is repeated where a rank is lost meanwhile.
        """
        replica, start, plan = self._replica, self.start, self.first_plan
        replica.clear()
        replica.formats.settle(closure)
        own = start.apart  # each rank keeps the state of its optimizer
        self._broadcast(optimizer=not own)
        self._journal.choose_folder(resumed=start.facts is not None)
        self._journal.begin(start.facts, self._generation)
        dist.barrier()  # the journal has its header before another process writes
        replica.reducer.over(None)  # all ranks build DDP together, needed now or not
        if self._is_synchronous(plan):
            self._warn_where_no_server_could_be(plan)
            self._enter_allreduce_mode(start.policy, start.facts)
        else:
            self._setup.check_served(plan)
            replica.settle(closure)
            self._enter_server_mode(start.policy, start.facts)

    def _broadcast(self, optimizer: bool = True) -> None:
        """Give all replicas the model, and optimizer state, of the first."""
        replica, world = self._replica, self._world
        held = replica.optimizer if optimizer else None
        broadcast_and_average.broadcast(replica.model, held, world.peer(0), world.across)

    def _warn_where_no_server_could_be(self, plan: Plan) -> None:
        """Better a warning now than an error after hours, under a plan that may change."""
        try:
            self._host()
        except InputError as error:
            if plan.review != Review():
                warn(f"policy {self._setup.name} can have no server, should it need one: {error}")

    def change_where_due(self, closure: Closure) -> None:
        """Change the mode while one is due: a resting rank takes no step before the next change."""
        while self.current is not None and self.current.over:
            self._change(closure)

    def _change(self, closure: Closure) -> None:
        """Change to the other mode, which the plan needs."""
        mode, replica = self.current, self._replica
        if isinstance(mode, AllReduceMode):
            self._setup.check_served(mode.live.plan)
            if mode.steps < SETTLED:
                replica.settle(closure)
            self._broadcast()
            self._enter_server_mode(mode.live.policy, mode.live.facts())
            return
        assert mode is not None
        handover = mode.handover
        assert handover is not None
        if handover.apart:
            broadcast_and_average.average(replica.model, replica.optimizer, self._world.across)
        else:
            replica.unpack_optimizer(handover.optimizer)
            self._broadcast()
        self._enter_allreduce_mode(unpack_policy(handover.policy), facts_from_json(handover.facts))

    def start_over(self, stage: Stage) -> None:
        """Get ready to begin in a smaller world, in which the policy begins anew.

        stage: the one from which all ranks go on.
        """
        self._leave_group()
        if stage is Stage.AGREEING:
            self._setup.agree()
        self.current, start = None, self.start
        if (had := start.facts) is not None:
            start = replace(
                start, facts=self._new_facts(had.version, had.samples, had.now, had.noise)
            )
        self.go_on_from(replace(start, policy=copy.deepcopy(self._setup.policy)))

    def go_on(self, closure: Closure) -> None:
        """Go on as a smaller world, in which the policy begins anew; no update is lost.

        The step under way is discarded.  Where some ranks had finished it, their parameters count.
        """
        mode, replica = self.current, self._replica
        assert isinstance(mode, AllReduceMode)
        self._leave_group()
        replica.clear()
        live = mode.live
        own = live.version, live.samples, live.now, tuple(live.noise)
        states = plain_collectives.gather(own)
        broadcast_and_average.broadcast(replica.model, replica.optimizer, states.index(max(states)))
        version, samples, now, noise = max(states)
        facts = self._new_facts(version, samples, now, NoiseAverages(*noise))
        self._journal.begin(facts, self._generation)
        self._enter_allreduce_mode(copy.deepcopy(self._setup.policy), facts)
        if not self._is_synchronous(facts.plan):
            self._change(closure)

    def _leave_group(self) -> None:
        """Leave what holds the group that lost a rank, and its server."""
        self._replica.forget_groups()
        if self._client is not None:
            self._client.leave()
            self._client = None
        self._address = ""
        self._groups = self._new_groups()

    def _new_facts(self, version: int, samples: int, now: float, noise: NoiseAverages) -> Facts:
        """The facts from which a smaller world goes on."""
        fresh = self._setup.live(copy.deepcopy(self._setup.policy)).facts()
        return replace(
            fresh, version=version, samples=samples, now=now, reviewed=(version, samples, now),
            noise=noise,
        )  # fmt: skip

    @property
    def _launched(self) -> bool:
        """Whether the launcher starts servers, which then outlive ranks."""
        joined = self._members.joined
        return joined is not None and joined.ours and launcher_watches()

    @property
    def _generation(self) -> int:
        joined = self._members.joined
        return 0 if joined is None else joined.generation

    def _enter_allreduce_mode(self, policy: Policy, facts: Facts | None) -> None:
        setup, note = self._setup, self._journal.note
        live = setup.live(policy, facts=facts, note=note)
        self.current = AllReduceMode(
            self._replica, live, self._members, self._world, setup.batch, note, setup.sampler
        )
        dist.barrier()  # the clock starts when all are ready
        self.current.zero = plain_collectives.broadcast(time.monotonic() - live.now)

    def _enter_server_mode(self, policy: Policy, facts: Facts | None) -> None:
        members, replica = self._members, self._replica
        self._address = address = self._address or self._server_address()
        sharded = isinstance(replica, ShardedReplica)
        if isinstance(replica, ShardedReplica):
            replica.leading = self._world.leads
            if not replica.leading:
                self.current = FollowingMode(replica, members.mark)
                return
        if self._client is None:
            limit = members.stall_limit
            self._client = Client(address, self._world.rank, limit, members.cut_off)
        job = partial(self._job, policy, facts)
        self._client.begin(
            replica.count, replica.dtype, job() if self._world.rank == 0 else None,
            settings=settings_of(replica.optimizer), spare=job,
        )  # fmt: skip
        outer = self.start.outer
        mode = LeadingMode if sharded else ServerMode
        self.current = mode(replica, self._client, *self._groups, members.mark, outer)

    def _job(self, policy: Policy, facts: Facts | None) -> JobSpec:
        """What a server needs to begin; the same from each rank."""
        setup, replica, start = self._setup, self._replica, self.start
        plan, validation = self.first_plan if facts is None else facts.plan, None
        if plan.screen is not None and setup.validation is not None:
            validation = ValidationSpec(setup.validation, replica.names)
        folder = self._journal.folder
        bulk = replica.pack(outer=start.outer, corrected=start.corrected)
        return JobSpec(
            pack_policy(policy), setup.batch, setup.name, setup.hints,
            None if facts is None else facts_to_json(facts), hand_over=True,
            journal="" if folder is None else str(folder), refusal=replica.formats.refusal,
            validation=validation, worker=self._world.worker, bulk=bulk,
        )  # fmt: skip

    def _server_address(self) -> str:
        """The address of a server, with its secret: of the launcher, or the lowest rank's."""
        members, joined = self._members, self._members.joined
        if joined is not None and self._launched:
            if members.rank == 0:
                leaders = self._world.leaders or range(members.world_size)
                names = [joined.names[rank] for rank in leaders]
                request_server(joined.root, joined.generation, names)
            ending = members.has_to_end
            address = wait_for_server(joined.root, joined.generation, START, ending)
            return f"{address}:{known_secret()}"
        place, path, host, secret = "", "", self._host(), known_secret()
        world_size = self._world.world_size
        with contextlib.ExitStack() as stack:
            if members.rank == 0:
                with local_error():
                    self.server, own = start_server(world_size, host, members.stall_limit)
                    place = own.rpartition(":")[0]
                    if secret is None:
                        path = stack.enter_context(secret_file(own))
            place, path = plain_collectives.broadcast((place, path))
            with local_error():
                address = f"{place}:{secret}" if secret else read_secret(path)
            dist.barrier()  # all have read it
        return address

    def _host(self) -> str:
        """The address for a server of the lowest rank; empty on other ranks; collective.

        It is empty where the launcher starts servers.  Raises `InputError` on the lowest rank where
        the others could not reach it.
        """
        if self._launched:
            return ""
        networks = plain_collectives.gather(network_namespace())
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
