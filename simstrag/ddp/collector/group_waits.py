"""Marks of waits where a model has several groups: HSDP, tensor parallel, pipelines, own meshes.

    dist.all_gather_single, all_reduce, ...   FSDP2 and HSDP on a CPU, which block the rank
    functional collectives, wait_tensor       DTensor: a rank waits where it first uses the result
    ProcessGroup.send, recv; Work.wait        pipelines, and collectives with async_op

While a recorder is open, functions stand in for these Python functions of torch.  They call them,
change no argument and no result, and mark the wait with the label of its group.  Groups that are no
dimension of the job's mesh count as computing; so does what C++ calls past these functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.compiler import is_compiling
from torch.distributed import _functional_collectives as functional
from torch.distributed.distributed_c10d import ProcessGroup, Work
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from simstrag.ddp.collector.groups import GroupLabels, meshes_of
from simstrag.ddp.collector.hooks import EndOfBackward, attach_ddp, attach_module
from simstrag.ddp.collector.stand_ins import StandIns, argument
from simstrag.ddp.collector.step_marks import MOST, StepMarks

BLOCKING = (
    "all_gather_single", "all_gather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor",
    "all_reduce", "all_to_all_single",
)  # fmt: skip
"""Collectives of `torch.distributed` that are marked; releases of torch have some of them."""
FUNCTIONAL = (
    "all_gather_single", "all_gather_tensor", "reduce_scatter_single", "reduce_scatter_tensor",
    "all_reduce", "all_to_all_single", "broadcast",
)  # fmt: skip
BEGUN, AWAITED = {"send": "send", "recv": "ask"}, {"send": "sent", "recv": "recv"}
"""How labels of sends and receives begin where they are begun, and where the rank waits for them;
they go on with the other rank."""
MOST_WORKS = 1_000
"""Begun transfers that are kept, with their tensors, for a wait; scripts may poll them instead."""
PEER = {"send": "dstRank", "recv": "srcRank"}
"""The argument that has the other rank, by its place in the group."""


class GroupWaits:
    """Marks of a model whose ranks wait in several groups, until the stand-ins are closed."""

    def __init__(
        self, model: nn.Module, marks: StepMarks, labels: GroupLabels, stand_ins: StandIns
    ) -> None:
        self._marks, self._labels = marks, labels
        self._issued: dict[int, str] = {}  # labels by the memory of results that nobody waited for
        self._works: dict[int, tuple[Work, str]] = {}
        self._stand_ins = stand_ins
        self._own = {id(each) for each in model.parameters()}
        on_host = next(model.parameters()).device.type == "cpu"
        for name in BLOCKING if on_host else ():
            self._stand_ins.replace(dist, name, self._blocking)
        for name in FUNCTIONAL:
            self._stand_ins.replace(functional, name, self._issuing)
        self._stand_ins.replace(functional, "wait_tensor", self._waiting_for_tensor)
        for name in BEGUN:
            transferring = functools.partial(self._transferring, name)
            self._stand_ins.replace(ProcessGroup, name, transferring)
        self._stand_ins.replace(Work, "wait", self._waiting_for_work)
        self._attach(model, on_host)
        self._stand_ins.on_close(register_optimizer_step_pre_hook(self._before_optimizer).remove)

    def _attach(self, model: nn.Module, on_host: bool) -> None:
        """Mark forwards, and waits that no function tells: those of DDP, of FSDP2 on a device."""
        ends: list[EndOfBackward] = []
        if isinstance(model, DistributedDataParallel):
            own = _MarksInGroup(self, self._labels.add(model.process_group, "group"))
            ends.append(EndOfBackward(own))
            attach_ddp(model, ends[0])
        elif not on_host:
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    assert isinstance(module, nn.Module)
                    own = _MarksInGroup(self, self._group_of(module))
                    ends += [EndOfBackward(own)] if module is model else []
                    attach_module(module, own, ends[0].watch if module is model else None)

        def begin(*_: Any) -> None:
            if torch.is_grad_enabled():
                for end in ends:
                    end.begin(getattr(model, "require_backward_grad_sync", True))
                self._marks.forward()
            else:
                self._marks.forward_without_gradients()

        self._stand_ins.on_close(model.register_forward_pre_hook(begin, prepend=True).remove)

    def _group_of(self, module: nn.Module) -> str:
        """The group that gathers a module's parameters: the last dimension of their mesh."""
        mesh = meshes_of(module)[0]
        return self._labels.of((mesh, mesh.ndim - 1))

    def _blocking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A collective that waits, unless it returns what to wait for."""
        group_of, label_of, marks = argument(original, "group"), self._labels.of, self._marks

        def call(*arguments: Any, **named: Any) -> Any:
            group = group_of(*arguments, **named)
            label = "" if group is None or is_compiling() else label_of(group)
            if not label:
                return original(*arguments, **named)
            begin = marks.mark()
            work = original(*arguments, **named)
            if work is None:
                marks.waited(begin, marks.mark(), label)
            else:
                self._keep(work, label)
            return work

        return call

    def _issuing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A functional collective, for whose result somebody waits later."""
        group_of, label_of, issued = argument(original, "group"), self._labels.of, self._issued

        def call(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            if is_compiling():
                return result
            group = group_of(*arguments, **named)
            if label := label_of(group):
                memory = getattr(result, "elem", result)
                if len(issued) >= MOST:  # of an evaluation that waits for none
                    issued.clear()
                issued[memory.untyped_storage().data_ptr()] = label
            return result

        return call

    def _waiting_for_tensor(self, original: Callable[..., Any]) -> Callable[..., Any]:
        issued, marks = self._issued, self._marks

        def wait(tensor: torch.Tensor) -> Any:
            if is_compiling() or not issued:
                return original(tensor)
            label = issued.pop(tensor.untyped_storage().data_ptr(), "")
            if not label:
                return original(tensor)
            begin = marks.mark()
            result = original(tensor)
            marks.waited(begin, marks.mark(), label)
            return result

        return wait

    def _transferring(self, way: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A send or a receive, marked where it is begun; the rank waits for it later."""
        marks, label_of = self._marks, self._labels.of

        def call(group: ProcessGroup, *arguments: Any, **named: Any) -> Any:
            peer = arguments[1] if len(arguments) > 1 else named.get(PEER[way])
            if peer is None or not label_of(group):
                return original(group, *arguments, **named)
            begin = marks.mark()
            work = original(group, *arguments, **named)
            other = dist.get_global_rank(group, peer)
            marks.waited(begin, marks.mark(), f"{BEGUN[way]}:{other}")
            if work is not None:
                self._keep(work, f"{AWAITED[way]}:{other}")
            return work

        return call

    def _keep(self, work: Work, label: str) -> None:
        """Let a later wait for this work have a label; the oldest of many are forgotten."""
        while len(self._works) >= MOST_WORKS:
            del self._works[next(iter(self._works))]
        self._works[id(work)] = work, label

    def _waiting_for_work(self, original: Callable[..., Any]) -> Callable[..., Any]:
        works, marks = self._works, self._marks

        def wait(work: Work, *arguments: Any, **named: Any) -> Any:
            found = works.pop(id(work), None) if works else None
            if found is None:
                return original(work, *arguments, **named)
            begin = marks.mark()
            result = original(work, *arguments, **named)
            marks.waited(begin, marks.mark(), found[1])
            return result

        return wait

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """End the step, once also where the model has several optimizers."""
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        if self._marks.has_begun and any(id(each) in self._own for each in parameters):
            self._issued.clear()
            self._works.clear()
            self._marks.end()

    @property
    def is_open(self) -> bool:
        """Whether waits are marked."""
        return self._stand_ins.are_in_place

    def enter(self, group: str) -> None:
        """The rank begins to wait in a group."""
        if self.is_open:
            self._marks.enter(group)

    def leave(self) -> None:
        """The rank ceases to wait."""
        if self.is_open:
            self._marks.leave()


class _MarksInGroup:
    """Marks whose waits are in one group, and in which the end of a backward ends no step."""

    def __init__(self, waits: GroupWaits, group: str) -> None:
        self._waits, self._group = waits, group

    def enter(self) -> None:
        self._waits.enter(self._group)

    def leave(self) -> None:
        self._waits.leave()

    end = leave
