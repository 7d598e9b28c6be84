"""What the server holds of the parameters of a job: versions, and which of them a rank gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from simstrag.ddp.parameters import Parameters
from simstrag.ddp.server.messages import Apply, Compute
from simstrag.ddp.server.shared_buffer import Payload, apart
from simstrag.errors import InputError

__all__ = ["Store"]


class Store:
    """The parameters of one job.

    version: that of the parameters.  Older ones are kept for ranks whose next step begins there.
    """

    def __init__(self, packed: bytes, version: int) -> None:
        self.parameters = Parameters(packed)
        self.version = version
        self._memory: dict[int, Payload] = {}
        self._kept: dict[int, tuple[int, torch.Tensor]] = {}
        self._leads: dict[int, int] = {}

    def admit(self, rank: int, memory: Payload) -> None:
        """A rank that trains with this memory."""
        own, ours = memory.gradient, self.parameters.flat
        if (own.numel(), own.dtype) != (ours.numel(), ours.dtype):
            raise InputError(
                f"rank {rank} trains {own.numel()} parameters of {own.dtype}, the job "
                f"{ours.numel()} of {ours.dtype}: all ranks must build the same model"
            )
        self._memory[rank] = memory

    def apply(self, order: Apply, changed: Sequence[bytes]) -> None:
        """Make a version.  changed: settings of the optimizer to be taken over before."""
        for each in changed:
            self.parameters.set(each)
        self.parameters.apply([(self._memory[rank].gradient, w) for rank, w in order.parts])
        self.version = order.version

    def keep(self, rank: int) -> None:
        """The next step of this rank will begin from the present parameters."""
        self._kept[rank] = self.version, self.parameters.flat.clone()

    def routed(self, order: Compute) -> Compute:
        """The order, which says whether its parameters are passed on inside a group.

        Where all of a group share memory with the server, each copies from there: a broadcast over
        the loopback made steps that do little but communicate longer: 57 ms for 46 (2 ranks, 20
        MB), 92 for 86 (4 ranks, 20 MB), 22 for 20 (4 ranks, 2 MB).  Else they go to the lowest of
        them alone.
        """
        near = all(rank in self._memory and self._memory[rank].shared for rank in order.members)
        return order if near else replace(order, passed=order.pull)

    def pulled(self, order: Compute) -> torch.Tensor | None:
        """The parameters that go along with an order to compute.

        Of what is passed on a copy stays here, in the memory of the rank that has it first: if the
        group falls apart meanwhile, the others get it from there.
        """
        if not order.pull:
            return None
        lead = min(order.members) if order.passed else order.rank
        if lead != order.rank:
            self._leads[order.rank] = lead
            self._kept.pop(order.rank, None)
            return None
        flat = self._of(order)
        if order.rank not in self._memory:  # it left before the job began
            self._memory[order.rank] = apart(flat.numel(), flat.dtype)
        memory = self._memory[order.rank]
        if order.passed or memory.shared:
            memory.parameters.copy_(flat)
            self._kept[order.rank] = order.version, memory.parameters
            return memory.parameters
        return flat

    def _of(self, order: Compute) -> torch.Tensor:
        """The parameters of its version: the present ones, or what was kept for a rank."""
        if order.version == self.version:
            return self.parameters.flat
        kept = (self._kept.get(rank) for rank in (order.rank, self._leads.get(order.rank, -1)))
        found = [flat for version, flat in filter(None, kept) if version == order.version]
        assert found, f"version {order.version} is not there any more"
        return found[0]

    def state(self) -> dict[str, Any]:
        """Optimizer and parameters (flat)."""
        parameters = self.parameters
        return {"optimizer": parameters.state(), "parameters": parameters.flat.clone()}
