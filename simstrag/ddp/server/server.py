"""The server in a process of its own: how it is started, and its program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from ipaddress import ip_address

import torch

from simstrag import policies
from simstrag.ddp.failures.slow_ranks import warn
from simstrag.ddp.rendezvous import adopted, meet, offer, stall_limit_of
from simstrag.ddp.server.listener import listening
from simstrag.ddp.server.server_main import Journal, Server
from simstrag.engine.live import Live
from simstrag.errors import InputError
from simstrag.processes.affinity import cores_of_all, keep_memory, pin
from simstrag.processes.children import read_address, receive_arguments, start_module
from simstrag.processes.signals import exit_on

__all__ = ["Journal", "Server", "main", "reachable", "start_server"]

ADVICE = "set SIMSTRAG_HOST, on the host of rank 0, to the address at which others reach that host"


def start_server(
    world_size: int,
    host: str = "127.0.0.1",
    stall_limit: float = 60.0,
) -> tuple[subprocess.Popen[bytes], str]:
    """A server in a process of its own, and its address.

    It ends when all ranks have left, and dies with the thread that called this (Linux).
    """
    process = start_module("simstrag.ddp.server.server", world_size, host, stall_limit)
    return process, read_address(process, "the server")


def reachable(several: bool) -> str:
    """Where a server of this host is to listen: a numeric address of its own.

    several: whether ranks are in several networks; then it is the address from which this host
    speaks to MASTER_ADDR, else the loopback.  SIMSTRAG_HOST is taken instead where it is set.
    Raises `InputError` where nothing can listen there, or others could not reach it.
    """
    given, master = os.environ.get("SIMSTRAG_HOST", ""), os.environ.get("MASTER_ADDR", "")
    if not (given or several):
        return "127.0.0.1"
    name, value = ("SIMSTRAG_HOST", given) if given else ("MASTER_ADDR", master)
    said = f"{name}={value!r}" if value else f"{name} is not set"
    try:
        found = _own_address(value) if given else _towards(value)
        with listening(found):
            pass
    except OSError as error:
        why = f"no server can listen there ({error.strerror})"
        raise InputError(f"{said}: {why}; {ADVICE}") from None
    if several and (ip_address(found).is_loopback or ip_address(found).is_unspecified):
        raise InputError(f"{said}: ranks are on several hosts, and cannot reach {found}; {ADVICE}")
    return found


def _own_address(name: str) -> str:
    return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])


def _towards(name: str) -> str:
    """This host's own address in the network through which it speaks to another."""
    failure = OSError(0, "it has no address")
    for family, kind, _, _, there in socket.getaddrinfo(name or None, 1, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(there)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError as error:  # a name may have addresses by IPv6 and IPv4, and a host one way
            failure = error
    raise failure


def main() -> None:
    """The program of `start_server`, and of a launcher, which gives it no argument."""
    torch.set_num_threads(1)
    keep_memory()
    pin(set(cores_of_all()))  # not the one of the rank that started this
    if len(sys.argv) == 1:
        adopted()
        exit_on(signal.SIGTERM, signal.SIGINT)  # all ranks have ended, or are to
        _warm()
        host, size = os.environ.get("SIMSTRAG_HOST", "127.0.0.1"), int(os.environ["WORLD_SIZE"])
        server = Server(size, host, stall_limit_of(), say=warn)
        offer(meet(), server.address)
        server.serve()
        return
    world_size, host, stall_limit = receive_arguments()
    _warm()
    server = Server(world_size, host, stall_limit, say=warn)
    print(server.address, flush=True)
    server.serve()


def _warm() -> None:
    """Do what takes long at the first time before a run: a first update would be late by it.

    An optimizer imports half of torch, and the engine loads its compiled code.
    """
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=1.0).step()
    live = Live(policies.load("asgd"), world_size=1, batch=1)
    live.news()
    live.done(rank=0, at=1.0, seconds=1.0)
    live.news()


if __name__ == "__main__":
    from simstrag.ddp.server.server import (
        main as program,  # what is pickled must not be of `__main__`
    )

    program()
