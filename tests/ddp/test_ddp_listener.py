"""How ranks join a server, what strangers cost it, and the address at which it listens."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from simstrag.ddp.job_store import listen
from simstrag.ddp.secret import known_secret, new_secret, read_secret, secret_file
from simstrag.ddp.server import listener as module
from simstrag.ddp.server.listener import (
    BEAT,
    CHALLENGE,
    ENDED,
    FAILED,
    MAGIC,
    PROTOCOL,
    RESPONSE,
    SIGNAL,
    STRANGERS,
    Listener,
    Peer,
    connect_to,
)
from simstrag.ddp.server.messages import FromRank, Withdrawal
from simstrag.ddp.server.server_main import find_host
from simstrag.ddp.server.wire import Wire
from simstrag.errors import InputError

WAIT = 60.0


class Echo:
    """A server that answers each message of a rank with the same, in a thread."""

    def __init__(self, world_size: int) -> None:
        self.listener = Listener(world_size, "127.0.0.1", WAIT)
        host, port, self.secret = self.listener.address.split(":")
        self.place = host, int(port)
        self.over = threading.Event()
        self.strangers = 0
        self.opened: list[socket.socket] = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while not self.over.is_set():
            event = self.listener.next_peer(0.05)
            self.strangers = len(self.listener._strangers)
            if event is not None:
                self.answer(event[0])

    def answer(self, peer: Peer) -> None:
        message = peer.wire.receive()
        if message is None:
            self.listener.remove(peer)
        else:
            peer.wire.send(message)

    def stranger(self) -> socket.socket:
        self.opened.append(socket.create_connection(self.place, timeout=WAIT))
        return self.opened[-1]

    def join(self, rank: int, **given: bool) -> Wire:
        connection, limit = connect_to(self.listener.address, rank, WAIT, "the server", **given)
        assert limit == WAIT
        self.opened.append(connection)
        return Wire(connection, WAIT, "the server", FromRank)  # which it echoes


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo(2)
    yield server
    server.over.set()
    server.thread.join(WAIT)
    server.listener.close()
    for each in server.opened:
        each.close()


def check_round_trips(wire: Wire, count: int = 50) -> None:
    """Messages come back; a server that waits for a stranger answers none of them."""
    for number in range(count):
        wire.send(Withdrawal(number))
        assert wire.receive() == Withdrawal(number)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers have longer for their proof than a test lasts."""
    monkeypatch.setattr(module, "HANDSHAKE", math.inf)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("sent", [0, 1, RESPONSE.size - 1])
def test_a_stranger_that_says_nothing_or_stops_in_the_middle_holds_up_no_rank(
    echo: Echo, sent: int
) -> None:
    wire = echo.join(0)
    strangers = [echo.stranger() for _ in range(5)]
    for each in strangers:
        each.sendall(bytes(sent))
    check_round_trips(wire)
    echo.join(1)
    assert len(echo.listener._strangers) == 5


@pytest.mark.usefixtures("patient")
def test_a_stranger_that_sends_a_byte_at_a_time_holds_up_no_rank(echo: Echo) -> None:
    wire, stranger = echo.join(0), echo.stranger()
    for _ in range(RESPONSE.size - 1):
        stranger.sendall(b"x")
        check_round_trips(wire, 2)


