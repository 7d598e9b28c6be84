"""What ranks are asked to send for an update: gradients and sums that stayed with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simstrag.ddp.server.messages import Apply, Deliver
from simstrag.ddp.server.worker_state import ReducedSum, WorkerState


@dataclass
class _Fetch:
    """A sum that its members have.

    rank: the one that is asked for it; None before.
    has_come: whether it is at the server.
    """

    sum: ReducedSum
    rank: int | None = None
    has_come: bool = False


class Deliveries:
    """Gradients and sums that updates wait for.

    dead: the lost ranks; the coordinator adds to this set.
    """

    def __init__(self, workers: Sequence[WorkerState], dead: set[int]) -> None:
        self._workers, self._dead = workers, dead
        self._fetches: dict[tuple[int, int], _Fetch] = {}  # by version and root

    def expect(self, apply: Apply) -> None:
        """An update has been made; sums of it may be at their members."""
        for root, _ in apply.parts:
            total = self._workers[root].sum
            if total is not None and total.closing is not None:
                self._fetches[apply.version, root] = _Fetch(total)

    def receive(self, rank: int, closing: int | None) -> None:
        """The gradient of a rank has come, or the sum of an all-reduce."""
        if closing is None:
            self._workers[rank].delivered = True
        for fetch in self._fetches.values():
            fetch.has_come |= (closing, rank) == (fetch.sum.closing, fetch.rank)

    def request(self, apply: Apply) -> tuple[list[Deliver], Apply | None]:
        """The commands that are still to be given, and the update, if nothing is on its way.

        What was lost with its ranks before it was sent is missing.
        """
        asked: list[Deliver] = []
        parts: list[tuple[int, float]] = []
        missing, waits = {*apply.missing}, False
        for root, weight in apply.parts:
            fetch = self._fetches.get((apply.version, root))
            if fetch is None:
                source, has_come = self._ask(root, asked)
            else:
                source, has_come = self._ask_for(fetch, asked)
            waits |= not has_come
            if source is None:
                missing |= {root} if fetch is None else set(fetch.sum.weights)
            else:
                parts.append((source, weight))
        if waits:
            return asked, None
        for root, _ in apply.parts:
            self._fetches.pop((apply.version, root), None)
        return asked, replace(apply, parts=tuple(sorted(parts)), missing=tuple(sorted(missing)))

    def _ask(self, rank: int, asked: list[Deliver]) -> tuple[int | None, bool]:
        """Who sends the gradient of a rank, None if it is lost; and whether it has come."""
        worker = self._workers[rank]
        if not worker.holds_gradient:
            return rank, True
        if rank in self._dead:
            return None, True
        if not worker.requested:
            asked.append(Deliver(rank))
        worker.requested = True
        return rank, False

    def _ask_for(self, fetch: _Fetch, asked: list[Deliver]) -> tuple[int | None, bool]:
        """The same of a sum: it is asked of the first of its members that does not compute."""
        if fetch.has_come:
            return fetch.rank, True
        alive = [rank for rank in fetch.sum.weights if rank not in self._dead]
        if fetch.rank not in alive:
            fetch.rank = next((rank for rank in alive if self._workers[rank].work is None), None)
            if fetch.rank is not None:
                asked.append(Deliver(fetch.rank, fetch.sum.closing))
        return fetch.rank, not alive
