"""The state of a job as plain records in memory, and how compiled code reaches them.

A compiled function takes one number, `m`: the address of a list of addresses.  With the tables
themselves as arguments compiling takes three times as long, and every call counts references.
Whoever holds the tables (`simstrag.engine.kernel`) keeps them where they are while compiled code
runs.

Times are in seconds, work in samples; an index of -1 stands for none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray
from numba.core import cgutils, types
from numba.extending import intrinsic

from simstrag.engine.compiled.compiling import within

__all__ = [
    "CLOSING", "EVENT", "FATE", "JOB", "KEPT", "MACHINE", "PIECE", "QUORUM", "RANK",
    "STEP", "TABLES", "UPDATE", "amp", "batch", "cards", "closings", "communication", "durations",
    "events", "fate_log", "jobs", "kept", "known", "lanes", "lists", "local_times", "lower_bound",
    "machine", "medians", "member_log", "noise", "pieces", "quorums", "ranks", "scratch",
    "seconds_of", "step_log", "suspected", "times", "tree", "update_log", "values",
]  # fmt: skip

f, i, b = "f8", "i8", "i1"

RANK = np.dtype(
    [
        # its step under way, or its last; `due`: of the event that it waits for
        ("pulled", f), ("got", f), ("start", f), ("finish", f), ("arrival", f), ("pushed", f),
        ("ended", f), ("busy", f), ("due", f), ("share", f),
        ("step", i), ("version", i), ("seen", i), ("samples", i),
        # what the plan in force says of its next step
        ("next_share", f), ("next_samples", i), ("bound", i),
        # totals
        ("compute", f), ("communication", f), ("wait", f),
        ("staleness", i), ("applied", i), ("started", i), ("count", i),
        # inputs: the first of the factors of noise at hand; pieces by precision and load
        ("noise_from", i), ("recorded_at", i), ("recorded", i),
        ("stretch", i, (4,)), ("cursor", i, (4,)), ("net", i, (2,)),
        ("clean", f), ("clean_step", i),
        # its job at the server; whom it is late for; who rides on whom
        ("job_arrival", f), ("ticket", i), ("mark_of", i), ("mark", i), ("mark_late", b),
        ("quorum", i), ("closing", i), ("link", i), ("puller", i),
        ("parent", i), ("aboard", i), ("children_at", i), ("children", i),
        ("kept", i), ("rounds", i),
        ("state", b), ("job", b), ("amp", b), ("last_amp", b), ("next_amp", b), ("ahead", b),
        ("named", b), ("idle", b), ("blocked", b),
    ],
    align=True,
)  # fmt: skip

QUORUM = np.dtype(
    [
        ("window", f), ("latest", f), ("seconds", f), ("net", i),
        ("members_at", i), ("size", i), ("needed", i), ("left", i), ("token", i),
        ("steps", i), ("rounds", i),
        ("ready", i), ("ready_last", i), ("ready_count", i), ("joining", i), ("joining_last", i),
        # in lockstep: the step under way of all its members, and sums since they fell in
        ("pulled", f), ("got", f), ("version", i), ("seen", i), ("closing", i),
        ("samples", i), ("amp", i), ("rebatched", i), ("steps_done", i), ("staleness", i),
        ("noise_at", i), ("busy", f), ("puller", i), ("beside", i),
        ("won", i), ("closed_at", f), ("pending", i), ("try_at", i), ("race", b), ("queue", b),
        ("via", b), ("late", b), ("barrier", b), ("together", b), ("asks", b), ("ridden", b),
        ("lockstep", b), ("done", b),
    ],
    align=True,
)  # fmt: skip
"""`left`, `latest`: of a barrier, how many members do not compute yet, and the last finish of
those who do.  Its other members' finishes are no events: nobody could act on them.

