"""A rank's side of the server: it pulls orders, and says what has become of them.

A rank pulls an order, carries it out, answers in one of a few ways, and pulls the next.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from simstrag.ddp.server.heartbeat import PATIENCE, Pulse, look
from simstrag.ddp.server.listener import knock
from simstrag.ddp.server.messages import Compute, Deliver, Finish, Handover, Job, Reduce
from simstrag.ddp.server.shared_buffer import Offer, Payload, apart, octets, offer
from simstrag.ddp.server.wire import SHARED, Frame, Kind
from simstrag.errors import InputError, SimstragError

__all__ = ["Link", "ServerFailure", "connect"]


class ServerFailure(SimstragError, RuntimeError):
    """The server has ended the job; the message says why."""


def connect(
    address: str,
    rank: int,
    stall_limit: float = 60.0,
    cut_off: Callable[[], bool] = lambda: False,
) -> Link:
    """Join the job of the server at `address`.

    cut_off: whether the job's store has not answered for long either; a server that alone is
    silent may be waiting for another rank.
    Raises `ConnectionError` where it cannot be reached or does not know this rank.
    """
    return Link(address, rank, stall_limit, cut_off)


class Link:
    """The connection of one rank to its server.

    order: what it was told last.  lost: the ranks that the server has lost, and why.
    Whatever goes wrong with the connection raises `ConnectionError`, which names the server and
    what this rank was at; what goes wrong in the server itself is raised here too.
    """

    def __init__(
        self, address: str, rank: int, stall_limit: float, cut_off: Callable[[], bool]
    ) -> None:
        host, port, _ = address.rsplit(":", 2)
        self.rank, self.stall_limit, self._cut_off = rank, stall_limit, cut_off
        self.name = f"the server at {host}:{port}"
        self.order: Compute | Reduce | Deliver | Handover | Finish | None = None
        self.lost: dict[int, str] = {}
        self._payload: Payload | None = None
        self._offered: Offer | None = None
        self._phase = "connecting"
        self._told = b""
        self._step = self._version = -1
        self._samples = 0
        self._wire, borne = knock(address, rank, stall_limit, self.name)
        beats, _ = knock(address, rank, stall_limit, self.name, beats=True)
        self._pulse = Pulse(beats.connection, borne)

    # -- the job -----------------------------------------------------------------------------

    def begin(
        self,
        count: int,
        dtype: torch.dtype,
        job: Job | None = None,
        shared: bool = True,
        settings: bytes = b"",
    ) -> None:
        """Say that this rank is ready to train `count` parameters; one of the ranks brings the job.

        shared: try shared memory, which works where the server has the address of this rank.
        settings: those of the optimizer, which are in the job already.  The first order comes when
        all ranks have begun.
        """
        self._phase = "setting up"
        ends = self._wire.connection.getsockname(), self._wire.connection.getpeername()
        near = ends[0][0] == ends[1][0]
        found = offer(count, dtype) if shared and near else None
        memory, self._offered = (None, None) if found is None else found
        said = (count, dtype, self._offered, job)
        self._send(Frame(Kind.BEGIN, self.rank, body=pickle.dumps(said)))
        self._payload, self._told = None, settings
        accepted = self._next(Kind.WELCOME).body == SHARED
        self._payload = memory if memory is not None and accepted else apart(count, dtype)

    def _keep_offer_to_itself(self) -> None:
        """All who are to take it have."""
        if self._offered is not None:
            os.close(self._offered.fd)
            self._offered = None

    @property
    def shared(self) -> bool:
        """Whether gradient and parameters travel through shared memory."""
        return self._memory.shared

    @property
    def gradient(self) -> torch.Tensor:
        """Shape (count,): what is sent; writing a gradient right here saves a copy."""
        return self._memory.gradient

    @property
    def parameters(self) -> torch.Tensor:
        """Shape (count,): as the last order that pulls brought them; they hold until the next."""
        return self._memory.parameters

    @property
    def _memory(self) -> Payload:
        assert self._payload is not None, "begin first"
        return self._payload

    # -- orders ------------------------------------------------------------------------------

    def pull(self) -> Compute | Reduce | Deliver | Handover | Finish:
        """The next order; waits as long as the server lives."""
        frame = self._next(Kind.ORDER)
        self._keep_offer_to_itself()
        order, losses = pickle.loads(frame.body)
        self.lost |= {loss.rank: loss.reason for loss in losses}
        self.order = order
        if isinstance(order, Compute):
            self._step, self._version, self._samples = order.step, order.version, order.samples
            self._phase = f"computing step {order.step}"
        return order  # type: ignore[no-any-return]

    def aborted(self) -> bool:
        """Whether the present step was called off; then `withdraw` instead of finishing it."""
        return self._pulse.aborted >= self._step

    # -- answers -----------------------------------------------------------------------------

    def push(
        self,
        gradient: torch.Tensor,
        seconds: float,
        begun: float = math.nan,
        ended: float = math.nan,
        *,
        loss: float = math.nan,
        finite: bool = True,
        settings: bytes = b"",
    ) -> None:
        """To an order to compute and push: the mean gradient over the samples of the step.

        seconds: of computing.  begun, ended: when, on the monotonic clock.  finite: false has the
        server leave it out.  settings: those of the optimizer, sent if they have changed.
        """
        if finite:
            self._put(gradient)
        frame = self._frame(Kind.GRADIENT, seconds, begun, ended, loss, finite, settings)
        self._send(frame, buffer=finite)

    def ready(
        self,
        seconds: float,
        begun: float = math.nan,
        ended: float = math.nan,
        *,
        loss: float = math.nan,
        finite: bool = True,
        settings: bytes = b"",
    ) -> None:
        """To an order to compute and keep the gradient."""
        self._send(self._frame(Kind.READY, seconds, begun, ended, loss, finite, settings))

    def group(
        self,
        total: torch.Tensor,
        members: Mapping[int, tuple[float, bool]],
        begun: float = math.nan,
        ended: float = math.nan,
        *,
        loss: float = math.nan,
        settings: bytes = b"",
    ) -> None:
        """To an order to compute in a group, by its lowest rank: the weighted sum.

        members: of each, seconds of computing and whether its gradient is finite and in the sum.
        The others only pull.
        """
        self._put(total)
        seconds = members[self.rank][0]
        frame = self._frame(
            Kind.GROUP, seconds, begun, ended, loss, True, settings, dict(members)
        )  # fmt: skip
        self._send(frame, buffer=True)

    def withdraw(self) -> None:
        """The step was aborted and is given up."""
        self._send(Frame(Kind.WITHDRAWN, self.rank, self._step, self._version))

    def deliver(self, gradient: torch.Tensor) -> None:
        """To an order to deliver: the gradient that was ready."""
        self._put(gradient)
        self._send(Frame(Kind.DELIVERED, self.rank, self._step, self._version), buffer=True)

    def reduced(self, closing: int, total: torch.Tensor | None = None) -> None:
        """To an order to reduce: it is done here; the lowest member sends the sum of gradients."""
        if total is not None:
            self._put(total)
        self._send(Frame(Kind.REDUCED, self.rank, closing=closing), buffer=total is not None)

    def failed(self, closing: int | None = None) -> None:
        """A collective failed: that of an order to reduce, or the group's during backward.

        It is ordered anew when the server knows who died.
        """
        self._send(Frame(Kind.FAILED, self.rank, closing=-1 if closing is None else closing))

    def state(self) -> dict[str, Any]:
        """All that a checkpoint needs, as `Server.state` says; between an order and its answer."""
        self._send(Frame(Kind.STATE, self.rank))
        state: dict[str, Any] = pickle.loads(self._next(Kind.STATE).body)
        return state

    def leave(self, failed: str = "") -> None:
        """The training of this rank is over; the others go on.

        failed: why, where it did not come to its end: then this rank counts as lost.
        """
        try:
            self._wire.send(Frame(Kind.LEAVE, self.rank, body=failed.encode()))
        except ConnectionError:
            pass  # it has left before
        finally:
            self.close()

    def close(self) -> None:
        """Without a word: the server takes it that this rank is lost."""
        self._pulse.close()
        self._wire.close()
        self._keep_offer_to_itself()

    # -- frames ------------------------------------------------------------------------------

    def _put(self, values: torch.Tensor) -> None:
        if values.data_ptr() != self.gradient.data_ptr():
            self.gradient.copy_(values)

    def _frame(
        self,
        kind: Kind,
        seconds: float,
        begun: float,
        ended: float,
        loss: float,
        finite: bool,
        settings: bytes,
        members: dict[int, tuple[float, bool]] | None = None,
    ) -> Frame:
        changed = b"" if settings == self._told else settings
        self._told = settings
        body = changed if members is None else pickle.dumps((members, changed))
        return Frame(
            kind, self.rank, self._step, self._version, -1, self._samples,
            seconds, begun, ended, loss, finite, body,
        )  # fmt: skip

    def _send(self, frame: Frame, buffer: bool = False) -> None:
        sent = octets(self.gradient) if buffer and not self.shared else None
        try:
            self._wire.send(frame, sent)
        except ConnectionError as error:
            raise self._why(error) from None
        if frame.kind not in {Kind.BEGIN, Kind.STATE}:
            self._phase = f"waiting after step {self._step}"

    def _next(self, *kinds: Kind) -> Frame:
        """The next frame, which must be of these kinds."""
        try:
            while not select.select([self._wire], [], [], look(self.stall_limit))[0]:
                silence = time.monotonic() - self._pulse.heard
                if silence > self._patience():
                    raise ConnectionError(f"{self.name} has been silent for {silence:.3g} s")
            into = None if self._payload is None else octets(self._payload.parameters)
            frame = self._wire.receive(into)
            if frame is None:
                raise ConnectionError(f"{self.name} has closed the connection")
        except ConnectionError as error:
            raise self._while(error) from None
        if frame.kind is Kind.FAULT:
            wrong, message = pickle.loads(frame.body)
            raise InputError(message) if wrong else ServerFailure(message)
        if frame.kind not in kinds:
            raise self._while(ConnectionError(f"{self.name} said {frame.kind.name}"))
        return frame

    def _patience(self) -> float:
        """Seconds of silence that are borne now."""
        return self.stall_limit if self._cut_off() else PATIENCE * self.stall_limit

    def _why(self, error: ConnectionError) -> ConnectionError:
        """The fault; if the server has said something of it, that is raised."""
        if select.select([self._wire], [], [], 0.0)[0]:
            self._next(Kind.FAULT)
        return self._while(error)

    def _while(self, error: ConnectionError) -> ConnectionError:
        return ConnectionError(f"{error}, while rank {self.rank} was {self._phase}")
