"""Records the first model in a wrapper whose training begins, whatever framework wrapped it.

A global hook looks at each forward until it finds DDP, FSDP2 or Megatron's DDP, and is then gone.
Ranks agree through the store that all of them can record, and obey the first verdict there, so none
waits for one that cannot.  The collector is loaded only then.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.frameworks.record_folder import require_new
from simstrag.ddp.frameworks.scalars import scalars

if TYPE_CHECKING:  # a process that trains nothing, such as a data loader's, does not load these
    from simstrag.ddp import StepRecorder

PATIENCE = 60.0
"""Seconds in which all ranks must begin their first training forward."""
OPTIMIZER_STEPS = 20
"""Optimizer steps without a wrapped model after which nobody looks any more."""
ONE_PROCESS = "the job is one process, and nobody waits for it"
TOO_LATE = f"ranks began to train more than {PATIENCE:.0f} seconds apart"
NO_WRAPPER = "no model in DistributedDataParallel or fully_shard() began to train"
_agreements = itertools.count()  # a later model of the process reads no verdict of the first


class FirstModelRecorder:
    """The record of the first wrapped model that begins to train in this process.

    out: a new folder; without one, slow ranks are named and nothing is written.
    found: called once a model is recorded.

    Later it does not raise: what stands in the way of a record is one warning.  Raises `InputError`
    for a folder that has a record.
    """

    def __init__(self, out: str | Path | None, found: Callable[[], None] = lambda: None) -> None:
        self._out = None if out is None else Path(out)
        if self._out is not None:
            require_new(self._out)
        self._found, self._process = found, os.getpid()
        self._bare: WeakSet[nn.Module] = WeakSet()
        self._optimizer_steps = 0
        self.recorder: StepRecorder | None = None
        self.reason = ONE_PROCESS
        self._hooks: list[Any] = [
            register_module_forward_pre_hook(self._look),
            register_optimizer_step_post_hook(self._count),
        ]

    def scalars(self) -> dict[str, float]:
        """Seconds of the newest step by name; empty before there is one."""
        return scalars(self.recorder)

    def close(self) -> None:
        """End the record; a warning if there is none."""
        self._stop()
        if self.recorder is not None:
            self.recorder.close()
        elif self.reason:
            warn(f"nothing was recorded: {self.reason}")
            self.reason = ""

    def _stop(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _count(self, *_: Any) -> None:
        self._optimizer_steps += 1
        if self._optimizer_steps >= OPTIMIZER_STEPS:
            self._stop()

    def _look(self, module: nn.Module, _: Any) -> None:
        """See whether a forward that begins is the one; other forwards cost little."""
        if not (module.training and torch.is_grad_enabled() and dist.is_initialized()):
            return
        if dist.get_world_size() == 1 or module in self._bare:
            return
        if os.getpid() != self._process:  # a data loader's, forked from a rank
            self._stop()
            return
        model = getattr(module, "_orig_mod", module)  # in torch.compile
        self.reason = NO_WRAPPER
        if not is_wrapped(model):
            self._bare.add(module)
            return
        self._stop()
        try:
            self._begin(model)
        except Exception as error:  # of ours: the job goes on
            self.reason = ""
            warn(f"nothing is recorded: {str(error).partition(chr(10))[0]}")

    def _begin(self, model: nn.Module) -> None:
        self.reason = ""
        if not spans_world(model):
            raise RuntimeError(
                "the model does not span all ranks, as in pipelines; call "
                "simstrag.ddp.record(stage, out, mesh=mesh) in the script"
            )
        if self._agree(_problem(self._out)):
            from simstrag.ddp import record

            self.recorder = record(model, self._out)
            self._found()

    def _agree(self, problem: str) -> bool:
        """Whether all ranks can record; a rank that cannot says why, else rank 0 does."""
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        rank, keys = dist.get_rank(), [str(k) for k in range(dist.get_world_size())]
        prefix = f"simstrag first model {next(_agreements)} {self._out}"
        store = PrefixStore(prefix, _get_default_store())
        store.set(str(rank), problem)
        try:
            store.wait(keys, timedelta(seconds=PATIENCE))
            problems = [each.decode() for each in store.multi_get(keys) if each]
        except RuntimeError:
            problems = [TOO_LATE]
        verdict = store.compare_set("verdict", "", "no" if problems else "yes")
        if verdict == b"yes":  # also where this rank's patience had just ended
            return True
        if problem or rank == 0:
            warn(f"nothing is recorded: {problem or (problems or [TOO_LATE])[0]}")
        return False


def is_wrapped(model: nn.Module) -> bool:
    """Whether ranks reduce a model's gradients: DDP, Megatron's, or parameters on a mesh."""
    from torch.distributed.tensor import DTensor

    return (
        isinstance(model, DistributedDataParallel)
        or hasattr(model, "finish_grad_sync")
        or any(isinstance(each, DTensor) for each in model.parameters())
    )


def spans_world(model: nn.Module) -> bool:
    """Whether every rank has a part of this model, and so begins its forward by itself."""
    from torch.distributed.tensor import DTensor

    world = dist.get_world_size()
    if isinstance(model, DistributedDataParallel):
        return dist.get_world_size(model.process_group) == world
    if hasattr(model, "finish_grad_sync"):  # Megatron's
        return dist.get_world_size(model.dp_cp_group) == world  # type: ignore[arg-type]
    return any(
        each.device_mesh.size() == world for each in model.parameters() if isinstance(each, DTensor)
    )


def _problem(out: Path | None) -> str:
    """Why this rank cannot write its record; empty if it can."""
    if out is None:
        return ""
    path = out / f"rank-{dist.get_rank()}.csv"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return f"{path}: a job was recorded there; choose another folder"
        with path.open("xb"):
            path.unlink()
    except OSError as error:
        return f"{path}: cannot be written: {error.strerror}"
    return ""
