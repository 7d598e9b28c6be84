"""What a training script holds: one `step` per batch, whatever the policy makes of it."""

from __future__ import annotations

import atexit
import copy
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from simstrag import policies
from simstrag.ddp import checkpoint, support
from simstrag.ddp.allreduce.allreduce_mode import AllReduceMode
from simstrag.ddp.failures.diagnosis import warn
from simstrag.ddp.failures.heartbeat import describe_error
from simstrag.ddp.failures.membership import Membership, RankFailure
from simstrag.ddp.precision import Closure, NumberFormats
from simstrag.ddp.rendezvous import RankPlace, join, use_existing_group
from simstrag.ddp.replica import Replica
from simstrag.ddp.server.server_mode import ServerMode
from simstrag.ddp.session import Session
from simstrag.ddp.step_timer import CpuStepTimer, CudaStepTimer, measure_cores_per_rank
from simstrag.ddp.support import profile_hints
from simstrag.errors import InputError
from simstrag.plan import Plan
from simstrag.policy import Hints, Policy, View
from simstrag.profile.profile import Profile

if TYPE_CHECKING:
    from simstrag.ddp.sampler import ShareSampler

__all__ = ["RankFailure", "Trainer", "wrap"]

UNUSED = (
    "trainer.step() was never called, and the optimizer has stepped: each rank trained for itself, "
    "without the policy"
)

UNTOLD = (
    "the profile has no times of steps of this batch in these precisions: the policy is told none, "
    "and measures as it goes"
)


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
    joined: RankPlace | None = None,
) -> Trainer:
    """Train a model under a policy; every rank calls this with the same arguments.

    model: where it is to compute, and not in DDP.  optimizer: of its parameters.
    policy: a name with parameters such as ``"ssp:bound=5"``, or an object; it is copied.
    profile: what calibration found of this batch in these precisions, which policies are told;
    without it they measure as they go.
    batch: samples of a rank's batch; without it a gradient counts as one sample.  samples: of the
    whole training, where a policy wants to know.
    precision: what full and reduced precision are, see `NumberFormats`.
    sampler: makes batches of uneven shares (`ShareSampler`), which some policies need.
    out: a folder for the record of the run; that of a new start by torchrun, or of one that goes on
    from a checkpoint, is in a folder inside.
    stall_limit: seconds of silence after which a rank is given up; 60, or what the launcher said.
    joined: the rank's place, where `join` was called already.

    Where all ranks wait for each other, the optimizer steps on every rank, and its hooks see the
    reduced gradients: clip them in a step pre-hook.  Every loss must depend on every parameter.

    Under a server a copy of the optimizer steps there.  A parameter without a gradient counts as
    zeros.  Step hooks would not run, and are refused, and so is a `sampler`.  What a rank changes
    in `param_groups` goes with its next gradient, and holds from then on for those of all ranks.
    So set learning rates by `trainer.samples`, which are those of all ranks.  A schedule of
    `torch.optim.lr_scheduler` counts the steps of its own rank, of which a slow one takes fewer:
    the rate would go back and forth.  It also warns that the optimizer here has not stepped.

    The process group is made from what the launcher says unless there is one, which keeps its own
    timeout: where a rank of another host is silent, or the network, that alone ends a wait.  One of
    this host that is silent for `stall_limit` is killed in either case.

    Raises `InputError` where the policy cannot run for real, and for whatever else the caller can
    correct.
    """
    for what, value in (("batch", batch), ("samples", samples)):
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"{what}: {value!r}; give a whole number from 1 on")
    if samples is not None and batch is None and profile is None:
        raise InputError("samples are counted by batches: give the samples of a rank's batch too")
    given = policies.load(policy) if isinstance(policy, str) else copy.deepcopy(policy)
    name = policy if isinstance(policy, str) else policies.name_of(given)
    if not dist.is_initialized():
        joined = join(stall_limit, patient=True)
    elif joined is None:
        joined = use_existing_group(stall_limit)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _agree(policy=name, batch=batch, samples=samples, precision=precision)
    formats = NumberFormats(model, precision)
    hints = profile_hints(profile, batch, samples, (formats.full, formats.amp))
    _agree(**{"the profile's amp_ratio": hints.amp_ratio})
    if formats.amp and not formats.unsettled and hints.amp_ratio is not None:
        formats.gain = hints.amp_ratio
    if profile is not None and hints.clean_seconds is None and rank == 0:
        warn(UNTOLD)
    first = View(world_size, hints=hints, noise_scale=hints.noise_scale)
    support.check_policy(copy.deepcopy(given), name, first)
    if sampler is not None:
        sampler.check(rank, world_size, hints.batch)
    return Trainer(
        model, optimizer, formats, given, name, rank, world_size, hints=hints, sampler=sampler,
        out=None if out is None else Path(out), stall_limit=stall_limit, joined=joined,
    )  # fmt: skip


def _leave(session: Session) -> None:
    """A script has ended that did not say so, well or early."""
    error = getattr(sys, "last_value", None)
    failed = session.failed or (None if error is None else describe_error(error))
    # What is silent from here on is not lost.
    session.members.close(failed or "its script had come to its end")
    session.leave(failed)


def _tell_unused(by_itself: list[bool]) -> None:
    if by_itself:
        warn(UNUSED)


