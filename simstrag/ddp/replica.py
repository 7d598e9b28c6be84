"""One rank's copy of the model: its gradients, alone or summed up by DDP on the way."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simstrag.ddp import parameters
from simstrag.ddp.allreduce.hook import Reducer
from simstrag.ddp.failures.membership import local_error
from simstrag.ddp.precision import Closure, NumberFormats, check_loss, without_side_effects
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.ddp.step_timer import CpuStepTimer, CudaStepTimer

__all__ = ["Replica"]

SHOWN = 5
"""Parameters that a message names."""


class Replica:
    """Model, optimizer, number formats and clock of this rank; loss: of the last forward.

    Its parameters are those that the optimizer trains, in the optimizer's order, and all of them
    must be the model's.  Raises `InputError` where they are not.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        formats: NumberFormats,
        clock: CpuStepTimer | CudaStepTimer,
    ) -> None:
        self.model, self.optimizer, self.formats, self.clock = model, optimizer, formats, clock
        self.parameters = parameters.trained_parameters(optimizer)
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
        self.dtype = self.parameters[0].dtype
        self.loss = torch.tensor(math.nan)
        self._named = dict(model.named_parameters())
        self._ddp: DistributedDataParallel | None = None
        self._reducer: Reducer | None = None

    @property
    def reducer(self) -> Reducer:
        """The hook of DDP around the model, which is made when it is first asked for.

        That is collective: all ranks of the world ask together.
        """
        if self._reducer is None:
            self._reducer = Reducer(self.clock)
            self._ddp = self._reducer.wrap(self.formats.module)
        return self._reducer

    def forget_groups(self) -> None:
        """Let go of DDP and of the group that it holds; it is built anew when next asked for."""
        self._ddp = self._reducer = None

    def reduced_gradient(
        self, closure: Closure, amp: bool, weigh: Callable[[], float]
    ) -> torch.Tensor:
        """Forward and backward, the gradients summed up by the hook; the loss.

        weigh: what this rank's gradient is multiplied by; asked when the batch has been drawn.
        The clock stops in the hook, before any wait.  Raises `InputError` with the names of the
        parameters that got no gradient: DDP would wait for them.
        """
        reducer = self.reducer
        assert self._ddp is not None
        with self.formats.context(amp):
            loss = self._forward(self._ddp, closure)
            reducer.weight, reducer.scale = weigh(), self.formats.scale
            self._backward(loss)
        if not reducer.complete:
            raise InputError(self._incomplete())
        return self.loss

    def settle(self, closure: Closure) -> None:
        """Let DDP find the order of its buckets, all ranks together; nothing is left of it.

        A parameter that the loss does not depend on has a gradient of zeros here.
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
        """Forward and backward of this rank alone; the loss, and whether there is a gradient:
        there is none if it was given up before backward.

        The gradients are not scaled any more, and the clock has stopped.
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
        """Other ranks are to blame for a reduction that fails, and for nothing else in here."""
        try:
            self.formats.scaled(loss).backward()  # type: ignore[no-untyped-call]
        except RuntimeError:
            if self._reducer is not None and self._reducer.failed:
                raise
            with local_error():
                raise

    def _incomplete(self) -> str:
        """Which parameters a backward has left out, and what to do about it."""
        without = [
            name for name, each in self._named.items() if each.requires_grad and each.grad is None
        ]
        shown = ", ".join(without[:SHOWN]) + (" ..." if len(without) > SHOWN else "")
        return (
            f"{len(without)} of {len(self._named)} parameters got no gradient ({shown}): where "
            "gradients are summed up during backward, every loss must depend on all of them; "
            "freeze those that are not used by requires_grad_(False) before wrap(), or take a "
            "policy such as asgd, under which they count as zeros"
        )

    def finite(self) -> bool:
        """Whether the gradients may be applied; formats that can overflow move their scale."""
        finite = self.formats.finite(each.grad for each in self.parameters)
        self.formats.update(finite)
        return finite

    def flatten(self, into: torch.Tensor) -> torch.Tensor:
        """All gradients, shape (count,)."""
        parameters.flatten_gradients(self.parameters, into)
        return into

    def spread(self, flat: torch.Tensor) -> None:
        """Take these parameters, shape (count,)."""
        parameters.unflatten(flat, self.parameters)

    def update(self) -> None:
        """Apply the gradients that are there."""
        with local_error():
            self.optimizer.step()

    def clear(self) -> None:
        """Gradients away, also those of what the optimizer does not train."""
        for each in self._named.values():
            each.grad = None
