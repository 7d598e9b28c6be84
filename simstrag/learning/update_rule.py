"""How the updates of a run become parameters, which all its plans must agree on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from simstrag.contract import Compensation, Outer, Plan, Screen, Via, Weigh
from simstrag.errors import InputError


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """What a plan says about the parameters that an update makes, and nothing about its time.

    average, outer, fragments, compensation, screen: of the plan.
    overlap: private steps that a rank takes on while its contribution is under way.
    server: whether models are averaged by a server.

    >>> UpdateRule.of(Plan(average=True, outer=Outer(lr=0.7))).has_global_model
    True
    """

    average: bool = False
    outer: Outer | None = None
    fragments: int = 1
    overlap: int = 0
    server: bool = False
    compensation: Compensation | None = None
    screen: Screen | None = None

    @classmethod
    def of(cls, plan: Plan) -> UpdateRule:
        """The rule of a plan.

        Raises `InputError` where its quorums overlap differently, a cutoff drops contributions
        whose run-on has begun, or groups with rounds weigh by the members of an update to come.
        """
        if not plan.average:
            rounds = any(quorum.rounds > 1 for quorum in plan.quorums)
            if rounds and plan.weigh is not Weigh.WORLD:
                raise InputError(
                    "groups with rounds need weigh WORLD for a real learner: how many samples "
                    "their update will have is not known before"
                )
            return cls(compensation=plan.compensation, screen=plan.screen)
        overlaps = {quorum.overlap for quorum in plan.quorums}
        if len(overlaps) > 1:
            raise InputError(
                f"a real learner needs one overlap in all quorums, not {sorted(overlaps)}"
            )
        if max(overlaps) and plan.damping.cutoff is not None:
            raise InputError(
                "a contribution cannot be dropped by damping's cutoff beside an overlap: its rank "
                "has gone on from it"
            )
        server = any(quorum.via is Via.SERVER for quorum in plan.quorums)
        return cls(True, plan.outer, plan.fragments, overlaps.pop(), server)

    @property
    def has_global_model(self) -> bool:
        """Whether ranks start from one model, rather than from the average they took part in."""
        return self.outer is not None or self.fragments > 1 or self.overlap > 0 or self.server

    @property
    def corrects(self) -> bool:
        """Whether single gradients are corrected or tested."""
        return self.compensation is not None or self.screen is not None

    @property
    def outer_or_mean(self) -> Outer:
        """The outer optimizer, or the one that takes the mean as it is."""
        return self.outer or Outer()


WEIGHTED_SUM = UpdateRule()
"""The optimizer takes the weighted sum of an update's gradients as it is."""


def common_rule(rules: Collection[UpdateRule]) -> UpdateRule:
    """The rule of all plans of a run.  Raises `InputError` where they have several.

    >>> common_rule([UpdateRule(), UpdateRule(average=True)])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: a real learner needs plans that agree on average: nothing says ...
    """
    if len(rules) == 1:
        return next(iter(rules))
    names = [each.name for each in fields(UpdateRule)]
    changed = [name for name in names if len({getattr(rule, name) for rule in rules}) > 1]
    raise InputError(
        f"a real learner needs plans that agree on {' and '.join(changed)}: nothing says what "
        "becomes of models and optimizers where that changes"
    )
