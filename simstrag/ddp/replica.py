"""One rank's copy of the model, and its gradients: alone, or reduced by DDP during backward."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simstrag.ddp import flat_parameters
from simstrag.ddp.allreduce.hook import Reducer
from simstrag.ddp.failures.rank_failure import local_error
from simstrag.ddp.plain_data import load
from simstrag.ddp.precision import Closure, NumberFormats, check_loss, without_side_effects
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.ddp.local_step_timer import StepTimer

SHOWN = 5
"""Most parameters that a message names."""


class Replica:
    """Model, optimizer, number formats and step timer of this rank.

    parameters: the parameters that the optimizer trains, in its order.
    buffers: the floating ones; buffer_count: their numbers.
    device: where flat tensors are.
    loss: the loss of the last forward.
    share: factor of the loss: its rank's part of a replica's samples, 1 where that is even.

    Raises `InputError` where the optimizer trains parameters that are not the model's.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        formats: NumberFormats,
        clock: StepTimer,
    ) -> None:
        self.model, self.optimizer, self.formats, self.clock = model, optimizer, formats, clock
        self.parameters = flat_parameters.trained_parameters(optimizer)
        held = {id(each) for each in model.parameters()}
        if not all(id(each) in held for each in self.parameters):
            raise InputError(
                "the optimizer trains parameters that are not the model's; make it with "
                "model.parameters()"
            )
        if any(isinstance(each, DistributedDataParallel) for each in model.modules()):
            raise InputError(
                "the model is in DistributedDataParallel already, which would reduce gradients "
                "twice; give wrap() the model itself (of accelerate: unwrap_model)"
            )
        self.count = sum(each.numel() for each in self.parameters)
        self.dtype, self.device = self.parameters[0].dtype, self.parameters[0].device
        self.buffers = [each for each in model.buffers() if each.is_floating_point()]
        self.buffer_count = sum(each.numel() for each in self.buffers)
        self.loss, self.share = torch.tensor(math.nan), 1.0
        self._named = dict(model.named_parameters())
        self._ddp: DistributedDataParallel | None = None
        self._reducer: Reducer | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `parameters` in the model."""
        name_of = {id(each): name for name, each in self._named.items()}
        return tuple(name_of[id(each)] for each in self.parameters)

    @property
    def reducer(self) -> Reducer:
        """The hook of DDP around the model; both are made at the first access.

        That is collective: all ranks of the world access it together.
        """
        if self._reducer is None:
            self._reducer = Reducer(self.clock)
            self._ddp = self._reducer.wrap(self.formats.module)
        return self._reducer

    def forget_groups(self) -> None:
        """Drop DDP and its group; the next access of `reducer` builds it anew."""
        self._ddp = self._reducer = None

    def reduced_gradient(
        self, closure: Closure, amp: bool, weigh: Callable[[], float]
    ) -> torch.Tensor:
        """Forward and backward, with gradients reduced by the hook; return the loss.

        weigh: returns the factor of this rank's gradient; called when the batch has been drawn.

        The timer stops in the hook, before any wait.  Raises `InputError` with the names of
        parameters that got no gradient: DDP would wait for them.
        """
        reducer = self.reducer
        assert self._ddp is not None
        with self.formats.context(amp):
            loss = self._forward(self._ddp, closure)
            reducer.weight, reducer.scale = weigh(), self.formats.scale
            self._backward(loss)
        if not reducer.complete:
            self._refuse_without_gradient()
        return self.loss

    def _refuse_without_gradient(self) -> None:
        """Raise `InputError` where a parameter got no gradient."""
        named = self._named.items()
        without = [name for name, each in named if each.requires_grad and each.grad is None]
        if without:
            shown = ", ".join(without[:SHOWN]) + (" ..." if len(without) > SHOWN else "")
            raise InputError(
                f"{len(without)} of {len(named)} parameters got no gradient ({shown}): where "
                "gradients are summed up during backward, every loss must depend on all of them; "
                "freeze those that are not used by requires_grad_(False) before wrap(), or take a "
                "policy such as asgd, under which they count as zeros"
            )

    def settle(self, closure: Closure) -> None:
        """Let DDP find the order of its buckets, without other effects; collective.

        A parameter that the loss does not depend on gets zeros here.
        """

        def forward() -> torch.Tensor:
            trained = [each for each in self._named.values() if each.requires_grad]
            nothing = 0.0 * sum((each.sum() for each in trained), start=torch.zeros(()))
            return self._forward(self._ddp, closure) + nothing

        with without_side_effects(self.model), self.formats.context(amp=False):
            self.reducer.settle(forward)
        self.clear()

    def own_gradient(
        self, closure: Closure, amp: bool, given_up: Callable[[], bool]
    ) -> tuple[torch.Tensor, bool]:
        """Forward and backward of this rank alone; return the loss, and whether it has a gradient.

        given_up: returns whether the step is aborted; called before backward.

        Afterwards the gradients are unscaled, and the timer has stopped.
        """
        module = self.formats.module if self._ddp is None else self._ddp
        quiet = contextlib.nullcontext() if self._ddp is None else self._ddp.no_sync()
        with quiet, self.formats.context(amp):
            loss = self._forward(module, closure)
            if given_up():
                return self.loss, False
            self._backward(loss)
        self.clock.ended()
        if self.formats.scale != 1:
            for each in self.parameters:
                if each.grad is not None:
                    each.grad.mul_(1 / self.formats.scale)
        return self.loss, True

    def _forward(self, module: nn.Module | None, closure: Closure) -> torch.Tensor:
        assert module is not None
        loss = check_loss(module(closure))
        self.loss = loss.detach()
        return loss

    def _backward(self, loss: torch.Tensor) -> None:
        """Backward; an error is local unless the reduction failed."""
        try:
            self.formats.scaled(loss).backward()  # type: ignore[no-untyped-call]
        except RuntimeError:
            if self._reducer is not None and self._reducer.failed:
                raise
            with local_error():
                raise

    def finite(self) -> bool:
        """Whether the gradients may be applied; updates the loss scale."""
        finite = self.formats.finite(each.grad for each in self.parameters)
        self.formats.update(finite)
        return finite

    def flatten(self, into: torch.Tensor) -> torch.Tensor:
        """Copy all gradients into a tensor of shape (count,)."""
        flat_parameters.flatten_gradients(self.parameters, into)
        return into

    def flat(self, buffers: bool = False) -> torch.Tensor:
        """The parameters as a new tensor of shape (count,); with `buffers`, these behind them."""
        tensors = [*self.parameters, *self.buffers] if buffers else self.parameters
        return torch.cat([each.detach().reshape(-1).to(self.dtype) for each in tensors])

    def spread(self, flat: torch.Tensor) -> None:
        """Set the parameters, and the buffers too where they stand behind them."""
        own = self.parameters if len(flat) == self.count else [*self.parameters, *self.buffers]
        flat_parameters.unflatten(flat, own)

    def update(self) -> None:
        """Step the optimizer."""
        with local_error():
            self.optimizer.step()

    def update_by(self, gradient: torch.Tensor | None, fresh: bool) -> None:
        """Step the optimizer by a flat gradient, if there is one.

        fresh: whether the optimizer begins without state.
        """
        if fresh:
            self.optimizer.state.clear()
        if gradient is not None:
            parts = flat_parameters.split(gradient, self.parameters)
            for each, part in zip(self.parameters, parts, strict=True):
                each.grad = part.to(each)
            self.update()
            self.clear()

    def model_state(self) -> dict[str, Any]:
        """The state of the model, for a checkpoint."""
        return self.model.state_dict()

    def load_model_state(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a model."""
        self.model.load_state_dict(state)

    def optimizer_state(self) -> dict[str, Any]:
        """The state of the optimizer, for a checkpoint."""
        return self.optimizer.state_dict()

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Take over the state of an optimizer."""
        self.optimizer.load_state_dict(dict(state))

    def pack(self, **more: Mapping[str, Any] | None) -> bytes:
        """Optimizer, parameters and more plain data for a server, by `pack_optimizer`."""
        return flat_parameters.pack_optimizer(self.optimizer, **more)

    def unpack_optimizer(self, packed: bytes) -> None:
        """Give the optimizer the state that a server had packed."""
        self.load_optimizer_state(load(packed, "the server's optimizer"))

    def clear(self) -> None:
        """Clear all gradients, also of parameters that the optimizer does not train."""
        for each in self._named.values():
            each.grad = None
