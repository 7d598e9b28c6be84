"""Frames over a socket: what arrives, and what is said when it does not."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from simstrag.ddp.server.shared_buffer import octets
from simstrag.ddp.server.wire import HEADER, PROTOCOL, Frame, Kind, Wire

LIMIT = 0.3
FRAME = Frame(
    Kind.GRADIENT, 3, 17, 12, -1, 64, 0.25, 10.5, 10.75, 1.5, finite=False, body=b"said"
)  # fmt: skip


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        yield Wire(near, LIMIT, "the server"), Wire(far, LIMIT, "rank 3")


def test_a_frame_arrives_as_it_was_sent_its_buffer_in_the_memory_of_a_tensor(
    ends: tuple[Wire, Wire],
) -> None:
    near, far = ends
    sent, came = torch.randn(1 << 18, dtype=torch.float64), torch.zeros(1 << 18).double()
    thread = threading.Thread(target=near.send, args=(FRAME, octets(sent)))
    thread.start()
    assert far.receive(octets(came)) == replace(FRAME, nbytes=1 << 21)
    thread.join()
    assert torch.equal(sent, came)


def test_frames_follow_each_other_with_and_without_a_buffer(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    buffer = memoryview(bytearray(8))
    for own in (None, memoryview(b"12345678"), None):
        near.send(FRAME, own)
    assert [far.receive(buffer).nbytes for _ in range(3)] == [0, 8, 0]  # type: ignore[union-attr]
    assert bytes(buffer) == b"12345678"


def test_the_end_between_two_frames_is_a_leave(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    near.send(FRAME)
    near.close()
    assert far.receive() == FRAME
    assert far.receive() is None


@pytest.mark.parametrize("sent", [1, HEADER.size - 1, HEADER.size, HEADER.size + 3])
def test_the_end_inside_a_frame_is_a_fault(ends: tuple[Wire, Wire], sent: int) -> None:
    near, far = ends
    near.connection.sendall(FRAME.packed(0)[:sent])
    near.close()
    with pytest.raises(ConnectionError, match="rank 3 closed the connection inside a frame"):
        far.receive()


def test_silence_inside_a_frame_ends_at_the_stall_limit(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    near.connection.sendall(FRAME.packed(8))
    with pytest.raises(ConnectionError, match=r"rank 3 was silent for 0.3 s inside a frame"):
        far.receive(memoryview(bytearray(8)))


def test_a_side_that_takes_nothing_in_ends_a_send(ends: tuple[Wire, Wire]) -> None:
    near, _ = ends
    with pytest.raises(ConnectionError, match=r"the server took nothing in for 0.3 s"):
        near.send(FRAME, memoryview(bytearray(1 << 26)))


def test_other_protocols_and_other_sizes_are_refused(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    for bytes_, said in (
        (b"GET / HTTP/1.1\r\n" * 9, "does not speak the protocol"),
        (
            FRAME.packed(0)[:4] + b"\x63" + FRAME.packed(0)[5:],
            f"99 and this side {PROTOCOL}",
        ),
        (FRAME.packed(16), "sends 16 bytes where 8 are expected"),
    ):
        near.connection.sendall(bytes_)
        with pytest.raises(ConnectionError, match=said):
            far.receive(memoryview(bytearray(8)))
        far.connection.setblocking(False)
        while True:
            try:
                far.connection.recv(1 << 12)
            except BlockingIOError:
                break
        far.connection.settimeout(LIMIT)


def test_a_body_beyond_what_is_taken_in_is_refused(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    far.longest = 3
    near.send(FRAME)
    with pytest.raises(ConnectionError, match="sends 4 bytes where 3 will do"):
        far.receive()


def test_what_was_not_said_is_nan_or_minus_one() -> None:
    frame = Frame(Kind.READY)
    assert (frame.rank, frame.step, frame.version, frame.closing) == (-1,) * 4
    assert math.isnan(frame.loss)
