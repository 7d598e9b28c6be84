"""A training on one rank, as a script sees it: steps, checkpoints, and its end."""

from __future__ import annotations

import atexit
import math
import sys
from typing import TYPE_CHECKING, Any

import torch

from simstrag.ddp import checkpoint
from simstrag.ddp.allreduce.allreduce_mode import AllReduceMode
from simstrag.ddp.failures.diagnosis import describe_error, warn
from simstrag.ddp.failures.rank_failure import Stage, local_error
from simstrag.ddp.modes import Modes
from simstrag.ddp.rendezvous import leave_group
from simstrag.ddp.server.server_mode import ServerMode
from simstrag.ddp.sharded.served_modes import FollowingMode
from simstrag.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from simstrag.contract import Plan
    from simstrag.ddp.precision import Closure
    from simstrag.ddp.rank_setup import RankSetup

SERVED = ServerMode, FollowingMode
"""The modes under a server."""

UNUSED = (
    "trainer.step() was never called, and the optimizer has stepped: each rank trained for itself, "
    "without the policy"
)


class Trainer:
    """One rank's training under a policy, made by `wrap`; a context manager.

    name: the policy's name.
    """

    def __init__(self, setup: RankSetup) -> None:
        self.replica, self.name = setup.replica, setup.name
        self.hints, self.sampler = setup.hints, setup.sampler
        self._setup, self._members = setup, setup.members
        self._failed = ""  # the last step's error as text: the error itself would keep tensors
        self._batch_read, self._closed = False, False
        self._modes = Modes(setup)
        self._steps_without: list[bool] = []  # steps of the optimizer before `step` is called
        self._watched = self.replica.optimizer.register_step_post_hook(
            lambda *_: self._steps_without.append(True)
        )
        atexit.register(self._leave)

    # -- what a script sees ------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The number of this rank in the present world."""
        return self._members.rank

    @property
    def world_size(self) -> int:
        """Ranks in the present world, without those that were lost under all-reduce."""
        return self._members.world_size

    @property
    def shards(self) -> int:
        """Ranks of a replica."""
        return self._setup.world.shards

    @property
    def begun(self) -> bool:
        """Whether the clock of the run has started; it does when all ranks and a server are ready.

        The closure is called before that too, for measurements.
        """
        return self._modes.current is not None

    @property
    def samples(self) -> int:
        """Samples applied by all ranks together, as far as this one knows."""
        source = self._modes.current or self._modes.start.facts
        return 0 if source is None else source.samples

    @property
    def over(self) -> bool:
        """Whether the samples of `wrap` have been applied, or the plan can take no further step."""
        ended = self.hints.samples is not None and self.samples >= self.hints.samples
        return self._left_out or ended

    @property
    def _left_out(self) -> bool:
        mode = self._modes.current
        return isinstance(mode, SERVED) and mode.finished

    @property
    def plan(self) -> Plan | None:
        """The plan in force, resolved; None under a server and before the first step."""
        mode = self._modes.current
        return mode.live.plan if isinstance(mode, AllReduceMode) else None

    @property
    def next_batch(self) -> int:
        """Size of this rank's next batch.  Reading it obliges the caller to use that size.

        Of a rank that has no step yet it is the nominal size, with which `step` measures.  Ranks
        that shard a replica share its samples.
        """
        self._batch_read = True
        return self._setup.world.part(self._replica_batch)

    @property
    def _replica_batch(self) -> int:
        """Samples of the next step of this rank's replica."""
        if self._modes.current is not None:
            return self._modes.current.next_batch
        batch, world = self._setup.batch, self._setup.world
        return self._modes.first_plan.samples(batch, world.world_size)[world.rank] or batch

    @property
    def lowest(self) -> bool:
        """Whether no lower rank is left, as far as this one knows; before `close`."""
        world = self._setup.world
        left = set(range(world.world_size)) - set(self._modes.lost)
        return world.leads and world.rank == min(left, default=world.rank)

    @property
    def model(self) -> nn.Module:
        """The model given to `wrap`."""
        return self.replica.model

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint after a step: model, optimizer, policy, facts, sampler and loss scale.

        Under a server it holds the server's present parameters and optimizer state; this rank's own
        model stays as it was pulled, since its next gradient counts as computed from that.  Where
        models are averaged each rank gets its own model.

        The ranks of a replica call it together; its leader gets the whole model, the others get an
        empty dict.
        """
        mode = self._modes.current
        if isinstance(mode, FollowingMode):
            mode.follow_checkpoint()
            return {}
        whole = checkpoint.to_checkpoint(self._setup, *self._modes.state())
        self._modes.release()
        return whole if self._setup.world.leads else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; on all ranks, before the first step.

        Raises `InputError` for a checkpoint of another policy or number of ranks.
        """
        if self.begun:
            raise InputError("a checkpoint is loaded before the first step; call wrap() anew")
        self._modes.go_on_from(checkpoint.from_checkpoint(state, self._setup))

    # -- steps -------------------------------------------------------------------------------

    def step(self, closure: Closure) -> torch.Tensor:
        """Forward, backward, communication and update for one batch; the batch's loss.

        closure: computes the mean loss over the batch.

        Gradients are cleared here.  Data loading between two steps counts as part of the next one.
        If the plan gives this rank no step, this waits until a later plan does.  The loss is NaN if
        the training ends first, or if the step that comes is of another size than the batch that
        was drawn before the wait; draw the next one then.

        Errors of the closure, of backward and of optimizer hooks come out unchanged.  Raises
        `InputError` with the parameter's name where one got no gradient under all-reduce (under a
        server it counts as zeros), `RankFailure` where another rank is lost, and `Disagreement`
        where replicas of the policy decided differently.
        """
        self._watched.remove()
        self._steps_without.clear()
        if not callable(closure):
            raise InputError(
                "step() takes a function that computes the loss, not the loss: "
                "trainer.step(lambda: loss_fn(model(x), y))"
            )
        if self._closed:
            raise InputError("this training was closed; call wrap() anew")

        def guarded() -> torch.Tensor:
            with local_error():
                loss = closure()
            mode, read, world = self._modes.current, self._batch_read, self._setup.world
            self.replica.share = world.share(self._replica_batch) if read else 1.0
            uneven = isinstance(mode, SERVED) and mode.next_batch != self._setup.batch
            if uneven and not read:
                raise InputError(
                    f"policy {self.name} shares batches out unevenly: draw trainer.next_batch "
                    "samples before each step"
                )
            return loss

        try:
            loss = self._step_as_members_allow(guarded)
        except BaseException as error:
            self._failed = describe_error(error)
            raise
        self._failed = ""
        self.replica.clock.begin()
        return loss

    def _step_as_members_allow(self, closure: Closure) -> torch.Tensor:
        """A step, repeated by the ranks that are left where one is lost and the others go on."""
        modes = self._modes

        def stage() -> Stage | None:
            whole = self._setup.world.layout is None and self.sampler is None
            if not whole or isinstance(modes.current, SERVED):
                return None  # under a server the others go on without forming a group
            return Stage.BEGINNING if modes.current is None else Stage.TRAINING

        def step(agreed: Stage | None) -> torch.Tensor:
            if agreed is Stage.TRAINING:
                modes.go_on(closure)
            elif agreed is not None:
                modes.start_over(agreed)
            loss = self._take_step(closure)
            if (lost := modes.lost) and self._members.all_end:
                self._members.end(lost)
                raise ConnectionError("; ".join(lost.values()))
            return loss

        return self._members.persist(step, stage)

    def _take_step(self, closure: Closure) -> torch.Tensor:
        modes = self._modes
        if modes.current is None:
            read, size = self._batch_read, self._replica_batch
            modes.begin(closure)
            modes.change_where_due(closure)
            assert modes.current is not None
            unfit = read and modes.current.next_batch != size
            if self._left_out or unfit:  # no plan wanted a step of this rank, or one of this size
                self._batch_read = False
                return torch.tensor(math.nan)
            self.replica.clock.begin()
        assert modes.current is not None
        if self._batch_read:  # it may have been before this mode was entered
            _ = modes.current.next_batch
        loss = modes.current.step(closure)
        self._batch_read = False
        self._members.first_step_taken()
        modes.change_where_due(closure)
        return loss

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """End the training and its record on this rank; no step can follow.

        The rank that started the server waits until the others have left it too.  At the end of a
        script this happens by itself.
        """
        atexit.unregister(self._leave)
        self._end(None)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        atexit.unregister(self._leave)
        if failure is not None:
            self._steps_without.clear()
        self._end(None if failure is None else describe_error(failure))

    def _leave(self) -> None:
        """Leave at the end of a script that did not call `close`."""
        error = getattr(sys, "last_value", None)
        failed = self._failed or (None if error is None else describe_error(error))
        self._members.close(failed or "its script had come to its end")
        self._end(failed)

    def _end(self, failed: str | None) -> None:
        """End the training on this rank.

        failed: why it failed, which the other ranks can read; it then waits for no other rank.
        """
        if self._steps_without and self.rank == 0:
            warn(UNUSED)
            self._steps_without.clear()  # a second close does not warn again
        self._modes.note_end()
        if failed is not None:
            self._members.close(failed)
        self._modes.close(failed)
        self._members.close()
        if failed is not None:
            self._members.linger()
            atexit.unregister(leave_group)  # leaving a broken group may hang
        self.replica.forget_groups()
        self._closed = True
