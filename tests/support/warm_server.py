"""A server forked from a process that is warm: in a test its start costs milliseconds, not seconds.

The start of the real program is tested by `test_ddp_leaving` and by `make verify`.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.server.server import Server
from tests.support.fork_server import Child, ForkServer

__all__ = ["start_server"]


def start_server(
    forks: ForkServer, world_size: int, host: str = "127.0.0.1", stall_limit: float = 60.0
) -> tuple[Child, str]:
    """The same as `simstrag.ddp.server.server_main.start_server`."""
    process = forks.fork(_serve, world_size, host, stall_limit)
    return process, process.pipe.recv()


def _serve(_: ForkServer, pipe: Connection, world_size: int, host: str, stall_limit: float) -> None:
    server = Server(world_size, host, stall_limit, say=warn)
    pipe.send(server.address)
    server.serve()
