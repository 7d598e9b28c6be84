"""The server as a process of its own: how it is started, where it listens, and its program."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from ipaddress import ip_address

import torch

from simstrag import policies
from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.job_store import ServerRequest, announce_server, listen, read_ended
from simstrag.ddp.rendezvous import end_with_launcher, open_job_store, stall_limit_seconds
from simstrag.ddp.secret import ADVICE as NO_SECRET
from simstrag.ddp.secret import known_secret
from simstrag.ddp.server.server import Server
from simstrag.engine.live import Live
from simstrag.errors import InputError
from simstrag.processes.affinity import cores_of_all, keep_memory, pin
from simstrag.processes.children import read_address, receive_arguments, start_module
from simstrag.processes.signals import exit_on

ADVICE = "set SIMSTRAG_HOST, on the host of rank 0, to the address at which others reach that host"


def start_server(
    world_size: int, host: str = "127.0.0.1", stall_limit: float = 60.0
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server in a process of its own; the process, and the address for `Client`.

    It ends when all ranks have left, and dies with the thread that called this (Linux).
    """
    process = start_module("simstrag.ddp.server.server_main", world_size, host, stall_limit)
    return process, read_address(process, "the server")


def find_host(several: bool) -> str:
    """The numeric address of this host at which a server is to listen.

    several: whether ranks are in several networks; then it is the address from which this host
    reaches MASTER_ADDR, else the loopback. SIMSTRAG_HOST takes precedence where it is set.
    Raises `InputError` where nothing can listen there, or other hosts cannot reach it, and where
    they could, and no secret is set that would keep strangers out.
    """
    own, master = os.environ.get("SIMSTRAG_HOST", ""), os.environ.get("MASTER_ADDR", "")
    if not (own or several):
        return "127.0.0.1"
    name, value = ("SIMSTRAG_HOST", own) if own else ("MASTER_ADDR", master)
    setting = f"{name}={value!r}" if value else f"{name} is not set"
    try:
        if own:
            address = str(socket.getaddrinfo(own, None, type=socket.SOCK_STREAM)[0][4][0])
        else:
            address = _address_towards(master)
        with listen(address):
            pass
    except OSError as error:
        why = f"no server can listen there ({error.strerror})"
        raise InputError(f"{setting}: {why}; {ADVICE}") from None
    near = ip_address(address).is_loopback
    if several and (near or ip_address(address).is_unspecified):
        raise InputError(
            f"{setting}: ranks are on several hosts, and cannot reach {address}; {ADVICE}"
        )
    if not near and known_secret() is None:
        raise InputError(f"a server at {address} needs a secret, which is not set; {NO_SECRET}")
    return address


def _address_towards(name: str) -> str:
    """This host's address in the network through which it reaches another host."""
    failure = OSError(0, "it has no address")
    for family, kind, _, _, there in socket.getaddrinfo(name or None, 1, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(there)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError as error:  # a name may have IPv6 and IPv4 addresses, and a host one of them
            failure = error
    raise failure


def main() -> None:
    """The program of `start_server`, and of a launcher, which gives no argument."""
    torch.set_num_threads(1)
    keep_memory()
    pin(set(cores_of_all()))  # the starting rank has one core of its own
    if len(sys.argv) > 1:
        world_size, host, stall_limit = receive_arguments()
        warm_up()
        server = Server(world_size, host, stall_limit, say=warn)
        print(server.address, flush=True)
    else:
        end_with_launcher()
        exit_on(signal.SIGTERM, signal.SIGINT)  # all ranks have ended, or are to
        generation, names = ServerRequest(*json.loads(os.environ["SIMSTRAG_SERVED"]))
        host, store = os.environ.get("SIMSTRAG_HOST", "127.0.0.1"), open_job_store()

        def ended() -> set[int]:
            gone = read_ended(store)
            if not server.is_used and store.check([f"meeting{generation + 1}/members"]):
                os._exit(0)  # ranks that were to come form a smaller group
            return {rank for rank, name in enumerate(names) if name in gone}

        warm_up()
        server = Server(len(names), host, stall_limit_seconds(), say=warn, ended=ended)
        announce_server(store, generation, server.address.rpartition(":")[0])
    server.serve()


def warm_up() -> None:
    """Let an optimizer import half of torch, and the engine load its compiled code.

    Later they would delay the first update.
    """
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=1.0).step()
    live = Live(policies.load("asgd"), world_size=1, batch=1)
    live.news()
    live.finish_step(rank=0, at=1.0, seconds=1.0)
    live.news()


if __name__ == "__main__":
    from simstrag.ddp.server.server_main import main as program  # no pickle names `__main__`

    program()
