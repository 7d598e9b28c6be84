"""A server forked from a process that is warm: in a test its start costs milliseconds, not seconds.

The start of the real program is tested by `test_ddp_leaving` and by `make verify`.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import torch

from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.server.server import Server

__all__ = ["WarmServer", "start_server"]


class WarmServer:
    """What a rank asks of the process of its server."""

    def __init__(self, process: ForkServerProcess) -> None:
        self.kill, self.wait = process.kill, process.join


def start_server(
    world_size: int, host: str = "127.0.0.1", stall_limit: float = 60.0
) -> tuple[WarmServer, str]:
    """The same as `simstrag.ddp.server.server_main.start_server`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tests.support.warmed_up"])
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, world_size, host, stall_limit), daemon=True
    )
    process.start()
    theirs.close()
    return WarmServer(process), ours.recv()


def _serve(pipe: Connection, world_size: int, host: str, stall_limit: float) -> None:
    torch.set_num_threads(1)
    server = Server(world_size, host, stall_limit, say=warn)
    pipe.send(server.address)
    server.serve()
