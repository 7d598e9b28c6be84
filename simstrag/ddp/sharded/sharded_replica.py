"""A replica whose model FSDP2 shards over several ranks, which act together.

Through an all-reduce each rank does the same by itself.  Under a server the leader alone speaks
with it, and commands the others: what it does with the replica, they do.  The leader holds whole
gradients and parameters as flat tensors on the CPU while they travel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from simstrag.ddp import flat_parameters, plain_collectives
from simstrag.ddp.allreduce.hook import Reducer
from simstrag.ddp.failures.diagnosis import first_line
from simstrag.ddp.failures.rank_failure import is_local_error, local_error
from simstrag.ddp.local_step_timer import StepTimer
from simstrag.ddp.precision import Closure, NumberFormats
from simstrag.ddp.replica import Replica
from simstrag.ddp.sharded.shard_reducer import ShardReducer
from simstrag.ddp.sharded.shard_tensors import gather, local, scatter, shard_of
from simstrag.ddp.sharded.world import ReplicaWorld

CPU = torch.device("cpu")


class Release(NamedTuple):
    """What the leader tells the others when it has done with a step, or with a checkpoint.

    samples: samples applied by all replicas.
    next_batch: samples of the replica's next step; 0 where there is none.
    handover: policy, facts and whether models are apart, where a server has ended its part.
    finished: whether the plan leaves the replica out.
    """

    samples: int
    next_batch: int
    handover: tuple[bytes, dict[str, Any], bool] | None = None
    finished: bool = False


class ShardedReplica(Replica):
    """This rank's part of a replica.

    leading: whether the others wait for this rank's commands.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        formats: NumberFormats,
        clock: StepTimer,
        world: ReplicaWorld,
    ) -> None:
        super().__init__(model, optimizer, formats, clock)
        self.world, self.device = world, CPU
        self.leading = False
        self._reduced: torch.Tensor | None = None  # of the replica's group
        self._flat_reducer: Reducer | None = None
        self._closure: Closure | None = None

    # -- gradients ---------------------------------------------------------------------------

    @property
    def reducer(self) -> Reducer:
        """What reduces between replicas: FSDP2's hook, or on the leader of a group its flat sum."""
        if self.leading:
            self._flat_reducer = self._flat_reducer or Reducer(self.clock)
            return self._flat_reducer
        if self._reducer is None:
            self._reducer = ShardReducer(self.model, self.clock, self.world)
        return self._reducer

    def forget_groups(self) -> None:
        """Drop the state of reductions."""
        self._reducer = self._flat_reducer = None

    def settle(self, closure: Closure) -> None:
        """Do nothing: FSDP2 has no buckets to order."""

    def reduced_gradient(
        self, closure: Closure, amp: bool, weigh: Callable[[], float]
    ) -> torch.Tensor:
        """Forward and backward, with gradients reduced between replicas; return the loss."""
        if self.leading:
            return self._reduce_in_group(closure, amp, weigh())
        reducer = self.reducer
        with self.formats.context(amp):
            loss = self._forward(self.formats.module, closure)
            reducer.weight, reducer.scale = weigh(), self.formats.scale
            self._backward(loss)
        self._refuse_without_gradient()
        return self.loss

    def _reduce_in_group(self, closure: Closure, amp: bool, weight: float) -> torch.Tensor:
        """The gradient of a group of replicas, which their leaders sum up."""
        reducer = self.reducer
        try:
            loss, _ = self.own_gradient(closure, amp, lambda: False)
            reducer.stop_timer()
            flat = self.flatten()
        except RuntimeError as error:
            if is_local_error(error):
                raise
            raise ConnectionError(first_line(error)) from error  # of the replica, not the group
        if reducer.measures:
            reducer.measure(flat)
        self._reduced = flat.mul_(weight) if weight else flat.zero_()
        dist.all_reduce(self._reduced, group=reducer.group)
        return loss

    def own_gradient(
        self, closure: Closure, amp: bool, given_up: Callable[[], bool]
    ) -> tuple[torch.Tensor, bool]:
        """Forward and backward of this replica alone; all its ranks give up, or none."""
        self._command("own_gradient", amp)
        self._reduced = None
        return super().own_gradient(closure, amp, lambda: self._gives_up(given_up))

    def _gives_up(self, given_up: Callable[[], bool]) -> bool:
        ends = bool(self._tell(given_up() if self.world.leads else None))
        if ends:
            for each in self.model.modules():
                if isinstance(each, FSDPModule):
                    each.reshard()
        return ends

    def _backward(self, loss: torch.Tensor) -> None:
        scaled = self.formats.scaled(loss)
        scaled = scaled if self.share == 1 else scaled * self.share
        with local_error():
            if isinstance(self._reducer, ShardReducer) and not self.leading and not self._follows:
                self._reducer.backward(scaled)
            else:
                scaled.backward()  # type: ignore[no-untyped-call]

    @property
    def _follows(self) -> bool:
        """Whether this rank carries out the leader's commands."""
        return self._closure is not None

    def finite(self) -> bool:
        """Whether the gradients may be applied; updates the loss scale."""
        self._command("finite")
        return super().finite()

    def clear(self) -> None:
        """Clear all gradients."""
        self._command("clear")
        super().clear()

    # -- flat tensors ------------------------------------------------------------------------

    def flatten(self, into: torch.Tensor | None = None) -> torch.Tensor:
        """Copy all gradients into a tensor of shape (count,), on the leader."""
        if self._reduced is not None and into is not None:
            return into.copy_(self._reduced)
        self._command("flatten")
        shards = [
            torch.zeros_like(each.detach()) if each.grad is None else each.grad
            for each in self.parameters
        ]
        flat = gather(shards, self.world)
        return flat if into is None else into.copy_(flat)

    def flat(self, buffers: bool = False) -> torch.Tensor:
        """The parameters on the leader, with `buffers` its own behind them."""
        self._command("flat", buffers)
        flat = gather(self.parameters, self.world)
        own = [each.reshape(-1).to(flat) for each in self.buffers] if buffers else []
        return torch.cat([flat, *own])

    def spread(self, flat: torch.Tensor | None, whole: bool = False) -> None:
        """Set the parameters from the leader's tensor, and buffers too where they are behind them.

        whole: whether buffers are; for the other ranks.
        """
        whole = whole if flat is None else len(flat) > self.count
        self._command("spread", None, whole)
        head = None if flat is None else flat[: self.count]
        for each, part in zip(
            self.parameters, scatter(head, self.parameters, self.world), strict=True
        ):
            local(each).copy_(part)
        if whole and self.buffers:
            rest = torch.zeros(self.buffer_count, dtype=self.dtype)
            rest = rest if flat is None else flat[self.count :].contiguous()
            dist.broadcast(rest, self.world.leader(), group=self.world.within)
            flat_parameters.unflatten(rest, self.buffers)

    # -- the optimizer -----------------------------------------------------------------------

    def update(self) -> None:
        """Step the optimizer."""
        self._command("update")
        super().update()

    def update_by(
        self, gradient: torch.Tensor | None, fresh: bool, whole: bool | None = None
    ) -> None:
        """Step the optimizer by the leader's flat gradient, if there is one.

        whole: whether there is; for the other ranks.
        """
        whole = gradient is not None if whole is None else whole
        self._command("update_by", None, fresh, whole)
        if fresh:
            self.optimizer.state.clear()
        if whole:
            parts = scatter(gradient, self.parameters, self.world)
            for each, part in zip(self.parameters, parts, strict=True):
                each.grad = torch.zeros_like(each.detach())
                local(each.grad).copy_(part)
            super().update()
            super().clear()

    def pack(self, **more: Mapping[str, Any] | None) -> bytes:
        """The whole optimizer and its parameters, on the leader; see `pack_optimizer`."""
        self._command("pack")
        whole = self._whole_optimizer()
        return flat_parameters.pack_optimizer(whole, **more) if self.world.leads else b""

    def unpack_optimizer(self, packed: bytes) -> None:
        """Give the optimizer the state that a server had packed for the leader."""
        super().unpack_optimizer(self._tell(packed))

    def _whole_optimizer(self) -> torch.optim.Optimizer:
        """A copy of the optimizer, of whole parameters on the leader; empty ones elsewhere."""
        own, parameters = self.optimizer, dict[torch.Tensor, torch.Tensor]()
        state: dict[torch.Tensor, dict[str, Any]] = defaultdict(dict)
        for each in self.parameters:
            whole = parameters[each] = nn.Parameter(self._whole(each))
            for name, value in sorted(own.state.get(each, {}).items()):
                state[whole][name] = self._whole(value)
        groups = [
            {**group, "params": [parameters[each] for each in group["params"]]}
            for group in own.param_groups
        ]
        kind = type(own)
        new = kind.__new__(kind)
        new.__setstate__({**own.__getstate__(), "state": state, "param_groups": groups})
        return new

    def _whole(self, value: Any) -> Any:
        """A sharded tensor whole, on the leader; other values as they are."""
        if not isinstance(value, DTensor):
            return value
        flat = gather([value], self.world)
        return flat.view(value.shape) if self.world.leads else flat

    # -- checkpoints -------------------------------------------------------------------------

    def model_state(self) -> dict[str, Any]:
        """The state of the whole model on the leader; elsewhere that of buffers alone."""
        self._command("model_state")
        return {
            name: self._whole(value) if isinstance(value, DTensor) else value.clone()
            for name, value in self.model.state_dict().items()
        }

    def load_model_state(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a whole model."""
        with torch.no_grad():
            for name, own in self.model.state_dict().items():
                local(own).copy_(local(shard_of(state[name], own)))

    def optimizer_state(self) -> dict[str, Any]:
        """The state of the whole optimizer, on the leader."""
        self._command("optimizer_state")
        return self._whole_optimizer().state_dict()

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Take over the state of an optimizer of the whole model."""
        sharded = {
            number: {
                name: shard_of(value, each)
                if isinstance(value, torch.Tensor) and value.shape == each.shape
                else value
                for name, value in held.items()
            }
            for number, held in state["state"].items()
            for each in [self.parameters[number]]
        }
        self.optimizer.load_state_dict({**state, "state": sharded})

    # -- commands of the leader --------------------------------------------------------------

    def follow(self, closure: Closure) -> Release:
        """Carry out the leader's commands until it releases this rank."""
        self._closure = closure
        try:
            while True:
                name, arguments = self._tell(None)
                if name == "release":
                    return Release(*arguments)
                if name == "own_gradient":
                    (amp,) = arguments
                    self.own_gradient(closure, amp, lambda: False)
                else:
                    getattr(self, name)(*arguments)
        finally:
            self._closure = None

    def release(self, release: Release) -> None:
        """Let the other ranks go on with their script."""
        self._command("release", *release)

    def _command(self, name: str, *arguments: object) -> None:
        if self.leading:
            self._tell((name, arguments))

    def _tell(self, value: Any) -> Any:
        """What the leader says, on all ranks of the replica."""
        world = self.world
        return plain_collectives.broadcast(value, world.leader(), world.within, CPU)
