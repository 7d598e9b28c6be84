"""`wrap`: makes a `Trainer`, once all ranks have given it the same arguments and can be trained."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from simstrag import policies
from simstrag.contract import Hints, Policy, View
from simstrag.ddp import plain_collectives, policy_support
from simstrag.ddp.failures.diagnosis import describe_error, warn
from simstrag.ddp.failures.rank_failure import Membership, Stage
from simstrag.ddp.local_step_timer import StepTimer, device_clock, measure_cores_per_rank
from simstrag.ddp.policy_support import profile_hints
from simstrag.ddp.precision import NumberFormats
from simstrag.ddp.rank_setup import RankSetup
from simstrag.ddp.rendezvous import RankPlace, join, use_existing_group
from simstrag.ddp.replica import Replica
from simstrag.ddp.sharded.world import ReplicaWorld, join_replicas, shard_mesh
from simstrag.ddp.trainer import Trainer
from simstrag.errors import InputError
from simstrag.profile.profile import Profile

if TYPE_CHECKING:
    from simstrag.ddp.sampler import ShareSampler

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
    validation: str | None = None,
    out: str | Path | None = None,
    stall_limit: float | None = None,
    joined: RankPlace | None = None,
) -> Trainer:
    """Train a model under a policy; every rank calls this with the same arguments.

    model: the bare model on its device, not in DDP.  A model that FSDP2 shards over the ranks of a
        replica makes replicas the workers of the policy: mesh["shard"] of a mesh of replicas and
        shards.
    optimizer: an optimizer of the model's parameters.
    policy: a name with parameters such as ``"ssp:bound=5"``, or an object, which is copied.
    profile: a calibration of this batch and these precisions; policies get its hints.  Without one
        they measure instead.
    batch: samples in the batch of a rank, or of a replica of several; without it a gradient counts
        as one sample.
    samples: samples after which the training ends.
    precision: full and reduced precision, see `NumberFormats`.
    sampler: makes batches of uneven shares (`ShareSampler`), which some policies need.
    validation: the workload of which a server takes gradients itself, for policies that test by
        them (`zeno`): a name, or ``"module:function"`` that returns (model, loss, optimizer,
        make_batch); its model has the parameters of this one by name, its batches are the server's.
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
    name, given = policies.new(policy)
    if not dist.is_initialized():
        joined = join(stall_limit, patient=True)
    elif joined is None:
        joined = use_existing_group(stall_limit)
    if (mesh := shard_mesh(model)) is not None and sampler is not None:
        raise InputError(
            "a ShareSampler counts ranks, and the model is sharded over replicas of several; leave "
            "it out, and draw trainer.next_batch samples before each step"
        )
    limit = stall_limit or (60.0 if joined is None else joined.stall_limit)
    members = Membership(dist.get_rank(), dist.get_world_size(), joined, limit)

    world = ReplicaWorld(members)
    formats: NumberFormats | None = None

    def agree(_: Stage | None = None) -> tuple[NumberFormats, Hints, float]:
        """What ranks settle together; after a loss before the first step they do it again."""
        nonlocal formats, world
        _check_agreement(policy=name, batch=batch, samples=samples, precision=precision)
        if mesh is not None and world.layout is None:
            world = join_replicas(mesh, members)
        formats = formats or _formats_of(model, precision, world)
        hints = profile_hints(profile, batch, samples, (formats.full, formats.amp))
        _check_agreement(**{"the profile's amp_ratio": hints.amp_ratio})
        first = View(world.world_size, hints=hints, noise_scale=hints.noise_scale)
        policy_support.check_policy(copy.deepcopy(given), name, first)
        return formats, hints, measure_cores_per_rank()

    try:
        formats, hints, cores = members.persist(
            agree, lambda: Stage.AGREEING if sampler is None else None
        )
        if formats.amp and not formats.unsettled and hints.amp_ratio is not None:
            formats.gain = hints.amp_ratio
        if profile is not None and hints.clean_seconds is None and members.rank == 0:
            warn(NO_HINTS)
        if sampler is not None:
            sampler.check(members.rank, members.world_size, hints.batch)
        device = next(model.parameters()).device
        clock = StepTimer(device_clock(device, cores))
        replica = _replica_of(model, optimizer, formats, clock, world)
        setup = RankSetup(
            replica, members, world, given, name, hints, sampler,
            None if out is None else Path(out), validation, agree,
        )  # fmt: skip
        return Trainer(setup)
    except BaseException as error:
        members.close(describe_error(error))
        raise


def _formats_of(model: nn.Module, precision: str, world: ReplicaWorld) -> NumberFormats:
    if world.layout is None:
        return NumberFormats(model, precision)
    from simstrag.ddp.sharded.precision import ShardedFormats

    return ShardedFormats(model, precision, world.within)


def _replica_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    formats: NumberFormats,
    clock: StepTimer,
    world: ReplicaWorld,
) -> Replica:
    if world.layout is None:
        return Replica(model, optimizer, formats, clock)
    from simstrag.ddp.sharded.sharded_replica import ShardedReplica

    return ShardedReplica(model, optimizer, formats, clock, world)


def _check_agreement(**arguments: object) -> None:
    """Raise `InputError` on all ranks where their arguments differ."""
    gathered = plain_collectives.gather(arguments)
    for name in arguments:
        values = [each[name] for each in gathered]
        if any(value != values[0] for value in values):
            shown = ", ".join(f"rank {rank} {value!r}" for rank, value in enumerate(values))
            raise InputError(f"wrap() was given different values of {name}: {shown}; give one")
