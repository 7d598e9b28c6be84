"""A rank's part in averages of models: what it brings to an all-reduce, and takes over from it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from simstrag.ddp.flat_parameters import unflatten
from simstrag.learning.outer_model import OuterModel

if TYPE_CHECKING:
    from simstrag.ddp.allreduce.hook import ProcessGroups
    from simstrag.ddp.replica import Replica
    from simstrag.ddp.server.messages import Compute, Reduce


class ModelAverage:
    """Averages of the models of ranks, or of a fragment of them under outer steps.

    groups: in which models are summed, and nothing else is.
    ended: is called, in a thread of torch, when an all-reduce beside steps has ended: with its
        number and whether it failed.
    state: the state of outer steps in a checkpoint; None where there is none.
    outer: the global parameters under outer steps; None without.

    A mean is taken over only when the update has been made: if a member dies, the all-reduce is
    repeated with the same input.
    """

    def __init__(
        self,
        replica: Replica,
        groups: ProcessGroups,
        rank: int,
        ended: Callable[[int, bool], None],
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._replica, self._groups, self._rank, self._ended = replica, groups, rank, ended
        self.outer: OuterModel | None = None
        self._state = state
        self._brought: torch.Tensor | None = None  # a copy: steps beside it change the model
        self._work: dist.Work | None = None
        self._beside: int | None = None  # number of the all-reduce beside steps
        self._lock = threading.Lock()
        self._mean: torch.Tensor | None = None
        self._fragment, self._version = 0, -1
        buffers = replica.model.buffers()
        self._buffers = [each for each in buffers if each.is_floating_point()]

    @property
    def is_under_way(self) -> bool:
        """Whether this rank has brought its model and not taken the mean over."""
        return self._mean is not None

    def state_dict(self) -> dict[str, Any] | None:
        """The state of outer steps, for a checkpoint; None without."""
        return None if self.outer is None else self.outer.state_dict()

    def prepare(self, command: Compute) -> None:
        """Before a step: take the mean over whose update was made, and meet what the plan needs."""
        self.take_over(command.version)
        if command.outer is not None and self.outer is None:
            flat = self._flat(self._replica.parameters)
            self.outer = OuterModel(flat, command.outer, command.fragments)
            if self._state is not None:
                self.outer.load_state_dict(self._state)
            if len(command.partners) > 1:
                with contextlib.suppress(RuntimeError):  # a member is lost: its all-reduce fails
                    self._groups.get(command.partners)

    def begin(self, command: Reduce, version: int) -> None:
        """Begin an all-reduce, beside which the rank goes on; version: of its last step."""
        self._brought, self._version = self._own(command.fragment), version
        self._beside, mean = command.closing, self._weighed(command, self._brought)
        if len(command.members) == 1:
            self._ended(command.closing, False)
            return

        def end(future: torch.futures.Future[Any]) -> None:
            try:
                future.value()
            except RuntimeError:
                self._fail(command.closing)
            else:
                self._ended(command.closing, False)

        try:
            group = self._groups.get(command.members)
            self._work = dist.all_reduce(mean, group=group, async_op=True)
            self._work.get_future().add_done_callback(end)
        except RuntimeError:
            self._fail(command.closing)

    def _fail(self, closing: int) -> None:
        """Report a failed all-reduce beside steps, and abort it for members that still wait."""
        with self._lock:  # another thread may be about to repeat it in a new group
            if self._beside == closing:
                self._groups.abort()
        self._ended(closing, True)

    def reduce(self, command: Reduce) -> bool:
        """Carry out an all-reduce; whether it succeeded."""
        own = self._brought
        if own is None:
            own = self._own(command.fragment)
        else:  # the one beside steps has failed at some rank, and its group with it
            with self._lock:
                self._beside = None
                self._groups.abort()
            self._wait()
            self._groups.close()
        mean = self._weighed(command, own)
        if len(command.members) > 1:
            try:
                dist.all_reduce(mean, group=self._groups.get(command.members))
            except RuntimeError:
                return False
        return True

    def take_over(self, version: int) -> None:
        """Take the mean over, if there is one and its update has been made.

        version: of the parameters from which the next step begins.
        """
        if self._mean is None or version <= self._version:
            return
        self._wait()
        parameters, mean = self._replica.parameters, self._mean
        if self.outer is None:
            unflatten(mean, [*parameters, *self._buffers])
        else:
            place = self.outer.places[self._fragment]
            length = place.stop - place.start
            self.outer.step(self._fragment, mean[:length])
            model = self._flat(parameters)
            self.outer.take_over(self._fragment, model)
            unflatten(model, parameters)
            unflatten(mean[length:], self._buffers)
        self._mean = self._brought = None
        self._version = -1

    def close(self) -> None:
        """Give up an all-reduce that is under way, on the other ranks too."""
        if self._work is not None and not self._work.is_completed():
            self._groups.abort()
        self._wait()

    def _own(self, fragment: int) -> torch.Tensor:
        """What this rank brings: its model, or a fragment of it, and its floating buffers."""
        parameters = self._replica.parameters
        if self.outer is None:
            return self._flat([*parameters, *self._buffers])
        part = self._flat(parameters)[self.outer.places[fragment]]
        return torch.cat([part, self._flat(self._buffers)])

    def _flat(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = [each.detach().reshape(-1).to(self._replica.dtype) for each in tensors]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=self._replica.dtype)

    def _weighed(self, command: Reduce, own: torch.Tensor) -> torch.Tensor:
        """This rank's part of a mean, which the all-reduce makes the whole."""
        weight = command.weights[command.members.index(self._rank)]
        self._mean = own * weight if weight else torch.zeros_like(own)
        self._fragment = command.fragment
        return self._mean

    def _wait(self) -> None:
        """Wait for the all-reduce beside steps."""
        if self._work is not None:
            with contextlib.suppress(RuntimeError):  # `ended` has reported it to the server
                self._work.wait()
            self._work = None
