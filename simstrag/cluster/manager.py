"""The contract of a manager: may a job leave its barrier, and whom does that delay?

A job is at its barrier while each of its updates waits for all its ranks.  A manager has no clock
and no random numbers, and does no I/O.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from simstrag.cluster import managers
from simstrag.cluster.constants import Constants
from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

__all__ = ["LeaveAnswer", "LeaveRequest", "ManagedJob", "Manager", "Need", "load_manager", "names"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Need:
    """What a job that leaves its barrier uses more of, on the node of one of its server shards.

    cores: of the processors.  bytes: bytes/s of the card, in each direction.
    """

    node: int
    cores: float
    bytes: float


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """A job asks to leave its barrier.

    number: of its arrival.
    saving: seconds per iteration: the slowest rank's over the slowest one's that is no straggler.
    """

    number: int
    saving: float
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ManagedJob:
    """A running job as a manager sees it.

    at_barrier: whether it is at its barrier, and may not leave it either.
    gradients: how many it has applied.
    seconds: of each rank, an iteration without waiting.
    nodes: of each rank.
    constants: what it would free, and how sensitive it is.
    """

    number: int
    at_barrier: bool
    gradients: float
    seconds: Floats
    nodes: tuple[int, ...]
    constants: Constants

    def slack(self, node: int) -> float:
        """Seconds for which its ranks on a node wait for its slowest one, together."""
        waits = self.seconds.max() - self.seconds
        return float(waits[np.array(self.nodes) == node].sum())


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """Whether a job may leave, and seconds by which others are delayed per iteration, by number.

    A job that is delayed by 0 s gives what it leaves idle while it waits, and loses nothing.
    """

    granted: bool
    delays: Mapping[int, float] = field(default_factory=dict)


@runtime_checkable
class Manager(Protocol):
    """Answers jobs that want to leave their barriers.

    asked: whether jobs ask it at all; else each leaves when its policy says so.
    """

    asked: bool

    def answer(
        self, request: LeaveRequest, spare: Floats, others: Sequence[ManagedJob]
    ) -> LeaveAnswer:
        """Whether the job may leave.

        spare: shape (nodes, 3): cores and bytes/s, inwards and outwards, that nobody asks for;
            below 0 where a job that has not left yet was promised what others leave idle.
        others: all other running jobs.
        """
        ...


def names() -> tuple[str, ...]:
    """The shipped managers.

    >>> names()
    ('none', 'refuse', 'star')
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(managers.__path__)))


def load_manager(name: str) -> Manager:
    """A new manager.  Raises `InputError` for an unknown name."""
    if name not in names():
        known = ", ".join(names())
        raise InputError(f"there is no manager '{name}'; known: {known}{nearest(name, names())}")
    module = importlib.import_module(f"{managers.__name__}.{name}")
    manager: Manager = module.make()
    return manager
