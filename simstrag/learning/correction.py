"""What is done to each gradient before it is applied: delay compensation, a test on other samples.

Sources: Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML
2017, arXiv:1609.08326; Xie et al., "Zeno++", ICML 2020, arXiv:1903.07020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simstrag.contract import Compensation
from simstrag.errors import InputError
from simstrag.learning.update_rule import UpdateRule

if TYPE_CHECKING:
    import torch

    from simstrag.learning.batches import Batches
    from simstrag.learning.gradients import GradientEngine

EPSILON = 1e-7
"""Added to the mean square of gradients below its root."""


class DelayCompensation:
    """Delay compensation of the gradients of a run, one after the other.

    compensation: its constants.
    mean_square: of the gradients so far; None before the first, and without a decay.

    >>> import torch
    >>> compensate = DelayCompensation(Compensation(strength=0.5))
    >>> gradient, now, pulled = torch.tensor([2.0]), torch.tensor([4.0]), torch.tensor([3.0])
    >>> compensate.correct(gradient, now, pulled)
    tensor([4.])
    """

    def __init__(self, compensation: Compensation) -> None:
        self.compensation = compensation
        self.mean_square: torch.Tensor | None = None

    def correct(
        self, gradient: torch.Tensor, now: torch.Tensor, pulled: torch.Tensor
    ) -> torch.Tensor:
        """A gradient as it is applied, in a new tensor.

        now, pulled: parameters before its update, and those that it was computed at.
        """
        strength, decay, square = (
            self.compensation.strength, self.compensation.decay, gradient.square(),
        )  # fmt: skip
        change = strength * square * (now - pulled)
        if decay:
            fresh, before = (1 - decay) * square, self.mean_square
            self.mean_square = fresh if before is None else decay * before + fresh
            change = change / (self.mean_square + EPSILON).sqrt()
        return gradient + change


@dataclass
class Correction:
    """Corrects the gradients of a run, one after the other; compensation comes before the test.

    rule: what is done.
    own_gradient: the server's own gradient at some parameters, called with these, the number of the
        turn and the number of samples, which are drawn from all shards.
    lr: learning rate of the optimizer.
    """

    rule: UpdateRule
    own_gradient: Callable[[torch.Tensor, int, int], torch.Tensor]
    lr: float
    _compensation: DelayCompensation | None = field(default=None, init=False)
    _own: tuple[int, torch.Tensor] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.rule.compensation is not None:
            self._compensation = DelayCompensation(self.rule.compensation)

    @classmethod
    def of(
        cls, rule: UpdateRule, engine: GradientEngine, batches: Batches, lr: float
    ) -> Correction | None:
        """The correction of a rule by a real learner; None where the rule has none."""
        if not rule.corrects:
            return None
        if rule.screen is not None and rule.screen.batch > batches.count:
            raise InputError(
                f"a screen's batch of {rule.screen.batch} is larger than the task, which has "
                f"{batches.count} samples: lower it"
            )

        def own_gradient(now: torch.Tensor, turn: int, size: int) -> torch.Tensor:
            import torch

            samples = torch.from_numpy(batches.of_server(turn, size))
            weights = torch.full((size,), 1 / size, dtype=engine.dtype)
            with torch.enable_grad():
                return engine.one(now, samples, weights, amp=False)

        return cls(rule, own_gradient, lr)

    def state_dict(self) -> dict[str, Any]:
        """The mean square of the gradients, and the server's last one, for a checkpoint."""
        square = None if self._compensation is None else self._compensation.mean_square
        return {"mean_square": square, "own": self._own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._own = state["own"]
        if self._compensation is not None:
            self._compensation.mean_square = state["mean_square"]

    def correct(
        self, gradient: torch.Tensor, now: torch.Tensor, pulled: torch.Tensor, update: int
    ) -> torch.Tensor | None:
        """A gradient as it is applied; None where it failed its test.

        now, pulled: parameters before its update, and those that it was computed at.
        update: the version that it makes.
        """
        if self._compensation is not None:
            gradient = self._compensation.correct(gradient, now, pulled)
        if self.rule.screen is not None:
            return self._screened(gradient, now, update)
        return gradient

    def _screened(
        self, gradient: torch.Tensor, now: torch.Tensor, update: int
    ) -> torch.Tensor | None:
        screen = self.rule.screen
        assert screen is not None
        turn = (update - 1) // screen.every
        if self._own is None or self._own[0] != turn:
            self._own = turn, self.own_gradient(now, turn, screen.batch)
        own = self._own[1]
        size = gradient.norm()
        if size:
            gradient = gradient * (own.norm() / size)
        score = self.lr * own.dot(gradient) - screen.rho * gradient.square().sum()
        return gradient if score + self.lr * screen.epsilon >= 0 else None
