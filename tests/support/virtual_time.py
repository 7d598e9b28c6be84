"""Time that a test tells: the clock of a rank stands still unless the rank computes or waits.

    def rank_trains(rank: int, world: int, folder: str) -> None:
        with virtual_time() as clock:
            model = DistributedDataParallel(...)  # whose forward calls clock.compute(0.1)
            with record(model, folder, look_every=0):
                ...

Who waits for a collective is moved to the time at which its latest member began it, who waits for
a message to the time at which it was sent.  Nothing else takes time, so that a record is the same
on an idle machine and on a busy one.  Ranks tell each other their times through the store of their
process group, beside what they send.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.distributed import PrefixStore
from torch.distributed import _functional_collectives as functional
from torch.distributed.distributed_c10d import (
    ProcessGroup,
    Work,
    _get_default_group,
    _get_default_store,
    _resolve_process_group,
)
from torch.nn.parallel import DistributedDataParallel

import simstrag.ddp.collector.record as recording
from simstrag.ddp.collector import step_marks
from simstrag.ddp.collector.record import StepRecorder
from simstrag.ddp.collector.stand_ins import StandIns, argument

BLOCKING = (
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "barrier",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor",
)  # fmt: skip
FUNCTIONAL = (
    "all_gather_single", "all_gather_tensor", "all_reduce", "reduce_scatter_single",
    "reduce_scatter_tensor",
)  # fmt: skip
"""Collectives that the tests' models use, by the names of several releases of torch."""


class VirtualTime:
    """The clock of one rank, in seconds."""

    reason, immediate = "told by a test", True

    def __init__(self) -> None:
        self.now = 0.0
        self._counts = Counter[str]()
        self._tensors: dict[int, list[str]] = {}
        self._works: dict[int, tuple[Work, list[str]]] = {}

    def compute(self, seconds: float) -> None:
        """The rank computes for so long."""
        self.now += seconds

    def mark(self) -> float:
        """Now."""
        return self.now

    def is_past(self, mark: float) -> bool:
        """Always true."""
        return True

    def seconds(self, begin: float, end: float) -> float:
        """All of them are computing."""
        return end - begin

    def taken(self, begin: float, end: float) -> float:
        """Seconds that other threads take: none."""
        return 0.0

    def join(self, model: DistributedDataParallel) -> None:
        """Let ranks wait for each other at the end of DDP's backwards, whose reductions C++ calls.

        Called once a recorder has its hooks there: the wait is marked before the clock moves.
        """

        def wait_after_backward(_: torch.Tensor) -> None:
            if model.require_backward_grad_sync:
                Variable._execution_engine.queue_callback(
                    lambda: self._wait(self._begin(model.process_group))
                )

        first = next(each for each in model.parameters() if each.requires_grad)
        first.register_hook(wait_after_backward)  # type: ignore[no-untyped-call]

    @property
    def _store(self) -> PrefixStore:
        return PrefixStore("virtual time", _get_default_store())

    def _begin(self, group: Any) -> list[str]:
        """Tell when this rank begins a collective; where the times of all its members stand."""
        name = functional._resolve_group_name(_get_default_group() if group is None else group)
        self._counts[name] += 1
        key = f"{name} {self._counts[name]}"
        self._store.set(f"{key} {dist.get_rank()}", self.now.hex())
        members = dist.get_process_group_ranks(_resolve_process_group(name))
        return [f"{key} {rank}" for rank in members]

    def _wait(self, keys: list[str]) -> None:
        times = self._store.multi_get(keys) if keys else []
        self.now = max([self.now, *(float.fromhex(each.decode()) for each in times)])

    def _message(self, group: ProcessGroup, source: int, target: int, tag: int) -> str:
        name = f"{group.group_name} {source} to {target}, {tag}"
        self._counts[name] += 1
        return f"{name}: {self._counts[name]}"

    def _blocking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        group_of = argument(original, "group")

        def call(*arguments: Any, **named: Any) -> Any:
            keys = self._begin(group_of(*arguments, **named))
            work = original(*arguments, **named)
            if work is None:
                self._wait(keys)
            else:
                self._works[id(work)] = work, keys
            return work

        return call

    def _functional(self, original: Callable[..., Any]) -> Callable[..., Any]:
        group_of = argument(original, "group")

        def call(*arguments: Any, **named: Any) -> Any:
            keys = self._begin(group_of(*arguments, **named))
            result = original(*arguments, **named)
            memory = getattr(result, "elem", result).untyped_storage()
            self._tensors[memory.data_ptr()] = keys
            return result

        return call

    def _waiting_for_tensor(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(tensor: torch.Tensor) -> Any:
            self._wait(self._tensors.pop(tensor.untyped_storage().data_ptr(), []))
            return original(tensor)

        return wait

    def _waiting_for_work(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Work, *arguments: Any, **named: Any) -> Any:
            _, keys = self._works.pop(id(work), (work, []))
            self._wait(keys)
            return original(work, *arguments, **named)

        return wait

    def _sending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def send(group: ProcessGroup, tensors: Any, peer: int, tag: int) -> Any:
            self._store.set(self._message(group, group.rank(), peer, tag), self.now.hex())
            return original(group, tensors, peer, tag)

        return send

    def _receiving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def receive(group: ProcessGroup, tensors: Any, peer: int, tag: int) -> Any:
            work = original(group, tensors, peer, tag)
            self._works[id(work)] = work, [self._message(group, peer, group.rank(), tag)]
            return work

        return receive

    def stand_in(self, stand_ins: StandIns) -> None:
        """Let functions of torch move this clock; recorders that open later stand around them."""
        for name in BLOCKING:
            stand_ins.replace(dist, name, self._blocking)
        for name in FUNCTIONAL:
            stand_ins.replace(functional, name, self._functional)
        stand_ins.replace(functional, "wait_tensor", self._waiting_for_tensor)
        stand_ins.replace(ProcessGroup, "send", self._sending)
        stand_ins.replace(ProcessGroup, "recv", self._receiving)
        stand_ins.replace(Work, "wait", self._waiting_for_work)


@contextlib.contextmanager
def virtual_time() -> Iterator[VirtualTime]:
    """The clock of this rank, which recorders read instead of the host's."""
    clock, stand_ins, attach = VirtualTime(), StandIns(), StepRecorder.__init__

    def attach_and_join(recorder: StepRecorder, model: nn.Module, *arguments: Any) -> None:
        attach(recorder, model, *arguments)
        if isinstance(model, DistributedDataParallel):
            clock.join(model)

    clock.stand_in(stand_ins)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StepRecorder, "__init__", attach_and_join)
            patch.setattr(recording, "_clock", lambda *_: clock)
            for module in (recording, step_marks):
                patch.setattr(module, "time", SimpleNamespace(monotonic=clock.mark))
            yield clock
    finally:
        stand_ins.close()