`lockstep`: what is known of its members stands in `lanes`, or of a queue in `cards`, and `ranks` is
stale (see `simstrag.engine.compiled.lockstep`)."""

CLOSING = np.dtype(
    [
        ("busy", f), ("power", f), ("shift", f),
        ("number", i), ("undone", i), ("count", i), ("cutoff", i), ("token", i), ("rounds", i),
        ("refiled", i), ("head", i), ("last", i), ("waiting", i), ("leader", i), ("beside", i),
        ("quorum", i), ("via", b), ("late", b), ("fuse", b), ("mean", b), ("lockstep", b),
    ],
    align=True,
)  # fmt: skip
"""`number` counts how often a place in the table was used, so that a mark knows whether the closing
it was made by is over.  `beside`: the next closing of the same update."""

KEPT = np.dtype(
    [("step", i), ("samples", i), ("seconds", f), ("communication", f), ("amp", i)]
)  # fmt: skip
EVENT = np.dtype([("time", f), ("order", i), ("what", i)])
JOB = np.dtype([("arrival", f), ("rank", i), ("ticket", i), ("closing", i)])
PIECE = np.dtype([("at", i), ("last", i), ("period", f)])
UPDATE = np.dtype(
    [
        ("time", f), ("version", i), ("n_own", i), ("samples", i), ("staleness_mean", f),
        ("staleness_max", i), ("progress", f), ("members", i), ("count", i),
    ]
)  # fmt: skip
STEP = np.dtype(
    [
        ("rank", i), ("step", i), ("version", i), ("amp", i), ("start", f), ("finish", f),
        ("wait", f), ("communication", f),
    ]
)  # fmt: skip
FATE = np.dtype(
    [
        ("update", i), ("rank", i), ("step", i), ("version", i), ("amp", i), ("samples", i),
        ("weight", f), ("fate", i),
    ]
)  # fmt: skip

MACHINE = np.dtype(
    [
        # the clock, the learner, totals
        ("now", f), ("version", i), ("samples", i), ("serial", i), ("refiled", i),
        ("booked", f), ("began_at", i), ("own", i), ("stale", i), ("stale_samples", i),
        ("deviation", f), ("beyond", f), ("makespan", f), ("target", f),
        ("started", i), ("amp", i), ("rebatched", i), ("applied", i), ("dropped", i),
        ("aborted", i), ("asked", i), ("cut", i),
        ("hits", i), ("false_alarms", i), ("misses", i), ("suspects", i),
        # the server and its job
        ("server_end", f), ("server_serial", i), ("server_rank", i), ("server_ticket", i),
        ("server_closing", i), ("serving", b), ("take_due", b),
        # constants
        ("workers", i), ("batch", i), ("noise_scale", f), ("c_tau", f), ("push", f), ("pull", f),
        ("job", f), ("switch", f), ("amp_ratio", f), ("microbatches", i), ("trace_end", f),
        ("straggler_ratio", f), ("fixed_share", f),
        ("noisy", b), ("holds", b), ("loops", b), ("halts", b), ("fused_allreduce", b),
        ("told", b),
        # the plan in force
        ("deadline", f), ("cutoff", i), ("power", f), ("shift", f), ("quorums", i), ("windowed", i),
        ("loaded", i), ("fuse", b), ("mean", b), ("bounded", b), ("judged", b), ("shows", b),
        ("unknown", b), ("may_lockstep", b), ("lapping", b), ("racing", b), ("queueing", b),
        ("review_updates", i), ("review_samples", i), ("review_seconds", f), ("on_block", b),
        ("reviewed_updates", i), ("reviewed_samples", i), ("reviewed_time", f), ("has_asked", b),
        # ends
        ("most_updates", i), ("most_samples", i), ("most_progress", f),
        # lists
        ("events", i), ("jobs", i), ("free", i), ("to_release", i), ("blocked", i),
        ("to_start", i), ("to_fall_in", i), ("least", i), ("at_least", i),
        ("entering", b), ("freed", b),
        # what is asked of whoever drives
        ("stop", i), ("call", i), ("out", i), ("low", b), ("crowded", b), ("asks_server", b),
        ("spent", i), ("budget", i),
        # logs
        ("updates", i), ("members", i), ("steps", i), ("fates", i),
        ("every", i), ("keeps_steps", b), ("keeps_fates", b),
    ],
    align=True,
)  # fmt: skip

TABLES = (
    "machine", "ranks", "quorums", "closings", "events", "jobs", "lists", "scratch", "kept",
    "noise", "pieces", "times", "values", "seconds_of", "durations", "medians",
    "update_log", "member_log", "step_log", "fate_log",
    "known", "local_times", "communication", "batch", "amp", "lower_bound", "lanes", "tree",
    "suspected",
)  # fmt: skip
"""In the order of their addresses; three numbers each: address, rows, columns."""

PLACES = 3 * len(TABLES)
FLOAT, INT, BOOL = np.dtype(f), np.dtype(i), np.dtype("?")


def _as_pointer(context: Any, address: Any) -> Any:
    """A number as an address of anything."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


_pointer: Any = intrinsic(_as_pointer)


@within
def _place(m: int, table: int) -> Any:
    """Address, rows and columns of a table."""
    addresses = carray(_pointer(m), (PLACES,), INT)
    return addresses[3 * table], addresses[3 * table + 1], addresses[3 * table + 2]


@within
def machine(m: int) -> Any:
    """The one record of the whole job."""
    address, _, _ = _place(m, 0)
    return carray(_pointer(address), (1,), MACHINE)[0]


@within
def ranks(m: int) -> Any:
    """One record per rank."""
    address, rows, _ = _place(m, 1)
    return carray(_pointer(address), (rows,), RANK)


@within
def quorums(m: int) -> Any:
    """Of the plan in force, in its order."""
    address, rows, _ = _place(m, 2)
    return carray(_pointer(address), (rows,), QUORUM)


@within
def closings(m: int) -> Any:
    """Places for closings; free ones hang on each other by `head`."""
    address, rows, _ = _place(m, 3)
    return carray(_pointer(address), (rows,), CLOSING)


