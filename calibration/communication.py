"""Times one gradient's communication: gloo's all-reduce, and push, service and pull over TCP.

`python -m simstrag.calibration.communication --out DIR` adds `allreduce.csv.gz`, `server.csv.gz`
and `communication.json` to a recording.  Two processes, a core each where there are two; every
sample is kept; all stamps are of one clock (CLOCK_MONOTONIC), which one host's processes share.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import gzip
import io
import json
import multiprocessing
import os
import select
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.calibration.burner import die_with_parent
from simstrag.calibration.machine import (
    busy_seconds,
    cores,
    describe_device,
    describe_software,
    pin,
)

if TYPE_CHECKING:
    import torch

    from simstrag.workloads import Shape

__all__ = ["ALLREDUCE_COLUMNS", "SERVER_COLUMNS", "measure", "measure_allreduce", "measure_server"]

SMALL_SIZES = (256, 64 << 10, 1 << 20)
"""Bytes of all-reduces beside the model's own size."""

HEADER = struct.Struct("<4q3d")  # kind, rank, version, bytes; compute start and end, loss
STALL = 60.0

ALLREDUCE_COLUMNS = ("bytes", "repetition", "start_0", "end_0", "start_1", "end_1")
SERVER_COLUMNS = ("round", "t0", "s0", "received", "applied", "s1", "t1")

HOW = {
    "allreduce": "Two processes, pinned to a core each; barrier, then dist.all_reduce of float32 "
    "in place, sizes in "
    "turn. Time of one = latest end - latest start over the two. Nothing overlaps it.",
    "server": "One server and one worker process, pinned to a core each, one TCP connection over "
    "loopback, "
    "TCP_NODELAY; one frame = header + one contiguous float32 buffer of all gradients. Between "
    "rounds the worker "
    "computes a real step. t0 = gradient there, before it is flattened and sent; s0 = first byte "
    "readable at the "
    "server; received; applied (parameters -= lr * gradient); s1 = reply handed to the kernel; t1 "
    "= parameters in "
    "place. push = s0-t0, service = s1-s0, pull = t1-s1. One worker alone: no incast.",
}

Stamps = tuple[float, ...]


def measure_allreduce(sizes: Sequence[int], repetitions: int) -> list[Stamps]:
    """Rows of `ALLREDUCE_COLUMNS`: both ranks' stamps of every all-reduce of two processes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        store = str(Path(folder) / "store")
        pipes = [
            stack.enter_context(_child(_reduce, rank, store, tuple(sizes), repetitions))
            for rank in range(2)
        ]
        first, second = (_receive(pipe) for pipe in pipes)
    zero = first[0][2]
    return [
        (*a[:2], *(round(stamp - zero, 7) for stamp in (*a[2:], *b[2:])))
        for a, b in zip(first, second, strict=True)
    ]


def measure_server(shape: Shape, rounds: int) -> list[Stamps]:
    """Rows of `SERVER_COLUMNS`: the stamps of every push, service and pull of one gradient."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_child(_serve, 0, shape, rounds))
        worker = stack.enter_context(_child(_work, 1, shape, rounds, _receive(server)))
        pushed, served = _receive(worker), _receive(server)
    rows = [
        (number, t0, *s, t1)
        for number, ((t0, t1), s) in enumerate(zip(pushed, served, strict=True))
    ]
    zero = rows[0][1]
    return [(row[0], *(round(stamp - zero, 7) for stamp in row[1:])) for row in rows]


def _reduce(
    pipe: Connection, rank: int, store: str, sizes: tuple[int, ...], repetitions: int
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, 2),  # type: ignore[attr-defined]
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=STALL),
    )
    buffers = {size: torch.full((size // 4,), 1.0 + rank) for size in sizes}
    rows = []
    warm_up = max(1, repetitions // 10)
    for repetition in range(-warm_up, repetitions):
        for size, buffer in buffers.items():
            buffer.fill_(1.0 + rank)
            dist.barrier()
            begun = time.monotonic()
            dist.all_reduce(buffer)
            ended = time.monotonic()
            if repetition >= 0:
                rows.append((size, repetition, begun, ended))
    assert all(bool((buffer == 3.0).all()) for buffer in buffers.values()), "a wrong sum"
    pipe.send(rows)
    pipe.recv()
    dist.destroy_process_group()


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


@contextlib.contextmanager
def _child(target: Callable[..., None], rank: int, *arguments: Any) -> Iterator[Connection]:
    """Run `target(pipe, rank, ...)` in its own process, on core number `rank`; reaped on "
    "leaving."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    core = cores()[rank % len(cores())]
    process = context.Process(
        target=_pinned, args=(target, os.getpid(), core, theirs, rank, *arguments), daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield ours
        with contextlib.suppress(OSError):
            ours.send("leave")
        process.join(10)
    finally:
        ours.close()
        process.kill()
        process.join()


def _pinned(
    target: Callable[..., None],
    parent: int,
    core: int,
    pipe: Connection,
    rank: int,
    *arguments: Any,
) -> None:
    die_with_parent(parent)
    pin(core)
    target(pipe, rank, *arguments)


def _receive(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a measuring process ended early; see its message above") from None


def measure(out: Path, shape: Shape, repetitions: int, rounds: int) -> None:
    """Measure both and add them to the recording in `out`."""
    from simstrag.workloads import Task

    size = 4 * Task(shape).parameters
    out.mkdir(parents=True, exist_ok=True)
    rows, reduce_load = _with_load(lambda: measure_allreduce([*SMALL_SIZES, size], repetitions))
    _write(out / "allreduce.csv.gz", ALLREDUCE_COLUMNS, rows)
    rows, server_load = _with_load(lambda: measure_server(shape, rounds))
    _write(out / "server.csv.gz", SERVER_COLUMNS, rows)
    described = {
        "format": "simstrag-communication/1",
        "how": HOW,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python -m simstrag.calibration.communication --out DIR "
        f"--repetitions {repetitions} --rounds {rounds}",
        "device": describe_device(),
        "software": describe_software(),
        "shape": asdict(shape),
        "gradient_bytes": size,
        "foreign_load": {"allreduce": reduce_load, "server": server_load},
    }
    (out / "communication.json").write_text(json.dumps(described, indent=1) + "\n")


def _with_load(timed: Callable[[], list[Stamps]]) -> tuple[list[Stamps], float]:
    """The rows, and the share of all cores that processes other than ours took meanwhile."""
    begun, busy, own = time.monotonic(), busy_seconds(), sum(os.times()[:4])
    rows = timed()
    foreign = busy_seconds() - busy - (sum(os.times()[:4]) - own)
    share = foreign / ((time.monotonic() - begun) * (os.cpu_count() or 1))
    return rows, round(max(0.0, share), 4)


def _write(path: Path, columns: Sequence[str], rows: Sequence[Stamps]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    from simstrag.workloads import Shape

    parser = argparse.ArgumentParser(
        prog="python -m simstrag.calibration.communication", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the recording")
    parser.add_argument("--repetitions", type=int, default=200, help="all-reduces of each size")
    parser.add_argument("--rounds", type=int, default=300, help="round trips to the server")
    given = parser.parse_args(arguments)
    measure(given.out, Shape(), given.repetitions, given.rounds)


if __name__ == "__main__":
    main()
