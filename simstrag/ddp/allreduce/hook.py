"""DDP's communication hook: weigh, reduce over any group, and send the control message along.

The weight is applied before the reduction, as in plain DDP: with weight 1/W the parameters equal
those of plain DDP bit for bit.  Dividing, or weighing afterwards, rounds differently.
"""
# No `from __future__ import annotations` here: DDP compares the hook's annotations with classes.

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from simstrag.ddp.allreduce.control_message import WIDTH, pack
from simstrag.ddp.failures.abort_collectives import Connections
from simstrag.ddp.flat_parameters import squared_norm
from simstrag.ddp.local_step_timer import StepTimer

POLL = 0.001
"""Seconds between looks at whether all members of a group are there to create it."""

Members = tuple[int, ...]
"""The ranks of a group, ascending."""

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""One function under its new name and under that of torch 2.11."""


class Reducer:
    """State of the hook; attributes are set before a backward, and hold until they are set again.

    weight: factor of this rank's gradients; 0 replaces them by zeros, for 0 x NaN is NaN.  The
        weights of the group's members sum to 1: 1/W, or b_i/B.
    scale: factor of the fp16 loss, divided out here; 1 in all other formats.
    group: reduces the gradients, and gathers control messages unless `over` names another group.
    digest, version, flags: for this rank's control message; the timer gives start and seconds.
    measures: whether the message has the squared norm of this rank's gradient, before it is
        weighed.
    sums: whether the next message then has the squared norm of what was reduced.
    failed: whether a collective has failed; the hook is then unusable.

    With the last bucket the timer stops, and the messages are gathered beside the reduction; `wait`
    returns them.  Under DDP's `no_sync` gradients add up, and the next backward that synchronizes
    weighs their sum: the scale must stay until then.
    """

    def __init__(self, clock: StepTimer) -> None:
        self.clock = clock
        self.weight = 1.0 / dist.get_world_size()
        self.scale = 1.0
        self.digest = self.version = self.flags = 0
        self.measures = self.sums = False
        self._buckets: list[torch.Tensor] = []  # that are measured
        self._squares: list[torch.Tensor] = []  # of them; nothing waits for a GPU before `send`
        self._sums: list[torch.Tensor] = []
        self.failed = False
        self._slot = torch.zeros(WIDTH, dtype=torch.float64)
        self._work: dist.Work | None = None
        self._stopped = False
        self.over(None)

    def over(
        self, group: dist.ProcessGroup | None, control: dist.ProcessGroup | None = None
    ) -> None:
        """Reduce over `group` from the next backward on; None is the world.

        control: the group for control messages, if `group` cannot send CPU tensors.
        """
        self.group = group
        self._control = group if control is None else control
        members = dist.get_world_size(self._control)
        self._slots = torch.zeros(members, WIDTH, dtype=torch.float64)

    def wrap(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        """Wrap a module in DDP with this hook; collective over the world.

        options: passed to DDP, such as `bucket_cap_mb`.  With `static_graph` or
            `find_unused_parameters` DDP adds collectives over the whole world.

        Buffers are synchronized at the start only: DDP does it over all ranks, and would hang if
        groups differ.
        """
        ddp = DistributedDataParallel(module, **options)
        ddp.broadcast_buffers = False  # set here: as an argument it has two names, by release
        ddp.register_comm_hook(self, reduce_bucket)
        return ddp

    def settle(self, forward: Callable[[], torch.Tensor]) -> None:
        """Take two steps with all ranks of the world; the caller discards their gradients.

        forward: computes the loss through DDP.

        DDP orders its buckets by the first backward, and at the second forward each rank waits for
        all others.  Ranks in different groups from the start would deadlock there.
        """
        for _ in range(2):
            forward().backward()  # type: ignore[no-untyped-call]
            self.wait()

    def send(self) -> None:
        """Start gathering control messages; the hook does so if the time is known at once."""
        pack(
            self._slot, self.clock.start, self.clock.seconds, self.digest, self.version, self.flags,
            _total(self._squares) / self.scale**2, _total(self._sums),
        )  # fmt: skip
        self._squares, self._sums = [], []
        self._work = _all_gather(
            self._slots.view(-1), self._slot, group=self._control, async_op=True
        )

    def wait(self) -> torch.Tensor:
        """The control messages of all members, float64 of shape (members, 5).

        Call it exactly once after each backward.  The next step overwrites them; `unpack` copies.
        """
        assert self._stopped, "no gradients were reduced since the last wait"
        if self._work is None:
            self.send()
        assert self._work is not None
        self._work.wait()
        self._work, self._stopped = None, False
        if self.sums:
            self._sums = [squared_norm(bucket) for bucket in self._buckets]
        self._buckets = []
        return self._slots

    @property
    def complete(self) -> bool:
        """Whether the last backward computed all gradients; else there is nothing to wait for."""
        return self._stopped

    def stop_timer(self) -> None:
        """Note that all gradients of this rank exist."""
        self.clock.ended()
        self._stopped = True

    def measure(self, bucket: torch.Tensor) -> None:
        """Measure a bucket before it is weighed, and again when it is reduced."""
        self._squares.append(squared_norm(bucket))
        self._buckets.append(bucket)


def _total(squares: list[torch.Tensor]) -> float:
    """The sum of squares; NaN without any."""
    return float(torch.stack(squares).sum()) if squares else math.nan


def reduce_bucket(
    state: Reducer,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The hook; DDP calls it with each bucket when all its gradients exist."""
    last = bucket.is_last()
    if last:
        state.stop_timer()
    gradients = bucket.buffer()
    if state.measures:
        state.measure(gradients)
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
    """Process groups by their members; only the members take part in creating a group.

    stall_limit: timeout of collectives in seconds; torch's default is half an hour.
    purpose: tells them from other groups of the same ranks.
    ranks: the ranks of the members, where members are numbers of replicas; None for ranks.
    gone: members that have left; whoever learns of one adds it, also while a group is created,
        which then fails at once.

    All members call `get` at the same point of their collectives, and for several groups in the
    same order.  `dist.new_group` with local synchronization cannot do that: it names a group by how
    many groups the process has created, and members with different counts deadlock.  Groups are
    kept: members cannot agree without communication when to destroy one.
    """

    def __init__(
        self,
        stall_limit: float = 60.0,
        purpose: str = "steps",
        ranks: Members | None = None,
    ) -> None:
        self.limit, self._purpose = timedelta(seconds=stall_limit), purpose
        self._ranks = ranks
        self.gone: set[int] = set()
        self._groups: dict[tuple[Members, bool], tuple[dist.ProcessGroup, Connections]] = {}

    def get(self, members: Members, control: bool = False) -> dist.ProcessGroup | None:
        """The group of these ranks, this one included.

        control: the group for CPU tensors, where the other is for devices.
        """
        ordered = tuple(sorted(members))
        on_device = "nccl" in dist.get_backend_config()
        over_gloo = control or not on_device
        if (ordered, over_gloo) not in self._groups:
            connections = Connections()
            with connections.capture():
                group = self._create(ordered, over_gloo)
            self._groups[ordered, over_gloo] = group, connections
        return self._groups[ordered, over_gloo][0]

    def rank(self, member: int) -> int:
        """The rank of a member."""
        return member if self._ranks is None else self._ranks[member]

    def abort(self, members: Members | None = None) -> None:
        """Let pending collectives fail at once, on the other ranks too; for gloo on Linux.

        members: of one group; None for all groups.
        """
        for (own, _), (_, connections) in list(self._groups.items()):
            if members in (None, own):
                connections.shut()

    def close(self, members: Members | None = None) -> None:
        """Destroy groups, so that waits for this rank fail at once; `members` as for `abort`."""
        for key in [key for key in self._groups if members in (None, key[0])]:
            dist.destroy_process_group(self._groups.pop(key)[0])

    def _create(self, members: Members, over_gloo: bool) -> dist.ProcessGroup:
        ranks = tuple(map(self.rank, members))

        def is_lost() -> bool:
            return not self.gone.isdisjoint(members)

        return create_group(self._purpose, ranks, over_gloo, self.limit, is_lost)


