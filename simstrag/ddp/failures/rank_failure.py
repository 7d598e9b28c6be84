"""A rank's place in its group: it reports where it is, and turns errors into diagnoses."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from simstrag.ddp import plain_collectives
from simstrag.ddp.failures.diagnosis import FailureDiagnosis, RankFailure
from simstrag.ddp.failures.heartbeat import HeartbeatStore
from simstrag.ddp.rendezvous import (
    RankPlace,
    go_on_without,
    goes_on,
    shorten_timeout,
    start_heartbeat,
)
from simstrag.errors import SimstragError

if TYPE_CHECKING:
    from simstrag.ddp.sharded.replica_ranks import ReplicaRanks

T = TypeVar("T")

LOCAL = "_simstrag_local"
"""Attribute that marks an error caused by this rank itself."""


@contextlib.contextmanager
def local_error() -> Iterator[None]:
    """Mark errors raised in this block as caused by this rank, so that they are not diagnosed.

    Those of a collective are diagnosed: a sharded model's forward and backward have some.
    """
    try:
        yield
    except Exception as error:
        if not is_of_collective(error):
            setattr(error, LOCAL, True)
        raise


def is_of_collective(error: BaseException) -> bool:
    """Whether torch raised an error because a collective failed."""
    known = type(error).__name__.startswith("Dist") or "gloo" in str(error)
    return isinstance(error, RuntimeError) and known


def is_local_error(error: BaseException) -> bool:
    """Whether this rank itself caused an error."""
    return hasattr(error, LOCAL)


def server_continues() -> bool:
    """Whether, under a server, the other ranks go on when one is lost; true without a launcher."""
    return os.environ.get("SIMSTRAG_ON_FAULT", "continue") == "continue"


class Stage(enum.IntEnum):
    """The stage of a rank in the joint work; after a loss all go on from the lowest."""

    AGREEING = 0
    """In `wrap`, where ranks agree on what they train."""
    BEGINNING = 1
    """Before the first step."""
    TRAINING = 2


class Membership:
    """This rank in the present generation of the group.

    joined: its place; without one there are no heartbeats, and errors come out undiagnosed.
    layout: of replicas of several ranks; None where there are none.
    stall_limit: seconds of silence after which a rank is given up.
    """

    def __init__(
        self, rank: int, world_size: int, joined: RankPlace | None, stall_limit: float
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.joined, self.stall_limit = joined, stall_limit
        self._heartbeat: HeartbeatStore | None = None
        if joined is not None:
            begun = joined.heartbeat
            self._heartbeat = start_heartbeat(joined) if begun is None or begun.closed else begun
            self._heartbeat.stall_limit = stall_limit
        self._closed: HeartbeatStore | None = None
        self._running = False
        self.layout: ReplicaRanks | None = None

    def mark(self, step: int, phase: str) -> None:
        """Report this rank's step and phase."""
        if self._heartbeat is not None:
            self._heartbeat.mark(step, phase)

    def first_step_taken(self) -> None:
        """From the first step on, a rank that is silent for the stall limit is given up."""
        if not self._running and self.joined is not None:
            shorten_timeout(self.joined)
            self._running = True
            if self._heartbeat is not None:
                self._heartbeat.first_step_taken()

    def cut_off(self) -> bool:
        """Whether the heartbeat store has not answered for long.

        Raises `RuntimeError` where other ranks set up a smaller group, and wait for this one.
        """
        if self._heartbeat is not None and self._heartbeat.is_called:
            raise RuntimeError("a rank was lost, and the others begin anew")
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
            cut_off, diagnosis = self._heartbeat.unanswered > 0, self._heartbeat.diagnose()
            if self.layout is not None:
                sentence = f"{diagnosis.sentence}{self.layout.describe(diagnosis.lost)}"
                diagnosis = replace(diagnosis, sentence=sentence)
            if isinstance(error, ConnectionError) and not (diagnosis.lost or cut_off):
                sentence = f"{error}; no rank is known to be lost"
                diagnosis = replace(diagnosis, ranks=(), kind="server", sentence=sentence)
            with contextlib.suppress(RuntimeError):  # the store may be gone
                self.end(diagnosis.lost)  # the launcher waits long for a process that is stopped
            self.joined.connections.shut()  # pending collectives fail now, not at exit
            raise RankFailure(diagnosis) from error

    def persist(self, act: Callable[[Stage | None], T], stage: Callable[[], Stage | None]) -> T:
        """What a collective act returns, which ranks repeat where one is lost and they go on.

        act: called with None, and after a loss with the stage from which all ranks go on: that of
            the rank that is least far.
        stage: how far this rank is; None where no smaller world can go on.
        Raises `RankFailure` where ranks do not go on.
        """
        agreed: Stage | None = None
        while True:
            try:
                with self.diagnose():
                    return act(agreed)
            except RankFailure as failure:
                at, joined = stage(), self.joined
                if at is None or joined is None or not goes_on(joined, failure.diagnosis):
                    raise
                agreed = self._go_on_without(failure.diagnosis, at)

    def _go_on_without(self, diagnosis: FailureDiagnosis, stage: Stage) -> Stage:
        """Form the group again without lost ranks; returns the stage of the one least far.

        Raises `Fenced` if the others re-formed it without this rank.
        """
        while True:
            assert self.joined is not None
            self.joined = go_on_without(self.joined, diagnosis, patient=not self._running)
            self.rank, self.world_size = self.joined.rank, self.joined.world_size
            self._heartbeat = self.joined.heartbeat
            if self._running and self._heartbeat is not None:
                self._heartbeat.first_step_taken()
            try:
                with self.diagnose():
                    return Stage(min(plain_collectives.gather(int(stage))))
            except RankFailure as failure:
                if not goes_on(self.joined, failure.diagnosis):
                    raise
                diagnosis = failure.diagnosis

    @property
    def all_end(self) -> bool:
        """Whether the loss of any rank ends all of them."""
        ends = os.environ.get("SIMSTRAG_ON_FAULT") in ("stop", "restart")
        return ends and self.joined is not None

    def has_to_end(self) -> bool:
        """Whether a rank has ended whose loss ends all of them."""
        heartbeat = self._heartbeat
        return heartbeat is not None and self.all_end and heartbeat.some_ended

    def end(self, lost: Iterable[int]) -> None:
        """Kill lost ranks that are stopped on this host; a running one may be reporting its end."""
        for rank in lost:
            process = None if self._heartbeat is None else self._heartbeat.who(rank)
            if self._heartbeat and process is not None and process.state() == "stopped":
                self._heartbeat.kill(rank)

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
