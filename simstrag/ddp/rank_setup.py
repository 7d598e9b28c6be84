"""What a training is given once, on each rank: the arguments of `wrap`, made ready."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simstrag import policies
from simstrag.contract import Hints, Policy, View
from simstrag.ddp.flat_parameters import check_served
from simstrag.engine.live import Live
from simstrag.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from simstrag.contract import Plan
    from simstrag.ddp.failures.rank_failure import Membership
    from simstrag.ddp.replica import Replica
    from simstrag.ddp.sampler import ShareSampler
    from simstrag.ddp.sharded.world import ReplicaWorld


@dataclass(frozen=True, slots=True)
class RankSetup:
    """The arguments of one rank's training.

    policy: as it begins; copy it before it is asked.
    name: the policy's name.
    out: a folder for the record.
    validation: the workload of which a server takes gradients itself.
    agree: repeats what ranks settled together in `wrap`; collective.
    """

    replica: Replica
    members: Membership
    world: ReplicaWorld
    policy: Policy
    name: str
    hints: Hints
    sampler: ShareSampler | None
    out: Path | None
    validation: str | None
    agree: Callable[[], object]

    @property
    def batch(self) -> int:
        """Samples of a rank's step at a share of 1."""
        return self.hints.batch or 1

    def first_plan(self, policy: Policy) -> Plan:
        """The plan that a policy begins with, resolved; the policy stays as it is."""
        world_size = self.world.world_size
        view = View(world_size, hints=self.hints, noise_scale=self.hints.noise_scale)
        return policies.ask(copy.deepcopy(policy), view, self.name).resolved(world_size)

    def live(self, policy: Policy, **given: Any) -> Live:
        """The engine for this rank's replica of a policy."""
        return Live(
            policy, self.world.world_size, self.batch, self.hints, name=self.name,
            reduced=not self.replica.formats.refusal, **given,
        )  # fmt: skip

    def check_served(self, plan: Plan) -> None:
        """Raise `InputError` for a sampler or a step hook, which a server would ignore.

        And where a server is to take gradients of its own, for lack of a loss.
        """
        if self.sampler is not None:
            raise InputError(
                f"policy {self.name} needs a server, under which ranks take different numbers of "
                "steps, and a ShareSampler counts on equal ones; leave it out, and draw "
                "trainer.next_batch samples before each step"
            )
        if plan.screen is not None and self.validation is None:
            raise InputError(
                f"policy {self.name} tests gradients by some that its server takes itself: give "
                "wrap() a validation, the name of the workload or the module:function of a script, "
                "which returns (model, loss, optimizer, make_batch)"
            )
        if not plan.average:  # there each rank's own optimizer steps
            check_served(self.replica.optimizer, self.name)
