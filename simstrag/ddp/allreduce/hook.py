"""DDP's one communication hook: weigh, reduce over any group, and send the control message along.

Multiplying by the weight before the reduction is what plain DDP does: with a weight of 1/W the
parameters are its own bit for bit.  Dividing, or weighing afterwards, rounds differently.
"""
# No `from __future__ import annotations` here: DDP compares the hook's annotations with classes.

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from simstrag.ddp.allreduce.control_message import WIDTH, gather, pack

__all__ = ["Clock", "Members", "ProcessGroups", "Reducer", "reduce_bucket"]

Members = tuple[int, ...]
"""The ranks of a group, ascending."""

Group = dist.ProcessGroup | None
"""None is the world."""


class Clock(Protocol):
    """What the hook asks of a clock: see `simstrag.ddp.step_timer`.

    immediate: whether `seconds` is known as soon as `ended` returns, or must be waited for.
    """

    immediate: bool

    def ended(self) -> None: ...

    @property
    def start(self) -> float: ...

    @property
    def seconds(self) -> float: ...


class Reducer:
    """State of the hook: what the next backward does with this rank's gradients.

    Set before a backward that synchronises, each stands until it is set again:
    weight: what this rank's gradients are multiplied by; at 0 they are replaced by zeros, for
        0 x nan is nan.  The weights of the group's members sum to 1: 1/W, or b_i/B.
    scale: of its fp16 loss, divided out here; 1 in all other formats.
    group: over which gradients and slots go.  members: how many it has.
    digest, version, flags: what its slot says; start and seconds come from the clock.
    failed: whether a collective of it has failed; then all of it is of no use any more.

    With the last bucket the clock is stopped, and the slots of all members are gathered beside the
    reduction; `wait` returns them.  Under DDP's `no_sync` nothing happens here, gradients add up,
    and the next backward that synchronises weighs their sum: the scale must stay until then.

    control: the group of the slots where that of the gradients cannot send tensors of the CPU; the
    one given at the start stands for the group given then.
    """

    def __init__(self, clock: Clock, group: Group = None, control: Group = None) -> None:
        self.clock = clock
        self.weight = 1.0 / dist.get_world_size(group)
        self.scale = 1.0
        self.digest = self.version = self.flags = 0
        self.failed = False
        self._slot = torch.zeros(WIDTH, dtype=torch.float64)
        self._work: dist.Work | None = None
        self._stopped = False
        self._first = group, control
        self.over(group)

    def over(self, group: Group, control: Group = None) -> None:
        """Reduce over `group` from the next backward on."""
        if control is None and group is self._first[0]:
            control = self._first[1]
        self.group = group
        self._control = group if control is None else control
        self.members = dist.get_world_size(self._control)
        self._slots = torch.zeros(self.members, WIDTH, dtype=torch.float64)

    def wrap(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        """`module` under DDP, whose hook this becomes; buffers are each rank's own after the start.

        Sending buffers in every forward goes over all ranks, and would hang where groups differ.
        Collective over the world, as is DDP's second forward: see `settle`.  options: of DDP, such
        as `bucket_cap_mb`; static graphs and unused parameters add world-wide collectives.
        """
        ddp = DistributedDataParallel(module, forward_sync_buffers=False, **options)
        ddp.register_comm_hook(self, reduce_bucket)
        return ddp

    def settle(self, forward: Callable[[], torch.Tensor]) -> None:
        """Take two steps with all ranks of the world; who calls this throws the gradients away.

        DDP orders its buckets by the first backward, and at the second forward each rank waits for
        all others to do the same.  Ranks that go their own ways from the start would meet there out
        of turn, and wait for ever.  forward: through DDP, to the loss.
        """
        for _ in range(2):
            forward().backward()  # type: ignore[no-untyped-call]
            self.wait()

    def send(self) -> None:
        """Begin to gather the slots; the hook does so where the clock already knows the time."""
        pack(
            self._slot, self.clock.start, self.clock.seconds, self.digest, self.version, self.flags
        )
        self._work = gather(self._slots, self._slot, self._control)

    def wait(self) -> torch.Tensor:
        """The slots of all members, float64 of shape (members, 5); once after each such backward.

        They are overwritten by the next step: `unpack` copies them.
        """
        assert self._stopped, "no gradients were reduced since the last wait"
        if self._work is None:
            self.send()
        assert self._work is not None
        self._work.wait()
        self._work, self._stopped = None, False
        return self._slots

    @property
    def complete(self) -> bool:
        """Whether the last backward came to all gradients; else there is nothing to wait for."""
        return self._stopped

    def stopped(self) -> None:
        """All of this step's own gradients exist."""
        self.clock.ended()
        self._stopped = True


def reduce_bucket(
    state: Reducer,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The hook itself; DDP calls it with each bucket as soon as all gradients in it exist."""
    last = bucket.is_last()
    if last:
        state.stopped()
    gradients = bucket.buffer()
    if state.weight == 0:
        gradients.zero_()
    else:
        gradients.mul_(state.weight / state.scale)

    def reduced(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        try:
            return done.value()[0]
        except RuntimeError:
            state.failed = True
            raise

    try:
        work = dist.all_reduce(gradients, group=state.group, async_op=True)
        if last and state.clock.immediate:
            state.send()
    except RuntimeError:
        state.failed = True
        raise
    whole: torch.futures.Future[torch.Tensor] = work.get_future().then(reduced)
    return whole


class ProcessGroups:
    """Process groups by their members, which only these know of, made when they first meet.

    All members call `meet` at the same point of their collectives; where they are in several
    groups, all in one order.  `dist.new_group` with local synchronization cannot do that: it names
    a group by how many the process has made, and members that have made differently many wait for
    each other for ever.  Groups stay: members have no common sign by which to give one up.

    stall_limit: seconds after which a collective in one of them fails; torch's own is half an hour.
    """

    def __init__(self, stall_limit: float = 60.0) -> None:
        self.limit = timedelta(seconds=stall_limit)
        self._met: dict[tuple[Members, bool], dist.ProcessGroup] = {}

    def meet(self, members: Members, control: bool = False) -> Group:
        """The group of these ranks, this one among them.

        control: one for tensors of the CPU, where the others are on devices.
        """
        ordered = tuple(sorted(members))
        on_device = "nccl" in dist.get_backend_config()
        over_gloo = control or not on_device
        if (ordered, over_gloo) not in self._met:
            self._met[ordered, over_gloo] = _made(ordered, over_gloo, self.limit)
        return self._met[ordered, over_gloo]

    def close(self) -> None:
        """Leave all of them: who waits in one for this rank fails at once, not after a while."""
        for group in self._met.values():
            dist.destroy_process_group(group)
        self._met.clear()


def _made(members: Members, over_gloo: bool, limit: timedelta) -> dist.ProcessGroup:
    """A group as `dist.new_group` makes it, under a name that all members know."""
    backend = "gloo" if over_gloo else "nccl"
    made, _ = distributed_c10d._new_process_group_helper(
        len(members),
        members.index(dist.get_rank()),
        list(members),
        dist.Backend(backend),
        distributed_c10d._get_default_store(),
        distributed_c10d.GroupName(f"simstrag {backend} {members}"),
        timeout=limit,
    )
    places = {rank: place for place, rank in enumerate(members)}
    distributed_c10d._world.pg_group_ranks[made] = places
    return cast("dist.ProcessGroup", made)
