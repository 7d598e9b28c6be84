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
from simstrag.ddp.aside import address_of, begun, told
from simstrag.ddp.joining import adopted, meet, offer, stall_limit_of
from simstrag.ddp.service import Journal, Server
from simstrag.ddp.slow import warn
from simstrag.errors import InputError
from simstrag.live import Live
from simstrag.places import CORES, keep_memory, pin

__all__ = ["Journal", "Server", "main", "reachable", "start_server"]


def start_server(
    world_size: int,
    host: str = "127.0.0.1",
    stall_limit: float = 60.0,
) -> tuple[subprocess.Popen[bytes], str]:
    """A server in a process of its own, and its address.

    It ends when all ranks have left, and dies with the thread that called this (Linux).
    """
    process = begun("simstrag.ddp.server", world_size, host, stall_limit)
    return process, address_of(process, "the server")


def reachable(several: bool) -> str:
    """Where a server of this host is to listen: its own address in the network of the job.

    several: whether ranks are on several hosts; then it is the address from which this one speaks
    to MASTER_ADDR, else the loopback.  SIMSTRAG_HOST is taken instead where it is set.  Raises
    `InputError` where other hosts could not reach it.
    """
    if given := os.environ.get("SIMSTRAG_HOST"):
        return given
    if not several:
        return "127.0.0.1"
    master = os.environ.get("MASTER_ADDR", "")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
            towards.connect((master, 1))  # sends nothing
            own = str(towards.getsockname()[0])
    except OSError as error:
        own, why = "127.0.0.1", f"cannot be found here ({error.strerror})"
    else:
        why = "is on this host's loopback"
    if ip_address(own).is_loopback:
        raise InputError(
            f"ranks are on several hosts, and MASTER_ADDR={master!r} {why}: set SIMSTRAG_HOST to "
            "the address at which the other hosts reach this one, for the server"
        )
    return own


def main() -> None:
    """The program of `start_server`, and of a launcher, which gives it no argument."""
    torch.set_num_threads(1)
    keep_memory()
    if cores := os.environ.get(CORES):
        pin(set(map(int, cores.split(","))))  # not the one of the rank that started this
    if len(sys.argv) == 1:
        adopted()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(0))  # all ranks have ended, or are to
        _warm()
        host, size = os.environ.get("SIMSTRAG_HOST", "127.0.0.1"), int(os.environ["WORLD_SIZE"])
        server = Server(size, host, stall_limit_of(), say=warn)
        offer(meet(), server.address)
        server.serve()
        return
    world_size, host, stall_limit = told()
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
    from simstrag.ddp.server import main as program  # what is pickled must not be of `__main__`

    program()
