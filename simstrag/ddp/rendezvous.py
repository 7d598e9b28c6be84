"""The process group of a job: formed by all ranks, and re-formed without lost ranks."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from simstrag.ddp.failures.abort_collectives import Connections
from simstrag.errors import InputError, SimstragError
from simstrag.processes.children import die_with_parent

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

START = 120.0
"""Seconds in which all ranks must meet, also where the stall limit is shorter."""

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Fenced(SimstragError, RuntimeError):
    """The others went on without this rank, which must end."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's place in a generation of the group.

    names: the original numbers of the ranks of this generation.
    store: a store of this generation alone.
    root: the store of the attempt, which outlives generations.
    attempt: how often torchrun has started all ranks anew.
    stall_limit: seconds, also the timeout of collectives.
    connections: the group's connections, shut to end a wait.
    ours: whether the group was made here.  A group that the script made keeps its timeout and is
        never re-formed, because the script may still hold a reference to it.
    """

    rank: int
    world_size: int
    store: Store
    attempt: int
    generation: int
    names: tuple[int, ...]
    stall_limit: float
    root: Store
    backend: str
    connections: Connections
    ours: bool = True


def end_with_launcher() -> None:
    """Let this process end with the launcher that started it; the first call in a rank.

    Without a launcher, and in processes that a rank starts itself, it does nothing.
    """
    import multiprocessing

    ours, torchs = os.environ.get("SIMSTRAG_PARENT"), os.environ.get("TORCHELASTIC_RUN_ID")
    if (ours or torchs) and multiprocessing.parent_process() is None:
        die_with_parent(int(ours) if ours else os.getppid())


def open_job_store(stall_limit: float | None = None) -> Store:
    """The store of this attempt of the job, for ranks and for a server.

    Raises `InputError` where no launcher has set its address.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    _require(NEEDED[1:])
    address = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
    ours = os.environ.get("RANK") == "0" and not launcher_holds_store()
    store = open_store(*address, ours, max(stall_limit_seconds(stall_limit), START))
    return PrefixStore(f"attempt{_attempt()}", store)


def launcher_holds_store() -> bool:
    """Whether the job's store lives in the launcher's process; else it ends with rank 0."""
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return agents or "SIMSTRAG_STORE" in os.environ


def announce_server(root: Store, address: str) -> None:
    """Publish the server's address."""
    root.set("server", address)


def wait_for_server(root: Store, seconds: float) -> str:
    """Wait for the server's address; raises torch's `DistStoreError` after `seconds`."""
    root.wait(["server"], timedelta(seconds=seconds))
    return str(root.get("server").decode())


def join(
    stall_limit: float | None = None, backend: str | None = None, patient: bool = False
) -> RankPlace:
    """Make the process group; return this process's place in it.

    stall_limit: seconds, also the timeout of collectives; default: the launcher's, or 60.
    backend: default: gloo, also for GPUs that ranks share; NCCL for tensors on GPUs where each rank
        of every host has one of its own (untried).
    patient: collectives may take `START` seconds until `shorten_timeout`.

    The group is left at the end of the program; see `leave_group`.  Raises `InputError` where no
    launcher started this process.
    """
    end_with_launcher()
    _require(NEEDED)
    atexit.register(leave_group)
    size = _number("WORLD_SIZE")
    root = open_job_store(stall_limit)
    return _form_group(
        RankPlace(
            _number("RANK"), size, root, _attempt(), 0, tuple(range(size)),
            stall_limit_seconds(stall_limit), root,
            backend or _agree_on_backend(root, size), Connections(),
        ),
        patient,
    )  # fmt: skip


