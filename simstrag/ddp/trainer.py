"""`wrap` and `Trainer`: what a training script calls, one `step` per batch."""

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
from simstrag.ddp.local_step_timer import CpuStepTimer, CudaStepTimer, measure_cores_per_rank
from simstrag.ddp.precision import Closure, NumberFormats
from simstrag.ddp.rendezvous import RankPlace, join, use_existing_group
from simstrag.ddp.replica import Replica
from simstrag.ddp.server.server_mode import ServerMode
from simstrag.ddp.session import Session
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

NO_HINTS = (
    "the profile has no step times for this batch in these precisions: the policy gets no hints "
    "and measures instead"
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

    model: the bare model on its device, not in DDP.
    optimizer: of the model's parameters.
    policy: a name with parameters such as ``"ssp:bound=5"``, or an object, which is copied.
    profile: a calibration of this batch and these precisions; policies get its hints.  Without one
        they measure instead.
    batch: samples of a rank's batch; without it a gradient counts as one sample.
    samples: of the whole training, which ends it.
    precision: full and reduced precision, see `NumberFormats`.
    sampler: makes batches of uneven shares (`ShareSampler`), which some policies need.
    out: a folder for the record.  A restart, and a training resumed from a checkpoint, record in a
        subfolder.
    stall_limit: seconds of silence after which a rank is given up; default: the launcher's, or 60.
    joined: the rank's place, where `join` was called before.

    Under all-reduce the optimizer steps on every rank, and its hooks see the reduced gradients:
    clip them in a step pre-hook.  Every loss must depend on every parameter.

    Under a server a copy of the optimizer steps there.  A parameter without a gradient counts as
    zeros.  Step hooks and a `sampler` are refused.  A change of `param_groups` travels with the
    rank's next gradient, and holds for all ranks from then on.  So set learning rates by
    `trainer.samples`, which counts all ranks.  A `torch.optim.lr_scheduler` counts the steps of its
    rank, and slow ranks take fewer: the rate would go back and forth.  It also warns that the
    optimizer has not stepped.

    A process group that exists is used and keeps its own timeout, which alone ends a wait for a
    silent rank of another host or a silent network.  A rank of this host that is silent for
    `stall_limit` is killed in either case.

    Raises `InputError` where the policy cannot run on real ranks, and for other wrong arguments.
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
    _check_agreement(policy=name, batch=batch, samples=samples, precision=precision)
    formats = NumberFormats(model, precision)
    hints = profile_hints(profile, batch, samples, (formats.full, formats.amp))
    _check_agreement(**{"the profile's amp_ratio": hints.amp_ratio})
    if formats.amp and not formats.unsettled and hints.amp_ratio is not None:
        formats.gain = hints.amp_ratio
    if profile is not None and hints.clean_seconds is None and rank == 0:
        warn(NO_HINTS)
    first = View(world_size, hints=hints, noise_scale=hints.noise_scale)
    support.check_policy(copy.deepcopy(given), name, first)
    if sampler is not None:
        sampler.check(rank, world_size, hints.batch)
    return Trainer(
        model, optimizer, formats, given, name, rank, world_size, hints=hints, sampler=sampler,
        out=None if out is None else Path(out), stall_limit=stall_limit, joined=joined,
    )  # fmt: skip


def _leave(session: Session) -> None:
    """Leave at the end of a script that did not call `close`."""
    error = getattr(sys, "last_value", None)
    failed = session.failed or (None if error is None else describe_error(error))
    session.members.close(failed or "its script had come to its end")
    session.leave(failed)


def _tell_unused(by_itself: list[bool]) -> None:
    if by_itself:
        warn(UNUSED)


def _check_agreement(**arguments: object) -> None:
    """Raise `InputError` on all ranks where their arguments differ."""
    gathered: list[dict[str, object]] = [arguments] * dist.get_world_size()
    dist.all_gather_object(gathered, arguments)
    for name in arguments:
        values = [each[name] for each in gathered]
        if any(value != values[0] for value in values):
            shown = ", ".join(f"rank {rank} {value!r}" for rank, value in enumerate(values))
            raise InputError(f"wrap() was given different values of {name}: {shown}; give one")


class Trainer:
    """One rank's training under a policy, made by `wrap`; a context manager.

    The plan decides how steps are taken: through DDP where all ranks wait for each other, else
    under a server process that the lowest rank starts.  A change takes place at the end of an
    update; parameters, optimizer state and buffers are synchronized.
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

        closure: computes the mean loss over the batch.

        Gradients are cleared here.  Data loading between two steps counts as part of the next one.
        A rank that no plan has a step for waits; where the training ends without one, the loss is
        NaN.

        Errors of the closure, of backward and of optimizer hooks come out unchanged.  Raises
        `InputError` with the parameter's name where one got no gradient under all-reduce (under a
        server it counts as zeros), `RankFailure` where another rank is lost, and `Disagreement`
        where replicas of the policy decided differently.
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
        """The number of this rank in the present world."""
        return self._members.rank

    @property
    def world_size(self) -> int:
        """Ranks in the present world, without those that were lost under all-reduce."""
        return self._members.world_size

    @property
    def begun(self) -> bool:
        """Whether the clock of the run has started; it does when all ranks and a server are ready.

        The closure is called before that too, for measurements.
        """
        return self._session.mode is not None

    @property
    def samples(self) -> int:
        """Samples applied by all ranks together, as far as this one knows."""
        return self._session.samples

    @property
    def over(self) -> bool:
        """Whether the samples of `wrap` have been applied, or the plan can take no further step."""
        mode = self._session.mode
        if isinstance(mode, ServerMode) and mode.finished:
            return True
        return self.hints.samples is not None and self.samples >= self.hints.samples

    @property
    def plan(self) -> Plan | None:
        """The plan in force, resolved; None under a server and before the first step."""
        mode = self._session.mode
        return mode.live.plan if isinstance(mode, AllReduceMode) else None

    @property
    def next_batch(self) -> int:
        """Size of this rank's next batch.  Reading it obliges the caller to use that size."""
        return self._session.next_batch()

    @property
    def lowest(self) -> bool:
        """Whether no lower rank is left, as far as this one knows; before `close`."""
        return self._session.lowest

    @property
    def model(self) -> nn.Module:
        """The model given to `wrap`."""
        return self.replica.model

    def close(self) -> None:
        """End the training and its record on this rank; no step can follow.

        The rank that started the server waits until the others have left it too.  At the end of a
        script this happens by itself.
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
        """A checkpoint after a step: model, optimizer, policy, facts, sampler and loss scale.

        Under a server it holds the server's present parameters and optimizer state; this rank's own
        model stays as it was pulled, since its next gradient counts as computed from that.  Where
        models are averaged each rank gets its own model.
        """
        return checkpoint.to_checkpoint(
            self.replica, self.name, self.world_size, self.sampler,
            *self._session.checkpoint_state(),
        )  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; on all ranks, before the first step.

        Raises `InputError` for a checkpoint of another policy or number of ranks.
        """
        if self.begun:
            raise InputError("a checkpoint is loaded before the first step; call wrap() anew")
        self._session.go_on_from(
            *checkpoint.from_checkpoint(
                state, self.replica, self.name, self.world_size, self.sampler
            )
        )
