"""What the desk orders, carried out: updates of the parameters, and what each rank is told."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from simstrag.ddp import support
from simstrag.ddp.server.listener import Peer
from simstrag.ddp.server.messages import (
    Abort,
    Apply,
    Compute,
    Deliver,
    Finish,
    Handover,
    Keep,
    Loss,
    Order,
    Reduce,
)  # fmt: skip
from simstrag.ddp.server.parameter_store import Store
from simstrag.ddp.server.shared_buffer import octets
from simstrag.ddp.server.wire import Frame, Kind
from simstrag.engine.live import Live

__all__ = ["Delivery"]


class Delivery:
    """For one job.

    peers: the ranks that are here, by rank.  losses: who was lost so far; ranks are told of those
    they do not know of.  note: takes `applied`, and `push` with the stamps of a step that is over.
    """

    def __init__(
        self,
        peers: Mapping[int, Peer],
        store: Store,
        live: Live,
        losses: Sequence[Loss],
        note: Callable[..., None],
    ) -> None:
        self._peers, self._store = peers, store
        self._live, self._losses, self._note = live, losses, note

    def carry_out(self, order: Order, peer: Peer | None) -> None:
        """One order; `peer` is the rank it is for, None where that has left.

        Raises `ConnectionError` where it cannot be told.
        """
        support.check_later(self._live.plan, self._live.name)
        match order:
            case Apply():
                self._apply(order)
            case Keep():
                self._store.keep(order.rank)
            case Abort() if peer is not None:
                peer.phase = f"giving up step {order.step}"
                peer.call_off(order.step)
            case Compute():
                told = self._store.routed(order)
                pulled = self._store.pulled(told)
                if peer is not None:
                    peer.phase = f"computing step {order.step}"
                    self._tell(peer, told, pulled)
                    self._replied(peer)
            case Reduce() if peer is not None:
                others = [other for other in order.members if other != order.rank]
                peer.phase = f"in an all-reduce with ranks {others}"
                self._tell(peer, order)
            case Deliver() if peer is not None:
                peer.phase = "sending its gradient"
                self._tell(peer, order)
            case Finish() if peer is not None:
                peer.phase = "finishing"
                self._tell(peer, order)
            case Handover() if peer is not None:
                peer.begun, peer.phase = False, "training without the server"
                if order.apart:
                    self._tell(peer, order)
                else:
                    parameters = self._store.parameters
                    whole = replace(order, optimizer=parameters.state())
                    self._tell(peer, whole, parameters.flat)
                self._replied(peer)

    def _apply(self, order: Apply) -> None:
        here = [self._peers[rank] for rank, *_ in order.gradients if rank in self._peers]
        self._store.apply(order, [peer.changed for peer in here if peer.changed])
        at = time.monotonic()
        for peer in here:
            peer.changed, peer.row["applied"] = b"", at
        self._note("applied", order.version, order.gradients, order.missing)

    def _tell(self, peer: Peer, order: Any, flat: torch.Tensor | None = None) -> None:
        """An order, what has been lost since the last, and parameters if they go along."""
        assert peer.payload is not None
        news, peer.losses = self._losses[peer.losses :], len(self._losses)
        frame = Frame(Kind.ORDER, peer.rank, body=pickle.dumps((order, news)))
        if flat is not None and peer.payload.shared:
            peer.payload.parameters.copy_(flat)
            flat = None
        peer.row["replied"] = time.monotonic()  # sending it is part of its way
        peer.wire.send(frame, None if flat is None else octets(flat))

    def _replied(self, peer: Peer) -> None:
        """A step is over when its rank hears what comes next."""
        row, peer.row = peer.row, {}
        if "step" not in row:
            return
        self._note("push", row)
