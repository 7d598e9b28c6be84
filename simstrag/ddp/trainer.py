"""A training on one rank: its steps, and changes between the modes that take them.

The plan decides: all-reduce through DDP where all ranks wait for each other, else a server process
that the lowest rank starts.  All ranks change together at the end of an update; parameters,
optimizer state and buffers are synchronized.
"""

from __future__ import annotations

import atexit
import copy
import dataclasses
import math
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from simstrag import policies
from simstrag.ddp import checkpoint, policy_support
from simstrag.ddp.allreduce import broadcast_and_average
from simstrag.ddp.allreduce.allreduce_mode import AllReduceMode
from simstrag.ddp.allreduce.hook import ProcessGroups
from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.failures.heartbeat import describe_error
from simstrag.ddp.failures.process_identity import network_namespace
from simstrag.ddp.failures.rank_failure import Membership, RankFailure, local_error
from simstrag.ddp.flat_parameters import check_served, pack_optimizer, pack_settings
from simstrag.ddp.journal.journal import Journal, attempt_folder, facts_to_json, latest_attempt
from simstrag.ddp.precision import Closure
from simstrag.ddp.rendezvous import START, leave_group, wait_for_server
from simstrag.ddp.replica import Replica
from simstrag.ddp.server.client import Client
from simstrag.ddp.server.messages import JobSpec
from simstrag.ddp.server.server_main import find_host, start_server
from simstrag.ddp.server.server_mode import ServerMode
from simstrag.ddp.server.validation_gradient import ValidationSpec
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
"""After this many all-reduce steps DDP has rebuilt its buckets; only the hook communicates."""

UNUSED = (
    "trainer.step() was never called, and the optimizer has stepped: each rank trained for itself, "
    "without the policy"
)


