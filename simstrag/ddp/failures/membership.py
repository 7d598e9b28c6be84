"""A rank's place among the others: where it says it is, and whom it blames when they fail it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from simstrag.ddp.failures.diagnosis import Diagnosis
from simstrag.ddp.failures.heartbeat import HeartbeatStore
from simstrag.ddp.rendezvous import RankPlace, launcher_holds_store, regroup, shorten_timeout
from simstrag.errors import SimstragError

__all__ = [
    "Membership", "RankFailure", "is_local_error", "launcher_continues", "local_error",
    "server_continues",
]  # fmt: skip

OWN = "_simstrag_own"
"""The mark on an error for which no other rank is to blame."""


class RankFailure(SimstragError, RuntimeError):
    """A rank is lost, or the network between ranks; the message says which, and where it was.

    blame: what the board of heartbeats said.
    """

    def __init__(self, blame: Diagnosis) -> None:
        super().__init__(str(blame))
        self.blame = blame


@contextlib.contextmanager
def local_error() -> Iterator[None]:
    """What fails in here is this rank's own affair, and comes out as it is."""
    try:
        yield
    except Exception as error:
        setattr(error, OWN, True)
        raise


def is_local_error(error: BaseException) -> bool:
    """Whether it is this rank's own affair."""
    return hasattr(error, OWN)


def launcher_continues() -> bool:
    """Whether the launcher lets the others go on when a rank is lost."""
    return os.environ.get("SIMSTRAG_ON_FAULT") == "continue"


def server_continues() -> bool:
    """Whether ranks under a server go on when one is lost: no launcher says that all are to end."""
    return os.environ.get("SIMSTRAG_ON_FAULT", "continue") == "continue"


class Membership:
    """This rank in the present generation of the group.

    joined: how it came there.  Without it there is no board, and errors of collectives come out as
    they are.  stall_limit: seconds of silence after which a rank is given up.
    """

    def __init__(
        self, rank: int, world_size: int, joined: RankPlace | None, stall_limit: float
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.joined, self.stall_limit = joined, stall_limit
        self._board = self._heartbeats()
        self._closed: HeartbeatStore | None = None
        self._running = False

    def mark(self, step: int, phase: str) -> None:
        """Say where this rank is."""
        if self._board is not None:
            self._board.mark(step, phase)

    def first_step_taken(self) -> None:
        """A step has been taken: from now on who is silent for the stall limit is given up."""
        if not self._running and self.joined is not None:
            shorten_timeout(self.joined)
            self._running = True

    def cut_off(self) -> bool:
        """Whether the board's store has not answered for long."""
        return self._board is not None and self._board.unanswered > 0

    @contextlib.contextmanager
    def blaming(self) -> Iterator[None]:
        """A collective or a connection that fails in here raises `RankFailure`, which says whose
        fault it is; who is stopped on this host is killed."""
        try:
            yield
        except (RuntimeError, ConnectionError) as error:
            if self.joined is None or self._board is None:
                raise
            if isinstance(error, SimstragError) or is_local_error(error):
                raise
            apart, blame = self.cut_off(), self._board.blame()
            if isinstance(error, ConnectionError) and not (blame.lost or apart):
                said = f"{error}; no rank is known to be lost"
                blame = replace(blame, ranks=(), kind="server", sentence=said)
            with contextlib.suppress(RuntimeError):  # the store may be gone
                self.end(blame.lost)  # a launcher waits long for one that cannot be told to leave
            self.joined.connections.shut()  # what still waits in the group fails now, not at exit
            raise RankFailure(blame) from error

    def goes_on(self, blame: Diagnosis) -> bool:
        """Whether whoever is left is to go on, this rank among them."""
        ours = self.joined is not None and self.joined.ours
        return launcher_continues() and ours and bool(blame.lost) and self.rank not in blame.lost

    @property
    def all_end(self) -> bool:
        """Whether the loss of any rank is to end all of them."""
        return os.environ.get("SIMSTRAG_ON_FAULT") == "stop" and self.joined is not None

    def end(self, lost: Iterable[int]) -> None:
        """Kill those that are stopped on this host and cannot be told to leave; another one may be
        saying why it failed."""
        for rank in lost:
            there = None if self._board is None else self._board.who(rank)
            if self._board is not None and there is not None and there.state() == "stopped":
                self._board.kill(rank)

    def without(self, lost: Collection[int]) -> int:
        """Meet again without those, ranks numbered anew; the generation of the smaller world.

        Raises `Fenced` where the others go on without this rank too.
        """
        assert self.joined is not None
        assert self._board is not None
        left = [rank for rank in range(self.world_size) if rank not in lost]
        self._board.close("the group is made anew")
        self.joined = regroup(self.joined, left)
        self.rank, self.world_size = self.joined.rank, self.joined.world_size
        self._board = self._heartbeats()
        return self.joined.generation

    def close(self, reason: str = "it was through") -> None:
        """Say that this rank leaves, and why."""
        if self._board is not None:
            self._board.close(reason)
            self._closed = self._board
        self._board = None

    def see_off(self) -> None:
        """After `close`: this rank failed, and whom that concerns may ask why before it ends."""
        if self._closed is not None:
            self._closed.see_off()
        self._closed = None

    def _heartbeats(self) -> HeartbeatStore | None:
        if self.joined is None:
            return None
        joined = self.joined
        return HeartbeatStore(
            joined.store, joined.rank, joined.names, self.stall_limit, joined.connections,
            holds=joined.names[joined.rank] == 0 and not launcher_holds_store(),
        )  # fmt: skip
