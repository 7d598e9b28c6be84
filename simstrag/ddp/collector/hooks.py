"""Hooks that mark when a rank waits: in DDP's last reduction, and in every collective of FSDP2.

DDP reduces beside backward, so a rank waits only at the end of backward.  FSDP2 gathers parameters
before the forward and the backward of each of its modules, and reduces gradients after it.  On a
CPU these collectives block the rank, and `own_collectives` marks them; on a device the marks stand
where the compute stream waits for the parameters, and at the end of backward.

The hooks stand around those of DDP and FSDP2 and change nothing that is computed or sent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from simstrag.ddp.collector.step_marks import StepMarks

_call_after_backward = Variable._execution_engine.queue_callback


def attach(model: nn.Module, marks: StepMarks) -> None:
    """Let a model in its wrapper, which has one group, mark its steps."""
    end = EndOfBackward(marks)
    if isinstance(model, DistributedDataParallel):
        attach_ddp(model, end)
    elif is_megatron(model):
        _attach_megatron(model, marks)
    else:
        _attach_fsdp(model, marks, end)

    def begin(*_: Any) -> None:
        if torch.is_grad_enabled():
            end.begin(getattr(model, "require_backward_grad_sync", True))
            marks.forward()
        else:
            marks.forward_without_gradients()

    model.register_forward_pre_hook(begin, prepend=True)


def _grad_tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):  # the usual case, in a tenth of the time
        return [output] if output.requires_grad else []
    leaves = tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


class Marks(Protocol):
    """What hooks mark: when the rank begins and ceases to wait, and when its backward ends."""

    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def end(self) -> None: ...


class EndOfBackward:
    """Marks the end of a step at the end of its backward, and the wait there.

    The engine runs callbacks after backward in the order in which they were queued.  One queued at
    any gradient of DDP, or at the first one of the output of FSDP2, precedes that which waits for
    the reductions; one that it queues itself follows it, and so does one queued at a reduction of
    FSDP2.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks, self.is_queued, self.is_synced = marks, False, True

    def begin(self, is_synced: bool) -> None:
        """A forward begins, whose backward reduces gradients or not."""
        self.is_queued = False  # a backward that raised may have left it elsewhere
        self.is_synced = is_synced

    def watch(self, output: Any) -> None:
        """Mark the wait and the end of the backward of this output."""
        for tensor in _grad_tensors(output):
            tensor.register_hook(self.wait)  # type: ignore[no-untyped-call]

    def wait(self, *_: Any) -> None:
        """Mark the wait and the end of the backward that runs, if it reduces gradients."""
        if self.is_synced and not self.is_queued:
            self.is_queued = True
            _call_after_backward(self._wait)

    def end(self) -> None:
        """Mark the end of the backward that runs."""
        if not self.is_queued:
            self.is_queued = True
            _call_after_backward(self._end)

    def _wait(self) -> None:
        self._marks.enter()
        _call_after_backward(self._end)

    def _end(self) -> None:
        self.is_queued = False
        self._marks.end()


def attach_ddp(model: DistributedDataParallel, end: EndOfBackward) -> None:
    """Mark the wait at the end of each backward that reduces gradients."""
    if model.find_unused_parameters or model.static_graph:  # any parameter may have no gradient

        def watch(_: nn.Module, __: Any, output: Any) -> None:
            if torch.is_grad_enabled():
                end.watch(output)

        model.register_forward_hook(watch)
        return
    first = next(
        parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in model.parameters_to_ignore
    )
    # one that stays costs less than one on the output of each step
    first.register_hook(end.wait)


def is_megatron(model: nn.Module) -> bool:
    """Whether it is in the `DistributedDataParallel` of megatron.core, told by its method."""
    return hasattr(model, "finish_grad_sync")


def _attach_megatron(model: nn.Module, marks: StepMarks) -> None:
    """Mark the reduction of gradients after the last backward, which ends a step."""
    finish: Any = model.finish_grad_sync

    @functools.wraps(finish)
    def marked(*arguments: Any, **named: Any) -> Any:
        marks.enter()
        try:
            return finish(*arguments, **named)
        finally:
            marks.end()

    vars(model)["finish_grad_sync"] = marked


def _attach_fsdp(root: nn.Module, marks: StepMarks, end: EndOfBackward) -> None:
    on_host = next(root.parameters()).device.type == "cpu"
    for module in root.modules():
        if isinstance(module, FSDPModule):
            assert isinstance(module, nn.Module)
            if on_host:
                _mark_reduction(module, end)
            else:
                attach_module(module, marks, end.watch if module is root else None)


def attach_module(module: nn.Module, marks: Marks, watch: Callable[[Any], None] | None) -> None:
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


def _mark_reduction(module: FSDPModule, end: EndOfBackward) -> None:
    """Mark the end of the backward in which a module reduces gradients."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    class MarkedReduceScatter(DefaultReduceScatter):
        def allocate(self, *arguments: Any, **named: Any) -> torch.Tensor:
            end.end()  # here, because a group of one rank allocates and sends nothing
            return super().allocate(*arguments, **named)

    module.set_custom_reduce_scatter(MarkedReduceScatter())