def _agree(**given: object) -> None:
    """Raise `InputError` on all ranks where they were given different arguments."""
    told: list[dict[str, object]] = [given] * dist.get_world_size()
    dist.all_gather_object(told, given)
    for what in given:
        values = [each[what] for each in told]
        if any(value != values[0] for value in values):
            said = ", ".join(f"rank {rank} {value!r}" for rank, value in enumerate(values))
            raise InputError(f"wrap() was given different values of {what}: {said}; give one")


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
        formats: NumberFormats,
        policy: Policy,
        name: str,
        rank: int,
        world_size: int,
        *,
        hints: Hints,
        sampler: ShareSampler | None,
        out: Path | None,
        stall_limit: float | None,
        joined: RankPlace | None,
    ) -> None:
        self.name, self.hints, self.sampler = name, hints, sampler
        self.stall_limit = stall_limit or (60.0 if joined is None else joined.stall_limit)
        self._members = Membership(rank, world_size, joined, self.stall_limit)
        device = next(model.parameters()).device
        with self._members.diagnosing():
            clock: CpuStepTimer | CudaStepTimer = (
                CudaStepTimer(device)
                if device.type == "cuda"
                else CpuStepTimer(measure_cores_per_rank())
            )
        self.replica = Replica(model, optimizer, formats, clock)
        try:
            self._session = Session(self.replica, self._members, policy, name, hints, sampler, out)
        except BaseException as error:
            self._members.close(describe_error(error))
            raise
        self._at_exit = atexit.register(partial(_leave, self._session))
        by_itself: list[bool] = []
        self._watched = optimizer.register_step_post_hook(lambda *_: by_itself.append(True))
        self._unused = weakref.finalize(self, _tell_unused, by_itself)
        if rank:
            self._unused.detach()

    def step(self, closure: Closure) -> torch.Tensor:
        """Forward, backward, communication and update for one batch; the batch's loss.

        closure: forward; returns the loss, the mean over the batch.  Data loading between two steps
        counts as part of the next one.  Gradients are cleared here.

        What the closure raises, or backward from its loss, or a hook of the optimizer, comes out as
        it is.  Raises `InputError` where ranks wait for each other and a parameter got no gradient,
        with its name; under a server that counts as zeros.  Raises `RankFailure` where another rank
        is lost, such as one that left because its closure failed, and `Disagreement` where replicas
        of the policy have come apart.
        """
        self._unused.detach()
        self._watched.remove()
        if not callable(closure):
            raise InputError(
                "step() takes a function that computes the loss, not the loss: "
                "trainer.step(lambda: loss_fn(model(x), y))"
            )
        return self._session.step(closure)

    @property
    def rank(self) -> int:
        """This rank among those that take part."""
        return self._members.rank

    @property
    def world_size(self) -> int:
        """How many ranks take part; fewer where all go on without some that were lost."""
        return self._members.world_size

    @property
    def begun(self) -> bool:
        """Whether the clock of the run is on: all ranks, and a server, are ready, at a first step.

        The closure is called before that too, to measure with.
        """
        return self._session.way is not None

    @property
    def samples(self) -> int:
        """Samples that have been applied, by all ranks together, as far as this one knows."""
        return self._session.samples

    @property
    def over(self) -> bool:
        """Whether the samples that were given to `wrap` have been applied, or all else has left."""
        way = self._session.way
        if isinstance(way, ServerMode) and way.finished:
            return True
        return self.hints.samples is not None and self.samples >= self.hints.samples

    @property
    def plan(self) -> Plan | None:
        """The plan in force, resolved; None under a server, which has it, and before all begins."""
        way = self._session.way
        return way.live.plan if isinstance(way, AllReduceMode) else None

    @property
    def next_batch(self) -> int:
        """Samples of this rank's next batch, which a policy may set."""
        return self._session.next_batch()

    @property
    def lowest(self) -> bool:
        """Whether no rank below this one is left, as far as it knows; before `close`."""
        return self._session.lowest

    @property
    def model(self) -> nn.Module:
        """The model that was given."""
        return self.replica.model

    def close(self) -> None:
        """The training is over: the record ends, and the server hears that this rank leaves.

        The rank that started the server waits until all others have left it too.  No step can
        follow.  At the end of the script it happens by itself.
        """
        self._end(None)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        if failure is not None:
            self._unused.detach()
        self._end(None if failure is None else describe_error(failure))

    def _end(self, failed: str | None) -> None:
        atexit.unregister(self._at_exit)
        self._session.leave(failed)

    def state_dict(self) -> dict[str, Any]:
        """All there is to go on from: model, optimizer, policy and books, sampler, loss scale.

        At the end of a step.  Under a server all ranks get its parameters and its optimizer's state
        of that moment; each may save its own, or one for all.  This rank's model stays as it was
        pulled, for its next gradient is booked as that of these parameters.  Where models are
        averaged each rank gets its own model.
        """
        return checkpoint.to_checkpoint(
            self.replica, self.name, self.world_size, self.sampler, *self._session.books()
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; before the first step, on all ranks.

        Raises `InputError` where it is of another policy or of another number of ranks.
        """
        if self.begun:
            raise InputError("a checkpoint is loaded before the first step; call wrap() anew")
        self._session.take_up(
            *checkpoint.from_checkpoint(
                state, self.replica, self.name, self.world_size, self.sampler
            )
        )