class Trainer:
    """One rank's training under a policy, made by `wrap`; a context manager.

    name: the policy's name.
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
        validation: str | None = None,
    ) -> None:
        self.replica, self.name, self.hints, self.sampler = replica, name, hints, sampler
        self._members, self._batch = members, hints.batch or 1
        self._mode: AllReduceMode | ServerMode | None = None  # none before the first step
        self._failed = ""  # the last step's error as text: the error itself would keep tensors
        self._original = copy.deepcopy(policy)
        self._validation = validation
        self._out = self._folder = out  # a smaller world records in a subfolder
        self._groups = ProcessGroups(members.stall_limit)
        self._model_groups = ProcessGroups(members.stall_limit, "models")
        self._journal: Journal | None = None
        self._client: Client | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._batch_read, self._closed = False, False
        self._begin_from(policy, None)
        if not policy_support.is_synchronous(self._first_plan, members.world_size):
            self._check_served(self._first_plan)
        elif sampler is not None:
            sampler.set_sizes(self._first_plan.samples(self._batch, members.world_size))
        self._steps_without: list[bool] = []  # steps of the optimizer before `step` is called
        self._watched = replica.optimizer.register_step_post_hook(
            lambda *_: self._steps_without.append(True)
        )
        atexit.register(self._leave)

    def _begin_from(self, policy: Policy, facts: Facts | None) -> None:
        """Let the first step go on from facts, or begin anew without them."""
        world_size = self.world_size
        self._policy, self._facts = policy, facts
        self._outer_state: Mapping[str, Any] | None = None
        self._corrected: Mapping[str, Any] | None = None
        self._apart = False
        if facts is None:
            view = View(world_size, hints=self.hints, noise_scale=self.hints.noise_scale)
            plan = policies.ask(copy.deepcopy(policy), view, self.name)
            self._first_plan = plan.resolved(world_size)
        else:
            self._first_plan = facts.plan

    # -- what a script sees ------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The number of this rank in the present world."""
        return self._members.rank

    @property
    def world_size(self) -> int:
        """Ranks in the present world, without those that were lost under all-reduce."""
        return self._members.world_size

    @property
    def begun(self) -> bool:
        """Whether the clock of the run has started; it does when all ranks and a server are ready.

        The closure is called before that too, for measurements.
        """
        return self._mode is not None

    @property
    def samples(self) -> int:
        """Samples applied by all ranks together, as far as this one knows."""
        if self._mode is not None:
            return self._mode.samples
        return 0 if self._facts is None else self._facts.samples

    @property
    def over(self) -> bool:
        """Whether the samples of `wrap` have been applied, or the plan can take no further step."""
        ended = self.hints.samples is not None and self.samples >= self.hints.samples
        return self._left_out or ended

    @property
    def _left_out(self) -> bool:
        return isinstance(self._mode, ServerMode) and self._mode.finished

    @property
    def plan(self) -> Plan | None:
        """The plan in force, resolved; None under a server and before the first step."""
        return self._mode.live.plan if isinstance(self._mode, AllReduceMode) else None

    @property
    def next_batch(self) -> int:
        """Size of this rank's next batch.  Reading it obliges the caller to use that size.

        Of a rank that has no step yet it is the nominal size, with which `step` measures.
        """
        self._batch_read = True
        if self._mode is not None:
            return self._mode.next_batch
        return self._first_plan.samples(self._batch, self.world_size)[self.rank] or self._batch

    @property
    def lowest(self) -> bool:
        """Whether no lower rank is left, as far as this one knows; before `close`."""
        lost = () if self._client is None else self._client.lost
        return self.rank == min(set(range(self.world_size)) - set(lost), default=self.rank)

    @property
    def model(self) -> nn.Module:
        """The model given to `wrap`."""
        return self.replica.model

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint after a step: model, optimizer, policy, facts, sampler and loss scale.

        Under a server it holds the server's present parameters and optimizer state; this rank's own
        model stays as it was pulled, since its next gradient counts as computed from that.  Where
        models are averaged each rank gets its own model.
        """
        mode, policy, facts = self._mode, self._policy, self._facts
        served: dict[str, Any] | None = None
        outer, apart = None, False
        if isinstance(mode, AllReduceMode):
            policy, facts = mode.live.policy, mode.live.facts()
        elif mode is not None:
            with self._members.diagnose():
                state = mode.client.fetch_state()
            policy, facts, outer, apart = (
                state["policy"],
                state["facts"],
                state["outer"],
                mode.private,
            )
            if apart:
                outer = mode.averages.state_dict()
            else:
                served = state
            if mode.served:  # the server's optimizer takes no step
                state["optimizer"] = self.replica.optimizer.state_dict()
        return checkpoint.to_checkpoint(
            self.replica, self.name, self.world_size, self.sampler, policy, facts, served, outer,
            apart,
        )  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; on all ranks, before the first step.

        Raises `InputError` for a checkpoint of another policy or number of ranks.
        """
        if self.begun:
            raise InputError("a checkpoint is loaded before the first step; call wrap() anew")
        policy, facts = checkpoint.from_checkpoint(
            state, self.replica, self.name, self.world_size, self.sampler
        )
        self._begin_from(policy, facts)
        self._outer_state, self._apart = state["outer"], state["apart"]
        self._corrected = state["corrected"]

    # -- steps -------------------------------------------------------------------------------

    def step(self, closure: Closure) -> torch.Tensor:
        """Forward, backward, communication and update for one batch; the batch's loss.

        closure: computes the mean loss over the batch.

        Gradients are cleared here.  Data loading between two steps counts as part of the next one.
        If the plan gives this rank no step, this waits until a later plan does.  The loss is NaN if
        the training ends first, or if the step that comes is of another size than the batch that
        was drawn before the wait; draw the next one then.

        Errors of the closure, of backward and of optimizer hooks come out unchanged.  Raises
        `InputError` with the parameter's name where one got no gradient under all-reduce (under a
        server it counts as zeros), `RankFailure` where another rank is lost, and `Disagreement`
        where replicas of the policy decided differently.
        """
        self._watched.remove()
        self._steps_without.clear()
        if not callable(closure):
            raise InputError(
                "step() takes a function that computes the loss, not the loss: "
                "trainer.step(lambda: loss_fn(model(x), y))"
            )
        if self._closed:
            raise InputError("this training was closed; call wrap() anew")

        def guarded() -> torch.Tensor:
            with local_error():
                loss = closure()
            served = self._mode if isinstance(self._mode, ServerMode) else None
            if served and served.next_batch != self._batch and not self._batch_read:
                raise InputError(
                    f"policy {self.name} shares batches out unevenly: draw trainer.next_batch "
                    "samples before each step"
                )
            return loss

        try:
            loss = self._step_as_members_allow(guarded)
        except BaseException as error:
            self._failed = describe_error(error)
            raise
        self._failed = ""
        self.replica.clock.begin()
        return loss

    def _step_as_members_allow(self, closure: Closure) -> torch.Tensor:
        """A step, repeated by the ranks that are left where one is lost and the others go on."""
        failed: RankFailure | None = None
        while True:
            try:
                with self._members.diagnose():
                    if failed is not None:
                        self._go_on_without(failed, closure)
                    loss = self._take_step(closure)
                    if self._client is not None and self._client.lost and self._members.all_end:
                        self._members.end(self._client.lost)
                        raise ConnectionError("; ".join(self._client.lost.values()))
                return loss
            except RankFailure as failure:
                shrinks = self.sampler is None and isinstance(self._mode, AllReduceMode)
                if not shrinks or not self._members.goes_on(failure.diagnosis):
                    raise
                failed = failure

    def _take_step(self, closure: Closure) -> torch.Tensor:
        if self._mode is None:
            read, size = self._batch_read, self.next_batch
            self._batch_read = read
            self._begin(closure)
            self._change_where_due(closure)
            assert self._mode is not None
            unfit = read and self._mode.next_batch != size
            if self._left_out or unfit:  # no plan wanted a step of this rank, or one of this size
                self._batch_read = False
                return torch.tensor(math.nan)
            self.replica.clock.begin()
        assert self._mode is not None
        loss = self._mode.step(closure)
        self._batch_read = False
        self._members.first_step_taken()
        self._change_where_due(closure)
        return loss

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """End the training and its record on this rank; no step can follow.

        The rank that started the server waits until the others have left it too.  At the end of a
        script this happens by itself.
        """
        atexit.unregister(self._leave)
        self._end(None)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        atexit.unregister(self._leave)
        if failure is not None:
            self._steps_without.clear()
        self._end(None if failure is None else describe_error(failure))

    def _leave(self) -> None:
        """Leave at the end of a script that did not call `close`."""
        error = getattr(sys, "last_value", None)
        failed = self._failed or (None if error is None else describe_error(error))
        self._members.close(failed or "its script had come to its end")
        self._end(failed)

    def _end(self, failed: str | None) -> None:
        """End the training on this rank.

        failed: why it failed, which the other ranks can read; it then waits for no other rank.
        """
        if self._steps_without and self.rank == 0:
            warn(UNUSED)
            self._steps_without.clear()  # a second close does not warn again
        if isinstance(self._mode, AllReduceMode) and self._journal is not None:
            taken = policies.counts(self._mode.live.policy, self.name, taken=())
            self._journal.note("end", time.monotonic() - self._mode.zero, taken)
        if failed is not None:
            self._members.close(failed)
        if self._client is not None:
            self._client.leave(failed or "")
            if isinstance(self._mode, ServerMode):
                self._mode.close()
            self._groups.close()  # ranks that wait for this one fail at once
            self._model_groups.close()
        if self._server is not None:
            if failed is not None:
                self._server.kill()  # it would end with this process anyway
            self._server.wait()
        if self._journal is not None:
            self._journal.close()
        self._members.close()
        if failed is not None:
            self._members.linger()
            atexit.unregister(leave_group)  # leaving a broken group may hang
        self.replica.forget_groups()
        self._closed = True
        self._client = self._server = self._journal = None

    # -- modes -------------------------------------------------------------------------------

    def _begin(self, closure: Closure) -> None:
        """Set up at the first step, which brings a closure to measure with."""
        replica = self.replica
        replica.clear()
        replica.formats.settle(closure)
        own = self._apart  # each rank keeps the state of its optimizer
        broadcast_and_average.broadcast(replica.model, None if own else replica.optimizer, 0)
        place = [self._record_folder() if self.rank == 0 else None]
        dist.broadcast_object_list(place, src=0)  # only the lowest rank looks into the folder
        self._out = self._folder = place[0]
        self._start_journal()
        dist.barrier()  # the journal has its header before another process writes
        replica.reducer.over(None)  # all ranks build DDP together, needed now or not
        if policy_support.is_synchronous(self._first_plan, self.world_size):
            try:
                self._host()  # better a warning now than an error after hours
            except InputError as error:
                if self._first_plan.review != Review():
                    warn(f"policy {self.name} can have no server, should it need one: {error}")
            self._enter_allreduce_mode(self._policy, self._facts)
        else:
            self._check_served(self._first_plan)
            replica.settle(closure)
            self._enter_server_mode(self._policy, self._facts)

    def _change_where_due(self, closure: Closure) -> None:
        """Change the mode while one is due: a resting rank takes no step before the next change."""
        while self._mode is not None and self._mode.over:
            self._change(closure)

    def _change(self, closure: Closure) -> None:
        """Change to the other mode, which the plan needs."""
        if isinstance(self._mode, AllReduceMode):
            live = self._mode.live
            self._check_served(live.plan)
            if self._mode.steps < SETTLED:
                self.replica.settle(closure)
            broadcast_and_average.broadcast(self.replica.model, self.replica.optimizer, 0)
            self._enter_server_mode(live.policy, live.facts())
            return
        assert isinstance(self._mode, ServerMode)
        handover = self._mode.handover
        assert handover is not None
        if handover.apart:
            broadcast_and_average.average(self.replica.model, self.replica.optimizer)
        else:
            self.replica.optimizer.load_state_dict(handover.optimizer)
            broadcast_and_average.broadcast(self.replica.model, self.replica.optimizer, 0)
        self._enter_allreduce_mode(handover.policy, handover.facts)

    def _go_on_without(self, failure: RankFailure, closure: Closure) -> None:
        """Go on as a smaller world, in which the policy begins anew; no update is lost.

        The step under way is discarded.  Where some ranks had finished it, their parameters count.
        A server needs all ranks it began with, so a smaller world starts its own.
        """
        mode, replica, members = self._mode, self.replica, self._members
        assert isinstance(mode, AllReduceMode)
        replica.forget_groups()
        generation = members.without(failure.diagnosis.lost)
        if self._client is not None:
            self._client.leave()
            self._client = None
        self._groups = ProcessGroups(members.stall_limit)
        self._model_groups = ProcessGroups(members.stall_limit, "models")
        replica.clear()
        states: list[Any] = [None] * members.world_size
        dist.all_gather_object(states, (mode.live.version, mode.live.samples, mode.live.now))
        version, samples, now = max(states)
        broadcast_and_average.broadcast(replica.model, replica.optimizer, states.index(max(states)))
        self._policy = copy.deepcopy(self._original)
        fresh = self._live(copy.deepcopy(self._original))
        self._facts = dataclasses.replace(
            fresh.facts(), version=version, samples=samples, now=now,
            reviewed=(version, samples, now),
        )  # fmt: skip
        if self._folder is not None:
            self._out = self._folder / f"generation-{generation}"
        self._start_journal()
        self._enter_allreduce_mode(self._policy, self._facts)
        if not policy_support.is_synchronous(self._facts.plan, members.world_size):
            self._change(closure)
        if members.rank == 0:
            warn(f"{failure}; the others go on without it")

    def _live(self, policy: Policy, **given: Any) -> Live:
        """The engine for this rank's replica of the policy."""
        return Live(
            policy, self.world_size, self._batch, self.hints, name=self.name,
            reduced=not self.replica.formats.refusal, **given,
        )  # fmt: skip

    def _enter_allreduce_mode(self, policy: Policy, facts: Facts | None) -> None:
        note = None if self._journal is None else self._journal.note
        live = self._live(policy, facts=facts, note=note)
        self._mode = AllReduceMode(
            self.replica, live, self._members, self._batch, note, self.sampler
        )
        dist.barrier()  # the clock starts when all are ready
        zero = [time.monotonic() - live.now]
        dist.broadcast_object_list(zero, src=0)
        self._mode.zero = zero[0]
        if self._batch_read:  # the size that this step's batch has
            _ = self._mode.next_batch

    def _enter_server_mode(self, policy: Policy, facts: Facts | None) -> None:
        members, replica, job = self._members, self.replica, None
        if self._client is None:
            address, limit = self._server_address(), members.stall_limit
            self._client = Client(address, members.rank, limit, members.cut_off)
        if members.rank == 0:
            plan, validation = self._first_plan if facts is None else facts.plan, None
            if plan.screen is not None and self._validation is not None:
                validation = ValidationSpec(self._validation, replica.names)
            job = JobSpec(
                pack_optimizer(replica.optimizer), policy, self._batch, self.name, self.hints,
                facts,
                hand_over=True, refusal=replica.formats.refusal, outer=self._outer_state,
                corrected=self._corrected, validation=validation,
                journal=None if self._out is None else partial(Journal, self._out),
            )  # fmt: skip
        settings = pack_settings(replica.optimizer)
        self._client.begin(replica.count, replica.dtype, job, settings=settings)
        self._mode = ServerMode(
            replica, self._client, self._groups, self._model_groups, members.mark,
            self._outer_state,
        )  # fmt: skip

    # -- the server --------------------------------------------------------------------------

    def _check_served(self, plan: Plan) -> None:
        """Raise `InputError` for a sampler or a step hook, which a server would ignore.

        And where a server is to take gradients of its own, for lack of a loss.
        """
        if self.sampler is not None:
            raise InputError(
                f"policy {self.name} needs a server, under which ranks take different numbers of "
                "steps, and a ShareSampler counts on equal ones; leave it out, and draw "
                "trainer.next_batch samples before each step"
            )
        if plan.screen is not None and self._validation is None:
            raise InputError(
                f"policy {self.name} tests gradients by some that its server takes itself: give "
                "wrap() a validation, the name of the workload or the module:function of a script, "
                "which returns (model, loss, optimizer, make_batch)"
            )
        if not plan.average:  # there each rank's own optimizer steps
            check_served(self.replica.optimizer, self.name)

    def _server_address(self) -> str:
        """The address of the server: the launcher's, which outlives ranks, or the lowest rank's."""
        joined = self._members.joined
        first = joined is not None and joined.ours and not joined.generation
        if joined is not None and first and os.environ.get("SIMSTRAG_SERVER"):
            return wait_for_server(joined.root, START)
        address, host = [""], self._host()
        if self.rank == 0:
            with local_error():
                self._server, address[0] = start_server(
                    self.world_size, host, self._members.stall_limit
                )
        dist.broadcast_object_list(address, src=0)
        return address[0]

    def _host(self) -> str:
        """The address for a server of the lowest rank; empty on other ranks; collective.

        Raises `InputError` on the lowest rank where the others could not reach it.
        """
        networks: list[Any] = [None] * self.world_size
        dist.all_gather_object(networks, network_namespace())
        return find_host(several=len(set(networks)) > 1) if self.rank == 0 else ""

    # -- the record --------------------------------------------------------------------------

    def _record_folder(self) -> Path | None:
        """The folder of this start's record; later starts have subfolders."""
        joined = self._members.joined
        again = self._facts is not None or (joined is not None and joined.attempt > 0)
        if self._out is None or not again or (before := latest_attempt(self._out)) is None:
            return self._out
        return attempt_folder(self._out, before + 1)

    def _start_journal(self) -> None:
        """Begin a journal on the lowest rank, and end the journal of a larger world."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._out is None or self.rank > 0:
            return
        formats, place = self.replica.formats, self.replica.parameters[0].device
        self._journal = Journal(self._out, {
            "policy": self.name, "world_size": self.world_size, "batch": self._batch,
            "hints": dataclasses.asdict(self.hints), "precision": formats.label,
            "gain": formats.gain, "clock": self.replica.clock.reason,
            "backend": dist.get_backend(), "began": time.time(),
            "software": {"torch": torch.__version__}, "cores": len(cores_of_all()),
            "device": describe_device("cpu" if place.type == "cpu" else str(place)),
            "facts": None if self._facts is None else facts_to_json(self._facts),
        })  # fmt: skip
