"""The two number formats of a sharded model, by FSDP2's own mixed precision.

All ranks of a replica change together, between steps.  Gradients are those of a model made with
that `MixedPrecisionPolicy`, to the bit.  Autocast would serve too, but FSDP2 would gather full
precision: bf16 steps of four layers of 512 on a CPU took 51 ms under autocast, 44 ms this way and
60 ms in fp32.  A change takes 0.15 ms.  It sets private fields of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from simstrag.ddp.precision import AUTOCAST, Closure, ComputedLoss, NumberFormats, check_loss

REDUCED = {**AUTOCAST, "fp32_of_fp64": torch.float32}


class ShardedLoss(ComputedLoss):
    """The module that is called with a closure: its format is that of the sharded model inside."""

    def __init__(self, model: nn.Module, format: str, device: str) -> None:
        nn.Module.__init__(self)
        self.model, self.device, self._format = model, device, format
        modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        states: list[Any] = [module._get_fsdp_state() for module in modules]
        self._states = [(state, state._mp_policy) for state in states]

    @property
    def format(self) -> str:
        """The number format to compute in."""
        return self._format

    @format.setter
    def format(self, format: str) -> None:
        if format == self._format:
            return
        self._format = format
        for number, (state, own) in enumerate(self._states):
            _set_policy(state, self._policy(own, outermost=number == 0))

    def _policy(self, own: MixedPrecisionPolicy, outermost: bool) -> MixedPrecisionPolicy:
        if self._format not in REDUCED:
            return own
        full = next(self.model.parameters()).dtype
        return replace(
            own, param_dtype=REDUCED[self._format], reduce_dtype=own.reduce_dtype or full,
            output_dtype=full if outermost and own.output_dtype is None else own.output_dtype,
        )  # fmt: skip

    def forward(self, closure: Closure) -> torch.Tensor:
        return closure()


def _set_policy(state: Any, policy: MixedPrecisionPolicy) -> None:
    """Change the mixed precision of parameters that are sharded now; they are gathered anew."""
    state._mp_policy = policy
    for group in state._fsdp_param_groups:
        group.mp_policy = policy
        for each in group.fsdp_params:
            each.mp_policy, each.all_gather_outputs = policy, []
            if hasattr(each, "_unsharded_param"):
                del each._unsharded_param
        group._init_mp_dtypes()


class ShardedFormats(NumberFormats):
    """The number formats of a model that is sharded over a replica.

    within: the group of the replica.
    """

    loss_module = ShardedLoss

    def __init__(self, model: nn.Module, precision: str, within: dist.ProcessGroup | None) -> None:
        super().__init__(model, precision)
        self._within = within

    def _measured(self, closure: Closure) -> float:
        """The gain, by as many steps on all ranks: those of a replica wait for each other."""

        def stepping(format: str) -> Callable[[int], object]:
            def step(_: int) -> None:
                self.module.format = format
                check_loss(self.module(closure)).backward()  # type: ignore[no-untyped-call]
                for each in self.module.parameters():
                    each.grad = None

            return step

        return self._compare(stepping, math.inf)

    def finite(self, gradients: Iterable[torch.Tensor | None]) -> bool:
        """Whether the gradients are finite on all ranks of the replica."""
        own = super().finite(gradients)
        if not self.checks:
            return own
        told = torch.tensor([float(own)])
        dist.all_reduce(told, dist.ReduceOp.MIN, group=self._within)
        return bool(told.item())
