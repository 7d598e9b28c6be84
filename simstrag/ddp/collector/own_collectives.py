"""Marks of the waits in a script's own collectives, where one group of all ranks trains a model.

Trainers sum tokens, average losses or wait at barriers between steps.  A rank that waits there for
a slow one does not compute.  Only collectives that all ranks leave together are marked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.compiler import is_compiling
from torch.distributed import distributed_c10d

from simstrag.ddp.collector.stand_ins import StandIns, argument
from simstrag.ddp.collector.step_marks import StepMarks

COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor",
)  # fmt: skip
"""Functions of `torch.distributed`; releases of torch have some of them."""


def mark_collectives(marks: StepMarks, stand_ins: StandIns) -> None:
    """Mark waits in collectives of all ranks, until the functions that stand in are closed.

    FSDP2's own on a CPU are among them.  What is begun with `async_op` is not marked.
    """
    world = dist.get_world_size()

    def waiting(original: Callable[..., Any]) -> Callable[..., Any]:
        group_of, begins = argument(original, "group"), argument(original, "async_op")

        def call(*arguments: Any, **named: Any) -> Any:
            group = group_of(*arguments, **named)
            is_whole = group is None or dist.get_world_size(group) == world
            if not is_whole or begins(*arguments, **named) or is_compiling():
                return original(*arguments, **named)
            marks.enter()
            try:
                return original(*arguments, **named)
            finally:
                marks.leave()

        return call

    for name in COLLECTIVES:
        for module in (dist, distributed_c10d):  # scripts call the first, its own objects the other
            stand_ins.replace(module, name, waiting)
