"""Times push, service and pull of a gradient between a worker and a server over TCP, by its size.

One frame is a header and one contiguous float32 buffer of all gradients, or of all parameters.
A single pull can be negative: the server may lose its core after sending the reply and stamp it
late.  That time is then in `service`.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from simstrag.calibration.benches.bench import Bench
from simstrag.calibration.benches.workers import STALL, WorkerGroup, serve
from simstrag.calibration.cells import MeasurementCell, VisitSeries

if TYPE_CHECKING:
    import torch

SIZES = tuple(1 << k for k in range(16, 27, 2))
"""64 KiB to 64 MiB."""

VISIT = 0.25
"""Seconds that a visit aims at."""

FEWEST, MOST = 5, 200
"""Least and most round trips of a visit."""

RATE = 1e-3
"""Factor of the gradient in the server's update."""

HEADER = struct.Struct("<4q3d")  # kind, rank, version, bytes; compute start and end, loss

RoundTrips = tuple[int, int]
"""A request: bytes of a gradient, number of round trips."""

StampRow = tuple[float, ...]


class ServerBench(Bench):
    """Cells of part "server": one worker and one server on this machine."""

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        self.cells = [MeasurementCell("server", bytes=size) for size in sizes]
        self.workers = WorkerGroup(
            _run_side, 2, max(sizes), fresh=lambda: socket.create_server(("127.0.0.1", 0))
        )
        self.held = (self.workers,)

    def seconds(self, cell: MeasurementCell) -> float:
        """Expected at about 1 GB/s each way."""
        return max(VISIT, 2 * FEWEST * cell.bytes / 1e9)

    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """`push`, `service` and `pull` of every round trip, after a trial of three."""
        trial = self.stamps(cell.bytes, 3)
        pace = trial[-1][-1] - trial[-1][0]
        rounds = min(MOST, max(FEWEST, round(VISIT / max(pace, 1e-6))))
        rows = self.stamps(cell.bytes, rounds)
        return {
            "push": tuple(s0 - t0 for t0, s0, *_ in rows),
            "service": tuple(s1 - s0 for _, s0, _, _, s1, _ in rows),
            "pull": tuple(t1 - s1 for *_, s1, t1 in rows),
        }, {}

    def stamps(self, size: int, rounds: int) -> list[StampRow]:
        """(t0, s0, received, applied, s1, t1) of every round trip, seconds of one clock.

        t0: gradient complete, before it is flattened and sent.
        s0: first byte readable at the server.
        received, applied: all bytes read; parameters updated.
        s1: reply handed to the kernel.
        t1: parameters copied into place.
        """
        pushed, served = self.workers.request(dict.fromkeys((0, 1), (size, rounds)))
        return [(t0, *s, t1) for (t0, t1), s in zip(pushed, served, strict=True)]


def _run_side(pipe: Connection, rank: int, listener: socket.socket, largest: int) -> None:
    """Run the worker (rank 0) or the server (rank 1)."""
    import torch

    torch.set_num_threads(1)
    one, other, flat = (torch.zeros(largest // 4) for _ in range(3))
    listener.settimeout(STALL)
    with (
        listener.accept()[0]
        if rank
        else socket.create_connection(listener.getsockname(), timeout=STALL)
    ) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(STALL)

        def make_trips(request: RoundTrips) -> list[StampRow]:
            size, rounds = request
            count = size // 4
            if rank == 0:
                return _push(connection, one[:count], other[:count], flat[:count], rounds)
            return _apply(connection, one[:count], other[:count], rounds)

        serve(pipe, make_trips)


def _push(
    connection: socket.socket,
    gradient: torch.Tensor,
    parameters: torch.Tensor,
    flat: torch.Tensor,
    rounds: int,
) -> list[StampRow]:
    buffer = _bytes(flat)
    stamps: list[StampRow] = []
    for number in range(rounds):
        gradient.fill_(1.0)
        start = time.monotonic()
        flat.copy_(gradient)
        connection.sendall(HEADER.pack(0, 0, number, buffer.nbytes, start, start, 0.0))
        connection.sendall(buffer)
        _receive_exactly(connection, memoryview(bytearray(HEADER.size)))
        _receive_exactly(connection, buffer)
        parameters.copy_(flat)
        stamps.append((start, time.monotonic()))
    expected = -RATE * rounds
    if not bool((abs(parameters - expected) < 1e-4 * rounds).all()):
        raise ArithmeticError(f"parameters of {buffer.nbytes} bytes came back wrong")
    return stamps


def _apply(
    connection: socket.socket, parameters: torch.Tensor, gradient: torch.Tensor, rounds: int
) -> list[StampRow]:
    inbox, outbox = _bytes(gradient), _bytes(parameters)
    stamps: list[StampRow] = []
    parameters.zero_()
    for number in range(rounds):
        select.select([connection], [], [], STALL)
        first = time.monotonic()
        _receive_exactly(connection, memoryview(bytearray(HEADER.size)))
        _receive_exactly(connection, inbox)
        received = time.monotonic()
        parameters.add_(gradient, alpha=-RATE)
        applied = time.monotonic()
        connection.sendall(HEADER.pack(1, 0, number + 1, outbox.nbytes, 0.0, 0.0, 0.0))
        connection.sendall(outbox)
        stamps.append((first, received, applied, time.monotonic()))
    return stamps


def _bytes(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.numpy()
    return memoryview(array).cast("B")


def _receive_exactly(connection: socket.socket, into: memoryview) -> None:
    done = 0
    while done < into.nbytes:
        size = connection.recv_into(into[done:])
        if size == 0:
            raise ConnectionError("the other side closed the connection inside a frame")
        done += size
