"""The parameters at the server: their versions, and the version that a rank pulls."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from simstrag.ddp.flat_parameters import split
from simstrag.ddp.server.messages import Apply, Compute
from simstrag.ddp.server.shared_buffer import ExchangeBuffers, allocate_private
from simstrag.ddp.server.summed_norms import SummedNorms
from simstrag.ddp.server.validation_gradient import ValidationGradient, ValidationSpec
from simstrag.errors import InputError
from simstrag.learning.correction import Correction
from simstrag.learning.noise_scale_estimate import NormPair
from simstrag.learning.outer_model import OuterModel
from simstrag.learning.update_rule import WEIGHTED_SUM, UpdateRule


class ParameterStore:
    """Parameters and optimizer of one job, from `pack_optimizer`.

    flat: shape (count,), on the CPU, all parameters in the optimizer's order.
    optimizer: works on `flat`.
    outer: the state of outer steps in a checkpoint; None where there is none.
    version: number of updates. Older parameters are kept for ranks whose next step needs them.
    rule: how single gradients are corrected and tested before they are applied.
    corrected: the state of that in a checkpoint; None where there is none.
    validation: where gradients of the server's own come from; None where they are not needed.
    Raises `InputError` where the optimizer cannot be unpacked here.
    """

    def __init__(
        self,
        packed: bytes,
        version: int = 0,
        rule: UpdateRule = WEIGHTED_SUM,
        outer: Mapping[str, Any] | None = None,
        corrected: Mapping[str, Any] | None = None,
        validation: ValidationSpec | None = None,
    ) -> None:
        try:
            parameters, self.optimizer = pickle.loads(packed)
        except (AttributeError, ImportError) as error:
            raise InputError(
                f"the optimizer cannot be built at the server: {error}; its class must stand in a "
                "module that can be imported, not in the script itself"
            ) from None
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self._gradient = torch.zeros_like(self.flat)
        views = split(self.flat, parameters), split(self._gradient, parameters)
        for parameter, values, gradient in zip(parameters, *views, strict=True):
            parameter.data, parameter.grad = values, gradient
        self.version, self.rule = version, rule
        self._correction: Correction | None = None
        self._validation = validation and ValidationGradient(validation, self.flat, version)
        if rule.corrects:
            self._correction = Correction(rule, self._own_gradient, math.nan)
            if corrected is not None:
                self._correction.load_state_dict(corrected)
        self._buffers: dict[int, ExchangeBuffers] = {}
        self._kept: dict[int, tuple[int, torch.Tensor]] = {}
        self._outer: OuterModel | None = None
        self._outer_state = outer
        self._norms = SummedNorms()
        self._lowest: dict[int, int] = {}  # of the group that passed parameters on to a rank

    def admit(self, rank: int, buffers: ExchangeBuffers) -> None:
        """A rank trains with these buffers; raises `InputError` for a model of another size."""
        one, other = buffers.gradient, self.flat
        if (one.numel(), one.dtype) != (other.numel(), other.dtype):
            raise InputError(
                f"rank {rank} trains {one.numel()} parameters of {one.dtype}, the job "
                f"{other.numel()} of {other.dtype}: all ranks must build the same model"
            )
        self._buffers[rank] = buffers

    def apply(self, apply: Apply, settings: Sequence[bytes]) -> NormPair | None:
        """Make a version; the settings of the optimizer hold from this version on.

        Return what that measures of the gradients' noise, if anything.
        """
        for each in settings:
            self.set(each)
        parts = [
            (gradient, weight)
            for rank, weight in apply.parts
            if (gradient := self._gradient_of(rank, apply.version)) is not None
        ]
        if apply.outer is None:
            self.step(parts)
        elif parts:
            self._step_outer(apply, parts)
        self.version = apply.version
        if not apply.norms or apply.missing:
            return None
        return self._norms.add(apply, self._gradient, self._buffers)

    def _gradient_of(self, rank: int, update: int) -> torch.Tensor | None:
        """The gradient of a rank, after its correction; None where it failed its test."""
        buffers = self._buffers[rank]
        if self._correction is None:
            return buffers.gradient
        self._correction.lr = self.optimizer.param_groups[0]["lr"]
        pulled = buffers.parameters
        return self._correction.correct(buffers.gradient, self.flat, pulled, update)

    def _own_gradient(self, now: torch.Tensor, turn: int, samples: int) -> torch.Tensor:
        assert self._validation is not None
        return self._validation(samples)

    def correction_state(self) -> dict[str, Any] | None:
        """The state of corrections, for a checkpoint; None where there are none."""
        return None if self._correction is None else self._correction.state_dict()

    def set(self, settings: bytes) -> None:
        """Change settings of the optimizer, such as a learning rate, packed by `pack_settings`."""
        for group, own in zip(self.optimizer.param_groups, pickle.loads(settings), strict=True):
            group.update(own)

    def step(self, gradients: Sequence[tuple[torch.Tensor, float]]) -> None:
        """One step of the optimizer with the weighted sum of flat gradients, added up in order.

        Without any gradient nothing changes.
        """
        if gradients:
            self._weighted_sum(gradients)
            self.optimizer.step()

    def _step_outer(self, apply: Apply, parts: Sequence[tuple[torch.Tensor, float]]) -> None:
        """Step a fragment with the mean of what private steps took from the parameters."""
        if self._outer is None:
            assert apply.outer is not None
            self._outer = OuterModel(self.flat, apply.outer, apply.fragments)
            if self._outer_state is not None:
                self._outer.load_state_dict(self._outer_state)
        fragment = (apply.version - 1) % apply.fragments
        place = self._outer.places[fragment]
        mean = self._weighted_sum(parts)[place] / sum(weight for _, weight in parts)
        self._outer.step(fragment, self.flat[place] - mean)
        self.flat[place] = self._outer.flat[place]

    def outer_state(self) -> dict[str, Any] | None:
        """The state of outer steps, for a checkpoint; None where there are none."""
        return None if self._outer is None else self._outer.state_dict()

    def _weighted_sum(self, parts: Sequence[tuple[torch.Tensor, float]]) -> torch.Tensor:
        (first, weight), *others = parts
        torch.mul(first, weight, out=self._gradient)
        for part, weight in others:
            self._gradient.add_(part, alpha=weight)
        return self._gradient

    def keep(self, rank: int) -> None:
        """Keep the present parameters, from which the next step of this rank begins."""
        self._kept[rank] = self.version, self.flat.clone()

    def route(self, compute: Compute) -> Compute:
        """The command, which says whether the parameters go to the lowest member to broadcast them.

        They do unless all members share memory with the server and copy from there. A broadcast
        over the loopback was slower in communication-bound steps: 57 ms instead of 46 (2 ranks,
        20 MB), 92 instead of 86 (4 ranks, 20 MB), 22 instead of 20 (4 ranks, 2 MB).
        """
        near = all(rank in self._buffers and self._buffers[rank].shared for rank in compute.members)
        return compute if near else replace(compute, passed=compute.pull)

    def pull(self, compute: Compute) -> torch.Tensor | None:
        """The parameters that go along with a command; None where none do.

        Parameters that are passed on also stay here, in the buffer of the lowest member: if the
        group falls apart, the others get them from there.  Those by which a gradient is corrected
        stay here too.
        """
        if not compute.pull:
            return None
        lowest = min(compute.members) if compute.passed else compute.rank
        if lowest != compute.rank:
            self._lowest[compute.rank] = lowest
            self._kept.pop(compute.rank, None)
            return None
        flat = self._of(compute)
        if compute.rank not in self._buffers:  # it left before the job began
            self._buffers[compute.rank] = allocate_private(flat.numel(), flat.dtype)
        buffers = self._buffers[compute.rank]
        if compute.passed or buffers.shared or self.rule.compensation is not None:
            buffers.parameters.copy_(flat)
            self._kept[compute.rank] = compute.version, buffers.parameters
            return buffers.parameters
        return flat

    def _of(self, compute: Compute) -> torch.Tensor:
        """The parameters of its version: the present ones, or those kept for a rank."""
        if compute.version == self.version:
            return self.flat
        ranks = compute.rank, self._lowest.get(compute.rank, -1)
        for version, flat in filter(None, map(self._kept.get, ranks)):
            if version == compute.version:
                return flat
        raise AssertionError(f"version {compute.version} is not kept any more")
