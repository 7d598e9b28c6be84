"""What a training script holds: one `step` per batch, whatever the policy makes of it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pickle
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from simstrag import policies
from simstrag.ddp import equal, ways
from simstrag.ddp.board import Blame, Board
from simstrag.ddp.clock import DeviceClock, LocalClock, found_cores
from simstrag.ddp.coordinated import Coordinated
from simstrag.ddp.formats import Closure, Formats
from simstrag.ddp.hints import hints_of
from simstrag.ddp.hook import Groups
from simstrag.ddp.journal import Journal, facts_as_written, facts_of, placed
from simstrag.ddp.launch import START, Joined, hurry, join, offered, shrink
from simstrag.ddp.link import Link, connect
from simstrag.ddp.orders import Job
from simstrag.ddp.parameters import packed
from simstrag.ddp.replica import Replica
from simstrag.ddp.server import start_server
from simstrag.ddp.synchronous import Synchronous
from simstrag.errors import InputError, SimstragError
from simstrag.live import Facts, Live
from simstrag.plan import Plan
from simstrag.policy import Policy, View
from simstrag.profile import Profile

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from simstrag.ddp.sampler import ShareSampler

__all__ = ["RankFailure", "Trainer", "wrap"]

FORMAT = "simstrag-training/1"

SETTLED = 2
"""Synchronous steps after which DDP asks nothing of other ranks any more but what the hook does."""


class RankFailure(SimstragError, RuntimeError):
    """A rank is lost, or the network between ranks; the message says which, and where it was.

    blame: what the board of heartbeats said.
    """

    def __init__(self, blame: Blame) -> None:
        super().__init__(str(blame))
        self.blame = blame


def wrap(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: str | Policy = "korel",
    profile: str | Path | Profile | None = None,
    *,
    batch: int | None = None,
    samples: int | None = None,
    precision: str = "auto",
    sampler: ShareSampler | None = None,
    out: str | Path | None = None,
    stall_limit: float | None = None,
    joined: Joined | None = None,
) -> Trainer:
    """Train a model under a policy; every rank calls this with the same arguments.

    model: where it is to compute, and not in DDP.  optimizer: of its parameters.
    policy: a name with parameters such as ``"ssp:bound=5"``, or an object; it is copied.
    profile: what calibration found, which policies are told; without it they measure as they go.
    batch: samples of a rank's batch; without it a gradient counts as one sample.  samples: of the
    whole training, where a policy wants to know.
    precision: what full and reduced precision are, see `Formats`.
    sampler: makes batches of uneven shares (`ShareSampler`), which some policies need.
    out: a folder for the record of the run; that of a new start by torchrun is in a folder inside.
    stall_limit: seconds of silence after which a rank is given up; 60, or what the launcher said.
    joined: the rank's place, where `join` was called already.

    The process group is made from what the launcher says unless there is one.  Raises `InputError`
    where the policy cannot run for real, and for whatever else the caller can correct.
    """
    given = policies.load(policy) if isinstance(policy, str) else copy.deepcopy(policy)
    name = policy if isinstance(policy, str) else policies.called(given)
    if not dist.is_initialized():
        joined = join(stall_limit, patient=True)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    formats = Formats(model, precision)
    hints = hints_of(profile, batch, samples)
    first = View(world_size, hints=hints, noise_scale=hints.noise_scale)
    ways.check(copy.deepcopy(given), name, first)
    return Trainer(
        model, optimizer, formats, given, name, rank, world_size,
        hints=hints, sampler=sampler, out=None if out is None else placed(out, joined),
        stall_limit=stall_limit, joined=joined,
    )  # fmt: skip


class Trainer:
    """One rank's side of a training under a policy; made by `wrap`, a context manager.

    Which mechanism takes the steps follows from the plan: DDP where all ranks wait for each other,
    else a server process that the lowest rank starts.  A plan that needs the other one changes to
    it at the end of an update, where parameters, optimizer state and buffers are made equal.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        formats: Formats,
        policy: Policy,
        name: str,
        rank: int,
        world_size: int,
        *,
        hints: Any,
        sampler: ShareSampler | None,
        out: Path | None,
        stall_limit: float | None,
        joined: Joined | None,
    ) -> None:
        self.policy, self.name, self.rank, self.world_size = policy, name, rank, world_size
        self._given = copy.deepcopy(policy)
        self.hints, self.sampler, self.joined = hints, sampler, joined
        self.out = self._whole = out  # a smaller world records in a folder inside
        self.batch = hints.batch or 1
        self.stall_limit = stall_limit or (60.0 if joined is None else joined.stall_limit)
        self._board = self._heartbeats()
        device = next(model.parameters()).device
        with self._blaming():
            clock: LocalClock | DeviceClock = (
                DeviceClock(device) if device.type == "cuda" else LocalClock(found_cores())
            )
        self.replica = Replica(model, optimizer, formats, clock)
        self._groups = Groups(stall_limit=self.stall_limit)
        self._way: Synchronous | Coordinated | None = None
        self._journal: Journal | None = None
        self._facts: Facts | None = None
        self._link: Link | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._hurried = self._drawn = False

    # -- training ----------------------------------------------------------------------------

    def step(self, closure: Closure) -> torch.Tensor:
        """Forward, backward, communication and update for one batch; the batch's loss.

        closure: forward; returns the loss, the mean over the batch.  Data loading between two steps
        counts as part of the next one.  Gradients are cleared here.  Raises `RankFailure` where a
        rank is lost, `Disagreement` where replicas of the policy have come apart.
        """
        try:
            with self._blaming():
                loss = self._stepped(closure)
        except RankFailure as failure:
            if not self._goes_on(failure.blame):
                raise
            with self._blaming():
                self._go_on_without(failure.blame)
                loss = self._stepped(closure)
        self.replica.clock.begin()
        return loss

    def _stepped(self, closure: Closure) -> torch.Tensor:
        if self._way is None:
            self._begin(closure)
        assert self._way is not None
        loss = self._way.step(closure)
        if not self._hurried and self.joined is not None:
            hurry(self.joined)
            self._hurried = True
        if self._way.over:
            self._change(closure)
        return loss

    @property
    def begun(self) -> bool:
        """Whether the clock of the run is on: all ranks, and a server, are ready, at a first step.

        The closure is called before that too, to measure with.
        """
        return self._way is not None

    @property
    def samples(self) -> int:
        """Samples that have been applied, by all ranks together, as far as this one knows."""
        if self._way is not None:
            return self._way.samples
        return 0 if self._facts is None else self._facts.samples

    @property
    def over(self) -> bool:
        """Whether the samples that were given to `wrap` have been applied, or all else has left."""
        if isinstance(self._way, Coordinated) and self._way.finished:
            return True
        return self.hints.samples is not None and self.samples >= self.hints.samples

    @property
    def plan(self) -> Plan | None:
        """The plan in force, resolved; None under a server, which has it, and before all begins."""
        return self._way.live.plan if isinstance(self._way, Synchronous) else None

    @property
    def next_batch(self) -> int:
        """Samples of this rank's next batch, which a policy may set."""
        if self._way is not None:
            return self._way.next_batch
        self._drawn = True
        if self._facts is None:
            return self.batch
        return self._facts.plan.samples(self.batch, self.world_size)[self.rank]

    @property
    def lowest(self) -> bool:
        """Whether no rank below this one is left, as far as it knows; before `close`."""
        lost = () if self._link is None else self._link.lost
        return self.rank == min(set(range(self.world_size)) - set(lost), default=self.rank)

    @property
    def model(self) -> nn.Module:
        """The model that was given."""
        return self.replica.model

    def close(self) -> None:
        """The training is over: the record ends, and the server hears that this rank leaves."""
        if isinstance(self._way, Synchronous) and self._journal is not None:
            taken = policies.counts(self._way.live.policy, self.name, taken=())
            self._journal.note("end", time.monotonic() - self._way.zero, taken)
        if self._link is not None:
            self._link.leave()
            self._groups.close()  # whoever still counts on this rank hears it at once
        if self._server is not None:
            self._server.wait(self.stall_limit)
        if self._journal is not None:
            self._journal.close()
        if self._board is not None:
            self._board.close()
        self._link = self._server = self._journal = self._board = None

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # -- checkpoints -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All there is to go on from: model, optimizer, policy and books, sampler, loss scale.

        At the end of a step.  Under a server all ranks get its parameters and its optimizer's state
        of one moment; each may save its own, or one for all.  Where models are averaged each rank
        gets its own model.
        """
        replica = self.replica
        state: dict[str, Any] = {
            "format": FORMAT, "name": self.name, "world_size": self.world_size,
            "formats": replica.formats.state_dict(),
            "sampler": None if self.sampler is None else self.sampler.state_dict(),
        }  # fmt: skip
        if isinstance(self._way, Coordinated):
            assert self._link is not None
            found = self._link.state()
            if not self._way.private:
                replica.spread(found["parameters"])
                replica.optimizer.load_state_dict(found["optimizer"])
            policy, facts = found["policy"], found["facts"]
        elif self._way is not None:
            policy, facts = self._way.live.policy, self._way.live.facts()
        else:
            policy, facts = self.policy, self._facts
        return state | {
            "model": replica.model.state_dict(), "optimizer": replica.optimizer.state_dict(),
            "policy": pickle.dumps(policy),
            "facts": None if facts is None else facts_as_written(facts),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; before the first step, on all ranks.

        Raises `InputError` where it is of another policy or of another number of ranks.
        """
        if self._way is not None:
            raise InputError("a checkpoint is loaded before the first step; call wrap() anew")
        for word, here in (
            ("format", FORMAT),
            ("name", self.name),
            ("world_size", self.world_size),
        ):
            if state.get(word) != here:
                raise InputError(
                    f"the checkpoint's {word} is {state.get(word)!r}, here it is {here!r}"
                )
        self.replica.model.load_state_dict(state["model"])
        self.replica.optimizer.load_state_dict(state["optimizer"])
        self.replica.formats.load_state_dict(state["formats"])
        if self.sampler is not None:
            self.sampler.load_state_dict(state["sampler"])
        self.policy = pickle.loads(state["policy"])
        self._facts = None if state["facts"] is None else facts_of(state["facts"])

    # -- mechanisms --------------------------------------------------------------------------

    def _begin(self, closure: Closure) -> None:
        """At the first step: now there is a closure to measure with, and no checkpoint to come."""
        replica = self.replica
        replica.formats.settle(closure)
        equal.broadcast(replica.model, replica.optimizer, 0)
        if self.out is not None and self.rank == 0:
            self._journal = Journal(self.out, self._header())
        dist.barrier()  # the journal has its header before anybody else writes
        replica.reducer.over(None)  # all ranks build DDP together, whether they need it now or not
        facts = self._facts
        if facts is None:
            view = View(self.world_size, hints=self.hints, noise_scale=self.hints.noise_scale)
            plan = policies.ask(copy.deepcopy(self.policy), view, self.name)
        else:
            plan = facts.plan
        if ways.synchronous(plan, self.world_size):
            self._synchronise(self.policy, facts)
        else:
            replica.settle(closure)
            self._coordinate(self.policy, facts)
        replica.clock.begin()

    def _change(self, closure: Closure) -> None:
        """The plan needs the other mechanism."""
        if isinstance(self._way, Synchronous):
            live = self._way.live
            if self._way.steps < SETTLED:
                self.replica.settle(closure)
            equal.broadcast(self.replica.model, self.replica.optimizer, 0)
            self._coordinate(live.policy, live.facts())
            return
        assert isinstance(self._way, Coordinated)
        handover = self._way.handover
        assert handover is not None
        self.replica.optimizer.load_state_dict(handover.optimizer)
        equal.broadcast(self.replica.model, self.replica.optimizer, 0)
        self._synchronise(handover.policy, handover.facts)

    def _goes_on(self, blame: Blame) -> bool:
        """Whether the others take their steps without those that are lost."""
        told = os.environ.get("SIMSTRAG_ON_FAULT") == "continue" and self.joined is not None
        here = blame.lost and self.rank not in blame.lost
        return bool(told and here and self.sampler is None and isinstance(self._way, Synchronous))

    def _go_on_without(self, blame: Blame) -> None:
        """Meet again as a smaller world, in which the policy begins anew; no update is lost.

        The step in which it happened is thrown away.  Where some had finished it and others not,
        parameters are those of one who had.
        """
        way, joined, replica = self._way, self.joined, self.replica
        assert isinstance(way, Synchronous)
        assert joined is not None
        assert self._board is not None
        left = [rank for rank in range(self.world_size) if rank not in blame.lost]
        self._board.close("the group is made anew")
        self.joined = joined = shrink(joined, left)
        self.rank, self.world_size = joined.rank, joined.world_size
        self._board = self._heartbeats()
        self._groups = Groups(stall_limit=self.stall_limit)
        replica.forget_groups()
        replica.clear()
        told: list[Any] = [None] * self.world_size
        dist.all_gather_object(told, (way.live.version, way.live.samples, way.live.now))
        version, samples, now = max(told)
        equal.broadcast(replica.model, replica.optimizer, told.index(max(told)))
        self.policy = copy.deepcopy(self._given)
        fresh = Live(copy.deepcopy(self._given), self.world_size, self.batch, self.hints)
        self._facts = dataclasses.replace(
            fresh.facts(), version=version, samples=samples, now=now,
            reviewed=(version, samples, now),
        )  # fmt: skip
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._whole is not None:
            self.out = self._whole / f"generation-{joined.generation}"
            if self.rank == 0:
                self._journal = Journal(self.out, self._header())
        self._synchronise(self.policy, self._facts)

    def _synchronise(self, policy: Policy, facts: Facts | None) -> None:
        note = None if self._journal is None else self._journal.note
        live = Live(
            policy, self.world_size, self.batch, self.hints, name=self.name, facts=facts, note=note
        )
        zero = [time.monotonic() - live.now]
        dist.broadcast_object_list(zero, src=0)
        self._way = Synchronous(
            self.replica, live, self.rank, self.world_size, self.batch, zero[0], self._mark,
            note, self.sampler,
        )  # fmt: skip
        if self._drawn:  # the batch of this very step
            _ = self._way.next_batch

    def _coordinate(self, policy: Policy, facts: Facts | None) -> None:
        if self._link is None:
            self._link = connect(self._served_at(), self.rank, self.stall_limit)
        job = None
        if self.rank == 0:
            job = Job(
                packed(self.replica.optimizer), policy, self.batch, self.name, self.hints, facts,
                hand_over=True, journal=None if self.out is None else partial(Journal, self.out),
            )  # fmt: skip
        self._link.begin(self.replica.count, self.replica.dtype, job)
        self._way = Coordinated(self.replica, self._link, self._groups, self._mark)

    def _served_at(self) -> str:
        """Where the server listens: the launcher's, which outlives ranks, or the lowest's own."""
        if self.joined is not None and os.environ.get("SIMSTRAG_SERVER"):
            return offered(self.joined.root, START)
        address = [""]
        if self.rank == 0:
            self._server, address[0] = start_server(self.world_size, stall_limit=self.stall_limit)
        dist.broadcast_object_list(address, src=0)
        return address[0]

    @contextlib.contextmanager
    def _blaming(self) -> Iterator[None]:
        """A collective that fails in here says who is to blame."""
        try:
            yield
        except (RuntimeError, ConnectionError) as error:
            if isinstance(error, SimstragError) or self._board is None:
                raise
            raise RankFailure(self._board.blame()) from error

    def _mark(self, step: int, phase: str) -> None:
        if self._board is not None:
            self._board.mark(step, phase)

    def _heartbeats(self) -> Board | None:
        if self.joined is None:
            return None
        joined = self.joined
        return Board(joined.store, joined.rank, joined.names, self.stall_limit, joined.connections)

    def _header(self) -> dict[str, Any]:
        """What the record says of the run before anything has happened."""
        replica, facts = self.replica, self._facts
        return {
            "policy": self.name, "world_size": self.world_size, "batch": self.batch,
            "hints": dataclasses.asdict(self.hints), "precision": replica.formats.label,
            "gain": replica.formats.gain, "clock": replica.clock.reason,
            "backend": dist.get_backend(), "began": time.time(),
            "software": {"torch": torch.__version__},
            "facts": None if facts is None else facts_as_written(facts),
        }  # fmt: skip
