"""Steps under a server's orders: a rank computes, says so, and does what it is told next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from simstrag.ddp.orders import Compute, Deliver, Handover, How, Reduce
from simstrag.ddp.parameters import settings
from simstrag.ddp.slots import unpack

if TYPE_CHECKING:
    from simstrag.ddp.hook import Groups
    from simstrag.ddp.link import Link
    from simstrag.ddp.formats import Closure
    from simstrag.ddp.replica import Replica

__all__ = ["Coordinated"]


class Coordinated:
    """A rank among ranks that a server coordinates.

    The first order is pulled at once, and waits until all ranks have come.
    mark: is told (step, phase).
    """

    def __init__(
        self, replica: Replica, link: Link, groups: Groups, mark: Callable[[int, str], None]
    ) -> None:
        self.replica, self.link, self.groups, self._mark = replica, link, groups, mark
        self.handover: Handover | None = None
        self._work: Compute | None = None
        self._gradient = torch.zeros(replica.count, dtype=replica.dtype)
        self._finite = True
        self._begun = replica.clock.start
        self._pull()

    @property
    def over(self) -> bool:
        """Whether all ranks are to go on without the server."""
        return self.handover is not None

    def step(self, closure: Closure) -> torch.Tensor:
        """A step of the present order, and all orders up to the next; the loss."""
        work = self._work
        assert work is not None, "the server has let this rank go"
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
        told = {
            "seconds": replica.clock.seconds, "begun": self._begun, "ended": time.monotonic(),
            "loss": float(loss), "finite": self._finite, "settings": settings(replica.optimizer),
        }  # fmt: skip
        if work.local:
            if self._finite:
                replica.update()
            link.ready(**told)
        elif work.how is How.PUSH:
            link.push(replica.flatten(link.gradient), **told)
        else:
            replica.flatten(self._gradient)
            link.ready(**told)
        return loss

    def _grouped(self, work: Compute, closure: Closure) -> torch.Tensor:
        """The hook sums up over the group during backward; its lowest rank sends the sum."""
        replica, link, reducer = self.replica, self.link, self.replica.reducer
        reducer.over(self.groups.meet(work.members), self.groups.meet(work.members, control=True))
        reducer.weight, reducer.digest, reducer.version = work.weight, 0, work.version
        reducer.flags = int(work.amp)
        try:
            loss = replica.reduced_gradient(closure, work.amp)
            self._mark(work.step, "reducing")
            told = unpack(reducer.wait())
        except RuntimeError:
            link.failed()
            raise
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
                if order.pull:
                    self.replica.spread(self.link.parameters)
                self._work = order
                break
            if isinstance(order, Handover):
                self.replica.spread(self.link.parameters)
                self._work, self.handover = None, order
                break
            if isinstance(order, Deliver):
                self.link.deliver(self._gradient)
            else:
                self._reduce(order)
        self.replica.clock.begin()

    def _reduce(self, order: Reduce) -> None:
        """Sum up gradients, or average models, among the members of a closing."""
        replica, rank = self.replica, self.link.rank
        weight = order.weights[order.members.index(rank)]
        tensors = [self._gradient]
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
            parts = whole.split([each.numel() for each in tensors])
            for each, part in zip(tensors, parts, strict=True):
                each.copy_(part.view(each.shape))
        self.link.reduced(order.closing)
