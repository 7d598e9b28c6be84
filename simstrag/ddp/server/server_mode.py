"""Steps of a rank under a server: compute, report, and carry out the commands that follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from simstrag.ddp.allreduce.control_message import unpack
from simstrag.ddp.failures.rank_failure import is_local_error
from simstrag.ddp.flat_parameters import settings_of, squared_norm
from simstrag.ddp.server import messages
from simstrag.ddp.server.background_reductions import BackgroundReductions, reduce_among
from simstrag.ddp.server.group_model import GroupModel
from simstrag.ddp.server.model_average import ModelAverage
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.ddp.allreduce.hook import ProcessGroups
    from simstrag.ddp.precision import Closure
    from simstrag.ddp.replica import Replica
    from simstrag.ddp.server.client import Client

POLL = 0.05
"""Seconds between looks, in a pause, at whether the step was aborted."""


class ServerMode:
    """The mechanism in which a server decides.

    The constructor receives the first command, and waits until all ranks have come.
    groups, beside: in which collectives are, and those that run beside steps.
    mark: is called with the step and the phase that begins.
    outer: the state of outer steps in a checkpoint; None where there is none.
    averages: its part in averages of models.
    handover: the command that ended this mode; None before.
    finished: the plan leaves this rank out, and all ranks that it needs have left.
    samples: samples applied by all ranks, as of the last `Compute`, or of the last mean that this
        rank took over: a training must not be over before that.
    """

    def __init__(
        self,
        replica: Replica,
        client: Client,
        groups: ProcessGroups,
        beside: ProcessGroups,
        mark: Callable[[int, str], None],
        outer: Mapping[str, Any] | None = None,
    ) -> None:
        self.replica, self.client, self.groups, self._mark = replica, client, groups, mark
        groups.gone = beside.gone = client.gone
        self.averages = ModelAverage(replica, client.rank, outer)
        self._rounds = GroupModel(replica)
        self._beside = BackgroundReductions(client, beside, self._bring)
        self.handover: messages.Handover | None = None
        self.finished = False
        self.samples = 0
        self._work: messages.Compute | None = None
        self._gradient = torch.zeros(replica.count, dtype=replica.dtype)
        self._finite, self._pushed = True, False
        self._begun = replica.clock.start
        self._obey()

    @property
    def over(self) -> bool:
        """Whether all ranks go on without the server."""
        return self.handover is not None

    @property
    def private(self) -> bool:
        """Whether this rank has a model of its own, and the server none."""
        return self._work is not None and self._work.local and not self._work.served

    @property
    def served(self) -> bool:
        """Whether this rank has a model of its own, and the server that of all."""
        return self._work is not None and self._work.served

    @property
    def next_batch(self) -> int:
        """Samples of this rank's next batch."""
        return 0 if self._work is None else self._work.samples

    def step(self, closure: Closure) -> torch.Tensor:
        """Compute a step and carry out commands up to the next `Compute`; return the loss."""
        work = self._work
        if work is None:
            raise InputError("the training is over: the ranks that it would need have left")
        self._mark(work.step, "computing")
        self._begun = self.replica.clock.start
        in_group = work.route is messages.GradientRoute.GROUP
        loss = (self._compute_in_group if in_group else self._compute)(work, closure)
        self.replica.clear()
        self._obey()
        return loss

    def close(self) -> None:
        """Give up an all-reduce that is under way: it would hold this rank up as it leaves."""
        self._beside.close()

    # -- gradients ---------------------------------------------------------------------------

    def _compute(self, work: messages.Compute, closure: Closure) -> torch.Tensor:
        replica, client = self.replica, self.client
        loss, complete = replica.own_gradient(closure, work.amp, client.is_aborted)
        self._mark(work.step, "talking to the server")
        if not complete or client.is_aborted():
            client.withdraw()
            return loss
        self._finite, gradient = replica.finite(), None
        report: dict[str, Any] = {
            "seconds": replica.clock.seconds, "begun": self._begun, "ended": time.monotonic(),
            "loss": float(loss), "finite": self._finite,
            "settings": settings_of(replica.optimizer),
        }  # fmt: skip
        if work.local:
            if self._finite:
                replica.update()
            if work.prepares:
                self.averages.keep(work.version)
        elif work.route is messages.GradientRoute.PUSH:
            gradient, self._pushed = replica.flatten(client.gradient), True
        else:
            replica.flatten(self._gradient)
            if work.measures:
                report["squared_norm"] = float(squared_norm(self._gradient))
        client.finish_step(gradient, **report)
        return loss

    def _compute_in_group(self, work: messages.Compute, closure: Closure) -> torch.Tensor:
        """The hook all-reduces in the group during backward; the lowest rank sends the sum."""
        replica, client, reducer = self.replica, self.client, self.replica.reducer
        reducer.over(self.groups.get(work.members), self.groups.get(work.members, control=True))
        reducer.digest, reducer.version = 0, work.version
        reducer.flags, reducer.measures, reducer.sums = int(work.amp), work.measures, False
        try:
            loss = replica.reduced_gradient(closure, work.amp, lambda: work.weight)
            self._mark(work.step, "reducing")
            message = unpack(reducer.wait())
        except RuntimeError as error:
            if is_local_error(error):
                raise
            # a member is lost, and the server finds out; others may wait for this one
            self.groups.abort(work.members)
            replica.forget_groups()
            client.report_failure()
            return replica.loss
        finite = replica.finite()
        self._mark(work.step, "talking to the server")
        if client.rank == min(work.members):
            told = zip(message.seconds.tolist(), message.squared_norm.tolist(), strict=True)
            members = {
                rank: (seconds, finite, norm)
                for rank, (seconds, norm) in zip(work.members, told, strict=True)
            }
            client.finish_step(
                replica.flatten(client.gradient), members[client.rank][0], self._begun,
                time.monotonic(), loss=float(loss), settings=settings_of(replica.optimizer),
                members=members,
            )  # fmt: skip
        return loss

    # -- commands ----------------------------------------------------------------------------

    def _obey(self) -> None:
        """Carry out commands until there is a step to compute, or nothing more to do."""
        self._mark(-1 if self._work is None else self._work.step, "talking to the server")
        while True:
            command = self.client.receive()
            match command:
                case messages.Compute():
                    if command.pull and not self._pull(command):
                        continue
                    if command.is_round:
                        self._rounds.end_round(self._own_gradient(), self.next_batch)
                    self.averages.prepare(command)
                    self._pause(command)
                    self._work = command
                    if not self.averages.is_under_way:
                        self.samples = command.applied
                    self._mark(command.step, "loading")
                    break
                case messages.Handover():
                    self.averages.take_over(command.facts["version"])
                    if not command.apart:
                        self.replica.spread(self.client.parameters)
                    self._work, self.handover = None, command
                    self.close()
                    break
                case messages.Finish():
                    self._work, self.finished = None, True
                    break
                case messages.Deliver(closing=None):
                    own = self.averages.taken() if self.served else self._contribution()
                    self.client.deliver(own)
                case messages.Deliver(closing=int(closing)):
                    total = self._beside.sums.get(closing)
                    total = self._rounds.sum_of_group() if total is None else total
                    self.client.deliver(self._whole(total), closing)
                case messages.Reduce():
                    self._reduce(command)
        self.replica.clock.begin()

    def _pause(self, command: messages.Compute) -> None:
        """Wait before a step, unless the server has aborted it."""
        if command.pause:
            self._mark(command.step - 1, "pausing")
        until = time.monotonic() + command.pause
        while (left := until - time.monotonic()) > 0 and not self.client.is_aborted():
            time.sleep(min(left, POLL))

    def _pull(self, command: messages.Compute) -> bool:
        """Take over the parameters of a command; false if a group could not pass them on."""
        client, members = self.client, command.members
        if command.passed and len(members) > 1:
            try:
                group = self.groups.get(members, control=True)
                dist.broadcast(client.parameters, self.groups.rank(min(members)), group=group)
            except RuntimeError:  # a member is lost, and the server finds out
                self.groups.abort(members)
                client.report_failure()
                return False
        self._beside.sums.clear()
        self._rounds.reset()
        if command.served:
            self.averages.pull(command, client.parameters)
        else:
            self.replica.spread(client.parameters)
        return True

    def _kept_gradient(self) -> torch.Tensor:
        """The gradient of the last step, also where it was pushed and a new plan reduces it."""
        if self._pushed:
            self._gradient.copy_(self.client.gradient)
            self._pushed = False
        return self._gradient

    def _reduce(self, command: messages.Reduce) -> None:
        """Sum gradients, or average models, among the members."""
        total = self._bring(command)
        if not reduce_among(self.groups, command, total):
            self.client.report_failure(command.closing)
            return
        if command.stays:
            self._rounds.total = total
        apart = command.stays or (command.average and self.private)
        sends = self.client.rank == min(command.members) and not apart
        self.client.end_reduction(command.closing, self._whole(total) if sends else None)

    def _bring(self, command: messages.Reduce) -> torch.Tensor:
        """This rank's part of the sum of an all-reduce, in a new tensor."""
        if command.average:
            return self.averages.bring(command)
        weight = command.weights[command.members.index(self.client.rank)]
        own = self._own_gradient() if weight else None
        return torch.zeros_like(self._gradient) if own is None else own * weight

    def _own_gradient(self) -> torch.Tensor | None:
        """The gradient of the last step; None where it is not finite."""
        return self._kept_gradient() if self._finite else None

    def _contribution(self) -> torch.Tensor:
        """The mean of this rank's gradients since its pull, mostly one."""
        own = self._rounds.mean_of(self._own_gradient(), self.next_batch)
        assert own is not None, "the server knows that it is not finite"
        return own

    def _whole(self, total: torch.Tensor) -> torch.Tensor:
        """A sum as it is sent to the server; that of a fragment stands in its place."""
        if not self.served:
            return total
        self.client.gradient[self.averages.place] = total
        return self.client.gradient
