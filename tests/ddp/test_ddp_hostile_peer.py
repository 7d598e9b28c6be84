"""Nothing that comes over a socket is unpickled, also from a peer that belongs to the job."""

from __future__ import annotations

import pickle
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from simstrag import policies
from simstrag.ddp.flat_parameters import pack_optimizer
from simstrag.ddp.pickled_policy import pack_policy, unpack_policy
from simstrag.ddp.server.client import Client
from simstrag.ddp.server.listener import REDUCE, SIGNAL, Listener, Peer
from simstrag.ddp.server.messages import GradientRoute, JobSpec, StepReport
from simstrag.ddp.server.server import Server
from simstrag.ddp.server.wire import HEADER
from simstrag.errors import InputError
from tests.ddp.test_ddp_listener import Trap

WAIT = 60.0
COUNT = 3


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """The file that a trap makes where it is unpickled; no test may let it."""
    yield tmp_path / "unpickled"
    assert not (tmp_path / "unpickled").exists()


def check_line(error: BaseException) -> None:
    assert "\n" not in str(error)


def frame(body: bytes) -> bytes:
    return HEADER.pack(len(body), 0, 0) + body


def job() -> JobSpec:
    parameters = [torch.nn.Parameter(torch.ones(COUNT))]
    packed = pack_optimizer(torch.optim.SGD(parameters, lr=0.1))
    return JobSpec(pack_policy(policies.load("asgd")), 8, bulk=packed)


class Serving:
    """A server in a thread, and its ranks, of which rank 0 brings the job."""

    def __init__(self, world_size: int, spec: JobSpec) -> None:
        self.server = Server(world_size, stall_limit=WAIT)
        self.error: InputError | None = None
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        self.clients = [Client(self.server.address, rank, WAIT) for rank in range(world_size)]
        for client in self.clients:
            client.begin(COUNT, torch.float32, None if client.rank else spec, shared=False)

    def serve(self) -> None:
        try:
            self.server.serve()
        except InputError as error:
            self.error = error

    def end(self) -> None:
        for client in self.clients:
            client.leave()
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


def test_a_rank_that_sends_a_pickle_is_lost_and_the_others_go_on(mark: Path) -> None:
    serving = Serving(2, job())
    client, hostile = serving.clients
    client.receive()
    hostile._wire.connection.sendall(frame(pickle.dumps(Trap(mark))))
    while not client.lost:
        client.finish_step(torch.ones(COUNT), 0.1)
        client.receive()
    serving.end()
    assert re.fullmatch(r"rank 1 sends what is no message to this side: .*", client.lost[1])
    assert "\n" not in client.lost[1]
    assert serving.error is None


def test_an_optimizer_that_is_a_pickle_ends_the_job_in_check_line(mark: Path) -> None:
    serving = Serving(1, JobSpec(job().policy, 8, bulk=pickle.dumps(Trap(mark))))
    with pytest.raises(InputError, match="the optimizer cannot be read") as caught:
        serving.clients[0].receive()
    check_line(caught.value)
    serving.end()


def test_settings_that_are_a_pickle_end_the_job_in_check_line(mark: Path) -> None:
    serving = Serving(1, job())
    client = serving.clients[0]
    client.receive()
    trap = pickle.dumps([{"lr": Trap(mark)}])
    client._wire.send(StepReport(GradientRoute.READY, 0, 0, 8, 0.1, settings=trap))
    with pytest.raises(InputError, match="the optimizer's settings cannot be read") as caught:
        client.receive()
    check_line(caught.value)
    serving.end()


class Hostile:
    """A server that knows the secret of the job, and sends what a test says."""

    def __init__(self) -> None:
        self.listener, self.over = Listener(1, "127.0.0.1", WAIT), threading.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        self.client = Client(self.listener.address, 0, WAIT)

    def serve(self) -> None:
        while not self.over.is_set():
            self.listener.next_peer(0.01)

    @property
    def peer(self) -> Peer:
        until = time.monotonic() + WAIT
        while self.listener.peers[0].beats is None and time.monotonic() < until:
            time.sleep(0.001)
        return self.listener.peers[0]


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    server = Hostile()
    yield server
    server.client.close()
    server.over.set()
    server.thread.join(WAIT)
    server.listener.close()


def test_a_rank_refuses_a_pickle_of_its_server(hostile: Hostile, mark: Path) -> None:
    hostile.peer.wire.connection.sendall(frame(pickle.dumps(Trap(mark))))
    with pytest.raises(ConnectionError, match=r"sends what is no .* while rank 0 was") as caught:
        hostile.client.receive()
    check_line(caught.value)


@pytest.mark.parametrize("kind", ["a pickle", "another message", "a negative size", "a huge size"])
def test_a_rank_refuses_a_signal_that_is_no_all_reduce(
    hostile: Hostile, mark: Path, kind: str
) -> None:
    content = {"a pickle": pickle.dumps(Trap(mark)), "another message": b"\x92\xa4Keep\x01"}
    size = {"a negative size": -20, "a huge size": 1 << 40}
    body = content.get(kind, b"")
    beats = hostile.peer.beats
    assert beats is not None
    beats.sendall(SIGNAL.pack(REDUCE, size.get(kind, len(body))) + body)
    with pytest.raises(ConnectionError, match=r"sends .* while rank 0 was") as caught:
        hostile.client.receive()
    check_line(caught.value)
    assert hostile.client.reductions.empty()


def test_a_policy_whose_class_is_not_found_is_refused_with_the_way_out() -> None:
    packed = pack_policy(policies.load("asgd")).replace(b"asgd", b"asgx")
    with pytest.raises(InputError, match="must stand in a module that can be imported"):
        unpack_policy(packed)


def test_only_a_policy_is_unpickled_in_the_whole_runtime() -> None:
    unpickles = re.compile(
        r"all_gather_object|broadcast_object_list|scatter_object_list"
        r"|gather_object|pickle\.loads?\b|Unpickler|weights_only=False"
    )
    found = {
        path.name
        for path in Path("simstrag/ddp").rglob("*.py")
        if unpickles.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"pickled_policy.py"}
    calls = Path("simstrag/ddp").rglob("*.py")
    loads = [line for path in calls for line in re.findall(r"torch\.load\(.*", path.read_text())]
    assert loads
    assert all("weights_only=True" in line for line in loads)
