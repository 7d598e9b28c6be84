"""Full and reduced precision of a model, and the loss scale of fp16.

A rank that runs fp16 has its own loss scale, which the hook divides out before the reduction.  The
reduced gradients are the same bits on all ranks, so all decide alike whether to skip the update.
Ranks may change their format at any step: only ranks that ran fp16 change their scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from simstrag.ddp import plain_collectives
from simstrag.ddp.failures.rank_failure import local_error
from simstrag.errors import InputError
from simstrag.learning.loss_scale import LossScale
from simstrag.workloads.precision import available_precisions, reduced_loss, tensor_cores
from simstrag.workloads.training_task import MIN_GAIN, gain
from simstrag.workloads.workload import map_tensors

PAIRS = {
    "full": ("fp32", ""),
    "bf16": ("fp32", "bf16"),
    "tf32+bf16": ("tf32", "bf16"),
    "fp16": ("fp32", "fp16"),
    "stand-in": ("fp64", "fp32_of_fp64"),
}
"""Full and reduced precision by the user's word; "" is none; "auto" chooses one pair."""

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}

LABELS = {
    ("fp64", "fp32_of_fp64"): "fp64 and fp32 compute on fp64 parameters (stand-in)",
    ("fp32", ""): "fp32 only",
}

PATIENCE = 10.0
"""Seconds after which no more steps are timed than are needed."""

Closure = Callable[[], torch.Tensor]
"""Computes the user's loss of the bare model for one batch."""


@contextmanager
def without_side_effects(model: nn.Module) -> Iterator[None]:
    """Restore buffers and torch's random state after trial steps."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for name, buffer in model.named_buffers():
                buffer.data.copy_(before[name])


def check_loss(loss: object) -> torch.Tensor:
    """The loss that a closure returned; raises `InputError` for anything else."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise InputError(
            "the closure given to step() must return the loss: a tensor of one element that "
            "needs a gradient, the mean over the batch"
        )
    return loss


