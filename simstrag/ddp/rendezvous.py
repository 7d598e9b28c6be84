"""The process group of a job: formed by all ranks, and re-formed without lost ranks."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from simstrag.ddp.failures.abort_collectives import Connections
from simstrag.ddp.failures.diagnosis import (
    FailureDiagnosis,
    RankFailure,
    describe_error,
    first_line,
    warn,
)
from simstrag.ddp.job_store import (
    START,
    connect_store,
    hold_store,
    launcher_holds_store,
    launcher_watches,
    read_ended,
    read_entry,
    store_of_attempt,
)
from simstrag.errors import InputError, SimstragError
from simstrag.processes.children import die_with_parent

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from simstrag.ddp.failures.heartbeat import HeartbeatStore

FORMING = 30.0
"""Seconds in which ranks that have all come must connect to each other."""

LOOK = 0.02
"""Seconds between two looks at who has come."""

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Fenced(SimstragError, RuntimeError):
    """The others went on without this rank, which must end."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's place in a generation of the group.

    names: the original numbers of the ranks of this generation.
    store: a store of this generation alone.
    root: the store of the attempt, which outlives generations.
    attempt: how often the launcher has started all ranks anew.
    stall_limit: seconds, also the timeout of collectives.
    connections: the group's connections, shut to end a wait.
    heartbeat: of this rank in this generation; None before the group forms.
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
    heartbeat: HeartbeatStore | None = None


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

    Without a launcher that holds it, it listens on the host of rank 0 at SIMSTRAG_HOST, or else at
    MASTER_ADDR.  Raises `InputError` where no launcher has set that, or rank 0 cannot listen there.
    """
    _require(NEEDED[1:])
    host, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
    seconds = max(stall_limit_seconds(stall_limit), START)
    if os.environ.get("RANK") != "0" or launcher_holds_store():
        try:
            return store_of_attempt(connect_store(host, port, seconds), _attempt())
        except RuntimeError as error:
            reason = f"the job's store at {host}, port {port}, cannot be reached"
            raise InputError(f"{reason}: {first_line(error)}") from None
    own = os.environ.get("SIMSTRAG_HOST") or host
    try:
        return store_of_attempt(hold_store(own, port, seconds), _attempt())
    except OSError as error:
        raise InputError(
            f"rank 0 cannot listen at {own}, port {port} ({error.strerror}), where the others meet "
            "it; set SIMSTRAG_HOST there to an address of that host which they reach"
        ) from None


def ended_ranks(seconds: float) -> frozenset[int]:
    """The ranks of this attempt that have ended, as the launcher says; none without it.

    seconds: how long to wait for the first of them.
    """
    ended: frozenset[int] = frozenset()
    if launcher_watches():
        store, until = open_job_store(), time.monotonic() + seconds
        while not (ended := read_ended(store)) and time.monotonic() < until:
            time.sleep(LOOK)
    return ended


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
    place = RankPlace(
        _number("RANK"), size, root, _attempt(), 0, tuple(range(size)),
        stall_limit_seconds(stall_limit), root, backend or "", Connections(),
    )  # fmt: skip
    try:
        place = _form_group(place, patient)
    except RankFailure as failure:
        if not goes_on(place, failure.diagnosis):
            raise
        place = go_on_without(place, failure.diagnosis, patient)
    atexit.register(_report_leaving, place)
    return place


def _report_leaving(joined: RankPlace) -> None:
    """Tell the others of a rank that ends without a training why it does."""
    error, heartbeat = getattr(sys, "last_value", None), joined.heartbeat
    if heartbeat is not None and not heartbeat.closed:
        heartbeat.close(describe_error(error) if error else "its script had come to its end")


def goes_on(joined: RankPlace, diagnosis: FailureDiagnosis) -> bool:
    """Whether the remaining ranks go on after a loss, this one among them."""
    continues = os.environ.get("SIMSTRAG_ON_FAULT") == "continue"
    lost = diagnosis.lost
    return continues and joined.ours and bool(lost) and joined.rank not in lost


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
    place = RankPlace(
        rank, size, root, _attempt(), 0, tuple(range(size)), stall_limit_seconds(stall_limit), root,
        dist.get_backend(), Connections(), ours=False,
    )  # fmt: skip
    return replace(place, heartbeat=start_heartbeat(place))


def start_heartbeat(joined: RankPlace) -> HeartbeatStore:
    """The heartbeat of a rank in its generation of the group; all ranks start theirs."""
    from simstrag.ddp.failures.heartbeat import HeartbeatStore

    return HeartbeatStore(
        joined.store, joined.rank, joined.names, joined.stall_limit, joined.connections,
        holds=joined.names[joined.rank] == 0 and not launcher_holds_store(),
        root=joined.root if joined.ours and launcher_watches() else None,
        meeting=f"meeting{joined.generation + 1}/members",
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


def go_on_without(
    joined: RankPlace, diagnosis: FailureDiagnosis, patient: bool = False
) -> RankPlace:
    """Form the group again without lost ranks, and say so on its lowest rank.

    patient: as for `join`.
    Raises `Fenced` where the others go on without this rank.
    """
    left = [rank for rank in range(joined.world_size) if rank not in diagnosis.lost]
    smaller = regroup(joined, left, patient=patient)
    if smaller.rank == 0:
        warn(f"{diagnosis}; the others go on without it")
    return smaller


def regroup(
    joined: RankPlace,
    members: Collection[int],
    patience: float | None = None,
    patient: bool = False,
) -> RankPlace:
    """Form a group without lost ranks, renumbered in the same order.

    members: the ranks of the present generation that go on, as far as this rank knows.  The first
        rank to propose decides.
    patience: seconds in which all of them must come; after that, the ranks that came go on.
        Default: the stall limit, in which all must notice a failure.
    patient: as for `join`.

    Objects that hold the old group, such as DDP, must be built anew.  Raises `Fenced` where the
    others go on without this rank.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    leave_group()
    if joined.heartbeat is not None:
        joined.heartbeat.close("the group is made anew")
    us = joined.names[joined.rank]
    wanted = sorted(joined.names[rank] for rank in members)
    seconds = joined.stall_limit if patience is None else patience
    generation = joined.generation
    while True:
        generation += 1
        meeting = PrefixStore(f"meeting{generation}", joined.root)
        content = meeting.compare_set("members", "", json.dumps(wanted))
        decided = read_entry("members", content, lambda text: [int(k) for k in json.loads(text)])
        if us not in decided:
            raise Fenced(
                f"rank {us} was left behind: generation {generation} of the group has ranks "
                f"{', '.join(map(str, decided))}; it must end"
            )
        meeting.set(f"here/{us}", "")
        if not _all_here(meeting, joined.root, decided, seconds):
            wanted = [name for name in decided if meeting.check([f"here/{name}"])]
            continue
        place = replace(
            joined, rank=decided.index(us), world_size=len(decided), generation=generation,
            names=tuple(decided), connections=Connections(),
        )  # fmt: skip
        try:
            return _form_group(place, patient)
        except RankFailure as failure:
            lost = failure.diagnosis.lost
            wanted = [name for rank, name in enumerate(decided) if rank not in lost]
            if not lost or us not in wanted:
                raise
            if us == wanted[0]:
                warn(f"{failure}; the others go on without it")


