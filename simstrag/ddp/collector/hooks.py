"""Hooks that mark when a rank waits: in DDP's last reduction, and in every collective of FSDP2.

DDP reduces beside backward, so a rank waits only at the end of backward.  FSDP2 gathers parameters
before the forward and the backward of each of its modules, and the rank waits there; where the
collectives block the host, it waits in each reduction of gradients, too.

The hooks stand around those of DDP and FSDP2 and change nothing that is computed or sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from simstrag.ddp.collector.step_marks import StepMarks
from simstrag.errors import InputError


def attach(model: nn.Module, marks: StepMarks) -> str:
    """Let a model mark its steps; the name of the wrapper that it has.

    Raises `InputError` for a model without one.
    """
    if isinstance(model, DistributedDataParallel):
        wrapper = "DistributedDataParallel"
        _attach_ddp(model, marks)
    elif isinstance(model, FSDPModule):
        wrapper = "fully_shard"
        _attach_fsdp(model, marks)
    else:
        raise InputError(
            "record() takes a model in DistributedDataParallel or fully_shard(), not a bare "
            f"{type(model).__name__}; call it after wrapping"
        )
    model.register_forward_pre_hook(
        lambda *_: marks.forward() if torch.is_grad_enabled() else None, prepend=True
    )
    return wrapper


def _grad_tensors(output: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


class _EndOfBackward:
    """Marks the wait at the end of a backward, and the end of the step.

    The engine runs callbacks after backward in the order in which they were queued.  One queued at
    the first gradient of the output precedes that of DDP or FSDP2, which waits for the reductions;
    one that it queues itself follows it.
    """

    def __init__(self, marks: StepMarks) -> None:
        self._marks, self._queued = marks, False

    def watch(self, output: Any) -> None:
        """Watch the backward of this output of the model."""
        self._queued = False  # a backward that raised may have left it elsewhere
        for tensor in _grad_tensors(output):
            tensor.register_hook(self._queue)  # type: ignore[no-untyped-call]

    def _queue(self, _: torch.Tensor) -> None:
        if not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._before)

    def _before(self) -> None:
        self._marks.enter()
        Variable._execution_engine.queue_callback(self._after)

    def _after(self) -> None:
        self._queued = False
        self._marks.leave()
        self._marks.end()


def _attach_ddp(model: DistributedDataParallel, marks: StepMarks) -> None:
    end = _EndOfBackward(marks)

    def watch(_: nn.Module, __: Any, output: Any) -> None:
        if model.require_backward_grad_sync and torch.is_grad_enabled():
            end.watch(output)

    model.register_forward_hook(watch)


def _attach_fsdp(root: nn.Module, marks: StepMarks) -> None:
    end = _EndOfBackward(marks)
    on_host = next(root.parameters()).device.type == "cpu"
    for module in root.modules():
        if isinstance(module, FSDPModule):
            assert isinstance(module, nn.Module)
            _attach_module(module, marks, end.watch if module is root else None)
            if on_host:
                _time_reductions(module, marks)


def _attach_module(
    module: nn.Module, marks: StepMarks, watch: Callable[[Any], None] | None
) -> None:
    """Mark the gathering of one module's parameters before its forward and its backward."""
    outputs: list[torch.Tensor] = []

    def before(_: nn.Module, __: Any, output: Any) -> None:
        outputs[:] = _grad_tensors(output) if torch.is_grad_enabled() else []
        if watch is not None:
            watch(outputs)
        for tensor in outputs:
            tensor.register_hook(lambda _: marks.enter())  # type: ignore[no-untyped-call]

    def after(*_: Any) -> None:
        for tensor in outputs:
            tensor.register_hook(lambda _: marks.leave())  # type: ignore[no-untyped-call]
        outputs.clear()

    module.register_forward_pre_hook(lambda *_: marks.enter(), prepend=True)
    module.register_forward_pre_hook(lambda *_: marks.leave())
    module.register_forward_hook(before, prepend=True)
    module.register_forward_hook(after)


def _time_reductions(module: FSDPModule, marks: StepMarks) -> None:
    """Mark the reductions of a module, which block the host."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    class MarkedReduceScatter(DefaultReduceScatter):
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            marks.enter()
            try:
                return super().__call__(*arguments, **named)
            finally:
                marks.leave()

    module.set_custom_reduce_scatter(MarkedReduceScatter())
