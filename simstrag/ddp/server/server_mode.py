"""Steps under a server's orders: a rank computes, says so, and does what it is told next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from simstrag.ddp.allreduce.control_message import unpack
from simstrag.ddp.failures.membership import is_own
from simstrag.ddp.parameters import settings
from simstrag.ddp.server.messages import Compute, Deliver, Finish, Handover, How, Reduce
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.ddp.allreduce.hook import Groups
    from simstrag.ddp.precision import Closure
    from simstrag.ddp.replica import Replica
    from simstrag.ddp.server.client import Link

__all__ = ["Coordinated"]


class Coordinated:
    """A rank among ranks that a server coordinates.

    The first order is pulled at once, and waits until all ranks have come.  finished: nothing that
    this rank could do would come to anything, for others that it takes have left.
    mark: is told (step, phase).
    """

    def __init__(
        self, replica: Replica, link: Link, groups: Groups, mark: Callable[[int, str], None]
    ) -> None:
        self.replica, self.link, self.groups, self._mark = replica, link, groups, mark
        self.handover: Handover | None = None
        self.finished = False
        self._work: Compute | None = None
        self._gradient = torch.zeros(replica.count, dtype=replica.dtype)
        self._finite, self._pushed, self._samples = True, False, 0
        self._begun = replica.clock.start
        self._pull()

    @property
    def over(self) -> bool:
        """Whether all ranks are to go on without the server."""
        return self.handover is not None

    @property
    def samples(self) -> int:
        """Applied when this rank heard of it last."""
        return self._samples

    @property
    def private(self) -> bool:
        """Whether this rank's model is its own, and the server has none."""
        return self._work is not None and self._work.local

    @property
    def next_batch(self) -> int:
        """Samples of this rank's next batch."""
        return 0 if self._work is None else self._work.samples

    def step(self, closure: Closure) -> torch.Tensor:
        """A step of the present order, and all orders up to the next; the loss."""
        work = self._work
        if work is None:
            raise InputError("the training is over: the ranks that it would need have left")
        self._mark(work.step, "computing")
        self._begun = self.replica.clock.start
        loss = self._grouped(work, closure) if work.how is How.GROUP else self._alone(work, closure)
        self.replica.clear()
        self._pull()
        return loss

    # -- gradients ---------------------------------------------------------------------------

    def _alone(self, work: Compute, closure: Closure) -> torch.Tensor:
        replica, link = self.replica, self.link
        loss, whole = replica.own_gradient(closure, work.amp, link.aborted)
        self._mark(work.step, "talking to the server")
        if not whole or link.aborted():
            link.withdraw()
            return loss
        self._finite = replica.finite()
        told: dict[str, Any] = {
            "seconds": replica.clock.seconds, "begun": self._begun, "ended": time.monotonic(),
            "loss": float(loss), "finite": self._finite, "settings": settings(replica.optimizer),
        }  # fmt: skip
        if work.local:
            if self._finite:
                replica.update()
            link.ready(**told)
        elif work.how is How.PUSH:
            link.push(replica.flatten(link.gradient), **told)
            self._pushed = True
        else:
            replica.flatten(self._gradient)
            link.ready(**told)
        return loss

    def _grouped(self, work: Compute, closure: Closure) -> torch.Tensor:
        """The hook sums up over the group during backward; its lowest rank sends the sum."""
        replica, link, reducer = self.replica, self.link, self.replica.reducer
        reducer.over(self.groups.meet(work.members), self.groups.meet(work.members, control=True))
        reducer.digest, reducer.version = 0, work.version
        reducer.flags = int(work.amp)
        try:
            loss = replica.reduced_gradient(closure, work.amp, lambda: work.weight)
            self._mark(work.step, "reducing")
            told = unpack(reducer.wait())
        except RuntimeError as error:
            if is_own(error):
                raise
            # a member is lost, and the server will hear of it
            replica.forget_groups()
            link.failed()
            return replica.loss
        finite = replica.finite()
        self._mark(work.step, "talking to the server")
        if link.rank == min(work.members):
            members = {
                rank: (seconds, finite)
                for rank, seconds in zip(work.members, told.seconds.tolist(), strict=True)
            }
            link.group(
                replica.flatten(link.gradient), members, self._begun, time.monotonic(),
                loss=float(loss), settings=settings(replica.optimizer),
            )  # fmt: skip
        return loss

    # -- orders ------------------------------------------------------------------------------

    def _pull(self) -> None:
        """Do what is ordered until there is something to compute, or nothing more."""
        self._mark(-1 if self._work is None else self._work.step, "talking to the server")
        while True:
            order = self.link.pull()
            if isinstance(order, Compute):
                if order.pull and not self._pulled(order):
                    continue
                self._work, self._samples = order, order.applied
                self._mark(order.step, "loading")
                break
            if isinstance(order, Handover):
                if not order.apart:
                    self.replica.spread(self.link.parameters)
                self._work, self.handover = None, order
                break
            if isinstance(order, Finish):
                self._work, self.finished = None, True
                break
            if isinstance(order, Deliver):
                self.link.deliver(self._kept())
            else:
                self._reduce(order)
        self.replica.clock.begin()

    def _pulled(self, order: Compute) -> bool:
        """Take the parameters of an order; whether they came.

        In a group its lowest rank may have them from the server, and pass them on.
        """
        link, members = self.link, order.members
        if order.passed and len(members) > 1:
            try:
                group = self.groups.meet(members, control=True)
                dist.broadcast(link.parameters, min(members), group=group)
            except RuntimeError:  # a member is lost, and the server will hear of it
                link.failed()
                return False
        self.replica.spread(link.parameters)
        return True

    def _kept(self) -> torch.Tensor:
        """The gradient of the last step, also where it was pushed and a new plan reduces it."""
        if self._pushed:
            self._gradient.copy_(self.link.gradient)
            self._pushed = False
        return self._gradient

    def _reduce(self, order: Reduce) -> None:
        """Sum up gradients, or average models, among the members of a closing."""
        replica, rank = self.replica, self.link.rank
        weight = order.weights[order.members.index(rank)]
        tensors = [self._kept()]
        if order.average:
            floating = [each for each in replica.model.buffers() if each.is_floating_point()]
            tensors = [*replica.parameters, *floating]
        whole = torch.cat([each.detach().reshape(-1).to(replica.dtype) for each in tensors])
        if weight == 0 or not (order.average or self._finite):
            whole.zero_()
        else:
            whole.mul_(weight)
        if len(order.members) > 1:
            try:
                dist.all_reduce(whole, group=self.groups.meet(order.members))
            except RuntimeError:
                self.link.failed(order.closing)
                return
        if not order.average:
            self.link.reduced(order.closing, whole if rank == min(order.members) else None)
            return
        with torch.no_grad():
            parts = torch.split(whole, [each.numel() for each in tensors])
            for each, part in zip(tensors, parts, strict=True):
                each.copy_(part.view(each.shape))
        self.link.reduced(order.closing)