def use_existing_group(stall_limit: float | None = None) -> RankPlace | None:
    """The place in a process group that exists; None where its store cannot be shared.

    All its ranks call this equally often.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    rank, size, store = dist.get_rank(), dist.get_world_size(), _get_default_store()
    if not (store.has_extended_api() and hasattr(store, "clone")):  # type: ignore[attr-defined]
        return None
    own = PrefixStore(f"simstrag/attempt{_attempt()}", store)
    root = PrefixStore(f"{own.add(str(rank), 1)}", own)
    return RankPlace(
        rank, size, root, _attempt(), 0, tuple(range(size)), stall_limit_seconds(stall_limit), root,
        dist.get_backend(), Connections(), ours=False,
    )  # fmt: skip


def shorten_timeout(joined: RankPlace) -> None:
    """Let collectives fail after the stall limit from now on.

    Until then they have `START` seconds: some ranks import longer than others.
    """
    from torch.distributed.distributed_c10d import _set_pg_timeout

    if joined.ours:
        _set_pg_timeout(timedelta(seconds=joined.stall_limit))


def leave_group() -> None:
    """Leave the process group, if there is one; its threads end unless the script holds it.

    A thread that frees the tensors of a last collective while the interpreter shuts down aborts
    the process.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def regroup(
    joined: RankPlace, members: Collection[int], patience: float | None = None
) -> RankPlace:
    """Form a group without lost ranks, renumbered in the same order.

    members: the ranks of the present generation that go on, as far as this rank knows.  The first
        rank to propose decides.
    patience: seconds in which all of them must come; after that, the ranks that came go on.
        Default: the stall limit, in which all must notice a failure.

    Objects that hold the old group, such as DDP, must be built anew.  Raises `Fenced` where the
    others go on without this rank.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    leave_group()
    us = joined.names[joined.rank]
    wanted = sorted(joined.names[rank] for rank in members)
    seconds = joined.stall_limit if patience is None else patience
    generation = joined.generation
    while True:
        generation += 1
        meeting = PrefixStore(f"meeting{generation}", joined.root)
        decided: list[int] = json.loads(meeting.compare_set("members", "", json.dumps(wanted)))
        if us not in decided:
            raise Fenced(
                f"rank {us} was left behind: generation {generation} of the group has ranks "
                f"{', '.join(map(str, decided))}; it must end"
            )
        meeting.set(f"here/{us}", "")
        if _all_here(meeting, decided, seconds):
            break
        wanted = [name for name in decided if meeting.check([f"here/{name}"])]
    return _form_group(
        replace(
            joined, rank=decided.index(us), world_size=len(decided), generation=generation,
            names=tuple(decided), connections=Connections(),
        )
    )  # fmt: skip


def _all_here(meeting: Store, decided: Sequence[int], seconds: float) -> bool:
    """Whether all came in time; the first rank's answer holds for all."""
    import torch.distributed as dist

    try:
        if not meeting.check(["complete"]):
            meeting.wait([f"here/{name}" for name in decided], timedelta(seconds=seconds))
        complete = "yes"
    except dist.DistStoreError:
        complete = "no"
    return bool(meeting.compare_set("complete", "", complete) == b"yes")


def _form_group(joined: RankPlace, patient: bool = False) -> RankPlace:
    """Form the process group of a place's generation; return the place with its store."""
    import torch
    import torch.distributed as dist

    # Import it before a group exists: it stores the default group in a default argument for ever.
    import torch.distributed.nn.functional
    from torch.distributed.distributed_c10d import PrefixStore

    store = PrefixStore(f"generation{joined.generation}", joined.root)
    if "nccl" in joined.backend:
        torch.cuda.set_device(_number("LOCAL_RANK"))
    with joined.connections.capture():
        dist.init_process_group(
            joined.backend,
            store=PrefixStore("group", store),
            rank=joined.rank,
            world_size=joined.world_size,
            timeout=timedelta(seconds=max(joined.stall_limit, START if patient else 0)),
        )
    return replace(joined, store=store)


def open_store(host: str, port: int, held: bool, seconds: float) -> TCPStore:
    """Connect to the store at an address.

    held: create it in this process instead, on a free port where `port` is 0.
    """
    import torch.distributed as dist

    store: TCPStore = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, None, held, timedelta(seconds=seconds), wait_for_workers=False
    )
    return store


def device_of(local_rank: int) -> str:
    """Torch's name of the GPU of a rank of this host, modulo the GPUs; "cpu" without one."""
    gpus = _gpus()
    return f"cuda:{local_rank % gpus}" if gpus else "cpu"


def _agree_on_backend(root: Store, size: int) -> str:
    """The backend: with NCCL where all ranks can have it, else gloo."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    own = "cpu:gloo,cuda:nccl" if 0 < here <= _gpus() else "gloo"
    root.set(f"backend/{_number('RANK')}", own)
    keys = [f"backend/{rank}" for rank in range(size)]
    root.wait(keys, timedelta(seconds=START))
    (first, *others) = sorted({each.decode() for each in root.multi_get(keys)})
    return "gloo" if others else first


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _require(names: Sequence[str]) -> None:
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} not set: no launcher said which rank this is; start it with "
            "`simstrag ddp` or torchrun"
        )


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise InputError(f"{name}={text!r} is not a number; start it with `simstrag ddp`")
    return int(text)


def _attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def stall_limit_seconds(given: float | None = None) -> float:
    """The given stall limit in seconds, else the launcher's, else 60."""
    return float(os.environ.get("SIMSTRAG_STALL_LIMIT", "60")) if given is None else given