@within
def events(m: int) -> Any:
    """A heap."""
    address, rows, _ = _place(m, 4)
    return carray(_pointer(address), (rows,), EVENT)


@within
def jobs(m: int) -> Any:
    """A heap: who waits for the server."""
    address, rows, _ = _place(m, 5)
    return carray(_pointer(address), (rows,), JOB)


@within
def lists(m: int) -> Any:
    """Members of the quorums, then riders of the ranks."""
    address, rows, _ = _place(m, 6)
    return carray(_pointer(address), (rows,), INT)


@within
def scratch(m: int) -> Any:
    """Room for a list of ranks."""
    address, rows, _ = _place(m, 7)
    return carray(_pointer(address), (rows,), INT)


@within
def kept(m: int) -> Any:
    """What ranks keep of a contribution, oldest first."""
    address, rows, columns = _place(m, 8)
    return carray(_pointer(address), (rows, columns), KEPT)


@within
def noise(m: int) -> Any:
    """Factors of the ranks' next steps; a column per rank."""
    address, rows, columns = _place(m, 9)
    return carray(_pointer(address), (rows, columns), FLOAT)


@within
def pieces(m: int) -> Any:
    """Step functions of time."""
    address, rows, _ = _place(m, 10)
    return carray(_pointer(address), (rows,), PIECE)


@within
def times(m: int) -> Any:
    """From when on the values of a piece hold."""
    address, rows, _ = _place(m, 11)
    return carray(_pointer(address), (rows,), FLOAT)


@within
def values(m: int) -> Any:
    """The values of all pieces."""
    address, rows, _ = _place(m, 12)
    return carray(_pointer(address), (rows,), FLOAT)


@within
def seconds_of(m: int) -> Any:
    """Of an all-reduce among so many ranks on an idle network."""
    address, rows, _ = _place(m, 13)
    return carray(_pointer(address), (rows,), FLOAT)


@within
def durations(m: int) -> Any:
    """Recorded durations of all ranks."""
    address, rows, _ = _place(m, 14)
    return carray(_pointer(address), (rows,), FLOAT)


@within
def medians(m: int) -> Any:
    """Room for a number per rank."""
    address, rows, _ = _place(m, 15)
    return carray(_pointer(address), (rows,), FLOAT)


@within
def update_log(m: int) -> Any:
    address, rows, _ = _place(m, 16)
    return carray(_pointer(address), (rows,), UPDATE)


@within
def member_log(m: int) -> Any:
    address, rows, _ = _place(m, 17)
    return carray(_pointer(address), (rows,), INT)


@within
def step_log(m: int) -> Any:
    address, rows, _ = _place(m, 18)
    return carray(_pointer(address), (rows,), STEP)


@within
def fate_log(m: int) -> Any:
    address, rows, _ = _place(m, 19)
    return carray(_pointer(address), (rows,), FATE)


@within
def known(m: int) -> Any:
    """How many steps of each rank a policy has been shown."""
    address, rows, _ = _place(m, 20)
    return carray(_pointer(address), (rows,), INT)


@within
def local_times(m: int) -> Any:
    """Of the last steps that a policy may see, a column per rank, as are the four tables below.

    The k-th step of a rank, counted from 0, is in row k modulo their number.
    """
    address, rows, columns = _place(m, 21)
    return carray(_pointer(address), (rows, columns), FLOAT)


@within
def communication(m: int) -> Any:
    address, rows, columns = _place(m, 22)
    return carray(_pointer(address), (rows, columns), FLOAT)


@within
def batch(m: int) -> Any:
    address, rows, columns = _place(m, 23)
    return carray(_pointer(address), (rows, columns), FLOAT)


@within
def amp(m: int) -> Any:
    address, rows, columns = _place(m, 24)
    return carray(_pointer(address), (rows, columns), BOOL)


@within
def lower_bound(m: int) -> Any:
    address, rows, columns = _place(m, 25)
    return carray(_pointer(address), (rows, columns), BOOL)


@within
def lanes(m: int) -> Any:
    """What is known of members in lockstep; a column per place in `lists`."""
    address, rows, columns = _place(m, 26)
    return carray(_pointer(address), (rows, columns), FLOAT)


@within
def cards(m: int) -> Any:
    """The same room, a row per rank: what is known of ranks in a queue."""
    address, rows, columns = _place(m, 26)
    return carray(_pointer(address), (columns, rows), FLOAT)


@within
def tree(m: int) -> Any:
    """The least arrivals of ranks in a queue, of ever fewer of them towards the front."""
    address, rows, _ = _place(m, 27)
    return carray(_pointer(address), (rows,), FLOAT)


@within
def suspected(m: int) -> Any:
    """Whether the policy takes a rank for a straggler."""
    address, rows, _ = _place(m, 28)
    return carray(_pointer(address), (rows,), BOOL)
