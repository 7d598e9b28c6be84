"""Frames over a socket: what arrives, and the error where it does not."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from simstrag.ddp.server.messages import GradientRoute, StepReport
from simstrag.ddp.server.shared_buffer import as_bytes
from simstrag.ddp.server.wire import HEADER, Wire

LIMIT = 0.3
REPORT = StepReport(
    GradientRoute.PUSH, 17, 12, 64, 0.25, 10.5, 10.75, 1.5, False, b"changed", None, 2.5
)
BODY = pickle.dumps(REPORT)


def frame(size: int) -> bytes:
    """A frame up to its buffer of so many bytes."""
    return HEADER.pack(len(BODY), size) + BODY


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        yield Wire(near, LIMIT, "the server"), Wire(far, LIMIT, "rank 3")


def test_a_message_arrives_as_it_was_sent_its_buffer_in_the_memory_of_a_tensor(
    ends: tuple[Wire, Wire],
) -> None:
    near, far = ends
    sent, received = torch.randn(1 << 18, dtype=torch.float64), torch.zeros(1 << 18).double()
    thread = threading.Thread(target=near.send, args=(REPORT, as_bytes(sent)))
    thread.start()
    assert far.receive(as_bytes(received)) == REPORT
    thread.join()
    assert torch.equal(sent, received)


def test_frames_follow_each_other_with_and_without_a_buffer(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    buffer = memoryview(bytearray(8))
    for number, sent in enumerate((None, memoryview(b"12345678"), None)):
        near.send(number, sent)
    assert [far.receive(buffer) for _ in range(3)] == [0, 1, 2]
    assert bytes(buffer) == b"12345678"


def test_the_end_between_two_frames_is_none(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    near.send(REPORT)
    near.close()
    assert far.receive() == REPORT
    assert far.receive() is None


@pytest.mark.parametrize("sent", [1, HEADER.size - 1, HEADER.size, HEADER.size + 3])
def test_the_end_inside_a_frame_is_a_fault(ends: tuple[Wire, Wire], sent: int) -> None:
    near, far = ends
    near.connection.sendall(frame(0)[:sent])
    near.close()
    with pytest.raises(ConnectionError, match="rank 3 closed the connection inside a frame"):
        far.receive()


def test_silence_inside_a_frame_ends_at_the_stall_limit(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    near.connection.sendall(frame(8))
    with pytest.raises(ConnectionError, match=r"rank 3 was silent for 0.3 s inside a frame"):
        far.receive(memoryview(bytearray(8)))


def test_a_side_that_takes_nothing_in_ends_a_send(ends: tuple[Wire, Wire]) -> None:
    near, _ = ends
    with pytest.raises(ConnectionError, match=r"the server took nothing in for 0.3 s"):
        near.send(REPORT, memoryview(bytearray(1 << 26)))


def test_a_buffer_of_another_size_is_refused(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    near.connection.sendall(frame(16))
    with pytest.raises(ConnectionError, match="sends 16 bytes where 8 are expected"):
        far.receive(memoryview(bytearray(8)))
