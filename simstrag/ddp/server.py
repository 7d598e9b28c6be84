"""The server in a process of its own: how it is started, and its program."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable

import torch

from simstrag import policies
from simstrag.ddp.launch import adopted, meet, offer, stall_limit_of
from simstrag.ddp.service import Journal, Server
from simstrag.live import Live
from simstrag.places import die_with_parent

__all__ = ["Journal", "Server", "main", "start_server"]


def start_server(
    world_size: int,
    host: str = "127.0.0.1",
    stall_limit: float = 60.0,
    journal: Callable[[], Journal] | None = None,
) -> tuple[subprocess.Popen[bytes], str]:
    """A server in a process of its own, and its address.

    It ends when all ranks have left, and dies with the thread that called this (Linux).
    journal: makes the journal there; it must pickle.
    """
    command = [sys.executable, "-P", "-m", "simstrag.ddp.server", str(os.getpid())]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(
            pickle.dumps(sys.path) + pickle.dumps((world_size, host, stall_limit, journal))
        )
        process.stdin.close()
        address = process.stdout.readline().decode().strip()
        process.stdout.close()
        if not address:
            raise RuntimeError(f"the server ended with code {process.wait()} before it began")
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process, address


def main() -> None:
    """The program of `start_server`, and of a launcher, which gives it no argument."""
    torch.set_num_threads(1)
    _warm()
    if len(sys.argv) == 1:
        adopted()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # all ranks have ended
        server = Server(int(os.environ["WORLD_SIZE"]), stall_limit=stall_limit_of())
        offer(meet(), server.address)
        server.serve()
        return
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells everybody; the ranks leave
    sys.path[:] = pickle.load(sys.stdin.buffer)
    world_size, host, stall_limit, journal = pickle.load(sys.stdin.buffer)
    server = Server(world_size, host, stall_limit, None if journal is None else journal())
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
