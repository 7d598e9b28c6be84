"""Frames over a socket: what arrives, and the error where it does not."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from simstrag.contract import Outer
from simstrag.ddp.server import wire
from simstrag.ddp.server.messages import (
    CommandMessage,
    Compute,
    FromRank,
    FromServer,
    GradientRoute,
    LostRank,
    Message,
    StepReport,
    Withdrawal,
)
from simstrag.ddp.server.shared_buffer import as_bytes
from simstrag.ddp.server.wire import HEADER, LIMIT, Wire, encode
from simstrag.errors import InputError

STALL = 0.3
REPORT = StepReport(
    GradientRoute.PUSH, 17, 12, 64, 0.25, 10.5, 10.75, 1.5, False, b"changed", None, 2.5
)
BODY = encode(REPORT)


def frame(size: int) -> bytes:
    """A frame up to its buffer of so many bytes."""
    return HEADER.pack(len(BODY), 0, size) + BODY


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Wire, Wire]]:
    """Both ends of a connection, which have patience unless a test gives them a stall limit."""
    limit = getattr(request, "param", 120.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        yield Wire(near, limit, "the server", FromServer), Wire(far, limit, "rank 3", FromRank)


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
        near.send(Withdrawal(number), sent)
    assert [far.receive(buffer) for _ in range(3)] == [Withdrawal(number) for number in range(3)]
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


@pytest.mark.parametrize("ends", [STALL], indirect=True)
def test_silence_inside_a_frame_ends_at_the_stall_limit(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    near.connection.sendall(frame(8))
    with pytest.raises(ConnectionError, match=r"rank 3 was silent for 0.3 s inside a frame"):
        far.receive(memoryview(bytearray(8)))


@pytest.mark.parametrize("ends", [STALL], indirect=True)
def test_a_side_that_takes_nothing_in_ends_a_send(ends: tuple[Wire, Wire]) -> None:
    near, _ = ends
    with pytest.raises(ConnectionError, match=r"the server took nothing in for 0.3 s"):
        near.send(REPORT, memoryview(bytearray(1 << 26)))


def test_a_buffer_of_another_size_is_refused(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    near.connection.sendall(frame(16))
    with pytest.raises(ConnectionError, match="sends 16 bytes where 8 are expected"):
        far.receive(memoryview(bytearray(8)))


def sent(ends: tuple[Wire, Wire], message: Message) -> Any:
    """A message of the server as a rank receives it."""
    near, far = ends
    far.send(message)
    return near.receive()


def test_types_and_numbers_of_all_kinds_arrive_as_they_were(ends: tuple[Wire, Wire]) -> None:
    outer = Outer(lr=0.7, momentum=0.9, nesterov=True, mix=1 / 3)
    step = Compute(
        1, 2, 3, True, 4, GradientRoute.GROUP, outer=outer, members=(0, 1), weight=0.1,
        pause=np.float64(0.1),  # type: ignore[arg-type]  # as a policy may compute it
    )  # fmt: skip
    command = CommandMessage(step, [LostRank(2, 0.1, "gone")], bulk=bytes(3 << 20))
    assert sent(ends, command) == command
    near, far = ends
    odd = {0: (math.inf, True, 1.5), 7: (0.1, False, 2.0)}
    near.send(StepReport(GradientRoute.GROUP, 1, 1, 8, 0.5, members=odd))
    report = far.receive()
    assert report.members == odd
    assert all(math.isnan(each) for each in (report.begun, report.ended, report.loss))


def test_a_message_of_the_other_direction_is_refused(ends: tuple[Wire, Wire]) -> None:
    with pytest.raises(ConnectionError, match=r"the server sends what is no message .*'Withdrawa"):
        sent(ends, Withdrawal(3))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "truncated"),
        (BODY[:-1], "truncated"),
        (BODY + b"x", "trailing"),
        (BODY.replace(b"push", b"pull"), "Invalid enum value 'pull'"),
        (b"\x92" + encode(Withdrawal(1))[1:-1] + b"\xa1\xff", "Expected `int`, got `str`"),
        (b"\x91\xa1\xff", "utf-8"),
        (b"\x91" * 100_000, "Expected `str`, got `array`"),
    ],
)
def test_a_damaged_message_is_refused_in_one_line(
    ends: tuple[Wire, Wire], body: bytes, message: str
) -> None:
    near, far = ends
    near.connection.sendall(HEADER.pack(len(body), 0, 0) + body)
    with pytest.raises(ConnectionError, match=f"rank 3 sends what .*{message}") as caught:
        far.receive()
    assert "\n" not in str(caught.value)


def test_no_memory_is_taken_for_more_than_a_message_may_have(ends: tuple[Wire, Wire]) -> None:
    near, far = ends
    near.connection.sendall(HEADER.pack(1 << 60, 0, 0))
    with pytest.raises(ConnectionError, match=f"a message of {1 << 60} bytes, above {LIMIT}"):
        far.receive()


def test_bulk_is_taken_piece_by_piece_and_only_with_a_message_that_has_it(
    ends: tuple[Wire, Wire],
) -> None:
    near, far = ends
    near.connection.sendall(HEADER.pack(len(BODY), 1 << 60, 0) + BODY)
    with pytest.raises(ConnectionError, match=f"rank 3 sends {1 << 60} bytes of bulk with a StepR"):
        far.receive()
    body = encode(CommandMessage(Compute(0, 0, 0, False, 1, GradientRoute.PUSH), []))
    far.connection.sendall(HEADER.pack(len(body), 1 << 60, 0) + body)
    far.connection.sendall(bytes(wire.PIECE))
    far.close()
    with pytest.raises(ConnectionError, match="closed the connection inside a frame"):
        near.receive()


def test_a_message_above_the_limit_is_refused_where_it_is_sent(ends: tuple[Wire, Wire]) -> None:
    large = replace(REPORT, settings=bytes(LIMIT))
    with pytest.raises(InputError, match=f"StepReport for .*, above {LIMIT}; does the policy hold"):
        ends[0].send(large)
