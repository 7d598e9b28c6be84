"""Where a server listens."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from simstrag.ddp.server import reachable
from simstrag.errors import InputError


@pytest.fixture(autouse=True)
def nobody_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMSTRAG_HOST", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


def test_ranks_of_one_host_have_their_server_on_its_loopback() -> None:
    assert reachable(several=False) == "127.0.0.1"


def test_a_loopback_is_refused_where_other_hosts_are_to_reach_it() -> None:
    with pytest.raises(InputError, match=r"MASTER_ADDR='127.0.0.1' is on this host's loopback: se"):
        reachable(several=True)


def test_a_master_that_has_no_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "no host of this name")
    with pytest.raises(InputError, match="'no host of this name' cannot be found here"):
        reachable(several=True)


def test_a_user_may_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMSTRAG_HOST", "10.0.0.7")
    assert reachable(several=True) == "10.0.0.7"
