"""A rank's place in its group: it reports where it is, and turns errors into diagnoses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from simstrag.ddp.failures.diagnosis import Diagnosis
from simstrag.ddp.failures.heartbeat import HeartbeatStore
from simstrag.ddp.rendezvous import RankPlace, launcher_holds_store, regroup, shorten_timeout
from simstrag.errors import SimstragError

LOCAL = "_simstrag_local"
"""Attribute that marks an error caused by this rank itself."""


class RankFailure(SimstragError, RuntimeError):
    """A rank is lost, or the network between ranks; the message names it, its step and phase."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(str(diagnosis))
        self.diagnosis = diagnosis


@contextlib.contextmanager
def local_error() -> Iterator[None]:
    """Mark errors raised in this block as caused by this rank, so that they are not diagnosed."""
    try:
        yield
    except Exception as error:
        setattr(error, LOCAL, True)
        raise


def is_local_error(error: BaseException) -> bool:
    """Whether this rank itself caused an error."""
    return hasattr(error, LOCAL)


def server_continues() -> bool:
    """Whether, under a server, the other ranks go on when one is lost; true without a launcher."""
    return os.environ.get("SIMSTRAG_ON_FAULT", "continue") == "continue"


class Membership:
    """This rank in the present generation of the group.

    joined: its place; without one there are no heartbeats, and errors come out undiagnosed.
    stall_limit: seconds of silence after which a rank is given up.
    """

    def __init__(
        self, rank: int, world_size: int, joined: RankPlace | None, stall_limit: float
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.joined, self.stall_limit = joined, stall_limit
        self._heartbeat = self._start_heartbeat()
        self._closed: HeartbeatStore | None = None
        self._running = False

    def mark(self, step: int, phase: str) -> None:
        """Report this rank's step and phase."""
        if self._heartbeat is not None:
            self._heartbeat.mark(step, phase)

    def first_step_taken(self) -> None:
        """From the first step on, a rank that is silent for the stall limit is given up."""
        if not self._running and self.joined is not None:
            shorten_timeout(self.joined)
            self._running = True

    def cut_off(self) -> bool:
        """Whether the heartbeat store has not answered for long."""
        return self._heartbeat is not None and self._heartbeat.unanswered > 0

    @contextlib.contextmanager
    def diagnose(self) -> Iterator[None]:
        """Turn a failed collective or connection into `RankFailure`, which names the cause.

        A rank that is stopped on this host is killed.
        """
        try:
            yield
        except (RuntimeError, ConnectionError) as error:
            if self.joined is None or self._heartbeat is None:
                raise
            if isinstance(error, SimstragError) or is_local_error(error):
                raise
            cut_off, diagnosis = self.cut_off(), self._heartbeat.diagnose()
            if isinstance(error, ConnectionError) and not (diagnosis.lost or cut_off):
                sentence = f"{error}; no rank is known to be lost"
                diagnosis = replace(diagnosis, ranks=(), kind="server", sentence=sentence)
            with contextlib.suppress(RuntimeError):  # the store may be gone
                self.end(diagnosis.lost)  # the launcher waits long for a process that is stopped
            self.joined.connections.shut()  # pending collectives fail now, not at exit
            raise RankFailure(diagnosis) from error

    def goes_on(self, diagnosis: Diagnosis) -> bool:
        """Whether the remaining ranks go on, this one among them."""
        continues = os.environ.get("SIMSTRAG_ON_FAULT") == "continue"
        ours = self.joined is not None and self.joined.ours
        return continues and ours and bool(diagnosis.lost) and self.rank not in diagnosis.lost

    @property
    def all_end(self) -> bool:
        """Whether the loss of any rank ends all of them."""
        return os.environ.get("SIMSTRAG_ON_FAULT") == "stop" and self.joined is not None

    def end(self, lost: Iterable[int]) -> None:
        """Kill lost ranks that are stopped on this host; a running one may be reporting its end."""
        for rank in lost:
            process = None if self._heartbeat is None else self._heartbeat.who(rank)
            if self._heartbeat and process is not None and process.state() == "stopped":
                self._heartbeat.kill(rank)

    def without(self, lost: Collection[int]) -> int:
        """Form the group again without lost ranks; returns the new generation.

        Raises `Fenced` if the others re-formed it without this rank.
        """
        assert self.joined is not None
        assert self._heartbeat is not None
        left = [rank for rank in range(self.world_size) if rank not in lost]
        self._heartbeat.close("the group is made anew")
        self.joined = regroup(self.joined, left)
        self.rank, self.world_size = self.joined.rank, self.joined.world_size
        self._heartbeat = self._start_heartbeat()
        return self.joined.generation

    def close(self, reason: str = "it was through") -> None:
        """Report that this rank leaves, and why."""
        if self._heartbeat is not None:
            self._heartbeat.close(reason)
            self._closed = self._heartbeat
        self._heartbeat = None

    def linger(self) -> None:
        """After `close` of a rank that failed: let the others read why before it ends."""
        if self._closed is not None:
            self._closed.linger()
        self._closed = None

    def _start_heartbeat(self) -> HeartbeatStore | None:
        if self.joined is None:
            return None
        joined = self.joined
        return HeartbeatStore(
            joined.store, joined.rank, joined.names, self.stall_limit, joined.connections,
            holds=joined.names[joined.rank] == 0 and not launcher_holds_store(),
        )  # fmt: skip