def create_group(
    purpose: str,
    members: Members,
    over_gloo: bool,
    limit: timedelta,
    is_lost: Callable[[], bool] = lambda: False,
) -> dist.ProcessGroup:
    """Create a group of ranks as `dist.new_group` does, under a name that all members know.

    It has the number of times that this rank created the group, since the store keeps the addresses
    of an earlier one of that name, which may be read in place of the new ones.

    is_lost: returns whether a member is gone.
    """
    backend = "gloo" if over_gloo else "nccl"
    store, name = distributed_c10d._get_default_store(), f"simstrag {purpose} {backend} {members}"
    count = store.add(f"{name} by {dist.get_rank()}", 1)
    _meet(store, f"{name} {count}", members, limit, is_lost)
    group, _ = distributed_c10d._new_process_group_helper(
        len(members),
        members.index(dist.get_rank()),
        list(members),
        dist.Backend(backend),
        store,
        distributed_c10d.GroupName(f"{name} {count}"),
        timeout=limit,
    )
    places = {rank: place for place, rank in enumerate(members)}
    distributed_c10d._world.pg_group_ranks[group] = places
    return cast("dist.ProcessGroup", group)


def _meet(
    store: Any, name: str, members: Members, limit: timedelta, is_lost: Callable[[], bool]
) -> None:
    """Wait until all members create the group; raise `RuntimeError` once one of them is gone."""
    store.set(f"{name} of {dist.get_rank()}", "")
    keys, until = (
        [f"{name} of {rank}" for rank in members],
        time.monotonic() + limit.total_seconds(),
    )
    while not store.check(keys):
        if is_lost() or time.monotonic() > until:
            raise RuntimeError(f"not all of ranks {members} create their group")
        time.sleep(POLL)
