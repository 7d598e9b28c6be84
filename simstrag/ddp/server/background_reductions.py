"""All-reduces that a rank carries out while it computes, in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from simstrag.ddp.allreduce.hook import ProcessGroups
    from simstrag.ddp.server.client import Client
    from simstrag.ddp.server.messages import Reduce


ENDING = 2.0
"""Seconds in which the thread ends, unless it still waits for a rank to join a process group."""


class BackgroundReductions:
    """A thread that carries out all-reduces one after the other, in the order of their commands.

    client: brings the commands, and reports to the server that an all-reduce has ended or failed.
    groups: in which they are, and nothing else is.
    bring: returns this rank's part of a sum, in a new tensor.
    sums: what has been summed with a part of this rank in it, by the number of the all-reduce.
    """

    def __init__(
        self, client: Client, groups: ProcessGroups, bring: Callable[[Reduce], torch.Tensor]
    ) -> None:
        self._client, self._groups, self._bring = client, groups, bring
        self.sums: dict[int, torch.Tensor] = {}
        self._is_busy = False
        self._thread = threading.Thread(target=self._run, name="simstrag-reductions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; an all-reduce that is under way fails, on the other ranks too."""
        self._client.reductions.put(None)
        if self._is_busy:
            self._groups.abort()
        self._thread.join(ENDING)

    def _run(self) -> None:
        while (command := self._client.reductions.get()) is not None:
            self._is_busy = True
            total = self._bring(command)
            ended = reduce_among(self._groups, command, total)
            if ended and command.weights[command.members.index(command.rank)]:
                self.sums[command.closing] = total
            self._is_busy = False
            self._client.report_end(command.closing, failed=not ended)


def reduce_among(groups: ProcessGroups, command: Reduce, total: torch.Tensor) -> bool:
    """Sum a tensor among the members of an all-reduce, in place; whether that succeeded."""
    if len(command.members) == 1:
        return True
    if command.again:
        groups.close(command.members)
    try:
        dist.all_reduce(total, group=groups.get(command.members))
    except RuntimeError:  # a member is lost, and the server finds out
        groups.abort(command.members)  # others may wait for this one
        return False
    return True