def test_a_stranger_is_dropped_at_its_deadline(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE", 0.2)
    stranger = echo.stranger()
    assert len(stranger.recv(CHALLENGE.size)) == CHALLENGE.size
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it was dropped before
        stranger.sendall(b"x")
        assert stranger.recv(1) == b""


@pytest.mark.usefixtures("patient")
def test_no_more_than_so_many_strangers_wait_and_the_oldest_goes_first(echo: Echo) -> None:
    strangers = [echo.stranger() for _ in range(STRANGERS + 3)]
    for each in strangers:
        assert len(each.recv(CHALLENGE.size)) == CHALLENGE.size
    assert [each.recv(1) for each in strangers[:3]] == [b""] * 3
    assert echo.strangers <= STRANGERS
    check_round_trips(echo.join(0))


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def test_nothing_of_a_peer_that_does_not_know_the_secret_is_unpickled(
    echo: Echo, tmp_path: Path
) -> None:
    mark = tmp_path / "unpickled"
    trap = pickle.dumps(Trap(mark))
    stranger = echo.stranger()
    stranger.recv(CHALLENGE.size)
    stranger.sendall(RESPONSE.pack(0, False, bytes(32), bytes(32)) + trap)
    with contextlib.suppress(ConnectionResetError):
        assert stranger.recv(1) == b""
    check_round_trips(echo.join(0))
    assert not mark.exists()
    pickle.loads(trap)
    assert mark.exists(), "the trap works"


def test_a_rank_believes_no_server_that_does_not_know_the_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as false:

        def pretend() -> None:
            connection, _ = false.accept()
            with connection:
                connection.sendall(CHALLENGE.pack(MAGIC, PROTOCOL, bytes(32)))
                connection.recv(RESPONSE.size)
                connection.sendall(bytes(module.WELCOME.size))

        thread = threading.Thread(target=pretend)
        thread.start()
        address = f"127.0.0.1:{false.getsockname()[1]}:secret"
        with pytest.raises(ConnectionError, match="does not know the secret of this job"):
            connect_to(address, 0, WAIT, "the server")
        thread.join(WAIT)


def test_the_secret_is_never_sent_and_an_answer_that_is_passed_on_opens_nothing(echo: Echo) -> None:
    overheard = b""
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def carry() -> None:
            nonlocal overheard
            connection, _ = relay.accept()
            with connection, echo.stranger() as server:
                challenge = server.recv(CHALLENGE.size)
                connection.sendall(challenge)
                answer = connection.recv(RESPONSE.size)
                server.sendall(answer)
                welcome = server.recv(module.WELCOME.size)
                connection.sendall(welcome)
                overheard = challenge + answer + welcome

        thread = threading.Thread(target=carry)
        thread.start()
        address = f"127.0.0.1:{relay.getsockname()[1]}:{echo.secret}"
        with pytest.raises(ConnectionError, match="does not take rank 0 in"):
            connect_to(address, 0, WAIT, "the server")
        thread.join(WAIT)
    assert echo.secret.encode() not in overheard
    assert bytes.fromhex(echo.secret) not in overheard
    answer = overheard[CHALLENGE.size :][: RESPONSE.size]
    with echo.stranger() as again:
        assert again.recv(CHALLENGE.size) != overheard[: CHALLENGE.size]
        again.sendall(answer)
        assert again.recv(1) == b""


def test_ranks_that_are_not_of_the_job_or_come_twice_are_not_let_in(echo: Echo) -> None:
    wire = echo.join(0)
    host, port = echo.place
    for address, rank in (
        (echo.listener.address, 2), (echo.listener.address, -1), (echo.listener.address, 0),
        (f"{host}:{port}:wrong", 1),
    ):  # fmt: skip
        with pytest.raises(ConnectionError, match=f"the server does not take rank {rank} in"):
            connect_to(address, rank, WAIT, "the server")
    with pytest.raises(ConnectionError, match="does not take rank 1 in"):
        echo.join(1, beats=True)  # it has no connection for frames yet
    beats = echo.join(0, beats=True)
    with pytest.raises(ConnectionError, match="does not take rank 0 in"):
        echo.join(0, beats=True)
    wire.close()
    beats.close()
    while 0 not in echo.listener.gone:
        time.sleep(0.001)
    with pytest.raises(ConnectionError, match="does not take rank 0 in"):
        echo.join(0)


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (CHALLENGE.pack(b"HTTP", PROTOCOL, bytes(32)), "does not speak the protocol of simstrag"),
        (CHALLENGE.pack(MAGIC, 99, bytes(32)), f"speaks protocol 99 and this side {PROTOCOL}: "),
    ],
)
def test_a_server_of_another_protocol_is_named(challenge: bytes, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(challenge)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(ConnectionError, match=message):
            connect_to(f"127.0.0.1:{server.getsockname()[1]}:x", 0, WAIT, "the server")
        thread.join(WAIT)


# -- where a server listens -------------------------------------------------------------------


def set_only(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name in ("SIMSTRAG_HOST", "SIMSTRAG_SECRET", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_ranks_of_one_host_have_their_server_on_its_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_only(monkeypatch, MASTER_ADDR="10.0.0.7")
    assert find_host(several=False) == "127.0.0.1"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"MASTER_ADDR": "127.0.0.1"}, "MASTER_ADDR='127.0.0.1': .* cannot reach 127.0.0.1; set S"),
        ({"MASTER_ADDR": "no such host"}, r"MASTER_ADDR='no such host': no server can .* \(Name"),
        ({}, "MASTER_ADDR is not set: ranks are on several hosts, and cannot reach"),
        ({"SIMSTRAG_HOST": "0.0.0.0"}, "SIMSTRAG_HOST='0.0.0.0': .* cannot reach 0.0.0.0"),
        ({"SIMSTRAG_HOST": "192.0.2.1"}, r"SIMSTRAG_HOST='192.0.2.1': no server can listen there"),
    ],
)
def test_an_address_is_refused_at_which_others_would_not_find_it(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_only(monkeypatch, **environment)
    with pytest.raises(InputError, match=message):
        find_host(several=True)


def test_a_host_is_taken_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    set_only(monkeypatch, SIMSTRAG_HOST="localhost", MASTER_ADDR="10.0.0.7")
    assert find_host(several=False) in ("127.0.0.1", "::1")


@pytest.mark.parametrize("secret", ["short", "with spaces in it, sixteen", "aaaa:bbbb:cccccccc"])
def test_an_unfit_secret_is_refused_and_not_shown(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_only(monkeypatch, SIMSTRAG_SECRET=secret)
    with pytest.raises(InputError, match="at least 16 letters and digits") as refused:
        known_secret()
    assert secret not in str(refused.value)


def test_a_server_that_others_reach_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    set_only(monkeypatch, SIMSTRAG_HOST="0.0.0.0")
    with pytest.raises(InputError, match="needs a secret, which is not set; set SIMSTRAG_SECRET"):
        find_host(several=False)


def test_a_secret_in_a_file_is_read_by_its_user_alone(tmp_path: Path) -> None:
    address = "127.0.0.1:4321:" + new_secret()
    with secret_file(address) as path:
        assert read_secret(path) == address
        os.chmod(path, 0o644)
        with pytest.raises(InputError, match="is not a file of this user alone"):
            read_secret(path)
    assert not os.path.exists(path)


def test_a_server_may_have_an_address_of_ipv6() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listen("::1") as socket_:
        assert socket_.getsockname()[0] == "::1"


def test_a_rank_says_at_once_that_an_all_reduce_has_ended(echo: Echo) -> None:
    echo.join(0)
    beats = echo.join(0, beats=True).connection
    said = SIGNAL.pack(BEAT, -1) + SIGNAL.pack(ENDED, 7) + SIGNAL.pack(FAILED, 8)
    beats.sendall(said[:12])  # the rest comes later
    peer = echo.listener.peers[0]
    until = time.monotonic() + WAIT
    while not peer.signals and time.monotonic() < until:
        time.sleep(0.001)
    assert peer.signals == said[SIGNAL.size : 12]
    beats.sendall(said[12:])
    ends: list[tuple[int, int, bool]] = []
    while len(ends) < 2 and time.monotonic() < until:
        ends += echo.listener.ends()
        time.sleep(0.01)
    assert ends == [(0, 7, False), (0, 8, True)]
