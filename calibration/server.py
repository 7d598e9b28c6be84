"""Times push, service and pull of one gradient between a worker and a server over TCP."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from simstrag.calibration.processes import STALL, child, receive

if TYPE_CHECKING:
    import torch

    from simstrag.workloads import Shape

__all__ = ["COLUMNS", "HOW", "measure_server"]

COLUMNS = ("round", "t0", "s0", "received", "applied", "s1", "t1")

HEADER = struct.Struct("<4q3d")  # kind, rank, version, bytes; compute start and end, loss

HOW = (
    "One server and one worker process, pinned to a core each, one TCP connection over loopback, "
    "TCP_NODELAY; one frame = header + one contiguous float32 buffer of all gradients. Between "
    "rounds the worker computes a real step. t0 = gradient there, before it is flattened and "
    "sent; s0 = first byte readable at the server; received; applied (parameters -= lr * "
    "gradient); s1 = reply handed to the kernel; t1 = parameters in place. push = s0-t0, service "
    "= s1-s0, pull = t1-s1. One worker alone: no incast."
)

Stamps = tuple[float, ...]


def measure_server(shape: Shape, rounds: int) -> list[Stamps]:
    """Rows of `COLUMNS`: the stamps of every push, service and pull of one gradient."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(child(_serve, 0, shape, rounds))
        worker = stack.enter_context(child(_work, 1, shape, rounds, receive(server)))
        pushed, served = receive(worker), receive(server)
    rows = [
        (number, t0, *s, t1)
        for number, ((t0, t1), s) in enumerate(zip(pushed, served, strict=True))
    ]
    zero = rows[0][1]
    return [(row[0], *(round(stamp - zero, 7) for stamp in row[1:])) for row in rows]


def _serve(pipe: Connection, _rank: int, shape: Shape, rounds: int) -> None:
    import torch

    from simstrag.workloads import Task

    torch.set_num_threads(1)
    parameters = _flatten(list(Task(shape).model.parameters()))
    gradient = torch.empty_like(parameters)
    inbox, outbox = _bytes(gradient), _bytes(parameters)
    stamps = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        listener.settimeout(STALL)
        connection, _ = listener.accept()
    with connection:
        _prepare(connection)
        for version in range(rounds):
            select.select([connection], [], [], STALL)
            first = time.monotonic()
            _receive_exactly(connection, memoryview(bytearray(HEADER.size)))
            _receive_exactly(connection, inbox)
            received = time.monotonic()
            parameters.add_(gradient, alpha=-1e-3)
            applied = time.monotonic()
            connection.sendall(HEADER.pack(1, 0, version + 1, outbox.nbytes, 0.0, 0.0, 0.0))
            connection.sendall(outbox)
            stamps.append((first, received, applied, time.monotonic()))
        pipe.send(stamps)
        pipe.recv()


def _work(pipe: Connection, rank: int, shape: Shape, rounds: int, port: int) -> None:
    import torch

    from simstrag.workloads import Task

    torch.set_num_threads(1)
    task = Task(shape)
    parameters = list(task.model.parameters())
    flat = _flatten(parameters)
    pieces = torch.split(flat, [p.numel() for p in parameters])
    buffer = _bytes(flat)
    stamps = []
    with socket.create_connection(("127.0.0.1", port), timeout=STALL) as connection:
        _prepare(connection)
        for number in range(rounds):
            begun = time.monotonic()
            loss = task.gradient(number, "full")
            sent = time.monotonic()
            for piece, parameter in zip(pieces, parameters, strict=True):
                assert parameter.grad is not None
                piece.copy_(parameter.grad.flatten())
            connection.sendall(HEADER.pack(0, rank, number, buffer.nbytes, begun, sent, loss))
            connection.sendall(buffer)
            _receive_exactly(connection, memoryview(bytearray(HEADER.size)))
            _receive_exactly(connection, buffer)
            with torch.no_grad():
                for piece, parameter in zip(pieces, parameters, strict=True):
                    parameter.copy_(piece.view_as(parameter))
            stamps.append((sent, time.monotonic()))
            task.optimizer.zero_grad(set_to_none=True)
    pipe.send(stamps)
    pipe.recv()


def _flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _bytes(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.numpy()
    return memoryview(array).cast("B")


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(STALL)


def _receive_exactly(connection: socket.socket, into: memoryview) -> None:
    done = 0
    while done < into.nbytes:
        got = connection.recv_into(into[done:])
        if got == 0:
            raise ConnectionError("the other side closed the connection inside a frame")
        done += got
