"""Where a server listens."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("torch")

from simstrag.ddp.server.listener import listening
from simstrag.ddp.server.server import reachable
from simstrag.errors import InputError


def said(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name in ("SIMSTRAG_HOST", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_ranks_of_one_host_have_their_server_on_its_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said(monkeypatch, MASTER_ADDR="10.0.0.7")
    assert reachable(several=False) == "127.0.0.1"


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
    said(monkeypatch, **environment)
    with pytest.raises(InputError, match=message):
        reachable(several=True)


def test_what_a_user_says_is_taken_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    said(monkeypatch, SIMSTRAG_HOST="localhost", MASTER_ADDR="10.0.0.7")
    assert reachable(several=False) in ("127.0.0.1", "::1")


def test_a_door_may_have_an_address_of_ipv6() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with listening("::1") as door:
        assert door.getsockname()[0] == "::1"
