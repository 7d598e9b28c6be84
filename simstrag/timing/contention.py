"""The slowdowns of a trace by rank: the contention of one job.

To policies and engines a rank is a data-parallel worker.  Where a worker is itself a group of ranks
(`simstrag.timing.worker`), the contention of each of these is kept in `members`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Ints
from simstrag.errors import InputError
from simstrag.timing.worker import WorkerRanks
from simstrag.trace.row_validation import DELAY, DURATION, MOST_NODE, SLOWDOWN, UTILISATION
from simstrag.trace.slowdown import ONE, Piecewise
from simstrag.trace.step_functions import Pieces, pick
from simstrag.trace.trace import RESOURCES, Trace


@dataclass(frozen=True, eq=False)
class Contention:
    """The contention of a job's ranks.

    pieces: step functions of slowdowns, then of delays; the first one is no contention.
    places: the place (row of `felt`) of each rank; further ranks have the last place.
    felt: shape (places, resources): the number in `pieces` of each resource, in the order of
        `RESOURCES`; 0 in the last place.
    delayed: shape (places,): the number in `pieces` of the seconds that each message takes more; 0
        for none.
    durations: rank to recorded local times.
    unshortened: rank to the part of each of them that reduced precision does not shorten; empty if
        it shortens all of them whole.
    worker: the ranks that make a worker, to which each `rank` above then belongs; None if it is one
        rank.
    members: of such workers the numbers in `pieces` of each of their ranks, shape (places, ranks of
        a worker, resources); `felt` then has the largest slowdown of each resource among them, and
        `delayed` their largest delay.
    end: seconds after which no slowdown or delay is recorded; infinite without any (recorded
        durations are replayed by step, not by time) and with constant ones only (all rows are at
        time 0).
    trace_end: the slowdowns after `end`: hold, loop or error.
    """

    pieces: Pieces = field(default_factory=lambda: Pieces.constants([1.0]))
    places: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    felt: Ints = field(default_factory=lambda: np.zeros((1, len(RESOURCES)), np.int64))
    delayed: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    durations: dict[int, tuple[float, ...]] = field(default_factory=dict)
    unshortened: dict[int, tuple[float, ...]] = field(default_factory=dict)
    worker: WorkerRanks | None = None
    members: Ints = field(default_factory=lambda: np.zeros((1, 1, len(RESOURCES)), np.int64))
    end: float = math.inf
    trace_end: str = "hold"

    @classmethod
    def of(
        cls,
        trace: Trace | None,
        workers: int,
        nodes: Sequence[int] | None = None,
        trace_end: str = "hold",
        allow_speedup: bool = False,
        worker: WorkerRanks | None = None,
    ) -> Contention:
        """From the rows of each rank's node (`nodes[rank]`, by default rank k is on node k).

        worker: the ranks that make a worker; ranks are then those of all workers, worker by worker.
        Raises `InputError` for a node beyond the world, utilisation rows, and speed-ups.
        """
        if trace is None:
            return cls()
        unit = "worker" if worker is None else "rank"
        if worker is not None:
            workers *= worker.ranks
        _check(trace, workers, unit, nodes, allow_speedup)
        period = trace.end if trace_end == "loop" and trace.end > 0 else math.inf
        h, known = trace.histories, np.array(trace.nodes)
        of_rank = np.arange(workers) if nodes is None else np.minimum(nodes, MOST_NODE)
        places = np.searchsorted(known, of_rank)
        places[known[np.minimum(places, len(known) - 1)] != of_rank] = len(known)
        of_key = np.searchsorted(known, h.node)
        here = np.isin(np.arange(len(known)), places)[of_key]
        slowed = h.appearance[(here & (h.kind == SLOWDOWN))[h.appearance]]
        rows, starts = pick(h.starts, slowed)
        slowdowns = Pieces.of(h.time[rows], h.value[rows], starts, period)
        late = h.appearance[(here & (h.kind == DELAY))[h.appearance]]
        rows, starts = pick(h.starts, late)
        delays = Pieces.of(h.time[rows], h.value[rows], starts, period, before=0.0)
        delayed = np.zeros(len(known) + 1, np.int64)
        delayed[of_key[late]] = np.arange(len(late)) + 1 + len(slowed)
        felt = np.zeros((len(known) + 1, len(RESOURCES)), np.int64)
        felt[of_key[slowed], h.resource[slowed]] = np.arange(len(slowed)) + 1
        durations: dict[int, tuple[float, ...]] = {}
        ranks = _ranks(places)
        for key in np.flatnonzero(here & (h.kind == DURATION)).tolist():
            recorded = tuple(h.value[h.starts[key] : h.starts[key + 1]].tolist())
            durations |= dict.fromkeys(ranks[int(of_key[key])], recorded)
        found = cls(
            delays.after(slowdowns.after(Pieces.constants([1.0]))), places, felt, delayed,
            durations, end=trace.end if len(slowed) + len(late) and trace.end > 0 else math.inf,
            trace_end=trace_end,
        )  # fmt: skip
        return found if worker is None else found._of_workers(worker, trace.recorded.source)

    def _of_workers(self, worker: WorkerRanks, source: str) -> Contention:
        """The contention of workers, from that of their ranks."""
        of_ranks, places = np.unique(
            self.places.reshape(-1, worker.ranks), axis=0, return_inverse=True
        )
        clean = np.full((1, worker.ranks), len(self.felt) - 1)
        members = self.felt[np.concatenate([of_ranks, clean])]
        slowed, pieces = members.any(axis=1), self.pieces
        felt = np.zeros(slowed.shape, np.int64)
        felt[slowed] = len(pieces) + np.arange(np.count_nonzero(slowed))
        if slowed.any():
            largest = [
                self.pieces.taken(members[place, :, resource]).largest()
                for place, resource in np.argwhere(slowed).tolist()
            ]
            pieces = Pieces.of_each(largest).after(pieces)
        late = self.delayed[np.concatenate([of_ranks, clean])]
        delayed = np.zeros(len(late), np.int64)
        for place in np.flatnonzero(late.any(axis=1)).tolist():
            delayed[place] = len(pieces)
            own = self.pieces.taken(late[place][late[place] > 0]).largest()
            pieces = Pieces.of_each([own]).after(pieces)
        return replace(
            self, pieces=pieces, places=places.ravel(), felt=felt, delayed=delayed, worker=worker,
            members=members,
            durations=_durations_of_workers(self.durations, worker, len(places), source),
        )  # fmt: skip

    def on_host(self, share: float, clean: Contention) -> Contention:
        """The same, with a share of what recorded durations have beyond clean ones as host work.

        >>> slow, clean = (Contention(durations={0: (seconds,)}) for seconds in (3.0, 2.0))
        >>> slow.on_host(0.5, clean).unshortened
        {0: (0.5,)}
        """
        unshortened = {
            rank: tuple(
                share * max(seconds - usual, 0.0)
                for seconds, usual in zip(own, clean.durations[rank], strict=True)
            )
            for rank, own in self.durations.items()
        }
        return replace(self, unshortened=unshortened)

    @classmethod
    def constant(cls, host: npt.ArrayLike, gpu: npt.ArrayLike, net: npt.ArrayLike) -> Contention:
        """Slowdowns that never change, of each rank.

        >>> Contention.constant(host=[1, 2], gpu=[1, 1], net=[1, 1]).of_rank(1, "host").values
        (2.0,)
        """
        columns = {"host": host, "gpu": gpu, "net": net, "step": np.ones(np.shape(host))}
        table = np.array([columns[name] for name in RESOURCES], float).T
        slowed = table != 1
        felt = np.zeros((len(table) + 1, len(RESOURCES)), np.int64)
        felt[:-1][slowed] = np.arange(np.count_nonzero(slowed)) + 1
        pieces = Pieces.constants([1.0, *table[slowed]])
        return cls(pieces, np.arange(len(table)), felt, np.zeros(len(table) + 1, np.int64))

    @functools.cached_property
    def slowdowns(self) -> dict[tuple[int, str], Piecewise]:
        """(rank, resource) to its step function, in the order of the trace."""
        slowdowns: dict[tuple[int, str], Piecewise] = {}
        ranks, slowed = _ranks(self.places), np.argwhere(self.felt)
        for place, resource in slowed[np.argsort(self.felt[*slowed.T])].tolist():
            piece = self.pieces[int(self.felt[place, resource])]
            slowdowns |= {(rank, RESOURCES[resource]): piece for rank in ranks[place]}
        return slowdowns

    @functools.cached_property
    def first_slowdown(self) -> float:
        """Seconds at which a rank is first slower or later than alone; infinite if none is."""
        slowed, late = (
            self.pieces.taken(np.unique(numbers[numbers > 0]))
            for numbers in (self.felt, self.delayed)
        )
        begun = np.append(slowed.times[slowed.values != 1], late.times[late.values != 0])
        return float(np.min(begun, initial=math.inf))

    @functools.cached_property
    def delays(self) -> dict[int, Piecewise]:
        """Seconds that each message of a rank takes more, of the ranks that have any."""
        numbers = enumerate(self.delayed[self.places].tolist())
        return {rank: self.pieces[number] for rank, number in numbers if number}

    def places_of(self, workers: int) -> Ints:
        """The places of the first `workers` ranks."""
        last = np.full(workers - len(self.places), len(self.felt) - 1)
        return np.append(self.places, last)

    def place(self, rank: int) -> int:
        """The place of a rank."""
        return int(self.places[rank]) if rank < len(self.places) else len(self.felt) - 1

    def of_rank(self, rank: int, resource: str) -> Piecewise:
        """The slowdown of one resource of a rank."""
        return self.slowdowns.get((rank, resource), ONE)


def _durations_of_workers(
    of_ranks: dict[int, tuple[float, ...]], worker: WorkerRanks, workers: int, source: str
) -> dict[int, tuple[float, ...]]:
    """What the recorded durations of its ranks make together, of each worker that has some.

    Raises `InputError` where the ranks of a worker have recorded unequal numbers of steps.
    """
    found = {}
    for number in range(workers):
        first = number * worker.ranks
        own = [of_ranks.get(rank, ()) for rank in range(first, first + worker.ranks)]
        for rank, steps in enumerate(own, start=first):
            if len(steps) != len(own[0]):
                raise InputError(
                    f"{source}: rank {rank} has {len(steps)} recorded durations, rank {first} "
                    f"{len(own[0])}; they make worker {number} together, so give as many of each"
                )
        if own[0]:
            found[number] = tuple(worker.step(np.array(own)).tolist())
    return found


def _ranks(places: Ints) -> dict[int, list[int]]:
    """The ranks of each place, in order."""
    ranks: dict[int, list[int]] = {}
    for rank, place in enumerate(places.tolist()):
        ranks.setdefault(place, []).append(rank)
    return ranks


def _few(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes[:8])) + (", ..." if len(nodes) > 8 else "")


def _check(
    trace: Trace, workers: int, unit: str, nodes: Sequence[int] | None, allow_speedup: bool
) -> None:
    source = trace.recorded.source  # a message quotes the user's file, whatever the offset
    if nodes is None and trace.nodes[-1] >= workers:
        there = f"{workers} {unit}s are on nodes 0 to {workers - 1}"
        if workers == 1:
            there = f"1 {unit} is on node 0"
        raise InputError(
            f"{source}: the trace names node {trace.nodes[-1]}, but {there}; "
            "raise `workers`, or choose nodes with `nodes: [...]`"
        )
    if nodes is not None and not set(nodes) & set(trace.nodes):
        raise InputError(
            f"{source}: no rank is on any of its nodes ({_few(trace.nodes)}), they are on "
            f"{_few(sorted(set(nodes)))}: no rank would be slowed; correct `nodes`"
        )
    used = trace.histories.kind == UTILISATION
    if used.any() and (found := trace.find_first(lambda rows: rows.kind == "utilisation")):
        where, row = found
        raise InputError(
            f"{where}: utilisation {row.value:g} of node {row.node} at {row.time:g} s cannot be "
            f"translated into a slowdown: that takes a profile with a response of {row.resource} "
            "(simstrag calibrate measures them), or an assumed law (contention: {response: 1}); or "
            "write factors as kind slowdown (1 is clean), or step times as kind duration"
        )
    if trace.speeds_up and not allow_speedup and (found := trace.find_first(lambda r: r.speeds_up)):
        where, row = found
        raise InputError(
            f"{where}: slowdown {row.value:g} of node {row.node} at {row.time:g} s is below 1; "
            "correct it, or say `allow_speedup: true` in the scenario"
        )
    if not trace.replays:
        return
    keys, kinds = trace.keys, dict[int, set[str]]()
    for key in trace.histories.appearance.tolist():
        node, resource, kind = keys[key]
        if resource != "net":
            kinds.setdefault(node, set()).add(kind)
    for node, of_node in kinds.items():
        if len(of_node) > 1:
            raise InputError(
                f"{source}: node {node} has durations and slowdowns of its steps; "
                "durations contain the slowdown already, keep one of the two"
            )