class ComputedLoss(nn.Module):
    """The module that DDP wraps: `ddp(closure)` is the loss, and the closure uses the bare model.

    format: the number format to compute in.  Casts are inside, so that DDP sees the optimizer's
        parameters.
    """

    def __init__(self, model: nn.Module, format: str, device: str) -> None:
        super().__init__()
        self.model = model
        self.format = format
        self.device = device
        self._in_float32 = reduced_loss(model, lambda _, closure: closure())

    def forward(self, closure: Closure) -> torch.Tensor:
        if self.format == "fp32_of_fp64":
            return self._in_float32(closure)
        if self.format in AUTOCAST:
            with torch.autocast(self.device, AUTOCAST[self.format]):
                return closure()
        return closure()

    def cast(
        self, _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Cast the bare model's floating inputs to the present format of the stand-in."""
        dtype = torch.float32 if self.format == "fp32_of_fp64" else torch.float64

        def changed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        return map_tensors(arguments, changed), map_tensors(named, changed)


class NumberFormats:
    """The two number formats of one rank's model.

    precision: "auto" or one of `PAIRS`.
    module: the module for DDP; it is called with a closure.

    On a GPU "auto" is TF32 and bf16, before Ampere fp32 and fp16.  On a CPU it is fp32 and bf16
    where bf16 is measured more than 1.15 times as fast, else fp32 only, without reduced precision.
    The stand-in imitates mixed precision where the CPU has none: full precision is fp64, reduced
    fp32.  It converts the model to float64, and casts the floating inputs of its `forward`.

    >>> model = nn.Linear(3, 1)
    >>> formats = NumberFormats(model, "stand-in")
    >>> with formats.context(amp=True):
    ...     loss = formats.module(lambda: model(torch.ones(2, 3)).mean())
    ...     formats.scaled(loss).backward()
    >>> loss.dtype, model.weight.grad.dtype, formats.label
    (torch.float32, torch.float64, 'fp64 and fp32 compute on fp64 parameters (stand-in)')
    """

    loss_module: type[ComputedLoss] = ComputedLoss

    def __init__(self, model: nn.Module, precision: str = "auto") -> None:
        if precision not in ("auto", *PAIRS):
            known = ", ".join(("auto", *PAIRS))
            raise InputError(f"there is no precision {precision!r}; known: {known}")
        place = next((p.device for p in model.parameters()), torch.device("cpu"))
        if precision == "tf32+bf16" and place.type == "cpu":
            raise InputError("precision 'tf32+bf16' needs a GPU; on a CPU say 'bf16' or 'auto'")
        self.unsettled = precision == "auto"
        self.gain = math.nan
        if not self.unsettled:
            self.full, self.amp = PAIRS[precision]
        elif place.type == "cpu":
            self.full, self.amp = PAIRS["bf16"]
        else:
            modern = "tf32" in available_precisions(str(place))
            self.full, self.amp = PAIRS["tf32+bf16" if modern else "fp16"]
        self.checks = self.amp == "fp16"
        self.module = self.loss_module(model, self.full, place.type)
        if self.full == "fp64":
            model.to(torch.float64)
            model.register_forward_pre_hook(self.module.cast, with_kwargs=True, prepend=True)
        self._loss_scale = LossScale()
        self._in_fp16 = False

    @property
    def label(self) -> str:
        """Both formats, for reports."""
        return LABELS.get((self.full, self.amp), f"{self.full} and {self.amp} autocast")

    @property
    def refusal(self) -> str:
        """Why there is no reduced precision; "" where there is."""
        if self.unsettled:
            return "which reduced precision this machine has is measured at the first step"
        if self.amp:
            return ""
        if math.isnan(self.gain):
            return "precision 'full' has no reduced precision; say 'auto', 'bf16' or 'stand-in'"
        return (
            f"bf16 was measured {self.gain:.2f} times as fast as fp32 here, and counts as reduced "
            f"precision above {MIN_GAIN}; use a policy that keeps full precision, or "
            "precision='stand-in', which makes the parameters float64"
        )

    def settle(self, closure: Closure) -> None:
        """Decide what "auto" left open, with the closure of the first step; collective.

        On a CPU forward and backward are timed in full and reduced precision, 12 times each in
        turns, or as often as `PATIENCE` allows, unless the gain is known; they leave no trace.  The
        lowest gain of all ranks decides for all.  The gain of a pair that the user asked for is
        recorded, and decides nothing.
        """
        here = self.module.device == "cpu"
        if not self.unsettled and not (here and self.amp and math.isnan(self.gain)):
            return
        if here:
            self.gain = self._measured(closure)
        choices: list[tuple[float, str]] = [(self.gain, self.amp)]
        if dist.is_initialized():
            choices = plain_collectives.gather(choices[0])
        if here:
            self.gain = min(gain for gain, _ in choices)
            if self.unsettled and not self.gain > MIN_GAIN:
                self.amp = ""
        self.checks = "fp16" in {amp for _, amp in choices}
        self.unsettled = False

    def _measured(self, closure: Closure) -> float:
        """The speed of reduced precision relative to full, for this closure."""
        parameters = [p for p in self.module.parameters() if p.requires_grad]

        def stepping(format: str) -> Callable[[int], object]:
            def step(_: int) -> object:
                self.module.format = format
                loss = check_loss(self.module(closure))
                return torch.autograd.grad(loss, parameters, allow_unused=True)

            return step

        return self._compare(stepping, PATIENCE)

    def _compare(self, stepping: Callable[[str], Callable[[int], object]], limit: float) -> float:
        """The gain by steps in both formats, which leave no trace; limit: see `gain`."""
        with without_side_effects(self.module), local_error():
            try:
                return gain(stepping(self.full), stepping(self.amp), 3, 4, limit)
            finally:
                self.module.format = self.full

    @contextmanager
    def context(self, amp: bool) -> Iterator[None]:
        """Full or reduced precision for forward and backward of one step.

        Raises `InputError` with the reason where there is no reduced precision.
        """
        if amp and self.refusal:
            raise InputError(self.refusal)
        chosen = self.amp if amp else self.full
        self._in_fp16 = chosen == "fp16"
        self.module.format = chosen
        try:
            cuda = self.module.device == "cuda"
            with tensor_cores(chosen == "tf32") if cuda else nullcontext():
                yield
        finally:
            self.module.format = self.full

    @property
    def scale(self) -> float:
        """The factor of the last step's loss; the hook divides by it."""
        return self._loss_scale.value if self._in_fp16 else 1.0

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times its scale, for backward."""
        return loss if self.scale == 1 else loss * self.scale

    def finite(self, gradients: Iterable[torch.Tensor | None]) -> bool:
        """Whether all ranks apply the reduced gradients; else all skip them.

        Gradients are checked only if a rank may run fp16 (`checks`); that waits for the device.
        """
        if not self.checks:
            return True
        known = [torch.isfinite(each).all() for each in gradients if each is not None]
        return bool(torch.stack(known).all()) if known else True

    def update(self, finite: bool) -> None:
        """Update the loss scale after a step in fp16, as `GradScaler` does.

        After the reduction the rank that overflowed is unknown, so every rank that ran fp16 lowers
        its scale.
        """
        if self._in_fp16:
            self._loss_scale.update(finite)

    def state_dict(self) -> dict[str, Any]:
        """The scale, its count of finite steps, and the chosen formats."""
        return {
            "scale": self._loss_scale.value, "good": self._loss_scale.finite_steps,
            "full": self.full, "amp": self.amp, "gain": self.gain, "checks": self.checks,
            "unsettled": self.unsettled,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; raises `InputError` for another full precision."""
        if state["full"] != self.full:
            raise InputError(
                f"a checkpoint whose full precision is {state['full']} does not fit {self.full}; "
                "say the same precision as then"
            )
        self._loss_scale = LossScale(state["scale"], state["good"])
        self.amp, self.gain = state["amp"], state["gain"]
        self.checks, self.unsettled = state["checks"], state["unsettled"]