def _all_here(meeting: Store, root: Store, decided: Sequence[int], seconds: float) -> bool:
    """Whether all came in time, and none has ended; the first rank's answer holds for all."""
    keys, until = [f"here/{name}" for name in decided], time.monotonic() + seconds
    complete = "yes"
    while complete == "yes" and not meeting.check(keys) and not meeting.check(["complete"]):
        if launcher_watches():
            ended = [name for name in decided if name in read_ended(root)]
            complete = "yes" if meeting.check([f"here/{name}" for name in ended]) else "no"
        if time.monotonic() > until:
            complete = "no"
        time.sleep(LOOK)
    return bool(meeting.compare_set("complete", "", complete) == b"yes")


def _form_group(joined: RankPlace, patient: bool = False) -> RankPlace:
    """Form the process group of a place's generation; return the place with its store.

    Raises `RankFailure` where a rank has ended, or has not come in `START` seconds.
    """
    import torch
    import torch.distributed as dist

    # Import it before a group exists: it stores the default group in a default argument for ever.
    import torch.distributed.nn.functional
    from torch.distributed.distributed_c10d import PrefixStore, _set_pg_timeout

    store = PrefixStore(f"generation{joined.generation}", joined.root)
    joined.root.set(f"backend/{joined.names[joined.rank]}", _own_backend())
    joined = replace(joined, store=store)
    joined = replace(joined, heartbeat=(heartbeat := start_heartbeat(joined)))
    try:
        heartbeat.await_ranks(START)
        backend = joined.backend or _agree_on_backend(joined)
        if "nccl" in backend:
            torch.cuda.set_device(_number("LOCAL_RANK"))
        meeting = Connections()
        with meeting.capture():  # of its own: it is shut to end a wait for a rank that has ended
            rendezvous = PrefixStore("group", store).clone()  # type: ignore[attr-defined]
        with heartbeat.forming(meeting), joined.connections.capture():
            dist.init_process_group(
                backend, store=rendezvous, rank=joined.rank, world_size=joined.world_size,
                timeout=timedelta(seconds=FORMING),
            )  # fmt: skip
        _set_pg_timeout(timedelta(seconds=max(joined.stall_limit, START if patient else 0)))
    except BaseException as error:
        if isinstance(error, RuntimeError) and not isinstance(error, SimstragError):
            error = RankFailure(heartbeat.diagnose())
        heartbeat.close(describe_error(error))
        raise error from None
    return replace(joined, backend=backend)


def device_of(local_rank: int) -> str:
    """Torch's name of the GPU of a rank of this host, modulo the GPUs; "cpu" without one."""
    gpus = _gpus()
    return f"cuda:{local_rank % gpus}" if gpus else "cpu"


def _own_backend() -> str:
    """The backend that suits this rank: NCCL beside gloo where it has a GPU of its own."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return "cpu:gloo,cuda:nccl" if 0 < here <= _gpus() else "gloo"


def _agree_on_backend(joined: RankPlace) -> str:
    """The backend: with NCCL where all ranks can have it, else gloo."""
    found = joined.root.multi_get([f"backend/{name}" for name in joined.names])
    known = {"gloo": "gloo", "cpu:gloo,cuda:nccl": "cpu:gloo,cuda:nccl"}
    (first, *others) = sorted({read_entry("backend", each, known.__getitem__) for each in found})
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
