"""A rank's side of the server: it receives commands, and reports their results."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import queue
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from simstrag.ddp.server import messages
from simstrag.ddp.server.listener import (
    ABORT,
    BEAT,
    ENDED,
    FAILED,
    GONE,
    REDUCE,
    SIGNAL,
    connect_to,
)
from simstrag.ddp.server.shared_buffer import (
    ExchangeBuffers,
    MemoryHandle,
    allocate_private,
    allocate_shared,
    as_bytes,
)
from simstrag.ddp.server.wire import Wire
from simstrag.errors import InputError, SimstragError

STALL_LIMITS = 2
"""Stall limits that a rank waits for the server, which may spend one on a silent rank itself."""

END = b"e"
"""Wakes the thread of heartbeats to end it."""

BEATS = 8
"""Heartbeats in one stall limit, at least."""

T = TypeVar("T")


class ServerFailure(SimstragError, RuntimeError):
    """The server has ended the job; the message says why."""


class Client:
    """The connection of one rank to its server.

    address: the server's address, with the secret of the job.
    cut_off: returns whether the job's store is silent too: a server that is silent alone may be
        waiting for another rank.
    lost: the ranks that the server has lost, and why.
    reductions: all-reduces to carry out beside steps, as they are commanded.

    Every fault of the connection raises `ConnectionError`, which names the server and this rank's
    activity; so does a server that does not admit this rank.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        stall_limit: float = 60.0,
        cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        host, port, _ = address.rsplit(":", 2)
        self.rank, self.stall_limit, self._cut_off = rank, stall_limit, cut_off
        self.name = f"the server at {host}:{port}"
        self.lost: dict[int, str] = {}
        self.reductions: queue.SimpleQueue[messages.Reduce | None] = queue.SimpleQueue()
        self._buffers: ExchangeBuffers | None = None
        self._handle: MemoryHandle | None = None
        self._phase = "connecting"
        self._settings = b""
        self._step = self._version = -1
        self._samples = 0
        connection, limit = connect_to(address, rank, stall_limit, self.name)
        self._wire = Wire(connection, stall_limit, self.name)
        beats, _ = connect_to(address, rank, stall_limit, self.name, beats=True)
        self._heartbeat = Heartbeat(beats, limit, self.reductions)

    # -- the job -----------------------------------------------------------------------------

    def begin(
        self,
        count: int,
        dtype: torch.dtype,
        job: messages.JobSpec | None = None,
        shared: bool = True,
        settings: bytes = b"",
    ) -> None:
        """Report that this rank is ready to train `count` parameters; one of the ranks sends a job.

        shared: use shared memory if the server runs on this host.
        settings: the optimizer's settings, as in the job.
        The first command comes when all ranks have begun.
        """
        self._phase = "setting up"
        ends = self._wire.connection.getsockname(), self._wire.connection.getpeername()
        near = ends[0][0] == ends[1][0]
        allocated = allocate_shared(count, dtype) if shared and near else None
        buffers, self._handle = (None, None) if allocated is None else allocated
        self._send(messages.Begin(count, dtype, self._handle, job))
        self._buffers, self._settings = None, settings
        mapped = self._receive(messages.Welcome).shared
        self._buffers = buffers if buffers and mapped else allocate_private(count, dtype)

    @property
    def shared(self) -> bool:
        """Whether gradient and parameters are in memory that the server shares."""
        return self._exchange.shared

    @property
    def gradient(self) -> torch.Tensor:
        """The gradient to send, shape (count,); writing it here directly saves a copy."""
        return self._exchange.gradient

    @property
    def parameters(self) -> torch.Tensor:
        """The parameters received last, shape (count,); valid until the next command."""
        return self._exchange.parameters

    @property
    def _exchange(self) -> ExchangeBuffers:
        assert self._buffers is not None, "begin first"
        return self._buffers

    # -- commands ----------------------------------------------------------------------------

    def receive(self) -> messages.RankCommand:
        """The next command; waits for it as long as the server lives."""
        command, lost = self._receive(messages.CommandMessage)
        self._close_handle()
        self.lost |= {each.rank: each.reason for each in lost}
        if isinstance(command, messages.Compute):
            self._step, self._version = command.step, command.version
            self._samples = command.samples
            self._phase = f"computing step {command.step}"
        return command

    def is_aborted(self) -> bool:
        """Whether the server has aborted the present step: then `withdraw` instead of finishing."""
        return self._heartbeat.aborted >= self._step

    # -- answers -----------------------------------------------------------------------------

    def finish_step(
        self,
        gradient: torch.Tensor | None,
        seconds: float,
        begun: float = math.nan,
        ended: float = math.nan,
        *,
        loss: float = math.nan,
        finite: bool = True,
        settings: bytes = b"",
        members: Mapping[int, tuple[float, bool, float]] | None = None,
        squared_norm: float = math.nan,
    ) -> None:
        """Answer `Compute`; in a group only the lowest rank calls this.

        gradient: mean over the step's samples, or a group's weighted sum; None if it stays here.
        settings: the optimizer's settings; sent if they have changed.
        The other parameters are as in `StepReport`.
        """
        if gradient is not None and finite:
            self._write(gradient)
        route = messages.GradientRoute.READY if gradient is None else messages.GradientRoute.PUSH
        changed = b"" if settings == self._settings else settings
        self._settings = settings
        report = messages.StepReport(
            route if members is None else messages.GradientRoute.GROUP, self._step, self._version,
            self._samples, seconds, begun, ended, loss, finite, changed, members, squared_norm,
        )  # fmt: skip
        self._send(report, buffer=gradient is not None and finite)

    def withdraw(self) -> None:
        """Answer `Compute` where the step was aborted."""
        self._send(messages.Withdrawal(self._step))

    def deliver(self, values: torch.Tensor, closing: int | None = None) -> None:
        """Answer `Deliver`: the gradient that had stayed here, or the sum of an all-reduce."""
        self._write(values)
        self._send(messages.GradientDelivery(closing), buffer=True)

    def end_reduction(self, closing: int, total: torch.Tensor | None = None) -> None:
        """Answer `Reduce`; the lowest member sends the sum of gradients."""
        if total is not None:
            self._write(total)
        self._send(messages.ReductionEnd(closing), buffer=total is not None)

    @property
    def gone(self) -> set[int]:
        """The ranks that have left or are lost, as the server said at once."""
        return self._heartbeat.gone

    def report_end(self, closing: int, failed: bool) -> None:
        """Report at once, from any thread, that an all-reduce beside steps has ended or failed."""
        self._heartbeat.send(FAILED if failed else ENDED, closing)

    def report_failure(self, closing: int | None = None) -> None:
        """Report that a collective failed: an all-reduce by command, or the group's in backward.

        The command comes again when the server knows which member died.
        """
        self._send(messages.CollectiveFailure(closing))

    def fetch_state(self) -> dict[str, Any]:
        """The server's part of a checkpoint (`Server.state`); between a command and its answer."""
        self._send(messages.StateRequest())
        return self._receive(dict)

    def leave(self, reason: str = "") -> None:
        """End the training of this rank; the others go on.

        reason: why it failed; without one the rank has finished, and does not count as lost.
        """
        try:
            self._wire.send(messages.Leave(reason))
        except ConnectionError:
            pass  # it has left before
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection without a word: to the server this rank is lost."""
        self._heartbeat.close()
        self._wire.close()
        self._close_handle()

    # -- frames ------------------------------------------------------------------------------

    def _close_handle(self) -> None:
        """The server has mapped the memory, or never will."""
        if self._handle is not None:
            os.close(self._handle.fd)
            self._handle = None

    def _write(self, values: torch.Tensor) -> None:
        if values.data_ptr() != self.gradient.data_ptr():
            self.gradient.copy_(values)

    def _send(self, message: Any, buffer: bool = False) -> None:
        try:
            sent = as_bytes(self.gradient) if buffer and not self.shared else None
            self._wire.send(message, sent)
        except ConnectionError as error:
            if select.select([self._wire], [], [], 0.0)[0]:
                self._receive(messages.Fault)  # raises the reason, if the server has given one
            raise self._located(error) from None
        if not isinstance(message, (messages.Begin, messages.StateRequest)):
            self._phase = f"waiting after step {self._step}"

    def _receive(self, kind: type[T]) -> T:
        """The next message, which must be of this kind."""
        try:
            interval = min(1.0, self.stall_limit / 4)
            while not select.select([self._wire], [], [], interval)[0]:
                silence = time.monotonic() - self._heartbeat.last_answer
                factor = 1 if self._cut_off() else STALL_LIMITS
                if silence > factor * self.stall_limit:
                    raise ConnectionError(f"{self.name} has been silent for {silence:.3g} s")
            message = self._wire.receive(
                None if self._buffers is None else as_bytes(self._buffers.parameters)
            )
            if message is None:
                raise ConnectionError(f"{self.name} has closed the connection")
        except ConnectionError as error:
            raise self._located(error) from None
        if isinstance(message, messages.Fault):
            raise InputError(message.reason) if message.is_input else ServerFailure(message.reason)
        if not isinstance(message, kind):
            said = type(message).__name__
            raise self._located(ConnectionError(f"{self.name} sent {said} out of turn"))
        return message

    def _located(self, error: ConnectionError) -> ConnectionError:
        return ConnectionError(f"{error}, while rank {self.rank} was {self._phase}")


class Heartbeat:
    """A rank's heartbeat: a second connection to the server, and a thread that keeps it going.

    A rank that computes slowly goes on beating; a rank that is stopped does not.  On the same
    connection the server tells a rank at once that its step is aborted, or that an all-reduce
    beside its steps begins, and a rank the server that this has ended.

    connection: a connection to the server for heartbeats alone.
    stall_limit: seconds of silence after which the server gives up a rank.
    reductions: takes the all-reduces that are commanded.
    last_answer: when the server answered last, on this process's monotonic clock.
    aborted: number of the last step that the server aborted, -1 before the first.
    gone: the ranks that have left or are lost.
    """

    def __init__(
        self,
        connection: socket.socket,
        stall_limit: float,
        reductions: queue.SimpleQueue[messages.Reduce | None],
    ) -> None:
        self.last_answer, self.aborted = time.monotonic(), -1
        self._reductions = reductions
        self.gone: set[int] = set()
        self._interval = min(1.0, stall_limit / BEATS)
        self._connection = connection
        self._signals: deque[bytes] = deque()
        self._wake, self._woken = socket.socketpair()
        connection.setblocking(False)
        self._thread = threading.Thread(target=self._beat, name="simstrag-heartbeat", daemon=True)
        self._thread.start()

    def send(self, signal: bytes, number: int) -> None:
        """Send a signal, from any thread; nothing after the end."""
        self._signals.append(SIGNAL.pack(signal, number))
        with contextlib.suppress(OSError):
            self._wake.send(BEAT)

    def close(self) -> None:
        """End the thread and the connection."""
        with contextlib.suppress(OSError):
            self._wake.send(END)
        self._thread.join()
        for each in (self._wake, self._woken, self._connection):
            each.close()

    def _beat(self) -> None:
        received, unsent, due = b"", b"", time.monotonic()
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                if time.monotonic() >= due:
                    unsent = unsent or SIGNAL.pack(BEAT, -1)  # one that waits is as good
                    due = time.monotonic() + self._interval
                while self._signals:
                    unsent += self._signals.popleft()
                if unsent:
                    with contextlib.suppress(BlockingIOError):
                        unsent = unsent[self._connection.send(unsent) :]
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if key.fileobj is self._woken:
                        if END in self._woken.recv(1 << 12):
                            return
                        continue
                    answer = self._connection.recv(1 << 12)
                    if not answer:
                        return
                    received = self._read(received + answer)

    def _read(self, received: bytes) -> bytes:
        """Read all complete signals; the bytes of an incomplete one are returned."""
        self.last_answer = time.monotonic()
        while len(received) >= SIGNAL.size:
            signal, number = SIGNAL.unpack_from(received)
            end = SIGNAL.size + (number if signal == REDUCE else 0)
            if len(received) < end:
                break
            if signal == ABORT:
                self.aborted = number
            elif signal == GONE:
                self.gone.add(number)
            elif signal == REDUCE:
                self._reductions.put(pickle.loads(received[SIGNAL.size : end]))
            received = received[end:]
        return received
